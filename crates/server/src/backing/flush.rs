//! A flush: everything that is not behind as it is here is brought into line, by the home of the root, which asks all
//! servers what there is and the homes of inodes to carry them (`carry`). It goes in passes (`pass`). Nothing of it is
//! kept: a flush that was cut off is begun again, and finds what it had done.

use super::carry::reason_of;
use super::change_list::is_settled;
use super::pace::Patience;
use super::pass::Pass;
use super::settled::SettledNames;
use super::{BackingFault, add};
use crate::core::{Caller, Core, Failure, Notice, until};
use crate::handlers::{Progress, later};
use crate::process::options::FlushPolicy;
use reactor::{Class, Nanos};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use wire::messages::*;
use wire::{Decode, Encode, FileId, Operation, Status};

/// Longest wait of one question for how far something has come.
pub const WAIT_NS: Nanos = 250_000_000;
const PASSES_MAX: u32 = 32;
/// Between two questions whether an inode is carried still, for whoever has begun that.
pub(super) const MOVING_PAUSE_NS: Nanos = 20_000_000;
/// A pass that does nothing is made once more after this pause, for whoever waits: a rename over several servers is
/// answered before each of them has it, so that the pass may have seen neither its old name nor its new one.
const STUCK_PAUSE_NS: Nanos = 100_000_000;
/// Bytes of failures that are told, which have to fit into a message.
const TOLD_BYTES_MAX: usize = 20 << 10;
/// Failures that a report has.
const FAILURES_TOLD: usize = 5;
/// Files that servers are asked for by their numbers, which have to fit into a message.
const LISTED_FILES_MAX: usize = 2048;
/// Flushes that are remembered.
const FLUSHES_MAX: usize = 64;

/// Flushes of this server, the last ones.
#[derive(Default)]
pub struct Flushes {
    last_ticket: Cell<u64>,
    known: RefCell<VecDeque<Rc<FlushRun>>>,
    /// Bytes that were written for all of them, done or not.
    pub bytes: Cell<u64>,
    is_working: Cell<bool>,
}

/// One flush.
#[derive(Default)]
pub struct FlushRun {
    ticket: u64,
    pub paths: Vec<Vec<u8>>,
    /// If there are any: files, and directories for their names, that somebody syncs, and nothing else.
    pub files: RefCell<BTreeSet<u64>>,
    /// They wait for something else, so everything is done.
    pub is_widened: Cell<bool>,
    /// Those of them that could not be brought into line: what, and why.
    pub failed_files: RefCell<BTreeMap<u64, ToldFailure>>,
    /// It ends before its time, for somebody waits for another one: what it leaves is asked for again.
    pub is_cut: Cell<bool>,
    is_begun: Cell<bool>,
    is_ended: Cell<bool>,
    ended: Notice<()>,
    /// Nobody has asked for it but servers.
    pub patience: Patience,
    /// The one that nobody waited for when this was asked for: what it does from then on is done for this one.
    before: Option<Rc<FlushRun>>,
    pub done: Cell<u64>,
    /// Bytes that were written for what is done, and so far for what is under way.
    pub bytes: Cell<u64>,
    pub bytes_under_way: Cell<u64>,
    pub left: Cell<u64>,
    failures: RefCell<Failures>,
    /// Names that were settled of which whoever has waited for this one was told first.
    settled: RefCell<Option<SettledNames>>,
}

impl FlushRun {
    /// What servers are asked for alone: nothing if that is everything, or too much to name.
    pub fn listed_files(&self) -> Vec<u64> {
        let files = self.files.borrow();
        let is_all = self.is_widened.get() || files.len() > LISTED_FILES_MAX;
        if is_all { Vec::new() } else { files.iter().copied().collect() }
    }

    /// Whether nothing could be done at all.
    fn has_failed_whole(&self) -> bool {
        self.failures.borrow().contains_key(&b""[..])
    }

    /// A number of this one, and of the one before.
    fn sum(&self, number: impl Fn(&FlushRun) -> u64) -> u64 {
        number(self) + self.before.as_ref().map_or(0, |before| number(before))
    }
}

