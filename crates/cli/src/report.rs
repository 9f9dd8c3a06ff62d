//! What `tabane-report` does for this program: reports of runs, and the live page. It is a program of its own, beside
//! this one or on the PATH, so that this one has none of its dependencies.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, io_words};
use crate::session::cluster_path;
use crate::settings::absolute;
use std::io::{BufRead as _, BufReader, Write as _};
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

/// Why a command of that program could not be started.
pub fn failed(command: &Command, error: &std::io::Error) -> Failure {
    Failure::failed(format!(
        "{}: {}; it is a program of its own, see docs/report.md",
        Path::new(command.get_program()).display(),
        io_words(error)
    ))
}

/// What is to be kept of a run.
pub struct Wanted {
    /// The place of `--record`.
    pub place: Option<PathBuf>,
    /// The file of `--report`.
    pub page: Option<PathBuf>,
}

impl Wanted {
    /// `keys`: which of the two options the command has. Errors: there is no program that could write it, or no
    /// directory for it, so that nothing is begun in vain.
    pub fn of(arguments: &Arguments, keys: &[&str]) -> Outcome<Wanted> {
        let given = |key| keys.contains(&key).then(|| arguments.path(key)).flatten();
        let whole = |file: PathBuf| if is_address(&file) { Ok(file) } else { absolute(&file) };
        let file = |key| given(key).map(whole).transpose();
        let wanted = Wanted { place: file("record")?, page: file("report")? };
        for (key, file) in [("record", &wanted.place), ("report", &wanted.page)] {
            let Some(file) = file.as_ref().filter(|file| !is_address(file)) else { continue };
            if file.parent().is_some_and(|directory| !directory.is_dir()) {
                let words = "its directory is not there; make it first";
                return Err(Failure::failed(format!("--{key} {}: {words}", file.display())));
            }
        }
        if wanted.is_something() {
            let mut probe = Command::new(program());
            probe.arg("--version").stdin(Stdio::null()).stdout(Stdio::null());
            match probe.status() {
                Ok(status) if status.success() => {}
                Ok(status) => {
                    let program = Path::new(probe.get_program()).display();
                    return Err(Failure::failed(format!("{program}: {status}")));
                }
                Err(error) => return Err(failed(&probe, &error)),
            }
        }
        Ok(wanted)
    }

    pub fn is_something(&self) -> bool {
        self.place.is_some() || self.page.is_some()
    }
}

/// Whether a place is on a server, and no file.
pub fn is_address(place: &Path) -> bool {
    place.to_str().is_some_and(|name| name.contains("://"))
}

/// What a recorder says on standard output once it has asked for the first time, or nothing if it has ended.
pub fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        // What can't be read says nothing.
        let _: std::io::Result<usize> = BufReader::new(output).read_line(&mut line);
    }
    line.trim_end().to_owned()
}

/// A recorder beside a command.
pub struct Recorder {
    child: Child,
}

/// The recorder of a run directory's cluster; where to is missing.
pub fn recording(run_directory: &Path) -> Outcome<Command> {
    let mut command = Command::new(program());
    command.arg("record").arg("--cluster").arg(run_directory).arg("--tabane").arg(this_program()?);
    // It tells where the report is; standard output is the command's.
    command.stdout(Stdio::null());
    Ok(command)
}

fn succeeded(status: std::process::ExitStatus, wanted: &Wanted) -> Outcome {
    let missing = match (&wanted.page, &wanted.place) {
        (Some(page), _) => format!("{}: the report was not written", page.display()),
        (None, place) => format!("{}: not all was recorded", place.as_deref().unwrap_or(Path::new("")).display()),
    };
    if status.success() { Ok(()) } else { Err(Failure::failed(missing)) }
}

impl Recorder {
    /// Records a run of `command` from now on, by the program's name.
    pub fn start(run_directory: &Path, wanted: &Wanted, command: &std::ffi::OsStr) -> Outcome<Recorder> {
        let mut recorder = recording(run_directory)?;
        recorder.args(&wanted.place);
        if let Some(page) = &wanted.page {
            recorder.arg("--report").arg(page);
        }
        if let Some(name) = Path::new(command).file_name() {
            recorder.arg("--name").arg(name);
        }
        recorder.arg("--until-input-ends").stdin(Stdio::piped());
        // What asks the command to stop does not stop the one who is to tell of it.
        recorder.process_group(0);
        if wanted.place.is_some() {
            recorder.stdout(Stdio::piped());
        }
        let mut child = recorder.spawn().map_err(|error| failed(&recorder, &error))?;
        // It has said why on standard error.
        if let Some(place) = &wanted.place
            && first_line(&mut child).is_empty()
        {
            let _: std::io::Result<_> = child.wait();
            return Err(Failure::failed(format!("{}: nothing can be recorded there", place.display())));
        }
        Ok(Recorder { child })
    }

    /// The command has ended; the servers are asked once more, and the report is written.
    pub fn end(mut self, status: Option<u8>, wanted: &Wanted) -> Outcome {
        if let (Some(mut input), Some(status)) = (self.child.stdin.take(), status) {
            // If it has gone, its status says so.
            let _ = writeln!(input, "exit {status}");
        }
        let status = self.child.wait();
        let status = status.map_err(|error| Failure::failed(format!("{PROGRAM}: {}", io_words(&error))))?;
        succeeded(status, wanted)
    }
}

/// Writes a report of all the time since the servers of a run directory were started.
pub fn of_cluster(run_directory: &Path, wanted: &Wanted) -> Outcome {
    let Some(page) = &wanted.page else { return Ok(()) };
    let mut command = recording(run_directory)?;
    command.arg("--report").arg(page).args(["--whole", "--runs", "1"]).stdin(Stdio::null());
    let status = command.status().map_err(|error| failed(&command, &error))?;
    succeeded(status, wanted)
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
    Err(failed(&command, &error))
}
