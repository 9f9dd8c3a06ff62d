//! F4.2: processes write one file in pieces of HPIO's size, with gaps, in the ways of [`Writers`], the same bytes in
//! each. How long requests wait at the servers, how many do, and how many are at work: what the K computer's logs have
//! shown of two MPI-IOs.

use crate::collective::Pieces;
use crate::engine::{Engine, Line, Setting};
use crate::experiment::{Runner, Table};
use crate::plot::{Look, Panel, Picture, Series};
use crate::queues::QueuedStep;
use crate::step::Step;
use client::Contact;

const SIMULATED_STORE_SIZE: u64 = 256 << 20;

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
                    ("depth", outcome.all.depth),
                    ("wait", outcome.all.wait_us),
                    ("active", outcome.all.active),
                    ("rate", outcome.mib_per_s()),
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

fn write(engine: &mut dyn Engine, path: &str, pieces: Pieces, writers: Writers) -> Result<QueuedStep, String> {
    let open = |create: bool| Step::OpenFile { path: path.to_owned(), shared: true, chunk_size: 0, write: create };
    engine.alone(&open(true))?;
    // A file with something in it, for a write to an empty one that many have just opened waits for their leases.
    engine.alone(&Step::WriteRegions { pieces, writers: Writers::All })?;
    engine.alone(&Step::CloseFile)?;
    engine.all(&open(true))?;
    let outcome = QueuedStep::measure(engine, &Step::WriteRegions { pieces, writers })?;
    engine.all(&Step::CloseFile)?;
    engine.alone(&Step::RemoveFile { path: path.to_owned(), shared: true })?;
    Ok(outcome)
}

fn print(runner: &Runner<'_>, servers: u32, procs: u32, writers: &str, outcome: &QueuedStep) -> Result<(), String> {
    let pieces = runner.options.pieces;
    let line = Line::new("congestion").put("engine", runner.engine_name()).put("writers", writers);
    let line = line.put("servers", servers).put("procs", procs);
    let line = line.put("pieces", pieces.count).put("piece_size", pieces.size).put("gap", pieces.gap);
    runner.print(&outcome.put(line).end())
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
