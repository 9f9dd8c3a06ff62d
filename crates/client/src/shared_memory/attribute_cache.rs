//! Looking at files without asking: what a server of this machine shows in its attribute cache
//! (docs/shared-memory.md).
//!
//! The tree of directories is looked at first, whether it is the one that the path was resolved in; a name is looked
//! for in the buckets that its hash leads to, and leads to its inode's cell. If all of them hold at the end
//! ([`crate::shared_memory::snapshot`]), all of it was so at the moment at which the inode was read: just what the
//! server would have told at that moment. Whatever is not found is asked for.
//!
//! Invariants
//! 1. What was read counts only once its snapshot holds.
//! 2. Now and then the loop turns, so that a connection that has ended is noticed; more seldom a question is asked all
//!    the same, so that what waits for something to ride along with gets on its way.

use crate::names::resolve::EntryTarget;
use crate::open_files::HeldFile;
use crate::open_files::file::OpenHow;
use crate::servers::Servers;
use crate::shared_memory::snapshot::{CellVersion, Snapshot};
use reactor::{CellPlace, ClientCounter, StoreMapping};
use wire::attribute_cache::{
    AttributeCacheShape, Bucket, CELL_WORDS, FirstBytes, LINE_WORDS, NameState, Table, TableKey, attributes_in,
    directory_words, first_bytes_in, tree_word, writable_words,
};
use wire::messages::KNOWN_UNCHECKED;
use wire::submission::{Change, Made, Submission, file_intent_lock, name_intent_lock};
use wire::{Attributes, FileId, Kind, LayoutWish};

/// Looks in a row before the loop turns, and before a server is asked (invariant 2).
const LOOKS_MAX: u32 = 256;
const LOOKS_UNTIL_ASKED: u32 = 16 * LOOKS_MAX;

/// A snapshot of what a server shows, and how that is laid out.
struct CacheView<'s> {
    snapshot: Snapshot<'s>,
    shape: AttributeCacheShape,
}

