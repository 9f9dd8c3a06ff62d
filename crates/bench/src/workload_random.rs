//! Pieces of 4 KiB at random places of files that were written front to back, and read so once unless the run is cold;
//! `--depth` of them under way at a time.
//!
//! `ior-rnd4k`: each process reads its neighbour's file. IO500 has it as `ior-rnd4K-easy-read`.
//! `random`: each process writes to its own file, then reads its neighbour's.

use crate::group::{Failure, Group, Pass, Stage};
use crate::meter::Meter;
use crate::options::Bench;
use crate::page_buffer::PageBuffer;
use crate::target::{self, How, Target, Transfers, fill_pattern, find_difference, mix};

const RANDOM_TRANSFER_SIZE: usize = 4096;
/// Bytes of a call that prepares the file.
const PREPARATION_SIZE: u64 = 1 << 20;
/// Places are multiples of what [`fill_pattern`] fills at once.
const PLACE_ALIGNMENT: u64 = 8;

/// The files of all ranks.
struct RandomShape {
    file_size: u64,
    transfer_size: usize,
    /// Transfers of each rank in a phase, and places that one may begin at.
    transfer_count: u64,
}

impl RandomShape {
    fn of(group: &Group) -> RandomShape {
        let transfer_size = group.options.transfer_size.unwrap_or(RANDOM_TRANSFER_SIZE);
        let file_size = group.options.block_size.max(transfer_size as u64);
        RandomShape { file_size, transfer_size, transfer_count: file_size / transfer_size as u64 }
    }

    /// Place of a rank's transfer of this number; the same in each run.
    fn offset(&self, rank: u32, number: u64) -> u64 {
        let place = mix(u64::from(rank) << 40 ^ number) % self.transfer_count;
        place * self.transfer_size as u64 / PLACE_ALIGNMENT * PLACE_ALIGNMENT
    }

    /// The pieces in which a file is written and read whole: places and sizes.
    fn whole(&self) -> impl Iterator<Item = (u64, usize)> + use<> {
        let file_size = self.file_size;
        (0..file_size.div_ceil(PREPARATION_SIZE)).map(move |index| {
            let offset = index * PREPARATION_SIZE;
            (offset, (file_size - offset).min(PREPARATION_SIZE) as usize)
        })
    }
}

fn path(directory: &str, rank: u32) -> String {
    format!("{directory}/random.{rank}")
}

fn seed(rank: u32) -> u64 {
    (u64::from(rank) + 1) << 48
}

/// Prepares, reads and deletes. The preparation warms the memory, so there is no other warming.
pub fn run<T: Target>(target: &T, group: &Group) -> Result<(), Failure> {
    if group.pass == Pass::Warm {
        return Ok(());
    }
    let shape = RandomShape::of(group);
    group.untimed(Stage::Preparation, shape.whole().count() as u64, |meter| write(target, group, &shape, meter))?;
    group.barrier()?;
    if group.options.warm {
        read_whole(target, group, &shape)?;
    }
    let (own, neighbour) = ((group.rank, How::Create), (group.neighbour(), How::Read));
    let phases = if group.bench == Bench::Random { &[own, neighbour][..] } else { &[neighbour] };
    for (index, what) in phases.iter().enumerate() {
        group.phase(index, shape.transfer_count, |meter| transfer(target, group, &shape, *what, meter))?;
    }
    target.unlink(&path(group.directory, group.rank))?;
    group.barrier()
}

fn write<T: Target>(target: &T, group: &Group, shape: &RandomShape, meter: &mut Meter) -> Result<(), Failure> {
    let mut buffer = PageBuffer::new(PREPARATION_SIZE as usize);
    let file = target.open(&path(group.directory, group.rank), How::Create)?;
    for (offset, size) in shape.whole() {
        fill_pattern(seed(group.rank), offset, &mut buffer[..size]);
        target.write_at(&file, &buffer[..size], offset)?;
        meter.note_call();
    }
    Ok(target.close(file)?)
}

/// Reads the neighbour's file front to back.
fn read_whole<T: Target>(target: &T, group: &Group, shape: &RandomShape) -> Result<(), Failure> {
    let mut buffer = PageBuffer::new(PREPARATION_SIZE as usize);
    let file = target.open(&path(group.directory, group.neighbour()), How::Read)?;
    for (offset, size) in shape.whole() {
        target.read_at(&file, &mut buffer[..size], offset)?;
    }
    Ok(target.close(file)?)
}

/// Moves pieces at random places, several at a time; their number.
fn transfer<T: Target>(
    target: &T,
    group: &Group,
    shape: &RandomShape,
    (owner, how): (u32, How),
    meter: &mut Meter,
) -> Result<u64, Failure> {
    let path = path(group.directory, owner);
    let (is_write, verifying, size) = (how != How::Read, group.verifying(), shape.transfer_size);
    let file = target.open(&path, how)?;
    let mut numbers = 0..shape.transfer_count;
    let mut next = || numbers.next().map(|number| shape.offset(group.rank, number));
    let touch = |offset: u64, buffer: &mut [u8]| {
        if is_write {
            fill_pattern(seed(owner), offset, buffer);
        } else if let Some(range) = find_difference(seed(owner), offset, buffer).filter(|_| verifying) {
            return Err(format!("{path}: bytes {range:?} differ from what rank {owner} wrote"));
        }
        Ok(())
    };
    let touch: &(dyn Fn(u64, &mut [u8]) -> target::Result<()> + Sync) = match is_write || verifying {
        true => &touch,
        // What is read is looked at in a run of its own.
        false => &|_, _| Ok(()),
    };
    let transfers = Transfers { size, depth: group.options.depth as usize, is_write, next: &mut next, touch };
    let done = target.transfer(&file, transfers, meter)?;
    if is_write && group.options.fsync {
        target.sync(&file)?;
    }
    target.close(file)?;
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every read lies within the file, and reads are spread over it. Method: as many reads as there are places,
    /// of even and odd sizes: of 10,000 random places some 63 % are met.
    #[test]
    fn reads_lie_within_the_file() {
        for transfer_size in [4096, 4093] {
            let shape =
                RandomShape { file_size: 10_000 * transfer_size as u64 + 5, transfer_size, transfer_count: 10_000 };
            let mut offsets: Vec<u64> = (0..10_000).map(|number| shape.offset(3, number)).collect();
            assert!(offsets.iter().all(|offset| offset + transfer_size as u64 <= shape.file_size && offset % 8 == 0));
            offsets.sort_unstable();
            offsets.dedup();
            assert!((5_500..7_500).contains(&offsets.len()), "{}", offsets.len());
        }
    }

    /// Goal: the pieces of the preparation tile the file.
    #[test]
    fn preparation_tiles_the_file() {
        let shape = RandomShape { file_size: (3 << 20) + 7, transfer_size: 4096, transfer_count: 768 };
        let pieces: Vec<(u64, usize)> = shape.whole().collect();
        assert_eq!(pieces, [(0, 1 << 20), (1 << 20, 1 << 20), (2 << 20, 1 << 20), (3 << 20, 7)]);
    }
}
