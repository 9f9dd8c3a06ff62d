//! `tabane-report thin`: fewer samples of times that are long past, so that a place that is written to for months stays
//! small. Samples are what was counted in all, so the sums of longer times stay to the byte; only when within one of
//! the intervals something happened is not known any more.

use crate::clock::{self, Nanos, SECOND};
use crate::failure::Outcome;
use crate::options::ThinOptions;
use crate::{place, words};
use rusqlite::{Connection, TransactionBehavior, params};
use std::path::Path;

/// Of each interval of a series the last sample stays, and the last before counters began anew. `?1`: a pattern of
/// servers; `?2` to `?3`: from when to when; `?4`: length of the intervals.
const THIN: &str = "DELETE FROM samples WHERE (series, time_ns) IN (
    SELECT series, time_ns FROM (
        SELECT series, time_ns, lead(time_ns) OVER later AS next_ns, row_number() OVER later AS number,
            coalesce(lead(since_ns) OVER later <> since_ns, 0)
            OR coalesce(lead(wait_count) OVER later < wait_count, 0)
            OR coalesce(lead(depth_count) OVER later < depth_count, 0)
            OR coalesce(lead(active_count) OVER later < active_count, 0)
            OR coalesce(lead(reads) OVER later < reads, 0)
            OR coalesce(lead(writes) OVER later < writes, 0)
            OR coalesce(lead(operations) OVER later < operations, 0)
            OR coalesce(lead(read_bytes) OVER later < read_bytes, 0)
            OR coalesce(lead(write_bytes) OVER later < write_bytes, 0) AS is_last_of_life
        FROM samples
        WHERE series IN (SELECT series FROM series JOIN servers USING (server) WHERE servers.name GLOB ?1)
            AND time_ns >= ?2 AND time_ns < ?3
        WINDOW later AS (PARTITION BY series ORDER BY time_ns))
    WHERE number > 1 AND next_ns / ?4 = time_ns / ?4 AND NOT is_last_of_life)";

/// Which samples, and how many of them stay.
pub struct Thinning<'a> {
    /// Names of servers, with `*` for any letters.
    pub servers: &'a str,
    pub from: Nanos,
    pub before: Nanos,
    /// Of each so long interval one sample stays.
    pub every: Nanos,
}

/// Takes samples away, in one transaction. Returns how many.
pub fn thin(connection: &mut Connection, file: &Path, thinning: &Thinning<'_>) -> Outcome<u64> {
    let failed = |error: rusqlite::Error| place::about(file, &error);
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    let Thinning { servers, from, before, every } = *thinning;
    let count = transaction.execute(THIN, params![servers, from, before, every.max(1)]).map_err(failed)?;
    transaction.commit().map_err(failed)?;
    Ok(count as u64)
}

pub fn run(options: &ThinOptions) -> Outcome {
    drop(place::open(&options.place)?);
    let (mut connection, _) = place::open_or_make(&options.place)?;
    let ago = (options.older * SECOND as f64).min(Nanos::MAX as f64) as Nanos;
    let thinning = Thinning {
        servers: &options.servers,
        from: Nanos::MIN,
        before: clock::now().saturating_sub(ago),
        every: (options.every * SECOND as f64) as Nanos,
    };
    let count = thin(&mut connection, &options.place, &thinning)?;
    eprintln!("{}: {} taken away", options.place.display(), words::plural(count, "sample"));
    Ok(())
}
