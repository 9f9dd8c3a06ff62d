//! Names and files that clients of this machine see in this server's attribute cache without asking
//! (docs/shared-memory.md).
//!
//! All names are in it, and the inodes of all files are, which lie there and nowhere else. What they say is believed of
//! files whose attributes this server knows alone: nobody has announced that he may know more, and no change of the
//! name or of the number of names is under way. Everything else is asked for.
//!
//! Invariants
//! 1. What a change concerns is believed no more before anything of the change can be seen, and again when all of it is
//!    done (`Core::commit`). So whoever believes it has what a request would have been told at that moment, and whoever
//!    does not, asks, and is answered between two changes.
//! 2. What is locked is not believed, and who looks for a name that is locked does not find that it is missing.
//! 3. The tree's cell is empty while a change of the tree is under way here, and has the number of the last one else.

use crate::backing::table::Standing;
use crate::files::inodes::Inode;
use crate::files::rights::has_dropped_bits;
use crate::journal::records::Record;
use crate::journal::tables::Tables;
use crate::names::locks::Locks;
use crate::publish::blocks::{Blocks, InodeIndex};
use crate::publish::table::SharedTable;
use crate::tree::Tree;
use reactor::{AttributeCache, CacheFault, CellPlace};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use wire::attribute_cache::{
    CELL_WORDS, CELLS_PER_BLOCK, FIRST_SIZE_WORD, FileCell, FirstBytes, LINE_WORDS, NameState, Table, TableKey,
    directory_words, first_bytes_in, inode_in, is_published, publication, tree_word, writable_words,
};
use wire::identity::dentry_hash;
use wire::{Attributes, FileId, Kind};

/// A name that leads to a file; `hash` is its `dentry_hash`.
#[derive(Clone, Copy)]
pub struct PublishedName<'a> {
    pub parent: FileId,
    pub name: &'a [u8],
    pub file: FileId,
    pub hash: u64,
}

/// Most names, and files, that are remembered of one change: what else it puts is shown when it is asked for.
const CHANGES_MAX: usize = 2;

/// What a change puts.
#[derive(Default)]
pub struct Changes<'a> {
    names: [Option<PublishedName<'a>>; CHANGES_MAX],
    files: [Option<PublishedFile>; CHANGES_MAX],
}

/// A file whose inode is put.
#[derive(Clone, Copy)]
pub struct PublishedFile {
    pub file: FileId,
    /// Whether there is nothing to find out: nobody else knows of it, and nothing is in it.
    pub is_plain: bool,
}

impl<'a> Changes<'a> {
    fn note_name(&mut self, name: PublishedName<'a>) {
        if let Some(place) = self.names.iter_mut().find(|place| place.is_none()) {
            *place = Some(name);
        }
    }

    fn note_file(&mut self, inode: &Inode) {
        let attributes = &inode.attributes;
        let is_plain = inode.is_plain() && attributes.link_count > 0 && attributes.size == 0;
        if let Some(place) = self.files.iter_mut().find(|place| place.is_none()) {
            *place = Some(PublishedFile { file: attributes.id, is_plain });
        }
    }

    /// A file whose inode is put changes once more.
    fn note_more(&mut self, file: FileId) {
        let same = self.files.iter_mut().flatten().filter(|known| known.file == file);
        same.for_each(|known| known.is_plain = false);
    }

    pub fn names(&self) -> impl Iterator<Item = &PublishedName<'a>> {
        self.names.iter().flatten()
    }

    pub fn files(&self) -> impl Iterator<Item = &PublishedFile> {
        self.files.iter().flatten()
    }
}

/// See the module.
pub struct Publisher {
    blocks: Rc<Blocks>,
    names: SharedTable,
    inodes: Rc<InodeIndex>,
    /// Cells for names that lead to files elsewhere.
    elsewhere: RefCell<Vec<u64>>,
    life: u64,
    late_error: Cell<u64>,
}