impl<'s> CacheView<'s> {
    /// A step of the snapshot (`Snapshot::step`).
    async fn step<R>(&mut self, step: impl FnOnce(&mut CacheView<'s>) -> R) -> R {
        if !self.snapshot.mapping().is_simulated() {
            return step(self);
        }
        let result = step(self);
        self.snapshot.step(|_| result).await
    }

    /// Reads the tree of directories: nothing unless it is as it was after change `known`, and none is under way.
    fn tree(&mut self, known: u64) -> Option<()> {
        let place = CellPlace { offset: self.shape.tree_offset(), words: LINE_WORDS };
        let is_so = |word| known == KNOWN_UNCHECKED || word == tree_word(known);
        let life = self.snapshot.cell(place, |[word, life]| is_so(*word).then_some(*life))?;
        self.snapshot.in_life(life);
        Some(())
    }

    /// Reads which file a name leads to, bucket by bucket.
    async fn name(&mut self, target: &EntryTarget) -> Option<NamedFile> {
        let key = TableKey::of_name(target.parent.id, &target.name);
        if !self.snapshot.is_free(name_intent_lock(key.hash)) {
            return None;
        }
        let mut reach = 0;
        for (step, place) in buckets(self.snapshot.mapping(), self.shape, Table::Names, key)?.enumerate() {
            let decode = |words: &[u64; LINE_WORDS]| {
                let bucket = Bucket(*words);
                if step == 0 {
                    reach = bucket.reach() as usize;
                }
                bucket.find(key).filter(|_| bucket.is_of(key)).map(|(_, value)| value)
            };
            let value = self.step(|view| view.snapshot.cell(place, decode)).await;
            let cell = match value.map(NameState::of_value) {
                Some(NameState::Here(here)) => here.cell(),
                Some(NameState::Elsewhere(cell)) => cell,
                None if step < reach => continue,
                _ => return None,
            };
            let place = CellPlace { offset: self.shape.cell_offset(cell), words: CELL_WORDS };
            // Which file that is counts as long as the name leads there, and with the rest of its cell.
            let file = FileId(self.snapshot.mapping().first_word(place)?);
            return match value.map(NameState::of_value) {
                Some(NameState::Here(here)) => here.is_of(file).then_some(NamedFile { file, place: Some(place) }),
                _ => Some(NamedFile { file, place: None }),
            };
        }
        None
    }

    fn inode(&mut self, NamedFile { file, place }: NamedFile) -> Option<ShownInode> {
        if !self.snapshot.is_free(file_intent_lock(file)) || !self.snapshot.is_unwritten(file) {
            return None;
        }
        let place = place.or_else(|| inode_place(self.snapshot.mapping(), self.shape, file))?;
        let decode = |words: &[u64; CELL_WORDS]| Some((attributes_in(words, file)?, first_bytes_in(words)));
        let (attributes, first) = self.snapshot.cell(place, decode)?;
        Some(ShownInode { attributes, first, place })
    }

    /// Notes that a name is not there, bucket by bucket.
    async fn no_name(&mut self, target: &EntryTarget) -> Option<()> {
        let key = TableKey::of_name(target.parent.id, &target.name);
        if !self.snapshot.is_free(name_intent_lock(key.hash)) {
            return None;
        }
        let mut reach = 0;
        for (step, place) in buckets(self.snapshot.mapping(), self.shape, Table::Names, key)?.enumerate() {
            let bucket = Bucket(self.step(|view| view.snapshot.absence(place)).await?);
            if !bucket.is_of(key) || bucket.find(key).is_some() || (step == 0 && !bucket.is_complete()) {
                return None;
            }
            if step == 0 {
                reach = bucket.reach() as usize;
            }
            if step == reach {
                break;
            }
        }
        Some(())
    }

    /// Counts a look that has come to something.
    fn counted<T>(&self, found: T) -> T {
        self.snapshot.mapping().count(&[(ClientCounter::CachedLooks, 1)]);
        found
    }

    /// Reads that a directory is one in which names may be made, or a file one to which writes may be submitted.
    fn permission(&mut self, of: FileId, wanted: [u64; 2]) -> Option<()> {
        let place = CellPlace { offset: self.shape.permission_offset(of), words: LINE_WORDS };
        self.snapshot.cell(place, |words| (*words == wanted).then_some(()))
    }
}

/// The file that a name leads to, and its cell, where that is known.
#[derive(Clone, Copy)]
struct NamedFile {
    file: FileId,
    place: Option<CellPlace>,
}

/// What an inode's cell says, and where it is.
struct ShownInode {
    attributes: Attributes,
    first: FirstBytes,
    place: CellPlace,
}

/// The cells that a key may be in, in a table; nothing where that is not known.
fn buckets(
    mapping: &StoreMapping,
    shape: AttributeCacheShape,
    table: Table,
    key: TableKey,
) -> Option<impl Iterator<Item = CellPlace> + use<>> {
    let depth = mapping.word(shape.depth_offset(table))?;
    let segment = mapping.word(shape.directory_offset(table, key, depth))?.checked_sub(1)?;
    if segment >= shape.block_count() {
        return None;
    }
    Some(shape.bucket_offsets(segment, key).map(|offset| CellPlace { offset, words: LINE_WORDS }))
}

/// The cell of an inode, as far as is known: what is in it tells whose it is.
fn inode_place(mapping: &StoreMapping, shape: AttributeCacheShape, file: FileId) -> Option<CellPlace> {
    let key = TableKey::of_inode(file);
    let mut reach = 0;
    for (step, place) in buckets(mapping, shape, Table::Inodes, key)?.enumerate() {
        let mut words = [0; LINE_WORDS];
        mapping.read_cell(place, &mut words)?;
        let bucket = Bucket(words);
        if let Some((_, value)) = bucket.find(key) {
            return Some(CellPlace { offset: shape.cell_offset(value - 1), words: CELL_WORDS });
        }
        if step == 0 {
            reach = bucket.reach() as usize;
        }
        if step == reach {
            break;
        }
    }
    None
}

/// Whether a file's home shows it now.
pub(crate) fn is_shown(mapping: &StoreMapping, file: FileId) -> bool {
    let look = || {
        let shape = mapping.attribute_cache_shape()?;
        let mut words = [0; CELL_WORDS];
        mapping.read_cell(inode_place(mapping, shape, file)?, &mut words)?;
        attributes_in(&words, file)
    };
    look().is_some()
}

/// A file that is to be made.
pub(crate) struct NewFile {
    /// Permission bits.
    pub mode: u32,
    pub chunk_size: u32,
    /// The directory's group, where that gives it to what is made in it.
    pub group: Option<u32>,
}

/// Permission bits that a file may have that is submitted.
const MODE_SUBMITTED: u32 = 0o1777;

impl Servers {
    /// A look at a server's attribute cache begins: now and then the loop turns first (invariant 2).
    async fn begin_look(&self) {
        let looks = self.looks.get() + 1;
        self.looks.set(looks);
        if looks.is_multiple_of(LOOKS_MAX) {
            self.reactor.yield_now().await;
        }
    }

