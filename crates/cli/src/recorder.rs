//! The recorder of `tabane up --record`: a process of tabane-report that lives as long as the cluster, and keeps what
//! its servers count in a place.
//!
//! In the run directory are `recorder` (its process and the place), `recorder.log`, and `recorder.orders`, a pipe that
//! is its standard input: a line there ends it, and nothing else does but the end of the run directory.

use crate::failure::{Failure, Outcome, io_words};
use crate::launch::ended_within;
use crate::report;
use crate::run_directory::RunDirectory;
use reactor::process::{ProcessId, SIGTERM, make_node, spawn_detached};
use reactor::{Nanos, Reactor};
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

const RECORDER_FILE: &str = "recorder";
const LOG_FILE: &str = "recorder.log";
const ORDERS_FILE: &str = "recorder.orders";
/// What the recorder leaves in a run directory.
pub const FILES: [&str; 3] = [RECORDER_FILE, LOG_FILE, ORDERS_FILE];
/// What it says at last when all went well.
const RECORDED: &str = "is recorded";
/// How long a recorder has to ask once more.
const END_INTERVAL: Nanos = 30_000_000_000;

/// What a run directory says of its recorder.
struct Known {
    /// Unless it has ended as it was told to, or is a process of another machine.
    process: Option<ProcessId>,
    place: PathBuf,
}

impl Known {
    fn of(run_directory: &Path) -> Option<Known> {
        let text = fs::read_to_string(run_directory.join(RECORDER_FILE)).ok()?;
        let (process, place) = text.split_once('\n')?;
        let words: Vec<&str> = process.split_ascii_whitespace().collect();
        let [pid, started, machine] = words[..] else { return None };
        let process = ProcessId { pid: pid.parse().ok()?, started: started.parse().ok()? };
        let process = (machine == reactor::process::machine()).then_some(process);
        Some(Known { process, place: PathBuf::from(place.strip_suffix('\n')?) })
    }

    fn living(&self) -> Option<ProcessId> {
        self.process.filter(|process| process.is_alive())
    }
}

/// Has a cluster that is up recorded in `place`, or where it was before it was stopped. One that is being recorded
/// already stays so. Errors: the place can't be used, or is not the one in which it is being recorded. Where nobody
/// asked for it this time, that is told and no failure.
pub fn start(directory: &RunDirectory, place: Option<&Path>) -> Outcome {
    let known = Known::of(&directory.path);
    let about = |failure| match failure {
        Failure::Failed(words) => Failure::failed(format!("the cluster is up, but is not recorded: {words}")),
        other => other,
    };
    match (start_in(directory, place, known).map_err(about), place) {
        (Err(Failure::Failed(words)), None) => {
            eprintln!("tabane: up: {words}");
            Ok(())
        }
        (outcome, _) => outcome,
    }
}

fn start_in(directory: &RunDirectory, place: Option<&Path>, known: Option<Known>) -> Outcome {
    if let Some(known) = known.as_ref().filter(|known| known.living().is_some()) {
        return match place {
            Some(place) if place != known.place => Err(Failure::failed(format!(
                "--record {}: it is being recorded in {}; 'tabane down' ends that",
                place.display(),
                known.place.display()
            ))),
            _ => Ok(()),
        };
    }
    let Some(place) = place.map(Path::to_owned).or(known.map(|known| known.place)) else { return Ok(()) };
    let Some(place_text) = place.to_str().filter(|text| !text.contains('\n')) else {
        return Err(Failure::failed(format!("--record {}: choose a path of printable characters", place.display())));
    };
    let about = |what: &str, error: std::io::Error| Failure::failed(format!("recorder: {what}: {}", io_words(&error)));
    let orders = directory.path.join(ORDERS_FILE);
    let _: std::io::Result<()> = fs::remove_file(&orders);
    make_node(&orders, libc::S_IFIFO | 0o600, 0).map_err(|error| about("its pipe", error))?;
    // Held for writing too, it never ends by itself.
    let input = OpenOptions::new().read(true).write(true).open(&orders).map_err(|error| about("its pipe", error))?;
    let log_path = directory.path.join(LOG_FILE);
    let log = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&log_path);
    let log = log.map_err(|error| about("its log", error))?;
    let mut command = report::recording(&directory.path)?;
    command.arg(&place).args(["--whole", "--until-input-ends"]).current_dir("/");
    command.stdin(input).stdout(Stdio::piped()).stderr(log);
    let mut child = spawn_detached(&mut command).map_err(|error| report::failed(&command, &error))?;
    let said = report::first_line(&mut child);
    let noted = match ProcessId::of(child.id()).filter(|_| !said.is_empty()) {
        Some(process) => {
            let machine = reactor::process::machine();
            let words = format!("{} {} {machine}\n{place_text}\n", process.pid, process.started);
            directory.write(RECORDER_FILE, &words)
        }
        None => Err(Failure::failed(last_line(&log_path).unwrap_or_else(|| "it ended and said nothing".to_owned()))),
    };
    if noted.is_err() {
        let _: std::io::Result<_> = child.kill();
        let _: std::io::Result<_> = child.wait();
    }
    noted?;
    println!("{said}");
    Ok(())
}

fn last_line(file: &Path) -> Option<String> {
    fs::read_to_string(file).ok()?.lines().last().map(str::to_owned)
}

/// Has the recorder of a cluster, if there is one, ask once more and end; the cluster is about to. Returns whether
/// there was one.
pub fn end(reactor: &Reactor, directory: &RunDirectory) -> bool {
    let Some(known) = Known::of(&directory.path) else { return false };
    let Some(process) = known.process else { return false };
    let (place, log) = (known.place.display(), directory.path.join(LOG_FILE));
    if !process.is_alive() {
        let why = last_line(&log).map_or_else(String::new, |line| format!(": {line}"));
        eprintln!("tabane: the recorder ended before the cluster{why}; {place} holds what was counted until then");
        return true;
    }
    let orders = OpenOptions::new().read(true).write(true).open(directory.path.join(ORDERS_FILE));
    let told = orders.and_then(|mut orders| orders.write_all(b"end\n").map(|()| orders));
    if told.is_err() || !reactor.block_on(ended_within(reactor, &[process], END_INTERVAL)) {
        // Each of its answers is kept for itself.
        let _: std::io::Result<bool> = process.signal(SIGTERM);
        eprintln!("tabane: the recorder did not end in time; {place} may lack the last seconds");
        return true;
    }
    // If it can't be noted, the next one says that it has ended.
    let _: Outcome = directory.write(RECORDER_FILE, &format!("0 0 -\n{place}\n"));
    match last_line(&log).filter(|line| !line.ends_with(RECORDED)) {
        None if report::is_address(&known.place) || known.place.exists() => println!("recorded in {place}"),
        None => eprintln!("tabane: the recorder's place {place} is gone, and with it what was recorded"),
        Some(why) => eprintln!("tabane: not all is recorded in {place}: {why}"),
    }
    true
}
