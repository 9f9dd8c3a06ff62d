//! Stores that devices keep (`--store nvme:`): which file or block device is whose, what it has to have, and how it
//! goes again.
//!
//! Invariants
//! 1. A device is one server's alone, and is taken for a store only where its first and its last MiB are zero.
//! 2. Files that were made for stores are removed with them; what was there before loses its label and stays.
//! 3. Nothing is removed or made blank that holds no store, or while a server has it: two starts may have found one
//!    device blank, and another disk may have come in its place.

use crate::failure::{Failure, Outcome, io_words};
use crate::options::{BUFFER_SIZE_MIN, STORE_SIZE_MAX, STORE_SIZE_MIN};
use crate::settings::Settings;
use crate::text::{plural, size_words};
use reactor::BufferedStorage;
use reactor::process::file_system_space;
use server::DeviceStore;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes at the start of a device that tell whether it is blank.
const LABEL_SIZE: u64 = 1 << 20;
const MEBIBYTE: u64 = 1 << 20;
/// How often a device is asked for that is to be removed, and the time between.
const TAKE_LOOKS_MAX: u32 = 100;
const TAKE_PAUSE: Duration = Duration::from_millis(20);
/// open(2): of a block device, not while it is mounted or had by a server.
const O_EXCL: i32 = 0o200;

/// What --store says of devices, for all servers of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Devices {
    /// Directories, files and block devices; server n has the n-th, and the first again after the last.
    pub paths: Vec<PathBuf>,
    /// Which of them were not there before, so that they are ours to remove.
    pub made: Vec<bool>,
    /// Bytes of data that a server has in memory at most; 0 while it is not known.
    pub buffer: u64,
}

impl Devices {
    /// What keeps the store of one server.
    pub fn path_of(&self, stores: &Path, index: u32) -> PathBuf {
        let path = &self.paths[index as usize % self.paths.len()];
        let name = stores.file_name().map_or("tabane".into(), |name| name.to_string_lossy());
        if path.is_dir() { path.join(format!("{name}.server-{index}")) } else { path.clone() }
    }

    /// The paths, for people.
    pub fn words(&self) -> String {
        self.paths.iter().map(|path| path.display().to_string()).collect::<Vec<String>>().join(",")
    }

    /// Bytes of data that each of so many servers can have: three quarters of what is free in a directory, or all of a
    /// device. Errors: too little; the system's.
    pub fn share(&self, stores: &Path, servers: u32, journal_size: u64) -> Outcome<u64> {
        let mut of_file_systems: BTreeMap<u64, (PathBuf, u64)> = BTreeMap::new();
        let mut least = (u64::MAX, PathBuf::new());
        for index in 0..servers {
            let path = self.path_of(stores, index);
            match size_of(&path).map_err(|error| unusable(&path, &error))? {
                Some(size) => least = least.min((size, path)),
                None => file_system_of(&mut of_file_systems, &path)?.1 += 1,
            }
        }
        for (path, count) in of_file_systems.into_values() {
            let (free, _) = file_system_space(&path).map_err(|error| unusable(&path, &error))?;
            least = least.min((free / 4 * 3 / count, path));
        }
        let (size, path) = least;
        let share = DeviceStore::data_size(size, journal_size) / MEBIBYTE * MEBIBYTE;
        match share < STORE_SIZE_MIN {
            true => Err(Failure::failed(format!(
                "{} has room for a device of {} a server, which is too little; name another one with --store nvme:PATH",
                path.display(),
                size_words(size)
            ))),
            false => Ok(share.min(STORE_SIZE_MAX)),
        }
    }
}

