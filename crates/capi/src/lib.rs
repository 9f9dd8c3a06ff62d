//! libtabane: the file system for C programs. The functions do what their POSIX namesakes do and fail as these do, with
//! -1 (or NULL) and errno; `tabane_error_message` has the whole story. All of them may be called from any thread.
//!
//! Paths start at the root of the file system, with or without a slash in front. Descriptors are Tabane's own and have
//! nothing to do with the kernel's. After fork the child goes on with what was open, over connections of its own.
//!
//! Thin on purpose: what is more than conversion lives in the `client` crate.

mod convert;
mod directories;
mod ending;
mod extended;
mod files;
mod find;
mod inodes;
mod layout;
mod listing;
mod locks;
mod mounts;
mod names;
mod ranges;
mod rights;
mod started;
mod synchronise;

use client::descriptors::{Mounted, Process};
use client::{Client, Options, Result, load_cluster};
use convert::*;
use ending::end_with_process;
use libc::{c_char, c_int};
use std::path::Path;
use std::sync::Arc;

static PROCESS: Process = Process::new();
static VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

fn mounted() -> Result<Arc<Mounted>> {
    PROCESS.get()
}

/// Connects this process to a cluster, named by its run directory or cluster file; NULL takes the one
/// that `TABANE_CLUSTER` names, else the one that `tabane up` has started where it does by itself. Does nothing when
/// connected already. Servers are first talked to when they are first needed.
///
/// # Safety
/// `cluster` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_init(cluster: *const c_char) -> c_int {
    let connect = || {
        if cluster.is_null() {
            return Client::from_environment();
        }
        // SAFETY: the caller promises it.
        let path = unsafe { bytes_of(cluster, "cluster") }?;
        let path = String::from_utf8_lossy(path).into_owned();
        Client::connect(load_cluster(Path::new(&path))?, Options::of_this_process()?)
    };
    end_with_process();
    status_of(PROCESS.start(connect))
}

/// Whether this process is connected: 1 or 0.
#[unsafe(no_mangle)]
pub extern "C" fn tabane_initialized() -> c_int {
    c_int::from(PROCESS.is_started())
}

/// Closes all descriptors and connections. Fails with ESHUTDOWN when not connected. A program that ends by exit(3) or
/// by returning from main need not call it.
#[unsafe(no_mangle)]
pub extern "C" fn tabane_term() -> c_int {
    let result = mounted();
    started::settle(None);
    PROCESS.stop();
    status_of(result)
}

/// The version of this library, as text.
#[unsafe(no_mangle)]
pub extern "C" fn tabane_version() -> *const c_char {
    VERSION.as_ptr().cast()
}

/// The number of servers of the cluster, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn tabane_server_count() -> c_int {
    number_of(mounted().map(|mounted| mounted.client.server_count() as i32))
}

/// What the last failed call of this thread says about its failure: the path, the server, the operation and what to do.
/// Valid until the thread's next failure.
#[unsafe(no_mangle)]
pub extern "C" fn tabane_error_message() -> *const c_char {
    last_message()
}

/// Words for an errno value, as strerror(3) has them. Valid until this thread's next call.
#[unsafe(no_mangle)]
pub extern "C" fn tabane_strerror(number: c_int) -> *const c_char {
    // SAFETY: strerror returns a string of the C library, which keeps it for the thread.
    unsafe { libc::strerror(number) }
}
