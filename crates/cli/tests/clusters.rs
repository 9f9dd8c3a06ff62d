//! Whole clusters of real processes: up, down, again, and all that is refused on the way.

mod common;

use common::{Ground, TABANE};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
use std::process::{Command, Stdio};

/// Goal: a cluster comes up, tells how it is, and goes down with everything that it made.
#[test]
fn life_of_a_cluster() {
    let ground = Ground::new("life");
    let words = ground.run(&["up", "--servers", "3"]);
    assert!(words.contains("3 servers are up, 64.0 MiB each"), "{words}");
    let mode = std::fs::metadata(ground.run_directory()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);

    let table = ground.run(&["status"]);
    assert_eq!(table.lines().filter(|line| line.contains(" up ")).count(), 3, "{table}");
    let status: serde_json::Value = serde_json::from_str(&ground.run(&["status", "--json"])).unwrap();
    let servers = status["servers"].as_array().unwrap();
    assert_eq!(servers.len(), 3);
    for (index, server) in servers.iter().enumerate() {
        assert_eq!(server["state"], "up");
        assert_eq!(server["pid"].as_u64(), Some(u64::from(ground.pid(index as u32))));
        assert_eq!(server["bytes_total"].as_u64(), Some(64 << 20));
        for key in ["uptime_seconds", "requests", "req_qdepth", "req_waittime_ns", "req_active"] {
            assert!(server[key].is_u64(), "{key}: {server}");
        }
        let (now, most) = (server["memory_bytes"].as_u64().unwrap(), server["memory_max_bytes"].as_u64().unwrap());
        assert!(0 < now && now < most, "{now} of {most}");
    }
    let space = ground.run(&["df"]);
    assert!(space.lines().any(|line| line.starts_with("all ")), "{space}");

    let pids: Vec<u32> = (0..3).map(|index| ground.pid(index)).collect();
    ground.run(&["down"]);
    assert!(!ground.run_directory().exists() && !ground.stores().exists());
    assert!(pids.iter().all(|pid| reactor::process::ProcessId::of(*pid).is_none()));
    assert!(ground.fail(1, &["status"]).contains("no cluster is up here"));
    assert!(ground.fail(1, &["down"]).contains("no cluster is up here"));
}

/// Goal: memory of the stores is touched before the cluster is used, all of it is free then, and what does not fit is
/// refused with the cluster as it is.
/// Method: by the servers' own account of their memory, before and after; with `run` too.
#[test]
fn warm_stores() {
    let ground = Ground::new("warm");
    let memory = || {
        let status: serde_json::Value = serde_json::from_str(&ground.run(&["status", "--json"])).unwrap();
        let servers = status["servers"].as_array().unwrap().clone();
        servers.iter().map(|server| server["memory_bytes"].as_u64().unwrap()).collect::<Vec<u64>>()
    };
    let words = ground.run(&["up", "--servers", "2"]);
    assert!(!words.contains("warmed"), "{words}");
    let cold = memory();
    ground.run(&["down"]);
    let words = ground.run(&["up", "--servers", "2", "--warm", "48M"]);
    assert!(words.contains("48.0 MiB of 2 stores warmed in "), "{words}");
    // Each server has faulted some MiB in ahead by itself, sooner or later.
    for (cold, warm) in cold.iter().zip(memory()) {
        assert!(warm >= cold + (30 << 20), "{cold} and {warm}");
    }
    let space = ground.run(&["df"]);
    let all = space.lines().find(|line| line.starts_with("all ")).unwrap();
    assert_eq!(all.split_whitespace().collect::<Vec<_>>()[2], "0", "all of it is free: {space}");
    // What holds for every start is about new clusters; what is asked for now is about this one.
    ground.run(&["down", "--keep"]);
    let again = ground.command(&["up"]).env("TABANE_WARM", "65M").output().unwrap();
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    ground.run(&["down", "--keep"]);
    let complaint = ground.fail(1, &["up", "--warm", "65M"]);
    assert!(complaint.contains("the store of server 0 has 64.0 MiB free; ask for less"), "{complaint}");
    ground.run(&["down"]);
    let complaint = ground.fail(1, &["up", "--servers", "2", "--warm", "65M"]);
    assert!(complaint.contains("--warm 65.0 MiB: each store has 64.0 MiB; ask for less"), "{complaint}");
    assert!(!ground.run_directory().exists(), "nothing was made");
    let words = ground.run(&["run", "--servers", "1", "--warm", "8M", "--", "echo", "hello"]);
    assert!(words.contains("8.0 MiB of 1 store warmed in ") && words.ends_with("hello\n"), "{words}");
}

