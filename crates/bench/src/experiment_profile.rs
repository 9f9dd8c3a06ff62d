//! Where the time goes: for each phase of IOR and mdtest what processor time an operation takes, split among client,
//! server and kernel, and how many system calls, context switches and copies. From /proc of both sides; system calls by
//! `perf stat`; copies as both count them. Several runs count as one: the kernel tells its own time in ticks, of which
//! a phase has few.

use crate::engine::{Engine, Line, Outcome, Served, Setting};
use crate::experiment::Runner;
use crate::phases::{Phase, Volumes, go_through};
use crate::plot::{Look, Panel, Picture, Series};
use client::Contact;
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What /proc/PID/stat counts processor time in (USER_HZ on Linux, whatever the kernel's own).
const TICK_US: f64 = 10_000.0;

/// What a phase took, all its runs together.
#[derive(Default)]
struct Taken {
    name: &'static str,
    bench: &'static str,
    is_data: bool,
    /// MiB or operations.
    work: f64,
    /// Bytes of files that were moved.
    moved: u64,
    seconds: f64,
    client: Used,
    server: Used,
    /// System calls; `None` where nothing may count them.
    client_calls: Option<f64>,
    server_calls: Option<f64>,
    client_copied: u64,
    server_copied: u64,
}

impl Taken {
    /// Processor time for a unit of work: client, server, kernel for clients, kernel for servers, microseconds.
    fn split(&self) -> [f64; 4] {
        let ([client, client_kernel], [server, server_kernel]) = (self.client.split_us(), self.server.split_us());
        [client, server, client_kernel, server_kernel].map(|time| time / self.work.max(1.0))
    }
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
        ..Setting::default()
    };
    let mut real = runner.start_real(&setting)?;
    let sides = [real.worker_numbers(), real.server_numbers()?];
    let phases = RefCell::new(Vec::<Taken>::new());
    for turn in 0..runner.repeats() {
        let volumes = Volumes {
            base: format!("{}/{turn}", runner.directory),
            bytes: options.block_size,
            files: options.files,
            chunk_size: options.chunk_size,
            warm: options.warm && turn == 0,
        };
        let index = Cell::new(0);
        go_through(&mut real, &volumes, &mut |engine, phase| {
            let mut phases = phases.borrow_mut();
            if turn == 0 {
                let (name, bench, is_data) = (phase.phase, phase.bench, phase.is_data());
                let none = Taken { client_calls: Some(0.0), server_calls: Some(0.0), ..Taken::default() };
                phases.push(Taken { name, bench, is_data, ..none });
            }
            let taken = &mut phases[index.replace(index.get() + 1)];
            add(taken, engine, phase, &sides)?;
            if turn + 1 == runner.repeats() {
                runner.print(&line(taken, &setting, runner.repeats()))?;
            }
            Ok(())
        })?;
    }
    Box::new(real).end()?;
    Ok(picture(runner, &phases.into_inner()))
}

/// Has a phase done, and adds what it took.
fn add(taken: &mut Taken, engine: &mut dyn Engine, phase: &Phase, sides: &[Vec<u32>; 2]) -> Result<(), String> {
    let served = engine.served()?;
    let mut calls: Vec<Option<Calls>> = sides.iter().map(|side| Calls::start(side)).collect();
    let before: Vec<Used> = sides.iter().map(|side| Used::by(side)).collect();
    let outcome: Outcome = engine.all(&phase.step)?;
    let after: Vec<Used> = sides.iter().map(|side| Used::by(side)).collect();
    let calls: Vec<Option<f64>> = calls.iter_mut().map(|calls| calls.take().and_then(Calls::end)).collect();
    taken.work += phase.work(outcome.work());
    taken.moved += phase.bytes(outcome.work());
    taken.seconds += outcome.seconds;
    taken.client.add(&after[0].since(&before[0]));
    taken.server.add(&after[1].since(&before[1]));
    let sum = |all: Option<f64>, one: Option<f64>| Some(all? + one?);
    taken.client_calls = sum(taken.client_calls, calls[0]);
    taken.server_calls = sum(taken.server_calls, calls[1]);
    taken.client_copied += outcome.copied;
    taken.server_copied += Served::between(&served, &engine.served()?).iter().map(|served| served.copied).sum::<u64>();
    Ok(())
}

fn line(taken: &Taken, setting: &Setting, runs: u32) -> String {
    let work = taken.work.max(1.0);
    let each = |count: Option<f64>| count.map_or(Value::Null, |count| ((count / work * 1e4).round() / 1e4).into());
    let split = taken.split();
    let line = Line::new("profile").put("engine", "real").put("bench", taken.bench).put("phase", taken.name);
    let line = line.put("servers", setting.servers).put("procs", setting.procs).put("runs", runs);
    let line = line.put("unit", if taken.is_data { "MiB" } else { "operation" }).put("work", taken.work);
    let line = line.put_rounded("seconds", taken.seconds, 6);
    let line = line.put_rounded("client_us", split[0], 3).put_rounded("server_us", split[1], 3);
    let line = line.put_rounded("kernel_us", split[2] + split[3], 3);
    let line = line.put_rounded("client_kernel_us", split[2], 3).put_rounded("server_kernel_us", split[3], 3);
    let line = line.put("client_system_calls", each(taken.client_calls));
    let line = line.put("server_system_calls", each(taken.server_calls));
    let line = line.put_rounded("client_switches", taken.client.switches / work, 4);
    let line = line.put_rounded("server_switches", taken.server.switches / work, 4);
    let copies = |copied: u64| match taken.moved {
        0 => Value::Null,
        moved => ((copied as f64 / moved as f64 * 1e3).round() / 1e3).into(),
    };
    let line = line.put("bytes_copied_per_byte", copies(taken.client_copied + taken.server_copied));
    line.put("client_bytes_copied_per_byte", copies(taken.client_copied)).end()
}

