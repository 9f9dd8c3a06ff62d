//! What clients of this machine see and do without a message: the attribute cache, and what they submit.

pub mod attribute_cache;
pub mod blocks;
mod changes;
pub mod submission;
mod table;
