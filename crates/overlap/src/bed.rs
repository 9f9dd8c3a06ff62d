//! The file or block device that is written to: looked at before anything is measured.

use crate::options::Comparison;
use reactor::device::{Abilities, Buffer, Device, DeviceOptions, Direct};
use reactor::{DriverKind, Reactor};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Packets are at most so large.
pub const PACKET_SIZE_MAX: u64 = 16 << 20;

/// A file that was made for this goes with it.
pub struct Bed {
    pub path: PathBuf,
    pub abilities: Abilities,
    is_own: bool,
}

impl Drop for Bed {
    fn drop(&mut self) {
        if self.is_own {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Bed {
    /// Errors, in words: it isn't there, is in use, too small, or what is in it would be lost.
    pub fn prepare(options: &Comparison) -> Result<Bed, String> {
        let own = || std::env::temp_dir().join(format!("overlap-{}.device", std::process::id()));
        let path = options.path.clone().unwrap_or_else(own);
        let is_new = !path.exists();
        if !is_new && !options.overwrite {
            let path = path.display();
            return Err(format!("{path}: is there already and would be written to; --overwrite gives up its contents"));
        }
        if is_new && path.starts_with("/dev") && !path.starts_with("/dev/shm") {
            return Err(format!("{}: there is no such device", path.display()));
        }
        let abilities = look(&path, is_new.then_some(options.size))?;
        let bed = Bed { path, abilities, is_own: is_new };
        for size in &options.packet_sizes {
            bed.extent(*size, options)?;
        }
        if is_new {
            bed.fill()?;
        }
        Ok(bed)
    }

    /// Bytes of the device that packets of a size are written to. Errors: they are none that it takes.
    pub fn extent(&self, size: u64, options: &Comparison) -> Result<u64, String> {
        let (path, alignment) = (self.path.display(), self.abilities.alignment());
        if size > PACKET_SIZE_MAX || !size.is_multiple_of(alignment) {
            return Err(format!("{path}: packets are multiples of {alignment} bytes, and at most 16 MiB, not {size}"));
        }
        let usable = self.abilities.size.min(options.size);
        let least = size * 2 * u64::from(options.depth);
        if usable < least {
            return Err(format!(
                "{path}: {usable} bytes are too small: {} writes of {size} bytes, twice over, take {least}",
                options.depth
            ));
        }
        Ok(usable / size * size)
    }

    /// Writes all of it once: blocks that were never written are slow at first.
    fn fill(&self) -> Result<(), String> {
        let said = |error: std::io::Error| error.to_string();
        let reactor = Reactor::open(DriverKind::Auto).map_err(said)?;
        let device = reactor.open_device(&self.path, &DeviceOptions::default()).map_err(said)?;
        let pool = reactor.buffer_pool(1 << 20, 1).map_err(said)?;
        let mut buffer = pool.take().ok_or("a new pool has a buffer")?;
        crate::client::fill_pattern(1, 0, &mut buffer);
        let size = device.abilities().size;
        for offset in (0..size).step_by(1 << 20) {
            let piece = (size - offset).min(1 << 20) / 4096 * 4096;
            if piece > 0 {
                device.write_blocking(offset, &mut buffer, piece as usize).map_err(|error| error.to_string())?;
            }
        }
        reactor.block_on(device.flush()).map_err(|error| error.to_string())
    }

    /// Looks whether the first bytes are as packets of a seed have written them.
    pub fn verify(&self, seed: u64, size: u64) -> Result<(), String> {
        let (device, mut buffer) = self.open()?;
        let mut wanted = vec![0; buffer.len()];
        for offset in (0..size).step_by(buffer.len()) {
            let piece = (size - offset).min(buffer.len() as u64) as usize;
            let count = device.read_blocking(offset, &mut buffer, piece).map_err(|error| error.to_string())?;
            crate::client::fill_pattern(seed, offset, &mut wanted[..piece]);
            let differs = (0..piece).find(|at| *at >= count || buffer[*at] != wanted[*at]);
            if let Some(at) = differs {
                return Err(format!("{}: wrong contents at {}", self.path.display(), offset + at as u64));
            }
        }
        Ok(())
    }

    fn open(&self) -> Result<(Device, Buffer), String> {
        let said = |error: std::io::Error| error.to_string();
        // By kernel AIO, which leaves nothing open when it is gone.
        let reactor = Reactor::open(DriverKind::Epoll).map_err(said)?;
        let options = DeviceOptions { writable: false, ..DeviceOptions::default() };
        let device = reactor.open_device(&self.path, &options).map_err(said)?;
        let pool = reactor.buffer_pool(1 << 20, 1).map_err(said)?;
        let buffer = pool.take().ok_or("a new pool has a buffer")?;
        Ok((device, buffer))
    }

    pub fn about(&self) -> String {
        let kind = if self.abilities.is_block_device { "a block device" } else { "a file" };
        let direct = if matches!(self.abilities.direct, Direct::Yes { .. }) { "direct" } else { "not direct" };
        format!("{kind}, {direct}")
    }
}

/// What a device is, by trying to open it as the servers will.
fn look(path: &Path, create: Option<u64>) -> Result<Abilities, String> {
    let reactor = Reactor::open(DriverKind::Epoll).map_err(|error| error.to_string())?;
    let options = DeviceOptions { create, ..DeviceOptions::default() };
    let device = reactor.open_device(path, &options).map_err(|error| match error.kind() {
        ErrorKind::ResourceBusy => format!("{}: is mounted, or in use by others", path.display()),
        _ => error.to_string(),
    });
    Ok(device?.abilities().clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: contents that are not what a run has written are found, and where.
    /// Method: a file with the pattern of one seed, read as another's, with one byte changed, and cut short.
    #[test]
    fn wrong_contents_are_found() {
        let path = std::env::temp_dir().join(format!("overlap-bed-{}", std::process::id()));
        let mut contents = vec![0; 3 << 20];
        crate::client::fill_pattern(7, 0, &mut contents);
        std::fs::write(&path, &contents).unwrap();
        let bed = Bed { abilities: look(&path, None).unwrap(), path: path.clone(), is_own: true };
        assert_eq!(bed.verify(7, 3 << 20), Ok(()));
        assert!(bed.verify(8, 4096).unwrap_err().ends_with("wrong contents at 0"));
        contents[(1 << 20) + 5] ^= 1;
        std::fs::write(&path, &contents).unwrap();
        assert!(bed.verify(7, 3 << 20).unwrap_err().ends_with("wrong contents at 1048581"));
        std::fs::write(&path, &contents[..4096]).unwrap();
        assert!(bed.verify(7, 8192).unwrap_err().ends_with("wrong contents at 4096"));
    }
}
