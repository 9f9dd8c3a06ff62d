//! Mounts of real clusters, used by real programs. Without /dev/fuse these tests fail, unless TABANE_CI_NO_FUSE=1.

#![allow(clippy::unwrap_used)] // What fails here fails the test.

mod common;

use common::{Ground, TABANE, describe, fuse_is_here, mount_point, text};
use reactor::barrier::monotonic_now;
use reactor::process::{ProcessId, SIGCHLD, SIGKILL, SIGTERM};
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// The process that serves a mount.
fn process_of(ground: &Ground, directory: &Path) -> ProcessId {
    let status: serde_json::Value = serde_json::from_slice(&ground.try_run(&["status", "--json"]).stdout).unwrap();
    let mounts = status["mounts"].as_array().unwrap();
    let mount = mounts.iter().find(|mount| mount["directory"] == text(directory)).expect("status lists the mount");
    ProcessId::of(mount["pid"].as_u64().unwrap() as u32).unwrap()
}

fn shell(directory: &Path, script: &str) {
    let output = Command::new("sh").args(["-ec", script]).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Goal: `up --mount` gives a tree that commands and programs share, `status` tells of it, `umount` and `down` end it.
#[test]
fn life_of_a_mount() {
    if !fuse_is_here() {
        return;
    }
    let ground = Ground::new("mount-life");
    let directory = mount_point(&ground, "mnt");
    let words = ground.run(&["up", "--servers", "3", "--mount", text(&directory)]);
    assert!(words.contains("mounted on"), "{words}");
    fs::write(directory.join("file"), b"of a program").unwrap();
    assert_eq!(ground.run(&["cat", "/file"]), "of a program");
    ground.run(&["mkdir", "/directory"]);
    ground.run(&["mv", "/file", "/directory/moved"]);
    assert_eq!(fs::read(directory.join("directory/moved")).unwrap(), b"of a program");
    assert_eq!(fs::read(directory.join("file")).unwrap_err().kind(), ErrorKind::NotFound);
    let line = ground.run(&["status"]);
    assert!(line.contains(text(&directory)) && line.contains("threads, no caching"), "{line}");
    let complaint = ground.fail(1, &["mount", text(&directory)]);
    assert!(complaint.contains("is a mount of Tabane already"), "{complaint}");

    let process = process_of(&ground, &directory);
    ground.unmount(&directory);
    assert!(!process.is_alive());
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    assert!(ground.fail(1, &["umount", text(&directory)]).contains("is not a mount of Tabane"));
    ground.run(&["mount", text(&directory), "--threads", "2"]);
    assert!(directory.join("directory/moved").exists());
    let process = process_of(&ground, &directory);
    ground.run(&["down"]);
    assert!(!process.is_alive() && !ground.run_directory().exists());
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
}

/// Goal: what can't be mounted is refused with words that say why, before anything else is done.
#[test]
fn refused_mounts() {
    if !fuse_is_here() {
        return;
    }
    let ground = Ground::new("mount-refused");
    let directory = mount_point(&ground, "mnt");
    let complaint = ground.fail(2, &["up", "--servers", "1", "--mount", text(&directory), "--cache", "strict"]);
    assert!(complaint.contains("--cache strict") && complaint.contains("no modes of caching yet"), "{complaint}");
    assert!(!ground.run_directory().exists());
    assert!(ground.fail(1, &["mount", text(&directory)]).contains("no cluster is up here"));
    fs::write(ground.path.join("plain"), b"").unwrap();
    ground.run(&["up", "--servers", "1"]);
    assert!(ground.fail(1, &["mount", "plain"]).contains("is not a directory"));
    assert!(ground.fail(1, &["mount", "missing/mnt"]).contains("make the directory first"));
    assert!(ground.fail(2, &["mount", "mnt", "--cache", "all"]).contains("--cache all"));
}

/// Goal: a tree of odd names, links, modes, times and holes is on a mount what it is elsewhere, and programs run from
/// there. Method: cp -a, compared entry by entry and byte by byte; a copy of a program is executed; rm -r.
#[test]
fn trees_are_the_same() {
    if !fuse_is_here() {
        return;
    }
    let ground = Ground::new("mount-tree");
    let tree = ground.make_tree();
    let directory = mount_point(&ground, "mnt");
    ground.run(&["up", "--servers", "3", "--chunk-size", "64K", "--mount", text(&directory)]);
    let copy = directory.join("tree");
    shell(
        &ground.path,
        &format!("cp -a tree '{}' && diff -r --no-dereference tree '{}'", copy.display(), copy.display()),
    );
    assert_eq!(describe(&tree), describe(&copy));
    shell(&directory, "cp /bin/echo program && test \"$(./program said)\" = said && rm program");
    shell(&directory, "for i in 1 2 3; do echo $i >> log; done; test \"$(cat log)\" = \"$(printf '1\\n2\\n3')\"");
    let link = directory.join("second");
    fs::hard_link(directory.join("log"), &link).unwrap();
    assert_eq!(fs::metadata(&link).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(&link).unwrap().ino(), fs::metadata(directory.join("log")).unwrap().ino());
    fs::remove_dir_all(&copy).unwrap();
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 2);
}

