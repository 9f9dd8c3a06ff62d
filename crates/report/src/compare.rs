//! `tabane-report compare`: two jobs, or a job in two places, and their servers, beside each other.

use crate::analysis::{Row, natural};
use crate::asked::{Asked, tell};
use crate::csv_profile::{Table, number, text};
use crate::failure::Outcome;
use crate::options::CompareOptions;
use crate::words;
use std::collections::BTreeMap;

const HEAD: [&str; 10] = [
    "first_job",
    "second_job",
    "server",
    "measure",
    "first_mean",
    "second_mean",
    "mean_ratio",
    "first_most",
    "second_most",
    "most_ratio",
];
/// Servers that are told of one by one; of more those with most waiting.
const SERVERS_TOLD_MAX: usize = 8;
/// Ratios below this are no difference.
const DIFFERENCE_LEAST: f64 = 1.1;

/// What is compared.
struct ComparedMeasure {
    name: &'static str,
    of: fn(&Row) -> Option<f64>,
    unit: Unit,
    /// Told of in words too.
    told: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Microseconds,
    /// Requests at a time.
    Requests,
    RequestsPerSecond,
    BytesPerSecond,
}

impl Unit {
    /// Whether servers add up. What requests waited and found is averaged over requests.
    fn adds_up(self) -> bool {
        matches!(self, Unit::RequestsPerSecond | Unit::BytesPerSecond)
    }

    fn show(self, value: f64) -> String {
        match self {
            Unit::Microseconds => words::microseconds(value),
            Unit::Requests => words::number(value),
            Unit::RequestsPerSecond => format!("{}/s", words::number(value)),
            Unit::BytesPerSecond => format!("{}/s", words::size(value)),
        }
    }

    /// With a word for how many, as people compare queues.
    fn show_magnitude(self, value: f64) -> String {
        if self != Unit::Requests {
            return self.show(value);
        }
        let magnitude = match value {
            ..1.0 => "below 1",
            ..12.0 => "a few",
            ..100.0 => "dozens",
            ..1000.0 => "hundreds",
            _ => "thousands",
        };
        format!("{magnitude} ({})", self.show(value))
    }
}

const fn measure(name: &'static str, of: fn(&Row) -> Option<f64>, unit: Unit, told: bool) -> ComparedMeasure {
    ComparedMeasure { name, of, unit, told }
}

const MEASURES: [ComparedMeasure; 11] = [
    measure("req_waittime", |row| row.wait, Unit::Microseconds, true),
    measure("req_qdepth", |row| row.depth, Unit::Requests, true),
    measure("req_active", |row| row.active, Unit::Requests, true),
    measure("requests_per_s", |row| row.requests, Unit::RequestsPerSecond, true),
    measure("reads_per_s", |row| row.reads, Unit::RequestsPerSecond, false),
    measure("read_bytes_per_s", |row| row.read_bytes, Unit::BytesPerSecond, true),
    measure("writes_per_s", |row| row.writes, Unit::RequestsPerSecond, false),
    measure("write_bytes_per_s", |row| row.write_bytes, Unit::BytesPerSecond, true),
    measure("job_read_bytes_per_s", |row| row.job_read_bytes, Unit::BytesPerSecond, false),
    measure("job_write_bytes_per_s", |row| row.job_write_bytes, Unit::BytesPerSecond, false),
    measure("job_operations_per_s", |row| row.job_operations, Unit::RequestsPerSecond, false),
];
/// Those that tell of a queue stand first.
const QUEUE_COUNT: usize = 3;

/// A measure over a job's time. What is not known is none.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Figure {
    mean: Option<f64>,
    /// In one interval, at one server.
    most: Option<f64>,
}

type Figures = [Figure; MEASURES.len()];

pub fn run(options: &CompareOptions) -> Outcome {
    let other_place = options.other_place.as_ref().unwrap_or(&options.place);
    let mut first = Asked::open(&options.id, &options.place, &options.asking)?;
    let mut second = Asked::open(&options.other, other_place, &options.asking)?;
    // The most of a second can't be held against the most of a minute.
    first.interval = first.interval.max(second.interval);
    second.interval = first.interval;
    let (first, second) = (Side::of(&first)?, Side::of(&second)?);
    let compared = Compared { first, second };
    if let Some(name) = &options.csv {
        compared.write(Table::begin(name, &HEAD)?)?;
    }
    tell(&compared.words(), options.csv.as_deref())
}

/// One of the two jobs.
struct Side<'a> {
    asked: &'a Asked,
    servers: BTreeMap<String, Figures>,
    all: Figures,
}

