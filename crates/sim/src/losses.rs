//! What power losses may have taken (docs/semantics.md, "What survives"): a server that loses power goes back to one of
//! its syncs, at the earliest to the last one that anybody was told of. What was told to be synced stays; of what came
//! later, a server keeps all up to some moment and nothing after it.
//!
//! Objects that live on one server are checked with that rule as it is ([`check`], after Izraelevitz and others,
//! "Linearizability of persistent memory objects under a full-system-crash failure model", 2016): each loss is two
//! operations more, one that keeps the state and a later one that brings it back. The first has its place anywhere
//! between the last sync and the loss.
//!
//! For all others there are [`views`] of the history, one for each stretch between losses: to those who look after a
//! loss, what may be lost is as something of unknown outcome.

use crate::history::{Action, History, Loss, Moment, NEVER, Operation};
use crate::linearize::{self, Done, Horizon, Object, Span, Verdict};
use reactor::Nanos;
use std::borrow::Cow;
use wire::{Cluster, FileId};

/// Moments that a loss takes: for keeping the state, for bringing it back, and for the end of both.
const MOMENT_COUNT: Moment = 2;

/// A history's losses and syncs.
pub struct Losses<'a> {
    pub operations: &'a [Operation],
    pub losses: &'a [Loss],
    /// See `History::unrest`.
    pub unrest: &'a [(Nanos, Nanos)],
    pub cluster: &'a Cluster,
    /// See `History::stripes`.
    pub stripes: (u32, u32),
}

/// A loss of one object's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setback {
    /// Its server.
    pub server: u32,
    /// The state that comes back is one from here on.
    pub floor: Moment,
    /// When power was lost.
    pub moment: Moment,
    /// See `Loss::back`.
    back: Moment,
    /// See `Loss::likely`.
    likely: Option<(Moment, Moment)>,
}

impl Setback {
    /// When the state is kept that comes back. `likely`: by the server's own word, which is no promise but saves
    /// searching.
    pub fn keep_span(&self, likely: bool) -> Span {
        let whole = Span { start: self.floor, end: self.moment + 1 };
        match self.likely {
            Some((start, end)) if likely && end > self.floor => {
                Span { start: whole.start.max(start), end: whole.end.min(end) }
            }
            _ => whole,
        }
    }

    /// When it comes back, for what only the server itself tells.
    pub fn return_span(&self) -> Span {
        Span { start: self.moment, end: self.moment + MOMENT_COUNT }
    }

    /// When it comes back, for what clients may also be told by read leases or keep, which outlives their server: it
    /// serves nobody before that is over.
    pub fn late_return_span(&self) -> Span {
        Span { start: self.moment, end: self.back.max(self.return_span().end) }
    }
}

