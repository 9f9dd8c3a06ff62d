//! `tabane up --hosts`, and `tabane up` again on what it made: survey, start, meet, commit.

use super::address::Choice;
use super::agent::address_of;
use super::launcher::Launcher;
use super::orders::{numbers, order};
use super::party::{Answers, Party};
use super::record::{HOSTS_FILE, Host, HostsRecord};
use super::{MARGIN, MEET_TIMEOUT, NANOS_PER_MS, UNDO_TIMEOUT, call, check_origin, failures, launch_timeout, list};
use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, io_words};
use crate::mount::{self, MountRequest, wanted_on_hosts};
use crate::run_directory::RunDirectory;
use crate::settings::{Settings, absolute, protection, share_of};
use crate::text::{plural, size_words};
use client::Cluster;
use reactor::process::{Signals, host_name, user};
use reactor::{Nanos, Reactor};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use wire::{Placement, ServerAddress};

/// The run directory where none was named. One of a login session would vanish from the hosts with it.
pub fn default_run_directory() -> PathBuf {
    PathBuf::from(format!("/tmp/tabane-{}", user()))
}

/// `tabane up` with hosts on the command line, or on the run directory of such a cluster.
pub fn run(arguments: &Arguments, reactor: &Reactor, signals: &Signals) -> Outcome {
    let path = arguments.path("run-directory").unwrap_or_else(default_run_directory);
    if arguments.is_given("hosts") && HostsRecord::of(&absolute(&path)?).is_none() {
        return New::prepare(arguments, reactor, signals, &path, false)?.start().map(drop);
    }
    again(arguments, reactor, signals, &path)
}

/// A new cluster for one who takes it down himself. Nothing is printed, and nothing that is there already is used.
pub fn run_for_a_while(arguments: &Arguments, reactor: &Reactor, signals: &Signals, path: &Path) -> Outcome<PathBuf> {
    if HostsRecord::of(&absolute(path)?).is_some() {
        return Err(Failure::failed(format!(
            "a cluster over several hosts is in {0} already; take it down with 'tabane down --run-directory {0}', or \
             name another --run-directory",
            path.display()
        )));
    }
    New::prepare(arguments, reactor, signals, path, true)?.start()
}

/// A new cluster in the making.
struct New<'a> {
    arguments: &'a Arguments,
    reactor: &'a Reactor,
    signals: &'a Signals,
    directory: RunDirectory,
    record: HostsRecord,
    settings: Settings,
    interface: Choice,
    mount: Option<MountRequest>,
    quiet: bool,
}

