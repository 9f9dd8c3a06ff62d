//! What operations cost: requests of the client, how often it waits, and requests between servers, as functions of the
//! number of servers. The table is the one in docs/semantics.md, and each of its lines is counted here.

mod cluster;
mod contents;
mod names;
mod stage;
mod table;

use stage::Stage;
use std::collections::BTreeSet;
use table::{About, Row};
use wire::Operation;

/// Requests that belong to no line: those that follow a failure, and those of the servers' owner. Reads from lent
/// memory and writes to it are counted with real servers (`lent.rs` and `registered_buffers.rs` in
/// `crates/client/tests`). What contacts are asked, and ask, depends on how many open a file at a time:
/// `crates/sim/tests/scale.rs` counts it. Over a backing tree a server asks once for each file that it has a part of
/// (AskPlace), and flushes ask about all that was changed; mounts that have entries kept ask each server all the time
/// (KeepEntries). A large body of a file that is throttled takes an AwaitPermit before it and a ReturnPermit after it,
/// which nobody waits for. Nor does anybody for what clients count (NoteCounters), once a second.
const WITHOUT_LINE: [Operation; 30] = [
    Operation::AwaitPermit,
    Operation::ReturnPermit,
    Operation::NoteCounters,
    Operation::OpenThrough,
    Operation::Delegate,
    Operation::Recall,
    Operation::CloseHeld,
    Operation::ReclaimHeld,
    Operation::Reclaim,
    Operation::AskDecision,
    Operation::Shutdown,
    Operation::Repair,
    Operation::Locate,
    Operation::RegisterBuffers,
    Operation::CommitRegistered,
    Operation::AskPlace,
    Operation::Flush,
    Operation::ListChanges,
    Operation::AskForFlush,
    Operation::Stage,
    Operation::CacheState,
    Operation::AskCarried,
    Operation::CarryInode,
    Operation::GiveUpName,
    Operation::ListCarried,
    Operation::CompareShare,
    Operation::WriteShare,
    Operation::NoteCarried,
    Operation::NoteBehind,
    Operation::KeepEntries,
];
const SERVERS_MAX: u32 = 8;
const DOCUMENTATION: &str = include_str!("../../../../docs/semantics.md");

fn rows() -> Vec<Row> {
    [names::rows(), contents::rows(), cluster::rows()].into_iter().flatten().collect()
}

/// Goal: every operation costs what its line says, for 1 to 8 servers and for files on one, two and all of them; and
/// every request that there is belongs to a line. Method: each case is carried out twice on a simulated cluster whose
/// messages take a fixed time, the second time with all connections made; requests are those that the servers counted,
/// waiting is virtual time.
#[test]
fn costs() {
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for servers in 1..=SERVERS_MAX {
        let mut stage = Stage::new(servers);
        for row in rows().iter().filter(|row| row.servers_min <= servers) {
            let holders: BTreeSet<u32> = [row.holders_min, 2, servers].into();
            let fits = |count: &u32| *count >= row.holders_min && *count <= servers;
            for holders in holders.into_iter().filter(fits).take(if row.uses('m') { 3 } else { 1 }) {
                stage.holders = holders;
                for (number, case) in row.cases.iter().enumerate() {
                    case(&stage);
                    let (measured, expected) = (case(&stage), row.expected(&stage));
                    if measured != expected {
                        wrong.push(format!(
                            "{} (case {number}), {servers} servers, {holders} with parts:\n    \
                             {measured:?} instead of\n    {expected:?}",
                            row.what
                        ));
                    }
                }
            }
        }
        seen.extend(stage.arrivals().into_keys());
    }
    assert!(wrong.is_empty(), "{} costs are not as the table says:\n{}", wrong.len(), wrong.join("\n"));
    let without: Vec<&str> = Operation::ALL
        .iter()
        .filter(|operation| !seen.contains(&(**operation as u16)) && !WITHOUT_LINE.contains(operation))
        .map(|operation| operation.name())
        .collect();
    assert!(without.is_empty(), "no line of the table counts {without:?}");
}

/// Goal: operations on files take no step that grows with the number of servers, but with that of servers that hold
/// parts of the file.
#[test]
fn files_do_not_grow_with_servers() {
    for row in rows().iter().filter(|row| row.about == About::Files) {
        assert!(!row.uses('N'), "{}", row.what);
    }
}

/// Goal: the documentation shows the table.
#[test]
fn documented() {
    let lines: Vec<String> = rows().iter().map(Row::line).collect();
    let missing: Vec<&String> = lines.iter().filter(|line| !DOCUMENTATION.contains(*line)).collect();
    assert!(missing.is_empty(), "docs/semantics.md, \"Costs\", should show:\n{}", lines.join("\n"));
}
