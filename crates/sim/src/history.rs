//! What the clients did and what they were told, as the checkers read it.

use crate::pattern::Tag;
use client::Allocation;
use reactor::Nanos;
use std::collections::{BTreeMap, BTreeSet};
use wire::{FileId, Kind, Status};

/// Position in the one order of all starts and ends of operations.
pub type Moment = u64;
/// The end of an operation whose outcome never came.
pub const NEVER: Moment = Moment::MAX;

/// A path below the root, of one or more components.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path {
    pub parts: Vec<String>,
}

impl Path {
    pub fn top(name: &str) -> Path {
        Path { parts: vec![name.to_owned()] }
    }

    /// The path of a name in this directory.
    pub fn join(&self, name: &str) -> Path {
        let mut parts = self.parts.clone();
        parts.push(name.to_owned());
        Path { parts }
    }

    /// The name in its directory.
    pub fn name(&self) -> &str {
        self.parts.last().map_or("", String::as_str)
    }

    /// Whether it is this path or one beneath it.
    pub fn lies_in(&self, path: &Path) -> bool {
        self.parts.starts_with(&path.parts)
    }

    /// What a path in `from` is when that has become `to`.
    pub fn moved(&self, from: &Path, to: &Path) -> Path {
        Path { parts: [&to.parts[..], &self.parts[from.parts.len()..]].concat() }
    }

    /// The directory that it is in; `None` for the root.
    pub fn parent(&self) -> Option<Path> {
        let parts = &self.parts[..self.parts.len() - 1];
        (!parts.is_empty()).then(|| Path { parts: parts.to_vec() })
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "/{}", self.parts.join("/"))
    }
}

impl std::fmt::Debug for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// What a client asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Opens for reading and writing.
    Open {
        path: Path,
        create: bool,
        exclusive: bool,
        truncate: bool,
        mode: u32,
        chunk_size: u32,
    },
    /// Opens a file without a name.
    MakeTemporary {
        directory: Path,
        mode: u32,
        chunk_size: u32,
    },
    /// Gives such a file its first name, once.
    LinkOpen {
        file: FileId,
        mode: u32,
        path: Path,
    },
    Unlink {
        path: Path,
    },
    MakeDirectory {
        path: Path,
        mode: u32,
    },
    RemoveDirectory {
        path: Path,
    },
    Link {
        from: Path,
        to: Path,
    },
    Rename {
        from: Path,
        to: Path,
        no_replace: bool,
        exchange: bool,
    },
    MakeSymlink {
        path: Path,
        target: String,
    },
    /// A named pipe.
    MakeNode {
        path: Path,
        mode: u32,
    },
    ReadLink {
        path: Path,
    },
    /// Does not follow symbolic links.
    Stat {
        path: Path,
    },
    ChangeMode {
        path: Path,
        mode: u32,
    },
    SetTime {
        path: Path,
        mtime: i64,
    },
    TruncatePath {
        path: Path,
        size: u64,
    },
    /// Reads a directory, `None` being the root; from all servers at once, or one after the other.
    List {
        directory: Option<Path>,
        by_server: bool,
    },
    Write {
        file: FileId,
        chunk_size: u32,
        offset: u64,
        size: u64,
        tag: Tag,
    },
    Read {
        file: FileId,
        chunk_size: u32,
        offset: u64,
        size: u64,
    },
    Append {
        file: FileId,
        chunk_size: u32,
        size: u64,
        tag: Tag,
    },
    StatFile {
        file: FileId,
    },
    TruncateFile {
        file: FileId,
        size: u64,
    },
    /// Locks a range, or the `whole` file by its description; `owner` is the number of a process, or of the open file.
    Lock {
        file: FileId,
        owner: u64,
        start: u64,
        end: u64,
        exclusive: bool,
        wait: bool,
        whole: bool,
    },
    /// Releases all that the owner has locked of the file.
    Unlock {
        file: FileId,
        owner: u64,
        whole: bool,
    },
    /// The value is that of `check::extended::value`.
    SetExtended {
        file: FileId,
        name: String,
        tag: Tag,
        size: u64,
        flags: u32,
    },
    GetExtended {
        file: FileId,
        name: String,
    },
    ListExtended {
        file: FileId,
    },
    RemoveExtended {
        file: FileId,
        name: String,
    },
    /// Reserves, punches or zeroes a range.
    Allocate {
        file: FileId,
        chunk_size: u32,
        kind: Allocation,
        keep_size: bool,
        offset: u64,
        size: u64,
    },
    /// Looks for data, or for a hole.
    Seek {
        file: FileId,
        chunk_size: u32,
        offset: u64,
        hole: bool,
    },
    /// Copies on the servers. `tag` names the copy, whose bytes are those of the source.
    CopyRange {
        source: FileId,
        source_chunk_size: u32,
        from: u64,
        file: FileId,
        chunk_size: u32,
        to: u64,
        size: u64,
        tag: Tag,
    },
    /// Sends the handle's close; nothing is told about it.
    Close {
        file: FileId,
    },
    /// Makes a file, and its name on `name_server` where that is not its home, survive power loss.
    Synchronise {
        file: FileId,
        name_server: Option<u32>,
    },
    /// Makes everything survive power loss.
    SynchroniseAll,
}

