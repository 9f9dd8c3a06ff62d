//! Requests about names: looking up, opening, making, removing, renaming and listing.

pub mod find;
pub mod listing;
pub mod lookup;
pub mod make;
pub mod open;
pub mod prepare;
pub mod rename;
pub mod temporary;
pub mod unlink;
