//! The run directory: what one cluster on this machine consists of, readable by its owner alone.
//!
//! `cluster` (id, key, addresses), `servers` (how they are started), `server-I.pid` and `server-I.log` for each (with
//! `server-I.log.1`, its older part), with several hosts `hosts`, and `lock`, which whoever starts or stops servers
//! holds meanwhile.

use crate::failure::{Failure, Outcome, io_words};
use crate::hosts::{HOSTS_FILE, ORDERS_FILE};
use crate::settings::{Settings, absolute};
use crate::store_memory::remove_store;
use client::{CLUSTER_FILE_NAME, Cluster, load_cluster};
use reactor::process::ProcessId;
use reactor::trust;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// File with the settings, in a run directory.
pub const SETTINGS_FILE: &str = "servers";
const LOCK_FILE: &str = "lock";

/// A run directory that nobody else works on as long as this lives.
pub struct RunDirectory {
    pub path: PathBuf,
    /// Whether this program made it just now.
    pub is_new: bool,
    _lock: Option<File>,
}

/// A number of a process as `server-I.pid` holds it.
///
/// `None` also for a process of another machine that shares the directory.
pub fn process_of(run_directory: &Path, index: u32) -> Option<ProcessId> {
    let text = fs::read_to_string(pid_path(run_directory, index)).ok()?;
    let mut words = text.split_ascii_whitespace();
    let process = ProcessId { pid: words.next()?.parse().ok()?, started: words.next()?.parse().ok()? };
    words.next().is_none_or(|machine| machine == reactor::process::machine()).then_some(process)
}

fn pid_path(run_directory: &Path, index: u32) -> PathBuf {
    run_directory.join(format!("server-{index}.pid"))
}

/// The run directory that a cluster path stands for, if it is one: itself, or the directory of the cluster file. One
/// that others may have filled is none, for nothing in it is to be believed.
pub fn of_cluster_path(path: &Path) -> Option<PathBuf> {
    let directory = if path.is_dir() { path } else { path.parent()? };
    let is_one = directory.join(SETTINGS_FILE).is_file() && trust::check_directory(directory).is_ok();
    is_one.then(|| directory.to_owned())
}

fn failed(path: &Path, error: &io::Error, advice: &str) -> Failure {
    let room = if error.kind() == io::ErrorKind::StorageFull { "make room, or " } else { "" };
    Failure::failed(format!("run directory {}: {}; {room}{advice}", path.display(), io_words(error)))
}

