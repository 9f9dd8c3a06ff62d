//! What counters grew by from one sample to the next.
//!
//! Counters that go back, or count since another moment than before, were reset: the server was restarted, its modules
//! were loaded anew, the counters cleared, or a job forgotten and met again. What they show then has all come since.
//! What was counted between the last sample before and the reset is lost.

use super::samples::{Kind, Sample, Series};
use crate::clock::{Nanos, SECOND};
use crate::sources::Counters;

/// Pieces that are this many times as long as usual are gaps: nobody knows when in them something happened.
const GAP_FACTOR: Nanos = 3;

/// Growth within a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    pub from: Nanos,
    pub to: Nanos,
    pub growth: Counters,
    /// The counters were reset.
    pub reset: bool,
    /// Too long to tell when in it something happened.
    pub gap: bool,
}

/// `counted_from`: when a job's counters may have begun, where nothing else tells.
pub fn between(samples: &[Sample], series: &Series, counted_from: Option<Nanos>, interval: Nanos) -> Vec<Piece> {
    let mut pieces = Vec::with_capacity(samples.len() + 1);
    if series.kind == Kind::Job {
        pieces.extend(samples.first().and_then(|first| beginning(first, counted_from)));
    }
    for pair in samples.windows(2) {
        let (before, after) = (&pair[0], &pair[1]);
        // Counters that are known to have stayed.
        if before.held_until > before.time {
            let to = before.held_until.min(after.time.max(before.time));
            let growth = before.counters.map(|counter| counter.map(|_| 0));
            push(&mut pieces, Piece { from: before.time, to, growth, reset: false, gap: false });
        }
        let from = before.held_until.min(after.time);
        push(&mut pieces, piece(before, after, from));
    }
    if let Some(last) = samples.last().filter(|last| last.held_until > last.time) {
        let growth = last.counters.map(|counter| counter.map(|_| 0));
        push(&mut pieces, Piece { from: last.time, to: last.held_until, growth, reset: false, gap: false });
    }
    if series.kind != Kind::Job {
        mark_gaps(&mut pieces, interval);
    }
    pieces
}

/// Pieces of no time count if something grew: two changes within one second of a clock that counts seconds.
fn push(pieces: &mut Vec<Piece>, piece: Piece) {
    if piece.to > piece.from || piece.growth.iter().any(|growth| growth.is_some_and(|growth| growth > 0)) {
        pieces.push(piece);
    }
}

/// A job's counters begin at 0. If nobody knows when, nobody knows when they grew.
fn beginning(first: &Sample, counted_from: Option<Nanos>) -> Option<Piece> {
    let from = first.since.max(counted_from)?;
    let piece = Piece { from, to: first.time, growth: first.counters, reset: false, gap: false };
    Some(piece).filter(|piece| piece.to >= piece.from)
}

fn piece(before: &Sample, after: &Sample, from: Nanos) -> Piece {
    let began_anew = matches!((before.since, after.since), (Some(one), Some(other)) if one != other);
    let mut pairs = before.counters.iter().zip(&after.counters);
    let went_back = pairs.any(|pair| matches!(pair, (Some(one), Some(other)) if other < one));
    if began_anew || went_back {
        let since = after.since.filter(|_| began_anew).unwrap_or(from).clamp(from.min(after.time), after.time);
        return Piece { from: since, to: after.time, growth: after.counters, reset: true, gap: false };
    }
    let mut growth = Counters::default();
    for (index, grown) in growth.iter_mut().enumerate() {
        *grown = after.counters[index].zip(before.counters[index]).map(|(after, before)| after - before);
    }
    Piece { from, to: after.time, growth, reset: false, gap: false }
}

