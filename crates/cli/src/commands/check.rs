//! `tabane check`.

use crate::activity::{Activity, Prints, held};
use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome};
use crate::session::Session;
use crate::text::{count_words, plural};
use crate::together::{Either, race};
use client::check::{CheckCounts, CheckOptions, CheckReport, Fault};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write as _;

/// Exit statuses, as those of fsck(8).
const EXIT_REPAIRED: u8 = 1;
const EXIT_LEFT: u8 = 4;
const EXIT_TROUBLE: u8 = 8;

/// A fault and what became of it.
struct FaultLine {
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
    let as_json = arguments.flag("json");
    let options = CheckOptions { data: arguments.flag("data") };
    let activity = Activity::new("records checked");
    let mut lines = Vec::new();
    let mut said = Ok(());
    let mut on_repair = |fault: &Fault, outcome: &client::Result<String>| {
        activity.clear();
        let remedy = outcome.clone().map_err(|error| error.message.clone());
        let line = FaultLine { fault: fault.clone(), remedy };
        if !as_json && said.is_ok() {
            let text = format!("{}\n", line.words(repair, dry_run));
            said = std::io::stdout().write_all(text.as_bytes()).map_err(Failure::of_output);
        }
        lines.push(line);
    };
    let only_look = dry_run || !repair;
    let show = |counts: &CheckCounts| activity.done.set(counts.names + counts.inodes + counts.chunks);
    let check = session.files.check_and_repair(&options, only_look, &show, &mut on_repair);
    let total = async {
        let (inodes, chunks) = held(&session).await;
        // Each inode has a name, but for a few; those with several do not change the time by much.
        activity.set_total(2 * inodes + if options.data { chunks } else { 0 });
    };
    let progress = async {
        match arguments.flag("quiet") {
            true => std::future::pending().await,
            false => activity.show_beside(&session.reactor, arguments, Prints::AtTheEnd, total).await,
        }
    };
    let report = match session.block_on(race(check, progress)) {
        Either::First(report) => report.map_err(|error| trouble(&error.message)),
        Either::Second(()) => unreachable!("progress is shown until the check is made"),
    };
    said?;
    let report = report?;
    let text = if as_json {
        format!("{:#}\n", to_json(&report, &lines, !only_look))
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

impl FaultLine {
    fn words(&self, repair: bool, dry_run: bool) -> String {
        match &self.remedy {
            Ok(remedy) if dry_run => format!("{}: would {remedy}", self.fault),
            Ok(remedy) if repair => format!("{}: repaired: {remedy}", self.fault),
            Ok(_) => self.fault.to_string(),
            Err(reason) => format!("{}: not repaired: {reason}", self.fault),
        }
    }
}

fn summary(report: &CheckReport, lines: &[FaultLine], repairing: bool) -> String {
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

fn to_json(report: &CheckReport, lines: &[FaultLine], repairing: bool) -> Value {
    let CheckCounts { names, inodes, directories, shares, chunks, suspects } = report.counts;
    let faults = lines.iter().map(|line| {
        json!({
            "fault": line.fault.code(),
            "inode": line.fault.id().to_string(),
            "words": line.fault.to_string(),
            "remedy": line.remedy.as_ref().unwrap_or_else(|reason| reason),
            "repaired": repairing && line.remedy.is_ok(),
        })
    });
    json!({
        "names": names,
        "inodes": inodes,
        "directories": directories,
        "shares": shares,
        "chunks": chunks,
        "suspects": suspects,
        "undecided": report.undecided.len(),
        "left": report.faults.len(),
        "faults": faults.collect::<Vec<Value>>(),
    })
}
