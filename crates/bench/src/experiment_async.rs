//! F1.5 and F1.6: one process writes, so many chunks a call, at several chunk sizes. One request after the other
//! (`--serial`), the bandwidth is that of a chunk whatever the size of the call; with all requests of a call under way
//! at once it grows.

use crate::engine::{Line, Setting};
use crate::experiment::{Runner, Table, size_name};
use crate::plot::{Look, Panel, Picture, Series};
use crate::step::Step;
use client::Contact;

/// Servers unless said otherwise, as in the paper.
const SERVERS: u32 = 8;
/// Bytes written at each point, unless said otherwise.
const VOLUME: u64 = 64 << 20;
const SIMULATED_VOLUME: u64 = 8 << 20;
const SIMULATED_STORE_SIZE: u64 = 256 << 20;

pub fn run(runner: &Runner<'_>) -> Result<Picture, String> {
    let options = runner.options;
    let servers = if options.is_given("servers") { options.servers } else { SERVERS };
    let volume = match (options.is_given("block-size"), options.simulate) {
        (true, _) => options.block_size,
        (false, true) => SIMULATED_VOLUME,
        (false, false) => VOLUME,
    };
    let mut table = Table::default();
    for chunk_size in &options.chunk_sizes {
        measure(runner, servers, *chunk_size, volume, &mut table)?;
    }
    Ok(picture(runner, &table, servers))
}

fn measure(runner: &Runner<'_>, servers: u32, chunk_size: u32, volume: u64, table: &mut Table) -> Result<(), String> {
    let options = runner.options;
    let setting = Setting {
        servers,
        procs: 1,
        placement: options.placement.clone(),
        chunk_size,
        store_size: SIMULATED_STORE_SIZE,
        contact: Contact::default(),
        ..Setting::default()
    };
    let chunk = u64::from(chunk_size);
    let mut engine = runner.start(&setting)?;
    engine.alone(&Step::MakeDirectory { path: runner.directory.clone() })?;
    let path = format!("{}/file", runner.directory);
    engine.alone(&Step::OpenFile { path, shared: true, chunk_size, write: true })?;
    let write = |count: u32, volume: u64, serial: bool| {
        let block = chunk * u64::from(count);
        // Whole blocks, at least one.
        Step::WriteBlocks { block, volume: (volume / block).max(1) * block, chunk, serial }
    };
    // The memory behind the file has been used when it is measured; so have all connections.
    let most = options.chunk_counts.iter().copied().max().unwrap_or(1);
    engine.alone(&write(most, volume, false))?;
    for _ in 0..runner.repeats() {
        for (category, count) in options.chunk_counts.iter().enumerate() {
            let outcome = engine.all(&write(*count, volume, options.serial))?;
            let rate = outcome.work() as f64 / f64::from(1 << 20) / outcome.seconds;
            table.add(size_name(chunk), category, rate);
            let line = Line::new("async").put("engine", runner.engine_name()).put("serial", options.serial);
            let line = line.put("servers", servers).put("procs", 1).put("chunk_size", chunk_size);
            let line = line.put("chunks_per_call", *count).put("block_size", chunk * u64::from(*count));
            let line = line.put_rounded("mib_per_s", rate, 1).put_rounded("seconds", outcome.seconds, 6);
            runner.print(&line.end())?;
        }
    }
    engine.alone(&Step::CloseFile)?;
    engine.end()
}

fn picture(runner: &Runner<'_>, table: &Table, servers: u32) -> Picture {
    let options = runner.options;
    let series = options.chunk_sizes.iter().rev().map(|size| {
        let name = size_name(u64::from(*size));
        let points = table.points(&name);
        Series { name: format!("chunks of {name}"), points, is_reference: false }
    });
    let title = match options.serial {
        true => "one request after the other",
        false => "all requests of a call at once",
    };
    let mut picture = runner.picture(&format!("One process writes to {servers} servers: {title}"));
    picture.panels.push(Panel {
        title: "bandwidth by the size of a call".to_owned(),
        x_label: "chunks written in one call".to_owned(),
        y_label: "MiB per second (log)".to_owned(),
        categories: options.chunk_counts.iter().map(u32::to_string).collect(),
        series: series.collect(),
        look: Look::LogLines,
    });
    picture
}
