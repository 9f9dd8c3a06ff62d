//! `tabane down`: the end of a cluster.

use crate::arguments::Arguments;
use crate::commands::flush::{SOME_FAILED, are, flush_all, verify_all};
use crate::failure::{Failure, Outcome};
use crate::hosts::HostsRecord;
use crate::launch::stop_servers;
use crate::report::of_cluster;
use crate::run_directory::{RunDirectory, of_cluster_path, remove_stores};
use crate::session::open_reactor;
use crate::settings::Settings;
use crate::text::plural;
use crate::together::{Either, join_all, race};
use client::{Cluster, Credentials, FileSystem, Options, StatisticsFormat, default_run_directory};
use reactor::process::{SIGCHLD, Signals};
use reactor::{Nanos, Reactor};
use serde_json::Value;
use server::FlushPolicy;
use std::path::PathBuf;
use std::rc::Rc;

const NANOS_PER_MS: Nanos = 1_000_000;
/// What has happened to mounts before.
const MOUNTS_OUT: &str = "what was mounted on this machine is out of the tree, and 'tabane mount DIR' brings it back\n";
const WAYS_OUT: &str = "mend that and say 'tabane down' again, 'tabane down --discard' to lose what is here alone, or \
                        'tabane down --keep' to stop the servers and keep all of it";

/// `tabane down`.
pub fn run(arguments: &Arguments) -> Outcome {
    let directory = RunDirectory::open(&run_directory(arguments)?)?;
    if arguments.flag("keep") && arguments.flag("discard") {
        return Err(Failure::usage("--keep and --discard exclude each other".to_owned()));
    }
    if arguments.flag("verify") && (arguments.flag("keep") || arguments.flag("discard")) {
        let words = "--verify compares what was carried back: it goes with neither --keep nor --discard";
        return Err(Failure::usage(words.to_owned()));
    }
    // What can't be written is said before anything ends.
    let wanted = crate::report::Wanted::of(arguments, &["report"])?;
    if !arguments.flag("keep") && !arguments.flag("discard") {
        let reactor = open_reactor()?;
        let carried = carry_back(&reactor, &directory, directory.cluster()?, std::future::pending());
        let failed = carried.map_err(|failure| match failure {
            Failure::Failed(words) => Failure::Failed(format!("nothing was stopped: {words}\n{MOUNTS_OUT}{WAYS_OUT}")),
            other => other,
        })?;
        if failed > 0 {
            let failed = plural(failed, "change");
            let words = "could not be carried back, and nothing was stopped";
            eprintln!("tabane: down: {failed} {words}\n{MOUNTS_OUT}{WAYS_OUT}");
            return Err(Failure::Said(SOME_FAILED));
        }
        if arguments.flag("verify") {
            verify(&reactor, &directory)?;
        }
        drop(reactor);
        check_changes(&directory)?;
    }
    let reported = of_cluster(&directory.path, &wanted);
    let path = directory.path.clone();
    let was_recorded = crate::recorder::end(&open_reactor()?, &directory);
    // Servers that are to end do so, also if nothing can be told of them.
    let down = take_all_down(arguments, directory);
    if was_recorded && down.is_err() && path.exists() {
        eprintln!("tabane: down: what is left is not recorded any more; 'tabane up --record PLACE' goes on with that");
    }
    down.and(reported)
}

fn take_all_down(arguments: &Arguments, directory: RunDirectory) -> Outcome {
    if let Some(record) = HostsRecord::of(&directory.path) {
        let (reactor, known) = (open_reactor()?, directory.cluster()?);
        return crate::hosts::take_down(crate::hosts::Ending::wanted(arguments), &reactor, directory, &record, known);
    }
    let Some((cluster, settings)) = directory.cluster()? else {
        let path = directory.path.display().to_string();
        directory.remove(0)?;
        return Err(Failure::failed(format!("no cluster is up in {path}")));
    };
    let reactor = open_reactor()?;
    let stop_timeout = arguments.number("stop-timeout-ms") * NANOS_PER_MS;
    take_down(&reactor, directory, &cluster, &settings, stop_timeout, arguments.flag("keep"))
}

/// Has everything that was changed over a backing directory carried back to it, also through mounts, which are taken
/// out of the tree first. Returns how many changes could not be, which are told. What is not done when `end` comes
/// stays.
fn carry_back(
    reactor: &Reactor,
    directory: &RunDirectory,
    known: Option<(Cluster, Settings)>,
    end: impl Future<Output = ()>,
) -> Outcome<u64> {
    let Some((cluster, settings)) = known else { return Ok(0) };
    if settings.backing.is_none() || settings.flushing.policy == FlushPolicy::Never {
        return Ok(0);
    }
    crate::mount::take_all_out(reactor, &directory.path)?;
    let options = Options { user: Credentials::new(reactor::process::user(), 0), ..Options::default() };
    let files = FileSystem::new(reactor, Rc::new(cluster), options);
    let report = reactor.block_on(race(flush_all(reactor, &files, &[], false), end));
    reactor.block_on(files.end(async {}));
    let Either::First(report) = report else {
        return Err(Failure::failed("not all changes were carried back, for a signal came".to_owned()));
    };
    let report = report.map_err(|failure| match failure {
        Failure::Failed(words) => Failure::Failed(format!("changes could not be carried back: {words}")),
        other => other,
    })?;
    Ok(report.failed)
}

