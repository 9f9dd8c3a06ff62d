//! Lines of an input, one at a time, whatever its size: memory is bounded by the longest line that is taken.

use crate::failure::{Failure, Outcome, io_words};
use crate::progress::Progress;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// A line that is longer is skipped. A record of fluentd may hold a whole output of `lctl`.
pub const LINE_SIZE_MAX: usize = 16 << 20;
const BUFFER_SIZE: usize = 256 << 10;

/// One line.
#[derive(Debug)]
pub struct Line<'a> {
    /// From 1.
    pub number: u64,
    /// Without its end; bytes that are no UTF-8 are replaced.
    pub text: std::borrow::Cow<'a, str>,
    /// Whether its end was there: the last line of a cut log has none.
    pub whole: bool,
}

/// What came of asking for a line.
#[derive(Debug)]
pub enum Next<'a> {
    Line(Line<'a>),
    /// This line is too long, and was passed over.
    TooLong(u64),
    End,
}

/// Reads an input line by line.
pub struct Lines<'a> {
    name: String,
    input: Box<dyn BufRead + 'a>,
    number: u64,
    line: Vec<u8>,
    progress: Option<&'a Progress>,
}

impl<'a> Lines<'a> {
    /// `-` is standard input.
    pub fn open(file: &Path, progress: &'a Progress) -> Outcome<Lines<'a>> {
        let name = file.display().to_string();
        if name == "-" {
            return Ok(Lines { progress: Some(progress), ..Lines::of("standard input", std::io::stdin().lock()) });
        }
        let input = File::open(file).map_err(|error| Failure::of_file(file, &error))?;
        if input.metadata().is_ok_and(|metadata| metadata.is_dir()) {
            return Err(Failure::failed(format!("{name}: is a directory; name the files in it")));
        }
        Ok(Lines { progress: Some(progress), ..Lines::of(&name, input) })
    }

    pub fn of(name: &str, input: impl Read + 'a) -> Lines<'a> {
        let input = Box::new(BufReader::with_capacity(BUFFER_SIZE, input));
        Lines { name: name.to_owned(), input, number: 0, line: Vec::new(), progress: None }
    }

    pub fn next(&mut self) -> Outcome<Next<'_>> {
        self.line.clear();
        self.number += 1;
        let (mut size, mut whole) = (0, false);
        while !whole {
            let name = &self.name;
            let held =
                self.input.fill_buf().map_err(|error| Failure::failed(format!("{name}: {}", io_words(&error))))?;
            if held.is_empty() {
                break;
            }
            let (piece, taken) = match held.iter().position(|byte| *byte == b'\n') {
                Some(at) => (&held[..at], at + 1),
                None => (held, held.len()),
            };
            whole = taken > piece.len();
            if size + piece.len() <= LINE_SIZE_MAX {
                self.line.extend_from_slice(piece);
            }
            size += piece.len();
            self.input.consume(taken);
            if let Some(progress) = self.progress {
                progress.add(taken as u64);
            }
        }
        if size == 0 && !whole {
            return Ok(Next::End);
        }
        if size > LINE_SIZE_MAX {
            return Ok(Next::TooLong(self.number));
        }
        if self.line.last() == Some(&b'\r') {
            self.line.pop();
        }
        Ok(Next::Line(Line { number: self.number, text: String::from_utf8_lossy(&self.line), whole }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: lines are numbered, a missing end is seen, and a line without any end does not fill the memory.
    #[test]
    fn bounded_lines() {
        let long = std::io::repeat(b'x').take(3 * LINE_SIZE_MAX as u64);
        let mut lines = Lines::of("x", (&b"one\r\n\n"[..]).chain(long).chain(&b"\ncut"[..]));
        let mut seen = Vec::new();
        loop {
            match lines.next().unwrap() {
                Next::Line(line) => seen.push((line.number, line.text.into_owned(), line.whole)),
                Next::TooLong(number) => seen.push((number, "too long".into(), true)),
                Next::End => break,
            }
        }
        let wanted = [(1, "one", true), (2, "", true), (3, "too long", true), (4, "cut", false)];
        assert_eq!(seen, wanted.map(|(number, text, whole)| (number, text.to_owned(), whole)));
        assert!(lines.line.capacity() <= 2 * LINE_SIZE_MAX);
    }
}