/// Goal: an unlinked file stays for who has it open; reads and writes at odd places, holes and cuts are those of any
/// file.
#[test]
fn open_files() {
    if !fuse_is_here() {
        return;
    }
    let ground = Ground::new("mount-open");
    let (first, second) = (mount_point(&ground, "first"), mount_point(&ground, "second"));
    ground.run(&["up", "--servers", "2", "--chunk-size", "4096", "--mount", text(&first)]);
    ground.run(&["mount", text(&second)]);
    let file = fs::File::options().read(true).write(true).create_new(true).open(first.join("file")).unwrap();
    let bytes: Vec<u8> = (0..3_000_000u32).map(|number| (number % 251) as u8).collect();
    file.write_all_at(&bytes, 1001).unwrap();
    assert_eq!(fs::metadata(second.join("file")).unwrap().len(), 3_001_001);
    let other = fs::File::open(second.join("file")).unwrap();
    let mut read = vec![1; 3_001_001];
    other.read_exact_at(&mut read, 0).unwrap();
    assert!(read[..1001].iter().all(|byte| *byte == 0) && read[1001..] == bytes);
    fs::remove_file(second.join("file")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    other.read_exact_at(&mut read[..10], 1001).unwrap();
    assert_eq!(read[..10], bytes[..10]);
    file.set_len(10).unwrap();
    assert_eq!(other.metadata().unwrap().len(), 10);
    let mut append = fs::File::options().append(true).create(true).open(first.join("log")).unwrap();
    let mut elsewhere = fs::File::options().append(true).open(second.join("log")).unwrap();
    for turn in 0..20 {
        writeln!(append, "first {turn}").unwrap();
        writeln!(elsewhere, "second {turn}").unwrap();
    }
    assert_eq!(fs::read_to_string(first.join("log")).unwrap().lines().count(), 40);
}

/// Goal: a directory that was removed elsewhere is for who stands in it what it is on any file system: empty, and
/// nothing can be made in it.
#[test]
fn removed_working_directories() {
    if !fuse_is_here() {
        return;
    }
    let ground = Ground::new("mount-gone");
    let directory = mount_point(&ground, "mnt");
    ground.run(&["up", "--servers", "3", "--mount", text(&directory)]);
    fs::create_dir(directory.join("gone")).unwrap();
    let mut child = Command::new("sh");
    child.args(["-c", "read go; echo x > new; mkdir new; stat -c %h .; ls -A | wc -l"]);
    let mut child = child.current_dir(directory.join("gone"));
    child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    ground.run(&["rmdir", "/gone"]);
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let (said, complaints) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(said.starts_with("0\n0\n"), "{said}{complaints}");
    let denied =
        complaints.lines().filter(|line| line.to_lowercase().contains("no such file") || line.contains("nonexistent"));
    assert!(denied.count() >= 2 && !complaints.contains("Stale"), "{complaints}");
}

/// Goal: a mount whose process was killed gives a clean error, is told of, is cleared by umount, and can be there
/// again.
#[test]
fn killed_mounts_are_cleared() {
    if !fuse_is_here() {
        return;
    }
    let ground = Ground::new("mount-killed");
    let directory = mount_point(&ground, "mnt");
    ground.run(&["up", "--servers", "1", "--mount", text(&directory)]);
    fs::write(directory.join("file"), b"kept").unwrap();
    let process = process_of(&ground, &directory);
    assert!(process.signal(SIGKILL).unwrap());
    while process.is_alive() {}
    let read = || fs::read(directory.join("file")).unwrap_err().raw_os_error();
    // The kernel ends what was asked before the last thread of the process had gone with other errors.
    let mut error = read();
    while matches!(error, Some(libc::ECONNABORTED | libc::ECANCELED)) {
        error = read();
    }
    assert_eq!(error, Some(libc::ENOTCONN));
    assert!(ground.run(&["status"]).contains("has ended; 'tabane umount"));
    ground.unmount(&directory);
    ground.run(&["mount", text(&directory)]);
    assert_eq!(fs::read(directory.join("file")).unwrap(), b"kept");
}

/// Goal: servers that are gone are an error within the time-out, and no more than that once they are back; without them
/// a mount can be taken out.
#[test]
fn servers_go_and_come_back() {
    if !fuse_is_here() {
        return;
    }
    let ground = Ground::new("mount-servers");
    let directory = mount_point(&ground, "mnt");
    ground.run(&["up", "--servers", "2"]);
    ground.run(&["mount", text(&directory), "--timeout-ms", "1000"]);
    let open = fs::File::create(directory.join("file")).unwrap();
    open.write_all_at(b"before", 0).unwrap();
    ground.kill(0);
    ground.kill(1);
    let error = fs::metadata(directory.join("file")).unwrap_err().raw_os_error();
    assert!(matches!(error, Some(libc::EHOSTUNREACH | libc::ETIMEDOUT)), "{error:?}");
    assert!(open.write_all_at(b"meanwhile", 0).is_err());
    ground.run(&["up"]);
    assert_eq!(fs::read(directory.join("file")).unwrap(), b"before");
    open.write_all_at(b"after it", 0).unwrap();
    assert_eq!(fs::read(directory.join("file")).unwrap(), b"after it");
    drop(open);
    ground.kill(0);
    ground.kill(1);
    ground.unmount(&directory);
}

/// Goal: programs on a mount are told nothing of servers that stop in good order and start again: all that they do is
/// done. Method: threads make, write, read, rename and remove files of all servers, while each server in turn is
/// restarted.
#[test]
fn restarts_are_told_to_nobody() {
    if !fuse_is_here() {
        return;
    }
    let ground = Ground::new("mount-restarts");
    let directory = mount_point(&ground, "mnt");
    ground.run(&["up", "--servers", "3", "--chunk-size", "4K"]);
    ground.run(&["mount", text(&directory)]);
    let ended = AtomicBool::new(false);
    let (ended, directory) = (&ended, &directory);
    let work = move |number: usize| {
        let mut count = 0;
        while !ended.load(Ordering::Relaxed) {
            let (path, renamed) =
                (directory.join(format!("{number}-{count}")), directory.join(format!("{number}-{count}-renamed")));
            let bytes = [number as u8 + 1; 20_000];
            fs::write(&path, bytes).unwrap();
            fs::rename(&path, &renamed).unwrap();
            assert_eq!(fs::read(&renamed).unwrap(), bytes);
            fs::remove_file(&renamed).unwrap();
            count += 1;
        }
        count
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4).map(|number| scope.spawn(move || work(number))).collect();
        let end = scope.spawn(|| {
            for server in [0, 1, 2, 0] {
                ground.run(&["restart", &server.to_string()]);
            }
        });
        let restarted = end.join();
        ended.store(true, Ordering::Relaxed);
        for worker in workers {
            assert!(worker.join().unwrap() > 0);
        }
        restarted.unwrap();
    });
    assert_eq!(fs::read_dir(directory).unwrap().count(), 0);
}

