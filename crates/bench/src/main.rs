//! `tabane-bench`: the workloads of the field, one JSON line a result. See docs/measuring.md for how figures are computed.
//!
//! The leader ([`compare`]) starts a group of processes for each run ([`processes`]); each of them goes through the passes of
//! one workload on one [`target`]; [`report`] tells what came out.

mod cluster;
mod compare;
mod group;
mod options;
mod processes;
mod report;
mod target;
mod target_posix;
mod target_tabane;
mod workload_exchange;
mod workload_find;
mod workload_ior;
mod workload_mdtest;
mod workload_names;
mod workload_ping;

use options::Request;
use std::process::ExitCode;

const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    let options = match options::read() {
        Ok(Request::Run(options)) => options,
        Ok(Request::Help(text)) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            eprintln!("tabane-bench: {message}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    ExitCode::from(match &options.worker {
        Some(worker) => processes::work(&options, worker),
        None => compare::lead(&options),
    })
}
