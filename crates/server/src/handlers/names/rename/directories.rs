//! What a rename of directories asks of the sequencer.

use super::{Blocker, Failure, NameChange, NameLocation, NameTransaction};
use crate::handlers::directories::sequencer;
use reactor::Nanos;
use wire::messages::{PrepareTreeReply, PrepareTreeRequest, RenamedReply, TreeEntry, tree_kinds};
use wire::{Encode, FileId, Kind, Operation, Status};

impl NameTransaction {
    /// Whether it changes the paths of all that is in a directory.
    pub(super) fn moves_directories(&self) -> bool {
        let exchanged = self.destination.filter(|_| self.name_change.is_exchange());
        let is_rename = matches!(self.name_change, NameChange::Rename { .. });
        is_rename && [Some(self.source), exchanged].into_iter().flatten().any(|(_, kind)| kind == Kind::Directory)
    }

    /// What becomes of the directories.
    fn tree_entries(&self, from: &NameLocation, to: &NameLocation) -> Vec<TreeEntry> {
        let entry = |(directory, found): (FileId, Kind), kind: u8, parent: FileId| {
            (found == Kind::Directory).then_some(TreeEntry { directory, kind, parent })
        };
        let source = entry(self.source, tree_kinds::MOVED, to.parent);
        let destination = self.destination.and_then(|found| match self.name_change.is_exchange() {
            true => entry(found, tree_kinds::MOVED, from.parent),
            false => entry(found, tree_kinds::REMOVED, FileId::default()),
        });
        source.into_iter().chain(destination).collect()
    }

    /// Has the sequencer prepare the move of directories. When it has, no other one is under way, and whether the paths
    /// still hold that were asked for is known.
    pub(super) async fn prepare_tree(&mut self, deadline: Nanos) -> Result<(), Blocker> {
        let (Some(from), Some(to)) = (&self.from, &self.to) else { unreachable!("a rename has two names") };
        // Who has the turn may move directories on our paths, and we wait for it, so that it must not wait for us.
        self.trail = None;
        let server = sequencer::sequencer(&self.core);
        let request = PrepareTreeRequest {
            coordinator: self.core.index,
            number: self.participants.add(server)?,
            entries: self.tree_entries(from, to),
            reparents: to.parent != from.parent,
        };
        let number = if server == self.core.index {
            match sequencer::prepare(&self.core, &request, deadline).await {
                Err(failure) if failure.status == Status::Busy => return Err(Blocker::Busy),
                Err(failure) => return Err(self.refused(failure)),
                Ok(number) => number,
            }
        } else {
            let reply: PrepareTreeReply =
                self.core.peers.call(server, Operation::PrepareTree, &request, Some(deadline)).await?;
            match Status::from_code(reply.verdict) {
                Some(Status::Ok) => reply.number,
                Some(Status::Busy) => return Err(Blocker::Busy),
                Some(status) => return Err(self.refused(status.into())),
                None => return Err(super::unknown_verdict(server).into()),
            }
        };
        let tables = self.core.tables.borrow();
        for (known, path) in &self.paths {
            tables.tree.check(*known, path.iter().copied())?;
        }
        // The one before has ended everywhere, and none comes in between.
        let directories = request.entries.iter().map(|entry| entry.directory).collect();
        self.reply = RenamedReply { number, before: tables.tree.number(), directories }.to_bytes();
        Ok(())
    }

    /// A refusal is the answer only if the paths still hold: else what was refused is not what they lead to now.
    fn refused(&self, refusal: Failure) -> Blocker {
        let tables = self.core.tables.borrow();
        for (known, path) in &self.paths {
            if let Err(stale) = tables.tree.check(*known, path.iter().copied()) {
                return Blocker::Failed(stale);
            }
            if let Some(moving) = tables.tree.wait_for(*known, path.iter().copied()) {
                return Blocker::Locked(moving);
            }
        }
        Blocker::Failed(refusal)
    }
}
