//! `tabane-report html`: all that is known of a job on one page, which needs no network and no scripts.
//!
//! Invariants: (1) whatever came from a log passes [`escaped`] on its way into the page; (2) the page's size is bounded
//! by what it has room for (columns, rows, findings), not by the job's time or servers: what shares a place shows the
//! most of it, so that peaks stay.

mod busy;
mod curve;
mod heat;
mod style;

pub use style::{HEAT_STYLE, STYLE};

use crate::advice::{Evidence, findings, nothing_words};
use crate::analysis::{Blame, Row, Whose, natural};
use crate::asked::Asked;
use crate::clock::Nanos;
use crate::csv_profile::write_whole;
use crate::database;
use crate::failure::{Failure, Outcome};
use crate::options::{HtmlOptions, Measure};
pub use crate::pictures::svg::escaped;
use crate::{times, words};
use curve::Curve;
use heat::HeatMap;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

/// Columns of pictures.
const COLUMNS_MAX: usize = 480;
/// Rows of the table of servers; of more those with most to bear.
const SERVERS_TOLD_MAX: usize = 200;
const NEIGHBOURS_TOLD_MAX: usize = 10;

pub fn run(options: &HtmlOptions) -> Outcome {
    let asked = Asked::open(&options.id, &options.place, &options.asking)?;
    let page = page(&asked)?;
    match &options.output {
        Some(file) => write(file, &page),
        None => std::io::stdout().write_all(page.as_bytes()).map_err(Failure::of_output),
    }
}

pub fn write(file: &Path, page: &str) -> Outcome {
    write_whole(file, |output| output.write_all(page.as_bytes()))
}

/// A row of the table of servers.
struct ServerLine {
    name: String,
    whole: Row,
    /// The most waiting, and when.
    most: Option<(Nanos, f64)>,
    gaps: u64,
    resets: u64,
}

/// What the page is made of.
struct Gathered {
    servers: Vec<ServerLine>,
    measure: Measure,
    waiting: HeatMap,
    bytes: HeatMap,
    read: Curve,
    written: Curve,
    requests: Curve,
    wait: Curve,
    job_read_bytes: Option<i64>,
    job_write_bytes: Option<i64>,
}

/// The page of a job.
pub fn page(asked: &Asked) -> Outcome<String> {
    let gathered = Gathered::of(asked)?;
    let evidence = Evidence::of(asked)?;
    let mut page = String::with_capacity(256 << 10);
    let title = asked.job_words();
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{}</title>\n<style>{STYLE}{}</style></head>\n<body><main>\n<h1>{}</h1>\n",
        escaped(&title),
        HEAT_STYLE.as_str(),
        escaped(&title)
    );
    put_facts(&mut page, asked, &gathered);
    put_findings(&mut page, &evidence);
    put_curves(&mut page, asked, &gathered);
    put_heat_maps(&mut page, asked, &gathered);
    put_neighbours(&mut page, asked)?;
    busy::put_ranks(&mut page, &evidence);
    busy::put_files(&mut page, asked)?;
    put_servers(&mut page, asked, &gathered);
    put_notes(&mut page, asked, &gathered);
    page.push_str("</main></body></html>\n");
    Ok(page)
}

