//! Which job, which nodes, which servers.

use crate::clock::{self, Nanos};
use crate::database::{self, Database, values};
use crate::failure::{Failure, Outcome};
use crate::{host_list, place, words};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Nodes that are named as unknown.
const NAMED_MAX: usize = 5;

/// A job whose times are known.
#[derive(Debug, Clone)]
pub struct FoundJob {
    pub id: String,
    pub lustre_id: Option<String>,
    pub name: Option<String>,
    pub user: Option<String>,
    pub state: Option<String>,
    pub start: Nanos,
    pub end: Nanos,
    /// It has no end yet; it is looked at until now.
    pub running: bool,
    pub nodes: Vec<String>,
}

impl FoundJob {
    /// No job, but a time.
    pub fn of_time(start: Nanos, end: Nanos) -> FoundJob {
        let (end, running, nodes) = (end.max(start + 1), true, Vec::new());
        let (id, lustre_id, name, user, state) = ("now".to_owned(), None, None, None, None);
        FoundJob { id, lustre_id, name, user, state, start, end, running, nodes }
    }
}

/// The servers of a job.
#[derive(Debug, Default)]
pub struct Servers {
    /// In the order in which people count, each with how many of the job's nodes it serves.
    pub names: Vec<(String, u64)>,
    /// How they were found.
    pub how: &'static str,
    /// Nodes that the place knows nothing of.
    pub unknown_nodes: Vec<String>,
    pub unknown_count: u64,
}

/// Finds a job by the id of the batch system, or by what Lustre calls it.
pub fn find(database: &Database, file: &Path, id: &str) -> Outcome<FoundJob> {
    let failed = |error: database::Error| place::about(file, &error);
    let by = |column: &str| {
        let statement = format!(
            "SELECT job_id, lustre_id, name, \"user\", state, start_ns, end_ns, nodes FROM jobs WHERE {column} = ?1"
        );
        database.first(&statement, values![id], read_job)
    };
    let found = match by("job_id").map_err(failed)? {
        Some(found) => Some(found),
        None => by("lustre_id").map_err(failed)?,
    };
    let Some((mut job, start, end, nodes)) = found else {
        return Err(unknown_job(database, file, id).map_err(failed)?);
    };
    let Some(start) = start else {
        return Err(Failure::failed(format!("job {} has not begun, as far as is known", words::name(id))));
    };
    let end_known = end.unwrap_or_else(clock::now);
    if end_known < start {
        let words = if end.is_some() { "ends before it begins: its times are wrong" } else { "begins in the future" };
        return Err(Failure::failed(format!("job {} {words}", words::name(id))));
    }
    // A job of no time at all still has one interval.
    (job.start, job.end, job.running) = (start, end_known.max(start + 1), end.is_none());
    if let Some(nodes) = nodes {
        job.nodes = host_list::names(&nodes)
            .map_err(|why| Failure::failed(format!("job {}: its nodes can't be read: {why}", words::name(id))))?;
    }
    Ok(job)
}

type JobRow = (FoundJob, Option<Nanos>, Option<Nanos>, Option<String>);

fn read_job(row: &database::Row<'_>) -> database::Result<JobRow> {
    let job = FoundJob {
        id: row.get(0)?,
        lustre_id: row.get(1)?,
        name: row.get(2)?,
        user: row.get(3)?,
        state: row.get(4)?,
        start: 0,
        end: 0,
        running: false,
        nodes: Vec::new(),
    };
    Ok((job, row.get(5)?, row.get(6)?, row.get(7)?))
}

fn unknown_job(database: &Database, file: &Path, id: &str) -> database::Result<Failure> {
    let (count, first, last): (i64, Option<String>, Option<String>) =
        database.only("SELECT count(*), min(job_id), max(job_id) FROM jobs", &[], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
    let there = match (first, last) {
        (Some(first), Some(last)) => {
            let jobs = words::plural(count.unsigned_abs(), "job");
            format!("it has {jobs}, by name from {} to {}", words::name(&first), words::name(&last))
        }
        _ => "it has no jobs; import them with --jobs".to_owned(),
    };
    Ok(Failure::failed(format!("there is no job {} in {}; {there}", words::name(id), file.display())))
}

/// The servers of a job: those of its nodes, and those that have counted it; if there are none of these, all.
pub fn servers_of(database: &Database, job: &FoundJob, lustre_ids: &[String]) -> database::Result<Servers> {
    let mut counted: BTreeMap<String, u64> = BTreeMap::new();
    let mut found = Servers::default();
    let known = "SELECT name FROM nodes WHERE name = ?1";
    let servers = "SELECT server FROM node_servers WHERE node = ?1";
    for node in &job.nodes {
        for server in database.query(servers, values![node], |row| row.get::<String>(0))? {
            *counted.entry(server).or_default() += 1;
        }
        if database.first(known, values![node], |_| Ok(()))?.is_none() {
            found.unknown_count += 1;
            if found.unknown_nodes.len() < NAMED_MAX {
                found.unknown_nodes.push(node.clone());
            }
        }
    }
    let by_nodes = !counted.is_empty();
    let by_job = job_servers(database, lustre_ids)?;
    found.how = match (by_nodes, by_job.is_empty()) {
        (true, true) => "the I/O servers of its nodes",
        (true, false) => "the I/O servers of its nodes, and those that have counted it",
        (false, false) => "those that have counted it",
        (false, true) => "all, for nothing says which it used",
    };
    for server in by_job {
        counted.entry(server).or_default();
    }
    if counted.is_empty() {
        let all = database.query("SELECT name FROM servers", &[], |row| row.get::<String>(0))?;
        counted.extend(all.into_iter().map(|server| (server, 0)));
    }
    found.names = counted.into_iter().collect();
    found.names.sort_by_cached_key(|(name, _)| natural(name));
    Ok(found)
}

fn job_servers(database: &Database, lustre_ids: &[String]) -> database::Result<BTreeSet<String>> {
    let counting =
        "SELECT DISTINCT servers.name FROM series JOIN servers USING (server) WHERE series.job = ?1 AND job <> ''";
    let mut found = BTreeSet::new();
    for id in lustre_ids {
        found.extend(database.query(counting, values![id], |row| row.get::<String>(0))?);
    }
    Ok(found)
}

/// A key by which `oss2` comes before `oss10`.
pub fn natural(name: &str) -> Vec<(u64, String)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let text_size = rest.find(|letter: char| letter.is_ascii_digit()).unwrap_or(rest.len());
        let (text, digits) = rest.split_at(text_size);
        let digits_size = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
        let (digits, after) = digits.split_at(digits_size);
        parts.push((0, text.to_owned()));
        parts.push((digits.parse().unwrap_or(u64::MAX), digits.to_owned()));
        rest = after;
    }
    parts
}
