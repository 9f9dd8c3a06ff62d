//! What fails, and when; and how many calls there were.

use fuser::Errno;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use std::{fs, io};

/// After so long a call that is held up looks again whether it still is.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

macro_rules! operations {
    ($($name:ident)*) => {
        /// The operations of linux/fuse.h that there are faults and counts for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Operation {
            $($name,)*
        }

        impl Operation {
            /// In the order of their declaration.
            pub const ALL: &[Operation] = &[$(Operation::$name,)*];
        }
    };
}

operations! {
    Lookup Getattr Setattr Readlink Mknod Mkdir Symlink Link Unlink Rmdir Rename Create Open Read Write Flush Release
    Fsync Fallocate Lseek Opendir Readdir Readdirplus Releasedir Fsyncdir Statfs Setxattr Getxattr Listxattr Removexattr
}

use Operation::{
    Create, Fallocate, Link, Mkdir, Mknod, Release, Releasedir, Removexattr, Rename, Rmdir, Setattr, Setxattr, Symlink,
    Unlink, Write,
};

impl Operation {
    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// Whether `*` stands for it too. Nobody waits for the end of a release, nor hears what came of it.
    fn is_waited_for(self) -> bool {
        !matches!(self, Release | Releasedir)
    }

    fn takes_space(self) -> bool {
        matches!(self, Write | Create | Mkdir | Mknod | Symlink | Link | Fallocate | Setxattr)
    }

