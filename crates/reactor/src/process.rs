//! What a program's front end asks of the operating system: signals as events, detached processes, processes known by
//! number and start time, names of users, and the local time of day.

use crate::{Nanos, Reactor, Stream, system};
use std::ffi::{CStr, CString};
use std::fs::{File, OpenOptions};
use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicI32, Ordering};

pub use libc::{SIGCHLD, SIGHUP, SIGINT, SIGKILL, SIGTERM};

/// The socket that the signal handler writes to; -1 while nobody listens.
static SIGNAL_SOCKET: AtomicI32 = AtomicI32::new(-1);

/// Cores have numbers below this.
pub const CORE_COUNT_MAX: usize = libc::CPU_SETSIZE as usize;

/// The cores that this thread may run on, in order.
pub fn allowed_cores() -> io::Result<Vec<usize>> {
    // SAFETY: a zeroed set is an empty one; the call writes at most its size.
    unsafe {
        let mut set = std::mem::zeroed::<libc::cpu_set_t>();
        system::check(libc::sched_getaffinity(0, size_of_val(&set), &mut set))?;
        Ok((0..CORE_COUNT_MAX).filter(|core| libc::CPU_ISSET(*core, &set)).collect())
    }
}

/// Has this thread, and those that it starts from now on, run on some cores. Those that are not there, or not for us,
/// don't count. Errors: `InvalidInput` when none is left.
pub fn stay_on(cores: &[usize]) -> io::Result<()> {
    assert!(cores.iter().all(|core| *core < CORE_COUNT_MAX));
    // SAFETY: as above; the call reads the set.
    unsafe {
        let mut set = std::mem::zeroed::<libc::cpu_set_t>();
        cores.iter().for_each(|core| libc::CPU_SET(*core, &mut set));
        system::check(libc::sched_setaffinity(0, size_of_val(&set), &set)).map(drop)
    }
}

/// Time that this process has been on cores so far, in the program and in the kernel for it.
pub fn cpu_time() -> Nanos {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one local; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Lets this process have as many open files as it may allow itself; answers how many those are.
pub fn allow_open_files() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes and reads one local.
    unsafe {
        system::check(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit))?;
        limit.rlim_cur = limit.rlim_max;
        system::check(libc::setrlimit(libc::RLIMIT_NOFILE, &limit))?;
    }
    Ok(limit.rlim_cur)
}

/// A signal that has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal {
    pub number: i32,
    /// The terminal sent it to the whole foreground group, so children have it already.
    pub from_terminal: bool,
}

impl Signal {
    /// The exit status by which shells tell that a program ended by this signal.
    pub fn exit_code(self) -> u8 {
        (128 + self.number) as u8
    }
}

/// Signals as events on a loop. At most one per program; the signals are caught from then on until the program ends.
pub struct Signals {
    stream: Stream,
}

impl Signals {
    /// Catches the signals with these numbers. Errors: those of the system; `Unsupported` in the simulator.
    pub fn catch(reactor: &Reactor, numbers: &[i32]) -> io::Result<Signals> {
        let (reader, writer) = UnixStream::pair()?;
        writer.set_nonblocking(true)?;
        // The handler may use the descriptor at any time from now on, so it stays open until the program ends.
        let before = SIGNAL_SOCKET.swap(writer.into_raw_fd(), Ordering::AcqRel);
        assert!(before == -1, "signals are caught in one place of a program");
        for number in numbers {
            catch(*number)?;
        }
        Ok(Signals { stream: reactor.driver().adopt(OwnedFd::from(reader))? })
    }

    /// The next signal.
    pub async fn next(&self) -> Signal {
        loop {
            if let Some(signal) = self.take() {
                return signal;
            }
            poll_fn(|context| self.stream.poll_readable(context)).await;
        }
    }

    /// A signal that has come already.
    pub fn take(&self) -> Option<Signal> {
        let mut event = [0u8; 2];
        match self.stream.try_recv(&mut [IoSliceMut::new(&mut event)]) {
            Ok(2) => Some(Signal { number: i32::from(event[0]), from_terminal: event[1] == 1 }),
            _ => None,
        }
    }
}

fn catch(number: i32) -> io::Result<()> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a zeroed action is a valid one, with an empty mask; the handler has the signature that SA_SIGINFO asks
    // for and calls only what is safe in handlers.
    unsafe {
        let action = action.assume_init_mut();
        action.sa_sigaction = note_signal as extern "C" fn(_, _, _) as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        crate::system::check(libc::sigaction(number, action, std::ptr::null_mut())).map(drop)
    }
}

