//! All runs of a comparison: each setting of each scheduler in turns, lines for programs, a table for people, and a
//! picture.

use crate::bed::Bed;
use crate::client::{Stream, send};
use crate::job::Mode;
use crate::options::Comparison;
use crate::plot::{Look, Panel, Picture, Series};
use crate::schedulers::{self, Scheduler};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdout, Command, Stdio};

/// What a server may need to come to its end after the last packet, or to take the next one: a runtime that has lost
/// a wake-up never does.
pub const SILENCE_SECONDS_MAX: u64 = 60;
/// Bytes that a run which is verified writes at most.
const VERIFIED_SIZE_MAX: u64 = 64 << 20;

/// One point.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    scheduler: &'static str,
    mode: &'static str,
    size: u64,
}

/// Values of a point's runs, by column.
type Values = BTreeMap<(Point, &'static str), Vec<f64>>;

const COLUMNS: [&str; 3] = ["mib_per_s", "packets_per_s", "packets_per_cpu_s"];

pub fn run(options: &Comparison) -> Result<(), String> {
    if options.seconds > SILENCE_SECONDS_MAX as f64 / 2.0 {
        return Err(format!("--seconds: at most {}", SILENCE_SECONDS_MAX / 2));
    }
    if options.list {
        schedulers::all().for_each(|scheduler| println!("{:15} {}", scheduler.name, scheduler.about));
        return Ok(());
    }
    let chosen: Vec<&'static Scheduler> = match &options.scheduler[..] {
        [all] if all == "all" => schedulers::all().collect(),
        names => names.iter().map(|name| schedulers::find(name)).collect::<Result<_, _>>()?,
    };
    if let Some(file) = &options.plot {
        // Not after minutes of measuring.
        std::fs::write(file, "").map_err(|error| format!("{}: {error}", file.display()))?;
    }
    let bed = Bed::prepare(options)?;
    eprintln!("{}: {}", bed.path.display(), bed.abilities);
    if options.verify {
        for (number, scheduler) in chosen.iter().enumerate() {
            for size in &options.packet_sizes {
                verify(options, &bed, scheduler, *size, number as u64 + 2)?;
            }
        }
    }
    let mut values = Values::new();
    for turn in 0..options.repeat {
        for size in &options.packet_sizes {
            for mode in &options.modes {
                for scheduler in &chosen {
                    measure(options, &bed, scheduler, (*mode, *size), turn, &mut values)?;
                }
            }
        }
    }
    tell(options, &chosen, &values);
    match &options.plot {
        Some(file) => picture(options, &bed, &chosen, &values).draw(file),
        None => Ok(()),
    }
}

/// A server that runs; it does not outlive us.
struct Server {
    child: Child,
    output: BufReader<ChildStdout>,
    name: &'static str,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(
        options: &Comparison,
        bed: &Bed,
        scheduler: &Scheduler,
        (mode, size): (Mode, u64),
        extent: u64,
    ) -> Result<Server, String> {
        let said = |error: std::io::Error| format!("a server of our own: {error}");
        let program = std::env::current_exe().map_err(said)?;
        let mut command = Command::new(program);
        command.args(["serve", "--scheduler", scheduler.name, "--mode", mode.word()]);
        for (name, value) in [
            ("--size", size.to_string()),
            ("--depth", options.depth.to_string()),
            ("--extent", extent.to_string()),
            ("--seconds", options.seconds.to_string()),
            ("--memory-max", options.memory_max.to_string()),
        ] {
            command.args([name, &value]);
        }
        command.arg("--path").arg(&bed.path).stdin(Stdio::null()).stdout(Stdio::piped());
        reactor::process::signal_at_our_death(&mut command, libc::SIGKILL);
        let mut child = command.spawn().map_err(said)?;
        let output = BufReader::new(child.stdout.take().ok_or("a server has an output")?);
        Ok(Server { child, output, name: scheduler.name })
    }

    fn line(&mut self) -> Result<String, String> {
        if self.output.buffer().is_empty() && !is_readable_soon(self.output.get_ref()) {
            return Err(format!("the server of {} hangs: nothing came for {SILENCE_SECONDS_MAX} s", self.name));
        }
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(count) if count > 0 => Ok(line.trim_end().to_owned()),
            _ => Err(format!("the server of {} ended early", self.name)),
        }
    }

    /// Where it is reached.
    fn port(&mut self) -> Result<u16, String> {
        let line = self.line()?;
        line.strip_prefix("port ").and_then(|port| port.parse().ok()).ok_or(format!("no port: {line}"))
    }

    /// What it has measured.
    fn result(&mut self) -> Result<Value, String> {
        let line = self.line()?;
        serde_json::from_str(&line).map_err(|error| format!("{}: {error}", self.name))
    }
}

