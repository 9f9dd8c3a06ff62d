//! What `tabane status --json` prints of the servers of a Tabane cluster, again and again in one input.
//!
//! A document lies on lines from `{` to `}`, or is one line. Each server's `report` has its own clock and totals since
//! its start; with `--samples` also a sample for each second of the last ten minutes in which something happened.
//!
//! Invariant: a series has the same counters in documents and in samples, so that none of its samples is unknown
//! between two that are known. What only documents have is in series of its own.

mod document;
mod parts;

use super::{Counter, Counters, Node, Reading, Sink, Subject};
use crate::clock::Nanos;
use crate::failure::Outcome;
use crate::lines::{Lines, Next};
pub use document::{ANSWER_NS, ANSWERS, CROSSING_CALLS, OPERATION_PREFIX, SERVED_NS, WAITS};
use document::{
    ClassReport, Classes, ClientTotals, Document, JobReport, JobTotals, Numbers, RESENDS, ServerReport, StoreReport,
    WaitReport,
};
use parts::Parts;
use std::collections::{HashMap, HashSet};

/// The service that a server's queue is kept as.
pub const SERVICE: &str = "tabane";
/// The parts that its bytes and its reads and writes are kept as.
const STORE: &str = "store";
const REQUESTS: &str = "requests";
/// A document that is larger is passed over: some 500 servers with all samples.
const DOCUMENT_SIZE_MAX: usize = 256 << 20;
/// Letters of a cluster's id that its servers are called by, as `tabane top` shows it.
const CLUSTER_LETTERS: usize = 8;
/// Names of jobs that are longer are no server's.
const JOB_NAME_SIZE_MAX: usize = 128;
/// Documents, line by line.
#[derive(Default)]
pub struct Documents {
    text: String,
    /// The line that it began in.
    begun: u64,
    open: bool,
    too_large: bool,
    /// Of each server the last sample that was taken, by its clock: they are printed again and again.
    last_samples: HashMap<String, Nanos>,
    /// Of each server and job the totals that were taken last, and the number and time of the sample that had them.
    last_totals: HashMap<(String, String), LastTotals>,
    clusters: HashSet<String>,
    /// Of each server the last document: when that was by its clock, and its counters that are not there from the
    /// begin. What is there for the first time was 0 until then.
    last_documents: HashMap<String, (Nanos, HashSet<String>)>,
    /// What was told of ranks and files last.
    parts: Parts,
    /// When each server was started whose counters were taken last, by its clock.
    starts: HashMap<String, Nanos>,
    /// When each server answered last, by the collector's clock if that is known.
    answered: HashMap<String, Nanos>,
    /// The servers that did not answer in the last document.
    silent: HashSet<String>,
    /// Counters are taken to have been 0 when their server was started, which is told too.
    from_start: bool,
    /// When the first of all servers was started, as the axis sees it; only with the former.
    pub started: Option<Nanos>,
    /// The cluster of the last document, and when it was, by the collector's clock if that is known.
    pub last: Option<(String, Nanos)>,
}

#[derive(Clone, Copy)]
struct LastTotals {
    number: i64,
    time: Nanos,
    totals: JobTotals,
}

/// The node that stands for a cluster, with all of its servers.
pub fn node_of(cluster: &str) -> String {
    format!("tabane-{}", short(cluster))
}

/// A server's name, by its number.
pub fn server_of(cluster: &str, number: impl std::fmt::Display) -> String {
    format!("{}-{number}", short(cluster))
}

/// What a cluster's id is called.
pub fn short(cluster: &str) -> String {
    cluster.chars().take(CLUSTER_LETTERS).collect()
}

/// The cluster of a server of this name, as [`server_of`] made it.
pub fn cluster_of(server: &str) -> &str {
    server.rsplit_once('-').map_or(server, |(cluster, _)| cluster)
}

