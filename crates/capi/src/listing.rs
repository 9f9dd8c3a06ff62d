//! Listings for callbacks. Used by libtabane and, by path, by libchfs.

use crate::convert::{mode_of_kind, stat_of};
use client::descriptors::Mounted;
use client::{DirectoryEntry, DirectoryStream, Error, Result, Status};
use libc::c_char;
use std::ffi::CString;

/// Calls `on_entry` with the name and attributes of each entry until it returns false.
pub fn each_entry(
    mounted: &Mounted,
    mut stream: DirectoryStream,
    on_entry: &mut dyn FnMut(*const c_char, *const libc::stat) -> bool,
) -> Result<()> {
    while !stream.is_at_end() {
        let mut page = mounted.client.next_page(&mut stream)?;
        mounted.client.complete_entries(&mut page)?;
        for entry in page {
            let stat = entry_stat(&entry);
            let name = CString::new(entry.name).map_err(|_| Error::new(Status::BadMessage, "a name holds a NUL"))?;
            if !on_entry(name.as_ptr(), &stat) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Attributes of a listed entry; of one that went away meanwhile, id and kind alone.
fn entry_stat(entry: &DirectoryEntry) -> libc::stat {
    if let Some(attributes) = &entry.attributes {
        return stat_of(attributes);
    }
    // SAFETY: all fields are integers, for which zeros are a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    stat.st_ino = entry.id.0;
    stat.st_mode = mode_of_kind(entry.kind);
    stat
}