/// Goal: `run --mpi` has the library before the command, and what is preloaded already behind it; of a library that is
/// not there it says so before anything is made.
#[test]
fn libraries_for_mpi_are_preloaded() {
    let ground = Ground::new("mpi");
    let kind = ground.path.join("kind");
    std::fs::create_dir(&kind).unwrap();
    // The loader says that it is none, and goes on.
    let library = kind.join("libtabane_mpiio.so");
    std::fs::write(&library, "").unwrap();
    let words = ["run", "--servers", "1", "--mpi", kind.to_str().unwrap(), "--", "sh", "-c", "echo $LD_PRELOAD"];
    let output = ground.command(&words).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{}\n", library.display()));
    let complaint = ground.fail(2, &["run", "--servers", "1", "--mpi", "none-of-them", "--", "true"]);
    assert!(complaint.contains("`make mpiio MPICC=COMPILER`"), "{complaint}");
    let complaint = ground.fail(2, &["run", "--servers", "1", "--mpi", "/no/where", "--", "true"]);
    assert!(complaint.contains("at this path"), "{complaint}");
    assert!(!ground.run_directory().exists(), "nothing was made");
}

/// Goal: a second `up` on the same run directory changes nothing and says what to do.
#[test]
fn second_up() {
    let ground = Ground::new("second");
    ground.run(&["up", "--servers", "1"]);
    let pid = ground.pid(0);
    let complaint = ground.fail(1, &["up", "--servers", "1"]);
    assert!(complaint.contains("is up already") && complaint.contains("tabane down"), "{complaint}");
    assert_eq!(ground.pid(0), pid);
    ground.run(&["ls"]);
}

/// Goal: `down --keep` and then `up` bring the data back; other settings for the same cluster are refused.
#[test]
fn kept_clusters_come_back() {
    let ground = Ground::new("kept");
    let tree = ground.make_tree();
    ground.run(&["up", "--servers", "2", "--chunk-size", "47008"]);
    ground.run(&["cp", "-r", tree.to_str().unwrap(), ":/"]);
    let sums = ground.run(&["checksum", "-r", ":/tree"]);
    ground.run(&["down", "--keep"]);
    assert!(ground.fail(1, &["status"]).contains("2 of 2 servers are down"));
    let complaint = ground.fail(1, &["up", "--servers", "3", "--chunk-size", "4096"]);
    assert!(
        complaint.contains("--servers is 2, not 3") && complaint.contains("--chunk-size is 47008, not 4096"),
        "{complaint}"
    );
    ground.run(&["up"]);
    assert_eq!(ground.run(&["checksum", "-r", ":/tree"]), sums);
}

