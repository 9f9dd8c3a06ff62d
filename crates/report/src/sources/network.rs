//! What a server's network has carried: counters of InfiniBand ports in sysfs, `lnetctl stats show`, /proc/net/dev, in
//! one log, again and again, each time behind a line with the time (`date +%s` or `date -Is`).
//!
//!     1795600800
//!     /sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data:123456       (grep -H . .../counters/port_*)
//!     statistics:                                                               (lnetctl stats show)
//!         send_length: 123456
//!     Inter-|   Receive ...                                                     (cat /proc/net/dev)
//!       eth0: 123456 ...
//!
//! `port_xmit_data` and `port_rcv_data` count units of 4 bytes, `port_xmit_wait` ticks in which a port had something to
//! send and could not (Linux, Documentation/ABI/stable/sysfs-class-infiniband). A counter of 32 bits stays at its end
//! when it gets there, and tells nothing from then on.

use super::hosts::HostText;
use super::lustre::{TextLine, number_of};
use super::{Counter, Counters, Network, Reading, Sink, Subject};
use crate::clock::{Nanos, SECOND};
use crate::failure::Outcome;
use crate::{times, words};
use jiff::tz::TimeZone;
use std::collections::BTreeMap;

/// Bytes that one of an InfiniBand port's units is.
const INFINIBAND_UNIT: i64 = 4;
/// Numbers of an interface in /proc/net/dev: eight of what it received, eight of what it sent.
const INTERFACE_NUMBERS: usize = 16;
/// Times before this are other numbers: 2001.
const TIME_LEAST: Nanos = 1_000_000_000 * SECOND;
/// Ports of one server.
const PORTS_MAX: usize = 1_000;

/// When something was printed, by each clock that tells it.
#[derive(Debug, Clone, Copy, Default)]
struct Printed {
    collector: Option<Nanos>,
    server: Option<Nanos>,
}

/// The counters of a port, line by line.
struct OpenPort {
    line: u64,
    printed: Printed,
    counters: Counters,
}

#[derive(PartialEq, Eq)]
enum NetworkSection {
    Outside,
    Lnet,
    Interfaces,
    /// A head that `head` and `tail` write above a file; its value follows.
    File(String),
}

/// The texts of one server, line by line.
pub struct NetworkText {
    server: String,
    time: Option<Nanos>,
    section: NetworkSection,
    open: BTreeMap<(Network, String), OpenPort>,
    /// Whether the line before was of no use, so that one event tells of many.
    lost: bool,
}

impl HostText for NetworkText {
    fn new(server: &str) -> NetworkText {
        let (server, open) = (server.to_owned(), BTreeMap::new());
        NetworkText { server, time: None, section: NetworkSection::Outside, open, lost: false }
    }

    fn begins(line: &str) -> bool {
        let line = line.trim();
        line == "statistics:" || line.starts_with("Inter-|") || line.contains("/infiniband/") || time_of(line).is_some()
    }

    fn line(&mut self, line: TextLine<'_>, collected: Option<Nanos>, sink: &mut impl Sink) -> Outcome {
        let text = line.text.trim();
        let lost = std::mem::replace(&mut self.lost, false);
        let printed = Printed { collector: collected, server: self.time };
        if text.is_empty() {
            return Ok(());
        }
        if !line.whole {
            return sink.skipped(line.number, &format!("\"{}\" is cut", words::name(text)));
        }
        if let NetworkSection::File(path) = &self.section {
            let counter = format!("{path}:{text}");
            self.section = NetworkSection::Outside;
            return self.infiniband(&counter, line.number, printed, sink);
        }
        if let Some(path) = text.strip_prefix("==> ").and_then(|rest| rest.strip_suffix(" <==")) {
            self.section = NetworkSection::File(path.to_owned());
            return Ok(());
        }
        if let Some(time) = time_of(text) {
            self.flush(sink)?;
            (self.time, self.section) = (Some(time), NetworkSection::Outside);
            return Ok(());
        }
        match text {
            "statistics:" => {
                self.section = NetworkSection::Lnet;
                self.flush_one(&(Network::Lnet, "lnet".to_owned()), sink)
            }
            _ if text.starts_with("Inter-|") || text.starts_with("face |") => {
                self.section = NetworkSection::Interfaces;
                Ok(())
            }
            _ if text.contains("/infiniband/") => self.infiniband(text, line.number, printed, sink),
            _ if self.section == NetworkSection::Lnet => self.lnet(text, line.number, printed, sink),
            _ if self.section == NetworkSection::Interfaces => self.interface(text, line.number, printed, sink),
            _ => {
                self.lost = true;
                let why = "it is no counter of InfiniBand, LNet or an interface";
                if lost { Ok(()) } else { sink.skipped(line.number, why) }
            }
        }
    }

    fn end(&mut self, _complete: bool, sink: &mut impl Sink) -> Outcome {
        self.flush(sink)
    }
}