impl RunDirectory {
    /// Makes the directory, or takes an existing one that is ours.
    pub fn make(path: &Path) -> Outcome<RunDirectory> {
        let path = absolute(path)?;
        let is_new = match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(failed(&path, &error, "choose another one with --run-directory")),
        };
        let claimed = RunDirectory::claim(path.clone(), is_new);
        if claimed.is_err() && is_new {
            // Nothing half made stays behind; the error that matters is the first one.
            let _ = fs::remove_dir(&path);
        }
        claimed
    }

    /// Takes an existing directory.
    pub fn open(path: &Path) -> Outcome<RunDirectory> {
        let path = absolute(path)?;
        if !path.exists() {
            return Err(Failure::failed(format!(
                "no cluster is up here: there is no run directory {}; name another one with --run-directory",
                path.display()
            )));
        }
        RunDirectory::claim(path, false)
    }

    /// A directory that another host works on for us.
    pub fn shared(path: &Path) -> RunDirectory {
        RunDirectory { path: path.to_owned(), is_new: false, _lock: None }
    }

    fn claim(path: PathBuf, is_new: bool) -> Outcome<RunDirectory> {
        let advice = "choose another one with --run-directory";
        trust::check_directory(&path)
            .map_err(|distrust| Failure::failed(format!("run directory: {distrust}; {advice}")))?;
        let facts = fs::symlink_metadata(&path).map_err(|error| failed(&path, &error, advice))?;
        if !facts.is_dir() || facts.uid() != reactor::process::user() || facts.mode() & 0o077 != 0 {
            return Err(Failure::failed(format!(
                "run directory {} is not a directory that is yours alone; make it so (chmod 700), or {advice}",
                path.display()
            )));
        }
        let known =
            [SETTINGS_FILE, CLUSTER_FILE_NAME, HOSTS_FILE, LOCK_FILE].iter().any(|name| path.join(name).exists());
        let mut entries = fs::read_dir(&path).map_err(|error| failed(&path, &error, advice))?;
        if !is_new && !known && entries.next().is_some() {
            return Err(Failure::failed(format!("{} holds other things than a cluster; {advice}", path.display())));
        }
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path.join(LOCK_FILE));
        let lock = lock.map_err(|error| failed(&path, &error, advice))?;
        match lock.try_lock() {
            Ok(()) => Ok(RunDirectory { path, is_new, _lock: Some(lock) }),
            Err(TryLockError::WouldBlock) => Err(Failure::failed(format!(
                "another 'tabane up' or 'tabane down' works on run directory {}; wait for it, or {advice}",
                path.display()
            ))),
            Err(TryLockError::Error(error)) => Err(failed(&path, &error, advice)),
        }
    }

    /// The cluster that lives here, with its settings; `None` if nothing was ever started. A cluster file without
    /// settings is what is left of an `up` that was killed before it started anything.
    pub fn cluster(&self) -> Outcome<Option<(Cluster, Settings)>> {
        let settings_path = self.path.join(SETTINGS_FILE);
        if !settings_path.exists() {
            return Ok(None);
        }
        let advice = format!("remove {} and its store by hand if they are of no use", self.path.display());
        let text = fs::read_to_string(&settings_path).map_err(|error| failed(&settings_path, &error, &advice))?;
        let settings = Settings::parse(&text)
            .map_err(|reason| Failure::failed(format!("{} {reason}; {advice}", settings_path.display())))?;
        let cluster =
            load_cluster(&self.path).map_err(|error| Failure::failed(format!("{}; {advice}", error.message)))?;
        Ok(Some((cluster, settings)))
    }

    /// Keeps the cluster and its settings. The settings come last: they are what makes the directory a cluster's.
    pub fn keep(&self, cluster: &Cluster, settings: &Settings) -> Outcome {
        self.write(CLUSTER_FILE_NAME, &cluster.to_text())?;
        self.write(SETTINGS_FILE, &settings.to_text())
    }

    /// Keeps the number of a server's process.
    pub fn keep_process(&self, index: u32, process: ProcessId) -> Outcome {
        let machine = reactor::process::machine();
        self.write(&format!("server-{index}.pid"), &format!("{} {} {machine}\n", process.pid, process.started))
    }

    /// Writes a file as a whole or not at all.
    pub fn write(&self, name: &str, text: &str) -> Outcome {
        let (path, temporary) = (self.path.join(name), self.path.join(format!("{name}.new")));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let written = options.open(&temporary).and_then(|mut file| file.write_all(text.as_bytes()));
        written
            .and_then(|()| fs::rename(&temporary, &path))
            .inspect_err(|_| drop(fs::remove_file(&temporary)))
            .map_err(|error| failed(&self.path, &error, "make room or choose another one with --run-directory"))
    }

    /// The process of a server, if it was started and still runs.
    pub fn living_process(&self, index: u32) -> Option<ProcessId> {
        process_of(&self.path, index).filter(|process| process.is_alive())
    }

    pub fn log_path(&self, index: u32) -> PathBuf {
        self.path.join(format!("server-{index}.log"))
    }

    pub fn cluster_file(&self) -> PathBuf {
        self.path.join(CLUSTER_FILE_NAME)
    }

    /// Removes the directory with what we put there; anything else stays, and so does the directory then.
    pub fn remove(self, server_count: u32) -> Outcome {
        for index in 0..server_count {
            remove_file(&pid_path(&self.path, index))?;
            remove_file(&self.log_path(index))?;
            remove_file(&crate::log::aside(&self.log_path(index)))?;
        }
        crate::mounts::remove_records(&self.path);
        let own = [SETTINGS_FILE, CLUSTER_FILE_NAME, HOSTS_FILE, ORDERS_FILE, LOCK_FILE];
        for name in crate::recorder::FILES.into_iter().chain(own) {
            remove_file(&self.path.join(name))?;
        }
        fs::remove_dir(&self.path)
            .map_err(|error| failed(&self.path, &error, "look at what else is in it and remove it by hand"))
    }
}

fn remove_file(path: &Path) -> Outcome {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Failure::failed(format!("{}: {}", path.display(), io_words(&error))))
        }
        _ => Ok(()),
    }
}

/// Removes the stores of a cluster, and the directory around them if it was made for them and holds nothing else.
pub fn remove_stores(settings: &Settings, indices: impl IntoIterator<Item = u32>) -> Outcome {
    for index in indices {
        let store = settings.store_of(index);
        accept_missing(&store, remove_store(&store))?;
        crate::device_store::remove(settings, index)?;
    }
    match settings.made_stores.then(|| fs::remove_dir(&settings.stores)) {
        Some(Err(error)) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
        Some(removed) => accept_missing(&settings.stores, removed),
        None => Ok(()),
    }
}

fn accept_missing(path: &Path, removed: io::Result<()>) -> Outcome {
    match removed {
        Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Err(Failure::failed(format!("store {}: {}; remove it by hand", path.display(), io_words(&error))))
        }
        _ => Ok(()),
    }
}
