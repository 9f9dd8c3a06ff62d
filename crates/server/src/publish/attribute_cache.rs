//! Names and files that clients of this machine see in this server's attribute cache without asking
//! (docs/attribute-cache.md).
//!
//! Only files are shown, with names that are not too long, whose attributes this server knows alone: nobody has
//! announced that he may know more, and no change of the name or of the number of names is under way. Everything else
//! is asked for.
//!
//! Invariants
//! 1. What a change concerns leaves the attribute cache before anything of the change can be seen, and comes back when
//!    all of it is done (`Core::commit`). So whoever finds it has what a request would have been told at that moment,
//!    and whoever does not, asks, and is answered between two changes.
//! 2. What is locked is not in the attribute cache.
//! 3. The tree's cell is empty while a change of the tree is under way here, and has the number of the last one else.

use crate::files::inodes::Inode;
use crate::files::rights::has_dropped_bits;
use crate::journal::records::Record;
use crate::journal::tables::Tables;
use crate::names::cursor_of;
use crate::names::locks::Locks;
use crate::tree::Tree;
use reactor::{AttributeCache, CellPlace};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use wire::attribute_cache::{
    AttributeCacheShape, BUCKET_FULL, FirstBytes, INODE_WORDS, NAME_WAYS, NAME_WORDS, NameCell, attributes_in,
    directory_words, first_bytes_in, inode_words, tree_word, writable_words,
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
    files: [Option<FileId>; CHANGES_MAX],
}

impl<'a> Changes<'a> {
    fn note_name(&mut self, name: PublishedName<'a>) {
        if let Some(place) = self.names.iter_mut().find(|place| place.is_none()) {
            *place = Some(name);
        }
    }

    fn note_file(&mut self, file: FileId) {
        if let Some(place) = self.files.iter_mut().find(|place| place.is_none()) {
            *place = Some(file);
        }
    }

    pub fn names(&self) -> impl Iterator<Item = &PublishedName<'a>> {
        self.names.iter().flatten()
    }

    pub fn files(&self) -> impl Iterator<Item = FileId> {
        self.files.iter().flatten().copied()
    }
}

/// See the module.
pub struct Publisher {
    attribute_cache: Rc<AttributeCache>,
    shape: AttributeCacheShape,
    life: u64,
    /// For encoding attributes.
    buffer: RefCell<Vec<u8>>,
}

impl Publisher {
    /// What is shown in an attribute cache in the life of some number; nothing if that has no room.
    pub fn on(attribute_cache: &Rc<AttributeCache>, life: u64) -> Option<Rc<Publisher>> {
        let shape = AttributeCacheShape::of_size(attribute_cache.size())?;
        Some(Rc::new(Publisher { attribute_cache: attribute_cache.clone(), shape, life, buffer: RefCell::default() }))
    }

    fn name_places(&self, hash: u64) -> [CellPlace; NAME_WAYS] {
        self.shape.name_offsets(hash).map(|offset| CellPlace { offset, words: NAME_WORDS })
    }

    /// The cell that a name is in.
    fn find_name(&self, cell: &NameCell, hash: u64) -> Option<CellPlace> {
        let mut words = [0; NAME_WORDS];
        self.name_places(hash)
            .into_iter()
            .find(|place| self.attribute_cache.get(*place, &mut words) && cell.file_in(&words).is_some())
    }

    fn inode_place(&self, file: FileId) -> CellPlace {
        CellPlace { offset: self.shape.inode_offset(file), words: INODE_WORDS }
    }

    fn tree_place(&self) -> CellPlace {
        CellPlace { offset: self.shape.tree_offset(), words: NAME_WORDS }
    }

    /// Whether anybody may look: until then there is nothing on it.
    pub fn is_seen(&self) -> bool {
        self.attribute_cache.is_published()
    }

    /// A name that is not in the attribute cache leads to a file.
    pub fn publish_name(&self, name: &PublishedName<'_>, locks: &Locks) {
        if !self.is_seen() || locks.of_dentry(name.parent, name.name).is_some() {
            return;
        }
        if let Some(cell) = NameCell::new(name.parent, name.name, name.file) {
            let places = self.name_places(name.hash);
            let free = places.into_iter().find(|place| !self.attribute_cache.get(*place, &mut []));
            self.attribute_cache.put(free.unwrap_or(places[AttributeCacheShape::taken_way(name.hash)]), cell.words());
        }
    }

    /// Has the first cell of a name fetched, which is about to be changed.
    pub fn prefetch_name(&self, hash: u64) {
        if self.is_seen() {
            self.attribute_cache.prefetch(self.name_places(hash)[0]);
        }
    }

