//! Putting a file system into the tree, serving it, and taking it out again.
//!
//! What the kernel and we have in common is found out by the crate `fuser`, which also mounts, through `fusermount3`
//! where we are not root. From then on requests are read here: the crate knows neither interrupted requests nor which
//! locks are those of flock(2).

use crate::caller::Callers;
use crate::device::{Device, DevicePort, TRANSFER_SIZE_MAX};
use crate::failed::FailedLookUps;
use crate::handles::Handles;
use crate::held::HeldNodes;
use crate::interrupts::Interrupts;
use crate::keeping::Keeping;
use crate::locks::LockOwners;
use crate::ring::{Ring, cores_of_threads};
use crate::seen::SeenDirectories;
use crate::serve::Mounted;
use crate::upkeep::Upkeep;
use client::{Client, Credentials};
use fuser::{Config, Filesystem, InitFlags, KernelConfig, MountOption, Request, Session, SessionACL};
use reactor::process::{MountId, detach_mount};
use reactor::threads::LastOne;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Whether requests come by io_uring (`ring.rs`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IoUring {
    /// Where the kernel has it.
    #[default]
    Auto,
    /// Or there is no mount.
    On,
    Off,
}

impl IoUring {
    /// What a word of the command line means.
    pub fn from_word(word: &str) -> Option<IoUring> {
        match word {
            "auto" => Some(IoUring::Auto),
            "on" => Some(IoUring::On),
            "off" => Some(IoUring::Off),
            _ => None,
        }
    }
}

/// What a mount is like.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// Where; with a descriptor of another one's mount, what stands for it in messages.
    pub directory: PathBuf,
    /// What `mount` and /proc/mounts show in front of it.
    pub source: String,
    /// Threads that read the device, where requests do not come by io_uring.
    pub thread_count: usize,
    pub io_uring: IoUring,
    /// Whether other users than who mounts may use it.
    pub allow_other: bool,
    /// Whether programs on it that are another user's or group's by their set-user and set-group bits run as such.
    pub suid: bool,
    /// Whether device nodes on it can be opened.
    pub dev: bool,
    /// Whether the kernel keeps names and attributes, where it can be made to forget them in time (Linux 6.16).
    pub keep_entries: bool,
}

/// Requests that the kernel has under way by itself at most: reads ahead of mapped files, pages written back.
const BACKGROUND_COUNT_MAX: u16 = 64;

/// Major and minor number of `/dev/fuse` (Documentation/admin-guide/devices.txt of Linux).
const FUSE_DEVICE: (u32, u32) = (10, 229);

/// What is asked of the kernel, where it offers it.
const WANTED: [InitFlags; 10] = [
    InitFlags::FUSE_POSIX_LOCKS,
    InitFlags::FUSE_FLOCK_LOCKS,
    InitFlags::FUSE_ATOMIC_O_TRUNC,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_AUTO_INVAL_DATA,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
];

/// Threads where each has one request under way only, because the device can't be opened again.
const LONE_THREAD_COUNT: usize = 64;

/// Comes to an agreement with the kernel, and does nothing else.
#[derive(Debug)]
struct Greeter {
    /// Whether we could serve rings, and then whether the kernel has them.
    rings: Arc<AtomicBool>,
}

impl Filesystem for Greeter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in WANTED {
            // What an older kernel does not offer it does in its own way.
            let _ = config.add_capabilities(flag);
        }
        if self.rings.load(Ordering::Relaxed) {
            let has = config.add_capabilities(InitFlags::FUSE_OVER_IO_URING).is_ok();
            self.rings.store(has, Ordering::Relaxed);
        }
        let out_of_range = |nearest| io::Error::other(format!("the nearest that is possible is {nearest}"));
        config.set_max_write(TRANSFER_SIZE_MAX as u32).map_err(out_of_range)?;
        config.set_max_background(BACKGROUND_COUNT_MAX).map_err(|nearest| out_of_range(u32::from(nearest)))?;
        Ok(())
    }
}

/// A file system in the tree. Dropping it takes it out, if it is there still.
pub struct Mount {
    /// Never dropped: it would unmount whatever is at its place by then, even if that is a newer mount. Its descriptor
    /// closes with the process.
    _session: ManuallyDrop<Session<Greeter>>,
    unmounter: Unmounter,
    mounted: Arc<Mounted>,
    upkeep: Arc<Upkeep>,
    /// One for each thread, with the core that it stays on; until they are started.
    rings: Mutex<Vec<(u16, Ring)>>,
    options: MountOptions,
}

/// What is found out with the kernel about rings.
struct Agreement {
    rings: Vec<(u16, Ring)>,
    has_rings: Arc<AtomicBool>,
}