/// The memory of each server's store where nobody says it: a quarter of what is free, shared out. Errors: too little.
pub fn share_of_memory(stores: &Path, free: u64, servers: u32, settings: &Settings) -> Outcome<u64> {
    let share = (free / 4 / u64::from(servers)).saturating_sub(settings.journal_size) / MEBIBYTE * MEBIBYTE;
    match share < BUFFER_SIZE_MIN {
        true => Err(Failure::failed(format!(
            "{} has {} of memory free, too little for the buffers and journals of {}; free some, or say less with \
             --store nvme:PATH,buffer=SIZE and --journal-size SIZE",
            stores.display(),
            size_words(free),
            plural(u64::from(servers), "server")
        ))),
        false => Ok(share.min(settings.store_size)),
    }
}

/// Refuses devices that can't be the stores of these servers, before anything of them is made.
pub fn check(settings: &Settings, indices: &[u32]) -> Outcome {
    let Some(devices) = &settings.devices else { return Ok(()) };
    let wanted = DeviceStore::device_size(settings.store_size, settings.journal_size);
    let mut of_file_systems: BTreeMap<u64, (PathBuf, u64)> = BTreeMap::new();
    let mut known: BTreeMap<PathBuf, u32> = BTreeMap::new();
    for index in indices {
        let path = devices.path_of(&settings.stores, *index);
        let same = path.canonicalize().unwrap_or_else(|_| path.clone());
        if let Some(other) = known.insert(same, *index) {
            return Err(Failure::failed(format!(
                "servers {other} and {index} would both have {}; name a directory, or a file or block device for each \
                 server of a host, with --store nvme:PATH,PATH, or ask for fewer servers with --servers",
                path.display()
            )));
        }
    }
    for index in indices {
        let path = devices.path_of(&settings.stores, *index);
        match size_of(&path).map_err(|error| unusable(&path, &error))? {
            None => file_system_of(&mut of_file_systems, &path)?.1 += wanted,
            Some(size) if size < wanted => {
                return Err(Failure::failed(format!(
                    "{} has {}, and a store of {} takes {} with its journal and checkpoints; say less with --store \
                     nvme:PATH,size=SIZE",
                    path.display(),
                    size_words(size),
                    size_words(settings.store_size),
                    size_words(wanted)
                )));
            }
            Some(_) => check_blank(&path)?,
        }
    }
    for (path, wanted) in of_file_systems.into_values() {
        let (free, _) = file_system_space(&path).map_err(|error| unusable(&path, &error))?;
        if wanted > free {
            return Err(Failure::failed(format!(
                "the stores want {} in {}, which has {} free; ask for less with --store nvme:PATH,size=SIZE, or name \
                 another place",
                size_words(wanted),
                path.display(),
                size_words(free)
            )));
        }
    }
    Ok(())
}

/// Removes what a store has on its device: a file that was made for it, or the label of what was there before.
pub fn remove(settings: &Settings, index: u32) -> Outcome {
    let Some(devices) = &settings.devices else { return Ok(()) };
    let path = devices.path_of(&settings.stores, index);
    let was_made = devices.made.get(index as usize % devices.paths.len()) == Some(&true);
    let is_ours = was_made || !devices.paths.contains(&path);
    let removed = take(&path).and_then(|device| {
        let contents = contents_of(&device)?;
        let is_file = device.metadata()?.is_file();
        match contents {
            Contents::Other => {
                let place = path.display();
                eprintln!("tabane: {place} holds something else than the store of server {index}; it was left alone");
                Ok(())
            }
            _ if is_file && is_ours => std::fs::remove_file(&path),
            Contents::Store => wipe(&device),
            Contents::Nothing => Ok(()),
        }
    });
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let place = path.display();
            eprintln!(
                "tabane: {place}, the store of server {index}, is not there; if its disk is mounted again, remove it"
            );
            Ok(())
        }
        Err(error) => {
            Err(Failure::failed(format!("store on {}: {}; remove it by hand", path.display(), io_words(&error))))
        }
        Ok(()) => Ok(()),
    }
}

/// Whether a device that was made holds a store still.
pub fn holds_store(path: &Path) -> bool {
    File::open(path).and_then(|device| contents_of(&device)).is_ok_and(|contents| contents == Contents::Store)
}

