//! The client: files, directories, striping and sessions over the message layer, with an async and a blocking face.
//!
//! The life of a write, top to bottom: [`FileSystem::write_at`] in `data.rs` cuts the bytes by the file's layout
//! (`stripe.rs`), joins the pieces of one server into one request, and hands the requests of all servers to their
//! channels at once (`servers.rs`). Names go through `resolve.rs`, which keeps the directory cache of `cache.rs`, to
//! the operations in `names.rs`.
//!
//! [`FileSystem`] is single-threaded and belongs to one reactor; [`Client`] lets all threads of a process share one.
//! [`descriptors`] is what the C interfaces have in common.

mod at;
mod attribute_cache;
mod blocking;
mod cache;
pub mod check;
mod contact;
mod data;
pub mod descriptors;
mod directory;
mod error;
mod extended;
mod file;
mod filesystem;
mod inodes;
mod join;
mod listing;
mod locks;
mod names;
mod nodes;
mod open_files;
mod options;
mod ranges;
mod read_leases;
mod registered_buffers;
mod relaying;
mod resolve;
mod rights;
mod search;
mod servers;
mod short_circuit;
mod snapshot;
mod space;
mod staging_ring;
mod stripe;
mod synchronise;
mod temporary;

pub use blocking::Client;
pub use contact::Contact;
pub use directory::{DirectoryEntry, DirectoryStream};
pub use error::{Error, Result};
pub use file::{File, OpenHow};
pub use filesystem::{FileSystem, total};
pub use inodes::{AttributeChanges, Timestamp};
pub use listing::{DirectoryListing, POSITION_RESERVED};
pub use locks::{Locker, lock_range};
pub use options::{CLUSTER_FILE_NAME, OptionRow, Options, TABLE, load_cluster, take_variables};
pub use ranges::Allocation;
pub use relaying::Relaying;
pub use search::{FoundName, FoundPage, Search, SearchStream};
pub use servers::Traffic;
pub use wire::credentials::{Credentials, Groups};
pub use wire::messages::extended_flags::{CREATE as EXTENDED_CREATE, REPLACE as EXTENDED_REPLACE};
pub use wire::messages::rename_flags::{EXCHANGE as RENAME_EXCHANGE, NO_REPLACE as RENAME_NO_REPLACE};
pub use wire::messages::{HeldLock, LockRange, OwnerKind};
pub use wire::search as tests;
pub use wire::{Attributes, Cluster, FileId, Kind, Status};
