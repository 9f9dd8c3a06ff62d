//! Who gets how much of one server's loop: processes that write records of different sizes, and others that flood it
//! with small requests, at once. The streams do the same without the others before, and these without the streams. A
//! loop that is fair gives all streams as many bytes, however large their records are, and neither the streams nor the
//! small requests less than nearly half of it.

use crate::engine::{Line, Outcome, Setting};
use crate::experiment::{Runner, Table, size_name};
use crate::plot::{Look, Panel, Picture, Series};
use crate::step::Step;
use client::Contact;

/// Time of one measurement unless said otherwise.
const SECONDS: f64 = 1.0;
const SIMULATED_STORE_SIZE: u64 = 512 << 20;
/// Chunks of the files, so that a record is in one, and one request.
const CHUNK_SIZE: u32 = 1 << 20;
/// Bytes of a process that are under way, as far as `CALLS_MAX` calls are enough for them.
const BYTES_UNDER_WAY: u64 = 2 << 20;
const CALLS_MAX: u64 = 64;
/// Small requests of a process that are under way.
const FLOOD_CALLS: u64 = 32;

/// What one process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Writes records of so many bytes.
    Stream(u64),
    Flood,
}

impl Role {
    fn name(self) -> String {
        match self {
            Role::Stream(size) => format!("records of {}", size_name(size)),
            Role::Flood => "small requests".to_owned(),
        }
    }
}

pub fn run(runner: &Runner<'_>) -> Result<Picture, String> {
    let options = runner.options;
    let sizes = options.record_sizes.iter();
    let streams = sizes.cycle().take(options.procs as usize).map(|size| Role::Stream(*size));
    let roles: Vec<Role> = streams.chain((0..options.flood).map(|_| Role::Flood)).collect();
    let setting = Setting {
        servers: 1,
        procs: roles.len() as u32,
        chunk_size: CHUNK_SIZE,
        store_size: SIMULATED_STORE_SIZE,
        contact: Contact::default(),
        ..Setting::default()
    };
    let mut engine = runner.start(&setting)?;
    engine.alone(&Step::MakeDirectory { path: runner.directory.clone() })?;
    let path = format!("{}/file", runner.directory);
    engine.all(&Step::OpenFile { path, shared: false, chunk_size: CHUNK_SIZE, write: true })?;
    let seconds = if options.seconds > 0.0 { options.seconds } else { SECONDS };
    let step = Step::Share {
        milliseconds: (seconds * 1e3) as u64,
        bytes_under_way: BYTES_UNDER_WAY,
        calls_max: CALLS_MAX,
        flood_calls: FLOOD_CALLS,
        // By rank; 0 is a flood.
        sizes: roles.iter().map(|role| if let Role::Stream(size) = role { *size } else { 0 }).collect(),
    };
    // The memory behind the files has been used when it is measured.
    engine.all(&step)?;
    let mut table = Table::default();
    for _ in 0..runner.repeats() {
        let mut alone = Vec::new();
        for ranks in [0..options.procs, options.procs..roles.len() as u32] {
            if ranks.start < ranks.end {
                let outcome = engine.act(&step, ranks.clone())?;
                alone.extend((0..ranks.len()).map(|index| rate_of(&outcome, index)));
            }
        }
        let together = engine.all(&step)?;
        let of_streams: f64 = roles
            .iter()
            .enumerate()
            .filter(|(_, role)| **role != Role::Flood)
            .map(|(rank, _)| rate_of(&together, rank))
            .sum();
        for (rank, role) in roles.iter().enumerate() {
            let rate = rate_of(&together, rank);
            table.add(role.name(), 0, rate / alone[rank]);
            let line = Line::new("shares").put("engine", runner.engine_name()).put("servers", 1);
            let line = line.put("procs", options.procs).put("flood", options.flood).put("rank", rank);
            let line = match role {
                Role::Stream(size) => line
                    .put("record_size", *size)
                    .put_rounded("mib_per_s", rate / f64::from(1 << 20), 1)
                    .put_rounded("share", rate / of_streams * f64::from(options.procs), 3),
                Role::Flood => line.put("record_size", 0).put_rounded("ops_per_s", rate, 0),
            };
            let line = line.put_rounded("of_alone", rate / alone[rank], 3);
            runner.print(&line.put_rounded("seconds", together.seconds, 6).end())?;
        }
    }
    engine.all(&Step::CloseFile)?;
    engine.end()?;
    Ok(picture(runner, &roles, &table))
}

/// Bytes, or requests, a second of one process.
fn rate_of(outcome: &Outcome, rank: usize) -> f64 {
    outcome.done.get(rank).map_or(0, |done| done.work) as f64 / outcome.seconds
}

fn picture(runner: &Runner<'_>, roles: &[Role], table: &Table) -> Picture {
    let mut picture = runner.picture("Records of several sizes and small requests to one server at once");
    let mut names: Vec<String> = roles.iter().map(|role| role.name()).collect();
    names.dedup();
    names.sort();
    names.dedup();
    let series = names.into_iter().map(|name| Series { points: table.points(&name), name, is_reference: false });
    picture.panels.push(Panel {
        title: "rate of each kind, of what it has without the other".to_owned(),
        x_label: "one server".to_owned(),
        y_label: "share".to_owned(),
        categories: vec!["all at once".to_owned()],
        series: series.collect(),
        look: Look::Bars,
    });
    picture
}
