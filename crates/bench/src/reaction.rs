//! What the processes of `rdbench` do: compute, and write snapshots, each its block of one shared file.

use crate::gray_scott::{BlockPlace, CELL_SIZE, Decomposition, Edges, GrayScott};
use crate::options::{Compute, SnapshotLayout};
use crate::step::read;
use client::{Client, FileRange, FileSystem, OpenHow};
use reactor::barrier::{GroupMemory, monotonic_now};
use std::fs::OpenOptions;
use std::io::IoSlice;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// What all processes know of the snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotPlan {
    pub decomposition: Decomposition,
    pub layout: SnapshotLayout,
    pub synced: bool,
}

/// A part of the work. Times are in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReactionStep {
    /// Starts anew.
    Begin(SnapshotPlan),
    /// Computes so many steps, and sleeps until so much time has passed since the beginning.
    Compute {
        steps: u64,
        time: u64,
    },
    WriteSnapshot {
        number: u32,
    },
    /// Has all that was written brought to the site.
    Flush,
}

/// The name of a snapshot, as RDBench has it.
pub fn snapshot_name(number: u32) -> String {
    format!("{number:06}.bin")
}

impl SnapshotPlan {
    /// Where the bytes of a process's block go, one range after the other.
    pub fn ranges(&self, rank: u32) -> Vec<FileRange> {
        let BlockPlace { x, y, width, height } = self.decomposition.block(rank);
        if self.layout == SnapshotLayout::Chunk {
            let size = width * height * CELL_SIZE;
            return vec![FileRange { offset: u64::from(rank) * size, size }];
        }
        let offset = |row: u64| (row * self.decomposition.width + x) * CELL_SIZE;
        (y..y + height).map(|row| FileRange { offset: offset(row), size: width * CELL_SIZE }).collect()
    }

    /// What a file has to hold, of what all cells hold row by row.
    pub fn arranged(&self, cells: &[u8]) -> Vec<u8> {
        if self.layout != SnapshotLayout::Chunk {
            return cells.to_vec();
        }
        let rows = SnapshotPlan { layout: SnapshotLayout::View, ..*self };
        let ranges = (0..self.decomposition.procs()).flat_map(|rank| rows.ranges(rank));
        ranges.flat_map(|range| &cells[range.offset as usize..][..range.size as usize]).copied().collect()
    }

    fn to_words(self) -> String {
        let Decomposition { width, height, columns, rows } = self.decomposition;
        format!("{width} {height} {columns} {rows} {} {}", self.layout.word(), self.synced)
    }

    fn from_words<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<SnapshotPlan> {
        let (width, height) = (read(words)?, read(words)?);
        let (columns, rows) = (read(words)?, read(words)?);
        let layout = SnapshotLayout::from_word(words.next()?)?;
        let decomposition = Decomposition { width, height, columns, rows };
        Some(SnapshotPlan { decomposition, layout, synced: read(words)? })
    }
}

impl ReactionStep {
    pub fn to_words(&self) -> String {
        match self {
            ReactionStep::Begin(plan) => format!("begin {}", plan.to_words()),
            ReactionStep::Compute { steps, time } => format!("compute {steps} {time}"),
            ReactionStep::WriteSnapshot { number } => format!("snapshot {number}"),
            ReactionStep::Flush => "flush".to_owned(),
        }
    }

    /// `None` for what `to_words` never says.
    pub fn from_words<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<ReactionStep> {
        Some(match words.next()? {
            "begin" => ReactionStep::Begin(SnapshotPlan::from_words(words)?),
            "compute" => ReactionStep::Compute { steps: read(words)?, time: read(words)? },
            "snapshot" => ReactionStep::WriteSnapshot { number: read(words)? },
            "flush" => ReactionStep::Flush,
            _ => return None,
        })
    }
}

/// Where a real process writes to.
pub enum Medium<'a> {
    Cluster(&'a Client),
    /// A directory of this machine.
    Directory(&'a Path),
}

/// One real process.
pub struct ReactionProcess<'a> {
    rank: u32,
    shared: &'a GroupMemory,
    state: Option<(SnapshotPlan, GrayScott)>,
    /// What goes to the file. It stays from one snapshot to the next: fresh memory would be part of the figure.
    buffer: Vec<u8>,
    steps_done: u64,
}

