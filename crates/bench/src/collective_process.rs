//! What the processes of `hpio` do: fill and check their pieces, and write or read them together, one mode or another.

use crate::collective::{Mode, Part, Pieces, Plan, merged};
use crate::exchange::Exchange;
use crate::step::{Done, read, write_ranges};
use crate::target::{fill_pattern, find_difference};
use client::{File, FileRange, FileSystem};
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;

/// Ranges of one call.
const RANGE_COUNT_MAX: usize = 16_384;

/// A part of the work of each process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CollectiveStep {
    /// Fills the process's memory with what its pieces are to hold.
    Fill { pieces: Pieces, seed: u64 },
    /// Fills it with zeros.
    Clear { pieces: Pieces },
    /// Whether the memory holds what the pieces were filled with.
    Check { pieces: Pieces, seed: u64 },
    /// Writes the pieces from memory to the file that is open, or reads them.
    Move { pieces: Pieces, mode: Mode, procs_per_node: u32, throttled: bool, write: bool },
}

/// Which window of which access, and what a process has of it.
pub struct WindowWork<'a> {
    pub files: &'a FileSystem,
    pub file: &'a File,
    pub plan: &'a Plan,
    pub window: Range<u64>,
    /// The process's own parts, and those that it moves.
    pub own: Vec<Part>,
    pub domain: Vec<Part>,
}

/// One process.
pub struct CollectiveProcess<E> {
    rank: u32,
    procs: u32,
    exchange: E,
    /// The process's pieces, one behind the other.
    memory: Vec<u8>,
}

impl Pieces {
    fn to_words(self) -> String {
        format!("{} {} {}", self.count, self.size, self.gap)
    }

    fn from_words<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<Pieces> {
        Some(Pieces { count: read(words)?, size: read(words)?, gap: read(words)? })
    }
}

impl CollectiveStep {
    pub fn to_words(&self) -> String {
        match self {
            CollectiveStep::Fill { pieces, seed } => format!("fill {} {seed}", pieces.to_words()),
            CollectiveStep::Clear { pieces } => format!("clear {}", pieces.to_words()),
            CollectiveStep::Check { pieces, seed } => format!("check {} {seed}", pieces.to_words()),
            CollectiveStep::Move { pieces, mode, procs_per_node, throttled, write } => {
                format!("move {} {} {procs_per_node} {throttled} {write}", pieces.to_words(), mode.word())
            }
        }
    }

    /// `None` for what `to_words` never says.
    pub fn from_words<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<CollectiveStep> {
        let kind = words.next()?;
        let pieces = Pieces::from_words(words)?;
        Some(match kind {
            "fill" => CollectiveStep::Fill { pieces, seed: read(words)? },
            "clear" => CollectiveStep::Clear { pieces },
            "check" => CollectiveStep::Check { pieces, seed: read(words)? },
            "move" => CollectiveStep::Move {
                pieces,
                mode: Mode::from_word(words.next()?)?,
                procs_per_node: read(words)?,
                throttled: read(words)?,
                write: read(words)?,
            },
            _ => return None,
        })
    }
}