/// Goal: a port in use, an unwritable directory, a full one, and a directory that holds other things are refused with
/// words that say what to do; nothing half started is left.
#[test]
fn refused_starts_leave_nothing() {
    let ground = Ground::new("refused");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let complaint = ground.fail(1, &["up", "--servers", "1", "--port", &port]);
    assert!(
        complaint.contains(&format!("port {port} on 127.0.0.1 is in use")) && complaint.contains("--port"),
        "{complaint}"
    );
    assert!(!ground.run_directory().exists() && !ground.stores().exists());

    // What is not a directory is unwritable for the superuser too.
    let complaint = ground.fail(1, &["up", "--store", "memory:/proc/version/stores,size=64M"]);
    assert!(complaint.contains("/proc/version/stores") && complaint.contains("--dir"), "{complaint}");
    assert!(!ground.run_directory().exists());

    // A store larger than what its file system holds can only be found too large by the servers.
    let complaint = ground.fail(1, &["up", "--run-directory", "/proc/tabane"]);
    assert!(complaint.contains("/proc/tabane") && complaint.contains("--run-directory"), "{complaint}");

    std::fs::create_dir(ground.run_directory()).unwrap();
    std::fs::set_permissions(ground.run_directory(), std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(ground.fail(1, &["up"]).contains("yours alone"));
    std::fs::set_permissions(ground.run_directory(), std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::write(ground.run_directory().join("letter"), "dear").unwrap();
    assert!(ground.fail(1, &["up"]).contains("other things than a cluster"));
    std::fs::remove_file(ground.run_directory().join("letter")).unwrap();

    // An earlier cluster's store is not taken over.
    std::fs::create_dir_all(ground.stores().join("server-1")).unwrap();
    assert!(ground.fail(1, &["up", "--servers", "2"]).contains("may be the store of an earlier cluster"));
    assert!(ground.stores().join("server-1").exists() && !ground.stores().join("server-0").exists());
    std::fs::remove_dir_all(ground.stores()).unwrap();
    assert!(!ground.run_directory().exists());

    assert!(ground.fail(2, &["up", "--serverz", "2"]).contains("did you mean --servers"));
    assert!(ground.fail(2, &["upp"]).contains("did you mean up"));
}

/// Goal: one damaged store, or one that is gone, keeps none of the other servers from starting again; the reason is
/// told, with what to do, and the exit status is that of a failure. What does not need that server can be had.
/// Method: the superblock of one store is damaged while the cluster is down, then mended; that of another is put away.
#[test]
fn a_damaged_store_stops_nobody_else() {
    let ground = Ground::new("damaged");
    ground.run(&["up", "--servers", "3"]);
    ground.run(&["down", "--keep"]);
    let superblock = ground.stores().join("server-1").join("super");
    let bytes = std::fs::read(&superblock).unwrap();
    std::fs::write(&superblock, vec![0xee; bytes.len()]).unwrap();
    let complaint = ground.fail(1, &["up"]);
    assert!(complaint.contains("server 1: ") && complaint.contains("server-1"), "{complaint}");
    assert!(complaint.contains("status --lost") && complaint.contains("docs/troubleshooting.md"), "{complaint}");
    let runs = |index| reactor::process::ProcessId::of(ground.pid(index)).is_some();
    assert_eq!([0, 1, 2].map(runs), [true, false, true]);
    ground.run(&["stat", "/"]);
    assert!(ground.fail(1, &["status"]).contains("1 of 3 servers are down"));
    ground.kill(2);
    let (store, away) = (ground.stores().join("server-2"), ground.stores().join("away"));
    std::fs::rename(&store, &away).unwrap();
    let complaint = ground.fail(1, &["up"]);
    assert!(complaint.contains("server 1: ") && complaint.contains("the store of server 2"), "{complaint}");
    std::fs::rename(&away, &store).unwrap();
    std::fs::write(&superblock, bytes).unwrap();
    assert!(ground.run(&["up"]).contains("2 servers started again: 1, 2"));
    ground.run(&["status"]);
}

/// Goal: `up` right after all servers were killed starts all of them again, and does not say so of some while another
/// is dying.
/// Method: SIGKILL to all at once, and `up` without a pause; `status` fails if any is down. `restart` of a killed one
/// likewise.
#[test]
fn up_right_after_a_kill() {
    let ground = Ground::new("dying");
    ground.run(&["up", "--servers", "3"]);
    for round in 0..8 {
        for index in 0..3 {
            let process = reactor::process::ProcessId::of(ground.pid(index)).unwrap();
            assert!(process.signal(reactor::process::SIGKILL).unwrap());
        }
        ground.run(&["up"]);
        ground.run(&["status"]);
        let process = reactor::process::ProcessId::of(ground.pid(round % 3)).unwrap();
        assert!(process.signal(reactor::process::SIGKILL).unwrap());
        ground.run(&["restart", &(round % 3).to_string()]);
        ground.run(&["status"]);
    }
}

/// Goal: a cluster file whose placement was changed is refused by the servers, in words, rather than that all names are
/// missing.
/// Method: modular becomes ring in the file of a cluster that is down, and modular again.
#[test]
fn changed_placement() {
    let ground = Ground::new("placement");
    ground.run(&["up", "--servers", "3"]);
    ground.run(&["mkdir", "/directory"]);
    ground.run(&["down", "--keep"]);
    let file = ground.run_directory().join("cluster");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("placement = modular", "placement = ring")).unwrap();
    let complaint = ground.fail(1, &["up"]);
    assert!(complaint.contains("placement is modular, and the cluster file says ring"), "{complaint}");
    std::fs::write(&file, text).unwrap();
    ground.run(&["up"]);
    ground.run(&["stat", "/directory"]);
}

/// Goal: who does not have the key gets one clear error, over TCP and through shared memory, and others are served.
/// Method: copies of the cluster file with another key, and with none.
#[test]
fn wrong_key() {
    for transport in ["tcp", "auto", "shm"] {
        let ground = Ground::new(&format!("key-{transport}"));
        ground.run(&["up", "--servers", "1", "--transport", transport]);
        let text = std::fs::read_to_string(ground.run_directory().join("cluster")).unwrap();
        let other = format!("key = {}", "00".repeat(32));
        for (key, expected) in [(Some(other.as_str()), "key does not match"), (None, "key")] {
            let lines = text.lines().filter_map(|line| if line.starts_with("key = ") { key } else { Some(line) });
            let path = ground.path.join("wrong");
            std::fs::write(&path, lines.collect::<Vec<_>>().join("\n")).unwrap();
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
            let complaint = ground.fail(1, &["ls", "--cluster", path.to_str().unwrap(), "--timeout-ms", "5000"]);
            assert!(complaint.contains(expected), "{complaint}");
        }
        ground.run(&["ls"]);
    }
}

/// Goal: where something else has the name at which a server would listen for clients of its machine, a server whose
/// clients must come that way does not start, and says what to do; others start, say so in their log, and serve over
/// TCP.
#[test]
fn taken_names() {
    for transport in ["shm", "auto"] {
        let ground = Ground::new(&format!("taken-{transport}"));
        ground.run(&["up", "--servers", "1", "--transport", transport]);
        let cluster = client::load_cluster(&ground.run_directory()).unwrap();
        ground.kill(0);
        let name = UnixAddress::from_abstract_name(reactor::local_name(&cluster, 0)).unwrap();
        // The kernel gives up the killed server's socket a moment later.
        let taken = loop {
            if let Ok(taken) = UnixListener::bind_addr(&name) {
                break taken;
            }
        };
        if transport == "shm" {
            let complaint = ground.fail(1, &["up"]);
            assert!(complaint.contains("shared memory") && complaint.contains("--transport auto"), "{complaint}");
        } else {
            ground.run(&["up"]);
            let log = std::fs::read_to_string(ground.run_directory().join("server-0.log")).unwrap();
            assert!(log.contains("no-shared-memory"), "{log}");
        }
        drop(taken);
        if transport == "shm" {
            ground.run(&["up"]);
        }
        ground.run(&["ls"]);
    }
}

/// Goal: a cluster whose connections are protected serves as any other does, after a kill too; who has a cluster file
/// that says otherwise is told so, and so is who starts it again otherwise.
/// Method: a file of several chunks there and back, between two servers and over TCP.
#[test]
fn protected_connections() {
    for protect in ["integrity", "encryption"] {
        let ground = Ground::new(&format!("protect-{protect}"));
        ground.run(&["up", "--servers", "2", "--transport", "tcp", "--protect", protect]);
        let [source, back, other] = ["source", "back", "other"].map(|name| ground.path.join(name));
        let bytes: Vec<u8> = (0..5_000_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        std::fs::write(&source, &bytes).unwrap();
        ground.run(&["cp", "-q", source.to_str().unwrap(), ":/copy"]);
        ground.kill(1);
        ground.run(&["up"]);
        ground.run(&["cp", "-q", ":/copy", back.to_str().unwrap()]);
        assert!(std::fs::read(&back).unwrap() == bytes, "{protect}: other bytes came back");
        let text = std::fs::read_to_string(ground.run_directory().join("cluster")).unwrap();
        let (own, off) = (format!("protect = {protect}\n"), "protect = off\n");
        assert!(text.contains(&own), "{text}");
        std::fs::write(&other, text.replace(&own, off)).unwrap();
        std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o600)).unwrap();
        let complaint = ground.fail(1, &["ls", "--cluster", other.to_str().unwrap(), "--timeout-ms", "5000"]);
        assert!(complaint.contains("differ in how connections are protected"), "{complaint}");
        ground.kill(0);
        let complaint = ground.fail(1, &["up", "--protect", "off"]);
        assert!(complaint.contains(&format!("--protect is {protect}, not off")), "{complaint}");
    }
}

