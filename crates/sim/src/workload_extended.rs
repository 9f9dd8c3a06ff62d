//! Extended attributes of open files, few names so that clients meet.

use crate::history::Action;
use crate::workload::Worker;
use wire::limits::EXTENDED_SIZE_MAX;
use wire::messages::extended_flags::{CREATE, REPLACE};

/// All names that are ever set.
pub const NAMES: [&str; 2] = ["user.a", "user.b"];
/// Bytes of a value that any journal takes.
const SIZE_SMALL: u64 = 3000;
/// Bytes of a journal that takes the largest value.
const JOURNAL_SIZE_LARGE: u64 = 1 << 20;

impl Worker {
    pub async fn on_extended(&mut self) {
        let handle = self.some_handle();
        let file = handle.file.id;
        let name = (*self.random.choose(&NAMES)).to_owned();
        let action = match self.random.below(10) {
            0..5 => {
                let flags = *self.random.choose(&[0, 0, 0, CREATE, REPLACE]);
                Action::SetExtended { file, name, tag: self.plan.tag(), size: self.value_size(), flags }
            }
            5..8 => Action::GetExtended { file, name },
            8 => Action::ListExtended { file },
            _ => Action::RemoveExtended { file, name },
        };
        self.work_on(action, &handle).await;
    }

    fn value_size(&mut self) -> u64 {
        let large = self.plan.profile.journal_size >= JOURNAL_SIZE_LARGE && self.random.percent(10);
        match self.random.below(4) {
            0 => self.random.below(2),
            _ if large => EXTENDED_SIZE_MAX as u64 - self.random.below(2),
            _ => self.random.below(SIZE_SMALL),
        }
    }
}
