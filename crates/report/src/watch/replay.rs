//! A place that is gone through in steps of its own time, as if it were now.

use super::frames::{FrameMaker, LiveJob};
use super::hints_of;
use crate::clock::{Nanos, SECOND};
use crate::failure::{Failure, Outcome};
use crate::place;
use crate::sources::{COUNTER_COUNT, Counters, Reading, Sink, Subject};
use rusqlite::{Connection, OptionalExtension, params};
use std::path::{Path, PathBuf};

/// Events of the place that are shown.
const EVENTS_MAX: i64 = 50;
const ADVICE_SPAN: Nanos = 600 * SECOND;
const ADVICE_STEPS: u64 = 6;

pub struct Replay {
    file: PathBuf,
    connection: Option<Connection>,
    series: Vec<(i64, String, Subject)>,
    maker: FrameMaker,
    now: Nanos,
    end: Nanos,
    step: Nanos,
    number: u64,
}

impl Replay {
    /// `step`: seconds of the place's time from one frame to the next.
    pub fn open(file: &Path, step: f64) -> Outcome<Replay> {
        let connection = place::open(file)?;
        let failed = |error: rusqlite::Error| place::about(file, &error);
        let span = "SELECT min(time_ns), max(time_ns) FROM samples";
        let (first, end): (Option<Nanos>, Option<Nanos>) =
            connection.query_row(span, [], |row| Ok((row.get(0)?, row.get(1)?))).map_err(failed)?;
        let (Some(first), Some(end)) = (first, end) else {
            return Err(Failure::failed(format!("{}: there are no samples in it to be replayed", file.display())));
        };
        let series = series_of(&connection).map_err(failed)?;
        let mut maker = FrameMaker::default();
        for words in events_of(&connection).map_err(failed)? {
            maker.event(&words);
        }
        let step = ((step * 1e9).min(1e18) as Nanos).max(1);
        let (file, connection) = (file.to_owned(), Some(connection));
        Ok(Replay { file, connection, series, maker, now: first, end, step, number: 0 })
    }

    /// The next step; none behind the last one.
    pub fn frame(&mut self) -> Option<String> {
        if self.number > 0 && self.now >= self.end {
            return None;
        }
        if self.number > 0 {
            self.now = self.now.saturating_add(self.step);
        }
        self.number += 1;
        if let Err(error) = self.read() {
            self.maker.event(&error.to_string());
        }
        if self.number % ADVICE_STEPS == 2
            && let Some(connection) = self.connection.take()
        {
            let (hints, connection) =
                hints_of(connection, &self.file, self.now.saturating_sub(ADVICE_SPAN).max(0), self.now);
            self.connection = Some(connection);
            self.maker.hints = hints.unwrap_or_default();
        }
        Some(self.maker.frame(self.now))
    }

    fn read(&mut self) -> rusqlite::Result<()> {
        let Some(connection) = &self.connection else { return Ok(()) };
        let mut last = connection.prepare_cached(
            "SELECT * FROM samples WHERE series = ?1 AND time_ns > ?2 AND time_ns <= ?3 ORDER BY time_ns DESC LIMIT 1",
        )?;
        for (series, server, subject) in &self.series {
            let window = params![series, self.now.saturating_sub(self.step), self.now];
            let found = last
                .query_row(window, |row| {
                    let mut counters = Counters::default();
                    for (index, counter) in counters.iter_mut().enumerate() {
                        *counter = row.get(4 + index)?;
                    }
                    Ok((row.get(1)?, counters))
                })
                .optional()?;
            if let Some((time, counters)) = found {
                let (server, subject) = (server.clone(), subject.clone());
                let reading = Reading { server, subject, time, snapshot: None, since: None, counters, line: 0 };
                // This sink fails at nothing.
                let _ = self.maker.reading(reading);
            }
        }
        let mut jobs = connection.prepare_cached(
            "SELECT job_id, name, user FROM jobs WHERE start_ns <= ?1 AND (end_ns IS NULL OR end_ns >= ?1)
             ORDER BY start_ns DESC LIMIT 1000",
        )?;
        let read =
            jobs.query_map([self.now], |row| Ok(LiveJob { id: row.get(0)?, name: row.get(1)?, user: row.get(2)? }))?;
        self.maker.jobs = read.collect::<rusqlite::Result<Vec<LiveJob>>>()?;
        Ok(())
    }
}

const _: () = assert!(COUNTER_COUNT == 11, "samples have four columns before the counters");

fn series_of(connection: &Connection) -> rusqlite::Result<Vec<(i64, String, Subject)>> {
    let mut statement =
        connection.prepare("SELECT series, name, kind, part, job FROM series JOIN servers USING (server)")?;
    let mut found = Vec::new();
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (kind, part, job): (String, String, String) = (row.get(2)?, row.get(3)?, row.get(4)?);
        let subject = match kind.as_str() {
            "service" => Subject::Service(part),
            "target" => Subject::Target(part),
            "job" => Subject::Job { target: part, id: job },
            "number" => Subject::Number(part),
            _ => continue,
        };
        found.push((row.get(0)?, row.get(1)?, subject));
    }
    Ok(found)
}

fn events_of(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare("SELECT source, why FROM events ORDER BY source, line LIMIT ?1")?;
    let read = statement
        .query_map([EVENTS_MAX], |row| Ok(format!("{}: {}", row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
    let read: Vec<String> = read.collect::<rusqlite::Result<_>>()?;
    Ok(read.iter().map(|words| crate::words::name(words)).collect())
}
