//! What an operation has read in memory that a server shares with its machine, each with its version, and the
//! one place that says whether all of it is so still: [`Snapshot::holds`].
//!
//! This is optimistic concurrency control (Kung and Robinson, "On Optimistic Methods for Concurrency Control", ACM TODS
//! 6(2), 1981; Tu et al., "Speedy Transactions in Multicore In-Memory Databases", SOSP 2013, known as Silo): an
//! operation reads without asking anybody, each part with its version; it validates all of them; and only then it uses
//! what it has read, or submits a change that rests on it.
//!
//! | what is read | its version | who changes it |
//! |---|---|---|
//! | a cell: name, inode, permission, tree | the cell's | the server, before what the cell is about |
//! | the absence of a name | those of the cells that it could be in | the server, before anybody knows of the name |
//! | that no write to a file waits | the number of the last write submitted to the file | clients |
//! | that a submission of this client waits | how many submissions the server has taken up | the server |
//! | bytes of the store | the stamps of their pages | the server, before the bytes |
//! | that the server looks at a hazard pointer | the number of the server's life | the server |
//! | the mapping itself | whether its connection has ended | this client |
//!
//! Invariants
//! 1. Nothing that was read counts before `holds` has said so. Nothing is awaited between that and the use of it, and
//!    what is submitted is submitted only if the server has done nothing since it was begun.
//! 2. Whether a name or a file is locked, or written to, is looked at before its cell (`is_free`). So a change that was
//!    submitted before either keeps the look from happening, or was taken up, and the cell tells of it.
//! 3. What keeps others from changing something (an intent lock, the number of a write, a hazard pointer) is there
//!    before `holds` looks (`begin`, `hold`), so that of two clients at least one sees the other one.
//! 4. In simulations others do something after each step, as the processors of a real machine would. These pauses are
//!    in this file alone.

use crate::servers::{Common, Servers};
use crate::shared_memory::short_circuit::{BytesPart, ChunkPlaces, Proof};
use reactor::{CellPlace, HazardPointer, Nanos, PendingSubmission, StoreMapping, Validation};
use std::rc::Rc;
use wire::FileId;
use wire::layout::ChunkRange;
use wire::submission::{Change, Submission, WriteOrder, Written, file_intent_lock};

/// Observations that a snapshot has at most, beside a hazard pointer.
const OBSERVATIONS_MAX: usize = 9;

/// No server has this one.
const LIFE_UNKNOWN: u64 = 0;
/// No cell that is whole has an odd version.
const VERSION_NEVER: u64 = 1;

/// Longest pauses between two steps in simulations: what others do meanwhile, and now and then somebody who is not let
/// run for long, and, in a copy to pages of a server, once in a while one who is stopped for so long that his server
/// has been started again meanwhile.
const PAUSE_NS: Nanos = 50_000;
const REST_NS: Nanos = 20_000_000;
const STOP_NS: Nanos = 1_000_000_000;
/// Pauses in a copy to pages of a server.
pub(crate) const COPY_PAUSES: usize = 2;

/// Something that was read, with its version.
#[derive(Clone, Copy)]
enum Observation<'p> {
    /// The cell that begins at this offset had this version.
    Cell(u64, u64),
    /// The same of a cell in which something is missing.
    Absence(u64, u64),
    /// No write was under way to the files with this intent lock.
    Unwritten(usize),
    /// The server had not taken up this submission of the client's.
    Waiting(u64, u64),
    /// Bytes of a chunk lay at these places.
    Bytes(&'p ChunkPlaces, &'p ChunkRange),
}

impl Observation<'_> {
    /// Whether it is so still.
    fn holds(&self, mapping: &StoreMapping) -> bool {
        match *self {
            Observation::Cell(offset, version) => {
                mapping.trusts(Validation::Cell) || mapping.is_same_cell(CellPlace { offset, words: 0 }, version)
            }
            Observation::Absence(offset, version) => {
                mapping.trusts(Validation::Absence) || mapping.is_same_cell(CellPlace { offset, words: 0 }, version)
            }
            Observation::Unwritten(file) => mapping.trusts(Validation::Unwritten) || !mapping.is_written(file),
            Observation::Waiting(owner, number) => {
                mapping.trusts(Validation::Waiting) || mapping.is_waiting(owner, number)
            }
            Observation::Bytes(places, piece) => {
                let is_unchanged = |part: BytesPart| mapping.is_unchanged(part.at, part.size as u64, places.number());
                mapping.trusts(Validation::Bytes) || places.parts(piece).all(is_unchanged)
            }
        }
    }
}

