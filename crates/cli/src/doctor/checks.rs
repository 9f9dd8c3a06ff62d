//! The checks of `tabane doctor`, one function for each subject.

use super::machine::Machine;
use crate::store_memory::{HUGE_SWITCH, may_mount};
use crate::text::size_words;

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    Ok,
    /// It works, but worse than it could, or something that not everybody needs is not there.
    Warning,
    /// Nothing works without it.
    Missing,
}

/// What was found about one subject.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    pub subject: &'static str,
    pub health: Health,
    /// What is there.
    pub found: String,
    /// What it means and how to mend it; empty when all is well.
    pub advice: String,
}

/// Kernel from which on the event loop runs over io_uring, and one from which on mounts map files.
const URING_KERNEL: (u32, u32) = (6, 1);
const MOUNT_KERNEL: (u32, u32) = (6, 6);
/// Open files: a server has one for each connection and some for itself; the default of connections is 256.
const FILES_MIN: u64 = 300;
const FILES_GOOD: u64 = 1024;
const MEBIBYTE: u64 = 1 << 20;
/// The smallest cluster: two servers with 16 MiB of data and 4 MiB of journal each.
const SHARED_MEMORY_MIN: u64 = 40 * MEBIBYTE;
const SHARED_MEMORY_GOOD: u64 = 1024 * MEBIBYTE;
const MEMORY_GOOD: u64 = 2048 * MEBIBYTE;
const LOCKED_GOOD: u64 = MEBIBYTE;
/// 2025-01-01: no machine that runs this has an earlier day.
const TIME_MIN: i64 = 1_735_689_600;

pub fn ok(subject: &'static str, found: impl Into<String>) -> Finding {
    Finding { subject, health: Health::Ok, found: found.into(), advice: String::new() }
}

pub fn warning(subject: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { subject, health: Health::Warning, found: found.into(), advice: advice.into() }
}

fn missing(subject: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { subject, health: Health::Missing, found: found.into(), advice: advice.into() }
}

/// All checks, in the order in which they are told.
pub fn all(machine: &dyn Machine) -> Vec<Finding> {
    vec![
        kernel(machine),
        io_uring(machine),
        open_files(machine),
        locked_memory(machine),
        shared_memory(machine),
        huge_pages(machine),
        memory_limit(machine),
        fuse_device(machine),
        fuse_program(machine),
        fuse_io_uring(machine),
        loopback(machine),
        interfaces(machine),
        ports(machine),
        clock(machine),
        autogroup(machine),
        tracing(machine),
    ]
}

