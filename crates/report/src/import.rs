//! `tabane-report import`: reads sources into a place, all of them in one transaction; with `--every`, one for each run
//! of the command.

use crate::database::Database;
use crate::failure::{Failure, Outcome};
use crate::lines::Lines;
use crate::options::ImportOptions;
use crate::progress::Progress;
use crate::sources::{command, hosts, jobs, lustre, network, nodes, tabane};
use crate::store::{Tally, Writer};
use crate::{clock, place, times};
use jiff::tz::TimeZone;
use std::path::{Path, PathBuf};

pub fn run(options: &ImportOptions) -> Outcome {
    let zone = times::zone(options.time_zone.as_deref()).map_err(Failure::Usage)?;
    let offsets = options.clock_offset.iter().map(|text| offset_of(text)).collect::<Outcome<Vec<_>>>()?;
    let logs_of = |names: &[String], option: &str| {
        names.iter().map(|name| Log::of(option, name, options.server.as_deref())).collect::<Outcome<Vec<_>>>()
    };
    let logs = Logs { lustre: logs_of(&options.lustre, "--lustre")?, network: logs_of(&options.network, "--network")? };
    // Before the place is made: what is not there is no reason to make one.
    let files: Vec<&Path> = options
        .jobs
        .iter()
        .chain(&options.nodes)
        .chain(&options.tabane)
        .chain(logs.lustre.iter().chain(&logs.network).map(|log| &log.file))
        .map(PathBuf::as_path)
        .collect();
    let total = total_size(&files)?;
    let (database, made) = place::open_or_make(&options.place)?;
    let outcome = import(options, &zone, &offsets, &logs, total, &database);
    drop(database);
    if outcome.is_err() && made && std::fs::metadata(&options.place).is_ok_and(|metadata| metadata.len() == 0) {
        // Nothing half made stays. That it can't be removed is worth no words beside what went wrong.
        let _ = std::fs::remove_file(&options.place);
    }
    outcome
}

fn import(
    options: &ImportOptions,
    zone: &TimeZone,
    offsets: &[(String, i64)],
    logs: &Logs,
    total: u64,
    database: &Database,
) -> Outcome {
    let no_logs = logs.lustre.is_empty() && logs.network.is_empty() && options.tabane.is_empty();
    let reads_files = !(options.jobs.is_empty() && options.nodes.is_empty() && no_logs);
    if reads_files || !offsets.is_empty() {
        let progress = Progress::new(total);
        let mut writer = Writer::begin(database, &options.place)?;
        for (server, offset) in offsets {
            writer.set_clock_offset(server, *offset)?;
        }
        read_files(options, zone, logs, &progress, &mut writer)?;
        progress.clear();
        if reads_files {
            finish(writer, options)?;
        } else {
            writer.commit()?;
        }
    }
    match &options.command {
        Some(command) => run_command(command, options, database),
        None => Ok(()),
    }
}

fn read_files(
    options: &ImportOptions,
    zone: &TimeZone,
    logs: &Logs,
    progress: &Progress,
    writer: &mut Writer<'_>,
) -> Outcome {
    for file in &options.nodes {
        let name = file.display().to_string();
        writer.set_source(&name)?;
        nodes::read(&name, &mut Lines::open(file, progress)?, writer)?;
    }
    for file in &options.jobs {
        writer.set_source(&file.display().to_string())?;
        jobs::read(file, options.format, zone, progress, writer)?;
    }
    for log in &logs.lustre {
        writer.set_source(&log.file.display().to_string())?;
        hosts::read::<lustre::Parser>(&mut Lines::open(&log.file, progress)?, log.server.as_deref(), zone, writer)?;
    }
    for log in &logs.network {
        writer.set_source(&log.file.display().to_string())?;
        let lines = &mut Lines::open(&log.file, progress)?;
        hosts::read::<network::NetworkText>(lines, log.server.as_deref(), zone, writer)?;
    }
    let mut documents = tabane::Documents::default();
    for file in &options.tabane {
        writer.set_source(&file.display().to_string())?;
        tabane::read(&mut Lines::open(file, progress)?, None, &mut documents, writer)?;
    }
    Ok(())
}

