//! F1.8: very many clients open the same file at once. What it takes until all have it open, and how many requests the
//! file's home answers for that.

use crate::engine::{Engine, Line, Served, Setting, spread};
use crate::experiment::{Runner, Table};
use crate::plot::{Look, Panel, Picture, Series};
use crate::step::Step;

const SERVERS: u32 = 8;
const SIMULATED_STORE_SIZE: u64 = 64 << 20;

pub fn run(runner: &Runner<'_>) -> Result<Picture, String> {
    let options = runner.options;
    let servers = if options.is_given("servers") { options.servers } else { SERVERS };
    let mut table = Table::default();
    for (category, clients) in options.client_counts.iter().enumerate() {
        let setting = Setting {
            servers,
            procs: *clients,
            placement: options.placement.clone(),
            chunk_size: options.chunk_size,
            store_size: SIMULATED_STORE_SIZE,
        };
        let mut engine = runner.start(&setting)?;
        let path = prepare(runner, engine.as_mut())?;
        for _ in 0..runner.repeats() {
            let before = engine.served()?;
            let open = Step::OpenFile { path: path.clone(), shared: true, chunk_size: 0, write: false };
            let outcome = engine.all(&open)?;
            let served = Served::between(&before, &engine.served()?);
            engine.all(&Step::CloseFile)?;
            let requests: Vec<u64> = served.iter().map(|served| served.requests).collect();
            // Contacts leave to the home what they do not know; it is the only one that is asked as a home.
            let home = served.iter().max_by_key(|served| served.opens_at_home);
            let home = home.map_or(0, |served| served.requests);
            table.add("seconds", category, outcome.seconds * 1e3);
            table.add("home", category, home as f64);
            let line = Line::new("open-storm").put("engine", runner.engine_name()).put("servers", servers);
            let line = line.put("contact", options.contact.word());
            let line = line.put("clients", *clients).put_rounded("seconds", outcome.seconds, 6);
            let line = line.put_rounded("ops_per_s", f64::from(*clients) / outcome.seconds, 1);
            let line = line.put("home_requests", home).put("requests_per_server", requests.clone());
            runner.print(&line.put_rounded("spread", spread(&requests), 3).end())?;
        }
        engine.end()?;
    }
    Ok(picture(runner, &table, servers))
}

/// Makes the file. All clients know it by then, and have their connections.
fn prepare(runner: &Runner<'_>, engine: &mut dyn Engine) -> Result<String, String> {
    engine.alone(&Step::MakeDirectory { path: runner.directory.clone() })?;
    let path = format!("{}/shared", runner.directory);
    engine.alone(&Step::OpenFile { path: path.clone(), shared: true, chunk_size: 0, write: true })?;
    engine.alone(&Step::MovePieces { shared: false, size: 4096, count: 1, write: true })?;
    engine.alone(&Step::CloseFile)?;
    engine.all(&Step::Look { path: path.clone() })?;
    Ok(path)
}

fn picture(runner: &Runner<'_>, table: &Table, servers: u32) -> Picture {
    let counts = &runner.options.client_counts;
    let categories: Vec<String> = counts.iter().map(u32::to_string).collect();
    let mut picture = runner.picture(&format!("Many clients open one file at once, {servers} servers"));
    let times = table.points("seconds");
    let mut series = vec![Series { name: "all have it open".to_owned(), points: times.clone(), is_reference: false }];
    if let Some((_, last)) = times.last().copied() {
        let most = f64::from(counts[counts.len() - 1]);
        let points = counts.iter().map(|count| last * f64::from(*count) / most).enumerate().collect();
        series.push(Series { name: "in proportion to the clients".to_owned(), points, is_reference: true });
    }
    picture.panels.push(Panel {
        title: "time until all have opened it".to_owned(),
        x_label: "clients".to_owned(),
        y_label: "milliseconds (log)".to_owned(),
        categories: categories.clone(),
        series,
        look: Look::LogLines,
    });
    let home = Series { name: "the file's home".to_owned(), points: table.points("home"), is_reference: false };
    picture.panels.push(Panel {
        title: "requests that the file's home answers".to_owned(),
        x_label: "clients".to_owned(),
        y_label: "requests (log)".to_owned(),
        categories,
        series: vec![home],
        look: Look::LogLines,
    });
    picture
}