    /// The same of its buckets.
    pub fn prefetch_buckets(&self, hash: u64) {
        if self.is_seen() {
            self.attribute_cache.prefetch_word(self.shape.buckets_of(hash)[0].0);
        }
    }

    /// The same of a file's.
    pub fn prefetch_inode(&self, file: FileId) {
        if self.is_seen() {
            self.attribute_cache.prefetch(self.inode_place(file));
        }
    }

    /// A file is so, as far as anybody knows.
    pub fn publish_inode(&self, inode: &Inode, first: FirstBytes, locks: &Locks) {
        let attributes = &inode.attributes;
        let is_whole = attributes.kind == Kind::File && attributes.link_count > 0 && !inode.is_announced();
        if self.is_seen() && is_whole && locks.of_inode(attributes.id).is_none() {
            let words = inode_words(attributes, first, &mut self.buffer.borrow_mut());
            self.attribute_cache.put(self.inode_place(attributes.id), &words);
        }
    }

    /// A name that was just told is put where it is missing.
    pub fn note_told(&self, (parent, name): (FileId, &[u8]), inode: &Inode, locks: &Locks) {
        if !self.is_seen() || inode.attributes.kind != Kind::File {
            return;
        }
        let name = PublishedName { parent, name, file: inode.attributes.id, hash: dentry_hash(parent, name) };
        let cell = NameCell::new(parent, name.name, name.file);
        if cell.is_some_and(|cell| self.find_name(&cell, name.hash).is_none()) {
            self.publish_name(&name, locks);
        }
    }

    /// Whether a file is worth to be put: somebody may look, and it is not there.
    pub fn lacks_inode(&self, inode: &Inode) -> bool {
        self.is_seen() && inode.attributes.kind == Kind::File && !self.has_inode(inode.attributes.id)
    }

    fn has_inode(&self, file: FileId) -> bool {
        let mut first = [0];
        self.attribute_cache.get(self.inode_place(file), &mut first) && first[0] == file.0
    }

    /// Takes a name away. Returns its hash.
    pub fn invalidate_name(&self, parent: FileId, name: &[u8]) -> u64 {
        let Some(cell) = NameCell::new(parent, name, FileId::default()).filter(|_| self.is_seen()) else { return 0 };
        let hash = dentry_hash(parent, name);
        // A name that is not there is not in the attribute cache.
        if self.may_have(hash)
            && let Some(place) = self.find_name(&cell, hash)
        {
            self.attribute_cache.clear(place);
        }
        hash
    }