/// Goal: `run` gives the command a cluster and its exit status, and takes the cluster down, also when a signal comes.
#[test]
fn run_takes_down() {
    let ground = Ground::new("run");
    let script = format!(
        "test \"$TABANE_CLUSTER\" = \"$CHFS_SERVER\" && echo hello | {TABANE} put /x && {TABANE} cat /x && exit 7"
    );
    let output = ground.try_run(&["run", "--servers", "2", "--", "sh", "-c", &script]);
    assert_eq!(
        (output.status.code(), &output.stdout[..]),
        (Some(7), &b"hello\n"[..]),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(!ground.run_directory().exists() && !ground.stores().exists());
    assert!(ground.fail(127, &["run", "--servers", "1", "no-such-program"]).contains("no such file"));
    assert!(!ground.run_directory().exists());

    // The command says when it is there, and ends by the signal that is handed on to it.
    let mut command = ground.command(&["run", "--servers", "1", "--", "sh", "-c", "echo ready; exec cat"]);
    let mut running = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(running.stdout.take().unwrap()), &mut line).unwrap();
    assert_eq!(line, "ready\n");
    // Waiting would close it, and the command would end by itself.
    let input = running.stdin.take();
    Command::new("kill").args(["-TERM", &running.id().to_string()]).status().unwrap();
    let status = running.wait().unwrap();
    drop(input);
    assert_eq!(status.code(), Some(128 + 15));
    assert!(!ground.run_directory().exists() && !ground.stores().exists());
}

