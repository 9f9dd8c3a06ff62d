//! `tabane-report record`: asks the servers of a Tabane cluster again and again what they have counted, by
//! `tabane status --json`, and keeps it in a place as a job's.
//!
//! Each answer is one transaction, with the job's end moved on, so that a recorder that is killed leaves what it has
//! seen. With `--until-input-ends` it ends with its standard input, or a line `end` in it, asks once more, and says
//! what the job came to. It also ends when the cluster's directory is gone, for nothing will answer any more.

use crate::asked::Asked;
use crate::clock::{self, Nanos, SECOND};
use crate::database::Database;
use crate::failure::{Failure, Outcome, io_words};
use crate::lines::Lines;
use crate::options::{Asking, RecordOptions};
use crate::sources::tabane::{self, Documents};
use crate::sources::{Job, Node, Reading, Sink};
use crate::store::Writer;
use crate::thin::{Thinning, thin};
use crate::watch::FrameMaker;
use crate::{html, place, threads, words};
use std::io::{self, BufRead, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Variables by which batch systems tell a job's id, ours first.
const JOB_VARIABLES: [&str; 6] = ["TABANE_JOB", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "OAR_JOB_ID", "FLUX_JOB_ID"];
/// Samples that are asked for beyond one for each second since the last answer, for clocks that do not agree.
const SPARE_SAMPLES: Nanos = 3;
/// Who does not answer for so long is down for that time; the others' numbers don't wait longer for it.
const ANSWER_TIME: &str = "--timeout-ms=5000";
/// How long is looked for the paths of files.
const PATHS_TIME: Duration = Duration::from_secs(5);
/// How often old samples are thinned, and to how many.
const THIN_INTERVAL: Nanos = 3600 * SECOND;
const THIN_EVERY: Nanos = 60 * SECOND;

/// The job as it is known while it is recorded.
#[derive(Debug, Clone, Default)]
pub struct RecordedJob {
    pub id: Option<String>,
    pub name: Option<String>,
    pub start: Nanos,
    pub state: Option<String>,
}

pub fn run(options: &RecordOptions) -> Outcome {
    let begun = clock::now();
    let since = options.since.map_or(0, |seconds| (seconds * 1e9).min(1e18) as Nanos);
    let id = options.id.clone().or_else(id_of_environment);
    // What is told of as a whole is asked for at its end.
    let state = (options.whole && !options.until_input_ends).then(|| "ENDED".to_owned());
    let job = RecordedJob { id, name: options.name.clone(), start: begun.saturating_sub(since), state };
    let asker = Asker::new(options.tabane.as_deref(), options.cluster.as_deref());
    let scratch = ScratchPlace::new();
    let file = match &options.place {
        Some(place) => place,
        None => scratch.make()?,
    };
    let (database, _) = place::open_or_make(file)?;
    let mut recorder = Recorder::new(asker, job, options.whole);
    record(options, file, &database, &mut recorder)?;
    drop(database);
    let id = recorder.job.id.as_deref().unwrap_or_default();
    if let Some(report) = &options.report {
        let page = html::page(&Asked::open(id, file, &Asking::plain())?)?;
        html::write(report, &page)?;
        eprintln!("{}: the report of job {}", report.display(), words::name(id));
    }
    if let Some(place) = &options.place {
        eprintln!("{}: job {} is recorded", place.display(), words::name(id));
    }
    Ok(())
}

/// A place for a report alone, which goes with it.
struct ScratchPlace(PathBuf);

impl ScratchPlace {
    fn new() -> ScratchPlace {
        let name = format!("tabane-report-{}-{}.db", std::process::id(), clock::now());
        ScratchPlace(std::env::temp_dir().join(name))
    }

    /// Makes it for this user alone; nobody else can have made it before.
    fn make(&self) -> Outcome<&Path> {
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        options.open(&self.0).map_err(|error| Failure::of_file(&self.0, &error))?;
        Ok(&self.0)
    }
}

impl Drop for ScratchPlace {
    fn drop(&mut self) {
        // It is there only if it was used; that it can't be removed is worth no words.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Asks until it is time to end, and once more then.
fn record(options: &RecordOptions, file: &Path, database: &Database, recorder: &mut Recorder) -> Outcome {
    let input = options.until_input_ends.then(watch_input).transpose()?;
    let every = clock::seconds(options.every).unwrap_or(Duration::MAX);
    let (mut next, mut runs, mut answers) = (clock::monotonic(), 0, 0);
    let mut said = String::new();
    let directory = options.cluster.as_ref().filter(|cluster| cluster.exists());
    loop {
        match recorder.ask(database, file, None) {
            Ok(()) => {
                answers += 1;
                said.clear();
            }
            // A cluster that does not answer now may do so later.
            Err(failure) => say(&failure, &mut said),
        }
        recorder.thin(database, file, options.thin_after)?;
        runs += 1;
        if options.runs.is_some_and(|most| runs >= most) {
            break;
        }
        if runs == 1
            && options.until_input_ends
            && let Some(place) = &options.place
        {
            let id = recorder.job.id.as_ref().map_or_else(String::new, |id| format!(" as job {}", words::name(id)));
            // Who started it may have gone.
            let _: io::Result<()> = writeln!(io::stdout(), "recording in {}{id}", place.display());
        }
        // Where it can't be told, it is there.
        if options.until_input_ends && directory.is_some_and(|cluster| matches!(cluster.try_exists(), Ok(false))) {
            say(&Failure::failed("the cluster has gone"), &mut said);
            recorder.job.state = Some("ENDED".to_owned());
            recorder.note_end(database, file)?;
            break;
        }
        next = (next + every).max(clock::monotonic());
        match &input {
            None => clock::sleep_until(next),
            Some(input) => {
                if let Some(state) = ended(input, next.saturating_duration_since(clock::monotonic())) {
                    recorder.job.state = Some(state);
                    match recorder.ask(database, file, None) {
                        Ok(()) => answers += 1,
                        Err(failure) => {
                            say(&failure, &mut said);
                            recorder.note_end(database, file)?;
                        }
                    }
                    break;
                }
            }
        }
    }
    if answers > 0
        && let Err(failure) = recorder.note_paths(database, file)
    {
        say(&failure, &mut said);
    }
    match answers {
        0 => Err(Failure::failed("the servers were asked in vain; nothing is recorded")),
        _ => Ok(()),
    }
}

/// Once, however often it is so.
fn say(failure: &Failure, said: &mut String) {
    if let Failure::Failed(words) | Failure::Usage(words) = failure
        && words != said
    {
        eprintln!("tabane-report: record: {words}");
        said.clone_from(words);
    }
}

#[allow(clippy::disallowed_methods)] // Batch systems tell a job's id in no other way.
fn id_of_environment() -> Option<String> {
    JOB_VARIABLES.iter().filter_map(|name| std::env::var(name).ok()).find(|value| !value.is_empty())
}

/// What comes on standard input: what the job came to, once it ends.
fn watch_input() -> Outcome<Receiver<Option<i32>>> {
    let (sender, receiver) = channel();
    threads::start("input", move || {
        let mut status = None;
        for line in std::io::stdin().lock().lines() {
            match line {
                Ok(line) if line.trim() == "end" => break,
                Ok(line) => status = line.strip_prefix("exit ").and_then(|text| text.trim().parse().ok()).or(status),
                Err(_) => break,
            }
        }
        // Nobody waits any more: nothing is lost.
        let _ = sender.send(status);
    })?;
    Ok(receiver)
}

/// Waits; the state that the job ended in, if it did.
fn ended(input: &Receiver<Option<i32>>, time: Duration) -> Option<String> {
    match input.recv_timeout(time) {
        Err(RecvTimeoutError::Timeout) => None,
        Ok(Some(0)) => Some("COMPLETED".to_owned()),
        Ok(Some(status)) => Some(format!("FAILED ({status})")),
        Ok(None) | Err(RecvTimeoutError::Disconnected) => Some("ENDED".to_owned()),
    }
}

/// How servers are asked.
pub struct Asker {
    program: PathBuf,
    cluster: Option<PathBuf>,
}

impl Asker {
    pub fn new(program: Option<&Path>, cluster: Option<&Path>) -> Asker {
        let program = program.map_or_else(default_program, Path::to_owned);
        Asker { program, cluster: cluster.map(Path::to_owned) }
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments);
        if let Some(cluster) = &self.cluster {
            command.arg("--cluster").arg(cluster);
        }
        command.stdin(Stdio::null());
        command
    }

    pub fn failed(&self, error: &std::io::Error) -> Failure {
        Failure::failed(format!("{}: {}", self.program.display(), io_words(error)))
    }
}

/// `tabane` beside this program, else of the PATH.
fn default_program() -> PathBuf {
    let beside = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.join("tabane")));
    beside.filter(|program| program.is_file()).unwrap_or_else(|| PathBuf::from("tabane"))
}

