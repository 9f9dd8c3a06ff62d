//! What the clients of each job asked for. Jobs are told apart by what clients say of themselves (`wire::label`).
//!
//! Invariants
//! 1. The counters of all entries together are those of all clients' requests, whatever became of their jobs: what is
//!    taken off the table is added to the entry of others.
//! 2. There are at most `JOB_COUNT_MAX` entries.

use super::RequestEnd;
use super::clients::ClientCounts;
use wire::label::Label;
use wire::operation::OperationClass;
use wire::{Decode, Decoder, Encode, Malformed, Operation};

/// Jobs that are told apart. Of more those are put together that have no connection and were not heard of for longest.
pub const JOB_COUNT_MAX: usize = 256;
/// The entries of clients that name no job, and of all jobs that are not told apart.
const NAMELESS: usize = 0;
const OTHERS: usize = 1;
/// Jobs that a sample tells of: those for which most was done. What others did shows in a later one.
pub const JOB_SAMPLE_COUNT_MAX: usize = 8;
/// What a tag has for the number of its entry; above is how often that was given to another job.
const INDEX_BITS: u32 = 9;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

wire::message! {
    /// Requests of a job, and what they took.
    #[derive(Copy, Default, Eq)]
    pub struct JobCounters {
        pub arrivals: u64,
        pub finished: u64,
        pub failed: u64,
        /// Of those that finished: bytes asked for, bytes brought, and all others.
        pub reads: u64,
        pub writes: u64,
        pub metadata: u64,
        pub wait_ns: u64,
        pub service_ns: u64,
        pub bytes_in: u64,
        pub bytes_out: u64,
        /// What its clients did without this server, as they say.
        pub clients: ClientCounts,
    }
}

impl JobCounters {
    pub fn add(&mut self, other: &JobCounters) {
        self.arrivals += other.arrivals;
        self.finished += other.finished;
        self.failed += other.failed;
        self.reads += other.reads;
        self.writes += other.writes;
        self.metadata += other.metadata;
        self.wait_ns += other.wait_ns;
        self.service_ns += other.service_ns;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.clients.add(&other.clients);
    }

    /// What came since these counters were `before`.
    pub fn since(&self, before: &JobCounters) -> JobCounters {
        JobCounters {
            arrivals: self.arrivals - before.arrivals,
            finished: self.finished - before.finished,
            failed: self.failed - before.failed,
            reads: self.reads - before.reads,
            writes: self.writes - before.writes,
            metadata: self.metadata - before.metadata,
            wait_ns: self.wait_ns - before.wait_ns,
            service_ns: self.service_ns - before.service_ns,
            bytes_in: self.bytes_in - before.bytes_in,
            bytes_out: self.bytes_out - before.bytes_out,
            clients: self.clients.since(&before.clients),
        }
    }

    /// A request of the job ended.
    pub(super) fn finish(&mut self, operation: Operation, end: &RequestEnd) {
        self.finished += 1;
        self.failed += u64::from(end.failed);
        match (operation.class(), operation.is_mutating()) {
            (OperationClass::Data, false) => self.reads += 1,
            (OperationClass::Data, true) => self.writes += 1,
            (OperationClass::Metadata, _) => self.metadata += 1,
        }
        self.service_ns += end.took;
        self.bytes_in += end.bytes_in;
        self.bytes_out += end.bytes_out;
    }
}

/// A job.
#[derive(Debug, Clone)]
pub struct Job {
    /// As its clients call it; empty: clients that name none, or many jobs.
    pub name: String,
    pub program: String,
    pub connections: u32,
    /// The number of its last change of connections.
    used: u64,
    /// The number of the entry, and above that how many jobs had it before.
    pub tag: u32,
    pub counters: JobCounters,
    /// The counters at the last sample that told them.
    sampled: JobCounters,
}

wire::message! {
    /// A job for which something was done within a second.
    #[derive(Default, Eq)]
    pub struct JobSample {
        pub kind: JobKind,
        pub name: String,
        /// Whether nothing was ever done for it before.
        pub is_new: bool,
        /// Totals since the job was first seen, as those of samples are.
        pub counters: JobCounters,
    }
}

/// The table.
#[derive(Debug)]
pub struct Jobs {
    entries: Vec<Job>,
    uses: u64,
    /// What samples have told under their names of jobs that are among the others by now.
    told_before: JobCounters,
}

impl Default for Jobs {
    fn default() -> Self {
        let entry = |tag: usize| Job {
            name: String::new(),
            program: String::new(),
            connections: 0,
            used: 0,
            tag: tag as u32,
            counters: JobCounters::default(),
            sampled: JobCounters::default(),
        };
        Jobs { entries: vec![entry(NAMELESS), entry(OTHERS)], uses: 0, told_before: JobCounters::default() }
    }
}

