//! What servers ask each other about the backing tree (docs/cache.md).

use crate::attributes::Kind;
use crate::identity::FileId;
use crate::layout::Layout;
use crate::limits::{STAGE_CHUNKS_MAX, STAGE_PARTS_MAX};
use crate::message;
use crate::{Decode, Decoder, Encode, Malformed};

message! {
    /// `AskPlace`, to the home of what was taken up from the backing tree. Who asks about a file is one of its holders
    /// from then on. Reply: `BackingPlace`.
    pub struct AskPlaceRequest {
        pub id: FileId,
    }
}

message! {
    /// Where in the backing tree something was when it was taken up, and what it was then. Also as it is journalled.
    pub struct BackingPlace {
        /// The directory whose name it is behind; 0 of the root.
        pub parent: FileId,
        /// From the root of the tree, which has an empty one; it ends with that name.
        pub path: Vec<u8>,
        /// Its identity: numbers of file system and inode, size in bytes, times in nanoseconds since the epoch.
        pub device: u64,
        pub inode: u64,
        pub size: u64,
        pub mtime: i64,
        pub ctime: i64,
        /// The number of the file's first bytes that may be behind alone, whatever is known of them. It only ever
        /// shrinks.
        pub base: u64,
        /// The number of its first bytes that a flush has put there, less what was cut since: what was evicted of them
        /// is there alone. At least `base`; each server has its own.
        pub carried: u64,
        /// Bytes of one of the file's chunks.
        pub chunk_size: u32,
        /// Whether a flush has given the inode there other names too: a change of any of them moves its ctime.
        pub has_links: bool,
    }
}

/// Of something of which the inode counts alone, for a flush writes to it where it is.
pub const CTIME_UNKNOWN: i64 = i64::MAX;
/// Of a file whose other names are changed by flushes: its size and its mtime count.
pub const CTIME_OF_LINKS: i64 = i64::MAX - 1;

impl BackingPlace {
    /// The same of a file of that many bytes, if it had more.
    pub fn cut(&self, size: u64) -> BackingPlace {
        BackingPlace { base: self.base.min(size), carried: self.carried.min(size), ..self.clone() }
    }

    /// Whether a flush writes to the file where it is: of its identity only the inode counts then.
    pub fn is_being_written(&self) -> bool {
        self.ctime == CTIME_UNKNOWN
    }

    /// The same place while a flush writes to the file there.
    pub fn being_written(&self) -> BackingPlace {
        BackingPlace { mtime: 0, ctime: CTIME_UNKNOWN, ..self.clone() }
    }

    /// The name that it has behind.
    pub fn name(&self) -> &[u8] {
        self.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }

    /// By what the tree knows what is there.
    pub fn known(&self) -> KnownBehind {
        let known = KnownBehind { inode: self.inode, size: self.size, mtime: self.mtime, ctime: self.ctime };
        if self.has_links { known.of_links() } else { known }
    }
}

message! {
    /// By what something behind is known: number of its inode, size in bytes, times in nanoseconds since the epoch. Of
    /// a directory the inode counts alone; 0 is any directory.
    pub struct KnownBehind {
        pub inode: u64,
        pub size: u64,
        pub mtime: i64,
        pub ctime: i64,
    }
}

impl KnownBehind {
    /// The same by its inode alone.
    pub fn by_inode(&self) -> KnownBehind {
        KnownBehind { inode: self.inode, size: self.size, mtime: 0, ctime: CTIME_UNKNOWN }
    }

    /// The same of one of several names.
    pub fn of_links(&self) -> KnownBehind {
        KnownBehind { ctime: if self.ctime == CTIME_UNKNOWN { CTIME_UNKNOWN } else { CTIME_OF_LINKS }, ..self.clone() }
    }

    /// Whether the inode may have other names that are changed here.
    pub fn may_have_links(&self) -> bool {
        matches!(self.ctime, CTIME_UNKNOWN | CTIME_OF_LINKS)
    }
}

message! {
    /// What is about to be put behind at a name: by what it will be known, but for its ctime, and the inode here.
    pub struct NextBehind {
        pub known: KnownBehind,
        pub id: FileId,
    }
}

