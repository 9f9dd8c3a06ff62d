//! What a server knows beside chunks: entries of the journal, the tables that they make, checkpoints of these, and what
//! has to survive power loss before it is said.

pub mod checkpoint;
pub mod durability;
pub mod records;
pub mod tables;
pub mod watches;

pub use records::Record;

use crate::store::{Findings, StoreError};
use reactor::Storage;

/// See [`crate::store::salvage`].
pub async fn salvage(storage: &dyn Storage, mend: bool) -> Result<Findings, StoreError> {
    crate::store::salvage(storage, mend, &|kind, body| Record::decode(kind, body).is_ok()).await
}
