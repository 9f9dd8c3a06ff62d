//! What `tabane-report` does for this program: reports of runs, and the live page. It is a program of its own, beside
//! this one or on the PATH, so that this one has none of its dependencies.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, io_words};
use crate::session::cluster_path;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const PROGRAM: &str = "tabane-report";

fn this_program() -> Outcome<PathBuf> {
    std::env::current_exe().map_err(|error| Failure::failed(format!("this program's own file: {}", io_words(&error))))
}

/// Beside this program, else wherever the PATH has it.
fn program() -> PathBuf {
    let beside = this_program().ok().and_then(|program| Some(program.parent()?.join(PROGRAM)));
    beside.filter(|program| program.is_file()).unwrap_or_else(|| PathBuf::from(PROGRAM))
}

fn failed(program: &Path, error: &std::io::Error) -> Failure {
    Failure::failed(format!(
        "{}: {}; it is a program of its own, see docs/report.md",
        program.display(),
        io_words(error)
    ))
}

/// The file of `--report`, if it was given. Errors: there is no program that could write it, or no directory for it, so
/// that nothing is begun in vain.
pub fn wanted(arguments: &Arguments) -> Outcome<Option<PathBuf>> {
    let Some(file) = arguments.path("report") else { return Ok(None) };
    let directory = file.parent().filter(|directory| !directory.as_os_str().is_empty());
    if directory.is_some_and(|directory| !directory.is_dir()) {
        return Err(Failure::failed(format!("--report {}: its directory is not there; make it first", file.display())));
    }
    let program = program();
    let probe = Command::new(&program).arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).status();
    match probe {
        Ok(status) if status.success() => Ok(Some(file)),
        Ok(status) => Err(Failure::failed(format!("{}: {status}", program.display()))),
        Err(error) => Err(failed(&program, &error)),
    }
}

/// A recorder beside a command.
pub struct Recorder {
    child: Child,
}

fn record(run_directory: &Path, report: &Path) -> Outcome<Command> {
    let mut command = Command::new(program());
    command.arg("record").arg("--report").arg(report).arg("--cluster").arg(run_directory);
    command.arg("--tabane").arg(this_program()?);
    // It tells where the report is; standard output is the command's.
    command.stdout(Stdio::null());
    Ok(command)
}

fn succeeded(status: std::process::ExitStatus, report: &Path) -> Outcome {
    match status.success() {
        true => Ok(()),
        false => Err(Failure::failed(format!("{}: the report was not written", report.display()))),
    }
}

impl Recorder {
    /// Records a run of `command` from now on, by the program's name.
    pub fn start(run_directory: &Path, report: &Path, command: &std::ffi::OsStr) -> Outcome<Recorder> {
        let mut recorder = record(run_directory, report)?;
        if let Some(name) = Path::new(command).file_name() {
            recorder.arg("--name").arg(name);
        }
        recorder.arg("--until-input-ends").stdin(Stdio::piped());
        // What asks the command to stop does not stop the one who is to tell of it.
        recorder.process_group(0);
        let child = recorder.spawn().map_err(|error| failed(Path::new(recorder.get_program()), &error))?;
        Ok(Recorder { child })
    }

    /// The command has ended; the servers are asked once more, and the report is written.
    pub fn end(mut self, status: Option<u8>, report: &Path) -> Outcome {
        if let (Some(mut input), Some(status)) = (self.child.stdin.take(), status) {
            // If it has gone, its status says so.
            let _ = writeln!(input, "exit {status}");
        }
        let status = self.child.wait();
        let status = status.map_err(|error| Failure::failed(format!("{PROGRAM}: {}", io_words(&error))))?;
        succeeded(status, report)
    }
}

/// Writes a report of all the time since the servers of a run directory were started.
pub fn of_cluster(run_directory: &Path, report: &Path) -> Outcome {
    let mut command = record(run_directory, report)?;
    command.args(["--whole", "--runs", "1"]).stdin(Stdio::null());
    let status = command.status().map_err(|error| failed(Path::new(command.get_program()), &error))?;
    succeeded(status, report)
}

/// `tabane watch`.
pub fn watch(arguments: &Arguments) -> Outcome {
    if !arguments.flag("web") {
        return Err(Failure::usage("say --web for a page; 'tabane top' draws on a terminal"));
    }
    let mut command = Command::new(program());
    command.arg("watch").arg("--tabane").arg(this_program()?);
    if let Some(address) = arguments.operands.first() {
        command.arg("--listen").arg(address);
    }
    match arguments.path("from") {
        Some(place) => command.arg("--from").arg(place),
        None => command.arg("--cluster").arg(cluster_path(arguments)),
    };
    // From here on it is that program.
    let error = command.exec();
    Err(failed(Path::new(command.get_program()), &error))
}
