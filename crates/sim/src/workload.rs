//! What clients do: operations drawn at random, so that they meet on few names, chunks and offsets.

use crate::actor::{Client, Handle};
use crate::history::{Action, Path};
use crate::pattern::Tag;
use crate::profile::{Flavour, MILLISECOND, Profile, SECOND};
use crate::random::Random;
use client::Allocation;
use reactor::{Class, Nanos, Reactor};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use wire::FileId;

/// A symbolic link to the directory `DIRECTORIES[0]`, made before anything else and never removed.
pub const ALIAS: &str = "alias";
pub(crate) const DIRECTORIES: [&str; 2] = ["d0", "d1"];
pub(crate) const FILES: [&str; 4] = ["f0", "f1", "f2", "f3"];
/// A directory that may be in each of them.
const NESTED: &str = "s";
pub(crate) const CHILDREN: [&str; 3] = ["c0", "c1", "c2"];
const LINKS: [&str; 2] = ["l0", "l1"];
pub(crate) const LOGS: [&str; 2] = ["log0", "log1"];
/// Names in a directory under which files are made that are most likely not there.
pub(crate) const NEW_FILE_COUNT: u64 = 64;
/// Files that only copies change: what is copied on would have too many origins to check.
const COPIES: [&str; 2] = ["copy0", "copy1"];
const HANDLE_COUNT_MAX: usize = 4;
/// Ranges of one call.
const LIST_COUNT_MAX: u64 = 4;
/// The same where they are pieces with the same step between them: of writes, whose orders the check has to try where
/// nobody knows what came of them, and of reads.
const STRIDED_WRITES_MAX: u64 = 5;
const STRIDED_READS_MAX: u64 = 12;
/// Most bytes of one read or write.
const SIZE_MAX: u64 = 3 << 20;
/// Writes and reads of a file by who was handed it.
const HANDED_STEPS: usize = 3;
/// Clients of a run that are forked, and that are handed files.
const FORK_COUNT_MAX: usize = 6;
/// Longest that a client sleeps while others work, and most operations of others that it sleeps through once it has
/// come.
const SLEEP_MAX: Nanos = 20 * SECOND;
const SLEPT_COUNT_MAX: u64 = 100;

/// What all clients of a run share.
pub struct Plan {
    pub profile: Profile,
    /// Operations still to be started.
    steps_left: Cell<u64>,
    next_tag: Cell<Tag>,
    next_time: Cell<i64>,
    /// Workers that have not ended.
    pub working: Rc<Cell<u32>>,
    /// Clients so far.
    client_count: Rc<Cell<u32>>,
    /// Clients that were forked, each with the one that it was forked from.
    forks: RefCell<Vec<(u32, u32)>>,
    /// Clients that were handed open files, each with the one that has them open.
    importers: RefCell<Vec<(u32, u32)>>,
}

/// Counts a worker for as long as its task lives.
pub struct Presence(Rc<Cell<u32>>);

