//! What the store remembers of each file: exactly what the journal says, nothing volatile.
//!
//! Files sit in numbered cells that they never leave, so that a checkpoint can walk the table in steps while it
//! changes.

use super::FileShare;
use super::chunk::Chunk;
use reactor::prefetch;
use std::collections::BTreeMap;
use wire::FastMap;

/// Under which generation a share is announced, if it is, and whether its time counts no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announcement {
    pub file: u64,
    pub announced: Option<u32>,
    pub forgets_time: bool,
}

/// The chunks of one file, by index. Most files have one.
#[derive(Default)]
pub enum Chunks {
    /// None.
    #[default]
    None,
    /// One.
    One(u64, Chunk),
    /// Several.
    Several(BTreeMap<u64, Chunk>),
}

impl Chunks {
    /// The chunk of an index.
    pub fn get(&self, index: u64) -> Option<&Chunk> {
        match self {
            Chunks::One(only, chunk) if *only == index => Some(chunk),
            Chunks::Several(tree) => tree.get(&index),
            _ => None,
        }
    }

    /// Puts a chunk; the one that was there before comes back.
    pub fn insert(&mut self, index: u64, chunk: Chunk) -> Option<Chunk> {
        match self {
            Chunks::None => {
                *self = Chunks::One(index, chunk);
                None
            }
            Chunks::One(only, present) if *only == index => Some(std::mem::replace(present, chunk)),
            Chunks::One(..) => {
                if let Chunks::One(only, present) = std::mem::take(self) {
                    *self = Chunks::Several(BTreeMap::from([(only, present), (index, chunk)]));
                }
                None
            }
            Chunks::Several(tree) => tree.insert(index, chunk),
        }
    }

    /// Takes out all chunks from `first` on.
    pub fn split_off(&mut self, first: u64) -> Chunks {
        match self {
            Chunks::None => Chunks::None,
            Chunks::One(only, _) if *only < first => Chunks::None,
            Chunks::One(..) => std::mem::take(self),
            Chunks::Several(tree) => Chunks::Several(tree.split_off(&first)),
        }
    }

    /// Takes out the chunk of an index.
    pub fn remove(&mut self, index: u64) -> Option<Chunk> {
        match self {
            Chunks::One(only, _) if *only == index => match std::mem::take(self) {
                Chunks::One(_, chunk) => Some(chunk),
                _ => None,
            },
            Chunks::Several(tree) => tree.remove(&index),
            _ => None,
        }
    }

    /// Takes out the chunks `from..to`.
    pub fn take_range(&mut self, from: u64, to: u64) -> Chunks {
        if from >= to {
            return Chunks::None;
        }
        let mut taken = self.split_off(from);
        match (&mut *self, taken.split_off(to)) {
            (_, Chunks::None) => {}
            (Chunks::Several(tree), Chunks::Several(mut rest)) => tree.append(&mut rest),
            (Chunks::Several(tree), Chunks::One(index, chunk)) => drop(tree.insert(index, chunk)),
            (_, rest) => *self = rest,
        }
        taken
    }

    /// Number of chunks.
    pub fn count(&self) -> u64 {
        match self {
            Chunks::None => 0,
            Chunks::One(..) => 1,
            Chunks::Several(tree) => tree.len() as u64,
        }
    }

    /// Largest written end of all chunks, as an offset in the file.
    pub fn written_end(&self, chunk_size: u32) -> u64 {
        let end_of = |(index, chunk): (u64, &Chunk)| {
            let start = index.saturating_mul(u64::from(chunk_size));
            (chunk.valid_end() > 0).then(|| start.saturating_add(u64::from(chunk.valid_end())))
        };
        let found = match self {
            Chunks::None => None,
            Chunks::One(index, chunk) => end_of((*index, chunk)),
            Chunks::Several(tree) => tree.iter().rev().find_map(|(index, chunk)| end_of((*index, chunk))),
        };
        found.unwrap_or(0)
    }

    /// The first chunk from an index on.
    pub fn next(&self, from: u64) -> Option<(u64, &Chunk)> {
        match self {
            Chunks::One(index, chunk) if *index >= from => Some((*index, chunk)),
            Chunks::Several(tree) => tree.range(from..).next().map(|(index, chunk)| (*index, chunk)),
            _ => None,
        }
    }

