//! Which bytes are fetched into memory before anybody asks for them, where only a part of the data space is there.
//!
//! Whoever reads a file from front to back finds the next bytes in memory: the more he has read so, the more of them. A
//! reader is known by where he reads: within what was fetched for him last, or right behind. So several readers of a
//! file are told apart, readers that share a file piece by piece count as one, and reads at random places are nobody's.
//!
//! Invariants
//! 1. There are no more than `STREAMS_MAX` readers; of more, the one that read longest ago is forgotten.
//! 2. What is fetched for a reader begins where the last wish ended. One that was refused is repeated after as many
//!    bytes at the earliest.
//! 3. A step looks at `CHUNKS_MAX` chunks at most.

use super::allocator::PAGE_SIZE;
use super::chunk;
use super::state::StoreState;
use reactor::PageNeed;

/// Readers that are known at a time.
const STREAMS_MAX: usize = 32;
/// Bytes that are fetched ahead of a reader at first, and at most.
const WINDOW_MIN: u64 = 256 << 10;
const WINDOW_MAX: u64 = 8 << 20;
/// The part of memory for data that one reader may have ahead of him: all of them together half of it.
const WINDOW_SHARE: u64 = 64;
/// Chunks that one step looks at.
const CHUNKS_MAX: usize = 64;

/// A place in a file: chunk and offset in it.
pub type Place = (u64, u32);
/// The one behind all others.
const FILE_END: Place = (u64::MAX, 0);

/// A reader.
#[derive(Clone, Copy, Debug)]
struct ReadStream {
    file: u64,
    /// What was fetched for him last, or has been read since, lies between these.
    from: Place,
    end: Place,
    /// Bytes that are fetched ahead of him next time; 0 as long as he has read once.
    window: u64,
    /// Bytes of what was fetched that he has not read, and where they begin: he may read a hole before them.
    ahead: u64,
    start: Place,
    /// Bytes that he is to read before anything is fetched again.
    rest: u64,
}

/// See the module.
pub struct ReadAhead {
    /// The one that has read last comes first.
    streams: Vec<ReadStream>,
    window_max: u64,
}

impl ReadAhead {
    /// Where so many bytes of data are in memory at most.
    pub fn new(memory: u64) -> ReadAhead {
        let window_max = (memory / WINDOW_SHARE).min(WINDOW_MAX) / PAGE_SIZE * PAGE_SIZE;
        ReadAhead { streams: Vec::new(), window_max }
    }

    /// Somebody reads `size` bytes of a file from a place on, up to an end (the front of the next chunk, where they end
    /// with a chunk). Returns from where on how many bytes are to be fetched, if any are.
    pub fn note(&mut self, file: u64, at: Place, end: Place, size: u64) -> Option<(Place, u64)> {
        let is_his = |stream: &ReadStream| stream.file == file && stream.from <= at && at <= stream.end;
        let Some(number) = self.streams.iter().position(is_his) else {
            self.streams.truncate(STREAMS_MAX - 1);
            self.streams.insert(0, ReadStream { file, from: at, end, window: 0, ahead: 0, start: end, rest: 0 });
            return None;
        };
        self.streams[..=number].rotate_right(1);
        let stream = &mut self.streams[0];
        stream.rest = stream.rest.saturating_sub(size);
        // Where the file had ended there may be more by now.
        if end > stream.end || stream.end == FILE_END {
            (stream.end, stream.ahead) = (end, 0);
        } else if at >= stream.start {
            stream.ahead = stream.ahead.saturating_sub(size);
        }
        let is_due = stream.ahead <= stream.window / 2 && stream.rest == 0 && stream.end != FILE_END;
        if !is_due || self.window_max == 0 || end <= stream.from {
            return None;
        }
        stream.window = (2 * stream.window).max(WINDOW_MIN).max(size).min(self.window_max);
        Some((stream.end, stream.window.saturating_sub(stream.ahead).max(PAGE_SIZE)))
    }

    /// So many bytes are fetched for the reader that was noted last, up to a place.
    fn note_fetched(&mut self, at: Place, end: Place, bytes: u64) {
        let stream = &mut self.streams[0];
        if stream.ahead == 0 {
            stream.start = stream.end;
        }
        (stream.from, stream.end, stream.ahead) = (at.max(stream.from), end, stream.ahead + bytes);
    }

    /// There was no room for what the reader that was noted last was to have.
    fn note_refused(&mut self) {
        let stream = &mut self.streams[0];
        stream.rest = stream.window;
    }
}

