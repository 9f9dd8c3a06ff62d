//! The rings of a connection, and who sleeps.

use crate::{found, race};
use shm::mapping::Mapped;
use shm::segment::{RING_SIZE, Segment, SegmentArea, Side, WANTS_BYTES, WANTS_ROOM, before_last_look};
use std::io::{IoSlice, IoSliceMut};

fn pair() -> (Segment, Segment) {
    let area = Mapped::<SegmentArea>::alone();
    (Segment::of(area.clone(), Side::Caller), Segment::of(area, Side::Server))
}

fn send(segment: &Segment, byte: u8) -> bool {
    segment.send(&[IoSlice::new(&[byte])]).is_ok()
}

fn receive(segment: &Segment) -> Option<u8> {
    let mut byte = [0];
    segment.receive(&mut [IoSliceMut::new(&mut byte)]).ok().map(|_| byte[0])
}

/// Two bytes one after the other, as far as they are there.
fn receive_two(segment: &Segment) -> Vec<u8> {
    (0..2).filter_map(|_| receive(segment)).collect()
}

/// Bytes come out as they went in.
pub fn bytes() {
    let (caller, server) = pair();
    let sender = move || {
        send(&caller, 1);
        send(&caller, 2);
    };
    let ((), received) = race(sender, move || receive_two(&server));
    found!([1, 2].starts_with(&received), "{received:?}");
}

/// Nothing is overwritten that was not taken.
pub fn room() {
    let (caller, server) = pair();
    (1..=RING_SIZE as u8).for_each(|byte| found!(send(&caller, byte), "there is room for {byte}"));
    let (_, received) = race(move || send(&caller, RING_SIZE as u8 + 1), move || receive_two(&server));
    found!(received == [1, 2], "{received:?}");
}

/// Bytes come out as they went in where an empty ring begins at its beginning.
pub fn origin() {
    let (caller, server) = pair();
    found!(send(&caller, 1) && receive(&server) == Some(1), "the first byte");
    let sender = move || {
        send(&caller, 2);
        send(&caller, 3);
    };
    let ((), received) = race(sender, move || receive_two(&server));
    found!([2, 3].starts_with(&received), "{received:?}");
}

/// Who sleeps for something, having looked for it once more, is woken.
fn sleep_for(sleeper: Segment, wish: u32, is_there: fn(&Segment) -> bool, wakes: impl FnOnce() -> bool + 'static) {
    let sleeps = move || {
        sleeper.announce_sleep(wish);
        before_last_look();
        !is_there(&sleeper)
    };
    let (sleeps, is_woken) = race(sleeps, wakes);
    found!(!sleeps || is_woken, "it sleeps for ever");
}

pub fn sleep_for_bytes() {
    let (caller, server) = pair();
    sleep_for(server, WANTS_BYTES, Segment::has_bytes, move || {
        send(&caller, 1);
        caller.must_wake_peer(WANTS_BYTES)
    });
}

pub fn sleep_for_room() {
    let (caller, server) = pair();
    (1..=RING_SIZE as u8).for_each(|byte| found!(send(&caller, byte), "there is room for {byte}"));
    sleep_for(caller, WANTS_ROOM, Segment::has_room, move || {
        receive(&server);
        server.must_wake_peer(WANTS_ROOM)
    });
}

/// Of a sleeper that wakes by itself and a peer that wakes it exactly one knows that the other one has not.
pub fn one_wakes() {
    let (caller, server) = pair();
    server.announce_sleep(WANTS_BYTES);
    let (wakes, was_rung) = race(move || caller.must_wake_peer(WANTS_BYTES), move || server.end_sleep());
    found!(wakes == was_rung, "both or neither");
}
