//! Cells and stamps: one writes, another one reads without being noticed.

use crate::{found, race};
use shm::cells::SequenceCell;
use shm::mapping::Mapped;
use shm::stamps::Stamps;
use shm::sync::{AtomicU64, Ordering};
use std::rc::Rc;

fn cell() -> Rc<SequenceCell> {
    let cell: Rc<SequenceCell> = Rc::new(SequenceCell::<[AtomicU64; 2]>::new());
    cell.put(&[1, 1]);
    cell
}

/// Whoever reads a cell has the words of its version.
pub fn words_of_a_cell() {
    let written = cell();
    let read = written.clone();
    let reader = move || {
        let mut words = [0; 2];
        if let Some(version) = read.read(&mut words) {
            found!(words == [version / 2; 2], "version {version} with {words:?}");
        }
    };
    race(move || written.put(&[2, 2]), reader);
}

/// Whoever reads bytes that a cell leads to, and finds the cell as it was, has the bytes that it led to.
pub fn bytes_of_a_cell() {
    let (cell, bytes) = (cell(), Rc::new(AtomicU64::new(1)));
    let (read, copied) = (cell.clone(), bytes.clone());
    let writer = move || {
        cell.clear();
        bytes.store(2, Ordering::Relaxed);
    };
    let reader = move || {
        if let Some(version) = read.read(&mut [0; 2]) {
            let copied = copied.load(Ordering::Relaxed);
            found!(!read.is_same(version) || copied == 1, "bytes of another");
        }
    };
    race(writer, reader);
}

/// Whoever copies bytes and finds their stamp as it was has what they were.
pub fn stamped_bytes() {
    let (stamps, bytes) = (Mapped::<Stamps>::alone(), Rc::new(AtomicU64::new(1)));
    let told = stamps.begin();
    let (read, copied) = (stamps.clone(), bytes.clone());
    let writer = move || {
        stamps.stamp(0, 1, told + 1);
        bytes.store(2, Ordering::Relaxed);
    };
    let reader = move || {
        let copied = copied.load(Ordering::Relaxed);
        found!(!read.is_unchanged(0, 1, told) || copied == 1, "bytes that have changed");
    };
    race(writer, reader);
}
