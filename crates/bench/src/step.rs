//! What the processes of an experiment do, one step after the other: async work over the client, the same whether the
//! cluster is real or simulated. The leader (`experiment_*.rs`) says which step comes next; an engine (`engine_*.rs`)
//! has all processes do it at once and tells how long it took.

use crate::collective::Pieces;
use crate::collective_process::CollectiveStep;
use crate::experiment_congestion::Writers;
use crate::reaction::ReactionStep;
use crate::workload_mdtest::{HARD_FILE_SIZE, Tree};
use client::tests::{Clock, Order, Test, Tests};
use client::{Error, File, FileId, FileRange, FileSystem, Kind, OpenHow, Search};
use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::future::{Future, poll_fn};
use std::io::IoSlice;
use std::pin::Pin;
use std::task::Poll;

/// Names that one process makes at a time, where making them is not what is measured.
const AT_ONCE_COUNT: u64 = 32;
/// What names have to hold, in IO500's question.
pub const NEEDLE: &str = "01";

/// A directory of the tree that is searched: its id, and its path for those who search by path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchRoot {
    pub id: u64,
    pub path: String,
}

/// How IO500's question is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Each process has its servers test what they hold.
    Servers,
    /// Each process lists what its servers hold, and asks for the attributes of the files whose names fit.
    Index,
    /// One process lists everything, and asks for the attributes of the files whose names fit, by path.
    Stat,
}

/// One step. Counts and sizes are of each process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing, beside those who do something.
    Rest,
    MakeDirectory {
        path: String,
    },
    /// Files as mdtest makes them; `at_once` of them under way at a time.
    MakeFiles {
        path: String,
        hard: bool,
        count: u64,
        at_once: bool,
    },
    StatFiles {
        path: String,
        hard: bool,
        count: u64,
    },
    /// Opens each of the neighbour's files, reads all of it and closes it.
    ReadFiles {
        path: String,
        hard: bool,
        count: u64,
    },
    RemoveFiles {
        path: String,
        hard: bool,
        count: u64,
    },
    /// Opens a file of one's own, or one that all share.
    OpenFile {
        path: String,
        shared: bool,
        chunk_size: u32,
        write: bool,
    },
    /// Writes or reads `count` pieces; those of several processes lie interleaved in a shared file. `Rotate` reads the
    /// next process's file.
    MovePieces {
        shared: bool,
        size: u64,
        count: u64,
        write: bool,
    },
    /// Writes a volume front to back into the file that is open, so many bytes a call; `serial`: the chunks of a call
    /// one after the other.
    WriteBlocks {
        block: u64,
        volume: u64,
        chunk: u64,
        serial: bool,
    },
    /// Writes pieces with gaps into the file that all share.
    WriteRegions {
        pieces: Pieces,
        writers: Writers,
    },
    CloseFile,
    /// Removes what `OpenFile` opened for writing; of a shared file the first process does.
    RemoveFile {
        path: String,
        shared: bool,
    },
    Find {
        way: Way,
        newer_than: i64,
        places: Vec<SearchRoot>,
    },
    /// A request without work.
    Ping {
        server: u32,
    },
    /// For a time, writes records of the size that `sizes` has for the process's rank, over and over into the file that
    /// is open, so many bytes and calls of it under way at most; sends requests without work where it is 0.
    Share {
        milliseconds: u64,
        bytes_under_way: u64,
        calls_max: u64,
        flood_calls: u64,
        sizes: Vec<u64>,
    },
    /// The id and the time of a path.
    Look {
        path: String,
    },
    /// A part of rdbench's work, which engines do by themselves: see `reaction.rs`.
    Reaction(ReactionStep),
    /// A part of hpio's work on the file that is open, which engines do by themselves: see `collective_process.rs`.
    Collective(CollectiveStep),
}

/// What one process did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Done {
    /// Bytes or operations.
    pub work: u64,
    /// Files found; the time of what was looked at.
    pub number: i64,
    /// Directories met, or what was looked at.
    pub places: Vec<SearchRoot>,
}

impl Done {
    pub fn of_work(work: u64) -> Done {
        Done { work, ..Done::default() }
    }
}