/// The server that a file's inode, name and first chunk are at, of a cluster as it was made.
fn server_of(path: &Path, servers: u64) -> u64 {
    (fs::metadata(path).unwrap().ino() & 0xf_ffff) % servers
}

/// A process that has been stopped; it goes on in the end, also when the test fails.
struct Stopped(ProcessId);

impl Drop for Stopped {
    fn drop(&mut self) {
        assert!(self.0.signal(libc::SIGCONT).unwrap());
    }
}

/// Goal: a server that has stopped without a word takes away its own files alone, however many programs wait for it:
/// others' files are read, written and made meanwhile. Programs get an error within the time-out, the mount can be
/// taken out, and whoever still waits is served once the server goes on. Method: SIGSTOP to one of three servers; forty
/// threads look at its files and write to them through a mount with two threads, also into chunks that the others have,
/// who must tell the one that has stopped; then everything is done to the files of the others while all forty wait. A
/// second mount has a short time-out.
#[test]
fn a_stopped_server_holds_up_its_own_files_alone() {
    if !fuse_is_here() {
        return;
    }
    const HASTY_NS: u64 = 1_000_000_000;
    const WAITING: usize = 40;
    const CHUNK: u64 = 1 << 20;
    let ground = Ground::new("mount-stopped");
    let (low_priority, hasty) = (mount_point(&ground, "low_priority"), mount_point(&ground, "hasty"));
    // A write may have one server wait for another: they are as patient as the mount, however long a busy machine takes
    // here.
    ground.run(&["up", "--servers", "3", "--chunk-size", "1M", "--timeout-ms", "300000"]);
    ground.run(&["mount", text(&low_priority), "--threads", "2", "--timeout-ms", "300000"]);
    ground.run(&["mount", text(&hasty), "--timeout-ms", "1000"]);
    let files: Vec<PathBuf> = (0..60).map(|number| low_priority.join(format!("file-{number}"))).collect();
    files.iter().for_each(|file| fs::write(file, b"as it was").unwrap());
    let (root, stopped) = (server_of(&low_priority, 3), (server_of(&low_priority, 3) + 1) % 3);
    assert_ne!(root, stopped);
    let (of_it, of_others): (Vec<PathBuf>, Vec<PathBuf>) =
        files.into_iter().partition(|file| server_of(file, 3) == stopped);
    assert!(!of_it.is_empty() && !of_others.is_empty());
    let open: Vec<fs::File> = of_it.iter().map(|file| fs::File::options().write(true).open(file).unwrap()).collect();
    let place = |number: usize| ((number % 3) as u64 * CHUNK) + number as u64 * 10_000;
    let process = ProcessId::of(ground.pid(stopped as u32)).unwrap();
    // A name that the kernel knows already is asked for twice: first whether it is still right, then what it is.
    let known = hasty.join(of_it[0].file_name().unwrap());
    fs::metadata(&known).unwrap();

    let answered = std::sync::atomic::AtomicUsize::new(0);
    let count = || answered.load(std::sync::atomic::Ordering::SeqCst);
    std::thread::scope(|scope| {
        assert!(process.signal(libc::SIGSTOP).unwrap());
        let stopped = Stopped(process);
        for number in 0..WAITING {
            let (answered, open, file) = (&answered, &open[number % of_it.len()], &of_it[number % of_it.len()]);
            scope.spawn(move || {
                match number % 2 {
                    0 => assert_eq!(fs::metadata(file).unwrap().len().min(1), 1),
                    _ => open.write_all_at(&[b'w'; 100_000], place(number)).unwrap(),
                }
                answered.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            });
        }
        for (number, file) in of_others.iter().enumerate() {
            assert_eq!(fs::read(file).unwrap(), b"as it was");
            fs::write(file, b"others go on").unwrap();
            assert_eq!(fs::metadata(file).unwrap().len(), 12, "{number}");
            fs::remove_file(file).unwrap();
        }
        assert_eq!(count(), 0, "nobody can have been answered by a server that does not run");
        let begun = monotonic_now();
        let error = fs::metadata(&known).unwrap_err().raw_os_error();
        let took = monotonic_now() - begun;
        assert!(matches!(error, Some(libc::EHOSTUNREACH | libc::ETIMEDOUT)), "{error:?}");
        assert!(took < 2 * HASTY_NS - HASTY_NS / 10, "a time-out of 1 s took {took} ns");
        ground.unmount(&hasty);
        assert_eq!(count(), 0);
        drop(stopped);
    });
    assert_eq!(count(), WAITING);
    for (index, file) in of_it.iter().enumerate() {
        let written = (0..WAITING).filter(|number| number % 2 == 1 && number % of_it.len() == index);
        let size = written.map(|number| place(number) + 100_000).max().unwrap_or(9);
        assert_eq!(fs::metadata(file).unwrap().len(), size, "{}", file.display());
    }
    drop(open);
    ground.run(&["mount", text(&hasty)]);
    assert_eq!(fs::read_dir(&hasty).unwrap().count(), of_it.len());
    ground.unmount(&hasty);
}

