//! Samples: what each second was like, in a ring that lies in the region `samples` of the store, so that the last
//! minutes of a server that was killed are still told by the next one.
//!
//! Records begin at multiples of 64 bytes: magic (4), bytes of the sample (4), its checksum (4), 0 (4), the sample. A
//! record that does not fit before the region's end begins at its front. A layout of samples has a magic of its own; of
//! another program's nothing is told.
//!
//! Invariants
//! 1. Numbers grow by one a sample, over lives of the server too.
//! 2. Nothing is written that was not allocated. Where the medium gives no more, the ring is as large as what it has
//!    given, and the oldest samples go earlier.
//! 3. What is told was read back with a right checksum: a record that was torn, or has gone bad, is as one that went.

use super::jobs::{JOB_SAMPLE_COUNT_MAX, JobSample};
use super::{Sample, SampleClass};
use reactor::{OpenMode, Region, Storage};
use std::collections::VecDeque;
use std::rc::Rc;
use wire::label::LABEL_SIZE_MAX;
use wire::{Decode, Encode};

/// Samples that are kept: ten minutes, one a second.
pub const SAMPLE_COUNT_MAX: usize = 600;
const NAME: &str = "samples";
const MAGIC: u32 = u32::from_le_bytes(*b"TbS2");
const HEADER_SIZE: u64 = 16;
const ALIGNMENT: u64 = 64;
/// Most bytes of a record: numbers take no more in it than in memory.
const RECORD_SIZE_MAX: u64 = (HEADER_SIZE as usize
    + size_of::<Sample>()
    + 2 * size_of::<SampleClass>()
    + JOB_SAMPLE_COUNT_MAX * (size_of::<JobSample>() + LABEL_SIZE_MAX))
    .next_multiple_of(ALIGNMENT as usize) as u64;
/// Bytes of the region: room for all samples, whatever is in them, and for what is left at its end.
pub const SAMPLES_SIZE: u64 = (SAMPLE_COUNT_MAX as u64 + 1) * RECORD_SIZE_MAX;
/// Bytes that are taken from the medium at the start, so that one that is full later keeps the last minute at least,
/// and then at a time, as they are first needed.
const ALLOCATED_AT_ONCE: u64 = 64 << 10;

/// Where a sample is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    number: u64,
    at: u64,
    size: u64,
}

impl Place {
    fn end(&self) -> u64 {
        self.at + self.size
    }
}

/// See the module.
#[derive(Default)]
pub struct Samples {
    /// Nothing where the medium has none to give.
    region: Option<Rc<dyn Region>>,
    /// Oldest first.
    places: VecDeque<Place>,
    /// The number of the last one.
    number: u64,
    /// Where the next one goes.
    next: u64,
    /// So many bytes from the region's front on are allocated.
    allocated: u64,
}

impl Samples {
    /// What an earlier life has left in a store's directory, or nothing. A medium that has no room for it keeps none.
    pub fn open(storage: &dyn Storage) -> Samples {
        let mut samples = Samples::of_size(storage, SAMPLES_SIZE);
        if let Some(region) = samples.region.clone() {
            samples.allocate(&*region, ALLOCATED_AT_ONCE);
        }
        samples
    }

    fn of_size(storage: &dyn Storage, size: u64) -> Samples {
        if storage.exists(NAME) {
            match storage.open(NAME, 0, OpenMode::Existing) {
                Ok(region) if region.size() == size => return Samples::left_in(region),
                // A program with another layout had it; what it has left is of no use.
                _ if storage.remove(NAME).is_err() => return Samples::default(),
                _ => {}
            }
        }
        Samples { region: storage.open(NAME, size, OpenMode::CreateNew).ok(), ..Samples::default() }
    }

    /// Finds what is whole in a region.
    fn left_in(region: Rc<dyn Region>) -> Samples {
        let end = region.data_end().min(region.size());
        let mut places: Vec<Place> = (0..end)
            .step_by(ALIGNMENT as usize)
            .filter_map(|at| {
                let (sample, size) = read(&*region, at, end)?;
                Some(Place { number: sample.number, at, size })
            })
            .collect();
        places.sort_unstable_by_key(|place| place.number);
        let last = places.last().copied();
        let allocated = places.iter().map(Place::end).max().unwrap_or(0);
        let skipped = places.len().saturating_sub(SAMPLE_COUNT_MAX);
        Samples {
            region: Some(region),
            places: places.into_iter().skip(skipped).collect(),
            number: last.map_or(0, |last| last.number),
            next: last.map_or(0, |last| last.end()),
            allocated,
        }
    }