/// Reads all of an input. `collected` is when it was printed, by the collector's clock.
pub fn read(
    lines: &mut Lines<'_>,
    collected: Option<Nanos>,
    documents: &mut Documents,
    sink: &mut impl Sink,
) -> Outcome {
    loop {
        match lines.next()? {
            Next::End => return documents.end(sink),
            Next::TooLong(number) => sink.skipped(number, "the line is too long")?,
            Next::Line(line) => documents.line(line.number, &line.text, collected, sink)?,
        }
    }
}

impl Documents {
    pub fn from_start() -> Documents {
        Documents { from_start: true, ..Documents::default() }
    }

    /// When servers that did not answer in the last document, and do in this one, answered last; 0: never.
    pub fn silent_since(&self, document: &[u8]) -> Option<Nanos> {
        if self.silent.is_empty() {
            return None;
        }
        let document: Document = serde_json::from_slice(document).ok()?;
        let answering = document.servers.iter().filter(|server| server.report.is_some());
        let names = answering.map(|server| server_of(&document.cluster, server.server));
        names.filter(|name| self.silent.contains(name)).map(|name| self.answered.get(&name).copied().unwrap_or(0)).min()
    }

    fn line(&mut self, number: u64, line: &str, collected: Option<Nanos>, sink: &mut impl Sink) -> Outcome {
        let line_end = line.trim_end();
        // Lines of a document that are not its first or last are indented.
        if line_end.starts_with('{') {
            self.cut(sink)?;
            (self.begun, self.open) = (number, true);
        } else if !self.open {
            return match line_end {
                "" => Ok(()),
                _ => sink.skipped(number, "it is no part of what 'tabane status --json' prints"),
            };
        }
        if self.text.len() + line_end.len() >= DOCUMENT_SIZE_MAX {
            (self.too_large, self.text) = (true, String::new());
        }
        if !self.too_large {
            self.text.push_str(line_end);
            self.text.push('\n');
        }
        let ends = line_end == "}" || line_end.starts_with('{') && line_end.ends_with('}');
        if ends { self.document(collected, sink) } else { Ok(()) }
    }

    fn cut(&mut self, sink: &mut impl Sink) -> Outcome {
        let open = std::mem::take(&mut self.open);
        self.text.clear();
        self.too_large = false;
        if open { sink.skipped(self.begun, "the document that begins here is cut") } else { Ok(()) }
    }

    fn end(&mut self, sink: &mut impl Sink) -> Outcome {
        self.cut(sink)
    }

    fn document(&mut self, collected: Option<Nanos>, sink: &mut impl Sink) -> Outcome {
        let text = std::mem::take(&mut self.text);
        self.open = false;
        if std::mem::take(&mut self.too_large) {
            return sink.skipped(self.begun, "the document that begins here is too large");
        }
        match serde_json::from_str::<Document>(&text) {
            Ok(document) => self.take(&document, collected, sink),
            Err(error) => {
                let why = format!("the document that begins here can't be read: {error}");
                sink.skipped(self.begun, &why)
            }
        }
    }

    fn take(&mut self, document: &Document, collected: Option<Nanos>, sink: &mut impl Sink) -> Outcome {
        let cluster = short(&document.cluster);
        let name = |server: u32| format!("{cluster}-{server}");
        if self.clusters.insert(document.cluster.clone()) {
            let servers = document.servers.iter().map(|server| name(server.server)).collect();
            sink.node(Node { name: node_of(&document.cluster), servers, ..Node::default() })?;
        }
        self.silent.clear();
        for server in &document.servers {
            let name = name(server.server);
            match &server.report {
                None => {
                    let why = server.reason.as_deref().unwrap_or("it did not answer");
                    sink.skipped(self.begun, &format!("{name}: {why}"))?;
                    self.silent.insert(name);
                }
                Some(report) if report.wall_clock_ns < 0 => {
                    sink.skipped(self.begun, &format!("{name}: its clock is before 1970"))?;
                }
                Some(report) => {
                    let time = collected.unwrap_or(report.wall_clock_ns);
                    self.last = Some((document.cluster.clone(), time));
                    self.answered.insert(name.clone(), time);
                    self.server(&name, report, collected, sink)?;
                }
            }
        }
        Ok(())
    }

