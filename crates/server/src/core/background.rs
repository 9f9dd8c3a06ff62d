//! Work that a server does beside requests, each kind by one task at a time.

use std::cell::Cell;

/// Whether the task of some work is at it.
#[derive(Default)]
pub struct OneTask(Cell<bool>);

impl OneTask {
    /// True when nobody is at it: the caller is from now on, until `end`.
    pub fn begin(&self) -> bool {
        !self.0.replace(true)
    }

    pub fn end(&self) {
        self.0.set(false);
    }
}

/// The kinds of it.
#[derive(Default)]
pub struct BackgroundTasks {
    /// Ends idle sessions (`sessions::expiry`).
    pub expiry: OneTask,
    /// Has all clients forget what they have cached of directories (`tree::invalidation`).
    pub invalidation: OneTask,
    /// Faults space in (`server::prefault`).
    pub prefault: OneTask,
    /// Ends the registered buffers of those that have gone (`handlers::bytes::registered_buffers`).
    pub buffers: OneTask,
}