impl Side<'_> {
    fn of(asked: &Asked) -> Outcome<Side<'_>> {
        let question = asked.question();
        let mut servers = BTreeMap::new();
        let mut sums = Sums::default();
        for (server, _) in &asked.found.names {
            let profile = question.profile(server).map_err(|error| asked.failed(error))?;
            let figure = |measure: &ComparedMeasure| Figure {
                mean: (measure.of)(&profile.whole),
                most: profile.rows.iter().filter_map(measure.of).reduce(f64::max),
            };
            let figures: Figures = std::array::from_fn(|index| figure(&MEASURES[index]));
            sums.add(&figures, profile.whole.requests.unwrap_or(0.0));
            servers.insert(server.clone(), figures);
        }
        Ok(Side { asked, servers, all: sums.figures() })
    }
}

/// Of all servers of a job.
#[derive(Default)]
struct Sums {
    /// Of values, times their weights, and of weights.
    means: [Option<(f64, f64)>; MEASURES.len()],
    most: [Option<f64>; MEASURES.len()],
}

impl Sums {
    fn add(&mut self, figures: &Figures, requests: f64) {
        for (index, figure) in figures.iter().enumerate() {
            if let Some(mean) = figure.mean {
                let weight = if MEASURES[index].unit.adds_up() { 1.0 } else { requests };
                let (sum, weights) = self.means[index].unwrap_or_default();
                self.means[index] = Some((sum + mean * weight, weights + weight));
            }
            self.most[index] = self.most[index].into_iter().chain(figure.most).reduce(f64::max);
        }
    }

    fn figures(&self) -> Figures {
        std::array::from_fn(|index| {
            let mean = self.means[index].and_then(|(sum, weights)| match MEASURES[index].unit.adds_up() {
                true => Some(sum),
                false => (weights > 0.0).then(|| sum / weights),
            });
            Figure { mean, most: self.most[index] }
        })
    }
}

struct Compared<'a> {
    first: Side<'a>,
    second: Side<'a>,
}

const UNKNOWN: Figures = [Figure { mean: None, most: None }; MEASURES.len()];

impl Compared<'_> {
    /// The servers of both, in the order in which people count.
    fn servers(&self) -> Vec<(&str, &Figures, &Figures)> {
        let mut names: Vec<&String> = self.first.servers.keys().chain(self.second.servers.keys()).collect();
        names.sort_by_cached_key(|name| natural(name));
        names.dedup();
        names
            .into_iter()
            .map(|name| {
                let first = self.first.servers.get(name).unwrap_or(&UNKNOWN);
                let second = self.second.servers.get(name).unwrap_or(&UNKNOWN);
                (name.as_str(), first, second)
            })
            .collect()
    }

    /// All servers of a job are one without a name.
    fn write(&self, mut table: Table) -> Outcome {
        let all = [("", &self.first.all, &self.second.all)];
        for (server, first, second) in all.into_iter().chain(self.servers()) {
            for (index, measure) in MEASURES.iter().enumerate() {
                let (first, second) = (first[index], second[index]);
                table.row([
                    text(&self.first.asked.job.id),
                    text(&self.second.asked.job.id),
                    text(server),
                    measure.name.to_owned(),
                    number(first.mean),
                    number(second.mean),
                    number(ratio(first.mean, second.mean)),
                    number(first.most),
                    number(second.most),
                    number(ratio(first.most, second.most)),
                ])?;
            }
        }
        table.end()
    }

    fn words(&self) -> String {
        let mut lines = Vec::new();
        for (side, name) in [(&self.first, "first"), (&self.second, "second")] {
            let [job, times] = side.asked.head();
            let servers = words::plural(side.servers.len() as u64, "server");
            lines.extend([format!("{name}: {job}"), format!("{times}, {servers}")]);
        }
        lines.push(format!("intervals: {}", words::duration(self.first.asked.interval)));
        lines.push(self.difference());
        lines.push(format!(
            "{:22} {:>12} {:>12} {:>7} {:>12} {:>12} {:>7}",
            "", "first, mean", "second", "ratio", "first, most", "second", "ratio"
        ));
        lines.push("all servers".to_owned());
        lines.extend(rows(&self.first.all, &self.second.all));
        let mut servers = self.servers();
        let count = servers.len();
        if count > SERVERS_TOLD_MAX {
            let depth = |figures: &Figures| figures[1].most.unwrap_or(-1.0);
            let burden = |(_, first, second): &(&str, &Figures, &Figures)| depth(first).max(depth(second));
            servers.sort_by(|one, other| burden(other).total_cmp(&burden(one)));
            servers.truncate(SERVERS_TOLD_MAX);
            servers.sort_by_cached_key(|(name, ..)| natural(name));
        }
        for (name, first, second) in servers {
            lines.push(words::name(name));
            lines.extend(rows(first, second));
        }
        if count > SERVERS_TOLD_MAX {
            lines.push(format!("and {}", words::plural((count - SERVERS_TOLD_MAX) as u64, "server")));
        }
        lines.join("\n") + "\n"
    }

    /// What differs most of the queues: `what differs most is req_qdepth: dozens (38.2) against below 1 (0.4)`.
    fn difference(&self) -> String {
        let both = |index: usize| {
            let (first, second) = (self.first.all[index], self.second.all[index]);
            [(index, "on average", first.mean, second.mean), (index, "at most", first.most, second.most)]
        };
        let known = (0..QUEUE_COUNT).flat_map(both).filter_map(|(index, when, first, second)| {
            let (first, second) = (first?, second?);
            let times = if first == second { 1.0 } else { first.max(second) / first.min(second) };
            Some((index, when, first, second, times))
        });
        let most = known.reduce(|most, next| if next.4 > most.4 { next } else { most });
        let Some((index, when, first, second, times)) = most else {
            return "nothing is known of the queues of one of them, so they can't be compared".to_owned();
        };
        if times < DIFFERENCE_LEAST {
            return "the queues of their servers hardly differ: by less than a tenth".to_owned();
        }
        let measure = &MEASURES[index];
        let show = |value: f64| measure.unit.show_magnitude(value);
        let times = if times.is_finite() { format!(": {} times", words::number(times)) } else { String::new() };
        format!("what differs most is {}, {} against {} {when}{times}", measure.name, show(first), show(second))
    }
}

