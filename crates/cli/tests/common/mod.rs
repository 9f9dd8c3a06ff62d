//! Real clusters of real processes for the tests of the program.

#![allow(dead_code)] // Each test program uses its own part of this.
#![allow(clippy::unwrap_used)] // What fails here fails the test.

pub mod hosts;

use reactor::barrier::monotonic_now;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// The program under test.
pub const TABANE: &str = env!("CARGO_BIN_EXE_tabane");

/// A directory of its own for one test, with a run directory and stores in it. Takes down and removes what is left.
pub struct Ground {
    pub path: PathBuf,
}

impl Ground {
    pub fn new(name: &str) -> Ground {
        let path = std::env::temp_dir().join(format!("tabane-test-{name}-{}", std::process::id()));
        // Whatever the umask: what others may write to is refused.
        std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o755)
            .recursive(true)
            .create(&path)
            .unwrap();
        Ground { path }
    }

    pub fn run_directory(&self) -> PathBuf {
        self.path.join("run")
    }

    pub fn stores(&self) -> PathBuf {
        self.path.join("stores")
    }

    /// A command of the program for this ground's cluster.
    #[allow(clippy::disallowed_methods)] // How mounts get their requests is said by the environment.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(TABANE);
        command.args(words).env_clear().env("PATH", "/usr/bin:/bin");
        if let Ok(io_uring) = std::env::var("TABANE_IO_URING") {
            command.env("TABANE_IO_URING", io_uring);
        }
        command.env("TABANE_CLUSTER", self.run_directory()).env("TABANE_RUN_DIRECTORY", self.run_directory());
        command.env("TABANE_STORE", format!("memory:{},size=64M", self.stores().display()));
        command.env("TABANE_JOURNAL_SIZE", "8M").current_dir(&self.path);
        command
    }

    /// Runs a command to its end, whatever that is.
    pub fn try_run(&self, words: &[&str]) -> Output {
        self.command(words).stdin(Stdio::null()).output().unwrap()
    }

    /// Runs a command that has to succeed, and gives what it printed.
    pub fn run(&self, words: &[&str]) -> String {
        let output = self.try_run(words);
        assert!(
            output.status.success(),
            "tabane {words:?}: {}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that has to fail with this exit status, and gives what it complained.
    pub fn fail(&self, code: i32, words: &[&str]) -> String {
        let output = self.try_run(words);
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "tabane {words:?}: {complaint}");
        complaint
    }

    /// Unmounts where nobody uses the mount any more. A child that another test of this process is about to start has
    /// all its files until it runs its program: for that moment the mount is in use.
    #[allow(clippy::disallowed_methods)] // It waits as a user would.
    pub fn unmount(&self, directory: &Path) {
        let limit = monotonic_now() + 10_000_000_000;
        loop {
            let output = self.try_run(&["umount", directory.to_str().unwrap()]);
            let words = String::from_utf8_lossy(&output.stderr);
            match output.status.success() {
                true => return,
                false => assert!(words.contains("somebody uses it") && monotonic_now() < limit, "{words}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn start(&self, words: &[&str]) -> Child {
        self.command(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Number of a server's process.
    pub fn pid(&self, index: u32) -> u32 {
        let text = std::fs::read_to_string(self.run_directory().join(format!("server-{index}.pid"))).unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    }

    /// Ends a server as a crash would; returns when its process is gone.
    pub fn kill(&self, index: u32) {
        let process = reactor::process::ProcessId::of(self.pid(index)).unwrap();
        assert!(process.signal(reactor::process::SIGKILL).unwrap());
        while process.is_alive() {}
    }

    /// A tree with files of many sizes, odd names, links, modes and times. Returns its path.
    pub fn make_tree(&self) -> PathBuf {
        let tree = self.path.join("tree");
        for directory in ["", "a", "a/b", "a/b/empty", "many", "with space"] {
            std::fs::create_dir(tree.join(directory)).unwrap();
        }
        let mut pattern = 1u32;
        let mut fill = |path: &Path, size: usize| {
            let bytes = std::iter::repeat_with(|| {
                pattern = pattern.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (pattern >> 24) as u8
            });
            std::fs::write(path, bytes.take(size).collect::<Vec<u8>>()).unwrap();
        };
        for (name, size) in
            [("empty", 0), ("one", 1), ("a/3901", 3901), ("a/b/47008", 47_008), ("a/large", (9 << 20) + 17)]
        {
            fill(&tree.join(name), size);
        }
        for index in 0..200 {
            fill(&tree.join(format!("many/file-{index:03}.txt")), index * 13);
        }
        fill(&tree.join("with space/new\nline \\ é"), 5);
        std::os::unix::fs::symlink("../one", tree.join("a/link")).unwrap();
        std::os::unix::fs::symlink("/nowhere", tree.join("dangling")).unwrap();
        let sparse = std::fs::File::create(tree.join("sparse")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&sparse, b"middle", 6 << 20).unwrap();
        sparse.set_len(20 << 20).unwrap();
        let shell = "chmod 750 a; chmod 4711 one; chmod 400 empty; chmod 1777 many; \
                     touch -h -d '2001-02-03 04:05:06.789' a/link one many; touch -d '1969-12-31' a/3901";
        let status = Command::new("sh").args(["-ec", shell]).current_dir(&tree).status().unwrap();
        assert!(status.success());
        tree
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if self.run_directory().exists() {
            self.try_run(&["down", "--discard", "--stop-timeout-ms", "2000"]);
        }
        let removed = std::fs::remove_dir_all(&self.path);
        assert!(removed.is_ok() || std::thread::panicking(), "{removed:?}");
    }
}

/// What a directory tree is, entry by entry: kind, mode, time and size or target; times of changes of links left out.
pub fn describe(tree: &Path) -> String {
    let format = "%P %y %#m %T@ %s %l\\n";
    let output = Command::new("find").args([".", "-printf", format]).current_dir(tree).output().unwrap();
    let mut lines: Vec<String> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| {
            // The size of a directory is the file system's own affair.
            match line.rsplit_once(' ') {
                Some((facts, "")) if facts.contains(" d ") => facts.rsplit_once(' ').map_or(facts, |(facts, _)| facts),
                _ => line,
            }
            .to_owned()
        })
        .collect();
    lines.sort();
    lines.join("\n")
}

/// Sends a signal to a process.
pub fn send_signal(pid: u32, number: i32) {
    assert!(reactor::process::ProcessId::of(pid).unwrap().signal(number).unwrap());
}

/// Reads what a terminal gets until the wanted words are in it.
pub fn read_until(child: &mut Child, seen: &mut String, wanted: &str) {
    let output = child.stdout.as_mut().unwrap();
    let mut bytes = [0; 4096];
    while !seen.contains(wanted) {
        let count = output.read(&mut bytes).unwrap();
        assert!(count > 0, "{wanted} never came: {seen:?}");
        seen.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
}

/// Whether there is FUSE here. Where there is none and nobody said so, the test fails.
#[allow(clippy::disallowed_methods)] // The one switch of these tests.
pub fn fuse_is_here() -> bool {
    if Path::new("/dev/fuse").exists() {
        return true;
    }
    let excused = std::env::var("TABANE_CI_NO_FUSE").is_ok_and(|value| value == "1");
    assert!(excused, "there is no /dev/fuse here: nothing of the mount is tested; TABANE_CI_NO_FUSE=1 accepts that");
    eprintln!("there is no /dev/fuse here: the mount is not tested");
    false
}

/// A new directory to mount on.
pub fn mount_point(ground: &Ground, name: &str) -> PathBuf {
    let path = ground.path.join(name);
    std::fs::create_dir(&path).unwrap();
    path
}

/// A path as a word of a command.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
