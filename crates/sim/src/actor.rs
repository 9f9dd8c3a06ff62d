//! One client's doings: performs single operations on the real client and notes them in the history.

use crate::history::{Action, History, Listed, Outcome, Path, Seen};
use crate::kernel::Kernel;
use crate::pattern;
use crate::profile::Sabotage;
use client::tests::{Order, Test, Tests};
use client::{
    Attributes, DirectoryEntry, File, FileRange, FileSystem, Kind, LockRange, Locker, OpenHow, Search, Status,
    Timestamp,
};
use reactor::Nanos;
use std::cell::{Cell, RefCell};
use std::io::{IoSlice, IoSliceMut};
use std::rc::Rc;
use wire::FileId;
use wire::messages::rename_flags;

/// Longest time from an open to the read that it is for.
const READ_PAUSE_NS_MAX: Nanos = 5_000_000;

/// The history as all clients share it, with a clock that is the same for all, and a window on what happens.
pub struct Recorder {
    history: RefCell<History>,
    clock: Box<dyn Fn() -> Nanos>,
    trace: bool,
    /// Tells how far the servers' journals are.
    progress: RefCell<Option<Progress>>,
}

/// Of each server that is up: the first record that power loss would take, and the first that is still to be written.
type Progress = Box<dyn Fn() -> Vec<(u32, (u64, u64))>>;

impl Recorder {
    pub fn new(clock: impl Fn() -> Nanos + 'static, trace: bool, stripes: (u32, u32)) -> Rc<Recorder> {
        let history = RefCell::new(History::with_stripes(stripes));
        Rc::new(Recorder { history, clock: Box::new(clock), trace, progress: RefCell::default() })
    }

    /// Has the progress of the servers' journals noted with each operation.
    pub fn watch_progress(&self, progress: impl Fn() -> Vec<(u32, (u64, u64))> + 'static) {
        self.progress.replace(Some(Box::new(progress)));
    }

    pub fn forget_progress(&self) {
        self.progress.replace(None);
    }

    fn note_progress(&self) {
        if let Some(progress) = &*self.progress.borrow() {
            let mut history = self.history.borrow_mut();
            progress().into_iter().for_each(|(server, limits)| history.note_progress(server, limits));
        }
    }

    /// Operations so far.
    pub fn count(&self) -> usize {
        self.history.borrow().operations.len()
    }

    pub fn with<R>(&self, read: impl FnOnce(&History) -> R) -> R {
        read(&self.history.borrow())
    }

    /// Changes the history, before and after all operations.
    pub fn with_mut<R>(&self, change: impl FnOnce(&mut History) -> R) -> R {
        change(&mut self.history.borrow_mut())
    }

    fn start(&self, client: u32, action: &Action) -> usize {
        let now = (self.clock)();
        let index = self.history.borrow_mut().start(client, action.clone(), now);
        self.note_progress();
        self.note(&format!("#{index} client {client} starts {action:?}"));
        index
    }

    /// Notes that a server lost power.
    pub fn note_loss(&self, server: u32) {
        self.note_progress();
        self.history.borrow_mut().note_loss(server, (self.clock)());
        self.note(&format!("server {server} loses power"));
    }

    /// Notes that a server is started again.
    pub fn note_start(&self, server: u32) {
        self.history.borrow_mut().starts.push((self.clock)());
        self.note(&format!("server {server} is started again"));
    }

    /// Notes that a server's journal ended before record `recovered_end` when its store was opened.
    pub fn note_recovery(&self, server: u32, recovered_end: u64) {
        self.history.borrow_mut().note_recovery(server, recovered_end);
    }

    /// Notes that a server answers.
    pub fn note_return(&self, server: u32) {
        self.history.borrow_mut().note_return(server);
    }

    fn finish(&self, index: usize, outcome: Outcome) {
        self.history.borrow_mut().finish(index, outcome, (self.clock)());
        self.note_progress();
        if self.trace {
            self.note(&format!("#{index} {}", self.history.borrow().operations[index]));
        }
    }

