//! Jobs, of whatever batch system: tells how a file is written, and reads tables.

use super::table::{Columns, Style, TableRow};
use super::{Job, Sink, pbs, sacct_json, some_text};
use crate::clock::Nanos;
use crate::failure::{Failure, Outcome, io_words};
use crate::lines::{Lines, Next};
use crate::options::JobsFormat;
use crate::progress::Progress;
use crate::{host_list, times, words};
use jiff::tz::TimeZone;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// Enough to tell how a file is written.
const LOOK_SIZE: usize = 64 << 10;
/// What batch systems write where there is no time.
const NO_TIMES: [&str; 6] = ["", "unknown", "none", "n/a", "0", "-"];

/// Reads a file of jobs; `-` is standard input.
pub fn read(
    file: &Path,
    format: Option<JobsFormat>,
    zone: &TimeZone,
    progress: &Progress,
    sink: &mut impl Sink,
) -> Outcome {
    let name = if file.as_os_str() == "-" { "standard input".to_owned() } else { file.display().to_string() };
    let input: Box<dyn Read> = match file.as_os_str() == "-" {
        true => Box::new(std::io::stdin().lock()),
        false => Box::new(File::open(file).map_err(|error| Failure::of_file(file, &error))?),
    };
    let mut input = BufReader::with_capacity(LOOK_SIZE, Counted { input, progress });
    let begun = input.fill_buf().map_err(|error| Failure::failed(format!("{name}: {}", io_words(&error))))?;
    let format = format.unwrap_or_else(|| format_of(begun));
    match format {
        JobsFormat::SacctJson => sacct_json::read(&name, input, sink),
        JobsFormat::Pbs => pbs::read(&mut Lines::of(&name, input), sink),
        JobsFormat::Sacct => read_table(&name, Style::Bars, &mut Lines::of(&name, input), zone, sink),
        JobsFormat::Csv => read_table(&name, Style::Csv, &mut Lines::of(&name, input), zone, sink),
    }
}

/// Tells the progress what is read.
struct Counted<'a, R> {
    input: R,
    progress: &'a Progress,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let size = self.input.read(buffer)?;
        self.progress.add(size as u64);
        Ok(size)
    }
}

fn format_of(begun: &[u8]) -> JobsFormat {
    let text = String::from_utf8_lossy(begun);
    let line = text.trim_start().lines().next().unwrap_or_default();
    if line.starts_with('{') {
        JobsFormat::SacctJson
    } else if pbs::is_record(line) {
        JobsFormat::Pbs
    } else if line.contains('|') {
        JobsFormat::Sacct
    } else {
        JobsFormat::Csv
    }
}

pub fn read_table(name: &str, style: Style, lines: &mut Lines<'_>, zone: &TimeZone, sink: &mut impl Sink) -> Outcome {
    let needed: &[&str] = match style {
        Style::Bars => &["jobid", "start", "end", "nodelist"],
        Style::Csv => &["id", "start", "end", "nodes"],
    };
    let mut columns = None;
    loop {
        let (number, text, whole) = match lines.next()? {
            Next::End => return Ok(()),
            Next::TooLong(number) => {
                sink.skipped(number, "the line is too long")?;
                continue;
            }
            Next::Line(line) => (line.number, line.text, line.whole),
        };
        if text.trim().is_empty() {
            continue;
        }
        let Some(columns) = &columns else {
            columns = Some(Columns::of(style, &text, needed).map_err(|why| {
                let advice = "write it with sacct --parsable2, or say what it is with --format";
                Failure::failed(format!("{name}: {why}; {advice}"))
            })?);
            continue;
        };
        let found = columns.row(&text).and_then(|row| job_of(style, &row, zone));
        match found {
            // What stands last may have been longer.
            Ok(Some(_)) if !whole && style == Style::Csv && is_cut(&text) => {
                sink.skipped(number, "the line may be cut")?;
            }
            Ok(Some(job)) => sink.job(job)?,
            Ok(None) => (),
            Err(why) => sink.skipped(number, &why)?,
        }
    }
}

/// Whether a last line without an end has an open quote or a host list that is not closed.
fn is_cut(text: &str) -> bool {
    !text.matches('"').count().is_multiple_of(2) || text.matches('[').count() != text.matches(']').count()
}

/// None for a step of a job.
fn job_of(style: Style, row: &TableRow<'_>, zone: &TimeZone) -> Result<Option<Job>, String> {
    let (id, raw, nodes, name) = match style {
        Style::Bars => ("jobid", "jobidraw", "nodelist", "jobname"),
        Style::Csv => ("id", "raw_id", "nodes", "name"),
    };
    let id = row.get(id);
    if id.is_empty() {
        return Err("names no job".into());
    }
    if style == Style::Bars && id.contains('.') {
        return Ok(None);
    }
    let time = |column: &str| time_of(row.get(column), zone);
    Ok(Some(Job {
        id: id.to_owned(),
        lustre_id: some_text(row.get(raw)).filter(|raw| raw != id),
        name: some_text(row.get(name)),
        user: some_text(row.get("user")),
        state: some_text(row.get("state")),
        start: time("start")?,
        end: time("end")?,
        nodes: nodes_of(row.get(nodes))?,
    }))
}

