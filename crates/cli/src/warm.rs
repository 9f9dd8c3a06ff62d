//! `--warm` of `up` and `run`: memory of the stores is touched before anybody waits for it.
//!
//! The first touch of a page costs many times what a copy into it does, most of all where a virtual machine has not
//! used that memory before. What files leave in a store is used again first; so room is taken for a file without a
//! name, and the file given up. Where that is cut off, its servers do the latter.

use crate::activity::{Activity, Prints};
use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome};
use crate::session::Session;
use crate::text::{duration_words, plural, size_words};
use crate::together::{Either, join_all, race};
use client::{Allocation, OpenHow, Options, load_cluster};
use reactor::Reactor;
use reactor::process::{SIGCHLD, Signals};
use std::path::Path;

/// Bytes of a chunk of the file.
const CHUNK_SIZE: u32 = 1 << 20;
/// Chunks of each server that are touched by one call: so many milliseconds at worst, after which it says how far it
/// is.
const STEP_CHUNKS: u64 = 8;

/// Bytes of each store that are wanted warm. A setting that holds for every start is about new clusters: where there is
/// data already, pages have been touched, and there may be no room.
fn wanted(arguments: &Arguments, is_new: bool) -> Option<u64> {
    let counts = is_new || arguments.is_on_command_line("warm");
    arguments.number_given("warm").filter(|size| counts && *size > 0)
}

/// Warms the stores of the cluster in a run directory, if that is wanted, and says how much. Errors: a store has less
/// room, a signal that asks to stop, and what concerns the servers; the cluster is as before then.
pub fn warm(
    arguments: &Arguments,
    reactor: &Reactor,
    signals: &Signals,
    run_directory: &Path,
    is_new: bool,
) -> Outcome {
    let Some(size) = wanted(arguments, is_new) else { return Ok(()) };
    let cluster = load_cluster(run_directory).map_err(|error| Failure::failed(error.message))?;
    let options = Options::of_this_process().map_err(|error| Failure::failed(error.message))?;
    let session = Session::on(reactor, cluster, options);
    let count = u64::from(session.files.server_count());
    session.block_on(check_room(&session, size))?;
    let activity = Activity::of_bytes("warmed");
    activity.set_total(size * count);
    let begun = reactor.now();
    let work = race(touch(&session, size, &activity), activity.show(reactor, arguments, Prints::AtTheEnd));
    match session.block_on(race(work, asked_to_stop(signals))) {
        Either::First(Either::First(touched)) => touched.map_err(|error| {
            let done = size_words(activity.done.get());
            Failure::failed(format!("--warm: {} ({done} were warmed)", error.message))
        })?,
        Either::First(Either::Second(())) => unreachable!("progress is shown until the work is done"),
        Either::Second(()) => {
            let done = size_words(activity.done.get());
            return Err(Failure::failed(format!("--warm: stopped after {done}")));
        }
    }
    let took = duration_words(reactor.now() - begun);
    println!("{} of {} warmed in {took}", size_words(size), plural(count, "store"));
    Ok(())
}

/// A child that ended is somebody else's matter.
async fn asked_to_stop(signals: &Signals) {
    while signals.next().await.number == SIGCHLD {}
}

/// Refuses what does not fit, before any of it is touched.
async fn check_room(session: &Session, size: u64) -> Outcome {
    let servers = 0..session.files.server_count();
    for (server, reply) in (0..).zip(join_all(servers.map(|server| session.files.stat_server(server))).await) {
        let free = reply.map_err(|error| Failure::failed(format!("--warm: {}", error.message)))?.bytes_free;
        if free < size {
            return Err(too_much(size, &format!("the store of server {server} has {} free", size_words(free))));
        }
    }
    Ok(())
}

/// Refuses what no store of a new cluster has, before anything of it is made.
pub fn check(arguments: &Arguments, store_size: u64) -> Outcome {
    match wanted(arguments, true) {
        Some(size) if size > store_size => Err(too_much(size, &format!("each store has {}", size_words(store_size)))),
        _ => Ok(()),
    }
}

fn too_much(size: u64, why: &str) -> Failure {
    let size = size_words(size);
    Failure::failed(format!(
        "--warm {size}: {why}; ask for less, or give the stores more with --store memory:size=SIZE"
    ))
}

async fn touch(session: &Session, size: u64, activity: &Activity) -> client::Result<()> {
    let files = &session.files;
    let how = OpenHow { temporary: true, write: true, mode: 0o600, chunk_size: CHUNK_SIZE, ..OpenHow::default() };
    let file = files.open(b"/", &how).await?;
    let (count, step) = (u64::from(files.server_count()), STEP_CHUNKS * u64::from(CHUNK_SIZE));
    let (total, step) = (size * count, step * count);
    let mut touched = Ok(());
    let mut offset = 0;
    while offset < total && touched.is_ok() {
        let part = step.min(total - offset);
        touched = files.allocate(&file, Allocation::Reserve, true, offset, part).await;
        activity.add(part);
        offset += part;
    }
    // When this has been answered, all of it is free on all servers.
    let freed = files.truncate_file(&file, 0).await.map(drop);
    files.close(&file).await;
    touched.and(freed)
}
