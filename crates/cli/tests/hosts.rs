//! Clusters over hosts of their own: network namespaces with cables between them, each with a file system part of its
//! own. They need root; where there are no namespaces these tests fail, unless TABANE_CI_NO_NETNS=1 says that they may
//! be left out.

#![allow(clippy::unwrap_used)] // What fails here fails the test.

mod common;

use common::TABANE;
use common::hosts::{Hosts, sh, up_count};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Goal: a cluster over hosts that share nothing comes up, serves every host, survives the restart of one server, and
/// goes without a trace. Method: a file written on one host is read on another through its own copy of the run
/// directory.
#[test]
fn life_over_hosts() {
    let Some(hosts) = Hosts::new(3) else { return };
    let words = hosts.up(&["--per-host", "2", "--warm", "4M"]);
    assert!(words.contains("6 servers are up on 3 hosts, 32.0 MiB each"), "{words}");
    assert!(words.contains("4.0 MiB of 6 stores warmed in "), "{words}");
    let cluster = std::fs::read_to_string(hosts.root(1).join("run/cluster")).unwrap();
    for address in ["server = 10.77.0.1:", "server = 10.77.0.2:", "server = 10.77.0.3:"] {
        assert_eq!(cluster.matches(address).count(), 2, "{address}");
    }
    for index in 1..=3 {
        let path = hosts.root(index).join("run");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(std::fs::metadata(path.join("cluster")).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(up_count(&hosts, index), 6);
    }
    let text = hosts.base.join("text");
    std::fs::write(&text, "over there\n".repeat(100_000)).unwrap();
    hosts.run(1, &["cp", "-q", text.to_str().unwrap(), ":/text"]);
    assert_eq!(hosts.run(3, &["cat", "/text"]), "over there\n".repeat(100_000));
    assert!(hosts.run(1, &["restart", "4"]).contains(&format!("server 4 started again on host {}", hosts.name(2))));
    assert_eq!(hosts.run(2, &["cat", "/text"]), "over there\n".repeat(100_000));
    assert!(hosts.fail(1, 1, &["up"]).contains("is up already"));
    assert!(
        hosts.fail(1, 2, &["down"]).contains("is a copy"),
        "a copy of the run directory is no place to take it down from"
    );
    assert!(hosts.fail(2, 1, &["restart", "6"]).contains("0 to 5"));
    hosts.run(1, &["down", "--keep"]);
    assert!(hosts.run(1, &["up"]).contains("6 servers started again"));
    assert_eq!(hosts.run(3, &["cat", "/text"]), "over there\n".repeat(100_000));
    hosts.run(1, &["down"]);
    hosts.assert_empty();
}

/// Goal: the key is in no command line and in no environment of what runs on the hosts. Method: all processes of the
/// namespaces are searched for it, servers and a host's program that waits for a silent one.
#[test]
fn key_is_not_shown() {
    let Some(hosts) = Hosts::new(2) else { return };
    hosts.up(&[]);
    let cluster = std::fs::read_to_string(hosts.root(2).join("run/cluster")).unwrap();
    let key = cluster.lines().find_map(|line| line.strip_prefix("key = ")).unwrap();
    let processes: Vec<String> = (1..=2).flat_map(|index| hosts.processes(index)).collect();
    assert_eq!(processes.len(), 2);
    for process in processes {
        for file in ["cmdline", "environ"] {
            let bytes = std::fs::read(format!("/proc/{process}/{file}")).unwrap();
            assert!(!String::from_utf8_lossy(&bytes).contains(key), "{file}");
        }
    }
    hosts.run(1, &["down"]);
}

/// Goal: one host that can't do its part fails the whole start, with its name and what to do, and nothing is left on
/// the others.
#[test]
fn one_failing_host_fails_all() {
    let Some(hosts) = Hosts::new(3) else { return };
    let (list, third) = (hosts.list(), hosts.name(3));
    let host_3 = format!("host {third}: ");
    hosts.fail_up(&["--hosts", &list, "--interface", "eth7"], &[&host_3, "no interface eth7", "net0 10.77.0.3"]);
    hosts.fail_up(&["--hosts", &list, "--interface", "10.9.0.0/16"], &[&host_3, "10.9.0.0/16"]);
    hosts.fail_up(&["--hosts", &list, "--binary", "/nowhere/tabane"], &[&host_3, "--binary"]);
    hosts.fail_up(&["--hosts", &format!("{list},nosuchhost")], &["host nosuchhost: ", "nosuchhost"]);
    hosts.mark("gone", 2, true);
    hosts.fail_up(&["--hosts", &list], &[&format!("host {}: ", hosts.name(2)), "no route to host"]);
    hosts.mark("gone", 2, false);
    hosts.mark("silent", 2, true);
    hosts.fail_up(&["--hosts", &list, "--launch-timeout-ms", "1500"], &["no answer within 1.5 s"]);
    hosts.mark("silent", 2, false);
    std::fs::create_dir_all(hosts.root(3).join("stores/server-2")).unwrap();
    let complaint = hosts.fail(1, 1, &["up", "--hosts", &list]);
    assert!(complaint.contains(&host_3) && complaint.contains("exists already"), "{complaint}");
    std::fs::remove_dir_all(hosts.root(3).join("stores")).unwrap();
    hosts.assert_empty();
    // A launcher that is not there at all.
    hosts.fail_up(&["--hosts", &list, "--launcher", "nosuchlauncher {host}"], &["nosuchlauncher", "--launcher"]);
}

/// Goal: what is wrong on the command line is refused before anything is touched.
#[test]
fn mistakes_on_the_command_line() {
    let Some(hosts) = Hosts::new(1) else { return };
    let empty = hosts.base.join("empty");
    std::fs::write(&empty, "# nobody\n").unwrap();
    let empty = empty.to_str().unwrap();
    let cases: [(&[&str], &str); 7] = [
        (&["--hosts", "a,b,a"], "a is there twice"),
        (&["--hosts", empty], "names no host"),
        (&["--hosts", "a:2,b:2", "--servers", "5"], "slots"),
        (&["--hosts", "/nowhere/hosts"], "no such file"),
        (&["--hosts", "auto"], "SLURM_JOB_NODELIST"),
        (&["--hosts", "a[3-1]"], "no range"),
        (&["--per-host", "2"], "--hosts"),
    ];
    for (words, reason) in cases {
        let complaint = hosts.fail(2, 1, &[&["up"], words].concat());
        assert!(complaint.contains(reason), "{words:?}: {complaint}");
    }
    hosts.assert_empty();
}

/// Goal: hosts that do not reach each other are found before the cluster counts as up.
/// Method: one host's cable is unplugged; it is reached by the launcher, which needs no network here.
#[test]
fn cut_cable_fails_the_start() {
    let Some(hosts) = Hosts::new(3) else { return };
    hosts.cable(3, false);
    let list = hosts.list();
    hosts
        .fail_up(&["--hosts", &list], &["does not reach server 2 at 10.77.0.3:", &format!("host {}: ", hosts.name(1))]);
    hosts.cable(3, true);
    hosts.up(&[]);
    hosts.run(1, &["down"]);
    hosts.assert_empty();
}

/// Goal: an `up` that is interrupted, or killed without a chance to say anything, leaves nothing on any host. Method:
/// one host is silent, so that the others wait with what they made; in a second round the servers run already and the
/// meeting hangs on a cable.
#[test]
fn interrupted_start_leaves_nothing() {
    let Some(hosts) = Hosts::new(3) else { return };
    let list = hosts.list();
    for signal in ["INT", "KILL"] {
        hosts.cable(3, false);
        let mut up = hosts.start(&["up", "--hosts", &list]);
        // All servers run once their processes are known.
        while !(1..=3).all(|index| hosts.root(index).join(format!("run/server-{}.pid", index - 1)).exists()) {
            assert_eq!(up.try_wait().unwrap(), None, "it ended before it could be interrupted");
        }
        assert!(sh(&format!("kill -{signal} {}", up.id())));
        let status = up.wait().unwrap();
        assert!(!status.success());
        hosts.cable(3, true);
        if signal == "KILL" {
            // Its own host's directory is what nobody could remove: the next commands say what to do.
            while (1..=3).any(|index| !hosts.processes(index).is_empty()) {
                std::thread::yield_now();
            }
            let _ = hosts.try_run(1, &["down"]);
            assert!(!Path::new(&hosts.root(1).join("run")).exists());
        }
        hosts.wait_until_empty();
    }
}

/// Goal: `down` takes down what it reaches, says what it did not, and finishes later; or gives it up when told so.
#[test]
fn down_when_a_host_is_gone() {
    let Some(hosts) = Hosts::new(3) else { return };
    hosts.up(&[]);
    hosts.mark("gone", 2, true);
    let complaint = hosts.fail(3, 1, &["down"]);
    let (first, second) = (hosts.name(1), hosts.name(2));
    assert!(complaint.contains("1 host of 3 not taken down") && complaint.contains(&first), "{complaint}");
    assert!(
        complaint.contains(&format!("host {second} (servers 1): ")) && complaint.contains("no route"),
        "{complaint}"
    );
    assert!(hosts.processes(1).is_empty() && hosts.processes(3).is_empty() && hosts.processes(2).len() == 1);
    hosts.mark("gone", 2, false);
    hosts.run(1, &["down"]);
    hosts.assert_empty();

    hosts.up(&[]);
    hosts.mark("gone", 2, true);
    assert!(hosts.fail(3, 1, &["down", "--forget"]).contains("given up"));
    assert!(!hosts.root(1).join("run").exists());
    assert!(hosts.fail(1, 1, &["status"]).contains("no cluster is up here"));
}

/// Goal: a host that died as a whole is seen by `status`, and is whole again after `restart`, with what it stored.
#[test]
fn killed_host_comes_back() {
    let Some(hosts) = Hosts::new(3) else { return };
    hosts.up(&[]);
    let text = hosts.base.join("text");
    std::fs::write(&text, "kept\n".repeat(1_000_000)).unwrap();
    hosts.run(1, &["cp", "-q", text.to_str().unwrap(), ":/text"]);
    hosts.kill(2);
    assert!(hosts.fail(1, 1, &["status", "--timeout-ms", "2000"]).contains("1 of 3 servers are down"));
    assert!(hosts.fail(1, 3, &["status", "--timeout-ms", "2000"]).contains("1 of 3 servers are down"));
    hosts.run(1, &["restart", "1"]);
    assert_eq!(up_count(&hosts, 1), 3);
    assert!(hosts.run(3, &["cat", "/text"]) == "kept\n".repeat(1_000_000));
    hosts.run(1, &["down"]);
    hosts.assert_empty();
}

/// Goal: servers listen where --interface says, over IPv6 too.
#[test]
fn addresses_of_both_families() {
    let Some(hosts) = Hosts::new(2) else { return };
    for (interface, address) in [("fd77::/64", "[fd77::2]:"), ("net0", "10.77.0.2:"), ("10.77.0.0/24", "10.77.0.2:")] {
        hosts.up(&["--interface", interface]);
        let cluster = std::fs::read_to_string(hosts.root(2).join("run/cluster")).unwrap();
        assert!(cluster.contains(&format!("server = {address}")), "{interface}");
        hosts.run(2, &["mkdir", "/there"]);
        assert_eq!(hosts.run(1, &["ls"]), "there\n");
        hosts.run(1, &["down"]);
    }
    hosts.assert_empty();
}

/// Goal: a launcher that starts one program on all hosts at once, with standard input for one of them only, brings up
/// the same cluster. Method: MPICH's mpiexec, whose fork launcher takes any names for this machine, over a run
/// directory that all see.
#[test]
#[allow(clippy::disallowed_methods)] // A test's own switch.
fn mpiexec_as_launcher() {
    let known = Command::new("mpiexec").arg("--version").output();
    if !known.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("HYDRA")) {
        let allowed = std::env::var("TABANE_CI_NO_MPI").is_ok_and(|value| value == "1");
        assert!(allowed, "there is no mpiexec of MPICH (package mpich); TABANE_CI_NO_MPI=1 leaves this test out");
        eprintln!("left out: no mpiexec of MPICH here");
        return;
    }
    let Some(hosts) = Hosts::new(1) else { return };
    let launcher = "mpiexec -launcher fork -hosts {hosts} -n {count} -ppn 1 {command}";
    let words = hosts.run(1, &["up", "--hosts", "a,b,c", "--launcher", launcher, "--interface", "net0"]);
    assert!(words.contains("3 servers are up on 3 hosts"), "{words}");
    assert!(!hosts.root(1).join("run/orders").exists());
    hosts.run(1, &["mkdir", "/there"]);
    assert!(hosts.run(1, &["restart", "1"]).contains("on host b"));
    assert_eq!(hosts.run(1, &["ls"]), "there\n");
    hosts.run(1, &["down"]);
    // The launcher watches what it has started, and goes by itself then.
    hosts.wait_until_empty();
}

