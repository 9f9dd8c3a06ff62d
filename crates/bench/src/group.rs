//! A worker's view of its group: rank, barrier, timed phases, and what the others left on the group memory.
//!
//! Words of the group memory: for each phase and rank start, end and work; for each rank the number of items it made;
//! for each rank an area for messages (its size in bytes, then the bytes).

use crate::options::{Bench, Options};
use reactor::Nanos;
use reactor::barrier::{Aborted, GroupMemory, monotonic_now};

/// Most phases of a bench.
const PHASE_COUNT_MAX: usize = 4;
const WORDS_PER_PHASE: usize = 3;
/// Bytes that a rank can publish at once.
pub const MESSAGE_SIZE_MAX: usize = 32 << 10;
const WORDS_PER_MESSAGE: usize = 1 + MESSAGE_SIZE_MAX / 8;

/// Why a worker stops early.
#[derive(Debug)]
pub enum Failure {
    /// Another process failed and said so; nothing to add.
    Aborted,
    Message(String),
}

impl From<Aborted> for Failure {
    fn from(_: Aborted) -> Failure {
        Failure::Aborted
    }
}

impl From<String> for Failure {
    fn from(message: String) -> Failure {
        Failure::Message(message)
    }
}

/// What a pass over the phases of a bench is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// Writes and deletes the same volume, so that the memory behind it has been used before.
    Warm,
    Timed,
    /// Untimed; all contents are checked.
    Verify,
}

/// Number of words that a group memory for so many processes needs.
pub fn word_count(procs: u32) -> usize {
    procs as usize * (PHASE_COUNT_MAX * WORDS_PER_PHASE + 1 + WORDS_PER_MESSAGE)
}

/// Start of the first and end of the last process of a phase, and the work of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    pub start: Nanos,
    pub end: Nanos,
    /// Bytes or operations.
    pub work: u64,
}

/// Reads what all ranks noted about a phase.
pub fn measured(group_memory: &GroupMemory, procs: u32, phase: usize) -> Measured {
    let mut sum = Measured { start: Nanos::MAX, end: 0, work: 0 };
    for rank in 0..procs {
        let word = phase_word(procs, phase, rank);
        sum.start = sum.start.min(group_memory.load(word));
        sum.end = sum.end.max(group_memory.load(word + 1));
        sum.work += group_memory.load(word + 2);
    }
    sum
}

fn phase_word(procs: u32, phase: usize, rank: u32) -> usize {
    assert!(phase < PHASE_COUNT_MAX && rank < procs);
    (phase * procs as usize + rank as usize) * WORDS_PER_PHASE
}

/// When a phase has to stop early.
pub struct Limit(Option<Nanos>);

impl Limit {
    pub fn reached(&self) -> bool {
        self.0.is_some_and(|end| monotonic_now() >= end)
    }
}

/// One worker among `procs`.
pub struct Group<'a> {
    pub rank: u32,
    pub procs: u32,
    pub options: &'a Options,
    /// Directory on the target in which this run lives.
    pub directory: &'a str,
    pub bench: Bench,
    pub pass: Pass,
    group_memory: &'a GroupMemory,
}

