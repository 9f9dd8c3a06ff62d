//! `tabane cat`, `get` and `put`: files through pipes.
//!
//! Standard input and output wait as long as those at their other ends like: that happens on a thread of its own, so
//! that the loop answers servers, shows how far it is and hears signals meanwhile. One piece is read while the one
//! before it is written.

use crate::activity::{Activity, Prints};
use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, about_path, io_words, path_failure};
use crate::json;
use crate::launch::stop_asked;
use crate::paths::{inside, shown};
use crate::session::Session;
use crate::text::size_words;
use crate::together::{Either, race};
use crate::up::catch_signals;
use crate::work::STOP_NS_MAX;
use client::{FileSystem, OpenHow};
use reactor::pipes::aside;
use reactor::{Class, JoinHandle, Reactor};
use serde_json::json;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::fd::AsFd;

/// Bytes moved at a time: several chunks, so that several servers work at once.
const PIECE_SIZE: usize = 8 << 20;
const FILE_MODE: u32 = 0o666;

/// A piece on its way beside the loop: its memory, and what came of it.
type Aside<T> = JoinHandle<io::Result<(Vec<u8>, io::Result<T>)>>;

/// `tabane cat` and `tabane get`.
pub fn run_cat(arguments: &Arguments) -> Outcome {
    let session = Session::open(arguments)?;
    let paths: Vec<Vec<u8>> = arguments.operand_bytes().iter().map(|path| inside(path)).collect();
    let activity = Activity::of_bytes("copied");
    session.block_on(async {
        let pouring = async {
            let mut outlet = Outlet { reactor: &session.reactor, spare: Vec::new(), writing: None };
            for path in &paths {
                let file = session.files.open(path, &OpenHow::reading()).await;
                let file = file.map_err(|error| path_failure(path, &error))?;
                let outcome = pour_out(&session.files, &file, path, &mut outlet, &activity).await;
                // Also after a failure: what is open keeps its space when its name is removed.
                session.files.close(&file).await;
                outcome?;
            }
            outlet.finish().await
        };
        let showing = activity.show_beside(
            &session.reactor,
            arguments,
            Prints::Meanwhile,
            add_up(&session.files, &paths, &activity),
        );
        match race(pouring, showing).await {
            Either::First(outcome) => outcome,
            Either::Second(()) => unreachable!("progress is shown until all is written"),
        }
    })
}

/// Finds out how much there is in all files together.
async fn add_up(files: &FileSystem, paths: &[Vec<u8>], activity: &Activity) {
    let mut total = 0;
    for path in paths {
        match files.stat(path).await {
            Ok(attributes) => total += attributes.size,
            Err(_) => return,
        }
    }
    activity.set_total(total);
}

/// Standard output, to which one piece at a time is written.
struct Outlet<'a> {
    reactor: &'a Reactor,
    /// Memory for pieces that is not in use.
    spare: Vec<Vec<u8>>,
    writing: Option<Aside<()>>,
}

impl Outlet<'_> {
    fn piece(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_else(|| vec![0; PIECE_SIZE])
    }

    /// Begins to write the first `count` bytes of a piece once the one before it has gone.
    async fn write(&mut self, piece: Vec<u8>, count: usize) -> Outcome {
        self.finish().await?;
        let reactor = self.reactor.clone();
        self.writing = Some(self.reactor.spawn_joinable(Class::Data, async move {
            let write = move || {
                let mut output = io::stdout().lock();
                let outcome = output.write_all(&piece[..count]).and_then(|()| output.flush());
                (piece, outcome)
            };
            aside(&reactor, write).await
        }));
        Ok(())
    }

    /// Waits until all is written.
    async fn finish(&mut self) -> Outcome {
        let Some(writing) = self.writing.take() else { return Ok(()) };
        let (piece, outcome) = writing.await.map_err(Failure::of_output)?;
        self.spare.push(piece);
        outcome.map_err(Failure::of_output)
    }
}

/// A file to standard output.
async fn pour_out(
    files: &FileSystem,
    file: &client::File,
    path: &[u8],
    outlet: &mut Outlet<'_>,
    activity: &Activity,
) -> Outcome {
    let mut offset = 0;
    // The first chunk alone: a small file needs no other server than its own, which matters when others are down.
    let mut size = (file.layout.chunk_size as usize).min(PIECE_SIZE);
    loop {
        let mut piece = outlet.piece();
        let read = files.read_at(file, &mut piece[..size], offset).await;
        let count = read.map_err(|error| path_failure(path, &error))?;
        outlet.write(piece, count).await?;
        activity.add(count as u64);
        if count < size {
            return Ok(());
        }
        offset += count as u64;
        size = PIECE_SIZE;
    }
}

