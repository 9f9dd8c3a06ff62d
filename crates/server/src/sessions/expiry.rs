//! Sessions come and go: each is journalled before its first request, and forgotten when its client says that it has
//! ended, or once it has been without a connection for the time of grace; that of a contact, which may be silent over a
//! connection that stands, once it was not heard of for so long. Its connections end then, so whoever is forgotten is
//! told so by the next welcome.

use crate::core::{Core, Failure};
use crate::journal::records::Record;
use reactor::log::{self, Level};
use reactor::{Class, Nanos};
use std::rc::Rc;

/// Shortest time between two looks for idle sessions.
const EXPIRY_PAUSE_NS: Nanos = 100_000_000;

impl Core {
    /// Journals a session before its first request, so that a resend after a restart finds it known. `welcomes` is what
    /// it had received by then.
    pub fn add_session(self: &Rc<Self>, session: u64, welcomes: u64) -> Result<(), Failure> {
        let room = self.tables.borrow().sessions.room()?;
        let gone = room.map_or(Record::Nothing, Record::SessionDelete);
        self.change([gone, Record::SessionPut { session, born: welcomes }])?;
        room.into_iter().for_each(|forgotten| self.end_connections(forgotten));
        self.reap_orphans();
        self.release_remote_opens();
        Ok(())
    }

    /// Forgets a session whose client has said that it ended. Where something is under way for it still, or the journal
    /// has no room, that waits for the time of grace.
    pub fn session_ended(self: &Rc<Self>, session: u64) {
        let is_idle = self.tables.borrow().sessions.is_idle(session);
        if is_idle && self.change([Record::SessionDelete(session)]).is_ok() {
            self.reap_orphans();
            self.release_remote_opens();
        }
    }

    /// Ends what connections there are of a session that was forgotten: a contact's.
    fn end_connections(&self, session: u64) {
        if let Some(handle) = self.life.handle() {
            handle.end_session(session);
        }
    }
}

/// Forgets sessions that stay without connection, for as long as there are any.
pub fn start_expiry(core: &Rc<Core>) {
    if !core.background.expiry.begin() {
        return;
    }
    let core = core.clone();
    core.reactor.clone().spawn(Class::Background, async move {
        let grace = core.options.session_grace;
        loop {
            let now = core.reactor.now();
            let (gone, next) = match now.checked_sub(grace) {
                Some(before) => core.tables.borrow().sessions.expired(before),
                None => (Vec::new(), Some(0)),
            };
            for session in gone {
                let words = "a client did not come back in time; its locks and open files are given up";
                log::event(Level::Info, "session-forgotten", words, &[("session", &format_args!("{session:016x}"))]);
                // Journalled or not, a session that can't be forgotten now is tried again with the next one.
                if core.change([Record::SessionDelete(session)]).is_err() {
                    break;
                }
                core.end_connections(session);
            }
            core.reap_orphans();
            core.release_remote_opens();
            let Some(next) = next else { break };
            core.reactor.sleep_until((next + grace).max(now + EXPIRY_PAUSE_NS)).await;
        }
        core.background.expiry.end();
    });
}
