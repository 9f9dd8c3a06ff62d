//! Counters of everything that a server does, from the first request on.
//!
//! `arrivals` counts requests taken in; `req_qdepth` those that wait to be started; `req_waittime` is the time from
//! arrival to start; `req_active` counts those started and not finished; service time runs from start to reply.

mod exposition;
pub mod metrics;
pub mod report;

use reactor::Nanos;
use std::cell::{Cell, RefCell};
use wire::Operation;
use wire::operation::OperationClass;

/// Samples that are kept: ten minutes, one a second.
const SAMPLE_COUNT_MAX: usize = 600;
/// Four buckets for each power of two of nanoseconds.
const BUCKET_COUNT: usize = 4 * 48;

/// Counters of one operation, or the sum over several.
#[derive(Clone, Debug)]
pub struct Counters {
    pub arrivals: u64,
    pub finished: u64,
    pub failed: u64,
    pub qdepth: u64,
    pub active: u64,
    pub wait_ns: u64,
    pub service_ns: u64,
    pub service_ns_max: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    buckets: [u32; BUCKET_COUNT],
}

impl Default for Counters {
    fn default() -> Self {
        Counters {
            arrivals: 0,
            finished: 0,
            failed: 0,
            qdepth: 0,
            active: 0,
            wait_ns: 0,
            service_ns: 0,
            service_ns_max: 0,
            bytes_in: 0,
            bytes_out: 0,
            buckets: [0; BUCKET_COUNT],
        }
    }
}

fn bucket_of(duration: Nanos) -> usize {
    if duration < 4 {
        return duration as usize;
    }
    let power = 63 - duration.leading_zeros() as usize;
    let quarter = (duration >> (power - 2)) as usize & 3;
    ((power - 1) * 4 + quarter).min(BUCKET_COUNT - 1)
}

/// Upper end of a bucket, in nanoseconds.
fn bucket_end(bucket: usize) -> Nanos {
    if bucket < 4 {
        return bucket as Nanos;
    }
    let (power, quarter) = (bucket / 4 + 1, bucket as u64 % 4);
    (1 << power) + ((quarter + 1) << (power - 2)) - 1
}

impl Counters {
    fn add(&mut self, other: &Counters) {
        self.arrivals += other.arrivals;
        self.finished += other.finished;
        self.failed += other.failed;
        self.qdepth += other.qdepth;
        self.active += other.active;
        self.wait_ns += other.wait_ns;
        self.service_ns += other.service_ns;
        self.service_ns_max = self.service_ns_max.max(other.service_ns_max);
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        for (sum, count) in self.buckets.iter_mut().zip(other.buckets) {
            *sum = sum.saturating_add(count);
        }
    }

    /// Service time within which `permille` of all requests ended, to a quarter of a power of two.
    pub fn service_ns_quantile(&self, permille: u64) -> Nanos {
        let total: u64 = self.buckets.iter().map(|count| u64::from(*count)).sum();
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += u64::from(*count);
            if seen > 0 && seen * 1000 >= total * permille {
                return bucket_end(bucket).min(self.service_ns_max);
            }
        }
        0
    }
}

/// What a second was like. Counters are totals since the start; the difference of two samples is a rate.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Nanoseconds since the epoch.
    pub time: i64,
    /// Nanoseconds of the loop's work since the start.
    pub busy_ns: u64,
    pub metadata: SampleClass,
    pub data: SampleClass,
    pub journal_used: u64,
    pub bytes_free: u64,
}

#[derive(Clone, Debug, Default)]
pub struct SampleClass {
    pub arrivals: u64,
    pub finished: u64,
    pub qdepth: u64,
    pub active: u64,
    pub wait_ns: u64,
    pub service_ns: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

impl SampleClass {
    pub fn of(counters: &Counters) -> SampleClass {
        SampleClass {
            arrivals: counters.arrivals,
            finished: counters.finished,
            qdepth: counters.qdepth,
            active: counters.active,
            wait_ns: counters.wait_ns,
            service_ns: counters.service_ns,
            bytes_in: counters.bytes_in,
            bytes_out: counters.bytes_out,
        }
    }
}

/// All counters of a server.
pub struct Statistics {
    operations: RefCell<Vec<Counters>>,
    samples: RefCell<Vec<Sample>>,
    next_sample: Cell<usize>,
    pub arrivals: Cell<u64>,
    pub repeated: Cell<u64>,
    pub sampling: Cell<bool>,
}

impl Default for Statistics {
    fn default() -> Self {
        Statistics::new()
    }
}

impl Statistics {
    /// Counters at zero.
    pub fn new() -> Statistics {
        Statistics {
            operations: RefCell::new(vec![Counters::default(); Operation::TABLE_SIZE]),
            samples: RefCell::new(Vec::with_capacity(SAMPLE_COUNT_MAX)),
            next_sample: Cell::new(0),
            arrivals: Cell::new(0),
            repeated: Cell::new(0),
            sampling: Cell::new(false),
        }
    }

