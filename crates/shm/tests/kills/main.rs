//! Goal: whatever process is killed, and wherever it is just then, nobody takes a torn cell for a whole one, what was
//! submitted is taken up exactly once and nothing else is, and what is held is kept.
//!
//! Method: real processes over memory files, one of which is killed again and again after it has got a random part of
//! its work done, and begins anew. Nobody sleeps: who waits looks at counts that the others raise. Children are forked,
//! so this has no threads and is no test of the harness's; `cargo test -p shm --test kills -- ROUNDS` takes longer.

#![cfg(not(loom))]

mod cells;
mod hazards;
mod submissions;

use shm::mapping::{Layout, Mapped, Mapping, Protection};
use shm::sync::{AtomicU64, Ordering};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// Kills of each kind in the quick form.
const ROUND_COUNT: u64 = 60;
/// Times as many that there are at most until what a test is about has come about.
const MOST_ROUNDS: u64 = 100;
/// Most of its work that a process gets done before it is killed, and turns of an empty loop until then.
const WORK_MAX: u64 = 1_000;
const MOMENTS_MAX: u64 = 200;

fn main() {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(ROUND_COUNT);
    cells::writers_are_killed(rounds);
    submissions::clients_are_killed(rounds);
    submissions::servers_are_killed(rounds);
    hazards::holders_are_killed(rounds);
    println!("{rounds} kills of each kind");
}

/// A memory file of zeros.
fn memory_file(size: u64) -> OwnedFd {
    // SAFETY: a new descriptor, owned from here on; the name is a constant.
    unsafe {
        let file = OwnedFd::from_raw_fd(libc::memfd_create(c"kills".as_ptr(), libc::MFD_CLOEXEC));
        assert_eq!(libc::ftruncate(file.as_raw_fd(), size as libc::off_t), 0);
        file
    }
}

/// All of a memory file; each process maps it for itself.
fn map(file: &OwnedFd) -> Rc<Mapping> {
    Rc::new(Mapping::of_whole(file, Protection::ReadAndWrite).expect("mapped"))
}

/// A struct that begins at a byte of a memory file.
fn shared<T: Layout>(mapping: &Rc<Mapping>, offset: usize) -> Mapped<T> {
    assert!(offset + size_of::<T>() <= mapping.size() as usize);
    // SAFETY: just checked; every process touches it as this struct.
    unsafe { Mapped::at(mapping.base().wrapping_add(offset), mapping.clone()) }
}

/// What the processes of a test tell each other about it; what which one is for is the test's.
#[repr(C)]
struct Notes([AtomicU64; 64]);

// SAFETY: atomics alone.
unsafe impl Layout for Notes {}

impl Notes {
    fn get(&self, index: usize) -> u64 {
        self.0[index].load(Ordering::SeqCst)
    }

    fn set(&self, index: usize, value: u64) {
        self.0[index].store(value, Ordering::SeqCst);
    }

    fn add(&self, index: usize) -> u64 {
        self.0[index].fetch_add(1, Ordering::SeqCst) + 1
    }
}

/// Another process, which is killed at the latest when this is dropped.
struct Child(libc::pid_t);

/// Begins a process that does something for ever, or until it is told. It fails if that panics.
fn fork(work: impl FnOnce()) -> Child {
    // SAFETY: this process has one thread, so the child may do anything.
    match unsafe { libc::fork() } {
        0 => {
            let result = catch_unwind(AssertUnwindSafe(work));
            std::process::exit(result.is_err().into());
        }
        child => {
            assert!(child > 0, "a process can be forked");
            Child(child)
        }
    }
}

impl Child {
    /// Kills it, some moments from now, so that it is not always at the same place. Panics if it has failed before.
    fn kill_after(self, moments: u64) {
        (0..moments).for_each(|_| std::hint::spin_loop());
        self.kill();
    }

    /// Kills it. Panics if it has failed before.
    fn kill(self) {
        // SAFETY: no pointers; the child was not waited for, so the number is still its own.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        let status = self.wait();
        assert!(libc::WIFSIGNALED(status), "a process has failed: {status:#x}");
    }

    /// Waits for its end, which it comes to by itself. Panics if it has failed.
    fn join(self) {
        let status = self.wait();
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "a process has failed: {status:#x}");
    }

    fn wait(self) -> libc::c_int {
        let mut status = 0;
        // SAFETY: writes a local.
        let waited = unsafe { libc::waitpid(self.0, &mut status, 0) };
        assert_eq!(waited, self.0);
        std::mem::forget(self);
        status
    }

    /// Whether it is still at work.
    fn is_there(&self) -> bool {
        // SAFETY: looks without taking the status away.
        unsafe {
            let mut info = std::mem::zeroed::<libc::siginfo_t>();
            let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            libc::waitid(libc::P_PID, self.0 as libc::id_t, &mut info, flags) == 0 && info.si_pid() == 0
        }
    }

    /// Lets it work until a count has come to a number, while we do something else.
    fn runs_until(&self, notes: &Notes, count: usize, goal: u64, mut meanwhile: impl FnMut()) {
        while notes.get(count) < goal && self.is_there() {
            meanwhile();
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: as in `kill` and `wait`.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// Numbers without order (xorshift64: Marsaglia, "Xorshift RNGs", Journal of Statistical Software 8(14), 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