/// What a device holds, as far as its start and its end tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contents {
    Nothing,
    Store,
    Other,
}

fn contents_of(mut device: &File) -> io::Result<Contents> {
    let size = device.seek(SeekFrom::End(0))?;
    let mut read = |offset: u64| {
        let mut bytes = Vec::new();
        device.seek(SeekFrom::Start(offset))?;
        device.take(LABEL_SIZE).read_to_end(&mut bytes)?;
        Ok::<Vec<u8>, io::Error>(bytes)
    };
    let start = read(0)?;
    if BufferedStorage::begins_with_label(&start) {
        return Ok(Contents::Store);
    }
    let end = read(size.saturating_sub(LABEL_SIZE))?;
    match start.iter().chain(&end).all(|byte| *byte == 0) {
        true => Ok(Contents::Nothing),
        false => Ok(Contents::Other),
    }
}

/// Refuses a device that is there and not blank.
fn check_blank(path: &Path) -> Outcome {
    let device = File::open(path).map_err(|error| unusable(path, &error))?;
    let place = path.display();
    let words = match contents_of(&device).map_err(|error| unusable(path, &error))? {
        Contents::Nothing => return Ok(()),
        Contents::Other => format!("{place} holds something that is no store, or ends with it; name another one"),
        Contents::Store if device.try_lock().is_err() => {
            format!("{place} is the store of a cluster that is up; name another one")
        }
        Contents::Store => format!(
            "{place} is the store of an earlier cluster; start that one again, name another device, or, if what it \
             holds is of no use, make it blank: dd if=/dev/zero of={place} bs=1M count=1 conv=notrunc"
        ),
    };
    Err(Failure::failed(words))
}

/// What is wanted of the file system of a directory, which others of the same one count to.
fn file_system_of<'a>(known: &'a mut BTreeMap<u64, (PathBuf, u64)>, path: &Path) -> Outcome<&'a mut (PathBuf, u64)> {
    let directory = directory_of(path);
    let device = directory.metadata().map_err(|error| unusable(path, &error))?.dev();
    Ok(known.entry(device).or_insert((directory, 0)))
}

#[expect(clippy::disallowed_methods, reason = "nothing else is under way while stores are removed")]
fn pause() {
    std::thread::sleep(TAKE_PAUSE);
}

/// A device that no server has. The kernel gives up what a killed one had a moment later. Errors: the system's;
/// `ResourceBusy` if a server has it.
fn take(path: &Path) -> io::Result<File> {
    let busy = || io::Error::new(ErrorKind::ResourceBusy, "a server of another cluster has it, or it is mounted");
    for _ in 0..TAKE_LOOKS_MAX {
        let flags = if path.metadata()?.file_type().is_block_device() { O_EXCL } else { 0 };
        match OpenOptions::new().read(true).write(true).custom_flags(flags).open(path) {
            Ok(device) if device.try_lock().is_ok() => return Ok(device),
            Err(error) if error.kind() != ErrorKind::ResourceBusy => return Err(error),
            _ => pause(),
        }
    }
    Err(busy())
}

fn wipe(mut device: &File) -> io::Result<()> {
    let size = device.seek(SeekFrom::End(0))?.min(LABEL_SIZE);
    device.rewind()?;
    device.write_all(&vec![0; size as usize])?;
    device.sync_all()
}

/// Bytes of a file or block device; nothing if it is not there, and its directory is. Errors: it is something else; the
/// system's.
fn size_of(path: &Path) -> io::Result<Option<u64>> {
    let facts = match path.metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound && directory_of(path).is_dir() => return Ok(None),
        facts => facts?,
    };
    match facts.is_file() || facts.file_type().is_block_device() {
        true => File::open(path)?.seek(SeekFrom::End(0)).map(Some),
        false => Err(io::Error::new(ErrorKind::InvalidInput, "it is no directory, file or block device")),
    }
}

