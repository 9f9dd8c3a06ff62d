//! `tabane cp`: trees in and out, many files at once, large files in several pieces.

pub mod facts;
mod manner;
mod names;
pub mod place;
pub mod progress;

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome};
use crate::json;
use crate::launch::stop_asked;
use crate::paths::{Sided, base_name, join, sided};
use crate::session::Session;
use crate::together::{Either, race};
use crate::up::catch_signals;
use crate::work::{STOP_NS_MAX, Urgency, Work, run_all};
use client::Kind;
use facts::{EntryKind, Facts};
use manner::{Existing, Manner};
use names::Names;
use place::{CopyResult, Side, SourceFile, Target};
use progress::{Progress, add};
use reactor::{Nanos, Reactor};
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io::Write;
use std::rc::Rc;
use wire::FileId;

/// Larger files are copied in pieces of this size, several at a time.
const PIECE_SIZE: u64 = 4 << 20;
/// Files that wait at most before directories are listed no further.
const ENTRIES_MAX: usize = 1 << 18;
/// Incomplete files that are named after an interruption.
const NAMED_MAX: usize = 20;

/// One thing to do.
enum CopyStep {
    Entry(CopyEntry),
    Piece(Rc<Transfer>),
    /// One more name of a file that another name was found of before.
    Name(CopyEntry),
    /// Everything is there: owner, mode and times of the directory that was found last among those left.
    Finish,
}

/// An entry to be copied.
struct CopyEntry {
    place: Side,
    source: Vec<u8>,
    target: Vec<u8>,
    facts: Facts,
    /// The directory that is copied with all that is in it, where both sides are the cluster: nothing is put into it.
    whole: Option<FileId>,
}

/// A directory whose contents are being copied.
struct DirectoryCopy {
    entry: CopyEntry,
    /// Whether it was not there before, so that only its owner may use it yet.
    is_new: bool,
}

/// A large file under way.
struct Transfer {
    entry: CopyEntry,
    from: SourceFile,
    to: Target,
    next_offset: Cell<u64>,
    /// Pieces that are being copied or will ask for the next offset.
    hands: Cell<u64>,
    failed: Cell<bool>,
    /// Whether the last byte was left to be a hole.
    ends_in_hole: Cell<bool>,
}

impl Transfer {
    fn shorter(&self) -> String {
        format!("{}: became shorter while it was copied", self.entry.place.show(&self.entry.source))
    }
}

struct Copy {
    reactor: Reactor,
    target: Side,
    work: Rc<Work<CopyStep>>,
    progress: Progress,
    chunk_size: u32,
    jobs: u64,
    manner: Manner,
    /// Files of several names, where these are to be kept.
    names: Names,
    /// Those that are not finished, in the order in which they were found: what is in a directory comes behind it.
    folders: RefCell<Vec<Rc<DirectoryCopy>>>,
    incomplete: RefCell<BTreeSet<Vec<u8>>>,
    failures: Cell<u64>,
    /// Why nothing can be printed any more.
    broken: RefCell<Option<Failure>>,
}

impl Copy {
    fn say_failed(&self, reason: &str) {
        add(&self.failures, 1);
        eprintln!("tabane: cp: {reason}");
    }

    async fn handle(&self, item: CopyStep) {
        let outcome = match item {
            CopyStep::Entry(entry) => match entry.facts.kind {
                EntryKind::Directory => {
                    let outcome = self.copy_directory(entry).await;
                    self.progress.directories_left.set(self.progress.directories_left.get() - 1);
                    outcome
                }
                EntryKind::File => self.copy_file(entry).await,
                EntryKind::Special(kind) if !self.manner.archive => {
                    let path = entry.place.show(&entry.source);
                    Err(format!("{path}: not copied: it is a {}; -a copies it as such", special_words(kind)))
                }
                EntryKind::Symlink | EntryKind::Special(_) => self.copy_unopened(entry).await,
            },
            CopyStep::Piece(transfer) => self.copy_pieces(transfer).await,
            CopyStep::Name(entry) => self.copy_name(entry).await,
            CopyStep::Finish => self.finish_last_directory().await,
        };
        if let Err(reason) = outcome {
            self.say_failed(&reason);
        }
    }