/// One process.
pub struct Actor {
    pub rank: u32,
    pub procs: u32,
    buffer: Vec<u8>,
    file: Option<File>,
}

fn words(error: Error) -> String {
    error.message
}

/// Writes ranges of a file from places of memory in one call; returns their bytes. Errors: words.
pub async fn write_ranges(
    files: &FileSystem,
    file: &File,
    ranges: &[FileRange],
    places: &[IoSlice<'_>],
) -> Result<u64, String> {
    let wanted: u64 = ranges.iter().map(|range| range.size).sum();
    match files.write_list_at(file, ranges, places).await.map_err(words)? as u64 {
        written if written == wanted => Ok(wanted),
        written => Err(format!(
            "{written} instead of {wanted} bytes written; a store that is full cuts a write short, --store takes a \
             larger size"
        )),
    }
}

impl Actor {
    pub fn new(rank: u32, procs: u32) -> Actor {
        Actor { rank, procs, buffer: Vec::new(), file: None }
    }

    fn neighbour(&self) -> u32 {
        (self.rank + 1) % self.procs
    }

    /// Does a step. Errors: words.
    pub async fn act(&mut self, files: &FileSystem, step: &Step) -> Result<Done, String> {
        match step {
            Step::Rest => Ok(Done::default()),
            Step::MakeDirectory { path } => {
                files.create_all(path.as_bytes(), 0o777).await.map_err(words)?;
                Ok(Done::of_work(1))
            }
            Step::MakeFiles { path, hard, count, at_once } => {
                let at_once = if *at_once { AT_ONCE_COUNT } else { 1 };
                make_files(files, &Tree::new(path, *hard), self.rank, *count, at_once).await
            }
            Step::StatFiles { path, hard, count } => {
                let (tree, owner, mut path) = (Tree::new(path, *hard), self.neighbour(), String::new());
                for index in 0..*count {
                    tree.set_path(&mut path, owner, index);
                    let found = files.stat(path.as_bytes()).await.map_err(words)?;
                    if found.size != tree.file_size as u64 {
                        return Err(format!("{path}: size is {} instead of {}", found.size, tree.file_size));
                    }
                }
                Ok(Done::of_work(*count))
            }
            Step::ReadFiles { path, hard, count } => self.read_files(files, &Tree::new(path, *hard), *count).await,
            Step::RemoveFiles { path, hard, count } => {
                let (tree, owner, mut path) = (Tree::new(path, *hard), self.neighbour(), String::new());
                for index in 0..*count {
                    tree.set_path(&mut path, owner, index);
                    files.unlink(path.as_bytes()).await.map_err(words)?;
                }
                Ok(Done::of_work(*count))
            }
            Step::OpenFile { path, shared, chunk_size, write } => {
                let owner = if *write { self.rank } else { self.neighbour() };
                let path = if *shared { path.clone() } else { format!("{path}.{owner}") };
                let chunk_size = *chunk_size;
                let how = OpenHow { read: !write, write: *write, create: *write, chunk_size, ..OpenHow::default() };
                self.file = Some(files.open(path.as_bytes(), &how).await.map_err(words)?);
                Ok(Done::of_work(1))
            }
            Step::MovePieces { shared, size, count, write } => {
                self.move_pieces(files, *shared, *size, *count, *write).await
            }
            Step::WriteBlocks { block, volume, chunk, serial } => {
                self.write_blocks(files, *block, *volume, if *serial { *chunk } else { *block }).await
            }
            Step::WriteRegions { pieces, writers } => match writers {
                Writers::All => self.write_regions(files, *pieces).await,
                Writers::View => self.write_regions_of_domain(files, *pieces, false).await,
                Writers::Turns => self.write_regions_of_domain(files, *pieces, true).await,
                Writers::OneAServer => self.write_regions_of_server(files, *pieces).await,
            },
            Step::CloseFile => {
                if let Some(file) = self.file.take() {
                    files.close(&file).await;
                }
                // Nothing of it is counted in what comes next.
                files.finish().await;
                Ok(Done::of_work(1))
            }
            Step::RemoveFile { path, shared } => {
                let path = if *shared { path.clone() } else { format!("{path}.{}", self.rank) };
                if !shared || self.rank == 0 {
                    files.unlink(path.as_bytes()).await.map_err(words)?;
                }
                Ok(Done::of_work(1))
            }
            Step::Find { way, newer_than, places } => self.find(files, *way, *newer_than, places).await,
            Step::Ping { server } => {
                files.ping(*server).await.map_err(words)?;
                Ok(Done::of_work(1))
            }
            Step::Share { milliseconds, bytes_under_way, calls_max, flood_calls, sizes } => {
                let size = sizes.get(self.rank as usize).copied().unwrap_or(0);
                let calls = match size {
                    0 => *flood_calls,
                    size => (bytes_under_way / size).clamp(1, *calls_max),
                };
                self.share(files, milliseconds * 1_000_000, size, calls).await
            }
            Step::Look { path } => {
                let found = files.stat(path.as_bytes()).await.map_err(words)?;
                let place = SearchRoot { id: found.id.0, path: path.clone() };
                Ok(Done { work: 1, number: found.mtime, places: vec![place] })
            }
            Step::Reaction(_) | Step::Collective(_) => Err("this step is none of an actor".to_owned()),
        }
    }

    fn take_buffer(&mut self, size: u64) -> Vec<u8> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(size as usize, 0x5a);
        buffer
    }

    /// Errors: nothing is open.
    pub fn open_file(&self) -> Result<&File, String> {
        self.file.as_ref().ok_or_else(|| "no file is open".to_owned())
    }

    async fn read_files(&mut self, files: &FileSystem, tree: &Tree, count: u64) -> Result<Done, String> {
        let (owner, mut path) = (self.neighbour(), String::new());
        let mut buffer = self.take_buffer(tree.file_size as u64);
        let how = OpenHow { read: true, ..OpenHow::default() };
        for index in 0..count {
            tree.set_path(&mut path, owner, index);
            let file = files.open(path.as_bytes(), &how).await.map_err(words)?;
            if !buffer.is_empty() {
                let size = files.read_at(&file, &mut buffer, 0).await.map_err(words)?;
                if size != buffer.len() {
                    return Err(format!("{path}: {size} instead of {} bytes read", buffer.len()));
                }
            }
            files.close(&file).await;
        }
        self.buffer = buffer;
        Ok(Done::of_work(count))
    }

    async fn move_pieces(
        &mut self,
        files: &FileSystem,
        shared: bool,
        size: u64,
        count: u64,
        write: bool,
    ) -> Result<Done, String> {
        let mut buffer = self.take_buffer(size);
        let owner = if write { self.rank } else { self.neighbour() };
        let file = self.open_file()?;
        for index in 0..count {
            let piece = if shared { index * u64::from(self.procs) + u64::from(owner) } else { index };
            let moved = match write {
                true => files.write_at(file, &buffer, piece * size).await,
                false => files.read_at(file, &mut buffer, piece * size).await,
            };
            let moved = moved.map_err(words)?;
            if moved as u64 != size {
                return Err(format!("{moved} instead of {size} bytes moved at {}", piece * size));
            }
        }
        self.buffer = buffer;
        Ok(Done::of_work(count * size))
    }

    async fn write_blocks(&mut self, files: &FileSystem, block: u64, volume: u64, call: u64) -> Result<Done, String> {
        let buffer = self.take_buffer(block);
        let file = self.open_file()?;
        let mut done = 0;
        while done < volume {
            for at in (0..block).step_by(call as usize) {
                let bytes = &buffer[at as usize..(at + call).min(block) as usize];
                let written = files.write_at(file, bytes, done + at).await.map_err(words)?;
                if written != bytes.len() {
                    return Err(format!("{written} instead of {} bytes written", bytes.len()));
                }
            }
            done += block;
        }
        self.buffer = buffer;
        Ok(Done::of_work(done))
    }

    /// Writes records until a time is over, or sends requests without work if these have no bytes.
    async fn share(&mut self, files: &FileSystem, duration: u64, size: u64, calls: u64) -> Result<Done, String> {
        let buffer = self.take_buffer(size);
        let end = files.reactor().now() + duration;
        let done = Cell::new(0);
        let go_on = async |call: u64| -> Result<(), String> {
            // Each call has its own place.
            while files.reactor().now() < end {
                match size {
                    0 => {
                        files.ping(0).await.map_err(words)?;
                        done.set(done.get() + 1);
                    }
                    _ => {
                        let written = files.write_at(self.open_file()?, &buffer, call * size).await.map_err(words)?;
                        done.set(done.get() + written as u64);
                    }
                }
            }
            Ok(())
        };
        let all = (0..calls).map(|call| Box::pin(go_on(call)) as Work<'_>).collect();
        together(all).await?;
        self.buffer = buffer;
        Ok(Done::of_work(done.get()))
    }

    async fn write_regions(&mut self, files: &FileSystem, pieces: Pieces) -> Result<Done, String> {
        let buffer = self.take_buffer(pieces.size);
        let file = self.open_file()?;
        for index in 0..pieces.count {
            let number = index * u64::from(self.procs) + u64::from(self.rank);
            let written = files.write_at(file, &buffer, number * (pieces.size + pieces.gap)).await.map_err(words)?;
            if written != buffer.len() {
                return Err(format!("{written} instead of {} bytes written", buffer.len()));
            }
        }
        self.buffer = buffer;
        Ok(Done::of_work(pieces.count * pieces.size))
    }

    /// Pieces that lie one behind the other in the file, as many as each process has, in one call.
    async fn write_regions_of_domain(
        &mut self,
        files: &FileSystem,
        pieces: Pieces,
        throttled: bool,
    ) -> Result<Done, String> {
        let buffer = self.take_buffer(pieces.count * pieces.size);
        let file = self.open_file()?;
        file.set_throttled(throttled);
        let first = u64::from(self.rank) * pieces.count;
        let range_of = |number: u64| FileRange { offset: number * (pieces.size + pieces.gap), size: pieces.size };
        let ranges: Vec<FileRange> = (first..first + pieces.count).map(range_of).collect();
        let done = write_ranges(files, file, &ranges, &[IoSlice::new(&buffer)]).await?;
        self.buffer = buffer;
        Ok(Done::of_work(done))
    }

    /// What of all pieces lies in the chunks of one server, a call a chunk.
    async fn write_regions_of_server(&mut self, files: &FileSystem, pieces: Pieces) -> Result<Done, String> {
        let file = self.open_file()?;
        let (cluster, stride) = (files.cluster(), pieces.size + pieces.gap);
        let end = pieces.count * u64::from(self.procs) * stride;
        let chunk_size = u64::from(file.layout.chunk_size);
        let buffer = vec![0x5a; chunk_size as usize];
        let mut done = 0;
        for chunk in 0..end.div_ceil(chunk_size) {
            if cluster.chunk_server(file.id, &file.layout, chunk) != self.rank {
                continue;
            }
            let (start, limit) = (chunk * chunk_size, ((chunk + 1) * chunk_size).min(end));
            let numbers = start / stride..limit.div_ceil(stride);
            let ranges: Vec<FileRange> = numbers
                .map(|number| ((number * stride).max(start), (number * stride + pieces.size).min(limit)))
                .filter(|(from, to)| from < to)
                .map(|(from, to)| FileRange { offset: from, size: to - from })
                .collect();
            let size: u64 = ranges.iter().map(|range| range.size).sum();
            done += write_ranges(files, file, &ranges, &[IoSlice::new(&buffer[..size as usize])]).await?;
        }
        Ok(Done::of_work(done))
    }

    async fn find(&self, files: &FileSystem, way: Way, newer_than: i64, places: &[SearchRoot]) -> Result<Done, String> {
        let wanted = FindQuestion { newer_than };
        let mut done = Done::default();
        if way == Way::Stat {
            if self.rank == 0 {
                for place in places {
                    wanted.list(files, place, &mut done).await?;
                }
            }
            return Ok(done);
        }
        let servers: Vec<u32> = (self.rank..files.server_count()).step_by(self.procs as usize).collect();
        for place in places {
            for server in &servers {
                let tests = if way == Way::Servers { wanted.tests() } else { Tests::default() };
                let search = Search { tests, count_only: way == Way::Servers, server: Some(*server) };
                wanted.search(files, place, &search, &mut done).await?;
            }
        }
        Ok(done)
    }
}

/// IO500's question: newer than a file, a name that holds "01", of 3,901 bytes.
struct FindQuestion {
    newer_than: i64,
}

impl FindQuestion {
    fn tests(&self) -> Tests {
        Tests(vec![
            Test::Name { pattern: format!("*{NEEDLE}*").into_bytes(), any_case: false },
            Test::Kind(Kind::File),
            Test::Size { order: Order::Equal, unit: 1, count: HARD_FILE_SIZE as u64 },
            Test::Time { clock: Clock::Modification, after: self.newer_than, until: i64::MAX },
        ])
    }

    fn name_fits(name: &[u8]) -> bool {
        name.windows(NEEDLE.len()).any(|window| window == NEEDLE.as_bytes())
    }

    fn fits(&self, found: &client::Attributes) -> bool {
        found.size == HARD_FILE_SIZE as u64 && found.mtime > self.newer_than
    }

    /// One server's share of a directory. What it does not test is tested here.
    async fn search(
        &self,
        files: &FileSystem,
        place: &SearchRoot,
        search: &Search,
        done: &mut Done,
    ) -> Result<(), String> {
        let mut stream = files.open_search_id(FileId(place.id), search).await.map_err(words)?;
        while !stream.is_at_end() {
            let page = files.next_found(&mut stream).await.map_err(words)?;
            done.number += page.counted as i64;
            for entry in page.entries {
                done.work += 1;
                if entry.kind == Kind::Directory {
                    done.places.push(inside(place, entry.id, &entry.name));
                } else if !search.count_only && FindQuestion::name_fits(&entry.name) {
                    let found = files.stat_id(entry.id).await.map_err(words)?;
                    done.number += i64::from(self.fits(&found));
                }
            }
        }
        Ok(())
    }

    /// A whole directory, by readdir and stat.
    async fn list(&self, files: &FileSystem, place: &SearchRoot, done: &mut Done) -> Result<(), String> {
        let mut stream = files.open_directory(place.path.as_bytes(), false).await.map_err(words)?;
        let mut path = Vec::new();
        while !stream.is_at_end() {
            for entry in files.next_page(&mut stream).await.map_err(words)? {
                done.work += 1;
                if entry.kind == Kind::Directory {
                    done.places.push(inside(place, entry.id, &entry.name));
                } else if FindQuestion::name_fits(&entry.name) {
                    path.clear();
                    path.extend_from_slice(place.path.as_bytes());
                    path.push(b'/');
                    path.extend_from_slice(&entry.name);
                    let found = files.lstat(&path).await.map_err(words)?;
                    done.number += i64::from(self.fits(&found));
                }
            }
        }
        Ok(())
    }
}

fn inside(place: &SearchRoot, id: FileId, name: &[u8]) -> SearchRoot {
    SearchRoot { id: id.0, path: format!("{}/{}", place.path, String::from_utf8_lossy(name)) }
}

async fn make_files(files: &FileSystem, tree: &Tree, rank: u32, count: u64, at_once: u64) -> Result<Done, String> {
    let contents = vec![1; tree.file_size];
    let next = RefCell::new(0..count);
    let make = async || -> Result<(), String> {
        let how = OpenHow { write: true, create: true, exclusive: true, ..OpenHow::default() };
        let mut path = String::new();
        loop {
            let Some(index) = next.borrow_mut().next() else { return Ok(()) };
            tree.set_path(&mut path, rank, index);
            let file = files.open(path.as_bytes(), &how).await.map_err(words)?;
            if !contents.is_empty() {
                files.write_at(&file, &contents, 0).await.map_err(words)?;
            }
            files.close(&file).await;
        }
    };
    let all = (0..at_once).map(|_| Box::pin(make()) as Work<'_>).collect();
    together(all).await?;
    Ok(Done::of_work(count))
}

/// Something that is done beside others.
pub type Work<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + 'a>>;

/// Runs all to their ends; the first error, if any.
pub async fn together(mut all: Vec<Work<'_>>) -> Result<(), String> {
    let mut outcome = Ok(());
    poll_fn(|context| {
        all.retain_mut(|one| match one.as_mut().poll(context) {
            Poll::Pending => true,
            Poll::Ready(result) => {
                if outcome.is_ok() {
                    outcome = result;
                }
                false
            }
        });
        if all.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outcome
}

// A step and what came of it travel between the leader and its processes as one line of words. Paths are our own and
// have neither spaces nor commas.

fn put_places(text: &mut String, places: &[SearchRoot]) {
    for place in places {
        // Writing to a string does not fail.
        let _ = write!(text, " {}={}", place.id, place.path);
    }
}

fn take_places<'a>(words: impl Iterator<Item = &'a str>) -> Option<Vec<SearchRoot>> {
    words
        .map(|word| {
            let (id, path) = word.split_once('=')?;
            Some(SearchRoot { id: id.parse().ok()?, path: path.to_owned() })
        })
        .collect()
}

impl Way {
    pub const ALL: [Way; 3] = [Way::Servers, Way::Index, Way::Stat];

    pub fn name(self) -> &'static str {
        match self {
            Way::Servers => "servers",
            Way::Index => "index",
            Way::Stat => "stat",
        }
    }
}

impl Step {
    pub fn to_line(&self) -> String {
        match self {
            Step::Rest => "rest".to_owned(),
            Step::MakeDirectory { path } => format!("mkdir {path}"),
            Step::MakeFiles { path, hard, count, at_once } => format!("make {path} {hard} {count} {at_once}"),
            Step::StatFiles { path, hard, count } => format!("stat {path} {hard} {count}"),
            Step::ReadFiles { path, hard, count } => format!("read {path} {hard} {count}"),
            Step::RemoveFiles { path, hard, count } => format!("remove {path} {hard} {count}"),
            Step::OpenFile { path, shared, chunk_size, write } => format!("open {path} {shared} {chunk_size} {write}"),
            Step::MovePieces { shared, size, count, write } => format!("move {shared} {size} {count} {write}"),
            Step::WriteBlocks { block, volume, chunk, serial } => format!("blocks {block} {volume} {chunk} {serial}"),
            Step::WriteRegions { pieces: Pieces { count, size, gap }, writers } => {
                format!("regions {count} {size} {gap} {}", writers.word())
            }
            Step::CloseFile => "close".to_owned(),
            Step::RemoveFile { path, shared } => format!("unlink {path} {shared}"),
            Step::Ping { server } => format!("ping {server}"),
            Step::Share { milliseconds, bytes_under_way, calls_max, flood_calls, sizes } => {
                let mut text = format!("share {milliseconds} {bytes_under_way} {calls_max} {flood_calls}");
                for size in sizes {
                    // Writing to a string does not fail.
                    let _ = write!(text, " {size}");
                }
                text
            }
            Step::Look { path } => format!("look {path}"),
            Step::Reaction(step) => format!("reaction {}", step.to_words()),
            Step::Collective(step) => format!("collective {}", step.to_words()),
            Step::Find { way, newer_than, places } => {
                let mut text = format!("find {} {newer_than}", way.name());
                put_places(&mut text, places);
                text
            }
        }
    }

    /// `None` for what `to_line` never says.
    pub fn from_line(line: &str) -> Option<Step> {
        let mut words = line.split_whitespace();
        let kind = words.next()?;
        let mut path = || words.next().map(str::to_owned);
        Some(match kind {
            "rest" => Step::Rest,
            "mkdir" => Step::MakeDirectory { path: path()? },
            "make" => Step::MakeFiles {
                path: path()?,
                hard: read(&mut words)?,
                count: read(&mut words)?,
                at_once: read(&mut words)?,
            },
            "stat" => Step::StatFiles { path: path()?, hard: read(&mut words)?, count: read(&mut words)? },
            "read" => Step::ReadFiles { path: path()?, hard: read(&mut words)?, count: read(&mut words)? },
            "remove" => Step::RemoveFiles { path: path()?, hard: read(&mut words)?, count: read(&mut words)? },
            "open" => Step::OpenFile {
                path: path()?,
                shared: read(&mut words)?,
                chunk_size: read(&mut words)?,
                write: read(&mut words)?,
            },
            "move" => Step::MovePieces {
                shared: read(&mut words)?,
                size: read(&mut words)?,
                count: read(&mut words)?,
                write: read(&mut words)?,
            },
            "blocks" => Step::WriteBlocks {
                block: read(&mut words)?,
                volume: read(&mut words)?,
                chunk: read(&mut words)?,
                serial: read(&mut words)?,
            },
            "regions" => {
                let mut number = || read(&mut words);
                let pieces = Pieces { count: number()?, size: number()?, gap: number()? };
                let word = words.next().unwrap_or_default();
                let writers = Writers::ALL.into_iter().find(|writers| writers.word() == word);
                Step::WriteRegions { pieces, writers: writers? }
            }
            "close" => Step::CloseFile,
            "unlink" => Step::RemoveFile { path: path()?, shared: read(&mut words)? },
            "ping" => Step::Ping { server: read(&mut words)? },
            "share" => Step::Share {
                milliseconds: read(&mut words)?,
                bytes_under_way: read(&mut words)?,
                calls_max: read(&mut words)?,
                flood_calls: read(&mut words)?,
                sizes: words.map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>()?,
            },
            "look" => Step::Look { path: path()? },
            "reaction" => Step::Reaction(ReactionStep::from_words(&mut words)?),
            "collective" => Step::Collective(CollectiveStep::from_words(&mut words)?),
            "find" => {
                let name = words.next()?;
                let way = Way::ALL.into_iter().find(|way| way.name() == name)?;
                Step::Find { way, newer_than: read(&mut words)?, places: take_places(words)? }
            }
            _ => return None,
        })
    }
}

/// The next word, as what it stands for.
pub fn read<'a, T: std::str::FromStr>(words: &mut impl Iterator<Item = &'a str>) -> Option<T> {
    words.next()?.parse().ok()
}

impl Done {
    pub fn to_line(&self) -> String {
        let mut text = format!("{} {}", self.work, self.number);
        put_places(&mut text, &self.places);
        text
    }

    /// `None` for what `to_line` never says.
    pub fn from_line(line: &str) -> Option<Done> {
        let mut words = line.split_whitespace();
        Some(Done { work: read(&mut words)?, number: read(&mut words)?, places: take_places(words)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every step, and what came of it, is read as it was written.
    #[test]
    fn lines() {
        let path = || "/bench-1/x".to_owned();
        let places = vec![SearchRoot { id: 7, path: path() }, SearchRoot { id: u64::MAX, path: "/".to_owned() }];
        let steps = [
            Step::Rest,
            Step::MakeDirectory { path: path() },
            Step::MakeFiles { path: path(), hard: true, count: 3, at_once: false },
            Step::StatFiles { path: path(), hard: false, count: 9 },
            Step::ReadFiles { path: path(), hard: true, count: 4 },
            Step::RemoveFiles { path: path(), hard: true, count: 1 },
            Step::OpenFile { path: path(), shared: true, chunk_size: 47_008, write: false },
            Step::MovePieces { shared: false, size: 1 << 20, count: 8, write: true },
            Step::WriteBlocks { block: 8192, volume: 1 << 30, chunk: 4096, serial: true },
            Step::WriteRegions { pieces: Pieces { count: 3, size: 5992, gap: 256 }, writers: Writers::Turns },
            Step::CloseFile,
            Step::RemoveFile { path: path(), shared: true },
            Step::Ping { server: 7 },
            Step::Share {
                milliseconds: 5,
                bytes_under_way: 1 << 20,
                calls_max: 64,
                flood_calls: 2,
                sizes: vec![4096, 0],
            },
            Step::Look { path: path() },
            Step::Reaction(ReactionStep::WriteSnapshot { number: 12 }),
            Step::Collective(CollectiveStep::Clear { pieces: Pieces { count: 3, size: 5992, gap: 0 } }),
            Step::Find { way: Way::Index, newer_than: -5, places: places.clone() },
        ];
        for step in steps {
            assert_eq!(Step::from_line(&step.to_line()), Some(step));
        }
        let done = Done { work: 12, number: -3, places };
        assert_eq!(Done::from_line(&done.to_line()), Some(done));
        assert_eq!((Step::from_line("make /x maybe"), Done::from_line("1")), (None, None));
    }
}
