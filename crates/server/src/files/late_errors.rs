//! Errors that come to light later than the request that they belong to: a medium refuses what was acknowledged, or
//! what is to go behind can't be carried. Each is told once to each open file, by fsync or close.
//!
//! Invariants
//! 1. Numbers rise, over all files and causes, also from one life of the server to the next: they are times.
//! 2. An error of one cause takes the place of the one before it of the same file. One that says the same again is the
//!    same error, with its number.
//! 3. What was told of a medium stays. That a file can't be carried is over when it is carried.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use wire::FileId;
use wire::messages::SynchroniseRequest;

/// Files whose medium errors are remembered; with more, all files count as concerned.
const MEDIUM_FILES_MAX: usize = 1 << 16;
/// Files that can't be carried of which that is remembered. With more, the older half is forgotten: the next attempt to
/// carry them says it again.
pub const CARRY_FILES_MAX: usize = 4096;
/// Bytes of a reason; what is beyond is cut off.
pub const REASON_SIZE_MAX: usize = 512;
/// Bytes of what is known of one error beside that, and of its place in the table.
pub const ERROR_SIZE: usize = 256;
/// By how much clocks of nodes may differ: within that, an error counts as later than an open.
const CLOCK_SLACK_NS: i64 = 2_000_000_000;

/// What an error is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The medium refused what was acknowledged.
    Medium,
    /// The file could not be carried behind.
    Carry,
}

/// One error of a file.
#[derive(Debug, Clone)]
pub struct LateError {
    /// When it was, in nanoseconds since the epoch, or a little more.
    pub number: u64,
    /// What a carry failed with; nothing of a medium.
    pub reason: Rc<[u8]>,
    /// Whether anybody was told.
    is_told: bool,
}

impl LateError {
    /// Whether it is to be told to whoever asks.
    fn concerns(&self, request: &SynchroniseRequest) -> bool {
        let is_after_open = self.number as i64 >= request.opened_at.saturating_sub(CLOCK_SLACK_NS);
        self.number > request.seen && (request.seen > 0 || !self.is_told || is_after_open)
    }
}

/// Those that this server knows.
pub struct LateErrors {
    medium_files_max: usize,
    of_files: RefCell<BTreeMap<(u64, Cause), LateError>>,
    /// How many of them are of carries.
    carries: Cell<usize>,
    /// A failure of the medium that concerned too many files to name.
    of_all_files: RefCell<Option<LateError>>,
    last_number: Cell<u64>,
    noted: OnceCell<Box<dyn Fn()>>,
}

impl LateErrors {
    /// `memos`: of files whose medium errors are remembered, at most so many.
    pub fn new(memos: usize) -> LateErrors {
        LateErrors {
            medium_files_max: MEDIUM_FILES_MAX.min(memos),
            of_files: RefCell::default(),
            carries: Cell::new(0),
            of_all_files: RefCell::default(),
            last_number: Cell::new(0),
            noted: OnceCell::new(),
        }
    }

    /// Has something done whenever an error was noted.
    pub fn when_noted(&self, noted: impl Fn() + 'static) {
        assert!(self.noted.set(Box::new(noted)).is_ok(), "it is said once what is done");
    }

    fn tell_noted(&self) {
        if let Some(noted) = self.noted.get() {
            noted();
        }
    }

    /// The number of the last error; 0 for none.
    pub fn last_number(&self) -> u64 {
        self.last_number.get()
    }

    fn next(&self, now: i64, reason: &[u8]) -> LateError {
        let number = (now.max(0) as u64).max(self.last_number.get() + 1);
        self.last_number.set(number);
        LateError { number, reason: reason[..reason.len().min(REASON_SIZE_MAX)].into(), is_told: false }
    }

    /// The medium has refused data of some files, at a time by the clock.
    pub fn note_medium(&self, files: &[u64], now: i64) {
        let error = self.next(now, b"");
        let mut of_files = self.of_files.borrow_mut();
        if of_files.len() - self.carries.get() + files.len() > self.medium_files_max {
            of_files.retain(|(_, cause), _| *cause == Cause::Carry);
            self.of_all_files.replace(Some(error));
        } else {
            of_files.extend(files.iter().map(|file| ((*file, Cause::Medium), error.clone())));
        }
        drop(of_files);
        self.tell_noted();
    }

    /// A file could not be carried behind. Whether that is new.
    pub fn note_carry(&self, file: FileId, reason: &[u8], now: i64) -> bool {
        let key = (file.0, Cause::Carry);
        let known = self.of_files.borrow().get(&key).map(|error| error.reason.clone());
        if known.as_deref() == Some(&reason[..reason.len().min(REASON_SIZE_MAX)]) {
            return false;
        }
        if known.is_none() && self.carries.get() >= CARRY_FILES_MAX {
            self.forget_older_half();
        }
        let error = self.next(now, reason);
        self.of_files.borrow_mut().insert(key, error);
        self.carries.set(self.carries.get() + usize::from(known.is_none()));
        self.tell_noted();
        true
    }

    fn forget_older_half(&self) {
        let mut of_files = self.of_files.borrow_mut();
        let carries = of_files.iter().filter(|((_, cause), _)| *cause == Cause::Carry);
        let mut numbers: Vec<u64> = carries.map(|(_, error)| error.number).collect();
        numbers.sort_unstable();
        let limit = numbers[numbers.len() / 2];
        of_files.retain(|(_, cause), error| *cause != Cause::Carry || error.number >= limit);
        self.carries.set(of_files.keys().filter(|(_, cause)| *cause == Cause::Carry).count());
    }

