//! Open files: an identity, a layout and a few facts that all users of the handle share. No connection.

use crate::error::Error;
use crate::open_files::exported::ExportedFile;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use wire::messages::LockSpace;
use wire::{Attributes, FileId, Kind, Layout};

/// How to open a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenHow {
    pub read: bool,
    pub write: bool,
    /// Make the file when it does not exist.
    pub create: bool,
    /// With `create`: the file must not exist.
    pub exclusive: bool,
    /// Cut the file to no bytes.
    pub truncate: bool,
    /// The handle is for `FileSystem::append`; kept for callers, the file system itself does not look at it.
    pub append: bool,
    /// A symbolic link at the end of the path is an error.
    pub no_follow: bool,
    /// Make a file without a name, in the file system of the directory that the path names. It goes with its last close
    /// unless `FileSystem::link_open` gives it a name, which `exclusive` rules out.
    pub temporary: bool,
    /// Permission bits of a new file, before the umask.
    pub mode: u32,
    /// Bytes of a chunk of a new file; 0 takes the option's or the cluster's.
    pub chunk_size: u32,
    /// Servers that a new file is spread over, neighbouring chunks at the same server, and the server of chunk 0; what
    /// is 0 or `None` is the cluster's usual way. With ring placement they don't count.
    pub width: u32,
    pub run: u32,
    pub first: Option<u32>,
}

impl Default for OpenHow {
    /// Nothing allowed, nothing created; a new file would be 0666.
    fn default() -> OpenHow {
        OpenHow {
            read: false,
            write: false,
            create: false,
            exclusive: false,
            truncate: false,
            append: false,
            no_follow: false,
            temporary: false,
            mode: 0o666,
            chunk_size: 0,
            width: 0,
            run: 0,
            first: None,
        }
    }
}

impl OpenHow {
    /// For reading.
    pub fn reading() -> OpenHow {
        OpenHow { read: true, ..OpenHow::default() }
    }

    /// For reading and writing an existing file.
    pub fn reading_and_writing() -> OpenHow {
        OpenHow { read: true, write: true, ..OpenHow::default() }
    }

    /// For reading and writing; made when missing, cut when present.
    pub fn creating(mode: u32) -> OpenHow {
        OpenHow { read: true, write: true, create: true, truncate: true, mode, ..OpenHow::default() }
    }
}

/// The least that the size was known to be, in one truncate generation. Within a generation sizes only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KnownSize {
    pub size: u64,
    pub truncate_generation: u32,
}

#[derive(Debug)]
struct FileState {
    /// The session that has the file open at its home. In a child after fork it is still the parent's.
    session: AtomicU64,
    /// Whether it is another process's open that it rests on (`exported`).
    is_imported: bool,
    closed: AtomicBool,
    /// Whether a write through this handle reached a server other than the home: then close settles the size in.
    wrote_beyond_home: AtomicBool,
    /// End of the furthest write through this handle: reads before it need not ask for the size first.
    written_end: AtomicU64,
    known_size: Mutex<KnownSize>,
    /// `Servers::sessions_lost` when that was told: a server that lost power takes sizes back.
    sessions_lost: AtomicU64,
    /// Of a directory: what was last seen of it, which is all that is left when it is removed while it is open.
    directory: Mutex<Option<Box<Attributes>>>,
    /// Servers that this handle wrote to since it was last synchronised: bit n stands for those of number n modulo 64.
    written_servers: AtomicU64,
    /// Whether large bodies wait for permits of their servers.
    throttled: AtomicBool,
    /// What synchronising has to know.
    errors: Mutex<Errors>,
    /// The number under which this open file owns locks; 0 before the first.
    description: AtomicU64,
    /// Bits of `LockSpace` in which it may have some.
    locked: AtomicU64,
}

/// What was told of errors that came to light later than the request they belong to.
#[derive(Debug, Default, Clone)]
struct Errors {
    opened_at: i64,
    name_server: Option<u32>,
    /// The last error of each server.
    seen: Vec<(u32, u64)>,
    /// Why a write was cut short, for as long as nobody was told.
    pending: Option<Error>,
}

/// An open file. Cheap to clone; clones share their state. Usable from any thread, and in a child after fork.
#[derive(Debug, Clone)]
pub struct File {
    pub id: FileId,
    pub kind: Kind,
    pub layout: Layout,
    pub read: bool,
    pub write: bool,
    pub append: bool,
    state: Arc<FileState>,
}