/// What is unknown of both, or 0 of both, is worth no line.
fn rows(first: &Figures, second: &Figures) -> Vec<String> {
    let is_there = |figure: &Figure| figure.most.or(figure.mean).is_some_and(|value| value > 0.0);
    let told = MEASURES.iter().enumerate().filter(|(_, measure)| measure.told);
    let told = told.filter(|(index, _)| is_there(&first[*index]) || is_there(&second[*index]));
    told.map(|(index, measure)| {
        let (first, second) = (first[index], second[index]);
        let show = |value: Option<f64>| value.map_or("-".to_owned(), |value| measure.unit.show(value));
        let share = |first, second| ratio(first, second).map_or("-".to_owned(), words::number);
        format!(
            "  {:20} {:>12} {:>12} {:>7} {:>12} {:>12} {:>7}",
            measure.name,
            show(first.mean),
            show(second.mean),
            share(first.mean, second.mean),
            show(first.most),
            show(second.most),
            share(first.most, second.most)
        )
    })
    .collect()
}

/// First by second, where that is a number.
fn ratio(first: Option<f64>, second: Option<f64>) -> Option<f64> {
    let second = second.filter(|second| *second > 0.0)?;
    Some(first? / second)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: means of requests are of all requests, rates add up, and the most is that of one server; by hand. Method:
    /// a server with 30 requests a second that wait 10 us, one with 10 that wait 50 us, one of which nothing is known.
    #[test]
    fn all_servers() {
        let mut sums = Sums::default();
        for (wait, requests, most) in [(10.0, 30.0, 15.0), (50.0, 10.0, 90.0)] {
            let mut figures = UNKNOWN;
            figures[0] = Figure { mean: Some(wait), most: Some(most) };
            figures[3] = Figure { mean: Some(requests), most: Some(requests) };
            sums.add(&figures, requests);
        }
        sums.add(&UNKNOWN, 0.0);
        let all = sums.figures();
        assert_eq!(all[0], Figure { mean: Some(20.0), most: Some(90.0) });
        assert_eq!(all[3], Figure { mean: Some(40.0), most: Some(30.0) });
        assert_eq!(all[1], Figure::default());
    }

    /// Goal: how many is said as people say it, and a ratio is a number or nothing.
    #[test]
    fn forms() {
        let shown = [0.4, 3.0, 38.2, 412.0].map(|value| Unit::Requests.show_magnitude(value));
        assert_eq!(shown, ["below 1 (0.400)", "a few (3.00)", "dozens (38.2)", "hundreds (412)"]);
        let ratios = [ratio(Some(6.0), Some(2.0)), ratio(Some(6.0), Some(0.0)), ratio(None, Some(1.0))];
        assert_eq!(ratios, [Some(3.0), None, None]);
    }
}
