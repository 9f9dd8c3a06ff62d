//! Listing directories: like readdir(3), and with a callback for the share of one server.

use crate::convert::*;
use crate::listing::each_entry;
use crate::mounted;
use client::descriptors::Mounted;
use client::{DirectoryEntry, DirectoryStream, Error, FileId, Kind, Result, Status};
use libc::{c_char, c_int, c_void, dirent, off_t};
use std::sync::Arc;

/// A listing under way. One thread at a time may use it.
pub struct TabaneDirectory {
    mounted: Arc<Mounted>,
    stream: DirectoryStream,
    page: std::vec::IntoIter<DirectoryEntry>,
    /// Entries that were handed out, `.` and `..` included.
    entry_count: u64,
    entry: dirent,
}

/// Gets one entry of a listing: the caller's context, the name, its attributes, and 0. Other than 0 ends the listing.
pub type TabaneFiller = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        name: *const c_char,
        attributes: *const libc::stat,
        offset: off_t,
    ) -> c_int,
>;

/// Starts a listing. NULL and errno on failure.
///
/// # Safety
/// `path` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_opendir(path: *const c_char) -> *mut TabaneDirectory {
    let open = || -> Result<TabaneDirectory> {
        let mounted = mounted()?;
        // SAFETY: the caller promises it.
        let path = unsafe { bytes_of(path, "path") }?;
        let mut stream = mounted.client.open_directory(path, false)?;
        // The first page at once, so that a directory that is not there is known here.
        let page = mounted.client.next_page(&mut stream)?.into_iter();
        // SAFETY: all fields are integers, for which zeros are a value.
        let entry = unsafe { std::mem::zeroed() };
        Ok(TabaneDirectory { mounted, stream, page, entry_count: 0, entry })
    };
    match open() {
        Ok(directory) => Box::into_raw(Box::new(directory)),
        Err(error) => {
            note_error(&error);
            std::ptr::null_mut()
        }
    }
}

impl TabaneDirectory {
    /// The next entry, or `None` at the end.
    fn advance(&mut self) -> Result<Option<&mut dirent>> {
        let id = self.stream.id();
        match self.entry_count {
            0 => return Ok(Some(self.fill(b".", id, Kind::Directory))),
            1 => return Ok(Some(self.fill(b"..", id, Kind::Directory))),
            _ => {}
        }
        loop {
            if let Some(entry) = self.page.next() {
                return Ok(Some(self.fill(&entry.name, entry.id, entry.kind)));
            }
            if self.stream.is_at_end() {
                return Ok(None);
            }
            self.page = self.mounted.client.next_page(&mut self.stream)?.into_iter();
        }
    }

    fn fill(&mut self, name: &[u8], id: FileId, kind: Kind) -> &mut dirent {
        self.entry_count += 1;
        let entry = &mut self.entry;
        assert!(name.len() < entry.d_name.len(), "names are at most 255 bytes");
        entry.d_ino = id.0;
        entry.d_off = self.entry_count as off_t;
        entry.d_reclen = size_of::<dirent>() as u16;
        entry.d_type = type_of(kind);
        for (place, byte) in entry.d_name.iter_mut().zip(name.iter().chain(&[0])) {
            *place = *byte as c_char;
        }
        entry
    }
}

/// The next entry, valid until the next call for the same listing. NULL with errno unchanged at the end, NULL with
/// errno set on failure.
///
/// # Safety
/// `directory` comes from `tabane_opendir` and was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_readdir(directory: *mut TabaneDirectory) -> *mut dirent {
    // SAFETY: the caller promises it.
    let Some(directory) = (unsafe { directory.as_mut() }) else {
        note_error(&Error::new(Status::BadHandle, "directory is a null pointer"));
        return std::ptr::null_mut();
    };
    let errno = errno();
    match directory.advance() {
        Ok(entry) => {
            // What the messages met on their way, such as EAGAIN, is none of the caller's.
            set_errno(errno);
            entry.map_or(std::ptr::null_mut(), std::ptr::from_mut)
        }
        Err(error) => {
            note_error(&error);
            std::ptr::null_mut()
        }
    }
}

/// Starts a listing over.
///
/// # Safety
/// `directory` comes from `tabane_opendir` and was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_rewinddir(directory: *mut TabaneDirectory) {
    // SAFETY: the caller promises it.
    if let Some(directory) = unsafe { directory.as_mut() } {
        directory.stream.rewind();
        directory.page = Vec::new().into_iter();
        directory.entry_count = 0;
    }
}

/// Ends a listing.
///
/// # Safety
/// `directory` comes from `tabane_opendir` and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_closedir(directory: *mut TabaneDirectory) -> c_int {
    if directory.is_null() {
        return status_of::<()>(Err(Error::new(Status::BadHandle, "directory is a null pointer")));
    }
    // SAFETY: it was made by Box::into_raw, and the caller promises that it is given back once.
    drop(unsafe { Box::from_raw(directory) });
    0
}

/// Lists the share of one server of a directory, from 0 to `tabane_server_count() - 1`, so that several processes can
/// list a large directory together. `filler` gets every entry; `.` and `..` are not among them.
///
/// # Safety
/// `path` is a NUL-terminated string; `filler` may be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_readdir_index(
    path: *const c_char,
    index: c_int,
    context: *mut c_void,
    filler: TabaneFiller,
) -> c_int {
    let list = || {
        let mounted = mounted()?;
        // SAFETY: the caller promises it.
        let path = unsafe { bytes_of(path, "path") }?;
        let filler = filler.ok_or_else(|| Error::new(Status::Invalid, "filler is a null pointer"))?;
        let server = u32::try_from(index);
        let server = server.map_err(|_| Error::new(Status::Invalid, format!("server index {index} is negative")))?;
        let stream = mounted.client.open_directory_server(path, server, true)?;
        // SAFETY: the caller promises that the filler may be called.
        each_entry(&mounted, stream, &mut |name, stat| unsafe { filler(context, name, stat, 0) } == 0)
    };
    status_of(list())
}
