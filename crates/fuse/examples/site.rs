//! A directory passed through FUSE call by call, to stand in for a site's file system that is slow and fails: below
//! `tabane up --backing MOUNTPOINT` it is what Lustre or NFS are elsewhere.
//!
//!     cargo run -p tabane-fuse --example site -- SOURCE MOUNTPOINT [--control FILE] [--counts FILE]
//!
//! What goes wrong is said by lines in the control file while it runs (`site/faults.rs`; `--help` has the words), and
//! calls are counted by operation. `scripts/site_faults.py` brings a cluster up over it and has it fail.
//!
//! Numbers of inodes, times and positions of listings are those of SOURCE, and nothing is kept (`--keep 0`), so that
//! what is changed in SOURCE directly is seen at once. A call that hangs keeps one thread, and nobody else waits for
//! it; its caller can't be killed meanwhile, as with a mount of NFS. Locks are the kernel's own, of this host alone.

#[path = "site/calls.rs"]
mod calls;
#[path = "site/faults.rs"]
mod faults;
#[path = "site/tree.rs"]
mod tree;

use calls::Site;
use faults::Faults;
use fuser::{Config, MountOption, Session, SessionACL};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{env, fs, io};
use tree::Tree;

const HELP: &str = "\
site: pass a directory through FUSE, and have it be slow and fail

Usage: site SOURCE MOUNTPOINT [OPTIONS]

Shows SOURCE at MOUNTPOINT, an empty directory outside of it, until it is unmounted or gets SIGTERM or SIGINT. Prints
'ready' when it is mounted.

Options:
      --control FILE    what goes wrong, by lines; looked at before each call, so that it may change at any time. A file
                        that is renamed onto it is seen whole. Without the file nothing goes wrong
      --counts FILE     SIGUSR1 has the calls so far written into it, by operation, as a JSON object; it is replaced
      --threads COUNT   calls under way at a time, those that hang among them (default: 96)
      --keep SECONDS    for how long the kernel may keep names and attributes (default: 0)
      --allow-other     other users may use the mount too
  -h, --help            explain this

Lines of the control; PATH begins at the root of the mount, stands for all below it, and may be left out:
  delay OPERATION TIME [PATH]    these calls take so long more, such as 'delay read 5ms'; several add up
  error OPERATION ERROR [PATH]   they fail, such as 'error write EIO /results'
  hang OPERATION [PATH]          they do not return before the line is gone, or the mount
  full [PATH]                    what takes space fails with ENOSPC, and none is free
  readonly [PATH]                what changes something fails with EROFS
  # a remark

OPERATION is one of those in --counts, or * for all but release and releasedir, whose end nobody waits for.
";
const THREADS: usize = 96;

struct Options {
    source: PathBuf,
    mountpoint: PathBuf,
    control: Option<PathBuf>,
    counts: Option<PathBuf>,
    threads: usize,
    kept: Duration,
    allow_other: bool,
}

/// The options that the command line gives; nothing if it asks for help. Errors: what is wrong with it.
fn options(words: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let (mut control, mut counts, mut threads, mut kept, mut allow_other) = (None, None, THREADS, 0.0, false);
    let mut places = Vec::new();
    let mut words = words;
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word}: a value is missing behind it; see --help"));
        match word.as_str() {
            "-h" | "--help" => return Ok(None),
            "--allow-other" => allow_other = true,
            "--control" => control = Some(PathBuf::from(value()?)),
            "--counts" => counts = Some(PathBuf::from(value()?)),
            "--threads" => {
                let value = value()?;
                threads = value.parse().ok().filter(|count| (1..=1024).contains(count)).ok_or_else(|| {
                    format!("--threads: \"{value}\" is no number of threads: give one from 1 to 1024")
                })?;
            }
            "--keep" => {
                let value = value()?;
                kept = value.parse().ok().filter(|seconds| (0.0..=3600.0).contains(seconds)).ok_or_else(|| {
                    format!("--keep: \"{value}\" is no time: give seconds, from 0 to 3600, such as 1.5")
                })?;
            }
            option if option.starts_with('-') => return Err(format!("there is no option {option}; see --help")),
            _ => places.push(PathBuf::from(word)),
        }
    }
    let [source, mountpoint] = &places[..] else {
        return Err(format!("give two directories, SOURCE and MOUNTPOINT, and not {}; see --help", places.len()));
    };
    let (source, mountpoint) = (directory(source)?, directory(mountpoint)?);
    if source.starts_with(&mountpoint) || mountpoint.starts_with(&source) {
        let words = format!("{} and {} lie in each other", source.display(), mountpoint.display());
        return Err(format!("{words}: it would wait for itself; give a mount point elsewhere"));
    }
    let kept = Duration::from_secs_f64(kept);
    Ok(Some(Options { source, mountpoint, control, counts, threads, kept, allow_other }))
}