    /// A view of a server's attribute cache, unless it is time to ask.
    fn view(&self, server: u32) -> Option<CacheView<'_>> {
        if self.looks.get() >= LOOKS_UNTIL_ASKED {
            self.looks.set(0);
            return None;
        }
        let mapping = self.channel(server).mapping()?;
        let shape = mapping.attribute_cache_shape()?;
        Some(CacheView { snapshot: Snapshot::new(self, mapping), shape })
    }

    /// The number of the last error that a server of this machine has learnt of late. Nothing if it has to be asked.
    pub(crate) fn cached_late_error(&self, server: u32) -> Option<u64> {
        let mapping = self.channel(server).mapping()?;
        let shape = mapping.attribute_cache_shape()?;
        let mut words = [0; 3];
        mapping.read_cell(CellPlace { offset: shape.tree_offset(), words: LINE_WORDS }, &mut words)?;
        Some(words[2])
    }

    /// The attributes of a file, as its name's server and its home show them now. Nothing if one of them has to be
    /// asked.
    pub(crate) async fn cached_entry(&self, server: u32, target: &EntryTarget) -> Option<Attributes> {
        self.begin_look().await;
        let mut view = self.view(server)?;
        view.step(|view| view.tree(target.known)).await?;
        let named = view.name(target).await?;
        let attributes = match self.cluster.home_of(named.file)? {
            home if home == server => view.step(|view| view.inode(named)).await?.attributes,
            home => self.cached_inode(home, named.file).await?,
        };
        view.snapshot.holds().then(|| view.counted(attributes))
    }

    /// Whether the name's server shows that a name is not there, in a directory that is. False if it has to be asked.
    pub(crate) async fn cached_absence(&self, server: u32, target: &EntryTarget) -> bool {
        self.try_cached_absence(server, target).await.is_some()
    }

    async fn try_cached_absence(&self, server: u32, target: &EntryTarget) -> Option<()> {
        self.begin_look().await;
        let mut view = self.view(server)?;
        view.step(|view| view.tree(target.known)).await?;
        view.step(|view| view.permission(target.parent.id, directory_words(target.parent.id))).await?;
        view.no_name(target).await?;
        view.snapshot.holds().then(|| view.counted(()))
    }

    /// The attributes of a file that has a name, as its home shows them now. Nothing if that has to be asked.
    pub(crate) async fn cached_inode(&self, home: u32, file: FileId) -> Option<Attributes> {
        self.cached_inode_cell(home, file).await.map(|(attributes, _)| attributes)
    }

    /// The same with the cell that shows them.
    pub(crate) async fn cached_inode_cell(&self, home: u32, file: FileId) -> Option<(Attributes, CellVersion)> {
        self.begin_look().await;
        let mut view = self.view(home)?;
        let inode = view.step(|view| view.inode(NamedFile { file, place: None })).await?;
        let cell = view.snapshot.version_of(inode.place)?;
        view.snapshot.holds().then(|| view.counted((inode.attributes, cell)))
    }

    /// Opens a file that is there, as its server shows it now, and holds it. Nothing if the server has to be asked.
    pub(crate) async fn open_cached(
        &self,
        server: u32,
        target: &EntryTarget,
        how: &OpenHow,
        access: u8,
    ) -> Option<Attributes> {
        if how.create || how.truncate || target.must_be_directory {
            return None;
        }
        self.begin_look().await;
        let mut view = self.view(server)?;
        view.step(|view| view.tree(target.known)).await?;
        let named = view.name(target).await?;
        self.open_named(server, view, named, access).await
    }

    /// The same of a file that has a name, by its identity.
    pub(crate) async fn open_cached_id(
        &self,
        home: u32,
        file: FileId,
        how: &OpenHow,
        access: u8,
    ) -> Option<Attributes> {
        if how.truncate {
            return None;
        }
        self.begin_look().await;
        let mut view = self.view(home)?;
        // For the server's life alone: whatever became of directories, the file is the one that is meant.
        view.step(|view| view.tree(KNOWN_UNCHECKED)).await?;
        self.open_named(home, view, NamedFile { file, place: None }, access).await
    }