message! {
    /// What is behind at a name.
    pub struct NameBehind {
        /// What was there when somebody of this cluster last knew; nothing where nothing was.
        pub known: Option<KnownBehind>,
        /// What is about to be put there by this cluster: whoever finds it there has found its own work.
        pub next: Option<NextBehind>,
        /// The inode here that is the same as what is known; 0 if there is none.
        pub same_as: FileId,
    }
}

impl NameBehind {
    /// Whether both sides agree, if this is here at the name.
    pub fn agrees(&self, here: Option<FileId>) -> bool {
        let is_settled = self.next.is_none();
        is_settled
            && match here {
                Some(id) => self.known.is_some() && self.same_as == id,
                None => self.known.is_none(),
            }
    }
}

message! {
    /// `Flush`, to the home of the root: changes are carried back to the backing tree. `ticket` 0 asks for all that
    /// there are by now, later ones for how far that has come. Only what is below one of the paths, if any are named,
    /// or a file, or the names in a directory, if `file` is not 0: that anybody may ask for whose fsync waits for it.
    /// Reply: `FlushReply`.
    pub struct FlushRequest {
        pub ticket: u64,
        pub paths: Vec<Vec<u8>>,
        pub file: FileId,
    }
}

message! {
    /// How far a flush has come.
    pub struct FlushReply {
        pub ticket: u64,
        /// 0: it has ended; 1: it goes on; 2: nobody knows of it, for the server was started again.
        pub state: u8,
        /// Files, directories and names that were brought into line, and bytes of files.
        pub done: u64,
        pub bytes: u64,
        /// What all flushes of this life of the server have done, in bytes and things: whoever waits for his turn sees
        /// that others go.
        pub progress: u64,
        /// What is still to be done, as far as it is known.
        pub left: u64,
        /// Of one that has ended, how many could not be brought into line.
        pub failed: u64,
        /// Some of them: paths.
        pub paths: Vec<Vec<u8>>,
        /// Reasons, as many.
        pub reasons: Vec<Vec<u8>>,
        /// How many names that somebody else had changed were settled since one was last waited for.
        pub settled: u64,
        /// Some of them: paths, and what became of each.
        pub settled_paths: Vec<Vec<u8>>,
        pub settled_words: Vec<Vec<u8>>,
    }
}

pub mod flush_states {
    pub const ENDED: u8 = 0;
    pub const RUNNING: u8 = 1;
    pub const UNKNOWN: u8 = 2;
    /// It is not begun, for nobody waits for it and it is not the time for it.
    pub const NOT_NOW: u8 = 3;
    /// Somebody else has changed the name, and ours is to be given up.
    pub const CONFLICT: u8 = 4;
}

message! {
    /// `AskForFlush`, to the home of the root: some server has changes, and it is time to carry them. Nobody waits for
    /// the end. Reply: `AskForFlushReply`.
    pub struct AskForFlushRequest {
        /// One of `flush_patience`; `NONE` where a store is full, or a server ends.
        pub patience: u8,
    }
}

message! {
    /// How far flushes have come in this life of the server; their tickets rise.
    pub struct AskForFlushReply {
        /// The one that was begun last.
        pub newest: u64,
        /// The last one that has ended, 0 if none has, and what it has done.
        pub ended: u64,
        pub done: u64,
        /// Bytes that were written for all of them so far, also for what did not get done.
        pub bytes: u64,
    }
}

message! {
    /// Consecutive chunks of a file, from one on.
    pub struct StagePart {
        pub file: FileId,
        pub layout: Layout,
        pub first: u64,
        pub count: u32,
    }
}

message! {
    /// `Stage`, to a server with chunks of files: those of them that are its own are to be here. Without a backing tree
    /// they are.
    pub struct StageRequest {
        pub parts: StageParts,
    }
}

/// At most `STAGE_PARTS_MAX` parts, which have at most `STAGE_CHUNKS_MAX` chunks together.
#[derive(Debug, Clone, PartialEq)]
pub struct StageParts(pub Vec<StagePart>);

impl Encode for StageParts {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }
}

