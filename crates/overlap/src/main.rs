//! `overlap`: communication and I/O in one server task, by scheduler (docs/experiments.md).
//!
//! The program starts a server for each run, so that its processor time and memory are those of one scheduler, and is
//! the client itself.

mod aio;
mod bed;
mod by_hand;
#[path = "../../bench/src/call_times.rs"]
#[expect(dead_code, reason = "the bench's, which adds up what several processes measured")]
mod call_times;
mod client;
mod comparison;
mod door;
#[cfg(feature = "foreign")]
mod glommio_seat;
mod job;
mod memory;
#[cfg(feature = "foreign")]
mod monoio_seat;
mod naive;
mod options;
mod ours;
#[path = "../../bench/src/plot.rs"]
#[allow(dead_code, reason = "the bench's, which draws bars too")]
mod plot;
mod pool;
mod schedulers;
mod server;
mod task;
#[cfg(feature = "foreign")]
mod tokio_seat;

use clap::Parser;
use options::{Options, Role};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = Options::parse();
    let result = match &options.role {
        Some(Role::Serve(serve)) => server::run(serve),
        None => comparison::run(&options.comparison),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(words) => {
            eprintln!("overlap: {words}");
            ExitCode::FAILURE
        }
    }
}

/// Words for a write that did not come to what it was to: `result` is a count, or a negated error number.
fn failure(path: &Path, result: i32, size: usize, offset: u64) -> String {
    let path = path.display();
    match result {
        0.. => format!("{path}: {result} of {size} bytes at offset {offset} were written"),
        _ => {
            let error = std::io::Error::from_raw_os_error(-result);
            format!("{path}: write of {size} bytes at offset {offset}: {error}")
        }
    }
}
