//! fluentd's JSON lines: `{"time": ..., "host": "oss1", "message": "..."}`, or behind a time and a tag, as its file
//! output writes them. A message is a text of `lctl` (or of network counters) or a line of it.

use super::Sink;
use super::hosts::{HostText, Hosts};
use super::lustre::TextLine;
use crate::clock::Nanos;
use crate::failure::Outcome;
use crate::times;
use jiff::tz::TimeZone;
use serde_json::{Map, Value};

const HOST_KEYS: [&str; 4] = ["host", "hostname", "server", "_HOSTNAME"];
const TEXT_KEYS: [&str; 4] = ["message", "log", "msg", "line"];
const TIME_KEYS: [&str; 4] = ["time", "@timestamp", "timestamp", "date"];

/// A line that holds JSON.
pub struct Json<'a> {
    /// What the file output wrote before it.
    time: Option<&'a str>,
    text: &'a str,
}

/// None for a line of another kind.
pub fn json_of(line: &str) -> Option<Json<'_>> {
    if line.starts_with('{') {
        return Some(Json { time: None, text: line });
    }
    let mut parts = line.splitn(3, '\t');
    let (time, _tag, text) = (parts.next()?, parts.next()?, parts.next()?);
    text.starts_with('{').then_some(Json { time: Some(time), text })
}

pub fn line<Text: HostText>(
    json: &Json<'_>,
    line: TextLine<'_>,
    zone: &TimeZone,
    hosts: &mut Hosts<Text>,
    sink: &mut impl Sink,
) -> Outcome {
    let Ok(Value::Object(record)) = serde_json::from_str::<Value>(json.text) else {
        return sink.skipped(line.number, if line.whole { "is no JSON" } else { "is cut" });
    };
    let Some(text) = first(&record, &TEXT_KEYS).and_then(Value::as_str) else {
        return sink.skipped(line.number, "the record has no message");
    };
    let time = first(&record, &TIME_KEYS).and_then(|value| time_of(value, zone));
    let time = time.or_else(|| times::parse(json.time?, zone));
    let host = first(&record, &HOST_KEYS).and_then(Value::as_str).filter(|host| !host.is_empty());
    for text in text.lines() {
        let line = TextLine { number: line.number, text, whole: true };
        match host {
            Some(host) => hosts.line_of(host, line, time, sink)?,
            None => hosts.line(line, time, sink)?,
        }
    }
    Ok(())
}

fn first<'a>(record: &'a Map<String, Value>, keys: &[&str]) -> Option<&'a Value> {
    keys.iter().find_map(|key| record.get(*key))
}

fn time_of(value: &Value, zone: &TimeZone) -> Option<Nanos> {
    match value {
        Value::Number(number) => times::parse(&number.to_string(), zone),
        Value::String(text) => times::parse(text, zone),
        _ => None,
    }
}