    /// Notes whether servers may be silent from now on.
    pub fn note_unrest(&self, is_restless: bool) {
        self.history.borrow_mut().note_unrest(is_restless, (self.clock)());
    }

    /// Prints a line of the trace, if one is wanted.
    pub fn note(&self, words: &str) {
        if self.trace {
            let now = (self.clock)();
            eprintln!("{:>6}.{:09} {words}", now / 1_000_000_000, now % 1_000_000_000);
        }
    }
}

/// An open file and what the history calls it.
#[derive(Clone, Debug)]
pub struct Handle {
    pub file: File,
    pub path: Path,
    /// Permission bits of a file that was made without a name and has not been given one.
    pub nameless: Option<u32>,
}

/// A client on its node.
pub struct Client {
    pub number: u32,
    pub file_system: FileSystem,
    pub recorder: Rc<Recorder>,
    pub sabotage: Sabotage,
    /// See `Profile::stripes`.
    pub stripes: (u32, u32),
    /// Whether the next listing is made by a search.
    pub searching: Cell<bool>,
    /// Whether the next operation is by identity, and on whose behalf.
    pub by_identity: Cell<bool>,
    /// Whether the next stat by path takes nothing less than the shares of all servers.
    pub whole: Cell<bool>,
    pub acting: Cell<bool>,
    /// Whether servers give leases of contents; then every other read goes through a handle that was opened for it,
    /// some time before.
    pub is_leased: bool,
    pub opening: Cell<bool>,
    /// What it keeps of what it was told, if it does.
    pub kernel: RefCell<Option<Rc<Kernel>>>,
    /// Whose open files it has imported.
    pub exporter: Option<Rc<Client>>,
    /// Where a sync has a file carried to the site: its first bytes there, if it is known what they are.
    pub site: Option<SiteReader>,
}

/// What tells the first bytes of a file at the site, at most so many.
pub type SiteReader = Rc<dyn Fn(FileId, u64) -> Option<Vec<u8>>>;
/// Bytes at the site that are looked at after a sync.
const SITE_SIZE_MAX: u64 = 64 << 10;

/// What an error tells: that the operation did not happen, or nothing.
fn refusal(status: Status) -> Outcome {
    match status {
        Status::Unreachable | Status::TimedOut | Status::OutcomeUnknown | Status::Io => Outcome::Unknown(Some(status)),
        Status::Busy | Status::NoSpace | Status::TooManyConnections => Outcome::Unknown(Some(status)),
        _ => Outcome::Failed(status),
    }
}

/// An operation on an open file may have happened in part before it failed.
fn file_refusal(status: Status) -> Outcome {
    match status {
        Status::NoAttribute | Status::Exists => Outcome::Failed(status),
        Status::WouldBlock | Status::Deadlock => Outcome::Failed(status),
        _ => Outcome::Unknown(Some(status)),
    }
}

fn facts(attributes: &Attributes) -> Seen {
    Seen {
        id: attributes.id,
        kind: attributes.kind,
        mode: attributes.mode,
        links: attributes.link_count,
        size: attributes.size,
        mtime: attributes.mtime,
    }
}

pub fn seen(attributes: &Attributes) -> Outcome {
    Outcome::Seen(facts(attributes))
}

/// What a look tells: a directory may lack the share of a server that does not answer, which its link count says.
pub fn looked(attributes: &Attributes) -> Outcome {
    match (attributes.kind, attributes.link_count) {
        (Kind::Directory, 1) => Outcome::SeenInPart(facts(attributes)),
        _ => seen(attributes),
    }
}

fn wish(owner: u64, whole: bool, range: LockRange) -> (Locker, LockRange) {
    if whole { (Locker::Whole, LockRange::WHOLE) } else { (Locker::Process(owner), range) }
}

