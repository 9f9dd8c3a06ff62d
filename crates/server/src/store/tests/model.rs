//! Goal: whatever the history and wherever the crash, all that was committed is there, nothing else, and no page leaks.
//! Method: random operations on a store and on plain vectors; a disk that crashes at a chosen write, torn; the store
//! that is opened then must equal the vectors as they were before or after the operation that was under way.

use super::*;
use std::collections::BTreeMap;

const KIND_VALUE: u8 = 70;
const KIND_REMOVED: u8 = 71;
const CHUNK_SIZES: [u32; 5] = [4096, 5000, 10_000, 16_384, 65_536];

#[derive(Clone, Default, Debug)]
struct ModelChunk {
    bytes: Vec<u8>,
    written: Vec<bool>,
    /// Zeros that fill gaps count as written, so that after a truncate the end is known only within bounds.
    end_min: usize,
    end_max: usize,
}

#[derive(Clone, Default, Debug)]
struct ModelFile {
    chunk_size: u32,
    generation: u32,
    announced: Option<u32>,
    mtime: i64,
    /// The share's end is not less, for holes leave it.
    end_min: u64,
    chunks: BTreeMap<u64, ModelChunk>,
}

#[derive(Clone, Default, Debug)]
struct Model {
    files: BTreeMap<u64, ModelFile>,
    values: BTreeMap<u8, Vec<u8>>,
}

impl Model {
    fn write(&mut self, file: u64, index: u64, chunk_size: u32, offset: u32, body: &[u8], mtime: i64) {
        let file = self.files.entry(file).or_default();
        (file.chunk_size, file.mtime) = (chunk_size, mtime);
        let chunk = file.chunks.entry(index).or_default();
        let (start, end) = (offset as usize, offset as usize + body.len());
        if chunk.bytes.len() < end {
            chunk.bytes.resize(end, 0);
            chunk.written.resize(end, false);
        }
        chunk.bytes[start..end].copy_from_slice(body);
        chunk.written[start..end].fill(true);
        chunk.end_min = chunk.end_min.max(end);
        chunk.end_max = chunk.end_max.max(end);
    }

    fn truncate(&mut self, id: u64, size: u64, generation: u32) {
        let file = self.files.entry(id).or_default();
        file.generation = generation;
        file.end_min = 0;
        let chunk_size = u64::from(file.chunk_size.max(1));
        let (index, within) = (size / chunk_size, (size % chunk_size) as usize);
        file.chunks.split_off(&(index + u64::from(within > 0)));
        if let Some(chunk) = file.chunks.get_mut(&index) {
            chunk.bytes.truncate(within);
            chunk.written.truncate(within);
            chunk.end_min = chunk.written.iter().rposition(|&written| written).map_or(0, |last| last + 1);
            chunk.end_max = chunk.end_max.min(within);
        }
    }

    fn punch(&mut self, hole: &Hole, end_before: u64) {
        let Some(file) = self.files.get_mut(&hole.file).filter(|file| file.chunk_size > 0) else { return };
        (file.mtime, file.end_min) = (hole.mtime, end_before);
        let chunk_size = u64::from(file.chunk_size);
        for (index, chunk) in &mut file.chunks {
            let within = |offset: u64| offset.saturating_sub(index * chunk_size).min(chunk.bytes.len() as u64) as usize;
            let (start, end) = (within(hole.start), within(hole.end));
            chunk.bytes[start..end].fill(0);
            chunk.written[start..end].fill(false);
            chunk.end_min = chunk.written.iter().rposition(|&written| written).map_or(0, |last| last + 1);
        }
    }

