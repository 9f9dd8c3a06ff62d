//! Gray-Scott reaction diffusion (Pearson, "Complex Patterns in a Simple System", Science 261, 1993) on a torus of
//! cells that a grid of processes divides among itself, with the constants and the order of operations of RDBench.
//!
//! Each cell comes out the same, bit for bit, however many processes there are: its arithmetic is always that of one
//! expression over the same nine numbers.

use crate::target::mix;
use std::ops::Range;

const FEED: f64 = 0.04;
const KILL: f64 = 0.06075;
const STEP_TIME: f64 = 0.2;
const DIFFUSION_U: f64 = 0.05;
const DIFFUSION_V: f64 = 0.1;
/// Half the sides of the squares in the middle that u and v begin with.
const SEED_U: u64 = 3;
const SEED_V: u64 = 6;
/// What each cell begins with at most beside that: where all are the same, a misplaced block would not be seen.
const NOISE: f64 = 0.1;

/// How a torus of `width` x `height` cells is divided among `columns` x `rows` processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decomposition {
    pub width: u64,
    pub height: u64,
    pub columns: u32,
    pub rows: u32,
}

/// The cells of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockPlace {
    pub x: u64,
    pub y: u64,
    pub width: u64,
    pub height: u64,
}

/// Bytes of a cell in a file.
pub const CELL_SIZE: u64 = 8;

impl Decomposition {
    /// Columns and rows of a grid of so many processes that is as near to a square as it can be, no higher than wide.
    pub fn squarest(procs: u32) -> (u32, u32) {
        let rows = (1..=procs).filter(|rows| rows * rows <= procs && procs.is_multiple_of(*rows)).max().unwrap_or(1);
        (procs / rows, rows)
    }

    pub fn procs(&self) -> u32 {
        self.columns * self.rows
    }

    /// Bytes of a snapshot.
    pub fn snapshot_size(&self) -> u64 {
        self.width * self.height * CELL_SIZE
    }

    pub fn block(&self, rank: u32) -> BlockPlace {
        let (width, height) = (self.width / u64::from(self.columns), self.height / u64::from(self.rows));
        let (column, row) = (rank % self.columns, rank / self.columns);
        BlockPlace { x: u64::from(column) * width, y: u64::from(row) * height, width, height }
    }

    /// The rank that is so many columns to the right and so many rows below another one, round the torus.
    pub fn neighbour(&self, rank: u32, right: i32, below: i32) -> u32 {
        let round = |at: u32, by: i32, count: u32| (at as i32 + by).rem_euclid(count as i32) as u32;
        let (column, row) = (rank % self.columns, rank / self.columns);
        round(row, below, self.rows) * self.columns + round(column, right, self.columns)
    }
}

/// The cells along the sides of a block, or those beyond them: u, then v, of each side.
#[derive(Debug, Clone, PartialEq)]
pub struct Edges {
    pub top: Vec<f64>,
    pub bottom: Vec<f64>,
    pub left: Vec<f64>,
    pub right: Vec<f64>,
}

impl Edges {
    /// What is beyond the sides of a block, by the sides of the blocks around it: of the one so many columns to the
    /// right and so many rows below.
    pub fn beyond<'a>(around: impl Fn(i32, i32) -> &'a Edges) -> Edges {
        Edges {
            top: around(0, -1).bottom.clone(),
            bottom: around(0, 1).top.clone(),
            left: around(-1, 0).right.clone(),
            right: around(1, 0).left.clone(),
        }
    }
}

/// One block: u and v of its cells, with those of its neighbours around them.
pub struct GrayScott {
    place: BlockPlace,
    u: Vec<f64>,
    v: Vec<f64>,
    next_u: Vec<f64>,
    next_v: Vec<f64>,
}

