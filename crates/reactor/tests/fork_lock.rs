//! Locks that a fork leaves free in the child.

use reactor::ForkLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

static PAIR: ForkLock<(u64, u64)> = ForkLock::new(|| (0, 0));
static OTHER: ForkLock<u64> = ForkLock::new(|| 0);

/// Forks, has the child end with what `work` gives, and says whether that was true.
fn forked(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child takes locks of the kind that it is about, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: so that a child which waits for ever ends all the same.
        unsafe { libc::alarm(20) };
        let is_right = work();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status == 0
}

fn is_whole() -> bool {
    let mut pair = PAIR.write();
    *OTHER.write() += 1;
    pair.0 += 1;
    pair.0 == pair.1 + 1
}

/// Goal: a child finds every lock free and what it guards whole, at whatever moment its parent's threads were; forks of
/// several threads at once do not wait for one another for ever, nor does one within a lock, as a signal handler's is.
/// Method: threads change both halves of a pair all the time, one lock within the other, while two others fork.
#[test]
fn children_find_locks_free() {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let mut pair = PAIR.write();
                    pair.0 += 1;
                    *OTHER.write() = pair.0;
                    pair.1 += 1;
                }
            });
        }
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let pair = PAIR.read();
                assert_eq!(pair.0, pair.1);
            }
        });
        let forking = [(); 2].map(|()| scope.spawn(|| (0..200).all(|_| forked(is_whole))));
        let are_right = forking.map(|thread| thread.join().expect("no panic"));
        let within = {
            let mut pair = PAIR.write();
            pair.0 += 1;
            let is_right = forked(|| *OTHER.read() <= pair.0);
            pair.1 += 1;
            is_right
        };
        is_over.store(true, Ordering::Relaxed);
        assert_eq!((are_right, within), ([true; 2], true));
    });
    assert!(forked(|| forked(|| PAIR.read().0 == PAIR.read().1)));
}

/// Goal: a fork waits for a holder that gets no core for a while, as on a machine whose cores are lent elsewhere.
/// Method: a thread sleeps for longer than any turn of a scheduler while it holds a lock of its own.
#[test]
#[expect(clippy::disallowed_methods, reason = "the test is about a thread that sleeps")]
fn fork_waits_for_sleeping_holder() {
    static SLEPT_ON: ForkLock<bool> = ForkLock::new(|| true);
    let (sender, receiver) = std::sync::mpsc::channel();
    let holder = std::thread::spawn(move || {
        let mut is_whole = SLEPT_ON.write();
        *is_whole = false;
        sender.send(()).expect("the test waits for it");
        std::thread::sleep(Duration::from_secs(2));
        *is_whole = true;
    });
    receiver.recv().expect("the holder tells");
    assert!(forked(|| *SLEPT_ON.read()));
    holder.join().expect("no panic");
}
