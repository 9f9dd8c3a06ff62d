//! Counters of everything that a server does, from the first request on.
//!
//! `arrivals` counts requests taken in; `req_qdepth` those that wait for something (`waits` says for what), before they
//! are begun or later; `req_waittime` is what they have waited; `req_active` counts those at work; service time runs
//! from start to reply, but for what was waited meanwhile.

pub mod busiest;
pub mod clients;
mod exposition;
pub mod jobs;
pub mod metrics;
pub mod ranks;
pub mod report;
pub mod samples;
pub mod waits;

use busiest::{Busiest, BusyObject};
use clients::{ClientCounts, Clients};
use jobs::{JobCounters, JobSample, Jobs};
use ranks::Ranks;
use reactor::{Nanos, Peer};
use samples::Samples;
use std::cell::{Cell, Ref, RefCell};
use waits::{Asker, REASON_COUNT, WaitGauge, WaitReason};
use wire::messages::NoteCountersRequest;
use wire::operation::OperationClass;
use wire::{FileId, Operation};

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
    /// Request-nanoseconds at work; of classes only, up to when they were asked for.
    pub active_ns: u64,
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
            active_ns: 0,
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

wire::message! {
    /// What a second was like. Counters are totals since the server was started; the difference of two samples of one
    /// life is a rate.
    #[derive(Default)]
    pub struct Sample {
        /// Grows by one a sample, from 1 on, over lives of the server too: who asks again sees what he has missed.
        pub number: u64,
        /// Nanoseconds since the epoch.
        pub time: i64,
        /// When the server was started that took it, in the same.
        pub started: i64,
        /// Nanoseconds of the loop's work since the start.
        pub busy_ns: u64,
        pub metadata: SampleClass,
        pub data: SampleClass,
        /// Request-nanoseconds that were waited, by `WaitReason`, of both classes.
        pub waits_ns: [u64; REASON_COUNT],
        /// What clients did without this server.
        pub clients: ClientCounts,
        /// What those jobs asked for in this second that took most, and all others together.
        pub jobs: Vec<JobSample>,
        pub journal_used: u64,
        pub bytes_free: u64,
    }
}

wire::message! {
    /// A class of operations in a sample.
    #[derive(Default)]
    pub struct SampleClass {
        pub arrivals: u64,
        pub finished: u64,
        pub qdepth: u64,
        pub active: u64,
        pub wait_ns: u64,
        pub active_ns: u64,
        pub service_ns: u64,
        pub bytes_in: u64,
        pub bytes_out: u64,
    }
}

impl SampleClass {
    pub fn of(counters: &Counters) -> SampleClass {
        SampleClass {
            arrivals: counters.arrivals,
            finished: counters.finished,
            qdepth: counters.qdepth,
            active: counters.active,
            wait_ns: counters.wait_ns,
            active_ns: counters.active_ns,
            service_ns: counters.service_ns,
            bytes_in: counters.bytes_in,
            bytes_out: counters.bytes_out,
        }
    }
}

/// The tag of connections of no job: those of servers.
pub const NO_JOB: u32 = u32::MAX;
/// Classes of operations.
const CLASS_COUNT: usize = 2;

fn place_of(class: OperationClass) -> usize {
    match class {
        OperationClass::Metadata => 0,
        OperationClass::Data => 1,
    }
}

/// What a request waited for before it was begun, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub struct EarlyWaits {
    pub unread: Nanos,
    pub others: Nanos,
    /// Since when it has waited for its turn, if it did (`Statistics::hold`).
    pub turn_since: Option<Nanos>,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestEnd {
    pub now: Nanos,
    /// Its service time.
    pub took: Nanos,
    pub failed: bool,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// The file or directory that it was about.
    pub object: Option<FileId>,
}

/// How many are at work, summed over time.
#[derive(Debug, Clone, Copy, Default)]
struct WorkGauge {
    count: u64,
    /// The ends of all less the begins of all.
    ends: u64,
}

