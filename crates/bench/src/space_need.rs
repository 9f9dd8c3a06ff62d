//! What a bench takes of its target, looked at before it begins: a run of many minutes does not end in the middle for
//! want of space.

use crate::group::{Failure, Group};
use crate::options::{Bench, Options};
use crate::report::grouped;
use crate::target::{Space, Target};
use crate::workload_find::old_count;
use crate::workload_mdtest::HARD_FILE_SIZE;

/// Bytes of a page: what a small file takes at least.
const PAGE_SIZE: u64 = 4096;
const MEBIBYTE: u64 = 1 << 20;

/// Most that is there at once: data, and files of any kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Need {
    bytes: u64,
    files: u64,
}

fn need_of(bench: Bench, options: &Options) -> Need {
    let procs = u64::from(options.procs);
    let small_file = (HARD_FILE_SIZE as u64).next_multiple_of(PAGE_SIZE);
    let (bytes, files) = match bench {
        Bench::IorEasy | Bench::IorHard | Bench::IorRandom | Bench::Random => (options.block_size, 1),
        Bench::MdtestEasy => (0, options.files),
        Bench::MdtestHard => (options.files.saturating_mul(small_file), options.files),
        Bench::Find => {
            let hard = options.files + old_count(options);
            (hard.saturating_mul(small_file), hard + options.files)
        }
        Bench::Names => (0, options.files + options.files / 10),
        _ => (0, 0),
    };
    Need { bytes: bytes.saturating_mul(procs), files: files.saturating_mul(procs) }
}

/// Refuses what cannot fit. A run that a time ends may take less than all of it, and is let go on.
pub fn check<T: Target>(target: &T, group: &Group) -> Result<(), Failure> {
    if group.options.seconds > 0.0 {
        return Ok(());
    }
    let need = need_of(group.bench, group.options);
    if need == (Need { bytes: 0, files: 0 }) {
        return Ok(());
    }
    let space = target.space()?;
    complaint(need, space, target.server_count(), group.bench).map_or(Ok(()), |words| Err(words.into()))
}

/// What is missing, and what to do.
fn complaint(need: Need, space: Space, server_count: u32, bench: Bench) -> Option<String> {
    let fewer = match bench {
        Bench::IorEasy | Bench::IorHard | Bench::IorRandom | Bench::Random => {
            "a smaller --block-size, or fewer --procs"
        }
        _ => "fewer --files, or fewer --procs",
    };
    if need.bytes > space.bytes {
        let larger = match server_count {
            0 => "name a directory with more space".to_owned(),
            count => {
                // Servers do not get equal shares, only nearly so.
                let each = (need.bytes / u64::from(count) / 15 * 16).div_ceil(MEBIBYTE) + 16;
                format!("give each of the {count} servers a larger store (--store memory:size={each}M)")
            }
        };
        let [wanted, free] = [need.bytes, space.bytes].map(|bytes| grouped((bytes / MEBIBYTE) as f64));
        return Some(format!("its data want {wanted} MiB, and {free} MiB are free; {larger}, or ask for {fewer}"));
    }
    let files = space.files.filter(|free| need.files > *free)?;
    let [wanted, free] = [need.files, files].map(|count| grouped(count as f64));
    Some(format!(
        "it makes {wanted} files, and there is room for {free}; name a directory whose file system takes more \
         (tmpfs: mount option nr_inodes), or ask for {fewer}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what a bench needs is counted for all processes, and pages are counted whole.
    #[test]
    fn needs() {
        let options = crate::options::for_tests(&["--procs=3", "--files=100", "--block-size=1MiB", "all"]);
        let need = |bench| need_of(bench, &options);
        assert_eq!(need(Bench::IorHard), Need { bytes: 3 << 20, files: 3 });
        assert_eq!(need(Bench::MdtestEasy), Need { bytes: 0, files: 300 });
        assert_eq!(need(Bench::MdtestHard), Need { bytes: 300 * 4096, files: 300 });
        assert_eq!(need(Bench::Find), Need { bytes: 330 * 4096, files: 630 });
        assert_eq!(need(Bench::Ping), Need { bytes: 0, files: 0 });
    }

    /// Goal: what fits is let go on; what does not is refused with the size that would do, or the number of files.
    #[test]
    fn complaints_say_how_much() {
        let need = Need { bytes: 80 << 30, files: 20_000_000 };
        let space = |bytes, files| Space { bytes, files };
        assert_eq!(complaint(need, space(80 << 30, None), 2, Bench::MdtestHard), None);
        assert_eq!(complaint(need, space(80 << 30, Some(20_000_000)), 0, Bench::MdtestHard), None);
        let words = complaint(need, space(1 << 30, None), 2, Bench::MdtestHard).unwrap();
        assert!(words.contains("81,920 MiB") && words.contains("1,024 MiB") && words.contains("2 servers"), "{words}");
        let size = words.split("memory:size=").nth(1).and_then(|rest| rest.split('M').next()).unwrap();
        assert!((40_960..45_000).contains(&size.parse::<u64>().unwrap()), "{words}");
        let words = complaint(need, space(1 << 40, Some(3_000_000)), 0, Bench::MdtestEasy).unwrap();
        assert!(words.contains("20,000,000 files") && words.contains("3,000,000"), "{words}");
    }
}