impl<'a> Decode<'a> for StageParts {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        let parts: Vec<StagePart> = Decode::decode(input)?;
        let chunks: u64 = parts.iter().map(|part| u64::from(part.count)).sum();
        match parts.len() <= STAGE_PARTS_MAX && chunks <= STAGE_CHUNKS_MAX {
            true => Ok(StageParts(parts)),
            false => Err(Malformed("there are too many chunks to be staged by one message")),
        }
    }
}

message! {
    /// Why a part of a `StageRequest` is not all here.
    pub struct StageFailure {
        /// Its place in the request.
        pub part: u32,
        /// Code of a `Status`.
        pub status: u32,
        /// Words for people.
        pub text: Vec<u8>,
    }
}

message! {
    /// Reply of `Stage`: all other parts are here.
    pub struct StageReply {
        pub failures: Vec<StageFailure>,
    }
}

message! {
    /// `CacheState`, to a server with chunks of a file: which bytes of it are here, and which behind. It looks at some
    /// chunks, or gives up some that are clean.
    pub struct CacheStateRequest {
        pub file: FileId,
        pub layout: Layout,
        /// Bytes of the file.
        pub size: u64,
        /// The chunk to begin with.
        pub from: u64,
        /// Whether what is clean is to go.
        pub evicts: bool,
    }
}

message! {
    /// Bytes of this server's chunks, each as a whole: changed here and not behind yet; here and behind; behind alone;
    /// and how many of the last went just now.
    pub struct CacheStateReply {
        pub dirty: u64,
        pub clean: u64,
        pub absent: u64,
        pub evicted: u64,
        /// The chunk to go on with; `u64::MAX` if there is none.
        pub next: u64,
    }
}

/// What a flush steps back for, most urgent first.
pub mod flush_patience {
    /// Somebody waits for it: nothing.
    pub const NONE: u8 = 0;
    /// Something was changed long ago: it takes a part of the time beside accesses.
    pub const OLD: u8 = 1;
    /// It goes on when there are no accesses.
    pub const IDLE: u8 = 2;
}

message! {
    /// `ListChanges`: what is not behind as it is here, from a position on: inodes, or names, of which those without a
    /// record come first, then records. Or the names by which an inode (`directory`) is behind that has several, from
    /// one (`cursor`, `name`) on. Of inodes `cursor` is 1 if changes over several servers that were answered are to be
    /// done before. Reply: `ListChangesReply`.
    pub struct ListChangesRequest {
        pub stage: u8,
        pub directory: u64,
        pub cursor: u64,
        /// Among records of names the one that is next in the directory.
        pub name: Vec<u8>,
        /// If there are any, in their order: files that were made here and never were behind are left out, save these
        /// and those in these directories.
        pub files: Vec<u64>,
    }
}

message! {
    /// A name, or an inode alone, that is not behind as it is here.
    pub struct ChangedEntry {
        /// The directory of the name; an inode alone has none (0), nor a name.
        pub directory: FileId,
        pub name: Vec<u8>,
        /// What is here; nothing of a name that is only behind.
        pub id: Option<FileId>,
        pub kind: Kind,
        /// Of an inode alone only `next` counts: nobody knows yet whether it has that place.
        pub behind: NameBehind,
        /// Whether somebody has it open who has not synced it, as far as its home knows, which has listed it; and its
        /// size. What is closed goes first, and what is small.
        pub is_open: bool,
        pub size: u64,
    }
}

message! {
    /// Some changes, and where to go on; at the end `stage` is 0.
    pub struct ListChangesReply {
        pub entries: Vec<ChangedEntry>,
        pub next: ListChangesRequest,
    }
}

message! {
    /// `AskCarried`, to the home of an inode. Reply: `AskCarriedReply`.
    pub struct AskCarriedRequest {
        pub id: FileId,
        /// Why it can't be carried for now, if that is something else than it: for whoever has it open.
        pub hindrance: Vec<u8>,
    }
}

message! {
    /// What its home knows of an inode.
    pub struct AskCarriedReply {
        /// Names that it has here; nothing if it is gone.
        pub names: Option<u32>,
        pub is_directory: bool,
        /// Where it is behind. Of a directory that is gone too.
        pub place: Option<BackingPlace>,
        /// Where it is about to be, or is already.
        pub next: Option<BackingPlace>,
        /// Whether it is being carried.
        pub is_moving: bool,
        /// Whether its home knows that it was changed since.
        pub is_written: bool,
        /// Whether something of it may be behind alone.
        pub is_needed: bool,
    }
}