impl WorkGauge {
    fn begin(&mut self, now: Nanos) {
        self.count += 1;
        self.ends = self.ends.wrapping_sub(now);
    }

    fn end(&mut self, now: Nanos) {
        self.count -= 1;
        self.ends = self.ends.wrapping_add(now);
    }

    fn total_ns(&self, now: Nanos) -> u64 {
        self.ends.wrapping_add(self.count.wrapping_mul(now))
    }
}

struct Tables {
    operations: Vec<Counters>,
    waits: [[WaitGauge; REASON_COUNT]; CLASS_COUNT],
    work: [WorkGauge; CLASS_COUNT],
    jobs: Jobs,
    clients: Clients,
    busiest: Busiest,
}

impl Tables {
    fn operation(&mut self, who: Asker) -> &mut Counters {
        &mut self.operations[who.operation.index()]
    }

    fn gauge(&mut self, who: Asker, reason: WaitReason) -> &mut WaitGauge {
        &mut self.waits[place_of(who.operation.class())][reason as usize]
    }

    fn begin_work(&mut self, who: Asker, now: Nanos) {
        let counters = self.operation(who);
        counters.qdepth -= 1;
        counters.active += 1;
        self.work[place_of(who.operation.class())].begin(now);
    }

    fn end_work(&mut self, who: Asker, now: Nanos) {
        self.operation(who).active -= 1;
        self.work[place_of(who.operation.class())].end(now);
    }

    fn job(&mut self, who: Asker) -> Option<&mut JobCounters> {
        // What clients count themselves is not asked for by their jobs.
        let is_asked = who.operation != Operation::NoteCounters;
        (who.job != NO_JOB && is_asked).then(|| self.jobs.counters(who.job))
    }

    fn waited(&mut self, who: Asker, waited: Nanos) {
        self.operation(who).wait_ns += waited;
        if let Some(job) = self.job(who) {
            job.wait_ns += waited;
        }
    }
}

/// All counters of a server.
pub struct Statistics {
    tables: RefCell<Tables>,
    samples: RefCell<Samples>,
    pub arrivals: Cell<u64>,
    pub repeated: Cell<u64>,
    pub sampling: Cell<bool>,
}

impl Statistics {
    /// Counters at zero; `samples` may have some of earlier lives.
    pub fn new(samples: Samples) -> Statistics {
        Statistics {
            tables: RefCell::new(Tables {
                operations: vec![Counters::default(); Operation::TABLE_SIZE],
                waits: Default::default(),
                work: Default::default(),
                jobs: Jobs::default(),
                clients: Clients::default(),
                busiest: Busiest::default(),
            }),
            samples: RefCell::new(samples),
            arrivals: Cell::new(0),
            repeated: Cell::new(0),
            sampling: Cell::new(false),
        }
    }

    /// Somebody connects; from now on requests are of the tag's job.
    pub fn connected(&self, peer: &Peer) {
        if !peer.role.is_client() {
            return peer.tag.set(NO_JOB);
        }
        let tables = &mut *self.tables.borrow_mut();
        peer.tag.set(tables.jobs.connect(&peer.label));
        tables.clients.connect(peer.connection, peer.tag.get(), &peer.label);
    }

    /// A client that was just connected shares memory with us, in which it counts what it does by itself.
    pub fn shared(&self, peer: &Peer) {
        if let Some(counters) = &peer.counters {
            self.tables.borrow_mut().clients.share(peer.connection, counters.clone());
        }
    }

    pub fn disconnected(&self, peer: &Peer) {
        if peer.tag.get() != NO_JOB {
            let tables = &mut *self.tables.borrow_mut();
            tables.clients.disconnect(peer.connection, &mut tables.jobs);
            tables.jobs.disconnect(peer.tag.get());
        }
    }

    /// A client tells what it did by itself since it was connected.
    pub fn note_client(&self, peer: &Peer, request: &NoteCountersRequest) {
        let tables = &mut *self.tables.borrow_mut();
        tables.clients.note(peer.connection, request, &mut tables.jobs);
    }

