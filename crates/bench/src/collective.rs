//! Who moves which bytes of a collective access: the modes of docs/mpiio.md, for HPIO's pattern.
//!
//! Of `P` processes, process `r` has the pieces `r`, `r + P`, `r + 2 P` and so on; piece `n` lies at `n (size + gap)`
//! in the file. The file is gone through in windows. In a window each byte of a piece has one aggregator, a process
//! that moves it to or from a server for the piece's owner; the bytes of a window that an aggregator may have are its
//! domain.
//!
//! Invariants
//! 1. In a window the parts of all owners are the parts of all aggregators: the same bytes, cut at the same places.

use client::{File, FileRange, FileSystem};
use std::ops::Range;

/// Bytes of a window for each process or server, whichever are more.
pub const PART_SIZE: u64 = 2 << 20;

/// HPIO's, as on the K computer, in bytes.
pub const PIECE_SIZE: u64 = 5_992;
pub const PIECE_GAP: u64 = 256;

/// Pieces of each process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pieces {
    pub count: u64,
    pub size: u64,
    pub gap: u64,
}

/// How processes write and read together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Each process asks for its own pieces, and nothing is exchanged.
    List,
    /// Of the processes of a node, each asks some servers for what all of them have there.
    Node,
    /// Each server is asked by one process.
    Stripe,
    /// Each process asks for an equal part of the window, in their order: classical two-phase I/O.
    View,
}

pub const MODES: [(Mode, &str); 4] =
    [(Mode::List, "list"), (Mode::Node, "node"), (Mode::Stripe, "stripe"), (Mode::View, "view")];

impl Mode {
    pub fn word(self) -> &'static str {
        MODES.iter().find(|(mode, _)| *mode == self).map_or("", |(_, word)| word)
    }

    pub fn from_word(word: &str) -> Option<Mode> {
        MODES.iter().find(|(_, known)| *known == word).map(|(mode, _)| *mode)
    }
}

/// A piece, or what of it lies in one domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    pub owner: u32,
    pub aggregator: u32,
    pub range: FileRange,
}

/// A collective access to a file.
#[derive(Debug, Clone)]
pub struct Plan {
    pub mode: Mode,
    pub pieces: Pieces,
    pub procs: u32,
    pub procs_per_node: u32,
    pub servers: u32,
    pub chunk_size: u64,
    /// The server of each chunk.
    pub chunk_servers: Vec<u32>,
}

impl Pieces {
    /// From the start of a piece to that of the next one.
    pub fn stride(&self) -> u64 {
        self.size + self.gap
    }

    pub fn range(&self, number: u64) -> FileRange {
        FileRange { offset: number * self.stride(), size: self.size }
    }

    /// Where the last piece of so many processes ends.
    pub fn end(&self, procs: u32) -> u64 {
        self.count * u64::from(procs) * self.stride() - self.gap
    }

    /// Where a byte of the file is among the pieces of its owner, one behind the other.
    pub fn place(&self, procs: u32, offset: u64) -> usize {
        let number = offset / self.stride();
        (number / u64::from(procs) * self.size + offset % self.stride()) as usize
    }
}

/// Ranges one behind the other as one, so that those are left which have gaps between them.
pub fn merged(parts: &[Part]) -> Vec<FileRange> {
    let mut ranges: Vec<FileRange> = Vec::new();
    for Part { range, .. } in parts {
        match ranges.last_mut() {
            Some(last) if last.offset + last.size == range.offset => last.size += range.size,
            _ => ranges.push(*range),
        }
    }
    ranges
}

impl Plan {
    pub fn of_file(
        mode: Mode,
        pieces: Pieces,
        procs: u32,
        procs_per_node: u32,
        files: &FileSystem,
        file: &File,
    ) -> Plan {
        let chunk_size = u64::from(file.layout.chunk_size);
        let server = |chunk| files.cluster().chunk_server(file.id, &file.layout, chunk);
        let chunk_servers = (0..pieces.end(procs).div_ceil(chunk_size)).map(server).collect();
        Plan { mode, pieces, procs, procs_per_node, servers: files.server_count(), chunk_size, chunk_servers }
    }

    /// The file in windows of at most so many bytes.
    pub fn windows(&self, size_max: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        let end = self.pieces.end(self.procs);
        let size = size_max.min(end);
        (0..end.div_ceil(size)).map(move |window| window * size..((window + 1) * size).min(end))
    }