impl<'a> New<'a> {
    /// Reads what is wanted. Nothing is made but the run directory, and that only if all is understood.
    fn prepare(
        arguments: &'a Arguments,
        reactor: &'a Reactor,
        signals: &'a Signals,
        path: &Path,
        quiet: bool,
    ) -> Outcome<New<'a>> {
        let named = list::wanted(arguments)?;
        let mount = wanted_on_hosts(arguments)?;
        let per_host = arguments.number_given("per-host").map(|count| count as u32);
        let servers = arguments.number_given("servers").map(|count| count as u32);
        let shares = list::share_out(&named, per_host, servers)?;
        let launcher = Launcher::parse(&arguments.text_or_default("launcher"))?;
        let interface = Choice::parse(&arguments.text("interface").unwrap_or_default())
            .map_err(|words| Failure::usage(format!("--interface: {words}")))?;
        let binary = match arguments.path("binary") {
            Some(path) => path,
            None => std::env::current_exe()
                .map_err(|error| Failure::failed(format!("this program's own file: {}", io_words(&error))))?,
        };
        let mut id = [0; 16];
        reactor.fill_random(&mut id);
        let cluster_id = u128::from_ne_bytes(id);
        let settings = Settings::wanted(arguments, cluster_id)?;
        if settings.devices.is_some() && settings.store_size == 0 {
            let words = "the devices of several hosts are not looked at; say how large their stores are to be with \
                         --store nvme:PATH,size=SIZE";
            return Err(Failure::usage(words.to_owned()));
        }
        let hosts = named.into_iter().zip(shares);
        let hosts = hosts.map(|(host, servers)| Host { name: host.name, servers, shared: false, made_stores: false });
        let record = HostsRecord {
            cluster_id,
            launcher,
            binary,
            is_origin: true,
            origin: host_name(),
            mount: mount.as_ref().map(|mount| mount.directory.clone()),
            hosts: hosts.collect(),
        };
        let directory = RunDirectory::make(path)?;
        if directory.cluster()?.is_some() {
            return Err(Failure::failed(format!(
                "{0} holds a cluster of this machine alone; take it down with 'tabane down --run-directory {0}', or \
                 choose another --run-directory",
                directory.path.display()
            )));
        }
        Ok(New { arguments, reactor, signals, directory, record, settings, interface, mount, quiet })
    }

    fn start(mut self) -> Outcome<PathBuf> {
        let path = self.directory.path.clone();
        match self.attempt() {
            Ok(()) => Ok(path),
            Err(failure) => {
                let count = self.record.hosts.iter().map(|host| host.servers.len() as u32).sum();
                if let Err(Failure::Failed(words)) = self.directory.remove(count) {
                    eprintln!("tabane: {words}");
                }
                Err(failure)
            }
        }
    }

    fn attempt(&mut self) -> Outcome {
        // This is how hosts know the directory when they see it.
        self.directory.write(HOSTS_FILE, &self.record.to_text())?;
        let numbers: Vec<usize> = (0..self.record.hosts.len()).collect();
        let mut party = call(self.reactor, &self.record, &self.directory.path, &numbers)?;
        let mut steps = Steps {
            reactor: self.reactor,
            signals: Some(self.signals),
            party: &mut party,
            numbers,
            told_to_start: false,
            mounted_here: None,
        };
        steps
            .step(&self.survey_order(), launch_timeout(self.arguments))
            .and_then(|surveys| {
                let cluster = self.assemble(&surveys)?;
                let start = self.start_order(&cluster)?;
                steps.raise(
                    start,
                    start_timeout(self.arguments),
                    self.mount.as_ref().map(|mount| (mount, &cluster)),
                )?;
                Ok(cluster)
            })
            .map_err(|failure| steps.undo(failure))
            .map(|cluster| self.report(&cluster))?;
        self.reactor.block_on(party.leave());
        Ok(())
    }

    fn survey_order(&self) -> Value {
        let hosts: Vec<Value> =
            self.record.hosts.iter().map(|host| json!({ "name": host.name, "servers": host.servers })).collect();
        json!({
            "order": order::SURVEY,
            "cluster": format!("{:032x}", self.record.cluster_id),
            "run_directory": self.directory.path.display().to_string(),
            "orders_shared": self.record.launcher.has_one_reader(),
            "stores": self.settings.stores.display().to_string(),
            "backing": self.settings.backing.as_ref().map(|backing| backing.display().to_string()),
            "interface": self.interface.text(),
            "port": self.arguments.number("port"),
            "hosts": hosts,
        })
    }

    /// The cluster that the hosts' answers make possible; its files are in the run directory then.
    fn assemble(&mut self, surveys: &Answers) -> Outcome<Cluster> {
        let count: usize = self.record.hosts.iter().map(|host| host.servers.len()).sum();
        let mut addresses = vec![None; count];
        for ((_, answer), host) in surveys.iter().zip(&mut self.record.hosts) {
            let Ok(facts) = answer else { continue };
            host.shared = facts["shared"].as_bool() == Some(true);
            host.made_stores = facts["made_stores"].as_bool() == Some(true);
            for (place, server) in host.servers.iter().enumerate() {
                addresses[*server as usize] = address_of(facts, place).map(|address| ServerAddress { address });
            }
        }
        self.check_one_backing(surveys)?;
        let servers: Option<Vec<ServerAddress>> = addresses.into_iter().collect();
        let servers = servers.ok_or_else(|| Failure::failed("a host did not say where it listens"))?;
        let addresses: std::collections::HashSet<_> = servers.iter().map(|server| server.address).collect();
        if addresses.len() < servers.len() {
            return Err(Failure::failed(
                "several hosts have the same address; they are one machine, or --interface has to say which network is \
                 meant",
            ));
        }
        if self.settings.devices.is_some() {
            // Three quarters of what is free, for each server.
            let free = self.share(surveys)? / 3 * 4;
            self.settings.find_buffer(free, 1)?;
        } else if self.settings.store_size == 0 {
            self.settings.store_size = self.share(surveys)?;
        }
        let mut key = [0; wire::cluster::KEY_SIZE];
        self.reactor.fill_random(&mut key);
        let arguments = self.arguments;
        let placement =
            Placement::parse(&arguments.text_or_default("placement")).expect("the table names all placements");
        let chunk_size = arguments.number("chunk-size") as u32;
        let mut cluster = Cluster::new(self.record.cluster_id, key, placement, chunk_size, servers);
        cluster.protection = protection(arguments);
        self.directory.write(HOSTS_FILE, &self.record.to_text())?;
        self.directory.keep(&cluster, &self.settings)?;
        Ok(cluster)
    }

    /// Refuses a backing directory that is not the same one on all hosts, as where a file system is not mounted: names
    /// that belong to servers there would be missing. Told apart by the numbers of its inode and of its file system.
    fn check_one_backing(&self, surveys: &Answers) -> Outcome {
        let Some(backing) = &self.settings.backing else { return Ok(()) };
        let told = |answer: &serde_json::Value| {
            let [inode, file_system] = [0, 1].map(|index| answer["backing"][index].as_u64());
            Some((inode?, file_system?))
        };
        let found = surveys
            .iter()
            .zip(&self.record.hosts)
            .filter_map(|((_, answer), host)| Some((host.name.as_str(), told(answer.as_ref().ok()?)?)));
        let found: Vec<(&str, (u64, u64))> = found.collect();
        // A file system that does not say which one it is may be any.
        let are_two =
            |one: (u64, u64), other: (u64, u64)| one.0 != other.0 || (one.1 != other.1 && one.1 != 0 && other.1 != 0);
        let two = found
            .iter()
            .enumerate()
            .find_map(|(at, one)| Some((one, found[..at].iter().find(|other| are_two(other.1, one.1))?)));
        let Some(((other, _), (first, (inode, _)))) = two else { return Ok(()) };
        Err(Failure::failed(format!(
            "--backing {}: hosts {first} and {other} have different directories there (inode {inode} on {first}); see \
             whether the site's file system is mounted on both, or name a directory that all hosts share",
            backing.display()
        )))
    }

    /// The store size that fits everywhere. Hosts that are one machine share what is free.
    fn share(&self, surveys: &Answers) -> Outcome<u64> {
        let mut media: HashMap<&str, (u64, u32)> = HashMap::new();
        for ((_, answer), host) in surveys.iter().zip(&self.record.hosts) {
            let Ok(facts) = answer else { continue };
            let medium = facts["medium"].as_str().unwrap_or_default();
            let entry = media.entry(medium).or_insert((facts["free"].as_u64().unwrap_or(0), 0));
            entry.1 += host.servers.len() as u32;
        }
        let shares = media
            .values()
            .map(|(free, servers)| share_of(&self.settings.stores, *free, *servers, self.settings.journal_size));
        shares.collect::<Outcome<Vec<u64>>>().map(|shares| shares.into_iter().min().unwrap_or(0))
    }

    fn start_order(&self, cluster: &Cluster) -> Outcome<Value> {
        let wanted: Vec<Vec<u32>> = self.record.hosts.iter().map(|host| host.servers.clone()).collect();
        Ok(start_order(
            &self.record,
            &self.directory.path,
            cluster,
            &self.settings,
            &wanted,
            false,
            start_timeout(self.arguments),
        ))
    }

    fn report(&self, cluster: &Cluster) {
        if self.quiet {
            return;
        }
        let (count, hosts) = (cluster.server_count(), self.record.hosts.len() as u64);
        println!(
            "{} up on {}, {} each, {}",
            if count == 1 { "1 server is".to_owned() } else { format!("{count} servers are") },
            plural(hosts, "host"),
            size_words(self.settings.store_size),
            self.settings.place_words()
        );
        say_mounted(&self.record);
        say_where(&self.directory.path);
    }
}