fn locker(file: &Path, words: &[&str]) -> Child {
    Command::new("flock").arg(file).args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Goal: locks hold between mounts, are granted when they are free, and whoever waits for one can be killed.
/// Method: flock(1) holds while a program reads its input; others wait on another mount; one is killed, one is served.
#[test]
fn locks_hold_between_mounts() {
    if !fuse_is_here() {
        return;
    }
    let ground = Ground::new("mount-locks");
    let (first, second) = (mount_point(&ground, "first"), mount_point(&ground, "second"));
    ground.run(&["up", "--servers", "2", "--mount", text(&first)]);
    ground.run(&["mount", text(&second), "--threads", "1"]);
    fs::write(first.join("lock"), b"").unwrap();
    let mut holder = locker(&first.join("lock"), &["sh", "-c", "echo held; cat"]);
    let mut word = [0; 5];
    std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut word).unwrap();
    let refused = Command::new("flock").arg("-n").arg(second.join("lock")).arg("true").status().unwrap();
    assert_eq!(refused.code(), Some(1));
    // The one thread of the second mount serves others while these wait.
    let mut killed = locker(&second.join("lock"), &["true"]);
    let mut served = locker(&second.join("lock"), &["true"]);
    let call = format!("{} ", libc::SYS_flock);
    let waits = |child: &Child| {
        let now = fs::read_to_string(format!("/proc/{}/syscall", child.id())).unwrap_or_default();
        now.starts_with(&call)
    };
    while fs::read_dir(&second).unwrap().count() != 1 || !waits(&killed) || !waits(&served) {}
    assert!(ProcessId::of(killed.id()).unwrap().signal(SIGKILL).unwrap());
    assert!(!killed.wait().unwrap().success());
    assert!(served.try_wait().unwrap().is_none());
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success() && served.wait().unwrap().success());
}

