//! What clients do without this server, as they count it themselves (`shm::client_counters`): in memory that they share
//! with it, which is looked at once a second, or by messages (`NoteCounters`).
//!
//! Invariants
//! 1. Nothing that the server has counted itself is among these numbers, and nothing is decided by them.
//! 2. Of a connection only growth counts, each once: its last numbers are kept beside it, and are taken in once more
//!    when it ends, also that of a client that was killed.

use super::jobs::Jobs;
use super::ranks::{RankKey, Ranks};
use reactor::{COUNTER_COUNT, ClientCounter, ClientCounters, Mapped};
use std::collections::BTreeMap;
use wire::label::Label;
use wire::messages::NoteCountersRequest;
use wire::{Decode, Decoder, Encode, Malformed};

/// Most that a number can be: sums of several are numbers of 64 bits with a sign for whoever reads them.
const COUNT_MAX: u64 = 1 << 56;

/// Totals, by `ClientCounter`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientCounts(pub [u64; COUNTER_COUNT]);

impl Encode for ClientCounts {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }
}

impl<'a> Decode<'a> for ClientCounts {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        Ok(ClientCounts(Decode::decode(input)?))
    }
}

impl ClientCounts {
    /// What is told, with the names in reports.
    pub fn numbers(&self) -> [(&'static str, u64); COUNTER_COUNT] {
        ClientCounter::ALL.map(|counter| self.number(counter))
    }

    pub fn number(&self, counter: ClientCounter) -> (&'static str, u64) {
        (name_of(counter), self.0[counter as usize])
    }

    pub fn add(&mut self, other: &ClientCounts) {
        self.0.iter_mut().zip(other.0).for_each(|(own, other)| *own = own.saturating_add(other).min(COUNT_MAX));
    }

    /// Opens, looks, reads and bytes together: a measure of how much was done.
    pub fn done(&self) -> u64 {
        let is_deed = |counter: &ClientCounter| (*counter as usize) < ClientCounter::Answers as usize;
        ClientCounter::ALL.iter().filter(|counter| is_deed(counter)).map(|counter| self.0[*counter as usize]).sum()
    }

    /// What somebody says, whom nobody trusts.
    fn of(told: [u64; COUNTER_COUNT]) -> ClientCounts {
        ClientCounts(told.map(|count| count.min(COUNT_MAX)))
    }

    /// What came since they were `before`.
    pub fn since(&self, before: &ClientCounts) -> ClientCounts {
        ClientCounts(std::array::from_fn(|index| self.0[index].saturating_sub(before.0[index])))
    }

    /// Takes in larger numbers, and returns by how much they are.
    fn growth(&mut self, now: &ClientCounts) -> ClientCounts {
        let grown = now.since(self);
        self.add(&grown);
        grown
    }

    fn of_request(request: &NoteCountersRequest) -> ClientCounts {
        ClientCounts::of(ClientCounter::ALL.map(|counter| match counter {
            ClientCounter::CachedOpens => request.cached_opens,
            ClientCounter::CachedLooks => request.cached_looks,
            ClientCounter::ShortCircuitReads => request.short_circuit_reads,
            ClientCounter::ShortCircuitBytes => request.short_circuit_bytes,
            ClientCounter::LeasedReads => request.leased_reads,
            ClientCounter::LeasedBytes => request.leased_bytes,
            ClientCounter::Answers => request.answers,
            ClientCounter::AnswerNs => request.answer_ns,
            ClientCounter::ServedNs => request.served_ns,
            ClientCounter::CrossingCalls => request.crossing_calls,
        }))
    }
}

fn name_of(counter: ClientCounter) -> &'static str {
    match counter {
        ClientCounter::CachedOpens => "cached_opens",
        ClientCounter::CachedLooks => "cached_looks",
        ClientCounter::ShortCircuitReads => "short_circuit_reads",
        ClientCounter::ShortCircuitBytes => "short_circuit_bytes",
        ClientCounter::LeasedReads => "leased_reads",
        ClientCounter::LeasedBytes => "leased_bytes",
        ClientCounter::Answers => "answers",
        ClientCounter::AnswerNs => "answer_ns",
        ClientCounter::ServedNs => "served_ns",
        ClientCounter::CrossingCalls => "crossing_calls",
    }
}

/// A client's connection.
#[derive(Debug)]
struct Source {
    /// The tag of its job, and which process of it this is.
    job: u32,
    rank: Option<RankKey>,
    /// Where it counts, if it shares memory with us.
    counters: Option<Mapped<ClientCounters>>,
    /// What it had counted there when we looked last, and what it has told by messages, which it does of what is
    /// counted before memory is shared.
    seen: ClientCounts,
    told: ClientCounts,
}

impl Source {
    fn new(job: u32, rank: Option<RankKey>) -> Source {
        Source { job, rank, counters: None, seen: ClientCounts::default(), told: ClientCounts::default() }
    }

    /// Looks at the memory that is shared. What has grown.
    fn look(&mut self) -> ClientCounts {
        let now = self.counters.as_ref().map_or(self.seen, |counters| ClientCounts::of(counters.read()));
        self.seen.growth(&now)
    }
}

