//! One server of a cluster: its share of names, inodes and chunks, over the memory store.
//!
//! A request travels `service` (exactly once, admission) -> `handlers` (one file a subject) -> the tables (`names`,
//! `inodes`, `sessions`, `intents`) and the `store`. Handlers that need nothing from others run at once, without a
//! task.

mod announce;
mod audit;
mod checkpoint;
mod contact;
mod coordination;
mod core;
mod delegations;
mod directories;
mod durability;
mod exposition;
mod extended;
mod failure;
mod file_locks;
mod forgetting;
mod glimpse;
mod handlers;
pub mod inodes;
pub mod intents;
mod leaf;
mod locks;
mod metrics;
pub mod names;
pub mod open_files;
mod options;
mod patience;
mod peers;
mod prefault;
mod prepared;
mod publisher;
mod read_leases;
pub mod records;
mod report;
mod rights;
pub mod server;
mod service;
pub mod sessions;
mod slab;
pub mod statistics;
pub mod store;
mod submission;
mod tables;
mod tree;
mod waiting;
mod watches;

pub use audit::{Audit, check_links};
pub use options::{Bounds, ReadLeasing, ServerOptions, StartError, Transport};
pub use server::Server;
