//! `tabane host`: one host's part of `up`, `down` and `restart`, started there by the launcher.
//!
//! Invariants
//! 1. Until the commit everything that was made here is written down in `Made`, and taken back when the orders end, by
//!    whatever.
//! 2. Nothing is printed but reports; the key comes by the orders and goes into files of the owner alone.

use super::address::{Choice, choose};
use super::orders::{Lines, MARK, VERSION, numbers, order, report};
use super::record::{HOSTS_FILE, HostsRecord};
use crate::arguments::{Arguments, environment};
use crate::failure::{Failure, Outcome, io_words};
use crate::launch::{Start, Started, push_out, stop_asked, stop_servers, survey};
use crate::mount::{self, MountRequest};
use crate::mount_status::{self, MountStatus};
use crate::ports::Ports;
use crate::run_directory::{RunDirectory, remove_stores};
use crate::session::open_reactor;
use crate::settings::{Settings, check_backing};
use crate::store_memory::free_space;
use crate::together::{Either, join_all, race};
use crate::up::{catch_signals, check_room, check_stores, claim_stores};
use client::{Cluster, Credentials, FileSystem, Options};
use reactor::interfaces::{default_source, interfaces};
use reactor::pipes::{LineOrigin, follow, shield_standard_error};
use reactor::process::{ProcessId, SIGHUP, Signals, host_name};
use reactor::{Nanos, Reactor};
use serde_json::{Value, json};
use std::fs::DirBuilder;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

