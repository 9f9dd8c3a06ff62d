//! Contents: each chunk of a file is one atomic object, whose bytes are known by the tag of the write they came from.

use super::files::{Event, FileHistory, Origin, What};
use crate::history::{Finding, NEVER};
use crate::linearize::{Done, Object, Span, Verdict};
use crate::losses::{self, Losses};
use crate::pattern::{self, Tag};
use std::collections::{BTreeMap, BTreeSet};

/// What one operation did with one chunk; positions are within the chunk, in bytes.
#[derive(Clone, Debug)]
enum Part<'a> {
    Write {
        from: u64,
        to: u64,
        tag: Tag,
    },
    /// Bytes from another file, whatever they were.
    Copy {
        from: u64,
        to: u64,
        tag: Tag,
        origins: &'a [Origin],
        edges: &'a [u64],
    },
    Zero {
        from: u64,
        to: u64,
    },
    /// A look that found no data there.
    Hole {
        from: u64,
        to: u64,
    },
    /// Everything from here on is gone.
    Cut {
        from: u64,
    },
    Read {
        from: u64,
        bytes: &'a [u8],
    },
}

struct ChunkHistory<'a> {
    index: u64,
    parts: Vec<(&'a Event<'a>, Part<'a>)>,
}

/// Who wrote each segment of the chunk: a tag, or 0 for nobody.
type Segments = Vec<Tag>;

struct Chunk<'a> {
    history: &'a ChunkHistory<'a>,
    /// Where a segment starts, and where the last ends. No operation begins or ends within a segment.
    bounds: Vec<u64>,
    /// Per operation: the segments that it touches.
    touched: Vec<std::ops::Range<usize>>,
    /// Per read and touched segment: the tags that its bytes may have come from.
    sources: Vec<Vec<Vec<Tag>>>,
    /// Tags that some read may have seen.
    seen: BTreeSet<Tag>,
}

fn split<'a>(file: &'a FileHistory<'a>) -> Vec<ChunkHistory<'a>> {
    let chunk_size = u64::from(file.chunk_size);
    let mut chunks: BTreeMap<u64, ChunkHistory<'a>> = BTreeMap::new();
    let mut add = |index: u64, event: &'a Event<'a>, part: Part<'a>| {
        let chunk = chunks.entry(index).or_insert_with(|| ChunkHistory { index, parts: Vec::new() });
        chunk.parts.push((event, part));
    };
    for event in &file.events {
        match &event.what {
            What::Write { offset, size, tag } => {
                for (index, from, to) in pieces(chunk_size, *offset, *size) {
                    add(index, event, Part::Write { from, to, tag: *tag });
                }
            }
            What::Copy { offset, size, tag, origins, edges, steps } => {
                for (from, to) in step_ranges(*offset, *size, steps) {
                    for (index, from, to) in pieces(chunk_size, from, to - from) {
                        add(index, event, Part::Copy { from, to, tag: *tag, origins, edges });
                    }
                }
            }
            What::Read { offset, bytes, .. } => {
                let mut rest: &[u8] = bytes;
                for (index, from, to) in pieces(chunk_size, *offset, bytes.len() as u64) {
                    let (piece, tail) = rest.split_at((to - from) as usize);
                    add(index, event, Part::Read { from, bytes: piece });
                    rest = tail;
                }
            }
            _ => {}
        }
    }
    for event in &file.events {
        for (index, chunk) in &mut chunks {
            let start = index * chunk_size;
            let within = |from: u64, to: u64| {
                let (from, to) = (from.saturating_sub(start), to.saturating_sub(start).min(chunk_size));
                (from < to).then_some((from, to))
            };
            let part = match event.what {
                What::Truncate { size } => within(size, u64::MAX).map(|(from, _)| Part::Cut { from }),
                What::Zero { offset, size } => within(offset, offset + size).map(|(from, to)| Part::Zero { from, to }),
                What::HoleSeen { from, to } => within(from, to).map(|(from, to)| Part::Hole { from, to }),
                _ => None,
            };
            chunk.parts.extend(part.map(|part| (event, part)));
        }
    }
    chunks.into_values().collect()
}