/// Attributes that a stat returned, as far as they are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub id: FileId,
    pub kind: Kind,
    pub mode: u32,
    pub links: u32,
    pub size: u64,
    pub mtime: i64,
}

/// An entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub name: String,
    pub id: FileId,
    pub kind: Kind,
}

/// What a client was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing, or nothing that tells whether it happened; with the status, if there was one.
    Unknown(Option<Status>),
    /// It did not happen, for this reason.
    Failed(Status),
    Done,
    Opened(FileId),
    Seen(Seen),
    /// A directory without the shares of servers that did not answer: its link count says nothing, and its time is one
    /// that it had.
    SeenInPart(Seen),
    Target(Vec<u8>),
    Entries(Vec<Listed>),
    Bytes(Vec<u8>),
    /// Offset of an append.
    Appended(u64),
    /// Where data or a hole begins; nothing when there is none.
    Found(Option<u64>),
    /// Bytes that were copied.
    Copied(u64),
}

impl Action {
    /// The files that it names by their ids.
    fn ids(&mut self) -> Vec<&mut FileId> {
        use Action as A;
        match self {
            A::LinkOpen { file, .. }
            | A::Write { file, .. }
            | A::Read { file, .. }
            | A::Append { file, .. }
            | A::StatFile { file }
            | A::TruncateFile { file, .. }
            | A::Lock { file, .. }
            | A::Unlock { file, .. }
            | A::SetExtended { file, .. }
            | A::GetExtended { file, .. }
            | A::ListExtended { file }
            | A::RemoveExtended { file, .. }
            | A::Allocate { file, .. }
            | A::Seek { file, .. }
            | A::Close { file }
            | A::Synchronise { file, .. } => vec![file],
            A::CopyRange { source, file, .. } => vec![source, file],
            A::Open { .. }
            | A::MakeTemporary { .. }
            | A::Unlink { .. }
            | A::MakeDirectory { .. }
            | A::RemoveDirectory { .. }
            | A::Link { .. }
            | A::Rename { .. }
            | A::MakeSymlink { .. }
            | A::MakeNode { .. }
            | A::ReadLink { .. }
            | A::Stat { .. }
            | A::ChangeMode { .. }
            | A::SetTime { .. }
            | A::TruncatePath { .. }
            | A::List { .. }
            | A::SynchroniseAll => Vec::new(),
        }
    }
}

impl Outcome {
    /// The inodes that it tells of.
    fn ids(&mut self) -> Vec<&mut FileId> {
        match self {
            Outcome::Opened(id) => vec![id],
            Outcome::Seen(seen) | Outcome::SeenInPart(seen) => vec![&mut seen.id],
            Outcome::Entries(entries) => entries.iter_mut().map(|entry| &mut entry.id).collect(),
            _ => Vec::new(),
        }
    }

    /// The inode that it tells of, if any.
    pub fn id(&self) -> Option<FileId> {
        match self {
            Outcome::Opened(id) => Some(*id),
            Outcome::Seen(seen) | Outcome::SeenInPart(seen) => Some(seen.id),
            _ => None,
        }
    }
}

/// One operation of one client.
#[derive(Clone, Debug)]
pub struct Operation {
    pub client: u32,
    pub start: Moment,
    /// `NEVER` while the outcome is unknown.
    pub end: Moment,
    pub started_at: Nanos,
    pub ended_at: Nanos,
    pub action: Action,
    pub outcome: Outcome,
    /// Power was lost since, so that it may not have happened, and what it saw counts for nothing (`losses`).
    pub lost: bool,
}

