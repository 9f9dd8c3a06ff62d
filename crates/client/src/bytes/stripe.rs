//! From bytes to chunks: cuts ranges of a file by its layout and joins what belongs to one server.
//!
//! A call is about a list of ranges, whose bytes lie one behind the other in the caller's memory. Most lists have one.

use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use wire::layout::ChunkRange;
use wire::limits::{BODY_SIZE_MAX, PIECE_COUNT_MAX};
use wire::{Cluster, FileId, Layout};

/// A range of a file, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileRange {
    pub offset: u64,
    pub size: u64,
}

impl FileRange {
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.size
    }

    /// Bytes of it before `end`.
    pub(crate) fn size_before(&self, end: u64) -> u64 {
        end.saturating_sub(self.offset).min(self.size)
    }
}

/// The parts of ranges that hold bytes `start..start + size`, counted over all ranges.
pub(crate) fn part_of_ranges(ranges: &[FileRange], start: u64, size: u64) -> Vec<FileRange> {
    let mut before = 0;
    let mut part = Vec::new();
    for range in ranges {
        let from = start.saturating_sub(before).min(range.size);
        let to = (start + size).saturating_sub(before).min(range.size);
        if from < to {
            part.push(FileRange { offset: range.offset + from, size: to - from });
        }
        before += range.size;
    }
    part
}

/// What one request to one server carries.
pub(crate) struct Share<S> {
    pub server: u32,
    /// Bytes of the caller's memory before that of the first piece.
    pub first_position: usize,
    /// The same of each further piece.
    pub positions: Vec<usize>,
    pub pieces: Vec<ChunkRange>,
    /// The caller's memory for the pieces, in their order; neighbours are joined.
    pub slices: Vec<S>,
    /// Bytes of all pieces.
    pub size: usize,
}

impl<S> Share<S> {
    fn new(server: u32, first_position: usize) -> Share<S> {
        let (positions, pieces, slices) = (Vec::new(), Vec::new(), Vec::new());
        Share { server, first_position, positions, pieces, slices, size: 0 }
    }

    /// Adds a piece. One that begins where the one before it ends, in its chunk and in memory, makes that one longer.
    fn push(&mut self, piece: ChunkRange, position: usize, follows: bool) {
        self.size += piece.size as usize;
        match self.pieces.last_mut() {
            Some(last)
                if follows
                    && last.chunk_index == piece.chunk_index
                    && last.chunk_offset + last.size == piece.chunk_offset =>
            {
                last.size += piece.size;
                return;
            }
            Some(_) => self.positions.push(position),
            None => {}
        }
        self.pieces.push(piece);
    }

    /// The same without the caller's memory.
    pub(crate) fn without_memory(self) -> Share<()> {
        let Share { server, first_position, positions, pieces, size, .. } = self;
        Share { server, first_position, positions, pieces, slices: Vec::new(), size }
    }

    /// Each piece with the bytes of the caller's memory before its own.
    pub(crate) fn placed_pieces(&self) -> impl Iterator<Item = (&ChunkRange, usize)> {
        self.pieces.iter().zip(std::iter::once(self.first_position).chain(self.positions.iter().copied()))
    }
}

impl Share<IoSlice<'_>> {
    /// Takes the first piece out, with its bytes.
    pub(crate) fn drop_first(&mut self) {
        let size = self.pieces.remove(0).size as usize;
        self.size -= size;
        if !self.positions.is_empty() {
            self.first_position = self.positions.remove(0);
        }
        let mut slices = std::mem::take(&mut self.slices);
        let mut rest = &mut slices[..];
        IoSlice::advance_slices(&mut rest, size);
        self.slices = rest.to_vec();
    }

    /// Takes all pieces out.
    pub(crate) fn clear(&mut self) {
        (self.size, self.pieces, self.positions, self.slices) = (0, Vec::new(), Vec::new(), Vec::new());
    }
}

/// The caller's memory, taken from the front.
pub(crate) trait Memory {
    type Slice;
    /// Takes the next `size` bytes as one or more slices. Panics when there are fewer.
    fn take(&mut self, size: usize, out: &mut Vec<Self::Slice>);

    /// Leaves out the next `size` bytes.
    fn skip(&mut self, size: usize) {
        self.take(size, &mut Vec::new());
    }
}

