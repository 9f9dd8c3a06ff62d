//! What the kernel's side of FUSE alone allows: a file system that answers everything from tables in its own memory,
//! over the crate fuser, and is asked for the same as a mount of a cluster (no caching, direct I/O, the same agreements
//! with the kernel).
//!
//!     cargo run --release -p tabane-fuse --example memory -- DIRECTORY [THREADS]
//!
//! It serves until it is unmounted. `scripts/mount-speed.sh` measures a mount beside it. It has files and directories
//! with modes, sizes and contents, and no more: no times, links, locks or extended attributes.

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, io};

const TRANSFER_SIZE_MAX: u32 = 1 << 20;
const CHUNK_SIZE: usize = 1 << 20;
const NOTHING: Duration = Duration::ZERO;
/// As in `mount.rs`, without those of operations that are not here.
const WANTED: [InitFlags; 6] = [
    InitFlags::FUSE_ATOMIC_O_TRUNC,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_AUTO_INVAL_DATA,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
];
const OPEN_FLAGS: FopenFlags = FopenFlags::FOPEN_DIRECT_IO.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);

type Chunk = Box<[u8]>;

/// Bytes of a file. What its chunks hold beyond `size` is left from before, and zeroed when the size grows over it.
#[derive(Default)]
struct Contents {
    size: usize,
    chunks: Vec<Chunk>,
}

impl Contents {
    /// The pieces of a range, which lies within the chunks.
    fn pieces(&self, offset: usize, size: usize) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
        let end = offset + size;
        let mut at = offset;
        std::iter::from_fn(move || {
            let (chunk, from) = (at / CHUNK_SIZE, at % CHUNK_SIZE);
            let to = CHUNK_SIZE.min(from + (end - at));
            at += to - from;
            (to > from).then_some((chunk, from, to))
        })
    }

    fn resize(&mut self, size: usize, spare: &Mutex<Vec<Chunk>>) {
        let count = size.div_ceil(CHUNK_SIZE);
        let mut spare = spare.lock().unwrap_or_else(PoisonError::into_inner);
        spare.extend(self.chunks.drain(count.min(self.chunks.len())..));
        while self.chunks.len() < count {
            self.chunks.push(spare.pop().unwrap_or_else(|| vec![0; CHUNK_SIZE].into_boxed_slice()));
        }
        drop(spare);
        if size > self.size {
            for (chunk, from, to) in self.pieces(self.size, size - self.size) {
                self.chunks[chunk][from..to].fill(0);
            }
        }
        self.size = size;
    }

    fn write(&mut self, offset: usize, bytes: &[u8], spare: &Mutex<Vec<Chunk>>) {
        let end = offset + bytes.len();
        if end > self.size {
            self.resize(offset.max(self.size), spare);
            // What is written now needs no zeros in front.
            self.size = end;
            self.resize(end, spare);
        }
        let mut rest = bytes;
        for (chunk, from, to) in self.pieces(offset, bytes.len()) {
            let (piece, others) = rest.split_at(to - from);
            self.chunks[chunk][from..to].copy_from_slice(piece);
            rest = others;
        }
    }
}

#[derive(Default)]
struct Directory {
    by_name: HashMap<OsString, u64>,
    /// In the order of listings.
    by_node: BTreeMap<u64, OsString>,
}

enum Kind {
    File(Arc<RwLock<Contents>>),
    Directory(Directory),
}

struct Node {
    mode: u16,
    owner: (u32, u32),
    /// Whether a name leads here.
    is_named: bool,
    kind: Kind,
}

struct Tree {
    nodes: HashMap<u64, Node>,
    next: u64,
}

impl Tree {
    fn directory(&mut self, node: u64) -> Result<&mut Directory, Errno> {
        match self.nodes.get_mut(&node).map(|node| &mut node.kind) {
            Some(Kind::Directory(directory)) => Ok(directory),
            Some(Kind::File(_)) => Err(Errno::ENOTDIR),
            None => Err(Errno::ENOENT),
        }
    }

    fn find(&mut self, parent: u64, name: &OsStr) -> Result<u64, Errno> {
        self.directory(parent)?.by_name.get(name).copied().ok_or(Errno::ENOENT)
    }