/// Has what was carried back compared with what is here. Nothing is to be stopped where it is not the same.
fn verify(reactor: &Reactor, directory: &RunDirectory) -> Outcome {
    let Some((cluster, settings)) = directory.cluster()? else { return Ok(()) };
    if settings.backing.is_none() || settings.flushing.policy == FlushPolicy::Never {
        return Err(Failure::usage("--verify is about a backing directory, and there is none that anything goes to"));
    }
    let options = Options { user: Credentials::new(reactor::process::user(), 0), ..Options::default() };
    let files = FileSystem::new(reactor, Rc::new(cluster), options);
    let compared = reactor.block_on(verify_all(&files, &[]));
    reactor.block_on(files.end(async {}));
    let compared = compared?;
    if compared.differences.is_empty() {
        return Ok(());
    }
    let count = compared.differences.len() as u64;
    eprintln!(
        "tabane: down: {} not the same in the backing directory, and nothing was stopped\n{WAYS_OUT}",
        are(count)
    );
    Err(Failure::Said(SOME_FAILED))
}

/// As `carry_back`, for a cluster that ends in any case. Whether all was carried back; if not, it is told what stays,
/// and how to go on with it.
pub fn carry_back_or_keep(reactor: &Reactor, signals: &Signals, directory: &RunDirectory, name: &str) -> bool {
    let end = async { while signals.next().await.number == SIGCHLD {} };
    let carried = directory.cluster().and_then(|known| carry_back(reactor, directory, known, end));
    let words = match carried {
        Ok(0) => return true,
        Ok(failed) => format!("{} could not be carried back", plural(failed, "change")),
        Err(Failure::Failed(words)) => words,
        Err(_) => "changes could not be carried back".to_owned(),
    };
    eprintln!(
        "tabane: {name}: {words}\nthe servers are stopped, and what they store stays: \
         'tabane up --run-directory {path}' starts them again, then 'tabane down --run-directory {path}' tries again, \
         and with --discard loses it",
        path = directory.path.display()
    );
    false
}

/// Refuses to end a cluster over whose backing directory something was changed, which would be lost.
fn check_changes(directory: &RunDirectory) -> Outcome {
    let Some((cluster, settings)) = directory.cluster()? else { return Ok(()) };
    let Some(backing) = &settings.backing else { return Ok(()) };
    if settings.flushing.policy == FlushPolicy::Never {
        return Ok(());
    }
    let reactor = open_reactor()?;
    let options = Options { user: Credentials::new(reactor::process::user(), 0), ..Options::default() };
    let files = FileSystem::new(&reactor, Rc::new(cluster.clone()), options);
    let reports = reactor.block_on(join_all(
        (0..cluster.server_count()).map(|index| files.server_statistics(index, StatisticsFormat::JSON)),
    ));
    reactor.block_on(files.end(async {}));
    let (mut words, mut silent) = (Vec::new(), Vec::new());
    let mut counts = [0; 3];
    for (index, report) in reports.into_iter().enumerate() {
        let report = report.map_err(|error| error.to_string());
        let parsed = report.and_then(|text| serde_json::from_str::<Value>(&text).map_err(|error| error.to_string()));
        match parsed {
            Err(reason) => silent.push(format!("server {index} does not tell: {reason}")),
            Ok(report) => {
                let told = &report["backing"];
                let names = ["changed_here", "names_differing", "made_here"];
                counts.iter_mut().zip(names).for_each(|(sum, name)| *sum += told[name].as_u64().unwrap_or(0));
                for change in told["changed"].as_array().into_iter().flatten() {
                    let text = |key: &str| change[key].as_str().unwrap_or_default();
                    words.push(format!("{}: {}", text("what"), text("path")));
                }
            }
        }
    }
    if words.is_empty() && silent.is_empty() && counts == [0; 3] {
        return Ok(());
    }
    // Each server tells of its own chunks of a file.
    words.sort();
    words.dedup();
    words.extend(silent);
    let [changed, differing, made] = counts;
    Err(Failure::failed(format!(
        "what was changed over {} is here alone, and nothing was stopped ({}, {} and {}):\n  {}\n{WAYS_OUT}",
        backing.display(),
        plural(changed, "file") + " and directories of it changed",
        plural(differing, "name") + " removed or moved",
        plural(made, "file") + " and directories made",
        words.join("\n  ")
    )))
}

/// The run directory that the command line, the environment or the default names.
pub fn run_directory(arguments: &Arguments) -> Outcome<PathBuf> {
    if let Some(path) = arguments.path("run-directory") {
        return Ok(path);
    }
    match arguments.path("cluster") {
        None => Ok(default_run_directory()),
        Some(path) if path.is_dir() => Ok(path),
        Some(path) if !path.exists() => Err(Failure::failed(format!(
            "no cluster is up here: there is no {}, which --cluster or TABANE_CLUSTER names; if it was taken down \
             already, 'unset TABANE_CLUSTER', else name the run directory with --run-directory",
            path.display()
        ))),
        Some(path) => of_cluster_path(&path).ok_or_else(|| {
            Failure::failed(format!(
                "{} is not the cluster file of a run directory; stop its servers where they were started",
                path.display()
            ))
        }),
    }
}

/// Stops all servers, then removes the stores and the run directory unless they are kept.
pub fn take_down(
    reactor: &Reactor,
    directory: RunDirectory,
    cluster: &Cluster,
    settings: &Settings,
    stop_timeout: Nanos,
    keep: bool,
) -> Outcome {
    crate::mount::take_all_out(reactor, &directory.path)?;
    let count = cluster.server_count();
    let living: Vec<_> = (0..count).filter_map(|index| Some((index, directory.living_process(index)?))).collect();
    reactor.block_on(stop_servers(reactor, cluster, &living, stop_timeout));
    let left: Vec<String> =
        living.iter().filter(|(_, process)| process.is_alive()).map(|(index, _)| index.to_string()).collect();
    if !left.is_empty() {
        return Err(Failure::failed(format!("these servers still run, so nothing was removed: {}", left.join(", "))));
    }
    if keep {
        return Ok(());
    }
    remove_stores(settings, 0..count)?;
    directory.remove(count)
}