    fn server(&mut self, name: &str, report: &ServerReport, collected: Option<Nanos>, sink: &mut impl Sink) -> Outcome {
        let offset = collected.map_or(0, |collected| collected.saturating_sub(report.wall_clock_ns));
        if self.from_start && !self.last_samples.contains_key(name) {
            self.start_of(name, report, offset, collected, sink)?;
        }
        let mut known = self.last_samples.get(name).copied().unwrap_or(Nanos::MIN);
        let mut before: Option<(i64, Nanos)> = None;
        for sample in &report.samples {
            let before = before.replace((sample.number, sample.time_ns));
            // A clock that was set back, or a sample that is the report itself.
            if sample.time_ns <= known || sample.time_ns >= report.wall_clock_ns {
                continue;
            }
            let started = sample.started_ns.or(report.started()).unwrap_or(0);
            let moment = Moment { name, seen: sample.time_ns, started, offset, collected, line: self.begun };
            self.restart(&moment, sample.started_ns, known, report, sink)?;
            known = sample.time_ns;
            moment.classes(&sample.data, &sample.metadata, &sample.clients, sink)?;
            moment.waits(|reason| sample.waits_ns.get(reason).copied(), sink)?;
            moment.number("loop_busy_ns", sample.busy_ns, sink)?;
            moment.number("bytes_free", sample.bytes_free, sink)?;
            moment.number("journal_used", sample.journal_used, sink)?;
            moment.numbers(&sample.clients.judged(), sink)?;
            for job in &sample.jobs {
                self.job_at(&moment, job, sample.number, before, sink)?;
            }
        }
        let last = report.samples.last().map(|sample| (sample.number, sample.time_ns));
        let seen = report.wall_clock_ns;
        let started = report.started().unwrap_or(0);
        let moment = Moment { name, seen, started, offset, collected, line: self.begun };
        self.restart(&moment, report.started_ns, known, report, sink)?;
        // What a later question prints again of the time before is not taken twice.
        self.last_samples.insert(name.to_owned(), known.max(report.wall_clock_ns));
        moment.classes(&report.classes.data, &report.classes.metadata, &report.clients, sink)?;
        for job in &report.jobs {
            let number = last.map_or(0, |(number, _)| number + 1);
            self.job_at(&moment, job, number, last, sink)?;
        }
        let document_before = self.last_documents.get(name).map(|(seen, _)| *seen);
        let before = document_before.or(self.from_start.then_some(started));
        self.parts.take(&moment, before, report, sink)?;
        self.late_counters(&moment, report, sink)?;
        moment.report(report, sink)
    }

    /// Where the totals at a moment are of a server that was started another time than the one before, whose last are
    /// of the time `known`, they were 0 at that time: totals that are larger than those of before tell nothing of it.
    fn restart(
        &mut self,
        moment: &Moment<'_>,
        started: Option<Nanos>,
        known: Nanos,
        report: &ServerReport,
        sink: &mut impl Sink,
    ) -> Outcome {
        let Some(started) = started else { return Ok(()) };
        let before = self.starts.insert(moment.name.to_owned(), started);
        if before.is_none_or(|before| before == started) {
            return Ok(());
        }
        self.parts.forget(moment.name);
        let zero = Moment { seen: started.max(known.saturating_add(1)).min(moment.seen), started, ..*moment };
        zero.nothing_yet(report, sink)?;
        for ((server, job), last) in &mut self.last_totals {
            if server == moment.name && last.totals != JobTotals::default() {
                zero.job(job, &JobTotals::default(), sink)?;
                *last = LastTotals { number: 0, time: zero.seen, totals: JobTotals::default() };
            }
        }
        Ok(())
    }

    /// What appears among a server's counters with its first use was 0 at the document before, and when the server was
    /// started.
    fn late_counters(&mut self, moment: &Moment<'_>, report: &ServerReport, sink: &mut impl Sink) -> Outcome {
        let now: HashSet<String> = report.late_counters().collect();
        let before = self.last_documents.remove(moment.name);
        if let Some((seen, known)) = before {
            let zero = Moment { seen: seen.max(moment.started), ..*moment };
            for name in now.difference(&known).filter(|_| zero.seen < moment.seen) {
                zero.number(name, Some(0), sink)?;
            }
        }
        self.last_documents.insert(moment.name.to_owned(), (moment.seen, now));
        Ok(())
    }