    fn is_change(self) -> bool {
        self.takes_space() || matches!(self, Setattr | Unlink | Rmdir | Rename | Removexattr)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Delay(Duration),
    Error(i32),
    Hang,
    Full,
    ReadOnly,
}

/// A line of the control.
struct Rule {
    fault: Fault,
    /// None is all.
    operation: Option<Operation>,
    path: PathBuf,
}

impl Rule {
    /// Whether it is about a call. What has no name any more is nowhere but below the root.
    fn is_about(&self, operation: Operation, paths: &[PathBuf]) -> bool {
        let meant = match (self.fault, self.operation) {
            (Fault::Full, _) => operation.takes_space(),
            (Fault::ReadOnly, _) => operation.is_change(),
            (_, None) => operation.is_waited_for(),
            (_, Some(one)) => one == operation,
        };
        meant && (self.path == Path::new("/") || paths.iter().any(|path| path.starts_with(&self.path)))
    }
}

/// Names of errors in the control.
const ERRORS: [(&str, i32); 20] = [
    ("EPERM", libc::EPERM),
    ("ENOENT", libc::ENOENT),
    ("EIO", libc::EIO),
    ("ENXIO", libc::ENXIO),
    ("EAGAIN", libc::EAGAIN),
    ("ENOMEM", libc::ENOMEM),
    ("EACCES", libc::EACCES),
    ("EBUSY", libc::EBUSY),
    ("EEXIST", libc::EEXIST),
    ("EINVAL", libc::EINVAL),
    ("EMFILE", libc::EMFILE),
    ("EFBIG", libc::EFBIG),
    ("ENOSPC", libc::ENOSPC),
    ("EROFS", libc::EROFS),
    ("ENAMETOOLONG", libc::ENAMETOOLONG),
    ("EOPNOTSUPP", libc::EOPNOTSUPP),
    ("ENOTCONN", libc::ENOTCONN),
    ("ETIMEDOUT", libc::ETIMEDOUT),
    ("ESTALE", libc::ESTALE),
    ("EDQUOT", libc::EDQUOT),
];

fn operation_of(word: &str) -> Result<Option<Operation>, String> {
    if word == "*" {
        return Ok(None);
    }
    let found = Operation::ALL.iter().copied().find(|operation| operation.name() == word);
    found.map(Some).ok_or_else(|| {
        let names: Vec<String> = Operation::ALL.iter().map(|operation| operation.name()).collect();
        format!("there is no operation \"{word}\": give * for all, or one of {}", names.join(", "))
    })
}

fn error_of(word: &str) -> Result<i32, String> {
    let found = ERRORS.iter().find(|(name, _)| *name == word).map(|(_, number)| *number);
    let number = found.or_else(|| word.parse().ok().filter(|number| (1..4096).contains(number)));
    number.ok_or_else(|| {
        let names: Vec<&str> = ERRORS.iter().map(|(name, _)| *name).collect();
        format!("\"{word}\" is no error: give a number of errno(3), or one of {}", names.join(", "))
    })
}

fn duration_of(word: &str) -> Result<Duration, String> {
    let split = word.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(word.len());
    let (number, unit) = word.split_at(split);
    let made = number.parse().ok().and_then(|number| match unit {
        "us" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    });
    made.ok_or_else(|| format!("\"{word}\" is no duration: give a number with us, ms or s, such as 5ms"))
}

/// What a line says; nothing if it is empty or a remark.
fn rule_of(line: &str) -> Result<Option<Rule>, String> {
    let mut rest = line.trim();
    let mut next = || {
        let (word, after) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        rest = after.trim_start();
        word
    };
    let (fault, operation) = match next() {
        "" => return Ok(None),
        word if word.starts_with('#') => return Ok(None),
        "delay" => {
            let operation = operation_of(next())?;
            (Fault::Delay(duration_of(next())?), operation)
        }
        "error" => {
            let operation = operation_of(next())?;
            (Fault::Error(error_of(next())?), operation)
        }
        "hang" => (Fault::Hang, operation_of(next())?),
        "full" => (Fault::Full, None),
        "readonly" => (Fault::ReadOnly, None),
        other => return Err(format!("\"{other}\" is none of delay, error, hang, full and readonly")),
    };
    // A path may have spaces in it.
    let path = if rest.is_empty() { "/" } else { rest };
    if !path.starts_with('/') {
        return Err(format!("\"{path}\" is no path: it begins at the root of the mount, such as /results"));
    }
    Ok(Some(Rule { fault, operation, path: path.trim_end_matches('/').into() })).map(|rule| {
        rule.map(|rule| Rule { path: if rule.path.as_os_str().is_empty() { "/".into() } else { rule.path }, ..rule })
    })
}

/// What tells one state of the control from another.
type Stamp = (u64, u64, i64, i64);

#[derive(Default)]
struct Known {
    stamp: Option<Stamp>,
    rules: Arc<Vec<Rule>>,
}

pub struct Faults {
    control: Option<PathBuf>,
    known: Mutex<Known>,
    /// Calls begun, by operation.
    counts: [AtomicU64; Operation::ALL.len()],
    /// Calls that hang right now.
    hanging: AtomicU64,
    /// The kernel's end of the mount, once there is one: it tells when nobody wants an answer any more.
    pub device: OnceLock<OwnedFd>,
}

impl Faults {
    pub fn new(control: Option<PathBuf>) -> Faults {
        Faults {
            control,
            known: Mutex::default(),
            counts: [const { AtomicU64::new(0) }; Operation::ALL.len()],
            hanging: AtomicU64::new(0),
            device: OnceLock::new(),
        }
    }

    /// Counts a call, and holds it up or has it fail as the control says. `paths` are all that it is about, from the
    /// root of the mount on. A delay is slept first; then it hangs as long as a line says so; then it fails.
    pub fn pass(&self, operation: Operation, paths: impl FnOnce() -> Vec<PathBuf>) -> io::Result<()> {
        self.counts[operation as usize].fetch_add(1, Ordering::Relaxed);
        let mut rules = self.rules();
        if rules.is_empty() {
            return Ok(());
        }
        let paths = paths();
        let found = |rules: &[Rule]| -> Vec<Fault> {
            rules.iter().filter(|rule| rule.is_about(operation, &paths)).map(|rule| rule.fault).collect()
        };
        let mut faults = found(&rules);
        self.sleep(
            faults.iter().map(|fault| if let Fault::Delay(delay) = fault { *delay } else { Duration::ZERO }).sum(),
        );
        if faults.contains(&Fault::Hang) {
            self.hanging.fetch_add(1, Ordering::Relaxed);
            while faults.contains(&Fault::Hang) && !self.is_over() {
                self.sleep(LOOK_AGAIN);
                rules = self.rules();
                faults = found(&rules);
            }
            self.hanging.fetch_sub(1, Ordering::Relaxed);
        }
        let error = faults.into_iter().find_map(|fault| match fault {
            Fault::Error(number) => Some(number),
            Fault::Full => Some(libc::ENOSPC),
            Fault::ReadOnly => Some(libc::EROFS),
            Fault::Delay(_) | Fault::Hang => None,
        });
        error.map_or(Ok(()), |number| Err(io::Error::from_raw_os_error(number)))
    }

