//! Looking at files without asking: what a server of this machine shows in its attribute cache
//! (docs/attribute-cache.md).
//!
//! A name is looked for in the cells that its hash leads to, then its inode in the cell of that one's sequence. If at
//! the end the name's cell is still the one that was read, and the tree of directories the one that the path was
//! resolved in, then all of it was so at the moment at which the inode was read: just what the server would have told
//! at that moment. Whatever is not found is asked for.
//!
//! Invariants
//! 1. What was read counts only once all that it rests on has been looked at again.
//! 2. Now and then the loop turns, so that a connection that has ended is noticed; more seldom a question is asked all
//!    the same, so that what waits for something to ride along with gets on its way.

use crate::file::OpenHow;
use crate::open_files::{HeldFile, NO_VERSION};
use crate::resolve::EntryTarget;
use crate::servers::Servers;
use reactor::{CellPlace, StoreMapping};
use std::rc::Rc;
use wire::attribute_cache::{
    AttributeCacheShape, FirstBytes, INODE_WORDS, NAME_WORDS, NameCell, attributes_in, directory_words, first_bytes_in,
    tree_word, writable_words,
};
use wire::identity::dentry_hash;
use wire::messages::KNOWN_UNCHECKED;
use wire::submission::{Change, Made, Submission, file_intent_lock, name_intent_lock};
use wire::{Attributes, FileId, Kind};

/// Looks in a row before the loop turns, and before a server is asked (invariant 2).
const LOOKS_MAX: u32 = 256;
const LOOKS_UNTIL_ASKED: u32 = 16 * LOOKS_MAX;
/// Longest pauses between two steps in simulations: what others do meanwhile, and now and then somebody who is not let
/// run for long.
const SIMULATED_PAUSE_NS: u64 = 50_000;
const SIMULATED_REST_NS: u64 = 20_000_000;

/// A server's attribute cache, and how it is laid out.
struct ServerAttributeCache {
    mapping: Rc<StoreMapping>,
    shape: AttributeCacheShape,
}

impl ServerAttributeCache {
    /// Reads the cell of a name and says which file it leads to.
    fn name(&self, target: &EntryTarget) -> Option<NameFound> {
        let (parent, name) = (target.parent.id, &target.name[..]);
        let wanted = NameCell::new(parent, name, FileId::default())?;
        let hash = dentry_hash(parent, name);
        if self.mapping.is_locked(name_intent_lock(hash)) {
            return None;
        }
        let mut words = [0; NAME_WORDS];
        self.shape.name_offsets(hash).into_iter().find_map(|offset| {
            let place = CellPlace { offset, words: NAME_WORDS };
            let version = self.mapping.read_cell(place, &mut words)?;
            Some(NameFound { file: wanted.file_in(&words)?, cell: (place, version) })
        })
    }

    fn inode(&self, file: FileId) -> Option<InodeFound> {
        if self.mapping.is_locked(file_intent_lock(file)) || self.mapping.is_written(file_intent_lock(file)) {
            return None;
        }
        let place = CellPlace { offset: self.shape.inode_offset(file), words: INODE_WORDS };
        let mut words = [0; INODE_WORDS];
        let version = self.mapping.read_cell(place, &mut words)?;
        let attributes = attributes_in(&words, file)?;
        Some(InodeFound { attributes, first: first_bytes_in(&words), cell: (place, version) })
    }

    /// Whether there is no name with this hash, as far as the buckets tell.
    fn lacks_name(&self, hash: u64) -> bool {
        let is_empty = |(offset, shift)| self.mapping.word(offset).is_some_and(|word| (word >> shift) as u8 == 0);
        self.shape.buckets_of(hash).into_iter().any(is_empty)
    }

    /// The cell of a directory in which names may be made.
    fn directory(&self, directory: FileId) -> Option<CellSeen> {
        let place = CellPlace { offset: self.shape.directory_offset(directory), words: INODE_WORDS };
        let mut words = [0; 2];
        let version = self.mapping.read_cell(place, &mut words)?;
        (words == directory_words(directory)).then_some((place, version))
    }

    /// The cell of a file to which writes may be submitted.
    fn writable(&self, file: FileId) -> Option<CellSeen> {
        let place = CellPlace { offset: self.shape.directory_offset(file), words: INODE_WORDS };
        let mut words = [0; 2];
        let version = self.mapping.read_cell(place, &mut words)?;
        (words == writable_words(file)).then_some((place, version))
    }