/// The single steps of a copy of a range.
fn step_ranges(offset: u64, size: u64, steps: &[u64]) -> Vec<(u64, u64)> {
    let inner = steps.iter().copied().filter(|step| *step > offset && *step < offset + size);
    let bounds: Vec<u64> = [offset].into_iter().chain(inner).chain([offset + size]).collect();
    bounds.windows(2).map(|pair| (pair[0], pair[1])).collect()
}

/// (chunk index, from, to) of each chunk that a range touches.
pub fn pieces(chunk_size: u64, offset: u64, size: u64) -> Vec<(u64, u64, u64)> {
    let mut pieces = Vec::new();
    let mut position = offset;
    while position < offset + size {
        let from = position % chunk_size;
        let step = (chunk_size - from).min(offset + size - position);
        pieces.push((position / chunk_size, from, from + step));
        position += step;
    }
    pieces
}

impl<'a> Chunk<'a> {
    /// Cuts the chunk into segments. Errors: a read that holds bytes nobody wrote.
    fn new(history: &'a ChunkHistory<'a>, chunk_size: u64) -> Result<Chunk<'a>, Finding> {
        let mut bounds = BTreeSet::from([0, chunk_size]);
        for (_, part) in &history.parts {
            let (from, to) = part.range(chunk_size);
            bounds.insert(from);
            bounds.insert(to);
            if let Part::Copy { origins, edges, .. } = part {
                let ends =
                    |origin: &Origin| [origin.offset, origin.offset + origin.size].map(|end| (end, origin.shift));
                let writes = origins.iter().flat_map(ends).filter_map(|(end, shift)| end.checked_add_signed(-shift));
                let places = writes.chain(edges.iter().copied());
                let within = places.filter_map(|place| place.checked_sub(history.index * chunk_size));
                bounds.extend(within.filter(|place| from < *place && *place < to));
            }
        }
        let bounds: Vec<u64> = bounds.into_iter().collect();
        let position = |at: u64| bounds.partition_point(|bound| *bound < at);
        let touched: Vec<std::ops::Range<usize>> = history
            .parts
            .iter()
            .map(|(_, part)| part.range(chunk_size))
            .map(|(from, to)| position(from)..position(to))
            .collect();
        let mut chunk = Chunk { history, bounds, touched, sources: Vec::new(), seen: BTreeSet::new() };
        for operation in 0..history.parts.len() {
            let sources = chunk.sources_of(operation, chunk_size)?;
            chunk.seen.extend(sources.iter().flatten());
            chunk.sources.push(sources);
        }
        Ok(chunk)
    }

    fn sources_of(&self, operation: usize, chunk_size: u64) -> Result<Vec<Vec<Tag>>, Finding> {
        let (event, Part::Read { from, bytes }) = &self.history.parts[operation] else { return Ok(Vec::new()) };
        let mut sources = Vec::new();
        for segment in self.touched[operation].clone() {
            let (start, end) = (self.bounds[segment], self.bounds[segment + 1]);
            let piece = &bytes[(start - from) as usize..(end - from) as usize];
            let place = self.history.index * chunk_size + start;
            let mut tags = BTreeSet::new();
            if pattern::matches(0, place, piece) {
                tags.insert(0);
            }
            for (writer, (_, part)) in self.history.parts.iter().enumerate() {
                let explains = match part {
                    Part::Write { tag, .. } => pattern::matches(*tag, place, piece).then_some(*tag),
                    Part::Copy { tag, origins, .. } => is_copied(origins, place, piece).then_some(*tag),
                    _ => None,
                };
                if let Some(tag) = explains
                    && self.touched[writer].contains(&segment)
                {
                    tags.insert(tag);
                }
            }
            if tags.is_empty() {
                return Err(self.torn(event, place, piece));
            }
            sources.push(tags.into_iter().collect());
        }
        Ok(sources)
    }

    /// The finding about bytes that no write explains, with those that explain their first byte or a part.
    fn torn(&self, event: &Event, place: u64, piece: &[u8]) -> Finding {
        let mut concerned = vec![event.number];
        let mut words =
            format!("bytes {place}..{} are torn or mixed, nobody wrote them so", place + piece.len() as u64);
        let zeros = piece.iter().filter(|byte| **byte == 0).count();
        if zeros > 0 {
            words += &format!("; {zeros} of them are zero");
        }
        let step = 16.min(piece.len());
        for (writer, part) in &self.history.parts {
            if let Part::Write { tag, .. } = part {
                let some = (0..=piece.len() - step)
                    .step_by(step)
                    .find(|at| pattern::matches(*tag, place + *at as u64, &piece[*at..at + step]));
                if let Some(at) = some {
                    concerned.push(writer.number);
                    words += &format!("; tag {tag} is seen at {}", place + at as u64);
                }
            }
        }
        Finding::new(words, concerned)
    }
}