/// Memory that is written to the file.
pub(crate) struct Source<'m> {
    slices: &'m [IoSlice<'m>],
    position: usize,
}

impl<'m> Source<'m> {
    pub(crate) fn new(slices: &'m [IoSlice<'m>]) -> Source<'m> {
        Source { slices, position: 0 }
    }
}

impl<'m> Memory for Source<'m> {
    type Slice = IoSlice<'m>;

    fn take(&mut self, mut size: usize, out: &mut Vec<IoSlice<'m>>) {
        while size > 0 {
            let slice: &'m [u8] = &self.slices[0];
            let part = size.min(slice.len() - self.position);
            if part > 0 {
                out.push(IoSlice::new(&slice[self.position..self.position + part]));
            }
            self.position += part;
            size -= part;
            if self.position == slice.len() {
                self.slices = &self.slices[1..];
                self.position = 0;
            }
        }
    }
}

/// Memory that the file is read into.
pub(crate) struct Destination<'m> {
    slices: std::vec::IntoIter<&'m mut [u8]>,
    current: &'m mut [u8],
}

impl<'m> Destination<'m> {
    pub(crate) fn new(slices: &'m mut [IoSliceMut<'_>]) -> Destination<'m> {
        let slices: Vec<&'m mut [u8]> = slices.iter_mut().map(|slice| &mut **slice).collect();
        Destination { slices: slices.into_iter(), current: &mut [] }
    }
}

impl<'m> Memory for Destination<'m> {
    type Slice = IoSliceMut<'m>;

    fn take(&mut self, mut size: usize, out: &mut Vec<IoSliceMut<'m>>) {
        while size > 0 {
            if self.current.is_empty() {
                self.current = self.slices.next().expect("the caller's memory holds the whole range");
                continue;
            }
            let part = size.min(self.current.len());
            let (head, tail) = std::mem::take(&mut self.current).split_at_mut(part);
            out.push(IoSliceMut::new(head));
            self.current = tail;
            size -= part;
        }
    }
}

/// Cuts what of the ranges lies before `end` into pieces and deals them out to requests: one per server, more only
/// where a request would pass the limits of a message. Ranges must end by `FILE_SIZE_MAX`. The memory of what is left
/// out is left out as well.
pub(crate) fn deal<M: Memory>(
    cluster: &Cluster,
    file: FileId,
    layout: &Layout,
    (ranges, end): (&[FileRange], u64),
    mut memory: M,
) -> Vec<Share<M::Slice>> {
    if let [range] = ranges {
        let size = range.size_before(end);
        let mut all = layout.pieces(range.offset, size);
        if let (Some(piece), None) = (all.next(), all.next()) {
            // Within one chunk: there is nothing to deal out.
            let size = size as usize;
            let mut slices = Vec::with_capacity(1);
            memory.take(size, &mut slices);
            let server = cluster.chunk_server(file, layout, piece.chunk_index);
            let (pieces, positions) = (vec![piece], Vec::new());
            return vec![Share { server, first_position: 0, positions, pieces, slices, size }];
        }
    }
    let mut shares: Vec<Share<M::Slice>> = Vec::new();
    let mut open_shares: HashMap<u32, usize> = HashMap::new();
    // The share of the piece before, and its bytes whose memory was not taken yet.
    let mut run: (usize, usize) = (0, 0);
    let mut position = 0;
    for range in ranges {
        let size = range.size_before(end);
        for piece in layout.pieces(range.offset, size) {
            let server = cluster.chunk_server(file, layout, piece.chunk_index);
            let fits = |share: &Share<M::Slice>| {
                share.pieces.len() < PIECE_COUNT_MAX && share.size + piece.size as usize <= BODY_SIZE_MAX
            };
            let index = match open_shares.get(&server) {
                Some(index) if fits(&shares[*index]) => *index,
                _ => {
                    shares.push(Share::new(server, position));
                    open_shares.insert(server, shares.len() - 1);
                    shares.len() - 1
                }
            };
            if run.0 != index {
                memory.take(run.1, &mut shares[run.0].slices);
                run = (index, 0);
            }
            shares[index].push(piece, position, run.1 > 0);
            run.1 += piece.size as usize;
            position += piece.size as usize;
        }
        let left_out = (range.size - size) as usize;
        if left_out > 0 {
            if let Some(share) = shares.get_mut(run.0) {
                memory.take(std::mem::take(&mut run.1), &mut share.slices);
            }
            memory.skip(left_out);
            position += left_out;
        }
    }
    if let Some(share) = shares.get_mut(run.0) {
        memory.take(run.1, &mut share.slices);
    }
    shares
}

