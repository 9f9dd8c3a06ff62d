//! F1.1 and F1.2: modular placement of chunks against a consistent-hashing ring, over numbers of servers: what IOR's
//! and mdtest's workloads reach, and how evenly the servers share the bytes and the requests.

use crate::engine::{Engine, Line, Served, Setting, spread};
use crate::experiment::{Runner, Table};
use crate::phases::{Phase, Volumes, go_through};
use crate::plot::{Look, Panel, Picture, Series};
use client::Contact;

const PLACEMENTS: [&str; 2] = ["modular", "ring"];
/// Volumes of each process in a simulation, unless said otherwise: whole stripes over 8, 12, 16, 24 and 32 servers.
const SIMULATED_VOLUME: u64 = 24 << 20;
const SIMULATED_FILES: u64 = 200;
const SIMULATED_CHUNK_SIZE: u32 = 64 << 10;
const SIMULATED_STORE_SIZE: u64 = 256 << 20;

pub fn run(runner: &Runner<'_>) -> Result<Picture, String> {
    let options = runner.options;
    let mut table = Table::default();
    let mut shares = Vec::new();
    for (category, servers) in options.server_counts.iter().enumerate() {
        for _ in 0..runner.repeats() {
            for placement in PLACEMENTS {
                let own_chunks = options.simulate && options.chunk_size == 0;
                let setting = Setting {
                    servers: *servers,
                    // In a simulation every server has a client's host beside it.
                    procs: if options.simulate && !options.is_given("procs") { *servers } else { options.procs },
                    placement: Some(placement.to_owned()),
                    chunk_size: if own_chunks { SIMULATED_CHUNK_SIZE } else { options.chunk_size },
                    store_size: SIMULATED_STORE_SIZE.max(options.block_size / 4),
                    contact: Contact::default(),
                    ..Setting::default()
                };
                let mut engine = runner.start(&setting)?;
                let share = measure(runner, engine.as_mut(), &setting, category, &mut table)?;
                engine.end()?;
                if category + 1 == options.server_counts.len() {
                    shares.retain(|(name, _)| *name != placement);
                    shares.push((placement, share));
                }
            }
        }
    }
    Ok(picture(runner, &table, &shares))
}

/// Goes through all phases; what each server took of the bytes that were written.
fn measure(
    runner: &Runner<'_>,
    engine: &mut dyn Engine,
    setting: &Setting,
    category: usize,
    table: &mut Table,
) -> Result<Vec<u64>, String> {
    let mut written = vec![0; setting.servers as usize];
    let volumes = Volumes {
        base: runner.directory.clone(),
        bytes: volume(runner),
        files: files(runner),
        chunk_size: setting.chunk_size,
        warm: runner.options.warm && !runner.options.simulate,
    };
    go_through(engine, &volumes, &mut |engine, phase| {
        let served = measure_phase(runner, engine, setting, category, phase, table)?;
        if phase.phase == "write" {
            served.iter().zip(&mut written).for_each(|(served, sum)| *sum += served.bytes);
        }
        Ok(())
    })?;
    let placement = setting.placement.as_deref().unwrap_or_default();
    table.add(format!("{placement} spread"), category, 100.0 * spread(&written));
    Ok(written)
}

fn volume(runner: &Runner<'_>) -> u64 {
    let is_own = runner.options.simulate && !runner.options.is_given("block-size");
    if is_own { SIMULATED_VOLUME } else { runner.options.block_size }
}

fn files(runner: &Runner<'_>) -> u64 {
    let is_own = runner.options.simulate && !runner.options.is_given("files");
    if is_own { SIMULATED_FILES } else { runner.options.files }
}

fn measure_phase(
    runner: &Runner<'_>,
    engine: &mut dyn Engine,
    setting: &Setting,
    category: usize,
    phase: &Phase,
    table: &mut Table,
) -> Result<Vec<Served>, String> {
    let placement = setting.placement.as_deref().unwrap_or_default();
    let before = engine.served()?;
    let outcome = engine.all(&phase.step)?;
    let served = Served::between(&before, &engine.served()?);
    let rate = phase.work(outcome.work()) / outcome.seconds;
    table.add(format!("{placement} {} {}", phase.bench, phase.phase), category, rate);
    let bytes: Vec<u64> = served.iter().map(|served| served.bytes).collect();
    let requests: Vec<u64> = served.iter().map(|served| served.requests).collect();
    let line = Line::new("placement").put("engine", runner.engine_name()).put("placement", placement);
    let line = line.put("bench", phase.bench).put("phase", phase.phase);
    let line = line.put("servers", setting.servers).put("procs", setting.procs);
    let line = line.put_rounded(if phase.is_data() { "mib_per_s" } else { "ops_per_s" }, rate, 1);
    let line = line.put_rounded("seconds", outcome.seconds, 6);
    let line = line.put_rounded("bytes_spread", spread(&bytes), 4).put("bytes_per_server", bytes);
    let line = line.put_rounded("requests_spread", spread(&requests), 4).put("requests_per_server", requests);
    runner.print(&line.end())?;
    Ok(served)
}

fn picture(runner: &Runner<'_>, table: &Table, shares: &[(&str, Vec<u64>)]) -> Picture {
    let counts = &runner.options.server_counts;
    let categories: Vec<String> = counts.iter().map(u32::to_string).collect();
    let curves = |phases: &[(&str, &str)]| -> Vec<Series> {
        let named = phases.iter().flat_map(|(phase, shown)| {
            PLACEMENTS.iter().map(move |placement| (format!("{placement} {phase}"), format!("{placement}, {shown}")))
        });
        let series = named.map(|(key, name)| Series { name, points: table.points(&key), is_reference: false });
        series.collect()
    };
    let panel = |title: &str, y_label: &str, series: Vec<Series>| Panel {
        title: title.to_owned(),
        x_label: "servers".to_owned(),
        y_label: y_label.to_owned(),
        categories: categories.clone(),
        series,
        look: Look::Lines,
    };
    let mut picture = runner.picture("Placement of chunks: modular against a consistent-hashing ring");
    let writes = curves(&[("ior-easy write", "ior-easy"), ("ior-hard write", "ior-hard")]);
    picture.panels.push(panel("bandwidth of writing", "MiB per second", writes));
    let names = curves(&[("mdtest-easy create", "mdtest-easy"), ("mdtest-hard create", "mdtest-hard")]);
    picture.panels.push(panel("files created", "files per second", names));
    let spreads = PLACEMENTS.iter().map(|placement| {
        let points = table.points(&format!("{placement} spread"));
        Series { name: (*placement).to_owned(), points, is_reference: false }
    });
    let title = "spread of the bytes written (most less least, by the mean)";
    picture.panels.push(panel(title, "per cent", spreads.collect()));
    let bars = shares.iter().map(|(placement, share)| {
        let points = share.iter().map(|bytes| *bytes as f64 / f64::from(1 << 20)).enumerate().collect();
        Series { name: (*placement).to_owned(), points, is_reference: false }
    });
    let last = counts[counts.len() - 1];
    picture.panels.push(Panel {
        title: format!("bytes that each of {last} servers took"),
        x_label: "server".to_owned(),
        y_label: "MiB".to_owned(),
        categories: (0..last).map(|server| server.to_string()).collect(),
        series: bars.collect(),
        look: Look::Bars,
    });
    picture
}
