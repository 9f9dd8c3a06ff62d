//! Truncate (by itself and by Open), and ReserveAppend.
//!
//! A truncate of a file with chunks elsewhere is journalled as an intent before any chunk is cut, holds the file's turn
//! until every holder has answered, and is acknowledged only then: a write that comes after the acknowledgement is
//! never cut. After a restart of the home it goes on, and a resend of its request waits for it instead of cutting
//! again.

use crate::coordination::ask_all;
use crate::coordination::intents::{Intent, Origin};
use crate::coordination::retry::LastFailure;
use crate::core::{Caller, Core, Failure, Notice, Turn, until};
use crate::files::inodes::Inode;
use crate::files::rights::drop_for_contents;
use crate::handlers::{EncodedParams, Progress, later};
use crate::journal::records::Record;
use reactor::Class;
use std::rc::Rc;
use wire::credentials::access;
use wire::limits::FILE_SIZE_MAX;
use wire::messages::{
    EntryReply, OpenReply, ReserveAppendReply, ReserveAppendRequest, TruncateChunksRequest, TruncateRequest,
};
use wire::{Attributes, Decode, Encode, FileId, Kind, Layout, Operation, Status};

pub fn truncate_request(
    core: &Rc<Core>,
    caller: &Caller,
    params: &[u8],
    reply: &mut Vec<u8>,
) -> Result<Progress, Failure> {
    let request = TruncateRequest::from_bytes(params)?;
    core.check_home(request.file)?;
    if request.size > FILE_SIZE_MAX {
        return Err(Status::TooLarge.into());
    }
    if request.check && !caller.may(&core.inode(request.file)?.attributes, access::WRITE) {
        return Err(Status::AccessDenied.into());
    }
    if let Some(leased) = core.read_lease_end(request.file) {
        return Ok(Progress::Blocked(leased));
    }
    truncate(core, caller, request.file, request.size, None, reply)
}

/// Sets a file's size; with `for_open`, the number of an open, the reply is that of the open. The caller has just seen
/// that nobody has a lease of the contents.
pub fn truncate(
    core: &Rc<Core>,
    caller: &Caller,
    file: FileId,
    size: u64,
    for_open: Option<u64>,
    reply: &mut Vec<u8>,
) -> Result<Progress, Failure> {
    let inode = core.inode(file)?;
    match inode.attributes.kind {
        Kind::File => {}
        Kind::Directory => return Err(Status::IsDirectory.into()),
        _ => return Err(Status::Invalid.into()),
    }
    if inode.holders().is_empty() && !core.turns.is_taken(file.0) {
        let (transaction, inode) = cut(core, caller, inode, size);
        encode_reply(&inode.attributes, for_open, reply);
        core.commit(transaction, [Record::InodePut(inode), caller.outcome(reply)])?;
        return Ok(Progress::Done);
    }
    let (core, caller) = (core.clone(), caller.clone());
    later(async move { Ok(EncodedParams(truncate_spread(&core, &caller, file, size, for_open).await?)) })
}

/// The home's part of a truncate.
fn cut(core: &Core, caller: &Caller, mut inode: Inode, size: u64) -> (crate::store::Transaction, Inode) {
    let attributes = &mut inode.attributes;
    drop_for_contents(attributes, caller.credentials());
    attributes.size = size;
    attributes.truncate_generation += 1;
    attributes.mtime = core.clock.time();
    attributes.ctime = attributes.mtime;
    attributes.version += 1;
    let mut transaction = core.store.begin();
    if core.store.share(attributes.id.0).is_some() {
        core.store.truncate_file(attributes.id.0, size, attributes.truncate_generation, &mut transaction);
    }
    (transaction, inode)
}

fn encode_reply(attributes: &Attributes, for_open: Option<u64>, reply: &mut Vec<u8>) {
    let attributes = attributes.clone();
    match for_open {
        Some(open_number) => {
            OpenReply { attributes, created: false, open_number, places: None, contents: None }.encode(reply)
        }
        None => EntryReply { attributes, target: b"" }.encode(reply),
    }
}

/// A truncate with holders elsewhere that is under way.
struct Truncation {
    number: u64,
    file: FileId,
    layout: Layout,
    size: u64,
    generation: u32,
    holders: Vec<u32>,
    origin: Option<Origin>,
    reply: Vec<u8>,
}

type TruncationResult = Result<Vec<u8>, Failure>;

async fn truncate_spread(
    core: &Rc<Core>,
    caller: &Caller,
    file: FileId,
    size: u64,
    for_open: Option<u64>,
) -> TruncationResult {
    let turn = core.turns.take(file.0);
    let turn = core.wait_until(caller.deadline, "another change of the file's size or times takes long", turn).await?;
    core.wait_for_read_leases(file).await;
    let (transaction, inode) = cut(core, caller, core.inode(file)?, size);
    let number = core.next_number()?;
    let attributes = &inode.attributes;
    let mut reply = Vec::new();
    encode_reply(attributes, for_open, &mut reply);
    let cut = Truncation {
        number,
        file,
        layout: attributes.layout,
        size,
        generation: attributes.truncate_generation,
        holders: inode.holders().to_vec(),
        origin: caller.origin,
        reply,
    };
    core.commit(transaction, [Record::InodePut(inode), Record::IntentPut { number, intent: cut.intent() }])?;
    let (done, last_failure) = (Notice::new(), LastFailure::default());
    drive(core, cut, turn, done.clone(), last_failure.clone());
    match until(&core.reactor, caller.deadline, done.wait()).await {
        Some(result) => result,
        None => {
            let last_failure = last_failure.borrow_mut().take();
            Err(last_failure
                .unwrap_or_else(|| Failure::with_text(Status::TimedOut, "servers with chunks did not answer")))
        }
    }
}

