//! The blocks of an attribute cache, which its tables and pages of inodes are made of: given out one after the other,
//! and never given back.

use crate::publish::table::SharedTable;
use reactor::{AttributeCache, CellPage};
use std::cell::Cell;
use std::rc::Rc;
use wire::FileId;
use wire::attribute_cache::{AttributeCacheShape, BLOCK_SIZE, CELLS_PER_BLOCK, Table, TableKey};

/// Bytes for which memory is taken at a time, so that they lie on huge pages, and of how many blocks where there are
/// but a few.
const BATCH_SIZE: u64 = 2 << 20;
const SMALL_BATCH: u64 = 32;
const SMALL_COUNT: u64 = 8 * BATCH_SIZE / BLOCK_SIZE;
/// Requests for a block that are refused at once after there was no memory.
const REFUSALS: u32 = 1000;

/// See the module.
pub struct Blocks {
    cache: Rc<AttributeCache>,
    shape: AttributeCacheShape,
    /// Blocks that are given out, for which there is memory, and that there may be at most.
    given: Cell<u64>,
    ready: Cell<u64>,
    limit: u64,
    refusals: Cell<u32>,
}

impl Blocks {
    /// Those of an attribute cache, `limit` at most; nothing if it has no room, or there is no memory for its
    /// beginning.
    pub fn of(cache: &Rc<AttributeCache>, limit: u64) -> Option<Rc<Blocks>> {
        let shape = AttributeCacheShape::of_size(cache.size())?;
        cache.allocate(0..shape.blocks_start()).ok()?;
        let limit = limit.min(shape.block_count());
        let (given, ready, refusals) = (Cell::new(0), Cell::new(0), Cell::new(0));
        Some(Rc::new(Blocks { cache: cache.clone(), shape, given, ready, limit, refusals }))
    }

    pub fn cache(&self) -> &Rc<AttributeCache> {
        &self.cache
    }

    pub fn shape(&self) -> AttributeCacheShape {
        self.shape
    }

    /// A block; nothing if there is none left, or no memory for it.
    pub fn take(&self) -> Option<u64> {
        let block = self.given.get();
        if block == self.ready.get() && !self.prepare() {
            return None;
        }
        self.given.set(block + 1);
        Some(block)
    }

    fn prepare(&self) -> bool {
        let start = self.ready.get();
        let end = self.batch_end(start).min(self.limit);
        if start == end {
            return false;
        }
        if self.refusals.get() > 0 {
            self.refusals.set(self.refusals.get() - 1);
            return false;
        }
        let offset = |block: u64| self.shape.cell_offset(block * CELLS_PER_BLOCK);
        if self.cache.allocate(offset(start)..offset(end)).is_err() {
            self.refusals.set(REFUSALS);
            return false;
        }
        self.ready.set(end);
        true
    }

    fn batch_end(&self, start: u64) -> u64 {
        if self.shape.block_count() < SMALL_COUNT {
            return start + SMALL_BATCH;
        }
        let offset = self.cache.offset() + self.shape.cell_offset(start * CELLS_PER_BLOCK);
        start + ((offset + 1).next_multiple_of(BATCH_SIZE) - offset) / BLOCK_SIZE
    }

    /// A block as a page of cells.
    pub fn page(&self, block: u64) -> CellPage {
        CellPage::shared(&self.cache, self.shape.cell_offset(block * CELLS_PER_BLOCK))
    }
}

/// The table of inodes, and their cells, which lie in blocks.
pub struct InodeIndex {
    blocks: Rc<Blocks>,
    table: SharedTable,
    /// The last inode that was found, which is looked for several times in a row, and its cell.
    last: Cell<Option<(FileId, u64)>>,
}

impl InodeIndex {
    /// An empty one; nothing where there is no block for it.
    pub fn new(blocks: &Rc<Blocks>) -> Option<Rc<InodeIndex>> {
        let table = SharedTable::new(blocks, Table::Inodes)?;
        let last = Cell::new(None);
        Some(Rc::new(InodeIndex { blocks: blocks.clone(), table, last }))
    }

    pub fn blocks(&self) -> &Rc<Blocks> {
        &self.blocks
    }

    pub fn table(&self) -> &SharedTable {
        &self.table
    }

    /// The number of an inode's cell, if it is found here.
    pub fn get(&self, file: FileId) -> Option<u64> {
        if let Some((_, cell)) = self.last.get().filter(|(last, _)| *last == file) {
            return Some(cell);
        }
        let cell = self.table.get(TableKey::of_inode(file))? - 1;
        self.last.set(Some((file, cell)));
        Some(cell)
    }

    /// A new inode is in a cell. False when there is no room to note that.
    pub fn put_new(&self, file: FileId, cell: u64) -> bool {
        self.table.put_new(TableKey::of_inode(file), cell + 1)
    }

    /// An inode is gone.
    pub fn remove(&self, file: FileId) {
        self.last.set(None);
        self.table.change(TableKey::of_inode(file), |_| None);
    }

    pub fn prefetch(&self, file: FileId) {
        self.table.prefetch(TableKey::of_inode(file));
    }
}
