//! The model test as a program: `cargo run --release -p sim -- --seeds A..B`.

use reactor::workers::{Event, HeldSignals};
use sim::options::{self, Options};
use sim::run::{Report, run_seed};
use std::io::{Read, Write};
use std::ops::Range;
use std::process::{Child, Command, ExitCode, Stdio};

/// Seeds that a worker process takes at a time.
const BATCH_COUNT: u64 = 10;
const PUBLISHED_COUNT_MAX: usize = 6;

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
    // What a run leaves behind goes with its worker, so that a process may run seeds for days.
    let failed = match options.jobs {
        1 if options.worker || !options.forever => run_here(&options),
        _ => lead(&options),
    };
    match failed {
        Ok(counts) => {
            if !options.worker {
                println!("{} passed, {} failed", counts.done - counts.failed, counts.failed);
            }
            ExitCode::from(u8::from(counts.failed > 0))
        }
        Err(words) => {
            eprintln!("sim: {words}");
            ExitCode::FAILURE
        }
    }
}

/// Seeds that were run, and those of them that failed.
#[derive(Clone, Copy, Default)]
struct Counts {
    done: u64,
    failed: u64,
}

/// Seeds that are still to be run.
struct Seeds {
    /// In reverse order.
    ranges: Vec<Range<u64>>,
    /// Go on with the seed after the last one, until one fails.
    endless: bool,
}

impl Seeds {
    fn new(options: &Options) -> Seeds {
        Seeds { ranges: options.seeds.iter().rev().cloned().collect(), endless: options.forever }
    }

    /// So many of the next ones at most.
    fn take(&mut self, count_max: u64) -> Option<Range<u64>> {
        let range = self.ranges.pop()?;
        let end = range.end.min(range.start.saturating_add(count_max));
        if end < range.end {
            self.ranges.push(end..range.end);
        } else if self.endless && self.ranges.is_empty() {
            self.ranges.push(end..end.saturating_add(count_max));
        }
        Some(range.start..end)
    }

    fn put_back(&mut self, range: Range<u64>) {
        self.ranges.push(range);
    }

    /// No more are given out.
    fn stop(&mut self) {
        self.ranges.clear();
    }
}

/// Runs all seeds in this process.
fn run_here(options: &Options) -> Result<Counts, String> {
    let mut counts = Counts::default();
    let mut seeds = Seeds::new(options);
    while let Some(seed) = seeds.take(1).map(|range| range.start) {
        say(options, &format!("start {seed}"))?;
        let arguments = options.arguments(&(seed..seed + 1)).join(" ");
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            eprintln!("seed {seed} FAILED: {panic}\n  replay: sim {arguments} --trace\n{}", backtrace());
        }));
        let report = run_seed(seed, &options.overrides, options.trace);
        std::panic::set_hook(before);
        let passed = report.problems.is_empty();
        if !passed {
            counts.failed += 1;
            show(&report, options);
        }
        counts.done += 1;
        say(options, &format!("{} {seed}", if passed { "pass" } else { "fail" }))?;
        if !options.worker {
            progress(&report, counts, options);
        }
        if options.forever && counts.failed > 0 {
            seeds.stop();
        }
    }
    Ok(counts)
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

fn progress(report: &Report, counts: Counts, options: &Options) {
    let Counts { done, failed } = counts;
    if options.trace || done.is_multiple_of(50) || report.operations == 0 {
        println!(
            "{done} seeds, {failed} failed; seed {}: {} operations, {} unknown, {:.1} s, longest {:.1} s, trace \
             {:016x}",
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
    for problem in report.problems.iter().take(PUBLISHED_COUNT_MAX) {
        text += &format!("  - {problem}\n");
    }
    if report.problems.len() > PUBLISHED_COUNT_MAX {
        text += &format!("  and {} more\n", report.problems.len() - PUBLISHED_COUNT_MAX);
    }
    text += "  the last operations:\n";
    for line in &report.tail {
        text += &format!("      {line}\n");
    }
    let arguments = options.arguments(&(report.seed..report.seed + 1)).join(" ");
    eprintln!("{text}  replay: sim {arguments} --trace");
}

struct SeedWorker {
    child: Child,
    seeds: Range<u64>,
}

/// Shares the seeds among worker processes.
fn lead(options: &Options) -> Result<Counts, String> {
    let signals = HeldSignals::hold().map_err(|error| format!("signals: {error}"))?;
    let mut batches = Seeds::new(options);
    let mut workers: Vec<SeedWorker> = Vec::new();
    let (mut counts, mut told) = (Counts::default(), 0);
    loop {
        while workers.len() < options.jobs as usize
            && let Some(seeds) = batches.take(BATCH_COUNT)
        {
            workers.push(start_worker(options, &signals, seeds)?);
        }
        if workers.is_empty() {
            return Ok(counts);
        }
        if let Event::Interrupted(signal) = signals.next().map_err(|error| format!("signals: {error}"))? {
            return Err(format!(
                "interrupted by signal {signal} after {} seeds, {} failed",
                counts.done, counts.failed
            ));
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
            counts.done += outcome.done;
            counts.failed += outcome.failed;
            if seeds.start + outcome.done < seeds.end {
                batches.put_back(seeds.start + outcome.done..seeds.end);
            }
            if options.forever && counts.failed > 0 {
                batches.stop();
            }
            if counts.done >= told + 100 {
                told = counts.done;
                println!("{} seeds, {} failed", counts.done, counts.failed);
            }
        }
    }
}

fn start_worker(options: &Options, signals: &HeldSignals, seeds: Range<u64>) -> Result<SeedWorker, String> {
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let mut command = Command::new(program);
    command.args(options.arguments(&seeds)).arg("--worker").stdout(Stdio::piped());
    signals.release_in_worker(&mut command);
    let child = command.spawn().map_err(|error| format!("cannot start a worker: {error}"))?;
    Ok(SeedWorker { child, seeds })
}

/// Reads what a worker said. A seed that it started and never ended took it down.
fn outcome(mut worker: SeedWorker) -> Result<Counts, String> {
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
    Ok(Counts { done: started, failed: failed + crashed })
}