/// None where batch systems write that there is none.
fn time_of(text: &str, zone: &TimeZone) -> Result<Option<Nanos>, String> {
    if NO_TIMES.contains(&text.to_ascii_lowercase().as_str()) {
        return Ok(None);
    }
    match times::parse(text, zone) {
        Some(time) => Ok(Some(time)),
        None => Err(format!("\"{}\" is no time", words::name(text))),
    }
}

/// A host list that can be read; none where no node was given yet.
pub fn nodes_of(text: &str) -> Result<Option<String>, String> {
    if text.is_empty() || text.eq_ignore_ascii_case("none assigned") || text == "(null)" {
        return Ok(None);
    }
    match host_list::check(text) {
        Ok(()) => Ok(Some(text.to_owned())),
        Err(why) => Err(format!("its nodes can't be read: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::collected::Collected;
    use super::*;

    fn read_all(style: Style, text: &str) -> (Outcome, Collected) {
        let mut sink = Collected::default();
        let outcome = read_table("x", style, &mut Lines::of("x", text.as_bytes()), &TimeZone::UTC, &mut sink);
        (outcome, sink)
    }

    /// Goal: sacct's table gives jobs and no steps, times of jobs that wait or run are left open, an array's task keeps
    /// the id that Lustre sees, and lines that can't be meant are named.
    #[test]
    fn sacct_table() {
        let text = "JobID|JobIDRaw|JobName|User|State|Start|End|NodeList\n\
            4711|4711|ior|alice|COMPLETED|2026-11-25T10:00:00|2026-11-25T10:30:00|n[1-4]\n\
            4711.batch|4711.batch|batch||COMPLETED|2026-11-25T10:00:00|2026-11-25T10:30:00|n1\n\
            4712_3|4715|=cmd|bob|RUNNING|2026-11-25T10:00:00|Unknown|n5\n\
            4716|4716|x|bob|PENDING|Unknown|Unknown|None assigned\n\
            4717|4717|x|bob|FAILED|yesterday|Unknown|n1\n\
            4718|4718|x\n\
            4719|4719|x|bob|FAILED|Unknown|Unknown|n[1-\n";
        let (outcome, sink) = read_all(Style::Bars, text);
        outcome.unwrap();
        let ids: Vec<&str> = sink.jobs.iter().map(|job| job.id.as_str()).collect();
        assert_eq!(ids, ["4711", "4712_3", "4716"]);
        assert_eq!(sink.jobs[0].end.unwrap() - sink.jobs[0].start.unwrap(), 1800 * crate::clock::SECOND);
        assert_eq!((sink.jobs[0].lustre_id.as_deref(), sink.jobs[1].lustre_id.as_deref()), (None, Some("4715")));
        assert_eq!((sink.jobs[1].end, sink.jobs[2].start, sink.jobs[2].nodes.clone()), (None, None, None));
        let lines: Vec<u64> = sink.skipped.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [6, 7, 8], "{:?}", sink.skipped);
    }

    /// Goal: a CSV table may have its columns in any order, and quotes; a table without a needed column is refused with
    /// the columns that it has.
    #[test]
    fn csv_table() {
        let text = "name,nodes,id,end,start\n\"a, \"\"b\"\"\",\"n1,n2\",7,1795600900,1795600800\n";
        let (outcome, sink) = read_all(Style::Csv, text);
        outcome.unwrap();
        assert_eq!(sink.jobs[0].name.as_deref(), Some("a, \"b\""));
        assert_eq!(sink.jobs[0].nodes.as_deref(), Some("n1,n2"));
        let (outcome, _) = read_all(Style::Csv, "id,begin\n1,2\n");
        let Err(Failure::Failed(words)) = outcome else { panic!() };
        assert!(words.contains("no column start") && words.contains("begin"), "{words}");
    }

    /// Goal: how a file is written is told from its first line.
    #[test]
    fn formats() {
        for (text, format) in [
            ("\n {\"jobs\": []}", JobsFormat::SacctJson),
            ("JobID|Start", JobsFormat::Sacct),
            ("11/25/2026 10:00:00;E;1.pbs;user=x", JobsFormat::Pbs),
            ("id,start", JobsFormat::Csv),
            ("", JobsFormat::Csv),
        ] {
            assert_eq!(format_of(text.as_bytes()), format, "{text}");
        }
    }
}