/// Samples that servers are asked for.
enum Samples {
    Last,
    All,
    Since(Nanos),
}

/// What a question brought.
struct Answers {
    asked: Nanos,
    /// In the middle between question and answer: when the servers looked, more or less.
    collected: Nanos,
    output: Output,
}

/// Asks, and keeps what is answered.
pub struct Recorder {
    asker: Asker,
    pub job: RecordedJob,
    documents: Documents,
    /// When there was an answer last.
    answered: Option<Nanos>,
    /// Up to when samples were thinned.
    thinned: Nanos,
    /// Whether the id is this one's alone.
    is_named: bool,
}

impl Recorder {
    pub fn new(asker: Asker, job: RecordedJob, whole: bool) -> Recorder {
        let documents = if whole { Documents::from_start() } else { Documents::default() };
        Recorder { asker, job, documents, answered: None, thinned: Nanos::MIN, is_named: false }
    }

    /// All servers, with these samples.
    fn answers(&self, wanted: Samples) -> Outcome<Answers> {
        let asked = clock::now();
        let samples = match wanted {
            Samples::Last => None,
            Samples::All => Some("--samples".to_owned()),
            Samples::Since(since) => {
                let seconds = asked.saturating_sub(since).max(0) / SECOND;
                Some(format!("--sample-count={}", (seconds + SPARE_SAMPLES).min(Nanos::from(u32::MAX))))
            }
        };
        let mut arguments = vec!["status", "--json", "--no-mounts", ANSWER_TIME];
        arguments.extend(samples.as_deref());
        let mut command = self.asker.command(&arguments);
        // It says on standard error which servers are down, and the document says so too.
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = command.output().map_err(|error| self.asker.failed(&error))?;
        Ok(Answers { asked, collected: asked + (clock::now() - asked) / 2, output })
    }