impl GrayScott {
    /// The beginning: a square of each substance in the middle, and a little noise everywhere.
    pub fn new(decomposition: &Decomposition, rank: u32) -> GrayScott {
        let place = decomposition.block(rank);
        let cells = ((place.width + 2) * (place.height + 2)) as usize;
        let [mut u, mut v, next_u, next_v] = [(); 4].map(|()| vec![0.0; cells]);
        let middle = (decomposition.width / 2, decomposition.height / 2);
        let is_near = |x: u64, y: u64, half: u64| {
            let near = |at: u64, middle: u64| at + half >= middle && at < middle + half;
            near(x, middle.0) && near(y, middle.1)
        };
        for (row, y) in (place.y..place.y + place.height).enumerate() {
            for (column, x) in (place.x..place.x + place.width).enumerate() {
                let index = (row + 1) * (place.width as usize + 2) + column + 1;
                let cell = 2 * (y * decomposition.width + x);
                u[index] = if is_near(x, y, SEED_U) { 0.7 } else { noise(cell) };
                v[index] = if is_near(x, y, SEED_V) { 0.9 } else { noise(cell + 1) };
            }
        }
        GrayScott { place, u, v, next_u, next_v }
    }

    /// The cells along the sides.
    pub fn edges(&self) -> Edges {
        let (width, height) = (self.place.width as usize, self.place.height as usize);
        let row = |row: usize| [&self.u, &self.v].into_iter().flat_map(move |of| &of[self.row(row)]).copied().collect();
        let column = |column: usize| {
            let cells = |of| (1..=height).map(move |row| -> f64 { Vec::as_slice(of)[row * (width + 2) + column] });
            cells(&self.u).chain(cells(&self.v)).collect()
        };
        Edges { top: row(1), bottom: row(height), left: column(1), right: column(width) }
    }

    fn row(&self, row: usize) -> Range<usize> {
        let width = self.place.width as usize;
        row * (width + 2) + 1..row * (width + 2) + 1 + width
    }

    /// One step, with the cells beyond the sides as they are before it.
    pub fn step(&mut self, beyond: &Edges) {
        self.set_beyond(beyond);
        let line = self.place.width as usize + 2;
        for row in 1..=self.place.height as usize {
            let lines = (row - 1) * line..(row + 2) * line;
            let (u, v) = (&self.u[lines.clone()], &self.v[lines]);
            let own = row * line..(row + 1) * line;
            step_row(line, (u, v), (&mut self.next_u[own.clone()], &mut self.next_v[own]));
        }
        std::mem::swap(&mut self.u, &mut self.next_u);
        std::mem::swap(&mut self.v, &mut self.next_v);
    }

    fn set_beyond(&mut self, beyond: &Edges) {
        let (width, height) = (self.place.width as usize, self.place.height as usize);
        let (above, below) = (self.row(0), self.row(height + 1));
        for (index, of) in [&mut self.u, &mut self.v].into_iter().enumerate() {
            of[above.clone()].copy_from_slice(&beyond.top[index * width..][..width]);
            of[below.clone()].copy_from_slice(&beyond.bottom[index * width..][..width]);
            for row in 0..height {
                let first = (row + 1) * (width + 2);
                of[first] = beyond.left[index * height + row];
                of[first + width + 1] = beyond.right[index * height + row];
            }
        }
    }

    /// Bytes of all cells in a file.
    pub fn size(&self) -> usize {
        (self.place.width * self.place.height * CELL_SIZE) as usize
    }

    /// Puts the u of all cells, row by row, as a file has them, into memory of that size.
    pub fn put(&self, bytes: &mut [u8]) {
        let rows = bytes.chunks_exact_mut((self.place.width * CELL_SIZE) as usize);
        for (row, bytes) in (1..).zip(rows) {
            let cells = self.u[self.row(row)].iter().zip(bytes.chunks_exact_mut(CELL_SIZE as usize));
            cells.for_each(|(cell, bytes)| bytes.copy_from_slice(&cell.to_le_bytes()));
        }
    }

    /// The same, in memory of its own.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.size()];
        self.put(&mut bytes);
        bytes
    }
}

fn noise(cell: u64) -> f64 {
    // The 53 bits that a double takes.
    NOISE * (mix(cell) >> 11) as f64 / (1u64 << 53) as f64
}