/// Goal: servers killed under load lose nothing that was acknowledged, and clients go on when they are back. Method:
/// while a tree is copied in, each server in turn is killed as soon as more of the tree has arrived, and `up` starts it
/// again; the copy has to end well and be equal.
#[test]
fn servers_killed_under_load() {
    let ground = Ground::new("killed");
    let tree = ground.make_tree();
    ground.run(&["up", "--servers", "2", "--chunk-size", "4K"]);
    let mut copy = ground.start(&["cp", "-q", "-r", "--jobs", "4", tree.to_str().unwrap(), ":/"]);
    for victim in [0, 1] {
        loop {
            let found: u32 = ground.run(&["find", "/", "-count"]).trim().parse().unwrap();
            if found > 10 + victim * 100 || copy.try_wait().unwrap().is_some() {
                break;
            }
        }
        ground.kill(victim);
        let words = ground.run(&["up"]);
        assert!(words.contains(&format!("1 server started again: {victim}")), "{words}");
    }
    let output = copy.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(ground.run(&["checksum", "-r", ":/tree"]), ground.run(&["checksum", "-r", tree.to_str().unwrap()]));
}

/// Goal: `down` ends a server that does not listen any more, and only a process that is the server.
#[test]
fn down_of_a_stopped_server() {
    let ground = Ground::new("stopped");
    ground.run(&["up", "--servers", "2"]);
    Command::new("kill").args(["-STOP", &ground.pid(1).to_string()]).status().unwrap();
    // Server 0's number now belongs to somebody else.
    let pid_file = ground.run_directory().join("server-0.pid");
    let first = ground.pid(0);
    let mut stranger = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    std::fs::write(&pid_file, format!("{} 1\n", stranger.id())).unwrap();
    let output = ground.try_run(&["down", "--stop-timeout-ms", "100"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stderr).contains("SIGKILL"));
    assert_eq!(stranger.try_wait().unwrap(), None);
    drop(stranger.stdin.take());
    stranger.wait().unwrap();
    Command::new("kill").args(["-9", &first.to_string()]).status().unwrap();
}

