//! Cells whose writer is killed.

use crate::{MOST_ROUNDS, Notes, Random, WORK_MAX, fork, map, memory_file, shared};
use shm::cells::{CellPlace, CellRow};
use shm::mapping::Mapping;
use shm::sync::Ordering;
use std::rc::Rc;

const CELL_COUNT: u64 = 4;
const CELL_SIZE: u64 = 128;
const WORD_COUNT: usize = 15;
const NOTES_OFFSET: usize = 4096;
const READER_COUNT: usize = 2;
/// Notes: changes that the writers have made, whether readers are to end, and what each of them has read.
const CHANGES: usize = 0;
const END: usize = 1;
const READS: usize = 2;

fn row(mapping: &Rc<Mapping>) -> CellRow {
    // SAFETY: the cells lie in front of the notes, and the mapping outlives what is done with them here.
    unsafe { CellRow::at(mapping.base(), CELL_COUNT * CELL_SIZE) }
}

fn place(index: u64) -> CellPlace {
    CellPlace::in_row(0, CELL_SIZE, index)
}

/// Changes cells for ever: what stands in one is the number of its change, in all words.
fn write(mapping: &Rc<Mapping>, notes: &Notes) {
    let row = row(mapping);
    row.empty(row.size());
    loop {
        let number = notes.add(CHANGES);
        let cell = row.cell(place(number % CELL_COUNT)).expect("it lies there");
        if number.is_multiple_of(7) { cell.clear() } else { cell.put(&[number; WORD_COUNT]) }
    }
}

/// Reads cells until the end. What it finds is of one change, and of a later one than what it found before.
fn read(mapping: &Rc<Mapping>, notes: &Notes, reader: usize) {
    let (row, mut last) = (row(mapping), [(0, 0); CELL_COUNT as usize]);
    while notes.get(END) == 0 {
        for index in 0..CELL_COUNT {
            let mut words = [0; WORD_COUNT];
            let Some(version) = row.cell(place(index)).and_then(|cell| cell.read(&mut words)) else { continue };
            let (last_version, last_word) = last[index as usize];
            assert!(words.iter().all(|word| *word == words[0]), "torn: {words:?}");
            assert_eq!(words[0] % CELL_COUNT, index);
            match version == last_version {
                true => assert_eq!(words[0], last_word, "another state of the same version"),
                false => assert!(version > last_version && words[0] > last_word, "an earlier state"),
            }
            last[index as usize] = (version, words[0]);
            notes.add(READS + reader);
        }
    }
}

pub fn writers_are_killed(rounds: u64) {
    let file = memory_file(2 * NOTES_OFFSET as u64);
    let mapping = map(&file);
    let notes = shared::<Notes>(&mapping, NOTES_OFFSET);
    let in_child = |work: &dyn Fn(&Rc<Mapping>, &Notes)| {
        let mapping = map(&file);
        work(&mapping, &shared::<Notes>(&mapping, NOTES_OFFSET));
    };
    let readers: Vec<_> =
        (0..READER_COUNT).map(|reader| fork(|| in_child(&|mapping, notes| read(mapping, notes, reader)))).collect();
    let (mut random, mut torn, mut round) = (Random(1), 0, 0);
    // Where a writer is when it is killed is the machine's matter: it goes on until one was within a change.
    while round < rounds || torn == 0 && round < MOST_ROUNDS * rounds {
        round += 1;
        let writer = fork(|| in_child(&|mapping, notes| write(mapping, notes)));
        writer.runs_until(&notes, CHANGES, notes.get(CHANGES) + 1 + random.below(WORK_MAX), || ());
        writer.kill();
        let is_odd = |index: u64| {
            let version = row(&mapping).word(place(index).offset).expect("it lies there").load(Ordering::Relaxed);
            !version.is_multiple_of(2)
        };
        torn += u64::from((0..CELL_COUNT).any(is_odd));
        assert!(readers.iter().all(|reader| reader.is_there()), "a reader has failed");
    }
    assert!(torn > 0, "no writer was killed within a change");
    // A last life, so that readers have something to read.
    let writer = fork(|| in_child(&|mapping, notes| write(mapping, notes)));
    for (index, reader) in readers.iter().enumerate() {
        writer.runs_until(&notes, READS + index, 1_000, || assert!(reader.is_there(), "a reader has failed"));
    }
    writer.kill();
    notes.set(END, 1);
    readers.into_iter().for_each(crate::Child::join);
    println!("cells: {torn} of {round} writers were killed within a change");
}
