//! Find: this server's share of a directory, searched here, so that only what matches travels. Where this server can't
//! tell, because an inode or a part of its size or times is elsewhere, the caller gets the entry and asks.

use crate::core::{Core, Failure};
use crate::handlers::check_directory;
use crate::handlers::names::listing::{own_page, page_size_max, path_of};
use crate::journal::tables::Tables;
use crate::names::Dentry;
use reactor::ReplyBody;
use wire::limits::LISTING_PAGE_SIZE_MAX;
use wire::messages::{FindReply, FindRequest, FoundEntry};
use wire::search::{NameTests, Tests, Verdict};
use wire::{Decode, Encode, Kind, Name, Status};

/// Entries that one request looks at, so that a search that finds nothing does not hold up the loop.
const EXAMINED_COUNT_MAX: usize = 4096;

/// One page of a search. Directories are listed whatever their verdict, for the caller to go on in.
pub fn find(core: &Core, params: &[u8]) -> Result<(FindReply, ReplyBody), Failure> {
    let FindRequest { listing: request, count_only, tests } = FindRequest::from_bytes(params)?;
    if request.size_max > LISTING_PAGE_SIZE_MAX || request.cursor >= 1 << 63 {
        return Err(Failure::with_text(Status::Invalid, "size of the page or cursor is out of range"));
    }
    let tables = core.tables.borrow();
    tables.check_not_removed(path_of(&request))?;
    tables.tree.check(request.known, path_of(&request))?;
    check_directory(core, &tables, request.directory)?;
    let filter = FindFilter { names: NameTests::new(&tests), need_attributes: tests.need_attributes(), tests: &tests };
    let size_max = page_size_max(core, request.size_max);
    let mut page: Vec<u8> = Vec::new();
    let mut reply = FindReply { next_cursor: request.cursor, end: true, counted: 0 };
    // A page ends only between two hashes, as with listings.
    let mut examined = 0;
    let mut last = request.cursor;
    core.walk_names(&tables, request.directory, request.cursor, &mut |entry| {
        let is_full = page.len() >= size_max || examined >= EXAMINED_COUNT_MAX;
        if is_full && entry.cursor != last {
            reply.end = false;
            return false;
        }
        last = entry.cursor;
        examined += 1;
        reply.next_cursor = entry.cursor + 1;
        match judge(core, &tables, entry, &filter) {
            Verdict::No if entry.kind != Kind::Directory => {}
            Verdict::Yes if count_only && entry.kind != Kind::Directory => reply.counted += 1,
            verdict => encode(entry, verdict, &mut page),
        }
        true
    });
    core.reactor.note_entries(examined as u64);
    Ok((reply, own_page(core, page)))
}

/// The tests, made ready for many entries.
struct FindFilter<'a> {
    names: NameTests,
    need_attributes: bool,
    tests: &'a Tests,
}

fn judge(core: &Core, tables: &Tables, entry: &Dentry<'_>, filter: &FindFilter<'_>) -> Verdict {
    if !filter.names.hold(entry.name, entry.kind, entry.id) {
        return Verdict::No;
    }
    if !filter.need_attributes {
        return Verdict::Yes;
    }
    let tests = filter.tests;
    match tables.inodes.get(entry.id) {
        None => Verdict::Undecided,
        // Replaced, but still open: the change of the name is on its way.
        Some(inode) if inode.attributes.link_count == 0 => Verdict::Undecided,
        Some(inode) if entry.kind == Kind::Directory => {
            tests.judge(&tables.visible(&inode, core.index), tables.is_settled(entry.id, core.index))
        }
        Some(inode) => {
            tests.judge(&inode.attributes, !inode.is_announced() && tables.locks.of_inode(entry.id).is_none())
        }
    }
}

fn encode(entry: &Dentry<'_>, verdict: Verdict, page: &mut Vec<u8>) {
    // Names in the table were checked when they came in.
    let Ok(name) = Name::new(entry.name) else { return };
    FoundEntry { id: entry.id, kind: entry.kind, verdict, name }.encode(page);
}