    /// Whether a name still leads to the file, on the path by which it was resolved.
    fn leads(&self, target: &EntryTarget, name: &NameFound) -> bool {
        self.mapping.is_same_cell(name.cell.0, name.cell.1) && self.has_tree(target.known)
    }

    /// Whether the tree of directories is as it was after change `known`, and none is under way.
    fn has_tree(&self, known: u64) -> bool {
        self.life(known).is_some()
    }

    /// The number of the life in which the server shows the tree so.
    fn life(&self, known: u64) -> Option<u64> {
        let place = CellPlace { offset: self.shape.tree_offset(), words: NAME_WORDS };
        let mut words = [0; 2];
        self.mapping.read_cell(place, &mut words)?;
        (known == KNOWN_UNCHECKED || words[0] == tree_word(known)).then_some(words[1])
    }
}

/// A cell, and the version that it had.
pub(crate) type CellSeen = (CellPlace, u64);

/// A name's cell as it was read.
struct NameFound {
    file: FileId,
    cell: CellSeen,
}

/// An inode's cell as it was read.
struct InodeFound {
    attributes: Attributes,
    first: FirstBytes,
    cell: CellSeen,
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
    /// A server's attribute cache, unless it is time to ask.
    async fn attribute_cache(&self, server: u32) -> Option<ServerAttributeCache> {
        let looks = self.looks.get() + 1;
        self.looks.set(looks % LOOKS_UNTIL_ASKED);
        if looks.is_multiple_of(LOOKS_MAX) {
            self.reactor.yield_now().await;
        }
        let mapping = self.channel(server).mapping()?;
        let shape = AttributeCacheShape::of_size(mapping.attribute_cache_size())?;
        (looks < LOOKS_UNTIL_ASKED).then_some(ServerAttributeCache { mapping, shape })
    }

    /// The attributes of a file, as its name's server and its home show them now. Nothing if one of them has to be
    /// asked.
    pub(crate) async fn cached_entry(&self, server: u32, target: &EntryTarget) -> Option<Attributes> {
        let attribute_cache = self.attribute_cache(server).await?;
        if !attribute_cache.has_tree(target.known) {
            return None;
        }
        let name = attribute_cache.name(target)?;
        let attributes = match self.cluster.home_of(name.file)? {
            home if home == server => {
                self.simulated_pause(&attribute_cache.mapping).await;
                attribute_cache.inode(name.file)?.attributes
            }
            home => self.cached_inode(home, name.file).await?,
        };
        self.simulated_pause(&attribute_cache.mapping).await;
        attribute_cache.leads(target, &name).then_some(attributes)
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
        let attribute_cache = self.attribute_cache(server).await?;
        if !attribute_cache.has_tree(target.known) {
            return None;
        }
        let file = attribute_cache.name(target)?;
        if self.cluster.home_of(file.file)? != server {
            return None;
        }
        self.simulated_pause(&attribute_cache.mapping).await;
        let InodeFound { attributes, first, cell } = attribute_cache.inode(file.file)?;
        if !self.user().may(&attributes, access) {
            return None;
        }
        attributes.layout.check(self.cluster.slot_count).ok()?;
        self.simulated_pause(&attribute_cache.mapping).await;
        let held = attribute_cache.mapping.hold(file.file.0)?;
        self.simulated_pause(&attribute_cache.mapping).await;
        // From here on nothing is awaited.
        let stands = attribute_cache.life(target.known).is_some_and(|life| held.stands(life));
        if stands
            && self.is_current(server, &attribute_cache.mapping)
            && attribute_cache.mapping.is_same_cell(cell.0, cell.1)
            && attribute_cache.leads(target, &file)
        {
            self.note_first_bytes(file.file, &attribute_cache.mapping, first, cell);
            self.note_open_held(file.file, HeldFile { held, mapping: attribute_cache.mapping, cell, made: None });
            return Some(attributes);
        }
        self.let_go_of(server, file.file, held);
        None
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
        let attribute_cache = self.attribute_cache(server).await?;
        let hash = dentry_hash(target.parent.id, &target.name);
        let directory = attribute_cache.directory(target.parent.id)?;
        if !attribute_cache.lacks_name(hash) || attribute_cache.mapping.is_locked(name_intent_lock(hash)) {
            return None;
        }
        self.simulated_pause(&attribute_cache.mapping).await;
        // From here on nothing else of this client gets the same number, until it is used.
        let slot = self.cluster.dentry_slot(target.parent.id, &target.name);
        let made_number = attribute_cache.mapping.unused_number(self.session())?;
        let file = FileId::new(made_number, slot);
        let NewFile { mode, chunk_size, group } = *wanted;
        let (uid, gid) = (self.user().uid, group.unwrap_or(self.user().gid));
        let change = Change::Create(Made { mode, chunk_size, uid, gid });
        let time = self.reactor.wall_clock();
        let submission = Submission { parent: target.parent.id, name: &target.name, file, time, change };
        let (words, intent_locks) = (submission.words()?, submission.intent_locks());
        let pending = attribute_cache.mapping.begin_submission(self.session(), intent_locks, &words)?;
        self.simulated_pause(&attribute_cache.mapping).await;
        let held = attribute_cache.mapping.hold(file.0)?;
        let stands = self.is_current(server, &attribute_cache.mapping)
            && attribute_cache.life(target.known).is_some_and(|life| held.stands(life))
            && attribute_cache.lacks_name(hash)
            && attribute_cache.mapping.is_same_cell(directory.0, directory.1);
        self.simulated_pause(&attribute_cache.mapping).await;
        let number = if stands { pending.commit_made(made_number)? } else { return None };
        let place = CellPlace { offset: attribute_cache.shape.inode_offset(file), words: INODE_WORDS };
        self.note_open_held(
            file,
            HeldFile {
                held,
                mapping: attribute_cache.mapping,
                cell: (place, NO_VERSION),
                made: Some((self.session(), number)),
            },
        );
        let layout = self.cluster.layout_for(slot, chunk_size);
        Some(Attributes::of_new(file, Kind::File, mode, (uid, gid), time, layout))
    }