/// The row in the middle of three, without its first and its last cell.
fn step_row(line: usize, (u, v): (&[f64], &[f64]), (next_u, next_v): (&mut [f64], &mut [f64])) {
    // From the first cell's left, right, upper and lower neighbour on, and from itself.
    let from = [line, line + 2, 1, 2 * line + 1, line + 1];
    let [u_left, u_right, u_above, u_below, u] = from.map(|first| &u[first..][..line - 2]);
    let [v_left, v_right, v_above, v_below, v] = from.map(|first| &v[first..][..line - 2]);
    let (next_u, next_v) = (&mut next_u[1..line - 1], &mut next_v[1..line - 1]);
    for at in 0..line - 2 {
        let spread_u = u_left[at] + u_right[at] + u_above[at] + u_below[at] - 4.0 * u[at];
        let spread_v = v_left[at] + v_right[at] + v_above[at] + v_below[at] - 4.0 * v[at];
        let reaction = u[at] * u[at] * v[at];
        let change_u = DIFFUSION_U * spread_u + (reaction - (FEED + KILL) * u[at]);
        let change_v = DIFFUSION_V * spread_v + (FEED * (1.0 - v[at]) - reaction);
        next_u[at] = u[at] + change_u * STEP_TIME;
        next_v[at] = v[at] + change_v * STEP_TIME;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divided(width: u64, height: u64, columns: u32, rows: u32) -> Decomposition {
        Decomposition { width, height, columns, rows }
    }

    /// Goal: every cell belongs to exactly one process, whatever the grid.
    #[test]
    fn blocks_cover_each_cell_once() {
        for (columns, rows) in [(1, 1), (2, 1), (1, 3), (4, 3), (6, 12)] {
            let whole = divided(24, 12, columns, rows);
            let mut counts = vec![0; 24 * 12];
            for rank in 0..whole.procs() {
                let place = whole.block(rank);
                for y in place.y..place.y + place.height {
                    (place.x..place.x + place.width).for_each(|x| counts[(y * 24 + x) as usize] += 1);
                }
            }
            assert!(counts.iter().all(|count| *count == 1), "{columns} x {rows}");
        }
    }

    /// Goal: grids are as square as they can be.
    #[test]
    fn grids_are_square() {
        let grids = [1, 2, 3, 4, 6, 8, 12, 25, 128].map(Decomposition::squarest);
        assert_eq!(grids, [(1, 1), (2, 1), (3, 1), (2, 2), (3, 2), (4, 2), (4, 3), (5, 5), (16, 8)]);
    }

    /// Goal: a divided torus comes out as a whole one, bit for bit. Method: twelve blocks that are given the sides of
    /// their neighbours, and one block that is its own neighbour on all sides.
    #[test]
    fn division_changes_no_bit() {
        let (one, many) = (divided(24, 12, 1, 1), divided(24, 12, 4, 3));
        let mut whole = GrayScott::new(&one, 0);
        let mut blocks: Vec<GrayScott> = (0..12).map(|rank| GrayScott::new(&many, rank)).collect();
        for _ in 0..40 {
            let own = whole.edges();
            whole.step(&Edges::beyond(|_, _| &own));
            let edges: Vec<Edges> = blocks.iter().map(GrayScott::edges).collect();
            for (rank, block) in blocks.iter_mut().enumerate() {
                let around = |right, below| &edges[many.neighbour(rank as u32, right, below) as usize];
                block.step(&Edges::beyond(around));
            }
        }
        let whole = whole.bytes();
        for (rank, block) in blocks.iter().enumerate() {
            let place = many.block(rank as u32);
            for (row, bytes) in block.bytes().chunks((place.width * CELL_SIZE) as usize).enumerate() {
                let first = (((place.y + row as u64) * 24 + place.x) * CELL_SIZE) as usize;
                assert!(whole[first..][..bytes.len()] == *bytes, "rank {rank}, row {row}");
            }
        }
        let mut cells: Vec<&[u8]> = whole.chunks(8).collect();
        cells.sort_unstable();
        cells.dedup();
        assert!(cells.len() > 24 * 12 - 8, "hardly two cells are the same");
    }
}