/// Goal: `status --lost` names what can't be had without a server that is gone, and nothing else; once it is back
/// nothing is lost. Method: directories and small files on all servers, one file with chunks everywhere, one file
/// renamed from each server to another; whatever is listed by a path can't be read as a whole meanwhile, and everything
/// that is not listed can.
#[test]
fn lost_files_are_listed() {
    let Some(hosts) = Hosts::new(3) else { return };
    hosts.up(&[]);
    let (small, large) = (hosts.base.join("small"), hosts.base.join("large"));
    std::fs::write(&small, "small").unwrap();
    std::fs::write(&large, "large".repeat(1_000_000)).unwrap();
    let (small, large) = (small.to_str().unwrap(), large.to_str().unwrap());
    let mut files = vec!["/large".to_owned()];
    hosts.run(1, &["cp", "-q", large, ":/large"]);
    for number in 0..12 {
        hosts.run(1, &["cp", "-q", small, &format!(":/{number}")]);
        hosts.run(1, &["mv", &format!("/{number}"), &format!("/moved-{number}")]);
        hosts.run(1, &["cp", "-q", small, &format!(":/plain-{number}")]);
        files.extend([format!("/moved-{number}"), format!("/plain-{number}")]);
    }
    assert_eq!(hosts.run(1, &["status", "--lost"]), "all servers are up: nothing is lost\n");
    hosts.kill(2);
    let output = hosts.try_run(1, &["status", "--lost", "--json", "--timeout-ms", "2000"]);
    assert_eq!(output.status.code(), Some(1));
    let lines: Vec<serde_json::Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (sums, listed) = lines.split_last().unwrap();
    assert_eq!(sums["down"], serde_json::json!([1]));
    for part in ["inode", "chunks", "name", "rest"] {
        assert_eq!(
            sums[part].as_u64(),
            Some(listed.iter().filter(|line| line["lost"] == part).count() as u64),
            "{part}"
        );
    }
    let is_listed = |path: &str| listed.iter().any(|line| line["path"] == path);
    // The large file's name is here or it is not known here; its chunks are on all servers.
    let hidden = |path: &str| !hosts.try_run(1, &["cat", "--timeout-ms", "1000", path]).status.success();
    let (mut lost_count, mut named_count) = (0, 0);
    for path in &files {
        let unreadable = hidden(path);
        lost_count += u32::from(unreadable);
        named_count += u32::from(is_listed(path));
        assert!(unreadable || !is_listed(path), "{path} is listed, and can be read");
    }
    // A third of all names and inodes is there; what was there as a whole has no path here.
    assert!(
        named_count > 0 && lost_count > named_count && (lost_count as usize) < files.len(),
        "{named_count} {lost_count}"
    );
    assert!(sums["name"].as_u64().unwrap() > 0, "a file whose name alone is there is listed by its id");
    hosts.run(1, &["restart", "1"]);
    assert_eq!(hosts.run(1, &["status", "--lost"]), "all servers are up: nothing is lost\n");
    hosts.run(1, &["down"]);
    hosts.assert_empty();
}