impl<'a> Losses<'a> {
    pub fn new(history: &'a History, cluster: &'a Cluster) -> Losses<'a> {
        Losses {
            operations: &history.operations,
            losses: &history.losses,
            unrest: &history.unrest,
            cluster,
            stripes: history.stripes,
        }
    }

    /// Losses of a server, as far as they concern a file (or all that it has).
    pub fn setbacks(&self, server: u32, file: Option<FileId>) -> Vec<Setback> {
        let mut setbacks: Vec<Setback> = Vec::new();
        for loss in self.losses.iter().filter(|loss| loss.server == server) {
            let synced = self.operations.iter().filter(|operation| {
                operation.end < loss.moment && operation.succeeded() && self.covers(operation, server, file)
            });
            let before = setbacks.last().map(|before| before.return_span().end);
            let floor = synced.map(|sync| sync.start).chain(before).max().unwrap_or(0);
            setbacks.push(Setback { server, floor, moment: loss.moment, back: loss.back, likely: loss.likely });
        }
        setbacks
    }

    /// Whether an operation is a sync of all that a server has, or of all that it has of a file.
    fn covers(&self, operation: &Operation, server: u32, file: Option<FileId>) -> bool {
        match operation.action {
            Action::SynchroniseAll => true,
            Action::Synchronise { file: synced, name_server } => {
                file == Some(synced) || self.cluster.home_of(synced) == Some(server) || name_server == Some(server)
            }
            _ => false,
        }
    }

    /// Whether an operation surely survived a loss of whichever server.
    fn survived(&self, operation: &Operation, loss: &Loss) -> bool {
        let file = changed_file(&operation.action);
        self.operations.iter().any(|sync| {
            let covers = match sync.action {
                Action::SynchroniseAll => true,
                Action::Synchronise { file: synced, .. } => file == Some(synced),
                _ => false,
            };
            covers && sync.succeeded() && sync.start > operation.end && sync.end < loss.moment
        })
    }

    /// The operation as those know it who look between two losses (moments; `NEVER` when there is none after).
    fn seen_between(&self, operation: &Operation, from: Moment, to: Moment) -> Operation {
        let mut seen = operation.clone();
        let past = self.losses.iter().filter(|loss| loss.moment <= from && operation.start < loss.moment);
        // What began before a loss may have seen things as they were before, whenever it ended; and so may a look
        // that took no time while the server was down.
        let is_down = |loss: &Loss| loss.moment <= from && operation.start < loss.back;
        let is_past = operation.start < from || is_answered_by_client(operation) && self.losses.iter().any(is_down);
        let lost = match changes_something(&operation.action) {
            true => past.clone().any(|loss| !self.survived(operation, loss)),
            false => is_past,
        };
        if lost || (operation.end > to && operation.end != NEVER) {
            seen.end = NEVER;
            seen.lost = true;
        }
        seen
    }

    /// The history as it is known in each stretch between losses, by those who look in that stretch.
    pub fn views(&self) -> Vec<Cow<'a, [Operation]>> {
        if self.losses.is_empty() {
            return vec![Cow::Borrowed(self.operations)];
        }
        let mut bounds: Vec<Moment> = self.losses.iter().map(|loss| loss.moment).collect();
        bounds.insert(0, 0);
        bounds.push(NEVER);
        let view = |pair: &[Moment]| {
            let (from, to) = (pair[0], pair[1]);
            let begun = self.operations.iter().take_while(|operation| operation.start < to);
            Cow::Owned(begun.map(|operation| self.seen_between(operation, from, to)).collect())
        };
        bounds.windows(2).map(view).collect()
    }
}

/// Whether a client has answered a look from what it was told before: by a read lease, or of what it keeps.
pub fn is_answered_by_client(operation: &Operation) -> bool {
    let looks = matches!(operation.action, Action::Read { .. } | Action::Stat { .. });
    looks && operation.ended_at == operation.started_at
}

/// The file whose contents an operation changes, or its size.
fn changed_file(action: &Action) -> Option<FileId> {
    match action {
        Action::Write { file, .. }
        | Action::Append { file, .. }
        | Action::TruncateFile { file, .. }
        | Action::Allocate { file, .. }
        | Action::CopyRange { file, .. } => Some(*file),
        _ => None,
    }
}

fn changes_something(action: &Action) -> bool {
    !matches!(
        action,
        Action::Read { .. }
            | Action::Stat { .. }
            | Action::StatFile { .. }
            | Action::ReadLink { .. }
            | Action::List { .. }
            | Action::GetExtended { .. }
            | Action::ListExtended { .. }
            | Action::Seek { .. }
            | Action::Open { create: false, truncate: false, .. }
    )
}

/// An object that goes back with its server. Its own operations come first, then two for each setback.
struct Unlasting<'a, O> {
    object: &'a O,
    own_count: usize,
    setbacks: &'a [Setback],
    /// When the state of each may be kept at the earliest.
    keep_starts: Vec<Moment>,
}

/// The state, and the one that comes back with the next loss.
type Kept<S> = (S, Option<S>);

impl<O: Object> Object for Unlasting<'_, O> {
    type State = Kept<O::State>;

    fn initial(&self) -> Self::State {
        (self.object.initial(), None)
    }

    fn is_look(&self, operation: usize) -> bool {
        operation < self.own_count && self.object.is_look(operation)
    }

    fn apply(&self, (state, kept): &Self::State, operation: usize, done: &Done) -> Option<Self::State> {
        if operation < self.own_count {
            return Some((self.object.apply(state, operation, done)?, kept.clone()));
        }
        match (operation - self.own_count) % 2 {
            0 => kept.is_none().then(|| (state.clone(), Some(state.clone()))),
            _ => Some((kept.clone()?, None)),
        }
    }

    /// What is looked at before the next setback is not changed by any. Later looks see what is kept at that one, which
    /// nothing that ended before could miss, or something later.
    fn hopeless_look(
        &self,
        (state, kept): &Self::State,
        placed: Option<usize>,
        done: &Done,
        horizon: Horizon,
    ) -> Option<usize> {
        let placed = match placed {
            Some(operation) if operation >= self.own_count => {
                if (operation - self.own_count).is_multiple_of(2) {
                    return None;
                }
                None
            }
            own => own,
        };
        let is_to_come = |number: &usize| !done.contains(self.own_count + 2 * number + 1);
        let Some(next) = (0..self.setbacks.len()).find(is_to_come) else {
            return self.object.hopeless_look(state, placed, done, horizon);
        };
        let until = horizon.until.min(self.setbacks[next].moment);
        let before = self.object.hopeless_look(state, placed, done, Horizon { until, ..horizon });
        if before.is_some() || kept.is_some() {
            return before;
        }
        let firm = horizon.firm.min(self.keep_starts[next]);
        self.object.hopeless_look(state, placed, done, Horizon { firm, ..horizon })
    }
}

