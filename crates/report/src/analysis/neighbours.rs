//! Who was in the way: the time that a job's requests waited at a server, shared out by what jobs did there meanwhile.
//!
//! The waiting of an interval is `req_waittime`, which all requests have in common, by the number of the job's own ones
//! (`job_stats`); servers that count what each job's requests have waited say it themselves. It is shared out by the
//! time that the server was at work for each job where it counts that, else by bytes, or by operations where nobody
//! read or wrote: to the job itself, to each other job, and what came to the server and is of no job that was counted,
//! to nobody.
//!
//! Invariants: (1) the shares of an interval are 1 together; (2) series are read twice, first for what all did, then
//! job by job, so that memory grows with the intervals and not with the jobs.

use super::axis::Axis;
use super::pieces::{self, Piece};
use super::samples::{self, Clock, Kind, Series};
use super::{FoundJob, Question};
use crate::clock::Nanos;
use crate::database::{self, Database, values};
use crate::sources::Counter;

/// What is of the time in which somebody was in the way: intervals with this part of the worst one's waiting at least.
const EPISODE_PART: f64 = 0.1;

/// What was done in an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Done {
    pub read_bytes: f64,
    pub write_bytes: f64,
    pub operations: f64,
    /// Time at work, in microseconds for each request, where servers tell it job by job.
    pub service_us: f64,
}

impl Done {
    pub fn bytes(&self) -> f64 {
        self.read_bytes + self.write_bytes
    }

    fn add(&mut self, piece: &Piece, part: f64) {
        let of = |counter: Counter| piece.growth[counter as usize].unwrap_or(0) as f64 * part;
        self.read_bytes += of(Counter::ReadBytes);
        self.write_bytes += of(Counter::WriteBytes);
        self.operations += of(Counter::Operations);
        self.service_us += of(Counter::Active);
    }

    fn plus(&mut self, other: &Done) {
        self.read_bytes += other.read_bytes;
        self.write_bytes += other.write_bytes;
        self.operations += other.operations;
        self.service_us += other.service_us;
    }
}

/// A server in an interval.
#[derive(Debug, Clone, Copy, Default)]
struct Interval {
    wait_count: f64,
    wait_us: f64,
    /// What the requests of the job that waits have waited, and all were at work, where servers tell it.
    own_wait_us: Option<f64>,
    active_us: f64,
    /// By all, as its targets have counted.
    targets: Done,
    /// By all jobs that were counted.
    jobs: Done,
    /// By the job that waits.
    own: Done,
    own_requests: f64,
    /// Request-seconds that the job waited here.
    waiting: f64,
}

impl Interval {
    /// What share of all that came somebody's doings are.
    fn share(&self, done: &Done) -> f64 {
        if self.jobs.service_us > 0.0 {
            return done.service_us / self.jobs.service_us.max(self.active_us);
        }
        let bytes = self.targets.bytes().max(self.jobs.bytes());
        let operations = self.targets.operations.max(self.jobs.operations);
        if bytes > 0.0 {
            done.bytes() / bytes
        } else if operations > 0.0 {
            done.operations / operations
        } else {
            0.0
        }
    }

    /// The part that nobody has counted.
    fn unknown(&self) -> f64 {
        (1.0 - self.share(&self.jobs)).clamp(0.0, 1.0)
    }
}

/// Whose waiting is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requests {
    /// The job's own, as Lustre has counted them.
    Own,
    /// The job was counted elsewhere, and others here: it sent none.
    None,
    /// Of all jobs, for Lustre has not counted the job.
    All,
}

/// A job's waiting at a server.
pub struct Waiting<'a> {
    question: &'a Question<'a>,
    pub server: String,
    pub clock: Clock,
    pub requests: Requests,
    /// Whether anything is known of its queue.
    pub known: bool,
    /// Request-seconds.
    pub seconds: f64,
    axis: Axis,
    intervals: Vec<Interval>,
    /// Those that were counted in the job's time.
    others: Vec<Listed>,
}

