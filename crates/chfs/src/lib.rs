//! libchfs: Tabane behind the C interface of CHFS, so that programs written for it compile and run unchanged.
//!
//! Where the two differ, the interface is CHFS's and the behaviour POSIX's: what fails says -1 and errno. The rules
//! that are not obvious: the access mode of `flags` is ignored and unknown bits are let through, O_EXCL, O_TRUNC and
//! O_APPEND count; permission bits of files are not checked when they are opened and no umask is applied; `chfs_stat`
//! does not follow symbolic links; a create without O_TRUNC keeps what is there. What is acknowledged is with the
//! servers already, so the calls that tune or flush a client's buffers have nothing to do.

#[path = "../../capi/src/convert.rs"]
#[allow(dead_code)] // libtabane uses the rest.
mod convert;
#[path = "../../capi/src/ending.rs"]
mod ending;
mod files;
#[path = "../../capi/src/listing.rs"]
mod listing;
mod names;
mod settings;

use client::descriptors::{Mounted, Process};
use client::{Client, Error, File, FileSystem, Kind, OpenHow, Options, Result, Status, load_cluster, take_variables};
use convert::*;
use ending::end_with_process;
use libc::{c_char, c_int};
use reactor::ForkLock;
use std::path::Path;
use std::sync::Arc;

static PROCESS: Process = Process::new();
/// Calls of `chfs_init` that no `chfs_term` has ended: a library and the program that uses it may both connect.
static CALLS: ForkLock<u64> = ForkLock::new(u64::default);
static VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

fn mounted() -> Result<Arc<Mounted>> {
    PROCESS.get()
}

/// The bytes of a path argument; an empty path is the root, as in CHFS.
///
/// # Safety
/// `path` is NULL or a NUL-terminated string that outlives the use of the result.
unsafe fn path_of<'a>(path: *const c_char) -> Result<&'a [u8]> {
    // SAFETY: the caller promises it.
    let path = unsafe { bytes_of(path, "path") }?;
    Ok(if path.is_empty() { b"/" } else { path })
}

/// Connects to the cluster whose run directory or cluster file `server` names; NULL or an empty string takes
/// `TABANE_CLUSTER`, else `CHFS_SERVER`, from the environment. 0 when connected already; each call wants a `chfs_term`
/// of its own.
///
/// # Safety
/// `server` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_init(server: *const c_char) -> c_int {
    let named = if server.is_null() {
        None
    } else {
        // SAFETY: not null, and the caller promises the rest.
        let text = unsafe { bytes_of(server, "server") }.unwrap_or_default();
        Some(String::from_utf8_lossy(text).into_owned()).filter(|text| !text.is_empty())
    };
    end_with_process();
    // Counted first, so that no other thread's `chfs_term` is the last.
    *CALLS.write() += 1;
    let result = PROCESS.start(|| connect(named));
    if let Err(error) = &result {
        uncounted();
        // Programs written for CHFS do not look at the result, for there this call ends the process.
        eprintln!("chfs_init: {error}");
    }
    status_of(result)
}

fn connect(named: Option<String>) -> Result<Client> {
    let [cluster, server] = take_variables(["TABANE_CLUSTER", "CHFS_SERVER"]);
    let path = named.or(cluster).or(server).ok_or_else(|| {
        let words = "no cluster is named: set TABANE_CLUSTER or CHFS_SERVER to the run directory of one";
        Error::new(Status::NotFound, words)
    })?;
    settings::take_environment()?;
    let mut options = Options { umask: 0, ..Options::of_this_process()? };
    settings::apply(&mut options);
    Client::connect(load_cluster(Path::new(&path))?, options)
}

/// Whether this process is connected: 1 or 0.
#[unsafe(no_mangle)]
pub extern "C" fn chfs_initialized() -> c_int {
    c_int::from(PROCESS.is_started())
}

/// Takes a call of `chfs_init` back. With the last, what was mounted is, to be closed.
fn uncounted() -> Option<Arc<Mounted>> {
    let mut calls = CALLS.write();
    *calls = calls.saturating_sub(1);
    if *calls == 0 { PROCESS.take() } else { None }
}

/// Closes all descriptors and connections, with the last of as many calls as there were of `chfs_init`.
#[unsafe(no_mangle)]
pub extern "C" fn chfs_term() -> c_int {
    if let Some(mounted) = uncounted() {
        mounted.disconnect();
    }
    0
}

/// As `chfs_term`, for there is nothing left to flush.
#[unsafe(no_mangle)]
pub extern "C" fn chfs_term_without_sync() -> c_int {
    chfs_term()
}

/// The number of servers, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn chfs_size() -> c_int {
    number_of(mounted().map(|mounted| mounted.client.server_count() as i32))
}

/// The version of this library, as text.
#[unsafe(no_mangle)]
pub extern "C" fn chfs_version() -> *const c_char {
    VERSION.as_ptr().cast()
}

/// Makes everything that was acknowledged survive power loss, as far as the servers' media can, and has what was
/// changed over a backing directory, if there is one, carried back to it. CHFS's function has no way to report that it
/// failed: errno is set, and what could not be carried is on standard error.
#[unsafe(no_mangle)]
pub extern "C" fn chfs_sync() {
    status_of(mounted().and_then(|mounted| {
        mounted.client.synchronise_all()?;
        flush_all(&mounted.client)
    }));
}

/// Errors: `Io` where something could not be carried back; `NotPermitted` where nothing is to be, or by this user.
fn flush_all(client: &Client) -> Result<()> {
    let report = match client.run(async |_, files| files.flush(&[], &|_| {}).await) {
        // There is no backing directory.
        Err(error) if error.status == Status::Invalid => return Ok(()),
        report => report?,
    };
    for (path, reason) in &report.failures {
        eprintln!("chfs_sync: /{}: {reason}", path.escape_ascii());
    }
    match report.failed {
        0 => Ok(()),
        failed => Err(Error::new(Status::Io, format!("{failed} changes could not be carried back"))),
    }
}

/// Has the servers fetch a file of the backing directory before anybody reads it; of what is no file nothing is left to
/// fetch, for it lies with its name. Errors: `NotSupported` where there is no backing directory, and those of reads.
///
/// # Safety
/// `path` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_stagein(path: *const c_char) -> c_int {
    // SAFETY: the caller promises it.
    let staged = unsafe { path_of(path) }.and_then(|path| {
        let mounted = mounted()?;
        mounted.client.run(async |_, files| {
            if files.lstat(path).await?.kind != Kind::File {
                return Ok(());
            }
            let file = files.open_unchecked(path, &OpenHow::reading()).await?;
            let staged = stage(files, &file).await;
            files.close_later(&file);
            staged
        })
    });
    status_of(staged)
}

async fn stage(files: &FileSystem, file: &File) -> Result<()> {
    match files.cache_state(file, false).await {
        Err(error) if error.status == Status::Invalid => {
            Err(Error::new(Status::NotSupported, "there is no backing directory to stage in from"))
        }
        Err(error) => Err(error),
        Ok(state) if state.absent == 0 => Ok(()),
        Ok(_) => files.stage(file).await,
    }
}
