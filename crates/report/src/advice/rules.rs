//! The table of rules. What a threshold says and what its function does stand side by side: change both.

use super::evidence::{Evidence, ServerEvidence, Stretch};
use crate::analysis::Row;
use crate::sources::tabane::{ANSWER_NS, ANSWERS, CROSSING_CALLS, SERVED_NS, WAITS};
use crate::times;
use crate::words::{count, microseconds, name, number, plural, size};

/// One rule.
pub struct Rule {
    pub name: &'static str,
    /// What is looked at.
    pub measure: &'static str,
    /// From where on it fires, in words.
    pub threshold: &'static str,
    pub change: &'static str,
    /// Of the book.
    pub chapter: &'static str,
    pub judge: fn(&Evidence, &'static Rule) -> Vec<Finding>,
}

/// What a rule has found.
pub struct Finding {
    pub rule: &'static Rule,
    /// How much worse than others of the rule.
    pub weight: f64,
    pub words: String,
}

const MIB: f64 = 1024.0 * 1024.0;
/// Less than this is no load that anybody waits for.
const BYTES_LEAST: f64 = 256.0 * MIB;
/// Part of the known intervals in which something has to hold.
const PART_LEAST: f64 = 0.05;
const DATA_OPERATIONS: [&str; 6] = ["Read", "Write", "Append", "CommitRegistered", "Locate", "RegisterBuffers"];

const fn rule(
    name: &'static str,
    measure: &'static str,
    threshold: &'static str,
    change: &'static str,
    chapter: &'static str,
    judge: fn(&Evidence, &'static Rule) -> Vec<Finding>,
) -> Rule {
    Rule { name, measure, threshold, change, chapter, judge }
}

pub static RULES: [Rule; 29] = [
    rule(
        "other-job",
        "part of the job's waiting that is because of one other job",
        "30 %, of 10 s at least",
        "run them at different times, or on different servers; `neighbours` has seconds and servers",
        "report.md",
        other_job,
    ),
    rule(
        "queue",
        "requests that a request finds waiting (`req_qdepth`)",
        "16 in 5 % of the known time",
        "let fewer processes write at once, or larger pieces (collective buffering), or use more servers",
        "tuning.md",
        queue,
    ),
    rule(
        "slow-storage",
        "time that a request waits, though fewer than 2 do",
        "20 ms in 5 % of the known time",
        "have the server's disks looked at: it is not the number of requests",
        "measuring.md",
        slow_storage,
    ),
    rule(
        "long-wait",
        "time that a request waits at a server of Tabane, but for the reasons of `wait-...`",
        "10 ms in 5 % of the known time",
        "start more servers, or leave them cores of their own (`--pin`)",
        "tuning.md",
        long_wait,
    ),
    rule(
        "wait-lock",
        "requests that wait for a lock of a name or inode, or for the end of a lease or delegation",
        "1 on average in 5 % of the known time",
        "let not several processes change, rename or lock the same names and files at once",
        "semantics.md",
        wait_lock,
    ),
    rule(
        "wait-journal",
        "requests that wait for room in the journal",
        "1 on average in 5 % of the known time",
        "use a larger `--journal-size`, or a faster medium for the store",
        "tuning.md",
        wait_journal,
    ),
    rule(
        "wait-sync",
        "requests that wait for a sync of the store",
        "1 on average in 5 % of the known time",
        "call fsync where a state is whole, or use a faster medium for the store",
        "semantics.md",
        wait_sync,
    ),
    rule(
        "wait-disk",
        "requests that wait for the backing directory",
        "1 on average in 5 % of the known time",
        "bring what is read before it is wanted (`tabane stage`), or have the site's file system looked at",
        "cache.md",
        wait_disk,
    ),
    rule(
        "network",
        "time that an answer takes beyond what the server says it took",
        "10 ms, and one on its way for half of the time, in 5 % of the known time",
        "have the network looked at (`import --network` reads what ports count), or leave programs cores of their own",
        "hosts.md",
        network,
    ),
    rule(
        "hot-server",
        "part of all bytes that one server has",
        "more than twice the mean of 4 servers or more, 80 % of 3, 90 % of 2; of 256 MiB at least",
        "stripe the file over more servers: a chunk size no larger than what a call passes",
        "tuning.md",
        hot_server,
    ),
    rule(
        "idle-servers",
        "servers that have less than 1 % of the mean bytes",
        "half of 4 servers or more; of 256 MiB at least",
        "use larger files or smaller chunks, so that all servers have a part; or fewer servers",
        "tuning.md",
        idle_servers,
    ),
    rule(
        "hot-names",
        "part of all calls on names and files, and not on data, that one server has",
        "more than twice the mean of 4 servers or more, 80 % of 3, 90 % of 2; of 100,000 at least",
        "let not all processes ask for one name again and again: one asks, and tells the others",
        "concepts.md",
        hot_names,
    ),
    rule(
        "busy-loop",
        "part of the time in which a server's loop is at work",
        "90 % in 10 % of the known time",
        "start more servers, or larger calls: one server is one core",
        "tuning.md",
        busy_loop,
    ),
    rule(
        "small-writes",
        "bytes of a write on average",
        "below 32 KiB, of 10,000 writes at least, four for each open",
        "write larger pieces: buffer in the program, or let MPI-IO gather",
        "tuning.md",
        small_writes,
    ),
    rule(
        "small-reads",
        "bytes of a read on average",
        "below 32 KiB, of 10,000 reads at least, four for each open",
        "read larger pieces, or let clients read beside the servers, where reads in shared memory need no request",
        "ways.md",
        small_reads,
    ),
    rule(
        "across-chunks",
        "reads and writes no larger than a chunk that touch two",
        "10,000, a quarter of all pieces",
        "make files with a `--chunk-size` that is the size of such a call or a multiple",
        "tuning.md",
        across_chunks,
    ),
    rule(
        "slow-rank",
        "time that one process of a parallel program waits for answers",
        "3 times that of the others on average, and a tenth of the time more than they do",
        "share the work out evenly; where it asks no more than others, have its host looked at",
        "measuring.md",
        slow_rank,
    ),
    rule(
        "many-calls",
        "calls on names and files for each one on data",
        "10, of 100,000 at least",
        "put many small files into few large ones, keep files open, list directories once",
        "tuning.md",
        many_calls,
    ),
    rule(
        "fsync-storm",
        "fsyncs for each write",
        "a quarter, of 1,000 at least",
        "call fsync where a state is whole, not after each piece",
        "semantics.md",
        fsync_storm,
    ),
    rule(
        "recalls",
        "delegations that a server calls back a second",
        "10 in 5 % of the known time",
        "let files that many have open be changed by few, or start with `--contact off`",
        "tuning.md",
        recalls,
    ),
    rule(
        "awaited-leases",
        "changes a second that wait until readers have given up what they hold",
        "1 in 5 % of the known time",
        "let nobody write to a file that many read just then",
        "shared-memory.md",
        awaited_leases,
    ),
    rule(
        "full-store",
        "part of a store that is free",
        "below 5 %",
        "use larger stores, or remove what is not needed any more",
        "troubleshooting.md",
        full_store,
    ),
    rule(
        "full-journal",
        "part of a journal that is used",
        "90 %",
        "use a larger `--journal-size`",
        "tuning.md",
        full_journal,
    ),
    rule(
        "failed-checkpoints",
        "checkpoints that failed",
        "one",
        "see to the room and the health of the medium; the server's log has the reason",
        "logs.md",
        failed_checkpoints,
    ),
    rule(
        "resends",
        "requests between servers that had to be sent again",
        "10",
        "see to the network; a server that is only slow is given up on later with a longer `--timeout-ms`",
        "hosts.md",
        resends,
    ),
    rule(
        "drops",
        "packets that a server's network gave up, a second",
        "1 in 5 % of the known time",
        "have the network's ports and cables looked at",
        "report.md",
        drops,
    ),
    rule(
        "relayed",
        "bytes that a server passed on for others, of all bytes",
        "a quarter, of 256 MiB at least",
        "allow more connections (`--connections-max`), so that clients reach servers by themselves",
        "relays.md",
        relayed,
    ),
    rule(
        "refused",
        "connections that a server refused",
        "one",
        "see 'tabane status' and the log: more clients than `--connections-max`, another version, or a wrong key",
        "logs.md",
        refused,
    ),
    rule(
        "restart",
        "counters of a server that began anew",
        "once",
        "find out why it was started again; its log and `tabane-report events` have what is known",
        "logs.md",
        restart,
    ),
];

/// Asks each server.
fn each(
    evidence: &Evidence,
    rule: &'static Rule,
    judge: impl Fn(&ServerEvidence) -> Option<(f64, String)>,
) -> Vec<Finding> {
    let found = evidence.servers.iter().filter_map(judge);
    found.map(|(weight, words)| Finding { rule, weight, words }).collect()
}

fn percent(part: f64) -> String {
    format!("{:.0} %", 100.0 * part)
}

impl Evidence {
    /// `for 40 % of the time, longest from 10:31:00 to 10:34:00`.
    fn when(&self, stretch: &Stretch) -> String {
        format!(
            "for {} of the time, longest from {} to {}",
            percent(stretch.share),
            times::clock_time(stretch.from, &self.zone),
            times::clock_time(stretch.to, &self.zone)
        )
    }

    /// Of a sum over servers, the part of the one with most, if that is too much.
    fn hottest(
        &self,
        least: f64,
        of: impl Fn(&ServerEvidence) -> Option<f64>,
    ) -> Option<(&ServerEvidence, f64, usize)> {
        let known: Vec<(&ServerEvidence, f64)> =
            self.servers.iter().filter_map(|server| Some((server, of(server)?))).collect();
        let sum: f64 = known.iter().map(|(_, value)| value).sum();
        let (server, most) = known.iter().copied().max_by(|one, other| one.1.total_cmp(&other.1))?;
        let threshold = match known.len() {
            0 | 1 => return None,
            2 => 0.9,
            3 => 0.8,
            count => 2.0 / count as f64,
        };
        (sum >= least && most / sum > threshold + 1e-6).then_some((server, most / sum, known.len()))
    }
}

fn other_job(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    let worth = evidence.others.iter().filter(|(_, part, seconds)| *part >= 0.3 && *seconds >= 10.0);
    let found = worth.map(|(id, part, seconds)| {
        let words = format!(
            "{} of what its requests waited was because of job {}: {}",
            percent(*part),
            name(id),
            microseconds(seconds * 1e6)
        );
        Finding { rule, weight: *part, words }
    });
    found.collect()
}

fn queue(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    each(evidence, rule, |server| {
        let stretch = server.stretch(|row| row.depth, |_, depth| depth >= 16.0)?;
        let words = format!(
            "at {} a request found {} waiting {}",
            name(&server.name),
            number(stretch.mean),
            evidence.when(&stretch)
        );
        (stretch.share >= PART_LEAST).then_some((stretch.share * stretch.mean, words))
    })
}

fn slow_storage(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    each(evidence, rule, |server| {
        let few = |row: &Row| row.depth.is_some_and(|depth| depth < 2.0);
        let wait = |row: &Row| row.wait.filter(|_| !server.is_tabane());
        let stretch = server.stretch(wait, |row, wait| wait >= 20e3 && few(row))?;
        let words = format!(
            "at {} requests waited for {} though fewer than 2 did, {}",
            name(&server.name),
            microseconds(stretch.mean),
            evidence.when(&stretch)
        );
        (stretch.share >= PART_LEAST).then_some((stretch.share * stretch.mean, words))
    })
}

/// Of servers of Lustre `queue` and `slow_storage` say more.
fn long_wait(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    each(evidence, rule, |server| {
        // How much of the waiting has a reason that another rule is about.
        let explained = |at: usize, row: &Row| {
            let known = server.rate(WAITS.iter().map(|(_, counter)| *counter), at)? / 1e9;
            Some((known / row.depth.filter(|depth| *depth > 0.0)?).min(1.0))
        };
        let wait = |at: usize, row: &Row| {
            let wait = row.wait.filter(|_| server.is_tabane())?;
            Some(wait * (1.0 - explained(at, row).unwrap_or(0.0)))
        };
        let stretch = server.stretch_at(wait, 10e3)?;
        let words = format!(
            "at {} requests waited for {}, {}",
            name(&server.name),
            microseconds(stretch.mean),
            evidence.when(&stretch)
        );
        (stretch.share >= PART_LEAST).then_some((stretch.share * stretch.mean, words))
    })
}

fn waiting(evidence: &Evidence, rule: &'static Rule, counter: &str, what: &str) -> Vec<Finding> {
    each(evidence, rule, |server| {
        let stretch = server.stretch_of(counter, 1e9)?;
        let count = number(stretch.mean / 1e9);
        let words = format!("at {} {count} requests waited for {what} {}", name(&server.name), evidence.when(&stretch));
        (stretch.share >= PART_LEAST).then_some((stretch.share * stretch.mean, words))
    })
}

fn wait_lock(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    waiting(evidence, rule, WAITS[0].1, "locks")
}

fn wait_journal(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    waiting(evidence, rule, WAITS[1].1, "room in the journal")
}

fn wait_sync(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    waiting(evidence, rule, WAITS[2].1, "syncs")
}

fn wait_disk(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    waiting(evidence, rule, WAITS[3].1, "the backing directory")
}

fn network(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    each(evidence, rule, |server| {
        let rate = |name: &'static str, at: usize| server.rate(std::iter::once(name), at);
        let beyond = |at: usize, _: &Row| {
            let (answers, ns) = (rate(ANSWERS, at)?, rate(ANSWER_NS, at)? - rate(SERVED_NS, at)?);
            // Where few ask, one late wake-up would be the mean.
            Some(if ns >= 0.5e9 { ns / answers.max(1.0) / 1e3 } else { 0.0 })
        };
        let stretch = server.stretch_at(beyond, 10e3)?;
        let words = format!(
            "answers of {} took {} on their way {}",
            name(&server.name),
            microseconds(stretch.mean),
            evidence.when(&stretch)
        );
        (stretch.share >= PART_LEAST).then_some((stretch.share * stretch.mean, words))
    })
}

fn hot_server(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    let found = evidence.hottest(BYTES_LEAST, ServerEvidence::bytes).map(|(server, part, count)| {
        let bytes = size(server.bytes().unwrap_or(0.0));
        let words = format!("{} had {} of the bytes of {count} servers: {bytes}", name(&server.name), percent(part));
        Finding { rule, weight: part, words }
    });
    found.into_iter().collect()
}

fn idle_servers(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    let known: Vec<f64> = evidence.servers.iter().filter_map(ServerEvidence::bytes).collect();
    let sum: f64 = known.iter().sum();
    let idle = known.iter().filter(|bytes| **bytes * 100.0 < sum / known.len() as f64).count();
    if known.len() < 4 || sum < BYTES_LEAST || 2 * idle < known.len() {
        return Vec::new();
    }
    let words = format!("{idle} of {} servers had next to nothing of {}", known.len(), size(sum));
    vec![Finding { rule, weight: 1.0, words }]
}

/// Calls of clients and servers that are not on data.
fn name_calls(server: &ServerEvidence) -> Option<f64> {
    server.operations(|operation| !DATA_OPERATIONS.contains(&operation) && operation != "Synchronise")
}

fn hot_names(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    let found = evidence.hottest(100_000.0, name_calls).map(|(server, part, servers)| {
        let calls = count(name_calls(server).unwrap_or(0.0) as u64);
        let words = format!(
            "{} had {} of the calls on names and files of {servers} servers: {calls}",
            name(&server.name),
            percent(part)
        );
        Finding { rule, weight: part, words }
    });
    found.into_iter().collect()
}

fn busy_loop(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    each(evidence, rule, |server| {
        let stretch = server.stretch_of("loop_busy_ns", 0.9e9)?;
        let words = format!(
            "{} was at work {} of each second {}",
            name(&server.name),
            percent((stretch.mean / 1e9).min(1.0)),
            evidence.when(&stretch)
        );
        (stretch.share >= 0.1).then_some((stretch.share, words))
    })
}

/// Times that files were opened or looked at, where servers tell.
fn opens(server: &ServerEvidence) -> Option<f64> {
    let asked = server.operations(|operation| operation.starts_with("Open") || operation == "MakeTemporary");
    Some(asked? + server.growth("client_looks").unwrap_or(0.0))
}

/// Files that are small themselves have no larger pieces: they are left out where there are few pieces for each open.
fn small(
    evidence: &Evidence,
    rule: &'static Rule,
    word: &str,
    of: impl Fn(&Row) -> Option<(f64, f64)>,
) -> Vec<Finding> {
    let pieces = sum_of(evidence, |server| Some(of(&server.whole)?.0 * server.seconds())).unwrap_or(0.0);
    if sum_of(evidence, opens).is_some_and(|opens| pieces < 4.0 * opens) {
        return Vec::new();
    }
    each(evidence, rule, |server| {
        let (calls, bytes) = of(&server.whole)?;
        let all = calls * server.seconds();
        let words = format!(
            "{} {word} at {} had {} on average",
            count(all.round() as u64),
            name(&server.name),
            size(bytes / calls)
        );
        (all >= 10_000.0 && bytes / calls < 32.0 * 1024.0).then_some((all, words))
    })
}

fn small_writes(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    small(evidence, rule, "writes", |row| Some((row.writes?, row.write_bytes?)))
}

fn small_reads(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    small(evidence, rule, "reads", |row| Some((row.reads?, row.read_bytes?)))
}

fn across_chunks(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    let crossing = sum_of(evidence, |server| server.growth(CROSSING_CALLS)).unwrap_or(0.0).round();
    let pieces = |row: &Row| row.reads.unwrap_or(0.0) + row.writes.unwrap_or(0.0);
    let pieces = sum_of(evidence, |server| Some(pieces(&server.whole) * server.seconds())).unwrap_or(0.0).round();
    if crossing < 10_000.0 || crossing * 4.0 < pieces {
        return Vec::new();
    }
    let words = format!("{} calls were cut in two, of {} pieces", count(crossing as u64), count(pieces as u64));
    vec![Finding { rule, weight: crossing, words }]
}

fn slow_rank(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    let mut found = Vec::new();
    for job in &evidence.ranks {
        let others = job.count - 1.0;
        if others < 1.0 {
            continue;
        }
        for rank in &job.told {
            let others_waited = (job.seconds - rank.seconds).max(0.0) / others;
            let others_answers = (job.answers - rank.answers).max(0.0) / others;
            let more = rank.seconds - others_waited;
            if more < 0.1 * evidence.seconds || rank.seconds < 3.0 * others_waited {
                continue;
            }
            let host = if rank.host.is_empty() { String::new() } else { format!(" on {}", name(&rank.host)) };
            let why = match rank.answers / others_answers.max(1.0) {
                times if times >= 1.5 => format!("it asked {} times as often", number(times)),
                _ => "though it asked no more often".to_owned(),
            };
            let words = format!(
                "rank {}{host} waited {} for answers, the other {} on average {}: {why}",
                name(&rank.name),
                microseconds(rank.seconds * 1e6),
                plural(others as u64, "rank"),
                microseconds(others_waited * 1e6)
            );
            found.push(Finding { rule, weight: more, words });
        }
    }
    found
}

/// Over all servers; none where none tells of its operations.
fn sum_of(evidence: &Evidence, of: impl Fn(&ServerEvidence) -> Option<f64>) -> Option<f64> {
    evidence.servers.iter().filter_map(of).reduce(|one, other| one + other)
}

fn many_calls(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    let Some(calls) = sum_of(evidence, name_calls) else { return Vec::new() };
    let on_data = sum_of(evidence, |server| server.operations(|operation| DATA_OPERATIONS.contains(&operation)));
    let on_data = on_data.unwrap_or(0.0);
    if calls < 100_000.0 || calls < 10.0 * on_data {
        return Vec::new();
    }
    let words = format!("{} calls on names and files came to {} on data", count(calls as u64), count(on_data as u64));
    vec![Finding { rule, weight: calls, words }]
}

fn fsync_storm(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    let of = |name: &'static str| sum_of(evidence, move |server| server.operations(|operation| operation == name));
    let fsyncs = of("Synchronise").unwrap_or(0.0);
    let writes: f64 = ["Write", "Append", "CommitRegistered"].into_iter().filter_map(of).sum();
    if fsyncs < 1_000.0 || fsyncs * 4.0 < writes {
        return Vec::new();
    }
    let words = format!("{} fsyncs came to {} writes", count(fsyncs as u64), count(writes as u64));
    vec![Finding { rule, weight: fsyncs, words }]
}

fn rate(
    evidence: &Evidence,
    rule: &'static Rule,
    counter: &str,
    least: f64,
    words: fn(&str, &str) -> String,
) -> Vec<Finding> {
    each(evidence, rule, |server| {
        let stretch = server.stretch_of(counter, least)?;
        let said = words(&name(&server.name), &number(stretch.mean));
        (stretch.share >= PART_LEAST)
            .then(|| (stretch.share * stretch.mean, format!("{said} {}", evidence.when(&stretch))))
    })
}

fn recalls(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    rate(evidence, rule, "delegations_recalled", 10.0, |server, rate| {
        format!("{server} called back {rate} delegations a second")
    })
}

fn awaited_leases(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    rate(evidence, rule, "read_leases_awaited", 1.0, |server, rate| {
        format!("at {server} {rate} changes a second waited for readers")
    })
}

fn full_store(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    each(evidence, rule, |server| {
        let total = server.numbers.get("bytes_total")?.most()?.1 as f64;
        let (at, free) = server.numbers.get("bytes_free")?.least()?;
        let part = free as f64 / total.max(1.0);
        let words = format!(
            "the store of {} had {} of {} free at {}",
            name(&server.name),
            size(free as f64),
            size(total),
            times::clock_time(at, &evidence.zone)
        );
        (part < 0.05).then_some((1.0 - part, words))
    })
}

fn full_journal(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    each(evidence, rule, |server| {
        let total = server.numbers.get("journal_size")?.most()?.1 as f64;
        let (at, used) = server.numbers.get("journal_used")?.most()?;
        let part = used as f64 / total.max(1.0);
        let words = format!(
            "the journal of {} had {} of {} in use at {}",
            name(&server.name),
            size(used as f64),
            size(total),
            times::clock_time(at, &evidence.zone)
        );
        (part >= 0.9).then_some((part, words))
    })
}

fn counted(
    evidence: &Evidence,
    rule: &'static Rule,
    counter: &str,
    least: f64,
    words: fn(&str, &str) -> String,
) -> Vec<Finding> {
    each(evidence, rule, |server| {
        // What is shared out to intervals adds up to whole numbers again, but for what floats lose.
        let grown = server.growth(counter)?.round();
        (grown >= least).then(|| (grown, words(&name(&server.name), &count(grown as u64))))
    })
}

fn failed_checkpoints(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    counted(evidence, rule, "checkpoints_failed", 1.0, |server, count| format!("{count} failed at {server}"))
}

fn resends(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    counted(evidence, rule, "resends", 10.0, |server, count| format!("{server} sent {count} requests again"))
}

fn drops(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    each(evidence, rule, |server| {
        let of = |row: &Row| row.networks.iter().filter_map(|carried| carried.drops).reduce(|one, other| one + other);
        let stretch = server.stretch(of, |_, drops| drops >= 1.0)?;
        let words = format!(
            "the network of {} gave up {} packets a second {}",
            name(&server.name),
            number(stretch.mean),
            evidence.when(&stretch)
        );
        (stretch.share >= PART_LEAST).then_some((stretch.share * stretch.mean, words))
    })
}

fn relayed(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    each(evidence, rule, |server| {
        let (relayed, own) = (server.growth("relay_bytes")?, server.bytes().unwrap_or(0.0));
        let words =
            format!("{} passed on {} for others, beside {} of its own", name(&server.name), size(relayed), size(own));
        (relayed >= BYTES_LEAST && relayed * 4.0 >= relayed + own).then_some((relayed, words))
    })
}

fn refused(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    counted(evidence, rule, "connections_refused", 1.0, |server, count| format!("{server} refused {count} connections"))
}

fn restart(evidence: &Evidence, rule: &'static Rule) -> Vec<Finding> {
    each(evidence, rule, |server| {
        let words = format!("the counters of {} began anew within this time", name(&server.name));
        // Each of its series counts, so that a number would say nothing.
        (server.resets > 0).then_some((server.resets as f64, words))
    })
}