extern "C" fn note_signal(number: libc::c_int, information: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    /// si_code of signals that the kernel itself sends, among them those of a terminal (sigaction(2)).
    const SI_KERNEL: libc::c_int = 0x80;
    // SAFETY: the kernel gives a valid pointer; send is safe in handlers, and errno is put back as it was.
    unsafe {
        let errno = *libc::__errno_location();
        let event = [number as u8, u8::from((*information).si_code == SI_KERNEL)];
        // A full socket means that thousands of signals wait already: one more says nothing new.
        libc::send(
            SIGNAL_SOCKET.load(Ordering::Acquire),
            event.as_ptr().cast(),
            2,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        );
        *libc::__errno_location() = errno;
    }
}

/// Starts a command in a process group of its own that outlives the terminal, so that no terminal's signals end it.
///
/// It stays in the session: where the kernel groups the processor's time by session (autogroup), giving the core away
/// only reaches processes of the same session, and servers that poll would hold up the programs that wait for them.
pub fn spawn_detached(command: &mut Command) -> io::Result<Child> {
    let detach = || {
        // SAFETY: plain system calls on numbers; ignoring a signal lasts through exec.
        unsafe {
            libc::signal(libc::SIGHUP, libc::SIG_IGN);
            crate::system::check(libc::setpgid(0, 0)).map(drop)
        }
    };
    // SAFETY: between fork and exec only those async-signal-safe calls are made.
    unsafe { command.pre_exec(detach) };
    command.spawn()
}

/// Lets the kernel send `signal` to the command's process when the thread that starts it dies.
pub fn signal_at_our_death(command: &mut Command, signal: i32) {
    let parent = std::process::id();
    let bind = move || {
        // SAFETY: plain system calls on numbers.
        unsafe {
            crate::system::check(libc::prctl(libc::PR_SET_PDEATHSIG, signal))?;
            // The parent may have died before the line above.
            if libc::getppid() as u32 != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe calls are made, and nothing is allocated.
    unsafe { command.pre_exec(bind) };
}

/// Effective user of this process.
pub fn user() -> u32 {
    // SAFETY: a plain system call that can't fail.
    unsafe { libc::geteuid() }
}

/// This machine since it was started, as far as numbers of processes mean something here: containers have their own.
pub fn machine() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let space = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let digits: String = space.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    format!("{}/{digits}", boot.trim())
}

/// The name of this machine.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// A process, known by its number and the time when it started, so that a number that was given out again is not
/// mistaken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessId {
    pub pid: u32,
    /// Clock ticks between the start of the machine and that of the process (field 22 of /proc/PID/stat).
    pub started: u64,
}

impl ProcessId {
    /// The process that has this number now; `None` if there is none, or only its unclaimed exit status.
    pub fn of(pid: u32) -> Option<ProcessId> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (state, started) = parse_stat(&text)?;
        (!matches!(state, 'Z' | 'X')).then_some(ProcessId { pid, started })
    }

    /// Whether it still runs.
    pub fn is_alive(self) -> bool {
        ProcessId::of(self.pid) == Some(self)
    }

    /// Sends it a signal. False if it does not run any more. Errors: `PermissionDenied` for the process of another
    /// user.
    pub fn signal(self, number: i32) -> io::Result<bool> {
        // SAFETY: a system call on numbers; the new descriptor is owned from here on.
        let raw = unsafe { libc::syscall(libc::SYS_pidfd_open, self.pid as libc::pid_t, 0) } as libc::c_int;
        let handle = if raw >= 0 {
            // SAFETY: the descriptor is new and nobody else owns it.
            Some(unsafe { OwnedFd::from_raw_fd(raw) })
        } else {
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::ESRCH) => return Ok(false),
                // Kernels before 5.3 have only numbers, whose owner may change right after it was looked at.
                _ => None,
            }
        };
        if !self.is_alive() {
            return Ok(false);
        }
        let result = match &handle {
            // SAFETY: system calls on numbers and a null pointer.
            Some(handle) => unsafe {
                let information = std::ptr::null::<libc::siginfo_t>();
                libc::syscall(libc::SYS_pidfd_send_signal, handle.as_raw_fd(), number, information, 0) as libc::c_int
            },
            // SAFETY: a system call on numbers.
            None => unsafe { libc::kill(self.pid as libc::pid_t, number) },
        };
        match crate::system::check(result) {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Bytes of memory that it holds now; `None` if it does not run any more.
    pub fn resident_bytes(self) -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kibibytes: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
        self.is_alive().then_some(kibibytes * 1024)
    }

    /// How long it has been running.
    pub fn uptime(self) -> Option<Nanos> {
        let text = std::fs::read_to_string("/proc/uptime").ok()?;
        let seconds: f64 = text.split_ascii_whitespace().next()?.parse().ok()?;
        // SAFETY: a library call without pointers.
        let ticks_per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64;
        let running = (seconds - self.started as f64 / ticks_per_second).max(0.0);
        Some((running * 1e9) as Nanos)
    }
}

