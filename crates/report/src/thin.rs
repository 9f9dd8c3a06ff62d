//! `tabane-report thin`: fewer samples of times that are long past, so that a place that is written to for months stays
//! small. Samples are what was counted in all, so the sums of longer times stay to the byte; only when within one of
//! the intervals something happened is not known any more.

use crate::clock::{self, Nanos, SECOND};
use crate::database::{self, Database, values};
use crate::failure::Outcome;
use crate::options::ThinOptions;
use crate::{place, words};
use std::path::Path;

/// Of each interval of a series the last sample stays, and the last before counters began anew. `?1`: a server; `?2` to
/// `?3`: from when to when; `?4`: length of the intervals.
const THIN: &str = "DELETE FROM samples WHERE (series, time_ns) IN (
    SELECT series, time_ns FROM (
        SELECT series, time_ns, lead(time_ns) OVER later AS next_ns, row_number() OVER later AS number,
            coalesce(lead(since_ns) OVER later <> since_ns, FALSE)
            OR coalesce(lead(wait_count) OVER later < wait_count, FALSE)
            OR coalesce(lead(depth_count) OVER later < depth_count, FALSE)
            OR coalesce(lead(active_count) OVER later < active_count, FALSE)
            OR coalesce(lead(reads) OVER later < reads, FALSE)
            OR coalesce(lead(writes) OVER later < writes, FALSE)
            OR coalesce(lead(operations) OVER later < operations, FALSE)
            OR coalesce(lead(read_bytes) OVER later < read_bytes, FALSE)
            OR coalesce(lead(write_bytes) OVER later < write_bytes, FALSE) AS is_last_of_life
        FROM samples
        WHERE series IN (SELECT series FROM series WHERE server = ?1)
            AND time_ns >= ?2 AND time_ns < ?3
        WINDOW later AS (PARTITION BY series ORDER BY time_ns)) AS following
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

/// Whether a name fits a pattern, in which `*` stands for any letters.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            name.char_indices().map(|(index, _)| index).chain([name.len()]).any(|index| fits(rest, &name[index..]))
        }),
    }
}

/// Takes samples away, in one transaction. Returns how many.
pub fn thin(database: &Database, file: &Path, thinning: &Thinning<'_>) -> Outcome<u64> {
    let failed = |error: database::Error| place::about(file, &error);
    let transaction = database.begin().map_err(failed)?;
    let Thinning { servers, from, before, every } = *thinning;
    let all = database.query("SELECT server, name FROM servers", &[], |row| Ok((row.get(0)?, row.get::<String>(1)?)));
    let mut count = 0;
    for (server, _) in all.map_err(failed)?.iter().filter(|(_, name)| fits(servers, name)) {
        let server: i64 = *server;
        count += database.execute(THIN, values![server, from, before, every.max(1)]).map_err(failed)?;
    }
    transaction.commit().map_err(failed)?;
    Ok(count)
}

pub fn run(options: &ThinOptions) -> Outcome {
    drop(place::open(&options.place)?);
    let (database, _) = place::open_or_make(&options.place)?;
    let ago = (options.older * SECOND as f64).min(Nanos::MAX as f64) as Nanos;
    let thinning = Thinning {
        servers: &options.servers,
        from: Nanos::MIN,
        before: clock::now().saturating_sub(ago),
        every: (options.every * SECOND as f64) as Nanos,
    };
    let count = thin(&database, &options.place, &thinning)?;
    eprintln!("{}: {} taken away", options.place.display(), words::plural(count, "sample"));
    Ok(())
}
