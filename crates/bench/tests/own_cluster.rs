//! The cluster that `tabane-bench` starts for itself goes down again, whatever happens. A script stands in for the
//! `tabane` program and notes how it was called; the "servers" are ports of this test.

#![allow(clippy::unwrap_used)] // Tests, including their helpers.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A directory with the script, the cluster file that it hands out, and its notes.
struct FakeTabane(PathBuf);

impl FakeTabane {
    /// `up` ends with this status, after it made the run directory if that is 0.
    fn new(name: &str, servers: &[SocketAddr], up_status: i32) -> FakeTabane {
        let path = std::env::temp_dir().join(format!("tabane-bench-fake-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let servers = servers.iter().map(|address| wire::ServerAddress { address: *address }).collect();
        let cluster = wire::Cluster::new(1, [2; 32], wire::Placement::Modular, 1 << 20, servers);
        std::fs::write(path.join("cluster"), cluster.to_text()).unwrap();
        let script = format!(
            "#!/bin/sh\n\
             echo \"$@\" >> {0}/calls\n\
             command=$1\n\
             while [ $# -gt 1 ]; do [ \"$1\" = --run-directory ] && directory=$2; shift; done\n\
             case $command in\n\
             up) [ {up_status} = 0 ] || {{ echo 'tabane: up: no room' >&2; exit {up_status}; }}\n\
                 umask 077; mkdir \"$directory\" && cp {0}/cluster \"$directory/cluster\" ;;\n\
             down) rm -r \"$directory\" ;;\n\
             esac\n",
            path.display()
        );
        let program = path.join("tabane");
        // Written by another process: a program that this one had open for writing while another test's child was born
        // could not be started ("text file busy").
        let mut writer = Command::new("sh");
        writer.args(["-c", "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\""]).arg(&program).arg(script);
        assert!(writer.status().unwrap().success());
        FakeTabane(path)
    }

    fn bench(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tabane-bench"));
        command.arg("--tabane").arg(self.0.join("tabane")).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env_remove("TABANE_CLUSTER");
        command
    }

    /// The calls so far, and the run directory that they named.
    fn calls(&self) -> (Vec<String>, PathBuf) {
        let text = std::fs::read_to_string(self.0.join("calls")).unwrap();
        let directory = text.lines().next().and_then(|line| line.split_once("--run-directory ")).unwrap().1;
        let directory = PathBuf::from(directory.split(' ').next().unwrap());
        (text.lines().map(str::to_string).collect(), directory)
    }

    fn assert_up_and_down(&self) {
        let (calls, directory) = self.calls();
        assert_eq!(calls.len(), 2, "{calls:?}");
        assert!(calls[0].starts_with("up --servers ") && calls[1].starts_with("down "), "{calls:?}");
        assert!(!directory.exists());
    }
}

impl Drop for FakeTabane {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Goal: a run that fails takes its cluster down and names the server that it could not reach.
/// Method: a cluster file with a port that nobody listens on any more.
#[test]
fn failure_takes_the_cluster_down() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let fake = FakeTabane::new("failure", &[address], 0);
    let mut command = fake.bench(&["--servers=1", "--procs=2", "--placement=ring", "ior-easy"]);
    let output = command.env("TABANE_TIMEOUT_MS", "100").output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains("server 0"), "{words}");
    fake.assert_up_and_down();
    assert!(fake.calls().0[0].contains("--placement ring"));
}

/// Goal: Ctrl-C takes the cluster down too.
/// Method: the one server is a port that accepts and stays silent; interrupt when a worker has connected.
#[test]
fn interruption_takes_the_cluster_down() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let fake = FakeTabane::new("interruption", &[listener.local_addr().unwrap()], 0);
    let mut leader = fake.bench(&["--servers=1", "mdtest-easy"]).spawn().unwrap();
    let connection = listener.accept().unwrap();
    assert!(Command::new("kill").args(["-INT", &leader.id().to_string()]).status().unwrap().success());
    assert_eq!(leader.wait().unwrap().code(), Some(130));
    drop(connection);
    fake.assert_up_and_down();
}

/// Goal: when the cluster does not start, its reason is passed on and nothing is measured.
#[test]
fn failed_start_is_passed_on() {
    let fake = FakeTabane::new("start", &[SocketAddr::from(([127, 0, 0, 1], 1))], 1);
    let output = fake.bench(&["--servers=3", "--store=memory:/x,size=1G", "all"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("tabane: up: no room"));
    assert!(output.stdout.is_empty());
    let (calls, _) = fake.calls();
    assert_eq!(calls.len(), 1);
    assert!(
        calls[0].starts_with("up --servers 3 --transport auto --store memory:/x,size=1G --run-directory "),
        "{calls:?}"
    );
}