    fn attributes(&self, number: u64) -> Result<FileAttr, Errno> {
        let node = self.nodes.get(&number).ok_or(Errno::ESTALE)?;
        let (kind, size, links) = match &node.kind {
            Kind::File(contents) => (FileType::RegularFile, contents.read().map_or(0, |contents| contents.size), 1),
            Kind::Directory(_) => (FileType::Directory, 0, 2),
        };
        Ok(FileAttr {
            ino: INodeNo(number),
            size: size as u64,
            blocks: size.div_ceil(512) as u64,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: node.mode,
            nlink: links,
            uid: node.owner.0,
            gid: node.owner.1,
            rdev: 0,
            blksize: 128 << 10,
            flags: 0,
        })
    }

    fn add(&mut self, place: (u64, &OsStr), owner: (u32, u32), mode: u32, kind: Kind) -> Result<FileAttr, Errno> {
        let (parent, name) = place;
        if self.find(parent, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        let number = self.next;
        self.next += 1;
        self.nodes.insert(number, Node { mode: mode as u16 & 0o7777, owner, is_named: true, kind });
        self.name(parent, name, number)?;
        self.attributes(number)
    }

    fn name(&mut self, parent: u64, name: &OsStr, number: u64) -> Result<(), Errno> {
        let directory = self.directory(parent)?;
        directory.by_name.insert(name.to_owned(), number);
        directory.by_node.insert(number, name.to_owned());
        Ok(())
    }

    fn unname(&mut self, parent: u64, name: &OsStr) -> Result<u64, Errno> {
        let directory = self.directory(parent)?;
        let number = directory.by_name.remove(name).ok_or(Errno::ENOENT)?;
        directory.by_node.remove(&number);
        Ok(number)
    }

    /// Removes a name; its node stays until the kernel forgets it.
    fn remove(&mut self, parent: u64, name: &OsStr, of_directory: bool) -> Result<(), Errno> {
        let number = self.find(parent, name)?;
        match (self.nodes.get(&number).map(|node| &node.kind), of_directory) {
            (Some(Kind::Directory(_)), false) => return Err(Errno::EISDIR),
            (Some(Kind::File(_)), true) => return Err(Errno::ENOTDIR),
            (Some(Kind::Directory(directory)), true) if !directory.by_name.is_empty() => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        self.unname(parent, name)?;
        if let Some(node) = self.nodes.get_mut(&number) {
            node.is_named = false;
        }
        Ok(())
    }
}

struct Memory {
    tree: Mutex<Tree>,
    /// Chunks of files that are gone: memory that is new to the process would be measured too.
    spare: Mutex<Vec<Chunk>>,
}

impl Memory {
    fn new() -> Memory {
        let root = Node { mode: 0o777, owner: (0, 0), is_named: true, kind: Kind::Directory(Directory::default()) };
        let tree = Tree { nodes: HashMap::from([(INodeNo::ROOT.0, root)]), next: INodeNo::ROOT.0 + 1 };
        Memory { tree: Mutex::new(tree), spare: Mutex::default() }
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn contents(&self, node: u64) -> Result<Arc<RwLock<Contents>>, Errno> {
        match self.tree().nodes.get(&node).map(|node| &node.kind) {
            Some(Kind::File(contents)) => Ok(contents.clone()),
            Some(Kind::Directory(_)) => Err(Errno::EISDIR),
            None => Err(Errno::ESTALE),
        }
    }

    fn resize(&self, node: u64, size: u64) -> Result<(), Errno> {
        let contents = self.contents(node)?;
        let mut contents = contents.write().unwrap_or_else(PoisonError::into_inner);
        contents.resize(size as usize, &self.spare);
        Ok(())
    }

    fn answer_entry(reply: ReplyEntry, made: Result<FileAttr, Errno>) {
        match made {
            Ok(attributes) => reply.entry(&NOTHING, &attributes, Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn answer(reply: ReplyEmpty, done: Result<(), Errno>) {
        match done {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }
}

impl Filesystem for Memory {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in WANTED {
            let _ = config.add_capabilities(flag);
        }
        config.set_max_write(TRANSFER_SIZE_MAX).map_err(|_| io::Error::other("the kernel's writes are smaller"))?;
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut tree = self.tree();
        let found = tree.find(parent.0, name).and_then(|number| tree.attributes(number));
        drop(tree);
        Memory::answer_entry(reply, found);
    }

    fn forget(&self, _: &Request, node: INodeNo, _: u64) {
        let mut tree = self.tree();
        if tree.nodes.get(&node.0).is_some_and(|node| !node.is_named)
            && let Some(Node { kind: Kind::File(contents), .. }) = tree.nodes.remove(&node.0)
        {
            drop(tree);
            contents.write().unwrap_or_else(PoisonError::into_inner).resize(0, &self.spare);
        }
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let told = self.tree().attributes(node.0);
        match told {
            Ok(attributes) => reply.attr(&NOTHING, &attributes),
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if let Some(size) = size
            && let Err(errno) = self.resize(node.0, size)
        {
            return reply.error(errno);
        }
        if let Some(changed) = self.tree().nodes.get_mut(&node.0) {
            changed.mode = mode.map_or(changed.mode, |mode| mode as u16 & 0o7777);
            changed.owner = (uid.unwrap_or(changed.owner.0), gid.unwrap_or(changed.owner.1));
        }
        self.getattr(request, node, handle, reply);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let (owner, kind) = ((request.uid(), request.gid()), Kind::Directory(Directory::default()));
        let made = self.tree().add((parent.0, name), owner, mode & !umask, kind);
        Memory::answer_entry(reply, made);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.tree().remove(parent.0, name, false);
        Memory::answer(reply, removed);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.tree().remove(parent.0, name, true);
        Memory::answer(reply, removed);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let mut tree = self.tree();
        let renamed = tree.find(parent.0, name).and_then(|number| {
            let of_directory = matches!(tree.nodes.get(&number), Some(Node { kind: Kind::Directory(_), .. }));
            match tree.remove(new_parent.0, new_name, of_directory) {
                Err(errno) if errno != Errno::ENOENT => return Err(errno),
                _ => {}
            }
            tree.unname(parent.0, name)?;
            tree.name(new_parent.0, new_name, number)
        });
        drop(tree);
        Memory::answer(reply, renamed);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let (owner, kind) = ((request.uid(), request.gid()), Kind::File(Arc::default()));
        let made = self.tree().add((parent.0, name), owner, mode & !umask, kind);
        match made {
            Ok(attributes) => reply.created(&NOTHING, &attributes, Generation(0), FileHandle(0), OPEN_FLAGS),
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, _: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let cut = if flags.0 & libc::O_TRUNC != 0 { self.resize(node.0, 0) } else { self.contents(node.0).map(|_| ()) };
        match cut {
            Ok(()) => reply.opened(FileHandle(0), OPEN_FLAGS),
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let contents = match self.contents(node.0) {
            Ok(contents) => contents,
            Err(errno) => return reply.error(errno),
        };
        let contents = contents.read().unwrap_or_else(PoisonError::into_inner);
        let offset = (offset as usize).min(contents.size);
        let size = (size as usize).min(contents.size - offset);
        let pieces: Vec<_> = contents.pieces(offset, size).collect();
        match pieces[..] {
            [] => reply.data(&[]),
            [(chunk, from, to)] => reply.data(&contents.chunks[chunk][from..to]),
            _ => {
                let slices: Vec<_> =
                    pieces.iter().map(|&(chunk, from, to)| &contents.chunks[chunk][from..to]).collect();
                reply.data(&slices.concat());
            }
        }
    }

    fn write(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        bytes: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let contents = match self.contents(node.0) {
            Ok(contents) => contents,
            Err(errno) => return reply.error(errno),
        };
        contents.write().unwrap_or_else(PoisonError::into_inner).write(offset as usize, bytes, &self.spare);
        reply.written(bytes.len() as u32);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn readdir(&self, _: &Request, node: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let mut tree = self.tree();
        let names: Vec<(u64, OsString)> = match tree.directory(node.0) {
            Ok(directory) => {
                directory.by_node.range(offset + 1..).take(1000).map(|(at, name)| (*at, name.clone())).collect()
            }
            Err(errno) => return reply.error(errno),
        };
        for (number, name) in names {
            let kind = match tree.nodes.get(&number) {
                Some(Node { kind: Kind::Directory(_), .. }) => FileType::Directory,
                _ => FileType::RegularFile,
            };
            if reply.add(INodeNo(number), number, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}

fn main() -> io::Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let threads = words.get(1).map_or(Ok(8), |word| word.parse::<usize>());
    let (Some(directory), Ok(threads)) = (words.first(), threads) else {
        return Err(io::Error::other("usage: memory DIRECTORY [THREADS]"));
    };
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("memory".to_owned())];
    config.n_threads = Some(threads);
    fuser::mount(Memory::new(), directory, &config)
}
