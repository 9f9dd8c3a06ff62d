//! Whole clusters on simulated disk, network and time, replayed from a seed, with a model that tells right from wrong.
//!
//! [`run::run_seed`] is the whole of it: [`profile`] says what the seed is about, [`harness`] builds the cluster,
//! [`workload`] lets clients work on it, [`nemesis`] breaks things, [`history`] keeps what the clients were told, and
//! [`check`] judges that history against the model. [`behind`] is what a cluster with a backing tree begins with, and
//! [`quarrels`] what some of them end with.
//! [`scale`] is for another question: clusters of up to a thousand servers, on which nothing goes wrong and everything
//! has its cost.

pub mod actor;
mod actor_at;
pub mod behind;
pub mod carried;
pub mod check;
pub mod harness;
pub mod history;
pub mod kernel;
pub mod linearize;
pub mod losses;
pub mod nemesis;
pub mod options;
pub mod pattern;
pub mod profile;
pub mod quarrels;
pub mod random;
pub mod run;
pub mod scale;
pub mod workload;
pub mod workload_extended;
pub mod workload_locks;