    fn add_entry(&self, mut entry: CopyEntry) {
        entry.facts.keeps_group = self.manner.keeps_group(entry.facts.gid);
        let urgency = match entry.facts.kind {
            EntryKind::Directory => {
                add(&self.progress.directories_left, 1);
                Urgency::First
            }
            _ => {
                add(&self.progress.files_found, 1);
                add(&self.progress.bytes_found, entry.facts.bytes());
                let Some(first) = self.names.first_of(entry) else { return };
                entry = first;
                Urgency::Later
            }
        };
        self.work.push_for(entry.place.home_of(&entry.facts), urgency, CopyStep::Entry(entry));
    }

    async fn copy_directory(&self, entry: CopyEntry) -> CopyResult {
        if !self.manner.recursive {
            return Err(format!(
                "{}: is a directory; -r copies it with all that is in it",
                entry.place.show(&entry.source)
            ));
        }
        // A link that is in the way may lead anywhere.
        if let Some(whole) = entry.whole
            && self.target.is_symlink(&entry.target).await
        {
            self.check_not_within(&entry.place, &entry.source, &entry.target, whole).await?;
        }
        let is_new = self.target.make_directory(&entry.target).await?;
        if is_new {
            self.tell_copied(&entry);
        }
        let folder = Rc::new(DirectoryCopy { entry, is_new });
        let entry = &folder.entry;
        self.folders.borrow_mut().push(folder.clone());
        let mut listing = entry.place.list(&entry.source).await?;
        while let Some(page) = listing.next().await? {
            page.failures.iter().for_each(|reason| self.say_failed(reason));
            for (name, facts) in page.entries {
                let (source, target) = (join(&entry.source, &name), join(&entry.target, &name));
                self.add_entry(CopyEntry { place: entry.place.clone(), source, target, facts, whole: entry.whole });
            }
        }
        Ok(())
    }

    /// Whether both sides are the cluster: only then can a source and its target be the same.
    fn is_within_cluster(&self, source: &Side) -> bool {
        matches!((source, &self.target), (Side::Cluster(_), Side::Cluster(_)))
    }

    /// Errors: the target `is_same` as the source.
    fn check_not_same(&self, entry: &CopyEntry, is_same: bool) -> CopyResult {
        let (source, target) = (entry.place.show(&entry.source), self.target.show(&entry.target));
        if is_same { Err(format!("'{source}' and '{target}' are the same file")) } else { Ok(()) }
    }

    /// Errors: the target is the directory `whole`, or lies beneath it, by whatever name.
    async fn check_not_within(&self, place: &Side, source: &[u8], target: &[u8], whole: FileId) -> CopyResult {
        if self.target.lies_within(target, whole).await? {
            let (source, target) = (place.show(source), self.target.show(target));
            return Err(format!("cannot copy a directory, '{source}', into itself, '{target}'"));
        }
        Ok(())
    }

    /// Copies what is made at once: a symbolic link, pipe, socket or device.
    async fn copy_unopened(&self, entry: CopyEntry) -> CopyResult {
        // What is in the way is removed, which must not happen to the link itself, nor to what it leads to.
        if self.is_within_cluster(&entry.place)
            && let Some(id) = self.target.identity(&entry.target, false).await?
        {
            let itself = entry.place.identity(&entry.source, false).await?;
            let leads_to = entry.place.identity(&entry.source, true).await?;
            self.check_not_same(&entry, itself == Some(id) || leads_to == Some(id))?;
        }
        if self.stays(&entry).await? {
            self.keep(&entry);
            return Ok(());
        }
        let replaces = self.manner.replaces();
        let made = match entry.facts.kind {
            EntryKind::Special(kind) => self.target.make_special(kind, &entry.target, &entry.facts, replaces).await?,
            _ => {
                let link = entry.place.read_symlink(&entry.source).await?;
                self.target.make_symlink(&link, &entry.target, &entry.facts, replaces).await?
            }
        };
        if !made {
            self.keep(&entry);
            return Ok(());
        }
        self.note_copied(&entry);
        Ok(())
    }

    /// Makes a name of a copy that is there; where none came to be, the file is copied for this name.
    async fn copy_name(&self, entry: CopyEntry) -> CopyResult {
        let Some(copy) = self.names.copy_of(&entry.facts) else {
            return match entry.facts.kind {
                EntryKind::File => self.copy_file(entry).await,
                _ => self.copy_unopened(entry).await,
            };
        };
        if let Some(found) = self.target.facts_if_there(&entry.target, false).await? {
            self.check_not_same(&entry, found.inode == entry.facts.inode)?;
            if self.target.facts(&copy, false).await?.inode == found.inode {
                self.progress.take_bytes(entry.facts.bytes());
                self.note_copied(&entry);
                return Ok(());
            }
        }
        if self.stays(&entry).await? || !self.target.make_name(&copy, &entry.target, self.manner.replaces()).await? {
            self.keep(&entry);
            return Ok(());
        }
        self.progress.take_bytes(entry.facts.bytes());
        self.note_copied(&entry);
        Ok(())
    }

