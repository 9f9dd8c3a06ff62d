//! A job's log as Darshan writes it: another program, which knows all versions of its form, prints it as text.

use crate::failure::{Failure, Outcome, io_words};
use crate::threads;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;

/// At byte 8 of a log, in the byte order of who wrote it (darshan-log-format.h).
const MAGIC: i64 = 6_567_223;
/// For PyDarshan, where there is no `darshan-parser`.
const SCRIPT: &str = include_str!("print.py");
/// The script's exit status without PyDarshan.
const NO_PYDARSHAN: i32 = 86;
/// So much of what it complains about is kept, bytes.
const COMPLAINT_SIZE_MAX: usize = 4096;

/// Whether this is a log itself, and not what `darshan-parser` has printed of one. A pipe is not looked into.
pub fn is_log(file: &Path) -> bool {
    let mut head = [0; 16];
    let read = std::fs::metadata(file).is_ok_and(|metadata| metadata.is_file())
        && File::open(file).is_ok_and(|mut file| file.read_exact(&mut head).is_ok());
    let magic: [u8; 8] = head[8..].try_into().unwrap_or_default();
    read && [i64::from_le_bytes(magic), i64::from_be_bytes(magic)].contains(&MAGIC)
}

/// A program that prints the log on its standard output.
pub struct Printer {
    name: &'static str,
    child: Child,
    complaint: mpsc::Receiver<String>,
}

impl Printer {
    /// `darshan-parser`, or a Python that may have PyDarshan.
    pub fn start(log: &Path) -> Outcome<Printer> {
        // A name that begins with '-' is no option.
        let log = std::path::absolute(log).map_err(|error| Failure::of_file(log, &error))?;
        let mut parser = Command::new("darshan-parser");
        parser.arg(&log);
        let mut python = Command::new("python3");
        python.args(["-c", SCRIPT]).arg(&log);
        for (name, mut command) in [("darshan-parser", parser), ("PyDarshan", python)] {
            match command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn() {
                Ok(mut child) => {
                    let complaint = complaint_of(&mut child)?;
                    return Ok(Printer { name, child, complaint });
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => (),
                Err(error) => return Err(Failure::failed(format!("{name}: {}", io_words(&error)))),
            }
        }
        Err(none_there(&log))
    }

    pub fn output(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Once its output has been read. A log of which it could not print all is refused, for half of it would pass for
    /// all; that is seen by what it complains about, as its exit status is 0 for logs that are cut.
    pub fn end(mut self, log: &Path) -> Outcome {
        let status =
            self.child.wait().map_err(|error| Failure::failed(format!("{}: {}", self.name, io_words(&error))))?;
        let complaint = self.complaint.recv().unwrap_or_default();
        let error = complaint.lines().find(|line| line.contains("rror"));
        match (status.code(), error) {
            (Some(0), None) => Ok(()),
            (Some(NO_PYDARSHAN), _) if self.name == "PyDarshan" => Err(none_there(log)),
            _ => Err(Failure::failed(format!(
                "{}: {} can't read all of it: {}",
                log.display(),
                self.name,
                error.map_or_else(|| status.to_string(), str::to_owned)
            ))),
        }
    }
}

/// What it prints on its standard error, once it has ended. Nobody waits for who would read it.
fn complaint_of(child: &mut Child) -> Outcome<mpsc::Receiver<String>> {
    let (sender, receiver) = mpsc::channel();
    let Some(mut stderr) = child.stderr.take() else { return Ok(receiver) };
    threads::start("darshan", move || {
        let mut text = Vec::new();
        let mut piece = [0; COMPLAINT_SIZE_MAX];
        while let Ok(size @ 1..) = stderr.read(&mut piece) {
            text.extend_from_slice(&piece[..size.min(COMPLAINT_SIZE_MAX - text.len())]);
        }
        // Who asked for it may be gone.
        let _ = sender.send(String::from_utf8_lossy(&text).into_owned());
    })?;
    Ok(receiver)
}

fn none_there(log: &Path) -> Failure {
    Failure::failed(format!(
        "{}: reading a log of Darshan takes 'darshan-parser' (of darshan-util) in PATH, or PyDarshan (pip install \
         darshan) for 'python3'; or give what 'darshan-parser LOG' prints elsewhere",
        log.display()
    ))
}