    /// Removes a name, as its server shows it now, without waiting for the server: the change is made when this returns
    /// true. False if the server has to be asked.
    pub(crate) async fn submit_unlink(&self, server: u32, target: &EntryTarget) -> bool {
        self.try_submit_unlink(server, target).await.unwrap_or(false)
    }

    async fn try_submit_unlink(&self, server: u32, target: &EntryTarget) -> Option<bool> {
        let attribute_cache = self.attribute_cache(server).await?;
        let name = attribute_cache.name(target)?;
        if self.cluster.home_of(name.file)? != server {
            return None;
        }
        let inode = attribute_cache.inode(name.file)?;
        let time = self.reactor.wall_clock();
        let submission =
            Submission { parent: target.parent.id, name: &target.name, file: name.file, time, change: Change::Unlink };
        let (words, intent_locks) = (submission.words()?, submission.intent_locks());
        self.simulated_pause(&attribute_cache.mapping).await;
        let pending = attribute_cache.mapping.begin_submission(self.session(), intent_locks, &words)?;
        self.simulated_pause(&attribute_cache.mapping).await;
        let stands = self.is_current(server, &attribute_cache.mapping)
            && attribute_cache.leads(target, &name)
            && !attribute_cache.mapping.is_written(file_intent_lock(name.file))
            && attribute_cache.mapping.is_same_cell(inode.cell.0, inode.cell.1);
        self.simulated_pause(&attribute_cache.mapping).await;
        Some(stands && pending.commit().is_some())
    }

    /// Where writes to a file may be submitted to a server, as it shows now, and the cell that says so.
    pub(crate) async fn writable(&self, server: u32, file: FileId) -> Option<(Rc<StoreMapping>, CellSeen)> {
        let attribute_cache = self.attribute_cache(server).await?;
        let cell = attribute_cache.writable(file)?;
        // In simulations they are written otherwise as well, so that everything is met.
        let is_wanted = !attribute_cache.mapping.is_simulated() || self.reactor.random().is_multiple_of(2);
        (is_wanted && attribute_cache.mapping.may_be_registered()).then_some((attribute_cache.mapping, cell))
    }

    /// The attributes of a file that has a name, as its home shows them now. Nothing if that has to be asked.
    pub(crate) async fn cached_inode(&self, home: u32, file: FileId) -> Option<Attributes> {
        let attribute_cache = self.attribute_cache(home).await?;
        self.simulated_pause(&attribute_cache.mapping).await;
        Some(attribute_cache.inode(file)?.attributes)
    }

    /// Others do something meanwhile, as the processors of a real machine would.
    pub(crate) async fn simulated_pause(&self, mapping: &StoreMapping) {
        if mapping.is_simulated() {
            let draw = self.reactor.random();
            let longest = if draw.is_multiple_of(8) { SIMULATED_REST_NS } else { SIMULATED_PAUSE_NS };
            self.reactor.sleep((draw >> 8) % longest).await;
        }
    }
}
