//! Inodes, and what belongs to one: who has it open, its rights, extended attributes and locks, and its size, which the
//! servers with its chunks know parts of.

pub mod announcement;
pub mod extended_attributes;
pub mod file_locks;
pub mod glimpse;
pub mod inodes;
pub mod late_errors;
pub mod open_files;
pub mod rights;