impl Agreement {
    /// Rings for all cores; none where they can't be had. Errors: `Unsupported` where there has to be one.
    fn new(options: &MountOptions) -> io::Result<Agreement> {
        let threads = match options.io_uring {
            IoUring::Off => Vec::new(),
            IoUring::Auto | IoUring::On => cores_of_threads().unwrap_or_default(),
        };
        let rings: io::Result<Vec<(u16, Ring)>> =
            threads.iter().map(|cores| Ring::new(cores).map(|ring| (cores[0], ring))).collect();
        let rings = rings.unwrap_or_default();
        if rings.is_empty() && options.io_uring == IoUring::On {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Agreement { has_rings: Arc::new(AtomicBool::new(!rings.is_empty())), rings })
    }

    fn greeter(&self) -> Greeter {
        Greeter { rings: self.has_rings.clone() }
    }

    /// The rings, if the kernel has agreed to them. Errors: `Unsupported` where it had to.
    fn rings(self, wanted: IoUring) -> io::Result<Vec<(u16, Ring)>> {
        match (self.has_rings.load(Ordering::Relaxed), wanted) {
            (true, _) => Ok(self.rings),
            (false, IoUring::On) => Err(io::ErrorKind::Unsupported.into()),
            (false, IoUring::Auto | IoUring::Off) => Ok(Vec::new()),
        }
    }
}

impl Mount {
    /// Mounts what a client sees. `client` acts for `user` with a umask of 0, for the kernel applies those of programs.
    ///
    /// Errors: those of mount(2), and those of `fusermount3` in its own words.
    pub fn new(client: Client, user: Credentials, options: MountOptions) -> io::Result<Mount> {
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(options.source.clone()),
            MountOption::Subtype("tabane".to_owned()),
            MountOption::NoAtime,
            if options.suid { MountOption::Suid } else { MountOption::NoSuid },
            if options.dev { MountOption::Dev } else { MountOption::NoDev },
        ];
        config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
        let agreement = Agreement::new(&options)?;
        let session = Session::new(agreement.greeter(), &options.directory, &config)?;
        let unmounter = Unmounter { directory: options.directory.clone(), mount: MountId::at(&options.directory).ok() };
        Mount::of(session, agreement, unmounter, client, user, options)
    }

    /// Serves what somebody else has mounted, given its descriptor of `/dev/fuse`. Who mounts decides on the options of
    /// the mount, and takes it out of the tree.
    ///
    /// Errors: it is another device, or not mounted.
    pub fn over(device: OwnedFd, client: Client, user: Credentials, options: MountOptions) -> io::Result<Mount> {
        let device = File::from(device);
        let facts = device.metadata()?;
        if !facts.file_type().is_char_device() || facts.rdev() != libc::makedev(FUSE_DEVICE.0, FUSE_DEVICE.1) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the descriptor is not one of /dev/fuse"));
        }
        let agreement = Agreement::new(&options)?;
        let session = Session::from_fd(agreement.greeter(), device.into(), SessionACL::All, Config::default())?;
        let unmounter = Unmounter { directory: options.directory.clone(), mount: None };
        Mount::of(session, agreement, unmounter, client, user, options)
    }

    fn of(
        session: Session<Greeter>,
        agreement: Agreement,
        unmounter: Unmounter,
        client: Client,
        user: Credentials,
        options: MountOptions,
    ) -> io::Result<Mount> {
        let session = ManuallyDrop::new(session);
        let rings = agreement.rings(options.io_uring).inspect_err(|_| drop(unmounter.unmount()))?;
        let device = Arc::new(Device::share(session.as_fd())?);
        let is_concurrent = !rings.is_empty() || DevicePort::new(&device).is_concurrent();
        let asker = options.keep_entries.then(|| client.another()).transpose();
        let asker = asker.map_err(|error| io::Error::other(error.message))?;
        let keeping = Arc::new(Keeping::new(asker, &device, options.allow_other || unmounter.mount.is_none()));
        let request_count_max = (!is_concurrent).then(|| options.thread_count.max(LONE_THREAD_COUNT));
        let mounted = Mounted {
            client,
            user,
            device,
            callers: Callers::default(),
            files: Handles::default(),
            listings: Handles::default(),
            directories: SeenDirectories::default(),
            held: HeldNodes::default(),
            failed: FailedLookUps::default(),
            owners: LockOwners::default(),
            interrupts: Interrupts::new(request_count_max),
            keeping,
        };
        let (mounted, upkeep) = (Arc::new(mounted), Arc::default());
        Ok(Mount { _session: session, unmounter, mounted, upkeep, rings: Mutex::new(rings), options })
    }

    /// Whether the kernel keeps names and attributes.
    pub fn keeps_entries(&self) -> bool {
        self.mounted.keeping.is_on()
    }

    pub fn options(&self) -> &MountOptions {
        &self.options
    }

    /// Threads that take requests, before they are started.
    pub fn thread_count(&self) -> usize {
        match self.rings().len() {
            0 => self.options.thread_count,
            rings => rings,
        }
    }

    fn rings(&self) -> MutexGuard<'_, Vec<(u16, Ring)>> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the threads that serve. The last one calls `ended`, when the file system is not mounted any more.
    pub fn serve(&self, ended: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let (mounted, upkeep) = (self.mounted.clone(), self.upkeep.clone());
        if self.mounted.keeping.is_on() {
            let keeping = self.mounted.keeping.clone();
            let session = self.mounted.client.run(async |_, files| files.session());
            reactor::threads::start("tabane-keeping", move || keeping.attend(session))?;
        }
        reactor::threads::start("tabane-upkeep", move || upkeep.attend(&mounted))?;
        let last = Arc::new(LastOne::new(ended));
        let rings = std::mem::take(&mut *self.rings());
        // Signals and forgotten nodes still come by the device.
        let readers = match (rings.is_empty(), self.mounted.device_port().is_concurrent()) {
            (false, _) => 1,
            (true, true) => self.options.thread_count,
            (true, false) => self.options.thread_count.max(LONE_THREAD_COUNT),
        };
        let has_rings = !rings.is_empty();
        for _ in 0..readers {
            start_thread("tabane-device", &self.mounted, &last, move |mounted| {
                let port = mounted.device_port();
                mounted.serve(&mut if has_rings { port.lazy() } else { port })
            })?;
        }
        for (core, mut ring) in rings {
            start_thread("tabane-ring", &self.mounted, &last, move |mounted| {
                // Where that is refused it only takes longer.
                let _: io::Result<()> = reactor::process::stay_on(&[usize::from(core)]);
                if let Err(error) = ring.begin(mounted.clone()) {
                    eprintln!("tabane: mount: FUSE over io_uring: {error}; the device is read instead");
                    drop(ring);
                    return mounted.serve(&mut mounted.device_port());
                }
                mounted.serve(&mut ring).inspect_err(|error| {
                    // Who waits for an answer would wait for ever; when this process ends he is told.
                    eprintln!("tabane: mount: FUSE over io_uring: {error}; the mount ends");
                    std::process::exit(1);
                })
            })?;
        }
        Ok(())
    }

    /// What takes the file system out of the tree from any thread.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Closes what programs have left open, and tells the servers.
    pub fn finish(self) {
        self.mounted.interrupts.close();
        self.mounted.keeping.end();
        self.upkeep.end();
        let left = self.mounted.files.drain();
        self.mounted.listings.drain();
        self.mounted.close_all(&self.mounted.held.drain());
        self.mounted.client.run(async |_, files| {
            for open in &left {
                files.close(&open.file).await;
            }
            files.end(async {}).await;
        });
    }
}

