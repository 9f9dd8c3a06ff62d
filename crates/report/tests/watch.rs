//! The live page over HTTP: who gets what, and that nobody holds up another. A place is replayed, and a script stands
//! in for the servers' program.

#![allow(clippy::unwrap_used)] // Tests, including their helpers.

mod common;

use common::{START, Scratch, documents_of, load};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};
use std::time::Duration;

const ID: &str = "4458aef012bb3c283639e2e9badb4102";

/// A page that is served, until it is dropped.
struct Watched {
    child: Child,
    address: SocketAddr,
    token: String,
    announced: Vec<String>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Watched {
    fn start(scratch: &Scratch, line: &str) -> Watched {
        let mut child = scratch.command(line).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().take(3);
        let announced: Vec<String> = lines.map(|line| line.unwrap()).collect();
        let url = announced.first().unwrap_or_else(|| panic!("{line} ended")).strip_prefix("http://").unwrap();
        let (address, token) = url.split_once("/?token=").unwrap();
        Watched { child, address: address.parse().unwrap(), token: token.to_owned(), announced }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// The whole answer to a request.
    fn ask(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8(answer).unwrap()
    }

    fn get(&self, path: &str, headers: &str) -> String {
        let host = if headers.contains("Host:") { String::new() } else { format!("Host: {}\r\n", self.address) };
        self.ask(&format!("GET {path} HTTP/1.1\r\n{host}{headers}\r\n"))
    }

    fn with_token(&self, path: &str) -> String {
        format!("{path}?token={}", self.token)
    }

    /// A reader of frames.
    fn frames(&self) -> BufReader<TcpStream> {
        let mut stream = self.connect();
        let path = self.with_token("/events");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address).unwrap();
        BufReader::new(stream)
    }
}

/// The next frame, behind whatever comes before it.
fn next_frame(reader: &mut impl BufRead) -> Option<Value> {
    let mut event = String::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap() == 0 {
            return None;
        }
        if let Some(name) = line.strip_prefix("event: ") {
            event = name.trim().to_owned();
        }
        match line.strip_prefix("data: ") {
            Some(_) if event == "history" => event.clear(),
            Some(data) => return Some(serde_json::from_str(data).unwrap()),
            None => (),
        }
    }
}

fn place(scratch: &Scratch) {
    let mut told = vec![load(); 3];
    told[1].busy_ns = 9_500_000_000;
    scratch.file("status.json", &documents_of(ID, &told, 60));
    let head = "id,name,user,start,end,nodes";
    scratch.file("jobs.csv", &format!("{head}\n7,<b>fluid,alice,{START},{},tabane-4458aef0\n", START + 600));
    scratch.done("import p.db --jobs jobs.csv --tabane status.json");
}

/// Goal: a replay shows what the place has: each server's rates, the job of the time, advice; then it ends, and stays.
#[test]
fn replay() {
    let scratch = Scratch::new("watch-replay");
    place(&scratch);
    let watched = Watched::start(&scratch, "watch --from p.db --every 0.05 --step 10");
    assert!(watched.address.ip().is_loopback());
    let port = watched.address.port();
    assert!(watched.announced[1].contains(&format!("ssh -L {port}:127.0.0.1:{port} ")), "{:?}", watched.announced);
    let mut frames = watched.frames();
    let mut last = Value::Null;
    while last["utc"] != "2026-11-25T10:10:00.000Z" {
        last = next_frame(&mut frames).unwrap();
    }
    let servers = last["servers"].as_array().unwrap();
    assert_eq!(
        servers.iter().map(|server| server["name"].as_str().unwrap()).collect::<Vec<_>>(),
        ["4458aef0-0", "4458aef0-1", "4458aef0-2"]
    );
    assert_eq!((servers[0]["written"].as_f64(), servers[1]["busy"].as_f64()), (Some((2 << 20) as f64), Some(0.95)));
    assert_eq!((servers[0]["used"].as_f64(), &servers[0]["depth"]), (Some(0.5), &Value::Null));
    assert_eq!((last["jobs"][0]["id"].as_str(), last["jobs"][0]["name"].as_str()), (Some("7"), Some("<b>fluid")));
    assert_eq!(last["advice"][0]["rule"], "busy-loop");
    // Who comes when all is over still sees the end, and what was before.
    let (mut late, mut line) = (watched.frames(), String::new());
    while !line.starts_with("data: ") {
        line.clear();
        late.read_line(&mut line).unwrap();
    }
    let history: Value = serde_json::from_str(&line["data: ".len()..]).unwrap();
    assert!(history["columns"].as_array().unwrap().len() >= 60);
    assert_eq!(next_frame(&mut late).unwrap()["utc"], last["utc"]);
}