    /// Says how a store differs.
    fn compare(&self, store: &Store, values: &BTreeMap<u8, Vec<u8>>) -> Result<(), String> {
        if &self.values != values {
            return Err("the caller's entries differ".into());
        }
        let mut ids = Vec::new();
        store.for_each_file(&mut |id, _| ids.push(id));
        ids.sort_unstable();
        if ids != self.files.keys().copied().collect::<Vec<_>>() {
            return Err(format!("files {ids:?}, not {:?}", self.files.keys()));
        }
        for (&id, file) in &self.files {
            let share = store.share(id).ok_or("no share")?;
            let known = (share.generation, share.announced, share.mtime, share.chunk_size);
            if known != (file.generation, file.announced, file.mtime, file.chunk_size) {
                return Err(format!("file {id} is {share:?}, not {file:?}"));
            }
            if share.end < file.end_min {
                return Err(format!("file {id} ends at {}, not at {} or later", share.end, file.end_min));
            }
            for (&index, chunk) in &file.chunks {
                let read = store.read(id, index, 0, file.chunk_size).map_err(|error| error.to_string())?;
                let mut expected = chunk.bytes.clone();
                expected.resize(file.chunk_size as usize, 0);
                if bytes_of(&read) != expected {
                    return Err(format!("chunk {index} of file {id} has other bytes"));
                }
                if !(chunk.end_min..=chunk.end_max).contains(&(read.valid_end as usize)) {
                    return Err(format!(
                        "chunk {index} of file {id} ends at {}, not {}..={}",
                        read.valid_end, chunk.end_min, chunk.end_max
                    ));
                }
            }
            let certain = file.chunks.values().filter(|chunk| chunk.end_min > 0).count() as u64;
            if share.chunk_count < certain || share.chunk_count > file.chunks.len() as u64 {
                return Err(format!("file {id} has {} chunks, not {certain}", share.chunk_count));
            }
        }
        Ok(())
    }
}

struct InFlight {
    file: u64,
    index: u64,
    chunk_size: u32,
    parts: Vec<(u32, u32)>,
    body: Vec<u8>,
    /// Bytes of the body that are there; the rest arrives just before the commit.
    arrived: usize,
    write: ChunkWrite,
    is_reaped: bool,
}

pub struct World {
    pub random: Random,
    pub disk: TestDisk,
    pub store: Store,
    before: Model,
    model: Model,
    /// The model at the last sync, and at one that came to no end.
    synced: Model,
    syncing: Option<Model>,
    ids: Vec<u64>,
    next_id: u64,
    clock: i64,
    in_flight: Vec<InFlight>,
    readers: Vec<(ChunkRead, Vec<u8>)>,
    checkpoint: Option<(Checkpoint, Option<u8>)>,
    /// Whether checkpoints begin so late that the journal fills up.
    is_lazy: bool,
    /// Whether the journal grows with checkpoints, which then are larger than what is in the store.
    grows: bool,
    /// How often things happened, to see that the test does test them.
    pub counts: BTreeMap<&'static str, u64>,
}

impl World {
    /// With a journal that grows, unless the seed is a multiple of four.
    fn new(seed: u64, pages: u64, checksums: bool) -> World {
        let size_max = [0, 2, 3, 16][seed as usize % 4] * 64 * 1024;
        let growth = JournalGrowth { size_max, checkpoint_percent: 75 };
        let (disk, store) = new_growing_store(pages * PAGE_SIZE, growth, checksums);
        World { grows: size_max > 0, ..World::around(seed, disk, store) }
    }

    /// On a disk that keeps what was synced when power is lost.
    pub fn stable(seed: u64, pages: u64, checksums: bool) -> World {
        let (disk, store) = synced_store(pages, checksums);
        World::around(seed, disk, store)
    }

