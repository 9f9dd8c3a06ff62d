//! What a server told of processes of parallel programs, and of the files and directories to which most was done.

use super::axis::Axis;
use super::samples::Series;
use super::{Question, pieces, samples};
use crate::database::{self, values};
use crate::place;
use crate::sources::{COUNTER_COUNT, Counter};

/// A process of a parallel program in the job's time, at one server.
#[derive(Debug, Clone, PartialEq)]
pub struct Rank {
    /// What its clients call the job.
    pub job: String,
    /// Empty: all of the job together.
    pub name: String,
    pub host: String,
    /// Of all together: how many there are.
    pub count: f64,
    pub answers: f64,
    /// That it waited for them, and the part of it that the server was at work.
    pub seconds: f64,
    pub served_seconds: f64,
}

/// A file or directory in the job's time, at one server.
#[derive(Debug, Clone, PartialEq)]
pub struct File {
    pub is_directory: bool,
    pub id: String,
    pub requests: f64,
    /// That the server was at work for it.
    pub seconds: f64,
    pub read_bytes: f64,
    pub write_bytes: f64,
}

impl Question<'_> {
    /// Ranks of all jobs that had any at a server.
    pub fn ranks(&self, server: &str) -> database::Result<Vec<Rank>> {
        let mut found = Vec::new();
        for (part, job, series) in samples::parts_of(self.database, server, "rank")? {
            let grown = self.growth(server, &series)?;
            let of = |counter: Counter| grown[counter as usize];
            let (name, host) = part.split_once(' ').unwrap_or((&part, ""));
            found.push(Rank {
                job,
                name: name.to_owned(),
                host: host.to_owned(),
                count: of(Counter::Operations),
                answers: of(Counter::WaitCount),
                seconds: of(Counter::Wait) / 1e6,
                served_seconds: of(Counter::Active) / 1e6,
            });
        }
        Ok(found)
    }

    /// Files and directories of which a server told.
    pub fn files(&self, server: &str) -> database::Result<Vec<File>> {
        let mut found = Vec::new();
        for (part, _, series) in samples::parts_of(self.database, server, "file")? {
            let grown = self.growth(server, &series)?;
            let of = |counter: Counter| grown[counter as usize];
            let (kind, id) = part.split_once(' ').unwrap_or(("file", &part));
            found.push(File {
                is_directory: kind == "directory",
                id: id.to_owned(),
                requests: of(Counter::Operations),
                seconds: of(Counter::Active) / 1e6,
                read_bytes: of(Counter::ReadBytes),
                write_bytes: of(Counter::WriteBytes),
            });
        }
        Ok(found)
    }

    /// Where a file of a cluster was, if anybody has looked.
    pub fn path(&self, cluster: &str, file: &str) -> database::Result<Option<String>> {
        if !place::has_paths(self.database)? {
            return Ok(None);
        }
        let path = "SELECT path FROM paths WHERE cluster = ?1 AND file = ?2";
        self.database.first(path, values![cluster, file], |row| row.get(0))
    }

    /// By how much counters grew in the job's time.
    fn growth(&self, server: &str, series: &Series) -> database::Result<[f64; COUNTER_COUNT]> {
        let clock = samples::clock_of(self.database, server, self.job)?;
        let axis = Axis::new(self.job.start, self.job.end, self.interval);
        let samples = samples::read(self.database, series, self.job, &clock)?;
        let mut sums = [0.0; COUNTER_COUNT];
        for piece in pieces::between(&samples, series, None, self.interval) {
            axis.share_out(&piece, |_, part, _| {
                for (sum, growth) in sums.iter_mut().zip(piece.growth) {
                    *sum += growth.unwrap_or(0) as f64 * part;
                }
            });
        }
        Ok(sums)
    }
}