    /// A job's totals at a moment, which the server's sample of this number tells. `before` is the sample before, with
    /// its time. A job of which that one tells nothing had done nothing since the last that did.
    fn job_at(
        &mut self,
        moment: &Moment<'_>,
        job: &JobReport,
        number: i64,
        before: Option<(i64, Nanos)>,
        sink: &mut impl Sink,
    ) -> Outcome {
        if job.job.len() > JOB_NAME_SIZE_MAX {
            return Ok(());
        }
        let key = (moment.name.to_owned(), job.id().to_owned());
        let last = self.last_totals.get(&key).copied();
        if last.is_some_and(|last| last.totals == job.totals) {
            return Ok(());
        }
        let from = match last {
            Some(last) if last.number + 1 < number => Some((last.time, last.totals)),
            None if job.is_new != 0 => Some((Nanos::MIN, JobTotals::default())),
            _ => None,
        };
        if let (Some((since, totals)), Some((_, time))) = (from, before)
            && time > since
        {
            Moment { seen: time, ..*moment }.job(job.id(), &totals, sink)?;
        }
        moment.job(job.id(), &job.totals, sink)?;
        self.last_totals.insert(key, LastTotals { number, time: moment.seen, totals: job.totals });
        Ok(())
    }
}

impl Documents {
    /// A server's counters when it was started.
    fn start_of(
        &mut self,
        name: &str,
        report: &ServerReport,
        offset: Nanos,
        collected: Option<Nanos>,
        sink: &mut impl Sink,
    ) -> Outcome {
        let seen = report.started().unwrap_or(report.wall_clock_ns).max(0);
        let begun = seen.saturating_add(offset).max(0);
        self.started = Some(self.started.map_or(begun, |started| started.min(begun)));
        Moment { name, seen, started: seen, offset, collected, line: self.begun }.nothing_yet(report, sink)
    }
}

/// What requests of both classes have waited for a reason.
fn both(classes: &Classes, reason: &str) -> Option<i64> {
    Some(classes.data.waited_ns(reason)?.saturating_add(classes.metadata.waited_ns(reason)?))
}

/// A server at a moment of its own clock.
struct Moment<'a> {
    name: &'a str,
    seen: Nanos,
    /// When it was started, by the same; 0 if nobody knows.
    started: Nanos,
    /// What is to be added to its clock.
    offset: Nanos,
    collected: Option<Nanos>,
    line: u64,
}