/// See the module. Nothing of it outlives the operation, but for a cell that is kept ([`CellVersion`]).
pub(crate) struct Snapshot<'s> {
    servers: &'s Servers,
    mapping: Rc<StoreMapping>,
    observations: [Option<Observation<'s>>; OBSERVATIONS_MAX],
    observation_count: usize,
    /// What the server is to keep for us, and the life in which it has to look at that.
    hazard: Option<HazardPointer>,
    life: u64,
}

impl<'s> Snapshot<'s> {
    /// A snapshot without observations, of what a server lends over the connection of a mapping.
    pub fn new(servers: &'s Servers, mapping: Rc<StoreMapping>) -> Snapshot<'s> {
        let observations = [None; OBSERVATIONS_MAX];
        Snapshot { servers, mapping, observations, observation_count: 0, hazard: None, life: LIFE_UNKNOWN }
    }

    pub fn mapping(&self) -> &Rc<StoreMapping> {
        &self.mapping
    }

    fn note(&mut self, observation: Observation<'s>) {
        assert!(self.observation_count < OBSERVATIONS_MAX, "an operation rests on few observations");
        self.observations[self.observation_count] = Some(observation);
        self.observation_count += 1;
    }

    /// Takes a step: reads something, or makes something known. Others do something after it (invariant 4).
    pub async fn step<R>(&mut self, step: impl FnOnce(&mut Snapshot<'s>) -> R) -> R {
        if !self.mapping.is_simulated() {
            // Nothing of the result has to be kept over a wait.
            return step(self);
        }
        let result = step(self);
        self.servers.pause().await;
        result
    }

    /// Whether nobody has submitted a change of what comes to this intent lock, or is about to, that the server has not
    /// taken up (invariant 2).
    pub fn is_free(&self, intent_lock: usize) -> bool {
        !self.mapping.is_locked(intent_lock)
    }

    /// The same of writes to a file.
    pub fn is_unwritten(&self, file: FileId) -> bool {
        !self.mapping.is_written(file_intent_lock(file))
    }

    /// Reads the first words of a cell, which is noted if `decode` makes something of them.
    pub fn cell<const WORDS: usize, T>(
        &mut self,
        place: CellPlace,
        decode: impl FnOnce(&[u64; WORDS]) -> Option<T>,
    ) -> Option<T> {
        let mut words = [0; WORDS];
        let version = self.mapping.read_cell(place, &mut words)?;
        let decoded = decode(&words)?;
        self.note(Observation::Cell(place.offset, version));
        Some(decoded)
    }

    /// Reads the first words of a cell, which is noted as one in which something is missing.
    pub fn absence<const WORDS: usize>(&mut self, place: CellPlace) -> Option<[u64; WORDS]> {
        let mut words = [0; WORDS];
        let version = self.mapping.read_cell(place, &mut words)?;
        self.note(Observation::Absence(place.offset, version));
        Some(words)
    }

    /// Notes that no write to a file is under way. Nothing if one is.
    pub fn unwritten(&mut self, file: FileId) -> Option<()> {
        self.is_unwritten(file).then(|| self.note(Observation::Unwritten(file_intent_lock(file))))
    }

    /// Notes that the server has not taken up a submission of this client. Nothing if it has.
    pub fn waiting(&mut self, number: u64) -> Option<()> {
        let owner = self.servers.session();
        self.mapping.is_waiting(owner, number).then(|| self.note(Observation::Waiting(owner, number)))
    }

    /// Notes that bytes of a chunk lie at known places. They are to be copied after this (`copy`).
    pub fn bytes(&mut self, places: &'s ChunkPlaces, piece: &'s ChunkRange) {
        match &places.proof {
            Proof::Stamps(_) => self.note(Observation::Bytes(places, piece)),
            Proof::Cell(cell) => self.kept(cell),
        }
    }

    /// Notes a cell that another snapshot has read over the same mapping.
    pub fn kept(&mut self, cell: &CellVersion) {
        // One that was not read holds no more.
        self.note(Observation::Cell(cell.place.offset, cell.version.unwrap_or(VERSION_NEVER)));
    }

    /// Copies bytes of the store. False when they do not lie within it.
    pub fn copy(&self, at: u64, into: &mut [u8]) -> bool {
        self.mapping.copy(at, into)
    }

    /// The hazard pointer counts only in this life of the server.
    pub fn in_life(&mut self, life: u64) {
        self.life = life;
    }

    /// Asks the server to keep a file, in a life that was read. Nothing when there is no room to ask for more.
    pub fn hold(&mut self, file: FileId) -> Option<()> {
        assert!(self.life != LIFE_UNKNOWN, "a hazard pointer counts in a life of the server");
        self.hazard = Some(self.mapping.hold(file.0)?);
        Some(())
    }

    /// What the server keeps is the caller's now.
    pub fn take_hazard(&mut self) -> Option<HazardPointer> {
        self.hazard.take()
    }

    /// Whether all that was read is so still.
    pub fn holds(&self) -> bool {
        let mapping = &self.mapping;
        let is_kept = |hazard: &HazardPointer| mapping.trusts(Validation::Hazard) || hazard.stands(self.life);
        // Nobody would take over what is held over a connection that has ended after that was taken over.
        !mapping.has_ended()
            && self.hazard.as_ref().is_none_or(is_kept)
            && self.observations[..self.observation_count]
                .iter()
                .flatten()
                .all(|observation| observation.holds(mapping))
    }

    /// The version of a cell that this has read, to be kept; nothing if it has not.
    pub fn version_of(&self, place: CellPlace) -> Option<CellVersion> {
        let version = self.observations.iter().flatten().find_map(|observation| match observation {
            Observation::Cell(of, version) if *of == place.offset => Some(*version),
            _ => None,
        })?;
        Some(CellVersion { mapping: self.mapping.clone(), place, version: Some(version) })
    }

    /// Begins to submit a change. Nothing when that is not possible now. Bytes for a file that waits to be made come on
    /// top of the submission that makes it.
    pub fn begin(&self, submission: &Submission<'_>) -> Option<PendingSubmission> {
        let (owner, locks, words) = (self.servers.session(), submission.intent_locks(), submission.words()?);
        match submission.change {
            Change::Write(Written { order: WriteOrder::IntentLock, .. }, _) => {
                self.mapping.begin_submission_on_top(owner, locks, &words)
            }
            _ => self.mapping.begin_submission(owner, locks, &words),
        }
    }

    /// Submits what was begun, if what was read is so still: with that the change is made. Returns the submission's
    /// number.
    pub async fn commit(&mut self, pending: PendingSubmission) -> Option<u64> {
        self.step(|snapshot| snapshot.holds()).await.then(|| pending.commit())?
    }

    /// The same for a write to a file, which takes its number before.
    pub async fn commit_write(&mut self, pending: PendingSubmission, file: FileId) -> Option<u64> {
        let may_write = self.step(|_| pending.number_write(file_intent_lock(file))).await;
        if may_write { self.commit(pending).await } else { None }
    }

    /// The same for a file that is made with a number of this client's.
    pub async fn commit_made(&mut self, pending: PendingSubmission, number: u64) -> Option<u64> {
        self.step(|snapshot| snapshot.holds()).await.then(|| pending.commit_made(number))?
    }
}

/// A cell of an attribute cache, and the version that it had: what is kept of a snapshot.
#[derive(Clone)]
pub(crate) struct CellVersion {
    mapping: Rc<StoreMapping>,
    place: CellPlace,
    /// Nothing where the cell was not read.
    version: Option<u64>,
}

impl CellVersion {
    /// None that was read.
    pub fn unread(mapping: &Rc<StoreMapping>) -> CellVersion {
        CellVersion { mapping: mapping.clone(), place: CellPlace { offset: 0, words: 0 }, version: None }
    }

    pub fn mapping(&self) -> &Rc<StoreMapping> {
        &self.mapping
    }

    /// Whether the cell has had this version all the time.
    pub fn holds(&self) -> bool {
        self.version.is_some_and(|version| Observation::Cell(self.place.offset, version).holds(&self.mapping))
    }
}

impl Common {
    /// Others do something meanwhile (invariant 4). For simulations.
    pub(crate) async fn pause(&self) {
        let draw = self.reactor.random();
        let longest = if draw.is_multiple_of(8) { REST_NS } else { PAUSE_NS };
        self.reactor.sleep((draw >> 8) % longest).await;
    }

    /// The same in a copy to pages that a server has registered.
    pub(crate) async fn pause_in_copy(&self) {
        let draw = self.reactor.random();
        let longest = match draw % 64 {
            0 => STOP_NS,
            1..8 => REST_NS,
            _ => PAUSE_NS,
        };
        self.reactor.sleep((draw >> 8) % longest).await;
    }
}
