//! Bytes of files: how calls become requests of all servers that hold a part, and ways to change sizes and space.

pub(crate) mod late_errors;
pub(crate) mod permits;
pub(crate) mod ranges;
pub(crate) mod read_write;
pub(crate) mod space;
pub(crate) mod stage;
pub(crate) mod stripe;
pub(crate) mod synchronise;
