//! A place that is gone through in steps of its own time, as if it were now.

use super::frames::{FrameMaker, LiveJob};
use super::hints_of;
use crate::clock::{Nanos, SECOND};
use crate::database::{self, Database, values};
use crate::failure::{Failure, Outcome};
use crate::place;
use crate::sources::{COUNTER_COUNT, Counters, Reading, Sink, Subject};
use std::path::{Path, PathBuf};

/// Events of the place that are shown.
const EVENTS_MAX: i64 = 50;
const ADVICE_SPAN: Nanos = 600 * SECOND;
const ADVICE_STEPS: u64 = 6;

pub struct Replay {
    file: PathBuf,
    database: Option<Database>,
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
        let database = place::open(file)?;
        let failed = |error: database::Error| place::about(file, &error);
        let span = "SELECT min(time_ns), max(time_ns) FROM samples";
        let (first, end): (Option<Nanos>, Option<Nanos>) =
            database.only(span, &[], |row| Ok((row.get(0)?, row.get(1)?))).map_err(failed)?;
        let (Some(first), Some(end)) = (first, end) else {
            return Err(Failure::failed(format!("{}: there are no samples in it to be replayed", file.display())));
        };
        let series = series_of(&database).map_err(failed)?;
        let mut maker = FrameMaker::default();
        for words in events_of(&database).map_err(failed)? {
            maker.event(&words);
        }
        let step = ((step * 1e9).min(1e18) as Nanos).max(1);
        let (file, database) = (file.to_owned(), Some(database));
        Ok(Replay { file, database, series, maker, now: first, end, step, number: 0 })
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
            self.maker.event(&place::words(&error));
        }
        if self.number % ADVICE_STEPS == 2
            && let Some(database) = self.database.take()
        {
            let (hints, database) =
                hints_of(database, &self.file, self.now.saturating_sub(ADVICE_SPAN).max(0), self.now);
            self.database = Some(database);
            self.maker.hints = hints.unwrap_or_default();
        }
        Some(self.maker.frame(self.now))
    }

    fn read(&mut self) -> database::Result<()> {
        let Some(database) = &self.database else { return Ok(()) };
        let last =
            "SELECT * FROM samples WHERE series = ?1 AND time_ns > ?2 AND time_ns <= ?3 ORDER BY time_ns DESC LIMIT 1";
        for (series, server, subject) in &self.series {
            let window = values![*series, self.now.saturating_sub(self.step), self.now];
            let found = database.first(last, window, |row| {
                let mut counters = Counters::default();
                for (index, counter) in counters.iter_mut().enumerate() {
                    *counter = row.get(4 + index)?;
                }
                Ok((row.get(1)?, counters))
            })?;
            if let Some((time, counters)) = found {
                let (server, subject) = (server.clone(), subject.clone());
                let reading = Reading { server, subject, time, snapshot: None, since: None, counters, line: 0 };
                // This sink fails at nothing.
                let _ = self.maker.reading(reading);
            }
        }
        let jobs = "SELECT job_id, name, \"user\" FROM jobs WHERE start_ns <= ?1 AND (end_ns IS NULL OR end_ns >= ?1)
                    ORDER BY start_ns DESC, job_id LIMIT 1000";
        let read = |row: &database::Row<'_>| Ok(LiveJob { id: row.get(0)?, name: row.get(1)?, user: row.get(2)? });
        self.maker.jobs = database.query(jobs, values![self.now], read)?;
        Ok(())
    }
}

const _: () = assert!(COUNTER_COUNT == 11, "samples have four columns before the counters");

fn series_of(database: &Database) -> database::Result<Vec<(i64, String, Subject)>> {
    let all = "SELECT series, name, kind, part, job FROM series JOIN servers USING (server) ORDER BY series";
    let found = database.query(all, &[], |row| {
        let (kind, part, job): (String, String, String) = (row.get(2)?, row.get(3)?, row.get(4)?);
        let subject = match kind.as_str() {
            "service" => Subject::Service(part),
            "target" => Subject::Target(part),
            "job" => Subject::Job { target: part, id: job },
            "number" => Subject::Number(part),
            _ => return Ok(None),
        };
        Ok(Some((row.get(0)?, row.get(1)?, subject)))
    })?;
    Ok(found.into_iter().flatten().collect())
}

fn events_of(database: &Database) -> database::Result<Vec<String>> {
    let first = "SELECT source, why FROM events ORDER BY source, line, why LIMIT ?1";
    let read = |row: &database::Row<'_>| Ok(format!("{}: {}", row.get::<String>(0)?, row.get::<String>(1)?));
    let read = database.query(first, values![EVENTS_MAX], read)?;
    Ok(read.iter().map(|words| crate::words::name(words)).collect())
}