impl NetworkText {
    /// `/sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data:123456`, also with a blank or `=` between.
    fn infiniband(&mut self, text: &str, line: u64, printed: Printed, sink: &mut impl Sink) -> Outcome {
        let Some((port, name, value)) = infiniband_of(text) else {
            return sink.skipped(line, &format!("\"{}\" is no counter of a port", words::name(text)));
        };
        let (counter, unit) = match name {
            "port_rcv_data" => (Counter::ReadBytes, INFINIBAND_UNIT),
            "port_xmit_data" => (Counter::WriteBytes, INFINIBAND_UNIT),
            "port_rcv_packets" => (Counter::Reads, 1),
            "port_xmit_packets" => (Counter::Writes, 1),
            "port_xmit_wait" => (Counter::Wait, 1),
            "port_xmit_discards" => (Counter::Operations, 1),
            _ => return Ok(()),
        };
        if value == i64::from(u32::MAX) {
            return sink.skipped(line, &format!("{name} of {port} is at its end (32 bits) and tells nothing any more"));
        }
        let Some(value) = value.checked_mul(unit) else {
            return sink.skipped(line, &format!("{name} of {port} is no number that is kept"));
        };
        self.set((Network::Infiniband, port), counter, value, line, printed, sink)
    }

    fn lnet(&mut self, text: &str, line: u64, printed: Printed, sink: &mut impl Sink) -> Outcome {
        let (name, value) = text.split_once(':').unwrap_or((text, ""));
        let counter = match name {
            "recv_count" => Counter::Reads,
            "recv_length" => Counter::ReadBytes,
            "send_count" => Counter::Writes,
            "send_length" => Counter::WriteBytes,
            "drop_count" => Counter::Operations,
            _ => return Ok(()),
        };
        match number_of(value.trim()) {
            Some(value) => self.set((Network::Lnet, "lnet".to_owned()), counter, value, line, printed, sink),
            None => sink.skipped(line, &format!("\"{}\" is no counter of LNet", words::name(text))),
        }
    }

    fn interface(&mut self, text: &str, line: u64, printed: Printed, sink: &mut impl Sink) -> Outcome {
        let interface = text.split_once(':').and_then(|(name, rest)| {
            let numbers: Option<Vec<i64>> = rest.split_whitespace().map(number_of).collect();
            Some((name.trim(), numbers.filter(|numbers| numbers.len() >= INTERFACE_NUMBERS)?))
        });
        let Some((name, numbers)) = interface else {
            self.section = NetworkSection::Outside;
            return sink.skipped(line, &format!("\"{}\" is no interface of /proc/net/dev", words::name(text)));
        };
        if is_another_ones(name) {
            return Ok(());
        }
        for (counter, value) in [
            (Counter::ReadBytes, numbers[0]),
            (Counter::Reads, numbers[1]),
            (Counter::WriteBytes, numbers[8]),
            (Counter::Writes, numbers[9]),
            (Counter::Operations, numbers[3].saturating_add(numbers[11])),
        ] {
            self.set((Network::Interface, name.to_owned()), counter, value, line, printed, sink)?;
        }
        Ok(())
    }

    /// A counter that was set already begins the next reading.
    fn set(
        &mut self,
        port: (Network, String),
        counter: Counter,
        value: i64,
        line: u64,
        printed: Printed,
        sink: &mut impl Sink,
    ) -> Outcome {
        if self.open.get(&port).is_some_and(|open| open.counters[counter as usize].is_some()) {
            self.flush_one(&port, sink)?;
        }
        if self.open.len() >= PORTS_MAX && !self.open.contains_key(&port) {
            return sink.skipped(line, "there are too many ports at one server");
        }
        let open = self.open.entry(port).or_insert_with(|| OpenPort { line, printed, counters: Counters::default() });
        open.counters[counter as usize] = Some(value);
        Ok(())
    }

    fn flush(&mut self, sink: &mut impl Sink) -> Outcome {
        while let Some(port) = self.open.keys().next().cloned() {
            self.flush_one(&port, sink)?;
        }
        Ok(())
    }

    fn flush_one(&mut self, port: &(Network, String), sink: &mut impl Sink) -> Outcome {
        let Some(open) = self.open.remove(port) else { return Ok(()) };
        let Some(time) = open.printed.collector.or(open.printed.server) else {
            return sink.skipped(open.line, "no time stands before it; write one with 'date +%s'");
        };
        sink.reading(Reading {
            server: self.server.clone(),
            subject: Subject::Network(port.0, port.1.clone()),
            time,
            snapshot: open.printed.collector.map(|collector| open.printed.server.unwrap_or(collector)),
            since: None,
            counters: open.counters,
            line: open.line,
        })
    }
}

fn time_of(text: &str) -> Option<Nanos> {
    if !text.starts_with(|letter: char| letter.is_ascii_digit()) {
        return None;
    }
    times::parse(text, &TimeZone::UTC).filter(|time| *time >= TIME_LEAST)
}

/// Port, counter, value.
fn infiniband_of(text: &str) -> Option<(String, &str, i64)> {
    let (_, rest) = text.split_once("/infiniband/")?;
    let at = rest.find([':', '=', ' ', '\t'])?;
    let (path, value) = (&rest[..at], rest[at + 1..].trim());
    let parts: Vec<&str> = path.split('/').collect();
    match parts[..] {
        [device, "ports", port, "counters" | "hw_counters", name] => {
            Some((format!("{device}/{port}"), name, number_of(value)?))
        }
        _ => None,
    }
}

