//! What rules see: each server by intervals, numbers that it told of itself, and what other jobs had to do with it.

use crate::analysis::{Number, Rank, Row, Whose};
use crate::asked::Asked;
use crate::clock::Nanos;
use crate::database;
use crate::failure::Outcome;
use crate::sources::tabane::OPERATION_PREFIX;
use jiff::tz::TimeZone;
use std::collections::BTreeMap;

/// Rows of all servers together, some 400 bytes each, and intervals that there are at least.
const ROWS_MAX: i64 = 400_000;
const INTERVALS_LEAST: i64 = 100;

pub struct Evidence {
    pub servers: Vec<ServerEvidence>,
    /// Other jobs, each with its part of the job's waiting, and that in seconds.
    pub others: Vec<(String, f64, f64)>,
    /// Processes of the job's programs.
    pub ranks: Vec<JobRanks>,
    /// Of the time that is looked at.
    pub seconds: f64,
    pub zone: TimeZone,
}

/// The ranks of a job, at all servers together.
pub struct JobRanks {
    /// How many there are; servers may tell of fewer.
    pub count: f64,
    /// That all of them waited.
    pub seconds: f64,
    pub answers: f64,
    /// Those that waited longest first.
    pub told: Vec<Rank>,
}

impl JobRanks {
    /// What servers tell of ranks: of the jobs that are asked for if there are any, else of all.
    pub fn of(all: Vec<Rank>, ids: &[String]) -> Vec<JobRanks> {
        let is_known = all.iter().any(|rank| ids.contains(&rank.job));
        let mut jobs = BTreeMap::<String, (JobRanks, BTreeMap<(String, String), Rank>)>::new();
        for rank in all.into_iter().filter(|rank| !is_known || ids.contains(&rank.job)) {
            let none = || (JobRanks { count: 0.0, seconds: 0.0, answers: 0.0, told: Vec::new() }, BTreeMap::new());
            let (job, told) = jobs.entry(rank.job.clone()).or_insert_with(none);
            if rank.name.is_empty() {
                // Most ranks ask all servers.
                job.count = job.count.max(rank.count);
                job.seconds += rank.seconds;
                job.answers += rank.answers;
                continue;
            }
            let sum = told.entry((rank.name.clone(), rank.host.clone()));
            let add = |sum: &mut Rank| {
                sum.seconds += rank.seconds;
                sum.served_seconds += rank.served_seconds;
                sum.answers += rank.answers;
            };
            sum.and_modify(add).or_insert(rank);
        }
        let jobs = jobs.into_values().map(|(mut job, told)| {
            job.told = told.into_values().collect();
            job.told.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
            job.count = job.count.max(job.told.len() as f64);
            job
        });
        jobs.collect()
    }
}

/// One server.
pub struct ServerEvidence {
    pub name: String,
    pub rows: Vec<Row>,
    pub whole: Row,
    /// How often its counters began anew.
    pub resets: u64,
    pub numbers: BTreeMap<String, Number>,
}

/// The intervals in which something held: of how many known ones, and the longest run of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stretch {
    pub share: f64,
    pub from: Nanos,
    pub to: Nanos,
    /// The mean over the longest run.
    pub mean: f64,
}

impl Evidence {
    pub fn of(asked: &Asked) -> Outcome<Evidence> {
        let mut question = asked.question();
        // All rows of all servers are held at once; of very many, longer intervals serve as well.
        let count = (asked.job.end - asked.job.start) / question.interval + 1;
        let most = (ROWS_MAX / asked.found.names.len().max(1) as i64).max(INTERVALS_LEAST);
        question.interval *= (count + most - 1) / most;
        let failed = |error: database::Error| asked.failed(error);
        let counted = question.is_counted().map_err(failed)?;
        let (mut servers, mut others, mut all) = (Vec::new(), BTreeMap::<String, f64>::new(), 0.0);
        let mut ranks = Vec::new();
        for (name, _) in &asked.found.names {
            let profile = question.profile(name).map_err(failed)?;
            let numbers = question.numbers(name).map_err(failed)?;
            ranks.extend(question.ranks(name).map_err(failed)?);
            let (rows, whole, resets) = (profile.rows, profile.whole, profile.resets);
            servers.push(ServerEvidence { name: name.clone(), rows, whole, resets, numbers });
            // Without jobs that were counted there is nobody to name.
            if counted {
                let waiting = question.waiting(name, counted).map_err(failed)?;
                all += waiting.seconds;
                for number in 0..waiting.other_count() {
                    let Some(blame) = waiting.of_other(number).map_err(failed)? else { continue };
                    if let Whose::Other(id) = blame.whose {
                        *others.entry(id).or_default() += blame.seconds;
                    }
                }
            }
        }
        let part = |(id, seconds): (String, f64)| (id, if all > 0.0 { seconds / all } else { 0.0 }, seconds);
        let others = others.into_iter().map(part).collect();
        let ranks = JobRanks::of(ranks, &question.lustre_ids);
        let seconds = (asked.job.end - asked.job.start) as f64 / 1e9;
        Ok(Evidence { servers, others, ranks, seconds, zone: asked.zone.clone() })
    }

