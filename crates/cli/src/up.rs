//! `tabane up`: a new cluster, or the servers that are missing in an old one.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, io_words};
use crate::launch::{Start, Started, Survey, survey};
use crate::ports::Ports;
use crate::report::Wanted;
use crate::run_directory::{RunDirectory, remove_stores};
use crate::session::open_reactor;
use crate::settings::{Settings, check_backing, protection};
use crate::store_memory::{free_space, mount_stores, remove_store};
use crate::text::{plural, size_words};
use client::{Cluster, default_run_directory};
use reactor::process::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, Signals};
use reactor::{Nanos, Reactor};
use std::fs::DirBuilder;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;
use wire::{Placement, ServerAddress};

const NANOS_PER_MS: Nanos = 1_000_000;
/// Where the servers of this machine alone listen.
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Options that mean something with several hosts only.
const HOSTS_KEYS: [&str; 5] = ["per-host", "launcher", "interface", "binary", "launch-timeout-ms"];

/// A cluster that is up.
pub struct Raised {
    pub directory: RunDirectory,
    pub cluster: Cluster,
    pub settings: Settings,
    /// Servers that were started now.
    pub started: Vec<Started>,
    /// Why others of a cluster that was there before are not up.
    pub failed: Vec<String>,
}

impl Raised {
    /// Fails where not all of it is up.
    pub fn check(&self) -> Outcome {
        if self.failed.is_empty() {
            return Ok(());
        }
        let (path, reasons) = (self.directory.path.display(), self.failed.join("\n  "));
        if self.failed.len() == self.cluster.servers.len() {
            return Err(Failure::failed(format!("no server is up:\n  {reasons}\n(run directory {path})")));
        }
        Err(Failure::failed(format!(
            "not all servers are up:\n  {reasons}\nthe others are, with what does not need these; \
             'tabane status --lost' lists what can't be had, and docs/troubleshooting.md says what to do about a \
             damaged store (run directory {path})"
        )))
    }
}

/// `tabane up`.
pub fn run(arguments: &Arguments) -> Outcome {
    let reactor = open_reactor()?;
    let signals = catch_signals(&reactor)?;
    let path = arguments.path("run-directory").unwrap_or_else(default_run_directory);
    let wanted = Wanted::of(arguments, &["record"])?;
    if arguments.is_given("hosts") || crate::hosts::HostsRecord::of(&path).is_some() {
        let hosts_directory = arguments.path("run-directory").unwrap_or_else(crate::hosts::default_run_directory);
        let is_new = crate::hosts::HostsRecord::of(&hosts_directory).is_none();
        crate::hosts::up(arguments, &reactor, &signals)?;
        crate::warm::warm(arguments, &reactor, &signals, &hosts_directory, is_new)?;
        return crate::recorder::start(&RunDirectory::open(&hosts_directory)?, wanted.place.as_deref());
    }
    let mount = crate::mount::wanted(arguments)?;
    check_no_hosts(arguments)?;
    if wanted.place.is_some() && mount.is_none() && is_all_up(&reactor, arguments, &path)? {
        // All that is missing is a recorder.
        return crate::recorder::start(&RunDirectory::open(&path)?, wanted.place.as_deref());
    }
    let raised = raise(arguments, &path, &reactor, &signals, false)?;
    report(&raised);
    let recorded = crate::recorder::start(&raised.directory, wanted.place.as_deref());
    raised.check()?;
    crate::warm::warm(arguments, &reactor, &signals, &raised.directory.path, raised.directory.is_new)?;
    if let Some(mount) = mount {
        crate::mount::start(&mount, &raised.directory.path)?;
        println!("mounted on {}", mount.directory.display());
    }
    recorded
}