    /// One question, one transaction, with all samples since the last one: those that lie before what is known already
    /// would be of no use (`tabane::Documents`). A server that was not there for some time has them of before it went.
    /// `frames`: who shows it live, and needs nothing of the seconds before.
    pub fn ask(&mut self, database: &Database, file: &Path, frames: Option<&mut FrameMaker>) -> Outcome {
        let wanted = match self.answered {
            _ if frames.is_some() => Samples::Last,
            None => Samples::All,
            Some(answered) => Samples::Since(answered),
        };
        let mut answers = self.answers(wanted)?;
        if let Some(earlier) = self.documents.silent_since(&answers.output.stdout).filter(|_| frames.is_none()) {
            answers = self.answers(Samples::Since(earlier))?;
        }
        let Answers { asked, collected, output } = answers;
        let mut writer = Writer::begin(database, file)?;
        writer.set_source("tabane status")?;
        let before = self.documents.last.take();
        let mut lines = Lines::of("tabane status", output.stdout.as_slice());
        match frames {
            Some(frames) => {
                let mut both = Both { writer: &mut writer, frames };
                tabane::read(&mut lines, Some(collected), &mut self.documents, &mut both)?;
            }
            None => tabane::read(&mut lines, Some(collected), &mut self.documents, &mut writer)?,
        }
        let Some((cluster, time)) = self.documents.last.clone() else {
            self.documents.last = before;
            writer.commit()?;
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().next().unwrap_or("no server answers").trim_start_matches("tabane: ");
            return Err(Failure::failed(words::name(said)));
        };
        self.answered = Some(asked);
        self.job.start = self.job.start.min(self.documents.started.unwrap_or(Nanos::MAX));
        if !self.is_named {
            let start = self.job.start;
            let id = self.job.id.take().unwrap_or_else(|| format!("{}-{}", tabane::node_of(&cluster), start / SECOND));
            self.job.id = Some(writer.free_id(&id)?);
            self.is_named = true;
        }
        writer.job(self.job_until(&cluster, time))?;
        writer.commit()?;
        Ok(())
    }