    /// Looks at what clients do by themselves.
    pub fn collect_clients(&self) {
        let tables = &mut *self.tables.borrow_mut();
        tables.clients.collect(&mut tables.jobs);
    }

    /// Whether there are clients that may do anything without a word.
    pub fn has_silent_clients(&self) -> bool {
        self.tables.borrow().clients.has_silent()
    }

    /// What clients did without this server.
    pub fn client_totals(&self) -> ClientCounts {
        self.tables.borrow().clients.totals()
    }

    /// A request came in and waits to be started.
    pub fn arrived(&self, who: Asker) {
        self.arrivals.set(self.arrivals.get() + 1);
        let tables = &mut *self.tables.borrow_mut();
        let counters = tables.operation(who);
        counters.arrivals += 1;
        counters.qdepth += 1;
        if let Some(job) = tables.job(who) {
            job.arrivals += 1;
        }
    }

    /// Requests of an operation that came in.
    pub fn arrivals_of(&self, operation: Operation) -> u64 {
        self.tables.borrow().operations[operation.index()].arrivals
    }

    /// A copy of a request that was answered, refused or set aside without being executed.
    pub fn not_started(&self, who: Asker) {
        self.repeated.set(self.repeated.get() + 1);
        self.tables.borrow_mut().operation(who).qdepth -= 1;
    }

    /// A request that came in is not begun before its turn.
    pub fn hold(&self, who: Asker, now: Nanos) {
        self.tables.borrow_mut().gauge(who, WaitReason::Turn).begin(now);
    }

    /// A request is started now.
    pub fn started(&self, who: Asker, waits: EarlyWaits, now: Nanos) {
        let tables = &mut *self.tables.borrow_mut();
        let mut waited = waits.unread + waits.others;
        if waits.unread > 0 {
            tables.gauge(who, WaitReason::Unread).pass(waits.unread);
        }
        if waits.others > 0 {
            tables.gauge(who, WaitReason::Others).pass(waits.others);
        }
        if let Some(since) = waits.turn_since {
            tables.gauge(who, WaitReason::Turn).end(since, now);
            waited += now.saturating_sub(since);
        }
        tables.begin_work(who, now);
        if waited > 0 {
            tables.waited(who, waited);
        }
    }

    /// A request that was at work waits for what is counted elsewhere, and is no work of this server meanwhile.
    pub fn set_aside(&self, who: Asker, now: Nanos) {
        self.tables.borrow_mut().end_work(who, now);
    }

    /// It is at work again.
    pub fn take_up(&self, who: Asker, now: Nanos) {
        let tables = &mut *self.tables.borrow_mut();
        tables.operation(who).qdepth += 1;
        tables.begin_work(who, now);
    }

    /// A request that was at work waits from now on.
    pub fn begin_wait(&self, who: Asker, reason: WaitReason, now: Nanos) {
        let tables = &mut *self.tables.borrow_mut();
        tables.gauge(who, reason).begin(now);
        tables.end_work(who, now);
        tables.operation(who).qdepth += 1;
    }

    /// It has waited since `began`, and is at work again.
    pub fn end_wait(&self, who: Asker, reason: WaitReason, began: Nanos, now: Nanos) {
        let tables = &mut *self.tables.borrow_mut();
        tables.gauge(who, reason).end(began, now);
        tables.begin_work(who, now);
        tables.waited(who, now.saturating_sub(began));
    }

    /// Bytes came to us without a body: who made the request had written them where they belong.
    pub fn arrived_by_themselves(&self, who: Asker, file: FileId, bytes: u64) {
        let tables = &mut *self.tables.borrow_mut();
        tables.operation(who).bytes_in += bytes;
        if let Some(job) = tables.job(who) {
            job.bytes_in += bytes;
            tables.busiest.add_bytes_in(file, bytes);
        }
    }