/// Whether something comes before a server is given up.
fn is_readable_soon(output: &ChildStdout) -> bool {
    let mut poll = libc::pollfd { fd: output.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: looks at one local.
    unsafe { libc::poll(&raw mut poll, 1, SILENCE_SECONDS_MAX as i32 * 1_000) != 0 }
}

/// One run.
fn measure(
    options: &Comparison,
    bed: &Bed,
    scheduler: &'static Scheduler,
    (mode, size): (Mode, u64),
    turn: u32,
    values: &mut Values,
) -> Result<(), String> {
    let extent = bed.extent(size, options)?;
    let mut server = Server::start(options, bed, scheduler, (mode, size), extent)?;
    if mode != Mode::Disk {
        let (port, seconds) = (server.port()?, options.seconds);
        let plan = Stream { port, size: size as usize, extent, count: u64::MAX, seconds, seed: None };
        send(&plan).map_err(|error| format!("{}: the client: {error}", scheduler.name))?;
    }
    let result = server.result()?;
    let point = Point { scheduler: scheduler.name, mode: mode.word(), size };
    for column in COLUMNS {
        let value = result[column].as_f64().ok_or_else(|| format!("{}: no {column}", scheduler.name))?;
        values.entry((point, column)).or_default().push(value);
    }
    let mut line = json!({
        "experiment": "overlap", "scheduler": scheduler.name, "mode": mode.word(), "size": size,
        "depth": options.depth, "run": turn,
    });
    if let (Value::Object(line), Value::Object(result)) = (&mut line, result) {
        line.extend(result);
    }
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}").and_then(|()| output.flush()).map_err(|error| format!("standard output: {error}"))
}

/// A run whose contents are read back.
fn verify(options: &Comparison, bed: &Bed, scheduler: &Scheduler, size: u64, seed: u64) -> Result<(), String> {
    let extent = bed.extent(size, options)?;
    let count = (extent.min(VERIFIED_SIZE_MAX) / size).max(1);
    let mut server = Server::start(options, bed, scheduler, (Mode::Both, size), extent)?;
    let plan = Stream { port: server.port()?, size: size as usize, extent, count, seconds: 3600.0, seed: Some(seed) };
    let sent = send(&plan).map_err(|error| format!("{}: the client: {error}", scheduler.name))?;
    let result = server.result()?;
    if result["packets"].as_u64() != Some(count) || sent != count {
        return Err(format!(
            "{}: of {count} packets {sent} were sent and {} written",
            scheduler.name, result["packets"]
        ));
    }
    drop(server);
    bed.verify(seed, count * size).map_err(|words| format!("{}: {words}", scheduler.name))
}

fn median(values: &Values, point: Point, column: &'static str) -> Option<f64> {
    let mut values = values.get(&(point, column))?.clone();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    Some(if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 })
}

/// What there could be of both at once: the least of the network alone, the device alone, and what the processor
/// allows, which does both for each packet. Packets a second.
fn bound(values: &Values, scheduler: &'static str, size: u64) -> Option<f64> {
    let of = |mode, column| median(values, Point { scheduler, mode, size }, column);
    let (network, disk) = (of("network", "packets_per_s")?, of("disk", "packets_per_s")?);
    let cpu = 1.0 / (1.0 / of("network", "packets_per_cpu_s")? + 1.0 / of("disk", "packets_per_cpu_s")?);
    Some(network.min(disk).min(cpu))
}

