//! The messages of docs/errors.md: each is provoked here, and each that is provoked here stands there, in the chapter
//! of its test. Whoever changes a message changes the page.

#![allow(clippy::unwrap_used)] // What fails here fails the test.

mod common;

use common::{Ground, TABANE, fuse_is_here};
use reactor::process::ProcessId;
use std::fs::{self, Permissions};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors.md");

/// What was said, command by command.
#[derive(Default)]
struct Said(Vec<String>);

impl Said {
    fn note(&mut self, ground: &Ground, code: i32, words: &[&str]) {
        self.with(ground, code, words, &[]);
    }

    fn with(&mut self, ground: &Ground, code: i32, words: &[&str], variables: &[(&str, &str)]) {
        let output = ground.command(words).envs(variables.iter().copied()).stdin(Stdio::null()).output().unwrap();
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "tabane {words:?}: {complaint}");
        self.0.push(complaint);
    }

    /// Notes what a shell's script comes to: for what takes more than our own program.
    fn script(&mut self, ground: &Ground, code: i32, script: &str) {
        let ours = ground.command(&[]);
        let variables = ours.get_envs().filter_map(|(name, value)| Some((name, value?)));
        let mut command = Command::new("sh");
        command.args(["-ec", script]).env_clear().envs(variables).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        let output = command.env("TABANE", TABANE).current_dir(&ground.path).stdin(Stdio::null()).output().unwrap();
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{script}: {complaint}");
        self.0.push(complaint);
    }
}

/// Whether a message is the pattern, whose `...` stand for anything.
fn is_like(said: &str, pattern: &str) -> bool {
    let mut rest = said;
    pattern.split("...").all(|part| match rest.find(part) {
        Some(position) => {
            rest = &rest[position + part.len()..];
            true
        }
        None => false,
    })
}

/// The messages of one chapter of the page.
fn documented(chapter: &str) -> Vec<String> {
    let page = fs::read_to_string(PAGE).unwrap();
    let chapter = page.split("\n## ").find(|part| part.starts_with(chapter)).unwrap_or_else(|| panic!("no {chapter}"));
    let rows = chapter.lines().filter_map(|line| line.strip_prefix("| `"));
    let patterns: Vec<String> = rows.map(|row| row.split("` |").next().unwrap().to_owned()).collect();
    assert!(patterns.len() > 4, "{chapter}");
    patterns
}

/// Each documented message was said, and each that was said is documented.
fn check(chapter: &str, said: &Said) {
    let patterns = documented(chapter);
    for pattern in &patterns {
        assert!(said.0.iter().any(|said| is_like(said, pattern)), "nobody says: {pattern}\nsaid: {:#?}", said.0);
    }
    for said in &said.0 {
        assert!(patterns.iter().any(|pattern| is_like(said, pattern)), "\"{chapter}\" lacks: {said}");
    }
}

/// Goal: every chapter of the page with messages has a test here.
#[test]
fn all_chapters() {
    let page = fs::read_to_string(PAGE).unwrap();
    let here = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/errors.rs")).unwrap();
    for chapter in page.split("\n## ").skip(1) {
        let title = chapter.lines().next().unwrap();
        assert!(here.contains(&format!("check(\"{title}\", ")), "no test provokes what is under \"{title}\"");
    }
}

