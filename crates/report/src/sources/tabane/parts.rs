//! Ranks and files of which a server tells the first few only: who is told of in one document may not be in the next.
//!
//! Invariant: what is told for the first time since the server was started was 0 at the document before, so that all
//! that it has counted is growth; what has not changed is not told again.

use super::Moment;
use super::document::{BusyReport, JobReport, RankReport, ServerReport};
use crate::clock::Nanos;
use crate::failure::Outcome;
use crate::sources::{Counter, Counters, Sink, Subject};
use std::collections::HashMap;

/// Files of a document that are kept: all that a server tells of.
const FILES_MAX: usize = 64;
/// Parts of a server that are remembered. Of more nothing is kept.
const PARTS_MAX: usize = 1 << 16;
const NAME_SIZE_MAX: usize = 64;

/// Of each server the parts that were told of, with their counters.
#[derive(Default)]
pub struct Parts(HashMap<String, HashMap<(String, String), Counters>>);

impl Parts {
    /// A server was started anew: all is 0 again.
    pub fn forget(&mut self, server: &str) {
        self.0.remove(server);
    }

    /// `before`: when what is new was 0, by the server's clock, if anybody knows.
    pub(super) fn take(
        &mut self,
        moment: &Moment<'_>,
        before: Option<Nanos>,
        report: &ServerReport,
        sink: &mut impl Sink,
    ) -> Outcome {
        for job in report.jobs.iter().filter(|job| job.ranks.count > 0 && job.kind == "job") {
            let all = Subject::Rank { job: job.job.clone(), name: String::new() };
            self.part(moment, before, all, all_ranks(job), sink)?;
            for rank in job.ranks.told.iter().filter(|rank| rank.rank.len() + rank.host.len() <= NAME_SIZE_MAX) {
                let name = format!("{} {}", rank.rank, rank.host);
                let subject = Subject::Rank { job: job.job.clone(), name };
                self.part(moment, before, subject, rank_counters(rank), sink)?;
            }
        }
        for file in report.busiest.iter().take(FILES_MAX).filter(|file| file.id.len() <= NAME_SIZE_MAX) {
            let kind = if file.object == "directory" { "directory" } else { "file" };
            let subject = Subject::File(format!("{kind} {}", file.id));
            self.part(moment, before, subject, file_counters(file), sink)?;
        }
        Ok(())
    }

    fn part(
        &mut self,
        moment: &Moment<'_>,
        before: Option<Nanos>,
        subject: Subject,
        counters: Counters,
        sink: &mut impl Sink,
    ) -> Outcome {
        let known = self.0.entry(moment.name.to_owned()).or_default();
        let key = match &subject {
            Subject::Rank { job, name } => (name.clone(), job.clone()),
            Subject::File(name) => (name.clone(), String::new()),
            _ => return Ok(()),
        };
        match known.get(&key) {
            Some(last) if *last == counters => return Ok(()),
            Some(_) => (),
            None if known.len() >= PARTS_MAX => return Ok(()),
            None => {
                if let Some(seen) = before.map(|seen| seen.max(moment.started)).filter(|seen| *seen < moment.seen) {
                    let zero = Moment { seen, ..*moment };
                    zero.put(subject.clone(), counters.map(|counter| counter.map(|_| 0)), sink)?;
                }
            }
        }
        known.insert(key, counters);
        moment.put(subject, counters, sink)
    }
}

fn counters_of(values: &[(Counter, i64)]) -> Counters {
    let mut counters = Counters::default();
    values.iter().for_each(|(counter, value)| counters[*counter as usize] = Some(*value));
    counters
}

/// How many there are, and what all clients of the job waited: of a job with ranks they are its ranks.
fn all_ranks(job: &JobReport) -> Counters {
    let clients = &job.totals.clients;
    counters_of(&[
        (Counter::Operations, job.ranks.count),
        (Counter::WaitCount, clients.answers.unwrap_or(0)),
        (Counter::Wait, clients.answer_ns.unwrap_or(0) / 1000),
    ])
}

fn rank_counters(rank: &RankReport) -> Counters {
    counters_of(&[
        (Counter::WaitCount, rank.answers),
        (Counter::Wait, rank.answer_ns / 1000),
        (Counter::ActiveCount, rank.answers),
        (Counter::Active, rank.served_ns / 1000),
    ])
}

fn file_counters(file: &BusyReport) -> Counters {
    counters_of(&[
        (Counter::Operations, file.requests),
        (Counter::ActiveCount, file.requests),
        (Counter::Active, file.service_ns / 1000),
        (Counter::ReadBytes, file.bytes_out),
        (Counter::WriteBytes, file.bytes_in),
    ])
}
