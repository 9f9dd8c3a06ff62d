//! Frames: what the page shows at a moment, as JSON, from the readings that came since the one before.

use crate::analysis::natural;
use crate::clock::{Nanos, SECOND};
use crate::failure::Outcome;
use crate::sources::{Counter, Counters, Job, Node, Reading, Sink, Subject};
use crate::{times, words};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Events that a frame has; of more the last ones.
const EVENTS_MAX: usize = 50;
/// Jobs that a frame has; of more those that do most.
const JOBS_MAX: usize = 50;
/// Frames after which a server that tells nothing is shown as silent.
const SILENT_FRAMES: u64 = 3;

/// What a rule says.
#[derive(Debug, Clone, PartialEq)]
pub struct Hint {
    pub rule: &'static str,
    pub words: String,
    pub change: &'static str,
}

/// A job that is there at the moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LiveJob {
    pub id: String,
    pub name: Option<String>,
    pub user: Option<String>,
}

#[derive(Default)]
pub struct FrameMaker {
    last: HashMap<String, (Nanos, Counters)>,
    servers: BTreeMap<Vec<(u64, String)>, LiveServer>,
    /// Read and written, of jobs that are counted, since the last frame.
    job_rates: BTreeMap<String, [f64; 2]>,
    pub jobs: Vec<LiveJob>,
    pub hints: Vec<Hint>,
    events: VecDeque<(u64, String)>,
    event_number: u64,
    frame_number: u64,
}

#[derive(Default)]
struct LiveServer {
    name: String,
    /// The frame in which it last told anything.
    told: u64,
    wait_us: Option<f64>,
    depth: Option<f64>,
    active: Option<f64>,
    requests: Option<f64>,
    /// By target, for each tells by itself.
    bytes: BTreeMap<String, [Option<f64>; 2]>,
    busy: Option<f64>,
    bytes_total: Option<i64>,
    bytes_free: Option<i64>,
}

impl FrameMaker {
    pub fn event(&mut self, words: &str) {
        self.event_number += 1;
        self.events.push_back((self.event_number, words.to_owned()));
        if self.events.len() > EVENTS_MAX {
            self.events.pop_front();
        }
    }

    /// The frame of a moment; what comes from now on is of the next one.
    pub fn frame(&mut self, now: Nanos) -> String {
        self.frame_number += 1;
        let number = self.frame_number;
        let servers: Vec<Value> = self.servers.values().map(|server| server.json(number)).collect();
        let mut jobs: Vec<Value> = self.jobs.iter().map(|job| self.job_json(job)).collect();
        let bytes = |job: &Value| job["read"].as_f64().unwrap_or(0.0) + job["written"].as_f64().unwrap_or(0.0);
        jobs.sort_by(|one, other| bytes(other).total_cmp(&bytes(one)));
        jobs.truncate(JOBS_MAX);
        self.job_rates.clear();
        let hints =
            self.hints.iter().map(|hint| json!({ "rule": hint.rule, "words": hint.words, "change": hint.change }));
        let events = self.events.iter().map(|(number, words)| json!({ "number": number, "words": words }));
        json!({
            "time": now as f64 / SECOND as f64,
            "utc": times::exact(now),
            "servers": servers,
            "jobs": jobs,
            "advice": hints.collect::<Vec<Value>>(),
            "events": events.collect::<Vec<Value>>(),
        })
        .to_string()
    }

    fn job_json(&self, job: &LiveJob) -> Value {
        let rates = self.job_rates.get(&job.id);
        let shown = |text: &Option<String>| text.as_deref().map(words::name);
        json!({
            "id": words::name(&job.id), "name": shown(&job.name), "user": shown(&job.user),
            "read": rates.map(|rates| rates[0]), "written": rates.map(|rates| rates[1]),
        })
    }

    fn server(&mut self, name: &str) -> &mut LiveServer {
        let number = self.frame_number + 1;
        let server = self.servers.entry(natural(name)).or_default();
        if server.name.is_empty() {
            server.name = words::name(name);
        }
        server.told = number;
        server
    }
}