impl Truncation {
    fn intent(&self) -> Intent {
        Intent::Truncate {
            file: self.file,
            layout: self.layout,
            size: self.size,
            generation: self.generation,
            holders: self.holders.clone(),
            origin: self.origin,
            reply: self.reply.clone(),
        }
    }
}

fn drive(core: &Rc<Core>, cut: Truncation, turn: Turn, done: Notice<TruncationResult>, last_failure: LastFailure) {
    let core = core.clone();
    core.reactor.clone().spawn(Class::Metadata, async move {
        let request =
            TruncateChunksRequest { file: cut.file, layout: cut.layout, size: cut.size, generation: cut.generation };
        if !ask_all(&core, cut.holders.clone(), Operation::TruncateChunks, &request, Some(last_failure)).await {
            // This server stops, and goes on with the truncate after its next start. Until then the turn is not passed
            // on: a second truncate would stand beside this one in the journal, and a glimpse would find what was cut.
            std::future::pending::<()>().await;
        }
        let result = complete(&core, &cut).await;
        drop(turn);
        done.tell(result);
    });
}

/// The file may have been removed meanwhile; it was cut before, and that is what the caller is told.
async fn complete(core: &Rc<Core>, cut: &Truncation) -> TruncationResult {
    let outcome = Record::outcome(cut.origin, &cut.reply);
    if core.change([Record::IntentDelete(cut.number), outcome]).is_err() {
        crate::coordination::settle(core, cut.number).await;
    }
    Ok(cut.reply.clone())
}

/// Goes on with a truncate after a restart; who sends its request again is answered when it is done.
pub fn resume_truncate(core: &Rc<Core>, number: u64, intent: Intent) {
    let Intent::Truncate { file, layout, size, generation, holders, origin, reply } = intent else {
        unreachable!("the caller matched the kind of intent");
    };
    let Some(turn) = core.turns.try_take(file.0) else {
        unreachable!("a file has one truncate under way, and nothing else runs at recovery");
    };
    if let Some(origin) = origin {
        core.tables.borrow_mut().sessions.resume(origin);
        // Only the reply of an open is one; its caller does not know yet that it has the file open.
        crate::handlers::reopened(core, origin.session, &reply);
    }
    let done = Notice::new();
    let cut = Truncation { number, file, layout, size, generation, holders, origin, reply };
    drive(core, cut, turn, done.clone(), LastFailure::default());
    if let Some(origin) = origin {
        let core = core.clone();
        core.reactor.clone().spawn(Class::Metadata, async move {
            let result = done.wait().await;
            crate::sessions::service::conclude(&core, origin, &result);
        });
    }
}

/// Moves the end of a file by `size` and answers where it was.
pub fn reserve_append(
    core: &Rc<Core>,
    caller: &Caller,
    params: &[u8],
    reply: &mut Vec<u8>,
) -> Result<Progress, Failure> {
    let request = ReserveAppendRequest::from_bytes(params)?;
    core.check_home(request.file)?;
    let inode = core.inode(request.file)?;
    if inode.attributes.kind != Kind::File {
        return Err(Status::IsDirectory.into());
    }
    if let Some(leased) = core.read_lease_end(request.file) {
        return Ok(Progress::Blocked(leased));
    }
    if !inode.is_announced() && !core.turns.is_taken(request.file.0) {
        reserve(core, caller, inode, request.size, reply)?;
        return Ok(Progress::Done);
    }
    let (core, caller) = (core.clone(), caller.clone());
    later(async move {
        let turn = core.turns.take(request.file.0);
        let turn =
            core.wait_until(caller.deadline, "another change of the file's size or times takes long", turn).await?;
        let glimpse = core.glimpse_in_turn(request.file, false, &turn).await?;
        core.wait_for_read_leases(request.file).await;
        let mut inode = core.inode(request.file)?;
        inode.attributes.size = inode.attributes.size.max(glimpse.size);
        let mut bytes = Vec::new();
        reserve(&core, &caller, inode, request.size, &mut bytes)?;
        Ok(EncodedParams(bytes))
    })
}

fn reserve(core: &Rc<Core>, caller: &Caller, mut inode: Inode, size: u64, reply: &mut Vec<u8>) -> Result<(), Failure> {
    let offset = inode.attributes.size;
    let end = offset.checked_add(size).filter(|end| *end <= FILE_SIZE_MAX).ok_or(Status::TooLarge)?;
    drop_for_contents(&mut inode.attributes, caller.credentials());
    inode.attributes.size = end;
    inode.attributes.mtime = core.clock.time();
    inode.attributes.ctime = inode.attributes.mtime;
    inode.attributes.version += 1;
    ReserveAppendReply { offset }.encode(reply);
    core.change([Record::InodePut(inode), caller.outcome(reply)])
}