    async fn open_named(
        &self,
        server: u32,
        mut view: CacheView<'_>,
        named: NamedFile,
        access: u8,
    ) -> Option<Attributes> {
        let file = named.file;
        if self.cluster.home_of(file)? != server {
            return None;
        }
        let ShownInode { attributes, first, place } = view.step(|view| view.inode(named)).await?;
        if !self.user().may(&attributes, access) {
            return None;
        }
        attributes.layout.check(self.cluster.slot_count).ok()?;
        let inode = view.snapshot.version_of(place)?;
        let mut snapshot = view.snapshot;
        snapshot.step(|snapshot| snapshot.hold(file)).await?;
        let holds = snapshot.holds();
        let hazard = snapshot.take_hazard()?;
        if !holds {
            self.let_go_of(server, file, hazard);
            return None;
        }
        inode.mapping().count(&[(ClientCounter::CachedOpens, 1)]);
        self.note_first_bytes(file, first, &inode);
        self.note_open_held(file, HeldFile { hazard, inode, made: None });
        Some(attributes)
    }

    /// Makes a file that is not there, as the name's server shows it now, without waiting for the server, and holds it:
    /// it is made when this returns. Nothing if the server has to be asked.
    pub(crate) async fn submit_create(
        &self,
        server: u32,
        target: &EntryTarget,
        wanted: &NewFile,
    ) -> Option<Attributes> {
        // The server knows whose the queue is, and nobody else's files come from it.
        if self.foreign_user().is_some() || wanted.mode & !MODE_SUBMITTED != 0 || target.must_be_directory {
            return None;
        }
        self.begin_look().await;
        let mut view = self.view(server)?;
        view.step(|view| view.tree(target.known)).await?;
        view.step(|view| view.permission(target.parent.id, directory_words(target.parent.id))).await?;
        view.no_name(target).await?;
        // From here on nothing else of this client gets the same number, until it is used.
        let slot = self.cluster.dentry_slot(target.parent.id, &target.name);
        let made_number = view.snapshot.mapping().unused_number(self.session())?;
        let file = FileId::new(made_number, slot);
        let NewFile { mode, chunk_size, group } = *wanted;
        let (uid, gid) = (self.user().uid, group.unwrap_or(self.user().gid));
        let change = Change::Create(Made { mode, chunk_size, uid, gid });
        let time = self.reactor.wall_clock();
        let submission = Submission { parent: target.parent.id, name: &target.name, file, time, change };
        let pending = view.snapshot.step(|snapshot| snapshot.begin(&submission)).await?;
        view.snapshot.step(|snapshot| snapshot.hold(file)).await?;
        let number = view.snapshot.commit_made(pending, made_number).await?;
        let inode = CellVersion::unread(view.snapshot.mapping());
        let hazard = view.snapshot.take_hazard()?;
        self.note_open_held(file, HeldFile { hazard, inode, made: Some((self.session(), number)) });
        let layout = self.cluster.layout_for(slot, &LayoutWish::of_chunk_size(chunk_size));
        Some(Attributes::of_new(file, Kind::File, mode, (uid, gid), time, layout))
    }

    /// Removes a name, as its server shows it now, without waiting for the server: the change is made when this returns
    /// true. False if the server has to be asked.
    pub(crate) async fn submit_unlink(&self, server: u32, target: &EntryTarget) -> bool {
        self.try_submit_unlink(server, target).await.is_some()
    }

    async fn try_submit_unlink(&self, server: u32, target: &EntryTarget) -> Option<u64> {
        self.begin_look().await;
        let mut view = self.view(server)?;
        view.step(|view| view.tree(target.known)).await?;
        let named = view.name(target).await?;
        let file = named.file;
        if self.cluster.home_of(file)? != server {
            return None;
        }
        view.step(|view| view.inode(named)).await?;
        view.snapshot.step(|snapshot| snapshot.unwritten(file)).await?;
        let (parent, name, time) = (target.parent.id, &target.name[..], self.reactor.wall_clock());
        let submission = Submission { parent, name, file, time, change: Change::Unlink };
        let pending = view.snapshot.step(|snapshot| snapshot.begin(&submission)).await?;
        view.snapshot.commit(pending).await
    }

    /// A snapshot in which writes to a file may be submitted to a server, as it shows now.
    pub(crate) async fn writable(&self, server: u32, file: FileId) -> Option<Snapshot<'_>> {
        self.begin_look().await;
        let mut view = self.view(server)?;
        view.step(|view| view.permission(file, writable_words(file))).await?;
        let mapping = view.snapshot.mapping();
        // In simulations they are written otherwise as well, so that everything is met.
        let is_wanted = !mapping.is_simulated() || self.reactor.random().is_multiple_of(2);
        (is_wanted && mapping.may_be_registered()).then_some(view.snapshot)
    }
}
