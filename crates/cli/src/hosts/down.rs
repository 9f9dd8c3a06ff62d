//! `tabane down` of a cluster over several hosts, also when some of them have gone.

use super::orders::order;
use super::party::{Answers, Party, Reach};
use super::record::HostsRecord;
use super::{MARGIN, NANOS_PER_MS, ORDERS_FILE, check_origin, launch_timeout};
use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome};
use crate::run_directory::RunDirectory;
use crate::settings::Settings;
use crate::text::plural;
use client::Cluster;
use reactor::{Nanos, Reactor};
use serde_json::{Value, json};
use std::path::Path;

/// Exit status when hosts were not reached, or did not do all.
const EXIT_INCOMPLETE: u8 = 3;

/// How a cluster is taken down.
pub struct Ending {
    /// What is stored stays.
    pub keep: bool,
    /// Hosts that can't be reached are given up.
    pub forget: bool,
    pub stop_timeout: Nanos,
    pub launch_timeout: Nanos,
}

impl Ending {
    /// As the command line wants it.
    pub fn wanted(arguments: &Arguments) -> Ending {
        Ending { keep: arguments.flag("keep"), forget: arguments.flag("forget"), ..Ending::at_once(arguments) }
    }

    /// With all that is stored, and nobody given up.
    pub fn at_once(arguments: &Arguments) -> Ending {
        let stop_timeout = arguments.number("stop-timeout-ms") * NANOS_PER_MS;
        Ending { keep: false, forget: false, stop_timeout, launch_timeout: launch_timeout(arguments) }
    }
}

/// Takes a cluster down on all its hosts at once. Errors: hosts that were not reached; then the run directory stays,
/// unless they are given up.
pub fn take_down(
    ending: Ending,
    reactor: &Reactor,
    directory: RunDirectory,
    record: &HostsRecord,
    known: Option<(Cluster, Settings)>,
) -> Outcome {
    check_origin(record, &directory.path)?;
    let Ending { keep, forget, stop_timeout, launch_timeout } = ending;
    let Some((cluster, settings)) = known else {
        // An `up` was killed before any host was told to start.
        return directory.remove(0);
    };
    crate::mount::take_all_out(reactor, &directory.path)?;
    // Beyond the time in which servers stop by themselves: SIGTERM, SIGKILL.
    let timeout = launch_timeout + stop_timeout + 2 * MARGIN;
    let told = stop_order(record, &directory.path, &cluster, &settings, None, keep, stop_timeout);
    let all: Vec<usize> = (0..record.hosts.len()).collect();
    let mut answers = order_all(reactor, record, &directory.path, &all, &told, timeout, false)?;
    let failed: Vec<usize> = answers.iter().filter(|(_, answer)| answer.is_err()).map(|(number, _)| *number).collect();
    if !failed.is_empty() && !record.launcher.is_for_one_host() {
        // One missing host keeps a launcher for all from reaching the others.
        let second = order_all(reactor, record, &directory.path, &failed, &told, timeout, true)?;
        answers.retain(|(_, answer)| answer.is_ok());
        answers.extend(second);
        answers.sort_by_key(|(number, _)| *number);
    }
    let missed = report(record, &answers);
    if missed == 0 {
        return if keep { Ok(()) } else { directory.remove(cluster.server_count()) };
    }
    if forget {
        eprintln!("tabane: down: these hosts are given up; what is left there has to be removed by hand");
        directory.remove(cluster.server_count())?;
    } else {
        eprintln!(
            "tabane: down: run directory {} stays: 'tabane down' again finishes when they are back, \
             'tabane down --forget' gives them up",
            directory.path.display()
        );
    }
    Err(Failure::Said(EXIT_INCOMPLETE))
}

/// Says which hosts were reached when not all of them were. Returns how many were not.
fn report(record: &HostsRecord, answers: &Answers) -> u64 {
    let reached: Vec<&str> = answers
        .iter()
        .filter(|(_, answer)| answer.is_ok())
        .map(|(number, _)| record.hosts[*number].name.as_str())
        .collect();
    let missed = (answers.len() - reached.len()) as u64;
    if missed == 0 {
        return 0;
    }
    let reached = if reached.is_empty() { "none".to_owned() } else { reached.join(", ") };
    eprintln!("tabane: down: {} of {} not taken down; taken down: {reached}", plural(missed, "host"), answers.len());
    for (number, answer) in answers {
        if let Err(words) = answer {
            let host = &record.hosts[*number];
            let servers: Vec<String> = host.servers.iter().map(u32::to_string).collect();
            eprintln!("  host {} (servers {}): {words}", host.name, servers.join(", "));
        }
    }
    missed
}

/// Gives one order to hosts that need not agree with each other.
fn order_all(
    reactor: &Reactor,
    record: &HostsRecord,
    run_directory: &Path,
    numbers: &[usize],
    told: &Value,
    timeout: Nanos,
    one_by_one: bool,
) -> Outcome<Answers> {
    let groups: Vec<&[usize]> = if one_by_one { numbers.chunks(1).collect() } else { vec![numbers] };
    let mut answers = Vec::new();
    for group in groups {
        let reach =
            Reach { launcher: &record.launcher, binary: &record.binary, orders: run_directory.join(ORDERS_FILE) };
        let names = record.hosts.iter().map(|host| host.name.clone()).collect();
        let mut party = Party::call(reactor, &reach, names, group)?;
        let mut unmount = told.clone();
        unmount["order"] = order::UNMOUNT.into();
        reactor.block_on(async {
            // All mounts go first: they need the servers of all hosts for their last words.
            party.tell(&unmount).await;
            let (reached, missed) = party
                .hear(order::UNMOUNT, group, timeout, None)
                .await?
                .into_iter()
                .partition::<Answers, _>(|(_, answer)| answer.is_ok());
            let reached: Vec<usize> = reached.into_iter().map(|(number, _)| number).collect();
            party.tell(told).await;
            answers.extend(party.hear(order::STOP, &reached, timeout, None).await?);
            answers.extend(missed);
            answers.sort_by_key(|(number, _)| *number);
            party.give_up(group, MARGIN).await;
            Ok::<(), Failure>(())
        })?;
    }
    Ok(answers)
}

/// The order that stops servers: all, or one.
pub fn stop_order(
    record: &HostsRecord,
    run_directory: &Path,
    cluster: &Cluster,
    settings: &Settings,
    only: Option<u32>,
    keep: bool,
    timeout: Nanos,
) -> Value {
    let hosts: Vec<Value> = record
        .hosts
        .iter()
        .map(|host| {
            let stop: Vec<u32> =
                host.servers.iter().copied().filter(|server| only.is_none_or(|only| only == *server)).collect();
            json!({ "name": host.name, "stop": stop, "shared": host.shared, "made_stores": host.made_stores })
        })
        .collect();
    json!({
        "order": order::STOP,
        "keep": keep,
        "run_directory": run_directory.display().to_string(),
        "cluster_id": format!("{:032x}", record.cluster_id),
        "cluster": cluster.to_text(),
        "settings": settings.to_text(),
        "timeout_ms": timeout / NANOS_PER_MS,
        "hosts": hosts,
    })
}