    /// Takes a file away.
    pub fn invalidate_inode(&self, file: FileId) {
        if self.is_seen() && self.has_inode(file) {
            self.attribute_cache.clear(self.inode_place(file));
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
                changes.note_file(inode.attributes.id);
                if has_dropped_bits(inode.attributes.mode) {
                    self.invalidate_writable(inode.attributes.id);
                }
            }
            Record::InodeDelete(file) => {
                self.invalidate_inode(file);
                self.invalidate_writable(file);
            }
            Record::FileAnnounced { file, .. } => self.invalidate_inode(file),
            // Nobody makes anything in a directory that goes, or may.
            Record::MarkPut { directory, .. } | Record::Tombstone(directory) => self.invalidate_directory(directory),
            Record::TreeMark { .. } | Record::TreeSettled(_) | Record::TreeLog(_) => self.invalidate_tree(),
            _ => {}
        }
    }

    /// Names may be made in a directory as far as this server is concerned: its home knows of the share here, and it is
    /// not being removed.
    pub fn publish_directory(&self, directory: FileId) {
        if self.is_seen() && !self.has_directory(directory) {
            self.attribute_cache.put(self.directory_place(directory), &directory_words(directory));
        }
    }

    fn directory_place(&self, directory: FileId) -> CellPlace {
        CellPlace { offset: self.shape.directory_offset(directory), words: INODE_WORDS }
    }

    fn has_directory(&self, directory: FileId) -> bool {
        let mut words = [0; 2];
        self.attribute_cache.get(self.directory_place(directory), &mut words) && words == directory_words(directory)
    }

    /// From now on who makes a name in the directory asks.
    fn invalidate_directory(&self, directory: FileId) {
        if self.is_seen() && self.has_directory(directory) {
            self.attribute_cache.clear(self.directory_place(directory));
        }
    }

    /// Writes to a file may be submitted: nothing has to be done before one here.
    pub fn publish_writable(&self, file: FileId) {
        if self.is_seen() && !self.is_writable(file) {
            self.attribute_cache.put(self.directory_place(file), &writable_words(file));
        }
    }

    fn is_writable(&self, file: FileId) -> bool {
        let mut words = [0; 2];
        self.attribute_cache.get(self.directory_place(file), &mut words) && words == writable_words(file)
    }

    /// From now on who writes to the file asks.
    pub fn invalidate_writable(&self, file: FileId) {
        if self.is_seen() && self.is_writable(file) {
            self.attribute_cache.clear(self.directory_place(file));
        }
    }

    /// There is one name more with this hash.
    pub fn count_name(&self, hash: u64) {
        self.change_count(hash, |count| count.saturating_add(1));
    }

    /// There is one less; where there were too many to count, nobody knows.
    pub fn uncount_name(&self, hash: u64) {
        self.change_count(hash, |count| if count == BUCKET_FULL { count } else { count.saturating_sub(1) });
    }

    /// Whether there may be a name with this hash.
    fn may_have(&self, hash: u64) -> bool {
        self.shape
            .buckets_of(hash)
            .into_iter()
            .all(|(offset, shift)| (self.attribute_cache.word(offset) >> shift) as u8 != 0)
    }

    fn change_count(&self, hash: u64, change: impl Fn(u8) -> u8) {
        for (offset, shift) in self.shape.buckets_of(hash) {
            let word = self.attribute_cache.word(offset);
            let count = (word >> shift) as u8;
            self.attribute_cache.set_word(offset, word & !(0xFF << shift) | u64::from(change(count)) << shift);
        }
    }

    /// There is no name.
    pub fn reset_counts(&self) {
        self.shape.buckets().step_by(8).for_each(|offset| self.attribute_cache.set_word(offset, 0));
    }

    /// Until the tree is put again, nobody is sure of a path.
    pub fn invalidate_tree(&self) {
        self.attribute_cache.clear(self.tree_place());
    }

    /// The tree is so.
    pub fn publish_tree(&self, tree: &Tree) {
        match tree.passing() {
            Some(number) => self.attribute_cache.put(self.tree_place(), &[tree_word(number), self.life]),
            None => self.invalidate_tree(),
        }
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
        let (names, inodes) = self.shape.all_offsets();
        let mut errors = Vec::new();
        let mut seen = BTreeSet::new();
        let mut words = [0; NAME_WORDS];
        for offset in names.filter(|offset| *offset > 0) {
            if !self.attribute_cache.get(CellPlace { offset, words: NAME_WORDS }, &mut words) {
                continue;
            }
            let (parent, name, file) = NameCell::parts(&words);
            let known = tables.names.get(parent, &name, cursor_of(parent, &name));
            if known != Some((file, Kind::File)) || tables.locks.of_dentry(parent, &name).is_some() {
                let name = String::from_utf8_lossy(&name).into_owned();
                errors.push(format!("entry {parent}/{name} is published as file {file}, but is {known:?}, or locked"));
            }
            if !seen.insert((parent, name)) {
                errors.push(format!("a name that leads to file {file} is published twice"));
            }
        }
        let mut words = [0; INODE_WORDS];
        for offset in inodes {
            if !self.attribute_cache.get(CellPlace { offset, words: INODE_WORDS }, &mut words) {
                continue;
            }
            let file = FileId(words[0]);
            if words[1] == directory_words(file)[1] {
                if is_kept(file) {
                    errors.push(format!("directory {file} is published as one to make names in, but is not"));
                }
                continue;
            }
            if words[1] == writable_words(file)[1] {
                if !takes_writes(file) {
                    errors.push(format!(
                        "file {file} is published as one that takes writes, but something has to be done before"
                    ));
                }
                continue;
            }
            let is_so = tables.inodes.get(file).is_some_and(|inode| {
                let (publisher, first) = (attributes_in(&words, file), first_bytes_in(&words));
                let is_there = first.size == 0 || first == first_bytes(&inode.attributes);
                publisher.as_ref() == Some(&inode.attributes) && is_there && !inode.is_announced()
            });
            if !is_so || tables.locks.of_inode(file).is_some() {
                errors.push(format!("inode {file} is published otherwise than it is, or locked"));
            }
        }
        let mut counts = BTreeMap::<(u64, u32), u64>::new();
        tables.names.for_each(&mut |_, entry| {
            self.shape
                .buckets_of(entry.cursor << 1)
                .into_iter()
                .for_each(|bucket| *counts.entry(bucket).or_default() += 1);
        });
        for ((offset, shift), count) in counts {
            let publisher = (self.attribute_cache.word(offset) >> shift) as u8;
            if u64::from(publisher) < count.min(u64::from(BUCKET_FULL)) {
                errors.push(format!("{count} names are counted as {publisher}"));
            }
        }
        let mut word = [0];
        let tree = self.attribute_cache.get(self.tree_place(), &mut word).then_some(word[0]);
        if tree.is_some() && tree != tables.tree.passing().map(tree_word) {
            errors.push("the tree is published as it was before the last change".to_owned());
        }
        errors
    }
}