/// For people: medians, and how much of what there could be there is.
fn tell(options: &Comparison, chosen: &[&'static Scheduler], values: &Values) {
    eprintln!(
        "{:15} {:>8} {:>8} {:>10} {:>15} {:>9}",
        "scheduler", "size", "mode", "MiB/s", "packets/cpu s", "of bound"
    );
    for size in &options.packet_sizes {
        for mode in &options.modes {
            for scheduler in chosen {
                let point = Point { scheduler: scheduler.name, mode: mode.word(), size: *size };
                let of = |column| median(values, point, column).unwrap_or(0.0);
                let share = match bound(values, scheduler.name, *size) {
                    Some(bound) if *mode == Mode::Both => format!("{:.2}", of("packets_per_s") / bound),
                    _ => String::new(),
                };
                eprintln!(
                    "{:15} {:>8} {:>8} {:>10.1} {:>15.0} {share:>9}",
                    scheduler.name,
                    size_name(*size),
                    mode.word(),
                    of("mib_per_s"),
                    of("packets_per_cpu_s"),
                );
            }
        }
    }
}

fn size_name(size: u64) -> String {
    match size {
        _ if size.is_multiple_of(1 << 20) => format!("{} MiB", size >> 20),
        _ if size.is_multiple_of(1 << 10) => format!("{} KiB", size >> 10),
        _ => format!("{size} B"),
    }
}

fn picture(options: &Comparison, bed: &Bed, chosen: &[&'static Scheduler], values: &Values) -> Picture {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let runs = if options.repeat == 1 { "one run".to_owned() } else { format!("medians of {} runs", options.repeat) };
    let about = vec![
        format!("Measured: a client and a server over TCP on {cores} cores (Linux {}).", kernel.trim()),
        format!("The device: {}; {} writes under way at most; {runs}.", bed.about(), options.depth),
    ];
    let mut panels = Vec::new();
    for (column, title, y_label) in [
        ("mib_per_s", "bandwidth", "MiB per second (log)"),
        ("packets_per_cpu_s", "packets by processor time", "packets per second on a core (log)"),
    ] {
        panels.extend(options.modes.iter().map(|mode| Panel {
            title: format!("{title}, {}", mode_name(*mode)),
            x_label: "size of a packet".to_owned(),
            y_label: y_label.to_owned(),
            categories: options.packet_sizes.iter().map(|size| size_name(*size)).collect(),
            series: series(options, chosen, values, column, *mode),
            look: Look::LogLines,
        }));
    }
    Picture { title: "Network and device in one loop (measured)".to_owned(), about, panels }
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Network => "network only",
        Mode::Disk => "disk only",
        Mode::Both => "network and disk",
    }
}

fn series(
    options: &Comparison,
    chosen: &[&'static Scheduler],
    values: &Values,
    column: &'static str,
    mode: Mode,
) -> Vec<Series> {
    let of = |scheduler: &&'static Scheduler| {
        let points = options.packet_sizes.iter().enumerate().filter_map(|(index, size)| {
            let point = Point { scheduler: scheduler.name, mode: mode.word(), size: *size };
            median(values, point, column).map(|value| (index, value))
        });
        let name = scheduler.name.to_owned();
        Series { name, points: points.collect(), is_reference: scheduler.name == "loop" }
    };
    chosen.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the bound of both at once is the least of three, the processor's among them.
    #[test]
    fn bounds() {
        let mut values = Values::new();
        let mut put = |mode, column, value| {
            values.insert((Point { scheduler: "loop", mode, size: 4096 }, column), vec![value]);
        };
        put("network", "packets_per_s", 100.0);
        put("disk", "packets_per_s", 80.0);
        put("network", "packets_per_cpu_s", 200.0);
        put("disk", "packets_per_cpu_s", 50.0);
        assert_eq!(bound(&values, "loop", 4096), Some(40.0));
        values.insert((Point { scheduler: "loop", mode: "disk", size: 4096 }, "packets_per_cpu_s"), vec![500.0]);
        assert_eq!(bound(&values, "loop", 4096), Some(80.0));
        assert_eq!(bound(&values, "ours", 4096), None);
    }
}
