//! Requests about the bytes of chunks.

pub mod allocate;
pub mod append;
pub mod copy;
pub mod holders;
pub mod read_write;
pub mod registered_buffers;
pub mod seek;
pub mod space;
