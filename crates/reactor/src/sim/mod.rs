//! The simulated twin: whole clusters on simulated time, network and disks, replayed from one seed.
//!
//! A [`World`] has nodes; each is a [`crate::Reactor`] over a driver whose clock, sockets and storage are the world's.
//! The world turns one node at a time, chosen at random, and advances virtual time when nobody has anything to do.
//! Nothing depends on a real clock, an address or the order of a hash table, so the same seed gives the same run, byte
//! for byte; [`World::trace_hash`] folds everything that happened, for tests to compare.

mod backing;
mod backing_tree;
mod device;
mod disk;
mod driver;
mod model;
mod moments;
mod network;
mod outsider;
mod socket;
mod world;

pub use backing::{BACKING_ROOT, BackingCosts, BackingFaults};
pub use device::DeviceFaults;
pub use model::{CostModel, ProcessorCosts};
pub use outsider::Outsider;
pub use world::{CrashKind, NodeId, World};