/// Whether there is a cluster here of which all servers are up.
fn is_all_up(reactor: &Reactor, arguments: &Arguments, path: &Path) -> Outcome<bool> {
    if !path.exists() {
        return Ok(false);
    }
    let directory = RunDirectory::open(path)?;
    let Some((cluster, _)) = directory.cluster()? else { return Ok(false) };
    let indices: Vec<u32> = (0..cluster.server_count()).collect();
    let timeout = arguments.number("start-timeout-ms") * NANOS_PER_MS;
    let found = reactor.block_on(survey(reactor, path, &cluster, &indices, timeout));
    Ok(found.missing.is_empty() && found.silent.is_empty())
}

/// Refuses what means nothing without --hosts.
pub fn check_no_hosts(arguments: &Arguments) -> Outcome {
    match HOSTS_KEYS.iter().find(|key| arguments.is_on_command_line(key)) {
        Some(key) => Err(Failure::usage(format!("--{key} is about several hosts, which --hosts names; it is missing"))),
        None => Ok(()),
    }
}

fn report(raised: &Raised) {
    let count = raised.cluster.server_count();
    let again = !raised.directory.is_new && raised.started.len() < count as usize;
    if again && raised.started.is_empty() {
        return;
    }
    if again {
        let indices: Vec<String> = raised.started.iter().map(|server| server.index.to_string()).collect();
        println!("{} started again: {}", plural(indices.len() as u64, "server"), indices.join(", "));
    } else {
        println!(
            "{} up, {} each, {}",
            if count == 1 { "1 server is".to_owned() } else { format!("{count} servers are") },
            size_words(raised.settings.store_size),
            raised.settings.place_words()
        );
    }
    let path = &raised.directory.path;
    if *path == default_run_directory() {
        println!("run directory {} (the default one: commands find it by themselves)", path.display());
    } else {
        println!("run directory {0}; for other commands: export TABANE_CLUSTER={0}", path.display());
    }
}

/// Signals that ask to stop, and those about children, as events.
pub fn catch_signals(reactor: &Reactor) -> Outcome<Signals> {
    Signals::catch(reactor, &[SIGINT, SIGTERM, SIGHUP, SIGCHLD])
        .map_err(|error| Failure::failed(format!("catching signals: {}", io_words(&error))))
}

/// Brings up the cluster of a run directory: a new one, or what is missing of the one that is there. On failure nothing
/// that was made here is left.
pub fn raise(
    arguments: &Arguments,
    path: &Path,
    reactor: &Reactor,
    signals: &Signals,
    bound_to_us: bool,
) -> Outcome<Raised> {
    let directory = RunDirectory::make(path)?;
    let known = directory.cluster()?;
    let timeout = arguments.number("start-timeout-ms") * NANOS_PER_MS;
    if let Some((cluster, settings)) = known {
        let Survey { missing, silent } = missing_servers(reactor, arguments, &directory, &cluster, &settings)?;
        let mut failed: Vec<String> = silent
            .iter()
            .map(|(index, reason)| {
                format!("server {index} runs but: {reason}; 'tabane restart {index}' starts it anew")
            })
            .collect();
        let mut whole = Vec::new();
        for index in missing {
            match check_stores(reactor, &directory, &settings, &[index]) {
                Err(Failure::Failed(words)) => failed.push(words),
                other => other.map(|()| whole.push(index))?,
            }
        }
        let start = Start {
            reactor,
            directory: &directory,
            cluster: &cluster,
            settings: &settings,
            signals,
            timeout,
            bound_to_us,
        };
        let (started, reasons) = start.start_each(&whole)?;
        failed.extend(reasons);
        return Ok(Raised { directory, cluster, settings, started, failed });
    }
    match prepare(arguments, &directory, reactor) {
        Err(failure) => {
            give_up(directory, None);
            Err(failure)
        }
        Ok(Prepared { cluster, settings, ports }) => {
            let indices: Vec<u32> = (0..cluster.server_count()).collect();
            let start = Start {
                reactor,
                directory: &directory,
                cluster: &cluster,
                settings: &settings,
                signals,
                timeout,
                bound_to_us,
            };
            let outcome = start.start(&indices);
            drop(ports);
            match outcome {
                Ok(started) => Ok(Raised { directory, cluster, settings, started, failed: Vec::new() }),
                Err(failure) => {
                    give_up(directory, Some((&cluster, &settings)));
                    Err(failure)
                }
            }
        }
    }
}

