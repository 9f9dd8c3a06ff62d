//! Append: the home places the bytes at the end of the file, all of them or none.
//!
//! 1. The body arrives in pages of nobody: a stalled sender delays only itself. Then the append has the file's turn, so
//!    that appends, truncates and glimpses go one by one, and the end is known.
//! 2. Bytes for chunks of the home alone: one journal record, and done.
//! 3. Else the other servers are asked for room first; what fails until here leaves nothing but room that was given.
//!    What takes long to come (`Lack`) is waited for outside of the turn, and it begins anew with the end.
//! 4. One record decides: the home's own bytes, the intent, and the body as the only chunk of a file that has no inode
//!    and whose id nobody else was ever given.
//! 5. The others are sent their bytes until each has them. They do a number once (`Record::ChangePut`), so that a late
//!    copy never covers what was written since.
//! 6. One record ends it: the file's new size, which nobody was told before, the outcome, and the end of intent and
//!    body.
//!
//! Where the medium damages the body between 4 and 5 the append is made all the same, as one whose bytes are damaged:
//! the others keep their parts as what does not fit its checksum.
//!
//! The holders are announced since step 3, so whoever asks for the size waits for the turn until step 6.

use crate::backing::{ChunkUse, ranges_of};
use crate::coordination::intents::{Intent, Origin};
use crate::coordination::retry::{Backoff, LastFailure, retry};
use crate::core::{Caller, Core, Failure, Notice, Turn, all, until};
use crate::files::inodes::Inode;
use crate::files::rights::{drop_for_announced, drop_for_contents};
use crate::handlers::bytes::holders::{Rounds, by_server, fill, own_writes, own_writes_soon, read_bytes};
use crate::handlers::bytes::read_write::{WriteEnd, verify_sums};
use crate::journal::records::Record;
use crate::store::{ChunkWrite, Transaction};
use reactor::log::{self, Level};
use reactor::{Class, Disconnected, Incoming, LocalFuture, Nanos};
use std::io::IoSlice;
use std::rc::Rc;
use wire::credentials::Credentials;
use wire::layout::ChunkRange;
use wire::limits::{APPEND_SIZE_MAX, FILE_SIZE_MAX};
use wire::messages::{AppendRequest, Empty, Pieces, ReserveAppendReply, ReserveChunksRequest, WriteChunksRequest};
use wire::{Decode, Encode, FileId, Kind, Layout, Operation, Status};

/// Chunk size of the bodies that wait for their decision.
const STAGE_SIZE: u32 = APPEND_SIZE_MAX as u32;

/// Between two attempts to journal the end of an append.
const COMPLETE_PAUSE_NS: Nanos = 20_000_000;

type AppendResult = Result<Vec<u8>, Failure>;

/// An append that concerns other servers.
#[derive(Clone)]
struct Append {
    /// Given out in the file's turn, so that the numbers of its appends rise.
    number: u64,
    file: FileId,
    /// The file without inode whose only chunk is the body.
    stage: FileId,
    layout: Layout,
    offset: u64,
    size: u32,
    /// Checksum of the bytes as the caller has them, where one is needed.
    sum: Option<u32>,
    /// The body is not what it was any more.
    damaged: bool,
    origin: Option<Origin>,
}

pub async fn append(core: &Rc<Core>, caller: &Caller, incoming: &mut Incoming) -> Result<Vec<u8>, WriteEnd> {
    let AppendRequest { file, sum } = AppendRequest::from_bytes(&incoming.params).map_err(Failure::from)?;
    core.check_home(file)?;
    if core.inode(file)?.attributes.kind != Kind::File {
        return Err(Failure::from(Status::IsDirectory).into());
    }
    let size = incoming.body_size();
    if size == 0 || size > APPEND_SIZE_MAX {
        return Err(Failure::with_text(Status::BadMessage, "an append has 1 to 65536 bytes").into());
    }
    let stage = FileId::new(core.next_number()?, file.home());
    let mut body = core.with_room(|| core.store.reserve_write(stage.0, 0, STAGE_SIZE, 0, size as u32)).await?;
    core.pin_writes([&mut body]).await?;
    incoming.receive_body(&body.places).await.map_err(|Disconnected| WriteEnd::Disconnected)?;
    verify_sums(core, std::slice::from_mut(&mut body), sum.as_slice())?;
    let sum = sum.filter(|_| core.store.keeps_sums());
    core.until_journal_has_room(0, caller.deadline).await?;
    core.await_recalled_entries(caller).await?;
    let mut caller = caller.clone();
    let mut arrived = Arrived { file, stage, size: size as u32, sum, body: Some(body) };
    let (mut rounds, mut _chunk_use) = (Rounds::default(), None);
    loop {
        // However long what it lacked took to come, its own time begins.
        caller.deadline = caller.deadline.max(core.reactor.now() + core.options.timeout);
        let lack;
        // What is here of its chunks stays until it is tried again: else what it lacks next, room, might be made of
        // them, and so without end.
        (lack, _chunk_use) = match append_in_turn(core, &caller, &mut arrived).await? {
            Attempt::Done(reply) => return Ok(reply),
            Attempt::Lacks(lack, chunk_use) => (lack, chunk_use),
        };
        if !matches!(lack, Lack::Room(_)) {
            rounds = Rounds::default();
        }
        match lack {
            Lack::Chunks(append) => {
                core.take_in(file, &append.layout, &append.pieces(), true, caller.deadline).await?;
            }
            Lack::Room(failure) => rounds.next(core, failure).await?,
            Lack::RoomElsewhere(append) => append.reserve(core, true, None).await?,
        }
    }
}