impl FileState {
    fn new(
        session: u64,
        is_imported: bool,
        known_size: KnownSize,
        directory: Option<Box<Attributes>>,
        sessions_lost: u64,
    ) -> FileState {
        FileState {
            session: AtomicU64::new(session),
            is_imported,
            closed: AtomicBool::new(false),
            wrote_beyond_home: AtomicBool::new(false),
            written_end: AtomicU64::new(0),
            known_size: Mutex::new(known_size),
            sessions_lost: AtomicU64::new(sessions_lost),
            directory: Mutex::new(directory),
            written_servers: AtomicU64::new(0),
            throttled: AtomicBool::new(false),
            errors: Mutex::default(),
            description: AtomicU64::new(0),
            locked: AtomicU64::new(0),
        }
    }
}

impl File {
    /// An open file that `session` has registered; `sessions_lost` as by then.
    pub(crate) fn new(attributes: &Attributes, how: &OpenHow, session: u64, sessions_lost: u64) -> File {
        let known = KnownSize { size: attributes.size, truncate_generation: attributes.truncate_generation };
        let directory = (attributes.kind == Kind::Directory).then(|| Box::new(attributes.clone()));
        File {
            id: attributes.id,
            kind: attributes.kind,
            layout: attributes.layout,
            read: how.read,
            write: how.write,
            append: how.append,
            state: Arc::new(FileState::new(session, false, known, directory, sessions_lost)),
        }
    }

    /// A file that another process has open. Of its size nothing is known.
    pub(crate) fn imported(exported: &ExportedFile, how: &OpenHow, sessions_lost: u64) -> File {
        let known = KnownSize { size: 0, truncate_generation: exported.truncate_generation };
        File {
            id: exported.file,
            kind: Kind::File,
            layout: exported.layout,
            read: how.read,
            write: how.write,
            append: how.append,
            state: Arc::new(FileState::new(exported.session, true, known, None, sessions_lost)),
        }
    }

    /// The file as a child has it that this process forks now, or has forked: a copy of all that is known of it, which
    /// goes its own way. What another thread of the parent had locked at the fork is not known: the child learns a size
    /// anew, and may be told of an error again.
    #[doc(hidden)]
    pub fn forked(&self) -> File {
        fn inherited<T: Clone>(known: &Mutex<T>, unknown: T) -> Mutex<T> {
            match known.try_lock() {
                Ok(known) => Mutex::new(known.clone()),
                Err(TryLockError::Poisoned(known)) => Mutex::new(known.into_inner().clone()),
                Err(TryLockError::WouldBlock) => Mutex::new(unknown),
            }
        }
        let copied = |number: &AtomicU64| AtomicU64::new(number.load(Ordering::Relaxed));
        let flag = |flag: &AtomicBool| AtomicBool::new(flag.load(Ordering::Relaxed));
        let state = &self.state;
        let state = FileState {
            session: copied(&state.session),
            is_imported: state.is_imported,
            closed: flag(&state.closed),
            wrote_beyond_home: flag(&state.wrote_beyond_home),
            written_end: copied(&state.written_end),
            known_size: inherited(&state.known_size, KnownSize { size: 0, truncate_generation: 0 }),
            sessions_lost: copied(&state.sessions_lost),
            directory: inherited(&state.directory, None),
            written_servers: copied(&state.written_servers),
            throttled: flag(&state.throttled),
            errors: inherited(&state.errors, Errors::default()),
            description: copied(&state.description),
            locked: copied(&state.locked),
        };
        File { state: Arc::new(state), ..self.clone() }
    }

    /// Whether reads and writes of more than 64 KiB at a server that is reached by messages wait for a permit of it, of
    /// which a server gives a few at a time: for calls that many processes make at once (docs/mpiio.md, Turns). Of all
    /// clones of this file.
    pub fn set_throttled(&self, throttled: bool) {
        self.state.throttled.store(throttled, Ordering::Relaxed);
    }

    pub(crate) fn is_throttled(&self) -> bool {
        self.state.throttled.load(Ordering::Relaxed)
    }

    pub(crate) fn note_written(&self, end: u64, beyond_home: bool) {
        self.state.written_end.fetch_max(end, Ordering::Relaxed);
        if beyond_home {
            self.state.wrote_beyond_home.store(true, Ordering::Relaxed);
        }
    }

    /// Notes the servers of a write, by their bits.
    pub(crate) fn note_written_servers(&self, bits: u64) {
        self.state.written_servers.fetch_or(bits, Ordering::Relaxed);
    }

    /// The bits of servers that were written to since this was last asked.
    pub(crate) fn take_written_servers(&self) -> u64 {
        self.state.written_servers.swap(0, Ordering::Relaxed)
    }

    pub(crate) fn written_servers(&self) -> u64 {
        self.state.written_servers.load(Ordering::Relaxed)
    }

    fn errors(&self) -> MutexGuard<'_, Errors> {
        self.state.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes when the file was opened, and where the name is that it was opened by, if that is parted from its inode.
    pub(crate) fn note_opened(&self, at: i64, name_server: Option<u32>) {
        let mut errors = self.errors();
        (errors.opened_at, errors.name_server) = (at, name_server);
    }

