//! Numbers that a server told of itself: counters, of which growth counts, and levels such as free bytes, of which
//! values count. Which of them a number is, knows who looks at it.

use super::axis::Axis;
use super::{Question, pieces, samples};
use crate::clock::Nanos;
use crate::database;
use crate::sources::Counter;
use std::collections::BTreeMap;

/// One number in a job's time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Number {
    /// By how much it grew a second, for each interval. What is not known is none.
    pub rates: Vec<Option<f64>>,
    /// By how much it grew in all.
    pub growth: f64,
    /// What it was when it was told of, in the job's time.
    pub values: Vec<(Nanos, i64)>,
}

impl Number {
    pub fn least(&self) -> Option<(Nanos, i64)> {
        self.values.iter().copied().min_by_key(|(_, value)| *value)
    }

    pub fn most(&self) -> Option<(Nanos, i64)> {
        self.values.iter().copied().max_by_key(|(_, value)| *value)
    }
}

impl Question<'_> {
    /// All numbers of a server, by name.
    pub fn numbers(&self, server: &str) -> database::Result<BTreeMap<String, Number>> {
        let clock = samples::clock_of(self.database, server, self.job)?;
        let axis = Axis::new(self.job.start, self.job.end, self.interval);
        let mut found = BTreeMap::new();
        for (name, series) in samples::numbers_of(self.database, server)? {
            let samples = samples::read(self.database, &series, self.job, &clock)?;
            let index = Counter::Operations as usize;
            let values = samples.iter().filter(|sample| (self.job.start..=self.job.end).contains(&sample.time));
            let values = values.filter_map(|sample| Some((sample.time, sample.counters[index]?))).collect();
            let (mut grown, mut known) = (vec![0.0; axis.count()], vec![0.0; axis.count()]);
            let mut growth = 0.0;
            for piece in pieces::between(&samples, &series, None, self.interval) {
                let value = piece.growth[index].unwrap_or(0) as f64;
                axis.share_out(&piece, |index, part, time| {
                    growth += value * part;
                    // Nobody knows when in a gap something happened.
                    if !piece.gap {
                        grown[index] += value * part;
                        known[index] += time;
                    }
                });
            }
            let rate = |(grown, known): (&f64, &f64)| (*known > 0.0).then(|| grown / (known / 1e9));
            let rates = grown.iter().zip(&known).map(rate).collect();
            found.insert(name, Number { rates, growth, values });
        }
        Ok(found)
    }
}