pub fn listed(entry: &DirectoryEntry) -> Listed {
    Listed { name: String::from_utf8_lossy(&entry.name).into_owned(), id: entry.id, kind: entry.kind }
}

impl Client {
    /// A child that is forked from it.
    pub fn forked(&self, number: u32) -> Client {
        Client {
            number,
            file_system: self.file_system.forked(),
            recorder: self.recorder.clone(),
            sabotage: self.sabotage,
            stripes: self.stripes,
            searching: Cell::default(),
            by_identity: Cell::default(),
            whole: Cell::default(),
            acting: Cell::default(),
            is_leased: self.is_leased,
            opening: Cell::default(),
            kernel: RefCell::default(),
            exporter: None,
            site: self.site.clone(),
        }
    }

    /// Another process of its node, for files that this one exports.
    pub fn importer(self: &Rc<Self>, number: u32) -> Client {
        self.recorder.history.borrow_mut().importers.push((number, self.number));
        Client { exporter: Some(self.clone()), ..self.forked(number) }
    }

    /// Performs an operation on names and notes it. Returns the handle of an open.
    ///
    /// `spelling` is the path as the client spells it, which may lead through a symbolic link.
    pub async fn perform(&self, action: Action, spelling: &str) -> Option<Handle> {
        let index = self.start(&action);
        let mut handle = None;
        let outcome = self.names(&action, spelling.as_bytes(), &mut handle).await;
        self.note_error(index, &outcome);
        self.finish(index, &action, outcome.unwrap_or_else(|error| refusal(error.status))).await;
        handle
    }

    async fn names(&self, action: &Action, path: &[u8], handle: &mut Option<Handle>) -> client::Result<Outcome> {
        let kernel = self.kernel.borrow().clone();
        if let (Some(kernel), Action::Stat { path }) = (kernel, action)
            && path.parts.len() == 1
        {
            return Ok(looked(&kernel.look_up(&self.file_system, path.name()).await?));
        }
        if self.sabotage == Sabotage::None
            && let Some(outcome) = self.names_at(action, path).await
        {
            return outcome;
        }
        let file_system = &self.file_system;
        match action {
            Action::Open { path: name, create, exclusive, truncate, mode, chunk_size } => {
                let how = OpenHow {
                    create: *create,
                    exclusive: *exclusive,
                    truncate: *truncate,
                    mode: *mode,
                    chunk_size: *chunk_size,
                    width: self.stripes.0,
                    run: self.stripes.1,
                    ..OpenHow::reading_and_writing()
                };
                if self.sabotage == Sabotage::ApplyTwice && *exclusive {
                    file_system.open(path, &how).await?;
                }
                let file = file_system.open(path, &how).await?;
                file.set_throttled(true);
                let id = file.id;
                *handle = Some(Handle { file, path: name.clone(), nameless: None });
                Ok(Outcome::Opened(id))
            }
            Action::MakeTemporary { directory, mode, chunk_size } => {
                let (width, run) = self.stripes;
                let how = OpenHow {
                    temporary: true,
                    mode: *mode,
                    chunk_size: *chunk_size,
                    width,
                    run,
                    ..OpenHow::reading_and_writing()
                };
                let file = file_system.open(path, &how).await?;
                file.set_throttled(true);
                let id = file.id;
                *handle = Some(Handle { file, path: directory.clone(), nameless: Some(*mode) });
                Ok(Outcome::Opened(id))
            }
            Action::Unlink { .. } => file_system.unlink(path).await.map(|_| Outcome::Done),
            Action::Link { to, .. } => file_system.link(path, to.to_string().as_bytes()).await.map(|_| Outcome::Done),
            Action::Rename { to, no_replace, exchange, .. } => {
                let flag = |wanted: bool, flag: u32| if wanted { flag } else { 0 };
                let flags = flag(*no_replace, rename_flags::NO_REPLACE) | flag(*exchange, rename_flags::EXCHANGE);
                file_system.rename(path, to.to_string().as_bytes(), flags).await.map(|_| Outcome::Done)
            }
            Action::MakeDirectory { mode, .. } => Ok(seen(&file_system.mkdir(path, *mode).await?)),
            Action::RemoveDirectory { .. } => file_system.rmdir(path).await.map(|_| Outcome::Done),
            Action::MakeSymlink { target, .. } => Ok(seen(&file_system.symlink(target.as_bytes(), path).await?)),
            Action::MakeNode { mode, .. } => Ok(seen(&file_system.make_node(path, Kind::Fifo, *mode, 0).await?)),
            Action::ReadLink { .. } => file_system.readlink(path).await.map(Outcome::Target),
            Action::Stat { .. } if self.sabotage == Sabotage::HideShares => {
                let attributes = file_system.lstat(path).await?;
                let is_directory = attributes.kind == Kind::Directory;
                Ok(looked(&Attributes {
                    link_count: if is_directory { 1 } else { attributes.link_count },
                    ..attributes
                }))
            }
            Action::Stat { .. } if self.whole.replace(!self.whole.get()) => {
                Ok(seen(&file_system.stat_whole(path, false).await?))
            }
            Action::Stat { .. } => Ok(looked(&file_system.lstat(path).await?)),
            Action::ChangeMode { mode, .. } => file_system.chmod(path, *mode).await.map(|_| Outcome::Done),
            Action::SetTime { mtime, .. } => {
                file_system.utimens(path, Timestamp::Keep, Timestamp::At(*mtime)).await.map(|_| Outcome::Done)
            }
            Action::TruncatePath { size, .. } => file_system.truncate(path, *size).await.map(|_| Outcome::Done),
            Action::List { by_server, .. } => self.list(path, *by_server).await,
            Action::SynchroniseAll if self.sabotage == Sabotage::SkipSyncs => Ok(Outcome::Done),
            Action::SynchroniseAll => file_system.synchronise_all().await.map(|()| Outcome::Done),
            _ => unreachable!("the operation is not about names"),
        }
    }

