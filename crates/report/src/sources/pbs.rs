//! Accounting files of PBS and Torque:
//!
//!     11/25/2026 10:00:00;E;4711.pbs;user=alice start=1795600800 end=1795602600 exec_host=n1/0+n2/0

use super::{Job, Sink, some_text};
use crate::clock::Nanos;
use crate::failure::Outcome;
use crate::lines::{Lines, Next};
use crate::times;
use std::collections::HashSet;

/// Nodes of one job; exec_host names each node once for each of its cores.
const HOSTS_MAX: usize = crate::host_list::HOSTS_MAX;

/// Whether a line is a record: a date, and three semicolons.
pub fn is_record(line: &str) -> bool {
    let date = line.split(';').next().unwrap_or_default();
    let digits = |at: usize, mark: u8| date.as_bytes().get(at) == Some(&mark);
    line.matches(';').count() >= 3 && digits(2, b'/') && digits(5, b'/') && digits(13, b':')
}

pub fn read(lines: &mut Lines<'_>, sink: &mut impl Sink) -> Outcome {
    loop {
        let (number, found) = match lines.next()? {
            Next::End => return Ok(()),
            Next::TooLong(number) => (number, Err("the line is too long".to_owned())),
            Next::Line(line) if line.text.trim().is_empty() => continue,
            Next::Line(line) => (line.number, job_of(&line.text, line.whole)),
        };
        match found {
            Ok(Some(job)) => sink.job(job)?,
            Ok(None) => (),
            Err(why) => sink.skipped(number, &why)?,
        }
    }
}

/// Of a record of a start (S) or an end (E); none for others.
fn job_of(line: &str, whole: bool) -> Result<Option<Job>, String> {
    if !is_record(line) {
        return Err("is no accounting record".into());
    }
    let mut fields = line.splitn(4, ';').skip(1);
    let (kind, id, rest) = (fields.next().unwrap_or(""), fields.next().unwrap_or(""), fields.next().unwrap_or(""));
    if !matches!(kind, "S" | "E") {
        return Ok(None);
    }
    if !whole {
        return Err("the line is cut".into());
    }
    if id.is_empty() {
        return Err("names no job".into());
    }
    let mut job = Job { id: id.to_owned(), ..Job::default() };
    let time = |text: &str| -> Result<Option<Nanos>, String> {
        times::parse_seconds(text).map(Some).ok_or_else(|| format!("\"{}\" is no time", crate::words::name(text)))
    };
    for (key, value) in rest.split_whitespace().filter_map(|word| word.split_once('=')) {
        match key {
            "user" => job.user = some_text(value),
            "jobname" => job.name = some_text(value),
            "start" => job.start = time(value)?,
            "end" => job.end = time(value)?,
            "Exit_status" => job.state = Some(format!("exit {value}")),
            "exec_host" => job.nodes = Some(hosts_of(value)?),
            _ => (),
        }
    }
    Ok(Some(job))
}

/// `n1/0*8+n2/0*8` or `n1/0+n1/1+n2/0`: each host once, in their order.
fn hosts_of(text: &str) -> Result<String, String> {
    let (mut seen, mut names) = (HashSet::new(), Vec::new());
    for part in text.split('+') {
        let host = part.split('/').next().unwrap_or_default().trim_matches(['(', ')']);
        if host.contains(['[', ']', ',']) {
            return Err("its nodes can't be read: a bracket or comma in a name".into());
        }
        if !host.is_empty() && seen.insert(host) {
            names.push(host);
        }
    }
    if names.len() > HOSTS_MAX { Err("its nodes are too many".into()) } else { Ok(names.join(",")) }
}

#[cfg(test)]
mod tests {
    use super::super::collected::Collected;
    use super::*;

    /// Goal: starts and ends give jobs, each host once, other records nothing, and cut or foreign lines are named.
    #[test]
    fn records() {
        let text = "11/25/2026 10:00:00;Q;12.pbs;queue=batch\n\
            11/25/2026 10:00:01;S;12.pbs;user=alice jobname=ior start=1795600800 exec_host=n1/0+n1/1+n2/0*8\n\
            11/25/2026 10:30:01;E;12.pbs;user=alice start=1795600800 end=1795602600 exec_host=n1/0 Exit_status=0\n\
            what is this\n\
            11/25/2026 10:30:01;E;13.pbs;user=alice start=17956";
        let mut sink = Collected::default();
        read(&mut Lines::of("x", text.as_bytes()), &mut sink).unwrap();
        assert_eq!(sink.jobs.len(), 2);
        assert_eq!(sink.jobs[0].nodes.as_deref(), Some("n1,n2"));
        assert_eq!((sink.jobs[0].end, sink.jobs[1].end), (None, Some(1_795_602_600_000_000_000)));
        assert_eq!(sink.jobs[1].state.as_deref(), Some("exit 0"));
        assert_eq!(sink.skipped.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [4, 5]);
    }
}
