//! F1.3: IO500's question (newer than a file, `*01*` in the name, 3,901 bytes) over all files that mdtest made,
//! answered in three ways over a growing number of servers, with files in proportion: one process a server, each asking
//! its servers to test what they hold; the same, each testing itself what its servers list; and one process with
//! readdir and stat.

use crate::engine::{Engine, Line, Setting};
use crate::experiment::{Runner, Table};
use crate::plot::{Look, Panel, Picture, Series};
use crate::report::grouped;
use crate::step::{NEEDLE, SearchRoot, Step, Way};
use crate::workload_mdtest::Tree;
use client::Contact;

/// Files of each kind for each server, in simulations unless said otherwise.
const SIMULATED_FILES: u64 = 300;
/// Processes that make the files in a simulation: each has a connection to every server.
const SIMULATED_MAKERS_MAX: u32 = 8;
const SIMULATED_STORE_SIZE: u64 = 256 << 20;

const IDEAL: &str = "in proportion to the servers";

pub fn run(runner: &Runner<'_>) -> Result<Picture, String> {
    let options = runner.options;
    let files = match options.simulate && !options.is_given("files") {
        true => SIMULATED_FILES,
        false => options.files,
    };
    let mut table = Table::default();
    for (category, servers) in options.server_counts.iter().enumerate() {
        let setting = Setting {
            servers: *servers,
            procs: *servers,
            placement: options.placement.clone(),
            chunk_size: options.chunk_size,
            store_size: SIMULATED_STORE_SIZE,
            contact: Contact::default(),
            ..Setting::default()
        };
        for _ in 0..runner.repeats() {
            let mut engine = runner.start(&setting)?;
            let tree = make_tree(runner, engine.as_mut(), *servers, files)?;
            for way in Way::ALL {
                let seconds = search(engine.as_mut(), way, &tree)?;
                let rate = tree.entries as f64 / seconds;
                table.add(way.name(), category, rate);
                let line = Line::new("find").put("engine", runner.engine_name()).put("way", way.name());
                let procs = if way == Way::Stat { 1 } else { *servers };
                let line = line.put("servers", *servers).put("procs", procs).put("entries", tree.entries);
                let line = line.put("found", tree.fitting).put_rounded("seconds", seconds, 6);
                runner.print(&line.put_rounded("ops_per_s", rate, 1).end())?;
            }
            engine.end()?;
        }
    }
    Ok(picture(runner, &table, files))
}

/// What is searched.
struct Searched {
    top: SearchRoot,
    newer_than: i64,
    /// All entries, and those that fit.
    entries: u64,
    fitting: u64,
}

/// Old files that fit otherwise, the stamp, then the files of mdtest-easy and mdtest-hard.
fn make_tree(runner: &Runner<'_>, engine: &mut dyn Engine, servers: u32, files: u64) -> Result<Searched, String> {
    let base = format!("{}/find", runner.directory);
    let makers = if runner.options.simulate { servers.min(SIMULATED_MAKERS_MAX) } else { servers };
    let count = files * u64::from(servers) / u64::from(makers);
    let old = (count / 10).max(1);
    let (easy, hard, past) = (format!("{base}/easy"), format!("{base}/hard"), format!("{base}/old"));
    for path in [&easy, &hard, &past] {
        engine.alone(&Step::MakeDirectory { path: path.clone() })?;
    }
    for rank in 0..makers {
        engine.alone(&Step::MakeDirectory { path: Tree::new(&easy, false).directory(rank) })?;
    }
    let make = |path: &str, hard, count| Step::MakeFiles { path: path.to_owned(), hard, count, at_once: true };
    engine.act(&make(&past, true, old), 0..makers)?;
    let newer_than = stamp(engine, &format!("{base}/stamp"))?;
    engine.act(&make(&easy, false, count), 0..makers)?;
    engine.act(&make(&hard, true, count), 0..makers)?;
    let top = engine.alone(&Step::Look { path: base })?.places.swap_remove(0);
    let fits = |rank: u32, index: u64| Tree::name(rank, index).contains(NEEDLE);
    let fitting = (0..makers).map(|rank| (0..count).filter(|index| fits(rank, *index)).count() as u64).sum();
    // Three directories, the stamp, a directory of each maker, its files of three kinds.
    let entries = 4 + u64::from(makers) * (1 + old + 2 * count);
    Ok(Searched { top, newer_than, entries, fitting })
}

/// A file's time, which everything that is made later is newer than.
fn stamp(engine: &mut dyn Engine, path: &str) -> Result<i64, String> {
    let file = |path: &str| Step::OpenFile { path: path.to_owned(), shared: true, chunk_size: 0, write: true };
    engine.alone(&file(path))?;
    engine.alone(&Step::CloseFile)?;
    Ok(engine.alone(&Step::Look { path: path.to_owned() })?.number)
}

/// Level by level: what one process meets, all search next. The time of all levels; words if what was found is wrong.
fn search(engine: &mut dyn Engine, way: Way, tree: &Searched) -> Result<f64, String> {
    let (mut seconds, mut met, mut found) = (0.0, 0, 0);
    let mut places = vec![tree.top.clone()];
    while !places.is_empty() {
        let step = Step::Find { way, newer_than: tree.newer_than, places };
        let outcome = match way {
            Way::Stat => engine.act(&step, 0..1)?,
            _ => engine.all(&step)?,
        };
        seconds += outcome.seconds;
        met += outcome.work();
        found += outcome.number();
        places = outcome.done.into_iter().flat_map(|done| done.places).collect();
        places.sort_unstable_by_key(|place| place.id);
    }
    // Servers that test send directories and a number alone.
    if way != Way::Servers && met != tree.entries {
        return Err(format!("{}: met {met} of {} entries", way.name(), tree.entries));
    }
    if found != tree.fitting as i64 {
        return Err(format!("{}: found {found} of {} files", way.name(), tree.fitting));
    }
    Ok(seconds)
}

fn picture(runner: &Runner<'_>, table: &Table, files: u64) -> Picture {
    let counts = &runner.options.server_counts;
    let names = [
        (Way::Servers, "one process a server, tested on the servers"),
        (Way::Index, "one process a server, listed by server, tested there"),
        (Way::Stat, "one process, readdir and stat"),
    ];
    let mut series: Vec<Series> = names
        .iter()
        .map(|(way, name)| Series { name: (*name).to_owned(), points: table.points(way.name()), is_reference: false })
        .collect();
    if let Some((_, first)) = series[0].points.first().copied() {
        let ideal = |count: &u32| first * f64::from(*count) / f64::from(counts[0]);
        let points = counts.iter().map(ideal).enumerate().collect();
        series.push(Series { name: IDEAL.to_owned(), points, is_reference: true });
    }
    let mut picture = runner.picture("Searching all files: newer, *01*, 3,901 bytes");
    picture.panels.push(Panel {
        title: format!("entries searched a second; {} files a server", grouped((2 * files) as f64)),
        x_label: "servers".to_owned(),
        y_label: "entries per second (log)".to_owned(),
        categories: counts.iter().map(u32::to_string).collect(),
        series,
        look: Look::LogLines,
    });
    picture
}