/// What processes have used since they started.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    /// Time on a core, of all threads that there are: exact.
    run_us: f64,
    /// The same in user and kernel mode, in the kernel's ticks: the ratio of both is what counts.
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
                let read = |name: &str| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
                sum.switches += switches(&read("status"));
                sum.run_us += run_ns(&read("schedstat")) / 1e3;
            }
        }
        sum
    }

    fn since(&self, before: &Used) -> Used {
        Used {
            run_us: self.run_us - before.run_us,
            user_us: self.user_us - before.user_us,
            system_us: self.system_us - before.system_us,
            switches: self.switches - before.switches,
        }
    }

    fn add(&mut self, more: &Used) {
        self.run_us += more.run_us;
        self.user_us += more.user_us;
        self.system_us += more.system_us;
        self.switches += more.switches;
    }

    /// Time of programs and of the kernel: what was run, shared out as the ticks fell. Ticks alone where the kernel
    /// keeps no times of threads.
    fn split_us(&self) -> [f64; 2] {
        let ticks = self.user_us + self.system_us;
        if self.run_us <= 0.0 {
            return [self.user_us, self.system_us];
        }
        let system = if ticks > 0.0 { self.run_us * self.system_us / ticks } else { 0.0 };
        [(self.run_us - system).max(0.0), system]
    }
}

/// User and system time of `/proc/PID/stat`: fields 14 and 15, counted behind the name, which may hold anything.
fn ticks(stat: &str) -> [f64; 2] {
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = |index: usize| rest.split_whitespace().nth(index).and_then(|word| word.parse().ok()).unwrap_or(0.0);
    [field(11), field(12)]
}

/// Nanoseconds on a core in `/proc/PID/task/TID/schedstat`.
fn run_ns(schedstat: &str) -> f64 {
    schedstat.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
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
        counted(&fs::read_to_string(self.directory.join("out")).ok()?)
    }
}

/// System calls in what `perf stat -x,` wrote. Processes that did not run meanwhile made none, of which perf says that
/// they were not counted; `None` where it can't count.
fn counted(text: &str) -> Option<f64> {
    let count = text.lines().find(|line| line.contains("raw_syscalls"))?.split(',').next()?;
    if count == "<not counted>" { Some(0.0) } else { count.parse().ok() }
}

impl Drop for Calls {
    fn drop(&mut self) {
        let _ = self.perf.kill();
        let _ = self.perf.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn picture(runner: &Runner<'_>, phases: &[Taken]) -> Picture {
    let title = format!("Where the time goes: {} servers, {} processes", runner.options.servers, runner.options.procs);
    let mut picture = runner.picture(&title);
    let names = ["client", "server", "kernel, for clients", "kernel, for servers"];
    for (is_data, unit) in [(false, "operation"), (true, "MiB")] {
        let own: Vec<&Taken> = phases.iter().filter(|phase| phase.is_data == is_data).collect();
        let series = names.iter().enumerate().map(|(index, name)| {
            let points = own.iter().map(|phase| phase.split()[index]).enumerate().collect();
            Series { name: (*name).to_owned(), points, is_reference: false }
        });
        picture.panels.push(Panel {
            title: format!("processor time for each {unit}"),
            x_label: "phase".to_owned(),
            y_label: format!("microseconds per {unit}"),
            categories: own.iter().map(|phase| short_name(phase)).collect(),
            series: series.collect(),
            look: Look::Bars,
        });
    }
    picture
}

fn short_name(phase: &Taken) -> String {
    let (_, bench) = phase.bench.split_once('-').unwrap_or(("", phase.bench));
    format!("{bench} {}", phase.name)
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
        assert_eq!((run_ns("123456 78 9\n"), run_ns("")), (123_456.0, 0.0));
        assert_eq!(switches("Name:\tx\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t35\n"), 42.0);
    }
    /// Goal: no call at all is told from calls that may not be counted.
    #[test]
    fn calls_are_read() {
        assert_eq!(counted("# started\n\n123,,raw_syscalls:sys_enter,9,100.00,,\n"), Some(123.0));
        assert_eq!(counted("<not counted>,,raw_syscalls:sys_enter,0,100.00,,\n"), Some(0.0));
        assert_eq!(counted("<not supported>,,raw_syscalls:sys_enter,0,100.00,,\n"), None);
        assert_eq!(counted(""), None);
    }

    /// Goal: times that are shorter than a tick count, and ticks alone where there are no others.
    #[test]
    fn times_are_shared_out_as_ticks_fell() {
        let used = |run_us, user_us, system_us| Used { run_us, user_us, system_us, switches: 0.0 };
        assert_eq!(used(9_000.0, 20_000.0, 10_000.0).split_us(), [6_000.0, 3_000.0]);
        assert_eq!(used(900.0, 0.0, 0.0).split_us(), [900.0, 0.0]);
        assert_eq!(used(0.0, 20_000.0, 10_000.0).split_us(), [20_000.0, 10_000.0]);
    }
}