    fn around(seed: u64, disk: TestDisk, store: Store) -> World {
        World {
            random: Random(seed),
            disk,
            store,
            before: Model::default(),
            model: Model::default(),
            synced: Model::default(),
            syncing: None,
            ids: vec![1, 2, 3],
            next_id: 4,
            clock: 0,
            in_flight: Vec::new(),
            readers: Vec::new(),
            checkpoint: None,
            is_lazy: seed % 3 == 1,
            grows: false,
            counts: BTreeMap::new(),
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn pick(&mut self) -> (u64, u64, u32) {
        let id = self.ids[self.random.below(self.ids.len() as u64) as usize];
        (id, self.random.below(3), CHUNK_SIZES[id as usize % CHUNK_SIZES.len()])
    }

    fn pick_range(&mut self, chunk_size: u32) -> (u32, u32) {
        let page_count = chunk_size.div_ceil(4096);
        match self.random.below(4) {
            0 => (0, chunk_size),
            1 => {
                let offset = self.random.below(u64::from(page_count)) as u32 * 4096;
                (offset, (chunk_size - offset).min(4096))
            }
            2 => {
                let offset = self.random.below(u64::from(chunk_size)) as u32;
                (offset, 1 + self.random.below(u64::from((chunk_size - offset).min(300))) as u32)
            }
            _ => {
                let offset = self.random.below(u64::from(chunk_size)) as u32;
                (offset, 1 + self.random.below(u64::from(chunk_size - offset)) as u32)
            }
        }
    }

    /// Parts of a range, in order: tiny or large, with gaps, or one right behind another; now and then very many.
    fn pick_parts(&mut self, offset: u32, size: u32) -> Vec<(u32, u32)> {
        let (end, mut from, mut parts) = (offset + size, offset, Vec::new());
        let most = if self.random.below(4) == 0 { self.store.parts_max() } else { 12 };
        let size_bits = 1 + self.random.below(12);
        let (size_max, gap_max) = (1 + self.random.below(1 << size_bits), self.random.below(6000));
        while from < end && parts.len() < most {
            let size = (1 + self.random.below(size_max) as u32).min(end - from);
            parts.push((from, size));
            let gap = if self.random.below(3) == 0 { 0 } else { self.random.below(gap_max.min(size_max) + 1) as u32 };
            from += size + gap;
        }
        parts
    }

    pub fn step(&mut self) {
        self.before = self.model.clone();
        match self.random.below(27) {
            0..=5 => self.reserve(),
            6..=10 => self.commit_some(1),
            11 => self.commit_some(3),
            12 => self.abandon(),
            13..=14 => self.start_read(),
            15..=16 => self.end_read(),
            17 => self.truncate(),
            18 => self.reap(),
            19 => self.announce(),
            20 => self.values(),
            21 | 22 => self.punch(),
            23 => self.reserve_pages(),
            _ => self.checkpoint_step(),
        }
    }

    fn reserve(&mut self) {
        if self.in_flight.len() >= 5 {
            return self.commit_some(1);
        }
        let (file, index, chunk_size) = self.pick();
        let (offset, size) = self.pick_range(chunk_size);
        let parts = match self.random.below(3) {
            0 => self.pick_parts(offset, size),
            _ => vec![(offset, size)],
        };
        let reserved = match parts.len() {
            1 => self.store.reserve_write(file, index, chunk_size, parts[0].0, parts[0].1),
            _ => self.store.reserve_parts((file, index), chunk_size, parts.iter().copied()),
        };
        match reserved {
            Ok(write) => {
                assert_eq!(write.part_count(), parts.len());
                for (number, (_, size)) in parts.iter().enumerate() {
                    let places: u64 = write.places_of(number).iter().map(|place| place.size).sum();
                    assert_eq!(places, u64::from(*size), "each part has its places");
                }
                let size = parts.iter().map(|(_, size)| size).sum();
                let body = body(&mut self.random, size);
                let arrived = self.random.below(u64::from(size) + 1) as usize;
                fill_part(&write, &body, 0, arrived);
                let is_reaped = false;
                self.in_flight.push(InFlight { file, index, chunk_size, parts, body, arrived, write, is_reaped });
            }
            Err(StoreError::Full) => self.count("full"),
            Err(StoreError::Resting) => {
                self.count("resting");
                self.sync();
            }
            Err(error) => panic!("reserve: {error}"),
        }
    }

    fn commit_some(&mut self, most: usize) {
        let mut transaction = self.store.begin();
        let mut taken = Vec::new();
        let mut has_room = !self.store.is_volatile();
        while taken.len() < most && !self.in_flight.is_empty() {
            let number = self.random.below(self.in_flight.len() as u64) as usize;
            let InFlight { file, index, chunk_size, parts, body, arrived, mut write, is_reaped } =
                self.in_flight.swap_remove(number);
            fill_part(&write, &body, arrived, body.len());
            match self.store.settle_writes(std::slice::from_mut(&mut write)) {
                Ok(()) => {}
                Err(StoreError::Full | StoreError::Resting) => has_room = false,
                Err(error) => panic!("settle_writes: {error}"),
            }
            self.clock += 1;
            match self.store.commit_write(write, &mut transaction, self.clock) {
                Ok(()) => taken.push((file, index, chunk_size, parts, body, is_reaped, self.clock)),
                Err(StoreError::TouchedTwice { .. }) => self.count("touched twice"),
                Err(error) => panic!("commit_write: {error}"),
            }
        }
        let is_gone = taken.iter().any(|write| write.5);
        match self.store.commit(transaction) {
            Ok(_) => {
                assert!(!is_gone, "a write to a reaped file fails");
                for (file, index, chunk_size, parts, body, _, mtime) in taken {
                    if parts.len() > 1 {
                        self.count("parts");
                    }
                    let mut rest = &body[..];
                    for (offset, size) in parts {
                        let (part, others) = rest.split_at(size as usize);
                        self.model.write(file, index, chunk_size, offset, part, mtime);
                        rest = others;
                    }
                }
                self.count("committed");
            }
            Err(StoreError::Gone { .. }) => assert!(is_gone, "a file is gone only when it was reaped"),
            Err(StoreError::Full | StoreError::Resting) => {
                assert!(!has_room, "the commit of settled writes takes no room");
                self.count("full at commit");
            }
            Err(error) => self.journal_full(error),
        }
    }

    fn journal_full(&mut self, error: StoreError) {
        assert!(matches!(error, StoreError::JournalFull), "{error}");
        self.count("journal full");
        self.finish_checkpoint();
    }

    fn commit(&mut self, transaction: Transaction) -> bool {
        match self.store.commit(transaction) {
            Ok(_) => true,
            Err(error) => {
                self.journal_full(error);
                false
            }
        }
    }

    fn abandon(&mut self) {
        if !self.in_flight.is_empty() {
            let number = self.random.below(self.in_flight.len() as u64) as usize;
            self.in_flight.swap_remove(number);
        }
    }

    fn start_read(&mut self) {
        let (file, index, chunk_size) = self.pick();
        let (offset, size) = self.pick_range(chunk_size);
        let read = self.store.read(file, index, offset, size).unwrap();
        let chunk = self.model.files.get(&file).and_then(|file| file.chunks.get(&index));
        let mut expected = chunk.map_or(Vec::new(), |chunk| chunk.bytes.clone());
        expected.resize(chunk_size as usize, 0);
        let expected = expected[offset as usize..(offset + size) as usize].to_vec();
        assert!(bytes_of(&read) == expected, "what is read is what was written");
        self.readers.push((read, expected));
    }

    fn end_read(&mut self) {
        if !self.readers.is_empty() {
            let number = self.random.below(self.readers.len() as u64) as usize;
            let (read, expected) = self.readers.swap_remove(number);
            assert!(bytes_of(&read) == expected, "bytes do not change under a reader");
        }
    }

    fn truncate(&mut self) {
        let (file, index, chunk_size) = self.pick();
        let size = index * u64::from(chunk_size) + self.random.below(u64::from(chunk_size));
        let generation = self.random.next() as u32;
        let mut transaction = self.store.begin();
        self.store.truncate_file(file, size, generation, &mut transaction);
        if self.commit(transaction) {
            self.model.truncate(file, size, generation);
        }
    }

    fn reap(&mut self) {
        let number = self.random.below(self.ids.len() as u64) as usize;
        let id = self.ids[number];
        let mut transaction = self.store.begin();
        self.store.reap_file(id, &mut transaction);
        if self.commit(transaction) {
            self.model.files.remove(&id);
            self.in_flight.iter_mut().filter(|write| write.file == id).for_each(|write| write.is_reaped = true);
            self.ids[number] = self.next_id;
            self.next_id += 1;
        }
    }

    fn punch(&mut self) {
        let (file, index, chunk_size) = self.pick();
        let (offset, size) = self.pick_range(chunk_size);
        let start = index * u64::from(chunk_size) + u64::from(offset);
        let more = self.random.below(3) * u64::from(chunk_size);
        self.clock += 1;
        let end = start + u64::from(size) + more;
        let hole = Hole { file, start, end, keep_pages: self.random.below(3) == 0, mtime: self.clock };
        let end_before = self.store.share(file).map_or(0, |share| share.end);
        let mut transaction = self.store.begin();
        self.store.punch(hole, &mut transaction);
        if self.commit(transaction) {
            self.model.punch(&hole, end_before);
            self.count("punched");
        }
    }

    fn reserve_pages(&mut self) {
        let (file, index, chunk_size) = self.pick();
        let (offset, size) = self.pick_range(chunk_size);
        let mut transaction = self.store.begin();
        self.store.reserve_pages(file, index, chunk_size, offset..offset + size, &mut transaction);
        match self.store.commit(transaction) {
            Ok(_) => {
                let file = self.model.files.entry(file).or_default();
                file.chunk_size = chunk_size;
                file.chunks.entry(index).or_default();
                self.count("reserved");
            }
            Err(StoreError::Full | StoreError::Resting) => self.count("full at commit"),
            Err(error) => self.journal_full(error),
        }
    }

    fn announce(&mut self) {
        let (file, _, _) = self.pick();
        let announced = (self.random.below(3) > 0).then(|| self.random.next() as u32);
        let mut transaction = self.store.begin();
        self.store.set_announced(file, announced, 0, &mut transaction);
        if self.commit(transaction) {
            self.model.files.entry(file).or_default().announced = announced;
        }
    }

    fn values(&mut self) {
        let mut transaction = self.store.begin();
        let mut after = self.model.values.clone();
        for _ in 0..1 + self.random.below(3) {
            let key = self.random.below(10) as u8;
            if self.random.below(3) == 0 {
                transaction.put(KIND_REMOVED, |out| out.push(key));
                after.remove(&key);
            } else {
                let size = self.random.below(600) as u32;
                let value = body(&mut self.random, size);
                transaction.put(KIND_VALUE, |out| {
                    out.push(key);
                    out.extend_from_slice(&value);
                });
                after.insert(key, value);
            }
        }
        if self.commit(transaction) {
            self.model.values = after;
        }
    }

    fn checkpoint_step(&mut self) {
        if self.checkpoint.is_none() {
            if self.random.below(if self.is_lazy { 200 } else { 8 }) == 0
                || (!self.is_lazy && self.store.checkpoint_due())
            {
                self.checkpoint = Some((self.store.checkpoint_begin(), Some(0)));
            }
            return;
        }
        match self.random.below(if self.is_lazy { 100 } else { 8 }) {
            0 => self.checkpoint = None,
            1 => self.finish_checkpoint(),
            _ => {
                let (checkpoint, next) = self.checkpoint.as_mut().unwrap();
                match *next {
                    Some(key) => {
                        put_value(checkpoint, &self.model, key);
                        *next = (key < 10).then_some(key + 1);
                    }
                    None => {
                        checkpoint.store_step().unwrap();
                    }
                }
            }
        }
    }

    fn finish_checkpoint(&mut self) {
        let (mut checkpoint, next) = self.checkpoint.take().unwrap_or_else(|| (self.store.checkpoint_begin(), Some(0)));
        if let Some(next) = next {
            (next..=10).for_each(|key| put_value(&mut checkpoint, &self.model, key));
        }
        let repeats = if self.grows { self.random.below(100) } else { 0 };
        for _ in 0..repeats {
            (0..=10).for_each(|key| put_value(&mut checkpoint, &self.model, key));
        }
        let journal_size = self.store.usage().journal_size;
        checkpoint.finish().unwrap();
        self.count("checkpoint");
        if journal_size > 64 * 1024 {
            self.count("checkpoint of a grown journal");
        }
        if !self.store.is_volatile() {
            self.sync();
        }
    }

    /// Makes all durable; when the sync fails, it may have counted or not.
    pub fn sync(&mut self) {
        self.count("sync");
        match sync(&self.store) {
            Ok(()) => (self.synced, self.syncing) = (self.model.clone(), None),
            Err(_) => self.syncing = Some(self.model.clone()),
        }
    }

    /// Loses power, opens the store again and compares with the last sync. As with a server, it may be killed and
    /// opened once more before what was lost is dealt with, before or after a sync.
    pub fn lose_power(&mut self) {
        self.end();
        self.disk.lose_power(&mut self.random);
        let mut values = BTreeMap::new();
        self.store = open(&self.disk, &mut values);
        assert!(self.store.power_was_lost());
        self.store.check().unwrap();
        if let Err(difference) = self.synced.compare(&self.store, &values) {
            let other = self.syncing.take().unwrap_or_else(|| panic!("not as it was synced: {difference}"));
            if let Err(also) = other.compare(&self.store, &values) {
                panic!("neither as synced ({difference}) nor as it was to be synced ({also})");
            }
            self.count("sync counted though it failed");
            self.synced = other;
        }
        self.model = self.synced.clone();
        self.syncing = None;
        while self.random.below(3) == 0 {
            if self.random.below(2) == 0 {
                self.sync();
            }
            self.end();
            let mut values = BTreeMap::new();
            self.store = open(&self.disk, &mut values);
            assert!(self.store.power_was_lost(), "nobody has dealt with it");
            self.model.compare(&self.store, &values).unwrap();
        }
        self.store.power_loss_is_over();
        self.sync();
    }

    /// The process ends and starts again.
    pub fn restart(&mut self) {
        self.end();
        let mut values = BTreeMap::new();
        self.store = open(&self.disk, &mut values);
        assert!(!self.store.power_was_lost());
        self.store.check().unwrap();
        self.model.compare(&self.store, &values).unwrap();
    }

    pub fn end(&mut self) {
        self.in_flight.clear();
        self.readers.clear();
        self.checkpoint = None;
    }

    /// Opens the store again and compares; after a crash, the operation under way may have happened or not.
    fn recover(&mut self) {
        self.end();
        let crashed = self.disk.is_crashed();
        self.disk.revive();
        // Recovery may crash as well, and is then done again.
        self.disk.crash_after(self.random.below(4), self.random.next());
        drop(reopen(&self.disk));
        if self.disk.is_crashed() {
            self.count("crash in recovery");
        }
        self.disk.revive();
        let mut values = BTreeMap::new();
        self.store = open(&self.disk, &mut values);
        self.store.check().unwrap();
        if let Err(difference) = self.model.compare(&self.store, &values) {
            assert!(crashed, "{difference}");
            if let Err(other) = self.before.compare(&self.store, &values) {
                panic!("neither as before the operation ({other}) nor as after it ({difference})");
            }
            // What was in the model of the caller is not part of the operation's outcome any more.
            self.model = self.before.clone();
            self.count("crash before");
        } else if crashed {
            self.count("crash after");
        }
    }
}

fn open(disk: &TestDisk, values: &mut BTreeMap<u8, Vec<u8>>) -> Store {
    Store::open(Rc::new(disk.clone()), IDENTITY, &mut |kind, bytes| {
        match kind {
            KIND_VALUE => values.insert(bytes[0], bytes[1..].to_vec()),
            KIND_REMOVED => values.remove(&bytes[0]),
            _ => return Err(EntryError("unknown kind".into())),
        };
        Ok(())
    })
    .unwrap()
}

fn put_value(checkpoint: &mut Checkpoint, model: &Model, key: u8) {
    if let Some(value) = model.values.get(&key) {
        let bytes: Vec<u8> = std::iter::once(key).chain(value.iter().copied()).collect();
        checkpoint.put(KIND_VALUE, &bytes).unwrap();
    }
}

/// Runs a history of `steps` operations with a crash at write `crash`, if one is given.
fn run(seed: u64, steps: u64, crash: Option<u64>) -> (u64, BTreeMap<&'static str, u64>) {
    let mut world = World::new(seed, 24 + seed % 3 * 40, seed.is_multiple_of(2));
    let created = world.disk.writes();
    if let Some(crash) = crash {
        world.disk.crash_after(crash, seed.wrapping_mul(31).wrapping_add(crash * 7919));
    }
    for _ in 0..steps {
        world.step();
        if world.disk.is_crashed() {
            break;
        }
        world.store.check().unwrap();
    }
    let writes = world.disk.writes() - created;
    world.recover();
    for _ in 0..10 {
        world.step();
    }
    world.recover();
    (writes, world.counts)
}

/// Goal and method: the module's; each write of many short histories is crashed at.
#[test]
fn short_histories_survive_a_crash_at_every_write() {
    for seed in 0..24 {
        let guard = Seed(seed, None);
        let (writes, _) = run(seed, 40, None);
        for crash in 0..writes {
            let _inner = Seed(seed, Some(crash));
            run(seed, 40, Some(crash));
        }
        drop(guard);
    }
}

/// Goal and method: the module's; long histories with many crashes, and a look at whether all the cases came up.
#[test]
fn long_histories_survive_crashes() {
    let mut counts = BTreeMap::new();
    for seed in 1000..1140u64 {
        let _guard = Seed(seed, None);
        let mut world = World::new(seed, 32 + seed % 4 * 32, seed.is_multiple_of(2));
        for _ in 0..12 {
            if world.random.below(4) > 0 {
                let (after, tear) = (world.random.below(400), world.random.next());
                world.disk.crash_after(after, tear);
            }
            for _ in 0..200 {
                world.step();
                if world.disk.is_crashed() {
                    break;
                }
                world.store.check().unwrap();
            }
            world.recover();
        }
        for (what, count) in world.counts {
            *counts.entry(what).or_insert(0) += count;
        }
    }
    for what in [
        "full",
        "committed",
        "journal full",
        "checkpoint",
        "crash before",
        "crash after",
        "crash in recovery",
        "touched twice",
        "parts",
        "punched",
        "reserved",
        "checkpoint of a grown journal",
    ] {
        assert!(counts.get(what).is_some_and(|&count| count > 20), "{what} hardly happened: {counts:?}");
    }
}

/// Prints which history failed.
struct Seed(u64, Option<u64>);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with seed {} and a crash at write {:?}", self.0, self.1);
        }
    }
}
