//! Changes of rights on directories, which all servers and clients have to know of before they are confirmed: chmod and
//! chown of a directory that take something away from someone, or change what is created in it.
//!
//! Invariant: the change and the intent are one journal record; the outcome is journalled when all servers know. A
//! restart goes on with the intent, and who sends its request again waits for it.

use crate::coordination::intents::{Intent, Origin};
use crate::coordination::retry::{Backoff, retry};
use crate::coordination::settle;
use crate::core::{Caller, Core, Failure, Notice};
use crate::handlers::directories::sequencer::have_all_know;
use crate::journal::records::Record;
use crate::store::Transaction;
use reactor::Class;
use std::rc::Rc;
use wire::FileId;
use wire::messages::tree_kinds;

/// Journals `records`, which change rights on a directory whose home this is, and returns `reply` when all servers know
/// of it. Errors: `TimedOut` when that does not come about before the caller gives up; it goes on nevertheless.
pub async fn change_rights<'a>(
    core: &Rc<Core>,
    caller: &Caller,
    directory: FileId,
    transaction: Transaction,
    mut records: Vec<Record<'a>>,
    reply: Vec<u8>,
) -> Result<Vec<u8>, Failure> {
    let number = core.next_number()?;
    let intent = Intent::Rights { directory, origin: caller.origin, reply: reply.clone() };
    records.push(Record::IntentPut { number, intent });
    core.commit(transaction, records)?;
    let done = Notice::new();
    drive(core, number, directory, caller.origin, reply, done.clone());
    core.wait_until(caller.deadline, "not all servers could be told of the new rights yet", done.wait()).await
}

/// Has the sequencer tell all servers, as often as it takes.
fn drive(
    core: &Rc<Core>,
    number: u64,
    directory: FileId,
    origin: Option<Origin>,
    reply: Vec<u8>,
    done: Notice<Vec<u8>>,
) {
    let core = core.clone();
    core.reactor.clone().spawn(Class::Metadata, async move {
        let attempt = async || have_all_know(&core, directory, tree_kinds::RIGHTS, 0).await;
        if !retry(&core, Backoff::default(), None, attempt).await {
            return;
        }
        let outcome = Record::outcome(origin, &reply);
        if core.change([Record::IntentDelete(number), outcome]).is_err() {
            settle(&core, number).await;
        }
        done.tell(reply);
    });
}

/// Goes on after a restart.
pub fn resume_rights(core: &Rc<Core>, number: u64, directory: FileId, origin: Option<Origin>, reply: Vec<u8>) {
    let done = Notice::new();
    if let Some(origin) = origin {
        core.tables.borrow_mut().sessions.resume(origin);
    }
    drive(core, number, directory, origin, reply, done.clone());
    if let Some(origin) = origin {
        let core = core.clone();
        core.reactor.clone().spawn(Class::Metadata, async move {
            let reply = done.wait().await;
            crate::sessions::service::conclude(&core, origin, &Ok(reply));
        });
    }
}
