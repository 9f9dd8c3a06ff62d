//! `tabane`: one program that starts clusters, takes them down, and works on what they hold.
//!
//! `options.rs` and `commands/table/` are the tables that all texts come from, and what the config file may say
//! (`config.rs`); `command_line.rs` makes of them what clap reads command lines by, and writes texts from (`help.rs`,
//! `manual.rs`, `completion/`); `up.rs`, `launch.rs` and `run_directory.rs` are about processes;
//! `copy/` and `commands/` work through the client.

#[macro_use]
mod output;

mod activity;
mod arguments;
mod base64;
mod busiest;
mod colours;
mod command_line;
mod commands;
mod completion;
mod config;
mod copy;
mod device_store;
mod doctor;
mod down;
mod failure;
mod flushing;
mod globbing;
mod help;
mod hosts;
mod json;
mod launch;
mod log;
mod lost;
mod manual;
mod metrics;
mod mode;
mod mount;
mod mount_status;
mod mounts;
mod mpi;
mod options;
mod paths;
mod pin;
mod ports;
mod recorder;
mod report;
mod run;
mod run_directory;
mod salvage;
mod server;
mod session;
mod settings;
mod site_look;
mod status;
mod store_memory;
mod text;
mod together;
mod top;
mod up;
mod version;
mod warm;
mod work;

use arguments::Arguments;
use failure::{Failure, Outcome};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

const EXIT_FAILURE: u8 = 1;
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let (before, words) = words.split_at(arguments::count_before_command(&words));
    let first = words.first().map(|word| word.to_string_lossy().into_owned());
    let outcome = match first.as_deref() {
        None => Err(Failure::usage("a command is missing")),
        Some("--help" | "-h") => print(&help::overview()),
        Some("--version" | "-V" | "version") => print(&version::line("tabane")),
        Some("help") => help_about(&words[1..]),
        Some(completion::WORDS) => completion::print_candidates(&words[1..]),
        Some(site_look::WORD) => site_look::run(&words[1..]),
        Some(name) => dispatch(name, &[before, &words[1..]].concat()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => tell(failure, first.as_deref()),
    }
}

/// Runs a command with the words that stand before and behind its name.
fn dispatch(name: &str, words: &[OsString]) -> Outcome {
    let command = commands::find(name).ok_or_else(|| help::unknown_command(name))?;
    let arguments =
        Arguments::parse(command, words, &arguments::environment, || config::Config::read(&arguments::environment))?;
    if arguments.help {
        return print(&help::of_command(command));
    }
    (command.run)(&arguments)
}

fn help_about(words: &[OsString]) -> Outcome {
    match words.first().map(|word| word.to_string_lossy()) {
        None => print(&help::overview()),
        Some(word) if word == "--markdown" => print(&help::reference()),
        Some(name) => print(&help::of_command(commands::find(&name).ok_or_else(|| help::unknown_command(&name))?)),
    }
}

fn print(text: &str) -> Outcome {
    std::io::stdout().write_all(text.as_bytes()).map_err(Failure::of_output)
}

/// Says what went wrong and gives the exit status.
fn tell(failure: Failure, command: Option<&str>) -> ExitCode {
    let known = command.filter(|name| commands::find(name).is_some());
    let prefix = known.map_or("tabane".to_owned(), |name| format!("tabane: {name}"));
    match failure {
        Failure::Usage(words) => {
            let more = known.map_or("tabane --help".to_owned(), |name| format!("tabane {name} --help"));
            eprintln!("{prefix}: {words}\n{prefix}: '{more}' says more");
            EXIT_USAGE.into()
        }
        Failure::Failed(words) => {
            eprintln!("{prefix}: {words}");
            EXIT_FAILURE.into()
        }
        Failure::Said(code) => code.into(),
        Failure::BrokenPipe => EXIT_FAILURE.into(),
    }
}
