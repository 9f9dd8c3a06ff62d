//! Made-up machines: one where all is well, and for each check one where its subject is not.

use super::*;
use std::collections::HashMap;

struct MadeUp {
    texts: HashMap<String, String>,
    space: Option<(u64, u64)>,
    uring: bool,
    loopback: bool,
    fuse: bool,
    fusermount: bool,
    root: bool,
    time: i64,
}

impl Machine for MadeUp {
    fn text(&self, path: &str) -> Option<String> {
        self.texts.get(path).cloned()
    }
    fn names(&self, path: &str) -> Vec<String> {
        let prefix = format!("{path}/");
        let below = self.texts.keys().filter_map(|known| known.strip_prefix(&prefix));
        let mut names: Vec<String> = below.filter_map(|rest| rest.split('/').next()).map(str::to_owned).collect();
        names.sort();
        names.dedup();
        names
    }
    fn opens(&self, _path: &str) -> Result<(), String> {
        if self.fuse { Ok(()) } else { Err("no such file or directory".to_owned()) }
    }
    fn space(&self, _path: &str) -> Option<(u64, u64)> {
        self.space
    }
    fn io_uring(&self) -> Result<(), String> {
        if self.uring { Ok(()) } else { Err("operation not permitted".to_owned()) }
    }
    fn loopback(&self) -> Result<(), String> {
        if self.loopback { Ok(()) } else { Err("network is unreachable".to_owned()) }
    }
    fn program(&self, _name: &str) -> bool {
        self.fusermount
    }
    fn is_root(&self) -> bool {
        self.root
    }
    fn time(&self) -> i64 {
        self.time
    }
}

const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            20000                20000                files\n\
                      Max locked memory         8388608              8388608              bytes\n";

