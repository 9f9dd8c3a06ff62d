//! `tabane-report neighbours`: which other jobs were in the way of a job, where and when.

use crate::analysis::{Blame, BlameRow, Done, Episode, Requests, Waiting, Whose};
use crate::asked::{Asked, tell};
use crate::csv_profile::{Table, number, text};
use crate::database::{self, values};
use crate::failure::Outcome;
use crate::options::NeighboursOptions;
use crate::{times, words};
use std::collections::BTreeMap;

const HEAD: [&str; 14] = [
    "job",
    "server",
    "snapshot_time",
    "time",
    "seconds",
    "whose",
    "neighbour",
    "name",
    "user",
    "waiting_seconds",
    "share",
    "read_bytes",
    "write_bytes",
    "operations",
];
/// Jobs and servers that the table in words has room for; of more those with most waiting.
const JOBS_TOLD_MAX: usize = 10;
const SERVERS_TOLD_MAX: usize = 4;
/// Sentences, and which part of all the job's waiting is worth one.
const SENTENCES_MAX: usize = 8;
const SENTENCE_PART: f64 = 0.05;

pub fn run(options: &NeighboursOptions) -> Outcome {
    let asked = Asked::open(&options.id, &options.place, &options.asking)?;
    let question = asked.question();
    let counted = question.is_counted().map_err(|error| asked.failed(error))?;
    let mut table = options.csv.as_deref().map(|name| Table::begin(name, &HEAD)).transpose()?;
    let mut found = Found::default();
    for (server, _) in &asked.found.names {
        let waiting = question.waiting(server, counted).map_err(|error| asked.failed(error))?;
        found.add_server(&waiting);
        for number in 0..waiting.other_count() {
            let blame = waiting.of_other(number).map_err(|error| asked.failed(error))?;
            found.add(&asked, blame, table.as_mut())?;
        }
        for blame in [waiting.of_itself(), waiting.of_nobody()] {
            found.add(&asked, blame, table.as_mut())?;
        }
    }
    if let Some(table) = table {
        table.end()?;
    }
    tell(&found.words(&asked), options.csv.as_deref())
}

/// What the place knows of another job.
#[derive(Debug, Clone, Default)]
struct KnownJob {
    id: String,
    name: Option<String>,
    user: Option<String>,
}

impl KnownJob {
    fn of(asked: &Asked, lustre_id: &str) -> Outcome<KnownJob> {
        let statement = "SELECT job_id, name, \"user\" FROM jobs WHERE job_id = ?1 OR lustre_id = ?1
                         ORDER BY job_id = ?1 DESC LIMIT 1";
        let read = |row: &database::Row<'_>| Ok(KnownJob { id: row.get(0)?, name: row.get(1)?, user: row.get(2)? });
        let found = asked.database.first(statement, values![lustre_id], read).map_err(|error| asked.failed(error))?;
        Ok(found.unwrap_or_else(|| KnownJob { id: lustre_id.to_owned(), ..KnownJob::default() }))
    }

    fn words(&self) -> String {
        let known = [self.name.as_deref(), self.user.as_deref()];
        let known: Vec<String> = known.into_iter().flatten().map(words::name).collect();
        let known = if known.is_empty() { String::new() } else { format!(" ({})", known.join(", ")) };
        format!("job {}{known}", words::name(&self.id))
    }
}

/// Somebody's part of the waiting, by server.
#[derive(Default)]
struct Part {
    known: KnownJob,
    seconds: f64,
    by_server: BTreeMap<usize, f64>,
}

/// A time in which another job was in the way.
struct Sentence {
    server: String,
    job: String,
    episode: Episode,
}

#[derive(Default)]
struct Found {
    /// In the order of the answer, each with its seconds.
    servers: Vec<(String, f64)>,
    seconds: f64,
    parts: BTreeMap<Whose, Part>,
    sentences: Vec<Sentence>,
    unknown_servers: Vec<String>,
    uncounted_servers: Vec<String>,
}

impl Found {
    fn add_server(&mut self, waiting: &Waiting<'_>) {
        self.servers.push((waiting.server.clone(), waiting.seconds));
        self.seconds += waiting.seconds;
        if !waiting.known {
            self.unknown_servers.push(waiting.server.clone());
        } else if waiting.requests == Requests::All {
            self.uncounted_servers.push(waiting.server.clone());
        }
    }

    /// Somebody's part at the server that was added last.
    fn add(&mut self, asked: &Asked, blame: Option<Blame>, table: Option<&mut Table>) -> Outcome {
        let (Some(blame), Some(server)) = (blame, self.servers.len().checked_sub(1)) else { return Ok(()) };
        let known = match (&blame.whose, self.parts.get(&blame.whose)) {
            (_, Some(part)) => part.known.clone(),
            (Whose::Other(id), None) => KnownJob::of(asked, id)?,
            (Whose::Itself | Whose::Nobody, None) => KnownJob::default(),
        };
        let name = &self.servers[server].0;
        if let Some(table) = table {
            for row in &blame.rows {
                table.row(cells(&asked.job.id, name, &blame.whose, &known, row))?;
            }
        }
        if let (Whose::Other(_), Some(episode)) = (&blame.whose, blame.episode) {
            self.sentences.push(Sentence { server: name.clone(), job: known.words(), episode });
            self.sentences.sort_by(|one, other| other.episode.seconds.total_cmp(&one.episode.seconds));
            self.sentences.truncate(SENTENCES_MAX);
        }
        let part = self.parts.entry(blame.whose).or_insert_with(|| Part { known, ..Part::default() });
        part.seconds += blame.seconds;
        part.by_server.insert(server, blame.seconds);
        Ok(())
    }

