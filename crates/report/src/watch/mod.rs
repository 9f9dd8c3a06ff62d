//! `tabane-report watch`: a live page about the servers of a cluster, or about a place that is replayed.
//!
//! One thread makes frames ([`frames`]) from what the servers answer, or from a place step by step. One for each
//! connection serves the page and hands on the newest frame ([`server`], [`crate::http`]). Nobody waits for a slow
//! reader: who is late gets the newest frame next, and who does not read at all is cut off.

mod frames;
mod replay;
mod server;

use crate::advice::{Evidence, findings};
use crate::asked::Asked;
use crate::clock::{self, Nanos, SECOND};
use crate::database::{self, Database, values};
use crate::failure::{Failure, Outcome};
use crate::options::WatchOptions;
use crate::record::{Asker, RecordedJob, Recorder};
use crate::threads::start;
use crate::{place, words};
pub use frames::FrameMaker;
use frames::Hint;
use server::{Board, Server};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Time that advice looks at, and how often.
const ADVICE_SPAN: Nanos = 600 * SECOND;
const ADVICE_INTERVAL: Nanos = 10 * SECOND;
/// Lines of logs that wait for the next frame; more are given up.
const LOG_LINES_MAX: usize = 100;

pub fn run(options: &WatchOptions) -> Outcome {
    let server = Server::bind(&options.listen)?;
    let board = Arc::new(Board::new());
    // What can't be watched is said before an address is.
    let source = match &options.from {
        Some(file) => Source::Replay(Box::new(replay::Replay::open(file, options.step)?)),
        None => Source::Live(Box::new(Live::open(options)?)),
    };
    server.announce();
    let made = board.clone();
    let every = clock::seconds(options.every).unwrap_or(std::time::Duration::MAX);
    start("frames", move || make_frames(source, every, &made))?;
    server.serve(&board)
}

enum Source {
    Live(Box<Live>),
    Replay(Box<replay::Replay>),
}

fn make_frames(mut source: Source, every: std::time::Duration, board: &Board) {
    let mut next = clock::monotonic();
    loop {
        let frame = match &mut source {
            Source::Live(live) => Some(live.frame()),
            Source::Replay(replay) => replay.frame(),
        };
        match frame {
            Some(frame) => board.publish(&frame),
            // The end of what was recorded stays on the page.
            None => return,
        }
        next = (next + every).max(clock::monotonic());
        clock::sleep_until(next);
    }
}

/// A cluster that is asked again and again; the last minutes are kept in memory, for advice.
struct Live {
    database: Option<Database>,
    recorder: Recorder,
    maker: FrameMaker,
    advised: Nanos,
    logs: Receiver<String>,
}

/// What messages call the memory in which the last minutes are.
const MEMORY: &str = "the last minutes";

impl Live {
    fn open(options: &WatchOptions) -> Outcome<Live> {
        let asker = Asker::new(options.tabane.as_deref(), options.cluster.as_deref());
        let job = RecordedJob { id: Some("now".to_owned()), start: clock::now(), ..RecordedJob::default() };
        let database = place::in_memory().map_err(|error| place::about(Path::new(MEMORY), &error.into()))?;
        let logs = follow_logs(&asker)?;
        let mut live = Live {
            database: Some(database),
            recorder: Recorder::new(asker, job, false),
            maker: FrameMaker::default(),
            advised: 0,
            logs,
        };
        // A cluster that does not answer at all is another one than was meant.
        live.ask()?;
        Ok(live)
    }

    fn ask(&mut self) -> Outcome {
        let Some(database) = &self.database else { return Ok(()) };
        let memory = Path::new(MEMORY);
        self.recorder.ask(database, memory, Some(&mut self.maker))?;
        let failed = |error: database::Error| place::about(memory, &error);
        let oldest = clock::now().saturating_sub(ADVICE_SPAN + 60 * SECOND);
        database.execute("DELETE FROM samples WHERE time_ns < ?1", values![oldest]).map_err(failed)?;
        database.execute("DELETE FROM events", &[]).map_err(failed)?;
        Ok(())
    }

    fn frame(&mut self) -> String {
        if let Err(Failure::Failed(words)) = self.ask() {
            self.maker.event(&words);
        }
        while let Ok(line) = self.logs.try_recv() {
            self.maker.event(&line);
        }
        let now = clock::now();
        if now - self.advised >= ADVICE_INTERVAL {
            self.advised = now;
            self.advise(now);
        }
        self.maker.frame(now)
    }

    fn advise(&mut self, now: Nanos) {
        let Some(database) = self.database.take() else { return };
        let (hints, database) = hints_of(database, Path::new(MEMORY), now - ADVICE_SPAN, now);
        self.database = Some(database);
        if let Some(hints) = hints {
            self.maker.hints = hints;
        }
    }
}

/// What rules say of a time, and the database back.
fn hints_of(database: Database, file: &Path, from: Nanos, to: Nanos) -> (Option<Vec<Hint>>, Database) {
    let asked = match Asked::of_time(database, file, from, to) {
        Ok(asked) => asked,
        Err(database) => return (None, database),
    };
    let hints = Evidence::of(&asked).ok().map(|evidence| {
        let hint = |finding: crate::advice::Finding| Hint {
            rule: finding.rule.name,
            words: finding.words,
            change: finding.rule.change,
        };
        findings(&evidence).into_iter().map(hint).collect()
    });
    (hints, asked.database)
}

/// Lines of the servers' logs as they come, if this is where they are.
fn follow_logs(asker: &Asker) -> Outcome<Receiver<String>> {
    let (sender, receiver) = sync_channel(LOG_LINES_MAX);
    let mut command = asker.command(&["logs", "-f", "-n", "20"]);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    // On another machine than the servers' there are no logs: then there are none of these events.
    if let Ok(mut child) = command.spawn()
        && let Some(output) = child.stdout.take()
    {
        start("logs", move || {
            pass_on(BufReader::new(output), &sender);
            // It has ended, or nobody listens any more.
            let _ = child.kill();
            let _ = child.wait();
        })?;
    }
    Ok(receiver)
}

fn pass_on(output: impl BufRead, sender: &SyncSender<String>) {
    for line in output.lines() {
        let Ok(line) = line else { return };
        // Who writes faster than frames are made loses lines, and not the memory.
        if let Err(std::sync::mpsc::TrySendError::Disconnected(_)) = sender.try_send(words::name(&line)) {
            return;
        }
    }
}
