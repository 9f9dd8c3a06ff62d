//! Where the time goes: for each phase of IOR and mdtest what processor time an operation takes, split among client, server
//! and kernel, and how many system calls, context switches and copies. From /proc of both sides; system calls by `perf stat`; copies as
//! both count them.

use crate::engine::{Engine, Line, Outcome, Served, Setting};
use crate::experiment::Runner;
use crate::phases::{Phase, Volumes, go_through};
use crate::plot::{Look, Panel, Picture, Series};
use client::Contact;
use serde_json::Value;
use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What /proc counts processor time in (USER_HZ on Linux, whatever the kernel's own).
const TICK_US: f64 = 10_000.0;

/// What a unit of work (an operation, or a MiB) took.
struct Row {
    name: String,
    is_data: bool,
    /// Client, server, kernel for clients, kernel for servers: microseconds.
    split: [f64; 4],
}

pub fn run(runner: &Runner<'_>) -> Result<Picture, String> {
    let options = runner.options;
    let setting = Setting {
        servers: options.servers,
        procs: options.procs,
        placement: options.placement.clone(),
        chunk_size: options.chunk_size,
        store_size: 0,
        contact: Contact::default(),
    };
    let mut real = runner.start_real(&setting)?;
    let sides = [real.worker_numbers(), real.server_numbers()?];
    let volumes = Volumes {
        base: runner.directory.clone(),
        bytes: options.block_size,
        files: options.files,
        chunk_size: options.chunk_size,
        warm: options.warm,
    };
    let rows = RefCell::new(Vec::new());
    go_through(&mut real, &volumes, &mut |engine, phase| {
        let row = measure(runner, engine, phase, &setting, &sides)?;
        rows.borrow_mut().push(row);
        Ok(())
    })?;
    Box::new(real).end()?;
    Ok(picture(runner, &rows.into_inner()))
}

fn measure(
    runner: &Runner<'_>,
    engine: &mut dyn Engine,
    phase: &Phase,
    setting: &Setting,
    sides: &[Vec<u32>; 2],
) -> Result<Row, String> {
    let served = engine.served()?;
    let mut calls: Vec<Option<Calls>> = sides.iter().map(|side| Calls::start(side)).collect();
    let before: Vec<Used> = sides.iter().map(|side| Used::by(side)).collect();
    let outcome: Outcome = engine.all(&phase.step)?;
    let after: Vec<Used> = sides.iter().map(|side| Used::by(side)).collect();
    let calls: Vec<Option<f64>> = calls.iter_mut().map(|calls| calls.take().and_then(Calls::end)).collect();
    let by_servers: u64 = Served::between(&served, &engine.served()?).iter().map(|served| served.copied).sum();
    let work = phase.work(outcome.work()).max(1.0);
    let used = |side: usize| after[side].since(&before[side]);
    let (client, server) = (used(0), used(1));
    let split = [client.user_us, server.user_us, client.system_us, server.system_us].map(|time| time / work);
    let each = |count: Option<f64>| count.map_or(Value::Null, |count| ((count / work * 1e4).round() / 1e4).into());
    let line = Line::new("profile").put("engine", "real").put("bench", phase.bench).put("phase", phase.phase);
    let line = line.put("servers", setting.servers).put("procs", setting.procs);
    let line = line.put("unit", if phase.is_data() { "MiB" } else { "operation" }).put("work", work);
    let line = line.put_rounded("seconds", outcome.seconds, 6);
    let line = line.put_rounded("client_us", split[0], 3).put_rounded("server_us", split[1], 3);
    let line = line.put_rounded("kernel_us", split[2] + split[3], 3);
    let line = line.put_rounded("client_kernel_us", split[2], 3).put_rounded("server_kernel_us", split[3], 3);
    let line = line.put("client_system_calls", each(calls[0])).put("server_system_calls", each(calls[1]));
    let line = line.put_rounded("client_switches", client.switches / work, 4);
    let line = line.put_rounded("server_switches", server.switches / work, 4);
    let moved = phase.bytes(outcome.work());
    let copies = |copied: u64| match moved {
        0 => Value::Null,
        _ => ((copied as f64 / moved as f64 * 1e3).round() / 1e3).into(),
    };
    let line = line.put("bytes_copied_per_byte", copies(outcome.copied + by_servers));
    runner.print(&line.put("client_bytes_copied_per_byte", copies(outcome.copied)).end())?;
    Ok(Row { name: format!("{} {}", phase.bench, phase.phase), is_data: phase.is_data(), split })
}

/// What processes have used since they started.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    user_us: f64,
    system_us: f64,
    switches: f64,
}