    /// Whether something that takes space would be refused for the lack of it.
    pub fn is_full(&self, path: &[PathBuf]) -> bool {
        self.rules().iter().any(|rule| rule.fault == Fault::Full && rule.is_about(Write, path))
    }

    #[allow(clippy::disallowed_methods)] // A thread of its own, which may sleep.
    fn sleep(&self, mut rest: Duration) {
        while !rest.is_zero() && !self.is_over() {
            let piece = rest.min(LOOK_AGAIN);
            std::thread::sleep(piece);
            rest -= piece;
        }
    }

    /// Whether the mount has ended, so that there is nobody to answer.
    fn is_over(&self) -> bool {
        let Some(device) = self.device.get() else { return false };
        let mut watched = libc::pollfd { fd: device.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: the kernel writes to the one entry.
        unsafe { libc::poll(&raw mut watched, 1, 0) > 0 && watched.revents & (libc::POLLERR | libc::POLLHUP) != 0 }
    }

    /// The rules as the control has them now. It is read when it is another file, or has another time or size.
    fn rules(&self) -> Arc<Vec<Rule>> {
        let Some(control) = &self.control else { return Arc::default() };
        let stamp = fs::metadata(control).map(|is| {
            let time = is.mtime().wrapping_mul(1_000_000_000).wrapping_add(is.mtime_nsec());
            (is.ino(), is.size(), time, is.ctime_nsec())
        });
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = match stamp {
            Ok(stamp) => Some(stamp),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            // As it was.
            Err(_) => return known.rules.clone(),
        };
        if known.stamp != stamp {
            *known = Known { stamp, rules: Arc::new(read_rules(control)) };
        }
        known.rules.clone()
    }

    /// Calls so far, as a JSON object.
    pub fn counts(&self) -> String {
        let counts: HashMap<String, u64> = Operation::ALL
            .iter()
            .map(|operation| (operation.name(), self.counts[*operation as usize].load(Ordering::Relaxed)))
            .collect();
        let all: u64 = counts.values().sum();
        let mut lines: Vec<String> = counts.into_iter().map(|(name, count)| format!("  \"{name}\": {count}")).collect();
        lines.sort();
        let hanging = self.hanging.load(Ordering::Relaxed);
        format!("{{\n{},\n  \"all\": {all},\n  \"hanging\": {hanging}\n}}\n", lines.join(",\n"))
    }
}

/// Lines that say nothing are told, and the others hold.
fn read_rules(control: &Path) -> Vec<Rule> {
    let text = match fs::read_to_string(control) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            eprintln!("site: {}: {error}; there are no faults until it can be read", control.display());
            return Vec::new();
        }
    };
    let mut rules = Vec::new();
    for (index, line) in text.lines().enumerate() {
        match rule_of(line) {
            Ok(rule) => rules.extend(rule),
            Err(words) => eprintln!("site: {}, line {}: {words}; the line is left out", control.display(), index + 1),
        }
    }
    rules
}

/// An error of the system as the kernel wants it.
pub fn errno(error: &io::Error) -> Errno {
    Errno::from_i32(error.raw_os_error().unwrap_or(libc::EIO))
}
