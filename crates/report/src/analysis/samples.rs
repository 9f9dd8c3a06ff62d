//! Samples of the place, put on the axis of time.
//!
//! A sample with both clocks gives the offset of its server's: the median of all of them in the job's time. A sample
//! whose own offset is another one by more than a second was taken while the clock stood elsewhere (somebody set it):
//! it lies where the collector saw it.
//!
//! Invariant: no time on the axis is negative, so that the difference of two of them is a number.

use super::FoundJob;
use crate::clock::{Nanos, SECOND};
use crate::database::{self, Database, values};
use crate::sources::{Counters, NETWORKS, Network};

/// Samples that an offset and a spacing are told from.
const LOOKED_AT_MAX: i64 = 10_000;
/// The column of samples with the first of the counters.
const FIRST_COUNTER: usize = 4;
/// By how much an offset may vary; what is beyond is a clock that was set.
const OFFSET_SPREAD_MAX: Nanos = SECOND;

/// The clock of a server, as the axis sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    /// What is added to it.
    pub offset: Nanos,
    pub how: HowKnown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HowKnown {
    /// From samples that have both clocks.
    Measured,
    Given,
    /// Nothing is known; it is believed.
    Believed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Service,
    Target,
    Job,
    Network(Network),
    Number,
}

#[derive(Debug, Clone)]
pub struct Series {
    series: i64,
    pub kind: Kind,
}

/// One sample on the axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    pub time: Nanos,
    /// Until when the counters are known to have stayed as they are.
    pub held_until: Nanos,
    /// Since when they have counted.
    pub since: Option<Nanos>,
    pub counters: Counters,
}

/// What is wanted of a server: its queue, its targets, the job at its targets, its networks.
pub fn series_of(
    database: &Database,
    server: &str,
    service: &str,
    lustre_ids: &[String],
) -> database::Result<Vec<Series>> {
    let mut found = Vec::new();
    let mut of = |condition: &str, kind: Kind, value: &str| -> database::Result<()> {
        let statement = format!(
            "SELECT series FROM series JOIN servers USING (server)
             WHERE servers.name = ?1 AND {condition} ORDER BY part"
        );
        for series in database.query(&statement, values![server, value], |row| row.get(0))? {
            found.push(Series { series, kind });
        }
        Ok(())
    };
    // A server of Tabane has one queue, whatever Lustre's are called.
    of("kind = 'service' AND part IN (?2, 'tabane')", Kind::Service, service)?;
    of("kind = ?2", Kind::Target, "target")?;
    for id in lustre_ids {
        of("kind = 'job' AND job = ?2 AND job <> ''", Kind::Job, id)?;
    }
    for network in NETWORKS {
        of("kind = ?2", Kind::Network(network), network.name())?;
    }
    Ok(found)
}

/// The numbers that a server has told of itself, each by its name.
pub fn numbers_of(database: &Database, server: &str) -> database::Result<Vec<(String, Series)>> {
    let all = "SELECT part, series FROM series JOIN servers USING (server)
               WHERE servers.name = ?1 AND kind = 'number' ORDER BY part";
    let read = |row: &database::Row<'_>| Ok((row.get(0)?, Series { series: row.get(1)?, kind: Kind::Number }));
    database.query(all, values![server], read)
}

/// What a server told of its parts of a kind: each by its name, the job that it is of, and its series.
pub fn parts_of(database: &Database, server: &str, kind: &str) -> database::Result<Vec<(String, String, Series)>> {
    let all = "SELECT part, job, series FROM series JOIN servers USING (server)
               WHERE servers.name = ?1 AND kind = ?2 ORDER BY job, part";
    let read =
        |row: &database::Row<'_>| Ok((row.get(0)?, row.get(1)?, Series { series: row.get(2)?, kind: Kind::Number }));
    database.query(all, values![server, kind], read)
}

pub fn clock_of(database: &Database, server: &str, job: &FoundJob) -> database::Result<Clock> {
    let distances = "SELECT time_ns - snapshot_ns FROM series JOIN servers USING (server) JOIN samples USING (series)
                     WHERE servers.name = ?1 AND kind IN ('service', 'target') AND snapshot_ns IS NOT NULL
                         AND time_ns BETWEEN ?2 AND ?3 ORDER BY series, time_ns LIMIT ?4";
    let window = values![server, job.start, job.end, LOOKED_AT_MAX];
    let mut offsets: Vec<Nanos> = database.query(distances, window, |row| row.get(0))?;
    if let Some(offset) = median(&mut offsets) {
        return Ok(Clock { offset, how: HowKnown::Measured });
    }
    let given = "SELECT clock_offset_ns FROM servers WHERE name = ?1";
    Ok(match database.first(given, values![server], |row| row.get::<Option<Nanos>>(0))?.flatten() {
        Some(offset) => Clock { offset, how: HowKnown::Given },
        None => Clock { offset: 0, how: HowKnown::Believed },
    })
}

