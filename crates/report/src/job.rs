//! `tabane-report job`: what a job did, and how its servers were meanwhile.

use crate::analysis::{HowKnown, Profile, Question, Row};
use crate::asked::{Asked, tell};
use crate::csv_profile::{Target, write_whole};
use crate::darshan::DarshanLog;
use crate::database::{self, Database};
use crate::failure::Outcome;
use crate::options::{JobOptions, Map};
use crate::pictures::{Head, machine, servers};
use crate::sources::{NETWORKS, Network};
use crate::{times, words};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::Write;

/// Servers that are told of one by one; of others those that had most to bear.
const SERVERS_TOLD_MAX: usize = 16;

pub fn run(options: &JobOptions) -> Outcome {
    let asked = Asked::open(&options.id, &options.place, &options.asking)?;
    Answer { options, asked: &asked, question: &asked.question() }.give()
}

struct Answer<'a> {
    options: &'a JobOptions,
    asked: &'a Asked,
    question: &'a Question<'a>,
}

impl Answer<'_> {
    fn give(&self) -> Outcome {
        // Before anything is written: what can't be read is no answer.
        let darshan = self.options.darshan.as_deref().map(crate::darshan::read).transpose()?;
        let mut csv = self.options.csv.as_deref().map(Target::open).transpose()?;
        let draws = self.options.heat_map.is_some();
        let by_time = draws && self.options.map == Map::Servers;
        let intervals =
            ((self.asked.job.end - self.asked.job.start) as u64).div_ceil(self.question.interval as u64) as usize;
        let mut picture = servers::ServersPicture::new(self.options.measure, intervals, self.options.congested_from);
        let mut values = HashMap::new();
        let mut told = Vec::new();
        for (server, nodes) in &self.asked.found.names {
            let mut profile = self.question.profile(server).map_err(|error| self.asked.failed(error))?;
            if let Some(csv) = &mut csv {
                csv.write(&self.asked.job.id, &profile)?;
            }
            if by_time || self.options.congested_from.is_some() {
                picture.add(server, &profile.rows);
            }
            values.insert(server.clone(), self.options.measure.of(&profile.whole));
            let peak = peak_of(&profile);
            profile.rows = Vec::new();
            told.push((profile, peak, *nodes));
        }
        if let Some(csv) = csv {
            csv.end()?;
        }
        self.tell(&told, picture.congestion(), darshan.as_ref())?;
        match (&self.options.heat_map, self.options.map) {
            (None, _) => Ok(()),
            (Some(_), Map::Servers) => {
                let span = (self.asked.job.start, self.asked.job.end);
                let text = picture.draw(&self.head(), span, self.options.scale, &self.asked.zone);
                self.write_picture(&text)
            }
            (Some(_), Map::Machine) => self.draw_machine(values),
        }
    }

    fn write_picture(&self, text: &str) -> Outcome {
        match &self.options.heat_map {
            Some(file) => write_whole(file, |output| output.write_all(text.as_bytes())),
            None => Ok(()),
        }
    }

    /// The whole machine, so also what servers of others had to bear.
    fn draw_machine(&self, mut values: HashMap<String, Option<f64>>) -> Outcome {
        let database = self.question.database;
        let layout = machine::layout(database, &self.asked.job).map_err(|error| self.asked.failed(error))?;
        for server in all_servers(database).map_err(|error| self.asked.failed(error))? {
            if let Entry::Vacant(free) = values.entry(server) {
                let profile = self.question.profile(free.key()).map_err(|error| self.asked.failed(error))?;
                free.insert(self.options.measure.of(&profile.whole));
            }
        }
        let mut head = self.head();
        head.about.push("Each place: what its I/O servers had to bear on average; the job's places are framed.".into());
        if layout.left_out > 0 {
            eprintln!("{} without coordinates are left out of the map", words::plural(layout.left_out, "node"));
        }
        let (measure, scale, congested_from) = (self.options.measure, self.options.scale, self.options.congested_from);
        let picture = machine::Picture { measure, scale, congested_from, head, values: &values };
        let text = picture.draw(database, &self.asked.job, &layout).map_err(|error| self.asked.failed(error))?;
        self.write_picture(&text)
    }

    fn head(&self) -> Head {
        let title = format!("{}: {}", self.asked.job_words(), self.options.measure.title());
        let span = format!("{}, in intervals of {}", self.asked.times_words(), words::duration(self.question.interval));
        Head { title, about: vec![span] }
    }

    /// In words, on standard output unless that has the table.
    fn tell(
        &self,
        told: &[(Profile, Option<Peak>, u64)],
        congestion: Option<String>,
        darshan: Option<&DarshanLog>,
    ) -> Outcome {
        let mut text = String::new();
        let mut line = |words: String| {
            text.push_str(&words);
            text.push('\n');
        };
        self.asked.head().into_iter().for_each(&mut line);
        line(format!("  {}", self.nodes_words()));
        self.asked.servers_words().into_iter().for_each(&mut line);
        if let Some(words) = job_bytes_words(told) {
            line(format!("  {words}"));
        }
        if let Some(words) = congestion {
            line(format!("  {words}"));
        }
        if let Some(log) = darshan {
            log.words(&self.asked.job).into_iter().for_each(&mut line);
        }
        let mut order: Vec<&(Profile, Option<Peak>, u64)> = told.iter().collect();
        if order.len() > SERVERS_TOLD_MAX {
            order.sort_by(|one, other| burden(&other.0).total_cmp(&burden(&one.0)));
            line(format!("  of {} those with most waiting:", words::plural(told.len() as u64, "server")));
        }
        for (profile, peak, nodes) in order.into_iter().take(SERVERS_TOLD_MAX) {
            self.server_words(profile, peak.as_ref(), *nodes).into_iter().for_each(&mut line);
        }
        tell(&text, self.options.csv.as_deref())
    }

    fn nodes_words(&self) -> String {
        let count = self.asked.job.nodes.len() as u64;
        if count == 0 {
            return "nodes: not known".to_owned();
        }
        let unknown = match self.asked.found.unknown_count {
            0 => String::new(),
            unknown => {
                let names: Vec<String> = self.asked.found.unknown_nodes.iter().map(|name| words::name(name)).collect();
                let more = if unknown > names.len() as u64 { ", ..." } else { "" };
                format!(", {} of them unknown here: {}{more}", words::count(unknown), names.join(", "))
            }
        };
        format!("nodes: {}{unknown}", words::count(count))
    }

    fn server_words(&self, profile: &Profile, peak: Option<&Peak>, nodes: u64) -> Vec<String> {
        let whole = &profile.whole;
        let of_nodes = if nodes > 0 { format!(", for {}", words::plural(nodes, "node")) } else { String::new() };
        let mut lines = vec![format!("{}{of_nodes}", words::name(&profile.server))];
        let value = |value: Option<f64>, show: &dyn Fn(f64) -> String| value.map_or("-".to_owned(), show);
        let number = |value: f64| words::number(value);
        lines.push(format!(
            "  req_qdepth {}, req_active {}, req_waittime {}, {} requests/s",
            value(whole.depth, &number),
            value(whole.active, &number),
            value(whole.wait, &words::microseconds),
            value(whole.requests, &number)
        ));
        if let Some(peak) = peak {
            let at = times::clock_time(peak.at, &self.asked.zone);
            let wait = peak.wait.map(|wait| format!(", each for {}", words::microseconds(wait))).unwrap_or_default();
            lines.push(format!("  most waiting: {} at {at}{wait}", words::number(peak.depth)));
        }
        if whole.bytes().is_some() {
            let rate = |value: f64| format!("{}/s", words::size(value));
            lines.push(format!(
                "  read {}, written {}",
                value(whole.read_bytes, &rate),
                value(whole.write_bytes, &rate)
            ));
        }
        lines.extend(NETWORKS.iter().filter_map(|network| network_words(*network, whole)));
        lines.extend(doubts(profile).map(|words| format!("  {words}")));
        lines
    }
}

