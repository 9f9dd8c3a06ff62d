//! What an import writes, within one transaction.

use crate::clock::{Nanos, SECOND};
use crate::database::{Database, Transaction, Value, values};
use crate::sources::{COUNTER_COUNT, Job, Node, Reading, Sink, Subject};
use crate::{place, words};
use std::collections::HashMap;
use std::path::Path;

use crate::failure::Outcome;

/// Series that are remembered; beyond that they are looked up again.
const SERIES_REMEMBERED_MAX: usize = 1 << 16;
/// What is noted of one source; beyond that it is counted.
const EVENTS_MAX: u64 = 10_000;

/// A sample that was cut is completed by the same one of a longer log.
const COMPLETE_SAMPLE: &str = "UPDATE samples SET
    wait_count = coalesce(wait_count, ?3), wait_us = coalesce(wait_us, ?4),
    depth_count = coalesce(depth_count, ?5), depth = coalesce(depth, ?6),
    active_count = coalesce(active_count, ?7), active = coalesce(active, ?8),
    reads = coalesce(reads, ?9), read_bytes = coalesce(read_bytes, ?10),
    writes = coalesce(writes, ?11), write_bytes = coalesce(write_bytes, ?12),
    operations = coalesce(operations, ?13)
    WHERE series = ?1 AND time_ns = ?2 AND (
        wait_count IS NULL AND ?3 IS NOT NULL OR wait_us IS NULL AND ?4 IS NOT NULL
        OR depth_count IS NULL AND ?5 IS NOT NULL OR depth IS NULL AND ?6 IS NOT NULL
        OR active_count IS NULL AND ?7 IS NOT NULL OR active IS NULL AND ?8 IS NOT NULL
        OR reads IS NULL AND ?9 IS NOT NULL OR read_bytes IS NULL AND ?10 IS NOT NULL
        OR writes IS NULL AND ?11 IS NOT NULL OR write_bytes IS NULL AND ?12 IS NOT NULL
        OR operations IS NULL AND ?13 IS NOT NULL)";
/// What is known of a job grows. An older run of an id that was used again is not told of any more; one that had not
/// ended before the known start is the same, told by somebody who saw it begin a little earlier.
const UPSERT_JOB: &str = "INSERT INTO jobs VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
    ON CONFLICT (job_id) DO UPDATE SET
        lustre_id = coalesce(excluded.lustre_id, jobs.lustre_id), name = coalesce(excluded.name, jobs.name),
        \"user\" = coalesce(excluded.\"user\", jobs.\"user\"), state = coalesce(excluded.state, jobs.state),
        start_ns = coalesce(excluded.start_ns, jobs.start_ns), nodes = coalesce(excluded.nodes, jobs.nodes),
        end_ns = CASE WHEN excluded.start_ns > jobs.end_ns THEN excluded.end_ns
                      ELSE coalesce(excluded.end_ns, jobs.end_ns) END
    WHERE (excluded.start_ns IS NULL OR jobs.start_ns IS NULL OR excluded.start_ns >= jobs.start_ns
            OR excluded.end_ns >= jobs.start_ns)
        AND (excluded.lustre_id IS NOT NULL AND excluded.lustre_id IS DISTINCT FROM jobs.lustre_id
            OR excluded.name IS NOT NULL AND excluded.name IS DISTINCT FROM jobs.name
            OR excluded.\"user\" IS NOT NULL AND excluded.\"user\" IS DISTINCT FROM jobs.\"user\"
            OR excluded.state IS NOT NULL AND excluded.state IS DISTINCT FROM jobs.state
            OR excluded.start_ns IS NOT NULL AND excluded.start_ns IS DISTINCT FROM jobs.start_ns
            OR excluded.end_ns IS NOT NULL AND excluded.end_ns IS DISTINCT FROM jobs.end_ns
            OR excluded.nodes IS NOT NULL AND excluded.nodes IS DISTINCT FROM jobs.nodes)";
const UPSERT_NODE: &str = "INSERT INTO nodes VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT (name) DO UPDATE SET rack = coalesce(excluded.rack, nodes.rack), x = coalesce(excluded.x, nodes.x),
        y = coalesce(excluded.y, nodes.y)
    WHERE excluded.rack IS NOT NULL AND excluded.rack IS DISTINCT FROM nodes.rack
        OR excluded.x IS NOT NULL AND excluded.x IS DISTINCT FROM nodes.x
        OR excluded.y IS NOT NULL AND excluded.y IS DISTINCT FROM nodes.y";

