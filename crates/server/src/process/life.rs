//! One life of a server, from its start to its end: whether it serves, stops, or was asked to.

use crate::core::Notice;
use reactor::{Incoming, Nanos, Reactor, ServerHandle};
use std::cell::{Cell, RefCell};

/// See the module.
pub struct Life {
    started: Nanos,
    started_at: i64,
    /// The serving side, once it serves.
    handle: RefCell<Option<ServerHandle>>,
    shutdown_request: Notice<()>,
    /// The session of who asked for that last; 0 for nobody.
    shutdown_session: Cell<u64>,
    stopping: Cell<bool>,
    /// Requests of clients that came since this server stops: nobody answers them.
    left_requests: RefCell<Vec<Incoming>>,
}

impl Life {
    pub fn new(reactor: &Reactor) -> Life {
        Life {
            started: reactor.now(),
            started_at: reactor.wall_clock(),
            handle: RefCell::default(),
            shutdown_request: Notice::new(),
            shutdown_session: Cell::new(0),
            stopping: Cell::new(false),
            left_requests: RefCell::default(),
        }
    }

    /// When this server was started.
    pub fn started(&self) -> Nanos {
        self.started
    }

    /// The same in nanoseconds since the epoch, by the clock of then.
    pub fn started_at(&self) -> i64 {
        self.started_at
    }

    /// Begins to serve.
    pub fn serve(&self, handle: ServerHandle) {
        self.handle.replace(Some(handle));
    }

    /// Nobody has the server any more; what is under way ends by itself.
    pub fn forget_handle(&self) {
        drop(self.handle.take());
    }

    pub fn is_serving(&self) -> bool {
        self.handle.borrow().is_some()
    }

    /// The serving side, while it serves.
    pub fn handle(&self) -> Option<ServerHandle> {
        self.handle.borrow().clone()
    }

    /// Ends serving: the caller closes what was serving, or lets go of it.
    pub fn end_serving(&self) -> Option<ServerHandle> {
        self.handle.take()
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Starts no more requests of clients from now on. False when it has been stopped before.
    pub fn stop(&self) -> bool {
        !self.stopping.replace(true)
    }

    /// Leaves a request to the next server of this place: it ends with its connection, and the client asks again.
    pub fn leave(&self, incoming: Incoming) {
        self.left_requests.borrow_mut().push(incoming);
    }

    /// The requests that were left.
    pub fn take_left_requests(&self) -> Vec<Incoming> {
        self.left_requests.take()
    }

    /// A peer asks the server to shut down.
    pub fn request_shutdown(&self, session: u64) {
        self.shutdown_session.set(session);
        self.shutdown_request.tell(());
    }

    /// The session of the peer that has done so last.
    pub fn shutdown_session(&self) -> Option<u64> {
        Some(self.shutdown_session.get()).filter(|session| *session != 0)
    }

    /// Resolves when a peer has done so.
    pub async fn wait_for_shutdown_request(&self) {
        self.shutdown_request.wait().await;
    }
}
