//! Lines of several servers in one input: `pdsh` and `clush` write `oss1: ` before each, and mix those of all hosts.

use super::Sink;
use super::lustre::TextLine;
use crate::clock::Nanos;
use crate::failure::Outcome;
use crate::lines::{Lines, Next};
use std::collections::HashMap;

/// Servers of one input.
const HOSTS_MAX: usize = 10_000;

/// Texts of one server, line by line.
pub trait HostText {
    fn new(server: &str) -> Self;
    /// Whether a text may begin with such a line, so that what stands before it is a host.
    fn begins(line: &str) -> bool;
    /// Takes a line. `collected` is when it was read, by the collector's clock.
    fn line(&mut self, line: TextLine<'_>, collected: Option<Nanos>, sink: &mut impl Sink) -> Outcome;
    /// The input ends. `complete`: nothing of it can be missing.
    fn end(&mut self, complete: bool, sink: &mut impl Sink) -> Outcome;
}

/// One parser for each server.
pub struct Hosts<Text> {
    /// Whose lines those are that name no host.
    unnamed: Option<String>,
    parsers: HashMap<String, Text>,
    told: bool,
}

impl<Text: HostText> Hosts<Text> {
    pub fn new(unnamed: Option<&str>) -> Hosts<Text> {
        Hosts { unnamed: unnamed.map(str::to_owned), parsers: HashMap::new(), told: false }
    }

    pub fn line(&mut self, line: TextLine<'_>, collected: Option<Nanos>, sink: &mut impl Sink) -> Outcome {
        if let Some((host, rest)) = self.host_of(line.text) {
            let host = host.to_owned();
            return self.line_of(&host, TextLine { text: rest, ..line }, collected, sink);
        }
        match self.unnamed.clone() {
            Some(server) => self.line_of(&server, line, collected, sink),
            None if self.told || line.text.trim().is_empty() => Ok(()),
            None => {
                self.told = true;
                sink.skipped(line.number, "it says of no server; name it with --server, or use pdsh")
            }
        }
    }

    /// A line of a server that is known otherwise.
    pub fn line_of(
        &mut self,
        host: &str,
        line: TextLine<'_>,
        collected: Option<Nanos>,
        sink: &mut impl Sink,
    ) -> Outcome {
        if let Some(parser) = self.parsers.get_mut(host) {
            return parser.line(line, collected, sink);
        }
        if self.parsers.len() >= HOSTS_MAX {
            return sink.skipped(line.number, "there are too many servers in one input");
        }
        self.parsers.entry(host.to_owned()).or_insert_with(|| Text::new(host)).line(line, collected, sink)
    }

    /// A host is one that was seen, or that the beginning of a text follows: other lines have colons too.
    fn host_of<'a>(&self, line: &'a str) -> Option<(&'a str, &'a str)> {
        let (host, rest) = line.split_once(':')?;
        let is_name = host.starts_with(|letter: char| letter.is_ascii_alphanumeric())
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
        let rest = rest.strip_prefix(' ').unwrap_or(rest);
        let known = is_name && (self.parsers.contains_key(host) || Text::begins(rest));
        known.then_some((host, rest))
    }

    /// The input ends. `complete`: nothing of it can be missing.
    pub fn end(&mut self, complete: bool, sink: &mut impl Sink) -> Outcome {
        let mut parsers: Vec<_> = self.parsers.iter_mut().collect();
        parsers.sort_by(|one, other| one.0.cmp(other.0));
        parsers.into_iter().try_for_each(|(_, parser)| parser.end(complete, sink))
    }
}

/// Reads a log: texts, or JSON lines that hold such texts.
pub fn read<Text: HostText>(
    lines: &mut Lines<'_>,
    server: Option<&str>,
    zone: &jiff::tz::TimeZone,
    sink: &mut impl Sink,
) -> Outcome {
    let mut hosts = Hosts::<Text>::new(server);
    loop {
        match lines.next()? {
            Next::End => return hosts.end(false, sink),
            Next::TooLong(number) => sink.skipped(number, "the line is too long")?,
            Next::Line(line) => {
                let text = TextLine { number: line.number, text: &line.text, whole: line.whole };
                match super::fluentd::json_of(text.text) {
                    Some(record) => super::fluentd::line(&record, text, zone, &mut hosts, sink)?,
                    None => hosts.line(text, None, sink)?,
                }
            }
        }
    }
}