impl StoreState {
    /// Somebody reads bytes `from..to` of a chunk: has what he will ask for next fetched.
    pub fn read_ahead(&mut self, (id, index): (u64, u64), from: u32, to: u32) {
        let (Some(ahead), Some(file)) = (&mut self.read_ahead, self.files.get(id)) else { return };
        let next_of = |index: u64| {
            let next = index.checked_add(1).and_then(|from| file.chunks.next(from));
            next.map_or(FILE_END, |(index, _)| (index, 0))
        };
        let is_last = file.chunks.get(index).is_none_or(|chunk| to >= chunk.valid_end());
        let end = if is_last { next_of(index) } else { (index, to) };
        let at = (index, from);
        let Some((start, bytes)) = ahead.note(id, at, end, u64::from(to.saturating_sub(from))) else { return };
        let (mut need, mut place, mut pages) = (PageNeed::default(), start, 0);
        let wanted = bytes.div_ceil(PAGE_SIZE);
        for _ in 0..CHUNKS_MAX {
            let Some((found, chunk)) = file.chunks.next(place.0).filter(|_| pages < wanted) else { break };
            let first = if found == place.0 { place.1 } else { 0 };
            let last = u64::from(first).saturating_add((wanted - pages) * PAGE_SIZE);
            let last = last.min(u64::from(chunk.valid_end())) as u32;
            let known = need.filled.len();
            for (from, to) in super::write::live_parts(&chunk.ranges, first, last) {
                chunk::pages_of_bytes(&chunk.extents, from, to, &mut need.filled);
            }
            pages += need.filled[known..].iter().map(|pages| pages.end - pages.start).sum::<u64>();
            place = if last >= chunk.valid_end() { next_of(found) } else { (found, last) };
        }
        match pages == 0 || self.data.fetch_ahead(&need) {
            true => ahead.note_fetched(at, place, pages * PAGE_SIZE),
            false => ahead.note_refused(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEBIBYTE: u64 = 1 << 20;

    /// What is fetched for reads of 64 KiB of a file, in chunks of 1 MiB, one after the other.
    fn fetched(ahead: &mut ReadAhead, file: u64, reads: impl Iterator<Item = u64>) -> Vec<u64> {
        let place = |byte: u64| (byte / MEBIBYTE, (byte % MEBIBYTE) as u32);
        let mut all = Vec::new();
        for byte in reads {
            let end = place(byte + 65_536);
            if let Some(((index, offset), bytes)) = ahead.note(file, place(byte), end, 65_536) {
                let first = index * MEBIBYTE + u64::from(offset);
                all.push(bytes);
                ahead.note_fetched(place(byte), place(first + bytes), bytes);
            }
        }
        all
    }

    /// Goal: who reads from front to back has more and more fetched, and each byte once; nothing is fetched for who
    /// reads once, or here and there. Method: readers alone, two in turns, and one at places that do not follow.
    #[test]
    fn readers() {
        let mut ahead = ReadAhead::new(128 * MEBIBYTE);
        let told = fetched(&mut ahead, 1, (0..256).map(|number| number * 65_536));
        assert!(
            told[0] == 256 << 10 && told[..4].is_sorted() && told.iter().all(|bytes| *bytes <= 2 << 20),
            "{told:?}"
        );
        let sum: u64 = told.iter().sum();
        assert!((15 << 20..=19 << 20).contains(&sum), "{sum}: what was read, and a window");
        let scattered = (0..1000).map(|number| number * 7919 % 4096 * 65_536 * 3);
        assert_eq!(fetched(&mut ahead, 2, scattered), [0; 0]);
        assert_eq!(ahead.streams.len(), STREAMS_MAX);
        let in_turns = (0..64).flat_map(|number| [number * 65_536, (1 << 30) + number * 65_536]);
        assert!(fetched(&mut ahead, 3, in_turns).iter().sum::<u64>() >= 2 * (4 << 20) - (512 << 10));
        // Pieces of one file, by two who are not in step.
        let pieces = (0..64).flat_map(|number| [2 * number + 1, 2 * number]).map(|number| number * 65_536);
        let sum: u64 = fetched(&mut ahead, 4, pieces).iter().sum();
        assert!((6 << 20..=12 << 20).contains(&sum), "{sum}");
        // In a hole nothing more is fetched than what comes behind it, and what was refused is not asked for at once.
        let in_hole: Vec<_> = (0..2).map(|number| ahead.note(5, (5, number * 4096), (9000, 0), 4096)).collect();
        assert_eq!(in_hole[1], Some(((9000, 0), 256 << 10)));
        ahead.note_refused();
        let in_hole: Vec<_> = (2..66).map(|number| ahead.note(5, (5, number * 4096), (9000, 0), 4096)).collect();
        let place = in_hole.iter().position(Option::is_some).unwrap();
        assert_eq!((place, in_hole[place]), (63, Some(((9000, 0), 512 << 10))));
        ahead.note_fetched((5, 0), (9000, 512 << 10), 512 << 10);
        assert!((0..999).all(|number| ahead.note(5, (6, number * 4096), (9000, 0), 4096).is_none()));
        assert_eq!(fetched(&mut ReadAhead::new(0), 1, (0..9).map(|number| number * 65_536)), [0; 0]);
    }
}