/// Goal: while a server is silent, a directory with entries on it can be looked at and opened, and says that its links
/// and times are not known; files of other servers are as ever. Once the server is back, all is told again. Method:
/// SIGSTOP to a server that is not the root's home.
#[test]
fn directories_beside_a_silent_server() {
    let ground = Ground::new("silent");
    ground.run(&["up", "--servers", "3"]);
    let home = |path: &str| {
        let words = ground.run(&["stat", path]);
        let number = words.split("home server ").nth(1).unwrap();
        number[..number.find(',').unwrap()].parse::<u32>().unwrap()
    };
    let silent = (home("/") + 1) % 3;
    let files: Vec<String> = (0..40).map(|number| format!("/f{number}")).collect();
    ground.run(&files.iter().fold(vec!["truncate", "-s", "5"], |words, path| [&words[..], &[path.as_str()]].concat()));
    let there = files.iter().find(|path| home(path) != silent).unwrap();
    assert!(ground.run(&["stat", "/"]).contains("links: 2\n"));
    let process = reactor::process::ProcessId::of(ground.pid(silent)).unwrap();
    assert!(process.signal(libc::SIGSTOP).unwrap());
    assert!(ground.run(&["stat", "/"]).contains("links: 1 (not known"));
    assert!(ground.run(&["ls", "-l", there]).contains(&there[1..]));
    assert!(ground.fail(1, &["cat", "/"]).contains("is a directory"));
    assert_eq!(ground.run(&["cat", there]), "\0\0\0\0\0");
    assert!(ground.fail(1, &["find", "/", "-newer", "/", "--timeout-ms", "3000"]).contains("silent past the deadline"));
    assert!(process.signal(libc::SIGCONT).unwrap());
    while !ground.run(&["stat", "/"]).contains("links: 2\n") {}
    ground.run(&["down"]);
}

/// Goal: of two clusters that want the same stores at once, at most one comes up, and the loser leaves the winner's
/// data alone. Method: several rounds of two `up` at the same time; the winner holds a file through a crash and a
/// restart.
#[test]
fn stores_belong_to_one_cluster() {
    let ground = Ground::new("claim");
    let directories: Vec<String> =
        ["first", "second"].iter().map(|name| ground.path.join(name).display().to_string()).collect();
    for _ in 0..4 {
        let mut rivals: Vec<_> = directories
            .iter()
            .map(|directory| ground.start(&["up", "--servers", "2", "--run-directory", directory]))
            .collect();
        let came_up: Vec<bool> = rivals.iter_mut().map(|rival| rival.wait().unwrap().success()).collect();
        assert!(came_up != [true, true], "two clusters share their stores");
        if let Some(winner) = came_up.iter().position(|up| *up) {
            let directory = &directories[winner];
            ground.run(&["mkdir", "--cluster", directory, "/kept"]);
            for index in 0..2 {
                let pid = std::fs::read_to_string(format!("{directory}/server-{index}.pid")).unwrap();
                let process = reactor::process::ProcessId::of(pid.split(' ').next().unwrap().parse().unwrap()).unwrap();
                assert!(process.signal(reactor::process::SIGKILL).unwrap());
                while process.is_alive() {}
            }
            ground.run(&["up", "--run-directory", directory]);
            assert_eq!(ground.run(&["ls", "--cluster", directory, "/"]), "kept\n");
            ground.run(&["down", "--run-directory", directory]);
        }
        assert!(directories.iter().all(|directory| !std::path::Path::new(directory).exists()));
    }
}

/// Goal: a store that is gone is said to be gone, rather than replaced by an empty one.
#[test]
fn lost_store_is_refused() {
    let ground = Ground::new("lost");
    ground.run(&["up", "--servers", "2"]);
    ground.kill(1);
    std::fs::remove_dir_all(ground.stores().join("server-1")).unwrap();
    let complaint = ground.fail(1, &["up"]);
    assert!(complaint.contains("server 1") && complaint.contains("is gone"), "{complaint}");
    ground.run(&["down"]);
    assert!(!ground.run_directory().exists());
}

/// Goal: stores that their medium can't hold are refused, with both sizes, and nothing is left.
#[test]
fn too_large_stores_are_refused() {
    let ground = Ground::new("large");
    let store = format!("memory:{},size=60T", ground.stores().display());
    let complaint = ground.fail(1, &["up", "--servers", "2", "--store", &store]);
    assert!(complaint.contains("free") && complaint.contains("size=SIZE"), "{complaint}");
    assert!(!ground.run_directory().exists() && !ground.stores().exists());
}