/// Commits, unless nothing was of use: then the file is another one than was meant.
fn finish(writer: Writer<'_>, options: &ImportOptions) -> Outcome<Tally> {
    let tally = writer.tally;
    if tally.is_useless() && tally.skipped > 0 {
        return Err(Failure::failed(format!(
            "nothing in what was read is of use, and {}; is it what the options say? Nothing was changed",
            crate::words::plural(tally.skipped, "line") + " can't be understood"
        )));
    }
    let tally = writer.commit()?;
    eprintln!("{}", tally.words());
    if tally.skipped > 0 {
        eprintln!("'tabane-report events {}' says what was left out, and why", options.place.display());
    }
    Ok(tally)
}

fn run_command(command: &str, options: &ImportOptions, database: &Database) -> Outcome {
    let mut next = clock::monotonic();
    let mut runs = 0;
    loop {
        let mut writer = Writer::begin(database, &options.place)?;
        writer.set_source(command)?;
        let failed = command::run(command, options.server.as_deref(), &mut writer)?;
        let wrong = match (failed, writer.tally.is_useless()) {
            (Some(status), _) => Some(format!("--command failed: {status}; what it printed before counts")),
            (None, true) => Some("--command printed nothing that is of use; see tabane-report events".to_owned()),
            (None, false) => None,
        };
        let tally = writer.commit()?;
        runs += 1;
        let Some(every) = options.every.and_then(clock::seconds) else {
            eprintln!("{}", tally.words());
            return wrong.map_or(Ok(()), |words| Err(Failure::failed(words)));
        };
        if let Some(words) = wrong {
            eprintln!("tabane-report: {words}; going on");
        }
        if options.runs.is_some_and(|most| runs >= most) {
            return Ok(());
        }
        next = (next + every).max(clock::monotonic());
        clock::sleep_until(next);
    }
}

struct Logs {
    lustre: Vec<Log>,
    network: Vec<Log>,
}

/// A log of a server's statistics.
struct Log {
    /// Whose lines it holds, where they don't say so.
    server: Option<String>,
    file: PathBuf,
}

impl Log {
    /// `SERVER=FILE`, or a file that is called by its server.
    fn of(option: &str, name: &str, server: Option<&str>) -> Outcome<Log> {
        if let Some((server, file)) = name.split_once('=').filter(|(server, _)| !server.contains('/')) {
            if server.is_empty() || file.is_empty() {
                return Err(Failure::usage(format!("{option} {name}: SERVER=FILE is wanted")));
            }
            return Ok(Log { server: Some(server.to_owned()), file: file.into() });
        }
        let file = PathBuf::from(name);
        let stem = || Some(file.file_name()?.to_str()?.split('.').next()?.to_owned());
        let called = stem().filter(|stem| !stem.is_empty() && name != "-");
        Ok(Log { server: server.map(str::to_owned).or(called), file })
    }
}

fn offset_of(text: &str) -> Outcome<(String, i64)> {
    let parts = text.split_once('=').and_then(|(server, seconds)| Some((server, seconds.parse::<f64>().ok()?)));
    match parts {
        Some((server, seconds)) if !server.is_empty() && seconds.abs() < 1e9 => {
            Ok((server.to_owned(), (seconds * 1e9).round() as i64))
        }
        _ => Err(Failure::usage(format!("--clock-offset {text}: SERVER=SECONDS is wanted, such as oss1=-0.5"))),
    }
}

/// Bytes of all files; 0 where one is none, such as standard input. Errors: one that can't be read.
fn total_size(files: &[&Path]) -> Outcome<u64> {
    let (mut total, mut known) = (0, true);
    for file in files.iter().filter(|file| file.as_os_str() != "-") {
        let metadata = std::fs::metadata(file).map_err(|error| Failure::of_file(file, &error))?;
        known &= metadata.is_file();
        total += metadata.len();
    }
    known &= !files.iter().any(|file| file.as_os_str() == "-");
    Ok(if known { total } else { 0 })
}