impl LiveServer {
    fn json(&self, number: u64) -> Value {
        let is_silent = number - self.told >= SILENT_FRAMES;
        // What it told before is not what is now.
        let now = |value: Option<f64>| if is_silent { None } else { value };
        let sum = |index: usize| self.bytes.values().filter_map(|bytes| bytes[index]).reduce(|one, other| one + other);
        let used = self.bytes_total.zip(self.bytes_free).filter(|(total, _)| *total > 0);
        json!({
            "name": self.name,
            "state": if is_silent { "silent" } else { "up" },
            "wait": now(self.wait_us),
            "depth": now(self.depth),
            "active": now(self.active),
            "requests": now(self.requests),
            "read": now(sum(0)),
            "written": now(sum(1)),
            "busy": now(self.busy),
            "used": used.map(|(total, free)| 1.0 - free as f64 / total as f64),
        })
    }
}

/// What counters grew by, with the seconds in which they did.
struct Growth {
    counters: Counters,
    seconds: f64,
}

impl Growth {
    fn rate(&self, counter: Counter) -> Option<f64> {
        self.counters[counter as usize].map(|growth| growth as f64 / self.seconds)
    }

    fn mean(&self, count: Counter, sum: Counter) -> Option<f64> {
        let count = self.counters[count as usize].filter(|count| *count > 0)?;
        Some(self.counters[sum as usize]? as f64 / count as f64)
    }
}

impl FrameMaker {
    /// Growth since the reading before; none for a first one, and where counters went back.
    fn growth(&mut self, reading: &Reading) -> Option<Growth> {
        let part = match &reading.subject {
            Subject::Service(name) | Subject::Target(name) | Subject::Number(name) => name.clone(),
            Subject::Job { target, id } => format!("{target}\0{id}"),
            Subject::Network(..) | Subject::Rank { .. } | Subject::File(_) => return None,
        };
        let key = format!("{}\0{:?}\0{part}", reading.server, std::mem::discriminant(&reading.subject));
        let (before_time, before) = self.last.insert(key, (reading.time, reading.counters))?;
        let seconds = (reading.time - before_time) as f64 / SECOND as f64;
        let mut counters = Counters::default();
        for (index, growth) in counters.iter_mut().enumerate() {
            *growth = reading.counters[index].zip(before[index]).map(|(after, before)| after - before);
        }
        let went_back = counters.iter().flatten().any(|growth| *growth < 0);
        (seconds > 0.0 && !went_back).then_some(Growth { counters, seconds })
    }
}

impl Sink for FrameMaker {
    fn job(&mut self, _: Job) -> Outcome {
        Ok(())
    }

    fn node(&mut self, _: Node) -> Outcome {
        Ok(())
    }

    fn reading(&mut self, reading: Reading) -> Outcome {
        let level = reading.counters[Counter::Operations as usize];
        let growth = self.growth(&reading);
        let server = self.server(&reading.server);
        match (&reading.subject, growth) {
            (Subject::Number(name), growth) => match name.as_str() {
                "bytes_total" => server.bytes_total = level,
                "bytes_free" => server.bytes_free = level,
                "loop_busy_ns" => {
                    let busy = growth.and_then(|growth| growth.rate(Counter::Operations));
                    server.busy = busy.map(|nanos| (nanos / 1e9).clamp(0.0, 1.0));
                }
                _ => (),
            },
            (Subject::Service(_), growth) => {
                let of = |count, sum| growth.as_ref().and_then(|growth| growth.mean(count, sum));
                server.wait_us = of(Counter::WaitCount, Counter::Wait);
                server.depth = of(Counter::DepthCount, Counter::Depth);
                server.active = of(Counter::ActiveCount, Counter::Active);
                server.requests = growth.as_ref().and_then(|growth| growth.rate(Counter::WaitCount));
            }
            (Subject::Target(name), growth) => {
                let of = |counter| growth.as_ref().and_then(|growth| growth.rate(counter));
                server.bytes.insert(name.clone(), [of(Counter::ReadBytes), of(Counter::WriteBytes)]);
            }
            (Subject::Job { id, .. }, Some(growth)) => {
                let rates = self.job_rates.entry(id.clone()).or_default();
                rates[0] += growth.rate(Counter::ReadBytes).unwrap_or(0.0);
                rates[1] += growth.rate(Counter::WriteBytes).unwrap_or(0.0);
            }
            (Subject::Job { .. } | Subject::Network(..) | Subject::Rank { .. } | Subject::File(_), _) => (),
        }
        Ok(())
    }

