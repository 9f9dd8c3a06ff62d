//! Contents: each chunk of a file is one atomic object, whose bytes are known by the tag of the write they came from.

use super::files::{Event, FileHistory, Origin, What};
use crate::history::{Finding, Moment, NEVER};
use crate::linearize::{Done, Horizon, Object, Span, Verdict};
use crate::losses::{self, Losses};
use crate::pattern::{self, Tag};
use std::collections::{BTreeMap, BTreeSet};
use wire::LayoutWish;

/// What one operation did with one chunk; positions are within the chunk, in bytes.
#[derive(Clone, Debug)]
enum ChunkPart<'a> {
    Write {
        from: u64,
        to: u64,
        tag: Tag,
    },
    /// Bytes from another file, whatever they were. Where nobody knows how far it went, `to` may be where the source
    /// ended, and there is one for each such place, of which one happened at most.
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
    parts: Vec<(&'a Event<'a>, ChunkPart<'a>)>,
}

/// Who wrote each segment of the chunk: a tag, or 0 for nobody.
type Segments = Vec<Tag>;

struct Chunk<'a> {
    index: u64,
    /// Where a segment starts, and where the last ends. No operation begins or ends within a segment.
    bounds: Vec<u64>,
    /// What has to have its place, or may.
    operations: Vec<Placed<'a>>,
    /// Per segment: operations that change it, and those that look at it.
    changes: Vec<Vec<usize>>,
    looks: Vec<Vec<usize>>,
}

/// An operation on a chunk.
struct Placed<'a> {
    event: &'a Event<'a>,
    part: ChunkPart<'a>,
    /// The segments that it touches.
    touched: std::ops::Range<usize>,
    /// Of a read, per touched segment: the tags that its bytes may have come from.
    sources: Vec<Vec<Tag>>,
    /// Other operations that stand for the same copy, which did not happen if this one did.
    rivals: Vec<usize>,
}

/// Whether a truncate to this size or a smaller one was under way during a look that found no data from there on: that
/// may have been told by the size, which changes before all chunks are cut, and then says nothing of them.
fn may_have_ended_at(file: &FileHistory, offset: u64, look: &Event) -> bool {
    let cuts = |event: &&Event| matches!(event.what, What::Truncate { size } if size <= offset);
    file.events.iter().filter(cuts).any(|cut| cut.start < look.end && look.start < cut.end)
}