/// A server lost power. What it stores on media that keep what was synced went back to one of its syncs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    pub server: u32,
    /// The first of three moments that it takes.
    pub moment: Moment,
    pub at: Nanos,
    /// When the server answered again at the latest; `NEVER` while it does not. Until then others may still be told
    /// what was lost, by who was promised before that it stays so for a moment (`client::read_leases`).
    pub back: Moment,
    /// Between which moments the state was that came back, by the server's own word: at first what it knew to be synced
    /// when power was lost, then where its journal ended as it started again.
    pub likely: Option<(Moment, Moment)>,
}

/// How far a server's journal was at a moment.
#[derive(Clone, Copy, Debug)]
struct Progress {
    moment: Moment,
    durable: u64,
    written: u64,
}

impl Operation {
    /// All ids of files that it names, and was told.
    pub fn ids(&mut self) -> impl Iterator<Item = &mut FileId> {
        self.action.ids().into_iter().chain(self.outcome.ids())
    }

    /// Whether it is known to have happened.
    pub fn succeeded(&self) -> bool {
        !self.lost && !matches!(self.outcome, Outcome::Unknown(_) | Outcome::Failed(_))
    }

    /// Whether it happened, or may have.
    pub fn may_have_happened(&self) -> bool {
        !matches!(self.outcome, Outcome::Failed(_))
    }

    /// The old and the new path of a link or rename.
    pub fn pair(&self) -> Option<(&Path, &Path)> {
        match &self.action {
            Action::Link { from, to } | Action::Rename { from, to, .. } => Some((from, to)),
            _ => None,
        }
    }

    /// The one path that it names, if any.
    pub fn path(&self) -> Option<&Path> {
        match &self.action {
            Action::Open { path, .. }
            | Action::LinkOpen { path, .. }
            | Action::Unlink { path }
            | Action::MakeDirectory { path, .. }
            | Action::RemoveDirectory { path }
            | Action::MakeSymlink { path, .. }
            | Action::MakeNode { path, .. }
            | Action::ReadLink { path }
            | Action::Stat { path }
            | Action::ChangeMode { path, .. }
            | Action::SetTime { path, .. }
            | Action::TruncatePath { path, .. } => Some(path),
            _ => None,
        }
    }
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = if self.end == NEVER { "never".to_owned() } else { self.end.to_string() };
        write!(f, "[{}..{end}] client {} {:?} -> ", self.start, self.client, self.action)?;
        match &self.outcome {
            Outcome::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            other => write!(f, "{other:?}"),
        }
    }
}

/// Everything that happened, in order of the starts.
#[derive(Default, Debug)]
pub struct History {
    moments: Moment,
    pub operations: Vec<Operation>,
    /// Servers that new files are spread over, and neighbouring chunks at one of them; 0: the usual way.
    pub stripes: (u32, u32),
    /// Clients that lost a file which they had open, after a server had forgotten their session.
    pub forgotten: BTreeSet<u32>,
    /// Clients that use what others have open, each with that other one.
    pub importers: Vec<(u32, u32)>,
    /// Clients that lost a file otherwise, each time with the homes of the files that may have been it.
    pub lost_at: Vec<(u32, Vec<u32>)>,
    pub losses: Vec<Loss>,
    /// When servers were started again.
    pub starts: Vec<Nanos>,
    /// From when until when servers may have been silent to each other, in order; the last one may still last.
    pub unrest: Vec<(Nanos, Nanos)>,
    /// Of each server since it lost power last.
    progress: BTreeMap<u32, Vec<Progress>>,
    /// Of each server that has lost power and not yet come back: its progress until then.
    lost_progress: BTreeMap<u32, Vec<Progress>>,
}

impl History {
    pub fn with_stripes(stripes: (u32, u32)) -> History {
        History { stripes, ..History::default() }
    }

    /// A moment after everything so far.
    pub fn now(&self) -> Moment {
        self.moments + 1
    }

    /// Notes that a server lost power.
    pub fn note_loss(&mut self, server: u32, at: Nanos) {
        let progress = self.progress.remove(&server).unwrap_or_default();
        let likely = progress.last().map(|last| span_of_state(&progress, last.durable, self.moments + 2));
        self.note_return(server);
        self.lost_progress.insert(server, progress);
        self.losses.push(Loss { server, moment: self.moments + 1, at, back: NEVER, likely });
        self.moments += 3;
    }

