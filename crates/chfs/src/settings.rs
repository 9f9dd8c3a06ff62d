//! Settings of CHFS: from the environment when the process connects, and from calls at any time. Those that tune
//! buffers, RDMA and caches that Tabane does not have are accepted and do nothing.

use client::{Error, Options, Result, Status, take_variables};
use libc::{c_int, size_t};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use wire::limits::{CHUNK_SIZE_MAX, CHUNK_SIZE_MIN};

/// Bytes of a chunk of new files; 0 takes the cluster's.
static CHUNK_SIZE: AtomicU32 = AtomicU32::new(0);
/// Milliseconds of silence; 0 takes the default.
static TIMEOUT_MS: AtomicU64 = AtomicU64::new(0);

/// Reads `CHFS_CHUNK_SIZE` and `CHFS_RPC_TIMEOUT_MSEC`. `CHFS_ASYNC_ACCESS` and `CHFS_BUF_SIZE` are understood,
/// checked, and need nothing done: all servers of a call are asked at once anyway, and nothing is buffered here.
///
/// Errors: `Invalid` for what is not a number, or no possible chunk size.
pub fn take_environment() -> Result<()> {
    let names = ["CHFS_CHUNK_SIZE", "CHFS_RPC_TIMEOUT_MSEC", "CHFS_ASYNC_ACCESS", "CHFS_BUF_SIZE"];
    let values = take_variables(names);
    let mut numbers = [None; 4];
    for ((name, value), number) in names.into_iter().zip(values).zip(&mut numbers) {
        *number = value.map(|text| parse_number(name, &text)).transpose()?;
    }
    let [chunk_size, timeout_ms, _, _] = numbers;
    if let Some(size) = chunk_size.filter(|size| *size != 0) {
        let size = checked_chunk_size(size).ok_or_else(|| {
            let words = format!("CHFS_CHUNK_SIZE={size} is not from {CHUNK_SIZE_MIN} to {CHUNK_SIZE_MAX}");
            Error::new(Status::Invalid, words)
        })?;
        CHUNK_SIZE.store(size, Ordering::Relaxed);
    }
    if let Some(timeout_ms) = timeout_ms {
        TIMEOUT_MS.store(timeout_ms, Ordering::Relaxed);
    }
    Ok(())
}

fn parse_number(name: &str, text: &str) -> Result<u64> {
    let words = || format!("{name}={text} is not a number; correct it or unset it");
    text.trim().parse().map_err(|_| Error::new(Status::Invalid, words()))
}

fn checked_chunk_size(size: u64) -> Option<u32> {
    u32::try_from(size).ok().filter(|size| (CHUNK_SIZE_MIN..=CHUNK_SIZE_MAX).contains(size))
}

/// Puts the settings that a connection takes into its options.
pub fn apply(options: &mut Options) {
    match TIMEOUT_MS.load(Ordering::Relaxed) {
        0 => {}
        timeout_ms => options.timeout_ms = timeout_ms,
    }
}

/// Bytes of a chunk of new files; 0 takes the client's default.
pub fn chunk_size() -> u32 {
    CHUNK_SIZE.load(Ordering::Relaxed)
}

/// Sets the chunk size of files made from now on, in bytes; 0 takes the cluster's. One that is not possible makes the
/// creation fail with EINVAL.
#[unsafe(no_mangle)]
pub extern "C" fn chfs_set_chunk_size(chunk_size: c_int) {
    CHUNK_SIZE.store(u32::try_from(chunk_size).unwrap_or(u32::MAX), Ordering::Relaxed);
}

/// Sets how long a server may be silent, in milliseconds. Counts for connections made afterwards.
#[unsafe(no_mangle)]
pub extern "C" fn chfs_set_rpc_timeout_msec(timeout: c_int) {
    TIMEOUT_MS.store(u64::try_from(timeout).unwrap_or(0), Ordering::Relaxed);
}

/// Nothing is buffered in the client.
#[unsafe(no_mangle)]
pub extern "C" fn chfs_set_buf_size(_buf_size: c_int) {}

/// All servers of a call are always asked at once.
#[unsafe(no_mangle)]
pub extern "C" fn chfs_set_async_access(_enable: c_int) {}

/// Bodies always go straight to their final place.
#[unsafe(no_mangle)]
pub extern "C" fn chfs_set_rdma_thresh(_thresh: size_t) {}

/// The list of servers does not change while a cluster runs.
#[unsafe(no_mangle)]
pub extern "C" fn chfs_set_node_list_cache_timeout(_timeout: c_int) {}

/// Servers fetch by themselves, straight to their stores.
#[unsafe(no_mangle)]
pub extern "C" fn chfs_set_stagein_buf_size(_buf_size: c_int) {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: numbers from the environment are checked, with a message that names the variable.
    #[test]
    fn numbers_are_checked() {
        assert_eq!(parse_number("CHFS_BUF_SIZE", " 65536 "), Ok(65536));
        let error = parse_number("CHFS_BUF_SIZE", "64k").expect_err("has a letter");
        assert!(error.message.contains("CHFS_BUF_SIZE=64k"), "{error}");
        assert_eq!(checked_chunk_size(47_008), Some(47_008));
        assert_eq!(checked_chunk_size(1 << 40), None);
        assert_eq!(checked_chunk_size(100), None);
    }

    /// Goal: a chunk size that is not possible is kept as one that makes creation fail, not taken for the default.
    #[test]
    fn impossible_chunk_size_is_not_the_default() {
        chfs_set_chunk_size(-1);
        assert!(chunk_size() > CHUNK_SIZE_MAX);
        chfs_set_chunk_size(8192);
        assert_eq!(chunk_size(), 8192);
        chfs_set_chunk_size(0);
        assert_eq!(chunk_size(), 0);
    }
}
