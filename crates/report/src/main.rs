//! `tabane-report`: what a job did, and how its I/O servers were meanwhile, from logs that sites keep anyway.
//!
//! The analysis is that of the K computer (Tsujita and others, 2018): a job id leads to the job database, that to the
//! job's nodes and times, the nodes to I/O servers, and these to what their logs say of that time. [`import`] reads
//! sources ([`sources`]) into a place ([`place`], [`store`]); [`job`], [`neighbours`] and [`compare`] answer questions
//! about jobs ([`analysis`], [`pictures`]). A program of its own, so that `tabane` has none of its dependencies.

mod advice;
mod analysis;
mod asked;
mod clock;
mod compare;
mod csv_profile;
mod darshan;
mod database;
mod failure;
mod history;
mod host_list;
mod html;
mod http;
mod import;
mod job;
mod lines;
mod neighbours;
mod options;
mod pictures;
mod place;
mod progress;
mod record;
mod serve;
mod skipped;
mod sources;
mod store;
mod thin;
mod threads;
mod times;
#[path = "../../cli/src/version.rs"]
mod version;
mod watch;
mod words;

use failure::{EXIT_FAILED, EXIT_USAGE, Failure, Outcome};
use options::Command;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let command = match options::read() {
        Ok(command) => command,
        Err(failure) => return ended(Err(failure)),
    };
    ended(match command {
        Command::Print(text) => printed(&text),
        Command::Import(options) => import::run(&options),
        Command::Job(options) => job::run(&options),
        Command::Neighbours(options) => neighbours::run(&options),
        Command::Compare(options) => compare::run(&options),
        Command::Html(options) => html::run(&options),
        Command::Advice(options) => advice::run(&options),
        Command::History(options) => history::run(&options),
        Command::Record(options) => record::run(&options),
        Command::Watch(options) => watch::run(&options),
        Command::Serve(options) => serve::run(&options),
        Command::Thin(options) => thin::run(&options),
        Command::Events(options) => skipped::run(&options),
    })
}

fn printed(text: &str) -> Outcome {
    std::io::stdout().write_all(text.as_bytes()).map_err(Failure::of_output)
}

/// The one place that says how a command failed.
fn ended(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(words)) => {
            eprintln!("tabane-report: {words}");
            ExitCode::from(EXIT_USAGE)
        }
        Err(Failure::Failed(words)) => {
            eprintln!("tabane-report: {words}");
            ExitCode::from(EXIT_FAILED)
        }
        // Who reads no further has what they wanted.
        Err(Failure::BrokenPipe) => ExitCode::SUCCESS,
    }
}