    /// Whether what is at the target is to stay as it is. Errors: it is a directory.
    async fn stays(&self, entry: &CopyEntry) -> CopyResult<bool> {
        let existing = self.manner.existing;
        if existing == Existing::Replace {
            return Ok(false);
        }
        let follow = entry.facts.kind == EntryKind::File && existing == Existing::ReplaceOlder;
        let found = self.target.facts_if_there(&entry.target, follow).await?;
        match &found {
            Some(found) if found.kind == EntryKind::Directory => {
                Err(format!("{}: is a directory", self.target.show(&entry.target)))
            }
            found => Ok(existing.stays(&entry.facts, found.as_ref())),
        }
    }

    /// Counts an entry whose target stays as it is.
    fn keep(&self, entry: &CopyEntry) {
        add(&self.progress.files_kept, 1);
        self.progress.files_found.set(self.progress.files_found.get() - 1);
        self.progress.take_bytes(entry.facts.bytes());
        if self.manner.existing == Existing::ReplaceOlder {
            // It is up to date, so other names may lead to it.
            self.names.note_copied(&entry.facts, &entry.target);
        }
    }

    /// Counts an entry that is no directory and is copied.
    fn note_copied(&self, entry: &CopyEntry) {
        self.names.note_copied(&entry.facts, &entry.target);
        add(&self.progress.files_done, 1);
        self.tell_copied(entry);
    }

    /// Prints what is copied, where that is asked for.
    fn tell_copied(&self, entry: &CopyEntry) {
        if !self.manner.verbose || self.broken.borrow().is_some() {
            return;
        }
        let (source, target) = (entry.place.quoted(&entry.source), self.target.quoted(&entry.target));
        let line = [&source[..], b" -> ", &target, b"\n"].concat();
        if let Err(error) = std::io::stdout().write_all(&line) {
            self.broken.replace(Some(Failure::of_output(error)));
            self.work.stop();
        }
    }

    async fn copy_file(&self, entry: CopyEntry) -> CopyResult {
        // Opening the target empties it, which must not happen to the source under another name.
        if self.is_within_cluster(&entry.place)
            && let Some(id) = self.target.identity(&entry.target, true).await?
        {
            let source = entry.place.identity(&entry.source, true).await?;
            self.check_not_same(&entry, source == Some(id))?;
        }
        if self.stays(&entry).await? {
            self.keep(&entry);
            return Ok(());
        }
        let from = SourceFile::open(&entry.place, &entry.source).await?;
        self.incomplete.borrow_mut().insert(entry.target.clone());
        let created = Target::create(&self.target, &entry.target, self.chunk_size, self.manner.replaces()).await;
        if !matches!(created, Ok(Some(_))) {
            // What may be there is not ours to remove.
            self.incomplete.borrow_mut().remove(&entry.target);
        }
        let Some(to) = created? else {
            self.keep(&entry);
            return Ok(());
        };
        if entry.facts.size <= PIECE_SIZE {
            if let Err(words) = self.copy_bytes(&from, &to, entry.facts.size).await {
                to.close().await;
                return Err(words);
            }
            return self.finish_file(&entry, &to).await;
        }
        let hands = entry.facts.size.div_ceil(PIECE_SIZE).min(self.jobs);
        let transfer = Rc::new(Transfer {
            entry,
            from,
            to,
            next_offset: Cell::new(0),
            hands: Cell::new(hands),
            failed: Cell::new(false),
            ends_in_hole: Cell::new(false),
        });
        (0..hands).for_each(|_| self.work.push(Urgency::First, CopyStep::Piece(transfer.clone())));
        Ok(())
    }

    /// Copies a small file from its beginning to its end, also if it turns out longer than it was said to be.
    async fn copy_bytes(&self, from: &SourceFile, to: &Target, size: u64) -> CopyResult {
        // One byte more than there should be shows the end with the first read.
        let mut buffer = vec![0; size as usize + 1];
        let mut offset = 0;
        loop {
            let count = from.read_at(&mut buffer, offset).await?;
            if count > 0 {
                to.write_at(&buffer[..count], offset).await?;
            }
            offset += count as u64;
            add(&self.progress.bytes_done, count as u64);
            if count < buffer.len() {
                return Ok(());
            }
        }
    }

