//! The only clock of this program. It is no part of a cluster, so that no simulator ever drives it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Nanoseconds since 1970, UTC.
pub type Nanos = i64;

pub const SECOND: Nanos = 1_000_000_000;

#[allow(clippy::disallowed_methods)] // See above.
pub fn now() -> Nanos {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => Nanos::try_from(since.as_nanos()).unwrap_or(Nanos::MAX),
        Err(_) => 0,
    }
}

#[allow(clippy::disallowed_methods)] // See above.
pub fn monotonic() -> Instant {
    Instant::now()
}

#[allow(clippy::disallowed_methods)] // See above.
pub fn sleep_until(moment: Instant) {
    std::thread::sleep(moment.saturating_duration_since(monotonic()));
}

pub fn seconds(count: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(count).ok()
}
