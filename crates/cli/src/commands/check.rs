//! `tabane check`.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome};
use crate::session::Session;
use crate::text::{count_words, plural};
use client::check::{CheckCounts, CheckOptions, CheckReport, Fault};
use reactor::Nanos;
use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};

/// Exit statuses, as those of fsck(8).
const EXIT_REPAIRED: u8 = 1;
const EXIT_LEFT: u8 = 4;
const EXIT_TROUBLE: u8 = 8;

const PROGRESS_PAUSE: Nanos = 200_000_000;

/// A fault and what became of it.
struct Line {
    fault: Fault,
    /// What was done, or would be; or why nothing was.
    remedy: Result<String, String>,
}

/// `tabane check`.
pub fn run(arguments: &Arguments) -> Outcome {
    let session = Session::open(arguments).map_err(|failure| match failure {
        Failure::Failed(words) => trouble(&words),
        other => other,
    })?;
    let (repair, dry_run) = (arguments.flag("repair"), arguments.flag("dry-run"));
    let json = arguments.flag("json");
    let options = CheckOptions { data: arguments.flag("data") };
    let progress = Display::new(&session, arguments.flag("quiet"));
    let mut lines = Vec::new();
    let mut said = Ok(());
    let mut on_repair = |fault: &Fault, outcome: &client::Result<String>| {
        progress.clear();
        let remedy = outcome.clone().map_err(|error| error.message.clone());
        let line = Line { fault: fault.clone(), remedy };
        if !json && said.is_ok() {
            let text = format!("{}\n", line.words(repair, dry_run));
            said = std::io::stdout().write_all(text.as_bytes()).map_err(Failure::of_output);
        }
        lines.push(line);
    };
    let only_look = dry_run || !repair;
    let show = |counts: &CheckCounts| progress.show(counts);
    let check = session.files.check_and_repair(&options, only_look, &show, &mut on_repair);
    let report = session.block_on(check);
    progress.clear();
    said?;
    let report = report.map_err(|error| trouble(&error.message))?;
    let text = if json {
        to_json(&report, &lines, !only_look)
    } else if arguments.flag("quiet") {
        String::new()
    } else {
        summary(&report, &lines, !only_look)
    };
    std::io::stdout().write_all(text.as_bytes()).map_err(Failure::of_output)?;
    match (report.faults.is_empty(), lines.is_empty()) {
        (true, true) => Ok(()),
        (true, false) => Err(Failure::Said(EXIT_REPAIRED)),
        (false, _) => Err(Failure::Said(EXIT_LEFT)),
    }
}

/// The check could not be made.
fn trouble(words: &str) -> Failure {
    eprintln!("tabane: check: {words}");
    Failure::Said(EXIT_TROUBLE)
}

impl Line {
    fn words(&self, repair: bool, dry_run: bool) -> String {
        match &self.remedy {
            Ok(remedy) if dry_run => format!("{}: would {remedy}", self.fault),
            Ok(remedy) if repair => format!("{}: repaired: {remedy}", self.fault),
            Ok(_) => self.fault.to_string(),
            Err(reason) => format!("{}: not repaired: {reason}", self.fault),
        }
    }
}

fn summary(report: &CheckReport, lines: &[Line], repairing: bool) -> String {
    let CheckCounts { names, inodes, directories, chunks, .. } = report.counts;
    let mut text = format!(
        "checked {} names and {} inodes, {} of them directories",
        count_words(names),
        count_words(inodes),
        count_words(directories)
    );
    if chunks > 0 {
        let _ = write!(text, ", and the data of {} chunks", count_words(chunks));
    }
    let left = report.faults.len() as u64;
    let repaired = lines.iter().filter(|line| repairing && line.remedy.is_ok()).count() as u64;
    let _ = match (left, repaired) {
        (0, 0) => write!(text, ": all is well"),
        (0, _) => write!(text, ": {} repaired", plural(repaired, "fault")),
        (_, 0) => write!(text, ": {} found", plural(left, "fault")),
        _ => write!(text, ": {} repaired, {} left", plural(repaired, "fault"), plural(left, "fault")),
    };
    if !report.undecided.is_empty() {
        let count = report.undecided.len() as u64;
        let _ = write!(text, "; {} changed whenever looked at", plural(count, "inode"));
    }
    text.push('\n');
    text
}

fn to_json(report: &CheckReport, lines: &[Line], repairing: bool) -> String {
    let CheckCounts { names, inodes, directories, shares, chunks, suspects } = report.counts;
    let mut text = format!(
        "{{\"names\":{names},\"inodes\":{inodes},\"directories\":{directories},\"shares\":{shares},\"chunks\":{chunks},\
         \"suspects\":{suspects},\"undecided\":{},\"left\":{},\"faults\":[",
        report.undecided.len(),
        report.faults.len()
    );
    for (index, line) in lines.iter().enumerate() {
        let separator = if index == 0 { "" } else { "," };
        let _ = write!(
            text,
            "{separator}{{\"fault\":\"{}\",\"inode\":\"{}\",\"words\":{},\"remedy\":{},\"repaired\":{}}}",
            line.fault.code(),
            line.fault.id(),
            json_text(&line.fault.to_string()),
            json_text(line.remedy.as_ref().unwrap_or_else(|reason| reason)),
            repairing && line.remedy.is_ok()
        );
    }
    text.push_str("]}\n");
    text
}

fn json_text(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter < ' ' => drop(write!(quoted, "\\u{:04x}", u32::from(letter))),
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

/// How far the check is, on a terminal.
struct Display<'a> {
    session: &'a Session,
    wanted: bool,
    shown: Cell<Option<Nanos>>,
}

impl<'a> Display<'a> {
    fn new(session: &'a Session, quiet: bool) -> Display<'a> {
        let wanted = !quiet && std::io::stderr().is_terminal();
        Display { session, wanted, shown: Cell::new(None) }
    }

    fn show(&self, counts: &CheckCounts) {
        let now = self.session.reactor.now();
        if !self.wanted || self.shown.get().is_some_and(|shown| now < shown + PROGRESS_PAUSE) {
            return;
        }
        self.shown.set(Some(now));
        let (names, inodes) = (count_words(counts.names), count_words(counts.inodes));
        eprint!("\r\x1b[Kchecked {names} names, {inodes} inodes, {} chunks", count_words(counts.chunks));
    }

    fn clear(&self) {
        if self.shown.take().is_some() {
            eprint!("\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: names of any bytes do not break the JSON.
    #[test]
    fn json_is_escaped() {
        assert_eq!(json_text("a\"b\\c\nd"), "\"a\\\"b\\\\c\\u000ad\"");
    }
}
