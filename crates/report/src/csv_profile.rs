//! The CSV profile of a server in a job's time: a row for each interval, by the names of Lustre's counters.

use crate::analysis::{Profile, Row};
use crate::failure::{Failure, Outcome, io_words};
use crate::times;
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

const HEAD: [&str; 28] = [
    "job",
    "server",
    "snapshot_time",
    "time",
    "seconds",
    "req_waittime",
    "req_qdepth",
    "req_active",
    "requests_per_s",
    "reads_per_s",
    "read_bytes_per_s",
    "writes_per_s",
    "write_bytes_per_s",
    "job_read_bytes_per_s",
    "job_write_bytes_per_s",
    "job_operations_per_s",
    "reset",
    "clock_offset",
    "infiniband_receive_bytes_per_s",
    "infiniband_send_bytes_per_s",
    "infiniband_send_wait_per_s",
    "infiniband_drops_per_s",
    "lnet_receive_bytes_per_s",
    "lnet_send_bytes_per_s",
    "lnet_drops_per_s",
    "interface_receive_bytes_per_s",
    "interface_send_bytes_per_s",
    "interface_drops_per_s",
];

/// Where profiles go.
pub enum Target {
    /// One table of all.
    Output(Box<csv::Writer<std::io::StdoutLock<'static>>>),
    /// A table for each server in a directory.
    Directory { directory: PathBuf, names: HashSet<String> },
}

impl Target {
    /// `-` is standard output.
    pub fn open(name: &Path) -> Outcome<Target> {
        if name.as_os_str() == "-" {
            let mut writer = csv::Writer::from_writer(std::io::stdout().lock());
            writer.write_record(HEAD).map_err(of_output)?;
            return Ok(Target::Output(Box::new(writer)));
        }
        std::fs::create_dir_all(name).map_err(|error| Failure::of_file(name, &error))?;
        Ok(Target::Directory { directory: name.to_owned(), names: HashSet::new() })
    }

    pub fn write(&mut self, job: &str, profile: &Profile) -> Outcome {
        match self {
            Target::Output(writer) => {
                profile.rows.iter().try_for_each(|row| writer.write_record(cells(job, profile, row))).map_err(of_output)
            }
            Target::Directory { directory, names } => {
                let file = directory.join(file_name(job, &profile.server, names));
                write_whole(&file, |output| {
                    let mut writer = csv::Writer::from_writer(output);
                    writer.write_record(HEAD)?;
                    profile.rows.iter().try_for_each(|row| writer.write_record(cells(job, profile, row)))?;
                    writer.flush()
                })
            }
        }
    }

    pub fn end(self) -> Outcome {
        match self {
            Target::Output(mut writer) => writer.flush().map_err(Failure::of_output),
            Target::Directory { .. } => Ok(()),
        }
    }
}

fn of_output(error: csv::Error) -> Failure {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => Failure::of_output(error),
        _ => Failure::failed("standard output: a row can't be written"),
    }
}

/// Writes a file beside its place and moves it there, so that nobody finds half of it.
pub fn write_whole(file: &Path, write: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>) -> Outcome {
    let mut whole = WholeFile::begin(file)?;
    write(&mut whole.output).map_err(|error| whole.failed(&error))?;
    whole.end()
}

/// A file that is there when it is whole; what was begun goes if it does not come to its end.
pub struct WholeFile {
    file: PathBuf,
    beside: PathBuf,
    output: BufWriter<File>,
}

impl WholeFile {
    fn begin(file: &Path) -> Outcome<WholeFile> {
        let mut beside = file.as_os_str().to_owned();
        beside.push(format!(".{}.part", std::process::id()));
        let (file, beside) = (file.to_owned(), PathBuf::from(beside));
        match File::create(&beside) {
            Ok(output) => Ok(WholeFile { file, beside, output: BufWriter::new(output) }),
            Err(error) => Err(Failure::failed(format!("{}: {}", file.display(), io_words(&error)))),
        }
    }

    fn failed(&self, error: &std::io::Error) -> Failure {
        Failure::failed(format!("{}: {}", self.file.display(), io_words(error)))
    }

    fn end(mut self) -> Outcome {
        let ended = self.output.flush().and_then(|()| std::fs::rename(&self.beside, &self.file));
        ended.map_err(|error| self.failed(&error))
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        // After its end it is not there; that it can't be removed is worth no words beside what went wrong.
        let _ = std::fs::remove_file(&self.beside);
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.output.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.output.flush()
    }
}

