
pub mod store;
