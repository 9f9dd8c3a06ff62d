//! A worker's view of its group: rank, barrier, timed phases, and what the others left on the group memory.
//!
//! Words of the group memory: for each phase and rank start, end and work; for each rank the number of items it made;
//! for each rank an area for messages (its size in bytes, then the bytes); for each phase the times of the calls of all
//! ranks (the longest, then a count for each bucket); what the group is at, and for each rank how far it is.

use crate::call_times::{BUCKET_COUNT, CallTimes};
use crate::meter::Meter;
use crate::options::{Bench, Options};
use reactor::Nanos;
use reactor::barrier::{Aborted, GroupMemory, monotonic_now};
use reactor::call_clock::CallClock;

/// Most phases of a bench.
const PHASE_COUNT_MAX: usize = 4;
const WORDS_PER_PHASE: usize = 3;
/// Bytes that a rank can publish at once.
pub const MESSAGE_SIZE_MAX: usize = 32 << 10;
const WORDS_PER_MESSAGE: usize = 1 + MESSAGE_SIZE_MAX / 8;
const WORDS_PER_HISTOGRAM: usize = 1 + BUCKET_COUNT;
/// A cache line, so that no rank waits for another that says how far it is.
const WORDS_PER_PROGRESS: usize = 8;

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

const PASSES: [Pass; 3] = [Pass::Warm, Pass::Timed, Pass::Verify];

/// What a group is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The phase of this index.
    Phase(usize),
    /// Makes what a phase is going to need.
    Preparation,
    /// Removes what was made.
    Removal,
}

/// How far a group is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub pass: Pass,
    pub stage: Stage,
    /// Calls of all ranks.
    pub done: u64,
    /// Calls that there are going to be; 0 if nobody knows.
    pub wanted: u64,
}

/// Number of words that a group memory for so many processes needs.
pub fn word_count(procs: u32) -> usize {
    progress_word(procs, procs - 1) + WORDS_PER_PROGRESS
}

/// Start of the first and end of the last process of a phase, and the work of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured {
    pub start: Nanos,
    pub end: Nanos,
    /// Bytes or operations.
    pub work: u64,
    pub calls: CallTimes,
}

/// Reads what all ranks noted about a phase.
pub fn measured(group_memory: &GroupMemory, procs: u32, phase: usize) -> Measured {
    let first = histogram_word(procs, phase);
    let counts = (1..WORDS_PER_HISTOGRAM).map(|index| group_memory.load(first + index)).collect();
    let calls = CallTimes::of_counts(counts, group_memory.load(first));
    let mut sum = Measured { start: Nanos::MAX, end: 0, work: 0, calls };
    for rank in 0..procs {
        let word = phase_word(procs, phase, rank);
        sum.start = sum.start.min(group_memory.load(word));
        sum.end = sum.end.max(group_memory.load(word + 1));
        sum.work += group_memory.load(word + 2);
    }
    sum
}

/// What the group is at now, and how far; `None` before and between its stages.
pub fn progress(group_memory: &GroupMemory, procs: u32) -> Option<Progress> {
    let code = (group_memory.load(stage_word(procs)) as usize).checked_sub(1)?;
    let pass = PASSES[code % PASSES.len()];
    let stage = match code / PASSES.len() {
        PHASE_COUNT_MAX => Stage::Preparation,
        index if index > PHASE_COUNT_MAX => Stage::Removal,
        index => Stage::Phase(index),
    };
    let mut sum = Progress { pass, stage, done: 0, wanted: 0 };
    for rank in 0..procs {
        let word = progress_word(procs, rank);
        sum.done += group_memory.load(word);
        sum.wanted += group_memory.load(word + 1);
    }
    Some(sum)
}

/// The word that says at what a group is; see [`progress`].
fn stage_code(pass: Pass, stage: Stage) -> u64 {
    let index = match stage {
        Stage::Phase(index) => index,
        Stage::Preparation => PHASE_COUNT_MAX,
        Stage::Removal => PHASE_COUNT_MAX + 1,
    };
    (1 + index * PASSES.len() + pass as usize) as u64
}

/// Words of ranks come first, then those of the group.
fn histogram_word(procs: u32, phase: usize) -> usize {
    assert!(phase < PHASE_COUNT_MAX);
    procs as usize * (PHASE_COUNT_MAX * WORDS_PER_PHASE + 1 + WORDS_PER_MESSAGE) + phase * WORDS_PER_HISTOGRAM
}

fn stage_word(procs: u32) -> usize {
    histogram_word(procs, PHASE_COUNT_MAX - 1) + WORDS_PER_HISTOGRAM
}

fn progress_word(procs: u32, rank: u32) -> usize {
    assert!(rank < procs);
    (stage_word(procs) + 1).next_multiple_of(WORDS_PER_PROGRESS) + rank as usize * WORDS_PER_PROGRESS
}

