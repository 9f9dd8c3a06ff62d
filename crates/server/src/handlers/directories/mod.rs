//! Requests about directories and the tree of them: their attributes and rights, their removal, and the order of
//! changes of the tree.

pub mod attributes;
pub mod rights;
pub mod rmdir;
pub mod sequencer;
pub mod tree;