    /// Keeps a sample, and gives it its number.
    pub fn add(&mut self, mut sample: Sample) {
        sample.number = self.number + 1;
        let bytes = sample.to_bytes();
        let size = (HEADER_SIZE + bytes.len() as u64).next_multiple_of(ALIGNMENT);
        let Some(region) = self.region.clone() else { return };
        let Some(at) = self.room(&*region, size) else { return };
        self.number = sample.number;
        let place = Place { number: self.number, at, size };
        // What lies behind, up to the ring's end, is older than what is going to be overwritten.
        let is_passed = |other: &Place| at < self.next && other.at >= self.next;
        let overlaps = |other: &Place| other.at < place.end() && at < other.end();
        let is_full = |places: &VecDeque<Place>| places.len() >= SAMPLE_COUNT_MAX;
        while let Some(oldest) = self.places.front()
            && (is_full(&self.places) || is_passed(oldest) || overlaps(oldest))
        {
            region.fill_zero(oldest.at, HEADER_SIZE);
            self.places.pop_front();
        }
        let mut record = Vec::with_capacity(size as usize);
        for word in [MAGIC, bytes.len() as u32, crc32c::crc32c(&bytes), 0] {
            word.encode(&mut record);
        }
        record.extend_from_slice(&bytes);
        region.write(at, &record);
        self.places.push_back(place);
        self.next = place.end();
    }

    /// Where a record of so many bytes goes; nothing if the medium has not given so many.
    fn room(&mut self, region: &dyn Region, size: u64) -> Option<u64> {
        [self.next, 0].into_iter().find(|at| self.allocate(region, at + size))
    }

    /// Whether what lies before `end` is allocated, which it is tried to be.
    fn allocate(&mut self, region: &dyn Region, end: u64) -> bool {
        if end > self.allocated && end <= region.size() {
            let wanted = end.next_multiple_of(ALLOCATED_AT_ONCE).min(region.size());
            if region.allocate(0, wanted).is_ok() {
                self.allocated = wanted;
            }
        }
        end <= self.allocated
    }

    /// The kept samples, oldest first; at most `count` of the youngest.
    pub fn youngest(&self, count: usize) -> impl Iterator<Item = Sample> + '_ {
        let skipped = self.places.len().saturating_sub(count);
        self.places.iter().skip(skipped).filter_map(|place| {
            let (sample, _) = read(self.region.as_deref()?, place.at, self.allocated)?;
            (sample.number == place.number).then_some(sample)
        })
    }

    /// Most bytes of memory of the server itself.
    pub fn memory_max() -> u64 {
        SAMPLE_COUNT_MAX as u64 * size_of::<Place>() as u64 * 2 + 2 * RECORD_SIZE_MAX
    }
}