    /// Once in a while, of the cluster's own servers: the place may have others' samples too.
    fn thin(&mut self, database: &Database, file: &Path, after: f64) -> Outcome {
        let Some((cluster, _)) = &self.documents.last else { return Ok(()) };
        let before = clock::now().saturating_sub((after * SECOND as f64).min(1e18) as Nanos);
        if before.saturating_sub(self.thinned) < THIN_INTERVAL {
            return Ok(());
        }
        let servers = &tabane::server_of(cluster, "*");
        let thinning = Thinning { servers, from: self.thinned, before, every: THIN_EVERY };
        thin(database, file, &thinning)?;
        self.thinned = before;
        Ok(())
    }

    /// Where the files and directories are to which most was done. Servers look for them in all names that they have:
    /// if that takes long, they stay numbers.
    fn note_paths(&self, database: &Database, file: &Path) -> Outcome {
        let Some((cluster, _)) = &self.documents.last else { return Ok(()) };
        let mut command = self.asker.command(&["status", "--files", "--json", ANSWER_TIME]);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| self.asker.failed(&error))?;
        let Some(output) = child.stdout.take() else { return Ok(()) };
        let (sender, receiver) = channel();
        threads::start("paths", move || {
            let lines = io::BufReader::new(output).lines().map_while(Result::ok);
            // Who asked may have given up.
            let _ = sender.send(lines.collect::<Vec<String>>());
        })?;
        let lines = receiver.recv_timeout(PATHS_TIME).unwrap_or_default();
        // It has ended, or takes too long; either way nobody waits for its answer any more.
        let _ = child.kill();
        child.wait().map_err(|error| self.asker.failed(&error))?;
        let writer = Writer::begin(database, file)?;
        for line in lines {
            let Ok(found) = serde_json::from_str::<serde_json::Value>(&line) else { continue };
            if let (Some(id), Some(path)) = (found["id"].as_str(), found["path"].as_str()) {
                writer.path(&tabane::short(cluster), id, path)?;
            }
        }
        writer.commit()?;
        Ok(())
    }

    /// What the job came to, where the servers did not answer any more.
    fn note_end(&self, database: &Database, file: &Path) -> Outcome {
        let Some((cluster, time)) = &self.documents.last else { return Ok(()) };
        let mut writer = Writer::begin(database, file)?;
        writer.set_source("tabane status")?;
        writer.job(self.job_until(cluster, *time))?;
        writer.commit()?;
        Ok(())
    }

    fn job_until(&self, cluster: &str, time: Nanos) -> Job {
        Job {
            id: self.job.id.clone().unwrap_or_default(),
            name: self.job.name.clone(),
            state: Some(self.job.state.clone().unwrap_or_else(|| "RUNNING".to_owned())),
            start: Some(self.job.start),
            end: Some(time.max(self.job.start + 1)),
            nodes: Some(tabane::node_of(cluster)),
            ..Job::default()
        }
    }
}

/// What is recorded and shown.
struct Both<'a, 'b> {
    writer: &'a mut Writer<'b>,
    frames: &'a mut FrameMaker,
}

impl Sink for Both<'_, '_> {
    fn job(&mut self, job: Job) -> Outcome {
        self.writer.job(job)
    }

    fn node(&mut self, node: Node) -> Outcome {
        self.writer.node(node)
    }

    fn reading(&mut self, reading: Reading) -> Outcome {
        self.frames.reading(reading.clone())?;
        self.writer.reading(reading)
    }

    fn skipped(&mut self, line: u64, why: &str) -> Outcome {
        self.frames.skipped(line, why)?;
        self.writer.skipped(line, why)
    }
}