/// Goal: who waits for a lock when a mount ends is told so, with an error that programs know.
#[test]
#[allow(clippy::disallowed_methods)] // Threads and clocks of a program that uses the mount.
fn waiters_are_told_that_the_mount_ends() {
    if !fuse_is_here() {
        return;
    }
    let ground = Ground::new("mount-waiters");
    let directory = mount_point(&ground, "mnt");
    ground.run(&["up", "--servers", "1", "--mount", text(&directory)]);
    let path = directory.join("file");
    let held = fs::File::create(&path).unwrap();
    held.lock().unwrap();
    let other = fs::File::open(&path).unwrap();
    let asks = Arc::new(AtomicBool::new(false));
    let waiting = asks.clone();
    let waiter = std::thread::spawn(move || {
        waiting.store(true, Ordering::Release);
        other.lock().unwrap_err().raw_os_error()
    });
    while !asks.load(Ordering::Acquire) {}
    std::thread::sleep(Duration::from_millis(100));
    ground.run(&["umount", "--force", text(&directory)]);
    let told = waiter.join().unwrap();
    assert!(matches!(told, Some(libc::ENOTCONN | libc::ECONNABORTED)), "{told:?}");
}

/// Goal: a set-user program does not stay one when somebody writes to it who may not keep it so, though the superuser
/// has opened it.
#[test]
fn written_programs_are_nobodys() {
    if !fuse_is_here() || reactor::process::user() != 0 {
        return;
    }
    let ground = Ground::new("mount-set-user");
    let directory = mount_point(&ground, "mnt");
    ground.run(&["up", "--servers", "1", "--mount", text(&directory)]);
    let path = directory.join("program");
    fs::write(&path, "x").unwrap();
    let opened = fs::File::options().append(true).open(&path).unwrap();
    for (user, left) in [(0, 0o6755), (1000, 0o755)] {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
        let mut program = Command::new("/bin/echo");
        program.uid(user).gid(user).stdout(opened.try_clone().unwrap());
        assert!(program.status().unwrap().success());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, left, "user {user}");
    }
    assert_eq!(fs::read(&path).unwrap(), b"x\n\n");
}

