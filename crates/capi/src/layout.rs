//! Where the chunks of files are: what a program needs to know that places its processes by its data, or the other way
//! round.

use crate::convert::*;
use crate::extended::hand_over;
use crate::mounted;
use client::{Error, File, Kind, OpenHow, Result, Status};
use libc::{c_int, c_void, off_t, size_t, ssize_t};
use std::slice;

/// How a file is spread over the servers. Chunk `i` is at server `(first + i / run % width) % servers` by modular
/// placement, and where a hash of file and chunk leads by ring placement; `tabane_locate` knows for both.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TabaneLayout {
    /// Bytes of a chunk.
    pub chunk_size: size_t,
    /// Servers that the file is spread over.
    pub width: c_int,
    /// Neighbouring chunks at the same server.
    pub run: c_int,
    /// The server of chunk 0.
    pub first: c_int,
    /// Servers of the cluster.
    pub servers: c_int,
    /// Whether chunks are placed by a hash (ring placement).
    pub is_hashed: c_int,
}

impl TabaneLayout {
    /// What a caller wants of it.
    pub(crate) fn put_into(&self, how: &mut OpenHow) -> Result<()> {
        let number = |value: i64, name: &str| {
            u32::try_from(value)
                .map_err(|_| Error::new(Status::Invalid, format!("{name} {value} of a layout is out of range")))
        };
        how.chunk_size = number(self.chunk_size as i64, "the chunk size")?;
        how.width = number(self.width.into(), "the width")?;
        how.run = number(self.run.into(), "the run")?;
        how.first = if self.first == -1 { None } else { Some(number(self.first.into(), "the first server")?) };
        Ok(())
    }
}

fn opened<T>(descriptor: c_int, act: impl FnOnce(&client::Client, &File) -> Result<T>) -> Result<T> {
    let mounted = mounted()?;
    let open = mounted.get(descriptor)?;
    match open.file.kind {
        Kind::Directory => Err(Error::new(Status::IsDirectory, "a directory has no layout")),
        _ => act(&mounted.client, &open.file),
    }
}

/// Tells how an open file is spread over the servers.
///
/// # Safety
/// `place` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_layout(descriptor: c_int, place: *mut TabaneLayout) -> c_int {
    let layout = opened(descriptor, |client, file| {
        let layout = file.layout;
        Ok(TabaneLayout {
            chunk_size: layout.chunk_size as size_t,
            // Slots beyond the servers lead to the same ones again.
            width: layout.width.min(client.server_count()) as c_int,
            run: layout.run as c_int,
            first: client.chunk_server(file, 0) as c_int,
            servers: client.server_count() as c_int,
            is_hashed: (layout.policy == client::LayoutPolicy::Ring).into(),
        })
    });
    let stored = layout.and_then(|layout| match place.is_null() {
        true => Err(Error::new(Status::Invalid, "the place for the layout is NULL")),
        false => {
            // SAFETY: the caller promises it.
            unsafe { place.write(layout) };
            Ok(())
        }
    });
    status_of(stored)
}

/// Tells the server of each chunk that a range of an open file touches, in order, whether or not anything is written
/// there: of the first `count` of them in `servers`, which may be NULL where `count` is 0. Returns the number of
/// chunks, which may be more than `count`. No server is asked.
///
/// # Safety
/// `servers` points to room for `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_locate(
    descriptor: c_int,
    offset: off_t,
    size: size_t,
    servers: *mut c_int,
    count: size_t,
) -> ssize_t {
    let located = opened(descriptor, |client, file| {
        let Ok(offset) = u64::try_from(offset) else {
            return Err(Error::new(Status::Invalid, format!("offset {offset} is negative")));
        };
        let end = offset.checked_add(size as u64).filter(|end| *end <= off_t::MAX as u64);
        let end = end.ok_or_else(|| Error::new(Status::TooLarge, "the range ends beyond 2^63 - 1"))?;
        if count > 0 && servers.is_null() {
            return Err(Error::new(Status::Invalid, "the place for the servers is NULL"));
        }
        if size == 0 {
            return Ok(0);
        }
        let chunk_size = u64::from(file.layout.chunk_size);
        let chunks = offset / chunk_size..(end - 1) / chunk_size + 1;
        let chunk_count = (chunks.end - chunks.start) as usize;
        for (index, chunk) in chunks.take(count).enumerate() {
            // SAFETY: the caller promises it.
            unsafe { servers.add(index).write(client.chunk_server(file, chunk) as c_int) };
        }
        Ok(chunk_count)
    });
    count_of(located)
}

/// 1 if a server runs on this machine, else 0, or -1 with errno set: EINVAL where there is no such server.
#[unsafe(no_mangle)]
pub extern "C" fn tabane_is_local(server: c_int) -> c_int {
    let is_local = || {
        let client = &mounted()?.client;
        match u32::try_from(server).ok().filter(|server| *server < client.server_count()) {
            Some(server) => Ok(client.is_local(server).into()),
            None => Err(Error::new(Status::Invalid, format!("there is no server {server}"))),
        }
    };
    number_of(is_local())
}

/// With `is_on` 1, reads and writes of an open file of more than 64 KiB at a server that is reached by messages wait
/// for a permit of it, of which it gives a few at a time, in the order in which they are asked for: for calls that many
/// processes make at once. With 0 they don't, as after an open.
#[unsafe(no_mangle)]
pub extern "C" fn tabane_throttle(descriptor: c_int, is_on: c_int) -> c_int {
    status_of(opened(descriptor, |_, file| {
        file.set_throttled(is_on != 0);
        Ok(())
    }))
}

/// Puts an open file into a few bytes that other processes, on any host, can open it by (`tabane_import`), without any
/// server being asked. Returns how many there are, at most 128; with `size` 0 only that. What they say holds while this
/// process has the file open: who imported it has it then too, also when it has lost its name. Fails with ERANGE when
/// there is no room for them, EISDIR for a directory.
///
/// # Safety
/// `place` points to `size` bytes that may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_export(descriptor: c_int, place: *mut c_void, size: size_t) -> ssize_t {
    let exported = mounted().and_then(|mounted| mounted.export(descriptor));
    // SAFETY: the caller promises it.
    count_of(unsafe { hand_over(exported, place, size) })
}

/// Opens a file that another process of the same cluster has exported, with what that one may do with it, and at
/// position 0. Returns a descriptor of this process's own, to be closed as any other. Fails with EINVAL for bytes that
/// are no exported file, or one of another cluster; when the exporter has closed a file that has no name any more, uses
/// of the descriptor fail with ESTALE.
///
/// # Safety
/// `exported` points to `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_import(exported: *const c_void, size: size_t) -> c_int {
    if exported.is_null() {
        return status_of::<()>(Err(Error::new(Status::Invalid, "the exported file is NULL")));
    }
    // SAFETY: not null, and the caller promises the rest.
    let bytes = unsafe { slice::from_raw_parts(exported.cast::<u8>(), size) };
    number_of(mounted().and_then(|mounted| mounted.import(bytes)))
}