impl Gathered {
    fn of(asked: &Asked) -> Outcome<Gathered> {
        let question = asked.question();
        let intervals = ((asked.job.end - asked.job.start) as u64).div_ceil(asked.interval as u64) as usize;
        let merged = intervals.div_ceil(COLUMNS_MAX).max(1);
        let names = &asked.found.names;
        // Servers that tell of a queue come from Lustre; those of Tabane tell how long requests waited.
        let mut depth = HeatMap::new(Measure::ReqQdepth, names.len(), merged);
        let mut wait_map = HeatMap::new(Measure::ReqWaittime, names.len(), merged);
        let mut bytes = HeatMap::new(Measure::Bytes, names.len(), merged);
        let mut sums = Sums::new(intervals);
        let mut servers = Vec::with_capacity(names.len());
        let (mut job_read_bytes, mut job_write_bytes): (Option<i64>, Option<i64>) = (None, None);
        for (name, _) in names {
            let profile = question.profile(name).map_err(|error| asked.failed(error))?;
            [&mut depth, &mut wait_map, &mut bytes].into_iter().for_each(|map| map.add(name, &profile.rows));
            sums.add(&profile.rows);
            let plus = |sum: &mut Option<i64>, more: Option<i64>| {
                *sum = sum.map_or(more, |sum| Some(sum.saturating_add(more.unwrap_or(0))));
            };
            plus(&mut job_read_bytes, profile.job_read_bytes);
            plus(&mut job_write_bytes, profile.job_write_bytes);
            let most = profile.rows.iter().filter_map(|row| Some((row.from, row.depth.or(row.wait)?)));
            let most = most.reduce(|most, next| if next.1 > most.1 { next } else { most });
            let (whole, gaps, resets) = (profile.whole, profile.gaps, profile.resets);
            servers.push(ServerLine { name: name.clone(), whole, most, gaps, resets });
        }
        let has_queue = servers.iter().any(|server| server.whole.depth.is_some());
        let (measure, waiting) = if has_queue { (Measure::ReqQdepth, depth) } else { (Measure::ReqWaittime, wait_map) };
        let curve = |values: &[Option<f64>]| Curve::thinned(values, merged);
        Ok(Gathered {
            servers,
            measure,
            waiting,
            bytes,
            read: curve(&sums.read),
            written: curve(&sums.written),
            requests: curve(&sums.requests),
            wait: curve(&sums.wait),
            job_read_bytes,
            job_write_bytes,
        })
    }
}

/// Of all servers by interval: rates are added up, of waiting it is the most.
struct Sums {
    read: Vec<Option<f64>>,
    written: Vec<Option<f64>>,
    requests: Vec<Option<f64>>,
    wait: Vec<Option<f64>>,
}

impl Sums {
    fn new(intervals: usize) -> Sums {
        let empty = || vec![None; intervals];
        Sums { read: empty(), written: empty(), requests: empty(), wait: empty() }
    }

    fn add(&mut self, rows: &[Row]) {
        let plus = |sum: &mut Option<f64>, more: Option<f64>| {
            if let Some(more) = more {
                *sum = Some(sum.unwrap_or(0.0) + more);
            }
        };
        for (index, row) in rows.iter().enumerate() {
            plus(&mut self.read[index], row.read_bytes);
            plus(&mut self.written[index], row.write_bytes);
            plus(&mut self.requests[index], row.requests);
            self.wait[index] = self.wait[index].into_iter().chain(row.wait).reduce(f64::max);
        }
    }
}