/// Interfaces whose bytes go through others that are listed as well, or through none.
fn is_another_ones(name: &str) -> bool {
    let begins = ["veth", "docker", "br-", "virbr", "bond", "team", "tun", "tap"];
    name == "lo" || name.contains('.') || begins.iter().any(|begin| name.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::super::collected::Collected;
    use super::*;

    fn read(text: &str, collected: Option<Nanos>) -> Collected {
        let (mut sink, mut parser) = (Collected::default(), NetworkText::new("oss1"));
        for (index, line) in text.split_inclusive('\n').enumerate() {
            let whole = line.ends_with('\n');
            parser.line(TextLine { number: index as u64 + 1, text: line, whole }, collected, &mut sink).unwrap();
        }
        parser.end(false, &mut sink).unwrap();
        sink
    }

    fn shown(sink: &Collected) -> Vec<String> {
        let of = |reading: &Reading| {
            let Subject::Network(network, port) = &reading.subject else { panic!("{reading:?}") };
            let counters = [
                Counter::Reads,
                Counter::ReadBytes,
                Counter::Writes,
                Counter::WriteBytes,
                Counter::Wait,
                Counter::Operations,
            ];
            let counters = counters
                .map(|counter| reading.counters[counter as usize].map_or("-".into(), |value| value.to_string()));
            format!("{} {network:?} {port} {}", reading.time / SECOND, counters.join(" "))
        };
        sink.readings.iter().map(of).collect()
    }

    const TEXT: &str = "1795600800
/sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data:1000
/sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_packets:7
/sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data:2000
/sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_wait:33
/sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error:5
==> /sys/class/infiniband/mlx5_1/ports/2/counters/port_xmit_data <==
5

statistics:
    msgs_alloc: 0
    send_count: 4
    recv_count: 3
    drop_count: 2
    send_length: 400
    recv_length: 300
Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 99 9 0 0 0 0 0 0 99 9 0 0 0 0 0 0
  eth0: 1000 10 0 1 0 0 0 0 2000 20 0 2 0 0 0 0
eth0.7:1000 10 0 1 0 0 0 0 2000 20 0 2 0 0 0 0
2026-11-25T10:01:00+00:00
statistics:
    send_length: 500
";

    /// Goal: each of the three texts is read, in bytes; what goes through another interface does not count twice; a
    /// time begins the next reading. Method: by hand.
    #[test]
    fn three_texts() {
        let sink = read(TEXT, None);
        let wanted = [
            "1795600800 Infiniband mlx5_0/1 7 4000 - 8000 33 -",
            "1795600800 Infiniband mlx5_1/2 - - - 20 - -",
            "1795600800 Lnet lnet 3 300 4 400 - 2",
            "1795600800 Interface eth0 10 1000 20 2000 - 3",
            "1795600860 Lnet lnet - - - 500 - -",
        ];
        assert_eq!((shown(&sink), sink.skipped), (wanted.map(str::to_owned).to_vec(), vec![]));
        let sink = read(TEXT, Some(1_795_600_801 * SECOND));
        assert!(sink.readings.iter().all(|reading| reading.time == 1_795_600_801 * SECOND));
        assert_eq!(sink.readings[4].snapshot, Some(1_795_600_860 * SECOND));
    }

    /// Goal: what can't be understood is told with its line; what has no time is of no use; a text that is cut anywhere
    /// shows no number that is not in it.
    #[test]
    fn of_no_use() {
        for (text, why) in [
            ("statistics:\n    send_length: 500\n", "no time stands before it"),
            ("1795600800\nhello\nworld\n", "it is no counter"),
            ("1795600800\nstatistics:\n  send_length: -5\n", "is no counter of LNet"),
            ("1795600800\nInter-| x\n eth0: 1 2 3\n", "is no interface"),
            ("1795600800\n/x/infiniband/a/ports/1/counters/port_xmit_wait:4294967295\n", "at its end"),
            ("1795600800\n/x/infiniband/a/ports/1/counters/port_xmit_data:9223372036854775807\n", "no number"),
            ("1795600800\n/x/infiniband/a/port/1/counters/port_xmit_data:1\n", "no counter of a port"),
        ] {
            let sink = read(text, None);
            assert!(sink.readings.is_empty() && sink.skipped.len() == 1, "{text}: {sink:?}");
            assert!(sink.skipped[0].1.contains(why), "{text}: {sink:?}");
        }
        let whole = read(TEXT, None);
        for size in 0..TEXT.len() {
            for reading in read(&TEXT[..size], None).readings {
                let of = |other: &&Reading| other.subject == reading.subject && other.time == reading.time;
                let same = whole.readings.iter().find(of).unwrap_or_else(|| panic!("{size}: {reading:?}"));
                let mut pairs = reading.counters.iter().zip(&same.counters);
                assert!(pairs.all(|(cut, whole)| cut.is_none() || cut == whole), "{size}: {reading:?}");
            }
        }
    }
}