/// What could not be brought into line: reasons by path.
pub type Failures = BTreeMap<Vec<u8>, Vec<u8>>;
/// One of them.
pub type ToldFailure = (Vec<u8>, Vec<u8>);

/// `Flush`, at the home of the root.
pub fn flush(core: &Rc<Core>, caller: &Caller, params: &[u8], _: &mut Vec<u8>) -> Result<Progress, Failure> {
    let request = FlushRequest::from_bytes(params)?;
    core.check_backing()?;
    core.check_home(FileId::ROOT)?;
    if request.file == FileId::default() || !core.options.flushing.fsync_carries {
        core.check_owner(caller)?;
    }
    if core.backing().pace.policy() == FlushPolicy::Never {
        let words = "the cluster was made with --flush never, so nothing goes to the backing directory";
        return Err(Failure::with_text(Status::NotPermitted, words));
    }
    let core = core.clone();
    later(async move { Ok(core.flush_reply(request).await) })
}

/// `AskForFlush`, at the home of the root.
pub fn ask_for_flush(core: &Rc<Core>, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let request = AskForFlushRequest::from_bytes(params)?;
    core.check_backing()?;
    core.check_home(FileId::ROOT)?;
    core.begin_automatic_flush(request.patience).encode(reply);
    Ok(Progress::Done)
}

impl Core {
    /// Whoever this server belongs to may have it flushed, and root.
    pub(super) fn check_owner(&self, caller: &Caller) -> Result<(), Failure> {
        let user = caller.peer.user.uid;
        match user == 0 || user == crate::process::process_owner().0 {
            true => Ok(()),
            false => {
                Err(Failure::with_text(Status::NotPermitted, "only who started the servers may have them flushed"))
            }
        }
    }

    async fn flush_reply(self: &Rc<Self>, request: FlushRequest) -> FlushReply {
        let flushes = &self.backing().flushes;
        let known = |ticket: u64| flushes.known.borrow().iter().find(|run| run.ticket == ticket).cloned();
        let run = match request.ticket {
            0 if request.file != FileId::default() => self.ask_to_carry(request.file),
            0 => self.ask_for_flush(request.paths),
            ticket => match known(ticket) {
                Some(run) => run,
                None => return FlushReply { ticket, state: flush_states::UNKNOWN, ..no_reply() },
            },
        };
        if request.ticket != 0 && !run.is_ended.get() {
            until(&self.reactor, self.reactor.now() + WAIT_NS, run.ended.wait()).await;
        }
        let own = run.failed_files.borrow().get(&request.file.0).cloned();
        let failures = match request.file == FileId::default() || run.has_failed_whole() {
            true => run.failures.borrow().clone(),
            false => own.into_iter().collect(),
        };
        let is_too_soon = request.file != FileId::default() && self.backing().has_fault(BackingFault::FsyncsTooSoon);
        let is_ended = run.is_ended.get() || is_too_soon;
        let mut told_bytes = 0;
        let told = failures.iter().take_while(|(path, reason)| {
            told_bytes += path.len() + reason.len() + 8;
            is_ended && told_bytes <= TOLD_BYTES_MAX
        });
        let (paths, reasons) = told.map(|(path, reason)| (path.clone(), reason.clone())).unzip();
        let mut reply = FlushReply {
            ticket: run.ticket,
            state: if is_ended { flush_states::ENDED } else { flush_states::RUNNING },
            done: run.sum(|run| run.done.get()),
            bytes: run.sum(|run| run.bytes.get() + run.bytes_under_way.get()),
            left: run.sum(|run| run.left.get()),
            failed: failures.len() as u64,
            paths,
            reasons,
            ..no_reply()
        };
        if is_ended {
            let mut settled = run.settled.borrow_mut();
            settled.get_or_insert_with(|| self.backing().settled.take_untold()).clone().tell(&mut reply);
        }
        reply
    }

