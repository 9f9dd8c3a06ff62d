//! What the C interfaces share: small integers for open files, file positions, and the one file system of a process.
//!
//! Invariants
//! 1. A descriptor is the lowest free number, as in POSIX, from `FIRST_DESCRIPTOR` on.
//! 2. An operation that uses or moves the file position holds the position's lock until it is done, so that two threads
//!    that read one descriptor never get the same bytes.
//! 3. A child after fork has the files and positions that its parent had, and waits for none of its parent's threads:
//!    tables are behind `ForkLock`s; files, and positions, which are locked for as long as an operation takes, get new
//!    locks.

use crate::blocking::Client;
use crate::bytes::stripe::FileRange;
use crate::error::{Error, Result};
use crate::filesystem::FileSystem;
use crate::open_files::file::File;
use crate::started::StartedCall;
use reactor::{ForkLock, fork_generation};
use std::io::{IoSlice, IoSliceMut};
use std::ops::DerefMut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wire::Status;
use wire::limits::FILE_SIZE_MAX;

/// The first number that is given out; lower ones are the standard streams in the minds of many programs.
pub const FIRST_DESCRIPTOR: i32 = 3;
/// Most descriptors that a process may have.
pub const DESCRIPTOR_COUNT_MAX: usize = 1 << 20;

/// The number under which this process owns locks.
pub fn own_process() -> u64 {
    // To ask is a system call, and each close wants to know. The upper half says after which fork it was asked; no
    // process has the number 0.
    static KNOWN: AtomicU64 = AtomicU64::new(0);
    let generation = fork_generation() << 32;
    let known = KNOWN.load(Ordering::Relaxed);
    if known != 0 && known & !u64::from(u32::MAX) == generation {
        return known & u64::from(u32::MAX);
    }
    let process = u64::from(std::process::id());
    KNOWN.store(generation | process, Ordering::Relaxed);
    process
}

/// Where `seek` counts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whence {
    Start,
    Current,
    End,
    /// The first data at or after a position.
    Data,
    /// The first hole at or after a position.
    Hole,
}

/// An open file with its position.
#[derive(Debug)]
pub struct OpenFile {
    pub file: File,
    /// Offset of the next `read` or `write`, in bytes.
    position: AtomicU64,
    /// Held by whoever uses or moves the position.
    turn: Mutex<()>,
}

/// A position that is locked.
struct Position<'a> {
    place: &'a AtomicU64,
    _turn: MutexGuard<'a, ()>,
}

impl Position<'_> {
    fn get(&self) -> u64 {
        self.place.load(Ordering::Relaxed)
    }

    fn set(&self, position: u64) {
        self.place.store(position, Ordering::Relaxed);
    }
}

impl OpenFile {
    fn new(file: File, position: u64) -> OpenFile {
        OpenFile { file, position: AtomicU64::new(position), turn: Mutex::new(()) }
    }

    fn position(&self) -> Position<'_> {
        Position { place: &self.position, _turn: self.turn.lock().unwrap_or_else(PoisonError::into_inner) }
    }
}

/// The table of descriptors.
#[derive(Debug)]
struct DescriptorTable {
    /// The process whose locks the files' positions have (`fork_generation`).
    generation: u64,
    files: Vec<Option<Arc<OpenFile>>>,
    /// No slot below this one is free.
    first_free: usize,
}

impl DescriptorTable {
    fn new() -> DescriptorTable {
        DescriptorTable { generation: fork_generation(), files: Vec::new(), first_free: 0 }
    }

    fn is_own(&self) -> bool {
        self.generation == fork_generation()
    }

    /// In a child after fork: new locks for what was inherited, positions and files alike.
    fn adopt(&mut self) {
        if self.is_own() {
            return;
        }
        self.generation = fork_generation();
        for file in self.files.iter_mut().flatten() {
            *file = Arc::new(OpenFile::new(file.file.forked(), file.position.load(Ordering::Relaxed)));
        }
    }
}

/// A client with its descriptors.
pub struct Mounted {
    pub client: Client,
    table: ForkLock<DescriptorTable>,
}

fn bad_descriptor(descriptor: i32) -> Error {
    Error::new(Status::BadHandle, format!("{descriptor} is not an open file descriptor"))
}

