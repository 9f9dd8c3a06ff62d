//! F1.8: very many clients open the same file at once. What it takes until all have it open, and how many requests the
//! file's home answers for that, with contacts and without.
//!
//! Each storm is of a file of its own, all with the same home, so that nothing is known of it before. A first one,
//! counted by itself, is the one in which clients and contacts make the connections that they had not. What the machine
//! allows stands beside each: all clients send the home a request without work, and all are woken to do nothing.

use crate::engine::{Engine, Line, Served, Setting, spread};
use crate::experiment::{Runner, Table};
use crate::plot::{Look, Panel, Picture, Series};
use crate::step::Step;
use client::Contact;

const SERVERS: u32 = 8;
const SIMULATED_STORE_SIZE: u64 = 64 << 20;

/// The curve of requests without work.
const PINGS: &str = "pings";

/// What came of a storm.
struct Storm {
    seconds: f64,
    /// By server.
    requests: Vec<u64>,
}

pub fn run(runner: &Runner<'_>) -> Result<Picture, String> {
    let options = runner.options;
    let servers = if options.is_given("servers") { options.servers } else { SERVERS };
    let mut table = Table::default();
    for contact in &options.contacts {
        for (category, clients) in options.client_counts.iter().enumerate() {
            let setting = Setting {
                servers,
                procs: *clients,
                placement: options.placement.clone(),
                chunk_size: options.chunk_size,
                store_size: SIMULATED_STORE_SIZE,
                contact: *contact,
                ..Setting::default()
            };
            let mut engine = runner.start(&setting)?;
            let (home, paths) = prepare(runner, engine.as_mut())?;
            let first = storm(engine.as_mut(), &paths[0])?;
            for path in &paths[1..] {
                let ping_seconds = engine.all(&Step::Ping { server: home })?.seconds;
                let wake_seconds = engine.all(&Step::Rest)?.seconds;
                let Storm { seconds, requests } = storm(engine.as_mut(), path)?;
                let at_home = requests[home as usize];
                table.add(curve("time", *contact), category, seconds * 1e6 / f64::from(*clients));
                table.add(curve("home", *contact), category, at_home as f64);
                table.add(PINGS.to_owned(), category, ping_seconds * 1e6 / f64::from(*clients));
                let line = Line::new("open-storm").put("engine", runner.engine_name()).put("servers", servers);
                let line = line.put("contact", contact.word());
                let line = line.put("clients", *clients).put_rounded("seconds", seconds, 6);
                let line = line.put_rounded("first_seconds", first.seconds, 6);
                let line = line.put_rounded("ops_per_s", f64::from(*clients) / seconds, 1);
                let line =
                    line.put_rounded("ping_seconds", ping_seconds, 6).put_rounded("wake_seconds", wake_seconds, 6);
                let line = line.put("home_requests", at_home).put("requests_per_server", requests.clone());
                runner.print(&line.put_rounded("spread", spread(&requests), 3).end())?;
            }
            engine.end()?;
        }
    }
    Ok(picture(runner, &table, servers))
}

/// Makes the files, one more than there are runs. All clients know the directory by then, and have the connections that
/// they need without contacts. The home of the files, and their paths.
fn prepare(runner: &Runner<'_>, engine: &mut dyn Engine) -> Result<(u32, Vec<String>), String> {
    let directory = &runner.directory;
    engine.alone(&Step::MakeDirectory { path: directory.clone() })?;
    let looked = engine.alone(&Step::Look { path: directory.clone() })?;
    let id = looked.places.first().map(|place| place.id).ok_or_else(|| format!("{directory}: has no id"))?;
    let home = engine.server_of(id, "shared0");
    let names = (0..).map(|number| format!("shared{number}")).filter(|name| engine.server_of(id, name) == home);
    let names: Vec<String> = names.take(runner.repeats() as usize + 1).collect();
    let mut paths = Vec::new();
    for name in names {
        let path = format!("{directory}/{name}");
        engine.alone(&Step::OpenFile { path: path.clone(), shared: true, chunk_size: 0, write: true })?;
        engine.alone(&Step::MovePieces { shared: false, size: 4096, count: 1, write: true })?;
        engine.alone(&Step::CloseFile)?;
        paths.push(path);
    }
    engine.all(&Step::Look { path: paths[0].clone() })?;
    Ok((home, paths))
}

fn storm(engine: &mut dyn Engine, path: &str) -> Result<Storm, String> {
    let before = engine.served()?;
    let open = Step::OpenFile { path: path.to_owned(), shared: true, chunk_size: 0, write: false };
    let seconds = engine.all(&open)?.seconds;
    let served = Served::between(&before, &engine.served()?);
    engine.all(&Step::CloseFile)?;
    Ok(Storm { seconds, requests: served.iter().map(|served| served.requests).collect() })
}

fn curve(what: &str, contact: Contact) -> String {
    format!("{what}, {}", contact.word())
}

fn picture(runner: &Runner<'_>, table: &Table, servers: u32) -> Picture {
    let options = runner.options;
    let categories: Vec<String> = options.client_counts.iter().map(u32::to_string).collect();
    let mut picture = runner.picture(&format!("Many clients open one file at once, {servers} servers"));
    let panels = [
        ("time", "time until all have it open, for each open", "microseconds an open (log)"),
        ("home", "requests that the file's home answers", "requests (log)"),
    ];
    for (what, title, y_label) in panels {
        let series = options.contacts.iter().map(|contact| Series {
            name: match contact {
                Contact::Off => "without contacts".to_owned(),
                Contact::Always => "with contacts".to_owned(),
                Contact::Auto => "contacts where they pay".to_owned(),
            },
            points: table.points(&curve(what, *contact)),
            is_reference: false,
        });
        let mut series: Vec<Series> = series.collect();
        if what == "time" {
            let points = table.points(PINGS);
            series.push(Series { name: "a request without work".to_owned(), points, is_reference: true });
        }
        picture.panels.push(Panel {
            title: title.to_owned(),
            x_label: "clients".to_owned(),
            y_label: y_label.to_owned(),
            categories: categories.clone(),
            series,
            look: Look::LogLines,
        });
    }
    picture
}
