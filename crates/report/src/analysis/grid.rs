//! Pieces of any length, shared out to intervals of one length: what grew in a piece grew evenly.

use super::axis::Axis;
use super::pieces::Piece;
use super::samples::{Clock, Kind, Series};
use crate::clock::Nanos;
use crate::sources::{COUNTER_COUNT, Counter, NETWORKS};

/// A server in a job's time.
#[derive(Debug, Clone)]
pub struct Profile {
    pub server: String,
    pub clock: Clock,
    /// One for each interval.
    pub rows: Vec<Row>,
    /// The whole time in one.
    pub whole: Row,
    /// What the job did here, to the byte.
    pub job_read_bytes: Option<i64>,
    pub job_write_bytes: Option<i64>,
    pub resets: u64,
    pub gaps: u64,
}

/// An interval. What is not known is none.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Row {
    pub from: Nanos,
    pub to: Nanos,
    /// Microseconds that a request waited.
    pub wait: Option<f64>,
    /// Requests that one found waiting, and in work.
    pub depth: Option<f64>,
    pub active: Option<f64>,
    /// All these a second.
    pub requests: Option<f64>,
    pub reads: Option<f64>,
    pub read_bytes: Option<f64>,
    pub writes: Option<f64>,
    pub write_bytes: Option<f64>,
    pub job_read_bytes: Option<f64>,
    pub job_write_bytes: Option<f64>,
    pub job_operations: Option<f64>,
    /// In the order of [`crate::sources::NETWORKS`].
    pub networks: [Carried; NETWORKS.len()],
    pub reset: bool,
}

/// What a layer of the network did, all of it a second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Carried {
    pub receive_bytes: Option<f64>,
    pub send_bytes: Option<f64>,
    /// Ticks in which something could not be sent.
    pub send_wait: Option<f64>,
    pub drops: Option<f64>,
}

impl Row {
    /// Bytes read and written a second.
    pub fn bytes(&self) -> Option<f64> {
        match (self.read_bytes, self.write_bytes) {
            (None, None) => None,
            (read, write) => Some(read.unwrap_or(0.0) + write.unwrap_or(0.0)),
        }
    }
}

/// What one series grew by in an interval, and in how much of its time that is known, by counter.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    growth: [f64; COUNTER_COUNT],
    known: [f64; COUNTER_COUNT],
}

impl Share {
    fn rate(&self, counter: Counter) -> Option<f64> {
        let (growth, known) = (self.growth[counter as usize], self.known[counter as usize]);
        (known > 0.0).then(|| growth / (known / 1e9))
    }

    /// Sum by count; none where nothing was counted.
    fn mean(&self, count: Counter, sum: Counter) -> Option<f64> {
        let count = self.growth[count as usize];
        (count > 1e-9 && self.known[sum as usize] > 0.0).then(|| self.growth[sum as usize] / count)
    }

    fn add(&mut self, piece: &Piece, part: f64, time: f64) {
        for (index, growth) in piece.growth.iter().enumerate() {
            if let Some(growth) = growth {
                self.growth[index] += *growth as f64 * part;
                self.known[index] += time;
            }
        }
    }
}

pub struct Grid {
    axis: Axis,
    rows: Vec<Row>,
    whole: Row,
    job_read_bytes: Option<i64>,
    job_write_bytes: Option<i64>,
    resets: u64,
    gaps: u64,
}

impl Grid {
    pub fn new(start: Nanos, end: Nanos, interval: Nanos) -> Grid {
        let axis = Axis::new(start, end, interval);
        let row = |index: usize| {
            let (from, to) = axis.span(index);
            Row { from, to, ..Row::default() }
        };
        let whole = Row { from: start, to: end, ..Row::default() };
        let rows = (0..axis.count()).map(row).collect();
        let (job_read_bytes, job_write_bytes) = (None, None);
        Grid { axis, rows, whole, job_read_bytes, job_write_bytes, resets: 0, gaps: 0 }
    }

    /// Adds a series.
    pub fn add(&mut self, series: &Series, pieces: &[Piece]) {
        let mut shares = vec![Share::default(); self.rows.len()];
        let mut whole = Share::default();
        for piece in pieces {
            let inside = self.axis.overlaps(piece);
            if piece.reset && inside {
                self.resets += 1;
                let row = self.axis.index_at(piece.to);
                self.rows[row].reset = true;
                self.whole.reset = true;
            }
            if series.kind == Kind::Job {
                self.add_job_bytes(piece);
            }
            if !self.axis.has(piece) {
                continue;
            }
            whole.add(piece, self.part_inside(piece), self.time_inside(piece));
            if piece.gap {
                self.gaps += u64::from(inside);
            } else {
                self.axis.share_out(piece, |index, part, time| shares[index].add(piece, part, time));
            }
        }
        for (row, share) in self.rows.iter_mut().zip(&shares) {
            fill(row, series.kind, share);
        }
        fill(&mut self.whole, series.kind, &whole);
    }