fn shown(value: Option<f64>, show: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

fn rate(value: f64) -> String {
    format!("{}/s", words::size(value))
}

fn put_facts(page: &mut String, asked: &Asked, gathered: &Gathered) {
    let job = &asked.job;
    let by = job.user.as_ref().map(|user| format!("by {}, ", words::name(user))).unwrap_or_default();
    let state = job.state.as_ref().map(|state| format!("{}, ", words::name(state))).unwrap_or_default();
    let _ = writeln!(page, "<p class=\"dim\">{}</p>", escaped(&format!("{by}{state}{}", asked.times_words())));
    let seconds = (job.end - job.start) as f64 / 1e9;
    let sum = |of: fn(&Row) -> Option<f64>| {
        let all = gathered.servers.iter().filter_map(|server| of(&server.whole));
        all.reduce(|one, other| one + other).map(|rate| rate * seconds)
    };
    let bytes = |bytes: Option<i64>| bytes.map(|bytes| bytes as f64);
    let own = gathered.job_read_bytes.or(gathered.job_write_bytes).is_some();
    let (read, written, whose) = match own {
        true => (bytes(gathered.job_read_bytes), bytes(gathered.job_write_bytes), "by the job itself"),
        false => (sum(|row| row.read_bytes), sum(|row| row.write_bytes), "of all at its servers"),
    };
    let most = gathered.servers.iter().filter_map(|server| Some((server, server.most?)));
    let most = most.max_by(|one, other| one.1.1.total_cmp(&other.1.1));
    let nodes = match job.nodes.len() {
        0 => "not known".to_owned(),
        count => words::count(count as u64),
    };
    let mut facts = vec![
        ("time", words::duration(job.end - job.start), String::new()),
        ("read", shown(read, words::size), whose.to_owned()),
        ("written", shown(written, words::size), whose.to_owned()),
        ("servers", words::count(gathered.servers.len() as u64), asked.found.how.to_owned()),
        ("nodes", nodes, String::new()),
    ];
    if let Some((server, (at, value))) = most {
        let about = format!("{}, {}", words::name(&server.name), times::clock_time(at, &asked.zone));
        let name = if gathered.measure == Measure::ReqQdepth { "most waiting" } else { "longest wait" };
        facts.push((name, gathered.measure.words(value), about));
    }
    page.push_str("<dl class=\"facts\">\n");
    for (name, value, about) in facts {
        let _ =
            writeln!(page, "<div><dt>{name}</dt><dd>{}<small>{}</small></dd></div>", escaped(&value), escaped(&about));
    }
    page.push_str("</dl>\n");
}

fn put_findings(page: &mut String, evidence: &Evidence) {
    page.push_str("<h2>What should be changed</h2>\n");
    let found = findings(evidence);
    if found.is_empty() {
        let _ = writeln!(page, "<p>{}.</p>", escaped(nothing_words(evidence)));
        return;
    }
    page.push_str("<ul class=\"findings\">\n");
    for finding in found {
        let _ = writeln!(
            page,
            "<li><b>{}</b> {}.<br><span class=\"dim\">{} (chapter {}).</span></li>",
            finding.rule.name,
            escaped(&finding.words),
            escaped(finding.rule.change),
            finding.rule.chapter.trim_end_matches(".md")
        );
    }
    page.push_str("</ul>\n");
}

fn put_curves(page: &mut String, asked: &Asked, gathered: &Gathered) {
    page.push_str("<h2>Over time, all servers together</h2>\n");
    let span = (asked.job.start, asked.job.end);
    let number = |value: f64| format!("{}/s", words::number(value));
    let draw = |page: &mut String, title: &str, curve: &Curve, class: &str, show: &dyn Fn(f64) -> String| {
        curve.draw(page, title, class, span, &asked.zone, show);
    };
    draw(page, "read", &gathered.read, "one", &rate);
    draw(page, "written", &gathered.written, "two", &rate);
    draw(page, "requests", &gathered.requests, "one", &number);
    draw(page, "wait of a request, at the server where it was longest", &gathered.wait, "two", &words::microseconds);
}

fn put_heat_maps(page: &mut String, asked: &Asked, gathered: &Gathered) {
    let span = (asked.job.start, asked.job.end);
    for map in [&gathered.waiting, &gathered.bytes] {
        let _ = writeln!(page, "<h2>Servers by time: {}</h2>", escaped(map.title()));
        map.draw(page, span, &asked.zone);
    }
}

/// Who was in the way: where jobs are counted.
fn put_neighbours(page: &mut String, asked: &Asked) -> Outcome {
    let question = asked.question();
    let failed = |error: database::Error| asked.failed(error);
    let counted = question.is_counted().map_err(failed)?;
    if !counted {
        return Ok(());
    }
    let (mut seconds, mut all) = (BTreeMap::<Whose, f64>::new(), 0.0);
    for (server, _) in &asked.found.names {
        let waiting = question.waiting(server, counted).map_err(failed)?;
        all += waiting.seconds;
        let mut add = |blame: Option<Blame>| {
            if let Some(blame) = blame {
                *seconds.entry(blame.whose).or_default() += blame.seconds;
            }
        };
        for number in 0..waiting.other_count() {
            add(waiting.of_other(number).map_err(failed)?);
        }
        add(waiting.of_itself());
        add(waiting.of_nobody());
    }
    if all <= 0.0 {
        return Ok(());
    }
    let mut rows: Vec<(Whose, f64)> = seconds.into_iter().collect();
    rows.sort_by(|one, other| other.1.total_cmp(&one.1));
    page.push_str("<h2>Because of whom its requests waited</h2>\n<table><thead><tr><th>waiting</th><th>share</th>");
    page.push_str("<th class=\"left\">because of</th></tr></thead><tbody>\n");
    for (whose, seconds) in rows.into_iter().take(NEIGHBOURS_TOLD_MAX) {
        let name = match &whose {
            Whose::Itself => "the job itself".to_owned(),
            Whose::Nobody => "not known to be of any job".to_owned(),
            Whose::Other(id) => format!("job {}", words::name(id)),
        };
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{:.0} %</td><td class=\"left\">{}</td></tr>",
            words::microseconds(seconds * 1e6),
            100.0 * seconds / all,
            escaped(&name)
        );
    }
    page.push_str("</tbody></table>\n");
    Ok(())
}

