//! The schedulers that are compared.

use crate::job::{Job, Tally};
use crate::{aio, by_hand, naive, ours, pool};
#[cfg(feature = "foreign")]
use crate::{glommio_seat, monoio_seat, tokio_seat};
use reactor::DriverKind;

/// How one of them ended: whether it gave up as its memory was full.
pub type Ended = Result<bool, String>;

/// One scheduler.
pub struct Scheduler {
    pub name: &'static str,
    pub about: &'static str,
    pub run: fn(&Job, &mut Tally) -> Ended,
}

const OWN: &[Scheduler] = &[
    Scheduler {
        name: "ours",
        about: "the reactor of this project over io_uring, one task, its device seam",
        run: |job, tally| ours::run(job, tally, DriverKind::IoUring).map(|()| false),
    },
    Scheduler {
        name: "ours-epoll",
        about: "the same over epoll and kernel AIO",
        run: |job, tally| ours::run(job, tally, DriverKind::Epoll).map(|()| false),
    },
    Scheduler {
        name: "naive",
        about: "a task a packet, a queue that is run until it is empty, no bound for packets",
        run: naive::run,
    },
    Scheduler {
        name: "loop",
        about: "states by hand over io_uring, no futures: the yardstick",
        run: |job, tally| by_hand::run(job, tally).map(|()| false),
    },
    Scheduler {
        name: "pool",
        about: "one thread receives, as many as there are writes under way write, as ABT-IO does it",
        run: |job, tally| pool::run(job, tally).map(|()| false),
    },
    Scheduler {
        name: "aio",
        about: "states by hand over epoll and kernel AIO",
        run: |job, tally| aio::run(job, tally).map(|()| false),
    },
];

#[cfg(not(feature = "foreign"))]
const FOREIGN: &[Scheduler] = &[];

#[cfg(feature = "foreign")]
const FOREIGN: &[Scheduler] = &[
    Scheduler {
        name: "tokio-workers",
        about: "tokio: two workers, which write by calls that wait",
        run: |job, tally| tokio_seat::run(job, tally, tokio_seat::Writers::Workers).map(|()| false),
    },
    Scheduler {
        name: "tokio-blocking",
        about: "tokio: writes in its blocking threads",
        run: |job, tally| tokio_seat::run(job, tally, tokio_seat::Writers::Blocking).map(|()| false),
    },
    Scheduler {
        name: "glommio",
        about: "glommio as it comes",
        run: |job, tally| glommio_seat::run(job, tally, false).map(|()| false),
    },
    Scheduler {
        name: "glommio-best",
        about: "glommio that looks at its rings every 100 us, and spins before it sleeps",
        run: |job, tally| glommio_seat::run(job, tally, true).map(|()| false),
    },
    Scheduler {
        name: "monoio",
        about: "monoio over io_uring",
        run: |job, tally| monoio_seat::run(job, tally).map(|()| false),
    },
];

/// All that were built.
pub fn all() -> impl Iterator<Item = &'static Scheduler> {
    OWN.iter().chain(FOREIGN)
}

/// Errors: words that name those there are.
pub fn find(name: &str) -> Result<&'static Scheduler, String> {
    all().find(|scheduler| scheduler.name == name).ok_or_else(|| {
        let names: Vec<&str> = all().map(|scheduler| scheduler.name).collect();
        let hint = if FOREIGN.is_empty() { "; those of others take --features foreign when it is built" } else { "" };
        format!("no scheduler {name}: there are {}{hint}", names.join(", "))
    })
}
