//! Everything that travels between Tabane's processes, and the pure rules about it: headers, messages, status
//! codes, file ids, placement and limits. Nothing here does I/O, so every rule can be tested and fuzzed alone.

pub mod attribute_cache;
pub mod attributes;
pub mod cluster;
pub mod codec;
pub mod credentials;
pub mod fuzz;
pub mod glob;
pub mod handshake;
pub mod header;
mod id_hash;
pub mod identity;
pub mod label;
pub mod layout;
pub mod limits;
pub mod messages;
mod messages_backing;
mod messages_check;
mod messages_contact;
mod messages_data;
mod messages_directories;
mod messages_entries;
mod messages_extended;
mod messages_locks;
mod messages_open;
mod messages_rights;
mod messages_space;
mod messages_synchronise;
mod messages_tree;
pub mod names;
pub mod operation;
pub mod relay;
pub mod search;
pub mod status;
pub mod submission;

pub use attributes::{Attributes, Kind};
pub use cluster::{Cluster, Placement, Protection, ServerAddress};
pub use codec::{Decode, Decoder, Encode, Malformed};
pub use header::{FrameKind, Header};
pub use id_hash::{FastMap, IdHasher, hash_id};
pub use identity::{FileId, Slot};
pub use layout::{Layout, LayoutPolicy, LayoutWish};
pub use names::Name;
pub use operation::Operation;
pub use status::Status;

/// Version of the protocol. Peers of different versions refuse each other.
pub const PROTOCOL_VERSION: u32 = 27;