    /// What the last flush that has ended could not carry: how much, and some of it with reasons.
    pub fn flush_failures(&self) -> (u64, Vec<ToldFailure>) {
        let Some(backing) = &self.backing else { return (0, Vec::new()) };
        let known = backing.flushes.known.borrow();
        let Some(run) = known.iter().rfind(|run| run.is_ended.get()) else { return (0, Vec::new()) };
        let failures = run.failures.borrow();
        let told = failures.iter().take(FAILURES_TOLD).map(|(path, reason)| (path.clone(), reason.clone()));
        (failures.len() as u64, told.collect())
    }

    /// One that has not begun yet serves whoever asks for the same.
    fn ask_for_flush(self: &Rc<Self>, paths: Vec<Vec<u8>>) -> Rc<FlushRun> {
        let known = self.backing().flushes.known.borrow();
        // What goes when nobody waits for it goes now.
        let is_patient = |run: &&Rc<FlushRun>| !run.is_ended.get() && is_patient(run);
        let before = known.iter().find(is_patient).cloned();
        known.iter().filter(|run| !run.is_ended.get()).for_each(|run| run.patience.set(flush_patience::NONE));
        let is_same = |run: &&Rc<FlushRun>| run.paths == paths && run.files.borrow().is_empty() && !run.is_cut.get();
        if let Some(run) = known.iter().filter(is_same).find(|run| !run.is_begun.get()) {
            return run.clone();
        }
        drop(known);
        self.start_flush(paths, flush_patience::NONE, before)
    }

    /// What somebody syncs goes as soon as nothing is under way that somebody waits for.
    fn ask_to_carry(self: &Rc<Self>, file: FileId) -> Rc<FlushRun> {
        let known = self.backing().flushes.known.borrow();
        let is_patient = |run: &&Rc<FlushRun>| !run.is_ended.get() && is_patient(run);
        known.iter().filter(is_patient).for_each(|run| run.is_cut.set(true));
        let next = known.iter().find(|run| !run.is_begun.get() && !run.files.borrow().is_empty()).cloned();
        drop(known);
        let run = next.unwrap_or_else(|| self.start_flush(Vec::new(), flush_patience::NONE, None));
        run.files.borrow_mut().insert(file.0);
        run
    }

    /// Begins a flush for servers that have changes, unless there is one, which is as urgent then. How far flushes have
    /// come.
    pub(super) fn begin_automatic_flush(self: &Rc<Self>, patience: u8) -> AskForFlushReply {
        let patience = patience.min(flush_patience::IDLE);
        let under_way = self.backing().flushes.known.borrow().iter().find(|run| !run.is_ended.get()).cloned();
        match under_way {
            Some(run) => run.patience.set(run.patience.get().min(patience)),
            None => drop(self.start_flush(Vec::new(), patience, None)),
        }
        let known = self.backing().flushes.known.borrow();
        let ended = known.iter().rfind(|run| run.is_ended.get());
        AskForFlushReply {
            newest: known.back().map_or(0, |run| run.ticket),
            ended: ended.map_or(0, |run| run.ticket),
            done: ended.map_or(0, |run| run.done.get()),
            bytes: self.backing().flushes.bytes.get(),
        }
    }

    fn start_flush(self: &Rc<Self>, paths: Vec<Vec<u8>>, patience: u8, before: Option<Rc<FlushRun>>) -> Rc<FlushRun> {
        let flushes = &self.backing().flushes;
        let mut known = flushes.known.borrow_mut();
        // Numbers of an earlier life mean nothing.
        let ticket =
            if flushes.last_ticket.get() == 0 { self.reactor.random() >> 16 } else { flushes.last_ticket.get() };
        flushes.last_ticket.set(ticket + 1);
        let patience = Rc::new(Cell::new(patience));
        let run = Rc::new(FlushRun { ticket: ticket + 1, paths, patience, before, ..FlushRun::default() });
        known.push_back(run.clone());
        if known.len() > FLUSHES_MAX && known[0].is_ended.get() {
            known.pop_front();
        }
        if !flushes.is_working.replace(true) {
            let core = self.clone();
            self.reactor.spawn(Class::Background, async move {
                loop {
                    let next = core.backing().flushes.known.borrow().iter().find(|run| !run.is_begun.get()).cloned();
                    let Some(run) = next else { break };
                    run.is_begun.set(true);
                    core.flush_now(&run).await;
                    run.is_ended.set(true);
                    run.ended.tell(());
                }
                core.backing().flushes.is_working.set(false);
            });
        }
        run
    }

