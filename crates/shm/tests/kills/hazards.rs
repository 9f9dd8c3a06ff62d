//! Hazard pointers whose client is killed.

use crate::{MOMENTS_MAX, MOST_ROUNDS, Notes, Random, WORK_MAX, fork, map, memory_file, shared};
use shm::cells::{CellPlace, CellRow, SequenceCell};
use shm::hazard_pointers::{Hazards, before_look};
use shm::mapping::{Mapped, Mapping};
use std::os::fd::OwnedFd;
use std::rc::Rc;

const FILE_COUNT: u64 = 4;
const CELLS_OFFSET: usize = 4096;
const NOTES_OFFSET: usize = 8192;
/// Notes: how often something was held, what is held for certain, and the last one of each file that was given up.
const HELD: usize = 0;
const HOLDS: usize = 1;
const GIVEN_UP: usize = 8;

struct Parts {
    hazards: Mapped<Hazards>,
    notes: Mapped<Notes>,
    cells: CellRow,
    _mapping: Rc<Mapping>,
}

impl Parts {
    fn of(file: &OwnedFd) -> Parts {
        let mapping = map(file);
        // SAFETY: the cells lie between hazard pointers and notes, and the mapping is held with them.
        let cells = unsafe { CellRow::at(mapping.base().wrapping_add(CELLS_OFFSET), 64 * FILE_COUNT) };
        Parts { hazards: shared(&mapping, 0), notes: shared(&mapping, NOTES_OFFSET), cells, _mapping: mapping }
    }

    fn cell(&self, file: u64) -> &SequenceCell {
        self.cells.cell(CellPlace::in_row(0, 64, file)).expect("it lies there")
    }
}

/// Holds files for ever, the ids of which grow; two at a time, one of them only for the sake of the other one's count.
fn hold(file: &OwnedFd, life: u64) {
    let parts = Parts::of(file);
    let mut random = Random(life + 1);
    loop {
        let (index, place) = (random.below(FILE_COUNT), random.below(2) as usize);
        let mut words = [0; 1];
        let Some(version) = parts.cell(index).read(&mut words) else { continue };
        let id = words[0];
        parts.hazards.hold(place, id, 1);
        if parts.hazards.stands(life) && parts.cell(index).is_same(version) {
            parts.notes.set(HOLDS, id);
            for _ in 0..random.below(50) {
                assert!(parts.notes.get(GIVEN_UP + index as usize) < id, "{id} is held and was given up");
            }
            parts.notes.set(HOLDS, 0);
            parts.notes.add(HELD);
        }
        parts.hazards.let_go(place, 0);
        assert!(parts.hazards.is_looked_at());
    }
}

/// Gives a file up, unless it is held, and makes another one in its place.
fn replace(parts: &Parts, ids: &mut [u64], index: u64) -> bool {
    let id = ids[index as usize];
    parts.cell(index).clear();
    before_look();
    let is_held = parts.hazards.has(id);
    if !is_held {
        parts.notes.set(GIVEN_UP + index as usize, id);
        ids[index as usize] += FILE_COUNT;
    }
    parts.cell(index).put(&[ids[index as usize]]);
    is_held
}

pub fn holders_are_killed(rounds: u64) {
    let file = memory_file(NOTES_OFFSET as u64 + 4096);
    let parts = Parts::of(&file);
    let mut ids: Vec<u64> = (1..=FILE_COUNT).collect();
    let (mut random, mut kept, mut taken_over) = (Random(4), 0u64, 0);
    let mut life = 0;
    while life < rounds || (kept == 0 || taken_over == 0) && life < MOST_ROUNDS * rounds {
        life += 1;
        parts.hazards.begin(life);
        let client = fork(|| hold(&file, life));
        let goal = parts.notes.get(HELD) + 1 + random.below(WORK_MAX / 4);
        client.runs_until(&parts.notes, HELD, goal, || {
            kept += u64::from(replace(&parts, &mut ids, random.below(FILE_COUNT)));
        });
        client.kill_after(random.below(MOMENTS_MAX));
        // What it had for certain is taken over; other connections have other words.
        let (held, found) = (parts.notes.get(HOLDS), parts.hazards.end());
        assert!(held == 0 || found.contains(&held), "{held} was held, and {found:?} found");
        taken_over += found.len();
        parts.notes.set(HOLDS, 0);
        (0..2).for_each(|place| parts.hazards.let_go(place, 0));
    }
    assert!(kept > 0 && taken_over > 0, "files were found held ({kept} times, {taken_over} of killed clients)");
    println!("hazard pointers: {} held, {kept} found so, {taken_over} taken over", parts.notes.get(HELD));
}
