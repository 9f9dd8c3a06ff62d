//! What the loop asks of the world below it: clocks, randomness, sockets, storage, and waiting for any of them.

use crate::Nanos;
use crate::backing::Backing;
use crate::device::{BufferPool, Device, DeviceOptions};
use crate::operations::OperationDelays;
use crate::region::Storage;
use crate::stream::{Listener, Stream};
use crate::task::ReadyQueue;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// Which driver a reactor runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverKind {
    /// io_uring, or epoll where io_uring is switched off; `Reactor::driver_name` says which.
    Auto,
    /// io_uring, or an error.
    IoUring,
    /// epoll.
    Epoll,
}

/// Name of the driver of a simulated node.
pub(crate) const SIMULATED_NAME: &str = "sim";

/// A source of events. All methods are called on the loop's thread (for [`crate::Shared`]: under its lock).
pub trait Driver {
    /// Name for people.
    fn name(&self) -> &'static str;
    /// Monotonic time in nanoseconds; its zero has no meaning.
    fn now(&self) -> Nanos;
    /// Nanoseconds since the epoch.
    fn wall_clock(&self) -> i64;
    /// A fast random number; not for secrets.
    fn random(&self) -> u64;
    /// Random bytes, good enough for keys and nonces.
    fn fill_random(&self, bytes: &mut [u8]);
    /// Starts to connect; the stream becomes writable when that has ended, then `Stream::take_error` tells how.
    fn connect(&self, address: SocketAddr) -> io::Result<Stream>;
    /// Listens on an address; port 0 picks one.
    fn listen(&self, address: SocketAddr) -> io::Result<Listener>;
    /// Makes a stream of a connected socket that was made elsewhere. Errors: `Unsupported` where there are no
    /// descriptors.
    fn adopt(&self, _socket: OwnedFd) -> io::Result<Stream> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// As [`crate::Reactor::own_addresses`].
    fn own_addresses(&self) -> Vec<IpAddr> {
        Vec::new()
    }
    /// As [`crate::Reactor::connect_local`].
    fn connect_local(&self, _name: &[u8], _owner: Option<u32>) -> io::Result<Stream> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// As [`crate::Reactor::listen_local`].
    fn listen_local(&self, _name: &[u8]) -> io::Result<Listener> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// The storage in a directory.
    fn storage(&self, directory: &Path) -> io::Result<Rc<dyn Storage>>;
    /// As [`crate::Reactor::open_device`].
    fn device(&self, _path: &Path, _options: &DeviceOptions) -> io::Result<Device> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// What the loop has added to the time of operations on devices so far.
    fn operation_delays(&self) -> OperationDelays {
        OperationDelays::default()
    }
    /// As [`crate::Reactor::buffer_pool`].
    fn buffer_pool(&self, size: usize, count: u32) -> io::Result<BufferPool> {
        BufferPool::new(size, count, |_, _| None)
    }
    /// Who carries out calls on the tree at a path; see [`crate::Reactor::backing_tree`].
    fn backing(&self, _root: &Path) -> io::Result<Box<dyn Backing>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// As [`crate::Reactor::note_entries`].
    fn note_entries(&self, _count: u64) {}
    /// Delivers events that are there, without waiting. True if there were any.
    fn poll(&self) -> bool;
    /// Has those who wait for bytes of busy sockets ask for them ([`crate::busy_poll`]). Returns how many.
    fn look(&self) -> usize {
        0
    }
    /// Receipts so far.
    fn received(&self) -> u64 {
        0
    }
    /// As [`crate::Reactor::bytes_copied`].
    fn bytes_copied(&self) -> u64 {
        0
    }
    /// As [`crate::Reactor::is_core_wanted`].
    fn is_core_wanted(&self) -> bool {
        false
    }
    /// Whether any socket is busy.
    fn has_busy(&self) -> bool {
        false
    }
    /// Has the kernel watch all sockets. False if it did already.
    fn end_looks(&self) -> bool {
        false
    }
    /// Hands what was prepared to the kernel.
    fn submit(&self);
    /// Sleeps until an event of a watched socket is there, a poke comes, or `until` has passed.
    fn wait(&self, until: Option<Nanos>);
    /// Gives the driver the queue whose wakers may poke it awake from other threads.
    fn attach(&self, queue: &Arc<ReadyQueue>);
}
