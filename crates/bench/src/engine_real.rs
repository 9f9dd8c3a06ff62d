//! Experiments with real processes: a cluster of its own (or the one that TABANE_CLUSTER names), and workers that get
//! their steps one by one over a socket and begin each at a barrier.

use crate::cluster::Cluster;
use crate::collective_process::CollectiveProcess;
use crate::engine::{Engine, Outcome, Served, Setting};
use crate::options::{self, Bench, Options, SiteUse, TargetName, Worker};
use crate::reaction::{Medium, ReactionProcess};
use crate::step::{Actor, Done, Step};
use client::{Client, FileId, FileSystem};
use reactor::barrier::{GroupMemory, monotonic_now};
use reactor::bytes_copied;
use reactor::workers::HeldSignals;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How often a leader that waits for a worker looks whether all are alive.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Bytes of a block, as stat(2) counts them.
const BLOCK_SIZE: u64 = 512;

/// Connections that a server takes unless told otherwise, and those that are neither of workers nor of other servers.
const CONNECTIONS_DEFAULT: u32 = 256;
const CONNECTIONS_SPARE: u32 = 8;

pub struct Real {
    cluster: Option<Cluster>,
    signals: Rc<HeldSignals>,
    /// Nothing where there is no cluster.
    client: Option<Client>,
    /// The directory that a cluster is over, or that is used without one.
    site: Option<PathBuf>,
    workers: Vec<Process>,
    group_memory: GroupMemory,
}

struct Process {
    child: Child,
    lines: BufReader<UnixStream>,
}

impl Drop for Real {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            // It may have ended meanwhile; then both calls have nothing to do.
            let _ = worker.child.kill();
            let _ = worker.child.wait();
        }
        if let Some(cluster) = self.cluster.take()
            && let Err(message) = cluster.stop(&self.signals)
        {
            eprintln!("tabane-bench: {message}");
        }
    }
}

impl Real {
    pub fn start(options: &Options, setting: &Setting, signals: &Rc<HeldSignals>) -> Result<Real, String> {
        let mut options = options.clone();
        options.servers = setting.servers;
        options.placement = setting.placement.clone().or(options.placement);
        options.chunk_size = setting.chunk_size;
        // A server keeps up to a quarter of them for other servers and for clients' tunnels.
        let connections = (setting.procs + 4 * setting.servers + CONNECTIONS_SPARE) * 4 / 3 + 1;
        options.connections = (connections > CONNECTIONS_DEFAULT).then_some(connections);
        let failed = |error: std::io::Error| format!("start of the processes: {error}");
        let group_memory = GroupMemory::create(setting.procs, setting.words).map_err(failed)?;
        options.site = setting.site.clone();
        let (site, direct) = match &setting.site {
            SiteUse::None => (None, None),
            SiteUse::Direct(path) => (Some(path.clone()), Some(path)),
            SiteUse::Behind { path, .. } => (Some(path.clone()), None),
        };
        let (workers, signals) = (Vec::new(), signals.clone());
        let mut real = Real { cluster: None, signals, client: None, site, workers, group_memory };
        if direct.is_none() {
            real.start_cluster(&options)?;
        }
        let directory = match direct {
            Some(path) => path.to_str().ok_or_else(|| format!("{}: the path is not UTF-8", path.display()))?,
            None => "/",
        };
        options.set_procs(setting.procs);
        for rank in 0..setting.procs {
            let worker = Worker { rank, group_memory: real.group_memory.path(), directory: directory.to_owned() };
            let mut command = Command::new(std::env::current_exe().map_err(failed)?);
            command.args(options.worker_arguments(Bench::Steps, &TargetName::Tabane, &worker));
            for variable in options::variables() {
                command.env_remove(variable);
            }
            match &real.cluster {
                Some(cluster) => command.env("TABANE_CLUSTER", &cluster.path),
                None => command.env_remove("TABANE_CLUSTER"),
            };
            command.env("TABANE_CONTACT", setting.contact.word());
            let (own, other) = UnixStream::pair().map_err(failed)?;
            let input = OwnedFd::from(other.try_clone().map_err(failed)?);
            command.stdin(Stdio::from(input)).stdout(Stdio::from(OwnedFd::from(other)));
            own.set_read_timeout(Some(LOOK_INTERVAL)).map_err(failed)?;
            real.signals.release_in_worker(&mut command);
            let child = command.spawn().map_err(failed)?;
            real.workers.push(Process { child, lines: BufReader::new(own) });
        }
        Ok(real)
    }

