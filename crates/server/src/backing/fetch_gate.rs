//! How many fetches hold space and memory at a time: so many in all, and of one file, or of the files of one directory,
//! a part of them, so that those whose reads hang leave the others theirs. The rest wait, first come first served.

use crate::core::Notice;
use crate::store::FastMap;
use std::cell::RefCell;
use std::collections::VecDeque;

/// Fetches that hold space at a time.
const FETCHES_MAX: usize = 64;
/// Those of them of one file, and of files of one directory.
const FILE_FETCHES_MAX: usize = 8;
const DIRECTORY_FETCHES_MAX: usize = 16;

/// See the module.
#[derive(Default)]
pub struct FetchGate(RefCell<GateState>);

#[derive(Default)]
struct GateState {
    count: usize,
    /// By file, and by directory.
    of: FastMap<u64, usize>,
    waiting: VecDeque<(Of, Notice<()>)>,
}

/// A file and its directory.
type Of = [(u64, usize); 2];

fn of(file: u64, directory: u64) -> Of {
    [(file, FILE_FETCHES_MAX), (directory, DIRECTORY_FETCHES_MAX)]
}

impl GateState {
    fn has_room(&self, of: &Of) -> bool {
        let has_room = |(id, most): &(u64, usize)| self.of.get(id).is_none_or(|count| count < most);
        self.count < FETCHES_MAX && of.iter().all(has_room)
    }

    fn enter(&mut self, of: &Of) {
        self.count += 1;
        of.iter().for_each(|(id, _)| *self.of.entry(*id).or_default() += 1);
    }

    fn leave(&mut self, of: &Of) {
        self.count -= 1;
        for (id, _) in of {
            if let Some(count) = self.of.get_mut(id) {
                *count -= 1;
                if *count == 0 {
                    self.of.remove(id);
                }
            }
        }
    }
}

/// The place of a fetch; dropped, it is the next one's.
pub struct FetchPlace<'a> {
    gate: &'a FetchGate,
    of: Of,
}

impl Drop for FetchPlace<'_> {
    fn drop(&mut self) {
        let freed = {
            let mut state = self.gate.0.borrow_mut();
            state.leave(&self.of);
            let next = state.waiting.iter().position(|(of, _)| state.has_room(of));
            let next = next.and_then(|index| state.waiting.remove(index));
            next.inspect(|(of, _)| state.enter(of))
        };
        freed.into_iter().for_each(|(_, notice)| notice.tell(()));
    }
}

impl FetchGate {
    /// Waits for a place for a fetch of a file in a directory. Whoever waits stays until it has one.
    pub async fn enter(&self, file: u64, directory: u64) -> FetchPlace<'_> {
        let of = of(file, directory);
        let notice = {
            let mut state = self.0.borrow_mut();
            match state.has_room(&of) {
                true => {
                    state.enter(&of);
                    None
                }
                false => {
                    let notice = Notice::new();
                    state.waiting.push_back((of, notice.clone()));
                    Some(notice)
                }
            }
        };
        if let Some(notice) = notice {
            notice.wait().await;
        }
        FetchPlace { gate: self, of }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    /// Goal: the bounds of one file, of one directory and of all hold, and whoever waits goes on when one of its own
    /// leaves.
    #[test]
    fn nobody_takes_all_places() {
        let gate = FetchGate::default();
        let mut context = Context::from_waker(Waker::noop());
        let mut enter = |file, directory| match pin!(gate.enter(file, directory)).poll(&mut context) {
            Poll::Ready(place) => Some(place),
            Poll::Pending => None,
        };
        let one: Vec<_> = (0..FILE_FETCHES_MAX).filter_map(|_| enter(1, 1000)).collect();
        assert_eq!(one.len(), FILE_FETCHES_MAX);
        assert!(enter(1, 1000).is_none(), "of one file");
        // Whoever did not wait for his place has it all the same when it comes; here nobody is there any more.
        gate.0.borrow_mut().waiting.clear();
        let others: Vec<_> = (2..).map_while(|file| enter(file, 1000)).collect();
        assert_eq!(one.len() + others.len(), DIRECTORY_FETCHES_MAX, "of one directory");
        gate.0.borrow_mut().waiting.clear();
        let elsewhere: Vec<_> = (100..).map_while(|file| enter(file, file + 1000)).collect();
        assert_eq!(one.len() + others.len() + elsewhere.len(), FETCHES_MAX);
        gate.0.borrow_mut().waiting.clear();

        let mut context = Context::from_waker(Waker::noop());
        let mut waits = pin!(gate.enter(50, 1000));
        assert!(waits.as_mut().poll(&mut context).is_pending());
        drop(elsewhere);
        assert!(waits.as_mut().poll(&mut context).is_pending(), "its directory has no place free");
        drop(one);
        assert!(waits.as_mut().poll(&mut context).is_ready());
        drop(others);
        assert!(gate.0.borrow().of.len() <= 2, "nothing is kept of who has left");
    }
}