/// A job in `job_stats` of a server, at all of its targets.
struct Listed {
    id: String,
    series: Vec<(i64, String)>,
}

/// What somebody has to do with the waiting at a server.
#[derive(Debug, Clone)]
pub struct Blame {
    pub whose: Whose,
    pub seconds: f64,
    /// For each interval in which it had.
    pub rows: Vec<BlameRow>,
    pub episode: Option<Episode>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whose {
    /// Another job, as Lustre calls it.
    Other(String),
    Itself,
    /// Not known to be of any job.
    Nobody,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlameRow {
    index: usize,
    pub from: Nanos,
    pub to: Nanos,
    pub seconds: f64,
    /// Of all that came in the interval.
    pub share: f64,
    pub done: Done,
}

/// The time in which somebody was most in the way, without a break.
#[derive(Debug, Clone, PartialEq)]
pub struct Episode {
    pub from: Nanos,
    pub to: Nanos,
    /// For how long requests waited, in microseconds, on average.
    pub wait: f64,
    pub done: Done,
    pub share: f64,
    pub seconds: f64,
}

impl<'a> Question<'a> {
    /// How long the job's requests waited at a server. `counted`: whether Lustre has counted the job anywhere.
    pub fn waiting(&'a self, server: &str, counted: bool) -> database::Result<Waiting<'a>> {
        let clock = samples::clock_of(self.database, server, self.job)?;
        let axis = Axis::new(self.job.start, self.job.end, self.interval);
        let mut intervals = vec![Interval::default(); axis.count()];
        let all = samples::series_of(self.database, server, self.service, &[])?;
        for series in all.iter().filter(|series| matches!(series.kind, Kind::Service | Kind::Target)) {
            let samples = samples::read(self.database, series, self.job, &clock)?;
            for piece in pieces::between(&samples, series, None, self.interval).iter().filter(|piece| !piece.gap) {
                axis.share_out(piece, |index, part, _| intervals[index].add(series.kind, piece, part));
            }
        }
        let mut waiting = Waiting {
            question: self,
            server: server.to_owned(),
            clock,
            requests: Requests::All,
            known: intervals.iter().any(|interval| interval.wait_count > 0.0),
            seconds: 0.0,
            axis,
            intervals,
            others: Vec::new(),
        };
        waiting.look_at_jobs(counted)?;
        Ok(waiting)
    }

    /// Whether Lustre has counted the job anywhere.
    pub fn is_counted(&self) -> database::Result<bool> {
        let known = "SELECT series FROM series WHERE job = ?1 AND job <> '' LIMIT 1";
        for id in &self.lustre_ids {
            if self.database.first(known, values![id], |_| Ok(()))?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Interval {
    fn add(&mut self, kind: Kind, piece: &Piece, part: f64) {
        let of = |counter: Counter| piece.growth[counter as usize].unwrap_or(0) as f64 * part;
        match kind {
            Kind::Service => {
                self.wait_count += of(Counter::WaitCount);
                self.wait_us += of(Counter::Wait);
                self.active_us += of(Counter::Active);
            }
            Kind::Target => self.targets.add(piece, part),
            Kind::Job => self.jobs.add(piece, part),
            Kind::Network(_) | Kind::Number => (),
        }
    }

    fn add_own(&mut self, piece: &Piece, part: f64) {
        let of = |counter: Counter| piece.growth[counter as usize].unwrap_or(0) as f64 * part;
        self.own.add(piece, part);
        if let Some(waited) = piece.growth[Counter::Wait as usize] {
            *self.own_wait_us.get_or_insert(0.0) += waited as f64 * part;
        }
        let bulk = of(Counter::Reads) + of(Counter::Writes);
        // A service of metadata has no others.
        self.own_requests += if bulk > 0.0 { bulk } else { of(Counter::Operations) };
    }
}

impl Waiting<'_> {
    /// Sums up what all jobs did here, then what waiting that makes.
    fn look_at_jobs(&mut self, counted: bool) -> database::Result<()> {
        let listed = listed(self.question.database, &self.server)?;
        let (own, others): (Vec<Listed>, Vec<Listed>) =
            listed.into_iter().partition(|job| self.question.lustre_ids.contains(&job.id));
        let (axis, question, clock) = (self.axis, self.question, self.clock);
        let intervals = &mut self.intervals;
        let own_found = !own.is_empty();
        for (job, is_own) in own.into_iter().map(|job| (job, true)).chain(others.into_iter().map(|job| (job, false))) {
            let mut seen = false;
            each_piece(question, &self.server, &clock, &job, is_own, |piece| {
                axis.share_out(piece, |index, part, _| {
                    seen = true;
                    intervals[index].add(Kind::Job, piece, part);
                    if is_own {
                        intervals[index].add_own(piece, part);
                    }
                });
            })?;
            if seen && !is_own {
                self.others.push(job);
            }
        }
        self.requests = match (own_found, counted && !self.others.is_empty()) {
            (true, _) => Requests::Own,
            (false, true) => Requests::None,
            (false, false) => Requests::All,
        };
        for interval in intervals.iter_mut().filter(|interval| interval.wait_count > 1e-9) {
            if let Some(waited) = interval.own_wait_us {
                interval.waiting = waited / 1e6;
                self.seconds += interval.waiting;
                continue;
            }
            let requests = match self.requests {
                Requests::Own => interval.own_requests,
                Requests::None => 0.0,
                Requests::All => interval.wait_count,
            };
            interval.waiting = interval.wait_us / interval.wait_count * requests / 1e6;
            self.seconds += interval.waiting;
        }
        Ok(())
    }

    /// How many other jobs the server has counted in the job's time.
    pub fn other_count(&self) -> usize {
        self.others.len()
    }

    /// What another job has to do with the waiting; none if it did nothing here while the job waited.
    pub fn of_other(&self, number: usize) -> database::Result<Option<Blame>> {
        let job = &self.others[number];
        let mut done: Vec<(usize, Done)> = Vec::new();
        each_piece(self.question, &self.server, &self.clock, job, false, |piece| {
            self.axis.share_out(piece, |index, part, _| {
                let mut of_piece = Done::default();
                of_piece.add(piece, part);
                if self.intervals[index].waiting > 0.0 && self.intervals[index].share(&of_piece) > 0.0 {
                    done.push((index, of_piece));
                }
            });
        })?;
        // Several targets, and pieces that share an interval.
        done.sort_by_key(|(index, _)| *index);
        done.dedup_by(|(later, more), (earlier, sum)| {
            let same = later == earlier;
            if same {
                sum.plus(more);
            }
            same
        });
        let rows = done.into_iter().map(|(index, done)| self.row(index, self.intervals[index].share(&done), done));
        Ok(self.blame(Whose::Other(job.id.clone()), rows.collect()))
    }

    pub fn of_itself(&self) -> Option<Blame> {
        let rows = self.waited().map(|(index, interval)| self.row(index, interval.share(&interval.own), interval.own));
        self.blame(Whose::Itself, rows.filter(|row| row.share > 0.0).collect())
    }

    pub fn of_nobody(&self) -> Option<Blame> {
        let rows = self.waited().map(|(index, interval)| {
            let rest = |all: f64, known: f64| (all - known).max(0.0);
            let done = Done {
                read_bytes: rest(interval.targets.read_bytes, interval.jobs.read_bytes),
                write_bytes: rest(interval.targets.write_bytes, interval.jobs.write_bytes),
                operations: rest(interval.targets.operations, interval.jobs.operations),
                service_us: rest(interval.active_us, interval.jobs.service_us),
            };
            self.row(index, interval.unknown(), done)
        });
        self.blame(Whose::Nobody, rows.filter(|row| row.share > 1e-9).collect())
    }

    fn waited(&self) -> impl Iterator<Item = (usize, &Interval)> {
        self.intervals.iter().enumerate().filter(|(_, interval)| interval.waiting > 0.0)
    }

    fn row(&self, index: usize, share: f64, done: Done) -> BlameRow {
        let (from, to) = self.axis.span(index);
        BlameRow { index, from, to, seconds: self.intervals[index].waiting * share, share, done }
    }

    fn blame(&self, whose: Whose, rows: Vec<BlameRow>) -> Option<Blame> {
        let seconds = rows.iter().map(|row| row.seconds).sum();
        let episode = self.episode(&rows);
        (!rows.is_empty()).then_some(Blame { whose, seconds, rows, episode })
    }

    fn episode(&self, rows: &[BlameRow]) -> Option<Episode> {
        let worst = rows.iter().map(|row| row.seconds).fold(0.0, f64::max);
        let counts = |row: &BlameRow| row.seconds >= worst * EPISODE_PART;
        let runs = rows.chunk_by(|row, next| counts(row) == counts(next) && next.index == row.index + 1);
        let seconds = |run: &[BlameRow]| run.iter().map(|row| row.seconds).sum::<f64>();
        let most = runs.filter(|run| counts(&run[0])).max_by(|one, other| seconds(one).total_cmp(&seconds(other)))?;
        let (first, last) = (most.first()?, most.last()?);
        let mut all = Interval::default();
        let mut done = Done::default();
        for row in most {
            let interval = &self.intervals[row.index];
            all.wait_count += interval.wait_count;
            all.wait_us += interval.wait_us;
            all.targets.plus(&interval.targets);
            all.jobs.plus(&interval.jobs);
            done.plus(&row.done);
        }
        let (wait, share) = (all.wait_us / all.wait_count, all.share(&done));
        Some(Episode { from: first.from, to: last.to, wait, done, share, seconds: seconds(most) })
    }
}

/// The jobs in `job_stats` of a server.
fn listed(database: &Database, server: &str) -> database::Result<Vec<Listed>> {
    let all = "SELECT job, series, part FROM series JOIN servers USING (server)
               WHERE servers.name = ?1 AND kind = 'job' AND job <> '' ORDER BY job, part";
    let read = |row: &database::Row<'_>| Ok((row.get::<String>(0)?, (row.get::<i64>(1)?, row.get::<String>(2)?)));
    let mut found: Vec<Listed> = Vec::new();
    for (id, series) in database.query(all, values![server], read)? {
        match found.last_mut().filter(|last| last.id == id) {
            Some(last) => last.series.push(series),
            None => found.push(Listed { id, series: vec![series] }),
        }
    }
    Ok(found)
}

/// Hands over what a job's counters at a server grew by.
fn each_piece(
    question: &Question<'_>,
    server: &str,
    clock: &Clock,
    listed: &Listed,
    is_own: bool,
    mut each: impl FnMut(&Piece),
) -> database::Result<()> {
    for (series, target) in &listed.series {
        let series = Series::of_job(*series);
        let samples = samples::read(question.database, &series, question.job, clock)?;
        // A first sample from before the job's time has nothing to tell of it.
        let first_inside = samples.first().is_some_and(|first| first.time > question.job.start);
        let counted_from = if first_inside {
            let before = samples::target_before(question.database, server, target, &series, clock)?;
            let start =
                if is_own { Some(question.job.start) } else { start_of(question.database, &listed.id, question.job)? };
            before.max(start)
        } else {
            None
        };
        let first = samples.first().map(|first| first.time);
        // Never later than what it was counted by: clocks of seconds.
        let counted_from = counted_from.map(|from| first.map_or(from, |first| from.min(first)));
        pieces::between(&samples, &series, counted_from, question.interval).iter().for_each(&mut each);
    }
    Ok(())
}

/// When another job began, if the place knows it.
fn start_of(database: &Database, id: &str, job: &FoundJob) -> database::Result<Option<Nanos>> {
    let known = "SELECT start_ns FROM jobs WHERE job_id = ?1 OR lustre_id = ?1 ORDER BY job_id = ?1 DESC LIMIT 1";
    let start = database.first(known, values![id], |row| row.get::<Option<Nanos>>(0))?.flatten();
    Ok(start.filter(|start| *start < job.end))
}
