//! The files and directories to which clients did most, in a table of a few: "space-saving" (Metwally, Agrawal and
//! El Abbadi, "Efficient computation of frequent and top-k elements in data streams", ICDT 2005).
//!
//! Who is new takes the place of the one to which least was done, and its work with it, as work that may have been the
//! new one's. So whatever has had more than a `PLACE_COUNT`th of all work is in the table, and what is counted under
//! its id was its own.
//!
//! Invariant: `work_max` has of each place the work of its object and what may have been done to that before.

use super::RequestEnd;
use crate::store::FastMap;
use wire::operation::OperationObject;
use wire::{FileId, Operation};

/// Files and directories that are told apart.
pub const PLACE_COUNT: usize = 64;
/// What a request counts as beside its bytes.
const REQUEST_WORK: u64 = 4096;

/// A file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusyObject {
    pub id: FileId,
    /// Whether names in it were asked for.
    pub is_directory: bool,
    /// Requests that ended since it has its place, and what they took and brought.
    pub requests: u64,
    pub failed: u64,
    pub service_ns: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// At most so much more may have been done to it before: a request counts as 4,096, a byte as 1.
    pub earlier_work_max: u64,
}

impl BusyObject {
    fn new(id: FileId, earlier_work_max: u64) -> BusyObject {
        BusyObject {
            id,
            is_directory: false,
            requests: 0,
            failed: 0,
            service_ns: 0,
            bytes_in: 0,
            bytes_out: 0,
            earlier_work_max,
        }
    }

