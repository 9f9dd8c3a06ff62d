//! What holds for a while: delegations of names to other servers and their recall, the names that this server has as a
//! contact, what clients were told of the contents of small files, and delegations of all entries to mounts.

pub mod contact;
pub mod delegations;
pub mod kept_entries;
pub mod read_leases;

use crate::files::inodes::Inode;
use crate::journal::records::Record;
use crate::journal::tables::Tables;
use crate::names::cursor_of;
use crate::process::options::Bounds;
use contact::Contact;
use delegations::Delegations;
use kept_entries::KeptEntries;
use reactor::Reactor;
use read_leases::ReadLeases;
use wire::Attributes;

/// See the module.
pub struct Leases {
    /// Of names here, to other servers.
    pub delegations: Delegations,
    /// Of names of other servers, to this one.
    pub contact: Contact,
    /// Of contents of small files that opens were told.
    pub read_leases: ReadLeases,
    /// Of everything that this server tells, to clients that keep it.
    pub kept_entries: KeptEntries,
}

impl Leases {
    pub fn new(bounds: &Bounds) -> Leases {
        Leases {
            delegations: Delegations::new(bounds),
            contact: Contact::new(bounds),
            read_leases: ReadLeases::new(bounds),
            kept_entries: KeptEntries::new(bounds),
        }
    }

    /// Counters of all of them, by name.
    pub fn numbers(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let entries = self.kept_entries.numbers();
        let files = self.delegations.numbers().into_iter().chain(self.read_leases.numbers());
        self.contact.numbers().into_iter().chain(files).chain(entries)
    }

    /// Asserts that records which are about to be journalled take nothing from who holds a lease or a delegation.
    pub fn check_kept(&self, records: &[Record<'_>], tables: &Tables, reactor: &Reactor) {
        let keeps_delegations = records.iter().all(|record| self.keeps_delegations(record, tables, reactor));
        assert!(keeps_delegations, "delegations, invariant 1");
        let keeps_read_leases = records.iter().all(|record| self.keeps_read_leases(record, tables, reactor));
        assert!(keeps_read_leases, "read leases, invariant 1");
    }

    /// Whether a record takes nothing from who holds a delegation.
    fn keeps_delegations(&self, record: &Record<'_>, tables: &Tables, reactor: &Reactor) -> bool {
        if self.delegations.is_empty() {
            return true;
        }
        let lost = match record {
            Record::DentryPut { parent, name, id, .. } => {
                tables.names.get(*parent, name, cursor_of(*parent, name)).filter(|(old, _)| old != id)
            }
            Record::DentryDelete { parent, name } => tables.names.get(*parent, name, cursor_of(*parent, name)),
            Record::InodePut(inode) => {
                let (id, new) = (inode.attributes.id, &inode.attributes);
                let rights = |old: &Attributes| (old.mode & 0o777, old.uid, old.gid);
                let old = tables.inodes.get(id).filter(|old| rights(&old.attributes) != rights(new));
                old.map(|old| (id, old.attributes.kind))
            }
            _ => None,
        };
        lost.is_none_or(|(file, _)| !self.delegations.may_stand(file, reactor.now()))
    }

    /// Whether a record changes nothing that who holds a read lease was told.
    fn keeps_read_leases(&self, record: &Record<'_>, tables: &Tables, reactor: &Reactor) -> bool {
        if self.read_leases.is_empty() {
            return true;
        }
        let changed = match record {
            Record::FileAnnounced { file, .. } => Some(*file),
            Record::InodePut(new) => {
                let id = new.attributes.id;
                let changes = |old: &Inode| {
                    let is_announced = (old.is_announced(), new.is_announced());
                    let (old, new) = (&old.attributes, &new.attributes);
                    let is_written = old.mtime != new.mtime && old.times_set == new.times_set;
                    let is_cut = old.truncate_generation != new.truncate_generation;
                    is_written || is_cut || old.size != new.size || is_announced.0 != is_announced.1
                };
                tables.inodes.get(id).as_ref().is_some_and(changes).then_some(id)
            }
            _ => None,
        };
        changed.is_none_or(|file| !self.read_leases.may_stand(file, reactor.now()))
    }
}
