//! Servers as a cluster sees them: a few of them in a simulated world, spoken to by bare channels.

mod backing;
mod changes;
mod check;
mod compare;
mod conflicts;
mod data;
mod directories;
mod eviction;
mod exactly_once;
mod extended;
mod flushing;
mod links;
mod listings;
mod lists;
mod lost_replies;
mod namespace;
mod open_files;
mod power;
mod read_leases;
mod recovery;
mod reports;
mod room;
mod salvage;
mod shares;
mod sizes;
mod support;
