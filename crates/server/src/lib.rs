//! One server of a cluster: its share of names, inodes and chunks, over the memory store.
//!
//! A request travels `sessions` (exactly once, admission) -> `handlers` (one file a subject) -> what the server knows
//! (`names`, `tree`, `files`, `leases`, `coordination`), as the `journal` has it, and the `store` of chunks. Handlers
//! that need nothing from others run at once, without a task. What clients of this machine may see without asking is
//! in `publish`; what all of them share is `core`; how a server starts, stops and reports is `process`.

mod backing;
pub mod coordination;
mod core;
pub mod files;
mod handlers;
pub mod journal;
mod leases;
pub mod names;
pub mod process;
mod publish;
pub mod sessions;
pub mod store;
mod tree;

pub use backing::{BackingFault, HiddenName, conflict as backing_conflict};
pub use process::Server;
pub use process::audit::{Audit, check_links};
pub use process::options::{
    Bounds, ConflictPolicy, DeviceStore, EntryKeeping, FlushPolicy, Flushing, ReadLeasing, ServerOptions, StartError,
    Transport,
};
pub use sessions::throttle::HOLD_NS_MAX;
pub use store::JournalGrowth;
