//! `tabane restart`: one server stops and starts again over its store, on whichever host.

use super::down::stop_order;
use super::record::HostsRecord;
use super::up::{Steps, start_order, start_timeout};
use super::{MARGIN, NANOS_PER_MS, call, check_origin, launch_timeout};
use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome};
use crate::launch::{Start, stop_servers};
use crate::run_directory::RunDirectory;
use crate::session::open_reactor;
use crate::settings::Settings;
use crate::text::plural;
use crate::up::{catch_signals, check_stores};
use client::Cluster;
use reactor::Reactor;
use reactor::process::Signals;

/// `tabane restart`.
pub fn run(arguments: &Arguments) -> Outcome {
    let directory = RunDirectory::open(&crate::down::run_directory(arguments)?)?;
    let Some((cluster, settings)) = directory.cluster()? else {
        return Err(Failure::failed(format!("no cluster is up in {}", directory.path.display())));
    };
    let text = arguments.operands[0].to_string_lossy();
    let server = text.parse::<u32>().ok().filter(|server| *server < cluster.server_count()).ok_or_else(|| {
        let count = cluster.server_count();
        Failure::usage(format!(
            "\"{text}\" is no server; the cluster has {}, 0 to {}",
            plural(count.into(), "server"),
            count - 1
        ))
    })?;
    let reactor = open_reactor()?;
    let signals = catch_signals(&reactor)?;
    let restart =
        Restart { arguments, reactor: &reactor, signals: &signals, directory: &directory, cluster, settings, server };
    match HostsRecord::of(&directory.path) {
        Some(record) => restart.elsewhere(&record),
        None => restart.here(),
    }
}

struct Restart<'a> {
    arguments: &'a Arguments,
    reactor: &'a Reactor,
    signals: &'a Signals,
    directory: &'a RunDirectory,
    cluster: Cluster,
    settings: Settings,
    server: u32,
}

impl Restart<'_> {
    fn here(self) -> Outcome {
        let stop_timeout = self.arguments.number("stop-timeout-ms") * NANOS_PER_MS;
        if let Some(process) = self.directory.living_process(self.server) {
            let living = [(self.server, process)];
            self.reactor.block_on(stop_servers(self.reactor, &self.cluster, &living, stop_timeout));
            if process.is_alive() {
                return Err(Failure::failed(format!("server {} still runs", self.server)));
            }
        }
        check_stores(self.reactor, self.directory, &self.settings, &[self.server])?;
        let start = Start {
            reactor: self.reactor,
            directory: self.directory,
            cluster: &self.cluster,
            settings: &self.settings,
            signals: self.signals,
            timeout: start_timeout(self.arguments),
            bound_to_us: false,
        };
        start.start(&[self.server]).map_err(|failure| of_one_server(failure, self.server))?;
        println!("server {} started again", self.server);
        Ok(())
    }

    fn elsewhere(self, record: &HostsRecord) -> Outcome {
        let path = &self.directory.path;
        check_origin(record, path)?;
        let number =
            record.host_of(self.server).ok_or_else(|| Failure::failed("the list of hosts lacks this server"))?;
        let name = &record.hosts[number].name;
        let stop_timeout = self.arguments.number("stop-timeout-ms") * NANOS_PER_MS;
        let mut party = call(self.reactor, record, path, &[number])?;
        let mut steps = Steps {
            reactor: self.reactor,
            signals: Some(self.signals),
            party: &mut party,
            numbers: vec![number],
            told_to_start: false,
            mounted_here: None,
        };
        let stop = stop_order(record, path, &self.cluster, &self.settings, Some(self.server), true, stop_timeout);
        let timeout = start_timeout(self.arguments);
        let wanted: Vec<Vec<u32>> =
            (0..record.hosts.len()).map(|host| if host == number { vec![self.server] } else { Vec::new() }).collect();
        let start = start_order(record, path, &self.cluster, &self.settings, &wanted, true, timeout);
        steps
            .step(&stop, launch_timeout(self.arguments) + stop_timeout + MARGIN)
            .and_then(|_| steps.raise(start, timeout, None))
            .map_err(|failure| of_one_server(steps.undo(failure), self.server))?;
        self.reactor.block_on(party.leave());
        println!("server {} started again on host {name}", self.server);
        Ok(())
    }
}

fn of_one_server(failure: Failure, server: u32) -> Failure {
    match failure {
        Failure::Failed(words) => Failure::Failed(words.replacen(
            "the cluster was not started:",
            &format!("server {server} was not started:"),
            1,
        )),
        other => other,
    }
}