/// The usual distance of two samples.
pub fn spacing_of(
    database: &Database,
    job: &FoundJob,
    servers: &[String],
    service: &str,
) -> database::Result<Option<Nanos>> {
    for server in servers {
        for series in series_of(database, server, service, &[])? {
            let first =
                "SELECT time_ns FROM samples WHERE series = ?1 AND time_ns BETWEEN ?2 AND ?3 ORDER BY time_ns LIMIT ?4";
            let window = values![series.series, job.start, job.end, LOOKED_AT_MAX];
            let times: Vec<Nanos> = database.query(first, window, |row| row.get(0))?;
            let mut distances: Vec<Nanos> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
            if let Some(spacing) = median(&mut distances) {
                // Collectors are late by milliseconds; what is meant are whole seconds.
                return Ok(Some((spacing + SECOND / 2) / SECOND * SECOND));
            }
        }
    }
    Ok(None)
}

fn median(values: &mut [Nanos]) -> Option<Nanos> {
    let middle = values.len() / 2;
    if values.is_empty() { None } else { Some(*values.select_nth_unstable(middle).1) }
}

/// The samples of the job's time in the axis's order, and one before and one after.
pub fn read(database: &Database, series: &Series, job: &FoundJob, clock: &Clock) -> database::Result<Vec<Sample>> {
    let all = "SELECT * FROM samples WHERE series = ?1
               AND time_ns >= coalesce((SELECT max(time_ns) FROM samples WHERE series = ?1 AND time_ns <= ?2), ?2)
               AND time_ns <= coalesce((SELECT min(time_ns) FROM samples WHERE series = ?1 AND time_ns >= ?3), ?3)
               ORDER BY time_ns";
    // Those with one clock lie elsewhere by the offset; of a network's nobody knows before.
    let has_one_clock = clock.how == HowKnown::Given || matches!(series.kind, Kind::Network(_));
    let shift = if has_one_clock { clock.offset } else { 0 };
    let (from, to) = (job.start.saturating_sub(shift.max(0)), job.end.saturating_add((-shift).max(0)));
    let mut samples = database.query(all, values![series.series, from, to], |row| {
        let (time, snapshot, since) = (row.get(1)?, row.get(2)?, row.get(3)?);
        let mut counters = Counters::default();
        for (index, counter) in counters.iter_mut().enumerate() {
            *counter = row.get(FIRST_COUNTER + index)?;
        }
        Ok(placed(series.kind, time, snapshot, since, counters, clock))
    })?;
    samples.sort_by_key(|sample| sample.time);
    Ok(samples)
}

/// When a job's target was last looked at before the job's first sample: it had not counted the job then.
pub fn target_before(
    database: &Database,
    server: &str,
    target: &str,
    job: &Series,
    clock: &Clock,
) -> database::Result<Option<Nanos>> {
    let last = "SELECT max(time_ns) FROM samples WHERE time_ns < (SELECT min(time_ns) FROM samples WHERE series = ?1)
                AND series = (SELECT series FROM series JOIN servers USING (server)
                              WHERE servers.name = ?2 AND kind = 'target' AND part = ?3)";
    let time: Option<Nanos> = database.only(last, values![job.series, server, target], |row| row.get(0))?;
    // Times of the collector are on the axis as they are.
    let shift = if clock.how == HowKnown::Measured { 0 } else { clock.offset };
    Ok(time.map(|time| time.saturating_add(shift).max(0)))
}

fn placed(
    kind: Kind,
    time: Nanos,
    snapshot: Option<Nanos>,
    since: Option<Nanos>,
    counters: Counters,
    clock: &Clock,
) -> Sample {
    let Some(snapshot) = snapshot else {
        let time = time.saturating_add(clock.offset).max(0);
        let since = since.map(|since| since.saturating_add(clock.offset));
        return Sample { time, held_until: time, since, counters };
    };
    let own = time.saturating_sub(snapshot);
    let offset = match kind {
        // Of a job it is when it last did something, which may be long ago, but not in the future.
        Kind::Job if own >= clock.offset - OFFSET_SPREAD_MAX => clock.offset,
        // Of a network a collector's time is all there is, or what counts.
        Kind::Service | Kind::Target | Kind::Number if own.abs_diff(clock.offset) <= OFFSET_SPREAD_MAX as u64 => {
            clock.offset
        }
        _ => own,
    };
    let seen = snapshot.saturating_add(offset).max(0);
    // Without a collector's clock both are by the server's.
    let time = if clock.how == HowKnown::Measured { time } else { time.saturating_add(offset) };
    let held_until = if kind == Kind::Job { time.max(seen) } else { seen };
    Sample { time: seen, held_until, since: since.map(|since| since.saturating_add(offset)), counters }
}

impl Series {
    pub fn of_job(series: i64) -> Series {
        Series { series, kind: Kind::Job }
    }

    #[cfg(test)]
    pub fn of_tests(kind: Kind) -> Series {
        Series { series: 0, kind }
    }
}