/// An append whose body is here.
struct Arrived {
    file: FileId,
    stage: FileId,
    size: u32,
    sum: Option<u32>,
    /// Until it is appended.
    body: Option<ChunkWrite>,
}

enum Attempt {
    Done(Vec<u8>),
    Lacks(Lack, Option<ChunkUse>),
}

/// What an append lacks may take long to come, and it is not waited for in the file's turn: who comes next would be
/// late because of it, and a flush that is to make room needs the turn itself.
enum Lack {
    /// Room of this server.
    Room(Failure),
    /// Room of the others, or chunks of theirs that are behind alone.
    RoomElsewhere(Append),
    /// Chunks of this server that are behind alone.
    Chunks(Append),
}

async fn append_in_turn(core: &Rc<Core>, caller: &Caller, arrived: &mut Arrived) -> Result<Attempt, Failure> {
    let Arrived { file, stage, size, sum, .. } = *arrived;
    let (turn, number) = take_turn(core, file, caller.deadline).await?;
    let mut offset = end_of(core, file, &turn).await?;
    loop {
        let layout = core.inode(file)?.attributes.layout;
        if offset.checked_add(u64::from(size)).is_none_or(|end| end > FILE_SIZE_MAX) {
            return Err(Status::TooLarge.into());
        }
        let append = Append { number, file, stage, layout, offset, size, sum, damaged: false, origin: caller.origin };
        let pieces = || ranges_of(append.pieces().iter().map(|piece| piece.chunk_index));
        let chunk_use = core.use_chunks(file, true, pieces);
        let is_spread = !append.others(core).is_empty();
        if is_spread && let Err(failure) = append.reserve(core, false, Some(caller.deadline)).await {
            return match failure.status {
                Status::NoSpace if core.backing.is_some() => Ok(Attempt::Lacks(Lack::RoomElsewhere(append), chunk_use)),
                _ => Err(failure),
            };
        }
        if !core.has_pieces(file, &layout, &append.pieces(), true) {
            return Ok(Attempt::Lacks(Lack::Chunks(append), chunk_use));
        }
        core.wait_for_read_leases(file).await;
        // A write to one of the home's own chunks may move the end during each wait.
        let end = core.inode(file)?.attributes.size;
        // And a flush may have put more of a chunk behind than the append replaces.
        if end <= offset && core.has_pieces(file, &layout, &append.pieces(), true) {
            let mut own = match append.own_writes(core) {
                Ok(own) => own,
                Err(failure) => return Ok(Attempt::Lacks(Lack::Room(failure), chunk_use)),
            };
            if !core.is_pinned(&mut own) {
                core.pin_writes(&mut own).await?;
                let end = core.inode(file)?.attributes.size;
                let is_as_before = end <= offset && core.has_pieces(file, &layout, &append.pieces(), true);
                if !is_as_before || core.read_lease_end(file).is_some() || !core.store.writes_stand(&mut own) {
                    offset = end.max(offset);
                    continue;
                }
            }
            let body = arrived.body.take().expect("it is appended once");
            let reply = match is_spread {
                true => append_spread(core, caller, append, body, own, turn).await?,
                false => append_here(core, caller, &append, &body, own)?,
            };
            return Ok(Attempt::Done(reply));
        }
        offset = end.max(offset);
    }
}