/// Goal: what is wrong with a command line, the environment or the config file is said as documented. No servers.
#[test]
fn command_line() {
    let ground = Ground::new("errors-line");
    let mut said = Said::default();
    let usage: [&[&str]; 16] = [
        &["lss"],
        &["up", "--serverz", "2"],
        &["up", "there"],
        &["mkdir"],
        &["up", "--servers", "0"],
        &["up", "--chunk-size", "1"],
        &["up", "--placement", "spiral"],
        &["cp", "a", "b"],
        &["cp", "-un", "a", ":/b"],
        &["cp", "-v", "--json", "a", ":/b"],
        &["--cluster", "/a", "ls", "--cluster", "/b"],
        &["up", "--dir", "/a", "--store", "memory:/b"],
        &["up", "--store", "nvme:"],
        &["up", "--hosts", "nowhere-0,nowhere-1", "--store", "nvme:/scratch"],
        &["top"],
        &["completions", "tcsh"],
    ];
    usage.iter().for_each(|words| said.note(&ground, 2, words));
    said.with(&ground, 2, &["up"], &[("TABANE_SERVERS", "many")]);
    let config = ground.path.join("config.toml");
    let path = config.to_str().unwrap();
    for text in ["server = 2", "[upp]\nservers = 2"] {
        fs::write(&config, text).unwrap();
        said.with(&ground, 2, &["ls"], &[("TABANE_CONFIG", path)]);
    }
    said.with(&ground, 2, &["ls"], &[("TABANE_CONFIG", "/nowhere/config.toml")]);
    check("The command line and the config file", &said);
}