    /// Who moves a byte for its owner. Only for modes with aggregators.
    fn aggregator(&self, owner: u32, offset: u64, window: &Range<u64>) -> u32 {
        let server = self.chunk_servers[(offset / self.chunk_size) as usize];
        match self.mode {
            Mode::List => owner,
            Mode::View => ((offset - window.start) / self.domain_size(window)) as u32,
            Mode::Stripe => self.aggregator_of_server(server),
            Mode::Node => {
                let first = owner - owner % self.procs_per_node;
                first + server % self.procs_per_node.min(self.procs - first)
            }
        }
    }

    /// Spread over the processes, and so over their nodes.
    fn aggregator_of_server(&self, server: u32) -> u32 {
        match server {
            _ if self.servers > self.procs => server % self.procs,
            _ => (u64::from(server) * u64::from(self.procs) / u64::from(self.servers)) as u32,
        }
    }

    /// Bytes of a domain of `View`.
    fn domain_size(&self, window: &Range<u64>) -> u64 {
        (window.end - window.start).div_ceil(u64::from(self.procs))
    }

    /// Where the domain ends in which an offset lies.
    fn border(&self, offset: u64, window: &Range<u64>) -> u64 {
        match self.mode {
            Mode::List => u64::MAX,
            Mode::View => {
                let size = self.domain_size(window);
                window.start + ((offset - window.start) / size + 1) * size
            }
            Mode::Node | Mode::Stripe => (offset / self.chunk_size + 1) * self.chunk_size,
        }
    }

    /// Adds the parts of a piece that lie within `limits`, which lie in the window.
    fn cut(&self, number: u64, limits: &Range<u64>, window: &Range<u64>, parts: &mut Vec<Part>) {
        let FileRange { offset, size } = self.pieces.range(number);
        let owner = (number % u64::from(self.procs)) as u32;
        let (mut at, end) = (offset.max(limits.start), (offset + size).min(limits.end));
        while at < end {
            let until = self.border(at, window).min(end);
            let aggregator = self.aggregator(owner, at, window);
            parts.push(Part { owner, aggregator, range: FileRange { offset: at, size: until - at } });
            at = until;
        }
    }

    /// Numbers of the pieces that have bytes in a range.
    fn numbers(&self, range: &Range<u64>) -> Range<u64> {
        let stride = self.pieces.stride();
        range.start / stride..range.end.div_ceil(stride).min(self.pieces.count * u64::from(self.procs))
    }

    /// What a process has in a window, in the order of the file.
    pub fn parts_of_owner(&self, rank: u32, window: &Range<u64>) -> Vec<Part> {
        let (numbers, procs) = (self.numbers(window), u64::from(self.procs));
        let rank = u64::from(rank);
        let first = numbers.start + (rank + procs - numbers.start % procs) % procs;
        let mut parts = Vec::new();
        (first..numbers.end).step_by(procs as usize).for_each(|number| self.cut(number, window, window, &mut parts));
        parts
    }