/// A file's turn for changes of its size or times, and the number of an append in it. Who gives the turn back gives the
/// number up with it: the others take what has a number below the last one for done.
async fn take_turn(core: &Rc<Core>, file: FileId, deadline: Nanos) -> Result<(Turn, u64), Failure> {
    let turn = core.turns.take(file.0);
    let turn = core.wait_until(deadline, "another change of the file's size or times takes long", turn).await?;
    Ok((turn, core.next_number()?))
}

/// Where the file ends now.
async fn end_of(core: &Rc<Core>, file: FileId, turn: &Turn) -> Result<u64, Failure> {
    if !core.inode(file)?.is_announced() {
        return Ok(core.inode(file)?.attributes.size);
    }
    let glimpse = core.glimpse_in_turn(file, false, turn).await?;
    Ok(core.inode(file)?.attributes.size.max(glimpse.size))
}

/// The inode after a write that ends at `end`, by a user who may not be known any more.
pub fn grown(core: &Core, mut inode: Inode, end: u64, who: Option<&Credentials>) -> Inode {
    let attributes = &mut inode.attributes;
    match who {
        Some(who) => drop_for_contents(attributes, who),
        None => drop_for_announced(attributes),
    }
    attributes.size = attributes.size.max(end);
    attributes.mtime = core.clock.time();
    attributes.ctime = attributes.mtime;
    attributes.version += 1;
    inode
}

fn append_here(
    core: &Rc<Core>,
    caller: &Caller,
    append: &Append,
    body: &ChunkWrite,
    own: Vec<ChunkWrite>,
) -> AppendResult {
    let mut transaction = core.store.begin();
    append.fill_own(core, &append.bytes_of(body)?, own, &mut transaction)?;
    let inode = grown(core, core.inode(append.file)?, append.end(), Some(caller.credentials()));
    let reply = append.reply();
    core.commit(transaction, [Record::InodePut(inode), caller.outcome(&reply)])?;
    Ok(reply)
}

async fn append_spread(
    core: &Rc<Core>,
    caller: &Caller,
    append: Append,
    body: ChunkWrite,
    own: Vec<ChunkWrite>,
    turn: Turn,
) -> AppendResult {
    let bytes = append.bytes_of(&body)?;
    let mut transaction = core.store.begin();
    core.store.commit_write(body, &mut transaction, 0)?;
    append.fill_own(core, &bytes, own, &mut transaction)?;
    core.commit(transaction, [Record::IntentPut { number: append.number, intent: append.intent() }])?;
    let (done, last_failure) = (Notice::new(), LastFailure::default());
    drive(core, append, bytes, turn, done.clone(), last_failure.clone());
    match until(&core.reactor, caller.deadline, done.wait()).await {
        Some(result) => result,
        None => {
            let last_failure = last_failure.borrow_mut().take();
            Err(last_failure
                .unwrap_or_else(|| Failure::with_text(Status::TimedOut, "servers with chunks did not answer")))
        }
    }
}

impl Append {
    fn end(&self) -> u64 {
        self.offset + u64::from(self.size)
    }