    /// Copies pieces of a large file until none is left; who copies the last one finishes the file.
    async fn copy_pieces(&self, transfer: Rc<Transfer>) -> CopyResult {
        let outcome = self.copy_next_pieces(&transfer).await;
        transfer.hands.set(transfer.hands.get() - 1);
        // One file fails once, however many of its pieces do.
        let is_first_failure = outcome.is_err() && !transfer.failed.replace(true);
        let is_last = transfer.hands.get() == 0;
        if is_last && transfer.failed.get() {
            transfer.to.close().await;
        }
        if is_first_failure {
            return outcome;
        }
        if !is_last || transfer.failed.get() {
            return Ok(());
        }
        if transfer.ends_in_hole.get()
            && let Err(words) = transfer.to.set_size(transfer.entry.facts.size).await
        {
            transfer.to.close().await;
            return Err(words);
        }
        self.finish_file(&transfer.entry, &transfer.to).await
    }

    async fn copy_next_pieces(&self, transfer: &Transfer) -> CopyResult {
        let size = transfer.entry.facts.size;
        let mut buffer = vec![0; PIECE_SIZE as usize];
        loop {
            // A piece may be read from shared memory and written to this machine without any wait: others, and signals,
            // get their turn here.
            self.reactor.yield_now().await;
            let offset = transfer.next_offset.get();
            if offset >= size || transfer.failed.get() {
                return Ok(());
            }
            if self.work.is_stopped() {
                // The file will not be whole: nobody may finish it.
                transfer.failed.set(true);
                return Ok(());
            }
            transfer.next_offset.set(offset + PIECE_SIZE);
            let wanted = PIECE_SIZE.min(size - offset) as usize;
            if self.is_within_cluster(&transfer.entry.place) && self.skip_hole(transfer, offset, wanted as u64).await? {
                add(&self.progress.bytes_done, wanted as u64);
                continue;
            }
            if let Some(moved) = transfer.to.copy_from(&transfer.from, offset, wanted as u64).await {
                if moved? < wanted as u64 {
                    return Err(transfer.shorter());
                }
                add(&self.progress.bytes_done, wanted as u64);
                continue;
            }
            let count = transfer.from.read_at(&mut buffer[..wanted], offset).await?;
            if count < wanted {
                return Err(transfer.shorter());
            }
            // The file was emptied before, so what is not written reads as zeros: holes stay holes.
            if buffer[..count].iter().all(|byte| *byte == 0) {
                transfer.ends_in_hole.set(transfer.ends_in_hole.get() || offset + count as u64 == size);
                // Only where there are zeros is it asked how many more there are.
                self.skip_hole(transfer, offset, wanted as u64).await?;
            } else {
                transfer.to.write_at(&buffer[..count], offset).await?;
            }
            add(&self.progress.bytes_done, count as u64);
        }
    }

    /// Whether a piece lies in a hole; then all pieces that lie in it are done, however long it is.
    async fn skip_hole(&self, transfer: &Transfer, offset: u64, wanted: u64) -> CopyResult<bool> {
        let size = transfer.entry.facts.size;
        let data = transfer.from.next_data(offset).await?.unwrap_or(size).min(size);
        if data < offset + wanted {
            return Ok(false);
        }
        if data == size && transfer.from.read_at(&mut [0], size - 1).await? == 0 {
            return Err(transfer.shorter());
        }
        // Others may have taken some of them.
        let next = if data < size { data / PIECE_SIZE * PIECE_SIZE } else { size };
        let taken = transfer.next_offset.get();
        add(&self.progress.bytes_done, next.saturating_sub(taken.min(size)));
        transfer.next_offset.set(taken.max(next));
        transfer.ends_in_hole.set(transfer.ends_in_hole.get() || data == size);
        Ok(true)
    }

    /// Gives the extended attributes of the source to the target, which is there and still ours to write.
    async fn copy_extended(&self, entry: &CopyEntry) -> CopyResult {
        if !self.manner.preserve {
            return Ok(());
        }
        for name in entry.place.extended_names(&entry.source).await? {
            if let Some(value) = entry.place.extended(&entry.source, &name).await? {
                self.target.set_extended(&entry.target, &name, &value, !self.manner.archive).await?;
            }
        }
        Ok(())
    }

