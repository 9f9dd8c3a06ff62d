//! What a fork means: a generation number by which the child notices, and the descriptors that the child must not keep
//! open.
//!
//! A child leaks what it inherited from `Shared`, for another thread may have held the lock at the fork. Its sockets,
//! though, are closed in the child at once: otherwise the servers would not see that the parent has gone until the
//! child has gone too; and so is what the parent was lent, which would stay lent.

use crate::fork_lock::{after_fork, before_fork};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

static FORKS: AtomicU64 = AtomicU64::new(0);

/// Most descriptors that are remembered; a child keeps any beyond this open until it ends or executes another program.
const SOCKETS_MAX: usize = 4096;

/// A descriptor by number and inode, so that a number which was closed behind our back and reused is left alone.
struct Tracked {
    descriptor: AtomicI32,
    inode: AtomicU64,
}

const FREE: i32 = -1;
const BEING_FILLED: i32 = -2;

static SOCKETS: [Tracked; SOCKETS_MAX] =
    [const { Tracked { descriptor: AtomicI32::new(FREE), inode: AtomicU64::new(0) } }; SOCKETS_MAX];

/// How many forks lie between the process that asked first and this one. What belongs to one process (sessions,
/// sockets) remembers the number and is made anew where it differs.
pub fn fork_generation() -> u64 {
    static REGISTER: Once = Once::new();
    if !REGISTER.is_completed() {
        REGISTER.call_once(|| {
            // SAFETY: the child's handler does only what is allowed in a forked child: atomics, `fstat` and `close`.
            // The others may do anything.
            let failed = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
            assert!(failed == 0, "there is memory for fork handlers");
        });
    }
    FORKS.load(Ordering::Relaxed)
}

extern "C" fn before() {
    before_fork();
}

extern "C" fn in_parent() {
    after_fork();
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::SeqCst);
    for socket in &SOCKETS {
        let descriptor = socket.descriptor.swap(FREE, Ordering::SeqCst);
        if descriptor >= 0 && inode_of(descriptor) == Some(socket.inode.load(Ordering::SeqCst)) {
            // SAFETY: it is the inherited one (its inode says so), which nobody in this process uses or closes: the
            // instance that owns it is leaked.
            unsafe { libc::close(descriptor) };
        }
    }
    after_fork();
}

/// The inode of a descriptor, if it is open.
fn inode_of(descriptor: libc::c_int) -> Option<u64> {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: writes the status, which is a valid value even where it stays zeroed.
    let status = unsafe {
        if libc::fstat(descriptor, status.as_mut_ptr()) != 0 {
            return None;
        }
        status.assume_init()
    };
    Some(status.st_ino)
}

/// Remembers a descriptor that forked children shall close.
pub(crate) fn track(descriptor: &OwnedFd) {
    let Some(inode) = inode_of(descriptor.as_raw_fd()) else { return };
    let free = SOCKETS.iter().find(|socket| {
        socket.descriptor.compare_exchange(FREE, BEING_FILLED, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    });
    if let Some(socket) = free {
        socket.inode.store(inode, Ordering::SeqCst);
        socket.descriptor.store(descriptor.as_raw_fd(), Ordering::SeqCst);
    }
}

/// Forgets a descriptor that is about to be closed.
pub(crate) fn untrack(descriptor: &OwnedFd) {
    let number = descriptor.as_raw_fd();
    for socket in &SOCKETS {
        if socket.descriptor.compare_exchange(number, FREE, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            return;
        }
    }
}