fn say_mounted(record: &HostsRecord) {
    if let Some(directory) = &record.mount {
        let hosts = plural(record.hosts.len() as u64, "host");
        println!("mounted on {} of {hosts} and of this machine", directory.display());
    }
}

fn say_where(path: &Path) {
    if *path == client::default_run_directory() {
        println!("run directory {} (the default one: commands find it by themselves)", path.display());
    } else {
        println!("run directory {0}; for other commands, also on the hosts: export TABANE_CLUSTER={0}", path.display());
    }
}

/// How long the servers may take to answer.
pub fn start_timeout(arguments: &Arguments) -> Nanos {
    arguments.number("start-timeout-ms") * NANOS_PER_MS
}

/// The order that starts servers: of each host these.
pub fn start_order(
    record: &HostsRecord,
    run_directory: &Path,
    cluster: &Cluster,
    settings: &Settings,
    wanted: &[Vec<u32>],
    again: bool,
    timeout: Nanos,
) -> Value {
    let hosts: Vec<Value> = record
        .hosts
        .iter()
        .zip(wanted)
        .map(|(host, start)| {
            json!({
                "name": host.name,
                "servers": host.servers,
                "start": start,
                "shared": host.shared,
                "made_stores": host.made_stores,
            })
        })
        .collect();
    let copy = HostsRecord { is_origin: false, ..record.clone() };
    json!({
        "order": order::START,
        "again": again,
        "run_directory": run_directory.display().to_string(),
        "record": copy.to_text(),
        "cluster": cluster.to_text(),
        "settings": settings.to_text(),
        "timeout_ms": timeout / NANOS_PER_MS,
        "hosts": hosts,
    })
}

