//! What a client does by itself in memory that it shares with a server of its machine, without a message or with one
//! that brings no bytes (docs/ways.md).

pub(crate) mod attribute_cache;
pub(crate) mod local_write;
pub(crate) mod registered_buffers;
pub(crate) mod short_circuit;
pub(crate) mod snapshot;
pub(crate) mod staging_ring;