/// State and start time from the text of /proc/PID/stat (proc(5)). The program's name may hold any character, also
/// brackets and spaces, so fields are counted from behind it.
fn parse_stat(text: &str) -> Option<(char, u64)> {
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// A user's name.
pub fn user_name(uid: u32) -> Option<String> {
    let mut buffer = vec![0; 4096];
    let mut entry = MaybeUninit::<libc::passwd>::zeroed();
    let mut found = std::ptr::null_mut();
    // SAFETY: all places are ours and as large as is said; the name is copied before they go.
    unsafe {
        let status = libc::getpwuid_r(uid, entry.as_mut_ptr(), buffer.as_mut_ptr(), buffer.len(), &mut found);
        (status == 0 && !found.is_null()).then(|| CStr::from_ptr((*found).pw_name).to_string_lossy().into_owned())
    }
}

/// A group's name.
pub fn group_name(gid: u32) -> Option<String> {
    let mut buffer = vec![0; 1 << 16];
    let mut entry = MaybeUninit::<libc::group>::zeroed();
    let mut found = std::ptr::null_mut();
    // SAFETY: as above.
    unsafe {
        let status = libc::getgrgid_r(gid, entry.as_mut_ptr(), buffer.as_mut_ptr(), buffer.len(), &mut found);
        (status == 0 && !found.is_null()).then(|| CStr::from_ptr((*found).gr_name).to_string_lossy().into_owned())
    }
}

/// Whether a group is that of this process's user alone, as many systems give each user one: it bears the user's name
/// and has no other members.
pub fn is_private_group(gid: u32) -> bool {
    let Some(own_name) = user_name(user()) else { return false };
    let mut buffer = vec![0; 1 << 16];
    let mut entry = MaybeUninit::<libc::group>::zeroed();
    let mut found = std::ptr::null_mut();
    // SAFETY: all places are ours and as large as is said; names and the list of members, which ends with a null
    // pointer, lie in the buffer, which outlives the look at them.
    unsafe {
        let status = libc::getgrgid_r(gid, entry.as_mut_ptr(), buffer.as_mut_ptr(), buffer.len(), &mut found);
        if status != 0 || found.is_null() {
            return false;
        }
        let is_own = |name| CStr::from_ptr(name).to_bytes() == own_name.as_bytes();
        let mut member = (*found).gr_mem;
        let mut alone = is_own((*found).gr_name);
        while !(*member).is_null() {
            alone &= is_own(*member);
            member = member.add(1);
        }
        alone
    }
}

/// The number of the user of this name.
pub fn user_id(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    let mut buffer = vec![0; 4096];
    let mut entry = MaybeUninit::<libc::passwd>::zeroed();
    let mut found = std::ptr::null_mut();
    // SAFETY: all places are ours and as large as is said, and the name ends with NUL.
    unsafe {
        let size = buffer.len();
        let status = libc::getpwnam_r(name.as_ptr(), entry.as_mut_ptr(), buffer.as_mut_ptr(), size, &mut found);
        (status == 0 && !found.is_null()).then(|| (*found).pw_uid)
    }
}

/// The number of the group of this name.
pub fn group_id(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    let mut buffer = vec![0; 1 << 16];
    let mut entry = MaybeUninit::<libc::group>::zeroed();
    let mut found = std::ptr::null_mut();
    // SAFETY: as above.
    unsafe {
        let size = buffer.len();
        let status = libc::getgrnam_r(name.as_ptr(), entry.as_mut_ptr(), buffer.as_mut_ptr(), size, &mut found);
        (status == 0 && !found.is_null()).then(|| (*found).gr_gid)
    }
}

/// A point of time on the local calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalTime {
    pub year: i64,
    /// 1 to 12.
    pub month: u32,
    /// 1 to 31.
    pub day: u32,
    pub hour: u32,
    pub minute: u32,
    pub second: u32,
    /// Seconds east of Greenwich.
    pub offset_seconds: i64,
}