    fn start_cluster(&mut self, options: &Options) -> Result<(), String> {
        let words = |error: client::Error| error.message;
        let cluster = self.cluster.insert(Cluster::find_or_start(options, &self.signals)?);
        let own = client::Options::of_this_process().map_err(words)?;
        let client = client::load_cluster(&cluster.path).and_then(|map| Client::connect(map, own)).map_err(words)?;
        self.client = Some(client);
        Ok(())
    }

    fn server_count(&self) -> u32 {
        self.client.as_ref().map_or(0, |client| client.server_count())
    }

    /// Process numbers of the workers.
    pub fn worker_numbers(&self) -> Vec<u32> {
        self.workers.iter().map(|worker| worker.child.id()).collect()
    }

    /// Process numbers of the servers. Errors: a cluster whose run directory is not here.
    pub fn server_numbers(&self) -> Result<Vec<u32>, String> {
        let path = self.cluster.as_ref().map(|cluster| cluster.path.clone()).unwrap_or_default();
        let number = |server: u32| {
            let file = path.join(format!("server-{server}.pid"));
            let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
            let word = text.split_whitespace().next().and_then(|word| word.parse().ok());
            word.ok_or_else(|| format!("{}: holds no process number", file.display()))
        };
        (0..self.server_count()).map(number).collect()
    }

    /// The next line of a worker. Errors: a worker that has ended, or somebody who wants us to.
    fn line_of(&mut self, rank: usize) -> Result<String, String> {
        let mut line = String::new();
        loop {
            match self.workers[rank].lines.read_line(&mut line) {
                Ok(0) => return Err(format!("process {rank} has ended")),
                Ok(_) => return Ok(line),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if let Some(signal) = self.signals.take_interruption() {
                        return Err(format!("stopped by signal {signal}"));
                    }
                    for (rank, worker) in self.workers.iter_mut().enumerate() {
                        if let Ok(Some(status)) = worker.child.try_wait() {
                            self.group_memory.abort();
                            return Err(format!("process {rank} has ended: {status}"));
                        }
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("process {rank}: {error}")),
            }
        }
    }
}

impl Engine for Real {
    fn act(&mut self, step: &Step, procs: Range<u32>) -> Result<Outcome, String> {
        if let Some(signal) = self.signals.take_interruption() {
            return Err(format!("stopped by signal {signal}"));
        }
        let (own, rest) = (step.to_line() + "\n", Step::Rest.to_line() + "\n");
        for (rank, worker) in self.workers.iter_mut().enumerate() {
            let line = if procs.contains(&(rank as u32)) { &own } else { &rest };
            worker.lines.get_mut().write_all(line.as_bytes()).map_err(|error| format!("process {rank}: {error}"))?;
        }
        let (mut start, mut end, mut copied, mut all) = (u64::MAX, 0, 0, Vec::new());
        for rank in 0..self.workers.len() {
            let line = self.line_of(rank)?;
            let wrong = || format!("process {rank}: {}", line.trim());
            let mut parts = line.splitn(4, ' ');
            let mut number = || parts.next().and_then(|word| word.parse::<u64>().ok());
            let (Some(from), Some(to), Some(bytes)) = (number(), number(), number()) else { return Err(wrong()) };
            if procs.contains(&(rank as u32)) {
                (start, end, copied) = (start.min(from), end.max(to), copied + bytes);
                all.push(parts.next().and_then(Done::from_line).ok_or_else(wrong)?);
            }
        }
        Ok(Outcome { done: all, seconds: end.saturating_sub(start).max(1) as f64 / 1e9, copied })
    }