    /// A file was carried behind.
    pub fn forget_carry(&self, file: FileId) {
        if self.carries.get() > 0 && self.of_files.borrow_mut().remove(&(file.0, Cause::Carry)).is_some() {
            self.carries.set(self.carries.get() - 1);
        }
    }

    /// The oldest error of a file that is to be told to whoever asks, who is told; up to a cause in their order.
    pub fn take_next(&self, request: &SynchroniseRequest, last: Cause) -> Option<LateError> {
        let mut of_files = self.of_files.borrow_mut();
        let own = of_files.range_mut((request.file.0, Cause::Medium)..=(request.file.0, last));
        let next = own.map(|(_, error)| error).filter(|error| error.concerns(request)).min_by_key(|error| error.number);
        let of_all = self.of_all_files.borrow().clone().filter(|error| error.concerns(request));
        match (next, of_all) {
            (Some(next), of_all) if of_all.as_ref().is_none_or(|of_all| next.number < of_all.number) => {
                next.is_told = true;
                Some(next.clone())
            }
            (_, of_all) => of_all,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn request(file: u64, seen: u64, opened_at: i64) -> SynchroniseRequest {
        SynchroniseRequest { file: FileId(file), seen, opened_at, is_question: true }
    }

    /// Goal: an error is told to whoever had the file open, once; to others only if nobody was told.
    /// Method: one error, and requests of all kinds.
    #[test]
    fn an_error_is_told_once_to_each() {
        let errors = || {
            let errors = LateErrors::new(8);
            errors.note_medium(&[1], 100 * SECOND);
            errors
        };
        let number = 100 * SECOND as u64;
        assert!(errors().take_next(&request(2, 0, 0), Cause::Carry).is_none(), "another file");
        let errors = errors();
        assert!(errors.take_next(&request(1, 0, 200 * SECOND), Cause::Carry).is_some(), "nobody was told");
        assert!(
            errors.take_next(&request(1, 0, 200 * SECOND), Cause::Carry).is_none(),
            "opened later, and somebody knows"
        );
        assert!(errors.take_next(&request(1, 0, 50 * SECOND), Cause::Carry).is_some(), "open when it happened");
        assert!(errors.take_next(&request(1, number, 50 * SECOND), Cause::Carry).is_none(), "told already");
        assert!(
            errors.take_next(&request(1, number - 1, 50 * SECOND), Cause::Carry).is_some(),
            "told of an earlier one"
        );
    }

    /// Goal: errors of both causes are told one after the other; that a carry fails for the same reason is no new
    /// error, for another one it is; and it is over when the file is carried.
    #[test]
    fn errors_of_a_file() {
        let errors = LateErrors::new(8);
        assert!(errors.note_carry(FileId(1), b"full", SECOND));
        errors.note_medium(&[1], SECOND);
        assert!(!errors.note_carry(FileId(1), b"full", 3 * SECOND));
        let first = errors.take_next(&request(1, 0, 0), Cause::Carry).expect("two are known");
        assert_eq!((first.number, &*first.reason), (SECOND as u64, &b"full"[..]));
        let second = errors.take_next(&request(1, first.number, 0), Cause::Carry).expect("one is left");
        assert_eq!((second.number, second.reason.len()), (SECOND as u64 + 1, 0));
        assert!(errors.take_next(&request(1, second.number, 0), Cause::Carry).is_none());
        assert!(errors.note_carry(FileId(1), b"read-only", 4 * SECOND));
        assert!(
            errors
                .take_next(&request(1, second.number, 0), Cause::Carry)
                .is_some_and(|error| &*error.reason == b"read-only")
        );
        errors.forget_carry(FileId(1));
        assert_eq!(errors.take_next(&request(1, 0, 0), Cause::Carry).map(|error| error.reason.len()), Some(0));
    }

    /// Goal: tables keep within their bounds: beyond its own the medium's errors are those of all files, and of carries
    /// the older half is forgotten.
    #[test]
    fn bounded() {
        let errors = LateErrors::new(4);
        errors.note_medium(&[1, 2, 3, 4], SECOND);
        assert!(errors.take_next(&request(9, 0, 0), Cause::Carry).is_none());
        errors.note_medium(&[5], 2 * SECOND);
        assert!(errors.take_next(&request(9, 0, 0), Cause::Carry).is_some());
        let count = CARRY_FILES_MAX as u64;
        (0..count).for_each(|file| assert!(errors.note_carry(FileId(100 + file), &vec![b'x'; 4096], 9 * SECOND)));
        assert_eq!(errors.of_files.borrow().len(), CARRY_FILES_MAX);
        assert!(errors.note_carry(FileId(99), b"", 9 * SECOND));
        assert_eq!(errors.of_files.borrow().len(), CARRY_FILES_MAX / 2 + 1);
        assert_eq!(errors.carries.get(), CARRY_FILES_MAX / 2 + 1);
        let last = errors.of_files.borrow().get(&(99 + count, Cause::Carry)).map(|error| error.reason.len());
        assert_eq!(last, Some(REASON_SIZE_MAX));
        assert!(errors.note_carry(FileId(100), b"x", 9 * SECOND), "what was forgotten is said again");
    }
}
