//! Darshan's log of a job: bytes, calls and times as the program's processes saw them, which stand beside what the
//! servers counted. It is read as `darshan-parser` prints it.
//!
//! Lines are `MODULE RANK RECORD COUNTER VALUE FILE ...`; those that begin with `#` tell of the job. Of a file that all
//! ranks share (rank -1) times are summed over ranks, as of others.

mod log_file;

use crate::analysis::FoundJob;
use crate::clock::SECOND;
use crate::failure::{Failure, Outcome};
use crate::lines::{Lines, Next};
use crate::progress::Progress;
use crate::words;
use log_file::Printer;
use std::collections::BTreeMap;
use std::path::Path;

/// Layers of a program's I/O, from the lowest: what a higher one passes on, a lower one counts again.
const MODULES: [(&str, &str); 3] = [("POSIX", "POSIX"), ("MPI-IO", "MPIIO"), ("STDIO", "STDIO")];

/// One layer.
#[derive(Debug, Default, Clone, PartialEq)]
struct DarshanModule {
    read_bytes: f64,
    write_bytes: f64,
    calls: f64,
    read_seconds: f64,
    write_seconds: f64,
    meta_seconds: f64,
    /// The longest time of one rank with one shared file, and which rank that was.
    slowest: Option<(f64, i64)>,
}

/// What the log of a job says.
#[derive(Debug, Default, PartialEq)]
pub struct DarshanLog {
    job: Option<String>,
    processes: Option<u64>,
    start: Option<i64>,
    end: Option<i64>,
    modules: BTreeMap<&'static str, DarshanModule>,
    not_understood: u64,
}

/// Of a log, or of what `darshan-parser` has printed of one.
pub fn read(file: &Path) -> Outcome<DarshanLog> {
    let progress = Progress::new(0);
    let log = if log_file::is_log(file) {
        let mut printer = Printer::start(file)?;
        let output = printer.output().ok_or_else(|| Failure::failed("darshan-parser: it has no output"))?;
        let log = parse(Lines::of(&file.display().to_string(), output))?;
        printer.end(file)?;
        log
    } else {
        parse(Lines::open(file, &progress)?)?
    };
    if log.modules.is_empty() {
        return Err(Failure::failed(format!(
            "{}: there is nothing of POSIX, MPI-IO or STDIO in it; is it a log of Darshan, or what \
             'darshan-parser LOG' prints?",
            file.display()
        )));
    }
    Ok(log)
}

fn parse(mut lines: Lines) -> Outcome<DarshanLog> {
    let mut log = DarshanLog::default();
    let mut slowest_rank = None;
    loop {
        match lines.next()? {
            Next::End => break,
            Next::TooLong(_) => log.not_understood += 1,
            Next::Line(line) if line.text.starts_with('#') => log.head(&line.text),
            Next::Line(line) if line.text.trim().is_empty() => (),
            // A line without an end may be cut within its number.
            Next::Line(line) => match line.whole.then(|| log.counter(&line.text, &mut slowest_rank)).flatten() {
                Some(()) => (),
                None => log.not_understood += 1,
            },
        }
    }
    Ok(log)
}

impl DarshanLog {
    fn head(&mut self, line: &str) {
        let Some((name, value)) = line.trim_start_matches('#').split_once(':') else { return };
        let value = value.trim();
        match name.trim() {
            "jobid" => self.job = Some(value.to_owned()),
            "nprocs" => self.processes = value.parse().ok(),
            "start_time" => self.start = value.parse().ok(),
            "end_time" => self.end = value.parse().ok(),
            _ => (),
        }
    }

    /// `slowest_rank`: that of the record before, whose time is another line.
    fn counter(&mut self, line: &str, slowest_rank: &mut Option<i64>) -> Option<()> {
        let mut fields = line.split_whitespace();
        let (module, _rank, _record) = (fields.next()?, fields.next()?.parse::<i64>().ok()?, fields.next()?);
        let (counter, value) = (fields.next()?, fields.next()?.parse::<f64>().ok().filter(|value| value.is_finite())?);
        let Some((name, prefix)) = MODULES.iter().find(|(name, _)| *name == module) else { return Some(()) };
        let counter = counter.strip_prefix(prefix)?.strip_prefix('_')?;
        let of = self.modules.entry(name).or_default();
        match counter {
            "BYTES_READ" => of.read_bytes += value.max(0.0),
            "BYTES_WRITTEN" => of.write_bytes += value.max(0.0),
            "OPENS" | "READS" | "WRITES" | "SEEKS" | "STATS" | "FSYNCS" | "FDSYNCS" | "INDEP_OPENS" | "COLL_OPENS"
            | "INDEP_READS" | "INDEP_WRITES" | "COLL_READS" | "COLL_WRITES" => of.calls += value.max(0.0),
            "F_READ_TIME" => of.read_seconds += value,
            "F_WRITE_TIME" => of.write_seconds += value,
            "F_META_TIME" => of.meta_seconds += value,
            "SLOWEST_RANK" => *slowest_rank = Some(value as i64),
            "F_SLOWEST_RANK_TIME" if value > of.slowest.map_or(0.0, |(most, _)| most) => {
                of.slowest = Some((value, slowest_rank.unwrap_or(-1)));
            }
            _ => (),
        }
        Some(())
    }

    /// Lines about the log, and what in it does not fit the job.
    pub fn words(&self, job: &FoundJob) -> Vec<String> {
        let seconds = |value: f64| words::microseconds(value * 1e6);
        let processes = self
            .processes
            .map(|count| format!(" of {}", words::plural(count, "process").replace("processs", "processes")));
        let mut lines = vec![format!("  Darshan's log{}:", processes.unwrap_or_default())];
        for (name, of) in &self.modules {
            lines.push(format!(
                "    {name}: read {} in {}, wrote {} in {}, opens and looks {}, {} calls (times of all processes)",
                words::size(of.read_bytes),
                seconds(of.read_seconds),
                words::size(of.write_bytes),
                seconds(of.write_seconds),
                seconds(of.meta_seconds),
                words::count(of.calls as u64)
            ));
            if let Some((most, rank)) = of.slowest.filter(|(_, rank)| *rank >= 0) {
                lines.push(format!("    {name}: the slowest rank with one file was {rank}: {}", seconds(most)));
            }
        }
        if let Some(other) = self.job.as_ref().filter(|id| **id != job.id && Some(*id) != job.lustre_id.as_ref()) {
            lines.push(format!("    it is of job {}, by its own words", words::name(other)));
        }
        if let (Some(start), Some(end)) = (self.start, self.end)
            && (end < job.start / SECOND || start > job.end / SECOND)
        {
            lines.push("    it is of another time than the job".to_owned());
        }
        if self.not_understood > 0 {
            lines.push(format!("    {} of it can't be understood", words::plural(self.not_understood, "line")));
        }
        lines
    }
}