    fn served(&mut self) -> Result<Vec<Served>, String> {
        let Some(client) = &self.client else { return Ok(Vec::new()) };
        let text =
            |server| client.server_statistics(server, client::StatisticsFormat::JSON).map_err(|error| error.message);
        (0..client.server_count()).map(|server| Served::read(&text(server)?)).collect()
    }

    fn server_of(&self, directory: u64, name: &str) -> u32 {
        let client = self.client.as_ref();
        client.map_or(0, |client| client.cluster().dentry_server(FileId(directory), name.as_bytes()))
    }

    fn now(&mut self) -> f64 {
        monotonic_now() as f64 / 1e9
    }

    /// What the files there take: those that are not whole yet count as far as they are written.
    fn behind(&mut self) -> Result<u64, String> {
        let Some(site) = &self.site else { return Ok(0) };
        let failed = |error: std::io::Error| format!("{}: {error}", site.display());
        let mut sum = 0;
        for entry in std::fs::read_dir(site).map_err(failed)? {
            match entry.and_then(|entry| entry.metadata()) {
                Ok(found) => sum += (found.blocks() * BLOCK_SIZE).min(found.size()),
                // It has got another name meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(sum)
    }

    fn read_behind(&mut self, name: &str) -> Result<Vec<u8>, String> {
        let path = self.site.as_ref().ok_or("there is no site")?.join(name);
        std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn procs(&self) -> u32 {
        self.workers.len() as u32
    }

    fn end(mut self: Box<Self>) -> Result<(), String> {
        // At the end of their input they go by themselves.
        for worker in self.workers.drain(..) {
            let Process { mut child, lines } = worker;
            drop(lines);
            child.wait().map_err(|error| format!("wait for the processes: {error}"))?;
        }
        match self.cluster.take() {
            Some(cluster) => cluster.stop(&self.signals),
            None => Ok(()),
        }
    }
}

/// The life of a worker: a step a line of input, what came of it a line of output. The status to exit with.
pub fn work(options: &Options, worker: &Worker) -> u8 {
    match try_work(options, worker) {
        Ok(()) => 0,
        Err(message) => {
            // To whoever waits for what comes of the step.
            println!("{message}");
            1
        }
    }
}

fn try_work(options: &Options, worker: &Worker) -> Result<(), String> {
    let group_memory = GroupMemory::open(&worker.group_memory)
        .map_err(|error| format!("{}: {error}", worker.group_memory.display()))?;
    let group_memory = Arc::new(group_memory);
    let client = match options.cluster {
        Some(_) => Some(Client::from_environment().map_err(|error| error.message)?),
        None => None,
    };
    let medium = match &client {
        Some(client) => Medium::Cluster(client),
        None => Medium::Directory(Path::new(&worker.directory)),
    };
    let mut actor = Actor::new(worker.rank, options.procs);
    let mut reaction = ReactionProcess::new(worker.rank, &group_memory);
    let mut collective = CollectiveProcess::new(worker.rank, options.procs, group_memory.clone());
    let mut output = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| format!("input: {error}"))?;
        let step = Step::from_line(&line).ok_or_else(|| format!("a step that is not known: {line}"))?;
        if group_memory.wait().is_err() {
            return Err("another process has failed".to_owned());
        }
        let copied = bytes_copied();
        let start = monotonic_now();
        let done = match (&step, &client) {
            (Step::Reaction(step), _) => reaction.act(step, &medium).map(Done::of_work),
            (Step::Rest, None) => Ok(Done::default()),
            (_, None) => Err("there is no cluster for this step".to_owned()),
            (Step::Collective(step), Some(client)) => {
                client.run(async |_, files: &FileSystem| collective.act(files, actor.open_file()?, step).await)
            }
            (_, Some(client)) => client.run(async |_, files: &FileSystem| actor.act(files, &step).await),
        };
        let end = monotonic_now();
        let done = done.inspect_err(|_| group_memory.abort())?;
        let copied = bytes_copied() - copied;
        writeln!(output, "{start} {end} {copied} {}", done.to_line())
            .and_then(|()| output.flush())
            .map_err(|error| format!("output: {error}"))?;
    }
    Ok(())
}
