//! Stores in memory of their own: they have huge pages, survive the death of their servers, and leave nothing behind.
#![allow(clippy::unwrap_used)] // What fails here fails the test.

mod common;

use common::{Ground, TABANE};
use reactor::pages::huge_page_size;
use reactor::process::unmount;
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A directory in memory for stores; it is removed at the end.
struct Shelf(PathBuf);

impl Shelf {
    fn new(name: &str) -> Shelf {
        Shelf(PathBuf::from(format!("/dev/shm/tabane-test-{name}-{}", std::process::id())))
    }

    fn store(&self, size: &str) -> String {
        format!("memory:{},size={size}", self.0.display())
    }

    /// Whether nothing is mounted below, and nothing is there.
    fn is_gone(&self) -> bool {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        !mounts.contains(self.0.to_str().unwrap()) && !self.0.exists()
    }

    fn mount_count(&self) -> usize {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        mounts
            .lines()
            .filter(|line| line.starts_with("tabane-store ") && line.contains(self.0.to_str().unwrap()))
            .count()
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        for server in 0..4 {
            // What a failed test has left; there is nothing else.
            let _ = unmount(&self.0.join(format!("server-{server}")), true);
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether this machine lets us mount memory with huge pages, as mount(8) finds: whoever runs the tests without that
/// right sees what happens then.
fn may_mount() -> bool {
    let place = std::env::temp_dir().join(format!("tabane-test-may-mount-{}", std::process::id()));
    std::fs::create_dir_all(&place).unwrap();
    let mut command = Command::new("mount");
    command.args(["-t", "tmpfs", "-o", "huge=within_size,size=1M", "tabane-test"]).arg(&place);
    let may = command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success();
    if may {
        unmount(&place, false).unwrap();
    }
    std::fs::remove_dir(&place).unwrap();
    may
}

fn status(ground: &Ground) -> Vec<Value> {
    let status: Value = serde_json::from_str(&ground.run(&["status", "--json"])).unwrap();
    status["servers"].as_array().unwrap().clone()
}

fn assert_bound(servers: &[Value]) {
    for server in servers {
        let (now, most) = (server["memory_bytes"].as_u64().unwrap(), server["memory_max_bytes"].as_u64().unwrap());
        assert!(now <= most, "{now} of {most}: {server}");
    }
}

/// Goal: stores get mounts with huge pages where we may mount, and say why not where we may not; what was acknowledged
/// is there after kill -9 of all servers and after `down --keep`; `down` leaves no mount, no file and no directory.
#[test]
fn life_of_a_mount() {
    let (ground, shelf) = (Ground::new("huge-life"), Shelf::new("life"));
    let tree = ground.make_tree();
    let may = may_mount();
    ground.run(&["up", "--servers", "2", "--store", &shelf.store("64M")]);
    assert_eq!(shelf.mount_count(), if may { 2 } else { 0 });
    ground.run(&["cp", "-r", tree.to_str().unwrap(), ":/"]);
    let sums = ground.run(&["checksum", "-r", ":/tree"]);
    let mut looks = vec![status(&ground)];
    ground.kill(0);
    ground.kill(1);
    assert_eq!(shelf.mount_count(), if may { 2 } else { 0 });
    ground.run(&["up"]);
    assert_eq!(ground.run(&["checksum", "-r", ":/tree"]), sums);
    looks.push(status(&ground));
    ground.run(&["down", "--keep"]);
    ground.run(&["up"]);
    assert_eq!(ground.run(&["checksum", "-r", ":/tree"]), sums);
    looks.push(status(&ground));
    for servers in &looks {
        assert_bound(servers);
        for server in servers {
            let (size, note) = (server["page_size_bytes"].as_u64().unwrap(), server["pages"].as_str().unwrap());
            if may {
                assert_eq!((Some(size), note), (huge_page_size(), "in memory of their own"), "{server}");
            } else {
                assert!(!note.is_empty() && note != "in memory of their own", "{server}");
            }
        }
    }
    let table = ground.run(&["status"]);
    assert_eq!(table.lines().filter(|line| line.starts_with("stores: pages of ")).count(), 1, "{table}");
    ground.run(&["down"]);
    assert!(shelf.is_gone());
}

/// Goal: without the right to mount, and with `--huge-pages off`, the stores lie in the directory as it is, and status
/// says why. Method: the right is dropped by setpriv(1), which only root needs and can.
#[test]
fn without_the_right_to_mount() {
    let shelf = Shelf::new("without");
    let drop_right = ["--bounding-set=-sys_admin", "--inh-caps=-sys_admin", TABANE];
    let is_root = reactor::process::user() == 0;
    for off in [false, true] {
        let ground = Ground::new(&format!("huge-without-{off}"));
        let usual = ground.command(&[]);
        let mut command = if is_root { Command::new("setpriv") } else { Command::new(TABANE) };
        command.args(drop_right.into_iter().take(if is_root { 3 } else { 0 }));
        command.args(["up", "--servers", "1", "--store", &shelf.store("32M")]);
        command.args(["--huge-pages", if off { "off" } else { "auto" }]).env_clear();
        command.envs(usual.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(shelf.mount_count(), 0);
        let servers = status(&ground);
        let note = servers[0]["pages"].as_str().unwrap();
        assert!(note.contains(if off { "--huge-pages" } else { "only root" }), "{note}");
        let table = ground.run(&["status"]);
        assert!(table.contains(note) && table.contains("stores: pages of "), "{table}");
        ground.run(&["down"]);
        assert!(shelf.is_gone());
    }
}

/// Goal: a start that fails after the mounts were made takes them away again, and leaves the stores of others alone.
/// Method: `--start-timeout-ms` is too short for a server to answer; the directory of a store is there already.
#[test]
fn failed_starts_leave_no_mount() {
    let (ground, shelf) = (Ground::new("huge-failed"), Shelf::new("failed"));
    let complaint =
        ground.fail(1, &["up", "--servers", "2", "--store", &shelf.store("32M"), "--start-timeout-ms", "1"]);
    assert!(complaint.contains("was not started"), "{complaint}");
    assert!(shelf.is_gone(), "{complaint}");
    std::fs::create_dir_all(shelf.0.join("server-1")).unwrap();
    let complaint = ground.fail(1, &["up", "--servers", "2", "--store", &shelf.store("32M")]);
    assert!(complaint.contains("may be the store of an earlier cluster"), "{complaint}");
    assert_eq!(shelf.mount_count(), 0);
    assert!(shelf.0.join("server-1").exists() && !shelf.0.join("server-0").exists());
}

/// Goal: the store holds what `--store memory:size=` says and no more, on huge pages as on small ones, and a full one
/// is full only: what was written stays. Method: files of 1 MiB until there is no room, in a store of an odd size.
#[test]
fn size_is_kept() {
    let (ground, shelf) = (Ground::new("huge-size"), Shelf::new("size"));
    ground.run(&["up", "--servers", "1", "--store", &shelf.store("33M")]);
    let piece = ground.path.join("piece");
    std::fs::write(&piece, vec![7; 1 << 20]).unwrap();
    let put =
        |index: usize| ground.try_run(&["cp", piece.to_str().unwrap(), &format!(":/file-{index}")]).status.success();
    let count = (0..).find(|index| !put(*index)).unwrap();
    assert_eq!(count, 33);
    let servers = status(&ground);
    assert_bound(&servers);
    assert_eq!(servers[0]["bytes_total"].as_u64(), Some(33 << 20));
    let sums = ground.run(&["checksum", "-r", ":/"]);
    ground.kill(0);
    ground.run(&["up"]);
    assert_eq!(ground.run(&["checksum", "-r", ":/"]), sums);
    assert_bound(&status(&ground));
    ground.run(&["down"]);
    assert!(shelf.is_gone());
}