/// Goal: `run --hosts` gives a command a cluster over several hosts and takes it down whatever the command comes to;
/// nothing is printed but what the command prints.
#[test]
fn run_on_hosts() {
    let Some(hosts) = Hosts::new(2) else { return };
    let list = hosts.list();
    let script = format!(
        "{TABANE} status --json | grep -c '\"state\": \"up\"'; echo two | {TABANE} put /f; {TABANE} cat /f; exit 7"
    );
    let output = hosts.try_run(1, &["run", "--hosts", &list, "--per-host", "2", "--", "sh", "-c", &script]);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        (output.status.code(), String::from_utf8_lossy(&output.stdout).as_ref()),
        (Some(7), "4\ntwo\n"),
        "{complaint}"
    );
    hosts.assert_empty();
    let complaint = hosts.fail(127, 1, &["run", "--hosts", &list, "--", "nothing-of-that-name"]);
    assert!(complaint.contains("nothing-of-that-name"), "{complaint}");
    hosts.assert_empty();
    hosts.mark("gone", 2, true);
    let complaint = hosts.fail(1, 1, &["run", "--hosts", &list, "--", "true"]);
    assert!(complaint.contains("the cluster was not started") && complaint.contains("no route to host"), "{complaint}");
    hosts.mark("gone", 2, false);
    hosts.assert_empty();
}