impl<'a> ReactionProcess<'a> {
    pub fn new(rank: u32, shared: &'a GroupMemory) -> ReactionProcess<'a> {
        ReactionProcess { rank, shared, state: None, buffer: Vec::new(), steps_done: 0 }
    }

    /// Does a step; bytes written. Errors: words.
    pub fn act(&mut self, step: &ReactionStep, medium: &Medium<'_>) -> Result<u64, String> {
        match step {
            ReactionStep::Begin(plan) => {
                let field = GrayScott::new(&plan.decomposition, self.rank);
                self.buffer = field.bytes();
                self.state = Some((*plan, field));
                self.steps_done = 0;
                Ok(0)
            }
            ReactionStep::Compute { steps, time } => {
                let end = monotonic_now() + time;
                (0..*steps).try_for_each(|_| self.compute_step())?;
                let left = Duration::from_nanos(end.saturating_sub(monotonic_now()));
                // What the processes of a job do that wait for something else than a core.
                #[allow(clippy::disallowed_methods)]
                std::thread::sleep(left);
                Ok(0)
            }
            ReactionStep::WriteSnapshot { number } => {
                let (plan, field) = self.state.as_ref().ok_or("nothing was begun")?;
                field.put(&mut self.buffer);
                let (bytes, name) = (&self.buffer, snapshot_name(*number));
                match medium {
                    Medium::Cluster(client) => client.run(async |_, files: &FileSystem| {
                        write_snapshot(files, plan, self.rank, &name, bytes).await
                    })?,
                    Medium::Directory(directory) => write_directly(plan, self.rank, &directory.join(name), bytes)?,
                }
                Ok(bytes.len() as u64)
            }
            ReactionStep::Flush => match medium {
                Medium::Cluster(client) => client.run(async |_, files: &FileSystem| flush(files).await).map(|()| 0),
                Medium::Directory(directory) => synchronise_file_system(directory).map(|()| 0),
            },
        }
    }

    /// One step, after the cells along the sides have gone to the neighbours and theirs have come. There are two places
    /// for them: whoever is a step ahead leaves alone what the others still read.
    fn compute_step(&mut self) -> Result<(), String> {
        let (plan, field) = self.state.as_mut().ok_or("nothing was begun")?;
        let (shared, rank, decomposition) = (self.shared, self.rank, plan.decomposition);
        let place = EdgesPlace { decomposition, turn: (self.steps_done % 2) as usize };
        place.store(shared, rank, &field.edges());
        shared.wait().map_err(|_| "another process has failed")?;
        let around = |right, below| place.load(shared, decomposition.neighbour(rank, right, below));
        let [above, below, left, right] = [around(0, -1), around(0, 1), around(-1, 0), around(1, 0)];
        let beyond = Edges::beyond(|to_the_right, further_down| match (to_the_right, further_down) {
            (0, -1) => &above,
            (0, _) => &below,
            (-1, _) => &left,
            _ => &right,
        });
        field.step(&beyond);
        self.steps_done += 1;
        Ok(())
    }
}

/// Where in the memory that they share processes leave the cells along their sides.
struct EdgesPlace {
    decomposition: Decomposition,
    turn: usize,
}

/// Words of memory that the processes share.
pub fn shared_word_count(decomposition: &Decomposition) -> usize {
    2 * decomposition.procs() as usize * EdgesPlace::size(decomposition)
}

impl EdgesPlace {
    /// Words of one process: two substances on two sides each way.
    fn size(decomposition: &Decomposition) -> usize {
        let BlockPlace { width, height, .. } = decomposition.block(0);
        4 * (width + height) as usize
    }

    fn first(&self, rank: u32) -> usize {
        (self.turn * self.decomposition.procs() as usize + rank as usize) * EdgesPlace::size(&self.decomposition)
    }

    fn store(&self, shared: &GroupMemory, rank: u32, edges: &Edges) {
        let cells = [&edges.top, &edges.bottom, &edges.left, &edges.right].into_iter().flatten();
        (self.first(rank)..).zip(cells).for_each(|(index, cell)| shared.store(index, cell.to_bits()));
    }

    fn load(&self, shared: &GroupMemory, rank: u32) -> Edges {
        let BlockPlace { width, height, .. } = self.decomposition.block(rank);
        let mut words = self.first(rank)..;
        let mut side = |cells: u64| -> Vec<f64> {
            let side = words.by_ref().take(2 * cells as usize);
            side.map(|index| f64::from_bits(shared.load(index))).collect()
        };
        Edges { top: side(width), bottom: side(width), left: side(height), right: side(height) }
    }
}

/// Writes a process's block to a cluster.
pub async fn write_snapshot(
    files: &FileSystem,
    plan: &SnapshotPlan,
    rank: u32,
    name: &str,
    bytes: &[u8],
) -> Result<(), String> {
    let words = |error: client::Error| error.message;
    let path = format!("/{name}");
    let how = OpenHow { write: true, create: true, ..OpenHow::default() };
    let file = files.open(path.as_bytes(), &how).await.map_err(words)?;
    let ranges = plan.ranges(rank);
    let mut written = 0;
    if plan.layout == SnapshotLayout::View {
        written = files.write_list_at(&file, &ranges, &[IoSlice::new(bytes)]).await.map_err(words)?;
    } else {
        for FileRange { offset, size } in ranges {
            written += files.write_at(&file, &bytes[written..][..size as usize], offset).await.map_err(words)?;
        }
    }
    if written != bytes.len() {
        return Err(format!("{path}: {written} instead of {} bytes written", bytes.len()));
    }
    if plan.synced {
        files.synchronise(&file).await.map_err(words)?;
    }
    files.close(&file).await;
    Ok(())
}

/// Writes a process's block to a file of this machine. POSIX has no call for several ranges of a file: each is one.
fn write_directly(plan: &SnapshotPlan, rank: u32, path: &Path, bytes: &[u8]) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    // Several processes make it at once, and none may cut what another one has written.
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(failed)?;
    let mut written = 0;
    for FileRange { offset, size } in plan.ranges(rank) {
        file.write_all_at(&bytes[written..][..size as usize], offset).map_err(failed)?;
        written += size as usize;
    }
    if plan.synced { file.sync_all().map_err(failed) } else { Ok(()) }
}

