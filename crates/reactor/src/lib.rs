//! The loop that sees everything: tasks and their classes, timers, sockets, mapped storage, and the simulated twin of
//! all of these.
//!
//! A [`Reactor`] runs single-threaded futures over a driver: io_uring (servers), epoll (clients inside foreign
//! processes) or the simulator. Everything above the driver is the same code for all three.

mod attribute_cache;
pub mod backing;
pub mod barrier;
mod buffered;
mod busy_poll;
pub mod call_clock;
pub mod channel;
mod cores;
pub mod device;
pub mod driver;
mod epoll;
mod executor;
pub mod extended;
mod fork_lock;
mod forks;
mod handshake;
mod hazard_pointers;
pub mod interfaces;
mod link;
mod local;
pub mod log;
mod mapping_lock;
mod operations;
pub mod pages;
pub mod pipes;
mod prefetch;
pub mod process;
pub mod region;
mod relay;
pub mod schedule;
mod scratch;
mod sealing;
pub mod service;
pub mod shared;
mod short_circuit;
pub mod sim;
mod socket_users;
mod storage;
pub mod stream;
mod submission;
mod system;
pub mod task;
pub mod threads;
mod timers;
pub mod trust;
mod uring;
mod waiting;
pub mod workers;

pub use attribute_cache::{AttributeCache, CacheFault, CellPage};
pub use buffered::{BufferStatistics, BufferedStorage, PagePin, PartialRegion};
pub use channel::{Call, Channel, ChannelOptions, ChannelStatistics, Failure, Reply};
pub use driver::{Driver, DriverKind};
pub use executor::{Class, Gate, JoinHandle, LoopStatistics, Reactor, Sleep, YieldNow, until};
pub use fork_lock::ForkLock;
pub use forks::fork_generation;
pub use hazard_pointers::{HazardPointer, HazardPointers};
pub use link::{BodyPiece, ReplyBody};
pub use local::{MEMORY_PER_CONNECTION as LOCAL_MEMORY_PER_CONNECTION, local_name};
pub use mapping_lock::RegisteredPages;
pub use operations::{OperationDelays, TimeSum};
pub use prefetch::prefetch;
pub use region::{LocalFuture, MappingLock, OpenMode, PageNeed, PageRoom, Region, Span, Storage};
pub use relay::Relay;
pub use scratch::scratch;
pub use service::{
    Borrowing, Disconnected, Hazards, Incoming, Peer, ServeOptions, ServeStatistics, ServerHandle, Service, serve,
};
pub use shared::Shared;
pub use shm::cells::{CELL_SIZE_MIN, CellPlace};
pub use shm::client_counters::{COUNTER_COUNT, ClientCounter, ClientCounters};
pub use shm::copying::bytes_copied;
pub use shm::hazard_pointers::HAZARD_COUNT;
pub use shm::mapping::Mapped;
pub use shm::stamps::STAMPS_SIZE;
pub use shm::submission::{
    INTENT_LOCK_COUNT, LeftoverFault, QUEUE_COUNT, SLOT_COUNT, SUBMISSION_LAYOUT, SUBMISSION_QUEUES_SIZE,
    SubmissionWords, Submitted,
};
pub use short_circuit::{StampedRegion, StoreMapping, Validation};
pub use stream::{Doorbell, Listener, Parties, Stream, Way};
pub use submission::{PendingSubmission, SubmissionQueues, SubmissionsLeft, submissions_left};
pub use system::tune as tune_connection;

/// Nanoseconds: a duration, or a point of monotonic time.
pub type Nanos = u64;