    pub fn is_empty(&self) -> bool {
        self.servers.iter().all(|server| {
            server.whole.requests.is_none()
                && server.whole.bytes().is_none()
                && server.numbers.values().all(|number| number.values.is_empty())
        })
    }
}

impl ServerEvidence {
    pub fn seconds(&self) -> f64 {
        (self.whole.to - self.whole.from) as f64 / 1e9
    }

    pub fn bytes(&self) -> Option<f64> {
        Some(self.whole.bytes()? * self.seconds())
    }

    /// By how much a number grew.
    pub fn growth(&self, name: &str) -> Option<f64> {
        Some(self.numbers.get(name)?.growth)
    }

    /// Operations of these names; none if the server does not tell of any.
    pub fn operations(&self, are_wanted: impl Fn(&str) -> bool) -> Option<f64> {
        let named =
            self.numbers.iter().filter_map(|(name, number)| Some((name.strip_prefix(OPERATION_PREFIX)?, number)));
        named.filter(|(name, _)| are_wanted(name)).map(|(_, number)| number.growth).reduce(|one, other| one + other)
    }

    /// Where a value of rows is so.
    pub fn stretch(&self, of: impl Fn(&Row) -> Option<f64>, is: impl Fn(&Row, f64) -> bool) -> Option<Stretch> {
        let values = self.rows.iter().map(|row| of(row).map(|value| (row.from, row.to, value, is(row, value))));
        stretch_of(values)
    }

    /// The same, with the number of the row.
    pub fn stretch_at(&self, of: impl Fn(usize, &Row) -> Option<f64>, least: f64) -> Option<Stretch> {
        let values = self.rows.iter().enumerate();
        stretch_of(values.map(|(at, row)| of(at, row).map(|value| (row.from, row.to, value, value >= least))))
    }

    /// Where a number grows by so much a second.
    pub fn stretch_of(&self, name: &str, least: f64) -> Option<Stretch> {
        let rates = &self.numbers.get(name)?.rates;
        let values = self.rows.iter().zip(rates);
        stretch_of(values.map(|(row, rate)| rate.map(|rate| (row.from, row.to, rate, rate >= least))))
    }

    /// Whether it is one of Tabane's, which tell of themselves more than those of Lustre.
    pub fn is_tabane(&self) -> bool {
        self.numbers.contains_key("loop_busy_ns")
    }

    /// By how much numbers grow together a second in an interval, where any of them is known.
    pub fn rate(&self, names: impl Iterator<Item = &'static str>, interval: usize) -> Option<f64> {
        let rates = names.filter_map(|name| *self.numbers.get(name)?.rates.get(interval)?);
        rates.reduce(|one, other| one + other)
    }
}

fn stretch_of(values: impl Iterator<Item = Option<(Nanos, Nanos, f64, bool)>>) -> Option<Stretch> {
    let (mut known, mut held) = (0u64, 0u64);
    let mut run: Option<(Stretch, u64)> = None;
    let mut longest: Option<(Stretch, u64)> = None;
    for value in values {
        known += u64::from(value.is_some());
        let Some((from, to, value, true)) = value else {
            run = None;
            continue;
        };
        held += 1;
        let (stretch, count) = run.unwrap_or((Stretch { share: 0.0, from, to, mean: 0.0 }, 0));
        let mean = (stretch.mean * count as f64 + value) / (count + 1) as f64;
        let next = (Stretch { to, mean, ..stretch }, count + 1);
        run = Some(next);
        if longest.is_none_or(|(_, most)| next.1 > most) {
            longest = Some(next);
        }
    }
    longest.map(|(stretch, _)| Stretch { share: held as f64 / known as f64, ..stretch })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the share is of known intervals, and the longest run is told with its mean. Method: by hand.
    #[test]
    fn stretches() {
        let values =
            [Some((1.0, true)), None, Some((2.0, true)), Some((4.0, true)), Some((9.0, false)), Some((5.0, true))];
        let timed = values
            .iter()
            .enumerate()
            .map(|(index, value)| value.map(|(value, is)| (index as Nanos, index as Nanos + 1, value, is)));
        assert_eq!(stretch_of(timed), Some(Stretch { share: 0.8, from: 2, to: 4, mean: 3.0 }));
        assert_eq!(stretch_of([None, Some((0, 1, 1.0, false))].into_iter()), None);
    }
}