/// Goal: down of a cluster that is gone says so, whichever way it was named.
#[test]
fn down_of_nothing() {
    let ground = Ground::new("down-of-nothing");
    let missing = ground.path.join("gone");
    for words in [&["down"][..], &["down", "--cluster", missing.to_str().unwrap()]] {
        let complaint = ground.fail(1, words);
        assert!(complaint.contains("no cluster is up here"), "{complaint}");
    }
}

/// Goal: check says that all is well of a real cluster with a real tree, also after a crash of a server, and in words
/// for programs; without a cluster its exit status is that of fsck(8).
#[test]
fn check_of_a_real_cluster() {
    let ground = Ground::new("check");
    ground.run(&["up", "--servers", "3", "--checksums"]);
    ground.run(&["cp", "-r", concat!(env!("CARGO_MANIFEST_DIR"), "/src"), ":/"]);
    ground.run(&["ln", "/src/main.rs", "/main"]);
    ground.run(&["mv", "/src/down.rs", "/down"]);
    assert!(ground.run(&["check", "--data"]).contains("all is well"));
    ground.kill(1);
    let complaint = ground.fail(8, &["check", "--timeout-ms", "500"]);
    assert!(complaint.contains("server 1"), "{complaint}");
    ground.run(&["up", "--servers", "3", "--checksums"]);
    let told: serde_json::Value = serde_json::from_str(&ground.run(&["check", "--json", "--repair"])).unwrap();
    assert!(told["left"] == 0 && told["faults"].as_array().unwrap().is_empty(), "{told}");
    ground.run(&["down"]);
    ground.fail(8, &["check"]);
}

/// Goal: --pin keeps each server on a core, also after a restart, and says which cores there are when it can't. Without
/// it the servers share the cores out, with --pin off each may use all.
#[test]
fn servers_stay_on_their_cores() {
    let ground = Ground::new("pin");
    let cores = |ground: &Ground| -> Vec<String> {
        let of = |index: u32| {
            let status = std::fs::read_to_string(format!("/proc/{}/status", ground.pid(index))).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
            line.trim().to_owned()
        };
        let servers = (0..3).take_while(|index| ground.run_directory().join(format!("server-{index}.pid")).exists());
        servers.map(of).collect()
    };
    let allowed = reactor::process::allowed_cores().unwrap();
    let expected: Vec<String> = (0..3).map(|index| allowed[index % allowed.len()].to_string()).collect();
    let output = ground.try_run(&["up", "--servers", "3", "--pin", "1000"]);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && words.contains("core 1000 can't be used") && words.contains("these can: "),
        "{words}"
    );
    let output = ground.try_run(&["up", "--servers", "3", "--pin", "some"]);
    assert_eq!(output.status.code(), Some(2));
    ground.run(&["up", "--servers", "3", "--pin", "cores"]);
    assert_eq!(cores(&ground), expected);
    ground.kill(1);
    let output = ground.try_run(&["up", "--pin", "off"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("--pin is cores, not off"));
    ground.run(&["up"]);
    assert_eq!(cores(&ground), expected);
    ground.run(&["down"]);
    let last = allowed[allowed.len() - 1].to_string();
    ground.run(&["up", "--servers", "3", "--pin", &last]);
    assert_eq!(cores(&ground), vec![last; 3]);
    ground.run(&["down"]);
    ground.run(&["up", "--servers", "2"]);
    let shares = cores(&ground);
    let cluster = ground.run_directory().join("cluster").display().to_string();
    let output =
        ground.try_run(&["server", "--cluster", &cluster, "--index", "9", "--directory", "nowhere", "--size", "64M"]);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("server 9 is not in the cluster file"), "{words}");
    let numbers = |list: &String| -> Vec<usize> {
        let ranges = list.split(',').map(|range| range.split_once('-').unwrap_or((range, range)));
        ranges.flat_map(|(first, last)| first.parse::<usize>().unwrap()..=last.parse().unwrap()).collect()
    };
    let halves = match allowed.len() {
        1 => [&allowed[..], &allowed[..]],
        count => [&allowed[..count / 2], &allowed[count / 2..]],
    };
    assert_eq!(shares.len(), 2);
    for (share, half) in shares.iter().map(numbers).zip(halves) {
        // Beside whatever else the machine computes they leave their halves.
        assert!(share == half || share == allowed, "{shares:?}");
    }
    ground.run(&["down"]);
    ground.run(&["up", "--servers", "2", "--pin", "off"]);
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    assert_eq!(cores(&ground), [own, own]);
}