/// Goal: page, style and script are there with the token, from here alone and with nothing from elsewhere allowed;
/// without the token, with a foreign host or origin, or by another method there are words and nothing else.
#[test]
fn who_gets_what() {
    let scratch = Scratch::new("watch-who");
    place(&scratch);
    let watched = Watched::start(&scratch, "watch --from p.db --every 60");
    let page = watched.get(&watched.with_token("/"), "");
    assert!(
        page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains(&format!("page.js?token={}", watched.token)),
        "{page}"
    );
    assert!(
        page.contains("Content-Security-Policy: default-src 'none'; script-src 'self'") && page.contains("no-referrer")
    );
    assert!(!page.contains("TOKEN"));
    for (path, kind) in [("/page.js", "text/javascript"), ("/page.css", "text/css"), ("/frame", "application/json")] {
        let answer = watched.get(&watched.with_token(path), "");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains(kind), "{answer}");
        assert!(watched.get(path, "").contains("the token is missing or wrong"), "{path}");
    }
    let port = watched.address.port();
    // ssh -L may have another port at the other end.
    for host in ["localhost:9", "127.0.0.1:1234", "[::1]:80", "localhost"] {
        let answer = watched.get(&watched.with_token("/"), &format!("Host: {host}\r\n"));
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{host}: {answer}");
    }
    let own = format!("Host: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\n");
    assert!(watched.get(&watched.with_token("/frame"), &own).starts_with("HTTP/1.1 200 OK"));
    let wrong = format!("/?token={}", "0".repeat(32));
    for (path, headers, status, words) in [
        (wrong.as_str(), "", "403", "token"),
        ("/?token=", "", "403", "token"),
        (&watched.with_token("/"), "Host: example.org\r\n", "403", "Host"),
        (&watched.with_token("/"), "Host: 127.0.0.1.example.org\r\n", "403", "Host"),
        (&watched.with_token("/events"), "Origin: http://example.org\r\n", "403", "Origin"),
        (&watched.with_token("/events"), "Origin: null\r\n", "403", "Origin"),
        (&watched.with_token("/etc/passwd"), "", "404", "no such page"),
        (&watched.with_token("/"), "nonsense\r\n", "400", "no request"),
    ] {
        let answer = watched.get(path, headers);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(words),
            "{path} {headers}: {answer}"
        );
        assert!(!answer.contains(&watched.token) && !answer.contains("4458aef0"), "{answer}");
    }
    let path = watched.with_token("/");
    let posted = watched.ask(&format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    assert!(posted.starts_with("HTTP/1.1 405 "), "{posted}");
    assert!(watched.ask(&format!("GET {path} HTTP/1.1\r\n\r\n")).starts_with("HTTP/1.1 403 "), "no host");
    let huge = watched.ask(&format!("GET {path} HTTP/1.1\r\nX: {}", "y".repeat(8 << 10)));
    assert!(huge.starts_with("HTTP/1.1 400 "), "{huge}");
}

/// Goal: readers that never read, and those that never ask, hold up nobody; beyond the bound there are words. Method:
/// more connections of both kinds than there may be, beside one that reads on.
#[test]
fn readers_that_never_read() {
    let scratch = Scratch::new("watch-slow");
    place(&scratch);
    let watched = Watched::start(&scratch, "watch --from p.db --every 0.05 --step 1");
    let mut reader = watched.frames();
    let first = next_frame(&mut reader).unwrap();
    let never_read: Vec<_> = (0..20).map(|_| watched.frames()).collect();
    let never_ask: Vec<_> = (0..60).map(|_| watched.connect()).collect();
    let mut last = first.clone();
    for _ in 0..20 {
        last = next_frame(&mut reader).unwrap();
    }
    assert!(last["time"].as_f64() > first["time"].as_f64());
    // One of those that found no room has been told so.
    let mut told = String::new();
    let mut full = never_ask.last().unwrap();
    full.read_to_string(&mut told).unwrap();
    assert!(told.starts_with("HTTP/1.1 503 ") && told.contains("too many connections"), "{told}");
    drop((never_read, never_ask));
}

/// Goal: a live page asks the cluster's program, tells of a server that is down, and goes on when there is no answer.
#[test]
fn live() {
    let scratch = Scratch::new("watch-live");
    let text = documents_of(ID, &[load(), load()], 3);
    for (number, document) in text.split_inclusive("\n}\n").enumerate() {
        scratch.file(&format!("answer.{number}"), document);
    }
    let script = "#!/bin/sh\ncase $1 in logs) echo 'a line of a log'; exit;; esac\necho \"$@\" >>asked\n\
                  n=$(($(wc -l <asked) - 1))\ncat answer.$n 2>/dev/null || { echo 'nobody answers' >&2; exit 1; }\n";
    scratch.file("tabane", script);
    std::fs::set_permissions(scratch.0.join("tabane"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let watched = Watched::start(&scratch, "watch --tabane ./tabane --cluster /run/x --every 0.2");
    let mut frames = watched.frames();
    let words = |frame: &Value| {
        frame["events"]
            .as_array()
            .unwrap()
            .iter()
            .map(|event| event["words"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let (mut rates, mut silent) = (false, false);
    let mut frame = Value::Null;
    while !silent {
        frame = next_frame(&mut frames).unwrap();
        rates |= frame["servers"][1]["written"].is_number();
        silent = frame["servers"][1]["state"] == "silent";
    }
    assert!(rates, "{frame}");
    let words = words(&frame);
    assert!(
        words.iter().any(|line| line == "a line of a log") && words.iter().any(|line| line == "nobody answers"),
        "{words:?}"
    );
    assert!(
        scratch
            .text("asked")
            .lines()
            .all(|line| line == "status --json --no-mounts --timeout-ms=5000 --cluster /run/x")
    );
}

/// Goal: what can't be served or watched is said before an address is.
#[test]
fn refusals() {
    let scratch = Scratch::new("watch-refused");
    place(&scratch);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let said = scratch.refused(&format!("watch --from p.db --listen {address}"), 1);
    assert!(said.contains(&format!("{address}: something else listens there; name another port")), "{said}");
    assert!(scratch.refused("watch --from p.db --listen moon", 2).contains("an address is wanted"));
    assert!(scratch.refused("watch --from none.db", 1).contains("no such place"));
    scratch.file("only.csv", &format!("id,start,end,nodes\n7,{START},{},n1\n", START + 60));
    scratch.done("import jobs.db --jobs only.csv");
    assert!(scratch.refused("watch --from jobs.db", 1).contains("no samples"));
    assert!(scratch.refused("watch --tabane ./none", 1).contains("./none: no such file"));
    scratch.refused("watch --from p.db --cluster x", 2);
}
