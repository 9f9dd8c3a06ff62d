//! Whether a history of one object is linearizable: whether its operations fit into one order that respects their
//! starts and ends and in which each told the truth (Wing and Gong, "Testing and verifying concurrent objects", 1993,
//! with Lowe's memory of states already seen).

use crate::history::{Moment, NEVER};
use std::collections::HashSet;
use std::hash::Hash;

/// An object whose operations are checked; `operation` is an index into the spans given to `check`.
pub trait Object {
    type State: Clone + Eq + Hash;

    fn initial(&self) -> Self::State;

    /// The state after the operation, or `None` when what the operation was told is not true in this state.
    /// For an operation of unknown outcome: `None` when it would change nothing.
    fn apply(&self, state: &Self::State, operation: usize) -> Option<Self::State>;
}

/// When an operation happened. With `end == NEVER` it may have happened at any time after its start, or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub start: Moment,
    pub end: Moment,
}

/// The verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Linearizable,
    /// No order fits. The operations are the first ones, by end, that could never be placed.
    Impossible(Vec<usize>),
    /// The search was given up after too many steps.
    Undecided,
}

const STEP_COUNT_MAX: u64 = 3_000_000;

struct Search<'a, O: Object> {
    object: &'a O,
    spans: &'a [Span],
    /// All operations by start.
    by_start: Vec<usize>,
    seen: HashSet<(Vec<u64>, O::State)>,
    steps: u64,
    /// Most completed operations that were ever placed, and those missing then.
    best: usize,
    missing: Vec<usize>,
    completed_count: usize,
}

/// One level of the search: what is still to be tried there.
struct Frame<S> {
    state: S,
    candidates: Vec<usize>,
    next: usize,
    /// The operation that led here.
    placed: Option<usize>,
}

/// Checks a history of one object.
pub fn check<O: Object>(object: &O, spans: &[Span]) -> Verdict {
    let mut by_start: Vec<usize> = (0..spans.len()).collect();
    by_start.sort_by_key(|index| spans[*index].start);
    let completed_count = spans.iter().filter(|span| span.end != NEVER).count();
    let search = Search {
        object,
        spans,
        by_start,
        seen: HashSet::new(),
        steps: 0,
        best: 0,
        missing: Vec::new(),
        completed_count,
    };
    search.run()
}

impl<O: Object> Search<'_, O> {
    fn run(mut self) -> Verdict {
        let mut done = vec![0u64; self.spans.len().div_ceil(64)];
        let mut placed_count = 0;
        self.note_missing(&done);
        let state = self.object.initial();
        let candidates = self.candidates(&done);
        let mut stack = vec![Frame { state, candidates, next: 0, placed: None }];
        while let Some(frame) = stack.last_mut() {
            if placed_count == self.completed_count {
                return Verdict::Linearizable;
            }
            let Some(&operation) = frame.candidates.get(frame.next) else {
                if let Some(operation) = frame.placed {
                    done[operation / 64] &= !(1 << (operation % 64));
                    placed_count -= usize::from(self.spans[operation].end != NEVER);
                }
                stack.pop();
                continue;
            };
            frame.next += 1;
            self.steps += 1;
            if self.steps > STEP_COUNT_MAX {
                return Verdict::Undecided;
            }
            let Some(state) = self.object.apply(&frame.state, operation) else { continue };
            done[operation / 64] |= 1 << (operation % 64);
            if !self.seen.insert((done.clone(), state.clone())) {
                done[operation / 64] &= !(1 << (operation % 64));
                continue;
            }
            if self.spans[operation].end != NEVER {
                placed_count += 1;
                if placed_count > self.best {
                    self.best = placed_count;
                    self.note_missing(&done);
                }
            }
            let candidates = self.candidates(&done);
            stack.push(Frame { state, candidates, next: 0, placed: Some(operation) });
        }
        Verdict::Impossible(self.missing)
    }

    /// Operations that may come next: those that started before the first end of all that are left. Completed ones come
    /// first, so that unknown ones are only taken in where something needs them.
    fn candidates(&self, done: &[u64]) -> Vec<usize> {
        let mut candidates = Vec::new();
        let mut first_end = NEVER;
        for &operation in &self.by_start {
            if done[operation / 64] >> (operation % 64) & 1 == 1 {
                continue;
            }
            if self.spans[operation].start > first_end {
                break;
            }
            first_end = first_end.min(self.spans[operation].end);
            candidates.push(operation);
        }
        candidates.retain(|operation| self.spans[*operation].start < first_end);
        candidates.sort_by_key(|operation| self.spans[*operation].end);
        candidates
    }

    fn note_missing(&mut self, done: &[u64]) {
        let mut left: Vec<usize> = (0..self.spans.len())
            .filter(|operation| done[operation / 64] >> (operation % 64) & 1 == 0)
            .filter(|operation| self.spans[*operation].end != NEVER)
            .collect();
        left.sort_by_key(|operation| self.spans[*operation].end);
        left.truncate(4);
        self.missing = left;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A register: `Some(value)` writes it, and `reads` says what a read saw.
    struct Register {
        operations: Vec<Result<u32, u32>>,
    }

    impl Object for Register {
        type State = u32;

        fn initial(&self) -> u32 {
            0
        }

        fn apply(&self, state: &u32, operation: usize) -> Option<u32> {
            match self.operations[operation] {
                Ok(written) => Some(written),
                Err(read) => (read == *state).then_some(*state),
            }
        }
    }

    fn verdict(history: &[(Result<u32, u32>, Moment, Moment)]) -> Verdict {
        let register = Register { operations: history.iter().map(|entry| entry.0).collect() };
        let spans: Vec<Span> = history.iter().map(|entry| Span { start: entry.1, end: entry.2 }).collect();
        check(&register, &spans)
    }

    /// Goal: concurrent operations may take either order, successive ones may not.
    #[test]
    fn orders() {
        assert_eq!(verdict(&[(Ok(1), 1, 4), (Err(0), 2, 3), (Err(1), 5, 6)]), Verdict::Linearizable);
        assert_eq!(verdict(&[(Ok(1), 1, 4), (Err(1), 2, 3), (Err(0), 5, 6)]), Verdict::Impossible(vec![2]));
        assert_eq!(verdict(&[(Ok(1), 1, 2), (Ok(2), 3, 4), (Err(1), 5, 6)]), Verdict::Impossible(vec![2]));
    }

    /// Goal: an operation of unknown outcome may happen late or never, but not before its start and only once.
    #[test]
    fn unknown_outcomes() {
        assert_eq!(verdict(&[(Ok(1), 1, NEVER), (Err(0), 2, 3), (Err(1), 4, 5)]), Verdict::Linearizable);
        assert_eq!(verdict(&[(Ok(1), 1, NEVER), (Err(0), 2, 3)]), Verdict::Linearizable);
        assert_eq!(verdict(&[(Ok(1), 3, NEVER), (Err(1), 1, 2)]), Verdict::Impossible(vec![1]));
        let twice = [(Ok(1), 1, NEVER), (Err(1), 2, 3), (Ok(2), 4, 5), (Err(2), 6, 7), (Err(1), 8, 9)];
        assert_eq!(verdict(&twice), Verdict::Impossible(vec![4]));
    }

    /// Goal: long histories of four clients are decided without going through all orders.
    #[test]
    fn long_history() {
        let mut history = Vec::new();
        for round in 0..500u32 {
            let moment = u64::from(round) * 8;
            for client in 0..4u64 {
                history.push((Ok(round * 4 + client as u32 + 1), moment + client, moment + 4 + client));
            }
        }
        assert_eq!(verdict(&history), Verdict::Linearizable);
    }
}