impl Presence {
    pub fn new(count: &Rc<Cell<u32>>) -> Presence {
        count.set(count.get() + 1);
        Presence(count.clone())
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Plan {
    /// `client_count` grows with each client.
    pub fn new(profile: &Profile, client_count: &Rc<Cell<u32>>) -> Rc<Plan> {
        Rc::new(Plan {
            working: Rc::default(),
            client_count: client_count.clone(),
            forks: RefCell::default(),
            importers: RefCell::default(),
            profile: profile.clone(),
            steps_left: Cell::new(profile.steps),
            next_tag: Cell::new(1),
            next_time: Cell::new(1_000_000),
        })
    }

    /// A client, those that were forked from it and those that it handed files, which all end when its node does.
    pub fn with_forks(&self, client: u32) -> BTreeSet<u32> {
        let mut found = BTreeSet::from([client]);
        // Children come after their parents.
        for (child, parent) in self.forks.borrow().iter().chain(self.importers.borrow().iter()) {
            if found.contains(parent) {
                found.insert(*child);
            }
        }
        found
    }

    /// Waits until others have done so many operations, or a while if they don't.
    async fn sleep_through(&self, reactor: &Reactor, count: u64) {
        let until = self.steps_left.get().saturating_sub(count);
        let latest = reactor.now() + SLEEP_MAX;
        while self.steps_left.get() > until && reactor.now() < latest {
            reactor.sleep(MILLISECOND).await;
        }
    }

    fn take_step(&self) -> bool {
        let left = self.steps_left.get();
        self.steps_left.set(left.saturating_sub(1));
        left > 0
    }

    pub(crate) fn tag(&self) -> Tag {
        self.next_tag.replace(self.next_tag.get() + 1)
    }

    /// A modification time like no other, below `check::times::CLOCK_MIN`.
    fn time(&self) -> i64 {
        self.next_time.replace(self.next_time.get() + 1_000)
    }
}

/// Makes what every run has from the start.
pub async fn set_up(client: &Client, plan: &Plan) {
    let target = format!("/{}", DIRECTORIES[0]);
    let alias = Action::MakeSymlink { path: Path::top(ALIAS), target };
    client.perform(alias, &format!("/{ALIAS}")).await;
    for (index, directory) in DIRECTORIES.iter().enumerate() {
        let path = Path::top(directory);
        let spelling = path.to_string();
        client.perform(Action::MakeDirectory { path, mode: 0o700 + index as u32 }, &spelling).await;
    }
    for log in LOGS {
        let chunk_size = plan.profile.chunk_sizes[0];
        let mut how = open(Path::top(log), 0o600, chunk_size);
        if let Action::Open { exclusive, .. } = &mut how {
            *exclusive = true;
        }
        client.perform(how, &format!("/{log}")).await;
    }
    if plan.profile.faults.power_losses {
        // The link has to stay for good, for paths lead through it.
        client.perform(Action::SynchroniseAll, "/").await;
    }
}

fn open(path: Path, mode: u32, chunk_size: u32) -> Action {
    Action::Open { path, create: true, exclusive: false, truncate: false, mode, chunk_size }
}

/// One stream of operations of a client, one after the other.
pub struct Worker {
    pub client: Rc<Client>,
    pub plan: Rc<Plan>,
    pub random: Random,
    pub handles: Vec<Handle>,
    /// The chunk that other workers are likely to be at.
    focus: u64,
}

impl Worker {
    pub fn new(client: Rc<Client>, plan: Rc<Plan>, random: Random) -> Worker {
        Worker { client, plan, random, handles: Vec::new(), focus: 0 }
    }

    /// Works until all steps of the run are started.
    pub async fn run(mut self) {
        let reactor = self.client.file_system.reactor().clone();
        let is_tardy = self.plan.profile.tardy && self.client.number > 0;
        if is_tardy && self.random.percent(50) {
            self.plan.sleep_through(&reactor, self.random.below(self.plan.profile.steps)).await;
        }
        while self.plan.take_step() {
            if is_tardy && self.random.percent(4) {
                self.plan.sleep_through(&reactor, self.random.below(SLEPT_COUNT_MAX)).await;
            }
            let pause_max = self.plan.profile.pause_max;
            if pause_max > 0 && self.random.percent(50) {
                reactor.sleep(self.random.below(pause_max)).await;
            }
            if self.plan.profile.forks && self.random.percent(3) {
                self.hand_over().await;
                self.fork().await;
            }
            self.step().await;
            self.look_again().await;
            // Even when all servers are gone and every call fails at once, time goes on.
            reactor.sleep(self.random.below(MILLISECOND / 10) + 1).await;
        }
        for handle in std::mem::take(&mut self.handles) {
            self.client.perform_on(Action::Close { file: handle.file.id }, &handle).await;
        }
    }

    /// Another process is handed a file that this worker has open, and uses it, and closes it, while that lasts.
    async fn hand_over(&self) {
        let Some(handle) = self.handles.last() else { return };
        let Ok(bytes) = self.client.file_system.export(&handle.file) else { return };
        if self.plan.importers.borrow().len() == FORK_COUNT_MAX {
            return;
        }
        let number = self.plan.client_count.replace(self.plan.client_count.get() + 1);
        self.plan.importers.borrow_mut().push((number, self.client.number));
        let importer = Rc::new(self.client.importer(number));
        let file = importer.file_system.import(&bytes).expect("it was exported just now");
        importer.recorder.note(&format!("client {} hands client {number} file {}", self.client.number, file.id));
        let handle = Handle { file, nameless: None, ..handle.clone() };
        // Nothing is drawn for it that others would miss.
        let random = Random::new(number.into());
        let mut worker = Worker { handles: vec![handle.clone()], ..Worker::new(importer, self.plan.clone(), random) };
        for _ in 0..HANDED_STEPS {
            if !worker.handles.is_empty() {
                worker.write().await;
            }
            if !worker.handles.is_empty() {
                worker.read().await;
            }
        }
        worker.client.perform_on(Action::Close { file: handle.file.id }, &handle).await;
    }

    /// Forks a child, which has open what this worker has, and works on with a session of its own. What is open in both
    /// stays what it is in each, whatever becomes of it in the other, as soon as the child has used it once: until then
    /// this worker waits.
    async fn fork(&mut self) {
        if self.plan.forks.borrow().len() == FORK_COUNT_MAX {
            return;
        }
        // One that comes to nothing has a number of its own too, for others come meanwhile.
        let number = self.plan.client_count.replace(self.plan.client_count.get() + 1);
        self.plan.forks.borrow_mut().push((number, self.client.number));
        let child = Rc::new(self.client.forked(number));
        let mut handles = Vec::new();
        for handle in &self.handles {
            let file = handle.file.forked();
            // A file that can't be had now may be gone later.
            if child.file_system.stat_file(&file).await.is_ok() && child.file_system.has_registered(&file) {
                handles.push(Handle { file, nameless: None, ..handle.clone() });
            }
        }
        if child.file_system.sessions_lost() > 0 {
            return;
        }
        child.recorder.note(&format!(
            "client {} forks client {number}, with {} files",
            self.client.number,
            handles.len()
        ));
        let (presence, random) = (Presence::new(&self.plan.working), self.random.fork());
        let worker = Worker { handles, ..Worker::new(child.clone(), self.plan.clone(), random) };
        child.file_system.reactor().clone().spawn(Class::Data, async move {
            worker.run().await;
            drop(presence);
        });
    }

    /// Who keeps names looks at some that he may know already.
    async fn look_again(&self) {
        if self.client.kernel.borrow().is_none() {
            return;
        }
        for name in [FILES[0], DIRECTORIES[0], FILES[0]] {
            let path = Path::top(name);
            self.client.perform(Action::Stat { path }, &format!("/{name}")).await;
        }
    }

    async fn step(&mut self) {
        // Contents come first in the table below, names last.
        let kind = match self.plan.profile.flavour {
            Flavour::Mixed => self.random.below(100),
            Flavour::Contents => self.random.below(64),
            Flavour::Names => (self.random.below(100) + 55).min(99),
        };
        match kind {
            0..14 => self.open_some().await,
            14..31 if !self.handles.is_empty() => self.write().await,
            31..33 if !self.handles.is_empty() => self.on_list().await,
            33..50 if !self.handles.is_empty() => self.read().await,
            50..56 if !self.handles.is_empty() => self.on_handle().await,
            56..59 => self.append().await,
            59..61 => self.on_locks().await,
            61..63 if !self.handles.is_empty() => self.copy().await,
            61..66 => self.list().await,
            66..74 => self.on_two_names().await,
            _ => self.on_name().await,
        }
    }

    fn some_file(&mut self) -> Path {
        let crowd = if self.plan.profile.crowded { 1 } else { FILES.len() as u64 };
        if self.random.percent(60) {
            return Path::top(FILES[self.random.below(crowd) as usize]);
        }
        let count = if self.plan.profile.crowded { 2 } else { CHILDREN.len() as u64 };
        let child = CHILDREN[self.random.below(count) as usize];
        self.some_directory().join(child)
    }

    /// One of many names, which most likely is not there.
    fn some_new_file(&mut self) -> Path {
        let child = format!("n{}", self.random.below(NEW_FILE_COUNT));
        self.some_directory().join(&child)
    }

    /// A path as the client spells it: sometimes through the symbolic link.
    fn spell(&mut self, path: &Path) -> String {
        match path.parts.split_first() {
            Some((top, rest)) if !rest.is_empty() => {
                let rest = rest.join("/");
                match self.random.below(100) {
                    0..30 if top == DIRECTORIES[0] => format!("/{ALIAS}/{rest}"),
                    30..35 => format!("//{top}/./{rest}"),
                    35..40 => format!("/{top}/../{top}/{rest}"),
                    _ => path.to_string(),
                }
            }
            _ => path.to_string(),
        }
    }

    fn mode(&mut self) -> u32 {
        self.random.below(0o1000) as u32
    }

    async fn make_temporary(&mut self) {
        let directory = self.some_directory();
        let spelling = self.spell(&directory);
        let (mode, chunk_size) = (self.mode(), *self.random.choose(&self.plan.profile.chunk_sizes));
        let action = Action::MakeTemporary { directory, mode, chunk_size };
        if let Some(handle) = self.client.perform(action, &spelling).await {
            self.keep(handle).await;
        }
    }

    /// Gives a file without a name one, once: whether it came about or not, it is not tried again.
    async fn link_open(&mut self, handle: &Handle, mode: u32) {
        let path = self.some_file();
        let spelling = self.spell(&path);
        let file = handle.file.id;
        self.handles.iter_mut().filter(|other| other.file.id == file).for_each(|other| other.nameless = None);
        self.client.link_open(Action::LinkOpen { file, mode, path }, handle, &spelling).await;
    }

    async fn open_some(&mut self) {
        if self.random.percent(8) {
            return self.make_temporary().await;
        }
        let is_likely_new = self.random.percent(30);
        let path = if is_likely_new { self.some_new_file() } else { self.some_file() };
        let spelling = self.spell(&path);
        let create = is_likely_new || self.random.percent(75);
        let action = Action::Open {
            path: path.clone(),
            create,
            exclusive: create && self.random.percent(30),
            truncate: self.random.percent(15),
            mode: self.mode(),
            chunk_size: *self.random.choose(&self.plan.profile.chunk_sizes),
        };
        let Some(handle) = self.client.perform(action, &spelling).await else { return };
        if !create && self.random.percent(30) {
            self.remove_open(path, &handle).await;
        }
        if create && self.random.percent(if is_likely_new { 70 } else { 30 }) {
            self.begin_file(&handle).await;
        }
        self.keep(handle).await;
    }

    /// Writes the first bytes of a file right after it was opened, and most likely made.
    async fn begin_file(&mut self, handle: &Handle) {
        let chunk_size = handle.file.layout.chunk_size;
        let size = self.size(chunk_size.into()).min(chunk_size.into());
        let action = Action::Write { file: handle.file.id, chunk_size, offset: 0, size, tag: self.plan.tag() };
        self.work_on(action, handle).await;
    }

    /// Removes the name that a file was just opened by, which stays what it is for whoever has it open.
    async fn remove_open(&mut self, path: Path, handle: &Handle) {
        let spelling = self.spell(&path);
        self.client.perform(Action::Unlink { path }, &spelling).await;
        self.work_on(Action::StatFile { file: handle.file.id }, handle).await;
    }

    async fn keep(&mut self, handle: Handle) {
        if self.handles.len() == HANDLE_COUNT_MAX {
            let old = self.handles.swap_remove(self.random.below(HANDLE_COUNT_MAX as u64) as usize);
            self.client.perform_on(Action::Close { file: old.file.id }, &old).await;
        }
        self.handles.push(handle);
    }

    pub(crate) fn some_handle(&mut self) -> Handle {
        self.random.choose(&self.handles).clone()
    }

    /// An offset where others are likely to be too: near the borders of chunks and pages, seldom far out.
    fn offset(&mut self, chunk_size: u64) -> u64 {
        if self.random.percent(30) {
            self.focus = self.random.below(5);
        }
        let chunk = match self.random.below(40) {
            0 => 1000 + self.random.below(3),
            1 => (1 << 40) / chunk_size,
            _ => self.focus,
        };
        let within = match self.random.below(5) {
            0 | 1 => 0,
            2 => chunk_size / 2,
            3 => 4096 * self.random.below(chunk_size.div_ceil(4096)),
            _ => self.random.below(chunk_size),
        };
        let nudge = self.random.below(64);
        let offset = chunk * chunk_size + within;
        if self.random.percent(70) { offset } else { (offset + nudge).saturating_sub(32) }
    }

    fn size(&mut self, chunk_size: u64) -> u64 {
        let size = match self.random.below(8) {
            0 => 1 + self.random.below(16),
            1 | 2 => 1 + self.random.below(500),
            3 => 4096,
            4 => self.random.between(1, chunk_size),
            5 => chunk_size,
            6 => chunk_size + self.random.below(chunk_size),
            _ => self.random.between(1, 3 * chunk_size),
        };
        // Large chunks cost time and are seldom more interesting than small ones.
        let size_max = if self.random.percent(85) { 200_000 } else { SIZE_MAX };
        size.min(size_max)
    }

    async fn write(&mut self) {
        let handle = self.some_handle();
        let action = self.some_write(&handle);
        self.work_on(action, &handle).await;
    }

    fn some_write(&mut self, handle: &Handle) -> Action {
        let chunk_size = handle.file.layout.chunk_size;
        Action::Write {
            file: handle.file.id,
            chunk_size,
            offset: self.offset(chunk_size.into()),
            size: self.size(chunk_size.into()),
            tag: self.plan.tag(),
        }
    }

    /// Writes or reads several ranges by one call.
    async fn on_list(&mut self) {
        let handle = self.some_handle();
        let writes = self.random.percent(50);
        let mut actions = Vec::new();
        if self.random.percent(50) {
            for _ in 0..self.random.between(1, LIST_COUNT_MAX) {
                actions.push(if writes { self.some_write(&handle) } else { self.some_read(&handle) });
            }
        } else {
            let (file, chunk_size) = (handle.file.id, handle.file.layout.chunk_size);
            let most = if writes { STRIDED_WRITES_MAX } else { STRIDED_READS_MAX };
            for (offset, size) in self.strided(chunk_size.into(), most) {
                actions.push(match writes {
                    true => Action::Write { file, chunk_size, offset, size, tag: self.plan.tag() },
                    false => Action::Read { file, chunk_size, offset, size },
                });
            }
        }
        if !self.client.perform_list(actions, &handle).await {
            self.forget_handle(&handle);
        }
    }

    /// At most so many pieces, as large as one another, mostly several of a chunk: with gaps, one right behind another,
    /// or each over a part of the one before it; in some order.
    fn strided(&mut self, chunk_size: u64, most: u64) -> Vec<(u64, u64)> {
        let first = self.offset(chunk_size);
        let size_max = *self.random.choose(&[16, 300, 300, 5000]);
        let size = 1 + self.random.below(size_max);
        let step = match self.random.below(5) {
            0 => size,
            1 => size.div_ceil(2),
            2 => size + 1 + self.random.below(chunk_size / 4),
            _ => size + 1 + self.random.below(64),
        };
        let count = self.random.between(2, most);
        let mut pieces: Vec<(u64, u64)> = (0..count).map(|number| (first + number * step, size)).collect();
        if self.random.percent(30) {
            for number in 1..pieces.len() {
                let other = self.random.below(number as u64 + 1) as usize;
                pieces.swap(number, other);
            }
        }
        pieces
    }

    /// Performs an operation on an open file, which is let go of when it turns out to be gone.
    pub(crate) async fn work_on(&mut self, action: Action, handle: &Handle) {
        if !self.client.perform_on(action, handle).await {
            self.forget_handle(handle);
        }
    }

    fn forget_handle(&mut self, handle: &Handle) {
        self.handles.retain(|other| other.file.id != handle.file.id);
    }

    async fn read(&mut self) {
        let handle = self.some_handle();
        let action = self.some_read(&handle);
        self.work_on(action, &handle).await;
    }

    fn some_read(&mut self, handle: &Handle) -> Action {
        let chunk_size = handle.file.layout.chunk_size;
        Action::Read {
            file: handle.file.id,
            chunk_size,
            offset: self.offset(chunk_size.into()),
            size: self.size(chunk_size.into()),
        }
    }

    async fn on_handle(&mut self) {
        if self.random.percent(30) {
            return self.on_extended().await;
        }
        let handle = self.some_handle();
        if let Some(mode) = handle.nameless.filter(|_| self.random.percent(60)) {
            return self.link_open(&handle, mode).await;
        }
        let file = handle.file.id;
        let chunk_size = handle.file.layout.chunk_size.into();
        let action = match self.random.below(21) {
            18..21 => Action::Synchronise { file, name_server: handle.file.name_server() },
            0..5 => Action::StatFile { file },
            5..8 => Action::TruncateFile { file, size: self.offset(chunk_size) },
            8..13 => self.allocation(file, handle.file.layout.chunk_size),
            13..16 => Action::Seek {
                file,
                chunk_size: handle.file.layout.chunk_size,
                offset: self.offset(chunk_size),
                hole: self.random.percent(40),
            },
            _ => {
                let index = self.handles.iter().position(|other| other.file.id == file);
                self.handles.swap_remove(index.expect("the handle is one of ours"));
                Action::Close { file }
            }
        };
        self.work_on(action, &handle).await;
    }

    async fn append(&mut self) {
        let log = *self.random.choose(&LOGS);
        let action = Action::Open {
            path: Path::top(log),
            create: false,
            exclusive: false,
            truncate: false,
            mode: 0,
            chunk_size: 0,
        };
        let Some(handle) = self.client.perform(action, &format!("/{log}")).await else { return };
        let (file, chunk_size) = (handle.file.id, handle.file.layout.chunk_size);
        let most = if self.random.percent(15) { 30_000 } else { 3000 };
        let size = 32 + self.random.below(most);
        self.client.perform_on(Action::Append { file, chunk_size, size, tag: self.plan.tag() }, &handle).await;
        if self.random.percent(30) {
            self.client.perform_on(Action::Read { file, chunk_size, offset: 0, size: 100_000 }, &handle).await;
        }
        self.client.perform_on(Action::Close { file }, &handle).await;
    }

    fn allocation(&mut self, file: FileId, chunk_size: u32) -> Action {
        let kind = *self.random.choose(&[Allocation::Reserve, Allocation::Punch, Allocation::Punch, Allocation::Zero]);
        let offset = self.offset(chunk_size.into());
        // Room that is asked for at random fills a store quickly.
        let size = self.size(chunk_size.into());
        let size = if kind == Allocation::Punch { size } else { size.min(60_000) };
        Action::Allocate { file, chunk_size, kind, keep_size: self.random.percent(50), offset, size }
    }

    /// Copies from an open file to one that nothing but copies changes.
    async fn copy(&mut self) {
        let source = self.some_handle();
        let path = Path::top(COPIES[self.random.below(2) as usize]);
        let spelling = path.to_string();
        let open = open(path, 0o600, *self.random.choose(&self.plan.profile.chunk_sizes));
        let Some(target) = self.client.perform(open, &spelling).await else { return };
        let (file, chunk_size) = (target.file.id, target.file.layout.chunk_size);
        let source_chunk_size = source.file.layout.chunk_size;
        let action = Action::CopyRange {
            source: source.file.id,
            source_chunk_size,
            from: self.offset(source_chunk_size.into()),
            file,
            chunk_size,
            to: self.offset(chunk_size.into()),
            size: self.size(chunk_size.into()),
            tag: self.plan.tag(),
        };
        if !self.client.perform_copy(action, &source, &target).await {
            self.handles.retain(|other| other.file.id != source.file.id);
        }
        if self.random.percent(40) {
            let (offset, size) = (self.offset(chunk_size.into()), self.size(chunk_size.into()));
            self.client.perform_on(Action::Read { file, chunk_size, offset, size }, &target).await;
        }
        self.client.perform_on(Action::Close { file }, &target).await;
    }

    async fn list(&mut self) {
        let directory = match self.random.below(4) {
            0 => None,
            _ => Some(self.some_directory()),
        };
        let spelling = directory.as_ref().map_or("/".to_owned(), Path::to_string);
        let by_server = self.random.percent(40);
        self.client.perform(Action::List { directory, by_server }, &spelling).await;
    }

    async fn on_name(&mut self) {
        if self.random.percent(12) {
            return self.open_some().await;
        }
        let action = match self.random.below(100) {
            0..30 => Action::Stat { path: self.some_name() },
            30..38 => Action::Unlink { path: self.some_file() },
            38..50 => Action::MakeDirectory { path: self.some_directory(), mode: self.mode() },
            50..60 => Action::RemoveDirectory { path: self.some_directory() },
            // Names of symbolic links are as good for pipes, and see both.
            60..63 => Action::MakeNode { path: self.some_link(), mode: self.mode() },
            63..68 => Action::MakeSymlink { path: self.some_link(), target: format!("/nowhere-{}", self.plan.tag()) },
            68..74 => Action::ReadLink { path: self.some_link() },
            74..79 => Action::Unlink { path: self.some_link() },
            79..86 => Action::ChangeMode { path: self.some_name(), mode: self.mode() },
            86..88 => Action::SynchroniseAll,
            88..93 => Action::SetTime { path: self.some_file(), mtime: self.plan.time() },
            93..96 => Action::SetTime { path: self.some_directory(), mtime: self.plan.time() },
            _ => {
                let chunk_size = u64::from(self.plan.profile.chunk_sizes[0]);
                Action::TruncatePath { path: self.some_file(), size: self.offset(chunk_size) }
            }
        };
        let path = match &action {
            Action::SynchroniseAll => {
                self.client.perform(action, "/").await;
                return;
            }
            Action::Stat { path } | Action::Unlink { path } | Action::ReadLink { path } => path.clone(),
            Action::MakeDirectory { path, .. } | Action::RemoveDirectory { path } => path.clone(),
            Action::MakeSymlink { path, .. } | Action::MakeNode { path, .. } => path.clone(),
            Action::ChangeMode { path, .. } => path.clone(),
            Action::SetTime { path, .. } | Action::TruncatePath { path, .. } => path.clone(),
            _ => return,
        };
        let spelling = self.spell(&path);
        self.client.perform(action, &spelling).await;
    }

    /// Links and renames, of directories, of files among the names of files and of symbolic links among theirs: what is
    /// created through a symbolic link would have a name that nobody knows. Names at the top and names in directories
    /// stay apart, for what is tied together is checked together, and that gets harder with the number of operations.
    async fn on_two_names(&mut self) {
        let at_top = self.random.percent(40);
        let (old, new) = (self.random.below(2) as usize, self.random.below(3) as usize);
        let in_directory =
            |worker: &mut Worker, name| if at_top { Path::top(name) } else { worker.some_directory().join(name) };
        let mut directories = false;
        let (from, to) = match self.random.below(10) {
            0 | 1 => (in_directory(self, LINKS[old]), in_directory(self, LINKS[1 - old])),
            2 => (in_directory(self, CHILDREN[old]), self.some_directory()),
            4 | 5 => {
                directories = true;
                (self.some_directory(), self.some_directory())
            }
            3 if self.random.percent(30) => (self.some_directory(), in_directory(self, CHILDREN[new])),
            _ => {
                let names: &[&'static str] = if at_top { &FILES[..3] } else { &CHILDREN };
                (in_directory(self, names[old]), in_directory(self, names[new]))
            }
        };
        let spelling = self.spell(&from);
        let action = match self.random.below(10) {
            0..4 if !directories => Action::Link { from, to },
            draw => Action::Rename { from, to, no_replace: draw == 4, exchange: draw == 5 },
        };
        self.client.perform(action, &spelling).await;
    }

    fn directory(&mut self) -> &'static str {
        DIRECTORIES[self.random.below(DIRECTORIES.len() as u64) as usize]
    }

    fn some_directory(&mut self) -> Path {
        let top = Path::top(self.directory());
        if self.random.percent(75) { top } else { top.join(NESTED) }
    }

    fn some_link(&mut self) -> Path {
        let link = *self.random.choose(&LINKS);
        if self.random.percent(50) { Path::top(link) } else { self.some_directory().join(link) }
    }

    fn some_name(&mut self) -> Path {
        match self.random.below(10) {
            0..6 => self.some_file(),
            6..8 => self.some_directory(),
            8 => self.some_link(),
            _ => Path::top(LOGS[self.random.below(2) as usize]),
        }
    }
}

/// All names that the workload ever uses.
pub fn all_paths() -> Vec<Path> {
    let tops = FILES.iter().chain(&DIRECTORIES).chain(&LINKS).chain(&LOGS).chain(&COPIES).copied().chain([ALIAS]);
    let mut paths: Vec<Path> = tops.map(Path::top).collect();
    for top in DIRECTORIES.map(Path::top) {
        for directory in [top.clone(), top.join(NESTED)] {
            paths.extend(CHILDREN.iter().chain(&LINKS).map(|child| directory.join(child)));
        }
        paths.push(top.join(NESTED));
    }
    paths
}