    /// A search that finds everything, but has to look at all attributes for that.
    async fn search(&self, path: &[u8], entries: &mut Vec<Listed>) -> client::Result<()> {
        let tests = Tests(vec![Test::Links { order: Order::More, count: 0 }]);
        let search = Search { tests, ..Search::default() };
        let mut stream = self.file_system.open_search(path, &search).await?;
        while !stream.is_at_end() {
            let page = self.file_system.next_found(&mut stream).await?;
            let found = page.entries.into_iter().filter(|entry| entry.matches);
            entries.extend(found.map(|entry| Listed {
                name: String::from_utf8_lossy(&entry.name).into_owned(),
                id: entry.id,
                kind: entry.kind,
            }));
        }
        Ok(())
    }

    async fn list(&self, path: &[u8], by_server: bool) -> client::Result<Outcome> {
        let mut entries = Vec::new();
        let mut on_entry = |entry: &DirectoryEntry| {
            entries.push(listed(entry));
            true
        };
        if !by_server && self.searching.replace(!self.searching.get()) {
            self.search(path, &mut entries).await?;
        } else if by_server {
            for server in 0..self.file_system.server_count() {
                self.file_system.read_directory_server(path, server, true, &mut on_entry).await?;
            }
        } else {
            self.file_system.read_directory(path, false, &mut on_entry).await?;
        }
        if self.sabotage == Sabotage::HideNames {
            entries.pop();
        }
        Ok(Outcome::Entries(entries))
    }

    fn start(&self, action: &Action) -> usize {
        if let Some(kernel) = &*self.kernel.borrow() {
            kernel.note_beginning(action);
        }
        self.recorder.start(self.number, action)
    }

    async fn finish(&self, index: usize, action: &Action, outcome: Outcome) {
        let kernel = self.kernel.borrow().clone();
        if let Some(kernel) = kernel {
            kernel.note_outcome(&self.file_system, action, &outcome).await;
        }
        self.recorder.finish(index, outcome);
    }