const NANOS_PER_MS: Nanos = 1_000_000;
/// How long a server that runs has to answer before it counts as running all the same.
const SURVEY_TIME: Nanos = 2_000 * NANOS_PER_MS;
/// For what a host is asked about the backing directory.
const SITE_TIME: Duration = Duration::from_secs(10);
const LOOK_INTERVAL: Nanos = 500 * NANOS_PER_MS;
/// Orders in a file are waited for so often (20 s): whoever writes them shows every second that he lives.
const LOOKS_MAX: u32 = 400;
/// Servers of other hosts that a host calls.
const MEET_COUNT_MAX: usize = 64;
/// Where launchers tell a process which of theirs it is: Slurm, PMI (MPICH, Intel MPI), PMIx, Open MPI, MVAPICH.
const RANKS: [&str; 5] = ["SLURM_PROCID", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK"];

/// What was made here and not committed yet.
struct Made {
    settings: Settings,
    /// The cluster was there before: only what was started now goes.
    again: bool,
    /// Stores that were claimed just now.
    stores: Vec<u32>,
    /// A run directory of this host's own, and how many servers it is for.
    directory: Option<(RunDirectory, u32)>,
    started: Vec<Started>,
    /// A directory that was mounted on just now, and the run directory that tells of it.
    mounted: Option<(PathBuf, PathBuf)>,
}

struct Agent {
    reactor: Reactor,
    signals: Signals,
    /// The number of this host, or those of all that were launched at once.
    numbers: Vec<usize>,
    number: usize,
    made: Option<Made>,
    cluster: Option<Rc<Cluster>>,
    /// The ports of this host's servers, until they listen.
    ports: Option<Ports>,
}

/// `tabane host`.
pub fn run(arguments: &Arguments) -> Outcome {
    let reactor = open_reactor()?;
    let signals = catch_signals(&reactor)?;
    let (listed, stays) = match (arguments.number_given("host-number"), arguments.text("host-numbers")) {
        (Some(number), _) => (vec![number as usize], false),
        (None, Some(text)) => (text.split(',').filter_map(|number| number.parse().ok()).collect(), true),
        (None, None) => {
            return Err(Failure::usage(
                "this command is run by 'tabane up --hosts' and alike; it is of no use by hand",
            ));
        }
    };
    let number = own_number(&listed, stays)?;
    let origin = match arguments.path("host-orders") {
        None => LineOrigin::StandardInput,
        Some(path) => LineOrigin::File { path, looks_max: LOOKS_MAX },
    };
    let shielded = shield_standard_error().and_then(|()| follow(&reactor, origin));
    let stream = shielded.map_err(|error| Failure::failed(format!("orders: {}", io_words(&error))))?;
    let lines = Lines::new(stream);
    let mut agent = Agent { reactor, signals, numbers: listed, number, made: None, cluster: None, ports: None };
    agent.say(report::HELLO, json!({ "version": VERSION, "host": host_name() }));
    let committed = agent.obey(&lines);
    match committed {
        false => agent.undo(),
        true if stays => agent.stay(),
        true => {}
    }
    Ok(())
}

fn own_number(listed: &[usize], stays: bool) -> Outcome<usize> {
    if !stays || listed.len() == 1 {
        return listed.first().copied().ok_or_else(|| Failure::usage("--number is missing"));
    }
    let rank = RANKS.iter().find_map(|name| environment(name)?.to_str()?.parse::<usize>().ok());
    rank.and_then(|rank| listed.get(rank).copied()).ok_or_else(|| {
        let (names, count) = (RANKS.join(", "), listed.len());
        Failure::failed(format!(
            "the launcher has to start {count} processes and number them by one of {names}; it did not"
        ))
    })
}

impl Agent {
    fn say(&self, kind: &str, mut facts: Value) {
        facts["report"] = kind.into();
        facts["number"] = self.number.into();
        let mut out = std::io::stdout().lock();
        // Nobody listens any more: then the orders end as well.
        let _: std::io::Result<()> = out.write_all(format!("{MARK}{facts}\n").as_bytes()).and_then(|()| out.flush());
    }

    /// Follows orders until they end. True when what was made is to stay.
    fn obey(&mut self, lines: &Lines) -> bool {
        loop {
            let next = race(lines.next(), stop_asked(&self.signals));
            let line = match self.reactor.block_on(next) {
                Either::First(Ok(Some(line))) => line,
                Either::First(_) | Either::Second(_) => return false,
            };
            let Ok(told) = serde_json::from_str::<Value>(&line) else { continue };
            let kind = told["order"].as_str().unwrap_or_default().to_owned();
            let outcome = match kind.as_str() {
                order::SURVEY => self.survey(&told),
                order::START => self.start(&told),
                order::MEET => self.meet(&told),
                order::MOUNT => self.mount(&told),
                order::UNMOUNT => self.unmount(&told),
                order::MOUNTS => self.mounts(&told),
                order::STOP => self.stop(&told),
                order::COMMIT => {
                    self.say(order::COMMIT, json!({}));
                    return true;
                }
                _ => Err(Failure::failed(format!("order \"{kind}\" is not known"))),
            };
            match outcome {
                Ok(facts) => self.say(&kind, facts),
                Err(Failure::Failed(words) | Failure::Usage(words)) => {
                    self.say(report::FAILED, json!({ "words": words }))
                }
                Err(_) => self.say(report::FAILED, json!({ "words": "was interrupted" })),
            }
        }
    }

    /// What an order says about this host.
    fn own<'a>(&self, told: &'a Value) -> Outcome<&'a Value> {
        let own = &told["hosts"][self.number];
        if own.is_object() { Ok(own) } else { Err(misunderstood("hosts")) }
    }

    /// Launched together with others, a host goes by its name where it is among the names.
    fn find_number(&mut self, told: &Value) {
        if self.numbers.len() < 2 {
            return;
        }
        let node = environment("SLURMD_NODENAME").map(|name| name.to_string_lossy().into_owned());
        let own = node.unwrap_or_else(host_name);
        let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
        let named =
            |number: &&usize| told["hosts"][**number]["name"].as_str().is_some_and(|name| short(name) == short(&own));
        if let Some(number) = self.numbers.iter().find(named) {
            self.number = *number;
        }
    }

    /// Where this host will listen, what is free, and whether the place is.
    fn survey(&mut self, told: &Value) -> Outcome<Value> {
        self.find_number(told);
        let own = self.own(told)?;
        let path = PathBuf::from(text(told, "run_directory")?);
        let id = text(told, "cluster")?;
        let servers = numbers(&own["servers"]).ok_or_else(|| misunderstood("servers"))?;
        let shared = is_copy_of(&path, id);
        if told["again"].as_bool() == Some(true) {
            let cluster = client::load_cluster(&path).map_err(|error| Failure::failed(error.message))?;
            // Who runs but is silent counts as living: 'restart' is for those.
            let missing = self.reactor.block_on(survey(&self.reactor, &path, &cluster, &servers, SURVEY_TIME)).missing;
            let living: Vec<u32> = servers.iter().filter(|server| !missing.contains(server)).copied().collect();
            return Ok(json!({ "living": living }));
        }
        if told["orders_shared"].as_bool() == Some(true) && !shared {
            return Err(Failure::failed(format!("run directory {} is not shared with this host", path.display())));
        }
        if !shared && crate::run_directory::of_cluster_path(&path).is_some() {
            return Err(Failure::failed(format!(
                "run directory {} holds another cluster there; take it down, or choose another --run-directory",
                path.display()
            )));
        }
        let address = self.address(told, own)?;
        let port = told["port"].as_u64().unwrap_or(0) as u16;
        let ports =
            self.ports.insert(Ports::choose(&self.reactor, address, port, servers.len() as u32)?).numbers().to_vec();
        let stores = PathBuf::from(text(told, "stores")?);
        let existing = stores.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
        let free = free_space(existing)
            .map_err(|error| Failure::failed(format!("{}: {}", existing.display(), io_words(&error))))?;
        let device = existing.metadata().map_or(0, |facts| facts.dev());
        let own_places: [(&str, &Path); 2] = [("the directory of the stores", &stores), ("the run directory", &path)];
        let backing = told["backing"].as_str().map(|backing| check_backing(Path::new(backing), SITE_TIME, &own_places));
        Ok(json!({
            "address": address.to_string(),
            "ports": ports,
            "shared": shared,
            "made_stores": !stores.exists(),
            "free": free,
            "medium": format!("{}/{device}", reactor::process::machine()),
            "backing": backing.transpose()?,
        }))
    }

    fn address(&self, told: &Value, own: &Value) -> Outcome<IpAddr> {
        let choice = Choice::parse(text(told, "interface")?).map_err(Failure::failed)?;
        let all = interfaces().map_err(|error| Failure::failed(format!("interfaces: {}", io_words(&error))))?;
        let name = own["name"].as_str().unwrap_or_default().to_owned();
        let name = name.rsplit_once('@').map_or(name.as_str(), |(_, host)| host).to_owned();
        let named = || {
            (name.as_str(), 0)
                .to_socket_addrs()
                .map_or_else(|_| Vec::new(), |found| found.map(|address| address.ip()).collect())
        };
        match choose(&choice, &all, &named, &default_source) {
            Err(_) if choice == Choice::Any && told["hosts"].as_array().is_some_and(|hosts| hosts.len() == 1) => {
                Ok(Ipv4Addr::LOCALHOST.into())
            }
            chosen => chosen.map_err(Failure::failed),
        }
    }

    /// Makes what servers need here, starts them, and waits until each has answered.
    fn start(&mut self, told: &Value) -> Outcome<Value> {
        let own = self.own(told)?.clone();
        let again = told["again"].as_bool() == Some(true);
        let (cluster, settings) = cluster_of(told, &own)?;
        let wanted = numbers(&own["start"]).ok_or_else(|| misunderstood("start"))?;
        let path = PathBuf::from(text(told, "run_directory")?);
        let shared = own["shared"].as_bool() == Some(true);
        self.cluster = Some(Rc::new(cluster.clone()));
        self.made = Some(Made {
            settings: settings.clone(),
            again,
            stores: Vec::new(),
            directory: None,
            started: Vec::new(),
            mounted: None,
        });
        let made = self.made.as_mut().expect("made just now");
        let directory = match (shared, again) {
            (true, _) => RunDirectory::shared(&path),
            (false, true) => RunDirectory::open(&path)?,
            (false, false) => {
                let directory = RunDirectory::make(&path)?;
                let kept = directory
                    .write(HOSTS_FILE, text(told, "record")?)
                    .and_then(|()| directory.keep(&cluster, &settings));
                made.directory = Some((directory, cluster.server_count()));
                kept?;
                // The lock is ours already.
                RunDirectory::shared(&path)
            }
        };
        if again {
            check_stores(&self.reactor, &directory, &settings, &wanted)?;
        } else {
            make_stores(&settings)?;
            check_room(&settings, wanted.len() as u32)?;
            claim_stores(&settings, &wanted)?;
            made.stores.clone_from(&wanted);
        }
        let timeout = told["timeout_ms"].as_u64().unwrap_or(60_000) * NANOS_PER_MS;
        let start = Start {
            reactor: &self.reactor,
            directory: &directory,
            cluster: &cluster,
            settings: &settings,
            signals: &self.signals,
            timeout,
            bound_to_us: false,
        };
        let outcome = start.start(&wanted);
        self.ports = None;
        made.started = outcome.map_err(|failure| match failure {
            Failure::Failed(words) => {
                Failure::Failed(words.replace("the cluster was not started:\n  ", "").replace("\n  ", "; "))
            }
            other => other,
        })?;
        Ok(json!({ "started": wanted }))
    }

    /// Calls servers of other hosts.
    fn meet(&mut self, told: &Value) -> Outcome<Value> {
        let Some(cluster) = self.cluster.clone() else { return Err(misunderstood("meet")) };
        let own = numbers(&self.own(told)?["servers"]).unwrap_or_default();
        let others: Vec<u32> = (0..cluster.server_count()).filter(|index| !own.contains(index)).collect();
        // Not the same ones from everywhere.
        let from = own.first().copied().unwrap_or(0) as usize;
        let count = others.len().min(MEET_COUNT_MAX);
        let called: Vec<u32> =
            (0..count).map(|step| others[(from + step * others.len() / count) % others.len()]).collect();
        let timeout_ms = told["timeout_ms"].as_u64().unwrap_or(10_000);
        let user = Credentials::new(reactor::process::user(), 0);
        let files = FileSystem::new(&self.reactor, cluster.clone(), Options { timeout_ms, user, ..Options::default() });
        let outcome = self
            .reactor
            .block_on(race(join_all(called.iter().map(|index| files.ping(*index))), stop_asked(&self.signals)));
        self.reactor.block_on(files.end(async {}));
        let Either::First(answers) = outcome else { return Err(Failure::Said(1)) };
        let silent: Vec<String> = called
            .iter()
            .zip(answers)
            .filter_map(|(index, answer)| {
                let address = cluster.servers[*index as usize].address;
                answer.err().map(|error| format!("server {index} at {address}: {}", error.message))
            })
            .collect();
        match silent.len() {
            0 => Ok(json!({ "met": count })),
            _ => Err(Failure::failed(format!("does not reach {}", silent.join("; ")))),
        }
    }

    /// Mounts the cluster here, unless it is mounted there already.
    fn mount(&mut self, told: &Value) -> Outcome<Value> {
        let wanted = MountRequest::from_json(&told["mount"]).ok_or_else(|| misunderstood("mount"))?;
        let path = PathBuf::from(text(told, "run_directory")?);
        let (Some(cluster), Some(made)) = (&self.cluster, &mut self.made) else { return Err(misunderstood("mount")) };
        let is_new = mount::ensure(&wanted, cluster, &path)?;
        if is_new {
            made.mounted = Some((path, wanted.directory));
        }
        Ok(json!({ "mounted": is_new }))
    }

    /// Takes all mounts of the cluster out of this machine's tree. A run directory that has gone had none.
    fn unmount(&mut self, told: &Value) -> Outcome<Value> {
        self.find_number(told);
        let path = PathBuf::from(text(told, "run_directory")?);
        if is_copy_of(&path, text(told, "cluster_id")?) {
            mount::take_all_out(&self.reactor, &path)?;
        }
        Ok(json!({}))
    }

    /// Which mounts of the cluster this host has.
    fn mounts(&mut self, told: &Value) -> Outcome<Value> {
        self.find_number(told);
        let path = PathBuf::from(text(told, "run_directory")?);
        let all = mount_status::of_this_host(text(told, "source")?, Some(&path));
        let all: Vec<Value> = all.iter().map(MountStatus::json).collect();
        Ok(json!({ "mounts": all }))
    }

    /// Stops servers of this host, and removes what they stored unless it is kept.
    fn stop(&mut self, told: &Value) -> Outcome<Value> {
        self.find_number(told);
        let own = self.own(told)?.clone();
        let (cluster, settings) = cluster_of(told, &own)?;
        let path = PathBuf::from(text(told, "run_directory")?);
        let wanted = numbers(&own["stop"]).ok_or_else(|| misunderstood("stop"))?;
        let keep = told["keep"].as_bool() == Some(true);
        let shared = own["shared"].as_bool() == Some(true);
        if !is_copy_of(&path, text(told, "cluster_id")?) {
            let left: Vec<String> = wanted
                .iter()
                .map(|index| settings.store_of(*index))
                .filter(|store| store.exists())
                .map(|store| store.display().to_string())
                .collect();
            return match left.len() {
                0 => Ok(json!({ "stopped": 0 })),
                _ => Err(Failure::failed(format!(
                    "its run directory {} has gone, so the servers are not known; look for them, and at {}",
                    path.display(),
                    left.join(", ")
                ))),
            };
        }
        let directory = if shared { RunDirectory::shared(&path) } else { RunDirectory::open(&path)? };
        let living: Vec<(u32, ProcessId)> =
            wanted.iter().filter_map(|index| Some((*index, directory.living_process(*index)?))).collect();
        let timeout = told["timeout_ms"].as_u64().unwrap_or(30_000) * NANOS_PER_MS;
        self.reactor.block_on(stop_servers(&self.reactor, &cluster, &living, timeout));
        let left: Vec<String> =
            living.iter().filter(|(_, process)| process.is_alive()).map(|(index, _)| index.to_string()).collect();
        if !left.is_empty() {
            return Err(Failure::failed(format!(
                "these servers still run, so nothing was removed: {}",
                left.join(", ")
            )));
        }
        if !keep {
            remove_stores(&settings, wanted.iter().copied())?;
            if !shared {
                directory.remove(cluster.server_count())?;
            }
        }
        Ok(json!({ "stopped": living.len() }))
    }

    /// Takes back what was made, and says what could not be.
    fn undo(&mut self) {
        let Some(made) = self.made.take() else {
            self.say(report::UNDONE, json!({ "left": [] }));
            return;
        };
        let mounted = made.mounted.map_or(Ok(()), |(run_directory, directory)| {
            mount::take_one_out(&self.reactor, &run_directory, &directory)
        });
        let processes: Vec<ProcessId> = made.started.iter().map(|server| server.process).collect();
        self.reactor.block_on(push_out(&self.reactor, &processes));
        let stores = match made.again {
            true => Ok(()),
            false => remove_stores(&made.settings, made.stores.iter().copied()),
        };
        let directory = made.directory.map_or(Ok(()), |(directory, count)| directory.remove(count));
        let left: Vec<String> = [mounted, stores, directory]
            .into_iter()
            .filter_map(|outcome| match outcome {
                Err(Failure::Failed(words)) => Some(words),
                _ => None,
            })
            .collect();
        self.say(report::UNDONE, json!({ "left": left }));
    }

    /// Waits for the end of the servers, for a launcher that ends what its processes leave behind.
    fn stay(&mut self) {
        let Some(made) = self.made.take() else { return };
        let alive = || made.started.iter().any(|server| server.process.is_alive());
        self.reactor.block_on(async {
            while alive() {
                match race(stop_asked(&self.signals), self.reactor.sleep(LOOK_INTERVAL)).await {
                    // The end of the orders; others ask us to go, and the servers with us if that is how they do it.
                    Either::First(signal) if signal.number != SIGHUP => return,
                    _ => {}
                }
            }
        });
    }
}

