//! What holds for a while: delegations of names to other servers and their recall, the names that this server has as a
//! contact, and what clients were told of the contents of small files.

pub mod contact;
pub mod delegations;
pub mod read_leases;
