//! How many fetches hold space and memory at a time: so many in all, and of one file a part of them, so that one whose
//! reads hang leaves the others theirs. The rest wait, first come first served.

use crate::core::Notice;
use crate::store::FastMap;
use std::cell::RefCell;
use std::collections::VecDeque;

/// Fetches that hold space at a time.
const FETCHES_MAX: usize = 64;
/// Those of them of one file.
const FILE_FETCHES_MAX: usize = 8;

/// See the module.
#[derive(Default)]
pub struct FetchGate(RefCell<GateState>);

#[derive(Default)]
struct GateState {
    count: usize,
    of_file: FastMap<u64, usize>,
    waiting: VecDeque<(u64, Notice<()>)>,
}

impl GateState {
    fn has_room(&self, file: u64) -> bool {
        self.count < FETCHES_MAX && self.of_file.get(&file).is_none_or(|count| *count < FILE_FETCHES_MAX)
    }

    fn enter(&mut self, file: u64) {
        self.count += 1;
        *self.of_file.entry(file).or_default() += 1;
    }

    fn leave(&mut self, file: u64) {
        self.count -= 1;
        if let Some(count) = self.of_file.get_mut(&file) {
            *count -= 1;
            if *count == 0 {
                self.of_file.remove(&file);
            }
        }
    }
}

/// The place of a fetch; dropped, it is the next one's.
pub struct FetchPlace<'a> {
    gate: &'a FetchGate,
    file: u64,
}

impl Drop for FetchPlace<'_> {
    fn drop(&mut self) {
        let freed = {
            let mut state = self.gate.0.borrow_mut();
            state.leave(self.file);
            let next = state.waiting.iter().position(|(file, _)| state.has_room(*file));
            let next = next.and_then(|index| state.waiting.remove(index));
            next.inspect(|(file, _)| state.enter(*file))
        };
        freed.into_iter().for_each(|(_, notice)| notice.tell(()));
    }
}

impl FetchGate {
    /// Waits for a place for a fetch of a file. Whoever waits stays until it has one.
    pub async fn enter(&self, file: u64) -> FetchPlace<'_> {
        let notice = {
            let mut state = self.0.borrow_mut();
            match state.has_room(file) {
                true => {
                    state.enter(file);
                    None
                }
                false => {
                    let notice = Notice::new();
                    state.waiting.push_back((file, notice.clone()));
                    Some(notice)
                }
            }
        };
        if let Some(notice) = notice {
            notice.wait().await;
        }
        FetchPlace { gate: self, file }
    }
}