    async fn finish_last_directory(&self) -> CopyResult {
        let last = self.folders.borrow_mut().pop();
        let Some(DirectoryCopy { entry, is_new }) = last.as_deref() else { return Ok(()) };
        if !is_new && !self.manner.replaces() {
            return Ok(());
        }
        let extended = self.copy_extended(entry).await;
        self.target.set_facts(&entry.target, &entry.facts).await.and(extended)
    }

    async fn finish_file(&self, entry: &CopyEntry, to: &Target) -> CopyResult {
        let extended = self.copy_extended(entry).await;
        to.finish(&entry.facts).await.and(extended)?;
        self.incomplete.borrow_mut().remove(&entry.target);
        self.note_copied(entry);
        Ok(())
    }

    /// Removes the files that were begun and are not whole.
    async fn remove_incomplete(&self) {
        for path in self.incomplete.take() {
            if let Err(reason) = self.target.remove_file(&path).await {
                eprintln!("tabane: cp: {reason}");
                self.incomplete.borrow_mut().insert(path);
            }
        }
    }

    /// What became of it, for programs.
    fn print_summary(&self, elapsed: Nanos, interrupted: bool) -> Outcome {
        json::print(&json!({
            "files": self.progress.files_done.get(),
            "bytes": self.progress.bytes_done.get(),
            "kept": self.progress.files_kept.get(),
            "failures": self.failures.get(),
            "seconds": json::seconds(elapsed),
            "interrupted": interrupted,
        }))
    }

    /// Gives the directories that were made their owners and modes, which nobody else could use until now. Their times
    /// stay new, for not all is there.
    async fn open_folders(&self) {
        loop {
            // What is in a directory comes before it: its mode may shut us out.
            let Some(folder) = self.folders.borrow_mut().pop() else { return };
            if folder.is_new
                && let Err(reason) = self.target.set_rights(&folder.entry.target, &folder.entry.facts).await
            {
                self.say_failed(&reason);
            }
        }
    }

    fn say_interrupted(&self) {
        let (done, found) = (self.progress.files_done.get(), self.progress.files_found.get());
        eprintln!("tabane: cp: interrupted: {done} of {found} files found so far are copied");
        let incomplete = self.incomplete.borrow();
        if !incomplete.is_empty() {
            eprintln!("tabane: cp: incomplete, remove them or copy them again:");
            incomplete.iter().take(NAMED_MAX).for_each(|path| eprintln!("  {}", self.target.show(path)));
            if incomplete.len() > NAMED_MAX {
                eprintln!("  and {} more", incomplete.len() - NAMED_MAX);
            }
        }
        let shut = self.folders.borrow().iter().filter(|folder| folder.is_new).count();
        if shut > 0 {
            eprintln!("tabane: cp: {shut} directories have mode 700 still");
        }
    }
}