/// How much an import changed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    pub jobs: u64,
    pub jobs_changed: u64,
    pub nodes: u64,
    pub nodes_changed: u64,
    pub samples: u64,
    pub samples_new: u64,
    pub skipped: u64,
}

impl Tally {
    /// Whether anything at all was of use.
    pub fn is_useless(&self) -> bool {
        self.jobs + self.nodes + self.samples == 0
    }

    pub fn words(&self) -> String {
        let mut parts = Vec::new();
        for (found, changed, word) in [
            (self.jobs, self.jobs_changed, "job"),
            (self.nodes, self.nodes_changed, "node"),
            (self.samples, self.samples_new, "sample"),
        ] {
            if found > 0 {
                parts.push(format!("{}, {} of them new or changed", words::plural(found, word), words::count(changed)));
            }
        }
        if self.skipped > 0 {
            parts.push(format!("{} left out", words::plural(self.skipped, "line")));
        }
        if parts.is_empty() { "nothing".to_owned() } else { parts.join("; ") }
    }
}

/// A series that was seen in this import.
struct KnownSeries {
    series: i64,
    /// The time of its last reading.
    time: Nanos,
}

/// One import into a place.
pub struct Writer<'a> {
    transaction: Transaction<'a>,
    file: &'a Path,
    /// What is read now, for events.
    source: String,
    skipped_of_source: u64,
    known: HashMap<String, KnownSeries>,
    /// Samples on their way: series, times, counters.
    samples: Vec<Vec<Option<i64>>>,
    pub tally: Tally,
}

