//! The model test as a program: `cargo run --release -p sim -- --seeds A..B`.

use reactor::workers::{Event, HeldSignals};
use sim::options::{self, Options};
use sim::run::{Report, run_seed};
use std::io::{Read, Write};
use std::ops::Range;
use std::process::{Child, Command, ExitCode, Stdio};

/// Seeds that a worker process takes at a time.
const BATCH_COUNT: u64 = 10;
const SHOWN_COUNT_MAX: usize = 6;

fn main() -> ExitCode {
    let options = match options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(words) => {
            eprintln!("sim: {words}");
            return ExitCode::from(2);
        }
    };
    if options.help {
        print!("{}", options::help());
        return ExitCode::SUCCESS;
    }
    let failed = match options.jobs {
        1 => run_here(&options),
        _ => lead(&options),
    };
    let count = options.seeds.end - options.seeds.start;
    match failed {
        Ok(failed) if options.worker => ExitCode::from(u8::from(failed > 0)),
        Ok(failed) => {
            println!("{} passed, {failed} failed", count - failed);
            ExitCode::from(u8::from(failed > 0))
        }
        Err(words) => {
            eprintln!("sim: {words}");
            ExitCode::FAILURE
        }
    }
}

/// Runs all seeds in this process. Returns how many failed.
fn run_here(options: &Options) -> Result<u64, String> {
    let mut failed = 0;
    for seed in options.seeds.clone() {
        say(options, &format!("start {seed}"))?;
        let arguments = options.arguments(&(seed..seed + 1)).join(" ");
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            eprintln!("seed {seed} FAILED: {panic}\n  replay: sim {arguments} --trace\n{}", backtrace());
        }));
        let report = run_seed(seed, &options.wishes, options.trace);
        std::panic::set_hook(before);
        let passed = report.problems.is_empty();
        if !passed {
            failed += 1;
            show(&report, options);
        }
        say(options, &format!("{} {seed}", if passed { "pass" } else { "fail" }))?;
        if !options.worker {
            progress(&report, seed + 1 - options.seeds.start, failed, options);
        }
    }
    Ok(failed)
}

fn backtrace() -> std::backtrace::Backtrace {
    std::backtrace::Backtrace::force_capture()
}

/// A line for the process that leads.
fn say(options: &Options, line: &str) -> Result<(), String> {
    if !options.worker {
        return Ok(());
    }
    let mut out = std::io::stdout();
    writeln!(out, "{line}").and_then(|_| out.flush()).map_err(|error| format!("standard output: {error}"))
}

fn progress(report: &Report, done: u64, failed: u64, options: &Options) {
    if options.trace || done.is_multiple_of(50) || report.operations == 0 {
        println!(
            "{done} seeds, {failed} failed; seed {}: {} operations, {} unknown, {:.1} s, longest {:.1} s, trace {:016x}",
            report.seed,
            report.operations,
            report.unknown,
            report.duration as f64 / 1e9,
            report.longest as f64 / 1e9,
            report.trace_hash
        );
    }
}

fn show(report: &Report, options: &Options) {
    let mut text = format!("seed {} FAILED after {} operations\n", report.seed, report.operations);
    for problem in report.problems.iter().take(SHOWN_COUNT_MAX) {
        text += &format!("  - {problem}\n");
    }
    if report.problems.len() > SHOWN_COUNT_MAX {
        text += &format!("  and {} more\n", report.problems.len() - SHOWN_COUNT_MAX);
    }
    text += "  the last operations:\n";
    for line in &report.tail {
        text += &format!("      {line}\n");
    }
    let arguments = options.arguments(&(report.seed..report.seed + 1)).join(" ");
    eprintln!("{text}  replay: sim {arguments} --trace");
}

struct Worker {
    child: Child,
    seeds: Range<u64>,
}

/// Shares the seeds among worker processes. Returns how many failed.
fn lead(options: &Options) -> Result<u64, String> {
    let signals = HeldSignals::hold().map_err(|error| format!("signals: {error}"))?;
    let mut batches: Vec<Range<u64>> = Vec::new();
    let mut start = options.seeds.start;
    while start < options.seeds.end {
        let end = (start + BATCH_COUNT).min(options.seeds.end);
        batches.push(start..end);
        start = end;
    }
    batches.reverse();
    let mut workers: Vec<Worker> = Vec::new();
    let (mut done, mut failed) = (0, 0);
    loop {
        while workers.len() < options.jobs as usize
            && let Some(seeds) = batches.pop()
        {
            workers.push(start_worker(options, &signals, seeds)?);
        }
        if workers.is_empty() {
            return Ok(failed);
        }
        if let Event::Interrupted(signal) = signals.next().map_err(|error| format!("signals: {error}"))? {
            return Err(format!("interrupted by signal {signal}"));
        }
        let mut position = 0;
        while position < workers.len() {
            let ended = workers[position].child.try_wait().map_err(|error| format!("worker: {error}"))?;
            if ended.is_none() {
                position += 1;
                continue;
            }
            let worker = workers.swap_remove(position);
            let seeds = worker.seeds.clone();
            let outcome = outcome(worker)?;
            done += outcome.done;
            failed += outcome.failed;
            if seeds.start + outcome.done < seeds.end {
                batches.push(seeds.start + outcome.done..seeds.end);
            }
            if done % 100 == 0 {
                println!("{done} seeds, {failed} failed");
            }
        }
    }
}

fn start_worker(options: &Options, signals: &HeldSignals, seeds: Range<u64>) -> Result<Worker, String> {
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let mut command = Command::new(program);
    command.args(options.arguments(&seeds)).arg("--worker").stdout(Stdio::piped());
    signals.release_in_worker(&mut command);
    let child = command.spawn().map_err(|error| format!("cannot start a worker: {error}"))?;
    Ok(Worker { child, seeds })
}

struct BatchOutcome {
    done: u64,
    failed: u64,
}

/// Reads what a worker said. A seed that it started and never ended took it down.
fn outcome(mut worker: Worker) -> Result<BatchOutcome, String> {
    let mut text = String::new();
    if let Some(out) = &mut worker.child.stdout {
        out.read_to_string(&mut text).map_err(|error| format!("worker: {error}"))?;
    }
    let count = |word: &str| text.lines().filter(|line| line.starts_with(word)).count() as u64;
    let (started, passed, failed) = (count("start"), count("pass"), count("fail"));
    if started == 0 {
        return Err("a worker ended before its first seed".to_owned());
    }
    let crashed = started - passed - failed;
    Ok(BatchOutcome { done: started, failed: failed + crashed })
}