/// `tabane put`.
pub fn run_put(arguments: &Arguments) -> Outcome {
    let session = Session::open(arguments)?;
    let signals = catch_signals(&session.reactor)?;
    let path = inside(&arguments.operand_bytes()[0]);
    let mode = arguments.number_given("mode").map_or(FILE_MODE, |mode| mode as u32);
    let chunk_size = arguments.number_given("chunk-size").unwrap_or(0) as u32;
    let how = OpenHow { chunk_size, ..OpenHow::creating(mode) };
    let activity = Activity::of_bytes("written");
    if let Some(size) = input_size() {
        activity.set_total(size);
    }
    let started = session.reactor.now();
    let interrupted = session.block_on(async {
        let (files, stopped) = (&session.files, || stop_asked(&signals));
        let file = match race(files.open(&path, &how), stopped()).await {
            Either::First(file) => file.map_err(|error| path_failure(&path, &error))?,
            Either::Second(signal) => {
                let name = String::from_utf8_lossy(&shown(&path)).into_owned();
                eprintln!("tabane: put: interrupted before {name} was open; look whether it is empty now");
                return Ok(Some(signal));
            }
        };
        let putting = async {
            let outcome = pour_in(&session, &file, &path, &activity).await;
            files.close(&file).await;
            outcome?;
            files.stat_file(&file).await.map(drop).map_err(|error| path_failure(&path, &error))
        };
        let showing = activity.show(&session.reactor, arguments, Prints::AtTheEnd);
        match race(race(putting, showing), stopped()).await {
            Either::First(Either::First(outcome)) => outcome.map(|()| None),
            Either::First(Either::Second(())) => unreachable!("progress is shown until all is written"),
            Either::Second(signal) => {
                // A server that is silent holds nobody up for long, nor who asks once more.
                let removing = remove_incomplete(files, &path, &file, activity.done.get());
                race(removing, race(session.reactor.sleep(STOP_NS_MAX), stopped())).await;
                Ok(Some(signal))
            }
        }
    })?;
    if arguments.flag("json") {
        let mut fields = json::Fields::new();
        json::put_name(&mut fields, "path", &shown(&path));
        fields.insert("bytes".to_owned(), json!(activity.done.get()));
        fields.insert("seconds".to_owned(), json!(json::seconds(session.reactor.now() - started)));
        fields.insert("interrupted".to_owned(), json!(interrupted.is_some()));
        json::print(&fields.into())?;
    }
    interrupted.map_or(Ok(()), |signal| Err(Failure::Said(signal.exit_code())))
}

/// Nobody shall take the first part of what was meant for the whole. What is not the file itself, such as a link to it,
/// stays.
async fn remove_incomplete(files: &FileSystem, path: &[u8], file: &client::File, done: u64) {
    files.close(file).await;
    let removed = match files.lstat(path).await {
        Ok(attributes) if attributes.id == file.id => files.unlink(path).await.map(|_| true),
        other => other.map(|_| false),
    };
    let (size, name) = (size_words(done), String::from_utf8_lossy(&shown(path)).into_owned());
    match removed {
        Ok(true) => eprintln!("tabane: put: interrupted after {size}; {name}, which was incomplete, is removed"),
        Ok(false) => eprintln!("tabane: put: interrupted; {name} is incomplete: it holds the first {size}"),
        Err(error) => {
            eprintln!("tabane: put: interrupted; what there is of {name} is incomplete: {}", about_path(path, &error))
        }
    }
}

/// Bytes that are left of standard input, where it is a plain file.
fn input_size() -> Option<u64> {
    let mut input = File::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
    let about = input.metadata().ok()?;
    let size = about.is_file().then_some(about.len())?;
    Some(size.saturating_sub(input.stream_position().ok()?))
}

/// Standard input to a file.
async fn pour_in(session: &Session, file: &client::File, path: &[u8], activity: &Activity) -> Outcome {
    let mut next = Some(read_piece(&session.reactor, vec![0; PIECE_SIZE]));
    let mut spare = vec![0; PIECE_SIZE];
    let mut offset = 0;
    while let Some(reading) = next.take() {
        let unfinished = |reason: String| Failure::failed(format!("{reason}; the file holds the first {offset} bytes"));
        let of_input = |error: io::Error| unfinished(format!("standard input: {}", io_words(&error)));
        let (piece, filled) = reading.await.map_err(of_input)?;
        let count = filled.map_err(of_input)?;
        // Less than asked for is the end.
        if count == piece.len() {
            next = Some(read_piece(&session.reactor, std::mem::take(&mut spare)));
        }
        let written = write_all(&session.files, file, &piece[..count], offset).await;
        written.map_err(|error| unfinished(about_path(path, &error)))?;
        activity.add(count as u64);
        offset += count as u64;
        spare = piece;
    }
    Ok(())
}

/// Reads a piece of standard input: its memory, and how much of it is filled.
fn read_piece(reactor: &Reactor, mut piece: Vec<u8>) -> Aside<usize> {
    let own = reactor.clone();
    let read = move || {
        let filled = fill(&mut io::stdin().lock(), &mut piece);
        (piece, filled)
    };
    reactor.spawn_joinable(Class::Data, async move { aside(&own, read).await })
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
