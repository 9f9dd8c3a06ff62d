//! What a pass of a flush for files that somebody syncs has left to do.

use super::{Pass, can_go};
use std::collections::BTreeSet;
use wire::FileId;
use wire::messages::{AskCarriedReply, BackingPlace, ChangedEntry};

impl Pass {
    /// Of a flush of some files: those that this pass has not brought into line, with what they are called.
    pub async fn files_left(&self) -> Vec<(u64, Vec<u8>)> {
        let (mut left, files) = (Vec::new(), self.run.files.borrow().clone());
        for id in files.into_iter().map(FileId) {
            let name = |carried: &AskCarriedReply| carried.place.as_ref().map(|place| place.path.clone());
            match self.core.ask_carried_of(id).await {
                Ok(carried) if self.is_left(id, &carried).await => {
                    left.push((id.0, name(&carried).unwrap_or_else(|| format!("({id})").into_bytes())));
                }
                Ok(_) => {}
                Err(_) => left.push((id.0, format!("({id})").into_bytes())),
            }
        }
        left
    }

    async fn is_left(&self, id: FileId, carried: &AskCarriedReply) -> bool {
        // What has no name is nobody's, and may have lost it meanwhile.
        if id != FileId::ROOT && carried.names.unwrap_or(0) == 0 {
            return false;
        }
        let not_done = |index: &usize| !self.done.borrow().contains(index);
        // What never goes is no matter of its directory.
        let is_its = |entry: &ChangedEntry| entry.id == Some(id) || entry.directory == id && can_go(entry.kind);
        if self.parted.borrow().contains(&id.0) {
            return true;
        }
        if (0..self.names.len()).any(|index| is_its(&self.names[index]) && not_done(&index)) {
            return true;
        }
        let is_behind = |place: &BackingPlace| place.inode != 0 && !self.core.is_hidden(place.name());
        let is_written = self.written.contains_key(&id.0) && !self.run.carried_files.borrow().contains(&id.0);
        if !carried.is_directory && (is_written || !carried.place.as_ref().is_some_and(is_behind)) {
            return true;
        }
        // Directories above have to be where they ought to be.
        let mut above: Vec<FileId> =
            self.names.iter().filter(|entry| is_its(entry)).map(|entry| entry.directory).collect();
        above.extend(carried.place.iter().map(|place| place.parent));
        if carried.is_directory {
            above.push(id);
        }
        let mut seen = BTreeSet::from([FileId::ROOT]);
        while let Some(directory) = above.pop() {
            if !seen.insert(directory) {
                continue;
            }
            match self.changed.get(&directory.0) {
                Some(index) if not_done(index) => {
                    if let Some(reason) = self.refused.borrow().get(&directory.0) {
                        let words = format!("a directory above it can't go there: {}", String::from_utf8_lossy(reason));
                        let told = (self.names[*index].name.clone(), words.into_bytes());
                        self.run.failed_files.borrow_mut().entry(id.0).or_insert(told);
                        self.run.refused_files.borrow_mut().insert(id.0);
                    }
                    return true;
                }
                Some(index) => above.push(self.names[*index].directory),
                None => match self.core.ask_carried_of(directory).await {
                    Ok(carried) => above.extend(carried.place.map(|place| place.parent)),
                    Err(_) => return true,
                },
            }
        }
        false
    }
}
