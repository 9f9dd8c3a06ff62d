//! What `lctl get_param` prints of one server, again and again: parameters, each with its text behind it.
//!
//! Which version prints what, as far as it matters here (lustre-release, `lprocfs_status.c` and `lprocfs_jobstats.c`):
//!
//! - snapshot_time of stats: up to 2.10 `S.U secs.usecs`, U microseconds that are not padded with zeros; 2.11
//!   `S.N secs.usecs`, N nanoseconds behind spaces; from 2.12 on `S.N secs.nsecs`; since 2.15 (and DDN's 2.14) followed
//!   by start_time and elapsed_time.
//! - Units are `[usec]` and `[sec]`; from 2.15 on, and in DDN's 2.14, `[usecs]` and `[secs]`. Bytes have no sum of
//!   squares in older versions.
//! - job_stats: snapshot_time in whole seconds in older versions, as in stats from 2.15 on. Bytes are called `read` and
//!   `write` in the first versions (2.3, 2.4), then `read_bytes` and `write_bytes`, in newer ones with `read` and
//!   `write` for times besides. Job ids are printed as they are; quoted, with `\xHH` where needed, from 2.15 on.
//!
//! A counter that has counted nothing is not printed. A parameter without any is on one line with its snapshot_time,
//! and one that prints nothing at all is followed by the next at once.
//!
//! Invariants: (1) a number counts only if what stands behind it shows that it is whole; (2) a counter that is not
//! printed is 0 only if something follows the section, for else it may be cut.

use super::hosts::HostText;
use super::job_stats::JobSection;
use super::stats::StatsSection;
use super::{Sink, Subject};
use crate::clock::Nanos;
use crate::failure::Outcome;

/// A line of a text, and where it stood.
#[derive(Debug, Clone, Copy)]
pub struct TextLine<'a> {
    pub number: u64,
    pub text: &'a str,
    /// Whether its end was there.
    pub whole: bool,
}

/// The texts of one server, line by line.
pub struct Parser {
    server: String,
    section: Section,
    /// The last snapshot_time of statistics: by the server's clock it was that late at least.
    clock: Option<Nanos>,
    /// Whether the line before was of no use, so that one event tells of many.
    lost: bool,
}

/// When a text was printed, by each clock that tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clocks {
    pub collector: Option<Nanos>,
    /// Then or a little before.
    pub server: Option<Nanos>,
}

enum Section {
    /// No parameter was named yet.
    Outside,
    /// One that tells nothing that is wanted.
    Other,
    Stats(StatsSection),
    Jobs(JobSection),
}

impl HostText for Parser {
    fn new(server: &str) -> Parser {
        Parser { server: server.to_owned(), section: Section::Outside, clock: None, lost: false }
    }

    fn begins(line: &str) -> bool {
        parameter_of(line).is_some()
    }

    fn line(&mut self, line: TextLine<'_>, collected: Option<Nanos>, sink: &mut impl Sink) -> Outcome {
        if let Some((parameter, rest)) = parameter_of(line.text) {
            self.end(true, sink)?;
            self.section = section_of(&parameter);
            if rest.trim().is_empty() {
                return Ok(());
            }
            return self.content(TextLine { text: rest, ..line }, collected, sink);
        }
        self.content(line, collected, sink)
    }

    /// The section ends.
    fn end(&mut self, complete: bool, sink: &mut impl Sink) -> Outcome {
        match std::mem::replace(&mut self.section, Section::Outside) {
            Section::Outside | Section::Other => Ok(()),
            Section::Stats(mut section) => section.end(&self.server, complete, sink),
            Section::Jobs(mut section) => section.end(&self.server, complete, sink),
        }
    }
}

impl Parser {
    fn content(&mut self, line: TextLine<'_>, collected: Option<Nanos>, sink: &mut impl Sink) -> Outcome {
        if line.text.trim().is_empty() {
            return Ok(());
        }
        let lost = std::mem::replace(&mut self.lost, false);
        match &mut self.section {
            Section::Other => Ok(()),
            Section::Stats(section) => {
                section.line(&self.server, line, collected, sink)?;
                self.clock = section.snapshot().or(self.clock);
                Ok(())
            }
            Section::Jobs(section) => {
                let clocks = Clocks { collector: collected, server: self.clock };
                section.line(&self.server, line, clocks, sink)
            }
            Section::Outside => {
                self.lost = true;
                let why = "no parameter stands before it, such as ost.OSS.ost_io.stats=";
                if lost { Ok(()) } else { sink.skipped(line.number, why) }
            }
        }
    }
}

