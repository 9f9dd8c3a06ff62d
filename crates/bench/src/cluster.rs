//! The cluster behind a Tabane target: the one that TABANE_CLUSTER names, or one of our own through the `tabane`
//! program.

use crate::options::{Bench, Options, SiteUse};
use reactor::workers::HeldSignals;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A cluster that runs.
pub struct Cluster {
    /// Its run directory or cluster file: what TABANE_CLUSTER says.
    pub path: PathBuf,
    pub server_count: u32,
    pub transport: String,
    /// Whether changes stay here alone that were not carried back when it goes.
    has_backing: bool,
    /// The program that started it, if it is our own.
    tabane: Option<PathBuf>,
}

impl Cluster {
    pub fn find_or_start(options: &Options, signals: &HeldSignals) -> Result<Cluster, String> {
        match &options.cluster {
            Some(path) => {
                let server_count = server_count(path)?;
                Ok(Cluster {
                    path: path.clone(),
                    server_count,
                    transport: transport_name(options),
                    has_backing: false,
                    tabane: None,
                })
            }
            None => Cluster::start(options, signals),
        }
    }

    pub fn is_own(&self) -> bool {
        self.tabane.is_some()
    }

    fn start(options: &Options, signals: &HeldSignals) -> Result<Cluster, String> {
        let tabane = find_tabane(options)?;
        let path = std::env::temp_dir().join(format!("tabane-bench-{}", std::process::id()));
        let mut command = Command::new(&tabane);
        command.arg("up").args(up_arguments(options)).arg("--run-directory").arg(&path);
        run_quietly(command, signals)?;
        let cluster = Cluster {
            path,
            server_count: options.servers,
            transport: transport_name(options),
            has_backing: matches!(options.site, SiteUse::Behind { .. }),
            tabane: Some(tabane),
        };
        match server_count(&cluster.path) {
            Ok(count) if count == options.servers => Ok(cluster),
            Ok(count) => {
                cluster.stop(signals)?;
                Err(format!("tabane up started {count} servers instead of {}", options.servers))
            }
            Err(message) => {
                cluster.stop(signals)?;
                Err(message)
            }
        }
    }

    /// Takes a cluster of our own down and removes what it stored; leaves others alone.
    pub fn stop(self, signals: &HeldSignals) -> Result<(), String> {
        let Some(tabane) = &self.tabane else { return Ok(()) };
        let mut command = Command::new(tabane);
        command.arg("down").arg("--run-directory").arg(&self.path);
        if self.has_backing {
            // What was measured has been carried back by now, and what is left of a failed run is of no use.
            command.arg("--discard");
        }
        // A Ctrl-C that stops the measurement goes to the whole group of processes; this one has to finish.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        run_quietly(command, signals)
    }
}

/// What the processes of one machine speak then.
fn transport_name(options: &Options) -> String {
    if options.transport == "auto" { "shm".to_string() } else { options.transport.clone() }
}

fn up_arguments(options: &Options) -> Vec<String> {
    let mut arguments = vec!["--servers".to_string(), options.servers.to_string()];
    arguments.extend(["--transport".to_string(), options.transport.clone()]);
    let chunk_size = (options.chunk_size != 0).then(|| options.chunk_size.to_string());
    let optional =
        [("--store", options.store.clone()), ("--chunk-size", chunk_size), ("--placement", options.placement.clone())];
    for (name, value) in optional {
        arguments.extend(value.into_iter().flat_map(|value| [name.to_string(), value]));
    }
    if let Some(connections) = options.connections {
        arguments.extend(["--connections-max".to_string(), connections.to_string()]);
    }
    if let SiteUse::Behind { path, flush, warm } = &options.site {
        arguments.extend(["--backing".to_string(), path.display().to_string()]);
        arguments.extend(["--flush".to_string(), (*flush).to_string()]);
        if *warm > 0 {
            arguments.extend(["--warm".to_string(), warm.to_string()]);
        }
    }
    if options.benches.iter().any(|bench| matches!(bench, Bench::OpenStorm | Bench::Congestion | Bench::Shares)) {
        // As for clients of other machines: those of this one open by a look, and ask neither homes nor contacts.
        arguments.extend(["--short-circuit", "off"].map(str::to_string));
    }
    arguments
}

/// The program named by --tabane, else the one beside this program, else the one in PATH.
pub fn find_tabane(options: &Options) -> Result<PathBuf, String> {
    if let Some(path) = &options.tabane {
        return if path.is_file() {
            Ok(path.clone())
        } else {
            Err(format!("--tabane {}: no such file", path.display()))
        };
    }
    let own = std::env::current_exe().map_err(|error| format!("path of this program: {error}"))?;
    let beside = own.with_file_name("tabane");
    Ok(if beside.is_file() { beside } else { PathBuf::from("tabane") })
}

/// Runs a `tabane` command; its words are shown only if it fails.
fn run_quietly(mut command: Command, signals: &HeldSignals) -> Result<(), String> {
    signals.release_in(&mut command);
    command.stdin(Stdio::null());
    let name = format!("{:?}", command.get_program());
    let output = command.output().map_err(|error| {
        format!("{name}: {error}; build it (make build), name it by --tabane, or let TABANE_CLUSTER name a cluster")
    })?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    Err(format!("{:?} failed ({}): {}", command, output.status, words.trim()))
}

fn server_count(path: &Path) -> Result<u32, String> {
    client::load_cluster(path).map(|cluster| cluster.server_count()).map_err(|error| error.message)
}
