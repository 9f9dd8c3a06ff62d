//! Contents of small files that opens were told, with leases of them: what the first read after an open is answered
//! from where nothing is mapped to read by short circuit.
//!
//! The file's home changes neither contents nor size before a lease has ended there, and it ends here earlier: it
//! counts from before the open was sent. So a read that begins within it is answered as if it had asked at that moment.
//! Whoever changes the file waits for the end, this client too, and so none of its reads that follow finds a lease that
//! stands.

use crate::bytes::stripe::copy_to;
use reactor::Nanos;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::IoSliceMut;
use wire::FileId;
use wire::limits::LEASED_SIZE_MAX;
use wire::messages::LeasedContents;

/// Longest time that is believed, for the sake of memory alone.
const TIME_MAX: Nanos = 1_000_000_000;

struct LeasedFile {
    file: FileId,
    /// The first moment at which it counts no more.
    until: Nanos,
    bytes: Box<[u8]>,
}

/// See the module.
pub(crate) struct ReadLeases {
    count_max: usize,
    /// The oldest is first.
    files: RefCell<VecDeque<LeasedFile>>,
}

impl ReadLeases {
    /// At most so many, 1 at least.
    pub(crate) fn new(count_max: usize) -> ReadLeases {
        ReadLeases { count_max, files: RefCell::default() }
    }

    /// Takes in a lease that was asked for at a moment.
    pub(crate) fn note(&self, file: FileId, asked: Nanos, told: LeasedContents) {
        let mut held = self.files.borrow_mut();
        held.retain(|other| other.file != file);
        if held.len() >= self.count_max {
            held.pop_front();
        }
        if told.bytes.len() <= LEASED_SIZE_MAX {
            held.push_back(LeasedFile { file, until: asked + told.time.min(TIME_MAX), bytes: told.bytes });
        }
    }

    /// Lets go of what there is of a file.
    pub(crate) fn forget(&self, file: FileId) {
        self.files.borrow_mut().retain(|held| held.file != file);
    }

    /// Answers a read, if there is a lease of the file: bytes read, fewer than asked for only at the end.
    pub(crate) fn read(
        &self,
        file: FileId,
        places: &mut [IoSliceMut<'_>],
        offset: u64,
        size: usize,
        now: impl FnOnce() -> Nanos,
    ) -> Option<usize> {
        let mut held = self.files.borrow_mut();
        if held.is_empty() {
            return None;
        }
        let now = now();
        held.retain(|held| now < held.until);
        let bytes = &held.iter().find(|held| held.file == file)?.bytes;
        let start = usize::try_from(offset).map_or(bytes.len(), |start| start.min(bytes.len()));
        let count = size.min(bytes.len() - start);
        copy_to(places, &bytes[start..start + count]);
        Some(count)
    }
}

#[cfg(test)]
mod tests {
    const COUNT_MAX: usize = 32;

    use super::*;

    fn read(leases: &ReadLeases, file: u64, offset: u64, size: usize, now: Nanos) -> Option<Vec<u8>> {
        let (mut first, mut second) = (vec![0; size / 2], vec![0; size - size / 2]);
        let mut places = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        let count = leases.read(FileId(file), &mut places, offset, size, || now)?;
        let mut bytes = [first, second].concat();
        bytes.truncate(count);
        Some(bytes)
    }

    /// Goal: a lease answers any range until its time is over, of its own file, and its place goes to others.
    #[test]
    fn answered_while_they_last() {
        let leases = ReadLeases::new(COUNT_MAX);
        assert_eq!(read(&leases, 1, 0, 4, 0), None);
        leases.note(FileId(1), 100, LeasedContents { time: 50, bytes: (*b"abcdef").into() });
        assert_eq!(read(&leases, 1, 0, 9, 149).as_deref(), Some(&b"abcdef"[..]));
        assert_eq!(read(&leases, 1, 1, 4, 149).as_deref(), Some(&b"bcde"[..]));
        assert_eq!(read(&leases, 1, 6, 4, 149).as_deref(), Some(&b""[..]));
        assert_eq!(read(&leases, 1, u64::MAX, 4, 149).as_deref(), Some(&b""[..]));
        assert_eq!(read(&leases, 2, 0, 4, 149), None);
        leases.note(FileId(1), 110, LeasedContents { time: 50, bytes: (*b"gh").into() });
        assert_eq!(read(&leases, 1, 0, 4, 159).as_deref(), Some(&b"gh"[..]));
        assert_eq!(read(&leases, 1, 0, 4, 160), None);
        for file in 0..100 {
            leases.note(FileId(file), 200, LeasedContents { time: 50, bytes: (*b"x").into() });
        }
        assert_eq!(leases.files.borrow().len(), COUNT_MAX);
        assert_eq!((read(&leases, 99, 0, 1, 200).is_some(), read(&leases, 0, 0, 1, 200).is_some()), (true, false));
        leases.forget(FileId(99));
        assert_eq!(read(&leases, 99, 0, 1, 200), None);
    }
}
