//! Whole clusters on simulated disk, network and time, replayed from a seed, with a model that tells right from wrong.

pub mod check;
pub mod history;
pub mod linearize;
pub mod pattern;
pub mod random;
