//! Times of calls: how many took how long. A log-linear histogram, as HdrHistogram has it (Gil Tene,
//! <https://hdrhistogram.org>): from 64 ns on, each doubling of the time has 64 buckets of the same width, so that a
//! time is known to 1.6 %. Buckets are plain counts, so that processes add theirs up in memory that they share.

use reactor::Nanos;

/// Buckets of a doubling, as a power of two.
const DOUBLING_SHIFT: u32 = 6;
/// Buckets for every time that there is: those below 64 ns, and those of the 58 doublings from there on.
pub const BUCKET_COUNT: usize = ((u64::BITS - DOUBLING_SHIFT + 1) << DOUBLING_SHIFT) as usize;

/// The times of some calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallTimes {
    counts: Vec<u64>,
    most: Nanos,
}

/// What is told of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantiles {
    /// Half of the calls took at most so long; of the others, 99 and 99.9 %.
    pub p50: Nanos,
    pub p99: Nanos,
    pub p999: Nanos,
    pub most: Nanos,
}

impl CallTimes {
    pub fn new() -> CallTimes {
        CallTimes { counts: vec![0; BUCKET_COUNT], most: 0 }
    }

    /// No calls, and no room for any: these are kept elsewhere.
    pub fn none() -> CallTimes {
        CallTimes { counts: Vec::new(), most: 0 }
    }

    /// Of counts by bucket, and the longest time.
    pub fn of_counts(counts: Vec<u64>, most: Nanos) -> CallTimes {
        assert_eq!(counts.len(), BUCKET_COUNT);
        CallTimes { counts, most }
    }

    #[inline]
    pub fn record(&mut self, time: Nanos) {
        self.counts[bucket_of(time)] += 1;
        self.most = self.most.max(time);
    }

    pub fn add(&mut self, other: &CallTimes) {
        assert!(self.counts.len() >= other.counts.len());
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
        self.most = self.most.max(other.most);
    }

    pub fn call_count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub fn most(&self) -> Nanos {
        self.most
    }

    /// The buckets that are not empty, and their counts.
    pub fn counts(&self) -> impl Iterator<Item = (usize, u64)> {
        self.counts.iter().copied().enumerate().filter(|(_, count)| *count > 0)
    }

    /// `None` of no calls.
    pub fn quantiles(&self) -> Option<Quantiles> {
        let calls = self.call_count();
        (calls > 0).then(|| Quantiles {
            p50: self.quantile(calls, 500),
            p99: self.quantile(calls, 990),
            p999: self.quantile(calls, 999),
            most: self.most,
        })
    }

    /// A time within which so many thousandths of the calls ended: the end of the bucket in which the last of them is.
    fn quantile(&self, calls: u64, permille: u128) -> Nanos {
        let wanted = (u128::from(calls) * permille).div_ceil(1_000) as u64;
        let mut seen = 0;
        let within = |(_, count): &(usize, u64)| {
            seen += count;
            seen >= wanted
        };
        self.counts().find(within).map_or(self.most, |(bucket, _)| last_of(bucket).min(self.most))
    }
}

fn bucket_of(time: Nanos) -> usize {
    let doubling = (u64::BITS - DOUBLING_SHIFT).saturating_sub(time.leading_zeros() + 1);
    ((u64::from(doubling) << DOUBLING_SHIFT) + (time >> doubling)) as usize
}

/// The longest time of a bucket.
fn last_of(bucket: usize) -> Nanos {
    let bucket = bucket as u64;
    let doubling = (bucket >> DOUBLING_SHIFT).saturating_sub(1);
    let first = bucket - (doubling << DOUBLING_SHIFT);
    // The end of the last bucket is that of all numbers.
    (((u128::from(first) + 1) << doubling) - 1) as Nanos
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every time has one bucket, buckets follow each other without a gap, and none is wider than a sixty-fourth
    /// of its times. Method: the two times at each border of two buckets.
    #[test]
    fn buckets_cover_all_times() {
        assert_eq!(bucket_of(0), 0);
        let mut before: Nanos = 0;
        for bucket in 0..BUCKET_COUNT - 1 {
            let last = last_of(bucket);
            assert_eq!((bucket_of(last), bucket_of(last + 1)), (bucket, bucket + 1));
            assert!(bucket == 0 || last - before <= ((before + 1) / 64).max(1), "{bucket}");
            before = last;
        }
        assert_eq!((bucket_of(u64::MAX), last_of(BUCKET_COUNT - 1)), (BUCKET_COUNT - 1, u64::MAX));
    }

    /// Goal: quantiles are those of the sorted times, to the width of a bucket, also of sums, and in order.
    #[test]
    fn quantiles_are_those_of_sorted_times() {
        assert_eq!(CallTimes::new().quantiles(), None);
        let (mut even, mut odd) = (CallTimes::new(), CallTimes::new());
        let times: Vec<Nanos> = (1..=10_000).map(|number| number * 100).collect();
        for pair in times.chunks(2) {
            odd.record(pair[0]);
            even.record(pair[1]);
        }
        even.add(&odd);
        assert_eq!(even.call_count(), 10_000);
        let quantiles = even.quantiles().unwrap();
        let close = |told: Nanos, exact: Nanos| told >= exact && told - exact <= exact / 64;
        assert!(close(quantiles.p50, 500_000) && close(quantiles.p99, 990_000) && close(quantiles.p999, 999_000));
        assert_eq!(quantiles.most, 1_000_000);
    }

    /// Goal: one call is all quantiles, exactly.
    #[test]
    fn one_call() {
        let mut times = CallTimes::new();
        times.record(12_345_678);
        let Quantiles { p50, p99, p999, most } = times.quantiles().unwrap();
        assert_eq!([p50, p99, p999, most], [12_345_678; 4]);
    }
}