/// The servers of a known cluster that do not run, or do not answer. Errors: all of them do, or the command line wants
/// another cluster.
fn missing_servers(
    reactor: &Reactor,
    arguments: &Arguments,
    directory: &RunDirectory,
    cluster: &Cluster,
    settings: &Settings,
) -> Outcome<Survey> {
    let path = directory.path.display();
    let count = cluster.server_count();
    let indices: Vec<u32> = (0..count).collect();
    let timeout = arguments.number("start-timeout-ms") * NANOS_PER_MS;
    let found = reactor.block_on(survey(reactor, &directory.path, cluster, &indices, timeout));
    if found.missing.is_empty() && found.silent.is_empty() {
        return Err(Failure::failed(format!(
            "a cluster of {} is up already in {path}; use it, take it down with 'tabane down --run-directory {path}', \
             or start another one with --run-directory PATH",
            plural(u64::from(count), "server")
        )));
    }
    let differences = settings.differences(cluster, arguments)?;
    if !differences.is_empty() {
        return Err(Failure::failed(format!(
            "{path} holds a cluster that is otherwise ({}); leave these options away to start it again with its data, \
             or remove it with 'tabane down --run-directory {path}'",
            differences.join("; ")
        )));
    }
    Ok(found)
}

/// What a new cluster needs before its servers start; its ports are free for them alone while they are held here.
struct Prepared {
    cluster: Cluster,
    settings: Settings,
    ports: Ports,
}

/// Makes what a new cluster needs before its servers start.
fn prepare(arguments: &Arguments, directory: &RunDirectory, reactor: &Reactor) -> Outcome<Prepared> {
    let count = arguments.number("servers") as u32;
    let (mut id, mut key) = ([0; 16], [0; wire::cluster::KEY_SIZE]);
    reactor.fill_random(&mut id);
    reactor.fill_random(&mut key);
    let id = u128::from_ne_bytes(id);
    let settings = Settings::for_new_cluster(arguments, id, count)?;
    if let Some(backing) = &settings.backing {
        check_backing(
            backing,
            Duration::from_millis(settings.timeout_ms),
            &[("the directory of the stores", &settings.stores), ("the run directory", &directory.path)],
        )?;
    }
    crate::warm::check(arguments, settings.store_size)?;
    let mut ports = Ports::choose(reactor, HERE, arguments.number("port") as u16, count)?;
    let servers = ports.numbers().iter().map(|port| ServerAddress { address: SocketAddr::new(HERE, *port) }).collect();
    if settings.metrics_port != 0 {
        ports.hold_given("--metrics-port", HERE, settings.metrics_port, count)?;
    }
    let placement = Placement::parse(&arguments.text_or_default("placement")).expect("the table names all placements");
    let mut cluster = Cluster::new(id, key, placement, arguments.number("chunk-size") as u32, servers);
    cluster.protection = protection(arguments);
    directory.keep(&cluster, &settings)?;
    if settings.made_stores {
        DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(&settings.stores)
            .map_err(|error| unusable(&settings, &error))?;
    }
    check_room(&settings, count)?;
    claim_stores(&settings, &(0..count).collect::<Vec<u32>>())?;
    Ok(Prepared { cluster, settings, ports })
}