    /// The bytes of its body, which has arrived. Errors: `Damaged`.
    fn bytes_of(&self, write: &ChunkWrite) -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::new();
        for place in &write.places {
            let start = bytes.len();
            bytes.resize(start + place.size as usize, 0);
            place.region.read(place.offset, &mut bytes[start..]);
        }
        if self.sum.is_some_and(|sum| sum != crc32c::crc32c(&bytes)) {
            return Err(Failure::with_text(Status::Damaged, "bytes of an append have changed before they were stored"));
        }
        Ok(bytes)
    }

    fn pieces(&self) -> Vec<ChunkRange> {
        self.layout.pieces(self.offset, u64::from(self.size)).collect()
    }

    /// The pieces that other servers have, by server.
    fn others(&self, core: &Core) -> Vec<(u32, Vec<ChunkRange>)> {
        let mut shares = by_server(core, self.file, &self.layout, &self.pieces());
        shares.retain(|(server, _)| *server != core.index);
        shares
    }

    /// The pieces that a server has, each with its bytes.
    fn parts_of<'a>(&self, core: &Core, server: u32, bytes: &'a [u8]) -> Vec<(ChunkRange, &'a [u8])> {
        let mut rest = bytes;
        let mut parts = Vec::new();
        for piece in self.pieces() {
            let (part, tail) = rest.split_at(piece.size as usize);
            rest = tail;
            if core.cluster.chunk_server(self.file, &self.layout, piece.chunk_index) == server {
                parts.push((piece, part));
            }
        }
        parts
    }

    /// Room for the home's own bytes.
    fn own_writes(&self, core: &Core) -> Result<Vec<ChunkWrite>, Failure> {
        let is_own =
            |piece: &ChunkRange| core.cluster.chunk_server(self.file, &self.layout, piece.chunk_index) == core.index;
        let pieces: Vec<ChunkRange> = self.pieces().into_iter().filter(is_own).collect();
        own_writes(core, self.file, &self.layout, &pieces)
    }

    /// Puts the home's own bytes where `own_writes` found room, and that into the transaction.
    fn fill_own(
        &self,
        core: &Core,
        bytes: &[u8],
        own: Vec<ChunkWrite>,
        transaction: &mut Transaction,
    ) -> Result<(), Failure> {
        for ((_, part), mut write) in self.parts_of(core, core.index, bytes).into_iter().zip(own) {
            fill(&write, part);
            self.sum.inspect(|_| write.keep_sum(crc32c::crc32c(part)));
            core.store.commit_write(write, transaction, core.clock.time())?;
        }
        Ok(())
    }

    fn reply(&self) -> Vec<u8> {
        ReserveAppendReply { offset: self.offset }.to_bytes()
    }

    fn intent(&self) -> Intent {
        let Append { file, stage, layout, offset, size, origin, .. } = *self;
        Intent::Append { file, stage, layout, offset, size, origin }
    }

    /// Asks all other servers at once for room, which stays theirs to give to a later append if this one fails. See
    /// [`ReserveChunksRequest`] for patience. Without a deadline it ends when one of them is silent.
    async fn reserve(&self, core: &Rc<Core>, patient: bool, deadline: Option<Nanos>) -> Result<(), Failure> {
        let ask = |(server, pieces): (u32, Vec<ChunkRange>)| {
            let (core, file, layout) = (core.clone(), self.file, self.layout);
            Box::pin(async move {
                let request = ReserveChunksRequest { file, layout, pieces: Pieces(pieces), patient };
                core.peers.call::<Empty>(server, Operation::ReserveChunks, &request, deadline).await.map(drop)
            }) as LocalFuture<Result<(), Failure>>
        };
        all(self.others(core).into_iter().map(ask).collect()).await.into_iter().collect()
    }

    /// Sends a server its bytes until it has them. False when this server stops before.
    async fn send(self, core: Rc<Core>, server: u32, bytes: Rc<Vec<u8>>, last_failure: LastFailure) -> bool {
        let parts = self.parts_of(&core, server, &bytes);
        let pieces = Pieces(parts.iter().map(|(piece, _)| *piece).collect());
        let body: Vec<IoSlice<'_>> = parts.iter().map(|(_, part)| IoSlice::new(part)).collect();
        let sum_of = |part: &[u8]| if self.damaged { !crc32c::crc32c(part) } else { crc32c::crc32c(part) };
        let sums = parts.iter().map(|(_, part)| sum_of(part)).collect();
        let Append { file, layout, number, damaged, .. } = self;
        let request = WriteChunksRequest { file, layout, number, pieces, sums, damaged };
        retry(&core, Backoff::default(), Some(&last_failure), async || {
            let sent = core.peers.call_with_body::<Empty>(server, Operation::WriteChunks, &request, &body).await;
            match sent {
                // The file was removed meanwhile, and all that was written of it.
                Err(failure) if failure.status == Status::StaleFile => Ok(()),
                sent => sent.map(drop),
            }
        })
        .await
    }

    /// The file may have been removed meanwhile; the bytes were in it before, and that is what the caller is told.
    fn complete(&self, core: &Rc<Core>) -> Result<(), Failure> {
        let reply = self.reply();
        let inode = core.inode(self.file).map(|inode| Record::InodePut(grown(core, inode, self.end(), None)));
        let outcome = Record::outcome(self.origin, &reply);
        let mut transaction = core.store.begin();
        core.store.reap_file(self.stage.0, &mut transaction);
        core.commit(transaction, [inode.unwrap_or(Record::Nothing), Record::IntentDelete(self.number), outcome])
    }
}