/// A thread that serves; `last` is dropped when it ends.
fn start_thread<F: FnOnce() + Send + 'static>(
    name: &str,
    mounted: &Arc<Mounted>,
    last: &Arc<LastOne<F>>,
    serve: impl FnOnce(&Arc<Mounted>) -> io::Result<()> + Send + 'static,
) -> io::Result<()> {
    let (mounted, last) = (mounted.clone(), last.clone());
    reactor::threads::start(name, move || {
        if let Err(error) = serve(&mounted) {
            eprintln!("tabane: mount: {error}");
        }
        drop(last);
    })
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = self.unmounter.unmount() {
            eprintln!("tabane: mount: {}: unmounting: {error}", self.options.directory.display());
        }
    }
}

/// See `Mount::unmounter`.
#[derive(Debug, Clone)]
pub struct Unmounter {
    directory: PathBuf,
    /// What was mounted; `None` where that was not to be seen, or was mounted by somebody else.
    mount: Option<MountId>,
}

impl Unmounter {
    /// Takes the file system out of the tree. Programs that still use it keep it until they end, as with `umount -l`.
    /// Where it has been taken out by somebody else, whatever is mounted there by now stays.
    pub fn unmount(&self) -> io::Result<()> {
        let Some(mount) = self.mount else { return Ok(()) };
        match detach_mount(&self.directory, mount) {
            Ok(_) => Ok(()),
            // The directory has gone, and the mount with it.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => take_out_by_helper(&self.directory, true),
            Err(error) => Err(error),
        }
    }
}

/// Takes what is mounted on a directory out of the tree, whether or not somebody uses it or serves it.
pub fn detach(directory: &Path) -> io::Result<()> {
    take_out(directory, true)
}

/// Takes what is mounted on a directory out of the tree. Errors: `ResourceBusy` when somebody uses it, and others.
pub fn unmount(directory: &Path) -> io::Result<()> {
    take_out(directory, false)
}

fn take_out(directory: &Path, detach: bool) -> io::Result<()> {
    match reactor::process::unmount(directory, detach) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => take_out_by_helper(directory, detach),
        other => other,
    }
}

/// For those who may not unmount by themselves.
fn take_out_by_helper(directory: &Path, detach: bool) -> io::Result<()> {
    let mut command = std::process::Command::new("fusermount3");
    command.arg("-u").args(detach.then_some("-z")).arg("--").arg(directory);
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    // The helper tells in words alone what went wrong.
    let kind = if words.contains("busy") { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
    Err(io::Error::new(kind, words))
}