message! {
    /// `CarryInode`, to the home of an inode: it is to be behind at a name of a directory whose path there is given.
    /// Begins that, and tells how far it has come. Reply: `CarryInodeReply`.
    pub struct CarryInodeRequest {
        pub id: FileId,
        /// Of this wish: the same one again asks how far it has come.
        pub wish: u64,
        pub parent: FileId,
        pub path: Vec<u8>,
        /// What may be replaced, and the inode here that is the same; 0 if there is none.
        pub known: Option<KnownBehind>,
        pub same_as: FileId,
        /// One of `carry_ways`.
        pub way: u8,
        /// How it steps back for accesses: one of `flush_patience`.
        pub patience: u8,
    }
}

/// What an inode is to have a name behind for.
pub mod carry_ways {
    /// For good, with all that it has.
    pub const PLACE: u8 = 0;
    /// For the time being.
    pub const PARKED: u8 = 1;
    /// As one more name of what is behind already at its place.
    pub const LINK: u8 = 2;
    /// It is such a name, and is to be its place.
    pub const LINK_AS_PLACE: u8 = 3;
    /// For good, with what it had when somebody synced it: what is changed meanwhile is for later.
    pub const SNAPSHOT: u8 = 4;
}

impl CarryInodeRequest {
    pub fn is_parked(&self) -> bool {
        self.way == carry_ways::PARKED
    }

    pub fn is_snapshot(&self) -> bool {
        self.way == carry_ways::SNAPSHOT
    }

    /// Whether nothing of it is written, as it is behind by another name.
    pub fn is_link(&self) -> bool {
        matches!(self.way, carry_ways::LINK | carry_ways::LINK_AS_PLACE)
    }
}

message! {
    /// How far something has come: `state` is that of a flush.
    pub struct CarryInodeReply {
        pub state: u8,
        /// What it has come to, if it was done.
        pub behind: Option<KnownBehind>,
        /// Bytes that were written.
        pub bytes: u64,
        /// Why not, in words; if it was done, what became of somebody else's that had the name.
        pub reason: Vec<u8>,
        /// Whether other names that it has there may have to be linked to it anew.
        pub has_parted: bool,
    }
}

message! {
    /// `GiveUpName`, to the server of a name: somebody else has changed it behind, and it is to show that here. Begins
    /// that, and tells how far it has come. Reply: `GiveUpNameReply`.
    pub struct GiveUpNameRequest {
        /// Of this wish: the same one again asks how far it has come.
        pub wish: u64,
        pub directory: FileId,
        pub name: Vec<u8>,
        /// What is here at the name; nothing of one that was removed.
        pub id: Option<FileId>,
    }
}

message! {
    pub struct GiveUpNameReply {
        /// That of a flush.
        pub state: u8,
        /// Whether it shows what is behind by now. Else something was changed meanwhile, or it failed.
        pub is_given_up: bool,
        /// Why it failed, in words.
        pub reason: Vec<u8>,
    }
}

message! {
    /// `WriteShare`, to a holder of chunks of a file: they are to be written to a file behind, which is there, and
    /// synced. Begins that, and tells how far it has come. Reply: `WriteShareReply`.
    pub struct WriteShareRequest {
        pub file: FileId,
        /// Of this wish: the same one again asks how far it has come.
        pub wish: u64,
        pub layout: Layout,
        /// Bytes of the whole file.
        pub size: u64,
        pub path: Vec<u8>,
        /// As of `CarryInode`.
        pub patience: u8,
        /// What is written of it: one of `share_modes`.
        pub mode: u8,
        /// Of a file that is updated in place: the number of its inode, and the bytes that it may have had before.
        pub inode: u64,
        pub size_behind: u64,
    }
}

