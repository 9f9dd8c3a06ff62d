//! Goal: the protocols hold between threads of one process, where Miri and ThreadSanitizer can look on: they find
//! accesses that are not ordered, and Miri also what Rust's rules for references do not allow.
//! Method: both sides of each, some thousand times; under Miri, which is slow, a few times, and two not at all.

#![cfg(not(loom))]

use shm::cells::SequenceCell;
use shm::hazard_pointers::{Hazards, before_look};
use shm::mapping::{Layout, Mapped};
use shm::segment::{Segment, SegmentArea, Side};
use shm::stamps::Stamps;
use shm::submission::{
    NO_INTENT_LOCK, SEQUENCE_WORD, SLOT_COUNT, SUBMISSION_WORDS, SubmissionArea, SubmissionConsumer,
};
use shm::sync::{AtomicU64, Ordering};
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::thread::scope;

const ROUND_COUNT: u64 = if cfg!(miri) { 20 } else { 50_000 };

/// The same struct as another thread has it, within the scope of both.
fn again<T: Layout>(shared: &T) -> Mapped<T> {
    // SAFETY: whoever calls this ends before the struct goes.
    unsafe { Mapped::at(std::ptr::from_ref(shared).cast(), Rc::new(())) }
}

#[test]
fn cells() {
    let cell = SequenceCell::<[AtomicU64; 7]>::new();
    let cell: &SequenceCell = &cell;
    scope(|scope| {
        scope.spawn(|| {
            (1..=ROUND_COUNT).for_each(|number| {
                cell.put(&[number; 7]);
                if number.is_multiple_of(3) && number < ROUND_COUNT {
                    cell.clear();
                }
            });
        });
        let (mut last, mut words) = (0, [0; 7]);
        while words[0] < ROUND_COUNT {
            let Some(version) = cell.read(&mut words) else { continue };
            assert!(version >= last && words == [words[0]; 7], "version {version} after {last}: {words:?}");
            last = version;
        }
    });
}

#[test]
#[cfg_attr(miri, ignore = "Miri takes many minutes for a table of 65,536 atomics")]
fn stamps() {
    let stamps = Mapped::<Stamps>::alone();
    let first = 1;
    stamps.stamp(0, 1, first);
    let (stamps, bytes): (&Stamps, _) = (&stamps, AtomicU64::new(first));
    scope(|scope| {
        scope.spawn(|| {
            for number in first + 1..=first + ROUND_COUNT {
                stamps.stamp(0, 1, number);
                bytes.store(number, Ordering::Relaxed);
            }
        });
        let mut last = first;
        while last < first + ROUND_COUNT {
            let copied = bytes.load(Ordering::Relaxed);
            assert!(
                !stamps.is_unchanged(0, 1, last) || copied <= last,
                "{copied}, though nothing is stamped after {last}"
            );
            last = copied;
        }
    });
}

#[test]
fn hazard_pointers() {
    let hazards = Mapped::<Hazards>::alone();
    let given_up: Vec<AtomicBool> = (0..ROUND_COUNT).map(|_| AtomicBool::new(false)).collect();
    let (hazards, cell): (&Hazards, _) = (&hazards, AtomicU64::new(1));
    hazards.begin(1);
    scope(|scope| {
        scope.spawn(|| {
            while cell.load(Ordering::Relaxed) < ROUND_COUNT {
                let id = cell.load(Ordering::Relaxed).min(ROUND_COUNT - 1);
                hazards.hold(0, id, 1);
                if hazards.stands(1) && cell.load(Ordering::Relaxed) == id {
                    assert!(!given_up[id as usize].load(Ordering::Relaxed), "{id} is held and was given up");
                }
                hazards.let_go(0, 0);
                assert!(hazards.is_looked_at());
            }
        });
        for id in 1..ROUND_COUNT {
            cell.store(id + 1, Ordering::Relaxed);
            before_look();
            if !hazards.has(id) {
                given_up[id as usize].store(true, Ordering::Relaxed);
            }
        }
    });
    assert!(hazards.end().is_empty());
}

#[test]
#[cfg_attr(miri, ignore = "Miri takes many minutes for 32,768 locks")]
fn submissions() {
    let area = Mapped::<SubmissionArea>::alone();
    let server = SubmissionConsumer::new(area.clone());
    server.reset();
    server.open_queue(0, 7);
    server.allow(true);
    let area: &SubmissionArea = &area;
    let lock = |number: u64| [number as usize, NO_INTENT_LOCK];
    scope(|scope| {
        scope.spawn(|| {
            let mut number = 1;
            while number <= ROUND_COUNT {
                let (Some(queue), Some(at)) = (area.queue_of(7), area.next_number(0)) else { continue };
                if !area.is_allowed() || area.waiting_before(queue, at) >= SLOT_COUNT {
                    std::thread::yield_now();
                    continue;
                }
                let mut words = [number; SUBMISSION_WORDS];
                words[SEQUENCE_WORD] = 0;
                let Some(beginning) = area.begin(7, (queue, at), lock(number), &words, |_| false) else { continue };
                let may = area.may_go_on(&beginning) && (number % 2 == 0 || area.number_write(&beginning, 3));
                match may && area.commit(&beginning) {
                    true => number += 1,
                    false => area.abandon(&beginning),
                }
            }
        });
        let mut taken = 0;
        while taken < ROUND_COUNT {
            server.look();
            for _ in 0..2 {
                while let Some((queue, number)) = server.head(true) {
                    let words = server.submission(queue, number);
                    taken += 1;
                    assert!(words[..SEQUENCE_WORD].iter().all(|word| *word == taken), "{taken}: {words:?}");
                    server.taken(queue, lock(taken));
                }
                server.forbid();
            }
            while let Some((queue, number)) = server.head(true) {
                taken += 1;
                assert_eq!(server.submission(queue, number)[0], taken);
                server.taken(queue, lock(taken));
            }
            server.allow(true);
            std::thread::yield_now();
        }
    });
}

#[test]
fn rings() {
    let area = Mapped::<SegmentArea>::alone();
    let area: &SegmentArea = &area;
    scope(|scope| {
        scope.spawn(|| {
            let caller = Segment::of(again(area), Side::Caller);
            let mut sent = 0;
            while sent < ROUND_COUNT {
                let bytes: Vec<u8> = (sent..sent + 1 + sent % 300).map(|number| number as u8).collect();
                match caller.send(&[IoSlice::new(&bytes)]) {
                    Ok(count) => sent += count as u64,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
        });
        let server = Segment::of(again(area), Side::Server);
        let (mut received, mut place) = (0, [0; 777]);
        while received < ROUND_COUNT {
            match server.receive(&mut [IoSliceMut::new(&mut place)]) {
                Ok(count) => {
                    let right = (received..).zip(&place[..count]).all(|(number, byte)| number as u8 == *byte);
                    assert!(right, "bytes from {received} on");
                    received += count as u64;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            std::thread::yield_now();
        }
    });
}