/// Goal: a host that has only link-local addresses is refused with words that say so, and so is who asks for such an
/// address; where there are others, these are taken though a link-local one stands beside them.
#[test]
fn link_local_addresses() {
    let Some(hosts) = Hosts::new(2) else { return };
    let complaint = hosts.fail(2, 1, &["up", "--hosts", &hosts.list(), "--interface", "fe80::/10"]);
    assert!(complaint.contains("link-local"), "{complaint}");
    hosts.assert_empty();
    hosts.up(&["--interface", "fd77::/64"]);
    assert_eq!(up_count(&hosts, 2), 2);
    hosts.run(1, &["down"]);
    hosts.assert_empty();
    let name = hosts.name(2);
    assert!(sh(&format!(
        "ip -n {name} addr flush dev net0 scope global; ip -n {name} -6 addr show dev net0 scope link | grep -q fe80"
    )));
    let list = hosts.list();
    hosts.fail_up(
        &["--hosts", &list, "--interface", "net0"],
        &[&format!("host {name}"), "no address that holds for other hosts, only fe80:"],
    );
    hosts.fail_up(&["--hosts", &list], &[&format!("host {name}"), "has no address beside loopback"]);
}

/// Goal: a backing directory has to be the same one on each host; where one host has none or another one, nothing is
/// started and the words name the host. Method: a directory that all hosts see, and ones below the part that each has
/// for itself.
#[test]
fn one_backing_directory() {
    let Some(hosts) = Hosts::new(2) else { return };
    let (list, shared, own) = (hosts.list(), hosts.base.join("shared"), hosts.base.join("place/site"));
    std::fs::create_dir(&shared).unwrap();
    for number in 0..20 {
        std::fs::write(shared.join(format!("file-{number}")), "there\n").unwrap();
    }
    std::fs::create_dir(hosts.root(1).join("site")).unwrap();
    let second = format!("host {}: ", hosts.name(2));
    let given = own.display().to_string();
    let complaint = hosts.fail(1, 1, &["up", "--hosts", &list, "--backing", &given]);
    assert!(complaint.contains(&second) && complaint.contains("no such file"), "{complaint}");
    std::fs::create_dir(hosts.root(2).join("site")).unwrap();
    let names = [&*hosts.name(1), &*hosts.name(2)].join(" and ");
    let complaint = hosts.fail(1, 1, &["up", "--hosts", &list, "--backing", &given]);
    assert!(complaint.contains(&names) && complaint.contains("different directories"), "{complaint}");
    [1, 2].iter().for_each(|host| std::fs::remove_dir(hosts.root(*host).join("site")).unwrap());
    hosts.assert_empty();
    hosts.up(&["--backing", shared.to_str().unwrap()]);
    assert_eq!(hosts.run(2, &["ls", "/"]).lines().count(), 20);
    assert_eq!(hosts.run(2, &["cat", "/file-7"]), "there\n");
    hosts.run(1, &["down"]);
    hosts.assert_empty();
}