impl Publisher {
    /// What is shown in an attribute cache in the life of some number, in `block_count_max` blocks at most; nothing if
    /// that has no room.
    pub fn on(attribute_cache: &Rc<AttributeCache>, life: u64, block_count_max: u64) -> Option<Rc<Publisher>> {
        let blocks = Blocks::of(attribute_cache, block_count_max)?;
        let names = SharedTable::new(&blocks, Table::Names)?;
        let inodes = InodeIndex::new(&blocks)?;
        let (elsewhere, late_error) = (RefCell::default(), Cell::new(0));
        Some(Rc::new(Publisher { blocks, names, inodes, elsewhere, life, late_error }))
    }

    fn cache(&self) -> &AttributeCache {
        self.blocks.cache()
    }

    /// Where the inodes lie.
    pub fn inodes(&self) -> &Rc<InodeIndex> {
        &self.inodes
    }

    fn tree_place(&self) -> CellPlace {
        CellPlace { offset: self.blocks.shape().tree_offset(), words: LINE_WORDS }
    }

    fn cell_place(&self, cell: u64) -> CellPlace {
        CellPlace { offset: self.blocks.shape().cell_offset(cell), words: CELL_WORDS }
    }

    fn change_name(&self, key: TableKey, change: impl FnOnce(Option<NameState>) -> Option<NameState>) {
        let change = |value: Option<u64>| {
            let before = value.map(NameState::of_value);
            let after = change(before);
            if let Some(NameState::Elsewhere(cell)) = before.filter(|_| before != after) {
                self.elsewhere.borrow_mut().push(cell);
            }
            after.map(NameState::value)
        };
        self.names.change(key, change);
    }

    /// There is a name; nobody believes yet what it leads to.
    pub fn add_name(&self, key: TableKey) {
        self.change_name(key, |state| match state {
            None => Some(NameState::Exists),
            Some(NameState::Locked { .. }) => Some(NameState::Locked { exists: true }),
            known => known,
        });
    }

    /// There is no such name.
    pub fn remove_name(&self, key: TableKey) {
        if self.cache().has_fault(CacheFault::KeepsEverything) {
            return;
        }
        self.change_name(key, |state| match state {
            Some(NameState::Locked { .. }) => Some(NameState::Locked { exists: false }),
            _ => None,
        });
    }

    /// A change of several servers has a name, whether or not it is there.
    pub fn lock_name(&self, key: TableKey) {
        self.change_name(key, |state| {
            let exists = !matches!(state, None | Some(NameState::Locked { exists: false }));
            Some(NameState::Locked { exists })
        });
    }

    /// It has it no more.
    pub fn unlock_name(&self, key: TableKey) {
        self.change_name(key, |state| match state {
            Some(NameState::Locked { exists: true }) => Some(NameState::Exists),
            Some(NameState::Locked { exists: false }) => None,
            known => known,
        });
    }

    /// A name leads to a file that needs not be asked for, unless it is locked.
    pub fn publish_name(&self, name: &PublishedName<'_>) {
        let key = TableKey::of_hashed_name(name.hash, name.parent, name.name);
        self.change_name(key, |state| match state {
            Some(NameState::Exists) => Some(match self.inodes.get(name.file) {
                Some(cell) => NameState::Here(FileCell::new(name.file, cell)),
                None => self.note_elsewhere(name.file).map_or(NameState::Exists, NameState::Elsewhere),
            }),
            known => known,
        });
    }

    /// A cell that begins with the id of a file; nothing if there is no room.
    fn note_elsewhere(&self, file: FileId) -> Option<u64> {
        let mut free = self.elsewhere.borrow_mut();
        if free.is_empty() {
            let block = self.blocks.take()?;
            free.extend((block * CELLS_PER_BLOCK..(block + 1) * CELLS_PER_BLOCK).rev());
        }
        let cell = free.pop()?;
        self.cache().put(self.cell_place(cell), &[file.0]);
        Some(cell)
    }

    /// Has what is shown of a name fetched, which is about to be changed.
    pub fn prefetch_name(&self, parent: FileId, name: &[u8], hash: u64) {
        self.names.prefetch(TableKey::of_hashed_name(hash, parent, name));
    }

