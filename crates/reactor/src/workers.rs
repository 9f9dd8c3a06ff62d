//! A process that leads others: waits for whichever ends first or for a signal, and takes its workers along when it
//! dies.

use crate::Nanos;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// What a leader was woken by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Some child ended; several may have at once, so look at all of them.
    ChildEnded,
    /// A signal (its number) asks the program to stop.
    Interrupted(i32),
}

const STOP_SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Holds back the signals that ask a program to stop, and those about children, so that the leader takes them one by
/// one where it can act on them. Dropping it lets them through again. Meant for programs of one thread.
pub struct HeldSignals {
    held: libc::sigset_t,
    before: libc::sigset_t,
}

impl HeldSignals {
    pub fn hold() -> io::Result<HeldSignals> {
        let [first, second, third] = STOP_SIGNALS;
        let held = set_of(&[first, second, third, libc::SIGCHLD]);
        let mut before = set_of(&[]);
        // SAFETY: both sets are initialised and ours.
        match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &held, &mut before) } {
            0 => Ok(HeldSignals { held, before }),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Sleeps until the next signal.
    pub fn next(&self) -> io::Result<Event> {
        loop {
            if let Some(event) = self.next_within(None)? {
                return Ok(event);
            }
        }
    }

    /// Sleeps until the next signal, or for so long; `None` means without limit. May return `None` early.
    pub fn next_within(&self, limit: Option<Nanos>) -> io::Result<Option<Event>> {
        // SAFETY: set and time are initialised; no information about the signal is asked for.
        let signal = unsafe {
            match limit.map(|limit| libc::timespec {
                tv_sec: (limit / 1_000_000_000) as libc::time_t,
                tv_nsec: (limit % 1_000_000_000) as libc::c_long,
            }) {
                Some(limit) => libc::sigtimedwait(&self.held, std::ptr::null_mut(), &limit),
                None => libc::sigwaitinfo(&self.held, std::ptr::null_mut()),
            }
        };
        match signal {
            libc::SIGCHLD => Ok(Some(Event::ChildEnded)),
            signal if signal > 0 => Ok(Some(Event::Interrupted(signal))),
            _ => match io::Error::last_os_error() {
                // The time is over, or somebody looked at this process from outside (a debugger).
                error if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
                error => Err(error),
            },
        }
    }

    /// Takes a signal that asks to stop, if one has come already.
    pub fn take_interruption(&self) -> Option<i32> {
        let no_time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: set and time are initialised; no information about the signal is asked for.
        let signal = unsafe { libc::sigtimedwait(&set_of(&STOP_SIGNALS), std::ptr::null_mut(), &no_time) };
        (signal > 0).then_some(signal)
    }

    /// The command's process gets the signals as they were before they were held.
    pub fn release_in(&self, command: &mut Command) {
        let before = self.before;
        // SAFETY: between fork and exec only pthread_sigmask is called, which is async-signal-safe.
        unsafe { command.pre_exec(move || restore(&before)) };
    }

    /// As [`HeldSignals::release_in`]; moreover the kernel kills the command's process when this one dies.
    pub fn release_in_worker(&self, command: &mut Command) {
        let before = self.before;
        let leader = std::process::id();
        let prepare = move || {
            // SAFETY: plain system calls on numbers.
            unsafe {
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                    return Err(io::Error::last_os_error());
                }
                // The leader may have died before the line above.
                if libc::getppid() as u32 != leader {
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
            }
            restore(&before)
        };
        // SAFETY: between fork and exec only async-signal-safe calls are made, and nothing is allocated.
        unsafe { command.pre_exec(prepare) };
    }
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        // A failure is impossible with a set that the kernel gave us.
        let restored = restore(&self.before);
        assert!(restored.is_ok());
    }
}

fn set_of(signals: &[i32]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the whole set and cannot fail on memory that is ours.
    let mut set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    };
    for signal in signals {
        // SAFETY: the set is initialised and the signal number is valid.
        unsafe { libc::sigaddset(&mut set, *signal) };
    }
    set
}

fn restore(before: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: the set is initialised; the old one is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Nanoseconds since the epoch, for programs that lead workers and have no loop.
pub fn wall_clock() -> i64 {
    crate::system::wall_clock()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a leader learns of the end of a child and of a request to stop, and children are not born deaf. Method: a
    /// child that ends by itself; a child that kills itself with a held signal (it must die of it); a signal to this
    /// thread.
    #[test]
    fn events_arrive_one_by_one() {
        let held = HeldSignals::hold().unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "kill -TERM $$; exit 0"]);
        held.release_in_worker(&mut command);
        // Other tests of this program have children too, so their ends may be seen here or be taken by them: poll the
        // child.
        let mut child = command.spawn().unwrap();
        let status = child.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGTERM));

        assert_eq!(held.take_interruption(), None);
        // SAFETY: a signal to the calling thread, which holds it back.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGHUP) };
        assert_eq!(held.take_interruption(), Some(libc::SIGHUP));
        assert_eq!(held.take_interruption(), None);
        // SAFETY: as above.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGTERM) };
        let event = loop {
            match held.next().unwrap() {
                Event::ChildEnded => continue,
                event => break event,
            }
        };
        assert_eq!(event, Event::Interrupted(libc::SIGTERM));
        // Whatever ends of other tests come, the time is over at some point.
        while held.next_within(Some(1_000_000)).unwrap().is_some() {}
    }
}