impl<'a> Writer<'a> {
    pub fn begin(database: &'a Database, file: &'a Path) -> Outcome<Writer<'a>> {
        let transaction = database.begin().map_err(|error| place::about(file, &error))?;
        place::make_tables(database).map_err(|error| place::about(file, &error))?;
        let (source, known, samples) = (String::new(), HashMap::new(), Vec::new());
        Ok(Writer { transaction, file, source, skipped_of_source: 0, known, samples, tally: Tally::default() })
    }

    /// The id, or the first of `ID.2`, `ID.3`, ... that no job has.
    pub fn free_id(&self, id: &str) -> Outcome<String> {
        let (mut free, mut number) = (id.to_owned(), 1);
        let count = "SELECT count(*) FROM jobs WHERE job_id = ?1";
        while self.look_up(count, values![&free])? > 0 {
            number += 1;
            free = format!("{id}.{number}");
        }
        Ok(free)
    }

    /// What follows is read from there.
    pub fn set_source(&mut self, source: &str) -> Outcome {
        self.end_source()?;
        self.source = source.to_owned();
        Ok(())
    }

    fn end_source(&mut self) -> Outcome {
        if self.skipped_of_source > EVENTS_MAX {
            let why = format!("and {} more", words::plural(self.skipped_of_source - EVENTS_MAX, "event"));
            self.note(0, &why)?;
        }
        self.skipped_of_source = 0;
        Ok(())
    }

    /// Makes it true.
    pub fn commit(mut self) -> Outcome<Tally> {
        self.end_source()?;
        self.put_samples()?;
        self.transaction.commit().map_err(|error| place::about(self.file, &error))?;
        Ok(self.tally)
    }

    /// Where a file or directory of a cluster is.
    pub fn path(&self, cluster: &str, file: &str, path: &str) -> Outcome {
        let statement = "INSERT INTO paths VALUES (?1, ?2, ?3)
                         ON CONFLICT (cluster, file) DO UPDATE SET path = excluded.path";
        self.execute(statement, values![cluster, file, path])?;
        Ok(())
    }

    /// Adds to a server's clock, where nothing else is known of it.
    pub fn set_clock_offset(&mut self, server: &str, offset: Nanos) -> Outcome {
        let server = self.server(server)?;
        self.execute("UPDATE servers SET clock_offset_ns = ?1 WHERE server = ?2", values![offset, server])?;
        Ok(())
    }

    fn execute(&self, statement: &str, values: &[Value<'_>]) -> Outcome<u64> {
        self.transaction.database.execute(statement, values).map_err(|error| place::about(self.file, &error))
    }

    fn look_up(&self, statement: &str, values: &[Value<'_>]) -> Outcome<i64> {
        let found = self.transaction.database.only(statement, values, |row| row.get(0));
        found.map_err(|error| place::about(self.file, &error))
    }

    fn server(&self, name: &str) -> Outcome<i64> {
        self.execute("INSERT INTO servers (name) VALUES (?1) ON CONFLICT DO NOTHING", values![name])?;
        self.look_up("SELECT server FROM servers WHERE name = ?1", values![name])
    }

    fn note(&mut self, line: u64, why: &str) -> Outcome {
        let line = i64::try_from(line).unwrap_or(i64::MAX);
        self.execute(
            "INSERT INTO events VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
            values![&self.source, line, why],
        )?;
        Ok(())
    }

    fn note_bounded(&mut self, line: u64, why: &str) -> Outcome {
        self.skipped_of_source += 1;
        if self.skipped_of_source <= EVENTS_MAX { self.note(line, why) } else { Ok(()) }
    }

    /// The series of a reading; a clock that went back is noted.
    fn series(&mut self, reading: &Reading) -> Outcome<i64> {
        let (kind, part, job) = match &reading.subject {
            Subject::Service(name) => ("service", name, ""),
            Subject::Target(name) => ("target", name, ""),
            Subject::Job { target, id } => ("job", target, id.as_str()),
            Subject::Network(network, port) => (network.name(), port, ""),
            Subject::Number(name) => ("number", name, ""),
            Subject::Rank { job, name } => ("rank", name, job.as_str()),
            Subject::File(name) => ("file", name, ""),
        };
        let key = format!("{}\0{kind}\0{part}\0{job}", reading.server);
        if let Some(known) = self.known.get_mut(&key) {
            let (series, back) = (known.series, known.time - reading.time);
            known.time = reading.time;
            if back > SECOND {
                let why = format!("the clock of {} went back by {}", reading.server, words::duration(back));
                self.note_bounded(reading.line, &why)?;
            }
            return Ok(series);
        }
        let server = self.server(&reading.server)?;
        let values: &[Value<'_>; 4] = values![server, kind, part, job];
        self.execute(
            "INSERT INTO series (server, kind, part, job) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING",
            values,
        )?;
        let known = "SELECT series FROM series WHERE server = ?1 AND kind = ?2 AND part = ?3 AND job = ?4";
        let series = self.look_up(known, values)?;
        if self.known.len() >= SERIES_REMEMBERED_MAX {
            self.known.clear();
        }
        self.known.insert(key, KnownSeries { series, time: reading.time });
        Ok(series)
    }

    /// What is known of a sample already is completed.
    fn put_samples(&mut self) -> Outcome {
        let samples = std::mem::take(&mut self.samples);
        if samples.is_empty() {
            return Ok(());
        }
        let inserted = self.transaction.database.insert_samples(&samples);
        let inserted = inserted.map_err(|error| place::about(self.file, &error))?;
        for (sample, is_new) in samples.iter().zip(inserted) {
            let changed = match is_new {
                true => 1,
                false => {
                    let of_sample = sample[..2].iter().chain(&sample[4..]);
                    let values: Vec<Value<'_>> = of_sample.map(|value| Value::from(*value)).collect();
                    self.execute(COMPLETE_SAMPLE, &values)?
                }
            };
            self.tally.samples_new += changed;
        }
        Ok(())
    }
}

const _: () = assert!(COUNTER_COUNT == 11, "the statements above list the counters");

impl Sink for Writer<'_> {
    fn job(&mut self, job: Job) -> Outcome {
        let Job { id, lustre_id, name, user, state, start, end, nodes } = &job;
        let values = values![id, lustre_id, name, user, state, *start, *end, nodes];
        self.tally.jobs += 1;
        self.tally.jobs_changed += self.execute(UPSERT_JOB, values)?;
        Ok(())
    }

    fn node(&mut self, node: Node) -> Outcome {
        let mut changed = self.execute(UPSERT_NODE, values![&node.name, &node.rack, node.x, node.y])?;
        for server in &node.servers {
            changed += self.execute(
                "INSERT INTO node_servers VALUES (?1, ?2) ON CONFLICT DO NOTHING",
                values![&node.name, server],
            )?;
        }
        self.tally.nodes += 1;
        self.tally.nodes_changed += u64::from(changed > 0);
        Ok(())
    }

    fn reading(&mut self, reading: Reading) -> Outcome {
        let series = self.series(&reading)?;
        let mut sample = vec![Some(series), Some(reading.time), reading.snapshot, reading.since];
        sample.extend(reading.counters);
        self.samples.push(sample);
        self.tally.samples += 1;
        if self.samples.len() >= self.transaction.database.batch_size() {
            self.put_samples()?;
        }
        Ok(())
    }

    fn skipped(&mut self, line: u64, why: &str) -> Outcome {
        self.tally.skipped += 1;
        self.note_bounded(line, why)
    }
}