    /// The last chunk before an index.
    pub fn before(&self, index: u64) -> Option<(u64, &Chunk)> {
        match self {
            Chunks::One(only, chunk) if *only < index => Some((*only, chunk)),
            Chunks::Several(tree) => tree.range(..index).next_back().map(|(index, chunk)| (*index, chunk)),
            _ => None,
        }
    }
}

/// One file.
pub struct File {
    /// Its id.
    pub id: u64,
    /// Bytes of a chunk; 0 while unknown.
    pub chunk_size: u32,
    /// Generation of the last truncate.
    pub generation: u32,
    /// Generation of the announcement.
    pub announced: Option<u32>,
    /// Time of the last write.
    pub mtime: i64,
    /// Largest written end since the last truncate, as an offset in the file; a hole that is punched later leaves it.
    pub end: u64,
    /// Its chunks here.
    pub chunks: Chunks,
}

impl File {
    /// A file of which nothing is known yet.
    pub fn new(id: u64) -> File {
        File { id, chunk_size: 0, generation: 0, announced: None, mtime: 0, end: 0, chunks: Chunks::None }
    }

    /// Puts a chunk as it is now; one that holds nothing goes. The one that was there before comes back.
    pub fn put(&mut self, index: u64, chunk: Chunk) -> Option<Chunk> {
        if chunk.is_empty() {
            return self.chunks.remove(index);
        }
        if chunk.valid_end() > 0 {
            let start = index.saturating_mul(u64::from(self.chunk_size));
            self.end = self.end.max(start.saturating_add(u64::from(chunk.valid_end())));
        }
        self.chunks.insert(index, chunk)
    }

    /// See [`FileShare`].
    pub fn share(&self) -> FileShare {
        FileShare {
            end: self.end,
            mtime: self.mtime,
            chunk_size: self.chunk_size,
            chunk_count: self.chunks.count(),
            generation: self.generation,
            announced: self.announced,
        }
    }
}

/// All files.
#[derive(Default)]
pub struct Files {
    cells: Vec<Option<File>>,
    vacant: Vec<u32>,
    by_id: FastMap<u64, u32>,
}

impl Files {
    /// Number of files.
    pub fn count(&self) -> u64 {
        self.by_id.len() as u64
    }

    /// The file of an id.
    pub fn get(&self, id: u64) -> Option<&File> {
        self.cells[*self.by_id.get(&id)? as usize].as_ref()
    }

    /// Has what is known of a file fetched, for whoever asks for it soon.
    pub fn prefetch(&self, id: u64) {
        if let Some(number) = self.by_id.get(&id) {
            prefetch(&self.cells[*number as usize]);
        }
    }

    /// Takes in an announcement, or its end.
    pub fn announce(&mut self, announcement: Announcement) {
        let file = self.entry(announcement.file);
        file.announced = announcement.announced;
        if announcement.forgets_time {
            file.mtime = 0;
        }
    }

    /// The file of an id, made if there is none.
    pub fn entry(&mut self, id: u64) -> &mut File {
        let Files { cells, vacant, by_id } = self;
        let number = *by_id.entry(id).or_insert_with(|| {
            vacant.pop().unwrap_or_else(|| {
                cells.push(None);
                (cells.len() - 1) as u32
            })
        });
        cells[number as usize].get_or_insert_with(|| File::new(id))
    }

    /// Takes a file out.
    pub fn remove(&mut self, id: u64) -> Option<File> {
        let number = self.by_id.remove(&id)?;
        self.vacant.push(number);
        self.cells[number as usize].take()
    }

    /// Number of cells, vacant ones included.
    pub fn cell_count(&self) -> u32 {
        self.cells.len() as u32
    }

    /// The file in a cell.
    pub fn cell(&self, number: u32) -> Option<&File> {
        self.cells.get(number as usize)?.as_ref()
    }

    /// All files, in the order of their cells.
    pub fn iter(&self) -> impl Iterator<Item = &File> {
        self.cells.iter().flatten()
    }
}