    fn add_job_bytes(&mut self, piece: &Piece) {
        for (total, counter) in
            [(&mut self.job_read_bytes, Counter::ReadBytes), (&mut self.job_write_bytes, Counter::WriteBytes)]
        {
            if let Some(growth) = piece.growth[counter as usize] {
                *total = Some(total.unwrap_or(0).saturating_add(growth));
            }
        }
    }

    fn time_inside(&self, piece: &Piece) -> f64 {
        (piece.to.min(self.axis.end) - piece.from.max(self.axis.start)).max(0) as f64
    }

    fn part_inside(&self, piece: &Piece) -> f64 {
        if piece.to > piece.from { self.time_inside(piece) / (piece.to - piece.from) as f64 } else { 1.0 }
    }

    pub fn into_profile(self, server: &str, clock: Clock) -> Profile {
        Profile {
            server: server.to_owned(),
            clock,
            rows: self.rows,
            whole: self.whole,
            job_read_bytes: self.job_read_bytes,
            job_write_bytes: self.job_write_bytes,
            resets: self.resets,
            gaps: self.gaps,
        }
    }
}

/// Rates of several targets are added up; of those that are known.
fn plus(sum: &mut Option<f64>, more: Option<f64>) {
    if let Some(more) = more {
        *sum = Some(sum.unwrap_or(0.0) + more);
    }
}

fn fill(row: &mut Row, kind: Kind, share: &Share) {
    match kind {
        Kind::Service => {
            row.wait = share.mean(Counter::WaitCount, Counter::Wait);
            row.depth = share.mean(Counter::DepthCount, Counter::Depth);
            row.active = share.mean(Counter::ActiveCount, Counter::Active);
            row.requests = share.rate(Counter::WaitCount);
        }
        Kind::Target => {
            plus(&mut row.reads, share.rate(Counter::Reads));
            plus(&mut row.read_bytes, share.rate(Counter::ReadBytes));
            plus(&mut row.writes, share.rate(Counter::Writes));
            plus(&mut row.write_bytes, share.rate(Counter::WriteBytes));
        }
        Kind::Job => {
            plus(&mut row.job_read_bytes, share.rate(Counter::ReadBytes));
            plus(&mut row.job_write_bytes, share.rate(Counter::WriteBytes));
            plus(&mut row.job_operations, share.rate(Counter::Operations));
        }
        Kind::Network(network) => {
            let carried = &mut row.networks[network as usize];
            plus(&mut carried.receive_bytes, share.rate(Counter::ReadBytes));
            plus(&mut carried.send_bytes, share.rate(Counter::WriteBytes));
            plus(&mut carried.send_wait, share.rate(Counter::Wait));
            plus(&mut carried.drops, share.rate(Counter::Operations));
        }
        // These are looked at by name; see `numbers`.
        Kind::Number => (),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SECOND;
    use crate::sources::Counters;

    fn piece(from: Nanos, to: Nanos, values: &[(Counter, i64)]) -> Piece {
        let mut growth = Counters::default();
        for (counter, value) in values {
            growth[*counter as usize] = Some(*value);
        }
        Piece { from: from * SECOND, to: to * SECOND, growth, reset: false, gap: false }
    }

    /// Goal: an average is sum by count of the interval, a rate growth by time, and what no piece covers is empty; all
    /// by hand. Method: intervals of 10 s from 100 s on; a piece over one and a half of them, none, then no request.
    #[test]
    fn by_hand() {
        let mut grid = Grid::new(100 * SECOND, 150 * SECOND, 10 * SECOND);
        let queue = [(Counter::WaitCount, 30), (Counter::Wait, 600), (Counter::DepthCount, 30), (Counter::Depth, 90)];
        let pieces = [piece(100, 115, &queue), piece(130, 140, &queue.map(|(counter, _)| (counter, 0)))];
        grid.add(&Series::of_tests(Kind::Service), &pieces);
        let rows = &grid.rows;
        assert_eq!((rows[0].wait, rows[0].depth, rows[0].requests), (Some(20.0), Some(3.0), Some(2.0)));
        // 5 of 10 seconds are known, and the rate is of these.
        assert_eq!((rows[1].wait, rows[1].requests), (Some(20.0), Some(2.0)));
        assert_eq!((rows[2].wait, rows[2].requests), (None, None));
        assert_eq!((rows[3].wait, rows[3].depth, rows[3].requests), (None, None, Some(0.0)));
        assert_eq!((rows[4].requests, rows[0].active), (None, None));
    }

    /// Goal: two targets add up, and one that is not known takes nothing from the other.
    #[test]
    fn targets_add_up() {
        let mut grid = Grid::new(0, 20 * SECOND, 10 * SECOND);
        grid.add(&Series::of_tests(Kind::Target), &[piece(0, 20, &[(Counter::ReadBytes, 2000)])]);
        grid.add(&Series::of_tests(Kind::Target), &[piece(0, 10, &[(Counter::ReadBytes, 500)])]);
        assert_eq!((grid.rows[0].read_bytes, grid.rows[1].read_bytes), (Some(150.0), Some(100.0)));
        assert_eq!(grid.rows[0].write_bytes, None);
    }
}