    /// Whether a flush is under way here, or an inode is being carried.
    pub fn is_flushing(&self) -> bool {
        self.backing.as_ref().is_some_and(|backing| backing.flushes.is_working.get() || backing.carries.are_at_work())
    }

    async fn flush_now(self: &Rc<Self>, run: &Rc<FlushRun>) {
        let (mut failures, mut was_stuck) = (Failures::new(), false);
        for number in 0..PASSES_MAX {
            let pass = match Pass::begin(self, run, number == 0).await {
                Ok(pass) => Rc::new(pass),
                Err(failure) => {
                    failures = Failures::from([(Vec::new(), reason_of(&failure))]);
                    break;
                }
            };
            run.failed_files.borrow_mut().clear();
            pass.work().await;
            failures = pass.failures.take();
            let is_stuck = pass.progress.get() == 0;
            let is_whole = run.files.borrow().is_empty() || run.is_widened.get();
            if pass.waiting.get() == 0 || run.is_cut.get() || is_stuck && is_whole && (was_stuck || is_patient(run)) {
                break;
            }
            if is_stuck && was_stuck {
                // What a file waits for may be anything else that was changed.
                run.is_widened.set(true);
            }
            if is_stuck {
                self.reactor.sleep(STUCK_PAUSE_NS).await;
            }
            was_stuck = is_stuck;
        }
        add(&self.backing().counters.flushes, 1);
        run.left.set(0);
        run.failures.replace(failures);
    }

    /// Waits until nobody carries an inode, for a time-out at most. Whether nobody does.
    pub(super) async fn await_carried(self: &Rc<Self>, id: FileId) -> Result<bool, Failure> {
        let limit = self.reactor.now() + self.options.timeout;
        while self.ask_carried_of(id).await?.is_moving {
            if self.reactor.now() >= limit {
                return Ok(false);
            }
            self.reactor.sleep(MOVING_PAUSE_NS).await;
        }
        Ok(true)
    }

    pub(super) async fn ask_carried_of(self: &Rc<Self>, id: FileId) -> Result<AskCarriedReply, Failure> {
        self.tell_hindrance(id, b"").await
    }

    /// The same of an inode that something else keeps from being carried.
    pub(super) async fn tell_hindrance(
        self: &Rc<Self>,
        id: FileId,
        hindrance: &[u8],
    ) -> Result<AskCarriedReply, Failure> {
        let home = self.cluster.home_of(id).ok_or(Status::BadMessage)?;
        let request = AskCarriedRequest { id, hindrance: hindrance.to_vec() };
        if home == self.index {
            return Ok(self.carried_but_for(&request));
        }
        self.peers.call(home, Operation::AskCarried, &request, None).await
    }

    pub(super) async fn changes_of(
        self: &Rc<Self>,
        server: u32,
        from: &ListChangesRequest,
    ) -> Result<ListChangesReply, Failure> {
        if server == self.index {
            self.reactor.yield_now().await;
            if is_settled(from) {
                self.await_decided(&self.decided_changes()).await;
            }
            return Ok(self.list_changes(from));
        }
        self.peers.call(server, Operation::ListChanges, from, None).await
    }
}

/// Whether nobody waits for a flush.
fn is_patient(run: &FlushRun) -> bool {
    run.patience.get() > flush_patience::NONE
}

fn no_reply() -> FlushReply {
    let (paths, reasons, settled_paths, settled_words) = Default::default();
    let (ticket, done, bytes, left, failed, settled) = Default::default();
    FlushReply { ticket, state: 0, done, bytes, left, failed, paths, reasons, settled, settled_paths, settled_words }
}
