//! Files that are only appended to: every acknowledged append is there once, whole, where its caller was told; one of
//! unknown outcome at most once; and no two share a byte.

use super::files::{Event, FileHistory, What};
use crate::history::Finding;
use crate::pattern::{self, Tag};

/// An append as the checker sees it. Its bytes are the pattern of its tag, from position 0 on.
struct Record {
    number: usize,
    start: u64,
    end: u64,
    offset: Option<u64>,
    size: u64,
    tag: Tag,
}

fn records(file: &FileHistory) -> Vec<Record> {
    let record = |event: &Event| match event.what {
        What::Append { offset, size, tag } => {
            Some(Record { number: event.number, start: event.start, end: event.end, offset, size, tag })
        }
        _ => None,
    };
    file.events.iter().filter_map(record).collect()
}

/// Checks a file that only appends ever changed.
pub fn check(file: &FileHistory) -> Vec<Finding> {
    let records = records(file);
    let mut findings = check_places(file, &records);
    for event in &file.events {
        if let What::Read { offset, bytes, .. } = event.what {
            findings.extend(check_read(file, &records, event, offset, bytes));
        }
    }
    findings
}

/// No two acknowledged appends share a byte, and later ones come later.
fn check_places(file: &FileHistory, records: &[Record]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut told: Vec<(u64, &Record)> =
        records.iter().filter_map(|record| record.offset.map(|offset| (offset, record))).collect();
    told.sort_by_key(|(offset, _)| *offset);
    for pair in told.windows(2) {
        let ((first_offset, first), (second_offset, second)) = (pair[0], pair[1]);
        let numbers = vec![first.number, second.number];
        if first_offset + first.size > second_offset {
            findings.push(Finding::new(format!("file {}: two appends share bytes", file.id), numbers));
        } else if second.end < first.start {
            findings
                .push(Finding::new(format!("file {}: a later append came before an earlier one", file.id), numbers));
        }
    }
    findings
}

fn check_read(file: &FileHistory, records: &[Record], read: &Event, offset: u64, bytes: &[u8]) -> Option<Finding> {
    let end = offset + bytes.len() as u64;
    let mut explained = vec![false; bytes.len()];
    for record in records {
        let Some(place) = record.offset else { continue };
        let (from, to) = (place.max(offset), (place + record.size).min(end));
        if from >= to {
            continue;
        }
        let range = (from - offset) as usize..(to - offset) as usize;
        let there = pattern::matches(record.tag, from - place, &bytes[range.clone()]);
        if !there && record.end < read.start {
            let words = format!("file {}: the append at {place} was acknowledged and is not there whole", file.id);
            return Some(Finding::new(words, vec![record.number, read.number]));
        }
        if there && record.start > read.end {
            let words = format!("file {}: the append at {place} was read before it began", file.id);
            return Some(Finding::new(words, vec![record.number, read.number]));
        }
        explain_part(&mut explained, bytes, record, place, offset, file.chunk_size, range);
    }
    explain_unknown(file, records, offset, bytes, &mut explained);
    let odd = (0..bytes.len()).find(|at| !explained[*at])?;
    let what = if bytes[odd] == 0 { "is a gap between appends" } else { "was appended by nobody, or twice" };
    let words = format!("file {}: byte {} {what}", file.id, offset + odd as u64);
    Some(Finding::new(words, vec![read.number]))
}

/// Marks what is there of a record at its place, chunk by chunk, for an append over two chunks is two steps.
fn explain_part(
    explained: &mut [bool],
    bytes: &[u8],
    record: &Record,
    place: u64,
    offset: u64,
    chunk_size: u32,
    range: std::ops::Range<usize>,
) {
    let mut from = range.start;
    while from < range.end {
        let position = offset + from as u64;
        let to_boundary = u64::from(chunk_size) - position % u64::from(chunk_size);
        let to = range.end.min(from + to_boundary as usize);
        if pattern::matches(record.tag, position - place, &bytes[from..to]) {
            explained[from..to].fill(true);
        }
        from = to;
    }
}

