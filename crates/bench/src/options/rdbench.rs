//! What `rdbench` measures.

use super::values::Values;
use crate::gray_scott::Decomposition;

const LENGTH_MAX: u64 = 1 << 16;
const SNAPSHOTS_MAX: u64 = 10_000;
const PHASE_MAX: u32 = 1_000;
const STEPS_MAX: u64 = 1 << 30;

/// How a process writes its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotLayout {
    /// All rows of the block in one call.
    View,
    /// A call a row.
    Manual,
    /// The block in one piece, after that of the process before.
    Chunk,
}

/// What processes do between two snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compute {
    Stencil,
    Sleep,
}

/// Where snapshots are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SnapshotTarget {
    /// The backing directory itself, by POSIX calls.
    Direct,
    /// A cluster over it that carries nothing back by itself.
    Never,
    /// One that does so in spells without accesses.
    Idle,
    /// One that does so at once.
    Immediate,
}

pub const LAYOUTS: [(SnapshotLayout, &str); 3] =
    [(SnapshotLayout::View, "view"), (SnapshotLayout::Manual, "manual"), (SnapshotLayout::Chunk, "chunk")];
const COMPUTES: [(Compute, &str); 2] = [(Compute::Stencil, "stencil"), (Compute::Sleep, "sleep")];
pub const SNAPSHOT_TARGETS: [(SnapshotTarget, &str); 4] = [
    (SnapshotTarget::Direct, "direct"),
    (SnapshotTarget::Never, "never"),
    (SnapshotTarget::Idle, "idle"),
    (SnapshotTarget::Immediate, "immediate"),
];

impl SnapshotLayout {
    pub fn from_word(word: &str) -> Option<SnapshotLayout> {
        LAYOUTS.iter().find(|(_, known)| *known == word).map(|(layout, _)| *layout)
    }

    pub fn word(self) -> &'static str {
        LAYOUTS.iter().find(|(layout, _)| *layout == self).map_or("", |(_, word)| word)
    }
}

impl Compute {
    pub fn word(self) -> &'static str {
        COMPUTES.iter().find(|(compute, _)| *compute == self).map_or("", |(_, word)| word)
    }
}

impl SnapshotTarget {
    pub fn word(self) -> &'static str {
        SNAPSHOT_TARGETS.iter().find(|(target, _)| *target == self).map_or("", |(_, word)| word)
    }
}

/// Options of `rdbench`.
#[derive(Debug, Clone)]
pub struct RdBench {
    /// Cells along a side.
    pub length: u64,
    /// Columns and rows of processes; unset means as square as their number allows.
    pub grid: Option<(u32, u32)>,
    pub snapshots: u32,
    /// Steps between two snapshots; unset means as many as last as long as `phases` says.
    pub interval: Option<u64>,
    pub layouts: Vec<SnapshotLayout>,
    pub synced: bool,
    pub compute: Compute,
    /// How many times as long as a snapshot takes that is written directly.
    pub phases: Vec<u32>,
    pub targets: Vec<SnapshotTarget>,
}

impl RdBench {
    pub fn read(values: &Values<'_>) -> Result<RdBench, String> {
        let compute = match values.words("compute", &COMPUTES)?[..] {
            [compute] => compute,
            _ => return Err("--compute takes one word, stencil or sleep".into()),
        };
        let interval = match values.text("interval") {
            None => None,
            Some(_) => Some(values.count("interval", 1, STEPS_MAX)?),
        };
        Ok(RdBench {
            length: values.count("length", 1, LENGTH_MAX)?,
            grid: values.text("grid").map(|text| parse_grid(&text)).transpose()?,
            snapshots: values.count("snapshots", 1, SNAPSHOTS_MAX)? as u32,
            interval,
            layouts: values.words("layout", &LAYOUTS)?,
            synced: values.text("nosync").is_none(),
            compute,
            phases: values.counts("phases", PHASE_MAX)?,
            targets: values.words("targets", &SNAPSHOT_TARGETS)?,
        })
    }

    /// How so many processes divide the cells; in a simulation each has a square of `length`. Errors: words.
    pub fn decomposition(&self, procs: u32, simulated: bool) -> Result<Decomposition, String> {
        let (columns, rows) = self.grid.unwrap_or_else(|| Decomposition::squarest(procs));
        if columns * rows != procs {
            return Err(format!(
                "--grid {columns}x{rows} is for {} processes, and there are {procs}; change one of them, or leave \
                 --grid out",
                columns * rows
            ));
        }
        if simulated {
            let (width, height) = (self.length * u64::from(columns), self.length * u64::from(rows));
            return Ok(Decomposition { width, height, columns, rows });
        }
        for (count, what) in [(columns, "columns"), (rows, "rows")] {
            if !self.length.is_multiple_of(u64::from(count)) {
                return Err(format!(
                    "--length {} can't be divided among {count} {what} of processes; make it a multiple of {count}, \
                     or give another --grid or --procs",
                    self.length
                ));
            }
        }
        Ok(Decomposition { width: self.length, height: self.length, columns, rows })
    }
}

fn parse_grid(text: &str) -> Result<(u32, u32), String> {
    let count = |word: &str| word.parse::<u32>().ok().filter(|count| (1..=4096).contains(count));
    let read = || {
        let (columns, rows) = text.split_once('x')?;
        Some((count(columns)?, count(rows)?))
    };
    read().ok_or_else(|| format!("--grid: \"{text}\" is not columns and rows of processes, such as 2x2"))
}
