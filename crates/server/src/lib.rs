//! One server of a cluster: its share of names, inodes and chunks, over the memory store.
//!
//! A request travels `service` (exactly once, admission) -> `handlers` (one file a subject) -> the tables (`names`,
//! `inodes`, `sessions`, `intents`) and the `store`. Handlers that need nothing from others run at once, without a task.

pub mod options;
pub mod server;
pub mod store;

pub use options::{ServerOptions, StartError};
pub use server::{Audit, Server};