    /// The same of a file.
    pub fn prefetch_inode(&self, file: FileId) {
        self.inodes.prefetch(file);
        self.cache().prefetch(self.permission_place(file));
    }

    /// The cell of an inode, if it has one here.
    fn inode_place(&self, file: FileId) -> Option<CellPlace> {
        self.inodes.get(file).map(|cell| self.cell_place(cell))
    }

    /// A file is so, as far as anybody knows.
    pub fn publish_inode(&self, inode: &Inode, first: FirstBytes, locks: &Locks) {
        let attributes = &inode.attributes;
        let is_whole = attributes.kind == Kind::File && attributes.link_count > 0 && !inode.is_announced();
        if is_whole && locks.of_inode(attributes.id).is_none() {
            self.set_published(attributes.id, Some(first));
        }
    }

    /// A file without anything in it is so, and nobody else knows of it.
    pub fn publish_empty_inode(&self, file: FileId, locks: &Locks) {
        if locks.of_inode(file).is_none() {
            self.set_published(file, Some(FirstBytes::default()));
        }
    }

    /// Has what an inode's cell says believed from now on, or no more.
    fn set_published(&self, file: FileId, first: Option<FirstBytes>) {
        let Some(place) = self.inode_place(file) else { return };
        let second = self.cache().cell_word(place, 1);
        let words = publication(second, first);
        if first.is_some_and(|first| first.size > 0 || self.cache().cell_word(place, FIRST_SIZE_WORD) > 0) {
            self.cache().put_words(place, &words);
        } else if first.is_some() || is_published(second) {
            self.cache().put_words(place, &words[..1]);
        }
    }

    /// Nobody believes what an inode's cell says, nor where its first bytes are, which may go.
    fn forget_first_bytes(&self, file: FileId) {
        let Some(place) = self.inode_place(file) else { return };
        if self.cache().cell_word(place, FIRST_SIZE_WORD) > 0 && !self.cache().has_fault(CacheFault::KeepsEverything) {
            self.cache().put_words(place, &publication(self.cache().cell_word(place, 1), None));
        }
    }

    /// A name that was just told needs not be asked for again.
    pub fn note_told(&self, (parent, name): (FileId, &[u8]), inode: &Inode) {
        if inode.attributes.kind == Kind::File {
            let hash = dentry_hash(parent, name);
            self.publish_name(&PublishedName { parent, name, file: inode.attributes.id, hash });
        }
    }

    /// Whether a file is worth to be published: it is not, and has a cell.
    pub fn lacks_inode(&self, inode: &Inode) -> bool {
        inode.attributes.kind == Kind::File
            && self
                .inode_place(inode.attributes.id)
                .is_some_and(|place| !is_published(self.cache().cell_word(place, 1)))
    }

    /// Nobody believes any more what a name leads to. Returns the hash of the name.
    pub fn invalidate_name(&self, parent: FileId, name: &[u8]) -> u64 {
        let key = TableKey::of_name(parent, name);
        if !self.cache().has_fault(CacheFault::KeepsEverything) {
            self.change_name(key, |state| match state {
                Some(NameState::Elsewhere(_) | NameState::Here(_)) => Some(NameState::Exists),
                known => known,
            });
        }
        key.hash
    }

    /// Nobody believes any more what a file's cell says.
    pub fn invalidate_inode(&self, file: FileId) {
        if !self.cache().has_fault(CacheFault::KeepsEverything) {
            self.set_published(file, None);
        }
    }

