//! A cluster as part of the tree: `tabane mount` (docs/mount.md).
//!
//! The life of a request: a thread takes it from its port (`port.rs`: `ring.rs`, or `device.rs`), in the words of
//! `protocol.rs`, and hands it to the handler of its operation (`serve.rs`; `names.rs`, `attributes.rs`,
//! `open_file.rs`, `listing.rs`, `extended.rs`, `locks.rs`), a piece of work on the client on behalf of the caller
//! (`caller.rs`). What has to wait stays under way while the thread takes others; who waits for a lock can be
//! interrupted (`interrupts.rs`). What others replace meanwhile is held for a while (`held.rs`), and let go by
//! `upkeep.rs`. `mount.rs` puts the file system into the tree and takes it out.
//!
//! A door: it keeps what the kernel has open, and nothing of names, attributes or contents. For how long the kernel may
//! keep these, and how it is made to forget them, says `keeping.rs`.

mod attributes;
mod caller;
mod device;
mod errno;
mod extended;
mod failed;
mod handles;
mod held;
mod interrupts;
mod keeping;
mod listing;
mod locks;
mod mount;
mod names;
mod open_file;
mod port;
mod protocol;
mod ring;
mod seen;
mod serve;
mod upkeep;

pub use device::TRANSFER_SIZE_MAX;
pub use mount::{IoUring, Mount, MountOptions, Unmounter, detach, unmount};