impl Part<'_> {
    fn range(&self, chunk_size: u64) -> (u64, u64) {
        match self {
            Part::Write { from, to, .. } => (*from, *to),
            Part::Copy { from, to, .. } | Part::Zero { from, to } | Part::Hole { from, to } => (*from, *to),
            Part::Cut { from } => (*from, chunk_size),
            Part::Read { from, bytes } => (*from, from + bytes.len() as u64),
        }
    }
}

impl Object for Chunk<'_> {
    type State = Segments;

    fn initial(&self) -> Segments {
        vec![0; self.bounds.len() - 1]
    }

    fn is_look(&self, operation: usize) -> bool {
        matches!(self.history.parts[operation].1, Part::Read { .. })
    }

    fn apply(&self, state: &Segments, operation: usize, _: &Done) -> Option<Segments> {
        let touched = self.touched[operation].clone();
        let tag = match &self.history.parts[operation].1 {
            // A write of unknown outcome that nobody saw explains nothing.
            Part::Write { tag, .. } | Part::Copy { tag, .. }
                if self.history.parts[operation].0.end == NEVER && !self.seen.contains(tag) =>
            {
                return None;
            }
            Part::Write { tag, .. } | Part::Copy { tag, .. } => *tag,
            Part::Cut { .. } | Part::Zero { .. } => 0,
            Part::Hole { .. } => return state[touched].iter().all(|tag| *tag == 0).then(|| state.clone()),
            Part::Read { .. } => {
                let mut pairs = state[touched].iter().zip(&self.sources[operation]);
                return pairs.all(|(tag, sources)| sources.contains(tag)).then(|| state.clone());
            }
        };
        let mut after = state.clone();
        after[touched].fill(tag);
        let changed = self.history.parts[operation].0.end != NEVER || after != *state;
        changed.then_some(after)
    }
}

/// Whether bytes at a place may have come there by a copy: from some write to the source, or from a hole.
fn is_copied(origins: &[Origin], place: u64, piece: &[u8]) -> bool {
    pattern::matches(0, place, piece)
        || origins.iter().any(|origin| {
            let from = place.checked_add_signed(origin.shift);
            from.is_some_and(|from| {
                let within = origin.offset <= from && from + piece.len() as u64 <= origin.offset + origin.size;
                within && pattern::matches(origin.tag, from, piece)
            })
        })
}

/// Checks the contents of one file, which nobody appends to.
pub fn check(file: &FileHistory, losses: &Losses) -> Vec<Finding> {
    let mut findings = Vec::new();
    if file.chunk_size == 0 {
        return findings;
    }
    for history in split(file) {
        let about = |words: &str| format!("file {}, chunk {}: {words}", file.id, history.index);
        let chunk = match Chunk::new(&history, u64::from(file.chunk_size)) {
            Ok(chunk) => chunk,
            Err(finding) => {
                findings.push(Finding::new(about(&finding.words), finding.operations));
                continue;
            }
        };
        let spans: Vec<Span> =
            history.parts.iter().map(|(event, _)| Span { start: event.start, end: event.end }).collect();
        let layout = losses.cluster.layout_for(file.id.home(), file.chunk_size);
        let server = losses.cluster.chunk_server(file.id, &layout, history.index);
        match losses::check(&chunk, &spans, &losses.setbacks(server, Some(file.id))) {
            Verdict::Linearizable => {}
            Verdict::Impossible(missing) => {
                let words = about("no order of the writes explains what was read");
                let mut concerned: Vec<usize> = missing.iter().map(|index| history.parts[*index].0.number).collect();
                concerned.dedup();
                findings.push(Finding::new(words + &chunk.explain(&missing), concerned));
            }
            Verdict::Undecided => findings.push(Finding::new(about("history is too tangled to decide"), Vec::new())),
        }
    }
    findings
}

