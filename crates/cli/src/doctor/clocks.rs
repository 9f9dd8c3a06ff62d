//! How far the clocks of a cluster's servers are from this machine's.
//!
//! Each server is asked for its time once. Its answer was made some time between question and answer, so half of the
//! time between these is how far the difference may be wrong (Cristian 1989, Probabilistic clock synchronization).

use super::checks::{Finding, ok, warning};
use crate::arguments::Arguments;
use crate::session::{Session, find_cluster};
use crate::text::duration_words;
use crate::together::join_all;
use client::{Options, StatisticsFormat};
use reactor::Nanos;
use serde_json::Value;

const SUBJECT: &str = "clocks of servers";
/// Times never go back along a chain of operations, however far clocks are apart (docs/hosts.md); from here on they
/// surprise people.
const DIFFERENCE_MAX: Nanos = 60_000_000_000;
/// How long a server may take to tell its time, unless the command line says otherwise.
const TIMEOUT_MS: u64 = 3000;

/// A server's clock; both in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Difference {
    server: u32,
    /// How far it is ahead of ours.
    ahead: i64,
    /// How far that may be wrong.
    error: u64,
}

impl Difference {
    /// The least by which the clocks differ.
    fn least(&self) -> u64 {
        self.ahead.unsigned_abs().saturating_sub(self.error)
    }
}

/// The servers of the cluster that the command line, the environment or the default names; nothing where there is none.
pub fn look(arguments: &Arguments) -> Option<Finding> {
    let cluster = find_cluster(arguments).ok()?;
    let mut options = Options::of_this_process().ok()?;
    options.timeout_ms = arguments.number_given("timeout-ms").unwrap_or(TIMEOUT_MS);
    let count = cluster.server_count();
    let session = Session::with(cluster, options).ok()?;
    let answers = session.block_on(join_all((0..count).map(|server| ask(&session, server))));
    Some(finding(&answers.into_iter().flatten().collect::<Vec<Difference>>(), count))
}

/// Nothing of a server that does not answer: `tabane status` says why.
async fn ask(session: &Session, server: u32) -> Option<Difference> {
    // Connecting takes a while, which is no part of the question.
    session.files.ping(server).await.ok()?;
    let (asked, started) = (session.reactor.wall_clock(), session.reactor.now());
    let text = session.files.server_statistics(server, StatisticsFormat::JSON).await.ok()?;
    let error = (session.reactor.now() - started) / 2;
    let report: Value = serde_json::from_str(&text).ok()?;
    let time = report["wall_clock_ns"].as_i64()?;
    Some(Difference { server, ahead: time.saturating_sub(asked.saturating_add(error as i64)), error })
}

fn finding(known: &[Difference], server_count: u32) -> Finding {
    let silent = match server_count as usize - known.len() {
        0 => String::new(),
        count => format!("; {count} of {server_count} servers did not answer ('tabane status' says why)"),
    };
    let apart = |difference: &&Difference| difference.least() > DIFFERENCE_MAX;
    let far: Vec<String> = known
        .iter()
        .filter(apart)
        .map(|difference| {
            let side = if difference.ahead < 0 { "behind" } else { "ahead" };
            format!("server {} {} {side}", difference.server, duration_words(difference.ahead.unsigned_abs()))
        })
        .collect();
    if !far.is_empty() {
        return warning(
            SUBJECT,
            format!("not that of this machine: {}{silent}", far.join(", ")),
            "nothing breaks by it, but times of files jump by as much; from a minute on it is worth mending: set the \
             clocks of these hosts and of this one by the network (timedatectl set-ntp true, or chronyd)",
        );
    }
    match known.iter().map(|difference| difference.ahead.unsigned_abs() + difference.error).max() {
        None => warning(SUBJECT, "no server answered", "'tabane status' says why"),
        Some(most) => ok(SUBJECT, format!("within {} of this machine's{silent}", short_words(most))),
    }
}

/// A short time, rounded up.
fn short_words(duration: Nanos) -> String {
    match duration {
        ..1_000_000_000 => format!("{} ms", duration.div_ceil(1_000_000)),
        _ => duration_words(duration),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::checks::Health;

    const SECOND: i64 = 1_000_000_000;

    fn differences(ahead: &[i64]) -> Vec<Difference> {
        (0..).zip(ahead).map(|(server, ahead)| Difference { server, ahead: *ahead, error: 2_000_000 }).collect()
    }

    /// Goal: what is tolerated without a word is called well with its size; what is beyond is named, with the server
    /// and the side.
    #[test]
    fn differences_in_words() {
        let near = finding(&differences(&[SECOND / 100, -SECOND / 50]), 2);
        assert_eq!((near.health, near.found.as_str()), (Health::Ok, "within 22 ms of this machine's"));
        let limit = finding(&differences(&[60 * SECOND]), 1);
        assert_eq!(limit.health, Health::Ok);
        let far = finding(&differences(&[0, -61 * SECOND, 7200 * SECOND]), 4);
        assert_eq!(far.health, Health::Warning);
        assert!(far.found.contains("server 1 1 min 01 s behind, server 2 2 h 00 min ahead"), "{}", far.found);
        assert!(far.found.contains("1 of 4 servers did not answer") && far.advice.contains("set-ntp"), "{}", far.found);
        assert_eq!(finding(&[], 1).health, Health::Warning);
    }
}