/// Reads ranges of the file into places of memory in one call. Errors: words.
pub async fn read_ranges(
    work: &WindowWork<'_>,
    ranges: &[FileRange],
    places: &mut [IoSliceMut<'_>],
) -> Result<(), String> {
    let wanted: u64 = ranges.iter().map(|range| range.size).sum();
    let sizes = work.files.read_list_at(work.file, ranges, places).await.map_err(|error| error.message)?;
    let read: usize = sizes.iter().sum();
    if read as u64 == wanted { Ok(()) } else { Err(format!("{read} instead of {wanted} bytes read")) }
}

impl<E: Exchange> CollectiveProcess<E> {
    pub fn new(rank: u32, procs: u32, exchange: E) -> CollectiveProcess<E> {
        CollectiveProcess { rank, procs, exchange, memory: Vec::new() }
    }

    /// Does a step. Errors: words.
    pub async fn act(&mut self, files: &FileSystem, file: &File, step: &CollectiveStep) -> Result<Done, String> {
        match step {
            CollectiveStep::Fill { pieces, seed } => {
                self.memory.resize((pieces.count * pieces.size) as usize, 0);
                for (offset, piece) in pieces_in(self.rank, self.procs, pieces, &mut self.memory) {
                    fill_pattern(*seed, offset, piece);
                }
            }
            CollectiveStep::Clear { pieces } => {
                self.memory.clear();
                self.memory.resize((pieces.count * pieces.size) as usize, 0);
            }
            CollectiveStep::Check { pieces, seed } => {
                for (offset, piece) in pieces_in(self.rank, self.procs, pieces, &mut self.memory) {
                    if let Some(bytes) = find_difference(*seed, offset, piece) {
                        return Err(format!("what was read at {} is not what was written", bytes.start));
                    }
                }
            }
            CollectiveStep::Move { pieces, mode, procs_per_node, throttled, write } => {
                file.set_throttled(*throttled);
                let plan = Plan::of_file(*mode, *pieces, self.procs, *procs_per_node, files, file);
                self.transfer(files, file, &plan, *write).await?;
                file.set_throttled(false);
                return Ok(Done::of_work(pieces.count * pieces.size));
            }
        }
        Ok(Done::default())
    }

    async fn transfer(&mut self, files: &FileSystem, file: &File, plan: &Plan, write: bool) -> Result<(), String> {
        let window_size = if plan.mode == Mode::List { u64::MAX } else { self.exchange.window_size_max() };
        for window in plan.windows(window_size) {
            let own = plan.parts_of_owner(self.rank, &window);
            let domain =
                if plan.mode == Mode::List { Vec::new() } else { plan.parts_of_aggregator(self.rank, &window) };
            let work = WindowWork { files, file, plan, window, own, domain };
            match (plan.mode, write) {
                (Mode::List, _) => self.transfer_list(&work, write).await?,
                (_, true) => self.exchange.write(&work, &self.memory).await?,
                (_, false) => self.exchange.read(&work, &mut self.memory).await?,
            }
        }
        Ok(())
    }

    async fn transfer_list(&mut self, work: &WindowWork<'_>, write: bool) -> Result<(), String> {
        let size = work.plan.pieces.size as usize;
        for (ranges, memory) in work.own.chunks(RANGE_COUNT_MAX).zip(self.memory.chunks_mut(RANGE_COUNT_MAX * size)) {
            let ranges = merged(ranges);
            match write {
                true => drop(write_ranges(work.files, work.file, &ranges, &[IoSlice::new(memory)]).await?),
                false => read_ranges(work, &ranges, &mut [IoSliceMut::new(memory)]).await?,
            }
        }
        Ok(())
    }
}

/// The pieces of a process, each with its place in the file.
fn pieces_in<'a>(
    rank: u32,
    procs: u32,
    pieces: &Pieces,
    memory: &'a mut [u8],
) -> impl Iterator<Item = (u64, &'a mut [u8])> {
    let pieces = *pieces;
    let number = move |index: usize| index as u64 * u64::from(procs) + u64::from(rank);
    let all = memory.chunks_mut(pieces.size as usize).enumerate();
    all.map(move |(index, piece)| (pieces.range(number(index)).offset, piece))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: steps are read as they were written.
    #[test]
    fn steps_are_read() {
        let pieces = Pieces { count: 3, size: 5_992, gap: 256 };
        let transfer =
            CollectiveStep::Move { pieces, mode: Mode::Node, procs_per_node: 4, throttled: true, write: false };
        let all = [
            CollectiveStep::Fill { pieces, seed: u64::MAX },
            CollectiveStep::Clear { pieces },
            CollectiveStep::Check { pieces, seed: 7 },
            transfer,
        ];
        for step in all {
            let text = step.to_words();
            assert_eq!(CollectiveStep::from_words(&mut text.split_whitespace()), Some(step));
        }
        assert_eq!(CollectiveStep::from_words(&mut "move 1 2 3 tree 4 true true".split_whitespace()), None);
    }
}