impl Chunk<'_> {
    /// What the reads among the operations saw.
    fn explain(&self, operations: &[usize]) -> String {
        let mut words = String::new();
        for operation in operations {
            if let Part::Read { .. } = self.history.parts[*operation].1 {
                let mut tags: Vec<String> = Vec::new();
                for (segment, sources) in self.touched[*operation].clone().zip(&self.sources[*operation]) {
                    tags.push(format!("{}..{} {sources:?}", self.bounds[segment], self.bounds[segment + 1]));
                }
                words += &format!("; a read saw tags {}", tags.join(", "));
            }
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::History;
    use crate::losses::cluster_of;
    use wire::FileId;

    const SIZE: u32 = 4096;

    fn write(offset: u64, size: u64, tag: Tag) -> What<'static> {
        What::Write { offset, size, tag }
    }

    fn read(offset: u64, bytes: &[u8]) -> What<'_> {
        What::Read { offset, size: bytes.len() as u64, bytes }
    }

    fn pattern(tag: Tag, offset: u64, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        pattern::fill(tag, offset, &mut bytes);
        bytes
    }

    fn run(whats: Vec<(u64, u64, What)>) -> usize {
        let events = whats
            .into_iter()
            .enumerate()
            .map(|(number, (start, end, what))| Event { number, start, end, what })
            .collect();
        let (history, cluster) = (History::default(), cluster_of(1));
        check(&FileHistory { id: FileId(1), chunk_size: SIZE, events }, &Losses::new(&history, &cluster)).len()
    }

    /// Goal: reads see the last write, holes are zero, and neighbouring chunks do not mind each other.
    #[test]
    fn plain_order() {
        let mut expected = pattern(1, 4000, 50);
        expected.extend(pattern(2, 4050, 100));
        expected.extend(vec![0; 50]);
        fn history(bytes: &[u8]) -> Vec<(u64, u64, What<'_>)> {
            vec![(1, 2, write(4000, 100, 1)), (3, 4, write(4050, 100, 2)), (5, 6, read(4000, bytes))]
        }
        assert_eq!(run(history(&expected)), 0);
        expected[75] ^= 8;
        assert_eq!(run(history(&expected)), 1, "a changed byte");
        let mut stale = pattern(1, 4000, 96);
        stale.extend(pattern(2, 4096, 54));
        assert_eq!(run(history(&stale)), 1, "the second write is missing from the first chunk");
    }

    /// Goal: a write is all or nothing within a chunk; half of one next to half of another is found.
    #[test]
    fn mixed_chunk() {
        let mut mixed = pattern(1, 0, 500);
        mixed.extend(pattern(2, 500, 500));
        fn history(bytes: &[u8]) -> Vec<(u64, u64, What<'_>)> {
            vec![(1, 10, write(0, 1000, 1)), (2, 11, write(0, 1000, 2)), (12, 13, read(0, bytes))]
        }
        assert_eq!(run(history(&mixed)), 1);
        assert_eq!(run(history(&pattern(1, 0, 1000))), 0);
        assert_eq!(run(history(&pattern(2, 0, 1000))), 0);
    }

    /// Goal: what was acknowledged does not vanish, and what was overwritten does not return by a late second execution.
    #[test]
    fn lost_and_repeated() {
        let first = pattern(1, 0, 100);
        let zeros = vec![0; 100];
        assert_eq!(run(vec![(1, 2, write(0, 100, 1)), (3, 4, read(0, &zeros))]), 1);
        assert_eq!(run(vec![(1, NEVER, write(0, 100, 1)), (3, 4, read(0, &zeros))]), 0);
        let again = vec![(1, 2, write(0, 100, 1)), (3, 4, write(0, 100, 2)), (5, 6, read(0, &first))];
        assert_eq!(run(again), 1);
    }

    /// Goal: a truncate cuts, and what it cut stays cut.
    #[test]
    fn truncates() {
        let mut cut = pattern(1, 0, 40);
        cut.extend(vec![0; 60]);
        let whole = pattern(1, 0, 100);
        fn history(bytes: &[u8]) -> Vec<(u64, u64, What<'_>)> {
            vec![(1, 2, write(0, 100, 1)), (3, 4, What::Truncate { size: 40 }), (5, 6, read(0, bytes))]
        }
        assert_eq!(run(history(&cut)), 0);
        assert_eq!(run(history(&whole)), 1);
    }
}