/// Has the servers carry everything back. Errors: words, also about what could not go.
pub async fn flush(files: &FileSystem) -> Result<(), String> {
    let report = files.flush(&[], &|_| ()).await.map_err(|error| error.message)?;
    match report.failures.first() {
        _ if report.failed == 0 => Ok(()),
        Some((path, why)) => {
            Err(format!("{} changes could not be carried back: {}: {why}", report.failed, path.escape_ascii()))
        }
        None => Err(format!("{} changes could not be carried back", report.failed)),
    }
}

/// Makes all that was written to a directory's file system durable.
pub fn synchronise_file_system(directory: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
    let opened = std::fs::File::open(directory).map_err(failed)?;
    reactor::process::synchronise_file_system(&opened).map_err(failed)
}

impl Compute {
    /// The step of a computing that lasts so many steps, or so many nanoseconds.
    pub fn step(self, steps: u64, time: u64) -> ReactionStep {
        ReactionStep::Compute { steps, time: if self == Compute::Sleep { time } else { 0 } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::SnapshotLayout::{Chunk, Manual, View};

    fn plan(layout: SnapshotLayout) -> SnapshotPlan {
        let decomposition = Decomposition { width: 12, height: 8, columns: 3, rows: 2 };
        SnapshotPlan { decomposition, layout, synced: true }
    }

    /// Goal: in every layout the processes' ranges tile the file, and a file put together of them is what it has to be.
    /// Method: each byte says where it belongs.
    #[test]
    fn ranges_tile_the_file() {
        for layout in [View, Manual, Chunk] {
            let (plan, rows) = (plan(layout), plan(View));
            let size = plan.decomposition.snapshot_size() as usize;
            let cells: Vec<u8> = (0..size).map(|index| (index * 7 / 3) as u8).collect();
            let (mut file, mut covered) = (vec![0; size], vec![0; size]);
            for rank in 0..6 {
                let own = rows.ranges(rank);
                let block: Vec<u8> = own
                    .iter()
                    .flat_map(|range| &cells[range.offset as usize..][..range.size as usize])
                    .copied()
                    .collect();
                let mut at = 0;
                for range in plan.ranges(rank) {
                    let place = range.offset as usize..(range.offset + range.size) as usize;
                    file[place.clone()].copy_from_slice(&block[at..][..range.size as usize]);
                    covered[place].iter_mut().for_each(|count| *count += 1);
                    at += range.size as usize;
                }
                assert_eq!(at, block.len());
            }
            assert!(covered.iter().all(|count| *count == 1), "{layout:?}");
            assert!(file == plan.arranged(&cells), "{layout:?}");
        }
    }

    /// Goal: what processes leave for each other never overlaps, in both turns.
    #[test]
    fn edges_have_places_of_their_own() {
        let decomposition = plan(View).decomposition;
        let shared = GroupMemory::create(6, shared_word_count(&decomposition)).unwrap();
        let edges = |number: usize| {
            let side =
                |cells: usize, side: usize| (0..2 * cells).map(|at| (number * 4 + side * 1000 + at) as f64).collect();
            Edges { top: side(4, 0), bottom: side(4, 1), left: side(4, 2), right: side(4, 3) }
        };
        let places = [0, 1].map(|turn| EdgesPlace { decomposition, turn });
        let all =
            || places.iter().flat_map(|place| (0..6).map(move |rank| (place, rank, place.turn * 6 + rank as usize)));
        all().for_each(|(place, rank, number)| place.store(&shared, rank, &edges(number)));
        all().for_each(|(place, rank, number)| assert_eq!(place.load(&shared, rank), edges(number)));
    }

    /// Goal: steps are read as they were written.
    #[test]
    fn steps_are_read() {
        let compute = ReactionStep::Compute { steps: 7, time: 1 << 40 };
        let snapshot = ReactionStep::WriteSnapshot { number: 3 };
        for step in [ReactionStep::Begin(plan(Manual)), compute, snapshot, ReactionStep::Flush] {
            let text = step.to_words();
            assert_eq!(ReactionStep::from_words(&mut text.split_whitespace()), Some(step));
        }
        assert_eq!(ReactionStep::from_words(&mut "begin 1 2 3".split_whitespace()), None);
    }
}