/// `tabane cp`.
pub fn run(arguments: &Arguments) -> Outcome {
    if arguments.operand_bytes().iter().all(|path| matches!(sided(path), Sided::Local(_))) {
        return Err(Failure::usage(
            "both sides are on this machine; a path inside the cluster is written with a colon, as :/path",
        ));
    }
    let manner = Manner::of(arguments)?;
    let session = Session::open(arguments)?;
    let mut operands: Vec<Sided> = arguments.operand_bytes().iter().map(|path| sided(path)).collect();
    let target = operands.pop().expect("the table of commands asks for two operands");
    let signals = catch_signals(&session.reactor)?;
    let place = |path: Sided| match path {
        Sided::Local(path) => (Side::Local, path),
        Sided::Inside(path) => (Side::Cluster(session.files.clone()), path),
    };
    let (target, target_path) = place(target);
    let jobs = arguments.number("jobs");
    let copy = Rc::new(Copy {
        reactor: session.reactor.clone(),
        target,
        work: Work::new(ENTRIES_MAX),
        progress: Progress::default(),
        chunk_size: arguments.number_given("chunk-size").unwrap_or(0) as u32,
        jobs,
        names: Names::new(manner.archive),
        manner,
        folders: RefCell::default(),
        incomplete: RefCell::default(),
        failures: Cell::new(0),
        broken: RefCell::default(),
    });
    let sources = operands.into_iter().map(place).collect();
    let started = session.reactor.now();
    let interrupted = session.block_on(async {
        let copying = async {
            begin(&copy, sources, target_path).await?;
            copy_all(&session, &copy).await;
            if copy.manner.existing != Existing::Replace || copy.broken.borrow().is_some() {
                // The next copy would take them for whole.
                copy.remove_incomplete().await;
            }
            Ok(())
        };
        let quiet = arguments.flag("quiet") || copy.manner.verbose;
        let mut whole = Box::pin(async {
            match quiet {
                true => copying.await,
                false => match race(copying, copy.progress.show(&session.reactor)).await {
                    Either::First(outcome) => outcome,
                    Either::Second(()) => unreachable!("progress is shown until all is copied"),
                },
            }
        });
        match race(whole.as_mut(), stop_asked(&signals)).await {
            Either::First(outcome) => outcome.map(|()| None),
            Either::Second(signal) => {
                copy.work.stop();
                // What is under way ends by itself, soon, for nothing is begun any more.
                let ended = race(whole, race(session.reactor.sleep(STOP_NS_MAX), stop_asked(&signals))).await;
                let completing = async {
                    if matches!(ended, Either::First(_)) {
                        copy.remove_incomplete().await;
                    }
                    copy.open_folders().await;
                };
                // A server that is silent holds nobody up for long, nor who asks once more.
                let _: Either<(), _> =
                    race(completing, race(session.reactor.sleep(STOP_NS_MAX), stop_asked(&signals))).await;
                copy.say_interrupted();
                Ok(Some(signal))
            }
        }
    })?;
    if let Some(failure) = copy.broken.take() {
        return Err(failure);
    }
    let elapsed = session.reactor.now() - started;
    if arguments.flag("json") {
        copy.print_summary(elapsed, interrupted.is_some())?;
    }
    if let Some(signal) = interrupted {
        return Err(Failure::Said(signal.exit_code()));
    }
    if !arguments.flag("quiet") && !arguments.flag("json") {
        eprintln!("{}", copy.progress.summary(elapsed));
    }
    match copy.failures.get() {
        0 => Ok(()),
        1 => Err(Failure::failed("1 entry was not copied, or not completely; see above")),
        count => Err(Failure::failed(format!("{count} entries were not copied, or not completely; see above"))),
    }
}

/// Puts the sources into the work: each into the target if that is a directory, else the only one as the target.
async fn begin(copy: &Copy, sources: Vec<(Side, Vec<u8>)>, target: Vec<u8>) -> Outcome {
    let into = copy.target.is_directory(&target).await;
    if !into && sources.len() > 1 {
        return Err(Failure::failed(format!(
            "{}: is not a directory, but there are several sources",
            copy.target.show(&target)
        )));
    }
    for (place, source) in sources {
        let target = match base_name(&source) {
            Some(name) if into => join(&target, name),
            _ => target.clone(),
        };
        match operand(copy, place, source, target).await {
            Ok(entry) => copy.add_entry(entry),
            Err(reason) => copy.say_failed(&reason),
        }
    }
    Ok(())
}

/// The entry that a source of the command line is. Errors: there is none, or it would be copied into itself.
async fn operand(copy: &Copy, place: Side, source: Vec<u8>, target: Vec<u8>) -> CopyResult<CopyEntry> {
    // Without -r a symbolic link stands for what it leads to.
    let facts = place.source_facts(&source, !copy.manner.recursive).await?;
    let mut whole = None;
    if copy.manner.recursive && facts.kind == EntryKind::Directory && copy.is_within_cluster(&place) {
        whole = place.identity(&source, true).await?;
    }
    if let Some(whole) = whole {
        copy.check_not_within(&place, &source, &target, whole).await?;
    }
    Ok(CopyEntry { place, source, target, facts, whole })
}

fn special_words(kind: Kind) -> &'static str {
    match kind {
        Kind::Socket => "socket",
        Kind::Fifo => "named pipe",
        _ => "device",
    }
}

/// Copies everything, then gives files their other names, then completes the directories.
async fn copy_all(session: &Session, copy: &Rc<Copy>) {
    work_off(session, copy).await;
    copy.names.take_others().into_iter().for_each(|entry| copy.work.push(Urgency::Later, CopyStep::Name(entry)));
    work_off(session, copy).await;
    let count = copy.folders.borrow().len();
    (0..count).for_each(|_| copy.work.push(Urgency::Later, CopyStep::Finish));
    work_off(session, copy).await;
}

async fn work_off(session: &Session, copy: &Rc<Copy>) {
    let handler = copy.clone();
    run_all(&session.reactor, copy.jobs as usize, &copy.work, async move |item| handler.handle(item).await).await;
}