fn misunderstood(what: &str) -> Failure {
    Failure::failed(format!("an order was not understood ({what}); both sides have to be the same version of tabane"))
}

fn text<'a>(told: &'a Value, key: &str) -> Outcome<&'a str> {
    told[key].as_str().ok_or_else(|| misunderstood(key))
}

/// Whether a directory is that of this cluster, or a copy of it.
fn is_copy_of(path: &Path, id: &str) -> bool {
    HostsRecord::of(path).is_some_and(|record| format!("{:032x}", record.cluster_id) == id)
}

fn cluster_of(told: &Value, own: &Value) -> Outcome<(Cluster, Settings)> {
    let cluster = Cluster::parse(text(told, "cluster")?).map_err(|_| misunderstood("cluster"))?;
    let mut settings = Settings::parse(text(told, "settings")?).map_err(|_| misunderstood("settings"))?;
    settings.made_stores = own["made_stores"].as_bool() == Some(true);
    Ok((cluster, settings))
}

fn make_stores(settings: &Settings) -> Outcome {
    if settings.stores.exists() {
        return Ok(());
    }
    DirBuilder::new().mode(0o700).recursive(true).create(&settings.stores).map_err(|error| {
        Failure::failed(format!(
            "directory {} of the stores: {}; choose another with --dir",
            settings.stores.display(),
            io_words(&error)
        ))
    })
}

/// An address with a port as the cluster file has it.
pub fn address_of(facts: &Value, place: usize) -> Option<SocketAddr> {
    let address: IpAddr = facts["address"].as_str()?.parse().ok()?;
    let port = u16::try_from(facts["ports"].get(place)?.as_u64()?).ok()?;
    Some(SocketAddr::new(address, port))
}
