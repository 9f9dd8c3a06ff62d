//! Clusters over several hosts: docs/hosts.md says what is promised.
//!
//! `list.rs` reads which hosts, `launcher.rs` how a command gets there, `record.rs` keeps both. `up.rs`, `down.rs`,
//! `restart.rs` and `mounts.rs` give orders (`orders.rs`) through `party.rs`; `agent.rs` follows them on each host,
//! with `address.rs`.

mod address;
mod agent;
mod down;
mod launcher;
mod list;
mod mounts;
mod orders;
mod party;
mod record;
mod restart;
mod up;

pub use agent::run as run_agent;
pub use down::{Ending, take_down};
pub use mounts::all as all_mounts;
pub use record::{HOSTS_FILE, HostsRecord};
pub use restart::run as run_restart;
pub use up::{default_run_directory, run as up, run_for_a_while as up_for_a_while};

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome};
use party::{Answers, Party, Reach};
use reactor::{Nanos, Reactor};
use std::path::Path;

/// Orders for those who can't have them by standard input.
pub const ORDERS_FILE: &str = "orders";
const NANOS_PER_MS: Nanos = 1_000_000;
/// How long a host may take beyond what its servers may.
const MARGIN: Nanos = 10_000 * NANOS_PER_MS;
/// How long other hosts' servers may take to answer a host.
const MEET_TIMEOUT: Nanos = 15_000 * NANOS_PER_MS;
/// How long a host may take to take back what it made: servers get SIGTERM, then SIGKILL.
const UNDO_TIMEOUT: Nanos = 20_000 * NANOS_PER_MS;

/// How long hosts may take to answer at all.
fn launch_timeout(arguments: &Arguments) -> Nanos {
    arguments.number("launch-timeout-ms") * NANOS_PER_MS
}

/// The programs of these hosts of a cluster, called.
fn call<'a>(reactor: &'a Reactor, record: &HostsRecord, run_directory: &Path, numbers: &[usize]) -> Outcome<Party<'a>> {
    let reach = Reach { launcher: &record.launcher, binary: &record.binary, orders: run_directory.join(ORDERS_FILE) };
    let names = record.hosts.iter().map(|host| host.name.clone()).collect();
    Party::call(reactor, &reach, names, numbers)
}

/// The hosts that failed, one a line.
fn failures(party: &Party<'_>, answers: &Answers) -> Vec<String> {
    let failed = answers.iter().filter_map(|(number, answer)| Some((number, answer.as_ref().err()?)));
    failed.map(|(number, words)| format!("host {}: {words}", party.name(*number))).collect()
}

/// Refuses to work from a copy of the run directory.
fn check_origin(record: &HostsRecord, run_directory: &Path) -> Outcome {
    if record.is_origin {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "{} is a copy; the cluster was started on host {}: do this there",
        run_directory.display(),
        record.origin
    )))
}
