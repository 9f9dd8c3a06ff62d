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
/// After that a flush of some files stops for others, and one of everything for these, when it has found out what there
/// is to do.
const FILES_FLUSH_NS: Nanos = 1_000_000_000;
const WHOLE_FLUSH_NS: Nanos = 5_000_000;
/// That is halved or doubled so often at most.
const VAIN_BEGINS_MAX: u32 = 6;
/// What is not in the numbers of other flushes.
const FILES_TICKET: u64 = 1 << 63;
/// Why a file has not gone for which nothing else is known.
pub const NOT_DONE: &str = "it was changed while it was carried";
/// Files that servers are asked for by their numbers, which have to fit into a message.
const LISTED_FILES_MAX: usize = 2048;
/// Flushes that are remembered.
const FLUSHES_MAX: usize = 64;

/// Flushes of this server, the last ones.
#[derive(Default)]
pub struct Flushes {
    last_ticket: Cell<u64>,
    known: RefCell<VecDeque<Rc<FlushRun>>>,
    /// Those of some files alone, with numbers of their own.
    last_files_number: Cell<u64>,
    of_files: RefCell<VecDeque<Rc<FlushRun>>>,
    last_turn: Cell<u64>,
    /// Things that all of them have done, and bytes that were written for them, done or not.
    pub done: Cell<u64>,
    pub bytes: Cell<u64>,
    is_working: Cell<bool>,
}

impl Flushes {
    /// The next one that is to begin: the one that waits longest since it was asked for or stopped. One that steps back
    /// for accesses comes after those of files that have not begun yet.
    fn next(&self) -> Option<Rc<FlushRun>> {
        let (known, of_files) = (self.known.borrow(), self.of_files.borrow());
        let waits = |run: &&Rc<FlushRun>| !run.is_begun.get() && !run.is_ended.get();
        let any_is_new = of_files.iter().filter(waits).any(|run| run.begins.get() == 0);
        let all = of_files.iter().chain(known.iter()).filter(waits);
        all.min_by_key(|run| (any_is_new && run.steps_back(), run.turn.get())).cloned()
    }

    fn take_turn(&self) -> u64 {
        self.last_turn.set(self.last_turn.get() + 1);
        self.last_turn.get()
    }

    /// Whether one waits for which this one stops: one of everything for those of files, and that for any.
    fn has_waiting(&self, run: &FlushRun) -> bool {
        let (known, of_files) = (self.known.borrow(), self.of_files.borrow());
        let waits = |run: &Rc<FlushRun>| !run.is_begun.get() && !run.is_ended.get();
        of_files.iter().any(waits) || run.is_of_files() && known.iter().any(waits)
    }

    /// Stops the one that is under way if it has had its time, and another one waits for that.
    fn stop_for_others(&self, now: Nanos) {
        let (known, of_files) = (self.known.borrow(), self.of_files.borrow());
        let under_way = known.iter().chain(of_files.iter()).find(|run| run.is_begun.get() && !run.is_ended.get());
        if let Some(run) = under_way.filter(|run| run.due.get() <= now && self.has_waiting(run)) {
            run.is_cut.set(true);
        }
    }
}

/// What a wish is about: an inode, the directory and the path where it is to be, and the way.
pub type WishKey = (u64, u64, Vec<u8>, u8);

/// One flush.
#[derive(Default)]
pub struct FlushRun {
    ticket: u64,
    pub paths: Vec<Vec<u8>>,
    /// If there are any: files, and directories for their names, that somebody syncs, and nothing else.
    pub files: RefCell<BTreeSet<u64>>,
    /// They wait for something else, so everything is done.
    pub is_widened: Cell<bool>,
    /// Those of them that were carried, with what they had then.
    pub carried_files: RefCell<BTreeSet<u64>>,
    /// Those that could not be brought into line: what, and why; and those of them for which nothing has to be done
    /// first.
    pub failed_files: RefCell<BTreeMap<u64, ToldFailure>>,
    pub refused_files: RefCell<BTreeSet<u64>>,
    /// Those of them that were given up to somebody else's.
    pub given_up_files: RefCell<BTreeMap<u64, ToldFailure>>,
    /// It stops here, for somebody waits for another one, and begins again after that.
    pub is_cut: Cell<bool>,
    /// Whether it is under way, and how often it has begun.
    is_begun: Cell<bool>,
    begins: Cell<u64>,
    /// Whose turn it is goes by this.
    turn: Cell<u64>,
    /// From when on it stops for others.
    due: Cell<Nanos>,
    /// How often in a row it has begun and stopped without having done anything, and what it had done by then.
    vain_begins: Cell<u32>,
    last_progress: Cell<u64>,
    /// It waits for times without accesses as long as nobody waits for it.
    is_idle_policy: bool,
    /// Numbers of its wishes that have not ended: inode, directory, path and way.
    pub wishes: RefCell<BTreeMap<WishKey, u64>>,
    /// Something was parked for its files, which has to get its name.
    pub has_parked: Cell<bool>,
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
    /// What servers are asked for beside what has been behind: nothing if that is everything, or too much to name.
    pub fn listed_files(&self) -> Vec<u64> {
        let files = self.files.borrow();
        let is_all = self.is_widened.get() || files.len() > LISTED_FILES_MAX;
        if is_all { Vec::new() } else { files.iter().copied().collect() }
    }

