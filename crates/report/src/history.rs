//! `tabane-report history`: a run of a program among the earlier ones of its name.

use crate::analysis::Row;
use crate::asked::{Asked, tell};
use crate::csv_profile::{Table, number, text};
use crate::database::{self, values};
use crate::failure::{Failure, Outcome};
use crate::options::HistoryOptions;
use crate::{place, times, words};

const HEAD: [&str; 13] = [
    "job",
    "name",
    "user",
    "state",
    "start",
    "time",
    "seconds",
    "servers",
    "read_bytes",
    "write_bytes",
    "whose_bytes",
    "req_waittime",
    "req_qdepth",
];
/// Runs that are looked at; of more the last ones.
const RUNS_MAX: i64 = 1_000;
/// Runs that are told of in words; of more the last ones.
const RUNS_TOLD_MAX: usize = 20;
/// From here on a run is another one than usual.
const DIFFERENCE_LEAST: f64 = 1.25;

/// One run.
#[derive(Debug, Clone, Default)]
struct NamedRun {
    id: String,
    user: Option<String>,
    state: Option<String>,
    start: i64,
    when: String,
    seconds: f64,
    running: bool,
    servers: usize,
    read_bytes: Option<f64>,
    write_bytes: Option<f64>,
    /// Whether the bytes are the job's own, or all that its servers had.
    own: bool,
    wait: Option<f64>,
    depth: Option<f64>,
}

/// What a run is compared by.
type HistoryMeasure = (&'static str, fn(&NamedRun) -> Option<f64>, fn(f64) -> String);

const MEASURES: [HistoryMeasure; 5] = [
    ("it took", |run| Some(run.seconds), |seconds| words::duration((seconds * 1e9) as i64)),
    ("requests waited for", |run| run.wait, words::microseconds),
    ("found waiting were", |run| run.depth, words::number),
    ("it read", |run| run.read_bytes, words::size),
    ("it wrote", |run| run.write_bytes, words::size),
];

pub fn run(options: &HistoryOptions) -> Outcome {
    let ids = ids_of(options)?;
    let mut runs = Vec::with_capacity(ids.len());
    for id in &ids {
        // One whose times are wrong is no run that others can be held against.
        match Asked::open(id, &options.place, &options.asking) {
            Ok(asked) => runs.push(NamedRun::of(&asked)?),
            Err(Failure::Failed(words)) => eprintln!("tabane-report: {words}; it is left out"),
            Err(failure) => return Err(failure),
        }
    }
    let wanted = match &options.id {
        Some(id) => runs.iter().position(|run| run.id == *id),
        None => runs.len().checked_sub(1),
    };
    let Some(wanted) = wanted else {
        let id = options.id.as_deref().unwrap_or_default();
        return Err(Failure::failed(format!(
            "none of the last {} of the name {} is job {}",
            words::plural(runs.len() as u64, "run"),
            words::name(&options.name),
            words::name(id)
        )));
    };
    if let Some(name) = &options.csv {
        let mut table = Table::begin(name, &HEAD)?;
        runs.iter().try_for_each(|run| table.row(cells(run, &options.name)))?;
        table.end()?;
    }
    tell(&told(&runs, wanted, &options.name), options.csv.as_deref())
}

/// Ids of the jobs of a name that have begun, in the order of their starts.
fn ids_of(options: &HistoryOptions) -> Outcome<Vec<String>> {
    let database = place::open(&options.place)?;
    let failed = |error: database::Error| place::about(&options.place, &error);
    let statement = "SELECT job_id FROM jobs WHERE name = ?1 AND start_ns IS NOT NULL
                     ORDER BY start_ns DESC, job_id DESC LIMIT ?2";
    let read = |row: &database::Row<'_>| row.get(0);
    let mut ids: Vec<String> = database.query(statement, values![&options.name, RUNS_MAX], read).map_err(failed)?;
    ids.reverse();
    if ids.is_empty() {
        return Err(Failure::failed(format!(
            "no job of the name {} has begun, as far as {} knows",
            words::name(&options.name),
            options.place.display()
        )));
    }
    Ok(ids)
}

impl NamedRun {
    fn of(asked: &Asked) -> Outcome<NamedRun> {
        let question = asked.question();
        let (job, mut rows) = (&asked.job, Vec::new());
        let (mut own_read, mut own_written): (Option<f64>, Option<f64>) = (None, None);
        for (server, _) in &asked.found.names {
            let profile = question.profile(server).map_err(|error| asked.failed(error))?;
            let plus = |sum: Option<f64>, more: Option<i64>| match more {
                Some(more) => Some(sum.unwrap_or(0.0) + more as f64),
                None => sum,
            };
            own_read = plus(own_read, profile.job_read_bytes);
            own_written = plus(own_written, profile.job_write_bytes);
            rows.push(profile.whole);
        }
        let seconds = (job.end - job.start) as f64 / 1e9;
        let own = own_read.or(own_written).is_some();
        let sum = |of: fn(&Row) -> Option<f64>| {
            rows.iter().filter_map(of).reduce(|one, other| one + other).map(|rate| rate * seconds)
        };
        Ok(NamedRun {
            id: job.id.clone(),
            user: job.user.clone(),
            state: job.state.clone(),
            start: job.start,
            when: times::readable(job.start, &asked.zone),
            seconds,
            running: job.running,
            servers: rows.len(),
            read_bytes: if own { own_read } else { sum(|row| row.read_bytes) },
            write_bytes: if own { own_written } else { sum(|row| row.write_bytes) },
            own,
            wait: mean(&rows, |row| row.wait),
            depth: mean(&rows, |row| row.depth),
        })
    }
}

/// Over the requests of all servers.
fn mean(rows: &[Row], of: fn(&Row) -> Option<f64>) -> Option<f64> {
    let known = rows.iter().filter_map(|row| Some((of(row)?, row.requests?)));
    let (sum, requests) =
        known.fold((0.0, 0.0), |(sum, all), (value, requests)| (sum + value * requests, all + requests));
    (requests > 0.0).then(|| sum / requests)
}

fn told(runs: &[NamedRun], wanted: usize, name: &str) -> String {
    let this = &runs[wanted];
    let earlier = &runs[..wanted];
    let mut lines = vec![format!("{} of the name {}", words::plural(runs.len() as u64, "run"), words::name(name))];
    lines.push(format!(
        "  {:19} {:>16} {:>12} {:>12} {:>10} {:>10}  job",
        "start", "time", "read", "written", "wait", "qdepth"
    ));
    if runs.len() > RUNS_TOLD_MAX {
        lines.push(format!("  ... {} earlier", words::count((runs.len() - RUNS_TOLD_MAX) as u64)));
    }
    let first = runs.len().saturating_sub(RUNS_TOLD_MAX);
    for (index, run) in runs.iter().enumerate().skip(first) {
        let show = |value: Option<f64>, show: fn(f64) -> String| value.map_or("-".to_owned(), show);
        let state = run.state.as_ref().map(|state| format!(", {}", words::name(state))).unwrap_or_default();
        let marks = [
            if run.own { "" } else { " (all bytes of its servers)" },
            if index == wanted { " <- this run" } else { "" },
        ];
        lines.push(format!(
            "  {:19} {:>16} {:>12} {:>12} {:>10} {:>10}  {}{state}{}",
            run.when,
            words::duration((run.seconds * 1e9) as i64),
            show(run.read_bytes, words::size),
            show(run.write_bytes, words::size),
            show(run.wait, words::microseconds),
            show(run.depth, words::number),
            words::name(&run.id),
            marks.concat()
        ));
    }
    lines.extend(sentences(this, earlier));
    lines.join("\n") + "\n"
}

/// How a run differs from the middle of those before it.
fn sentences(this: &NamedRun, earlier: &[NamedRun]) -> Vec<String> {
    let ended: Vec<&NamedRun> = earlier.iter().filter(|run| !run.running && run.own == this.own).collect();
    if ended.is_empty() {
        return vec!["there is no earlier run to hold it against".to_owned()];
    }
    let mut lines = Vec::new();
    for (words_of, of, show) in MEASURES {
        let mut values: Vec<f64> = ended.iter().filter_map(|run| of(run)).collect();
        values.sort_by(f64::total_cmp);
        let (Some(value), Some(usual)) = (of(this), middle(&values)) else { continue };
        let times = if value == usual { 1.0 } else { value / usual };
        if times >= DIFFERENCE_LEAST || times <= 1.0 / DIFFERENCE_LEAST {
            let ratio = if times.is_finite() { format!(", {} times", words::number(times)) } else { String::new() };
            let runs = words::plural(values.len() as u64, "earlier run");
            lines.push(format!("{words_of} {}{ratio} the {} of {runs}", show(value), show(usual)));
        }
    }
    if lines.is_empty() {
        let runs = words::plural(ended.len() as u64, "earlier run");
        lines.push(format!("it is as {runs}: nothing differs by a quarter or more from the middle of them"));
    }
    lines
}

/// The median of sorted values.
fn middle(sorted: &[f64]) -> Option<f64> {
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        count if count % 2 == 1 => Some(sorted[half]),
        _ => Some((sorted[half - 1] + sorted[half]) / 2.0),
    }
}

