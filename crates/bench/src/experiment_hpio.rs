//! F4.2 and S4.2: HPIO's pattern, written and read together in the modes of collective MPI-IO ([`crate::collective`]),
//! with and without permits of the servers. The same processes, servers and bytes, and no MPI.
//!
//! Real processes write a file that is new, after the same was done with another one, so that connections and memory
//! are there. In simulations each pass is made on the same file before it is measured: which processes have to do with
//! each other differs from file to file, and nothing but their connections is slower at first. What was written is read
//! by each process for itself as well, and compared.

use crate::collective::{Mode, PART_SIZE};
use crate::collective_process::CollectiveStep;
use crate::engine::{Engine, Line, Setting};
use crate::experiment::{Runner, Table};
use crate::plot::{Look, Panel, Picture, Series};
use crate::queues::QueuedStep;
use crate::step::Step;
use client::Contact;
use std::fmt::Write as _;

/// As published: 12,288 processes and 192 servers.
const SIMULATED_PROCS_PER_SERVER: u32 = 64;
/// Bytes of the image of a window that real processes share.
const IMAGE_SIZE_MAX: u64 = 1 << 30;
/// Bytes of a store of a simulation beyond what it is going to hold.
const STORE_SPARE: u64 = 64 << 20;
const CSV_HEAD: &str = "engine,servers,procs,mode,turns,pass,run,server,seconds,requests,bytes,req_qdepth,req_active,\
                        req_waittime_us,permit_wait_us\n";

/// A mode, with or without permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Way {
    mode: Mode,
    turns: bool,
}

impl Way {
    fn name(self) -> String {
        format!("{}{}", self.mode.word(), if self.turns { ", with permits" } else { "" })
    }
}

/// A cluster with its processes, and what is done there.
struct Course<'a> {
    runner: &'a Runner<'a>,
    engine: Box<dyn Engine>,
    servers: u32,
    procs: u32,
    procs_per_node: u32,
    csv: String,
}