    pub(crate) fn opened_at(&self) -> i64 {
        self.errors().opened_at
    }

    /// The server of the name that the file was opened by, if that is not its home.
    pub fn name_server(&self) -> Option<u32> {
        self.errors().name_server
    }

    /// The last error of a server that this handle was told of; 0 for none.
    pub(crate) fn seen_trouble(&self, server: u32) -> u64 {
        self.errors().seen.iter().find(|(other, _)| *other == server).map_or(0, |(_, request_error)| *request_error)
    }

    pub(crate) fn note_trouble(&self, server: u32, request_error: u64) {
        let mut errors = self.errors();
        errors.seen.retain(|(other, _)| *other != server);
        errors.seen.push((server, request_error));
    }

    /// Keeps the reason why a write was cut short.
    pub(crate) fn keep_error(&self, error: Error) {
        self.errors().pending = Some(error);
    }

    /// The reason why an earlier write was cut short, once.
    pub fn take_pending_error(&self) -> Option<Error> {
        self.errors().pending.take()
    }

    /// Whether a write went to a server other than the home since this was last asked.
    pub(crate) fn take_wrote_beyond_home(&self) -> bool {
        self.state.wrote_beyond_home.load(Ordering::Relaxed)
            && self.state.wrote_beyond_home.swap(false, Ordering::Relaxed)
    }

    /// The session that has the file open at its home.
    pub(crate) fn session(&self) -> u64 {
        self.state.session.load(Ordering::Relaxed)
    }

    pub(crate) fn is_imported(&self) -> bool {
        self.state.is_imported
    }

    /// Whether a session has the file registered at its home.
    pub(crate) fn is_registered_by(&self, session: u64) -> bool {
        self.state.session.load(Ordering::Relaxed) == session
    }

    /// Notes which session registers the file from now on. Returns the one before; nothing when it is that one already.
    pub(crate) fn register_by(&self, session: u64) -> Option<u64> {
        let before = self.state.session.swap(session, Ordering::Relaxed);
        (before != session).then_some(before)
    }

    /// Notes that the handle is closed. False when it was before.
    pub(crate) fn close(&self) -> bool {
        !self.state.closed.swap(true, Ordering::Relaxed)
    }

    /// Its number as an owner of locks; a first one is drawn when it has none.
    pub(crate) fn description(&self, draw: impl FnOnce() -> u64) -> u64 {
        let known = self.state.description.load(Ordering::Relaxed);
        if known != 0 {
            return known;
        }
        let drawn = draw();
        let place = &self.state.description;
        place.compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed).map_or_else(|other| other, |_| drawn)
    }

    pub(crate) fn note_locked(&self, space: LockSpace) {
        self.state.locked.fetch_or(1 << space as u64, Ordering::Relaxed);
    }

    /// Whether it may have locks in a space, asked once.
    pub(crate) fn take_locked(&self, space: LockSpace) -> bool {
        let bit = 1 << space as u64;
        self.state.locked.load(Ordering::Relaxed) & bit != 0
            && self.state.locked.fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }

    pub(crate) fn written_end(&self) -> u64 {
        self.state.written_end.load(Ordering::Relaxed)
    }

    pub(crate) fn known_size(&self) -> KnownSize {
        *self.state.known_size.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets how large the file is known to be, if that was told before a session was lost.
    pub(crate) fn forget_lost_size(&self, sessions_lost: u64) {
        if self.state.sessions_lost.load(Ordering::Relaxed) != sessions_lost
            && self.state.sessions_lost.swap(sessions_lost, Ordering::Relaxed) != sessions_lost
        {
            self.state.known_size.lock().unwrap_or_else(PoisonError::into_inner).size = 0;
            self.state.written_end.store(0, Ordering::Relaxed);
        }
    }

    /// A directory that was removed, as fstat(2) shows it.
    pub(crate) fn removed_directory(&self) -> Option<Attributes> {
        let last = self.state.directory.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_deref().map(|last| Attributes { link_count: 0, ..last.clone() })
    }

    /// Takes in attributes that a server sent: a later generation counts, and within one the larger size.
    pub(crate) fn note_attributes(&self, attributes: &Attributes) {
        if attributes.kind == Kind::Directory {
            *self.state.directory.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(attributes.clone()));
            return;
        }
        let mut known = self.state.known_size.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = attributes.truncate_generation;
        if generation > known.truncate_generation {
            *known = KnownSize { size: attributes.size, truncate_generation: generation };
        } else if generation == known.truncate_generation {
            known.size = known.size.max(attributes.size);
        }
    }
}