    /// A request ended now. `took` is its service time.
    pub fn finished(&self, who: Asker, end: RequestEnd) {
        let RequestEnd { now, took, failed, bytes_in, bytes_out, object } = end;
        let tables = &mut *self.tables.borrow_mut();
        tables.end_work(who, now);
        let counters = tables.operation(who);
        counters.finished += 1;
        counters.failed += u64::from(failed);
        counters.service_ns += took;
        counters.service_ns_max = counters.service_ns_max.max(took);
        counters.bytes_in += bytes_in;
        counters.bytes_out += bytes_out;
        let bucket = &mut counters.buckets[bucket_of(took)];
        *bucket = bucket.saturating_add(1);
        if let Some(job) = tables.job(who) {
            job.finish(who.operation, &end);
            if let Some(object) = object {
                tables.busiest.finish(who.operation, object, &end);
            }
        }
    }

    /// The sum over the operations of a class, of clients and servers alike. What is waited now counts until `now`.
    pub fn class(&self, class: OperationClass, now: Nanos) -> Counters {
        let tables = self.tables.borrow();
        let mut sum = Counters::default();
        for operation in Operation::ALL.iter().filter(|operation| operation.class() == class) {
            sum.add(&tables.operations[operation.index()]);
        }
        sum.active_ns = tables.work[place_of(class)].total_ns(now);
        sum.wait_ns = tables.waits[place_of(class)].iter().map(|gauge| gauge.total_ns(now)).sum();
        sum
    }

    /// What requests of a class wait for.
    pub fn waits(&self, class: OperationClass) -> [WaitGauge; REASON_COUNT] {
        self.tables.borrow().waits[place_of(class)]
    }

    /// The jobs of clients.
    pub fn jobs(&self) -> Ref<'_, Jobs> {
        Ref::map(self.tables.borrow(), |tables| &tables.jobs)
    }

    /// The processes of parallel programs.
    pub fn ranks(&self) -> Ref<'_, Ranks> {
        Ref::map(self.tables.borrow(), |tables| tables.clients.ranks())
    }

    /// The files and directories to which clients did most.
    pub fn busiest(&self) -> Vec<BusyObject> {
        self.tables.borrow().busiest.all()
    }

    /// Visits the operations that ever came.
    pub fn for_each(&self, visit: &mut dyn FnMut(Operation, &Counters)) {
        let tables = self.tables.borrow();
        for operation in Operation::ALL {
            let counters = &tables.operations[operation.index()];
            if counters.arrivals > 0 {
                visit(*operation, counters);
            }
        }
    }

    /// Requests that were taken in and not finished, but for those that clients have standing here all the time, for
    /// what there is to tell: with 0 the server is at rest.
    pub fn work_under_way(&self) -> u64 {
        let standing = &self.tables.borrow().operations[Operation::KeepEntries.index()];
        self.under_way() - standing.active - standing.qdepth
    }

    /// The operations of which there are requests that were taken in and not finished.
    pub fn operations_under_way(&self) -> Vec<&'static str> {
        let tables = self.tables.borrow();
        let is_busy = |operation: &Operation| {
            let counters = &tables.operations[operation.index()];
            counters.active + counters.qdepth > 0
        };
        Operation::ALL.iter().copied().filter(is_busy).map(Operation::name).collect()
    }

    /// Requests that were taken in and not finished.
    pub fn under_way(&self) -> u64 {
        self.tables.borrow().operations.iter().map(|counters| counters.active + counters.qdepth).sum()
    }

    /// Notes a sample, with what jobs did since the one before.
    pub fn add_sample(&self, sample: Sample) {
        let jobs = self.tables.borrow_mut().jobs.sample();
        self.samples.borrow_mut().add(Sample { jobs, ..sample });
    }

    /// The kept samples.
    pub fn samples(&self) -> Ref<'_, Samples> {
        self.samples.borrow()
    }

    /// Most bytes that the counters take, with so many connections.
    pub fn memory_max(connections: u64) -> u64 {
        (Operation::TABLE_SIZE * size_of::<Counters>()) as u64
            + Samples::memory_max()
            + Jobs::memory_max()
            + Busiest::memory_max()
            + Clients::memory_max(connections)
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
}