/// The local calendar's view of a number of seconds since the epoch.
pub fn local_time(seconds: i64) -> Option<LocalTime> {
    let mut broken = MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: both pointers are to locals; a null result means that nothing was written.
    let broken = unsafe {
        if libc::localtime_r(&seconds, broken.as_mut_ptr()).is_null() {
            return None;
        }
        broken.assume_init()
    };
    Some(LocalTime {
        year: i64::from(broken.tm_year) + 1900,
        month: broken.tm_mon as u32 + 1,
        day: broken.tm_mday as u32,
        hour: broken.tm_hour as u32,
        minute: broken.tm_min as u32,
        second: broken.tm_sec as u32,
        offset_seconds: broken.tm_gmtoff,
    })
}

/// Sets the times of access and modification (nanoseconds since the epoch) of what a path names; of a symbolic link its
/// own.
pub fn set_times(path: &Path, atime: i64, mtime: i64) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
    let times = [atime, mtime]
        .map(|time| libc::timespec { tv_sec: time.div_euclid(1_000_000_000), tv_nsec: time.rem_euclid(1_000_000_000) });
    // SAFETY: the path ends with NUL, and the two times are locals.
    let result = unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), libc::AT_SYMLINK_NOFOLLOW) };
    crate::system::check(result).map(drop)
}

/// Makes a pipe, socket or device: `mode` is its type and permission bits, before the umask. Errors: those of mknod(2).
pub fn make_node(path: &Path, mode: u32, device: u32) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
    // SAFETY: the path ends with NUL.
    let result = unsafe { libc::mknod(path.as_ptr(), mode, libc::dev_t::from(device)) };
    crate::system::check(result).map(drop)
}

/// Bytes free for this user, and all bytes, of the file system that holds a path.
pub fn file_system_space(path: &Path) -> io::Result<(u64, u64)> {
    let space = file_system_figures(path)?;
    Ok((space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize))
}

/// Makes durable all that was written to the file system of something that is open.
pub fn synchronise_file_system(opened: &File) -> io::Result<()> {
    // SAFETY: a call on a descriptor that is open, without memory of ours.
    crate::system::check(unsafe { libc::syncfs(opened.as_raw_fd()) }).map(drop)
}

/// Files that this user can still make in the file system that holds a path; `None` where it has no such bound.
pub fn file_system_files_free(path: &Path) -> io::Result<Option<u64>> {
    let space = file_system_figures(path)?;
    Ok((space.f_files > 0).then_some(space.f_favail))
}

/// What the file system of a path calls itself, the same on all hosts and over mounts; 0 where it does not say (NFS,
/// FUSE).
pub fn file_system_number(path: &Path) -> io::Result<u64> {
    #[allow(clippy::unnecessary_cast)] // The C libraries give it different types.
    file_system_figures(path).map(|figures| figures.f_fsid as u64)
}

fn file_system_figures(path: &Path) -> io::Result<libc::statvfs> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
    let mut space = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: the path ends with NUL and the place is ours; zeroed space is a valid value.
    unsafe {
        crate::system::check(libc::statvfs(path.as_ptr(), space.as_mut_ptr()))?;
        Ok(space.assume_init())
    }
}

/// Whether a path lies on a file system that is memory alone, and forgets at power loss.
pub fn is_memory(path: &Path) -> io::Result<bool> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
    let mut status = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the path ends with NUL and the place is ours; a zeroed status is a valid value.
    let status = unsafe {
        crate::system::check(libc::statfs(path.as_ptr(), status.as_mut_ptr()))?;
        status.assume_init()
    };
    Ok(crate::storage::is_volatile(&status))
}

/// A mounted file system, told apart from any other that is mounted at the same place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountId {
    /// Number of the mount; 0 on kernels before 5.8.
    mount: u64,
    device: (u32, u32),
}

impl MountId {
    /// What is mounted on top of a directory, or what the directory is part of. Who serves it is not asked.
    pub fn at(directory: &Path) -> io::Result<MountId> {
        MountId::of(&open_place(directory)?)
    }

    fn of(place: &File) -> io::Result<MountId> {
        let mut facts = MaybeUninit::<libc::statx>::zeroed();
        let flags = libc::AT_EMPTY_PATH | libc::AT_NO_AUTOMOUNT | libc::AT_STATX_DONT_SYNC;
        // SAFETY: the empty path ends with NUL and stands for the descriptor; the call writes the structure, of which
        // any bytes are valid.
        let facts = unsafe {
            let mask = libc::STATX_MNT_ID;
            system::check(libc::statx(place.as_raw_fd(), c"".as_ptr(), flags, mask, facts.as_mut_ptr()))?;
            facts.assume_init()
        };
        let mount = if facts.stx_mask & libc::STATX_MNT_ID == 0 { 0 } else { facts.stx_mnt_id };
        Ok(MountId { mount, device: (facts.stx_dev_major, facts.stx_dev_minor) })
    }
}