    fn note_error(&self, index: usize, outcome: &client::Result<Outcome>) {
        if let Err(error) = outcome {
            self.recorder.note(&format!("#{index} {error}"));
        }
    }

    /// Gives an open file a name.
    pub async fn link_open(&self, action: Action, handle: &Handle, spelling: &str) {
        let index = self.start(&action);
        let outcome = self.file_system.link_open(&handle.file, spelling.as_bytes()).await.map(|_| Outcome::Done);
        self.note_error(index, &outcome);
        let outcome = match outcome {
            Err(error) if error.status == Status::StaleFile => {
                self.look_whether_forgotten(&[handle.file.id]).await;
                file_refusal(error.status)
            }
            other => other.unwrap_or_else(|error| refusal(error.status)),
        };
        self.finish(index, &action, outcome).await;
    }

    /// A file that is gone while it is open is excused when its home had forgotten our session. We know of that once we
    /// have been connected again. It is excused as well when its home had forgotten the contact that opened it for us,
    /// which the contact knows. What was imported is the exporter's.
    async fn look_whether_forgotten(&self, files: &[client::FileId]) {
        if let Some(exporter) = &self.exporter {
            return Box::pin(exporter.look_whether_forgotten(files)).await;
        }
        let mut homes = Vec::new();
        for file in files {
            let home = self.file_system.cluster().home_of(*file).expect("files have homes");
            let connected = self.file_system.ping(home).await.is_ok();
            if !connected || self.file_system.sessions_lost() > 0 {
                self.recorder.history.borrow_mut().forgotten.insert(self.number);
            }
            homes.push(home);
        }
        self.recorder.history.borrow_mut().lost_at.push((self.number, homes));
    }

    /// Performs an operation on an open file and notes it. False if the file is gone.
    pub async fn perform_on(&self, action: Action, handle: &Handle) -> bool {
        self.perform_told(action, handle).await != Some(Status::StaleFile)
    }

    /// As `perform_on`; the status of what failed.
    pub async fn perform_told(&self, action: Action, handle: &Handle) -> Option<Status> {
        let reader = self.open_to_read(&action, &handle.file).await;
        // What is there when it was synced is what somebody might have read meanwhile.
        let site = self.site.as_ref().filter(|_| matches!(action, Action::Synchronise { .. }));
        let (file, chunk_size) = (handle.file.id, handle.file.layout.chunk_size);
        let read = Action::Read { file, chunk_size, offset: 0, size: SITE_SIZE_MAX };
        let site = site.map(|site| (site, self.recorder.start(self.number, &read)));
        let index = self.start(&action);
        let outcome = self.contents(&action, reader.as_ref().unwrap_or(&handle.file)).await;
        if let Some((site, index)) = site {
            let bytes = outcome.as_ref().ok().and_then(|_| site(file, SITE_SIZE_MAX));
            self.recorder.finish(index, bytes.map_or(Outcome::Unknown(None), Outcome::Bytes));
        }
        if let Some(reader) = &reader {
            self.file_system.close(reader).await;
        }
        self.note_error(index, &outcome);
        let status = outcome.as_ref().err().map(|error| error.status);
        if status == Some(Status::StaleFile) {
            self.look_whether_forgotten(&[handle.file.id]).await;
        }
        self.finish(index, &action, outcome.unwrap_or_else(|error| file_refusal(error.status))).await;
        status
    }

