//! `tabane down`: the end of a cluster.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome};
use crate::hosts::HostsRecord;
use crate::launch::stop_servers;
use crate::run_directory::{RunDirectory, of_cluster_path, remove_stores};
use crate::session::{default_run_directory, open_reactor};
use crate::settings::Settings;
use client::Cluster;
use reactor::{Nanos, Reactor};
use std::path::PathBuf;

const NANOS_PER_MS: Nanos = 1_000_000;

/// `tabane down`.
pub fn run(arguments: &Arguments) -> Outcome {
    let directory = RunDirectory::open(&run_directory(arguments)?)?;
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

/// The run directory that the command line, the environment or the default names.
pub fn run_directory(arguments: &Arguments) -> Outcome<PathBuf> {
    if let Some(path) = arguments.path("run-directory") {
        return Ok(path);
    }
    match arguments.path("cluster") {
        None => Ok(default_run_directory()),
        Some(path) if path.is_dir() => Ok(path),
        Some(path) if !path.exists() => Err(Failure::failed(format!(
            "no cluster is up here: there is no {}, which --cluster or TABANE_CLUSTER names; if it was taken down already, \
             'unset TABANE_CLUSTER', else name the run directory with --run-directory",
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
