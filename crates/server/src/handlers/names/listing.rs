//! ReadDirectory: this server's share of a directory, in pages.

use crate::core::{Core, Failure, Notice, until};
use crate::handlers::check_directory;
use crate::journal::tables::Tables;
use crate::names::Dentry;
use reactor::{BodyPiece, Nanos, ReplyBody};
use std::cell::Cell;
use std::rc::Rc;
use wire::limits::LISTING_PAGE_SIZE_MAX;
use wire::messages::{ListingEntry, ListingReply, ReadDirectoryRequest};
use wire::{Decode, Decoder, Encode, FileId, Kind, Name, Status};

/// Bytes of all listings that are on their way to clients at a time; beyond it pages get small.
pub const LISTING_BYTES_MAX: u64 = 16 << 20;
const PAGE_SIZE_MIN: u64 = 4096;
const PAGE_SIZE_MAX: u64 = 256 << 10;

const _: () = assert!(PAGE_SIZE_MAX <= LISTING_PAGE_SIZE_MAX as u64);

/// Listings that are on their way to clients.
#[derive(Default)]
pub struct Listings {
    bytes: Rc<Cell<u64>>,
}

/// Gives a page's bytes back when it is sent.
struct PageGuard {
    held: Rc<Cell<u64>>,
    size: u64,
}

impl Drop for PageGuard {
    fn drop(&mut self) {
        self.held.set(self.held.get() - self.size);
    }
}

/// The directories that the path of a listing leads through, nearest first.
pub fn path_of(request: &ReadDirectoryRequest) -> impl Iterator<Item = FileId> + '_ {
    std::iter::once(request.directory).chain(request.ancestors.0.iter().copied())
}

/// Told when the removal of the directory that is to be listed is decided, or its move, if one is under way: until then
/// nobody can tell whether it is empty, gone or elsewhere.
pub fn removal_under_way(core: &Core, params: &[u8]) -> Option<Notice<()>> {
    let request = listing_of(params)?;
    let tables = core.tables.borrow();
    let mark = tables.marks.get(&request.directory.0).map(|mark| mark.resolved.clone());
    mark.or_else(|| tables.tree.wait_for(request.known, path_of(&request)))
}

/// The request of a ReadDirectory, or that which a Find begins with.
fn listing_of(params: &[u8]) -> Option<ReadDirectoryRequest> {
    ReadDirectoryRequest::decode(&mut Decoder::new(params)).ok()
}

/// Bytes of entries that a page may have now.
pub fn page_size_max(core: &Core, asked: u32) -> usize {
    let left = LISTING_BYTES_MAX.saturating_sub(core.listings.bytes.get());
    u64::from(asked).min(left).clamp(PAGE_SIZE_MIN, PAGE_SIZE_MAX) as usize
}

/// A page as the body of a reply; it counts as on its way until it is sent.
pub fn own_page(core: &Core, page: Vec<u8>) -> ReplyBody {
    let size = page.len() as u64;
    core.listings.bytes.set(core.listings.bytes.get() + size);
    let guard = PageGuard { held: core.listings.bytes.clone(), size };
    ReplyBody { pieces: vec![BodyPiece::Bytes(page)], guard: Some(Box::new(guard)) }
}

/// One page of entries; whole hashes only, so that the next page starts where this one ends.
pub fn read_directory(core: &Core, params: &[u8]) -> Result<(ListingReply, ReplyBody), Failure> {
    let request = ReadDirectoryRequest::from_bytes(params)?;
    if request.size_max > LISTING_PAGE_SIZE_MAX || request.cursor >= 1 << 63 {
        return Err(Failure::with_text(Status::Invalid, "size of the page or cursor is out of range"));
    }
    let tables = core.tables.borrow();
    tables.check_not_removed(path_of(&request))?;
    tables.tree.check(request.known, path_of(&request))?;
    check_directory(core, &tables, request.directory)?;
    let size_max = page_size_max(core, request.size_max);
    let mut page: Vec<u8> = Vec::new();
    let mut reply = ListingReply { next_cursor: request.cursor, end: true };
    // Where the entries of the last hash begin: a page is cut there.
    let mut group = (request.cursor, 0);
    let mut listed = 0;
    let unlooked = match request.with_attributes {
        true => core.first_to_look_at(request.directory, request.cursor),
        false => None,
    };
    core.walk_names(&tables, request.directory, request.cursor, &mut |entry| {
        if entry.cursor != group.0 {
            group = (entry.cursor, page.len());
        }
        encode(core, &tables, entry, request.with_attributes, &mut page);
        listed += 1;
        let is_unlooked = unlooked.is_some_and(|cursor| entry.cursor >= cursor);
        if (page.len() > size_max || is_unlooked) && group.1 > 0 {
            page.truncate(group.1);
            reply = ListingReply { next_cursor: group.0, end: false };
            return false;
        }
        reply.next_cursor = entry.cursor + 1;
        true
    });
    core.reactor.note_entries(listed);
    Ok((reply, own_page(core, page)))
}

/// Waits until names of the directory that are being changed as the request comes are decided. Later changes may show
/// or not, as with any name that changes during a listing. `None` at the deadline.
pub async fn wait_for_names(core: &Core, params: &[u8], deadline: Nanos) -> Option<()> {
    let Some(request) = listing_of(params) else { return Some(()) };
    let locks = core.tables.borrow().locks.in_directory(request.directory);
    for lock in locks {
        until(&core.reactor, deadline, lock.wait()).await?;
    }
    Some(())
}

fn encode(core: &Core, tables: &Tables, entry: &Dentry, with_attributes: bool, page: &mut Vec<u8>) {
    // Names in the table were checked when they came in.
    let Ok(name) = Name::new(entry.name) else { return };
    let inode = if with_attributes { tables.inodes.get(entry.id) } else { None };
    let is_final = match entry.kind {
        Kind::Directory => tables.is_settled(entry.id, core.index),
        _ => inode.as_ref().is_none_or(|inode| !inode.is_announced()),
    };
    ListingEntry {
        next_cursor: entry.cursor + 1,
        id: entry.id,
        kind: entry.kind,
        name,
        attributes: inode.map(|inode| Box::new(tables.visible(&inode, core.index))),
        size_final: is_final,
    }
    .encode(page);
}