/// Orders that all of some hosts have to follow, or else none of them shall have.
pub struct Steps<'a, 'b> {
    pub reactor: &'a Reactor,
    pub signals: Option<&'a Signals>,
    pub party: &'a mut Party<'b>,
    pub numbers: Vec<usize>,
    /// Whether there may be something to take back.
    pub told_to_start: bool,
    /// A directory of this machine that was mounted on just now, and the run directory that tells of it.
    pub mounted_here: Option<(PathBuf, PathBuf)>,
}

impl Steps<'_, '_> {
    /// Gives an order and waits until all have followed it. Errors: those that did not, a line each.
    pub fn step(&mut self, told: &Value, timeout: Nanos) -> Outcome<Answers> {
        let kind = told["order"].as_str().unwrap_or_default().to_owned();
        let answers = self.reactor.block_on(async {
            self.party.tell(told).await;
            self.party.hear(&kind, &self.numbers, timeout, self.signals).await
        })?;
        let failed = failures(self.party, &answers);
        if failed.is_empty() { Ok(answers) } else { Err(Failure::failed(failed.join("\n  "))) }
    }

    /// Starts servers, has them meet, mounts if that is wanted, and lets all of it stay.
    pub fn raise(&mut self, mut start: Value, timeout: Nanos, mount: Option<(&MountRequest, &Cluster)>) -> Outcome {
        self.told_to_start = true;
        self.step(&start, timeout + MARGIN)?;
        start["order"] = order::MEET.into();
        start["timeout_ms"] = (MEET_TIMEOUT / NANOS_PER_MS).into();
        for kept in ["cluster", "settings", "record"] {
            start[kept] = Value::Null;
        }
        self.step(&start, MEET_TIMEOUT + MARGIN)?;
        if let Some((wanted, cluster)) = mount {
            start["order"] = order::MOUNT.into();
            start["mount"] = wanted.to_json();
            self.step(&start, timeout + MARGIN)?;
            // This machine may be one of the hosts; else it has a mount of its own.
            let path = PathBuf::from(start["run_directory"].as_str().unwrap_or_default());
            if mount::ensure(wanted, cluster, &path)? {
                self.mounted_here = Some((path, wanted.directory.clone()));
            }
        }
        self.step(&json!({ "order": order::COMMIT }), MARGIN).map(drop)
    }

    /// Has all hosts take back what they made, and says why.
    pub fn undo(&mut self, why: Failure) -> Failure {
        if matches!(why, Failure::Said(_)) {
            eprintln!("tabane: interrupted; what was started is taken down again");
        }
        let mut left = Vec::new();
        if let Some((run_directory, directory)) = self.mounted_here.take()
            && let Err(Failure::Failed(words)) = mount::take_one_out(self.reactor, &run_directory, &directory)
        {
            left.push(words);
        }
        let answers = self.reactor.block_on(self.party.give_up(&self.numbers, UNDO_TIMEOUT));
        for (number, answer) in answers {
            let name = self.party.name(number);
            match answer {
                Ok(facts) => {
                    let words = facts["left"].as_array().into_iter().flatten().filter_map(Value::as_str);
                    left.extend(words.map(|words| format!("host {name}: {words}")));
                }
                Err(_) if !self.told_to_start => {}
                Err(_) => left.push(format!(
                    "host {name} was lost; what it has started ends by itself when it notices, which is worth a look"
                )),
            }
        }
        let left = if left.is_empty() {
            String::new()
        } else {
            format!("\nand not all was taken back:\n  {}", left.join("\n  "))
        };
        match why {
            Failure::Failed(words) => Failure::failed(format!("the cluster was not started:\n  {words}{left}")),
            other => {
                if !left.is_empty() {
                    eprintln!("tabane:{left}");
                }
                other
            }
        }
    }
}