impl Moment<'_> {
    /// All counters that a later report has, when the server was started.
    fn nothing_yet(&self, report: &ServerReport, sink: &mut impl Sink) -> Outcome {
        let waits = || WAITS.map(|(reason, _)| (reason.to_owned(), WaitReport { waited_ns: 0 })).into();
        let none =
            || ClassReport { arrivals: Some(0), req_active_ns: Some(0), waits: waits(), ..ClassReport::default() };
        self.classes(&none(), &none(), &report.clients.nothing(), sink)?;
        let operations = report.operations.keys().map(|name| (name.clone(), none())).collect();
        let zero = ServerReport {
            wall_clock_ns: self.seen,
            uptime_ns: 0,
            started_ns: None,
            // Levels were nobody knows what, and the loop had worked before it counted its time.
            turns: Numbers::default(),
            store: StoreReport { checkpoints_failed: Some(0), ..StoreReport::default() },
            contact: report.contact.keys().map(|name| (name.clone(), 0)).collect(),
            classes: Classes { data: none(), metadata: none() },
            operations,
            channels: Vec::new(),
            connections_refused: Some(0),
            relay_bytes: Some(0),
            clients: report.clients.nothing(),
            jobs: Vec::new(),
            busiest: Vec::new(),
            samples: Vec::new(),
        };
        self.report(&zero, sink)
    }

    fn put(&self, subject: Subject, counters: Counters, sink: &mut impl Sink) -> Outcome {
        let time = self.seen.saturating_add(self.offset).max(0);
        let snapshot = self.collected.map(|_| self.seen);
        sink.reading(Reading {
            server: self.name.to_owned(),
            subject,
            time,
            snapshot,
            since: None,
            counters,
            line: self.line,
        })
    }

    /// What samples have too. How many wait and are at work are means over time: what requests have waited, and were at
    /// work, by the time that passed. What clients read and looked at without the server is read and done as well; how
    /// long that waited nobody knows.
    fn classes(
        &self,
        data: &ClassReport,
        metadata: &ClassReport,
        clients: &ClientTotals,
        sink: &mut impl Sink,
    ) -> Outcome {
        let came =
            |class: &ClassReport| class.arrivals.unwrap_or_else(|| class.finished.saturating_add(class.req_active));
        let mut counters = Counters::default();
        counters[Counter::WaitCount as usize] = Some(came(data).saturating_add(came(metadata)));
        let wait_ns = data.req_waittime_ns.saturating_add(metadata.req_waittime_ns);
        counters[Counter::Wait as usize] = Some(wait_ns / 1000);
        if let (Some(data), Some(metadata)) = (data.req_active_ns, metadata.req_active_ns) {
            let passed = self.seen.saturating_sub(self.started).max(0) / 1000;
            counters[Counter::DepthCount as usize] = Some(passed);
            counters[Counter::Depth as usize] = Some(wait_ns / 1000);
            counters[Counter::ActiveCount as usize] = Some(passed);
            counters[Counter::Active as usize] = Some(data.saturating_add(metadata) / 1000);
        }
        self.put(Subject::Service(SERVICE.to_owned()), counters, sink)?;
        let mut counters = Counters::default();
        counters[Counter::ReadBytes as usize] = Some(data.bytes_out.saturating_add(clients.read_bytes()));
        counters[Counter::WriteBytes as usize] = Some(data.bytes_in);
        counters[Counter::Operations as usize] = Some(metadata.finished.saturating_add(clients.looks()));
        self.put(Subject::Target(STORE.to_owned()), counters, sink)
    }

    /// Totals of a job. What it was at work counts as time, for each request.
    fn job(&self, id: &str, totals: &JobTotals, sink: &mut impl Sink) -> Outcome {
        let mut counters = Counters::default();
        for (counter, value) in [
            (Counter::WaitCount, totals.arrivals),
            (Counter::Wait, totals.req_waittime_ns / 1000),
            (Counter::ActiveCount, totals.arrivals),
            (Counter::Active, totals.service_ns / 1000),
            (Counter::Reads, totals.reads.saturating_add(totals.clients.reads())),
            (Counter::ReadBytes, totals.bytes_out.saturating_add(totals.clients.read_bytes())),
            (Counter::Writes, totals.writes),
            (Counter::WriteBytes, totals.bytes_in),
            (Counter::Operations, totals.metadata.saturating_add(totals.clients.looks())),
        ] {
            counters[counter as usize] = Some(value);
        }
        self.put(Subject::Job { target: STORE.to_owned(), id: id.to_owned() }, counters, sink)
    }

    fn report(&self, report: &ServerReport, sink: &mut impl Sink) -> Outcome {
        let finished = |names: &[&str]| {
            names.iter().filter_map(|name| report.operations.get(*name)).map(|operation| operation.finished).sum()
        };
        let mut counters = Counters::default();
        counters[Counter::Reads as usize] = Some(report.clients.reads().saturating_add(finished(&["Read"])));
        counters[Counter::Writes as usize] = Some(finished(&["Write", "Append", "CommitRegistered"]));
        self.put(Subject::Target(REQUESTS.to_owned()), counters, sink)?;
        let store = &report.store;
        let resends = (!report.channels.is_empty())
            .then(|| report.channels.iter().map(|channel| channel.resends).fold(0, i64::saturating_add));
        let contact = |name: &str| report.contact.get(name).copied();
        for (name, value) in [
            ("loop_busy_ns", report.turns.busy_ns),
            ("bytes_total", store.bytes_total),
            ("bytes_free", store.bytes_free),
            ("journal_size", store.journal_size),
            ("journal_used", store.journal_used),
            ("checkpoints_failed", store.checkpoints_failed),
            ("delegations_recalled", contact("delegations_recalled")),
            ("read_leases_awaited", contact("read_leases_awaited")),
            ("connections_refused", report.connections_refused),
            ("relay_bytes", report.relay_bytes),
            ("client_read_bytes", Some(report.clients.read_bytes())),
            ("client_looks", Some(report.clients.looks())),
            ("data_failed", Some(report.classes.data.failed)),
            (RESENDS, resends),
        ] {
            self.number(name, value, sink)?;
        }
        self.numbers(&report.clients.judged(), sink)?;
        self.waits(|reason| both(&report.classes, reason), sink)?;
        for (name, operation) in report.kept_operations() {
            self.number(&format!("{OPERATION_PREFIX}{name}"), Some(operation.finished), sink)?;
        }
        Ok(())
    }

    fn waits(&self, of: impl Fn(&str) -> Option<i64>, sink: &mut impl Sink) -> Outcome {
        WAITS.iter().try_for_each(|(reason, counter)| self.number(counter, of(reason), sink))
    }

    fn numbers(&self, numbers: &[(&str, Option<i64>)], sink: &mut impl Sink) -> Outcome {
        numbers.iter().try_for_each(|(name, value)| self.number(name, *value, sink))
    }

    fn number(&self, name: &str, value: Option<i64>, sink: &mut impl Sink) -> Outcome {
        let Some(value) = value else { return Ok(()) };
        let mut counters = Counters::default();
        counters[Counter::Operations as usize] = Some(value);
        self.put(Subject::Number(name.to_owned()), counters, sink)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SECOND;
    use crate::sources::collected::Collected;
    use serde_json::{Value, json};

    fn class(finished: i64, wait_ns: i64, bytes_in: i64, bytes_out: i64) -> Value {
        json!({ "finished": finished, "arrivals": finished + 1, "failed": 0, "req_active": 1,
                "req_waittime_ns": wait_ns, "req_active_ns": 2 * wait_ns, "bytes_in": bytes_in,
                "bytes_out": bytes_out, "new_field": 1 })
    }

    fn document(wall_clock_ns: i64, samples: &[i64]) -> Value {
        let samples: Vec<Value> = samples
            .iter()
            .map(|time| {
                json!({ "time_ns": time, "busy_ns": 5, "bytes_free": 70, "journal_used": 1,
                                "data": class(3, 1000, 10, 20), "metadata": class(4, 2000, 0, 0) })
            })
            .collect();
        json!({ "cluster": "4458aef012bb3c283639e2e9badb4102", "servers": [
            { "server": 0, "reason": null, "report": {
                "wall_clock_ns": wall_clock_ns, "loop": { "busy_ns": 7, "turns": 1 },
                "store": { "bytes_total": 100, "bytes_free": 60, "journal_size": 50, "journal_used": 2,
                           "checkpoints_failed": 0, "pages_note": "x" },
                "contact": { "delegations_recalled": 3 }, "classes": { "data": class(5, 3000, 30, 40),
                "metadata": class(6, 4000, 0, 0) }, "operations": { "Write": class(2, 0, 30, 0),
                "Statistics": class(9, 0, 0, 0) }, "channels": [{ "resends": 2 }, { "resends": 1 }],
                "samples": samples } },
            { "server": 1, "reason": "server 1: its process 7 has ended", "report": null } ] })
    }

    fn collect(text: &str, collected: Option<Nanos>, documents: &mut Documents) -> Collected {
        let mut sink = Collected::default();
        read(&mut Lines::of("x", text.as_bytes()), collected, documents, &mut sink).unwrap();
        sink
    }

    fn of(found: &Collected, subject: &Subject) -> Vec<(Nanos, Option<Nanos>, Counters)> {
        let readings = found.readings.iter().filter(|reading| reading.subject == *subject);
        readings.map(|reading| (reading.time, reading.snapshot, reading.counters)).collect()
    }

    /// Goal: a document, on one line or many, gives queue, bytes and numbers, on the collector's clock where that is
    /// known; samples before it are taken once; a server that is down is told of.
    #[test]
    fn a_document() {
        let first = document(100 * SECOND, &[98 * SECOND, 99 * SECOND, 100 * SECOND]);
        for text in [format!("{first:#}\n"), format!("{first}\n")] {
            let mut documents = Documents::default();
            let found = collect(&text, Some(105 * SECOND), &mut documents);
            assert_eq!(found.skipped, [(1, "4458aef0-1: server 1: its process 7 has ended".to_owned())]);
            assert_eq!(found.nodes[0].servers, ["4458aef0-0", "4458aef0-1"]);
            let queue = of(&found, &Subject::Service("tabane".into()));
            let times: Vec<_> = queue.iter().map(|(time, snapshot, _)| (*time / SECOND, snapshot.unwrap())).collect();
            assert_eq!(times, [(103, 98 * SECOND), (104, 99 * SECOND), (105, 100 * SECOND)]);
            let counters = queue[2].2;
            assert_eq!((counters[Counter::WaitCount as usize], counters[Counter::Wait as usize]), (Some(13), Some(7)));
            let depth = (counters[Counter::DepthCount as usize], counters[Counter::Depth as usize]);
            assert_eq!(depth, (Some(100_000_000), Some(7)), "requests that waited, by the time that passed");
            assert_eq!(counters[Counter::Active as usize], Some(14));
            let number = |name: &str| {
                let found = of(&found, &Subject::Number(name.to_owned()));
                found.iter().map(|(.., counters)| counters[Counter::Operations as usize].unwrap()).collect::<Vec<_>>()
            };
            assert_eq!((number("bytes_free"), number("resends")), (vec![70, 70, 60], vec![3]));
            assert_eq!((number("operation Write"), number("operation Statistics")), (vec![2], vec![]));
            // The next one tells of the same seconds again.
            let next = document(102 * SECOND, &[99 * SECOND, 100 * SECOND, 101 * SECOND]);
            let found = collect(&format!("{next}\n"), Some(107 * SECOND), &mut documents);
            assert_eq!(of(&found, &Subject::Service("tabane".into())).len(), 2);
            assert_eq!(documents.last, Some(("4458aef012bb3c283639e2e9badb4102".into(), 107 * SECOND)));
        }
    }

    /// Goal: a counter that appears with its first use was 0 at the document before, or when its server was started, if
    /// that was later: else nothing would be known of what it has grown by until then.
    #[test]
    fn late_counters() {
        let told = |wall_clock_ns: i64, uptime_ns: i64, operations: Value| {
            let mut document = document(wall_clock_ns, &[]);
            let report = &mut document["servers"][0]["report"];
            (report["uptime_ns"], report["operations"]) = (uptime_ns.into(), operations);
            report["channels"] = json!([]);
            format!("{document}\n")
        };
        let look = |count: i64| json!({ "Look": class(count, 0, 0, 0) });
        let text = told(100 * SECOND, 50 * SECOND, json!({}))
            + &told(110 * SECOND, 60 * SECOND, look(1_000))
            + &told(120 * SECOND, 4 * SECOND, json!({ "Look": class(7, 0, 0, 0), "Open": class(9, 0, 0, 0) }));
        let found = collect(&text, None, &mut Documents::default());
        let number = |name: &str| {
            let found = of(&found, &Subject::Number(name.to_owned()));
            let counts =
                found.iter().map(|(time, _, counters)| (time / SECOND, counters[Counter::Operations as usize]));
            counts.map(|(time, count)| (time, count.unwrap())).collect::<Vec<_>>()
        };
        assert_eq!(number("operation Look"), [(100, 0), (110, 1_000), (120, 7)]);
        assert_eq!(number("operation Open"), [(116, 0), (120, 9)]);
        assert_eq!(number("resends"), []);
        assert_eq!(number("loop_busy_ns"), [(100, 7), (110, 7), (120, 7)]);
    }

    /// Goal: without a collector's clock the server's own is the axis, and the same document twice changes nothing.
    #[test]
    fn from_a_file() {
        let text = format!("{:#}\n{:#}\n", document(100 * SECOND, &[]), document(110 * SECOND, &[]));
        let found = collect(&text, None, &mut Documents::default());
        let queue = of(&found, &Subject::Service("tabane".into()));
        assert_eq!(
            queue.iter().map(|(time, snapshot, _)| (*time / SECOND, *snapshot)).collect::<Vec<_>>(),
            [(100, None), (110, None)]
        );
    }

    /// Goal: a job's totals lie at the seconds in which something was done for it: not spread over those before,
    /// whether it is new or had rested; and what two documents both tell is taken once.
    #[test]
    fn jobs() {
        let job = |name: &str, is_new: i64, writes: i64| {
            json!({ "kind": "job", "job": name, "program": "x", "is_new": is_new, "arrivals": writes, "writes": writes,
                    "bytes_in": 10 * writes, "req_waittime_ns": 1000 * writes, "service_ns": 2000 * writes })
        };
        let mut first = document(100 * SECOND, &[96 * SECOND, 97 * SECOND, 98 * SECOND, 99 * SECOND]);
        let report = &mut first["servers"][0]["report"];
        for (index, jobs) in [vec![], vec![job("A", 1, 5)], vec![], vec![job("A", 0, 9)]].into_iter().enumerate() {
            report["samples"][index]["number"] = json!(index + 7);
            report["samples"][index]["jobs"] = json!(jobs);
        }
        let mut nameless = job("", 0, 4);
        nameless["kind"] = json!("none");
        report["jobs"] = json!([job("A", 0, 9), nameless]);
        let mut documents = Documents::default();
        let found = collect(&format!("{first}\n"), None, &mut documents);
        let totals = |found: &Collected, id: &str| {
            let readings = of(found, &Subject::Job { target: STORE.into(), id: id.into() });
            readings
                .iter()
                .map(|(time, _, counters)| (time / SECOND, counters[Counter::Writes as usize].unwrap()))
                .collect::<Vec<_>>()
        };
        assert_eq!(totals(&found, "A"), [(96, 0), (97, 5), (98, 5), (99, 9)]);
        assert_eq!(totals(&found, "(no job)"), [(100, 4)]);
        let last = of(&found, &Subject::Job { target: STORE.into(), id: "A".into() }).pop().unwrap().2;
        let of_last = |counter: Counter| last[counter as usize];
        assert_eq!(
            (of_last(Counter::Wait), of_last(Counter::Active), of_last(Counter::WriteBytes)),
            (Some(9), Some(18), Some(90))
        );
        let again = collect(&format!("{first}\n"), None, &mut documents);
        assert_eq!(totals(&again, "A"), []);
    }

    /// Goal: whatever is cut, spoilt or no document at all is told of and harms nothing; what is whole counts.
    #[test]
    fn spoilt() {
        let whole = format!("{:#}", document(100 * SECOND, &[99 * SECOND]));
        for end in 0..whole.len() - 1 {
            let text = format!("{}\n{whole}\n", &whole[..end]);
            let found = collect(&text, None, &mut Documents::default());
            let queue = of(&found, &Subject::Service("tabane".into()));
            assert!(queue.len() == 2 || end == 0 || !found.skipped.is_empty(), "{end}");
            assert!(queue.len() >= 2, "{end}: {:?}", found.skipped);
        }
        for text in ["{}\n", "{\"cluster\": 5}\n", "hello\n", "{\n}\n", &whole.replace("6", "\"six\"")] {
            let found = collect(text, None, &mut Documents::default());
            assert!(found.readings.is_empty() && !found.skipped.is_empty(), "{text}");
        }
        let deep = format!("{{\"a\":{}}}\n", "[".repeat(100_000));
        assert!(!collect(&deep, None, &mut Documents::default()).skipped.is_empty());
    }
}