/// As `linearize::check`, of an object on one server that lost power meanwhile.
pub fn check<O: Object>(object: &O, spans: &[Span], setbacks: &[Setback]) -> Verdict {
    if setbacks.is_empty() {
        return linearize::check(object, spans);
    }
    let verdict = |is_likely: &dyn Fn(usize) -> bool| {
        let keeps = || setbacks.iter().enumerate().map(|(number, setback)| setback.keep_span(is_likely(number)));
        let returns = setbacks.iter().map(Setback::late_return_span);
        let mut all = spans.to_vec();
        all.extend(keeps().zip(returns).flat_map(|(keep, back)| [keep, back]));
        let keep_starts = keeps().map(|keep| keep.start).collect();
        linearize::check(&Unlasting { object, own_count: spans.len(), setbacks, keep_starts }, &all)
    };
    match first_that_fits(setbacks.len(), verdict) {
        Verdict::Impossible(missing) => {
            Verdict::Impossible(missing.into_iter().filter(|operation| *operation < spans.len()).collect())
        }
        verdict => verdict,
    }
}

/// Searches where servers say that they went back to; else with any one loss wherever that may have gone back to, for
/// they seldom err about more, and the places of several losses multiply; and last with all of them so. `verdict` is
/// given whether a loss, by number, is looked for at its likely moments.
pub fn first_that_fits(loss_count: usize, mut verdict: impl FnMut(&dyn Fn(usize) -> bool) -> Verdict) -> Verdict {
    if loss_count == 0 {
        return verdict(&|_| false);
    }
    if verdict(&|_| true) == Verdict::Linearizable {
        return Verdict::Linearizable;
    }
    if loss_count > 1 && (0..loss_count).any(|other| verdict(&|loss| loss != other) == Verdict::Linearizable) {
        return Verdict::Linearizable;
    }
    verdict(&|_| false)
}

/// A cluster for tests of checkers.
#[cfg(test)]
pub fn cluster_of(server_count: u16) -> Cluster {
    let address = |port| wire::ServerAddress { address: std::net::SocketAddr::from(([10, 0, 0, 1], port)) };
    let servers = (0..server_count).map(address).collect();
    Cluster::new(1, [0; wire::cluster::KEY_SIZE], wire::Placement::Modular, 4096, servers)
}

/// A loss of power between two syncs, in any order, for tests of checkers.
#[cfg(test)]
pub fn setback(one: Moment, other: Moment) -> Setback {
    let (floor, moment) = (one.min(other), one.max(other));
    Setback { server: 0, floor, moment, back: moment + 40, likely: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: where servers err about what one loss took back, the others stay where they are likely; where about more,
    /// all may be anywhere, and only then is a history impossible.
    #[test]
    fn one_loss_at_a_time() {
        let searches = |fits: &dyn Fn(&[bool]) -> bool| {
            let mut asked: Vec<Vec<bool>> = Vec::new();
            let verdict = first_that_fits(3, |is_likely| {
                let likely: Vec<bool> = (0..3).map(is_likely).collect();
                asked.push(likely.clone());
                if fits(&likely) { Verdict::Linearizable } else { Verdict::Impossible(Vec::new()) }
            });
            (verdict, asked)
        };
        let (verdict, asked) = searches(&|likely| likely == [true; 3]);
        assert_eq!((verdict, asked.len()), (Verdict::Linearizable, 1));
        let (verdict, asked) = searches(&|likely| !likely[1]);
        assert_eq!((verdict, &asked[2]), (Verdict::Linearizable, &vec![true, false, true]));
        let (verdict, asked) = searches(&|likely| likely == [false; 3]);
        assert_eq!((verdict, asked.len()), (Verdict::Linearizable, 5));
        assert_eq!(searches(&|_| false).0, Verdict::Impossible(Vec::new()));
    }
}