fn good() -> MadeUp {
    let texts = [
        ("/proc/sys/kernel/osrelease", "6.8.0-1-amd64\n"),
        ("/proc/self/limits", LIMITS),
        (HUGE_SWITCH, "always within_size [advise] never deny force\n"),
        ("/proc/mounts", "tmpfs / tmpfs rw 0 0\ntmpfs /dev/shm tmpfs rw,nosuid,huge=within_size 0 0\n"),
        ("/proc/self/cgroup", "0::/user.slice/session\n"),
        ("/sys/fs/cgroup/user.slice/session/memory.max", "max\n"),
        ("/sys/class/net/lo/operstate", "unknown\n"),
        ("/sys/class/net/eth0/operstate", "up\n"),
        ("/sys/class/net/eth0/speed", "25000\n"),
        ("/proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n"),
        ("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
        ("/proc/sys/kernel/sched_autogroup_enabled", "0\n"),
    ];
    MadeUp {
        texts: texts.into_iter().map(|(path, text)| (path.to_owned(), text.to_owned())).collect(),
        space: Some((8 << 30, 16 << 30)),
        uring: true,
        loopback: true,
        fuse: true,
        fusermount: true,
        root: false,
        time: TIME_MIN + 1,
    }
}

fn with(path: &str, text: &str) -> MadeUp {
    let mut machine = good();
    machine.texts.insert(path.to_owned(), text.to_owned());
    machine
}

/// Goal: on a good machine nothing is complained about.
#[test]
fn all_is_well() {
    for finding in all(&good()) {
        assert_eq!((finding.health, finding.advice.as_str()), (Health::Ok, ""), "{finding:?}");
    }
}

/// Goal: each trouble is found by its own check alone, with the right weight and the words that mend it.
#[test]
fn troubles() {
    let space = |free| MadeUp { space: Some((free, 16 << 30)), ..good() };
    let old_lock = LIMITS.replace("8388608", "65536");
    let mut old_kernel = with("/proc/sys/kernel/osrelease", "5.10.0\n");
    old_kernel.texts.insert("/proc/self/limits".to_owned(), old_lock);
    let limited = |root: &str, line: &str, file: &str| {
        let mut machine = with("/proc/self/cgroup", line);
        machine.texts.insert(format!("{root}/{file}"), "1073741824\n".to_owned());
        machine
    };
    let cases: Vec<(MadeUp, &str, Health, &str)> = vec![
        (with("/proc/sys/kernel/osrelease", "5.15.0-91-generic\n"), "kernel", Health::Warning, "older than 6.1"),
        (with("/proc/sys/kernel/osrelease", "6.1.0\n"), "kernel", Health::Warning, "older than 6.6"),
        (old_kernel, "locked memory", Health::Warning, "ulimit -l"),
        (MadeUp { uring: false, ..good() }, "io_uring", Health::Warning, "seccomp"),
        (
            MadeUp { uring: false, ..with("/proc/sys/kernel/io_uring_disabled", "2\n") },
            "io_uring",
            Health::Warning,
            "sysctl kernel.io_uring_disabled=0",
        ),
        (with("/proc/self/limits", &LIMITS.replace("20000", "256")), "open files", Health::Missing, "ulimit -n"),
        (with("/proc/self/limits", &LIMITS.replace("20000", "512")), "open files", Health::Warning, "ulimit -n"),
        (MadeUp { space: None, ..good() }, "/dev/shm", Health::Missing, "mount -t tmpfs"),
        (space(MEBIBYTE), "/dev/shm", Health::Missing, "--dir"),
        (space(100 * MEBIBYTE), "/dev/shm", Health::Warning, "remount"),
        (with("/proc/mounts", "tmpfs /dev/shm tmpfs rw,huge=advise 0 0\n"), "huge pages", Health::Warning, "remount"),
        (
            with(HUGE_SWITCH, "always within_size advise never [deny] force\n"),
            "huge pages",
            Health::Warning,
            "echo never >",
        ),
        (
            limited("/sys/fs/cgroup/a", "0::/a/b\n", "memory.max"),
            "memory limit",
            Health::Warning,
            "--store memory:size=",
        ),
        (
            limited("/sys/fs/cgroup/memory", "4:cpu,memory:/a\n0::/\n", "memory.limit_in_bytes"),
            "memory limit",
            Health::Warning,
            "ask for more",
        ),
        (MadeUp { fuse: false, ..good() }, "/dev/fuse", Health::Warning, "modprobe fuse"),
        (MadeUp { fusermount: false, ..good() }, "fusermount3", Health::Warning, "package fuse3"),
        (
            with("/sys/module/fuse/parameters/enable_uring", "N\n"),
            "FUSE over io_uring",
            Health::Warning,
            "echo Y >/sys/module/fuse/parameters/enable_uring",
        ),
        (MadeUp { loopback: false, ..good() }, "loopback", Health::Missing, "ip link set lo up"),
        (with("/sys/class/net/eth0/operstate", "down\n"), "interfaces", Health::Warning, "ip link set"),
        (
            with("/proc/sys/net/ipv4/ip_local_port_range", "1024 65535\n"),
            "ports",
            Health::Warning,
            "ip_local_port_range",
        ),
        (MadeUp { time: 0, ..good() }, "clock", Health::Warning, "timedatectl"),
        (
            with("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n"),
            "clock",
            Health::Warning,
            "clocksource=tsc",
        ),
        (
            with("/proc/sys/kernel/sched_autogroup_enabled", "1\n"),
            "autogroup",
            Health::Warning,
            "sched_autogroup_enabled=0",
        ),
    ];
    for (machine, subject, health, words) in cases {
        let findings = all(&machine);
        let finding = findings.iter().find(|finding| finding.subject == subject).unwrap();
        assert!(finding.health == health && finding.advice.contains(words), "{subject}: {finding:?}");
        for other in findings.iter().filter(|other| other.subject != subject && other.subject != "kernel") {
            assert_eq!(other.health, Health::Ok, "{subject}: {other:?}");
        }
    }
}

/// Goal: a machine of which nothing is known breaks no check.
#[test]
fn nothing_is_known() {
    let machine = MadeUp { texts: HashMap::new(), space: None, root: true, fusermount: false, ..good() };
    let findings = all(&machine);
    assert!(findings.iter().all(|finding| !finding.found.is_empty()), "{findings:?}");
    assert!(findings.iter().all(|finding| (finding.health == Health::Ok) == finding.advice.is_empty()), "{findings:?}");
}