/// One table, on standard output (`-`) or in a file that is there when it is whole.
pub enum Table {
    Output(Box<csv::Writer<std::io::StdoutLock<'static>>>),
    File(Box<csv::Writer<WholeFile>>, PathBuf),
}

impl Table {
    pub fn begin(name: &Path, head: &[&str]) -> Outcome<Table> {
        let mut table = if name.as_os_str() == "-" {
            Table::Output(Box::new(csv::Writer::from_writer(std::io::stdout().lock())))
        } else {
            Table::File(Box::new(csv::Writer::from_writer(WholeFile::begin(name)?)), name.to_owned())
        };
        table.row(head)?;
        Ok(table)
    }

    pub fn row<Cell: AsRef<[u8]>>(&mut self, cells: impl IntoIterator<Item = Cell>) -> Outcome {
        match self {
            Table::Output(writer) => writer.write_record(cells).map_err(of_output),
            Table::File(writer, name) => writer.write_record(cells).map_err(|error| match error.into_kind() {
                csv::ErrorKind::Io(error) => Failure::of_file(name, &error),
                _ => Failure::failed(format!("{}: a row can't be written", name.display())),
            }),
        }
    }

    pub fn end(self) -> Outcome {
        match self {
            Table::Output(mut writer) => writer.flush().map_err(Failure::of_output),
            Table::File(writer, name) => match writer.into_inner() {
                Ok(whole) => whole.end(),
                Err(error) => Err(Failure::of_file(&name, error.error())),
            },
        }
    }
}

/// `4711-oss1.csv`, with nothing in it that a file's name can't have, and no name twice.
fn file_name(job: &str, server: &str, taken: &mut HashSet<String>) -> String {
    let plain = |text: &str| {
        let plain = |letter: char| if letter.is_ascii_alphanumeric() || "._-".contains(letter) { letter } else { '_' };
        text.chars().take(100).map(plain).collect::<String>()
    };
    let name = format!("{}-{}", plain(job).trim_start_matches(['.', '-']), plain(server));
    let mut number = 1;
    let mut free = name.clone();
    while !taken.insert(free.clone()) {
        number += 1;
        free = format!("{name}-{number}");
    }
    free + ".csv"
}

fn cells(job: &str, profile: &Profile, row: &Row) -> [String; HEAD.len()] {
    let time = row.to;
    let [infiniband, lnet, interface] = &row.networks;
    [
        text(job),
        text(&profile.server),
        times::seconds(time),
        times::exact(time),
        number(Some((row.to - row.from) as f64 / 1e9)),
        number(row.wait),
        number(row.depth),
        number(row.active),
        number(row.requests),
        number(row.reads),
        number(row.read_bytes),
        number(row.writes),
        number(row.write_bytes),
        number(row.job_read_bytes),
        number(row.job_write_bytes),
        number(row.job_operations),
        if row.reset { "1".to_owned() } else { String::new() },
        number(Some(profile.clock.offset as f64 / 1e9)),
        number(infiniband.receive_bytes),
        number(infiniband.send_bytes),
        number(infiniband.send_wait),
        number(infiniband.drops),
        number(lnet.receive_bytes),
        number(lnet.send_bytes),
        number(lnet.drops),
        number(interface.receive_bytes),
        number(interface.send_bytes),
        number(interface.drops),
    ]
}

/// A text that no spreadsheet takes for a formula.
pub fn text(text: &str) -> String {
    match text.chars().next() {
        Some('=' | '+' | '-' | '@' | '\t' | '\r' | '\n') => format!("'{text}"),
        _ => text.to_owned(),
    }
}

/// Six digits behind the point at most; empty where it is not known.
pub fn number(value: Option<f64>) -> String {
    let Some(value) = value.filter(|value| value.is_finite()) else { return String::new() };
    if value.fract() == 0.0 && value.abs() < 1e15 {
        return (value as i64).to_string();
    }
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: numbers are short and exact, unknown ones empty, formulas are texts, and names of files are harmless.
    #[test]
    fn forms() {
        assert_eq!([Some(0.0), Some(2.5), Some(1e9 / 3.0), None].map(number), ["0", "2.5", "333333333.333333", ""]);
        assert_eq!((text("=cmd|' /C calc'!A0"), text("oss1")), ("'=cmd|' /C calc'!A0".into(), "oss1".into()));
        let mut taken = HashSet::new();
        assert_eq!(file_name("../../etc", "a/b", &mut taken), "_.._etc-a_b.csv");
        assert_eq!(file_name("1", "a/b", &mut taken), "1-a_b.csv");
        assert_eq!(file_name("1", "a b", &mut taken), "1-a_b-2.csv");
    }
}