fn put_servers(page: &mut String, asked: &Asked, gathered: &Gathered) {
    let mut servers: Vec<&ServerLine> = gathered.servers.iter().collect();
    let burden = |server: &ServerLine| server.most.map_or(-1.0, |(_, value)| value);
    servers.sort_by(|one, other| burden(other).total_cmp(&burden(one)));
    servers.truncate(SERVERS_TOLD_MAX);
    servers.sort_by_cached_key(|server| natural(&server.name));
    page.push_str("<h2>Servers</h2>\n");
    if gathered.servers.len() > servers.len() {
        let all = words::count(gathered.servers.len() as u64);
        let _ = writeln!(page, "<p class=\"dim\">Of {all} those with most waiting.</p>");
    }
    let most = if gathered.measure == Measure::ReqQdepth { "most waiting" } else { "longest wait" };
    let _ = writeln!(
        page,
        "<div class=\"wide\"><table><thead><tr><th class=\"left\">server</th><th>req_qdepth</th><th>req_active</th>\
         <th>req_waittime</th><th>requests/s</th><th>read</th><th>written</th><th>{most}</th><th>at</th>\
         <th class=\"left\"></th></tr></thead><tbody>"
    );
    for server in servers {
        let row = &server.whole;
        let (value, at) = match server.most {
            Some((at, value)) => (gathered.measure.words(value), times::clock_time(at, &asked.zone)),
            None => ("-".to_owned(), "-".to_owned()),
        };
        let mut doubts = Vec::new();
        if server.gaps > 0 {
            doubts.push("samples are missing");
        }
        if server.resets > 0 {
            doubts.push("counters began anew");
        }
        let _ = write!(page, "<tr><th scope=\"row\" class=\"left\">{}</th>", escaped(&words::name(&server.name)));
        for cell in [
            shown(row.depth, words::number),
            shown(row.active, words::number),
            shown(row.wait, words::microseconds),
            shown(row.requests, words::number),
            shown(row.read_bytes, rate),
            shown(row.write_bytes, rate),
            value,
            at,
        ] {
            let _ = write!(page, "<td>{cell}</td>");
        }
        let _ = writeln!(page, "<td class=\"left dim\">{}</td></tr>", doubts.join("; "));
    }
    page.push_str("</tbody></table></div>\n");
}

fn put_notes(page: &mut String, asked: &Asked, gathered: &Gathered) {
    let known = gathered.servers.iter().filter(|server| server.whole.requests.is_some()).count();
    let _ = writeln!(
        page,
        "<p class=\"dim\">Intervals of {}; pictures show the most of what shares a place, and grey what is not known. \
         Of {} servers {} have told of their requests. Times are of the zone {}. {}</p>",
        words::duration(asked.interval),
        words::count(gathered.servers.len() as u64),
        words::count(known as u64),
        escaped(asked.zone.iana_name().unwrap_or("of the machine that made this")),
        escaped(crate::version::line("tabane-report").trim())
    );
}
