//! Hosts that are network namespaces with cables between them, each with a file system part of its own.

use super::TABANE;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

static GROUNDS: AtomicU32 = AtomicU32::new(0);

/// Hosts 1 to `count` at one switch, with addresses 10.77.0.N and fd77::N. What lies below `place` is each host's own.
pub struct Hosts {
    pub base: PathBuf,
    pub prefix: String,
    pub count: usize,
}

pub fn sh(script: &str) -> bool {
    Command::new("sh").args(["-ec", script]).stdin(Stdio::null()).status().unwrap().success()
}

impl Hosts {
    /// `None` where namespaces may be missing, and are.
    #[allow(clippy::disallowed_methods)] // A test's own switch.
    pub fn new(count: usize) -> Option<Hosts> {
        let number = GROUNDS.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("tb{}x{number}", std::process::id());
        let base = std::env::temp_dir().join(format!("tabane-hosts-{prefix}"));
        if !sh(&format!(
            "ip netns add {prefix}-s 2>/dev/null && ip -n {prefix}-s link add br0 type bridge forward_delay 0 && \
             ip -n {prefix}-s link set br0 up"
        )) {
            let _ = sh(&format!("ip netns del {prefix}-s 2>/dev/null"));
            let allowed = std::env::var("TABANE_CI_NO_NETNS").is_ok_and(|value| value == "1");
            assert!(
                allowed,
                "no network namespaces here (root and ip are needed); TABANE_CI_NO_NETNS=1 leaves these tests out"
            );
            eprintln!("left out: no network namespaces here");
            return None;
        }
        std::fs::create_dir_all(base.join("place")).unwrap();
        let hosts = Hosts { base, prefix, count };
        for index in 1..=count {
            let (name, switch) = (hosts.name(index), format!("{}-s", hosts.prefix));
            std::fs::create_dir_all(hosts.root(index)).unwrap();
            assert!(sh(&format!(
                "ip netns add {name}; ip link add net0 netns {name} type veth peer name p{index} netns {switch}
                 ip -n {switch} link set p{index} master br0 up; ip -n {name} link set lo up
                 ip -n {name} addr add 10.77.0.{index}/24 dev net0; \
                 ip -n {name} addr add fd77::{index}/64 dev net0 nodad
                 ip -n {name} link set net0 up"
            )));
        }
        let (base, launcher) = (&hosts.base, hosts.launcher());
        let script = format!(
            "#!/bin/sh\nhost=$1; shift\n\
             [ -e {base}/gone-$host ] && {{ echo \"no route to host $host\" >&2; exit 255; }}\n\
             [ -e {base}/silent-$host ] && exec sleep 1000\n\
             exec ip netns exec \"$host\" unshare -m sh -c 'mount --bind \"$0\" \"$1\" && shift && exec \"$@\"' \
             {base}/roots/$host {base}/place \"$@\"\n",
            base = base.display()
        );
        // By another process: who forks in another test meanwhile would have it open, and it could not be run
        // (ETXTBSY).
        let text = base.join("launcher.txt");
        std::fs::write(&text, script).unwrap();
        assert!(sh(&format!("install -m 755 '{}' '{}'", text.display(), launcher.display())));
        Some(hosts)
    }

    pub fn name(&self, index: usize) -> String {
        format!("{}-{index}", self.prefix)
    }

    pub fn root(&self, index: usize) -> PathBuf {
        self.base.join("roots").join(self.name(index))
    }

    pub fn launcher(&self) -> PathBuf {
        self.base.join("enter")
    }

    pub fn run_directory(&self) -> String {
        self.base.join("place/run").display().to_string()
    }

    /// The names of all, in a list.
    pub fn list(&self) -> String {
        format!("{}-[1-{}]", self.prefix, self.count)
    }

