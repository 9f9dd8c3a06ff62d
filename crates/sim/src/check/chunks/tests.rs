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
    let (history, cluster) = (History::default(), cluster_of(1));
    check(&FileHistory { id: FileId(1), chunk_size: SIZE, events: events(whats) }, &Losses::new(&history, &cluster))
        .len()
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

/// Goal: who finds no data while the file is cut may go by its new size, and by nothing else.
#[test]
fn no_data_during_a_truncate() {
    let whole = pattern(1, 0, 100);
    let faults = |cut: (u64, u64, u64), look: (u64, u64)| {
        let none = What::HoleSeen { from: 50, to: u64::MAX };
        let cut = (cut.0, cut.1, What::Truncate { size: cut.2 });
        run(vec![(1, 2, write(0, 100, 1)), cut, (look.0, look.1, none), (7, 8, read(0, &whole[..100]))])
    };
    assert_eq!(faults((3, 9, 40), (5, 6)), 0);
    assert_eq!(faults((3, NEVER, 50), (5, 6)), 0);
    assert_eq!(faults((3, 9, 60), (5, 6)), 1, "data is left behind the new size's end");
    assert_eq!(faults((9, 10, 40), (5, 6)), 1, "it was cut later");
    assert_eq!(faults((3, 4, 40), (5, 6)), 1, "it was cut before, and read whole after it");
}

/// A copy of 300 bytes to offset 100, of which the source had the first 200 at some time.
fn short_copy() -> What<'static> {
    let origin = Origin { tag: 1, offset: 0, size: 200, shift: -100 };
    What::Copy { offset: 100, size: 300, tag: 2, origins: [origin].into(), edges: [].into(), steps: [100].into() }
}

fn events(whats: Vec<(u64, u64, What)>) -> Vec<Event> {
    let event = |(number, (start, end, what))| Event { number, start, end, what };
    whats.into_iter().enumerate().map(event).collect()
}

/// Goal: a copy of unknown outcome may have ended where its source did, and nowhere else; one that is known has
/// not.
#[test]
fn copies_that_end_with_their_source() {
    let seen = |copied: usize| {
        let mut bytes = pattern(3, 0, 500);
        pattern::fill(1, 0, &mut bytes[100..100 + copied]);
        bytes
    };
    let history =
        |end: u64, bytes: &[u8]| run(vec![(1, 2, write(0, 500, 3)), (3, end, short_copy()), (5, 6, read(0, bytes))]);
    assert_eq!(history(NEVER, &seen(0)), 0);
    assert_eq!(history(NEVER, &seen(200)), 0);
    assert_eq!(history(NEVER, &seen(120)), 1);
    assert_eq!(history(4, &seen(200)), 1);
    let whole = [seen(200), seen(0)].map(|bytes| (5, 6, bytes));
    let twice = whole.iter().map(|(start, end, bytes)| (*start, *end, read(0, bytes)));
    let back: Vec<_> = [(1, 2, write(0, 500, 3)), (3, NEVER, short_copy())].into_iter().chain(twice).collect();
    assert_eq!(run(back.clone()), 0, "the reads may be in either order");
    let [first, second, third, mut last] = <[_; 4]>::try_from(back).expect("four");
    (last.0, last.1) = (7, 8);
    assert_eq!(run(vec![first, second, third, last]), 1, "what was copied is not undone");
}

/// Goal: two copies in hundreds of steps at the same time are decided, whichever won at each place, and the mixture
/// within one step is found.
#[test]
fn copies_in_many_steps() {
    const STEP: u64 = 64;
    let copy = |tag: Tag| What::Copy {
        offset: 0,
        size: 64 * STEP,
        tag,
        origins: [Origin { tag, offset: 0, size: 64 * STEP, shift: 0 }].into(),
        edges: [].into(),
        steps: (0..64).map(|step| step * STEP).collect(),
    };
    let mut random = crate::random::Random::new(3);
    let mut bytes = vec![0; 64 * STEP as usize];
    for (step, part) in bytes.chunks_mut(STEP as usize).enumerate() {
        pattern::fill(1 + random.below(2) as Tag, step as u64 * STEP, part);
    }
    let history = |bytes: &[u8]| {
        run(vec![(1, 10, copy(1)), (2, 9, copy(2)), (3, 8, write(0, 4096, 3)), (11, 12, read(0, bytes))])
    };
    assert_eq!(history(&bytes), 0);
    let tag = if pattern::matches(1, 0, &bytes[..8]) { 2 } else { 1 };
    pattern::fill(tag, 0, &mut bytes[..32]);
    assert_eq!(history(&bytes), 1);
}

