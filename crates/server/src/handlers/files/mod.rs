//! Requests about files as a whole: attributes, size, locks, closing and syncing.

pub mod attributes;
pub mod close;
pub mod extended_attributes;
pub mod file_locks;
pub mod rights;
pub mod synchronise;
pub mod truncate;
