//! Memory of a store's own: a mount of memory with huge pages on the store's directory, where the system lets us mount
//! one.
//!
//! Such a mount outlives the processes that use it, so that a store is found again after its server was killed, and
//! goes with `tabane down`. Memory that belongs to a process (memfd, hugetlb without a mount) would go with the server
//! instead.
//!
//! Invariants
//! 1. Only mounts that bear our name (`SOURCE`) are ever taken away.
//! 2. All mounts of a start together are no larger than what was free around them.

use crate::failure::io_words;
use crate::settings::Settings;
use client::mounts::memory_mount_on;
use reactor::pages::{huge_page_size, memory_available, mount_memory};
use reactor::process::{file_system_space, is_memory, unmount};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

/// What stands in front of our mounts in /proc/mounts.
pub const SOURCE: &str = "tabane-store";
/// Whether files of a tmpfs may have huge pages: only `deny` and `force` count for mounts that say so themselves.
pub const HUGE_SWITCH: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
/// Number of CAP_SYS_ADMIN, the right to mount (capabilities(7)).
const CAPABILITY_TO_MOUNT: u32 = 21;

/// Bytes that stores in a directory, which need not exist yet, can take together. In memory never more than is
/// available: a file system there knows nothing of what others have mounted.
pub fn free_space(stores: &Path) -> io::Result<u64> {
    let existing = stores.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let (free, _) = file_system_space(existing)?;
    Ok(if is_memory(existing)? { free.min(memory_available().unwrap_or(free)) } else { free })
}

/// Gives each of these new, empty stores memory of its own, if that is wanted and the directory around them is in
/// memory. Where the system refuses, the stores lie in that directory as they are; reports then say why (`pages_note`).
pub fn mount_stores(settings: &Settings, indices: &[u32]) -> io::Result<()> {
    // Of a store on a disk single pages come and go.
    if settings.devices.is_some() || !settings.huge_pages || !is_memory(&settings.stores)? || is_denied() {
        return Ok(());
    }
    let size = mount_size(settings, indices.len() as u64, free_space(&settings.stores)?);
    for index in indices {
        let store = settings.store_of(*index);
        if let Err(error) = mount_memory(&store, SOURCE, size) {
            // That others than root may not mount is no news; `tabane doctor` says what to do.
            if error.kind() != ErrorKind::PermissionDenied {
                eprintln!("tabane: {}: no memory with huge pages: {}", store.display(), io_words(&error));
            }
            return Ok(());
        }
    }
    Ok(())
}

/// Bytes of one mount: data, journal, and an equal share of the rest, for checkpoints grow with the number of names.
fn mount_size(settings: &Settings, count: u64, free: u64) -> u64 {
    let own = settings.store_size + settings.journal_size;
    own + free.saturating_sub(own * count) / count.max(1)
}

/// Removes a store with the memory that it was given. Errors: those of the file system; `NotFound` if there is no
/// store.
pub fn remove_store(store: &Path) -> io::Result<()> {
    while is_own(store) {
        // Files first: a copy of the mount in another name space, or a client that still maps one, would keep them
        // whole.
        for entry in fs::read_dir(store)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() { fs::remove_dir_all(entry.path())? } else { fs::remove_file(entry.path())? }
        }
        unmount(&fs::canonicalize(store)?, true)?;
    }
    fs::remove_dir_all(store)
}

/// Whether a store lies in memory of its own.
fn is_own(store: &Path) -> bool {
    fs::canonicalize(store).is_ok_and(|path| memory_mount_on(&path, SOURCE).is_some())
}

fn is_denied() -> bool {
    fs::read_to_string(HUGE_SWITCH).is_ok_and(|text| text.contains("[deny]"))
}

/// Whether a process with this status file (proc(5)) may mount anything.
pub fn may_mount(process_status: &str) -> bool {
    let line = process_status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let rights = line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0);
    rights >> CAPABILITY_TO_MOUNT & 1 == 1
}

/// What is said of stores that lie in memory of their own.
pub const OWN_MEMORY: &str = "in memory of their own";

/// Where a store lies, and why, in words for `tabane status`; nothing for one that is not in memory, where it makes no
/// difference.
pub fn pages_note(store: &Path, wanted: bool) -> String {
    let words = match is_memory(store) {
        _ if is_own(store) => OWN_MEMORY,
        Ok(false) => "",
        Ok(true) if !wanted => "huge ones are switched off by --huge-pages",
        Ok(true) if huge_page_size().is_none() => "this kernel has no huge ones",
        Ok(true) if is_denied() => "huge ones are denied by shmem_enabled; see tabane doctor",
        Ok(true) if !may_mount(&fs::read_to_string("/proc/self/status").unwrap_or_default()) => {
            "only root may mount memory with huge ones; see tabane doctor"
        }
        Ok(true) => "memory of their own could not be mounted when they were made",
        Err(error) if error.kind() == ErrorKind::NotFound => "",
        Err(_) => "their directory could not be looked at",
    };
    words.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: mounts of one start are together never larger than what was free, and each holds its store.
    #[test]
    fn sizes_of_mounts() {
        let settings = Settings { store_size: 100 << 20, journal_size: 28 << 20, ..crate::settings::for_tests() };
        assert_eq!(mount_size(&settings, 4, 512 << 20), 128 << 20);
        assert_eq!(mount_size(&settings, 4, 1024 << 20), 256 << 20);
        assert_eq!(mount_size(&settings, 3, (384 << 20) + 2), 128 << 20);
    }

    /// Goal: the right to mount is read from its bit.
    #[test]
    fn rights() {
        assert!(may_mount("Name:\tx\nCapEff:\t000001ffffffffff\n") && may_mount("CapEff:\t0000000000200000\n"));
        assert!(
            !may_mount("CapEff:\t000001ffffdfffff\n") && !may_mount("") && !may_mount("CapPrm:\t0000000000200000\n")
        );
    }
}