impl Mounted {
    pub fn new(client: Client) -> Mounted {
        Mounted { client, table: ForkLock::new(DescriptorTable::new) }
    }

    fn table(&self) -> impl DerefMut<Target = DescriptorTable> {
        let mut table = self.table.write();
        table.adopt();
        table
    }

    /// Gives an open file a number. Errors: `TooManyConnections` (EAGAIN) when there are too many.
    pub fn insert(&self, file: File) -> Result<i32> {
        let mut table = self.table();
        let index = (table.first_free..table.files.len()).find(|index| table.files[*index].is_none());
        let index = index.unwrap_or(table.files.len());
        if index >= DESCRIPTOR_COUNT_MAX {
            return Err(Error::new(Status::TooManyConnections, "too many open files: close some"));
        }
        if index == table.files.len() {
            table.files.push(None);
        }
        table.files[index] = Some(Arc::new(OpenFile::new(file, 0)));
        table.first_free = index + 1;
        Ok(index as i32 + FIRST_DESCRIPTOR)
    }

    /// An open file as bytes, for other processes. Errors: `BadHandle`, and as `FileSystem::export`.
    pub fn export(&self, descriptor: i32) -> Result<Vec<u8>> {
        let open = self.get(descriptor)?;
        self.client.run(async |_, files: &FileSystem| files.export(&open.file))
    }

    /// A number for a file that another process has exported. Errors: as `insert` and `FileSystem::import`.
    pub fn import(&self, bytes: &[u8]) -> Result<i32> {
        self.insert(self.client.run(async |_, files: &FileSystem| files.import(bytes))?)
    }

    /// The open file behind a number. Errors: `BadHandle`.
    pub fn get(&self, descriptor: i32) -> Result<Arc<OpenFile>> {
        let index = usize::try_from(descriptor.wrapping_sub(FIRST_DESCRIPTOR)).ok();
        let table = self.table.read();
        let file = if table.is_own() {
            index.and_then(|index| table.files.get(index)?.clone())
        } else {
            drop(table);
            index.and_then(|index| self.table().files.get(index)?.clone())
        };
        file.ok_or_else(|| bad_descriptor(descriptor))
    }

    /// Closes a number. The file itself lives on until operations that use it are done. Errors: `BadHandle`, and what
    /// cut an earlier write short if nobody was told.
    pub fn close(&self, descriptor: i32) -> Result<()> {
        let mut table = self.table();
        let index = usize::try_from(descriptor.wrapping_sub(FIRST_DESCRIPTOR)).ok();
        let taken = index.and_then(|index| Some((index, table.files.get_mut(index)?.take()?)));
        let (index, file) = taken.ok_or_else(|| bad_descriptor(descriptor))?;
        table.first_free = table.first_free.min(index);
        drop(table);
        let error = self.client.run(async |_, files: &FileSystem| files.late_error(&file.file).await);
        self.client.close_as(&file.file, own_process());
        // The descriptor is gone all the same, as with close(2).
        error
    }

    /// See `FileSystem::synchronise`.
    pub fn synchronise(&self, descriptor: i32) -> Result<()> {
        let open = self.get(descriptor)?;
        self.client.synchronise(&open.file)
    }

    /// Closes all numbers.
    pub fn close_all(&self) {
        let files = self.take_all();
        for file in files.into_iter().flatten() {
            self.client.close_as(&file.file, own_process());
        }
    }

    /// Closes all numbers, and tells the servers that this client has ended.
    pub fn disconnect(&self) {
        self.close_all();
        self.end();
    }

    fn take_all(&self) -> Vec<Option<Arc<OpenFile>>> {
        let mut table = self.table();
        table.first_free = 0;
        std::mem::take(&mut table.files)
    }

    /// Closes all numbers because the process ends, and has the servers told of it, within a second. What a forked
    /// child has inherited and never used is its parent's to close.
    fn end(&self) {
        let files = self.take_all();
        if !self.client.is_in_use() {
            return;
        }
        self.client.run(async |_, file_system| {
            let closes = async {
                for open in files.iter().flatten() {
                    file_system.close_as(&open.file, own_process()).await;
                }
            };
            file_system.end(closes).await;
        });
    }

