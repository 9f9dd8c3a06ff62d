//! Putting a file system into the tree, serving it, and taking it out again.
//!
//! What the kernel and we have in common is found out by the crate `fuser`, which also mounts, through `fusermount3`
//! where we are not root. From then on requests are read here: the crate knows neither interrupted requests nor which
//! locks are those of flock(2).

use crate::caller::Callers;
use crate::crew::Crew;
use crate::device::{Device, TRANSFER_SIZE_MAX};
use crate::failed::FailedLookUps;
use crate::handles::Handles;
use crate::held::HeldNodes;
use crate::locks::LockOwners;
use crate::seen::SeenDirectories;
use crate::serve::{Mounted, Worker};
use crate::waiting::WaitingRoom;
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
use std::sync::Arc;

/// What a mount is like.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// Where; with a descriptor of another one's mount, what stands for it in messages.
    pub directory: PathBuf,
    /// What `mount` and /proc/mounts show in front of it.
    pub source: String,
    /// Threads that serve, without those that are held up: as many requests are under way at once.
    pub thread_count: usize,
    /// Whether other users than who mounts may use it.
    pub allow_other: bool,
    /// Whether programs on it that are another user's or group's by their set-user and set-group bits run as such.
    pub suid: bool,
    /// Whether device nodes on it can be opened.
    pub dev: bool,
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

/// Comes to an agreement with the kernel, and does nothing else.
#[derive(Debug)]
struct Greeter;

impl Filesystem for Greeter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in WANTED {
            // What an older kernel does not offer it does in its own way.
            let _ = config.add_capabilities(flag);
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
    options: MountOptions,
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
            MountOption::DefaultPermissions,
            MountOption::NoAtime,
            if options.suid { MountOption::Suid } else { MountOption::NoSuid },
            if options.dev { MountOption::Dev } else { MountOption::NoDev },
        ];
        config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
        let session = Session::new(Greeter, &options.directory, &config)?;
        let unmounter = Unmounter { directory: options.directory.clone(), mount: MountId::at(&options.directory).ok() };
        Mount::of(session, unmounter, client, user, options)
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
        let session = Session::from_fd(Greeter, device.into(), SessionACL::All, Config::default())?;
        let unmounter = Unmounter { directory: options.directory.clone(), mount: None };
        Mount::of(session, unmounter, client, user, options)
    }

    fn of(
        session: Session<Greeter>,
        unmounter: Unmounter,
        client: Client,
        user: Credentials,
        options: MountOptions,
    ) -> io::Result<Mount> {
        let session = ManuallyDrop::new(session);
        let mounted = Mounted {
            client,
            user,
            device: Device::share(session.as_fd())?,
            callers: Callers::default(),
            files: Handles::default(),
            listings: Handles::default(),
            directories: SeenDirectories::default(),
            held: HeldNodes::default(),
            failed: FailedLookUps::default(),
            owners: LockOwners::default(),
            waiting: WaitingRoom::default(),
            crew: Crew::new(options.thread_count),
        };
        Ok(Mount { _session: session, unmounter, mounted: Arc::new(mounted), options })
    }

    pub fn options(&self) -> &MountOptions {
        &self.options
    }

    /// Starts the threads that serve. The last one calls `ended`, when the file system is not mounted any more.
    pub fn serve(&self, ended: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mounted = self.mounted.clone();
        reactor::threads::start("tabane-locks", move || mounted.waiting.attend(&mounted))?;
        let last = Arc::new(LastOne::new(ended));
        for _ in 0..self.options.thread_count {
            start_worker(&self.mounted, &last)?;
        }
        let (mounted, last) = (self.mounted.clone(), Arc::downgrade(&last));
        reactor::threads::start("tabane-crew", move || {
            while let Some(missing) = mounted.crew.look() {
                let Some(last) = last.upgrade() else { return };
                for _ in 0..missing {
                    if let Err(error) = start_worker(&mounted, &last) {
                        eprintln!("tabane: mount: one thread more, for others wait for servers: {error}");
                        break;
                    }
                }
            }
        })
    }

    /// What takes the file system out of the tree from any thread.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Closes what programs have left open, and tells the servers.
    pub fn finish(self) {
        self.mounted.waiting.close();
        let left = self.mounted.files.drain();
        self.mounted.listings.drain();
        self.mounted.close_all(&self.mounted.held.drain());
        self.mounted.run(async |files| {
            for open in &left {
                files.close(&open.file).await;
            }
        });
    }
}

/// A thread that serves; `last` is dropped when it ends.
fn start_worker<F: FnOnce() + Send + 'static>(mounted: &Arc<Mounted>, last: &Arc<LastOne<F>>) -> io::Result<()> {
    let seat = mounted.crew.join();
    let (crew, worker, last, own_seat) = (mounted.clone(), mounted.clone(), last.clone(), seat.clone());
    let started = reactor::threads::start("tabane-worker", move || {
        if let Err(error) = Worker::new(&worker).serve(&own_seat) {
            eprintln!("tabane: mount: {error}");
        }
        worker.crew.leave(&own_seat);
        drop(last);
    });
    if started.is_err() {
        crew.crew.leave(&seat);
    }
    started
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
