//! F2.1 and F2.2: one thread reads and writes a file or a block device, with calls that wait and through io_uring, by
//! size of an operation and by how many are under way. Bandwidth (F2.1), and the same for each second on a core (F2.2).
//!
//! fio beside it, where asked for: the same job right after each of ours, and the ratio of the medians.

use crate::device_load::{Bed, DeviceLoad, DeviceResult, INTERFACES, Interface, PATTERNS, Pattern, word_of};
use crate::engine::Line;
use crate::experiment::{Runner, Table, machine, size_name};
use crate::fio;
use crate::options::DeviceBench;
use crate::plot::{Look, Panel, Picture, Series};
use crate::report::median;
use reactor::device::{Abilities, DeviceOptions, Direct};
use reactor::{DriverKind, Reactor};
use std::path::{Path, PathBuf};

const MIB: f64 = 1_048_576.0;
/// Time of a run, unless said otherwise.
const SECONDS: f64 = 1.0;
/// Bytes that a run that checks goes through at most.
const VERIFIED_SIZE_MAX: u64 = 64 << 20;
/// Depths in the picture at most.
const CURVES_MAX: usize = 5;

/// A file that was made for this, and goes with it.
struct Device {
    path: PathBuf,
    is_own: bool,
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.is_own {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

pub fn run(runner: &Runner<'_>) -> Result<Picture, String> {
    let options = &runner.options.device;
    let device = prepare(options, runner.options.verify)?;
    let bed = Bed { path: &device.path, is_writable: device.is_own || options.overwrite };
    if device.is_own {
        bed.fill()?;
    }
    let abilities = bed.abilities()?;
    eprintln!("{}: {abilities}", device.path.display());
    let mut table = Table::default();
    let mut rows = Vec::new();
    for load in loads(options) {
        if !(load.size as u64).is_multiple_of(abilities.alignment()) {
            eprintln!("left out: {} is no multiple of {} bytes", size_name(load.size as u64), abilities.alignment());
            continue;
        }
        rows.push(measure(runner, &bed, &abilities, load, &mut table)?);
    }
    if options.fio {
        print_ratios(&rows);
    }
    Ok(picture(runner, &table, &abilities))
}

/// The device, made if it is missing. Errors: what is there would be lost.
fn prepare(options: &DeviceBench, verify: bool) -> Result<Device, String> {
    let own = || std::env::temp_dir().join(format!("tabane-bench-{}.device", std::process::id()));
    let path = options.path.clone().unwrap_or_else(own);
    let writes = verify || options.patterns.iter().any(|pattern| pattern.is_write);
    if path.exists() {
        if writes && !options.overwrite {
            return Err(format!(
                "{}: is there already, and would be written to; --overwrite gives up its contents",
                path.display()
            ));
        }
        return Ok(Device { path, is_own: false });
    }
    create(&path, options.size)?;
    Ok(Device { path, is_own: true })
}

fn create(path: &Path, size: u64) -> Result<(), String> {
    let reactor = Reactor::open(DriverKind::Auto).map_err(|error| error.to_string())?;
    let options = DeviceOptions { create: Some(size), ..DeviceOptions::default() };
    reactor.open_device(path, &options).map(drop).map_err(|error| error.to_string())
}

/// All points; calls that wait have one operation under way.
fn loads(options: &DeviceBench) -> Vec<DeviceLoad> {
    let mut loads = Vec::new();
    for pattern in &options.patterns {
        for size in &options.sizes {
            for interface in &options.interfaces {
                let depths = if *interface == Interface::Sync { &[1][..] } else { &options.depths[..] };
                let load =
                    |depth: &u32| DeviceLoad { interface: *interface, pattern: *pattern, size: *size, depth: *depth };
                loads.extend(depths.iter().map(load));
            }
        }
    }
    loads
}

/// The medians of a point, ours and fio's.
struct Row {
    load: DeviceLoad,
    rate: f64,
    fio_rate: Option<f64>,
}

fn measure(
    runner: &Runner<'_>,
    bed: &Bed<'_>,
    abilities: &Abilities,
    load: DeviceLoad,
    table: &mut Table,
) -> Result<Row, String> {
    let options = runner.options;
    let seconds = if options.seconds > 0.0 { options.seconds } else { SECONDS };
    let is_direct = matches!(abilities.direct, Direct::Yes { .. });
    let category = options.device.sizes.iter().position(|size| *size == load.size).unwrap_or(0);
    let (mut rates, mut fio_rates) = (Vec::new(), Vec::new());
    for _ in 0..runner.repeats() {
        let measured = bed.measure(load, seconds)?;
        let line = line(load, &measured);
        let rate = measured.rate();
        rates.push(rate);
        table.add(curve("rate", load), category, rate);
        table.add(curve("cpu", load), category, measured.bytes as f64 / MIB / (measured.cpu_ns.max(1) as f64 / 1e9));
        let line = match options.device.fio {
            false => line,
            true => {
                let job = fio::job(&load, bed.path, abilities.size, is_direct, seconds);
                let beside = fio::run(&job, load.pattern.is_write)?;
                fio_rates.push(beside.rate());
                let line = line.put_rounded("fio_mib_per_s", beside.rate(), 1);
                let line = line.put_rounded("fio_cpu_ns_per_byte", beside.cpu_ns_per_byte(), 4);
                line.put_rounded("fio_ratio", rate / beside.rate(), 3)
            }
        };
        runner.print(&line.end())?;
    }
    if options.verify {
        bed.verify(load, VERIFIED_SIZE_MAX, runner.repeats().into())?;
    }
    Ok(Row { load, rate: median(&rates).unwrap_or(0.0), fio_rate: median(&fio_rates) })
}

impl DeviceResult {
    /// MiB per second.
    fn rate(&self) -> f64 {
        self.bytes as f64 / MIB / self.seconds
    }

    fn cpu_ns_per_byte(&self) -> f64 {
        self.cpu_ns as f64 / self.bytes.max(1) as f64
    }
}

fn line(load: DeviceLoad, measured: &DeviceResult) -> Line {
    let line = Line::new("uring").put("interface", word_of(&INTERFACES, load.interface));
    let line = line.put("pattern", word_of(&PATTERNS, load.pattern)).put("size", load.size).put("depth", load.depth);
    let line = line.put_rounded("mib_per_s", measured.rate(), 1);
    let line = line.put_rounded("ops_per_s", measured.bytes as f64 / load.size as f64 / measured.seconds, 1);
    let line = line.put_rounded("cpu_share", measured.cpu_ns as f64 / 1e9 / measured.seconds, 3);
    let line = line.put_rounded("cpu_ns_per_byte", measured.cpu_ns_per_byte(), 4);
    match measured.times {
        None => line,
        Some(times) => {
            let line = line.put_rounded("p50_us", times.p50 as f64 / 1e3, 1);
            line.put_rounded("p99_us", times.p99 as f64 / 1e3, 1)
        }
    }
}

/// For people: ours by fio's.
fn print_ratios(rows: &[Row]) {
    eprintln!(
        "{:10} {:>9} {:>9} {:>6} {:>10} {:>10} {:>6}",
        "pattern", "size", "interface", "depth", "MiB/s", "fio", "ratio"
    );
    for Row { load, rate, fio_rate } in rows {
        let fio = fio_rate.unwrap_or(0.0);
        eprintln!(
            "{:10} {:>9} {:>9} {:>6} {:>10.1} {:>10.1} {:>6.2}",
            word_of(&PATTERNS, load.pattern),
            size_name(load.size as u64),
            word_of(&INTERFACES, load.interface),
            load.depth,
            rate,
            fio,
            rate / fio
        );
    }
}

fn curve(what: &str, load: DeviceLoad) -> String {
    let DeviceLoad { interface, pattern, depth, .. } = load;
    format!("{what} {} {} {depth}", word_of(&PATTERNS, pattern), word_of(&INTERFACES, interface))
}

/// Of many depths some, the first and the last among them.
fn shown_depths(depths: &[u32]) -> Vec<u32> {
    let step = depths.len().div_ceil(CURVES_MAX).max(1);
    let is_shown = |at: &usize| at.is_multiple_of(step) || at + 1 == depths.len();
    depths.iter().enumerate().filter(|(at, _)| is_shown(at)).map(|(_, depth)| *depth).collect()
}

fn picture(runner: &Runner<'_>, table: &Table, abilities: &Abilities) -> Picture {
    let options = &runner.options.device;
    let kind = if abilities.is_block_device { "a block device" } else { "a file" };
    let direct = if matches!(abilities.direct, Direct::Yes { .. }) { "direct" } else { "not direct" };
    let runs = match runner.repeats() {
        1 => "one run".to_owned(),
        runs => format!("medians of {runs} runs"),
    };
    let about = vec![
        format!("Measured: one thread, {}; {kind} of {}, {direct}.", machine(), size_name(abilities.size)),
        format!("pread/pwrite wait for each operation; io_uring has so many under way; {runs}."),
    ];
    let mut panels = Vec::new();
    for (what, title, y_label) in [
        ("rate", "bandwidth", "MiB per second (log)"),
        ("cpu", "bandwidth by processor time", "MiB per second on a core (log)"),
    ] {
        panels.extend(options.patterns.iter().map(|pattern| Panel {
            title: format!("{title}, {}", pattern_name(*pattern)),
            x_label: "size of an operation".to_owned(),
            y_label: y_label.to_owned(),
            categories: options.sizes.iter().map(|size| size_name(*size as u64)).collect(),
            series: series(options, table, what, *pattern),
            look: Look::LogLines,
        }));
    }
    Picture { title: "One thread and a device (measured)".to_owned(), about, panels }
}

fn pattern_name(pattern: Pattern) -> &'static str {
    match (pattern.is_random, pattern.is_write) {
        (false, false) => "sequential reads",
        (false, true) => "sequential writes",
        (true, false) => "random reads",
        (true, true) => "random writes",
    }
}

fn series(options: &DeviceBench, table: &Table, what: &str, pattern: Pattern) -> Vec<Series> {
    let mut series = Vec::new();
    for interface in &options.interfaces {
        let depths = match interface {
            Interface::Sync => vec![1],
            // One curve is enough to compare with.
            Interface::Aio => options.depths.last().copied().into_iter().collect(),
            Interface::IoUring => shown_depths(&options.depths),
        };
        for depth in depths {
            let load = DeviceLoad { interface: *interface, pattern, size: 0, depth };
            let name = match interface {
                Interface::Sync => if pattern.is_write { "pwrite" } else { "pread" }.to_owned(),
                other => format!("{}, depth {depth}", word_of(&INTERFACES, *other)),
            };
            let points = table.points(&curve(what, load));
            series.push(Series { name, points, is_reference: *interface == Interface::Sync });
        }
    }
    series
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: pictures have few curves, with the first and the last depth among them.
    #[test]
    fn depths_of_pictures() {
        assert_eq!(shown_depths(&[1, 2, 4, 8, 16, 32, 64, 128, 256]), [1, 4, 16, 64, 256]);
        assert_eq!(shown_depths(&[1, 32]), [1, 32]);
        assert_eq!(shown_depths(&[7]), [7]);
    }
}
