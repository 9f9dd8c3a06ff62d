//! `tabane logs`: what the servers of this machine wrote, together and in order.

use crate::arguments::Arguments;
use crate::colours::{Colour, colours_wanted, painted};
use crate::failure::{Failure, Outcome, io_words};
use crate::launch::stop_asked;
use crate::log::aside;
use crate::log::line::{LogLine, time_words};
use crate::run_directory::of_cluster_path;
use crate::session::{cluster_path, find_cluster, open_reactor};
use crate::together::{Either, race};
use crate::up::catch_signals;
use reactor::Nanos;
use reactor::log::Level;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// How often a log that is followed is looked at.
const LOOK_INTERVAL: Nanos = 200_000_000;

/// A log and how far it was read.
struct Log {
    server: u32,
    path: PathBuf,
    offset: u64,
    /// A line that is still without its end.
    rest: Vec<u8>,
    /// Time of the last line: lines without one belong to it.
    time: i64,
}

/// A line of a server, with the time that it is sorted by.
struct LogEntry {
    time: i64,
    server: u32,
    line: LogLine,
}

/// What is shown and how.
struct LogQuery {
    level: Level,
    json: bool,
    colours: bool,
}

/// `tabane logs`.
pub fn run(arguments: &Arguments) -> Outcome {
    let cluster = find_cluster(arguments)?;
    let directory = of_cluster_path(&cluster_path(arguments)).ok_or_else(|| {
        Failure::failed(
            "logs are in the run directory, and this is a cluster file without one; name the run directory with \
             --cluster, on the machine of the servers",
        )
    })?;
    let servers: Vec<u32> = match arguments.operands.first() {
        None => (0..cluster.server_count()).collect(),
        Some(word) => vec![server_of(&word.to_string_lossy(), cluster.server_count())?],
    };
    let wish = LogQuery {
        level: Level::of_name(&arguments.text_or_default("level")).expect("the table names all levels"),
        json: arguments.flag("json"),
        colours: colours_wanted(arguments, std::io::stdout().is_terminal()),
    };
    let mut logs: Vec<Log> = servers.iter().map(|server| Log::new(*server, &directory)).collect();
    let mut entries = Vec::new();
    for log in &mut logs {
        log.read_aside(&mut entries)?;
        log.read(&mut entries)?;
    }
    let count = arguments.number_given("lines").map_or(usize::MAX, |count| count as usize);
    entries.retain(|entry| entry.line.level >= wish.level);
    entries.sort_by_key(|entry| entry.time);
    print(&entries[entries.len().saturating_sub(count)..], &wish)?;
    if arguments.flag("follow") { follow(&mut logs, &wish) } else { Ok(()) }
}

fn server_of(word: &str, count: u32) -> Outcome<u32> {
    match word.parse::<u32>() {
        Ok(server) if server < count => Ok(server),
        _ => Err(Failure::usage(format!("\"{word}\" is not a server; they are 0 to {}", count - 1))),
    }
}

impl Log {
    fn new(server: u32, directory: &Path) -> Log {
        Log { server, path: directory.join(format!("server-{server}.log")), offset: 0, rest: Vec::new(), time: 0 }
    }

    /// The part that was put aside.
    fn read_aside(&mut self, entries: &mut Vec<LogEntry>) -> Outcome {
        match std::fs::read(aside(&self.path)) {
            Ok(bytes) => {
                self.take(&bytes, entries);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed(&self.path, &error)),
        }
    }

    /// What is new since the last time. A log that became shorter was put aside and begins anew.
    fn read(&mut self, entries: &mut Vec<LogEntry>) -> Outcome {
        let read = |offset: u64| -> std::io::Result<(u64, Vec<u8>)> {
            let mut file = File::open(&self.path)?;
            let size = file.metadata()?.len();
            let offset = if size < offset { 0 } else { offset };
            file.seek(SeekFrom::Start(offset))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok((offset + bytes.len() as u64, bytes))
        };
        match read(self.offset) {
            Ok((offset, bytes)) => {
                self.offset = offset;
                self.take(&bytes, entries);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed(&self.path, &error)),
        }
    }

    fn take(&mut self, bytes: &[u8], entries: &mut Vec<LogEntry>) {
        self.rest.extend_from_slice(bytes);
        let end = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |position| position + 1);
        let whole: Vec<u8> = self.rest.drain(..end).collect();
        for text in String::from_utf8_lossy(&whole).lines().filter(|text| !text.trim().is_empty()) {
            let line = LogLine::parse(text);
            self.time = line.time.unwrap_or(self.time);
            // What a server says of itself at its start is no event; the words of a panic are.
            if line.time.is_none() && line.level == Level::Info {
                continue;
            }
            entries.push(LogEntry { time: self.time, server: self.server, line });
        }
    }
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure::failed(format!("{}: {}", path.display(), io_words(error)))
}

fn follow(logs: &mut [Log], wish: &LogQuery) -> Outcome {
    let reactor = open_reactor()?;
    let signals = catch_signals(&reactor)?;
    reactor.block_on(async {
        loop {
            if let Either::Second(signal) = race(reactor.sleep(LOOK_INTERVAL), stop_asked(&signals)).await {
                return Err(Failure::Said(signal.exit_code()));
            }
            let mut entries = Vec::new();
            logs.iter_mut().try_for_each(|log| log.read(&mut entries))?;
            entries.retain(|entry| entry.line.level >= wish.level);
            entries.sort_by_key(|entry| entry.time);
            print(&entries, wish)?;
        }
    })
}

fn print(entries: &[LogEntry], wish: &LogQuery) -> Outcome {
    let mut output = std::io::stdout().lock();
    for entry in entries {
        let text = if wish.json { json_of(entry).to_string() } else { text_of(entry, wish.colours) };
        writeln!(output, "{text}").map_err(Failure::of_output)?;
    }
    output.flush().map_err(Failure::of_output)
}

fn text_of(entry: &LogEntry, colours: bool) -> String {
    let colour = match entry.line.level {
        Level::Info => Colour::Green,
        Level::Warning => Colour::Yellow,
        Level::Error => Colour::Red,
    };
    if entry.line.time.is_none() {
        let text = entry.line.to_string();
        let text = if entry.line.level == Level::Info { text } else { painted(&text, colour, colours) };
        return format!("server {}: {text}", entry.server);
    }
    let text = entry.line.to_string();
    let level = entry.line.level.name();
    text.replacen(&format!(" {level} "), &format!(" {} ", painted(level, colour, colours)), 1)
}

fn json_of(entry: &LogEntry) -> Value {
    let mut object = Map::new();
    object.insert("time".to_owned(), entry.line.time.map_or(Value::Null, |time| time_words(time).into()));
    object.insert("level".to_owned(), entry.line.level.name().into());
    object.insert("server".to_owned(), entry.server.into());
    for (key, value) in entry.line.fields.iter().filter(|(key, _)| key != "server") {
        object.insert(key.clone(), value.clone().into());
    }
    Value::Object(object)
}