    /// Reads at the position and moves it.
    pub fn read(&self, descriptor: i32, places: &mut [IoSliceMut<'_>]) -> Result<usize> {
        let open = self.get(descriptor)?;
        let position = open.position();
        let count = self.client.read_vectored_at(&open.file, places, position.get())?;
        position.set(position.get() + count as u64);
        Ok(count)
    }

    /// Reads at an offset, which may not be negative; the position stays.
    pub fn read_at(&self, descriptor: i32, places: &mut [IoSliceMut<'_>], offset: i64) -> Result<usize> {
        let open = self.get(descriptor)?;
        self.client.read_vectored_at(&open.file, places, checked_offset(offset)?)
    }

    /// Writes at the position, or at the end of the file when it was opened for appending, and moves the position.
    pub fn write(&self, descriptor: i32, places: &[IoSlice<'_>]) -> Result<usize> {
        let open = self.get(descriptor)?;
        let position = open.position();
        if open.file.append {
            return self.append(&open.file, &position, places);
        }
        let count = self.client.write_vectored_at(&open.file, places, position.get())?;
        position.set(position.get() + count as u64);
        Ok(count)
    }

    fn append(&self, file: &File, position: &Position<'_>, places: &[IoSlice<'_>]) -> Result<usize> {
        let joined: Vec<u8>;
        let bytes: &[u8] = match places {
            [] => &[],
            [place] => place,
            _ => {
                joined = places.iter().flat_map(|place| place.iter().copied()).collect();
                &joined
            }
        };
        if bytes.is_empty() {
            return Ok(0);
        }
        position.set(self.client.append(file, bytes)? + bytes.len() as u64);
        Ok(bytes.len())
    }

    /// Writes at an offset, which may not be negative; the position stays, and appending makes no difference (POSIX).
    pub fn write_at(&self, descriptor: i32, places: &[IoSlice<'_>], offset: i64) -> Result<usize> {
        let open = self.get(descriptor)?;
        self.client.write_vectored_at(&open.file, places, checked_offset(offset)?)
    }

    /// Reads a list of ranges, as `FileSystem::read_list_at` does; the position stays. Returns the bytes read of all.
    pub fn read_list_at(&self, descriptor: i32, ranges: &[FileRange], places: &mut [IoSliceMut<'_>]) -> Result<usize> {
        let open = self.get(descriptor)?;
        Ok(self.client.read_list_at(&open.file, ranges, places)?.into_iter().sum())
    }

    /// Writes a list of ranges, as `FileSystem::write_list_at` does; the position stays.
    pub fn write_list_at(&self, descriptor: i32, ranges: &[FileRange], places: &[IoSlice<'_>]) -> Result<usize> {
        let open = self.get(descriptor)?;
        self.client.write_list_at(&open.file, ranges, places)
    }

    /// Starts what `read_list_at` does; the memory is the call's until it is done.
    pub fn start_read_list_at(
        &self,
        descriptor: i32,
        ranges: Vec<FileRange>,
        mut places: Vec<IoSliceMut<'static>>,
    ) -> Result<StartedCall> {
        let open = self.get(descriptor)?;
        let read = async move |files: FileSystem| {
            let counts = files.read_list_at(&open.file, &ranges, &mut places).await?;
            Ok(counts.into_iter().sum())
        };
        Ok(self.client.start(read))
    }

    /// Starts what `write_list_at` does; the memory is the call's until it is done.
    pub fn start_write_list_at(
        &self,
        descriptor: i32,
        ranges: Vec<FileRange>,
        places: Vec<IoSlice<'static>>,
    ) -> Result<StartedCall> {
        let open = self.get(descriptor)?;
        let write = async move |files: FileSystem| files.write_list_at(&open.file, &ranges, &places).await;
        Ok(self.client.start(write))
    }

    /// Moves the position. Errors: `Invalid` when it would be negative or beyond the largest file size; `NoData` as
    /// `FileSystem::seek_data` has it, also for a negative position.
    pub fn seek(&self, descriptor: i32, distance: i64, whence: Whence) -> Result<i64> {
        let open = self.get(descriptor)?;
        let position = open.position();
        if let Whence::Data | Whence::Hole = whence {
            let no_data = |_| Error::new(Status::NoData, format!("offset {distance} is negative"));
            let from = u64::try_from(distance).map_err(no_data)?;
            let target = match whence {
                Whence::Data => self.client.seek_data(&open.file, from)?,
                _ => self.client.seek_hole(&open.file, from)?,
            };
            position.set(target);
            return Ok(target as i64);
        }
        let base = match whence {
            Whence::Start | Whence::Data | Whence::Hole => 0,
            Whence::Current => position.get(),
            Whence::End => self.client.stat_file(&open.file)?.size,
        };
        let target = base.checked_add_signed(distance).filter(|target| *target <= FILE_SIZE_MAX);
        let target = target.ok_or_else(|| Error::new(Status::Invalid, "the file position would be out of range"))?;
        position.set(target);
        Ok(target as i64)
    }
}

impl Mounted {
    /// Copies between two open files, from and to the offsets, which move, or else the positions. Errors: `BadHandle`,
    /// also for a target that was opened for appending; `Invalid` when the ranges overlap in one file.
    pub fn copy_range(
        &self,
        from: i32,
        from_offset: Option<&mut i64>,
        to: i32,
        to_offset: Option<&mut i64>,
        size: usize,
    ) -> Result<usize> {
        let (source, target) = (self.get(from)?, self.get(to)?);
        if target.file.append {
            return Err(Error::new(Status::BadHandle, format!("{to} was opened for appending")));
        }
        if Arc::ptr_eq(&source, &target) && from_offset.is_none() && to_offset.is_none() && size > 0 {
            return Err(Error::new(Status::Invalid, "a range is not copied onto itself"));
        }
        // Positions are locked in the order of their addresses, so that copies to and fro do not wait for one another.
        let source_first = Arc::as_ptr(&source) <= Arc::as_ptr(&target);
        let mut source_position = (from_offset.is_none() && source_first).then(|| source.position());
        let target_position = to_offset.is_none().then(|| target.position());
        if from_offset.is_none() && !source_first {
            source_position = Some(source.position());
        }
        let start = |offset: &Option<&mut i64>, position: &Option<Position<'_>>| match (offset, position) {
            (Some(offset), _) => checked_offset(**offset),
            (None, Some(position)) => Ok(position.get()),
            (None, None) => unreachable!("without an offset the position is locked"),
        };
        let (start_from, start_to) = (start(&from_offset, &source_position)?, start(&to_offset, &target_position)?);
        let copied = self.client.copy_range(&source.file, start_from, &target.file, start_to, size as u64)?;
        let moves = [(from_offset, &source_position, start_from), (to_offset, &target_position, start_to)];
        for (offset, position, start) in moves {
            match (offset, position) {
                (Some(offset), _) => *offset = (start + copied) as i64,
                (None, Some(position)) => position.set(start + copied),
                (None, None) => unreachable!("without an offset the position is locked"),
            }
        }
        Ok(copied as usize)
    }
}

fn checked_offset(offset: i64) -> Result<u64> {
    u64::try_from(offset).map_err(|_| Error::new(Status::Invalid, format!("offset {offset} is negative")))
}

/// The file system of a process, as a C interface keeps it in a static.
pub struct Process {
    mounted: ForkLock<Option<Arc<Mounted>>>,
}

impl Process {
    /// Nothing mounted.
    pub const fn new() -> Process {
        Process { mounted: ForkLock::new(|| None) }
    }

    /// Mounts what `connect` gives unless something is mounted already.
    pub fn start(&self, connect: impl FnOnce() -> Result<Client>) -> Result<()> {
        if self.is_started() {
            return Ok(());
        }
        let made = Arc::new(Mounted::new(connect()?));
        // Of two threads that come at once one makes a client for nothing.
        let spare = match &mut *self.mounted.write() {
            place @ None => place.replace(made),
            Some(_) => Some(made),
        };
        drop(spare);
        Ok(())
    }

    /// Unmounts; open descriptors are closed. False when nothing was mounted.
    pub fn stop(&self) -> bool {
        let mounted = self.take();
        if let Some(mounted) = &mounted {
            mounted.disconnect();
        }
        mounted.is_some()
    }

    /// What was mounted, for its descriptors to be closed; nothing is from now on.
    pub fn take(&self) -> Option<Arc<Mounted>> {
        self.mounted.write().take()
    }

    /// To be called when the process ends: what is open is closed, and its servers know within a second.
    pub fn end(&self) {
        let mounted = self.mounted.read().clone();
        if let Some(mounted) = mounted {
            mounted.end();
        }
    }

    pub fn is_started(&self) -> bool {
        self.mounted.read().is_some()
    }

    /// What is mounted. Errors: `Draining` (ESHUTDOWN) when nothing is: before the start, and after the stop.
    pub fn get(&self) -> Result<Arc<Mounted>> {
        let mounted = self.mounted.read().clone();
        mounted.ok_or_else(|| Error::new(Status::Draining, "not connected to a cluster: initialise first"))
    }
}

impl Default for Process {
    fn default() -> Process {
        Process::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open_files::file::OpenHow;
    use crate::options::Options;
    use wire::cluster::KEY_SIZE;
    use wire::{Attributes, Cluster, FileId, Kind, Placement, ServerAddress};

    /// A client that never talks to anyone.
    fn mounted() -> Mounted {
        let servers = vec![ServerAddress { address: ([127, 0, 0, 1], 1).into() }];
        let cluster = Cluster::new(1, [0; KEY_SIZE], Placement::Modular, 4096, servers);
        Mounted::new(Client::connect(cluster, Options::default()).expect("needs a descriptor only"))
    }

    fn file(mounted: &Mounted, number: u64) -> File {
        let id = FileId::new(number, 0);
        let attributes = Attributes {
            id,
            kind: Kind::File,
            mode: 0o644,
            uid: 0,
            gid: 0,
            link_count: 1,
            size: 0,
            atime: 0,
            mtime: 0,
            ctime: 0,
            version: 1,
            truncate_generation: 0,
            times_set: 0,
            layout: mounted.client.cluster().layout_for(0, &wire::LayoutWish::default()),
        };
        File::new(&attributes, &OpenHow::reading_and_writing(), 0, 0)
    }

    /// Goal: invariant 1, and closed or invented numbers are `BadHandle`.
    #[test]
    fn lowest_free_number() {
        let mounted = mounted();
        let numbers: Vec<i32> = (2..6).map(|n| mounted.insert(file(&mounted, n)).expect("room")).collect();
        assert_eq!(numbers, [3, 4, 5, 6]);
        mounted.close(5).expect("open");
        mounted.close(4).expect("open");
        assert_eq!(mounted.insert(file(&mounted, 7)), Ok(4));
        assert_eq!(mounted.insert(file(&mounted, 8)), Ok(5));
        assert_eq!(mounted.insert(file(&mounted, 9)), Ok(7));
        assert_eq!(mounted.get(5).expect("open").file.id, FileId::new(8, 0));
        for wrong in [-1, 0, 2, 8, i32::MIN, i32::MAX] {
            assert_eq!(mounted.get(wrong).expect_err("not open").status, Status::BadHandle);
            assert_eq!(mounted.close(wrong).expect_err("not open").status, Status::BadHandle);
        }
        mounted.close_all();
        assert_eq!(mounted.insert(file(&mounted, 10)), Ok(3));
    }

    /// Goal: positions move by POSIX's rules and never out of range.
    #[test]
    fn seek_rules() {
        let mounted = mounted();
        let descriptor = mounted.insert(file(&mounted, 2)).expect("room");
        assert_eq!(mounted.seek(descriptor, 100, Whence::Start), Ok(100));
        assert_eq!(mounted.seek(descriptor, -40, Whence::Current), Ok(60));
        for (distance, whence) in [(-61, Whence::Current), (i64::MAX, Whence::Current), (-1, Whence::Start)] {
            assert_eq!(mounted.seek(descriptor, distance, whence).expect_err("out of range").status, Status::Invalid);
        }
        assert_eq!(mounted.seek(descriptor, 0, Whence::Current), Ok(60));
        assert_eq!(mounted.seek(descriptor, i64::MAX, Whence::Start), Ok(i64::MAX));
    }
}
