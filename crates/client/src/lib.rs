//! The client: files, directories, striping and sessions over the message layer, with an async and a blocking face.
//!
//! The life of a write, top to bottom: [`FileSystem::write_at`] in `bytes/read_write.rs` cuts the bytes by the file's
//! layout (`bytes/stripe.rs`) and joins the pieces of one server. Where that is on this machine, they go through memory
//! that both share (`shared_memory/`); else the requests of all servers are handed to their channels at once
//! (`servers/`). Names go through `names/resolve.rs`, which keeps the directories of `names/directory_cache.rs`, to the
//! operations in `names/`.
//!
//! [`FileSystem`] is single-threaded and belongs to one reactor; [`Client`] lets all threads of a process share one.
//! [`descriptors`] is what the C interfaces have in common.

mod blocking;
mod bytes;
pub mod check;
mod compare;
pub mod descriptors;
mod error;
mod filesystem;
mod flush;
pub mod mounts;
mod names;
mod open_files;
mod options;
mod servers;
mod shared_memory;
mod started;

pub use blocking::Client;
pub use bytes::ranges::Allocation;
pub use bytes::stage::{CacheState, ListedFile, STAGE_FILES_MAX};
pub use bytes::stripe::FileRange;
pub use compare::Comparison;
pub use error::{Error, Result, status_of_system};
pub use filesystem::{FileSystem, Space, total};
pub use flush::FlushReport;
pub use names::directory::{DirectoryEntry, DirectoryStream};
pub use names::inodes::{AttributeChanges, Timestamp};
pub use names::listing::{DirectoryListing, POSITION_RESERVED};
pub use names::search::{FoundName, FoundPage, Search, SearchStream};
pub use open_files::contact::Contact;
pub use open_files::file::{File, OpenHow};
pub use open_files::kept_entries::EntryKeeper;
pub use open_files::locks::{Locker, lock_range};
pub use options::{
    Bounds, CLUSTER_FILE_NAME, OptionRow, Options, TABLE, default_run_directory, load_cluster, own_cluster,
    take_variables,
};
pub use servers::Traffic;
pub use servers::relaying::Relaying;
pub use started::StartedCall;
pub use wire::credentials::{Credentials, Groups};
pub use wire::layout::LayoutPolicy;
pub use wire::messages::extended_flags::{CREATE as EXTENDED_CREATE, REPLACE as EXTENDED_REPLACE};
pub use wire::messages::rename_flags::{EXCHANGE as RENAME_EXCHANGE, NO_REPLACE as RENAME_NO_REPLACE};
pub use wire::messages::{HeldLock, LockRange, OwnerKind, StatisticsFormat};
pub use wire::search as tests;
pub use wire::{Attributes, Cluster, FileId, Kind, Layout, Status};