    /// A request came in and waits to be started.
    pub fn arrived(&self, operation: Operation) {
        self.arrivals.set(self.arrivals.get() + 1);
        let counters = &mut self.operations.borrow_mut()[operation.index()];
        counters.arrivals += 1;
        counters.qdepth += 1;
    }

    /// Requests of an operation that came in.
    pub fn arrivals_of(&self, operation: Operation) -> u64 {
        self.operations.borrow()[operation.index()].arrivals
    }

    /// A copy of a request that was answered, refused or set aside without being executed.
    pub fn not_started(&self, operation: Operation) {
        self.repeated.set(self.repeated.get() + 1);
        self.operations.borrow_mut()[operation.index()].qdepth -= 1;
    }

    /// A request is started `waited` nanoseconds after it came.
    pub fn started(&self, operation: Operation, waited: Nanos) {
        let counters = &mut self.operations.borrow_mut()[operation.index()];
        counters.qdepth -= 1;
        counters.active += 1;
        counters.wait_ns += waited;
    }

    /// Bytes came to us without a body: who made the request had written them where they belong.
    pub fn arrived_by_themselves(&self, operation: Operation, bytes: u64) {
        self.operations.borrow_mut()[operation.index()].bytes_in += bytes;
    }

    /// A request ended.
    pub fn finished(&self, operation: Operation, took: Nanos, failed: bool, bytes_in: u64, bytes_out: u64) {
        let counters = &mut self.operations.borrow_mut()[operation.index()];
        counters.active -= 1;
        counters.finished += 1;
        counters.failed += u64::from(failed);
        counters.service_ns += took;
        counters.service_ns_max = counters.service_ns_max.max(took);
        counters.bytes_in += bytes_in;
        counters.bytes_out += bytes_out;
        let bucket = &mut counters.buckets[bucket_of(took)];
        *bucket = bucket.saturating_add(1);
    }

    /// The sum over the operations of a class, of clients and servers alike.
    pub fn class(&self, class: OperationClass) -> Counters {
        let operations = self.operations.borrow();
        let mut sum = Counters::default();
        for operation in Operation::ALL.iter().filter(|operation| operation.class() == class) {
            sum.add(&operations[operation.index()]);
        }
        sum
    }

    /// Visits the operations that ever came.
    pub fn for_each(&self, visit: &mut dyn FnMut(Operation, &Counters)) {
        let operations = self.operations.borrow();
        for operation in Operation::ALL {
            let counters = &operations[operation.index()];
            if counters.arrivals > 0 {
                visit(*operation, counters);
            }
        }
    }

    /// Requests that were started and not finished.
    pub fn active(&self) -> u64 {
        self.operations.borrow().iter().map(|counters| counters.active).sum()
    }

    pub fn add_sample(&self, sample: Sample) {
        let mut samples = self.samples.borrow_mut();
        let next = self.next_sample.get();
        if samples.len() < SAMPLE_COUNT_MAX {
            samples.push(sample);
        } else {
            samples[next] = sample;
        }
        self.next_sample.set((next + 1) % SAMPLE_COUNT_MAX);
    }

    /// The kept samples, oldest first; at most `count` of the youngest.
    pub fn samples(&self, count: usize) -> Vec<Sample> {
        let samples = self.samples.borrow();
        let next = if samples.len() < SAMPLE_COUNT_MAX { 0 } else { self.next_sample.get() };
        let skipped = samples.len().saturating_sub(count);
        (skipped..samples.len()).map(|index| samples[(next + index) % samples.len()].clone()).collect()
    }

    /// Most bytes that the counters take.
    pub fn memory_max() -> u64 {
        (Operation::TABLE_SIZE * size_of::<Counters>() + SAMPLE_COUNT_MAX * size_of::<Sample>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a duration lies in its bucket, and buckets do not overlap.
    #[test]
    fn buckets() {
        let mut last = 0;
        for power in 0..40 {
            for part in [1u64 << power, (1 << power) + (1 << power) / 3, (1 << power) + (1 << power) / 2] {
                let bucket = bucket_of(part);
                assert!(bucket >= last && part <= bucket_end(bucket), "{part} in {bucket}");
                assert!(bucket == 0 || part > bucket_end(bucket - 1), "{part} in {bucket}");
                last = bucket;
            }
        }
    }

    /// Goal: the ring keeps the youngest samples in order.
    #[test]
    fn ring() {
        let statistics = Statistics::new();
        for time in 0..SAMPLE_COUNT_MAX as i64 + 7 {
            statistics.add_sample(Sample { time, ..Sample::default() });
        }
        let times: Vec<i64> = statistics.samples(3).iter().map(|sample| sample.time).collect();
        assert_eq!(times, [604, 605, 606]);
        assert_eq!(statistics.samples(usize::MAX).len(), SAMPLE_COUNT_MAX);
    }
}