fn split<'a>(file: &'a FileHistory<'a>) -> Vec<ChunkHistory<'a>> {
    let chunk_size = u64::from(file.chunk_size);
    let mut chunks: BTreeMap<u64, ChunkHistory<'a>> = BTreeMap::new();
    let mut add = |index: u64, event: &'a Event<'a>, part: ChunkPart<'a>| {
        let chunk = chunks.entry(index).or_insert_with(|| ChunkHistory { index, parts: Vec::new() });
        chunk.parts.push((event, part));
    };
    for event in &file.events {
        match &event.what {
            What::Write { offset, size, tag } => {
                for (index, from, to) in pieces(chunk_size, *offset, *size) {
                    add(index, event, ChunkPart::Write { from, to, tag: *tag });
                }
            }
            What::Copy { offset, size, tag, origins, edges, steps } => {
                for (from, to) in step_ranges(*offset, *size, steps) {
                    let is_short = |end: &u64| event.end == NEVER && from < *end && *end < to;
                    for to in source_ends(origins, edges).into_iter().filter(is_short).chain([to]) {
                        for (index, from, to) in pieces(chunk_size, from, to - from) {
                            add(index, event, ChunkPart::Copy { from, to, tag: *tag, origins, edges });
                        }
                    }
                }
            }
            What::Read { offset, bytes, .. } => {
                let mut rest: &[u8] = bytes;
                for (index, from, to) in pieces(chunk_size, *offset, bytes.len() as u64) {
                    let (piece, tail) = rest.split_at((to - from) as usize);
                    add(index, event, ChunkPart::Read { from, bytes: piece });
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
                What::Truncate { size } => within(size, u64::MAX).map(|(from, _)| ChunkPart::Cut { from }),
                What::Zero { offset, size } => {
                    within(offset, offset + size).map(|(from, to)| ChunkPart::Zero { from, to })
                }
                What::HoleSeen { from, to: u64::MAX } if may_have_ended_at(file, from, event) => None,
                What::HoleSeen { from, to } => within(from, to).map(|(from, to)| ChunkPart::Hole { from, to }),
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

/// Places in the target of a copy where its source may have ended.
fn source_ends(origins: &[Origin], edges: &[u64]) -> BTreeSet<u64> {
    let end = |origin: &Origin| (origin.offset + origin.size).checked_add_signed(-origin.shift);
    origins.iter().filter_map(end).chain(edges.iter().copied()).collect()
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
    fn new(history: ChunkHistory<'a>, chunk_size: u64) -> Result<Chunk<'a>, Finding> {
        let bounds = history.bounds(chunk_size);
        let position = |at: u64| bounds.partition_point(|bound| *bound < at);
        let place = |(event, part): (&'a Event<'a>, ChunkPart<'a>)| {
            let (from, to) = part.range(chunk_size);
            Placed { event, part, touched: position(from)..position(to), sources: Vec::new(), rivals: Vec::new() }
        };
        let operations: Vec<Placed> = history.parts.into_iter().map(place).collect();
        let segment_count = bounds.len() - 1;
        let mut chunk = Chunk { index: history.index, bounds, operations, changes: Vec::new(), looks: Vec::new() };
        for operation in 0..chunk.operations.len() {
            chunk.operations[operation].sources = chunk.sources_of(operation, chunk_size)?;
        }
        chunk.leave_out_idle(segment_count);
        chunk.note_segments(segment_count);
        Ok(chunk)
    }

    fn note_segments(&mut self, segment_count: usize) {
        (self.changes, self.looks) = (vec![Vec::new(); segment_count], vec![Vec::new(); segment_count]);
        for (number, operation) in self.operations.iter().enumerate() {
            let of_segment = if operation.written().is_some() { &mut self.changes } else { &mut self.looks };
            operation.touched.clone().for_each(|segment| of_segment[segment].push(number));
        }
    }

    /// Leaves out what may not have happened and explains nothing, and notes what can't have happened beside each
    /// other.
    fn leave_out_idle(&mut self, segment_count: usize) {
        self.note_segments(segment_count);
        let idle: Vec<bool> = (0..self.operations.len()).map(|number| self.is_idle(number)).collect();
        let mut idle = idle.into_iter();
        self.operations.retain(|_| !idle.next().unwrap_or(false));
        let mut copies: BTreeMap<(usize, u64), Vec<usize>> = BTreeMap::new();
        for (number, operation) in self.operations.iter().enumerate() {
            if let Some(copy) = operation.unsure_copy() {
                copies.entry(copy).or_default().push(number);
            }
        }
        for numbers in copies.values() {
            for number in numbers {
                self.operations[*number].rivals = numbers.iter().copied().filter(|other| other != number).collect();
            }
        }
    }

    /// Whether an operation may not have happened and explains nothing: no look may have seen it; or, of a copy that
    /// ends with its source, none saw anything else behind its end.
    fn is_idle(&self, number: usize) -> bool {
        let operation = &self.operations[number];
        let Some(tag) = operation.written().filter(|tag| operation.event.end == NEVER && *tag != 0) else {
            return false;
        };
        let sees = |segment: usize| self.looks[segment].iter().any(|look| self.operations[*look].may_see(segment, tag));
        let sees_other =
            |segment: usize| self.looks[segment].iter().any(|look| !self.operations[*look].may_see(segment, tag));
        let copy = operation.unsure_copy();
        let longer = self.operations.iter().filter(|other| copy.is_some() && other.unsure_copy() == copy);
        let end = operation.touched.end;
        let next = longer.map(|other| other.touched.end).filter(|other| *other > end).min();
        !operation.touched.clone().any(sees) || next.is_some_and(|next| !(end..next).any(sees_other))
    }

    fn sources_of(&self, operation: usize, chunk_size: u64) -> Result<Vec<Vec<Tag>>, Finding> {
        let Placed { event, part: ChunkPart::Read { from, bytes }, touched, .. } = &self.operations[operation] else {
            return Ok(Vec::new());
        };
        let mut sources = Vec::new();
        for segment in touched.clone() {
            let (start, end) = (self.bounds[segment], self.bounds[segment + 1]);
            let piece = &bytes[(start - from) as usize..(end - from) as usize];
            let place = self.index * chunk_size + start;
            let mut tags = BTreeSet::new();
            if pattern::matches(0, place, piece) {
                tags.insert(0);
            }
            for writer in self.operations.iter().filter(|writer| writer.touched.contains(&segment)) {
                let explains = match &writer.part {
                    ChunkPart::Write { tag, .. } => pattern::matches(*tag, place, piece).then_some(*tag),
                    ChunkPart::Copy { tag, origins, .. } => is_copied(origins, place, piece).then_some(*tag),
                    _ => None,
                };
                tags.extend(explains);
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
        for Placed { event: writer, part, .. } in &self.operations {
            if let ChunkPart::Write { tag, .. } = part {
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

impl ChunkPart<'_> {
    fn range(&self, chunk_size: u64) -> (u64, u64) {
        match self {
            ChunkPart::Write { from, to, .. } => (*from, *to),
            ChunkPart::Copy { from, to, .. } | ChunkPart::Zero { from, to } | ChunkPart::Hole { from, to } => {
                (*from, *to)
            }
            ChunkPart::Cut { from } => (*from, chunk_size),
            ChunkPart::Read { from, bytes } => (*from, from + bytes.len() as u64),
        }
    }
}

impl ChunkHistory<'_> {
    fn bounds(&self, chunk_size: u64) -> Vec<u64> {
        let mut bounds = BTreeSet::from([0, chunk_size]);
        for (_, part) in &self.parts {
            let (from, to) = part.range(chunk_size);
            bounds.insert(from);
            bounds.insert(to);
            if let ChunkPart::Copy { origins, edges, .. } = part {
                let ends =
                    |origin: &Origin| [origin.offset, origin.offset + origin.size].map(|end| (end, origin.shift));
                let writes = origins.iter().flat_map(ends).filter_map(|(end, shift)| end.checked_add_signed(-shift));
                let places = writes.chain(edges.iter().copied());
                let within = places.filter_map(|place| place.checked_sub(self.index * chunk_size));
                bounds.extend(within.filter(|place| from < *place && *place < to));
            }
        }
        bounds.into_iter().collect()
    }
}

impl Placed<'_> {
    /// What it leaves in its segments; nothing when it looks.
    fn written(&self) -> Option<Tag> {
        match &self.part {
            ChunkPart::Write { tag, .. } | ChunkPart::Copy { tag, .. } => Some(*tag),
            ChunkPart::Cut { .. } | ChunkPart::Zero { .. } => Some(0),
            ChunkPart::Hole { .. } | ChunkPart::Read { .. } => None,
        }
    }

    /// Whether a look may have seen this in a segment that it touches.
    fn may_see(&self, segment: usize, tag: Tag) -> bool {
        match self.part {
            ChunkPart::Read { .. } => self.sources[segment - self.touched.start].contains(&tag),
            _ => tag == 0,
        }
    }

    /// The operation and the place, where it is not known how far a copy went.
    fn unsure_copy(&self) -> Option<(usize, u64)> {
        match self.part {
            ChunkPart::Copy { from, .. } if self.event.end == NEVER => Some((self.event.number, from)),
            _ => None,
        }
    }
}

impl Chunk<'_> {
    /// Whether something that a look accepts can come to be in a segment as the last before that look.
    fn has_hope(&self, segment: usize, look: usize, held: Tag, done: &Done, firm: Moment) -> bool {
        let look = &self.operations[look];
        let left = || self.changes[segment].iter().filter(|change| !done.contains(**change));
        let left = || left().map(|change| &self.operations[*change]);
        // What ended before the look began is placed before it, the latest beginner not before all others.
        let before = left().filter(|change| change.event.end < look.event.start.min(firm));
        let latest = before.map(|change| change.event.start).max();
        let can_be_last = |change: &Placed| {
            change.event.start < look.event.end && latest.is_none_or(|latest| change.event.end >= latest)
        };
        let accepts = |tag: Option<Tag>| tag.is_some_and(|tag| look.may_see(segment, tag));
        latest.is_none() && accepts(Some(held)) || left().any(|change| can_be_last(change) && accepts(change.written()))
    }
}

impl Object for Chunk<'_> {
    type State = Segments;

    fn initial(&self) -> Segments {
        vec![0; self.bounds.len() - 1]
    }

    fn is_look(&self, operation: usize) -> bool {
        self.operations[operation].written().is_none()
    }

    fn hopeless_look(&self, state: &Segments, placed: Option<usize>, done: &Done, horizon: Horizon) -> Option<usize> {
        let segments = placed.map_or(0..state.len(), |placed| self.operations[placed].touched.clone());
        let looks = |segment: usize| self.looks[segment].iter().map(move |look| (segment, *look));
        let to_come = segments.flat_map(looks).filter(|(_, look)| !done.contains(*look));
        let mut to_come = to_come.filter(|(_, look)| self.operations[*look].event.end < horizon.until);
        to_come
            .find(|(segment, look)| !self.has_hope(*segment, *look, state[*segment], done, horizon.firm))
            .map(|(_, look)| look)
    }

    fn apply(&self, state: &Segments, number: usize, done: &Done) -> Option<Segments> {
        let operation = &self.operations[number];
        let Some(tag) = operation.written() else {
            let is_true = operation.touched.clone().all(|segment| operation.may_see(segment, state[segment]));
            return is_true.then(|| state.clone());
        };
        if operation.rivals.iter().any(|rival| done.contains(*rival)) {
            return None;
        }
        let mut after = state.clone();
        after[operation.touched.clone()].fill(tag);
        let changed = operation.event.end != NEVER || after != *state;
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
        let index = history.index;
        let about = |words: &str| format!("file {}, chunk {index}: {words}", file.id);
        let chunk = match Chunk::new(history, u64::from(file.chunk_size)) {
            Ok(chunk) => chunk,
            Err(finding) => {
                findings.push(Finding::new(about(&finding.words), finding.operations));
                continue;
            }
        };
        let events = || chunk.operations.iter().map(|operation| operation.event);
        let spans: Vec<Span> = events().map(|event| Span { start: event.start, end: event.end }).collect();
        let plain = LayoutWish::of_chunk_size(file.chunk_size);
        let wish = LayoutWish { width: losses.stripes.0, run: losses.stripes.1, ..plain };
        let wish = if file.id.is_from_behind() { plain } else { wish };
        let layout = losses.cluster.layout_for(file.id.home(), &wish);
        let server = losses.cluster.chunk_server(file.id, &layout, index);
        match losses::check(&chunk, &spans, &losses.setbacks(server, Some(file.id))) {
            Verdict::Linearizable => {}
            Verdict::Impossible(missing) => {
                let words = about("no order of the writes explains what was read");
                let mut concerned: Vec<usize> =
                    missing.iter().map(|operation| chunk.operations[*operation].event.number).collect();
                concerned.dedup();
                findings.push(Finding::new(words + &chunk.explain(&missing), concerned));
            }
            Verdict::Undecided(_) => findings.push(Finding::new(about("history is too tangled to decide"), Vec::new())),
        }
    }
    findings
}

impl Chunk<'_> {
    /// What the reads among the operations saw.
    fn explain(&self, operations: &[usize]) -> String {
        let mut words = String::new();
        for operation in operations {
            let Placed { part, touched, sources, .. } = &self.operations[*operation];
            if let ChunkPart::Read { .. } = part {
                let mut tags: Vec<String> = Vec::new();
                for (segment, sources) in touched.clone().zip(sources) {
                    tags.push(format!("{}..{} {sources:?}", self.bounds[segment], self.bounds[segment + 1]));
                }
                words += &format!("; a read saw tags {}", tags.join(", "));
            }
        }
        words
    }
}

#[cfg(test)]
mod tests;
