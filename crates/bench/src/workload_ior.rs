//! `ior-easy`: a file for each process, large pieces in order. `ior-hard`: one file for all, small odd pieces,
//! interleaved by rank.

use crate::group::{Failure, Group, Pass};
use crate::meter::Meter;
use crate::options::Bench;
use crate::page_buffer::PageBuffer;
use crate::target::{How, Target, fill_pattern, find_difference};

const EASY_TRANSFER_SIZE: usize = 1 << 20;
/// The odd size that IO500 chose for its hard case.
pub const HARD_TRANSFER_SIZE: usize = 47_008;

const WRITE: usize = 0;
const READ: usize = 1;

/// Where the pieces of each rank lie.
struct Shape {
    shared: bool,
    transfer_size: usize,
    /// Pieces of each rank.
    transfer_count: u64,
    procs: u64,
}

impl Shape {
    fn of(group: &Group) -> Shape {
        let shared = group.bench == Bench::IorHard;
        let own = if shared { HARD_TRANSFER_SIZE } else { EASY_TRANSFER_SIZE };
        let transfer_size = group.options.transfer_size.unwrap_or(own);
        let transfer_count = (group.options.block_size / transfer_size as u64).max(1);
        Shape { shared, transfer_size, transfer_count, procs: u64::from(group.procs) }
    }

    fn path(&self, directory: &str, rank: u32) -> String {
        if self.shared { format!("{directory}/shared") } else { format!("{directory}/data.{rank}") }
    }

    /// Place of a rank's piece in its file.
    fn offset(&self, rank: u32, index: u64) -> u64 {
        let piece = if self.shared { index * self.procs + u64::from(rank) } else { index };
        piece * self.transfer_size as u64
    }

    /// Size of the file in which rank `rank` wrote, when each rank made so many pieces.
    fn file_size(&self, rank: u32, made: impl Fn(u32) -> u64) -> u64 {
        let end = |rank| match made(rank) {
            0 => 0,
            count => self.offset(rank, count - 1) + self.transfer_size as u64,
        };
        if self.shared { (0..self.procs as u32).map(end).max().unwrap_or(0) } else { end(rank) }
    }

    /// Data of different files differ, in the shared file those of different offsets do.
    fn seed(&self, rank: u32) -> u64 {
        if self.shared { 0x5eed << 48 } else { (u64::from(rank) + 1) << 48 }
    }
}

/// Write, read and delete, as the pass says.
pub fn run<T: Target>(target: &T, group: &Group) -> Result<(), Failure> {
    let shape = Shape::of(group);
    let mut buffer = PageBuffer::new(shape.transfer_size);
    fill_pattern(shape.seed(group.rank), 0, &mut buffer);
    group.phase(WRITE, shape.transfer_count, |meter| write(target, group, &shape, &mut buffer, meter))?;
    if group.pass != Pass::Warm {
        let made = group.made_by(group.neighbour());
        group.phase(READ, made, |meter| read(target, group, &shape, &mut buffer, meter))?;
        check_size(target, group, &shape)?;
    }
    // Others may still look at the file.
    group.barrier()?;
    if !shape.shared || group.rank == 0 {
        target.unlink(&shape.path(group.directory, group.rank))?;
    }
    group.barrier()
}

/// The bytes written by this rank.
fn write<T: Target>(
    target: &T,
    group: &Group,
    shape: &Shape,
    buffer: &mut [u8],
    meter: &mut Meter,
) -> Result<u64, Failure> {
    let file = target.open(&shape.path(group.directory, group.rank), How::Create)?;
    let mut done = 0;
    meter.begin_call();
    while done < shape.transfer_count && !meter.is_over() {
        let offset = shape.offset(group.rank, done);
        if group.verifying() {
            fill_pattern(shape.seed(group.rank), offset, buffer);
        }
        target.write_at(&file, buffer, offset)?;
        meter.note_call();
        done += 1;
    }
    if group.options.fsync {
        target.sync(&file)?;
    }
    target.close(file)?;
    group.note_made(done);
    Ok(done * shape.transfer_size as u64)
}

/// The bytes read by this rank: all that its neighbour wrote.
fn read<T: Target>(
    target: &T,
    group: &Group,
    shape: &Shape,
    buffer: &mut [u8],
    meter: &mut Meter,
) -> Result<u64, Failure> {
    let owner = group.neighbour();
    let path = shape.path(group.directory, owner);
    let count = group.made_by(owner);
    let file = target.open(&path, How::Read)?;
    meter.begin_call();
    for index in 0..count {
        let offset = shape.offset(owner, index);
        let size = target.read_at(&file, buffer, offset)?;
        meter.note_call();
        if size != shape.transfer_size {
            let wanted = shape.transfer_size;
            return Err(format!("{path}: {size} instead of {wanted} bytes read at {offset}").into());
        }
        if group.verifying()
            && let Some(range) = find_difference(shape.seed(owner), offset, buffer)
        {
            return Err(format!("{path}: bytes {range:?} differ from what rank {owner} wrote").into());
        }
    }
    target.close(file)?;
    Ok(count * shape.transfer_size as u64)
}

fn check_size<T: Target>(target: &T, group: &Group, shape: &Shape) -> Result<(), Failure> {
    let owner = group.neighbour();
    let path = shape.path(group.directory, owner);
    let wanted = shape.file_size(owner, |rank| group.made_by(rank));
    match target.stat(&path)? {
        Some(attributes) if attributes.size == wanted => Ok(()),
        Some(attributes) => Err(format!("{path}: size is {} instead of {wanted}", attributes.size).into()),
        None => Err(format!("{path}: is gone").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the pieces of all ranks tile the shared file without hole or overlap, and the size follows the last one.
    #[test]
    fn shared_file_is_tiled() {
        let shape = Shape { shared: true, transfer_size: 47_008, transfer_count: 10, procs: 3 };
        let mut offsets: Vec<u64> =
            (0..3).flat_map(|rank| (0..10).map(move |index| (rank, index))).map(|(r, i)| shape.offset(r, i)).collect();
        offsets.sort_unstable();
        assert!(offsets.iter().enumerate().all(|(index, offset)| *offset == index as u64 * 47_008));
        assert_eq!(shape.file_size(0, |_| 10), 30 * 47_008);
        assert_eq!(shape.file_size(0, |rank| [10, 10, 4][rank as usize]), 29 * 47_008);
        assert_eq!(shape.file_size(0, |_| 0), 0);
    }
}
