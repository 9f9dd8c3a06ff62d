//! All servers' counters over HTTP. A script stands in for the servers' program.

#![allow(clippy::unwrap_used)] // Tests, including their helpers.

mod common;

use common::Scratch;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};
use std::time::Duration;

const PAGE: &str = "# HELP tabane_server_up Up.\n# TYPE tabane_server_up gauge\ntabane_server_up{server=\"0\"} 1\n";

/// A port that is served, until it is dropped.
struct Served(Child, SocketAddr);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Served {
    fn start(scratch: &Scratch) -> Served {
        let line = "serve --listen 127.0.0.1 --tabane ./tabane --cluster /run/x";
        let mut child = scratch.command(line).stdout(Stdio::piped()).spawn().unwrap();
        let url = BufReader::new(child.stdout.take().unwrap()).lines().next().expect("it goes on").unwrap();
        let address = url.strip_prefix("http://").unwrap().strip_suffix("/metrics").unwrap().parse().unwrap();
        Served(child, address)
    }

    fn ask(&self, line: &str, host: &str) -> String {
        let mut stream = TcpStream::connect(self.1).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(stream, "{line} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

/// What is printed is in `page`; none is a failure.
fn stand_in(scratch: &Scratch) {
    scratch.file(
        "tabane",
        "#!/bin/sh\necho \"$@\" >>asked\ncat page 2>/dev/null || { echo 'tabane: no cluster' >&2; exit 1; }\n",
    );
    std::fs::set_permissions(scratch.0.join("tabane"), std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Goal: the page is what the servers say, asked for once a second at most however many ask; only that, only by GET,
/// and only who names this host gets it; when nothing answers any more, it says why.
#[test]
fn one_page() {
    let scratch = Scratch::new("serve");
    stand_in(&scratch);
    scratch.file("page", PAGE);
    let served = Served::start(&scratch);
    for _ in 0..50 {
        let answer = served.ask("GET /metrics", "localhost:9299");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with(PAGE), "{answer}");
        assert!(answer.contains("Content-Type: text/plain; version=0.0.4"), "{answer}");
    }
    let asked = scratch.text("asked");
    assert!(asked.lines().all(|line| line == "status --metrics --timeout-ms=3000 --cluster /run/x"), "{asked}");
    assert!(asked.lines().count() < 50, "{asked}");
    assert!(served.ask("GET /", "localhost").starts_with("HTTP/1.1 404 "));
    assert!(served.ask("POST /metrics", "localhost").starts_with("HTTP/1.1 405 "));
    assert!(served.ask("GET /metrics", "elsewhere.example").starts_with("HTTP/1.1 403 "));
    std::fs::remove_file(scratch.0.join("page")).unwrap();
    loop {
        let answer = served.ask("GET /metrics", "127.0.0.1");
        if answer.starts_with("HTTP/1.1 503 ") {
            assert!(answer.ends_with("no cluster\n"), "{answer}");
            break;
        }
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
}

/// Goal: what can't be asked at all, or a port that is taken, is said before anything is served.
#[test]
fn refused() {
    let scratch = Scratch::new("serve-refused");
    stand_in(&scratch);
    assert!(scratch.refused("serve --listen 127.0.0.1 --tabane ./tabane", 1).contains("no cluster"));
    assert!(scratch.refused("serve --listen 127.0.0.1 --tabane ./none", 1).contains("./none"));
    assert!(scratch.refused("serve --listen nonsense", 2).contains("an address is wanted"));
    scratch.file("page", PAGE);
    let served = Served::start(&scratch);
    let words = scratch.refused(&format!("serve --listen {} --tabane ./tabane", served.1), 1);
    assert!(words.contains("something else listens there"), "{words}");
}
