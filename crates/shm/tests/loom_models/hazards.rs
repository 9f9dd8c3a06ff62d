//! Hazard pointers: a client holds what a server is about to give up.

use crate::{found, race};
use loom::cell::UnsafeCell;
use shm::hazard_pointers::{Hazards, before_look};
use shm::mapping::Mapped;
use shm::sync::{AtomicU64, Ordering};
use std::rc::Rc;

const LIFE: u64 = 3;
const FILE: u64 = 7;

/// The words of a client that its server looks at, and what leads to a file: 1 while it is there.
fn scene() -> (Mapped<Hazards>, Rc<AtomicU64>) {
    let hazards = Mapped::<Hazards>::alone();
    hazards.begin(LIFE);
    (hazards, Rc::new(AtomicU64::new(1)))
}

/// A server that takes away what leads to the file. Whether the file is held then.
fn take_away(hazards: &Hazards, cell: &AtomicU64) -> bool {
    cell.store(0, Ordering::Relaxed);
    before_look();
    hazards.has(FILE)
}

/// What a client holds is found, or it sees that it has nothing.
pub fn hold_or_take_away() {
    let (hazards, cell) = scene();
    let (held, look) = (hazards.clone(), cell.clone());
    let client = move || {
        held.hold(0, FILE, 1);
        held.stands(LIFE) && look.load(Ordering::Relaxed) == 1
    };
    let (is_held, is_found) = race(client, move || take_away(&hazards, &cell));
    found!(!is_held || is_found, "it was given up while it is held");
}

/// A server that has found something held is told of its end, or the client was through before anything has happened.
pub fn release_or_take_away() {
    let (hazards, cell) = scene();
    hazards.hold(0, FILE, 1);
    let (held, look) = (hazards.clone(), cell.clone());
    let client = move || {
        held.let_go(0, 0);
        !held.is_looked_at() || look.load(Ordering::Relaxed) == 0
    };
    let (is_told, is_found) = race(client, move || take_away(&hazards, &cell));
    found!(!is_found || is_told, "it is kept, and nobody tells that it is free");
}

/// What a client holds when its server looks no more is taken over, or the client sees that it has nothing.
pub fn hold_or_end() {
    let (hazards, _) = scene();
    let held = hazards.clone();
    let client = move || {
        held.hold(0, FILE, 1);
        held.stands(LIFE)
    };
    let (is_held, taken_over) = race(client, move || hazards.end());
    found!(!is_held || taken_over == [FILE], "nobody keeps it");
}

/// What was taken over is let go of by a message.
pub fn release_or_end() {
    let (hazards, _) = scene();
    hazards.hold(0, FILE, 1);
    let held = hazards.clone();
    let client = move || {
        held.let_go(0, 0);
        !held.is_looked_at()
    };
    let (is_told, taken_over) = race(client, move || hazards.end());
    found!(taken_over.is_empty() || is_told, "it is kept for ever");
}

/// A client that finds its server look at its words sees what that has taken away before.
pub fn begin_or_hold() {
    let (hazards, cell) = (Mapped::<Hazards>::alone(), Rc::new(AtomicU64::new(1)));
    let (held, look) = (hazards.clone(), cell.clone());
    let client = move || {
        held.hold(0, FILE, 1);
        held.stands(LIFE) && look.load(Ordering::Relaxed) == 1
    };
    let server = move || {
        // Nobody's words are looked at yet.
        cell.store(0, Ordering::Relaxed);
        hazards.begin(LIFE);
    };
    let (is_held, ()) = race(client, server);
    found!(!is_held, "it was given up before");
}

/// A client that reads something while it holds it, and what it does afterwards; a server that gives it up when it is
/// held no more.
fn read_under(hazards: Mapped<Hazards>, afterwards: impl FnOnce(&Hazards) + 'static) {
    let thing = Rc::new(UnsafeCell::new(0));
    let (held, read) = (hazards.clone(), thing.clone());
    let client = move || {
        read.with(|_| ());
        afterwards(&held);
    };
    let server = move || {
        before_look();
        if !hazards.has(FILE) {
            thing.with_mut(|_| ());
        }
    };
    race(client, server);
}

/// What a client has read under an id it has read before the id is gone, while it holds another one.
pub fn reads_under_one_of_two() {
    let (hazards, _) = scene();
    hazards.hold(0, FILE, 1);
    hazards.hold(1, FILE + 1, 2);
    read_under(hazards, |hazards| hazards.let_go(0, 1));
}

/// The same of the last id.
pub fn reads_under_the_last() {
    let (hazards, _) = scene();
    hazards.hold(0, FILE, 1);
    read_under(hazards, |hazards| hazards.let_go(0, 0));
}

/// The same where another id takes its place.
pub fn reads_before_another() {
    let (hazards, _) = scene();
    hazards.hold(0, FILE, 1);
    read_under(hazards, |hazards| {
        hazards.let_go(0, 0);
        hazards.hold(0, FILE + 1, 1);
    });
}