impl Used {
    fn by(processes: &[u32]) -> Used {
        let mut sum = Used::default();
        for process in processes {
            let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            let [user, system] = ticks(&stat);
            sum.user_us += user * TICK_US;
            sum.system_us += system * TICK_US;
            let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
            for thread in threads {
                sum.switches += switches(&fs::read_to_string(thread.path().join("status")).unwrap_or_default());
            }
        }
        sum
    }

    fn since(&self, before: &Used) -> Used {
        Used {
            user_us: self.user_us - before.user_us,
            system_us: self.system_us - before.system_us,
            switches: self.switches - before.switches,
        }
    }
}

/// User and system time of `/proc/PID/stat`: fields 14 and 15, counted behind the name, which may hold anything.
fn ticks(stat: &str) -> [f64; 2] {
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = |index: usize| rest.split_whitespace().nth(index).and_then(|word| word.parse().ok()).unwrap_or(0.0);
    [field(11), field(12)]
}

/// Context switches of both kinds in `/proc/PID/status`.
fn switches(status: &str) -> f64 {
    let lines = status.lines().filter_map(|line| line.split_once("ctxt_switches:"));
    lines.filter_map(|(_, count)| count.trim().parse::<f64>().ok()).sum()
}

/// `perf stat` that counts the system calls of some processes.
struct Calls {
    perf: Child,
    directory: PathBuf,
}

impl Calls {
    /// `None` where there is no perf that may count them.
    fn start(processes: &[u32]) -> Option<Calls> {
        let name = format!("tabane-bench-perf-{}-{}", std::process::id(), processes.first()?);
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).ok()?;
        let started = Calls::try_start(processes, &directory);
        if started.is_none() {
            // What is left is a directory of our own.
            let _ = fs::remove_dir_all(&directory);
        }
        started
    }

    fn try_start(processes: &[u32], directory: &Path) -> Option<Calls> {
        let numbers: Vec<String> = processes.iter().map(u32::to_string).collect();
        let mut perf = Command::new("perf");
        perf.args(["stat", "-x,", "-e", "raw_syscalls:sys_enter", "-p", &numbers.join(","), "-o"]);
        perf.arg(directory.join("out")).args(["--", "sh", "-c", "echo ready; read line"]);
        let mut perf = perf.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
        let mut line = String::new();
        // The command that perf starts runs once its counters do.
        let ready = BufReader::new(perf.stdout.take()?).read_line(&mut line);
        if ready.is_ok_and(|size| size > 0) {
            return Some(Calls { perf, directory: directory.to_owned() });
        }
        let _ = perf.wait();
        None
    }

    fn end(mut self) -> Option<f64> {
        let mut input = self.perf.stdin.take()?;
        // It ends at the end of its input in any case.
        let _ = input.write_all(b"\n");
        drop(input);
        self.perf.wait().ok()?;
        let text = fs::read_to_string(self.directory.join("out")).ok()?;
        text.lines().find(|line| line.contains("raw_syscalls"))?.split(',').next()?.parse().ok()
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        let _ = self.perf.kill();
        let _ = self.perf.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn picture(runner: &Runner<'_>, rows: &[Row]) -> Picture {
    let title = format!("Where the time goes: {} servers, {} processes", runner.options.servers, runner.options.procs);
    let mut picture = runner.picture(&title);
    let names = ["client", "server", "kernel, for clients", "kernel, for servers"];
    for (is_data, unit) in [(false, "operation"), (true, "MiB")] {
        let own: Vec<&Row> = rows.iter().filter(|row| row.is_data == is_data).collect();
        let series = names.iter().enumerate().map(|(index, name)| {
            let points = own.iter().map(|row| row.split[index]).enumerate().collect();
            Series { name: (*name).to_owned(), points, is_reference: false }
        });
        picture.panels.push(Panel {
            title: format!("processor time for each {unit}"),
            x_label: "phase".to_owned(),
            y_label: format!("microseconds per {unit}"),
            categories: own.iter().map(|row| row.name.replace("mdtest-", "").replace("ior-", "")).collect(),
            series: series.collect(),
            look: Look::Bars,
        });
    }
    picture
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: times and switches are read from what the kernel writes, whatever a program is called.
    #[test]
    fn proc_is_read() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194304 10 0 0 0 123 45 0 0 20 0 1 0 99 0";
        assert_eq!(ticks(stat), [123.0, 45.0]);
        assert_eq!(ticks(""), [0.0, 0.0]);
        assert_eq!(switches("Name:\tx\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t35\n"), 42.0);
    }
}