/// A copy of a descriptor that this process was started with, by its number. Errors: there is none.
pub fn inherited_descriptor(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: what the call gives is a new descriptor that nobody else has.
    unsafe { system::check(libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0)).map(|raw| OwnedFd::from_raw_fd(raw)) }
}

/// A place in the tree, without opening what is there.
fn open_place(directory: &Path) -> io::Result<File> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    OpenOptions::new().read(true).custom_flags(flags).open(directory)
}

/// Takes this very mount out of the tree if it is what is on top at a directory; returns whether it was. Who uses it
/// keeps it. What else is mounted there by now stays. Errors: `PermissionDenied` for those who may not unmount, and
/// others.
pub fn detach_mount(directory: &Path, mount: MountId) -> io::Result<bool> {
    let place = open_place(directory)?;
    if MountId::of(&place)? != mount {
        return Ok(false);
    }
    // By the descriptor, so that it is what was looked at even if another one comes on top meanwhile.
    let path = CString::new(format!("/proc/self/fd/{}", place.as_raw_fd())).expect("there is no NUL in it");
    // SAFETY: the path ends with NUL.
    let result = unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    system::check(result).map(|_| true)
}

/// Takes what is mounted at a path out of the tree. What is in use stays (`ResourceBusy`), but for `detach`: then it
/// goes from the tree, and those who use it keep it. The path's last name is not followed if it is a symbolic link, and
/// nothing behind it is asked, so that it may be dead.
pub fn unmount(path: &Path, detach: bool) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
    let flags = libc::UMOUNT_NOFOLLOW | if detach { libc::MNT_DETACH } else { 0 };
    // SAFETY: the path ends with NUL.
    let result = unsafe { libc::umount2(path.as_ptr(), flags) };
    crate::system::check(result).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DriverKind;
    use std::process::Stdio;

    /// Goal: signals become events on a loop over either driver's kind of descriptor, in order, with their sender.
    /// Method: signals to this process.
    #[test]
    fn signals_are_events() {
        let reactor = Reactor::open(DriverKind::Auto).unwrap();
        let signals = Signals::catch(&reactor, &[libc::SIGUSR1, libc::SIGUSR2]).unwrap();
        assert_eq!(signals.take(), None);
        let us = ProcessId::of(std::process::id()).unwrap();
        for number in [libc::SIGUSR1, libc::SIGUSR2, libc::SIGUSR1] {
            assert!(us.signal(number).unwrap());
            let signal = reactor.block_on(signals.next());
            assert_eq!(signal, Signal { number, from_terminal: false });
        }
        assert_eq!(signals.take(), None);
    }

    /// Goal: a detached process is seen alive, can be ended, and is then seen dead; a recycled number is not it.
    #[test]
    fn processes_are_known_by_start_time() {
        let mut command = Command::new("/bin/cat");
        command.stdin(Stdio::piped());
        let mut child = spawn_detached(&mut command).unwrap();
        let process = ProcessId::of(child.id()).unwrap();
        let other = ProcessId { started: process.started + 1, ..process };
        assert!(process.is_alive() && process.resident_bytes().is_some() && process.uptime().is_some());
        assert!(!other.is_alive() && !other.signal(SIGKILL).unwrap());
        assert!(process.is_alive());
        assert!(process.signal(SIGTERM).unwrap());
        child.wait().unwrap();
        assert!(!process.is_alive() && !process.signal(SIGTERM).unwrap());
    }

    /// Goal: names with brackets and spaces do not shift the fields of /proc/PID/stat.
    #[test]
    fn stat_is_parsed_behind_the_name() {
        let fields: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        let text = format!("7 (a) S 1 (b) Z {}", fields.join(" "));
        assert_eq!(parse_stat(&text), Some(('Z', 22)));
        assert_eq!(parse_stat("7 (a) S 1"), None);
    }

    /// Goal: the calendar's fields count as documented.
    /// Method: the epoch, shifted to be the epoch on the local calendar.
    #[test]
    fn calendar() {
        let offset = local_time(0).unwrap().offset_seconds;
        let time = local_time(951_825_599 - offset).unwrap();
        assert_eq!((time.year, time.month, time.day), (2000, 2, 29));
        assert_eq!((time.hour, time.minute, time.second), (11, 59, 59));
        assert!(user_name(0).is_some_and(|name| name == "root") && user_name(u32::MAX - 7).is_none());
        assert_eq!((user_id("root"), user_id("no such user")), (Some(0), None));
    }
}
