//! `tabane cat`, `get` and `put`: files through pipes.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, io_words, path_failure};
use crate::paths::inside;
use crate::session::Session;
use client::{FileSystem, OpenHow};
use std::io::{self, ErrorKind, Read, Write};

/// Bytes moved at a time: several chunks, so that several servers work at once.
const PIECE_SIZE: usize = 8 << 20;
const FILE_MODE: u32 = 0o666;

/// `tabane cat` and `tabane get`.
pub fn run_cat(arguments: &Arguments) -> Outcome {
    let session = Session::open(arguments)?;
    let mut output = io::stdout().lock();
    let mut buffer = vec![0; PIECE_SIZE];
    for path in arguments.operand_bytes() {
        let path = inside(&path);
        // Standard output blocks, as long as its reader likes. No request may be under way meanwhile, or its server
        // would seem silent.
        let file = session.block_on(session.files.open(&path, &OpenHow::reading()));
        let file = file.map_err(|error| path_failure(&path, &error))?;
        let outcome = pour_out(&session, &file, &path, &mut buffer, &mut output);
        // Also after a failure: what is open keeps its space when its name is removed.
        session.block_on(session.files.close(&file));
        outcome?;
    }
    output.flush().map_err(Failure::of_output)
}

/// `tabane put`.
pub fn run_put(arguments: &Arguments) -> Outcome {
    let session = Session::open(arguments)?;
    let path = inside(&arguments.operand_bytes()[0]);
    let mode = arguments.number_given("mode").map_or(FILE_MODE, |mode| mode as u32);
    let chunk_size = arguments.number_given("chunk-size").unwrap_or(0) as u32;
    let how = OpenHow { chunk_size, ..OpenHow::creating(mode) };
    let file = session.block_on(session.files.open(&path, &how)).map_err(|error| path_failure(&path, &error))?;
    let outcome = pour_in(&session, &file, &path);
    session.block_on(session.files.close(&file));
    outcome?;
    session.block_on(session.files.stat_file(&file)).map(drop).map_err(|error| path_failure(&path, &error))
}

/// A file to standard output.
fn pour_out(
    session: &Session,
    file: &client::File,
    path: &[u8],
    buffer: &mut [u8],
    output: &mut impl Write,
) -> Outcome {
    let mut offset = 0;
    // The first chunk alone: a small file needs no other server than its own, which matters when others are down.
    let mut size = (file.layout.chunk_size as usize).min(buffer.len());
    loop {
        let read = session.block_on(session.files.read_at(file, &mut buffer[..size], offset));
        let count = read.map_err(|error| path_failure(path, &error))?;
        output.write_all(&buffer[..count]).map_err(Failure::of_output)?;
        if count < size {
            return Ok(());
        }
        offset += count as u64;
        size = buffer.len();
    }
}

/// Standard input to a file.
fn pour_in(session: &Session, file: &client::File, path: &[u8]) -> Outcome {
    let mut input = io::stdin().lock();
    let mut buffer = vec![0; PIECE_SIZE];
    let mut offset = 0;
    loop {
        let unfinished = |reason: String| Failure::failed(format!("{reason}; the file holds the first {offset} bytes"));
        let count = fill(&mut input, &mut buffer)
            .map_err(|error| unfinished(format!("standard input: {}", io_words(&error))))?;
        if count == 0 {
            return Ok(());
        }
        let written = session.block_on(write_all(&session.files, file, &buffer[..count], offset));
        written.map_err(|error| unfinished(crate::failure::about_path(path, &error)))?;
        offset += count as u64;
    }
}

async fn write_all(files: &FileSystem, file: &client::File, bytes: &[u8], offset: u64) -> client::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        done += files.write_at(file, &bytes[done..], offset + done as u64).await?;
    }
    Ok(())
}

/// Reads until the buffer is full or the input ends.
fn fill(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match input.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