impl Jobs {
    /// A client connects. Returns the tag of its job.
    pub fn connect(&mut self, label: &Label) -> u32 {
        self.uses += 1;
        let index = if label.job.is_empty() { NAMELESS } else { self.entry_of(&label.job, &label.program) };
        let entry = &mut self.entries[index];
        entry.connections += 1;
        entry.used = self.uses;
        entry.tag
    }

    fn entry_of(&mut self, name: &str, program: &str) -> usize {
        let known = self.entries.iter().position(|entry| entry.name == name);
        if let Some(index) = known {
            return index;
        }
        let entry = |tag: u32| Job {
            name: name.to_owned(),
            program: program.to_owned(),
            connections: 0,
            used: 0,
            tag,
            counters: JobCounters::default(),
            sampled: JobCounters::default(),
        };
        if self.entries.len() < JOB_COUNT_MAX {
            self.entries.push(entry(self.entries.len() as u32));
            return self.entries.len() - 1;
        }
        let idle = self.entries.iter().enumerate().skip(OTHERS + 1).filter(|(_, entry)| entry.connections == 0);
        let Some((index, _)) = idle.min_by_key(|(_, entry)| entry.used) else { return OTHERS };
        let (counters, sampled) = (self.entries[index].counters, self.entries[index].sampled);
        self.entries[OTHERS].counters.add(&counters);
        self.told_before.add(&sampled);
        self.entries[index] = entry(self.entries[index].tag.wrapping_add(1 << INDEX_BITS));
        index
    }

    /// A client's connection has ended.
    pub fn disconnect(&mut self, tag: u32) {
        self.uses += 1;
        let uses = self.uses;
        let entry = self.entry(tag);
        entry.connections = entry.connections.saturating_sub(1);
        entry.used = uses;
    }

    /// The entry of a tag, or that of others if it is another job's by now.
    fn entry(&mut self, tag: u32) -> &mut Job {
        let index = (tag & INDEX_MASK) as usize;
        let is_own = self.entries.get(index).is_some_and(|entry| entry.tag == tag);
        &mut self.entries[if is_own { index } else { OTHERS }]
    }

    /// The counters that a tag stands for.
    pub fn counters(&mut self, tag: u32) -> &mut JobCounters {
        &mut self.entry(tag).counters
    }

    /// All that ever asked for something or are connected.
    pub fn iter(&self) -> impl Iterator<Item = (JobKind, &Job)> {
        let entries = self.entries.iter().enumerate();
        let counts = |entry: &Job| entry.counters.arrivals > 0 || entry.connections > 0;
        entries.filter(move |(_, entry)| counts(entry)).map(|(index, entry)| (kind_of(index), entry))
    }

    /// The jobs for which most was done since the last sample, in no order.
    pub fn sample(&mut self) -> Vec<JobSample> {
        let told_before = self.told_before;
        let totals = move |index: usize, counters: &JobCounters| match index {
            OTHERS => counters.since(&told_before),
            _ => *counters,
        };
        // What its clients did by themselves counts as time as well: a nanosecond a byte or a look.
        let service = |index: usize, job: &Job| {
            let grown = totals(index, &job.counters).since(&job.sampled);
            grown.service_ns.saturating_add(grown.clients.done())
        };
        let has_grown = |index: usize, job: &Job| totals(index, &job.counters) != job.sampled;
        let mut found: Vec<usize> =
            (0..self.entries.len()).filter(|index| has_grown(*index, &self.entries[*index])).collect();
        if found.len() > JOB_SAMPLE_COUNT_MAX {
            found.sort_by_key(|index| std::cmp::Reverse(service(*index, &self.entries[*index])));
            found.truncate(JOB_SAMPLE_COUNT_MAX);
        }
        let told = found.into_iter().map(|index| {
            let entry = &mut self.entries[index];
            let counters = totals(index, &entry.counters);
            let before = std::mem::replace(&mut entry.sampled, counters);
            JobSample { kind: kind_of(index), name: entry.name.clone(), is_new: before.arrivals == 0, counters }
        });
        told.collect()
    }

    /// Most bytes that the table takes.
    pub fn memory_max() -> u64 {
        (JOB_COUNT_MAX * (size_of::<Job>() + wire::label::LABEL_SIZE_MAX)) as u64
    }
}

/// What an entry is of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum JobKind {
    /// The job that the entry names.
    #[default]
    Job,
    /// Clients that name no job.
    Nameless,
    /// Jobs that are not told apart.
    Others,
}

impl JobKind {
    /// Its name in reports.
    pub fn word(self) -> &'static str {
        match self {
            JobKind::Job => "job",
            JobKind::Nameless => "none",
            JobKind::Others => "others",
        }
    }
}

