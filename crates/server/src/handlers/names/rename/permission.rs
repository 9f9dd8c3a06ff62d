//! What the caller of a change of names has to be allowed, here and on the servers of the inodes concerned.

use super::NameChange;
use crate::core::{Caller, Core, Failure};
use crate::handlers::files::rights::Demand;
use crate::handlers::names::lookup::is_elsewhere;
use wire::messages::{RemoveRequest, RenameRequest, rename_flags};
use wire::{Decode, FileId, Kind, Status};

/// What is asked of the caller towards the inodes concerned.
pub struct Permission {
    /// Whether what the old name leads to is to be his own; likewise what is at the new one.
    owned: (bool, bool),
    /// Whether the two names are in different directories.
    moved: bool,
    /// What other servers have to check.
    pub elsewhere: Vec<Demand>,
}

impl Permission {
    pub fn new(name_change: NameChange, params: &[u8]) -> Result<Permission, Failure> {
        let (owned, moved) = match name_change {
            NameChange::Link | NameChange::LinkOpen => ((false, false), false),
            NameChange::Unlink => ((RemoveRequest::from_bytes(params)?.owned, false), false),
            NameChange::Rename { .. } => {
                let RenameRequest { from, to, flags } = RenameRequest::from_bytes(params)?;
                let asks = |flag| flags & flag != 0;
                let owned = (asks(rename_flags::OWNED_SOURCE), asks(rename_flags::OWNED_TARGET));
                (owned, from.parent != to.parent)
            }
        };
        Ok(Permission { owned, moved, elsewhere: Vec::new() })
    }

    /// Towards what the old name leads to.
    pub fn of_source(&mut self, core: &Core, caller: &Caller, found: (FileId, Kind)) -> Result<(), Status> {
        self.check(core, caller, found, self.owned.0, self.moved)
    }

    /// Towards what the new name leads to; unless the two are exchanged it goes nowhere else.
    pub fn of_destination(
        &mut self,
        core: &Core,
        caller: &Caller,
        found: Option<(FileId, Kind)>,
        exchange: bool,
    ) -> Result<(), Status> {
        found.map_or(Ok(()), |found| self.check(core, caller, found, self.owned.1, self.moved && exchange))
    }

    fn check(
        &mut self,
        core: &Core,
        caller: &Caller,
        found: (FileId, Kind),
        owned: bool,
        moved: bool,
    ) -> Result<(), Status> {
        let Some(demand) = Demand::new(caller, found, owned, moved) else { return Ok(()) };
        if is_elsewhere(core, demand.file) {
            self.elsewhere.push(demand);
            return Ok(());
        }
        demand.check_here(core, caller)
    }
}