    fn words(&self, asked: &Asked) -> String {
        let mut lines: Vec<String> = asked.head().into_iter().chain(asked.servers_words()).collect();
        if self.seconds > 0.0 {
            lines.push(format!(
                "  its requests waited {} together, shared out by what came to the servers meanwhile:",
                seconds(self.seconds)
            ));
            lines.extend(self.table());
            lines.extend(self.sentences(asked));
        } else {
            lines.push("  none of its requests is known to have waited".to_owned());
        }
        for (servers, why) in [
            (&self.unknown_servers, "nothing is known of the queue in this time"),
            (&self.uncounted_servers, "the job is not in job_stats; it is the waiting of all requests"),
        ] {
            if !servers.is_empty() {
                lines.push(format!("{}: {why}", names_words(servers)));
            }
        }
        lines.join("\n") + "\n"
    }

    /// Jobs by seconds and servers.
    fn table(&self) -> Vec<String> {
        let mut columns: Vec<usize> = (0..self.servers.len()).filter(|server| self.servers[*server].1 > 0.0).collect();
        columns.sort_by(|one, other| self.servers[*other].1.total_cmp(&self.servers[*one].1));
        columns.truncate(SERVERS_TOLD_MAX);
        columns.sort_unstable();
        let mut others: Vec<&Part> =
            self.parts.iter().filter(|(whose, _)| matches!(whose, Whose::Other(_))).map(|(_, part)| part).collect();
        others.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
        let more = others.split_off(others.len().min(JOBS_TOLD_MAX));
        let mut rows: Vec<(String, &Part)> = others.into_iter().map(|part| (part.known.words(), part)).collect();
        let mut rest = Part::default();
        for part in &more {
            rest.seconds += part.seconds;
            for (server, seconds) in &part.by_server {
                *rest.by_server.entry(*server).or_default() += seconds;
            }
        }
        if !more.is_empty() {
            rows.push((format!("{} more", words::plural(more.len() as u64, "job")), &rest));
        }
        let others = [(Whose::Itself, "the job itself"), (Whose::Nobody, "not known to be of any job")];
        rows.extend(others.iter().filter_map(|(whose, name)| Some(((*name).to_owned(), self.parts.get(whose)?))));
        let mut lines = vec![format!("  {:>9} {:>6}", "waiting", "share")];
        for server in &columns {
            lines[0].push_str(&format!(" {:>10}", words::name(&self.servers[*server].0)));
        }
        lines[0].push_str("  because of");
        for (name, part) in rows {
            let share = format!("{:.0} %", 100.0 * part.seconds / self.seconds);
            let mut line = format!("  {:>9} {share:>6}", seconds(part.seconds));
            for server in &columns {
                let cell = part.by_server.get(server).map_or("-".to_owned(), |value| seconds(*value));
                line.push_str(&format!(" {cell:>10}"));
            }
            lines.push(format!("{line}  {name}"));
        }
        lines
    }

    fn sentences(&self, asked: &Asked) -> Vec<String> {
        let worth = self.sentences.iter().filter(|sentence| sentence.episode.seconds >= SENTENCE_PART * self.seconds);
        let lines: Vec<String> = worth.map(|sentence| sentence.words(asked)).collect();
        if lines.is_empty() {
            return vec!["no other job is known to have been in its way".to_owned()];
        }
        lines
    }
}

impl Sentence {
    /// `oss3 let requests wait for 120 ms from 10:10:00 to 10:16:00, while job 4712 wrote 31.0 GiB there (92 % of what
    /// came)`.
    fn words(&self, asked: &Asked) -> String {
        let episode = &self.episode;
        format!(
            "{} let requests wait for {} from {} to {}, while {} {} there ({:.0} % of what came)",
            words::name(&self.server),
            words::microseconds(episode.wait),
            times::clock_time(episode.from, &asked.zone),
            times::clock_time(episode.to, &asked.zone),
            self.job,
            done_words(&episode.done),
            100.0 * episode.share
        )
    }
}

fn done_words(done: &Done) -> String {
    let (read, written) = (words::size(done.read_bytes), words::size(done.write_bytes));
    // What is a hundredth of the other is not worth the words.
    match (done.read_bytes * 100.0 > done.write_bytes, done.write_bytes * 100.0 > done.read_bytes) {
        (true, true) => format!("read {read} and wrote {written}"),
        (true, false) => format!("read {read}"),
        (false, true) => format!("wrote {written}"),
        (false, false) => format!("did {} operations", words::number(done.operations)),
    }
}

fn seconds(value: f64) -> String {
    words::microseconds(value * 1e6)
}

fn names_words(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(JOBS_TOLD_MAX).map(|name| words::name(name)).collect();
    let more = names.len() - shown.len();
    let more = if more > 0 { format!(" and {}", words::plural(more as u64, "other")) } else { String::new() };
    shown.join(", ") + &more
}

fn cells(job: &str, server: &str, whose: &Whose, known: &KnownJob, row: &BlameRow) -> [String; HEAD.len()] {
    let whose = match whose {
        Whose::Other(_) => "other",
        Whose::Itself => "itself",
        Whose::Nobody => "nobody",
    };
    let optional = |value: &Option<String>| value.as_deref().map(text).unwrap_or_default();
    [
        text(job),
        text(server),
        times::seconds(row.to),
        times::exact(row.to),
        number(Some((row.to - row.from) as f64 / 1e9)),
        whose.to_owned(),
        text(&known.id),
        optional(&known.name),
        optional(&known.user),
        number(Some(row.seconds)),
        number(Some(row.share)),
        number(Some(row.done.read_bytes)),
        number(Some(row.done.write_bytes)),
        number(Some(row.done.operations)),
    ]
}
