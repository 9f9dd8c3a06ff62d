//! Reads and writes that are started, and go on while the program does something else.

use crate::convert::*;
use crate::files::{TabaneRange, ranges_of};
use crate::mounted;
use client::{Error, Result, StartedCall, Status};
use libc::{c_int, iovec, size_t, ssize_t};
use reactor::{ForkLock, fork_generation};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{IoSlice, IoSliceMut};
use std::mem;
use std::ops::DerefMut;

/// Calls under way at once, or done and not asked about.
const CALLS_MAX: usize = 4096;

#[derive(Default)]
struct Calls {
    /// The process that has started them (`fork_generation`).
    generation: u64,
    last: c_int,
    /// By number: the descriptor, and the call.
    calls: BTreeMap<c_int, (c_int, StartedCall)>,
}

static CALLS: ForkLock<Calls> = ForkLock::new(Calls::default);

/// The calls of this process. Those of its parent are leaked in a child, which never touches what they belong to.
fn own_calls() -> impl DerefMut<Target = Calls> {
    let mut own = CALLS.write();
    if own.generation != fork_generation() {
        mem::forget(mem::take(&mut own.calls));
        own.generation = fork_generation();
    }
    own
}

fn begin(descriptor: c_int, start: impl FnOnce() -> Result<StartedCall>) -> Result<i32> {
    if own_calls().calls.len() >= CALLS_MAX {
        let words = format!("{CALLS_MAX} calls are under way or not asked about; wait for some (tabane_wait)");
        return Err(Error::new(Status::Busy, words));
    }
    let call = start()?;
    let mut table = own_calls();
    loop {
        table.last = table.last.checked_add(1).unwrap_or(1);
        let number = table.last;
        if let Entry::Vacant(place) = table.calls.entry(number) {
            place.insert((descriptor, call));
            return Ok(number);
        }
    }
}

fn call_of(number: c_int) -> Result<StartedCall> {
    let call = own_calls().calls.get(&number).map(|(_, call)| call.clone());
    call.ok_or_else(|| Error::new(Status::Invalid, format!("{number} is no call that this process has started")))
}

fn forget(number: c_int) {
    let forgotten = own_calls().calls.remove(&number);
    drop(forgotten);
}

/// Waits for the calls of a descriptor, or of all: their results can still be asked for.
pub fn settle(descriptor: Option<c_int>) {
    let is_meant = |of: c_int| descriptor.is_none_or(|descriptor| of == descriptor);
    let table = own_calls();
    let meant = table.calls.values().filter(|(of, _)| is_meant(*of));
    let calls: Vec<StartedCall> = meant.map(|(_, call)| call.clone()).collect();
    drop(table);
    if calls.is_empty() {
        return;
    }
    let Ok(mounted) = mounted() else { return };
    for call in &calls {
        // Whoever started it is told.
        let _: Result<usize> = mounted.client.wait(call);
    }
}

/// Starts what tabane_preadv_list does. Returns a number for tabane_test and tabane_wait, one of which has to say that
/// the call is done before its buffers are used or freed. Calls go on in the order in which servers answer; closing the
/// descriptor waits for its calls, but what is under way when the process ends may not be done. Errors: EBUSY with
/// 4,096 calls that are under way or were not asked about.
///
/// # Safety
/// `ranges` points to `range_count` elements, `vector` to `count` elements that name writable bytes, none overlapping
/// another, which stay and are used by nobody else until the call is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_start_preadv_list(
    descriptor: c_int,
    ranges: *const TabaneRange,
    range_count: size_t,
    vector: *const iovec,
    count: c_int,
) -> c_int {
    // SAFETY: the caller promises it, until the call is done.
    let (ranges, places) = unsafe { (ranges_of(ranges, range_count), destinations_of(vector, count)) };
    let start = || -> Result<i32> {
        let (ranges, places): (_, Vec<IoSliceMut<'static>>) = (ranges?, places?);
        begin(descriptor, || mounted()?.start_read_list_at(descriptor, ranges, places))
    };
    number_of(start())
}

/// Starts what tabane_pwritev_list does, as tabane_start_preadv_list starts reads.
///
/// # Safety
/// `ranges` points to `range_count` elements, `vector` to `count` elements that name readable bytes, which stay
/// unchanged until the call is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_start_pwritev_list(
    descriptor: c_int,
    ranges: *const TabaneRange,
    range_count: size_t,
    vector: *const iovec,
    count: c_int,
) -> c_int {
    // SAFETY: the caller promises it, until the call is done.
    let (ranges, places) = unsafe { (ranges_of(ranges, range_count), sources_of(vector, count)) };
    let start = || -> Result<i32> {
        let (ranges, places): (_, Vec<IoSlice<'static>>) = (ranges?, places?);
        begin(descriptor, || mounted()?.start_write_list_at(descriptor, ranges, places))
    };
    number_of(start())
}

/// Whether a call that was started is done: 1, with the bytes that it moved in `moved`, or 0 while it is under way.
/// What servers have answered is taken in; nothing is waited for. Fails as the call did, or with EINVAL for a number of
/// no call; a number is of no call any more once 1 or -1 was returned for it.
///
/// # Safety
/// `moved` is NULL or points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_test(number: c_int, moved: *mut ssize_t) -> c_int {
    let test = || -> Result<Option<usize>> {
        let call = call_of(number)?;
        let Some(result) = mounted()?.client.test(&call) else { return Ok(None) };
        forget(number);
        result.map(Some)
    };
    number_of(test().map(|done| {
        // SAFETY: the caller promises it.
        if let (Some(bytes), Some(moved)) = (done, unsafe { moved.as_mut() }) {
            *moved = bytes as ssize_t;
        }
        i32::from(done.is_some())
    }))
}

/// Waits until a call that was started is done. Returns the bytes that it moved, or fails as it did; the number is of
/// no call any more then.
#[unsafe(no_mangle)]
pub extern "C" fn tabane_wait(number: c_int) -> ssize_t {
    let wait = || -> Result<usize> {
        let call = call_of(number)?;
        let result = mounted()?.client.wait(&call);
        forget(number);
        result
    };
    count_of(wait())
}