/// Zeroes `size` bytes of the caller's memory from `start` on, counted over all slices.
pub(crate) fn fill_zero(slices: &mut [IoSliceMut<'_>], mut start: usize, mut size: usize) {
    for slice in slices {
        if size == 0 {
            break;
        }
        let skipped = start.min(slice.len());
        let part = size.min(slice.len() - skipped);
        slice[skipped..skipped + part].fill(0);
        start -= skipped;
        size -= part;
    }
}

/// Copies bytes to the front of memory that has room for them.
pub(crate) fn copy_to(slices: &mut [IoSliceMut<'_>], mut bytes: &[u8]) {
    for slice in slices {
        let (part, rest) = bytes.split_at(bytes.len().min(slice.len()));
        slice[..part.len()].copy_from_slice(part);
        bytes = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::cluster::KEY_SIZE;
    use wire::layout::LayoutPolicy;
    use wire::{Placement, ServerAddress};

    fn cluster(server_count: u16, chunk_size: u32) -> Cluster {
        let servers = (0..server_count).map(|i| ServerAddress { address: ([127, 0, 0, 1], 4000 + i).into() });
        Cluster::new(1, [0; KEY_SIZE], Placement::Modular, chunk_size, servers.collect())
    }

    fn range(offset: usize, size: usize) -> FileRange {
        FileRange { offset: offset as u64, size: size as u64 }
    }

    /// Goal: of a list, each byte before the end goes to its chunk, once; what lies beyond is left out with its memory,
    /// and ranges that follow one another within a chunk are one piece.
    /// Method: bytes that name their own offset, lists in any order, with and without neighbours, cut at several ends.
    #[test]
    fn lists_reach_their_chunks() {
        let chunk_size = 4096;
        let cluster = cluster(3, chunk_size);
        let (file, layout) = (FileId::new(9, 3), cluster.layout_for(3, &wire::LayoutWish::default()));
        let lists = [
            vec![range(10, 20), range(30, 40), range(100, 1)],
            vec![range(20_000, 9_000), range(0, 5), range(4_000, 200)],
            vec![range(5, 0), range(4_090, 12), range(4_102, 30_000), range(1, 1)],
        ];
        for list in lists {
            let byte_at = |offset: u64| (offset * 31 % 251) as u8;
            let bytes: Vec<u8> = list.iter().flat_map(|range| (range.offset..range.end()).map(byte_at)).collect();
            for end in [u64::MAX, 25_000, 4_095, 3, 0] {
                let slices = [IoSlice::new(&bytes[..7]), IoSlice::new(&bytes[7..])];
                let shares = deal(&cluster, file, &layout, (&list, end), Source::new(&slices));
                let mut found = 0;
                for share in &shares {
                    let body: Vec<u8> = share.slices.iter().flat_map(|slice| slice.to_vec()).collect();
                    assert_eq!((body.len(), share.pieces.len()), (share.size, share.positions.len() + 1));
                    let mut done = 0;
                    for (piece, position) in share.placed_pieces() {
                        let start = piece.chunk_index * u64::from(chunk_size) + u64::from(piece.chunk_offset);
                        assert_eq!(cluster.chunk_server(file, &layout, piece.chunk_index), share.server);
                        assert!(start + u64::from(piece.size) <= end);
                        for i in 0..piece.size as usize {
                            assert_eq!(body[done + i], byte_at(start + i as u64));
                            assert_eq!(bytes[position + i], byte_at(start + i as u64));
                        }
                        done += piece.size as usize;
                    }
                    found += done;
                }
                assert_eq!(found as u64, list.iter().map(|range| range.size_before(end)).sum::<u64>());
            }
        }
        let joined = [range(10, 20), range(30, 40), range(100, 1)];
        let slices = [IoSlice::new(&[0; 61])];
        let shares = deal(&cluster, file, &layout, (&joined, u64::MAX), Source::new(&slices));
        assert_eq!((shares.len(), shares[0].pieces.len(), shares[0].slices.len()), (1, 2, 1));
        assert_eq!(part_of_ranges(&joined, 19, 22), [range(29, 1), range(30, 21)]);
    }

    /// Goal: every byte of a range goes to the right chunk of the right server, once, whatever the caller's slices are.
    /// Method: bytes that name their own offset, several chunk sizes and ways to slice; each share's bytes are put
    /// where its pieces say and the whole is compared.
    #[test]
    fn bytes_reach_their_chunks() {
        for (servers, chunk_size) in [(1, 4096), (2, 4096), (3, 4700), (5, 47_008)] {
            let cluster = cluster(servers, chunk_size);
            let file = FileId::new(9, 3);
            let layout = cluster.layout_for(3, &wire::LayoutWish::default());
            let (offset, size) = (4095, 100_001);
            let bytes: Vec<u8> = (0..size).map(|i| ((offset + i) * 31 % 251) as u8).collect();
            for cuts in [vec![], vec![1], vec![4096, 4097, 50_000], vec![0, 0, 99_999]] {
                let mut slices = Vec::new();
                let mut start = 0;
                for cut in cuts.into_iter().chain([size]) {
                    slices.push(IoSlice::new(&bytes[start..cut.max(start)]));
                    start = cut.max(start);
                }
                let shares = deal(&cluster, file, &layout, (&[range(offset, size)], u64::MAX), Source::new(&slices));
                assert!(shares.len() <= servers as usize, "one request for each server");
                let mut found = vec![0u8; size];
                for share in &shares {
                    let body: Vec<u8> = share.slices.iter().flat_map(|slice| slice.to_vec()).collect();
                    assert_eq!(body.len(), share.size);
                    let mut position = 0;
                    for (piece, memory_position) in share.placed_pieces() {
                        assert_eq!(cluster.chunk_server(file, &layout, piece.chunk_index), share.server);
                        let at = piece.chunk_index * u64::from(chunk_size) + u64::from(piece.chunk_offset);
                        let at = at as usize - offset;
                        assert_eq!(at, memory_position);
                        let piece_size = piece.size as usize;
                        found[at..at + piece_size].copy_from_slice(&body[position..position + piece_size]);
                        position += piece_size;
                    }
                }
                assert_eq!(found, bytes);
            }
        }
    }

    /// Goal: neighbouring pieces of one server use one slice, so that a contiguous range is one system call's vector.
    #[test]
    fn neighbours_are_joined() {
        let cluster = cluster(1, 4096);
        let bytes = vec![7; 1 << 20];
        let slices = [IoSlice::new(&bytes)];
        let list = [range(0, bytes.len())];
        let layout = cluster.layout_for(0, &wire::LayoutWish::default());
        let shares = deal(&cluster, FileId::new(2, 0), &layout, (&list, u64::MAX), Source::new(&slices));
        assert_eq!((shares.len(), shares[0].pieces.len(), shares[0].slices.len()), (1, 256, 1));
    }

    /// Goal: no request passes the limits of a message.
    #[test]
    fn limits_are_kept() {
        let cluster = cluster(2, 4096);
        let layout = Layout::default_for(LayoutPolicy::Ring, 0, cluster.slot_count, 4096);
        let mut bytes = vec![0; 20 << 20];
        let size = bytes.len();
        let mut slices = [IoSliceMut::new(&mut bytes)];
        let list = [range(100, size)];
        let shares = deal(&cluster, FileId::new(2, 0), &layout, (&list, u64::MAX), Destination::new(&mut slices));
        assert!(shares.len() >= 6);
        for share in &shares {
            assert!(share.pieces.len() <= PIECE_COUNT_MAX && share.size <= BODY_SIZE_MAX);
            assert_eq!(share.slices.iter().map(|slice| slice.len()).sum::<usize>(), share.size);
        }
    }

    /// Goal: zeros land exactly in the range, across slices.
    #[test]
    fn zeros_across_slices() {
        let (mut a, mut b, mut c) = ([1u8; 3], [1u8; 4], [1u8; 5]);
        fill_zero(&mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b), IoSliceMut::new(&mut c)], 2, 6);
        assert_eq!((a, b, c), ([1, 1, 0], [0; 4], [0, 1, 1, 1, 1]));
    }
}