    fn skipped(&mut self, _: u64, why: &str) -> Outcome {
        // A server that is down is told of each time; once is enough.
        let words = words::name(why);
        if self.events.iter().all(|(_, known)| *known != words) {
            self.event(&words);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(server: &str, subject: Subject, second: i64, values: &[(Counter, i64)]) -> Reading {
        let mut counters = Counters::default();
        values.iter().for_each(|(counter, value)| counters[*counter as usize] = Some(*value));
        let (server, time) = (server.to_owned(), second * SECOND);
        Reading { server, subject, time, snapshot: None, since: None, counters, line: 0 }
    }

    fn number(value: &Value) -> f64 {
        value.as_f64().unwrap_or(f64::NAN)
    }

    /// Goal: a frame has what grew since the one before, by hand; a restart gives no rate; who tells nothing becomes
    /// silent and keeps no old values. Method: two servers, one of which ends.
    #[test]
    fn by_hand() {
        let mut maker = FrameMaker::default();
        let step = |maker: &mut FrameMaker, second: i64, servers: &[(&str, i64)]| -> Value {
            for (name, grown) in servers {
                let queue = [(Counter::WaitCount, 10 * grown), (Counter::Wait, 300 * grown)];
                maker.reading(reading(name, Subject::Service("tabane".into()), second, &queue)).unwrap();
                let bytes = [(Counter::ReadBytes, 1000 * grown), (Counter::WriteBytes, 0)];
                maker.reading(reading(name, Subject::Target("store".into()), second, &bytes)).unwrap();
                let busy = [(Counter::Operations, 500_000_000 * grown)];
                maker.reading(reading(name, Subject::Number("loop_busy_ns".into()), second, &busy)).unwrap();
            }
            serde_json::from_str(&maker.frame(second * SECOND)).unwrap()
        };
        assert!(step(&mut maker, 0, &[("s10", 1), ("s2", 1)])["servers"][0]["read"].is_null());
        let frame = step(&mut maker, 2, &[("s10", 3), ("s2", 5)]);
        let servers = frame["servers"].as_array().unwrap();
        assert_eq!(servers.iter().map(|server| server["name"].as_str().unwrap()).collect::<Vec<_>>(), ["s2", "s10"]);
        let of = |index: usize, name: &str| number(&servers[index][name]);
        assert_eq!((of(0, "wait"), of(0, "requests"), of(0, "read")), (30.0, 20.0, 2000.0));
        assert_eq!((of(1, "busy"), of(0, "written")), (0.5, 0.0));
        assert!(servers[0]["depth"].is_null());
        // s2 began anew.
        let frame = step(&mut maker, 4, &[("s10", 4), ("s2", 1)]);
        assert!(frame["servers"][0]["read"].is_null() && frame["servers"][1]["read"].is_number());
        let mut frame = Value::Null;
        for second in [6, 8, 10] {
            frame = step(&mut maker, second, &[("s2", second)]);
        }
        assert_eq!(
            (frame["servers"][1]["state"].as_str(), frame["servers"][0]["state"].as_str()),
            (Some("silent"), Some("up"))
        );
        assert!(frame["servers"][1]["read"].is_null());
    }

    /// Goal: events are bounded, and names are texts without control characters.
    #[test]
    fn events_and_names() {
        let mut maker = FrameMaker::default();
        for _ in 0..3 {
            maker.skipped(0, "s1: down\u{1b}[2J").unwrap();
        }
        (0..200).for_each(|number| maker.event(&number.to_string()));
        maker.jobs = vec![LiveJob { id: "<b>".into(), ..LiveJob::default() }];
        let frame: Value = serde_json::from_str(&maker.frame(0)).unwrap();
        let events = frame["events"].as_array().unwrap();
        assert_eq!((events.len(), events[49]["number"].as_u64()), (EVENTS_MAX, Some(201)));
        assert_eq!(frame["jobs"][0]["id"], "<b>");
    }
}
