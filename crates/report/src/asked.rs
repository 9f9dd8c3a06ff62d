//! What every question about a job begins with: its place, the job, its servers, the interval.

use crate::analysis::{self, FoundJob, Question, Servers};
use crate::clock::{Nanos, SECOND};
use crate::database::{self, Database};
use crate::failure::{Failure, Outcome};
use crate::options::Asking;
use crate::{place, times, words};
use jiff::tz::TimeZone;
use std::path::{Path, PathBuf};

/// A job that was found in a place, which stays as it is while it is asked.
pub struct Asked {
    pub file: PathBuf,
    pub zone: TimeZone,
    pub database: Database,
    pub job: FoundJob,
    pub found: Servers,
    service: String,
    lustre_ids: Vec<String>,
    pub interval: i64,
}

impl Asked {
    pub fn open(id: &str, file: &Path, asking: &Asking) -> Outcome<Asked> {
        let zone = times::zone(asking.time_zone.as_deref()).map_err(Failure::Usage)?;
        let database = place::open(file)?;
        // One state of the place from here on, whatever is imported meanwhile.
        let failed = |error: database::Error| place::about(file, &error);
        database.begin_reading().map_err(failed)?;
        let job = analysis::find(&database, file, id)?;
        let mut lustre_ids = asking.lustre_id.clone();
        lustre_ids.extend(job.lustre_id.clone().into_iter().chain([job.id.clone()]));
        lustre_ids.sort();
        lustre_ids.dedup();
        let found = analysis::servers_of(&database, &job, &lustre_ids).map_err(failed)?;
        let names: Vec<String> = found.names.iter().map(|(name, _)| name.clone()).collect();
        let interval =
            analysis::interval_of(&database, &job, &names, &asking.service, asking.interval)?.map_err(failed)?;
        let (file, service) = (file.to_owned(), asking.service.clone());
        Ok(Asked { file, zone, database, job, found, service, lustre_ids, interval })
    }

    /// All servers of a place in a time, as if they were a job's. The database comes back if that fails.
    pub fn of_time(database: Database, file: &Path, from: Nanos, to: Nanos) -> Result<Asked, Database> {
        let job = FoundJob::of_time(from, to);
        let service = Asking::plain().service;
        let look = || {
            let found = analysis::servers_of(&database, &job, &[])?;
            let names: Vec<String> = found.names.iter().map(|(name, _)| name.clone()).collect();
            let interval = analysis::interval_of(&database, &job, &names, &service, None);
            // None was asked for, so that none can be too short.
            interval.unwrap_or(Ok(SECOND)).map(|interval| (found, interval))
        };
        match look() {
            Ok((found, interval)) => {
                let (file, zone) = (file.to_owned(), TimeZone::system());
                Ok(Asked { file, zone, database, job, found, service, lustre_ids: Vec::new(), interval })
            }
            Err(_) => Err(database),
        }
    }

    pub fn question(&self) -> Question<'_> {
        Question {
            database: &self.database,
            job: &self.job,
            service: &self.service,
            lustre_ids: self.lustre_ids.clone(),
            interval: self.interval,
        }
    }

    pub fn failed(&self, error: database::Error) -> Failure {
        place::about(&self.file, &error)
    }

    pub fn job_words(&self) -> String {
        let mut text = format!("job {}", words::name(&self.job.id));
        if let Some(name) = &self.job.name {
            text.push_str(&format!(" ({})", words::name(name)));
        }
        text
    }

    pub fn times_words(&self) -> String {
        let (start, end) = (times::readable(self.job.start, &self.zone), times::readable(self.job.end, &self.zone));
        let until = if self.job.running { format!("until now ({end}): it still runs") } else { format!("to {end}") };
        format!("{start} {until}, {}", words::duration(self.job.end - self.job.start))
    }

    /// The first lines of an answer: which job, by whom, when.
    pub fn head(&self) -> [String; 2] {
        let by = self.job.user.as_ref().map(|user| format!(" by {}", words::name(user))).unwrap_or_default();
        let state = self.job.state.as_ref().map(|state| format!(", {}", words::name(state))).unwrap_or_default();
        [format!("{}{by}{state}", self.job_words()), format!("  {}", self.times_words())]
    }

    /// On how many servers the answer looks, why on these, and in which steps.
    pub fn servers_words(&self) -> [String; 2] {
        [
            format!("  servers: {} ({})", words::count(self.found.names.len() as u64), self.found.how),
            format!("  intervals: {}", words::duration(self.interval)),
        ]
    }
}

/// Prints an answer's words: on standard output, unless that has a table.
pub fn tell(text: &str, table: Option<&Path>) -> Outcome {
    if table.is_some_and(|name| name.as_os_str() == "-") {
        eprint!("{text}");
        return Ok(());
    }
    std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes()).map_err(Failure::of_output)
}
