//! `tabane flush`: what was changed over a backing directory is carried back to it.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, show};
use crate::paths::inside;
use crate::session::Session;
use crate::text::{count_words, duration_words, plural, size_words};
use client::{Comparison, FileSystem, FlushReport};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use reactor::{Nanos, Reactor};
use std::cell::Cell;
use std::io::IsTerminal;

/// Exit status when some changes could not be carried back.
pub const SOME_FAILED: u8 = 3;
/// Between two lines of those who want them, and of those that say that nothing goes any more.
const LINE_INTERVAL: Nanos = 5_000_000_000;

/// A bar on a terminal, else a line every few seconds.
struct Shown {
    reactor: Reactor,
    started: Nanos,
    bar: Option<ProgressBar>,
    last_line: Cell<Nanos>,
    is_wanted: bool,
    /// What had gone when something last did, changes and bytes; when that was, and when it was last said.
    gone: Cell<(u64, u64)>,
    since: Cell<Nanos>,
    told: Cell<Nanos>,
}

impl Shown {
    fn new(reactor: &Reactor, is_wanted: bool) -> Shown {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
            // The template is ours; should it not be understood, the plain bar does.
            if let Ok(style) = ProgressStyle::with_template("{wide_bar} {msg}") {
                bar.set_style(style);
            }
            bar
        });
        let now = reactor.now();
        let [last_line, since, told] = [now; 3].map(Cell::new);
        Shown { reactor: reactor.clone(), started: now, bar, last_line, is_wanted, gone: Cell::default(), since, told }
    }

    /// Says so if nothing goes any more, whoever looks on.
    fn tell_stall(&self, report: &FlushReport) {
        let (gone, now) = ((report.done + report.failed, report.bytes), self.reactor.now());
        if self.gone.replace(gone) != gone {
            self.since.set(now);
            self.told.set(now);
        } else if now - self.told.get() >= LINE_INTERVAL {
            self.told.set(now);
            let left = if report.left > 0 { format!(", and {} left", are(report.left)) } else { String::new() };
            let words = format!(
                "nothing has reached the backing directory for {}{left}; 'tabane status' names the calls there that \
                 take long, and what can't go",
                duration_words(now - self.since.get())
            );
            match &self.bar {
                Some(bar) => bar.println(words),
                None => eprintln!("tabane: flush: {words}"),
            }
        }
    }

    fn tell(&self, report: &FlushReport) {
        self.tell_stall(report);
        let elapsed = self.reactor.now() - self.started;
        let rate = (report.bytes as f64 * 1e9 / elapsed.max(1) as f64) as u64;
        let left = match report.done {
            0 => String::new(),
            done => format!(", {} left", duration_words(elapsed / done * report.left)),
        };
        let words = format!(
            "{} of {} changes, {}, {}/s{left}",
            count_words(report.done),
            count_words(report.done + report.left),
            size_words(report.bytes),
            size_words(rate)
        );
        match &self.bar {
            Some(bar) => {
                bar.set_length((report.done + report.left).max(1));
                bar.set_position(report.done);
                bar.set_message(words);
            }
            None if self.is_wanted && self.reactor.now() - self.last_line.get() >= LINE_INTERVAL => {
                self.last_line.set(self.reactor.now());
                eprintln!("{words}");
            }
            None => {}
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Carries all changes back, shows how that goes, and lists on standard error what could not go, and what became of
/// names that somebody else had changed there.
pub async fn flush_all(
    reactor: &Reactor,
    files: &FileSystem,
    paths: &[Vec<u8>],
    is_wanted: bool,
) -> Outcome<FlushReport> {
    let shown = Shown::new(reactor, is_wanted);
    let report = files.flush(paths, &|report| shown.tell(report)).await;
    drop(shown);
    let report = report.map_err(|error| Failure::failed(error.to_string()))?;
    for (path, words) in &report.settlements {
        eprintln!("tabane: flush: settled: {}: {words}", show(&[b"/", path.as_slice()].concat()));
    }
    let untold = report.settled - report.settlements.len() as u64;
    if untold > 0 {
        eprintln!("tabane: flush: settled: and {} more; the servers' logs have them", plural(untold, "name"));
    }
    for (path, reason) in &report.failures {
        eprintln!("tabane: flush: {}: {reason}", show(&[b"/", path.as_slice()].concat()));
    }
    let untold = report.failed - report.failures.len() as u64;
    if untold > 0 {
        eprintln!("tabane: flush: and {} more", plural(untold, "change"));
    }
    Ok(report)
}

/// Has the servers compare what is here with what is in the backing directory, and lists on standard error what is not
/// the same. How many that are.
pub async fn verify_all(files: &FileSystem, paths: &[Vec<u8>]) -> Outcome<Comparison> {
    let compared = files.compare_behind(paths, &|_| {}).await;
    let compared = compared.map_err(|error| Failure::failed(format!("both sides could not be compared: {error}")))?;
    for (path, words) in &compared.differences {
        eprintln!("tabane: verify: {}: {words}", show(&[b"/", path.as_slice()].concat()));
    }
    Ok(compared)
}

/// So many files are, in words.
pub fn are(count: u64) -> String {
    format!("{} {}", plural(count, "file"), if count == 1 { "is" } else { "are" })
}

/// `tabane flush`.
pub fn run(arguments: &Arguments) -> Outcome {
    if arguments.flag("verify") && !arguments.flag("wait") {
        return Err(Failure::usage("--verify compares when all has gone: say --wait too".to_owned()));
    }
    let session = Session::open(arguments)?;
    let reactor = session.reactor.clone();
    let of_root = |path: Vec<u8>| {
        let start = path.iter().position(|byte| *byte != b'/').unwrap_or(path.len());
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(start, |last| last + 1);
        path[start..end.max(start)].to_vec()
    };
    let mut paths: Vec<Vec<u8>> = arguments.operand_bytes().iter().map(|path| of_root(inside(path))).collect();
    if paths.iter().any(Vec::is_empty) {
        paths.clear();
    }
    if !arguments.flag("wait") {
        let begun = session.block_on(session.files.begin_flush(&paths));
        begun.map_err(|error| Failure::failed(error.to_string()))?;
        println!("the servers have begun; 'tabane flush --wait' waits for the end, and tells what could not go");
        return Ok(());
    }
    let started = reactor.now();
    let report = session.block_on(flush_all(&reactor, &session.files, &paths, arguments.flag("progress")))?;
    println!(
        "{}, {} are in the backing directory, after {}",
        plural(report.done, "change"),
        size_words(report.bytes),
        duration_words(reactor.now() - started)
    );
    if report.failed == 0 && arguments.flag("verify") {
        let compared = session.block_on(verify_all(&session.files, &paths))?;
        if !compared.differences.is_empty() {
            let count = compared.differences.len() as u64;
            eprintln!("tabane: flush: {} not the same in the backing directory", are(count));
            return Err(Failure::Said(SOME_FAILED));
        }
        println!("{}, {} compared: the same", plural(compared.files, "file"), size_words(compared.bytes));
    }
    if report.failed == 0 {
        return Ok(());
    }
    eprintln!(
        "tabane: flush: {} could not be carried back; the same command tries again",
        plural(report.failed, "change")
    );
    Err(Failure::Said(SOME_FAILED))
}