    /// What surely was done to it.
    pub fn work(&self) -> u64 {
        self.requests * REQUEST_WORK + self.bytes_in + self.bytes_out
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Busiest {
    objects: Vec<BusyObject>,
    places: FastMap<u64, u32>,
    work_max: Vec<u64>,
    /// The least of these, and the first place that may have it.
    least: u64,
    next: usize,
}

impl Busiest {
    /// The place of an object to which so much more was done.
    fn place(&mut self, id: FileId, work: u64) -> &mut BusyObject {
        if let Some(place) = self.places.get(&id.0) {
            self.work_max[*place as usize] += work;
            return &mut self.objects[*place as usize];
        }
        let place = if self.objects.len() < PLACE_COUNT {
            self.objects.push(BusyObject::new(id, 0));
            self.work_max.push(0);
            self.objects.len() - 1
        } else {
            let place = self.place_of_least();
            self.places.remove(&self.objects[place].id.0);
            self.objects[place] = BusyObject::new(id, self.least);
            place
        };
        self.work_max[place] += work;
        self.places.insert(id.0, place as u32);
        &mut self.objects[place]
    }

    /// A place with least work. Work only grows, so that places that have been passed do not have the least any more,
    /// and of many that have as much each search finds the next one at once.
    fn place_of_least(&mut self) -> usize {
        loop {
            while let Some(work) = self.work_max.get(self.next) {
                if *work == self.least {
                    return self.next;
                }
                self.next += 1;
            }
            self.least = self.work_max.iter().copied().min().unwrap_or(0);
            self.next = 0;
        }
    }

    /// A request of a client ended.
    pub fn finish(&mut self, operation: Operation, id: FileId, end: &RequestEnd) {
        let object = self.place(id, REQUEST_WORK + end.bytes_in + end.bytes_out);
        object.is_directory |= operation.object() == Some(OperationObject::Directory);
        object.requests += 1;
        object.failed += u64::from(end.failed);
        object.service_ns += end.took;
        object.bytes_in += end.bytes_in;
        object.bytes_out += end.bytes_out;
    }

    /// Bytes came without a body.
    pub fn add_bytes_in(&mut self, id: FileId, bytes: u64) {
        self.place(id, bytes).bytes_in += bytes;
    }

    /// All in the table, by what was done to them, most first.
    pub fn all(&self) -> Vec<BusyObject> {
        let mut all = self.objects.clone();
        all.sort_by_key(|object| (std::cmp::Reverse(object.work()), object.id));
        all
    }

    /// Most bytes that the table takes.
    pub fn memory_max() -> u64 {
        // The map doubles as it grows.
        (PLACE_COUNT * (size_of::<BusyObject>() + size_of::<u64>() + 4 * size_of::<(u64, u32)>())) as u64
    }
}

/// The object of a request with these parameters.
pub fn object_of(operation: Operation, params: &[u8]) -> Option<FileId> {
    operation.object()?;
    params.first_chunk().map(|id| FileId(u64::from_le_bytes(*id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: among very many files the few are found to which much is done, with what was done to them to the byte
    /// while they have their places; the table stays bounded.
    /// Method: a hundred thousand files with a read each, and five, of which each gets a 25th of all reads, from the
    /// begin on; then one more, which was not there before.
    #[test]
    fn finds_the_few_among_many() {
        let mut busiest = Busiest::default();
        let read = |busiest: &mut Busiest, id| {
            busiest.finish(
                Operation::Read,
                FileId(id),
                &RequestEnd { bytes_out: 100, took: 7, ..RequestEnd::default() },
            );
        };
        for round in 0..100_000 {
            read(&mut busiest, 1_000 + round);
            if round % 20 < 5 {
                read(&mut busiest, 1 + round % 20);
            }
        }
        let all = busiest.all();
        assert_eq!(all.len(), PLACE_COUNT);
        assert!(busiest.places.len() == PLACE_COUNT && busiest.places.capacity() <= 4 * PLACE_COUNT);
        let first: Vec<u64> = all[..5].iter().map(|object| object.id.0).collect();
        assert_eq!(first, [1, 2, 3, 4, 5]);
        for object in &all[..5] {
            let counts = (object.requests, object.bytes_out, object.service_ns, object.earlier_work_max);
            assert_eq!(counts, (5_000, 500_000, 35_000, 0));
        }
        (0..10_000).for_each(|_| read(&mut busiest, 6));
        let first = busiest.all()[0];
        assert_eq!((first.id, first.requests), (FileId(6), 10_000));
        assert!(first.earlier_work_max > 0, "nobody knows what was done to it before");
        // What is told of all together is no more than what was done.
        let sum: u64 = busiest.all().iter().map(BusyObject::work).sum();
        assert!(sum <= (100_000 + 25_000 + 10_000) * (REQUEST_WORK + 100));
    }

    /// Goal: whatever has had more than its share of all work is in the table, in any order of requests.
    #[test]
    fn guarantee() {
        let mut state = 11u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..200 {
            let (mut busiest, mut work) = (Busiest::default(), std::collections::BTreeMap::<u64, u64>::new());
            let count = 70 + draw(500);
            for _ in 0..3_000 {
                // Small ids are asked for more often.
                let (first, second) = (draw(count), draw(count));
                let (id, bytes_in) = (1 + first * second / count, draw(100_000));
                busiest.finish(Operation::Write, FileId(id), &RequestEnd { bytes_in, ..RequestEnd::default() });
                *work.entry(id).or_default() += REQUEST_WORK + bytes_in;
            }
            let (all, total) = (busiest.all(), work.values().sum::<u64>());
            for (id, work) in work {
                let told = all.iter().find(|object| object.id.0 == id);
                assert!(work <= total / PLACE_COUNT as u64 || told.is_some());
                if let Some(told) = told {
                    assert!(told.work() <= work && work <= told.earlier_work_max + told.work());
                }
            }
        }
    }

    /// Goal: requests begin with the id of what they are about, of all operations that say so.
    #[test]
    fn objects_of_requests() {
        use wire::Encode;
        use wire::messages::FileRequest;
        assert_eq!(object_of(Operation::StatId, &FileRequest { file: FileId(77) }.to_bytes()), Some(FileId(77)));
        assert_eq!(object_of(Operation::Ping, &[1; 64]), None);
        assert_eq!(object_of(Operation::Read, &[1; 3]), None);
    }
}
