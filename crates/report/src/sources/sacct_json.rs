//! `sacct --json`: one document, of which one job at a time is in memory.
//!
//! Times are numbers of seconds in all versions of Slurm's data parser; what is a plain number in older ones may be an
//! object with `set` and `number` in newer ones, and a state a text or a list of texts.

use super::jobs::nodes_of;
use super::{Job, Sink, some_text};
use crate::clock::{Nanos, SECOND};
use crate::failure::{Failure, Outcome};
use crate::words;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::cell::RefCell;
use std::fmt;
use std::io::Read;

#[derive(Deserialize, Default)]
#[serde(default)]
struct SacctRecord {
    job_id: Value,
    array: Array,
    name: Value,
    user: Value,
    nodes: Value,
    state: State,
    time: Time,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Array {
    job_id: Value,
    task_id: Value,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct State {
    current: Value,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Time {
    start: Value,
    end: Value,
}

pub fn read(name: &str, input: impl Read, sink: &mut impl Sink) -> Outcome {
    let state = RefCell::new(Reader { sink, count: 0, failure: None });
    let mut document = serde_json::Deserializer::from_reader(input);
    let read = Document(&state).deserialize(&mut document).and_then(|()| document.end());
    let Reader { count, failure, .. } = state.into_inner();
    match (failure, read) {
        (Some(failure), _) => Err(failure),
        (None, Ok(())) => Ok(()),
        // As with every source nothing of it counts: it can't be known what is missing.
        (None, Err(error)) => Err(Failure::failed(format!(
            "{name}: after {}: {error}; it is no output of 'sacct --json', or not all of it",
            words::plural(count, "job")
        ))),
    }
}

struct Reader<'a, S> {
    sink: &'a mut S,
    count: u64,
    failure: Option<Failure>,
}

impl<S: Sink> Reader<'_, S> {
    /// False when the sink has failed.
    fn take(&mut self, record: SacctRecord) -> bool {
        self.count += 1;
        let outcome = match job_of(&record) {
            Ok(job) => self.sink.job(job),
            Err(why) => self.sink.skipped(0, &format!("job {} of the list: {why}", self.count)),
        };
        self.failure = outcome.err();
        self.failure.is_none()
    }
}

/// The whole document.
struct Document<'a, 'b, S>(&'a RefCell<Reader<'b, S>>);
/// The list of jobs in it.
struct Jobs<'a, 'b, S>(&'a RefCell<Reader<'b, S>>);

impl<'de, S: Sink> DeserializeSeed<'de> for Document<'_, '_, S> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, S: Sink> Visitor<'de> for Document<'_, '_, S> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object with a list \"jobs\"")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut found = false;
        while let Some(key) = map.next_key::<String>()? {
            if key == "jobs" {
                map.next_value_seed(Jobs(self.0))?;
                found = true;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        if found { Ok(()) } else { Err(serde::de::Error::custom("there is no list \"jobs\"")) }
    }
}

impl<'de, S: Sink> DeserializeSeed<'de> for Jobs<'_, '_, S> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, S: Sink> Visitor<'de> for Jobs<'_, '_, S> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of jobs")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(record) = list.next_element::<SacctRecord>()? {
            if !self.0.borrow_mut().take(record) {
                return Err(serde::de::Error::custom("stopped"));
            }
        }
        Ok(())
    }
}

/// A number, plain or as `{"set": true, "number": 5}`; none where it is not set.
fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Object(fields) => match fields.get("set") {
            Some(Value::Bool(false)) => None,
            _ => fields.get("number").and_then(Value::as_i64),
        },
        value => value.as_i64(),
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => some_text(text),
        Value::Array(texts) => texts.first().and_then(text),
        _ => None,
    }
}

fn job_of(record: &SacctRecord) -> Result<Job, String> {
    let id = number(&record.job_id).filter(|id| *id > 0).ok_or("it has no job_id")?.to_string();
    let array = number(&record.array.job_id).filter(|job| *job > 0);
    let shown = match (array, number(&record.array.task_id)) {
        (Some(job), Some(task)) => format!("{job}_{task}"),
        _ => id.clone(),
    };
    let time = |value: &Value| -> Option<Nanos> {
        number(value).filter(|seconds| *seconds > 0).and_then(|seconds| seconds.checked_mul(SECOND))
    };
    Ok(Job {
        lustre_id: Some(id).filter(|id| *id != shown),
        id: shown,
        name: text(&record.name),
        user: text(&record.user),
        state: text(&record.state.current),
        start: time(&record.time.start),
        end: time(&record.time.end),
        nodes: nodes_of(&text(&record.nodes).unwrap_or_default())?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::collected::Collected;
    use super::*;

    const TEXT: &str = r#"{"meta": {"plugin": {"type": "openapi/slurmdbd"}}, "errors": [], "jobs": [
        {"job_id": 4711, "name": "ior", "user": "alice", "nodes": "n[1-4]", "allocation_nodes": 4, "steps": [{}],
         "state": {"current": "COMPLETED"}, "time": {"start": 1795600800, "end": 1795602600, "elapsed": 1800},
         "array": {"job_id": 0, "task_id": {"set": false, "infinite": false, "number": 0}}},
        {"job_id": {"set": true, "infinite": false, "number": 4715}, "name": "=cmd", "nodes": "n5", "user": null,
         "state": {"current": ["RUNNING"]}, "time": {"start": {"set": true, "number": 1795600800}, "end": 0},
         "array": {"job_id": 4712, "task_id": {"set": true, "infinite": false, "number": 3}}},
        {"name": "nobody"}]}"#;

    /// Goal: both ways of newer and older versions to write a number and a state are read, and a record that names no
    /// job is told.
    #[test]
    fn versions() {
        let mut sink = Collected::default();
        read("x", TEXT.as_bytes(), &mut sink).unwrap();
        assert_eq!((sink.jobs.len(), sink.skipped.len()), (2, 1));
        let [first, second] = &sink.jobs[..] else { panic!() };
        assert_eq!(
            (first.id.as_str(), first.state.as_deref(), first.lustre_id.as_deref()),
            ("4711", Some("COMPLETED"), None)
        );
        assert_eq!((second.id.as_str(), second.lustre_id.as_deref()), ("4712_3", Some("4715")));
        assert_eq!((first.end, second.end), (Some(1_795_602_600 * SECOND), None));
        assert_eq!(second.start, first.start);
    }

    /// Goal: a document that is cut anywhere is refused as a whole, and nothing panics.
    #[test]
    fn cut_anywhere() {
        for size in 0..TEXT.len() {
            let outcome = read("x", &TEXT.as_bytes()[..size], &mut Collected::default());
            assert!(matches!(outcome, Err(Failure::Failed(_))), "{size}");
        }
    }
}
