//! F4.2: processes write one file in pieces of HPIO's size, with gaps, in the ways of [`Writers`], the same bytes in
//! each. How long requests wait at the servers, how many do, and how many are at work: what the K computer's logs have
//! shown of two MPI-IOs.
//!
//! Means are over the time that the writes took, by what servers count (docs/counters.md), and over the servers.

use crate::engine::{Engine, Line, Served, Setting};
use crate::experiment::{Runner, Table};
use crate::plot::{Look, Panel, Picture, Series};
use crate::step::Step;
use client::Contact;

/// HPIO's, as on the K computer, in bytes.
pub const PIECE_SIZE: u64 = 5_992;
pub const PIECE_GAP: u64 = 256;
const SIMULATED_STORE_SIZE: u64 = 256 << 20;
const MIB: f64 = 1_048_576.0;
/// Who writes what of the pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writers {
    /// Each process its own, which lie between those of the others, a call a piece.
    All,
    /// Each process as many, one behind the other in the file, in one call: two-phase I/O with domains in the order of
    /// processes, after its exchange.
    View,
    /// The same, with permits of the servers.
    Turns,
    /// One process for each server all that lies in its chunks, a call a chunk.
    OneAServer,
}

impl Writers {
    pub const ALL: [Writers; 4] = [Writers::All, Writers::View, Writers::Turns, Writers::OneAServer];

    pub fn word(self) -> &'static str {
        match self {
            Writers::All => "all",
            Writers::View => "view",
            Writers::Turns => "turns",
            Writers::OneAServer => "one-a-server",
        }
    }

    /// In pictures.
    fn name(self) -> &'static str {
        match self {
            Writers::All => "all processes",
            Writers::View => "all processes, a domain each",
            Writers::Turns => "a domain each, with permits",
            Writers::OneAServer => "one writer a server",
        }
    }
}

/// Pieces of each process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pieces {
    pub count: u64,
    pub size: u64,
    pub gap: u64,
}

/// What the servers counted while a file was written: means over time, and in microseconds for each request.
struct Outcome {
    seconds: f64,
    bytes: u64,
    requests: u64,
    depth: f64,
    active: f64,
    wait_us: f64,
    /// How long a permit was waited for, by requests.
    permit_us: f64,
}

pub fn run(runner: &Runner<'_>) -> Result<Picture, String> {
    let options = runner.options;
    let mut table = Table::default();
    for (category, servers) in options.server_counts.iter().enumerate() {
        let procs = match (options.simulate, options.is_given("procs")) {
            // As published: 3,072 processes and 96 servers.
            (true, false) => servers * 32,
            _ => options.procs,
        };
        let setting = Setting {
            servers: *servers,
            procs,
            placement: options.placement.clone(),
            chunk_size: options.chunk_size,
            store_size: SIMULATED_STORE_SIZE,
            contact: Contact::default(),
            ..Setting::default()
        };
        let mut engine = runner.start(&setting)?;
        engine.alone(&Step::MakeDirectory { path: runner.directory.clone() })?;
        // All have their connections before anything is measured.
        for server in 0..*servers {
            engine.all(&Step::Ping { server })?;
        }
        for run in 0..runner.repeats() {
            for writers in Writers::ALL {
                let name = writers.word();
                let path = format!("{}/{name}{run}", runner.directory);
                let outcome = write(engine.as_mut(), &path, options.pieces, writers)?;
                for (what, value) in [
                    ("depth", outcome.depth),
                    ("wait", outcome.wait_us),
                    ("active", outcome.active),
                    ("rate", outcome.bytes as f64 / MIB / outcome.seconds),
                ] {
                    table.add(format!("{what} {name}"), category, value);
                }
                print(runner, *servers, procs, name, &outcome)?;
            }
        }
        engine.end()?;
    }
    Ok(picture(runner, &table))
}

fn write(engine: &mut dyn Engine, path: &str, pieces: Pieces, writers: Writers) -> Result<Outcome, String> {
    let open = |create: bool| Step::OpenFile { path: path.to_owned(), shared: true, chunk_size: 0, write: create };
    engine.alone(&open(true))?;
    // A file with something in it, for a write to an empty one that many have just opened waits for their leases.
    engine.alone(&Step::WriteRegions { pieces, writers: Writers::All })?;
    engine.alone(&Step::CloseFile)?;
    engine.all(&open(true))?;
    let before = engine.served()?;
    let outcome = engine.all(&Step::WriteRegions { pieces, writers })?;
    let served = Served::between(&before, &engine.served()?);
    engine.all(&Step::CloseFile)?;
    engine.alone(&Step::RemoveFile { path: path.to_owned(), shared: true })?;
    let sum = |of: fn(&Served) -> u64| served.iter().map(of).sum::<u64>();
    let server_ns = outcome.seconds * 1e9 * served.len() as f64;
    let requests = sum(|served| served.requests);
    let waited = sum(|served| served.wait_ns) as f64;
    Ok(Outcome {
        seconds: outcome.seconds,
        bytes: outcome.work(),
        requests,
        depth: waited / server_ns,
        active: sum(|served| served.active_ns) as f64 / server_ns,
        wait_us: waited / 1000.0 / requests.max(1) as f64,
        permit_us: sum(|served| served.permit_ns) as f64 / 1000.0 / requests.max(1) as f64,
    })
}

fn print(runner: &Runner<'_>, servers: u32, procs: u32, writers: &str, outcome: &Outcome) -> Result<(), String> {
    let pieces = runner.options.pieces;
    let line = Line::new("congestion").put("engine", runner.engine_name()).put("writers", writers);
    let line = line.put("servers", servers).put("procs", procs);
    let line = line.put("pieces", pieces.count).put("piece_size", pieces.size).put("gap", pieces.gap);
    let line = line.put("bytes", outcome.bytes).put("requests", outcome.requests);
    let line = line.put_rounded("seconds", outcome.seconds, 6);
    let line = line.put_rounded("mib_per_s", outcome.bytes as f64 / MIB / outcome.seconds, 1);
    let line = line.put_rounded("req_qdepth", outcome.depth, 3).put_rounded("req_active", outcome.active, 3);
    let line = line.put_rounded("req_waittime_us", outcome.wait_us, 3);
    runner.print(&line.put_rounded("permit_wait_us", outcome.permit_us, 3).end())
}

fn picture(runner: &Runner<'_>, table: &Table) -> Picture {
    let options = runner.options;
    let mut picture = runner.picture("Pieces with gaps, written by all processes and by one a server");
    let Pieces { count, size, gap } = options.pieces;
    picture.about.push(format!("{count} pieces of {size} bytes a process, with gaps of {gap}."));
    let panels = [
        ("depth", "requests that wait at a server (req_qdepth)", "requests (log)"),
        ("wait", "time that a request waits (req_waittime)", "microseconds (log)"),
        ("active", "requests at work at a server (req_active)", "requests (log)"),
        ("rate", "bandwidth", "MiB per second (log)"),
    ];
    for (what, title, y_label) in panels {
        let series = Writers::ALL.map(|writers| Series {
            name: writers.name().to_owned(),
            points: table.points(&format!("{what} {}", writers.word())),
            is_reference: false,
        });
        picture.panels.push(Panel {
            title: title.to_owned(),
            x_label: "servers".to_owned(),
            y_label: y_label.to_owned(),
            categories: options.server_counts.iter().map(u32::to_string).collect(),
            series: series.into_iter().collect(),
            look: Look::LogLines,
        });
    }
    picture
}