pub fn run(runner: &Runner<'_>) -> Result<Picture, String> {
    let options = runner.options;
    let ways =
        options.modes.iter().flat_map(|mode| options.turns.iter().map(|turns| Way { mode: *mode, turns: *turns }));
    let ways: Vec<Way> = ways.collect();
    let mut table = Table::default();
    let mut csv = CSV_HEAD.to_owned();
    for (category, servers) in options.server_counts.iter().enumerate() {
        let mut course = Course::start(runner, *servers)?;
        for run in 0..runner.repeats() {
            for way in &ways {
                for (pass, outcome) in course.go(*way, run)? {
                    for (what, value) in
                        [("rate", outcome.mib_per_s()), ("depth", outcome.all.depth), ("wait", outcome.all.wait_us)]
                    {
                        table.add(format!("{pass} {what} {}", way.name()), category, value);
                    }
                }
            }
        }
        csv += &course.csv;
        course.engine.end()?;
    }
    if let Some(file) = &options.csv {
        std::fs::write(file, csv).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(picture(runner, &ways, &table))
}

impl<'a> Course<'a> {
    fn start(runner: &'a Runner<'a>, servers: u32) -> Result<Course<'a>, String> {
        let options = runner.options;
        let procs = match (options.simulate, options.is_given("procs")) {
            (true, false) => servers * SIMULATED_PROCS_PER_SERVER,
            _ => options.procs,
        };
        // Two files are there at a time.
        let bytes = 2 * options.pieces.end(procs) / u64::from(servers);
        let image_size = (PART_SIZE * u64::from(procs.max(servers))).min(IMAGE_SIZE_MAX);
        let setting = Setting {
            servers,
            procs,
            placement: options.placement.clone(),
            chunk_size: options.chunk_size,
            store_size: (2 * bytes + STORE_SPARE).next_multiple_of(1 << 20),
            contact: Contact::default(),
            words: if options.simulate { 0 } else { image_size as usize / size_of::<u64>() },
            ..Setting::default()
        };
        let mut engine = runner.start(&setting)?;
        engine.alone(&Step::MakeDirectory { path: runner.directory.clone() })?;
        let procs_per_node = if options.simulate { options.procs_per_node } else { procs };
        Ok(Course { runner, engine, servers, procs, procs_per_node, csv: String::new() })
    }

    /// One way, warmed up and then measured: what became of writing and reading.
    fn go(&mut self, way: Way, run: u32) -> Result<[(&'static str, QueuedStep); 2], String> {
        let name = format!("{}/{}-{}-{run}", self.runner.directory, way.mode.word(), way.turns);
        let seed = u64::from(run) << 8 | u64::from(way.turns) << 4 | way.mode as u64;
        if !self.runner.options.simulate {
            self.write_and_read(&format!("{name}-warm"), way, !seed)?;
        }
        let [write, read] = self.write_and_read(&name, way, seed)?;
        let passes = [("write", write), ("read", read)];
        for (pass, outcome) in &passes {
            self.print(way, pass, run, outcome)?;
        }
        Ok(passes)
    }

    fn write_and_read(&mut self, path: &str, way: Way, seed: u64) -> Result<[QueuedStep; 2], String> {
        let (pieces, procs_per_node) = (self.runner.options.pieces, self.procs_per_node);
        let open = |write| Step::OpenFile { path: path.to_owned(), shared: true, chunk_size: 0, write };
        let transfer = |mode, throttled, write| {
            Step::Collective(CollectiveStep::Move { pieces, mode, procs_per_node, throttled, write })
        };
        let fill = Step::Collective(CollectiveStep::Fill { pieces, seed });
        let clear = Step::Collective(CollectiveStep::Clear { pieces });
        let check = Step::Collective(CollectiveStep::Check { pieces, seed });
        let engine = self.engine.as_mut();
        let is_repeated = self.runner.options.simulate;
        let measure = |engine: &mut dyn Engine, step: &Step| {
            if is_repeated {
                engine.all(step)?;
            }
            QueuedStep::measure(engine, step)
        };
        // A file with something in it, for a write to an empty one that many have just opened waits for their leases.
        engine.alone(&open(true))?;
        engine.alone(&fill)?;
        engine.alone(&transfer(Mode::List, false, true))?;
        engine.alone(&Step::CloseFile)?;
        engine.all(&open(true))?;
        engine.all(&fill)?;
        let write = measure(engine, &transfer(way.mode, way.turns, true))?;
        engine.all(&Step::CloseFile)?;
        engine.all(&open(false))?;
        engine.all(&clear)?;
        let read = measure(engine, &transfer(way.mode, way.turns, false))?;
        engine.all(&check)?;
        engine.all(&clear)?;
        engine.all(&transfer(Mode::List, false, false))?;
        engine.all(&check)?;
        engine.all(&Step::CloseFile)?;
        engine.alone(&Step::RemoveFile { path: path.to_owned(), shared: true })?;
        Ok([write, read])
    }

    fn print(&mut self, way: Way, pass: &str, run: u32, outcome: &QueuedStep) -> Result<(), String> {
        let (engine, mode) = (self.runner.engine_name(), way.mode.word());
        let (servers, procs, turns) = (self.servers, self.procs, if way.turns { "on" } else { "off" });
        for (server, (queues, bytes)) in outcome.servers.iter().zip(&outcome.served_bytes).enumerate() {
            // Writing to a string does not fail.
            let _ = writeln!(
                self.csv,
                "{engine},{servers},{procs},{mode},{turns},{pass},{run},{server},{:.6},{},{bytes},{:.3},{:.3},{:.3},\
                 {:.3}",
                queues.seconds, queues.requests, queues.depth, queues.active, queues.wait_us, queues.permit_us
            );
        }
        let pieces = self.runner.options.pieces;
        let line = Line::new("hpio").put("engine", engine).put("mode", mode).put("turns", turns).put("pass", pass);
        let line = line.put("servers", servers).put("procs", procs).put("procs_per_node", self.procs_per_node);
        let line = line.put("pieces", pieces.count).put("piece_size", pieces.size).put("gap", pieces.gap);
        self.runner.print(&outcome.put(line).end())
    }
}

fn picture(runner: &Runner<'_>, ways: &[Way], table: &Table) -> Picture {
    let options = runner.options;
    let mut picture = runner.picture("Pieces with gaps, written and read by all processes together");
    picture.about.push(format!(
        "{} pieces of {} bytes a process, with gaps of {}.",
        options.pieces.count, options.pieces.size, options.pieces.gap
    ));
    let panels = [
        ("rate", "bandwidth", "MiB per second (log)"),
        ("depth", "requests that wait at a server (req_qdepth)", "requests (log)"),
        ("wait", "time that a request waits (req_waittime)", "microseconds (log)"),
    ];
    for pass in ["write", "read"] {
        for (what, title, y_label) in panels {
            let series = ways.iter().map(|way| Series {
                name: way.name(),
                points: table.points(&format!("{pass} {what} {}", way.name())),
                is_reference: false,
            });
            picture.panels.push(Panel {
                title: format!("{pass}: {title}"),
                x_label: "servers".to_owned(),
                y_label: y_label.to_owned(),
                categories: options.server_counts.iter().map(u32::to_string).collect(),
                series: series.collect(),
                look: Look::LogLines,
            });
        }
    }
    picture
}
