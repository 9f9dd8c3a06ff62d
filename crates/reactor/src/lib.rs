//! The loop that sees everything: tasks and their classes, timers, sockets, mapped storage, and the simulated twin of all of these.
//!
//! A [`Reactor`] runs single-threaded futures over a driver: io_uring (servers), epoll (clients inside foreign
//! processes) or the simulator ([`sim`]). Everything above the driver is the same code for all three. [`Shared`] lets all
//! threads of a process use one reactor without a thread of its own.

pub mod region;

pub use region::{LocalFuture, OpenMode, Region, Span, Storage};
