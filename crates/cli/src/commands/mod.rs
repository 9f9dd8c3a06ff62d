//! The table of commands, and the small commands themselves.

mod check;
mod checksum;
mod clean;
pub mod conditions;
mod directories;
mod extended;
mod find;
mod flock;
pub mod flush;
mod list;
mod logs;
mod ranges;
mod remove;
mod rights;
mod settings;
mod space;
pub mod stage;
mod stat;
mod stream;
mod synchronise;
mod table;
mod usage;

pub use table::{Command, OperandKind, all, find};
