//! A command's way to its cluster: where the cluster file is, and a client on a loop of its own.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome};
use crate::globbing::{expanded, is_special};
use crate::text::size_short;
use crate::together::race;
use client::{
    CLUSTER_FILE_NAME, Cluster, Contact, FileSystem, Options, Status, Traffic, default_run_directory, load_cluster,
};
use reactor::{DriverKind, Reactor};
use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;

/// Where the cluster is: the run directory or the cluster file. What stands on the command line comes first; of two
/// that do not, and of two that do, the run directory, as with `down`.
pub fn cluster_path(arguments: &Arguments) -> PathBuf {
    let takes_directory = arguments.takes("run-directory");
    let directory = takes_directory.then(|| arguments.path("run-directory")).flatten();
    let directory_counts =
        takes_directory && (arguments.is_on_command_line("run-directory") || !arguments.is_on_command_line("cluster"));
    directory.filter(|_| directory_counts).or_else(|| arguments.path("cluster")).unwrap_or_else(default_run_directory)
}

/// Reads the cluster file. Errors say where it was looked for and what to do.
pub fn find_cluster(arguments: &Arguments) -> Outcome<Cluster> {
    let path = cluster_path(arguments);
    let file = if path.is_dir() { path.join(CLUSTER_FILE_NAME) } else { path.clone() };
    load_cluster(&path).map_err(|error| match error.status {
        Status::NotFound if !file.exists() => Failure::failed(format!(
            "no cluster is up here: there is no {}; start one with 'tabane up', or name one with --cluster or \
             TABANE_CLUSTER",
            file.display()
        )),
        _ => Failure::failed(error.message),
    })
}

/// A loop for commands.
pub fn open_reactor() -> Outcome<Reactor> {
    // Clients wait for few sockets; epoll needs no ring to be set up and torn down for every command.
    Reactor::open(DriverKind::Epoll).map_err(|error| Failure::failed(format!("event loop: {error}")))
}

/// Longest wait at the end of a command for servers to take in what it closed.
const FINISH_NS_MAX: reactor::Nanos = 1_000_000_000;

/// A client of one cluster.
pub struct Session {
    pub reactor: Reactor,
    pub files: FileSystem,
    /// The command to tell what was sent and received for, if that was asked for.
    traffic_of: Option<&'static str>,
}

impl Session {
    /// The client of the cluster that the arguments, the environment or the default name. No connection is made yet.
    pub fn open(arguments: &Arguments) -> Outcome<Session> {
        Session::open_as(arguments, false)
    }

    /// The same; `is_low_priority`: for work that is to step back while others are at work.
    pub fn open_as(arguments: &Arguments, is_low_priority: bool) -> Outcome<Session> {
        let cluster = find_cluster(arguments)?;
        let mut options = Options::of_this_process().map_err(|error| Failure::failed(error.message))?;
        options.is_low_priority = is_low_priority;
        if let Some(timeout_ms) = arguments.number_given("timeout-ms") {
            options.timeout_ms = timeout_ms;
        }
        let word = if arguments.takes("contact") { arguments.text("contact") } else { None };
        let contact = word.and_then(|word| Contact::from_word(&word));
        options.contact = contact.unwrap_or(options.contact);
        let mut session = Session::with(cluster, options)?;
        if arguments.takes("traffic") && arguments.flag("traffic") {
            session.traffic_of = Some(arguments.command.name);
        }
        session.expand_patterns(arguments);
        Ok(session)
    }

    /// Replaces patterns among the operands that are paths inside the cluster by what they match.
    fn expand_patterns(&self, arguments: &Arguments) {
        let Some((first, both_sides)) = arguments.command.expands() else { return };
        let operands = arguments.operand_bytes();
        if !operands.iter().any(|operand| is_special(operand)) {
            return;
        }
        let expanded = self.reactor.block_on(async {
            let mut all = Vec::new();
            for (index, operand) in operands.into_iter().enumerate() {
                match index < first {
                    true => all.push(operand),
                    false => all.extend(expanded(&self.files, operand, both_sides).await),
                }
            }
            all
        });
        arguments.set_expanded(expanded);
    }

    /// The client of a cluster.
    pub fn with(cluster: Cluster, options: Options) -> Outcome<Session> {
        Ok(Session::on(&open_reactor()?, cluster, options))
    }

    /// The same, on a loop that is there.
    pub fn on(reactor: &Reactor, cluster: Cluster, options: Options) -> Session {
        let files = FileSystem::new(reactor, Rc::new(cluster), options);
        Session { reactor: reactor.clone(), files, traffic_of: None }
    }

    /// Runs a future to its end.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.reactor.block_on(async {
            let value = future.await;
            race(self.files.finish(), self.reactor.sleep(FINISH_NS_MAX)).await;
            value
        })
    }
}

/// What a command has sent is told when it is done, however it ended, and servers that it is.
impl Drop for Session {
    fn drop(&mut self) {
        self.reactor.block_on(self.files.end(async {}));
        if let Some(command) = self.traffic_of {
            let Traffic { requests, sends, bytes_sent, bytes_received } = self.files.traffic();
            let (sent, received) = (size_short(bytes_sent), size_short(bytes_received));
            eprintln!("tabane: {command}: {requests} requests in {sends} sends, {sent} sent, {received} received");
        }
    }
}
