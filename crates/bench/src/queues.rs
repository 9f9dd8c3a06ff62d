//! What a step of all processes did to the servers: how many requests waited at each and were at work, and how long
//! each waited. Means are over the time that the step took, by what servers count (docs/counters.md).

use crate::engine::{Engine, Line, Served};
use crate::step::Step;

const MIB: f64 = 1_048_576.0;

/// Of one server, or of all; then means are over the servers too.
#[derive(Debug, Clone, Copy)]
pub struct Queues {
    pub seconds: f64,
    /// Requests of processes, all of them.
    pub requests: u64,
    /// Means over time.
    pub depth: f64,
    pub active: f64,
    /// For each request, in microseconds: before it was begun, and for a permit before it was sent.
    pub wait_us: f64,
    pub permit_us: f64,
}

/// A step that was measured.
pub struct QueuedStep {
    /// Bytes that the processes moved.
    pub bytes: u64,
    pub all: Queues,
    /// By server.
    pub servers: Vec<Queues>,
    /// What each server received and sent, in bytes.
    pub served_bytes: Vec<u64>,
}

impl Queues {
    fn of(served: &[Served], seconds: f64) -> Queues {
        let sum = |of: fn(&Served) -> u64| served.iter().map(of).sum::<u64>();
        let server_ns = seconds * 1e9 * served.len().max(1) as f64;
        let requests = sum(|served| served.requests);
        let by_request = |ns: u64| ns as f64 / 1_000.0 / requests.max(1) as f64;
        Queues {
            seconds,
            requests,
            depth: sum(|served| served.wait_ns) as f64 / server_ns,
            active: sum(|served| served.active_ns) as f64 / server_ns,
            wait_us: by_request(sum(|served| served.wait_ns)),
            permit_us: by_request(sum(|served| served.permit_ns)),
        }
    }
}

impl QueuedStep {
    /// Has all processes do a step.
    pub fn measure(engine: &mut dyn Engine, step: &Step) -> Result<QueuedStep, String> {
        let before = engine.served()?;
        let outcome = engine.all(step)?;
        let served = Served::between(&before, &engine.served()?);
        let of = |served: &[Served]| Queues::of(served, outcome.seconds);
        Ok(QueuedStep {
            bytes: outcome.work(),
            all: of(&served),
            servers: served.iter().map(|one| of(std::slice::from_ref(one))).collect(),
            served_bytes: served.iter().map(|one| one.bytes).collect(),
        })
    }

    /// Bytes of the processes in a second.
    pub fn mib_per_s(&self) -> f64 {
        self.bytes as f64 / MIB / self.all.seconds
    }

    /// Adds what was measured to a line.
    pub fn put(&self, line: Line) -> Line {
        let all = &self.all;
        let line = line.put("bytes", self.bytes).put("requests", all.requests);
        let line = line.put_rounded("seconds", all.seconds, 6).put_rounded("mib_per_s", self.mib_per_s(), 1);
        let line = line.put_rounded("req_qdepth", all.depth, 3).put_rounded("req_active", all.active, 3);
        line.put_rounded("req_waittime_us", all.wait_us, 3).put_rounded("permit_wait_us", all.permit_us, 3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: means are over servers and time, waits over requests. Method: two servers, counted by hand.
    #[test]
    fn means() {
        let one = Served { requests: 30, wait_ns: 6_000_000, active_ns: 1_000_000, ..Served::default() };
        let other = Served { requests: 10, wait_ns: 2_000_000, permit_ns: 400_000, ..Served::default() };
        let all = Queues::of(&[one, other], 0.002);
        assert_eq!((all.requests, all.depth, all.active), (40, 2.0, 0.25));
        assert_eq!((all.wait_us, all.permit_us), (200.0, 10.0));
        assert_eq!(Queues::of(&[other], 0.002).depth, 1.0);
    }
}