    /// Whether it waits for times without accesses.
    fn steps_back(&self) -> bool {
        self.is_idle_policy && self.patience.get() == flush_patience::IDLE
    }

    /// Bytes and things that it has done, and is about to have done.
    fn progress(&self) -> u64 {
        self.done.get() + self.bytes.get() + self.bytes_under_way.get()
    }

    pub fn is_of_files(&self) -> bool {
        !self.files.borrow().is_empty()
    }

    /// Whether somebody syncs it.
    pub fn has(&self, id: FileId) -> bool {
        self.files.borrow().contains(&id.0)
    }

    /// Whether it was carried, with what it had then.
    pub fn has_carried(&self, id: FileId) -> bool {
        self.carried_files.borrow().contains(&id.0)
    }

    /// Whether it is for another flush.
    pub fn passes_by(&self, id: FileId) -> bool {
        self.is_of_files() && !self.is_widened.get() && !self.has(id)
    }

    /// The same of what was changed of a file, or that has gone with this one.
    pub fn leaves(&self, id: FileId) -> bool {
        self.passes_by(id) || self.has_carried(id)
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
        let known = |ticket: u64| {
            let (known, of_files) = (flushes.known.borrow(), flushes.of_files.borrow());
            known.iter().chain(of_files.iter()).find(|run| run.ticket == ticket).cloned()
        };
        let run = match request.ticket {
            0 if request.file != FileId::default() => self.ask_to_carry(request.file),
            0 => self.ask_for_flush(request.paths),
            ticket => match known(ticket) {
                Some(run) => run,
                None => return FlushReply { ticket, state: flush_states::UNKNOWN, ..no_reply() },
            },
        };
        flushes.stop_for_others(self.reactor.now());
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
            progress: flushes.done.get() + flushes.bytes.get(),
            left: run.sum(|run| run.left.get()),
            failed: failures.len() as u64,
            paths,
            reasons,
            ..no_reply()
        };
        if is_ended && request.file == FileId::default() {
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
        let not_begun = |run: &&Rc<FlushRun>| !run.is_begun.get() && !run.is_ended.get();
        if let Some(run) = known.iter().filter(not_begun).find(|run| run.paths == paths) {
            return run.clone();
        }
        drop(known);
        self.start_flush(paths, flush_patience::NONE, before)
    }

    /// What somebody syncs goes before everything else: a flush that is under way stops, and begins again after it; one
    /// of other files only if it takes long.
    fn ask_to_carry(self: &Rc<Self>, file: FileId) -> Rc<FlushRun> {
        let flushes = &self.backing().flushes;
        let next = flushes.of_files.borrow().iter().find(|run| run.begins.get() == 0).cloned();
        let run = next.unwrap_or_else(|| {
            let number = flushes.last_files_number.get();
            let number = if number == 0 { self.reactor.random() >> 16 } else { number } + 1;
            flushes.last_files_number.set(number);
            let turn = Cell::new(flushes.take_turn());
            let run = Rc::new(FlushRun { ticket: number | FILES_TICKET, turn, ..FlushRun::default() });
            remember(&mut flushes.of_files.borrow_mut(), &run);
            run
        });
        run.files.borrow_mut().insert(file.0);
        self.begin_flushes();
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
        let (turn, is_idle_policy) =
            (Cell::new(flushes.take_turn()), self.backing().pace.policy() == FlushPolicy::Idle);
        let ticket = ticket + 1;
        let run = Rc::new(FlushRun { ticket, paths, patience, before, turn, is_idle_policy, ..FlushRun::default() });
        remember(&mut known, &run);
        drop(known);
        self.begin_flushes();
        run
    }