/// `  infiniband: received 1.2 GiB/s, sent 3.4 MiB/s, waited 12 ticks/s`.
fn network_words(network: Network, row: &Row) -> Option<String> {
    let carried = &row.networks[network as usize];
    let part = |name: &str, value: Option<f64>, show: &dyn Fn(f64) -> String| {
        value.map(|value| format!("{name} {}/s", show(value)))
    };
    let is_some = |value: Option<f64>| value.filter(|value| *value > 0.0);
    let parts = [
        part("received", carried.receive_bytes, &words::size),
        part("sent", carried.send_bytes, &words::size),
        part("waited", is_some(carried.send_wait), &|value| format!("{} ticks", words::number(value))),
        part("dropped", is_some(carried.drops), &words::number),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| format!("  {}: {}", network.name(), parts.join(", ")))
}

/// When most was waiting.
struct Peak {
    at: i64,
    depth: f64,
    wait: Option<f64>,
}

fn peak_of(profile: &Profile) -> Option<Peak> {
    let known = profile.rows.iter().filter_map(|row| Some(Peak { at: row.from, depth: row.depth?, wait: row.wait }));
    known.reduce(|most, peak| if peak.depth > most.depth { peak } else { most })
}

fn burden(profile: &Profile) -> f64 {
    profile.whole.depth.unwrap_or(-1.0)
}

/// What one should know of how well the figures are known.
fn doubts(profile: &Profile) -> Option<String> {
    let mut doubts = Vec::new();
    if profile.resets > 0 {
        doubts.push(format!("counters were reset {}", times_words(profile.resets)));
    }
    if profile.gaps > 0 {
        doubts.push(format!("samples are missing {}", times_words(profile.gaps)));
    }
    let offset = profile.clock.offset as f64 / 1e9;
    if profile.clock.how != HowKnown::Believed && offset.abs() >= 0.0005 {
        let how = if profile.clock.how == HowKnown::Measured { "measured" } else { "as given" };
        doubts.push(format!("{offset:+.3} s added to its clock, {how}"));
    }
    if profile.whole.requests.is_none() && profile.whole.bytes().is_none() {
        doubts.push("no samples of this time".to_owned());
    }
    (!doubts.is_empty()).then(|| doubts.join("; "))
}

fn times_words(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{} times", words::count(count)) }
}

/// What the job itself read and wrote, where Lustre has counted it.
fn job_bytes_words(told: &[(Profile, Option<Peak>, u64)]) -> Option<String> {
    let sum = |of: fn(&Profile) -> Option<i64>| {
        told.iter().filter_map(|(profile, ..)| of(profile)).reduce(i64::saturating_add)
    };
    let (read, written) = (sum(|profile| profile.job_read_bytes), sum(|profile| profile.job_write_bytes));
    let bytes = |bytes: Option<i64>| match bytes {
        Some(bytes) => format!("{} ({} bytes)", words::size(bytes as f64), words::count(bytes.unsigned_abs())),
        None => "-".to_owned(),
    };
    (read.is_some() || written.is_some())
        .then(|| format!("the job itself read {}, wrote {}", bytes(read), bytes(written)))
}

fn all_servers(database: &Database) -> database::Result<Vec<String>> {
    database.query("SELECT name FROM servers ORDER BY name", &[], |row| row.get(0))
}