    /// What a process moves in a window, for whoever it is, in the order of the file.
    pub fn parts_of_aggregator(&self, rank: u32, window: &Range<u64>) -> Vec<Part> {
        let mut parts = Vec::new();
        match self.mode {
            Mode::List => parts = self.parts_of_owner(rank, window),
            Mode::View => {
                let size = self.domain_size(window);
                let start = window.start + u64::from(rank) * size;
                let limits = start.min(window.end)..(start + size).min(window.end);
                self.numbers(&limits).for_each(|number| self.cut(number, &limits, window, &mut parts));
            }
            Mode::Stripe => {
                for chunk in window.start / self.chunk_size..window.end.div_ceil(self.chunk_size) {
                    if self.aggregator_of_server(self.chunk_servers[chunk as usize]) != rank {
                        continue;
                    }
                    let (start, end) = (chunk * self.chunk_size, (chunk + 1) * self.chunk_size);
                    let limits = start.max(window.start)..end.min(window.end);
                    self.numbers(&limits).for_each(|number| self.cut(number, &limits, window, &mut parts));
                }
            }
            Mode::Node => {
                let first = rank - rank % self.procs_per_node;
                let node = first..(first + self.procs_per_node).min(self.procs);
                let all = node.flat_map(|owner| self.parts_of_owner(owner, window));
                parts.extend(all.filter(|part| part.aggregator == rank));
                parts.sort_by_key(|part| part.range.offset);
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(mode: Mode, procs: u32, procs_per_node: u32, servers: u32) -> Plan {
        let pieces = Pieces { count: 23, size: 592, gap: 26 };
        let (chunk_size, end) = (4_096, pieces.end(procs));
        // As by ring placement: no pattern.
        let chunk_servers = (0..end.div_ceil(chunk_size)).map(|chunk| (chunk * 7 / 3) as u32 % servers).collect();
        Plan { mode, pieces, procs, procs_per_node, servers, chunk_size, chunk_servers }
    }

    fn sorted(parts: impl Iterator<Item = Part>) -> Vec<(u64, u64, u32, u32)> {
        let key = |part: Part| (part.range.offset, part.range.size, part.owner, part.aggregator);
        let mut all: Vec<_> = parts.map(key).collect();
        all.sort_unstable();
        all
    }

    /// Goal: invariant 1, and in all windows together every byte of every piece is moved once, and no other. Method:
    /// all modes, with more and with fewer servers than processes, a node that is not full, and windows that are no
    /// multiples of chunks.
    #[test]
    fn owners_and_aggregators_agree() {
        for (mode, _) in MODES {
            for (procs, procs_per_node, servers) in [(1, 1, 3), (4, 4, 2), (7, 3, 5), (6, 2, 9)] {
                for window_size in [5_000, 16_384, u64::MAX] {
                    let plan = plan(mode, procs, procs_per_node, servers);
                    let mut moved = vec![0; plan.pieces.end(procs) as usize];
                    for window in plan.windows(window_size) {
                        let owned = sorted((0..procs).flat_map(|rank| plan.parts_of_owner(rank, &window)));
                        let had = sorted((0..procs).flat_map(|rank| plan.parts_of_aggregator(rank, &window)));
                        assert_eq!(owned, had, "{mode:?} {procs} {servers} {window:?}");
                        for (offset, size, owner, aggregator) in owned {
                            assert!(owner < procs && aggregator < procs);
                            assert_eq!(u64::from(owner), offset / plan.pieces.stride() % u64::from(procs));
                            moved[offset as usize..(offset + size) as usize].iter_mut().for_each(|count| *count += 1);
                        }
                    }
                    let is_piece = |at: usize| at as u64 % plan.pieces.stride() < plan.pieces.size;
                    assert!(moved.iter().enumerate().all(|(at, count)| *count == u32::from(is_piece(at))), "{mode:?}");
                }
            }
        }
    }

    /// Goal: a mode asks whom it says. Method: stripe has one process a server, node one of the owner's node, view
    /// domains that ascend with the process.
    #[test]
    fn aggregators() {
        let whole = 0..u64::MAX;
        let of = |mode: Mode| {
            let plan = plan(mode, 8, 4, 2);
            let window = whole.start..plan.pieces.end(8);
            (0..8).flat_map(|rank| plan.parts_of_owner(rank, &window)).collect::<Vec<Part>>()
        };
        assert!(of(Mode::Stripe).iter().all(|part| [0, 4].contains(&part.aggregator)));
        assert!(of(Mode::Node).iter().all(|part| part.aggregator / 4 == part.owner / 4 && part.aggregator % 4 < 2));
        let mut view = of(Mode::View);
        view.sort_by_key(|part| part.range.offset);
        assert!(view.is_sorted_by_key(|part| part.aggregator));
        assert_eq!((view[0].aggregator, view[view.len() - 1].aggregator), (0, 7));
    }

    /// Goal: what lies side by side becomes one range, and pieces have their place in their owner's memory.
    #[test]
    fn places() {
        let part = |offset, size| Part { owner: 0, aggregator: 0, range: FileRange { offset, size } };
        let ranges = merged(&[part(0, 4), part(4, 6), part(12, 1)]);
        assert_eq!(ranges, [FileRange { offset: 0, size: 10 }, FileRange { offset: 12, size: 1 }]);
        let pieces = Pieces { count: 3, size: 10, gap: 5 };
        assert_eq!((pieces.end(2), pieces.place(2, 33), pieces.range(3).offset), (85, 13, 45));
    }
}