/// Finds the place of each record of unknown outcome, and marks it there, once.
fn explain_unknown(file: &FileHistory, records: &[Record], offset: u64, bytes: &[u8], explained: &mut [bool]) {
    let chunk_size = u64::from(file.chunk_size);
    let mut unknown: Vec<&Record> = records.iter().filter(|record| record.offset.is_none()).collect();
    loop {
        // The one that is seen best comes first: a part of a few bytes may look like another record by chance.
        let seen = unknown
            .iter()
            .enumerate()
            .map(|(index, record)| (seen(record, chunk_size, offset, bytes, explained), index));
        let Some(((size, place), index)) = seen.max() else { return };
        if size == 0 {
            return;
        }
        let record = unknown.remove(index);
        let from = place.max(offset) - offset;
        let to = (place + record.size).min(offset + bytes.len() as u64) - offset;
        let range = from as usize..to as usize;
        explain_part(explained, bytes, record, place, offset, file.chunk_size, range);
    }
}

/// Most bytes of the record that are seen in one chunk and not explained yet, and where the record is to begin for
/// that.
fn seen(record: &Record, chunk_size: u64, offset: u64, bytes: &[u8], explained: &[bool]) -> (u64, u64) {
    let mut best = (0, 0);
    for at in (0..bytes.len()).filter(|at| !explained[*at] && bytes[*at] != 0) {
        let position = offset + at as u64;
        // It starts here; or its part in the chunk before is missing, and this is what lies in the next one.
        let skips = if position.is_multiple_of(chunk_size) { 0..record.size.min(position + 1) } else { 0..1 };
        for skip in skips {
            let size = seen_size(record, skip, &bytes[at..], chunk_size - position % chunk_size);
            best = best.max((size, position - skip));
        }
    }
    best
}

/// How many bytes of the record are here from its byte `skip` on, to its end or the chunk's; 0 if not all of them.
fn seen_size(record: &Record, skip: u64, bytes: &[u8], to_boundary: u64) -> u64 {
    let size = (record.size - skip).min(to_boundary).min(bytes.len() as u64);
    let few = size.min(8) as usize;
    let there = pattern::matches(record.tag, skip, &bytes[..few])
        && pattern::matches(record.tag, skip, &bytes[..size as usize]);
    if there { size } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::NEVER;
    use wire::FileId;

    fn content(parts: &[(Tag, usize)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (tag, size) in parts {
            let mut part = vec![0; *size];
            if *tag != 0 {
                pattern::fill(*tag, 0, &mut part);
            }
            bytes.extend(part);
        }
        bytes
    }

    fn run(appends: &[(u64, u64, Option<u64>, u64, Tag)], bytes: &[u8]) -> usize {
        let mut events: Vec<Event> = appends
            .iter()
            .map(|(start, end, offset, size, tag)| Event {
                number: 0,
                start: *start,
                end: *end,
                what: What::Append { offset: *offset, size: *size, tag: *tag },
            })
            .collect();
        let what = What::Read { offset: 0, size: bytes.len() as u64, bytes };
        events.push(Event { number: 0, start: 100, end: 101, what });
        check(&FileHistory { id: FileId(1), chunk_size: 4096, events }).len()
    }

    /// Goal: lost, moved, overlapping and doubled appends are found; unknown ones may be there once.
    #[test]
    fn appends_are_there_once() {
        let two = [(1, 2, Some(0), 50, 1), (3, 4, Some(50), 60, 2)];
        assert_eq!(run(&two, &content(&[(1, 50), (2, 60)])), 0);
        assert_eq!(run(&two, &content(&[(1, 50), (0, 60)])), 1);
        assert_eq!(run(&two, &content(&[(1, 50), (2, 60), (2, 60)])), 1);
        assert_eq!(run(&[(1, 2, Some(0), 50, 1), (1, 4, Some(40), 60, 2)], &content(&[])), 1);
        assert_eq!(run(&[(1, 2, Some(50), 50, 1), (3, 4, Some(0), 50, 2)], &content(&[])), 1);
        let unknown = [(1, 2, Some(0), 50, 1), (3, NEVER, None, 60, 2), (5, NEVER, None, 70, 3)];
        assert_eq!(run(&unknown, &content(&[(1, 50)])), 0);
        assert_eq!(run(&unknown, &content(&[(1, 50), (0, 60)])), 1);
        assert_eq!(run(&unknown, &content(&[(1, 50), (2, 60), (3, 70)])), 0);
        assert_eq!(run(&unknown, &content(&[(1, 50), (3, 70), (2, 60)])), 0);
        assert_eq!(run(&unknown, &content(&[(1, 50), (2, 60), (0, 7), (2, 60)])), 1);
    }
}