fn mark_gaps(pieces: &mut [Piece], interval: Nanos) {
    let lengths = || pieces.iter().map(|piece| piece.to - piece.from);
    // A question at the begin or the end, soon after another one, says nothing of what is usual.
    let mut lengths: Vec<Nanos> = match lengths().any(|length| length >= SECOND / 2) {
        true => lengths().filter(|length| *length >= SECOND / 2).collect(),
        false => lengths().collect(),
    };
    if lengths.is_empty() {
        return;
    }
    let middle = lengths.len() / 2;
    // Of two lengths the shorter one is the usual one.
    let middle = if lengths.len() == 2 { 0 } else { middle };
    let usual = *lengths.select_nth_unstable(middle).1;
    let longest = usual.saturating_mul(GAP_FACTOR).max(interval);
    for piece in pieces {
        piece.gap = piece.to - piece.from > longest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::Counter;

    fn sample(time: Nanos, since: Option<Nanos>, bytes: i64) -> Sample {
        let mut counters = Counters::default();
        counters[Counter::ReadBytes as usize] = Some(bytes);
        let (time, since) = (time * SECOND, since.map(|since| since * SECOND));
        Sample { time, held_until: time, since, counters }
    }

    fn grown(pieces: &[Piece]) -> Vec<(Nanos, Nanos, Option<i64>, bool, bool)> {
        let of = |piece: &Piece| {
            let bytes = piece.growth[Counter::ReadBytes as usize];
            (piece.from / SECOND, piece.to / SECOND, bytes, piece.reset, piece.gap)
        };
        pieces.iter().map(of).collect()
    }

    fn series(kind: Kind) -> Series {
        Series::of_tests(kind)
    }

    /// Goal: growth, resets with and without a known moment, and gaps come out as counted by hand.
    #[test]
    fn by_hand() {
        let samples = [
            sample(10, Some(0), 100),
            sample(20, Some(0), 150),
            // Reset at 25, and beyond the old value already.
            sample(30, Some(25), 400),
            sample(40, Some(25), 400),
            // Nobody says when.
            sample(50, None, 30),
            // A gap.
            sample(90, None, 70),
        ];
        let pieces = between(&samples, &series(Kind::Target), None, SECOND);
        let wanted = [
            (10, 20, Some(50), false, false),
            (25, 30, Some(400), true, false),
            (30, 40, Some(0), false, false),
            (40, 50, Some(30), true, false),
            (50, 90, Some(40), false, true),
        ];
        assert_eq!(grown(&pieces), wanted);
        let pieces = between(&samples, &series(Kind::Target), None, 60 * SECOND);
        assert!(!pieces[4].gap);
    }

    /// Goal: a question that follows another one at once does not make a gap of the time until the next.
    #[test]
    fn questions_at_once() {
        let mut samples = [sample(10, None, 0), sample(10, None, 0), sample(19, None, 900), sample(19, None, 900)];
        (samples[1].time, samples[3].time) = (10 * SECOND + 30_000_000, 19 * SECOND + 30_000_000);
        samples.iter_mut().for_each(|sample| sample.held_until = sample.time);
        let pieces = between(&samples, &series(Kind::Target), None, SECOND);
        assert!(pieces.iter().all(|piece| !piece.gap), "{pieces:?}");
        // A gap is one all the same.
        samples[3].time = 80 * SECOND;
        let pieces = between(&samples, &series(Kind::Target), None, SECOND);
        assert_eq!(pieces.iter().filter(|piece| piece.gap).count(), 1, "{pieces:?}");
    }

    /// Goal: a job begins at 0 with its start, and what is seen to have stayed is known to be 0.
    #[test]
    fn of_a_job() {
        let mut samples = [sample(10, None, 100), sample(40, None, 150)];
        samples[0].held_until = 30 * SECOND;
        let pieces = between(&samples, &series(Kind::Job), Some(5 * SECOND), SECOND);
        let wanted =
            [(5, 10, Some(100), false, false), (10, 30, Some(0), false, false), (30, 40, Some(50), false, false)];
        assert_eq!(grown(&pieces), wanted);
    }
}