    /// Notes where a server's journal ended when it started, perhaps after it lost power: before this record.
    pub fn note_recovery(&mut self, server: u32, recovered_end: u64) {
        let Some(progress) = self.lost_progress.remove(&server) else { return };
        let mut losses = self.losses.iter_mut().rev();
        if let Some(loss) = losses.find(|loss| loss.server == server)
            && loss.likely.is_some()
        {
            loss.likely = Some(span_of_state(&progress, recovered_end, loss.moment + 1));
        }
    }

    /// Notes that a server answers, perhaps after it lost power.
    pub fn note_return(&mut self, server: u32) {
        let mut losses = self.losses.iter_mut().rev();
        if let Some(loss) = losses.find(|loss| loss.server == server).filter(|loss| loss.back == NEVER) {
            self.moments += 1;
            loss.back = self.moments;
        }
    }

    /// Notes whether servers may be silent from now on.
    pub fn note_unrest(&mut self, is_restless: bool, now: Nanos) {
        match self.unrest.last_mut().filter(|(_, until)| *until == Nanos::MAX) {
            Some((_, until)) if !is_restless => *until = now,
            None if is_restless => self.unrest.push((now, Nanos::MAX)),
            _ => {}
        }
    }

    /// Notes how far a server's journal is: which record power loss would take first, and which is still to be written.
    pub fn note_progress(&mut self, server: u32, (durable, written): (u64, u64)) {
        let moment = self.moments;
        let progress = self.progress.entry(server).or_default();
        if progress.last().is_some_and(|last| last.moment == moment) {
            progress.pop();
        }
        progress.push(Progress { moment, durable, written });
    }

    /// Notes the start of an operation; its number is given to `finish`.
    pub fn start(&mut self, client: u32, action: Action, now: Nanos) -> usize {
        self.moments += 1;
        self.operations.push(Operation {
            client,
            start: self.moments,
            end: NEVER,
            started_at: now,
            ended_at: Nanos::MAX,
            action,
            outcome: Outcome::Unknown(None),
            lost: false,
        });
        self.operations.len() - 1
    }

    /// Notes what the client was told. An outcome that tells nothing leaves the operation's end open.
    pub fn finish(&mut self, index: usize, outcome: Outcome, now: Nanos) {
        self.moments += 1;
        let operation = &mut self.operations[index];
        assert_eq!(operation.outcome, Outcome::Unknown(None));
        if !matches!(outcome, Outcome::Unknown(_)) {
            operation.end = self.moments;
        }
        operation.ended_at = now;
        operation.outcome = outcome;
    }
}

/// Between which moments a journal's state was that without its records from `end` on; the last of them is `latest`.
fn span_of_state(progress: &[Progress], end: u64, latest: Moment) -> (Moment, Moment) {
    let split = progress.partition_point(|past| past.written <= end);
    let start = split.checked_sub(1).map_or(0, |index| progress[index].moment);
    (start, progress.get(split).map_or(latest, |past| past.moment))
}

/// What a checker found wrong: words, and the operations concerned.
#[derive(Clone, Debug)]
pub struct Finding {
    pub words: String,
    pub operations: Vec<usize>,
}

impl Finding {
    pub fn new(words: impl Into<String>, operations: Vec<usize>) -> Finding {
        Finding { words: words.into(), operations }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a loss of power is placed by what the server knew to be synced, and, once it has started again, by where
    /// its journal ended: a sync that nobody was told of may have come that far.
    #[test]
    fn where_a_loss_leads_back_to() {
        let mut history = History::default();
        for written in [10, 20, 30] {
            history.start(0, Action::SynchroniseAll, 0);
            history.note_progress(0, (5, written));
        }
        history.note_loss(0, 0);
        assert_eq!(history.losses[0].likely, Some((0, 1)));
        history.note_recovery(1, 20);
        assert_eq!(history.losses[0].likely, Some((0, 1)), "that is another server");
        history.note_recovery(0, 20);
        assert_eq!(history.losses[0].likely, Some((2, 3)));
        // What it has written since is no part of that.
        history.note_recovery(0, 40);
        assert_eq!(history.losses[0].likely, Some((2, 3)));
        // A loss before which the server did not come up: nobody knows.
        history.note_loss(0, 0);
        history.note_recovery(0, 20);
        assert_eq!(history.losses[1].likely, None);
    }
}