/// Where growth counts.
#[derive(Debug, Default)]
struct Sums {
    totals: ClientCounts,
    ranks: Ranks,
}

impl Sums {
    fn take_in(&mut self, grown: &ClientCounts, source: &Source, jobs: &mut Jobs) {
        self.totals.add(grown);
        jobs.counters(source.job).clients.add(grown);
        if let Some(rank) = &source.rank {
            self.ranks.add(rank, grown);
        }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub struct Clients {
    /// By connection.
    sources: BTreeMap<u64, Source>,
    sums: Sums,
}

impl Clients {
    /// A client is connected.
    pub fn connect(&mut self, connection: u64, job: u32, label: &Label) {
        let rank = self.sums.ranks.connect(job, label);
        self.sources.insert(connection, Source::new(job, rank));
    }

    /// It shares memory with us.
    pub fn share(&mut self, connection: u64, counters: Mapped<ClientCounters>) {
        if let Some(source) = self.sources.get_mut(&connection) {
            source.counters = Some(counters);
        }
    }

    /// A client tells what it has counted since its connection began. One whose connection has ended is not heard.
    pub fn note(&mut self, connection: u64, request: &NoteCountersRequest, jobs: &mut Jobs) {
        let Some(source) = self.sources.get_mut(&connection) else { return };
        let grown = source.told.growth(&ClientCounts::of_request(request));
        self.sums.take_in(&grown, source, jobs);
    }

    /// A connection has ended.
    pub fn disconnect(&mut self, connection: u64, jobs: &mut Jobs) {
        if let Some(mut source) = self.sources.remove(&connection) {
            self.sums.take_in(&source.look(), &source, jobs);
            if let Some(rank) = &source.rank {
                self.sums.ranks.disconnect(rank);
            }
        }
    }

    /// Looks at all shared memory.
    pub fn collect(&mut self, jobs: &mut Jobs) {
        for source in self.sources.values_mut() {
            let grown = source.look();
            if grown != ClientCounts::default() {
                self.sums.take_in(&grown, source, jobs);
            }
        }
    }

    /// Whether some share memory with us, and so may do anything without a word.
    pub fn has_silent(&self) -> bool {
        self.sources.values().any(|source| source.counters.is_some())
    }

    pub fn totals(&self) -> ClientCounts {
        self.sums.totals
    }

    pub fn ranks(&self) -> &Ranks {
        &self.sums.ranks
    }

    /// Most bytes for so many connections.
    pub fn memory_max(connections: u64) -> u64 {
        connections * (size_of::<Source>() as u64 + 64) + Ranks::memory_max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: growth counts once, for the job of the connection, until after its end; numbers that go back count
    /// nothing.
    #[test]
    fn growth_counts_once() {
        let (mut jobs, mut clients) = (Jobs::default(), Clients::default());
        let label = Label::new("7", "0", "3", "n1", "cat");
        let job = jobs.connect(&label);
        let counters = Mapped::<ClientCounters>::alone();
        clients.connect(1, job, &label);
        assert!(!clients.has_silent());
        clients.share(1, counters.clone());
        assert!(clients.has_silent());
        clients.collect(&mut jobs);
        assert_eq!(clients.totals(), ClientCounts::default());
        counters.add(ClientCounter::ShortCircuitBytes, 100);
        clients.collect(&mut jobs);
        clients.collect(&mut jobs);
        assert_eq!(clients.totals().0[ClientCounter::ShortCircuitBytes as usize], 100);
        counters.add(ClientCounter::ShortCircuitBytes, 11);
        clients.disconnect(1, &mut jobs);
        clients.disconnect(1, &mut jobs);
        assert!(!clients.has_silent());
        let mut request = NoteCountersRequest {
            cached_opens: 0,
            cached_looks: 0,
            short_circuit_reads: 0,
            short_circuit_bytes: 0,
            leased_reads: 1,
            leased_bytes: 50,
            answers: 3,
            answer_ns: 900,
            served_ns: 700,
            crossing_calls: 2,
        };
        clients.connect(2, job, &label);
        for (leased_bytes, answers) in [(50, 3), (50, 3), (40, 4), (51, 4)] {
            (request.leased_bytes, request.answers) = (leased_bytes, answers);
            clients.note(2, &request, &mut jobs);
        }
        clients.disconnect(2, &mut jobs);
        // One that was held until after the end.
        clients.note(2, &request, &mut jobs);
        assert_eq!(clients.totals().0, [0, 0, 0, 111, 1, 51, 4, 900, 700, 2]);
        assert_eq!(jobs.counters(job).clients, clients.totals());
        let (count, told) = clients.ranks().of(job);
        assert_eq!((count, told[0].0, told[0].1.counts), (1, "3", clients.totals()));
        clients.connect(3, job, &Label::default());
        request.leased_bytes = u64::MAX;
        clients.note(3, &request, &mut jobs);
        clients.note(3, &request, &mut jobs);
        assert_eq!(clients.totals().0[ClientCounter::LeasedBytes as usize], COUNT_MAX);
    }
}
