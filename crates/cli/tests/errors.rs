//! The messages of docs/errors.md, each provoked, and no other in that page. Whoever changes a message changes the page.

#![allow(clippy::unwrap_used)] // What fails here fails the test.

mod common;

use common::Ground;
use reactor::process::ProcessId;
use std::fs::{self, Permissions};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

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

    /// Whether some message is the pattern, whose `...` stand for anything.
    fn has(&self, pattern: &str) -> bool {
        self.0.iter().any(|said| {
            let mut rest = said.as_str();
            pattern.split("...").all(|part| match rest.find(part) {
                Some(position) => {
                    rest = &rest[position + part.len()..];
                    true
                }
                None => false,
            })
        })
    }
}

/// The messages of one chapter of the page.
fn documented(chapter: &str) -> Vec<String> {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors.md")).unwrap();
    let chapter = page.split("\n## ").find(|part| part.starts_with(chapter)).unwrap_or_else(|| panic!("no {chapter}"));
    let rows = chapter.lines().filter_map(|line| line.strip_prefix("| `"));
    let patterns: Vec<String> = rows.map(|row| row.split("` |").next().unwrap().to_owned()).collect();
    assert!(patterns.len() > 4, "{chapter}");
    patterns
}

fn check(chapter: &str, said: &Said) {
    for pattern in documented(chapter) {
        assert!(said.has(&pattern), "nobody says: {pattern}\nsaid: {:#?}", said.0);
    }
}

/// Goal: what is wrong with a command line, the environment or the config file is said as documented. No servers.
#[test]
fn command_line() {
    let ground = Ground::new("errors-line");
    let mut said = Said::default();
    let usage: [&[&str]; 13] = [
        &["lss"],
        &["up", "--serverz", "2"],
        &["up", "there"],
        &["mkdir"],
        &["up", "--servers", "0"],
        &["up", "--chunk-size", "1"],
        &["up", "--placement", "spiral"],
        &["cp", "a", "b"],
        &["up", "--dir", "/a", "--store", "memory:/b"],
        &["up", "--store", "nvme:/dev/x"],
        &["top"],
        &["completions", "tcsh"],
        &["up", "--port", "65535", "--servers", "3"],
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
    check("The command line", &said);
}

/// Goal: what keeps a cluster from starting or being found is said as documented, and nothing is left of what was tried.
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
    fs::create_dir_all(ground.stores().join("server-0")).unwrap();
    said.note(&ground, 1, &["up"]);
    fs::remove_dir_all(ground.stores()).unwrap();
    ground.run(&["up", "--servers", "2"]);
    said.note(&ground, 1, &["up"]);
    ground.kill(0);
    said.note(&ground, 1, &["up", "--servers", "3"]);
    let store = ground.stores().join("server-0");
    fs::rename(&store, ground.path.join("elsewhere")).unwrap();
    said.note(&ground, 1, &["up"]);
    fs::rename(ground.path.join("elsewhere"), &store).unwrap();
    ground.run(&["up"]);
    check("Starting and finding", &said);
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
    let failures: [&[&str]; 10] = [
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
    ];
    failures.iter().for_each(|words| said.note(&ground, 1, words));
    said.note(&ground, 2, &["rm", "-r", "/"]);
    assert!(ProcessId::of(ground.pid(0)).is_some());
    check("Files", &said);
}