/// Goal: what was read may be lost with the power of its server until that answers again, and not later.
#[test]
fn reads_while_a_server_is_down() {
    let (written, zeros) = (pattern(1, 0, 100), vec![0; 100]);
    let found = |is_late: bool| {
        let mut history = History::default();
        let tick = |history: &mut History| {
            let index = history.start(0, crate::history::Action::SynchroniseAll, 0);
            history.finish(index, crate::history::Outcome::Failed(wire::Status::TimedOut), 0);
            (history.operations[index].start, history.operations[index].end)
        };
        let mut whats = vec![(tick(&mut history), write(0, 100, 1))];
        history.note_loss(0, 0);
        if is_late {
            history.note_return(0);
        }
        whats.push((tick(&mut history), read(0, &written)));
        if !is_late {
            history.note_return(0);
        }
        whats.push((tick(&mut history), read(0, &zeros)));
        let events = events(whats.into_iter().map(|((start, end), what)| (start, end, what)).collect());
        let file = FileHistory { id: FileId(1), chunk_size: SIZE, events };
        check(&file, &Losses::new(&history, &cluster_of(1))).len()
    };
    assert_eq!((found(false), found(true)), (0, 1));
}

/// A chunk whose looks are only judged where they have their places.
struct Blind<'a>(&'a Chunk<'a>);

impl Object for Blind<'_> {
    type State = Segments;

    fn initial(&self) -> Segments {
        self.0.initial()
    }

    fn is_look(&self, operation: usize) -> bool {
        self.0.is_look(operation)
    }

    fn apply(&self, state: &Segments, operation: usize, done: &Done) -> Option<Segments> {
        self.0.apply(state, operation, done)
    }
}

fn random_history<'a>(random: &mut crate::random::Random, reads: &'a mut Vec<Vec<u8>>) -> Vec<(u64, u64, What<'a>)> {
    const PART: u64 = 8;
    let mut whats = Vec::new();
    for tag in 1..random.between(4, 9) as Tag {
        let (start, from) = (random.below(24), random.below(3));
        let end = if random.percent(25) { NEVER } else { start + 1 + random.below(12) };
        let (offset, size) = (from * PART, random.between(1, 4 - from) * PART);
        let what = match random.below(4) {
            0 => What::Truncate { size: offset },
            1 => What::Zero { offset, size },
            _ => write(offset, size, tag),
        };
        whats.push((start, end, what));
    }
    for _ in 0..random.between(1, 4) {
        let mut bytes = vec![0; 3 * PART as usize];
        for (position, part) in bytes.chunks_mut(PART as usize).enumerate() {
            let wrote: Vec<Tag> = whats
                .iter()
                .filter_map(|(_, _, what)| match what {
                    What::Write { offset, size, tag } => {
                        (*offset..offset + size).contains(&(position as u64 * PART)).then_some(*tag)
                    }
                    _ => Some(0),
                })
                .collect();
            let tag = if wrote.is_empty() { 0 } else { wrote[random.below(wrote.len() as u64) as usize] };
            pattern::fill(tag, position as u64 * PART, part);
            if tag == 0 {
                part.fill(0);
            }
        }
        reads.push(bytes);
    }
    for bytes in reads.iter() {
        let start = random.below(30);
        whats.push((start, start + 1 + random.below(6), read(0, bytes)));
    }
    // Moments are each one's own.
    for (number, (start, end, _)) in whats.iter_mut().enumerate() {
        *start = *start * 64 + number as u64;
        *end = if *end == NEVER { NEVER } else { *end * 64 + 32 + number as u64 };
    }
    whats
}

/// Goal: to turn back early changes no verdict, with and without a loss of power.
/// Method: small random histories, right and wrong ones, against a search that does not look ahead.
#[test]
fn looks_ahead_without_a_difference() {
    let mut random = crate::random::Random::new(11);
    let mut right = [0; 2];
    for round in 0..4_000 {
        let mut reads = Vec::new();
        let events = events(random_history(&mut random, &mut reads));
        let file = FileHistory { id: FileId(1), chunk_size: SIZE, events };
        let Some(history) = split(&file).into_iter().next() else { continue };
        let Ok(chunk) = Chunk::new(history, u64::from(SIZE)) else { continue };
        let spans: Vec<Span> = chunk
            .operations
            .iter()
            .map(|operation| Span { start: operation.event.start, end: operation.event.end })
            .collect();
        let lost = losses::setback(random.below(1_200), random.below(1_200));
        for (index, setbacks) in [&[][..], &[lost][..]].into_iter().enumerate() {
            let told = losses::check(&chunk, &spans, setbacks);
            let blind = losses::check(&Blind(&chunk), &spans, setbacks);
            assert_eq!(
                told == Verdict::Linearizable,
                blind == Verdict::Linearizable,
                "round {round}: {told:?}, {blind:?}"
            );
            assert!(!matches!((&told, &blind), (Verdict::Undecided(_), _) | (_, Verdict::Undecided(_))));
            right[index] += usize::from(told == Verdict::Linearizable);
        }
    }
    assert!(right.iter().all(|right| (400..3_600).contains(right)), "{right:?} are right: little is tested");
}