/// Goal: after more tree changes than servers remember, new processes find every path, also after a restart.
/// Method: the modes of 1,100 directories are changed, and some are renamed; then commands look at files two levels
/// deep.
#[test]
fn more_tree_changes_than_the_log_holds() {
    let ground = Ground::new("tree-changes");
    ground.run(&["up", "--servers", "2"]);
    ground.run(&["mkdir", "-p", ":/d/e"]);
    std::fs::write(ground.path.join("x"), "x").unwrap();
    ground.run(&["cp", "x", ":/d/e/f"]);
    let tree = ground.path.join("T");
    (0..1_100).for_each(|index| std::fs::create_dir_all(tree.join(index.to_string())).unwrap());
    ground.run(&["cp", "-r", "T", ":/"]);
    ground.run(&["chmod", "-R", "go=", ":/T"]);
    let look = || {
        assert_eq!(ground.run(&["cat", ":/d/e/f"]), "x");
        assert_eq!(ground.run(&["ls", ":/d/e"]).trim(), "f");
        assert_eq!(ground.run(&["ls", "-d", ":/d/e", ":/d/e/f"]), "/d/e\n/d/e/f\n");
        ground.run(&["cp", "x", ":/d/e/g"]);
        ground.run(&["rm", ":/d/e/g"]);
    };
    look();
    ground.run(&["mv", ":/T/7", ":/T/moved"]);
    ["0", "1"].iter().for_each(|server| drop(ground.run(&["restart", server])));
    look();
    ground.run(&["check"]);
}

/// Goal: no command panics when nobody reads what it prints, and what it was to do is done.
/// Method: standard output and standard error are pipes whose other ends are closed, as in `tabane up | head -1`.
#[test]
fn nobody_reads() {
    let ground = Ground::new("unread");
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer
    };
    let run = |words: &[&str]| {
        let mut command = ground.command(words);
        let output = command.stdin(std::process::Stdio::null()).stdout(closed()).output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!complaint.contains("panic"), "{words:?}: {complaint}");
        let silent =
            ground.command(words).stdin(std::process::Stdio::null()).stdout(closed()).stderr(closed()).status();
        assert_ne!(silent.unwrap().code(), Some(101), "{words:?}");
        output.status.code()
    };
    assert_eq!(run(&["up", "--servers", "2"]), Some(0));
    ground.run(&["status"]);
    let printing: [&[&str]; 8] = [
        &["status"],
        &["top", "--once", "--interval-ms", "100"],
        &["logs"],
        &["ls", "-l", "/"],
        &["df"],
        &["check"],
        &["config"],
        &["--help"],
    ];
    for words in printing {
        run(words);
    }
    assert_eq!(run(&["restart", "0"]), Some(0));
    ground.kill(1);
    assert_eq!(run(&["up"]), Some(0));
    run(&["ls", "/nothing"]);
    assert_eq!(run(&["down"]), Some(0));
}

/// Goal: `status --run-directory` and its variable say which cluster is meant; what stands on the command line comes
/// first.
/// Method: two clusters.
#[test]
fn status_of_a_run_directory() {
    let (ground, other) = (Ground::new("which"), Ground::new("which-other"));
    ground.run(&["up", "--servers", "1"]);
    other.run(&["up", "--servers", "2"]);
    let (own, others) = (ground.run_directory(), other.run_directory());
    let count = |words: &[&str], directory: &std::path::Path, cluster: &std::path::Path| {
        let mut command = ground.command(words);
        command.env("TABANE_RUN_DIRECTORY", directory).env("TABANE_CLUSTER", cluster);
        let status: serde_json::Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
        status["servers"].as_array().unwrap().len()
    };
    let named = ["status", "--json", "--run-directory", others.to_str().unwrap()];
    assert_eq!(count(&named, &own, &own), 2);
    assert_eq!(count(&["status", "--json"], &others, &own), 2);
    assert_eq!(count(&["status", "--json", "--cluster", own.to_str().unwrap()], &others, &others), 1);
    let nowhere = ground.fail(1, &["status", "--run-directory", "/nowhere/at/all"]);
    assert!(nowhere.contains("/nowhere/at/all"), "{nowhere}");
}
