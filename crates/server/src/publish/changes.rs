//! What changes of this server mean for the attribute cache (`Core::commit` is the one who tells), and what it is told
//! besides: that somebody was just told of a file, or may go on by submissions.

use crate::core::Core;
use crate::files::inodes::Inode;
use crate::files::rights::has_dropped_bits;
use crate::journal::records::Record;
use crate::journal::tables::Tables;
use crate::publish::attribute_cache::{Changes, PublishedFile};
use crate::store::Transaction;
use std::rc::Rc;
use wire::attribute_cache::FirstBytes;
use wire::{Attributes, FileId, Kind};

/// Files up to this size are shown with the place of their bytes.
const PUBLISHED_SIZE_MAX: u64 = 64 << 10;

impl Core {
    /// Takes away what a change concerns, before anything of it can be seen (attribute cache, invariant 1). Returns
    /// what is to be published when it is done.
    pub fn invalidate_changes<'a>(&self, transaction: &Transaction, records: &[Record<'a>]) -> Changes<'a> {
        let mut changes = Changes::default();
        if let Some(publisher) = &self.tables.borrow().publisher {
            transaction.files().for_each(|file| publisher.invalidate_inode(FileId(file)));
            transaction.ended_shares().for_each(|file| publisher.invalidate_writable(FileId(file)));
            records.iter().for_each(|record| publisher.invalidate(record, &mut changes));
        }
        changes
    }

    /// Shows what a change has put.
    pub fn publish_changes(self: &Rc<Self>, tables: &Tables, changes: &Changes<'_>) {
        if let Some(publisher) = &tables.publisher {
            for name in changes.names() {
                publisher.publish_name(name);
                self.note_shown(name.parent, name.file);
            }
            for PublishedFile { file, is_plain } in changes.files() {
                match is_plain {
                    true => publisher.publish_empty_inode(*file, &tables.locks),
                    false => self.publish(tables, *file),
                }
            }
        }
    }

    /// Shows a file as it is now.
    fn publish(&self, tables: &Tables, file: FileId) {
        if let (Some(publisher), Some(inode)) = (&tables.publisher, tables.inodes.get(file)) {
            publisher.publish_inode(&inode, self.first_bytes(&inode.attributes), &tables.locks);
        }
    }

    /// Whether nothing has to be done before a write to a file: no server has to be told, nobody to be waited for, and
    /// no bit of its mode goes.
    pub fn takes_writes(&self, tables: &Tables, file: FileId) -> bool {
        // Bytes of it may have to be fetched.
        if tables.backing.get(file).map_or(file.is_from_behind(), |known| known.may_lack()) {
            return false;
        }
        if self.cluster.home_of(file) != Some(self.index) {
            return self.is_announced(file);
        }
        let is_fit = |inode: &Inode| inode.attributes.kind == Kind::File && !has_dropped_bits(inode.attributes.mode);
        tables.inodes.get(file).as_ref().is_some_and(is_fit)
            && (self.leases.read_leases.is_empty() || !self.leases.read_leases.may_stand(file, self.reactor.now()))
    }

    /// Somebody who may submit has written to a file: the next writes need not be asked for.
    pub fn invite_writes(&self, queue: Option<usize>, file: FileId) {
        let tables = self.tables.borrow();
        if let (Some(_), Some(publisher)) = (queue, &tables.publisher)
            && self.takes_writes(&tables, file)
        {
            publisher.publish_writable(file);
            // Where somebody always writes, nothing is faulted in ahead.
            self.store.approach_kept_pages();
        }
    }

    /// Somebody was just told of a file, by a name if there is one: the next one who looks for it need not ask, if he
    /// is on this machine.
    pub fn publish_answer(self: &Rc<Self>, tables: &Tables, name: Option<(FileId, &[u8])>, inode: &Inode) {
        let Some(publisher) = &tables.publisher else { return };
        if let Some(name) = name {
            publisher.note_told(name, inode);
            self.note_shown(name.0, inode.attributes.id);
        }
        if publisher.lacks_inode(inode) {
            self.publish(tables, inode.attributes.id);
        }
    }

    /// Where all bytes of a small file lie, if they are here and one behind the other.
    pub fn first_bytes(&self, attributes: &Attributes) -> FirstBytes {
        let is_small = attributes.kind == Kind::File && (1..=PUBLISHED_SIZE_MAX).contains(&attributes.size);
        if !is_small || self.cluster.chunk_server(attributes.id, &attributes.layout, 0) != self.index {
            return FirstBytes::default();
        }
        let mut first = None;
        self.store.places(attributes.id.0, 0, |place| {
            first = match first {
                None if place.offset == 0 => Some(FirstBytes { at: place.at, size: place.size }),
                _ => Some(FirstBytes::default()),
            }
        });
        first.filter(|first| u64::from(first.size) >= attributes.size).unwrap_or_default()
    }

    /// Shows the tree as it is now, and has replies name its last change from now on.
    pub fn publish_tree(&self, tables: &Tables) {
        if let Some(publisher) = &tables.publisher {
            publisher.publish_tree(&tables.tree);
        }
        if let Some(handle) = self.life.handle() {
            handle.set_tree_number(tables.tree.number());
        }
    }

    /// Shows the number of the last error that was learnt of late, and has replies name it from now on.
    pub fn publish_late_error(&self) {
        let (number, tables) = (self.late_errors.last_number(), self.tables.borrow());
        if let Some(publisher) = &tables.publisher {
            publisher.publish_late_error(number, &tables.tree);
        }
        if let Some(handle) = self.life.handle() {
            handle.set_late_error(number);
        }
    }

    /// Has the memory fetched in which a name is shown, or will be.
    pub fn prefetch_name(&self, tables: &Tables, (parent, name): (FileId, &[u8]), hash: u64) {
        if let Some(publisher) = &tables.publisher {
            publisher.prefetch_name(parent, name, hash);
        }
    }

    /// Has the memory fetched in which a file is about to be shown.
    pub fn prefetch_cell(&self, file: FileId) {
        if let Some(publisher) = &self.tables.borrow().publisher {
            publisher.prefetch_inode(file);
        }
    }

    /// Has the memory fetched of what is known of a file that is about to be changed.
    pub fn prefetch_file(&self, tables: &Tables, file: FileId) {
        self.store.prefetch(file.0);
        if let Some(publisher) = &tables.publisher {
            publisher.prefetch_inode(file);
        }
    }
}
