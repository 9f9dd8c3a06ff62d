//! What a server knows beside chunks: entries of the journal, the tables that they make, checkpoints of these, and what
//! has to survive power loss before it is said.

pub mod checkpoint;
pub mod durability;
pub mod records;
pub mod tables;
pub mod watches;

pub use records::Record;