const KINDS: [JobKind; 3] = [JobKind::Job, JobKind::Nameless, JobKind::Others];

impl Encode for JobKind {
    fn encode(&self, out: &mut Vec<u8>) {
        (*self as u8).encode(out);
    }
}

impl<'a> Decode<'a> for JobKind {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        KINDS.get(usize::from(u8::decode(input)?)).copied().ok_or(Malformed("kind of a job that there is not"))
    }
}

fn kind_of(index: usize) -> JobKind {
    match index {
        NAMELESS => JobKind::Nameless,
        OTHERS => JobKind::Others,
        _ => JobKind::Job,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(job: usize) -> Label {
        Label::new(&job.to_string(), "0", "", "", "ior")
    }

    /// Goal: however many jobs come and go, the table is bounded, those that are connected keep their entries, and
    /// nothing that was counted is lost.
    #[test]
    fn bounded_and_exact() {
        let mut jobs = Jobs::default();
        let stays = jobs.connect(&label(1_000_000));
        let mut old_tags = Vec::new();
        for job in 0..3 * JOB_COUNT_MAX {
            let tag = jobs.connect(&label(job));
            jobs.counters(tag).arrivals += 1;
            jobs.disconnect(tag);
            old_tags.push(tag);
            jobs.counters(stays).arrivals += 1;
        }
        // What ends late counts somewhere.
        old_tags.iter().for_each(|tag| jobs.counters(*tag).finished += 1);
        let nameless = jobs.connect(&Label::default());
        jobs.counters(nameless).arrivals += 1;
        assert!(jobs.entries.len() <= JOB_COUNT_MAX);
        let sum = |of: fn(&JobCounters) -> u64| jobs.iter().map(|(_, job)| of(&job.counters)).sum::<u64>();
        assert_eq!(sum(|counters| counters.arrivals), 6 * JOB_COUNT_MAX as u64 + 1);
        assert_eq!(sum(|counters| counters.finished), 3 * JOB_COUNT_MAX as u64);
        let of = |wanted: JobKind, name: &str| {
            let found = jobs.iter().find(|(kind, job)| *kind == wanted && job.name == name);
            found.map(|(_, job)| job.counters.arrivals)
        };
        assert_eq!(of(JobKind::Job, "1000000"), Some(3 * JOB_COUNT_MAX as u64));
        assert_eq!(of(JobKind::Nameless, ""), Some(1));
    }

    /// Goal: samples tell of each job once for each second in which something was done for it, of all jobs sooner or
    /// later, and of nothing twice.
    #[test]
    fn samples() {
        let mut jobs = Jobs::default();
        let tags: Vec<u32> = (0..JOB_SAMPLE_COUNT_MAX + 3).map(|job| jobs.connect(&label(job))).collect();
        for tag in &tags {
            let counters = jobs.counters(*tag);
            (counters.arrivals, counters.service_ns) = (5, u64::from(*tag));
        }
        let first = jobs.sample();
        assert_eq!(first.len(), JOB_SAMPLE_COUNT_MAX);
        assert!(first.iter().all(|job| job.is_new && job.counters.arrivals == 5 && job.name != "0"));
        assert_eq!(jobs.sample().len(), 3);
        assert!(jobs.sample().is_empty());
        jobs.counters(tags[0]).arrivals += 1;
        let again = jobs.sample();
        assert_eq!((again.len(), &again[0].name[..], again[0].counters.arrivals, again[0].is_new), (1, "0", 6, false));
        // What a job did since the last sample is told also when its entry has gone to another one.
        jobs.counters(tags[1]).arrivals += 1;
        tags.iter().for_each(|tag| jobs.disconnect(*tag));
        for job in JOB_COUNT_MAX..3 * JOB_COUNT_MAX {
            let tag = jobs.connect(&label(job));
            jobs.disconnect(tag);
        }
        let after = jobs.sample();
        assert_eq!(
            after.iter().map(|job| (job.kind, job.counters.arrivals)).collect::<Vec<_>>(),
            [(JobKind::Others, 1)]
        );
    }

    /// Goal: where all entries are of jobs that are connected, more of them are counted together.
    #[test]
    fn all_connected() {
        let mut jobs = Jobs::default();
        let tags: Vec<u32> = (0..JOB_COUNT_MAX + 5).map(|job| jobs.connect(&label(job))).collect();
        tags.iter().for_each(|tag| jobs.counters(*tag).arrivals += 1);
        let others = jobs.iter().find(|(kind, _)| *kind == JobKind::Others).map(|(_, job)| job.counters.arrivals);
        assert_eq!(others, Some(7));
    }
}