impl<'a> Group<'a> {
    /// Panics unless the group memory is for as many processes as the options say; the leader made both.
    pub fn new(
        options: &'a Options,
        group_memory: &'a GroupMemory,
        bench: Bench,
        rank: u32,
        directory: &'a str,
    ) -> Group<'a> {
        let procs = options.procs;
        assert!(group_memory.parties() == procs && rank < procs && group_memory.word_count() >= word_count(procs));
        Group { rank, procs, options, directory, bench, pass: Pass::Timed, group_memory }
    }

    /// The rank whose data this one reads: never its own unless it is alone.
    pub fn neighbour(&self) -> u32 {
        (self.rank + 1) % self.procs
    }

    pub fn verifying(&self) -> bool {
        self.pass == Pass::Verify
    }

    /// A limit that is never reached, for work outside the phases.
    pub fn unlimited(&self) -> Limit {
        Limit(None)
    }

    pub fn barrier(&self) -> Result<(), Failure> {
        Ok(self.group_memory.wait()?)
    }

    /// Runs a phase between two barriers; `body` returns its work in bytes or operations. Timed in the timed pass only.
    pub fn phase(&self, index: usize, body: impl FnOnce(&Limit) -> Result<u64, Failure>) -> Result<(), Failure> {
        self.barrier()?;
        let start = monotonic_now();
        let limit = match self.options.seconds {
            0.0 => Limit(None),
            seconds => Limit(Some(start + (seconds * 1e9) as Nanos)),
        };
        let work = body(&limit)?;
        let end = monotonic_now();
        if self.pass == Pass::Timed {
            let word = phase_word(self.procs, index, self.rank);
            self.group_memory.store(word, start);
            self.group_memory.store(word + 1, end);
            self.group_memory.store(word + 2, work);
        }
        self.barrier()
    }

    /// Takes part in a phase of others without being measured.
    pub fn attend(&self, index: usize, body: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        self.barrier()?;
        body()?;
        // Later than every start and earlier than every end.
        self.group_memory.store(phase_word(self.procs, index, self.rank), Nanos::MAX);
        self.barrier()
    }

    /// Tells the others how many items this rank made; they see it after the next barrier.
    pub fn note_made(&self, count: u64) {
        self.group_memory.store(self.made_word(self.rank), count);
    }

    /// Number of items that a rank made.
    pub fn made_by(&self, rank: u32) -> u64 {
        self.group_memory.load(self.made_word(rank))
    }

    /// Shows bytes to all; they see them after the next barrier.
    pub fn publish(&self, bytes: &[u8]) -> Result<(), Failure> {
        if bytes.len() > MESSAGE_SIZE_MAX {
            return Err(format!("more than {MESSAGE_SIZE_MAX} bytes to tell the other processes").into());
        }
        let first = self.message_word(self.rank);
        self.group_memory.store(first, bytes.len() as u64);
        for (index, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.group_memory.store(first + 1 + index, u64::from_ne_bytes(word));
        }
        Ok(())
    }

    /// What a rank showed before the last barrier.
    pub fn published(&self, rank: u32) -> Vec<u8> {
        let first = self.message_word(rank);
        let size = self.group_memory.load(first) as usize;
        assert!(size <= MESSAGE_SIZE_MAX);
        let words = (0..size.div_ceil(8)).flat_map(|index| self.group_memory.load(first + 1 + index).to_ne_bytes());
        words.take(size).collect()
    }

    /// Words that each rank can show to the others at once, beside the barriers; the same as those of `publish`.
    pub fn shared_word_count(&self) -> usize {
        WORDS_PER_MESSAGE
    }

    /// Shows one word to all. What was shared before it is seen by who sees it.
    pub fn share(&self, index: usize, word: u64) {
        assert!(index < WORDS_PER_MESSAGE);
        self.group_memory.store(self.message_word(self.rank) + index, word);
    }

    /// A word that a rank shares, 0 at first.
    pub fn shared_by(&self, rank: u32, index: usize) -> u64 {
        assert!(index < WORDS_PER_MESSAGE);
        self.group_memory.load(self.message_word(rank) + index)
    }

    fn made_word(&self, rank: u32) -> usize {
        assert!(rank < self.procs);
        PHASE_COUNT_MAX * WORDS_PER_PHASE * self.procs as usize + rank as usize
    }

    fn message_word(&self, rank: u32) -> usize {
        assert!(rank < self.procs);
        (PHASE_COUNT_MAX * WORDS_PER_PHASE + 1) * self.procs as usize + rank as usize * WORDS_PER_MESSAGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the words of phases, counts and messages never overlap. Method: number every word of every kind for
    /// several sizes of groups; all numbers differ and fit the group memory.
    #[test]
    fn words_do_not_overlap() {
        for procs in [1, 2, 5] {
            let group_memory = GroupMemory::create(procs, word_count(procs)).unwrap();
            let options = crate::options::for_tests(&[&format!("--procs={procs}"), "all"]);
            let group = Group::new(&options, &group_memory, Bench::Find, 0, "/x");
            let mut seen = std::collections::BTreeSet::new();
            for rank in 0..procs {
                for phase in 0..PHASE_COUNT_MAX {
                    let first = phase_word(procs, phase, rank);
                    assert!((first..first + WORDS_PER_PHASE).all(|word| seen.insert(word)));
                }
                assert!(seen.insert(group.made_word(rank)));
                let first = group.message_word(rank);
                assert!((first..first + WORDS_PER_MESSAGE).all(|word| seen.insert(word)));
            }
            assert_eq!(seen.last(), Some(&(word_count(procs) - 1)));
        }
    }

    /// Goal: bytes published arrive whole, and too many are refused.
    #[test]
    fn messages_arrive() {
        let group_memory = GroupMemory::create(1, word_count(1)).unwrap();
        let options = crate::options::for_tests(&["--procs=1", "all"]);
        let group = Group::new(&options, &group_memory, Bench::Find, 0, "/x");
        for size in [0, 1, 8, 13, MESSAGE_SIZE_MAX] {
            let bytes: Vec<u8> = (0..size).map(|i| i as u8).collect();
            group.publish(&bytes).unwrap();
            assert_eq!(group.published(0), bytes);
        }
        assert!(group.publish(&[0; MESSAGE_SIZE_MAX + 1]).is_err());
    }
}