/// `ost.OSS.ost_io.stats=...`, or the head that `head` and `tail` write above a file, as such a parameter.
pub fn parameter_of(line: &str) -> Option<(String, &str)> {
    if let Some(path) = line.strip_prefix("==> ").and_then(|rest| rest.trim_end().strip_suffix(" <==")) {
        let (_, path) = path.rsplit_once("/lustre/")?;
        return Some((path.replace('/', "."), ""));
    }
    let (name, rest) = line.split_once('=')?;
    let is_name = name.starts_with(|letter: char| letter.is_ascii_alphabetic())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-@:".contains(&byte));
    is_name.then(|| (name.to_owned(), rest))
}

fn section_of(parameter: &str) -> Section {
    let parts: Vec<&str> = parameter.split('.').collect();
    match parts[..] {
        ["ost", "OSS", service, "stats"] | ["mds", "MDS", service, "stats"] => {
            Section::Stats(StatsSection::new(Subject::Service(service.to_owned())))
        }
        ["obdfilter", target, "stats"] => Section::Stats(StatsSection::new(Subject::Target(target.to_owned()))),
        ["obdfilter" | "mdt", target, "job_stats"] => Section::Jobs(JobSection::new(target)),
        _ => Section::Other,
    }
}

/// The time of `snapshot_time` and `start_time`, as the words behind it say how it is written; see the table above.
pub fn time_of(text: &str) -> Option<Nanos> {
    let text = text.trim();
    let (number, unit) = match text.find("secs") {
        Some(at) => (text[..at].trim().trim_end_matches('('), text[at..].trim_end_matches(')')),
        None => (text, ""),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let fraction = fraction.trim();
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) || fraction.len() > 9 {
        return None;
    }
    let seconds = crate::times::parse_seconds(whole)?;
    let nanos: Nanos = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let scale = match unit {
        _ if fraction.is_empty() => 1,
        "secs.usecs" if fraction.len() <= 6 => 1_000,
        "secs.usecs" | "secs.nsecs" => 1,
        // Nothing says what it is: a decimal fraction.
        "" => return crate::times::parse_seconds(number),
        _ => return None,
    };
    Some(seconds + nanos * scale)
}

/// A counter's number; none above what is kept, which no real one reaches.
pub fn number_of(text: &str) -> Option<i64> {
    text.parse::<i64>().ok().filter(|number| *number >= 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SECOND;

    /// Goal: each version's way to write a time is read as it was meant.
    #[test]
    fn times_of_versions() {
        let seconds = 1_409_777_887 * SECOND;
        for (text, nanos) in [
            // 2.1 to 2.10: 5012 microseconds, without zeros before them.
            ("1409777887.5012 secs.usecs", 5_012_000),
            ("1409777887.590578 secs.usecs", 590_578_000),
            // 2.11: nanoseconds behind spaces, called microseconds.
            ("1409777887. 12345678 secs.usecs", 12_345_678),
            ("1409777887.612345678 secs.usecs", 612_345_678),
            // From 2.12 on.
            ("1409777887.012345678 secs.nsecs", 12_345_678),
            ("1409777887.012345678 (secs.nsecs)", 12_345_678),
            // job_stats up to 2.14.
            ("1409777887", 0),
        ] {
            assert_eq!(time_of(text), Some(seconds + nanos), "{text}");
        }
        for text in ["", "secs.usecs", "x.5 secs.usecs", "1.x secs.nsecs", "1.5 secs.fsecs", "99999999999999 secs"] {
            assert_eq!(time_of(text), None, "{text}");
        }
    }

    /// Goal: parameters are told from what stands below them.
    #[test]
    fn parameters() {
        let of = |line| parameter_of(line).map(|(name, rest): (String, &str)| (name, rest.to_owned()));
        assert_eq!(of("ost.OSS.ost_io.stats="), Some(("ost.OSS.ost_io.stats".into(), String::new())));
        assert_eq!(of("version=2.15.5"), Some(("version".into(), "2.15.5".into())));
        assert_eq!(
            of("==> /proc/fs/lustre/obdfilter/fs-OST0000/stats <=="),
            Some(("obdfilter.fs-OST0000.stats".into(), String::new()))
        );
        for line in ["- job_id: a.b=c", "  read_bytes: { a.b=1 }", "req_waittime 1 samples [usec]", "{\"a\"=1", "1.2=3"]
        {
            assert_eq!(of(line), None, "{line}");
        }
    }
}