fn directory_of(path: &Path) -> PathBuf {
    path.parent().map_or_else(|| PathBuf::from("/"), Path::to_owned)
}

fn unusable(path: &Path, error: &io::Error) -> Failure {
    let words = io_words(error);
    Failure::failed(format!(
        "{}: {words}; name a directory, a file or a block device of a disk with --store nvme:PATH",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: servers share the directories and devices out, and each has its own. Method: with one directory and with
    /// two devices.
    #[test]
    fn places() {
        let stores = Path::new("/dev/shm/tabane-7");
        let directory = Devices { paths: vec![std::env::temp_dir()], ..Devices::default() };
        assert_eq!(directory.path_of(stores, 3), std::env::temp_dir().join("tabane-7.server-3"));
        let two = Devices { paths: vec!["/dev/none0".into(), "/dev/none1".into()], ..Devices::default() };
        let places: Vec<PathBuf> = (0..3).map(|index| two.path_of(stores, index)).collect();
        assert_eq!(places, ["/dev/none0", "/dev/none1", "/dev/none0"].map(PathBuf::from));
    }

    /// Goal: a file that is there is taken only if it is blank and large enough, and by one server; it stays when its
    /// store goes, and is blank then. Method: files of several kinds.
    #[test]
    fn files_that_are_there() {
        let directory = std::env::temp_dir().join(format!("tabane-device-store-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let (path, small) = (directory.join("device"), directory.join("small"));
        let size = DeviceStore::device_size(64 << 20, 16 << 20);
        File::create(&path).unwrap().set_len(size).unwrap();
        File::create(&small).unwrap().set_len(size - 1).unwrap();
        let settings = |path: &Path| Settings {
            store_size: 64 << 20,
            journal_size: 16 << 20,
            devices: Some(Devices { paths: vec![path.to_owned()], made: vec![false], buffer: 32 << 20 }),
            ..crate::settings::for_tests()
        };
        let words = |path: &Path, indices: &[u32]| match check(&settings(path), indices) {
            Ok(()) => String::new(),
            Err(Failure::Failed(words)) => words,
            Err(_) => "another kind of failure".to_owned(),
        };
        assert_eq!(words(&path, &[0]), "");
        assert!(words(&path, &[0, 1]).contains("would both have"));
        assert!(words(&small, &[0]).contains("takes"));
        assert!(words(Path::new("/dev/null"), &[0]).contains("no directory, file or block device"));
        assert!(words(&directory.join("none/there"), &[0]).contains("--store nvme:PATH"));
        let mut file = OpenOptions::new().write(true).open(&path).unwrap();
        let mut made = settings(&path);
        if let Some(devices) = &mut made.devices {
            devices.made = vec![true];
        }
        // What has come in the place of a store stays, whoever made that.
        file.seek(SeekFrom::Start(size - 9)).unwrap();
        file.write_all(b"something").unwrap();
        assert!(words(&path, &[0]).contains("no store"));
        remove(&settings(&path), 0).unwrap();
        remove(&made, 0).unwrap();
        assert!(words(&path, &[0]).contains("no store") && !holds_store(&path));
        file.seek(SeekFrom::Start(size - 9)).unwrap();
        file.write_all(&[0; 9]).unwrap();
        // A store loses its label, and what a server has stays as it is.
        file.rewind().unwrap();
        file.write_all(b"TabaneDv").unwrap();
        file.lock().unwrap();
        assert!(words(&path, &[0]).contains("that is up"));
        assert!(matches!(remove(&settings(&path), 0), Err(Failure::Failed(words)) if words.contains("has it")));
        file.unlock().unwrap();
        assert!(words(&path, &[0]).contains("make it blank") && holds_store(&path));
        remove(&settings(&path), 0).unwrap();
        assert_eq!((words(&path, &[0]), path.metadata().unwrap().len()), (String::new(), size));
        // One that was made for the store goes with it.
        remove(&made, 0).unwrap();
        assert!(!path.exists() && small.exists());
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