/// Refuses stores that are larger together than what their medium has free.
pub fn check_room(settings: &Settings, count: u32) -> Outcome {
    let free = free_space(&settings.stores).map_err(|error| unusable(settings, &error))?;
    let wanted = u64::from(count) * settings.size_in_directory();
    if wanted > free && settings.devices.is_some() {
        return Err(Failure::failed(format!(
            "{} with their journals want {} of memory in {}, which has {} free; ask for less with --store \
             nvme:PATH,buffer=SIZE and --journal-size SIZE",
            plural(u64::from(count), "buffer"),
            size_words(wanted),
            settings.stores.display(),
            size_words(free)
        )));
    }
    if wanted > free {
        return Err(Failure::failed(format!(
            "{} with their journals want {} in {}, which has {} free; ask for less with --store memory:size=SIZE and \
             --journal-size SIZE, or choose another directory with --dir",
            plural(u64::from(count), "store"),
            size_words(wanted),
            settings.stores.display(),
            size_words(free)
        )));
    }
    Ok(())
}

/// Makes the directory of each store, so that it is ours and nobody else's, with memory of its own where that can be
/// had. On failure none of them is left.
pub fn claim_stores(settings: &Settings, indices: &[u32]) -> Outcome {
    crate::device_store::check(settings, indices)?;
    for (place, index) in indices.iter().enumerate() {
        let store = settings.store_of(*index);
        let Err(error) = DirBuilder::new().mode(0o700).create(&store) else { continue };
        for claimed in &indices[..place] {
            // What can't be removed is empty, and its name tells whose it was.
            let _ = std::fs::remove_dir(settings.store_of(*claimed));
        }
        if error.kind() != std::io::ErrorKind::AlreadyExists {
            return Err(unusable(settings, &error));
        }
        return Err(Failure::failed(format!(
            "{} exists already: it may be the store of an earlier cluster; remove it if it is of no use, or choose \
             another directory with --dir",
            store.display()
        )));
    }
    mount_stores(settings, indices).map_err(|error| {
        for index in indices {
            // As above.
            let _ = remove_store(&settings.store_of(*index));
        }
        unusable(settings, &error)
    })
}

/// Refuses to start servers whose stores are gone: an empty one in their place would pass for lost files.
pub fn check_stores(reactor: &Reactor, directory: &RunDirectory, settings: &Settings, indices: &[u32]) -> Outcome {
    for index in indices {
        let store = settings.store_of(*index);
        let store = match &settings.devices {
            Some(devices) => devices.path_of(&settings.stores, *index),
            None => store,
        };
        let there = match &settings.devices {
            // What is in memory of it is gone after power loss.
            Some(_) => crate::device_store::holds_store(&store),
            None => {
                store.is_dir() && reactor.storage(&store).is_ok_and(|storage| server::store::Store::exists(&*storage))
            }
        };
        if !there {
            return Err(Failure::failed(format!(
                "the store of server {index}, {}, is gone, and what it held with it; put it back, or remove what is \
                 left of the cluster with 'tabane down --run-directory {}'",
                store.display(),
                directory.path.display()
            )));
        }
    }
    Ok(())
}

fn unusable(settings: &Settings, error: &std::io::Error) -> Failure {
    Failure::failed(format!(
        "directory {} of the stores can't be used: {}; make it writable, make room, or choose another with --dir",
        settings.stores.display(),
        io_words(error)
    ))
}

/// Removes what a failed start has made. What can't be removed is said; the reason of the failure itself follows.
fn give_up(directory: RunDirectory, made: Option<(&Cluster, &Settings)>) {
    let known = directory.cluster().ok().flatten();
    let (removed, count) = match (made, &known) {
        (Some((cluster, settings)), _) => (remove_stores(settings, 0..cluster.server_count()), cluster.server_count()),
        // No server was started, so the stores are not ours.
        (None, Some((cluster, settings))) => (remove_stores(settings, 0..0), cluster.server_count()),
        (None, None) => (Ok(()), 0),
    };
    if let Err(Failure::Failed(words)) = removed.and(directory.remove(count)) {
        eprintln!("tabane: {words}");
    }
}