    /// Writes or reads several ranges of an open file by one call, and notes each. False if the file is gone.
    pub async fn perform_list(&self, actions: Vec<Action>, handle: &Handle) -> bool {
        let indices: Vec<usize> = actions.iter().map(|action| self.start(action)).collect();
        let range = |action: &Action| match *action {
            Action::Write { offset, size, .. } | Action::Read { offset, size, .. } => FileRange { offset, size },
            _ => unreachable!("lists are written and read"),
        };
        let ranges: Vec<FileRange> = actions.iter().map(range).collect();
        let mut bytes = vec![0xee; ranges.iter().map(|range| range.size as usize).sum()];
        let outcomes = match actions[0] {
            Action::Write { .. } => self.write_list(&actions, handle, &ranges, &mut bytes).await,
            _ => self.read_list(handle, &ranges, &mut bytes).await,
        };
        let error = outcomes.as_ref().err().map(|error| error.status);
        if error == Some(Status::StaleFile) {
            self.look_whether_forgotten(&[handle.file.id]).await;
        }
        let failed = |status| vec![file_refusal(status); actions.len()];
        let outcomes = outcomes.unwrap_or_else(|error| failed(error.status));
        for ((index, action), outcome) in indices.into_iter().zip(&actions).zip(outcomes) {
            self.finish(index, action, outcome).await;
        }
        error != Some(Status::StaleFile)
    }

    async fn write_list(
        &self,
        actions: &[Action],
        handle: &Handle,
        ranges: &[FileRange],
        bytes: &mut [u8],
    ) -> client::Result<Vec<Outcome>> {
        let mut rest = &mut bytes[..];
        for action in actions {
            let &Action::Write { offset, size, tag, .. } = action else { unreachable!("all are writes") };
            let (part, others) = rest.split_at_mut(size as usize);
            pattern::fill(tag, offset, part);
            rest = others;
        }
        let (first, second) = bytes.split_at(bytes.len() / 3);
        let places = [IoSlice::new(first), IoSlice::new(second)];
        let written = self.file_system.write_list_at(&handle.file, ranges, &places).await? as u64;
        let mut end = 0;
        let outcome = |range: &FileRange| {
            end += range.size;
            // A short count says that an error struck somewhere behind it.
            if end <= written { Outcome::Done } else { Outcome::Unknown(None) }
        };
        Ok(ranges.iter().map(outcome).collect())
    }

    async fn read_list(&self, handle: &Handle, ranges: &[FileRange], bytes: &mut [u8]) -> client::Result<Vec<Outcome>> {
        let (first, second) = bytes.split_at_mut(bytes.len() / 3);
        let mut places = [IoSliceMut::new(first), IoSliceMut::new(second)];
        let counts = self.file_system.read_list_at(&handle.file, ranges, &mut places).await?;
        let mut rest = &bytes[..];
        let outcome = |(range, count): (&FileRange, usize)| {
            let (part, others) = rest.split_at(range.size as usize);
            rest = others;
            Outcome::Bytes(part[..count].to_vec())
        };
        Ok(ranges.iter().zip(counts).map(outcome).collect())
    }

    /// Opens a file for a read that comes some time later: what was told with the open must not be what is read then,
    /// if somebody has changed it.
    async fn open_to_read(&self, action: &Action, file: &File) -> Option<File> {
        if !self.is_leased || !matches!(action, Action::Read { .. }) || !self.opening.replace(!self.opening.get()) {
            return None;
        }
        let (reader, _) = self.file_system.open_id(file.id, &OpenHow::reading(), 0).await.ok()?;
        let reactor = self.file_system.reactor();
        reactor.sleep(reactor.random() % READ_PAUSE_NS_MAX).await;
        Some(reader)
    }

    /// Copies between two open files and notes it. False if the source is gone.
    pub async fn perform_copy(&self, action: Action, source: &Handle, target: &Handle) -> bool {
        let &Action::CopyRange { from, to, size, .. } = &action else { unreachable!("the operation is a copy") };
        let index = self.start(&action);
        let copied = self.file_system.copy_range(&source.file, from, &target.file, to, size).await;
        let outcome = copied.map(Outcome::Copied);
        self.note_error(index, &outcome);
        let is_there = !matches!(&outcome, Err(error) if error.status == Status::StaleFile);
        if !is_there {
            self.look_whether_forgotten(&[source.file.id, target.file.id]).await;
        }
        self.finish(index, &action, outcome.unwrap_or_else(|error| file_refusal(error.status))).await;
        is_there
    }

