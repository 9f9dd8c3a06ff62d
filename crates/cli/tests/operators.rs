//! What somebody sees who looks after a cluster: top, logs, doctor; and what is left when a command is interrupted.
//! Real servers.

#![allow(clippy::unwrap_used)] // What fails here fails the test.

mod common;

use common::{Ground, TABANE, read_until, send_signal};
use reactor::process::SIGTERM;
use serde_json::Value;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

const SIGSTOP: i32 = 19;
const SIGCONT: i32 = 18;

/// Goal: `top --once` has a row for each server and one for the cluster; of two servers that stopped answering it tells
/// at once which is silent and which is dead, never hangs, and the exit status says that not all is well.
#[test]
fn top_tells_who_does_not_answer() {
    let ground = Ground::new("top-once");
    ground.run(&["up", "--servers", "3"]);
    let table = ground.run(&["top", "--once", "--interval-ms", "200"]);
    assert!(table.lines().next().unwrap().contains("3 of 3 servers up"), "{table}");
    assert!(table.lines().last().unwrap().trim_start().starts_with("cluster"), "{table}");
    assert_eq!(table.lines().count(), 6, "{table}");
    send_signal(ground.pid(1), SIGSTOP);
    ground.kill(2);
    let output = ground.try_run(&["top", "--once", "--json", "--interval-ms", "200"]);
    send_signal(ground.pid(1), SIGCONT);
    assert_eq!(output.status.code(), Some(1));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let states: Vec<&str> =
        json["servers"].as_array().unwrap().iter().map(|server| server["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["up", "silent", "down"]);
    assert!(json["servers"][1]["operations_per_second"].is_null() && json["all"]["space_used"].is_number());
    assert!(String::from_utf8_lossy(&output.stderr).contains("2 of 3 servers do not answer"));
}

/// Goal: one page has all servers' counters, each metric once and each number with its server; one that is down is on
/// it as that, and the exit status says so.
#[test]
fn metrics_of_all_servers() {
    let ground = Ground::new("metrics");
    ground.run(&["up", "--servers", "3"]);
    ground.kill(1);
    let output = ground.try_run(&["status", "--metrics"]);
    assert_eq!(output.status.code(), Some(1));
    let page = String::from_utf8(output.stdout).unwrap();
    let count = |text: &str| page.lines().filter(|line| line.starts_with(text)).count();
    assert_eq!(["tabane_chunks{server=\"0\"} ", "tabane_chunks{", "# TYPE tabane_chunks "].map(count), [1, 2, 1]);
    assert_eq!(count("tabane_class_arrivals_total{server=\"2\",class=\""), 2, "{page}");
    let up: Vec<&str> = page.lines().filter(|line| line.starts_with("tabane_server_up{")).collect();
    let wanted: Vec<String> = [1, 0, 1]
        .iter()
        .enumerate()
        .map(|(server, up)| format!("tabane_server_up{{server=\"{server}\"}} {up}"))
        .collect();
    assert_eq!(up, wanted);
}

/// Goal: `top` does not blame a server for the time in which it did not run itself.
/// Method: it is stopped for longer than it waits in all, after its first question; the server runs all the while.
#[test]
#[allow(clippy::disallowed_methods)] // How long it is stopped is the point.
fn top_that_was_stopped_blames_nobody() {
    let ground = Ground::new("top-stopped");
    ground.run(&["up", "--servers", "1"]);
    let mut top = ground.start(&["top", "--once", "--interval-ms", "1000"]);
    std::thread::sleep(std::time::Duration::from_millis(400));
    send_signal(top.id(), SIGSTOP);
    std::thread::sleep(std::time::Duration::from_millis(4000));
    send_signal(top.id(), SIGCONT);
    let mut complaint = String::new();
    top.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
    assert!(top.wait().unwrap().success(), "{complaint}");
}

/// `tabane top` on a terminal of 80 by 24, its process number in a file.
fn top_on_terminal(ground: &Ground, more: &str) -> Child {
    let line = format!("stty cols 80 rows 24; echo $$ > top.pid; exec {TABANE} top {more}");
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env_clear().env("PATH", "/usr/bin:/bin").env("TERM", "xterm-256color");
    command.env("TABANE_CLUSTER", ground.run_directory()).env("SHELL", "/bin/sh").current_dir(&ground.path);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap()
}

const LEAVE_SCREEN: &str = "\x1b[?1049l";

/// Goal: on a terminal the screen is drawn and redrawn, keys work, and the terminal is given back at the end.
/// Method: a pseudo terminal made by script(1).
#[test]
fn top_on_a_terminal() {
    let ground = Ground::new("top-terminal");
    ground.run(&["up", "--servers", "2"]);
    let mut child = top_on_terminal(&ground, "--interval-ms 200");
    let mut seen = String::new();
    read_until(&mut child, &mut seen, "busiest operations");
    child.stdin.as_mut().unwrap().write_all(b"p").unwrap();
    read_until(&mut child, &mut seen, "paused");
    child.stdin.as_mut().unwrap().write_all(b"q").unwrap();
    read_until(&mut child, &mut seen, LEAVE_SCREEN);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert!(seen.contains("\x1b[?1049h") && seen.contains("\x1b[?25h"), "{seen:?}");
}

/// Goal: a signal ends it as it ends other programs, with the terminal given back; NO_COLOR and --color never are
/// heeded.
#[test]
fn top_gives_the_terminal_back() {
    let ground = Ground::new("top-signal");
    ground.run(&["up", "--servers", "1"]);
    let mut child = top_on_terminal(&ground, "--color never");
    let mut seen = String::new();
    read_until(&mut child, &mut seen, "busiest operations");
    let pid = std::fs::read_to_string(ground.path.join("top.pid")).unwrap().trim().parse().unwrap();
    send_signal(pid, SIGTERM);
    read_until(&mut child, &mut seen, LEAVE_SCREEN);
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(128 + SIGTERM));
    assert!(!seen.contains("\x1b[31m") && !seen.contains("\x1b[38;5;"), "{seen:?}");
}

/// Goal: without a terminal it says what to do instead.
#[test]
fn top_without_a_terminal() {
    let ground = Ground::new("top-none");
    let complaint = ground.fail(2, &["top"]);
    assert!(complaint.contains("--once") && complaint.contains("--json"), "{complaint}");
}

/// Goal: the log has the life of a server and what happened to others, as text and as JSON, by level and by server; a
/// refused stranger is told of, and a flood of them is held back.
#[test]
fn logs() {
    let ground = Ground::new("logs");
    ground.run(&["up", "--servers", "2"]);
    let text = ground.run(&["logs"]);
    for server in ["0", "1"] {
        assert!(text.contains(&format!("info server={server} event=server-started address=127.0.0.1:")), "{text}");
    }
    assert_eq!(ground.run(&["logs", "--level", "warning"]), "");
    let cluster = std::fs::read_to_string(ground.run_directory().join("cluster")).unwrap();
    let status: Value = serde_json::from_str(&ground.run(&["status", "--json"])).unwrap();
    let address = status["servers"][0]["address"].as_str().unwrap().to_owned();
    for _ in 0..25 {
        let mut stranger = std::net::TcpStream::connect(&address).unwrap();
        // The longest that a first message may be is far less: it is refused at once, and the connection ends.
        let sent = stranger.write_all(&[0xff; 64]);
        let mut rest = Vec::new();
        let _ = sent.and_then(|()| stranger.read_to_end(&mut rest));
    }
    let text = ground.run(&["logs", "0", "--level", "warning"]);
    assert_eq!(text.matches("event=connection-refused").count(), 10, "{cluster}{text}");
    assert_eq!(ground.run(&["logs", "1", "--level", "warning"]), "");
    let json = ground.run(&["logs", "--json", "-n", "1"]);
    let line: Value = serde_json::from_str(json.trim()).unwrap();
    assert_eq!((line["event"].as_str(), line["level"].as_str()), (Some("connection-refused"), Some("warning")));
    let complaint = ground.fail(2, &["logs", "7"]);
    assert!(complaint.contains("they are 0 to 1"), "{complaint}");
}

/// Goal: a log that is followed shows what is written later, and a signal ends that.
#[test]
fn logs_followed() {
    let ground = Ground::new("logs-follow");
    ground.run(&["up", "--servers", "1"]);
    let mut command = ground.command(&["logs", "-f"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut seen = String::new();
    read_until(&mut child, &mut seen, "event=server-started");
    ground.run(&["down", "--keep"]);
    read_until(&mut child, &mut seen, "event=server-stopped");
    send_signal(child.id(), SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(128 + SIGTERM));
    ground.run(&["up"]);
}

/// Goal: beside a cluster doctor compares the clocks, and a server that does not answer is counted; without one it says
/// nothing of that.
#[test]
fn doctor_compares_clocks() {
    let ground = Ground::new("doctor-clocks");
    let look = |words: &[&str]| -> Option<Value> {
        let json: Value = serde_json::from_slice(&ground.try_run(words).stdout).unwrap();
        json["checks"].as_array().unwrap().iter().find(|check| check["subject"] == "clocks of servers").cloned()
    };
    assert_eq!(look(&["doctor", "--json"]), None);
    ground.run(&["up", "--servers", "2"]);
    let clocks = look(&["doctor", "--json"]).unwrap();
    let found = clocks["found"].as_str().unwrap();
    assert!(clocks["state"] == "ok" && found.contains(" ms of this machine's"), "{clocks}");
    ground.kill(1);
    let clocks = look(&["doctor", "--json", "--timeout-ms", "300"]).unwrap();
    assert!(clocks["found"].as_str().unwrap().contains("1 of 2 servers did not answer"), "{clocks}");
}

/// A library that sets the clock of whoever loads it a little more than two hours ahead.
const AHEAD: &str = "
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *time) {
    int failed = syscall(SYS_clock_gettime, clock, time);
    if (!failed && clock == CLOCK_REALTIME) time->tv_sec += 7230;
    return failed;
}
";

/// Goal: `doctor` names the server whose host's clock is far from this machine's, how far and on which side, and passes
/// over the others. Method: two servers; one is started anew, by hand, with a library between it and the clock. Nobody
/// waits for it: doctor does.
#[test]
fn doctor_finds_a_clock_that_is_off() {
    let ground = Ground::new("doctor-clock-off");
    let (source, library) = (ground.path.join("ahead.c"), ground.path.join("ahead.so"));
    std::fs::write(&source, AHEAD).unwrap();
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status().unwrap();
    assert!(compiled.success());
    let clocks = |ground: &Ground| {
        let text = String::from_utf8(ground.try_run(&["doctor"]).stdout).unwrap();
        text.lines().find(|line| line.contains("clocks of servers")).unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    ground.run(&["up", "--servers", "2"]);
    let line = clocks(&ground);
    assert!(line.contains("ok") && line.contains("of this machine's"), "{line}");
    let command_line = std::fs::read(format!("/proc/{}/cmdline", ground.pid(1))).unwrap();
    let words: Vec<&str> =
        command_line.split(|byte| *byte == 0).map(|word| std::str::from_utf8(word).unwrap()).collect();
    ground.kill(1);
    let mut server = Command::new(words[0]);
    server.args(&words[1..words.len() - 1]).env_clear().env("LD_PRELOAD", &library).stdout(Stdio::null());
    let mut server = server.spawn().unwrap();
    let line = clocks(&ground);
    assert!(line.contains("warning") && line.contains("server 1 2 h 00 min ahead"), "{line}");
    assert!(!line.contains("server 0"), "{line}");
    server.kill().unwrap();
    server.wait().unwrap();
    ground.run(&["down"]);
}

/// Goal: doctor tells of every subject, for people and for programs, and its exit status agrees with what it says.
#[test]
fn doctor() {
    let ground = Ground::new("doctor");
    let output = ground.try_run(&["doctor", "--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = json["checks"].as_array().unwrap();
    let healthy = checks.iter().all(|check| check["state"] != "missing");
    assert_eq!((json["healthy"].as_bool(), output.status.success()), (Some(healthy), healthy));
    assert!(checks.len() >= 15 && checks.iter().all(|check| (check["state"] == "ok") == check["advice"].is_null()));
    let text = String::from_utf8(ground.try_run(&["doctor"]).stdout).unwrap();
    assert!(checks.iter().all(|check| text.contains(check["subject"].as_str().unwrap())), "{text}");
    assert!(!text.contains('\x1b'), "colours are for terminals");
}