fn directory(path: &Path) -> Result<PathBuf, String> {
    let found = fs::canonicalize(path).map_err(|error| format!("{}: {error}; make the directory", path.display()))?;
    if found.is_dir() { Ok(found) } else { Err(format!("{} is not a directory; give one", path.display())) }
}

/// Signals that are waited for, and come to nobody else.
struct Signals(libc::sigset_t);

impl Signals {
    /// Holds them back, in this thread and those that it starts from now on.
    fn hold_back(numbers: &[libc::c_int]) -> Signals {
        let mut set = MaybeUninit::uninit();
        // SAFETY: `sigemptyset` fills the set, the others change and read it.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for number in numbers {
                libc::sigaddset(set.as_mut_ptr(), *number);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            Signals(set.assume_init())
        }
    }

    fn wait(&self) -> libc::c_int {
        let mut number = 0;
        // SAFETY: the kernel reads the set, and writes the number.
        unsafe { libc::sigwait(&raw const self.0, &raw mut number) };
        number
    }
}

fn write_counts(faults: &Faults, path: &Path) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    fs::write(&beside, faults.counts())?;
    fs::rename(&beside, path)
}

/// Serves until somebody ends it.
fn serve(options: Options) -> io::Result<()> {
    // SAFETY: what is made has the bits that the kernel says, which knows the umask of who asks.
    unsafe { libc::umask(0) };
    let signals = Signals::hold_back(&[libc::SIGTERM, libc::SIGINT, libc::SIGUSR1]);
    let faults = Arc::new(Faults::new(options.control));
    let site = Site { tree: Tree::new(options.source)?, faults: faults.clone(), kept: options.kept };
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("site".to_owned()), MountOption::DefaultPermissions];
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(options.threads);
    let session = Session::new(site, &options.mountpoint, &config)?;
    let _ = faults.device.set(session.as_fd().try_clone_to_owned()?);
    let has_ended = Arc::new(AtomicBool::new(false));
    let told = has_ended.clone();
    #[allow(clippy::disallowed_methods)] // Not a part of a cluster.
    std::thread::spawn(move || {
        if let Err(error) = session.run() {
            eprintln!("site: {error}");
        }
        told.store(true, Ordering::Release);
        // SAFETY: a signal to ourselves, which the main thread waits for.
        unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
    });
    println!("ready");
    while signals.wait() == libc::SIGUSR1 {
        match &options.counts {
            Some(path) => write_counts(&faults, path).unwrap_or_else(|error| {
                eprintln!("site: {}: {error}", path.display());
            }),
            None => eprint!("{}", faults.counts()),
        }
    }
    // Calls that hang, and what programs have open, end with the process.
    if has_ended.load(Ordering::Acquire) { Ok(()) } else { tabane_fuse::detach(&options.mountpoint) }
}

fn main() -> ExitCode {
    let done = match options(env::args().skip(1)) {
        Ok(Some(options)) => serve(options).map_err(|error| error.to_string()),
        Ok(None) => {
            print!("{HELP}");
            Ok(())
        }
        Err(words) => Err(words),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(words) => {
            eprintln!("site: {words}");
            ExitCode::FAILURE
        }
    }
}