/// The sample whose record begins there, if it is whole, and the bytes that the record takes.
fn read(region: &dyn Region, at: u64, allocated: u64) -> Option<(Sample, u64)> {
    if at + HEADER_SIZE > allocated {
        return None;
    }
    let mut header = [0; HEADER_SIZE as usize];
    region.read(at, &mut header);
    let word = |index: usize| u32::from_le_bytes(std::array::from_fn(|byte| header[4 * index + byte]));
    let (size, crc) = (u64::from(word(1)), word(2));
    if word(0) != MAGIC || size > RECORD_SIZE_MAX - HEADER_SIZE || at + HEADER_SIZE + size > allocated {
        return None;
    }
    let mut bytes = vec![0; size as usize];
    region.read(at + HEADER_SIZE, &mut bytes);
    let sample = Sample::from_bytes(&bytes).ok().filter(|_| crc32c::crc32c(&bytes) == crc)?;
    Some((sample, (HEADER_SIZE + size).next_multiple_of(ALIGNMENT)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::statistics::jobs::JobKind;
    use crate::store::testing::TestDisk;

    fn sample(time: i64, jobs: usize) -> Sample {
        let job = |index| JobSample {
            kind: JobKind::Job,
            name: format!("{index:0>LABEL_SIZE_MAX$}"),
            is_new: true,
            ..JobSample::default()
        };
        Sample { time, jobs: (0..jobs).map(job).collect(), ..Sample::default() }
    }

    fn times(samples: &Samples) -> Vec<i64> {
        samples.youngest(usize::MAX).map(|sample| sample.time).collect()
    }

    /// Goal: the youngest are kept in order, as many as there have to be, also of the largest.
    #[test]
    fn as_many_as_are_kept() {
        for jobs in [0, JOB_SAMPLE_COUNT_MAX] {
            let mut samples = Samples::open(&TestDisk::default());
            let count = 3 * SAMPLE_COUNT_MAX as i64 + 7;
            (0..count).for_each(|time| samples.add(sample(time, jobs)));
            assert_eq!(times(&samples), (count - SAMPLE_COUNT_MAX as i64..count).collect::<Vec<_>>());
            let youngest: Vec<_> = samples.youngest(2).collect();
            assert_eq!(youngest.iter().map(|sample| sample.number).collect::<Vec<_>>(), [1806, 1807]);
            assert_eq!(youngest[1], Sample { number: 1807, ..sample(count - 1, jobs) });
        }
    }

    /// Goal: in whatever room, of whatever sizes, what is told is the youngest samples without a gap, in this life and
    /// the next, which goes on with their numbers.
    #[test]
    fn earlier_lives() {
        for size in [2 * RECORD_SIZE_MAX, 7 * RECORD_SIZE_MAX + 64, 40 * RECORD_SIZE_MAX] {
            let disk = TestDisk::default();
            let mut count = 0;
            for life in 0..6 {
                let mut samples = Samples::of_size(&disk, size);
                let kept = times(&samples);
                assert_eq!(kept.len() as i64, kept.last().map_or(0, |last| last - kept[0] + 1), "in order");
                assert_eq!(kept.last().copied().unwrap_or(-1), count - 1, "life {life}");
                for _ in 0..29 {
                    samples.add(sample(count, (count % 9) as usize));
                    count += 1;
                    assert_eq!(*times(&samples).last().unwrap(), count - 1);
                }
                assert!(times(&samples).windows(2).all(|pair| pair[0] + 1 == pair[1]), "{:?}", times(&samples));
            }
            assert_eq!(Samples::of_size(&disk, size).number, count as u64);
        }
    }

    /// Goal: where the medium has no more, the ring is what it has given; without any there are no samples, and nothing
    /// else goes wrong.
    #[test]
    fn full_media() {
        for room in [0, ALLOCATED_AT_ONCE, 3 * ALLOCATED_AT_ONCE + 100] {
            let disk = TestDisk::default();
            disk.leave_bytes(room);
            let mut samples = Samples::open(&disk);
            if room == ALLOCATED_AT_ONCE {
                // Full from now on, but for what was taken at the start.
                assert_eq!(disk.free_bytes(), 0);
            }
            (0..2000).for_each(|time| samples.add(sample(time, 4)));
            let told = times(&samples);
            assert_eq!(told.is_empty(), room == 0, "{room}");
            assert!(told.windows(2).all(|pair| pair[0] + 1 == pair[1]));
            assert!(told.last().is_none_or(|last| *last == 1999));
        }
    }

    /// Goal: a write that is cut anywhere costs what it writes and what was there, and a byte that goes bad the sample
    /// that it is in.
    #[test]
    fn torn_records() {
        let of = |disk: &TestDisk| Samples::of_size(disk, 4 * RECORD_SIZE_MAX);
        for tear in 0..40 {
            let disk = TestDisk::default();
            let mut samples = of(&disk);
            disk.crash_after(20 + tear % 20, 97 * tear);
            (0..50).for_each(|time| samples.add(sample(time, 5)));
            disk.revive();
            let kept = times(&of(&disk));
            assert!(kept.len() >= 2 && kept.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{kept:?}");
        }
        let disk = TestDisk::default();
        let mut samples = of(&disk);
        (0..3).for_each(|time| samples.add(sample(time, 5)));
        let region = disk.open(NAME, 0, OpenMode::Existing).unwrap();
        region.write(samples.places[1].at + 100, b"bad");
        assert_eq!(times(&samples), [0, 2]);
        assert_eq!(times(&of(&disk)), [0, 2]);
        // Another layout.
        region.write(samples.places[0].at, b"TbS0");
        region.write(samples.places[2].at, b"TbS1");
        assert_eq!(times(&of(&disk)), []);
    }
}