fn kernel_version(machine: &dyn Machine) -> Option<(u32, u32)> {
    let text = machine.text("/proc/sys/kernel/osrelease")?;
    let mut parts = text.trim().split(|letter: char| !letter.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn kernel(machine: &dyn Machine) -> Finding {
    let subject = "kernel";
    let release = machine.text("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
    match kernel_version(machine) {
        None => warning(subject, "unknown", "/proc/sys/kernel/osrelease can't be read; mount /proc"),
        Some(version) if version < URING_KERNEL => warning(
            subject,
            release,
            "older than 6.1: servers work over epoll, slower than over io_uring; install a newer kernel for speed",
        ),
        Some(version) if version < MOUNT_KERNEL => warning(
            subject,
            release,
            "older than 6.6: programs can't map files of a mount for sharing; install a newer kernel if yours do",
        ),
        Some(_) => ok(subject, release),
    }
}

fn io_uring(machine: &dyn Machine) -> Finding {
    let subject = "io_uring";
    let Err(reason) = machine.io_uring() else { return ok(subject, "available") };
    let switch = machine.text("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let how = match switch.trim() {
        "1" | "2" => "it is switched off; as root: sysctl kernel.io_uring_disabled=0",
        _ if kernel_version(machine).is_some_and(|version| version < URING_KERNEL) => "it takes Linux 6.1",
        _ => {
            "a container's seccomp profile may forbid it; allow io_uring_setup, io_uring_enter and io_uring_register \
             there"
        }
    };
    warning(subject, reason, format!("servers work over epoll instead, slower; {how}"))
}

/// A soft limit of this process; `None` when unlimited.
fn limit(machine: &dyn Machine, name: &str) -> Option<u64> {
    let text = machine.text("/proc/self/limits")?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

fn open_files(machine: &dyn Machine) -> Finding {
    let subject = "open files";
    let how = "raise it: ulimit -n 4096, or nofile in /etc/security/limits.conf";
    match limit(machine, "Max open files") {
        None => ok(subject, "unlimited"),
        Some(count) if count < FILES_MIN => {
            missing(subject, format!("{count} at most"), format!("too few for a server's 256 connections; {how}"))
        }
        Some(count) if count < FILES_GOOD => {
            warning(subject, format!("{count} at most"), format!("few for --connections-max above 256; {how}"))
        }
        Some(count) => ok(subject, format!("{count} at most")),
    }
}

fn locked_memory(machine: &dyn Machine) -> Finding {
    let subject = "locked memory";
    match limit(machine, "Max locked memory") {
        None => ok(subject, "unlimited"),
        Some(bytes) if bytes < LOCKED_GOOD && kernel_version(machine).is_none_or(|version| version < (5, 12)) => {
            warning(
                subject,
                format!("{} at most", size_words(bytes)),
                "kernels before 5.12 count rings of io_uring there; raise it: ulimit -l 65536, or memlock in \
             /etc/security/limits.conf",
            )
        }
        Some(bytes) => ok(subject, format!("{} at most", size_words(bytes))),
    }
}

fn shared_memory(machine: &dyn Machine) -> Finding {
    let subject = "/dev/shm";
    let Some((free, total)) = machine.space("/dev/shm") else {
        return missing(
            subject,
            "not there",
            "stores are kept there unless --dir says else; as root: mount -t tmpfs tmpfs /dev/shm",
        );
    };
    let found = format!("{} free of {}", size_words(free), size_words(total));
    let how = "remove what is not needed there, as root: mount -o remount,size=75% /dev/shm, in containers --shm-size, \
               or choose another directory with --dir";
    match free {
        ..SHARED_MEMORY_MIN => missing(subject, found, format!("too little for the smallest cluster; {how}")),
        SHARED_MEMORY_MIN..SHARED_MEMORY_GOOD => warning(subject, found, format!("room for little data; {how}")),
        _ => ok(subject, found),
    }
}

/// Stores in memory get huge pages on mounts of their own, or where the file system that they lie on has them. `advise`
/// is not enough: it is for mappings, and space is taken by fallocate(2).
fn huge_pages(machine: &dyn Machine) -> Finding {
    let subject = "huge pages";
    let switch = machine.text(HUGE_SWITCH).unwrap_or_default();
    let chosen = switch.split_ascii_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    let Some(chosen) = chosen else { return ok(subject, "this kernel has none") };
    let why = "large reads and writes of stores in memory are faster with them; as root:";
    if chosen == "deny" {
        return warning(subject, "denied to all memory file systems", format!("{why} echo never > {HUGE_SWITCH}"));
    }
    if may_mount(&machine.text("/proc/self/status").unwrap_or_default()) {
        return ok(subject, "stores get mounts of their own that have them");
    }
    let mounts = machine.text("/proc/mounts").unwrap_or_default();
    let options = mounts.lines().rev().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        (words.next()? == "/dev/shm").then(|| words.nth(1)).flatten()
    });
    let has_them = |options: &str| options.split(',').any(|word| matches!(word, "huge=always" | "huge=within_size"));
    if chosen == "force" || options.is_some_and(has_them) {
        return ok(subject, "/dev/shm has them");
    }
    warning(
        subject,
        "none in /dev/shm, and only root may mount memory that has them",
        format!("{why} mount -o remount,huge=within_size /dev/shm, or start clusters as root"),
    )
}

/// The least limit of the control groups that we are in, version 1 or 2.
fn memory_limit(machine: &dyn Machine) -> Finding {
    let subject = "memory limit";
    let groups = machine.text("/proc/self/cgroup").unwrap_or_default();
    let mut least: Option<u64> = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let mut group = group.trim_end_matches('/');
        loop {
            let text = machine.text(&format!("{root}{group}/{file}"));
            // "max", or in version 1 a number beyond all memory, is no limit.
            let bytes = text.and_then(|text| text.trim().parse::<u64>().ok()).filter(|bytes| *bytes < 1 << 60);
            least = least.into_iter().chain(bytes).min();
            let Some((above, _)) = group.rsplit_once('/') else { break };
            group = above;
        }
    }
    match least {
        None => ok(subject, "none by control groups"),
        Some(bytes) if bytes < MEMORY_GOOD => warning(
            subject,
            format!("{} by control groups", size_words(bytes)),
            "stores in memory count there too, and the kernel ends servers that pass it; ask for more memory, or set \
             --store memory:size=SIZE well below it",
        ),
        Some(bytes) => ok(subject, format!("{} by control groups, stores in memory included", size_words(bytes))),
    }
}

fn fuse_device(machine: &dyn Machine) -> Finding {
    let subject = "/dev/fuse";
    match machine.opens("/dev/fuse") {
        Ok(()) => ok(subject, "usable"),
        Err(reason) => warning(
            subject,
            reason,
            "'tabane mount' needs it, nothing else does; as root: modprobe fuse; in containers: --device /dev/fuse",
        ),
    }
}

fn fuse_program(machine: &dyn Machine) -> Finding {
    let subject = "fusermount3";
    match (machine.program("fusermount3"), machine.is_root()) {
        (true, _) => ok(subject, "installed"),
        (false, true) => ok(subject, "not installed, and not needed by root"),
        (false, false) => {
            warning(subject, "not installed", "'tabane mount' without root needs it; install the package fuse3")
        }
    }
}

fn fuse_io_uring(machine: &dyn Machine) -> Finding {
    let subject = "FUSE over io_uring";
    let switch = "/sys/module/fuse/parameters/enable_uring";
    match machine.text(switch).as_deref().map(str::trim) {
        Some("Y") => ok(subject, "switched on"),
        Some(_) => warning(
            subject,
            "switched off",
            format!("mounts answer in half the time with it, or less; as root: echo Y >{switch}"),
        ),
        None => ok(subject, "not in this kernel (Linux 6.14 has it); mounts read /dev/fuse"),
    }
}

fn loopback(machine: &dyn Machine) -> Finding {
    match machine.loopback() {
        Ok(()) => ok("loopback", "127.0.0.1 works"),
        Err(reason) => {
            missing("loopback", reason, "servers of one machine are reached over it; as root: ip link set lo up")
        }
    }
}

fn interfaces(machine: &dyn Machine) -> Finding {
    let subject = "interfaces";
    let names = machine.names("/sys/class/net");
    let up = names.iter().filter(|name| {
        let state = machine.text(&format!("/sys/class/net/{name}/operstate")).unwrap_or_default();
        *name != "lo" && state.trim() == "up"
    });
    let words: Vec<String> = up
        .map(|name| {
            let speed = machine.text(&format!("/sys/class/net/{name}/speed"));
            match speed.and_then(|text| text.trim().parse::<u64>().ok()).filter(|speed| *speed > 0) {
                Some(speed) => format!("{name} ({speed} Mb/s)"),
                None => name.clone(),
            }
        })
        .collect();
    if words.is_empty() {
        warning(subject, "none is up", "one machine is enough without; for several, bring one up (ip link set NAME up)")
    } else {
        ok(subject, words.join(", "))
    }
}

fn ports(machine: &dyn Machine) -> Finding {
    let subject = "ports";
    let text = machine.text("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let limits: Vec<u64> = text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
    match limits[..] {
        // Servers pick from 10,000 to 61,000, beside those that the system gives to outgoing connections.
        [first, last] if first <= 10_000 && last >= 60_999 => warning(
            subject,
            format!("{first} to {last} for outgoing connections"),
            "none is left for servers, whose ports may be taken while they are away; as root: sysctl \
             net.ipv4.ip_local_port_range=\"32768 60999\"",
        ),
        [first, last] => ok(subject, format!("{first} to {last} for outgoing connections, others for servers")),
        _ => ok(subject, "unknown"),
    }
}

fn clock(machine: &dyn Machine) -> Finding {
    let subject = "clock";
    if machine.time() < TIME_MIN {
        return warning(subject, "before 2025", "times of files will be wrong; set it (timedatectl set-ntp true)");
    }
    let source = machine.text("/sys/devices/system/clocksource/clocksource0/current_clocksource").unwrap_or_default();
    match source.trim() {
        "" => ok(subject, "set"),
        slow @ ("hpet" | "acpi_pm" | "jiffies" | "pit") => warning(
            subject,
            format!("set, source {slow}"),
            "each look at it costs a system call; boot with clocksource=tsc if the processor's is stable",
        ),
        source => ok(subject, format!("set, source {source}")),
    }
}

fn autogroup(machine: &dyn Machine) -> Finding {
    let subject = "autogroup";
    match machine.text("/proc/sys/kernel/sched_autogroup_enabled").unwrap_or_default().trim() {
        "1" => warning(
            subject,
            "on",
            "servers give the processor away only to programs of their own session: start both from one shell, or as \
             root: sysctl kernel.sched_autogroup_enabled=0",
        ),
        _ => ok(subject, "off"),
    }
}

fn tracing(machine: &dyn Machine) -> Finding {
    let text = machine.text("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let found = match text.trim() {
        "" | "0" => "debuggers may attach to servers",
        "1" | "2" => "only root attaches debuggers to servers; nothing else needs it",
        _ => "nobody attaches debuggers; nothing else needs it",
    };
    ok("tracing", found)
}

#[cfg(test)]
mod tests;
