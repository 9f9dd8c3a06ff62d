//! Listings. Positions are those of the client's listing, which hold for ever; in front of the entries come `.` and
//! `..`.

use crate::attributes::attr_of;
use crate::device::TRANSFER_SIZE_MAX;
use crate::errno::Errno;
use crate::keeping::Validity;
use crate::protocol::{Header, Input, Read, Release, directory_entry_size};
use crate::serve::{Answer, Handled, Work, file_of, node_of};
use client::{Credentials, DirectoryEntry, DirectoryListing, Kind};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A directory that is open in some process.
pub struct Listing {
    /// Taken out while it is read from, which the kernel lets one caller do at a time.
    state: Mutex<Option<DirectoryListing>>,
    user: Credentials,
}

impl Listing {
    fn state(&self) -> MutexGuard<'_, Option<DirectoryListing>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Positions after `.` and after `..`.
const AFTER_ITSELF: u64 = 1;
const AFTER_PARENT: u64 = 2;
const _: () = assert!(AFTER_PARENT <= client::POSITION_RESERVED);
/// Entries that one request is given at most.
const ENTRY_COUNT_MAX: usize = 1024;
/// Bytes of a name as long as most are.
const COMMON_NAME: &[u8] = b"name-of-a-file.dat";

/// The kind of an entry, as `d_type` has it.
fn type_of(kind: Kind) -> u32 {
    let kind = match kind {
        Kind::File => libc::DT_REG,
        Kind::Directory => libc::DT_DIR,
        Kind::Symlink => libc::DT_LNK,
        Kind::Fifo => libc::DT_FIFO,
        Kind::Socket => libc::DT_SOCK,
        Kind::CharacterDevice => libc::DT_CHR,
        Kind::BlockDevice => libc::DT_BLK,
    };
    u32::from(kind)
}

impl Work<'_> {
    pub async fn open_directory(&mut self, header: &Header, _input: Input<'_>) -> Handled {
        let directory = file_of(header.node);
        let open = async |files: &client::FileSystem| files.open_directory_id(directory).await;
        let listing = self.for_caller(header, open).await?;
        let listing = Listing { state: Mutex::new(Some(listing)), user: self.mounted.callers.of(header) };
        let handle = self.mounted.listings.insert(listing);
        self.output.opened(handle, 0);
        Ok(Answer::Output)
    }

    pub fn close_directory(&mut self, mut input: Input<'_>) -> Handled {
        let request = Release::parse(&mut input)?;
        self.mounted.listings.remove(request.handle)?;
        Ok(Answer::Output)
    }

    /// readdir, and readdirplus `with_attributes`: as many entries as there is room for, from a position on.
    pub async fn read_directory(&mut self, header: &Header, mut input: Input<'_>, with_attributes: bool) -> Handled {
        let request = Read::parse(&mut input)?;
        // What the kernel keeps is not to be taken back by attributes that it may not keep.
        let tells_attributes = with_attributes && !self.mounted.keeping.is_on();
        let listing = self.mounted.listings.get(request.handle)?;
        let room = (request.size as usize).min(TRANSFER_SIZE_MAX);
        let dots = [(AFTER_ITSELF, &b"."[..]), (AFTER_PARENT, b"..")];
        for (next, name) in dots.into_iter().filter(|(next, _)| request.offset < *next) {
            if self.output.len() + directory_entry_size(name, with_attributes) > room {
                return Ok(Answer::Output);
            }
            if with_attributes {
                self.output.no_entry();
            }
            self.output.directory_entry(header.node, next, u32::from(libc::DT_DIR), name);
        }
        let count_max = room / directory_entry_size(COMMON_NAME, with_attributes);
        let count_max = count_max.clamp(1, ENTRY_COUNT_MAX);
        let mut state = listing.state().take().ok_or(Errno(libc::EBUSY))?;
        let entries = self
            .run_as(&listing.user, async |files| {
                let mut entries = files.entries_from(&mut state, request.offset, count_max, tells_attributes).await?;
                if tells_attributes {
                    files.complete_entries(&mut entries).await?;
                }
                Ok::<_, client::Error>(entries)
            })
            .await;
        *listing.state() = Some(state);
        self.fill(&entries.map_err(Errno::from)?, room, with_attributes, tells_attributes)
    }

    fn fill(&mut self, entries: &[DirectoryEntry], room: usize, with_attributes: bool, tells: bool) -> Handled {
        for entry in entries {
            if self.output.len() + directory_entry_size(&entry.name, with_attributes) > room {
                break;
            }
            if tells && entry.kind == Kind::Directory {
                self.mounted.directories.note(node_of(entry.id));
            }
            if with_attributes {
                match entry.attributes.as_ref().filter(|_| tells) {
                    Some(attributes) => self.output.entry(&attr_of(attributes), Validity::NONE),
                    // Also one that is gone since it was listed: the kernel will ask for it by name.
                    None => self.output.no_entry(),
                };
            }
            self.output.directory_entry(node_of(entry.id), entry.next_cursor, type_of(entry.kind), &entry.name);
        }
        Ok(Answer::Output)
    }
}