fn drive(
    core: &Rc<Core>,
    append: Append,
    bytes: Vec<u8>,
    turn: Turn,
    done: Notice<AppendResult>,
    last_failure: LastFailure,
) {
    let core = core.clone();
    core.reactor.clone().spawn(Class::Metadata, async move {
        let bytes = Rc::new(bytes);
        let sent = append.others(&core).into_iter().map(|(server, _)| {
            let sending = append.clone().send(core.clone(), server, bytes.clone(), last_failure.clone());
            Box::pin(sending) as LocalFuture<bool>
        });
        if !all(sent.collect()).await.into_iter().all(|answered| answered) {
            // This server stops, and goes on after its next start. Until then the turn is not passed on.
            std::future::pending::<()>().await;
        }
        if !retry(&core, Backoff::steady(COMPLETE_PAUSE_NS), None, async || append.complete(&core)).await {
            std::future::pending::<()>().await;
        }
        drop(turn);
        done.tell(Ok(append.reply()));
    });
}

/// Goes on with an append after a restart; who sends its request again is answered when it is done.
pub fn resume_append(core: &Rc<Core>, number: u64, intent: Intent) {
    let Intent::Append { file, stage, layout, offset, size, origin } = intent else {
        unreachable!("the caller matched the kind of intent");
    };
    let Some(turn) = core.turns.try_take(file.0) else {
        unreachable!("a file has one truncate or append under way, and nothing else runs at recovery");
    };
    if let Some(origin) = origin {
        core.tables.borrow_mut().sessions.resume(origin);
    }
    let mut append = Append { number, file, stage, layout, offset, size, sum: None, damaged: false, origin };
    let (core, done) = (core.clone(), Notice::new());
    core.reactor.clone().spawn(Class::Metadata, async move {
        let bytes = match read_bytes(&core, stage, 0, 0, size).await {
            Ok(bytes) => bytes,
            // Its checksum does not fit; without checksums nothing is refused.
            Err(failure) => {
                tell_damage(&append, &failure);
                append.damaged = true;
                vec![0; size as usize]
            }
        };
        drive(&core, append, bytes, turn, done.clone(), LastFailure::default());
        if let Some(origin) = origin {
            let result = done.wait().await;
            crate::sessions::service::conclude(&core, origin, &result);
        }
    });
}

fn tell_damage(append: &Append, failure: &Failure) {
    let words =
        "bytes of an append went bad before all servers had them: reads of them fail until they are overwritten";
    let (file, offset, size) = (format!("{:x}", append.file.0), append.offset, append.size);
    log::event(
        Level::Error,
        "append-damaged",
        words,
        &[("file", &file), ("offset", &offset), ("size", &size), ("reason", &failure.status)],
    );
}

/// `WriteChunks`, at a server with chunks of an append.
pub async fn write_chunks(core: &Rc<Core>, caller: &Caller, incoming: &mut Incoming) -> Result<Vec<u8>, WriteEnd> {
    let request = WriteChunksRequest::from_bytes(&incoming.params).map_err(Failure::from)?;
    let WriteChunksRequest { file, layout, number, pieces, sums, damaged } = request;
    crate::handlers::bytes::holders::check_from_home(core, caller, file, &layout, &pieces.0)?;
    let size: usize = pieces.0.iter().map(|piece| piece.size as usize).sum();
    if size != incoming.body_size() {
        return Err(Failure::with_text(Status::BadMessage, "the body is not as long as its pieces").into());
    }
    let done = Empty {}.to_bytes();
    if core.is_change_done(file, number) {
        return Ok(done);
    }
    let mut writes = own_writes_soon(core, file, &layout, &pieces.0).await?;
    let places: Vec<_> = writes.iter().flat_map(|write| write.places.iter().cloned()).collect();
    incoming.receive_body(&places).await.map_err(|Disconnected| WriteEnd::Disconnected)?;
    drop(places);
    if damaged && core.store.keeps_sums() {
        writes.iter_mut().zip(&sums).for_each(|(write, sum)| write.keep_sum(*sum));
    } else {
        verify_sums(core, &mut writes, &sums)?;
    }
    core.until_writes_stand(file, &mut writes, caller.deadline).await?;
    // From here to the commit nothing is awaited.
    if core.is_change_done(file, number) {
        return Ok(done);
    }
    let now = core.clock.time();
    let mut transaction = core.store.begin();
    for write in writes {
        core.store.commit_write(write, &mut transaction, now)?;
    }
    core.commit(transaction, [Record::ChangePut { file, number }])?;
    core.release_chunks(file, &pieces.0);
    Ok(done)
}