    /// Does what was asked for, one flush after another; those that somebody waits for come first.
    fn begin_flushes(self: &Rc<Self>) {
        self.backing().flushes.stop_for_others(self.reactor.now());
        if self.backing().flushes.is_working.replace(true) {
            return;
        }
        let core = self.clone();
        self.reactor.spawn(Class::Background, async move {
            while let Some(run) = core.backing().flushes.next() {
                run.is_begun.set(true);
                run.begins.set(run.begins.get() + 1);
                run.due.set(Nanos::MAX);
                core.flush_now(&run).await;
                if run.is_cut.replace(false) {
                    let progress = run.progress();
                    let is_vain = run.last_progress.replace(progress) == progress;
                    run.vain_begins.set(if is_vain { run.vain_begins.get() + 1 } else { 0 });
                    run.turn.set(core.backing().flushes.take_turn());
                    run.is_begun.set(false);
                    continue;
                }
                run.is_ended.set(true);
                run.ended.tell(());
            }
            core.backing().flushes.is_working.set(false);
        });
    }

    /// Whether a flush is under way here, or an inode is being carried.
    pub fn is_flushing(&self) -> bool {
        self.backing.as_ref().is_some_and(|backing| backing.flushes.is_working.get() || backing.carries.are_at_work())
    }

    /// From here on a flush has some time; then it stops for others that wait. One of files that does nothing in it
    /// gets less and less, and one of everything more and more: what comes first may be what can't go. `listed`: how
    /// long it has taken to find out what there is to do.
    fn give_time(self: &Rc<Self>, run: &Rc<FlushRun>, listed: Nanos) {
        let vain_begins = run.vain_begins.get().min(VAIN_BEGINS_MAX);
        let time = match run.is_of_files() {
            true => FILES_FLUSH_NS >> vain_begins,
            false if run.steps_back() => 0,
            false => WHOLE_FLUSH_NS.max(listed) << vain_begins,
        };
        let due = self.reactor.now() + time;
        run.due.set(due);
        let (core, own) = (self.clone(), run.clone());
        self.reactor.spawn(Class::Background, async move {
            core.reactor.sleep_until(due).await;
            if own.due.get() == due {
                core.backing().flushes.stop_for_others(core.reactor.now());
            }
        });
    }

    async fn flush_now(self: &Rc<Self>, run: &Rc<FlushRun>) {
        let (mut failures, mut left, mut was_stuck) = (Failures::new(), Vec::new(), false);
        let begun_at = self.reactor.now();
        if run.is_of_files() {
            self.give_time(run, 0);
        }
        for number in 0..PASSES_MAX {
            let pass = match Pass::begin(self, run, number == 0).await {
                Ok(pass) => Rc::new(pass),
                Err(failure) => {
                    failures = Failures::from([(Vec::new(), reason_of(&failure))]);
                    break;
                }
            };
            if number == 0 && !run.is_of_files() {
                self.give_time(run, self.reactor.now() - begun_at);
            }
            run.failed_files.borrow_mut().clear();
            run.refused_files.borrow_mut().clear();
            pass.work().await;
            failures = pass.failures.take();
            left = pass.files_left().await;
            let is_stuck = pass.progress.get() == 0;
            let is_refused = |(id, _): &(u64, Vec<u8>)| run.refused_files.borrow().contains(id);
            let is_done = match run.is_of_files() {
                true => left.iter().all(is_refused) && (!run.has_parked.get() || pass.waiting.get() == 0),
                false => pass.waiting.get() == 0 && !run.is_cut.get(),
            };
            if is_done && run.is_of_files() {
                run.is_cut.set(false);
            }
            let is_done = is_done || run.is_cut.get();
            let is_last = was_stuck && (run.is_widened.get() || !run.is_of_files());
            if is_done || is_stuck && (is_last || is_patient(run)) {
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
        let mut failed_files = run.failed_files.borrow_mut();
        failed_files.retain(|id, _| left.iter().any(|(left, _)| left == id));
        failed_files.append(&mut run.given_up_files.take());
        for (id, path) in left {
            failed_files.entry(id).or_insert_with(|| (path, NOT_DONE.as_bytes().to_vec()));
        }
        add(&self.backing().counters.flushes, u64::from(!run.is_of_files()));
        run.left.set(0);
        run.failures.replace(failures);
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

/// Keeps a flush for who asks for it, and some of those before it.
fn remember(known: &mut VecDeque<Rc<FlushRun>>, run: &Rc<FlushRun>) {
    known.push_back(run.clone());
    if known.len() > FLUSHES_MAX && known[0].is_ended.get() {
        known.pop_front();
    }
}

/// Whether nobody waits for a flush.
fn is_patient(run: &FlushRun) -> bool {
    run.patience.get() > flush_patience::NONE
}

fn no_reply() -> FlushReply {
    let (paths, reasons, settled_paths, settled_words) = Default::default();
    let (ticket, state, done, bytes, progress, left, failed, settled) = Default::default();
    FlushReply {
        ticket,
        state,
        done,
        bytes,
        progress,
        left,
        failed,
        paths,
        reasons,
        settled,
        settled_paths,
        settled_words,
    }
}