/// Ways to write a share.
pub mod share_modes {
    /// All chunks, to a new file; of no use if anything is changed meanwhile.
    pub const WHOLE: u8 = 0;
    /// The same, also if something is changed: what was not is behind then.
    pub const KEPT: u8 = 1;
    /// Dirty chunks alone, to the file that is there; the same.
    pub const IN_PLACE: u8 = 2;
    /// Nothing: what became of a wish is asked. Who knows nothing of it, as he was started again, says that the file
    /// was changed.
    pub const QUESTION: u8 = 3;
}

message! {
    pub struct WriteShareReply {
        /// That of a flush.
        pub state: u8,
        /// Whether something of the file was changed here since it was begun.
        pub is_changed: bool,
        pub bytes: u64,
        /// Why not, in words; empty if it was done.
        pub reason: Vec<u8>,
    }
}

message! {
    /// `NoteCarried`, to a holder of chunks of a file: what it wrote at this wish is behind now, at a place.
    pub struct NoteCarriedRequest {
        pub file: FileId,
        pub wish: u64,
        pub place: BackingPlace,
    }
}

message! {
    /// `NoteBehind`, to the server of a name: what is behind there. Without a name the directory is gone behind, and
    /// nothing is to be remembered of it.
    pub struct NoteBehindRequest {
        pub directory: FileId,
        pub name: Vec<u8>,
        pub behind: NameBehind,
        /// One of `note_kinds`.
        pub kind: u8,
        /// What this was concluded from: if something else is noted by now it is old, and `Busy`.
        pub seen: Option<NameBehind>,
    }
}

/// What a note of a name says.
pub mod note_kinds {
    /// What is behind there.
    pub const NOW: u8 = 0;
    /// The inode that is the same is behind elsewhere from now on: what is known there is nothing's, if it was that's.
    pub const LEFT: u8 = 1;
    /// The inode that is the same has other names there as well: so it is known there, if it is that's.
    pub const LINKED: u8 = 2;
}

message! {
    /// `ListCarried`, to a server of names: files that are behind under the names that they have here, from a position
    /// on. Reply: `ListCarriedReply`.
    pub struct ListCarriedRequest {
        pub directory: u64,
        pub cursor: u64,
    }
}

message! {
    /// Some of them, and where to go on.
    pub struct ListCarriedReply {
        pub files: Vec<FileId>,
        pub is_last: bool,
        pub next: ListCarriedRequest,
    }
}

message! {
    /// `CompareShare`, to a server with chunks of a file: those that are here, and were not changed since they were
    /// carried or fetched, are compared with what is behind. Reply: `CompareShareReply`.
    pub struct CompareShareRequest {
        pub file: FileId,
        pub layout: Layout,
        /// Bytes of the file.
        pub size: u64,
        /// The byte to begin with.
        pub from: u64,
        /// Only if its place is below one of these, if there are any.
        pub paths: Vec<Vec<u8>>,
    }
}

message! {
    pub struct CompareShareReply {
        /// Bytes that were compared.
        pub bytes: u64,
        /// The byte to go on with; `u64::MAX` if there is none.
        pub next: u64,
        /// Where it is behind, and what is not the same there, in words; empty if nothing is wrong.
        pub path: Vec<u8>,
        pub difference: Vec<u8>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::LayoutPolicy;

    /// Goal: no message has more staged than its bounds say.
    #[test]
    fn staging_is_bounded() {
        let layout = Layout { policy: LayoutPolicy::Modular, chunk_size: 1 << 20, first: 0, width: 1024, run: 1 };
        let is_taken = |parts: usize, count: u32| {
            let part = StagePart { file: FileId(1), layout, first: u64::MAX, count };
            StageRequest::from_bytes(&StageRequest { parts: StageParts(vec![part; parts]) }.to_bytes()).is_ok()
        };
        let each = STAGE_CHUNKS_MAX as u32 / STAGE_PARTS_MAX as u32;
        assert!(is_taken(0, 0) && is_taken(STAGE_PARTS_MAX, each) && is_taken(1, STAGE_CHUNKS_MAX as u32));
        assert!(!is_taken(STAGE_PARTS_MAX + 1, 0) && !is_taken(STAGE_PARTS_MAX, each + 1));
        assert!(!is_taken(1, STAGE_CHUNKS_MAX as u32 + 1) && !is_taken(2, u32::MAX));
    }
}
