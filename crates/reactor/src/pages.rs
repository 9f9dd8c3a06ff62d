//! The pages that memory lies on: mounts of memory that have huge ones, and what a mapping has come to lie on.
//!
//! A store is copied to and from as fast as memory allows only where its pages are huge: a page of 4 KiB costs its
//! first touch in each process that maps it, and a look at the page tables for every few bytes of a copy.

use std::ffi::CString;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Bytes of the smallest page.
const PAGE_SIZE: u64 = 4096;
const KIBIBYTE: u64 = 1024;

/// Bytes of a huge page of memory; nothing where the kernel has none.
pub fn huge_page_size() -> Option<u64> {
    std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").ok()?.trim().parse().ok()
}

/// Mounts memory with huge pages on an empty directory, at most `size` bytes, for the files of this user alone.
/// `source` is what stands in front of it in lists of mounts.
///
/// A file there gets a huge page wherever it fills one as a whole (`within_size`), and small pages else, so that small
/// files take no more than elsewhere. `advise` would not do: fallocate(2) takes the space, and no advice reaches it.
///
/// Errors: `PermissionDenied` without the right to mount, `InvalidInput` also where the kernel has no huge pages.
pub fn mount_memory(path: &Path, source: &str, size: u64) -> io::Result<()> {
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| io::Error::from(ErrorKind::InvalidInput));
    let (path, source) = (text(path.as_os_str().as_bytes())?, text(source.as_bytes())?);
    let options = text(format!("size={size},huge=within_size,mode=0700").as_bytes())?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    // SAFETY: all of these end with NUL, and the kernel copies them.
    let result = unsafe {
        libc::mount(source.as_ptr(), path.as_ptr(), c"tmpfs".as_ptr(), flags, options.as_ptr().cast::<libc::c_void>())
    };
    crate::system::check(result).map(drop)
}

/// Bytes of the largest page that anything of the mapping at an address lies on now, as the kernel says.
///
/// The kernel walks all page tables of the process for it, so it is for the start, not for every day.
pub(crate) fn page_size_at(address: *const u8) -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    page_size_in(&text, address as u64, huge_page_size().unwrap_or(PAGE_SIZE))
}

/// The same from the text of `smaps` (proc(5)).
fn page_size_in(smaps: &str, address: u64, huge: u64) -> u64 {
    let (mut is_here, mut found) = (false, PAGE_SIZE);
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        if let Some((from, to)) = first.split_once('-') {
            let limit = |text| u64::from_str_radix(text, 16).unwrap_or(0);
            is_here = (limit(from)..limit(to)).contains(&address);
        } else if is_here {
            let kibibytes = words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
            match first {
                "KernelPageSize:" => found = found.max(kibibytes * KIBIBYTE),
                "ShmemPmdMapped:" | "FilePmdMapped:" if kibibytes > 0 => found = found.max(huge),
                _ => {}
            }
        }
    }
    found
}

/// Bytes that the machine could give to somebody now without taking them from anybody.
pub fn memory_available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.split_ascii_whitespace().next()?.parse::<u64>().ok()? * KIBIBYTE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "7f0000000000-7f0000400000 rw-s 00000000 00:20 2 /s/data\n\
                         Size:               4096 kB\nKernelPageSize:        4 kB\nShmemPmdMapped:     2048 kB\n\
                         VmFlags: rd wr sh mr mw me ms hg\n\
                         7f0000400000-7f0000600000 rw-s 00000000 00:20 3 /s/a-b\n\
                         KernelPageSize:        4 kB\nShmemPmdMapped:        0 kB\nFilePmdMapped:         0 kB\n\
                         7f0000600000-7f0040600000 rw-s 00000000 00:21 4 /h/data\n\
                         KernelPageSize:  1048576 kB\n";

    /// Goal: the mapping at an address is found among its neighbours, whatever kind of huge pages it has.
    #[test]
    fn pages_of_a_mapping() {
        let size = |address| page_size_in(SMAPS, address, 2 << 20);
        assert_eq!((size(0x7f00_0000_0000), size(0x7f00_003f_ffff)), (2 << 20, 2 << 20));
        assert_eq!(size(0x7f00_0040_0000), 4096);
        assert_eq!(size(0x7f00_0060_0000), 1 << 30);
        assert_eq!(size(0), 4096);
    }

    /// Goal: what the kernel of this machine says is understood.
    #[test]
    fn this_machine() {
        let page = Box::new(1u8);
        assert!(page_size_at(&raw const *page) >= PAGE_SIZE);
        assert!(memory_available().is_some_and(|bytes| bytes > 1 << 20));
    }
}
