//! Whether what the servers hold fits together, and repairs where it does not.
//!
//! A check goes in two steps. The survey (`survey.rs`) puts the tables of all servers side by side while work may go
//! on, and ends with suspects: inodes of which something did not fit as it was seen. A second look (`look.rs`) at these
//! alone is exact: every server notes which of them change meanwhile, and those that do are looked at once more. So
//! what is reported is wrong, however busy the cluster is; what never stood still is counted as undecided.
//!
//! Memory: 40 bytes for each directory and about 100 for each file with several names or chunks on several servers;
//! other files are told apart from faults by sums, and take nothing.

mod fault;
mod look;
mod lost;
mod repair;
mod survey;

pub use fault::{Fault, FaultyName};
pub use lost::{Lost, LostCounts, LostPart};

use crate::error::{RequestError, Result};
use crate::filesystem::{FileSystem, about_server};
use crate::servers::join::join_all;
use reactor::Nanos;
use std::collections::BTreeSet;
use wire::messages::{CheckDamage, CheckReply, CheckRequest, CheckTable, CheckWanted};
use wire::{Decode, Decoder, FileId, Operation};

/// Ids that are looked at together.
const LOOK_COUNT_MAX: usize = 512;
/// Looks at what keeps changing, and the pauses between them.
const LOOK_ROUND_COUNT_MAX: u32 = 8;
const PAUSE_FIRST: Nanos = 20_000_000;

/// How thorough a check is.
#[derive(Debug, Clone, Copy, Default)]
pub struct CheckOptions {
    /// Also reads all data and compares checksums.
    pub data: bool,
}

/// How far a check has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckCounts {
    pub names: u64,
    pub inodes: u64,
    /// Directories among the inodes.
    pub directories: u64,
    /// Servers' shares of files.
    pub shares: u64,
    /// Chunks whose data were read.
    pub chunks: u64,
    /// Inodes that were looked at a second time.
    pub suspects: u64,
}

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CheckReport {
    pub counts: CheckCounts,
    pub faults: Vec<Fault>,
    /// Inodes that changed whenever they were looked at, or for which something is under way; none of them is known to
    /// be wrong.
    pub undecided: Vec<FileId>,
}

/// Told now and then how far the check has come.
pub type Progress<'a> = &'a dyn Fn(&CheckCounts);

impl FileSystem {
    /// Checks all servers. Errors: a server that can't be reached, or `NotPermitted` for other users than root and the
    /// one who started the servers.
    pub async fn check(&self, options: &CheckOptions, progress: Progress<'_>) -> Result<CheckReport> {
        let mut report = CheckReport::default();
        let survey = survey::survey(self, &mut report.counts, progress).await?;
        report.counts.suspects = survey.suspects.len() as u64;
        progress(&report.counts);
        for circle in &survey.circles {
            report.faults.extend(look::look_at_circle(self, circle).await?);
        }
        let mut left: Vec<FileId> = survey.suspects.into_iter().collect();
        let mut pause = PAUSE_FIRST;
        for round in 0..LOOK_ROUND_COUNT_MAX {
            if left.is_empty() {
                break;
            }
            if round > 0 {
                self.reactor().sleep(pause).await;
                pause *= 2;
            }
            let mut restless = Vec::new();
            for group in left.chunks(LOOK_COUNT_MAX) {
                let look = look::look_at(self, group).await?;
                report.faults.extend(look.faults);
                restless.extend(look.restless);
            }
            left = restless;
        }
        report.undecided = left;
        if options.data {
            self.check_data(&mut report, progress).await?;
        }
        Ok(report)
    }

    async fn check_data(&self, report: &mut CheckReport, progress: Progress<'_>) -> Result<()> {
        let wanted = all_parts(false);
        for server in 0..self.server_count() {
            let CheckReport { counts, faults, .. } = report;
            self.check_table(server, CheckTable::Data, &wanted, &mut |reply, rows| {
                counts.chunks += reply.walked;
                progress(counts);
                while rows.remaining() > 0 {
                    let CheckDamage { file, chunk_index } = Decode::decode(rows)?;
                    faults.push(Fault::DamagedChunk { server, file, chunk_index });
                }
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// Reads a table of one server to its end, page by page.
    async fn check_table(
        &self,
        server: u32,
        table: CheckTable,
        wanted: &CheckWanted,
        on_page: &mut dyn FnMut(&CheckReply, &mut Decoder<'_>) -> std::result::Result<(), wire::Malformed>,
    ) -> Result<()> {
        let mut place = (0, 0);
        loop {
            let (reply, body) = self.check_page(server, table, place, wanted).await?;
            let mut rows = Decoder::new(&body);
            let malformed =
                |malformed| about_server(RequestError::malformed(Operation::Check, server, malformed), server);
            on_page(&reply, &mut rows).map_err(malformed)?;
            rows.finish().map_err(malformed)?;
            if reply.end {
                return Ok(());
            }
            let next = (reply.next_position, reply.next_position_within);
            if next <= place {
                return Err(malformed(wire::Malformed("the table is told in circles")));
            }
            place = next;
        }
    }

    async fn check_page(
        &self,
        server: u32,
        table: CheckTable,
        (position, position_within): (u64, u64),
        wanted: &CheckWanted,
    ) -> Result<(CheckReply, Vec<u8>)> {
        let request = CheckRequest { table, position, position_within, wanted: wanted.clone() };
        let reply = self.servers.ask(server, Operation::Check, &request).await;
        let reply = reply.map_err(|request_error| about_server(request_error, server))?;
        let params = CheckReply::from_bytes(&reply.params)
            .map_err(|malformed| about_server(RequestError::malformed(Operation::Check, server, malformed), server))?;
        Ok((params, reply.body.to_vec()))
    }

    /// Finds and repairs until nothing is left that a repair could change, for one repair may show the next fault: a
    /// name that was removed leaves an orphan. `on_repair` is told of each fault and how its repair ended.
    ///
    /// Returns what is left. With `dry_run` nothing is repaired, and `on_repair` hears what would be done.
    pub async fn check_and_repair(
        &self,
        options: &CheckOptions,
        dry_run: bool,
        progress: Progress<'_>,
        on_repair: &mut dyn FnMut(&Fault, &Result<String>),
    ) -> Result<CheckReport> {
        loop {
            let report = self.check(options, progress).await?;
            let mut repaired = 0;
            let mut seen = BTreeSet::new();
            for fault in &report.faults {
                if !seen.insert(fault.to_string()) {
                    continue;
                }
                let outcome = if dry_run { Ok(fault.remedy()) } else { self.repair(fault).await };
                repaired += usize::from(outcome.is_ok() && fault.can_be_repaired());
                on_repair(fault, &outcome);
            }
            if dry_run || repaired == 0 {
                return Ok(report);
            }
        }
    }
}

fn all_parts(leave_plain_out: bool) -> CheckWanted {
    CheckWanted::Parts { bits: [0xff; wire::messages::CHECK_PART_COUNT / 8], leave_plain_out }
}

/// Asks all servers the same at once.
async fn of_all<T, F: Future<Output = Result<T>>>(files: &FileSystem, ask: impl Fn(u32) -> F) -> Result<Vec<T>> {
    join_all((0..files.server_count()).map(ask)).await.into_iter().collect()
}