    async fn contents(&self, action: &Action, file: &File) -> client::Result<Outcome> {
        let file_system = &self.file_system;
        match *action {
            Action::Lock { owner, start, end, exclusive, wait, whole, .. } => {
                let (locker, range) = wish(owner, whole, LockRange { start, end });
                let locked = match wait {
                    true => file_system.lock(file, locker, range, exclusive).await,
                    false => file_system.try_lock(file, locker, range, exclusive).await,
                };
                locked.map(|()| Outcome::Done)
            }
            Action::Unlock { owner, whole, .. } => {
                let (locker, range) = wish(owner, whole, LockRange::WHOLE);
                file_system.unlock(file, locker, range).await.map(|()| Outcome::Done)
            }
            Action::SetExtended { ref name, tag, size, flags, .. } => {
                let value = crate::check::extended::value(tag, size);
                file_system.set_file_extended(file, name.as_bytes(), &value, flags).await.map(|()| Outcome::Done)
            }
            Action::GetExtended { ref name, .. } => {
                file_system.get_file_extended(file, name.as_bytes()).await.map(Outcome::Bytes)
            }
            Action::ListExtended { .. } => file_system.list_file_extended(file).await.map(Outcome::Bytes),
            Action::RemoveExtended { ref name, .. } => {
                file_system.remove_file_extended(file, name.as_bytes()).await.map(|()| Outcome::Done)
            }
            Action::Write { tag, .. } if self.sabotage == Sabotage::LoseWrites && tag % 8 == 0 => Ok(Outcome::Done),
            Action::Write { offset, size, tag, .. } => {
                let mut bytes = vec![0; size as usize];
                pattern::fill(tag, offset, &mut bytes);
                let written = file_system.write_at(file, &bytes, offset).await?;
                // A short count says that an error struck somewhere behind it.
                Ok(if written as u64 == size { Outcome::Done } else { Outcome::Unknown(None) })
            }
            Action::Read { offset, size, .. } => {
                let mut bytes = vec![0xee; size as usize];
                let count = file_system.read_at(file, &mut bytes, offset).await?;
                bytes.truncate(count);
                Ok(Outcome::Bytes(bytes))
            }
            Action::Append { size, tag, .. } => {
                let mut bytes = vec![0; size as usize];
                pattern::fill(tag, 0, &mut bytes);
                if self.sabotage == Sabotage::ApplyTwice {
                    file_system.append(file, &bytes).await?;
                }
                file_system.append(file, &bytes).await.map(Outcome::Appended)
            }
            Action::Synchronise { .. } if self.sabotage == Sabotage::SkipSyncs => Ok(Outcome::Done),
            Action::Synchronise { .. } => file_system.synchronise(file).await.map(|()| Outcome::Done),
            Action::StatFile { .. } => Ok(seen(&file_system.stat_file(file).await?)),
            Action::TruncateFile { size, .. } => file_system.truncate_file(file, size).await.map(|_| Outcome::Done),
            Action::Allocate { kind, keep_size, offset, size, .. } => {
                file_system.allocate(file, kind, keep_size, offset, size).await.map(|_| Outcome::Done)
            }
            Action::Seek { offset, hole, .. } => {
                let found = match hole {
                    true => file_system.seek_hole(file, offset).await,
                    false => file_system.seek_data(file, offset).await,
                };
                match found {
                    Err(error) if error.status == Status::NoData => Ok(Outcome::Found(None)),
                    found => Ok(Outcome::Found(Some(found?))),
                }
            }
            Action::Close { .. } => {
                let late_error = file_system.late_error(file).await;
                file_system.close(file).await;
                late_error.map(|()| Outcome::Done)
            }
            _ => unreachable!("the operation is not about contents"),
        }
    }
}