fn phase_word(procs: u32, phase: usize, rank: u32) -> usize {
    assert!(phase < PHASE_COUNT_MAX && rank < procs);
    (phase * procs as usize + rank as usize) * WORDS_PER_PHASE
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
    clock: CallClock,
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
        let clock = CallClock::calibrated();
        Group { rank, procs, options, directory, bench, pass: Pass::Timed, group_memory, clock }
    }

    /// The rank whose data this one reads: never its own unless it is alone.
    pub fn neighbour(&self) -> u32 {
        (self.rank + 1) % self.procs
    }

    pub fn verifying(&self) -> bool {
        self.pass == Pass::Verify
    }

    pub fn barrier(&self) -> Result<(), Failure> {
        Ok(self.group_memory.wait()?)
    }

    /// Runs a phase of so many calls (0 if nobody knows) between two barriers; `body` returns its work in bytes or
    /// operations. Timed in the timed pass only.
    pub fn phase(
        &self,
        index: usize,
        wanted: u64,
        body: impl FnOnce(&mut Meter) -> Result<u64, Failure>,
    ) -> Result<(), Failure> {
        self.enter(Stage::Phase(index), wanted);
        self.barrier()?;
        let start = monotonic_now();
        let progress = self.progress_place();
        let mut meter = Meter::new(self.clock, progress, self.takes_call_times(), self.options.seconds);
        let work = body(&mut meter)?;
        let end = monotonic_now();
        if self.pass == Pass::Timed {
            let word = phase_word(self.procs, index, self.rank);
            self.group_memory.store(word, start);
            self.group_memory.store(word + 1, end);
            self.group_memory.store(word + 2, work);
            let first = histogram_word(self.procs, index);
            self.group_memory.raise(first, meter.times().most());
            meter.times().counts().for_each(|(bucket, count)| self.group_memory.add(first + 1 + bucket, count));
        }
        self.barrier()
    }

    /// Does work outside the phases, of so many calls, which people may have to wait for.
    pub fn untimed<T>(
        &self,
        stage: Stage,
        wanted: u64,
        body: impl FnOnce(&mut Meter) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.enter(stage, wanted);
        body(&mut Meter::new(self.clock, self.progress_place(), false, 0.0))
    }

    /// Shows what this rank is at, and that it is at the begin of it.
    fn enter(&self, stage: Stage, wanted: u64) {
        let word = progress_word(self.procs, self.rank);
        self.group_memory.store(word, 0);
        self.group_memory.store(word + 1, wanted);
        if self.rank == 0 {
            self.group_memory.store(stage_word(self.procs), stage_code(self.pass, stage));
        }
    }

    /// Where this rank shows how many calls it has made.
    fn progress_place(&self) -> impl Fn(u64) + Send + use<'a> {
        let (group_memory, word) = (self.group_memory, progress_word(self.procs, self.rank));
        move |done| group_memory.store(word, done)
    }

    fn takes_call_times(&self) -> bool {
        self.pass == Pass::Timed && self.options.call_times
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
            for phase in 0..PHASE_COUNT_MAX {
                let first = histogram_word(procs, phase);
                assert!((first..first + WORDS_PER_HISTOGRAM).all(|word| seen.insert(word)));
            }
            assert!(seen.insert(stage_word(procs)));
            for rank in 0..procs {
                let first = progress_word(procs, rank);
                assert!((first..first + WORDS_PER_PROGRESS).all(|word| seen.insert(word)));
            }
            assert_eq!(seen.last(), Some(&(word_count(procs) - 1)));
        }
    }

    /// Goal: what a group is at arrives as it was said, with the calls of all ranks. Method: every stage of every pass.
    #[test]
    fn progress_arrives() {
        let procs = 2;
        let group_memory = GroupMemory::create(procs, word_count(procs)).unwrap();
        let options = crate::options::for_tests(&["--procs=2", "all"]);
        let mut groups = [0, 1].map(|rank| Group::new(&options, &group_memory, Bench::Find, rank, "/x"));
        assert_eq!(progress(&group_memory, procs), None);
        let phases = (0..PHASE_COUNT_MAX).map(Stage::Phase);
        for stage in phases.chain([Stage::Preparation, Stage::Removal]) {
            for pass in PASSES {
                for group in &mut groups {
                    group.pass = pass;
                    group.enter(stage, 5_000);
                    group.progress_place()(1_024);
                }
                let expected = Progress { pass, stage, done: 2_048, wanted: 10_000 };
                assert_eq!(progress(&group_memory, procs), Some(expected));
            }
        }
    }

    /// Goal: the times of the calls of all ranks are added up. Method: two ranks in turns in one phase, without the
    /// barriers, which a group of one each passes at once.
    #[test]
    fn call_times_of_all_ranks_are_added() {
        let group_memory = GroupMemory::create(1, word_count(1)).unwrap();
        let options = crate::options::for_tests(&["--procs=1", "all"]);
        for calls in [3, 4] {
            let group = Group::new(&options, &group_memory, Bench::Find, 0, "/x");
            let body = |meter: &mut Meter| {
                (0..calls).for_each(|_| meter.note_call());
                Ok(calls)
            };
            group.phase(1, calls, body).unwrap();
        }
        let measured = measured(&group_memory, 1, 1);
        assert_eq!((measured.work, measured.calls.call_count()), (4, 7));
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