    /// The program on one of the hosts.
    pub fn command(&self, on: usize, words: &[&str]) -> Command {
        let mut command = Command::new(self.launcher());
        command.arg(self.name(on)).arg(TABANE).args(words).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("TABANE_RUN_DIRECTORY", self.run_directory()).env("TABANE_CLUSTER", self.run_directory());
        let stores = self.base.join("place/stores");
        command.env("TABANE_STORE", format!("memory:{},size=32M", stores.display())).env("TABANE_JOURNAL_SIZE", "8M");
        command.env("TABANE_LAUNCHER", format!("{} {{host}} {{command}}", self.launcher().display()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn try_run(&self, on: usize, words: &[&str]) -> Output {
        self.command(on, words).output().unwrap()
    }

    pub fn run(&self, on: usize, words: &[&str]) -> String {
        let output = self.try_run(on, words);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "tabane {words:?} on host {on}: {}\n{complaint}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn fail(&self, code: i32, on: usize, words: &[&str]) -> String {
        let output = self.try_run(on, words);
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "tabane {words:?}: {complaint}");
        complaint
    }

    pub fn up(&self, words: &[&str]) -> String {
        let list = self.list();
        self.run(1, &[&["up", "--hosts", &list], words].concat())
    }

    /// An `up` that has to fail with this in its message, and leaves nothing anywhere.
    pub fn fail_up(&self, words: &[&str], reasons: &[&str]) {
        let complaint = self.fail(1, 1, &[&["up"], words].concat());
        for reason in reasons {
            assert!(complaint.contains(reason), "\"{reason}\" is not in: {complaint}");
        }
        self.assert_empty();
    }

    pub fn processes(&self, index: usize) -> Vec<String> {
        let output = Command::new("ip").args(["netns", "pids", &self.name(index)]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
    }

    /// Nothing runs on any host, and nothing lies about.
    pub fn assert_empty(&self) {
        for index in 1..=self.count {
            assert!(self.processes(index).is_empty(), "processes are left on host {index}");
            let left: Vec<PathBuf> =
                std::fs::read_dir(self.root(index)).unwrap().map(|entry| entry.unwrap().path()).collect();
            assert!(left.is_empty(), "host {index} has {left:?}");
        }
    }

    /// Waits until nothing runs on any host: for what goes by itself.
    pub fn wait_until_empty(&self) {
        while (1..=self.count).any(|index| !self.processes(index).is_empty()) {
            std::thread::yield_now();
        }
        self.assert_empty();
    }

    /// Everything on a host dies at once.
    pub fn kill(&self, index: usize) {
        for process in self.processes(index) {
            let _ = Command::new("kill").args(["-9", &process]).status();
        }
        while !self.processes(index).is_empty() {
            std::thread::yield_now();
        }
    }

    pub fn cable(&self, index: usize, plugged: bool) {
        let state = if plugged { "up" } else { "down" };
        assert!(sh(&format!("ip -n {}-s link set p{index} {state}", self.prefix)));
    }

    pub fn mark(&self, what: &str, index: usize, there: bool) {
        let path = self.base.join(format!("{what}-{}", self.name(index)));
        if there { std::fs::write(path, "").unwrap() } else { std::fs::remove_file(path).unwrap() }
    }

    pub fn start(&self, words: &[&str]) -> Child {
        self.command(1, words).stdout(Stdio::null()).spawn().unwrap()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for index in 1..=self.count {
            self.kill(index);
            let _ = sh(&format!("ip netns del {}", self.name(index)));
        }
        let _ = sh(&format!("ip netns del {}-s", self.prefix));
        let removed = std::fs::remove_dir_all(&self.base);
        assert!(removed.is_ok() || std::thread::panicking(), "{removed:?}");
    }
}

pub fn up_count(hosts: &Hosts, on: usize) -> usize {
    let output = hosts.try_run(on, &["status", "--timeout-ms", "2000"]);
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter(|line| line.split_whitespace().any(|word| word == "up"))
        .count()
}