    /// Takes away what a record is going to change, and notes what is to be put when that is done.
    pub fn invalidate<'a>(&self, record: &Record<'a>, changes: &mut Changes<'a>) {
        match *record {
            Record::DentryPut { parent, name, id, kind } => {
                let hash = self.invalidate_name(parent, name);
                if kind == Kind::File {
                    changes.note_name(PublishedName { parent, name, file: id, hash });
                }
            }
            Record::DentryDelete { parent, name } => drop(self.invalidate_name(parent, name)),
            Record::InodePut(ref inode) => {
                self.invalidate_inode(inode.attributes.id);
                changes.note_file(inode);
                if has_dropped_bits(inode.attributes.mode) {
                    self.invalidate_writable(inode.attributes.id);
                }
            }
            Record::InodeDelete(file) => {
                self.invalidate_inode(file);
                self.invalidate_writable(file);
            }
            // Bytes of it have to be fetched from now on.
            Record::StandingPut { file, standing: Standing::Absent, .. } => {
                self.forget_first_bytes(file);
                self.invalidate_writable(file);
            }
            Record::FileAnnounced { file, .. } => {
                self.invalidate_inode(file);
                changes.note_more(file);
            }
            // Nobody makes anything in a directory that goes, or may.
            // Nor by himself in one where he can't know what is missing.
            Record::MarkPut { directory, .. } | Record::Tombstone(directory) | Record::Unlisted(directory) => {
                self.invalidate_directory(directory);
            }
            Record::TreeMark { .. } | Record::TreeSettled(_) | Record::TreeLog(_) => self.invalidate_tree(),
            _ => {}
        }
    }

    /// Names may be made in a directory as far as this server is concerned: its home knows of the share here, and it is
    /// not being removed.
    pub fn publish_directory(&self, directory: FileId) {
        if !self.has_directory(directory) {
            self.cache().put(self.permission_place(directory), &directory_words(directory));
        }
    }

    fn permission_place(&self, of: FileId) -> CellPlace {
        CellPlace { offset: self.blocks.shape().permission_offset(of), words: LINE_WORDS }
    }

    fn has_directory(&self, directory: FileId) -> bool {
        let mut words = [0; 2];
        self.cache().get(self.permission_place(directory), &mut words) && words == directory_words(directory)
    }

    /// From now on who makes a name in the directory asks.
    pub fn invalidate_directory(&self, directory: FileId) {
        if self.has_directory(directory) {
            self.cache().clear(self.permission_place(directory));
        }
    }

    /// Writes to a file may be submitted: nothing has to be done before one here.
    pub fn publish_writable(&self, file: FileId) {
        if !self.is_writable(file) {
            self.cache().put(self.permission_place(file), &writable_words(file));
        }
    }

    fn is_writable(&self, file: FileId) -> bool {
        let mut words = [0; 2];
        self.cache().get(self.permission_place(file), &mut words) && words == writable_words(file)
    }

    /// From now on who writes to the file asks.
    pub fn invalidate_writable(&self, file: FileId) {
        if self.is_writable(file) {
            self.cache().clear(self.permission_place(file));
        }
    }

    /// Until the tree is put again, nobody is sure of a path.
    pub fn invalidate_tree(&self) {
        self.cache().clear(self.tree_place());
    }

    /// The tree is so.
    pub fn publish_tree(&self, tree: &Tree) {
        match tree.passing() {
            Some(number) => {
                let words = [tree_word(number), self.life, self.late_error.get()];
                self.cache().put(self.tree_place(), &words);
            }
            None => self.invalidate_tree(),
        }
    }

    /// Notes the number of the last error that was learnt of late, which is shown beside the tree.
    pub fn publish_late_error(&self, number: u64, tree: &Tree) {
        self.late_error.set(number);
        self.publish_tree(tree);
    }

    /// What is in the attribute cache and not so, in words; `first_bytes` tells where those of a file are, `is_kept`
    /// whether something has to be done before a name is made in a directory, `takes_writes` that nothing has to be
    /// before a file is written to. For checks, between two changes.
    pub fn contradictions(
        &self,
        tables: &Tables,
        first_bytes: impl Fn(&Attributes) -> FirstBytes,
        is_kept: impl Fn(FileId) -> bool,
        takes_writes: impl Fn(FileId) -> bool,
    ) -> Vec<String> {
        let mut errors = self.contradictory_names(tables);
        errors.extend(self.contradictory_inodes(tables, first_bytes));
        let mut words = [0; 2];
        for offset in self.blocks.shape().permission_offsets() {
            if !self.cache().get(CellPlace { offset, words: LINE_WORDS }, &mut words) {
                continue;
            }
            let file = FileId(words[0]);
            if words == directory_words(file) && is_kept(file) {
                errors.push(format!("directory {file} is published as one to make names in, but is not"));
            }
            if words == writable_words(file) && !takes_writes(file) {
                errors.push(format!(
                    "file {file} is published as one that takes writes, but something has to be done before"
                ));
            }
        }
        let mut word = [0];
        let tree = self.cache().get(self.tree_place(), &mut word).then_some(word[0]);
        if tree.is_some() && tree != tables.tree.passing().map(tree_word) {
            errors.push("the tree is published as it was before the last change".to_owned());
        }
        errors
    }

    fn contradictory_names(&self, tables: &Tables) -> Vec<String> {
        let mut errors = Vec::new();
        let mut expected = BTreeMap::new();
        tables.names.for_each(&mut |parent, entry| {
            let locked = tables.locks.of_dentry(parent, entry.name).is_some();
            let state = if locked { NameState::Locked { exists: true } } else { NameState::Exists };
            let file = (entry.kind == Kind::File && !locked).then_some(entry.id);
            expected.insert(TableKey::of_name(parent, entry.name), (state, file));
        });
        tables.locks.for_each_dentry(&mut |parent, name| {
            let locked = (NameState::Locked { exists: false }, None);
            expected.entry(TableKey::of_name(parent, name)).or_insert(locked);
        });
        let mut seen = BTreeSet::new();
        for (key, value) in self.names.entries() {
            let state = NameState::of_value(value);
            match expected.get(&key) {
                Some((known, _)) if state == *known => {}
                Some((_, Some(file))) if self.leads_to(state, *file) => {}
                // It was left out, and has found room when it was locked.
                Some(_) if matches!(state, NameState::Locked { .. }) && self.names.may_lack(key) => {}
                known => errors.push(format!("a name is published as {state:?}, but is {known:?}")),
            }
            if !seen.insert(key) {
                errors.push(format!("a name that is {state:?} is published twice"));
            }
            if self.names.get(key) != Some(value) {
                errors.push(format!("a name that is {state:?} is not where it is looked for"));
            }
        }
        let lacking = expected.iter().filter(|(key, _)| !seen.contains(*key) && !self.names.may_lack(**key));
        errors.extend(lacking.map(|(_, (state, _))| format!("a name that is {state:?} is not in the attribute cache")));
        errors
    }

    fn contradictory_inodes(&self, tables: &Tables, first_bytes: impl Fn(&Attributes) -> FirstBytes) -> Vec<String> {
        let mut errors = Vec::new();
        let mut seen = BTreeSet::new();
        for (key, value) in self.inodes.table().entries() {
            let words = self.cache().words(self.cell_place(value - 1));
            let file = FileId(words[0]);
            if TableKey::of_inode(file) != key || !seen.insert(file) {
                errors.push(format!("the cell of inode {file} is that of another one, or there is a second one"));
            }
            let inode = tables.inodes.get(file);
            let is_so = inode.as_ref().is_some_and(|inode| {
                let first = first_bytes_in(&words);
                let is_there = first.size == 0 || first == first_bytes(&inode.attributes);
                inode_in(&words).as_ref() == Some(&inode.attributes) && is_there
            });
            let is_fit = |inode: &Inode| !inode.is_announced() && inode.attributes.link_count > 0;
            let may_be_shown = inode.as_ref().is_some_and(is_fit) && tables.locks.of_inode(file).is_none();
            if !is_so || (is_published(words[1]) && !may_be_shown) {
                errors.push(format!("inode {file} is published otherwise than it is, or locked"));
            }
        }
        errors
    }

    /// Whether that is what is said of a name that leads to a file.
    fn leads_to(&self, state: NameState, file: FileId) -> bool {
        match state {
            NameState::Elsewhere(cell) => self.cache().cell_word(self.cell_place(cell), 0) == file.0,
            NameState::Here(cell) => cell.is_of(file) && self.inodes.get(file) == Some(cell.cell()),
            _ => false,
        }
    }
}