/// Goal: who unlocks is never kept out by those who wait, however many ask at once on one core.
/// Method: threads on one core ask for a lock that another one gives back at the same moment, each time on a mount that
/// has just begun, which has had no such crowd; each that has it gives it back.
#[test]
#[allow(clippy::disallowed_methods)] // Threads and clocks of a program that uses the mount.
fn crowds_of_waiters_keep_nobody_from_unlocking() {
    if !fuse_is_here() {
        return;
    }
    let ground = Ground::new("mount-crowds");
    let directory = mount_point(&ground, "mnt");
    ground.run(&["up", "--servers", "1"]);
    for waiter_count in [2, 3, 6, 40, 150] {
        ground.run(&["mount", text(&directory)]);
        let path = directory.join("file");
        let held = fs::File::create(&path).unwrap();
        held.lock().unwrap();
        let (barrier, left) = (Arc::new(Barrier::new(waiter_count + 1)), Arc::new(AtomicUsize::new(waiter_count)));
        let start = |file: fs::File, is_holder: bool| {
            let (barrier, left) = (barrier.clone(), left.clone());
            std::thread::spawn(move || {
                reactor::process::stay_on(&[0]).unwrap();
                barrier.wait();
                if !is_holder {
                    file.lock().unwrap();
                }
                file.unlock().unwrap();
                left.fetch_sub(usize::from(!is_holder), Ordering::Relaxed);
            })
        };
        let waiters = (0..waiter_count).map(|_| start(fs::File::open(&path).unwrap(), false));
        let threads: Vec<_> = waiters.chain([start(held, true)]).collect();
        let latest = Instant::now() + Duration::from_secs(30);
        while left.load(Ordering::Relaxed) > 0 {
            if Instant::now() > latest {
                let words = format!("{} of {waiter_count} wait for ever", left.load(Ordering::Relaxed));
                ground.run(&["umount", "--force", text(&directory)]);
                panic!("{words}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        ground.unmount(&directory);
    }
}

/// Goal: a program started by `run --mount` finds the tree, and nothing is left when it has ended.
#[test]
fn run_with_a_mount() {
    if !fuse_is_here() {
        return;
    }
    let ground = Ground::new("mount-run");
    let directory = mount_point(&ground, "mnt");
    let script = "echo hello > mnt/file && tabane cat /file";
    let mut command = ground.command(&["run", "--servers", "2", "--mount", "mnt", "--", "sh", "-ec", script]);
    let path = format!("{}:/usr/bin:/bin", Path::new(TABANE).parent().unwrap().display());
    let output = command.env("PATH", path).env_remove("TABANE_RUN_DIRECTORY").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout, b"hello\n");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
}

/// Goal: who is not root mounts and unmounts too, alone uses what was mounted, and what is in the way of it is said.
/// Method: everything as another user, where this one is root; else as this one.
#[test]
fn without_root() {
    if !fuse_is_here() {
        return;
    }
    const NOBODY: u32 = 65_534;
    let ground = Ground::new("mount-user");
    let directory = mount_point(&ground, "mnt");
    let we_are_root = reactor::process::user() == 0;
    if we_are_root {
        std::os::unix::fs::chown(&ground.path, Some(NOBODY), Some(NOBODY)).unwrap();
        std::os::unix::fs::chown(&directory, Some(NOBODY), Some(NOBODY)).unwrap();
        let facts = fs::metadata("/dev/fuse").unwrap();
        if facts.mode() & 0o006 != 0o006 {
            // As udev makes it on any machine that has udev.
            fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o666)).unwrap();
        }
    }
    let as_user = |words: &[&str]| {
        let mut command = ground.command(words);
        if we_are_root {
            command.uid(NOBODY).gid(NOBODY);
        }
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    as_user(&["up", "--servers", "1", "--mount", text(&directory)]);
    let mut touch = Command::new("sh");
    touch.args(["-ec", "echo mine > mnt/file && cat mnt/file"]).current_dir(&ground.path);
    if we_are_root {
        touch.uid(NOBODY).gid(NOBODY);
        assert_eq!(fs::metadata(directory.join("file")).unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
    assert_eq!(touch.output().unwrap().stdout, b"mine\n");
    assert_eq!(as_user(&["cat", "/file"]), "mine\n");
    as_user(&["umount", text(&directory)]);
    as_user(&["down"]);
}

/// Goal: a signal to the process that serves takes the mount out, also one in use.
#[test]
fn signals_unmount() {
    if !fuse_is_here() {
        return;
    }
    let ground = Ground::new("mount-signal");
    let directory = mount_point(&ground, "mnt");
    ground.run(&["up", "--servers", "1", "--mount", text(&directory)]);
    let open = fs::File::create(directory.join("file")).unwrap();
    assert!(ground.fail(1, &["umount", text(&directory)]).contains("--force"));
    let process = process_of(&ground, &directory);
    assert!(process.signal(SIGCHLD).unwrap() && process.signal(SIGTERM).unwrap());
    while process.is_alive() {}
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    assert!(open.write_all_at(b"late", 0).is_err());
}

/// A program that stands in a directory until its input ends.
fn stand_in(directory: &Path) -> Child {
    let mut program = Command::new("sh");
    program.args(["-c", "echo here; read line"]).current_dir(directory).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = program.spawn().unwrap();
    let mut word = [0; 5];
    std::io::Read::read_exact(program.stdout.as_mut().unwrap(), &mut word).unwrap();
    program
}

/// Goal: `umount --force` of a mount in use ends the process that served it, and what is mounted at its place
/// afterwards stays when the program that used it leaves; so it does with a cluster file alone, whose mounts are not
/// written down.
/// Method: a program stands in the mount.
#[test]
fn forced_unmounts_end() {
    if !fuse_is_here() {
        return;
    }
    let ground = Ground::new("mount-force");
    let directory = mount_point(&ground, "mnt");
    ground.run(&["up", "--servers", "1", "--mount", text(&directory)]);
    ground.run(&["put", "/file"]);
    let process = process_of(&ground, &directory);
    let mut program = stand_in(&directory);
    assert!(ground.fail(1, &["umount", text(&directory)]).contains("--force"));
    ground.run(&["umount", "--force", text(&directory)]);
    assert!(!process.is_alive(), "the process that served it is left");
    ground.run(&["mount", text(&directory)]);
    drop(program.stdin.take());
    program.wait().unwrap();
    assert!(directory.join("file").exists(), "the newer mount has gone");
    ground.unmount(&directory);

    let file = ground.path.join("cluster");
    fs::copy(ground.run_directory().join("cluster"), &file).unwrap();
    let mut serving = ground.command(&["mount", "--foreground", "--cluster", text(&file), text(&directory)]);
    let mut serving = serving.stdout(Stdio::piped()).spawn().unwrap();
    std::io::Read::read_exact(serving.stdout.as_mut().unwrap(), &mut [0; 5]).unwrap();
    let mut program = stand_in(&directory);
    ground.run(&["umount", "--force", "--cluster", text(&file), text(&directory)]);
    if fs::read_dir("/sys/fs/fuse/connections").unwrap().count() > 0 {
        serving.wait().unwrap();
    }
    program.kill().unwrap();
    program.wait().unwrap();
    serving.wait().unwrap();
}

/// Goal: the process of a mount that somebody else took out of the tree never takes out a newer one at the same place.
/// Method: as umount -l does it, while a program stands in the mount; then a newer one, and the old process is asked to
/// end.
#[test]
fn old_processes_leave_newer_mounts() {
    if !fuse_is_here() || reactor::process::user() != 0 {
        return;
    }
    let ground = Ground::new("mount-newer");
    let directory = mount_point(&ground, "mnt");
    ground.run(&["up", "--servers", "1", "--mount", text(&directory)]);
    ground.run(&["put", "/file"]);
    for asked in [true, false] {
        let old = process_of(&ground, &directory);
        let mut program = stand_in(&directory);
        reactor::process::unmount(&directory, true).unwrap();
        assert!(old.is_alive(), "it serves the program still");
        ground.run(&["mount", text(&directory)]);
        match asked {
            true => assert!(old.signal(SIGTERM).unwrap()),
            false => drop(program.stdin.take()),
        }
        while old.is_alive() {}
        assert!(directory.join("file").exists(), "the newer mount has gone");
        drop(program.stdin.take());
        program.wait().unwrap();
    }
    ground.unmount(&directory);
}