/// Goal: what keeps a cluster from starting or being found is said as documented, and nothing is left of what was
/// tried.
#[test]
fn starting() {
    let ground = Ground::new("errors-start");
    let mut said = Said::default();
    let run = ground.run_directory();
    said.note(&ground, 1, &["ls"]);
    said.note(&ground, 1, &["down"]);
    fs::create_dir(&run).unwrap();
    fs::set_permissions(&run, Permissions::from_mode(0o755)).unwrap();
    said.note(&ground, 1, &["up"]);
    fs::set_permissions(&run, Permissions::from_mode(0o700)).unwrap();
    fs::write(run.join("mine"), "").unwrap();
    said.note(&ground, 1, &["up"]);
    fs::remove_file(run.join("mine")).unwrap();
    fs::remove_dir(&run).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    said.note(&ground, 1, &["up", "--servers", "1", "--port", &port]);
    said.note(&ground, 2, &["up", "--servers", "3", "--port", "65534"]);
    said.with(&ground, 1, &["up"], &[("TABANE_STORE", "memory:size=60T")]);
    let full = ground.path.join("full");
    fs::write(&full, vec![7; 200 << 20]).unwrap();
    let on = |path: &str, more: &str| format!("nvme:{path}{more}");
    let full = full.to_str().unwrap();
    said.with(&ground, 1, &["up", "--servers", "1"], &[("TABANE_STORE", &on(full, ",size=64M,buffer=16M"))]);
    said.with(&ground, 1, &["up", "--servers", "2"], &[("TABANE_STORE", &on(full, ",size=64M,buffer=16M"))]);
    said.with(&ground, 1, &["up", "--servers", "1"], &[("TABANE_STORE", "nvme:/dev/null,size=64M,buffer=16M")]);
    let place = ground.path.to_str().unwrap();
    said.with(&ground, 1, &["up"], &[("TABANE_STORE", &on(place, ",size=60T,buffer=60T"))]);
    said.with(&ground, 1, &["up"], &[("TABANE_STORE", "nvme:/dev/shm,size=64M,buffer=16M")]);
    let mut label = vec![0; 200 << 20];
    label[..8].copy_from_slice(b"TabaneDv");
    fs::write(full, &label).unwrap();
    said.with(&ground, 1, &["up", "--servers", "1"], &[("TABANE_STORE", &on(full, ",size=64M,buffer=16M"))]);
    fs::remove_file(full).unwrap();
    fs::create_dir_all(ground.stores().join("server-0")).unwrap();
    said.note(&ground, 1, &["up"]);
    fs::remove_dir_all(ground.stores()).unwrap();
    ground.run(&["up", "--servers", "2"]);
    said.note(&ground, 1, &["up"]);
    fs::set_permissions(&run, Permissions::from_mode(0o777)).unwrap();
    said.note(&ground, 1, &["ls"]);
    fs::set_permissions(&run, Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(run.join("cluster"), Permissions::from_mode(0o644)).unwrap();
    said.note(&ground, 1, &["ls"]);
    fs::set_permissions(&run, Permissions::from_mode(0o700)).unwrap();
    ground.kill(0);
    said.note(&ground, 1, &["up", "--servers", "3"]);
    let store = ground.stores().join("server-0");
    fs::rename(&store, ground.path.join("elsewhere")).unwrap();
    said.note(&ground, 1, &["up"]);
    fs::rename(ground.path.join("elsewhere"), &store).unwrap();
    ground.run(&["up"]);
    check("Starting and finding clusters", &said);
}

/// Goal: of damaged stores, and of what is taken for one, is said as documented.
#[test]
fn damaged_stores() {
    let ground = Ground::new("errors-damaged");
    let mut said = Said::default();
    ground.run(&["up", "--servers", "2"]);
    fs::create_dir(ground.path.join("empty")).unwrap();
    fs::write(ground.path.join("plain"), "").unwrap();
    for path in ["nowhere", "plain", "empty", "run", "stores", "stores/server-1"] {
        said.note(&ground, 2, &["salvage", path]);
    }
    ground.kill(0);
    let journal = ground.stores().join("server-0/journal");
    fs::rename(&journal, ground.path.join("away")).unwrap();
    said.note(&ground, 2, &["salvage", "stores/server-0"]);
    fs::rename(ground.path.join("away"), &journal).unwrap();
    let superblock = ground.stores().join("server-0/super");
    let mut bytes = fs::read(&superblock).unwrap();
    bytes[20] ^= 0xff;
    fs::write(&superblock, bytes).unwrap();
    said.note(&ground, 1, &["up"]);
    check("Damaged stores", &said);
}

/// Goal: of servers that are gone or silent is said as documented.
#[test]
fn silent_servers() {
    let ground = Ground::new("errors-silent");
    let mut said = Said::default();
    ground.run(&["up", "--servers", "2"]);
    said.note(&ground, 2, &["logs", "2"]);
    ground.kill(1);
    said.note(&ground, 1, &["status"]);
    said.note(&ground, 1, &["top", "--once", "--interval-ms", "100"]);
    said.note(&ground, 1, &["df", "--timeout-ms", "300"]);
    check("Servers that do not answer", &said);
}

/// Goal: what can't be done with files is said as documented.
#[test]
fn files() {
    let ground = Ground::new("errors-files");
    let mut said = Said::default();
    ground.run(&["up", "--servers", "1", "--store", &format!("memory:{},size=16M", ground.stores().display())]);
    ground.run(&["mkdir", "-p", "/a/b"]);
    let mut put = ground.command(&["put", "/file"]).stdin(Stdio::piped()).spawn().unwrap();
    put.stdin.take().unwrap().write_all(b"bytes").unwrap();
    assert!(put.wait().unwrap().success());
    let failures: [&[&str]; 15] = [
        &["cat", "/nothing"],
        &["ls", "/no*thing"],
        &["cp", ":/a", "copy"],
        &["rm", "/a"],
        &["cp", "-r", ":/a", ":/a/b"],
        &["cp", ":/file", ":/file"],
        &["cp", ":/file", ":/a", ":/nothing"],
        &["mkdir", "/file"],
        &["rmdir", "/a"],
        &["fallocate", "-l", "1G", "/large"],
        &["mv", "/a", "/a/b"],
        &["find", "/nothing"],
        &["du", "/nothing"],
        &["checksum", ":/a"],
        &["ls", "/file/below"],
    ];
    failures.iter().for_each(|words| said.note(&ground, 1, words));
    let usage: [&[&str]; 13] = [
        &["rm", "-r", "/"],
        &["chmod", "u+q", "/file"],
        &["chown", "nobody-of-that-name", "/file"],
        &["truncate", "/file"],
        &["truncate", "-s", "big", "/file"],
        &["fallocate", "/file"],
        &["fallocate", "-p", "-z", "-l", "1", "/file"],
        &["mv", "--no-replace", "--exchange", "/file", "/other"],
        &["mv", "/file", "/a", "/nothing"],
        &["find", "-server", "7"],
        &["find", "-size", "big"],
        &["find", "-id", "big"],
        &["du", "-s", "-a"],
    ];
    usage.iter().for_each(|words| said.note(&ground, 2, words));
    assert!(ProcessId::of(ground.pid(0)).is_some());
    check("Files", &said);
}

/// Goal: of locks, attributes and the check is said as documented.
#[test]
fn locks_attributes_check() {
    let ground = Ground::new("errors-locks");
    let mut said = Said::default();
    said.note(&ground, 8, &["check"]);
    ground.run(&["up", "--servers", "2"]);
    ground.run(&["cp", "/etc/passwd", ":/file"]);
    ground.run(&["mkdir", "/directory"]);
    // The inner one finds the file locked by the outer one.
    said.note(&ground, 1, &["flock", "/lock", TABANE, "flock", "-n", "/lock", "true"]);
    said.note(&ground, 127, &["flock", "/lock", "nothing-of-that-name"]);
    said.note(&ground, 1, &["flock", "/directory", "true"]);
    let large = format!("0s{}", "AAAA".repeat(21_846));
    let failures: [&[&str]; 4] = [
        &["getfattr", "-n", "user.nothing", "/file"],
        &["setfattr", "-n", "nothing.name", "-v", "1", "/file"],
        &["setfattr", "-x", "user.nothing", "/file"],
        &["setfattr", "-n", "user.large", "-v", large.as_str(), "/file"],
    ];
    failures.iter().for_each(|words| said.note(&ground, 1, words));
    said.note(&ground, 2, &["setfattr", "-n", "user.odd", "-v", "0x0", "/file"]);
    said.note(&ground, 2, &["setfattr", "/file"]);
    ground.kill(1);
    said.note(&ground, 8, &["check", "--timeout-ms", "300"]);
    check("Locks, attributes and the check", &said);
}

/// Goal: what keeps a mount from being made or taken away is said as documented.
#[test]
fn mounts() {
    if !fuse_is_here() {
        return;
    }
    let ground = Ground::new("errors-mounts");
    let mut said = Said::default();
    ground.run(&["up", "--servers", "1"]);
    fs::write(ground.path.join("plain"), "").unwrap();
    fs::create_dir(ground.path.join("mnt")).unwrap();
    said.note(&ground, 1, &["mount", "nowhere"]);
    said.note(&ground, 1, &["mount", "plain"]);
    said.note(&ground, 1, &["umount", "mnt"]);
    said.note(&ground, 1, &["mount", "/dev/fd/77"]);
    said.note(&ground, 2, &["mount", "--allow-other", "/dev/fd/77"]);
    // A machine, or a container, without /dev/fuse.
    fs::create_dir(ground.path.join("dev")).unwrap();
    let bare = "mount --bind /dev dev; mount -t tmpfs none /dev; touch /dev/null; mount --bind dev/null /dev/null; \
                exec \"$TABANE\" mount mnt";
    said.script(&ground, 1, &format!("unshare $([ \"$(id -u)\" = 0 ] || echo -Ur) -m sh -ec '{bare}'"));
    ground.run(&["mount", "mnt"]);
    said.note(&ground, 1, &["mount", "mnt"]);
    said.script(&ground, 1, "cd mnt && \"$TABANE\" umount ../mnt");
    ground.run(&["umount", "mnt"]);
    check("Mounts", &said);
}

/// Goal: of hosts that are named wrongly, can't be reached or do not do what they should is said as documented, and
/// nothing is left. Method: the hosts are this machine, entered by launchers that do as bad ones do.
#[test]
fn hosts() {
    let ground = Ground::new("errors-hosts");
    let mut said = Said::default();
    let usage: [&[&str]; 12] = [
        &["up", "--hosts", ","],
        &["up", "--hosts", "a,b,a"],
        &["up", "--hosts", "a;b"],
        &["up", "--hosts", "a[3-1]"],
        &["up", "--hosts", "./nowhere"],
        &["up", "--hosts", "auto"],
        &["up", "--hosts", "a:1,b:1", "--servers", "3"],
        &["up", "--hosts", "a,b", "--servers", "1"],
        &["up", "--hosts", "a", "--launcher", "ssh {host} sh -c '{command}'"],
        &["up", "--hosts", "a", "--interface", "10.0.0.0/40"],
        &["up", "--hosts", "a", "--interface", "fe80::1%eth0"],
        &["up", "--per-host", "2"],
    ];
    usage.iter().for_each(|words| said.note(&ground, 2, words));
    let launcher = |name: &str, script: &str| -> String {
        let path = ground.path.join(name);
        fs::write(&path, script).unwrap();
        // Run by a shell that reads it: a program that was open for writing when another test's child was born can't be
        // started.
        format!("sh {} {{host}}", path.display())
    };
    let hello = |version: &str| {
        format!(
            "for word; do case $word in --number=*) n=${{word#*=}};; esac; done
             report() {{ echo \"tabane-host {{\\\"number\\\":$n,$1}}\"; }}
             report '\"report\":\"hello\",\"version\":\"{version}\"'\n"
        )
    };
    let gone = ground.path.join("gone");
    let here =
        format!("[ ! -e {} ] || {{ echo 'no route to host' >&2; exit 255; }}; shift; exec \"$@\"", gone.display());
    let here = launcher("here", &here);
    let refuses = launcher("refuses", "echo 'no rights there' >&2; exit 1");
    let silent = launcher("silent", "exec cat > /dev/null");
    let old = launcher("old", &(hello("0.0.1") + "exec cat > /dev/null"));
    let survey =
        "read order; report '\"report\":\"survey\",\"address\":\"192.0.2.1\",\"ports\":[5000],\"free\":100000000000'\n";
    let alike = launcher("alike", &(hello(env!("CARGO_PKG_VERSION")) + survey + "exec cat > /dev/null"));
    let failures: [&[&str]; 8] = [
        &["--launcher", "nothing-of-that-name {host}"],
        &["--launcher", &refuses],
        &["--launcher", &silent, "--launch-timeout-ms", "300"],
        &["--launcher", &old],
        &["--launcher", &alike, "--hosts", "a,b"],
        &["--launcher", &here, "--binary", "/nowhere/tabane"],
        &["--launcher", &here, "--interface", "nothing7"],
        &["--launcher", &here, "--interface", "240.0.0.0/8"],
    ];
    for words in failures {
        said.note(&ground, 1, &[&["up", "--hosts", "a"][..], words].concat());
        assert!(!ground.run_directory().exists() && !ground.stores().exists(), "{words:?}");
    }
    ground.run(&["up", "--hosts", "a", "--launcher", &here, "--interface", "lo"]);
    said.note(&ground, 1, &["up", "--hosts", "a", "--launcher", &here]);
    said.note(&ground, 2, &["restart", "7"]);
    fs::write(&gone, "").unwrap();
    said.note(&ground, 3, &["down"]);
    fs::remove_file(&gone).unwrap();
    // As a host has it that the cluster was copied to.
    let record = ground.run_directory().join("hosts");
    let text = fs::read_to_string(&record).unwrap();
    fs::write(&record, text.replace("\"is_origin\": true", "\"is_origin\": false")).unwrap();
    said.note(&ground, 1, &["down"]);
    fs::write(&record, text).unwrap();
    ground.run(&["down"]);
    assert!(!ground.run_directory().exists());
    check("Several hosts", &said);
}
