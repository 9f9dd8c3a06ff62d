//! `tabane-bench`: the workloads of the field, one JSON line a result. See docs/measuring.md for how figures are
//! computed.
//!
//! The leader ([`compare`]) starts a group of processes for each run ([`processes`]); each of them goes through the
//! passes of one workload on one [`target`]; [`report`] tells what came out. Experiments ([`experiment`]) go step by
//! step ([`step`]) over an engine ([`engine`]) that is real or simulated, and end as a picture ([`plot`]).

mod call_times;
mod cluster;
mod collective;
mod collective_process;
mod compare;
mod device_load;
mod engine;
mod engine_real;
mod engine_simulated;
mod exchange;
mod experiment;
mod experiment_async;
mod experiment_congestion;
mod experiment_find;
mod experiment_hpio;
mod experiment_open_storm;
mod experiment_placement;
mod experiment_profile;
mod experiment_rdbench;
mod experiment_shares;
mod experiment_stage;
mod experiment_uring;
mod fio;
mod gray_scott;
mod group;
mod load;
mod meter;
mod options;
mod page_buffer;
mod phases;
mod plot;
mod processes;
mod queues;
mod reaction;
mod report;
mod space_need;
mod step;
mod target;
mod target_posix;
mod target_tabane;
#[path = "../../cli/src/version.rs"]
mod version;
mod workload_exchange;
mod workload_exchange_memory;
mod workload_find;
mod workload_ior;
mod workload_mdtest;
mod workload_names;
mod workload_ping;
mod workload_random;

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
        Some(worker) if options.benches[0] == options::Bench::Steps => engine_real::work(&options, worker),
        Some(_) if options.benches[0] == options::Bench::Load => match options.load.first() {
            Some((kind, _)) => load::work(*kind),
            None => EXIT_USAGE,
        },
        Some(worker) => processes::work(&options, worker),
        None => match options.experiment() {
            Some(experiment) => experiment::lead(&options, experiment),
            None => compare::lead(&options),
        },
    })
}