/// Starts what is missing of a cluster that is there.
fn again(arguments: &Arguments, reactor: &Reactor, signals: &Signals, path: &Path) -> Outcome {
    let mount = wanted_on_hosts(arguments)?;
    let directory = RunDirectory::open(path)?;
    let mut record =
        HostsRecord::of(&directory.path).ok_or_else(|| Failure::failed("its list of hosts can't be read"))?;
    check_origin(&record, &directory.path)?;
    let Some((cluster, settings)) = directory.cluster()? else {
        return Err(Failure::failed(format!(
            "an earlier start in {0} was killed half way; remove what it left with 'tabane down --run-directory {0}'",
            directory.path.display()
        )));
    };
    let mut differences = settings.differences(&cluster, arguments)?;
    if arguments.is_on_command_line("hosts") {
        let named: Vec<String> = list::wanted(arguments)?.into_iter().map(|host| host.name).collect();
        if !named.iter().eq(record.hosts.iter().map(|host| &host.name)) {
            let has: Vec<&str> = record.hosts.iter().map(|host| host.name.as_str()).collect();
            differences.push(format!("--hosts is {}, not {}", has.join(","), named.join(",")));
        }
    }
    if !differences.is_empty() {
        return Err(Failure::failed(format!(
            "{0} holds a cluster that is otherwise ({1}); leave these options away to start it again with its data, or \
             remove it with 'tabane down --run-directory {0}'",
            directory.path.display(),
            differences.join("; ")
        )));
    }
    let all: Vec<usize> = (0..record.hosts.len()).collect();
    let mut party = call(reactor, &record, &directory.path, &all)?;
    let mut steps = Steps {
        reactor,
        signals: Some(signals),
        party: &mut party,
        numbers: all,
        told_to_start: false,
        mounted_here: None,
    };
    let hosts: Vec<Value> =
        record.hosts.iter().map(|host| json!({ "name": host.name, "servers": host.servers })).collect();
    let survey = json!({
        "order": order::SURVEY,
        "again": true,
        "cluster": format!("{:032x}", record.cluster_id),
        "run_directory": directory.path.display().to_string(),
        "hosts": hosts,
    });
    let timeout = start_timeout(arguments);
    let started = steps.step(&survey, launch_timeout(arguments)).and_then(|surveys| {
        let wanted: Vec<Vec<u32>> = surveys
            .iter()
            .zip(&record.hosts)
            .map(|((_, answer), host)| {
                let living = answer.as_ref().ok().and_then(|facts| numbers(&facts["living"])).unwrap_or_default();
                host.servers.iter().copied().filter(|server| !living.contains(server)).collect()
            })
            .collect();
        let missing: Vec<u32> = wanted.concat();
        if missing.is_empty() && mount.is_none() && arguments.is_given("record") {
            // All that is missing is a recorder.
            return Ok(missing);
        }
        if missing.is_empty() {
            let (count, path) = (plural(u64::from(cluster.server_count()), "server"), directory.path.display());
            return Err(Failure::failed(format!(
                "a cluster of {count} is up already in {path}; use it, or take it down with \
                 'tabane down --run-directory {path}'"
            )));
        }
        let start = start_order(&record, &directory.path, &cluster, &settings, &wanted, true, timeout);
        steps.raise(start, timeout, mount.as_ref().map(|mount| (mount, &cluster)))?;
        Ok(missing)
    });
    let mut started = started.map_err(|failure| steps.undo(failure))?;
    reactor.block_on(party.leave());
    if started.is_empty() {
        return Ok(());
    }
    started.sort_unstable();
    let words: Vec<String> = started.iter().map(|server| format!("{server} on {}", record.name_of(*server))).collect();
    println!("{} started again: {}", plural(started.len() as u64, "server"), words.join(", "));
    if let Some(mount) = mount {
        record.mount = Some(mount.directory);
        directory.write(HOSTS_FILE, &record.to_text())?;
        say_mounted(&record);
    }
    say_where(&directory.path);
    Ok(())
}
