//! From a job to rows: its nodes and times, their servers, what these counted, and that on one axis of time.
//!
//! The axis is the collector's clock where it is known, else the servers' own with the offsets that are given. Servers
//! are gone through one at a time, so that memory grows with the rows of one of them.

mod axis;
mod found;
mod grid;
mod neighbours;
mod numbers;
mod parts;
mod pieces;
mod samples;

pub use found::{FoundJob, Servers, find, natural, servers_of};
pub use grid::{Profile, Row};
pub use neighbours::{Blame, BlameRow, Done, Episode, Requests, Waiting, Whose};
pub use numbers::Number;
pub use parts::{File, Rank};
pub use samples::HowKnown;

use crate::clock::{Nanos, SECOND};
use crate::database::{self, Database};
use crate::failure::{Failure, Outcome};
use crate::options::INTERVALS_MAX;
use grid::Grid;

/// What is asked of a job.
pub struct Question<'a> {
    pub database: &'a Database,
    pub job: &'a FoundJob,
    pub service: &'a str,
    /// What Lustre calls the job.
    pub lustre_ids: Vec<String>,
    pub interval: Nanos,
}

impl Question<'_> {
    /// How a server was in the job's time, and what the job did there.
    pub fn profile(&self, server: &str) -> database::Result<Profile> {
        let clock = samples::clock_of(self.database, server, self.job)?;
        let mut grid = Grid::new(self.job.start, self.job.end, self.interval);
        for series in samples::series_of(self.database, server, self.service, &self.lustre_ids)? {
            let rows = samples::read(self.database, &series, self.job, &clock)?;
            let pieces = pieces::between(&rows, &series, Some(self.job.start), self.interval);
            grid.add(&series, &pieces);
        }
        Ok(grid.into_profile(server, clock))
    }
}

/// The interval that was asked for, or that of the samples. Errors: more intervals than are read.
pub fn interval_of(
    database: &Database,
    job: &FoundJob,
    servers: &[String],
    service: &str,
    wanted: Option<f64>,
) -> Outcome<database::Result<Nanos>> {
    let least = (job.end - job.start) / INTERVALS_MAX + 1;
    let Some(seconds) = wanted else {
        return Ok(samples::spacing_of(database, job, servers, service)
            .map(|spacing| spacing.unwrap_or(60 * SECOND).max(SECOND).max(least)));
    };
    let interval = (seconds * 1e9).min(1e18) as Nanos;
    if interval < least {
        let least = least as f64 / 1e9;
        return Err(Failure::usage(format!(
            "--interval {seconds}: these are more than {} intervals; {least:.3} at least is wanted",
            crate::words::count(INTERVALS_MAX as u64)
        )));
    }
    Ok(Ok(interval))
}
