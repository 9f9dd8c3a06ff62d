//! Numbers that are given out once: of files, intents, attempts and announcements. They are journalled in blocks,
//! before the first of each is used.

use crate::core::{Core, Failure};
use crate::journal::records::Record;
use crate::journal::tables::NUMBER_BLOCK;
use std::ops::Range;
use std::rc::Rc;
use wire::identity::SEQUENCE_MAX;
use wire::{FileId, Slot, Status};

/// Numbers from here on are for no new files.
const FILE_NUMBER_END: u64 = SEQUENCE_MAX - (1 << 40);

impl Core {
    /// A number that this server never gave out before: the sequence of a file id, of an intent, of an attempt.
    pub fn next_number(self: &Rc<Self>) -> Result<u64, Failure> {
        let (next, limit, generation_limit) = {
            let tables = self.tables.borrow();
            (tables.next_number, tables.number_limit, tables.generation_limit)
        };
        if next >= limit {
            if limit + NUMBER_BLOCK > SEQUENCE_MAX {
                return Err(Failure::with_text(Status::NoSpace, "all numbers of this server are used up"));
            }
            self.change([Record::Numbers { number_limit: limit + NUMBER_BLOCK, generation_limit }])?;
        }
        self.tables.borrow_mut().next_number = next + 1;
        Ok(next)
    }

    /// The id of a file that is about to be made. The last numbers are kept for what is to be done to those that there
    /// are: opening, changing and removing them takes numbers too. Errors: `NoSpace`.
    pub fn next_file(self: &Rc<Self>, slot: Slot) -> Result<FileId, Failure> {
        self.check_file_numbers()?;
        Ok(FileId::new(self.next_number()?, slot))
    }

    /// From here on files are of this life: what clients of an earlier one have left to be done is done.
    pub fn begin_new_files(&self) {
        let tables = &mut *self.tables.borrow_mut();
        tables.open.begin_new(tables.next_number);
    }

    /// Refuses to give out more numbers for files than there may be.
    pub fn check_file_numbers(&self) -> Result<(), Failure> {
        match self.tables.borrow().next_number < FILE_NUMBER_END {
            true => Ok(()),
            false => Err(Failure::with_text(Status::NoSpace, "all file ids of this server are used up")),
        }
    }

    /// Numbers as `next_number` gives them, so many in a row.
    pub fn next_numbers(self: &Rc<Self>, count: u64) -> Result<Range<u64>, Failure> {
        // Numbers that are left before the next block are lost.
        let first = self.next_number()?;
        let (limit, generation_limit) = {
            let tables = self.tables.borrow();
            (tables.number_limit, tables.generation_limit)
        };
        if first + count > limit {
            if limit + NUMBER_BLOCK > SEQUENCE_MAX {
                return Err(Failure::with_text(Status::NoSpace, "all numbers of this server are used up"));
            }
            self.change([Record::Numbers { number_limit: limit + NUMBER_BLOCK, generation_limit }])?;
        }
        self.tables.borrow_mut().next_number = first + count;
        Ok(first..first + count)
    }

    /// A generation of announcements that this server never gave out before.
    pub fn next_generation(self: &Rc<Self>) -> Result<u32, Failure> {
        let (next, limit, number_limit) = {
            let tables = self.tables.borrow();
            (tables.next_generation, tables.generation_limit, tables.number_limit)
        };
        if next >= limit {
            let Some(generation_limit) = limit.checked_add(NUMBER_BLOCK as u32) else {
                return Err(Failure::with_text(Status::NoSpace, "all generations of this server are used up"));
            };
            self.change([Record::Numbers { number_limit, generation_limit }])?;
        }
        self.tables.borrow_mut().next_generation = next + 1;
        Ok(next)
    }
}
