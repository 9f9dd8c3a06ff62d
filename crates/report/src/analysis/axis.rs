//! A job's time in intervals of one length, and which parts of a piece lie in which: what grew in it grew evenly.

use super::pieces::Piece;
use crate::clock::Nanos;

/// Intervals begin with the job; the last one may be shorter.
#[derive(Debug, Clone, Copy)]
pub struct Axis {
    pub start: Nanos,
    pub end: Nanos,
    pub interval: Nanos,
}

impl Axis {
    pub fn new(start: Nanos, end: Nanos, interval: Nanos) -> Axis {
        assert!(end > start && interval > 0);
        Axis { start, end, interval }
    }

    pub fn count(&self) -> usize {
        ((self.end - self.start) as u64).div_ceil(self.interval as u64) as usize
    }

    /// From when to when an interval is.
    pub fn span(&self, index: usize) -> (Nanos, Nanos) {
        let from = self.start + index as Nanos * self.interval;
        (from, from.saturating_add(self.interval).min(self.end))
    }

    /// The interval that a moment is the end of, or lies in.
    pub fn index_at(&self, time: Nanos) -> usize {
        let index = (time.saturating_sub(self.start + 1)).max(0) / self.interval;
        (index as usize).min(self.count() - 1)
    }

    /// Whether anything of a piece is of the job's time.
    pub fn has(&self, piece: &Piece) -> bool {
        let at_a_moment = piece.from == piece.to && (self.start..=self.end).contains(&piece.to);
        self.overlaps(piece) || at_a_moment
    }

    pub fn overlaps(&self, piece: &Piece) -> bool {
        piece.to > self.start && piece.from < self.end
    }

    /// Hands over each interval that a piece reaches into, which part of the piece lies there, and for how long.
    pub fn share_out(&self, piece: &Piece, mut each: impl FnMut(usize, f64, f64)) {
        if !self.has(piece) {
            return;
        }
        let length = (piece.to - piece.from) as f64;
        if length <= 0.0 {
            // Within one moment: it is of the interval that the moment lies in, and takes no time.
            return each(self.index_at(piece.to.clamp(self.start, self.end)), 1.0, 0.0);
        }
        for index in self.index_at(piece.from.max(self.start) + 1)..self.count() {
            let (from, to) = self.span(index);
            if from >= piece.to {
                break;
            }
            let time = (piece.to.min(to) - piece.from.max(from)).max(0) as f64;
            each(index, time / length, time);
        }
    }
}