fn cells(run: &NamedRun, name: &str) -> [String; HEAD.len()] {
    let optional = |value: &Option<String>| value.as_deref().map(text).unwrap_or_default();
    [
        text(&run.id),
        text(name),
        optional(&run.user),
        optional(&run.state),
        times::seconds(run.start),
        times::exact(run.start),
        number(Some(run.seconds)),
        run.servers.to_string(),
        number(run.read_bytes),
        number(run.write_bytes),
        if run.own { "job" } else { "servers" }.to_owned(),
        number(run.wait),
        number(run.depth),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a run is held against the median of those before it that have ended; by hand.
    #[test]
    fn against_earlier_ones() {
        let run = |seconds: f64, wait: Option<f64>| NamedRun { seconds, wait, ..NamedRun::default() };
        let earlier = [run(100.0, Some(10.0)), run(300.0, None), run(110.0, Some(20.0)), run(120.0, Some(30.0))];
        let said = sentences(&run(230.0, Some(21.0)), &earlier);
        assert_eq!(said, ["it took 3 min 50 s, 2.00 times the 1 min 55 s of 4 earlier runs"]);
        let said = sentences(&run(115.0, Some(5.0)), &earlier);
        assert_eq!(said, ["requests waited for 5.00 us, 0.250 times the 20.0 us of 3 earlier runs"]);
        assert!(sentences(&run(1.0, None), &[])[0].contains("no earlier run"));
        let running = NamedRun { running: true, ..run(1.0, None) };
        assert!(sentences(&run(1.0, None), &[running])[0].contains("no earlier run"));
        assert!(sentences(&run(115.0, None), &earlier)[0].contains("as 4 earlier runs"));
    }
}
