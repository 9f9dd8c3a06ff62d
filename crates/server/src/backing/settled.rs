//! Names behind that somebody else had changed and that were settled as `--on-conflict` says: told once by the next
//! flush that somebody waits for, and by `tabane status` for as long as this server lives.

use super::flush::ToldFailure;
use crate::core::{Core, Failure};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use wire::messages::*;
use wire::{FileId, Operation, Status};

/// Those that are remembered, of each kind.
const REMEMBERED_MAX: usize = 64;
/// Those that `tabane status` tells of.
const TOLD_MAX: usize = 5;
/// Bytes of them in one reply.
const TOLD_BYTES_MAX: usize = 6 << 10;

/// How many, and some of them: paths, and what became of each.
#[derive(Default, Clone)]
pub struct SettledNames {
    count: u64,
    names: VecDeque<ToldFailure>,
}

impl SettledNames {
    fn put(&mut self, path: Vec<u8>, words: Vec<u8>) {
        self.count += 1;
        if self.names.len() == REMEMBERED_MAX {
            self.names.pop_front();
        }
        self.names.push_back((path, words));
    }

    pub fn tell(self, reply: &mut FlushReply) {
        reply.settled = self.count;
        let mut bytes = 0;
        for (path, words) in self.names {
            bytes += path.len() + words.len() + 8;
            if bytes <= TOLD_BYTES_MAX {
                reply.settled_paths.push(path);
                reply.settled_words.push(words);
            }
        }
    }
}

/// See the module.
#[derive(Default)]
pub struct Settled {
    /// All of this life of the server.
    all: RefCell<SettledNames>,
    /// Those of which nobody who waits for a flush was told.
    untold: RefCell<SettledNames>,
}

impl Settled {
    pub fn note(&self, path: &[u8], words: &[u8]) {
        self.all.borrow_mut().put(path.to_vec(), words.to_vec());
        self.untold.borrow_mut().put(path.to_vec(), words.to_vec());
    }

    /// Those that are to be told by whoever asks for this.
    pub fn take_untold(&self) -> SettledNames {
        self.untold.take()
    }
}

impl Core {
    /// How many names were settled in this life of the server, and the last of them.
    pub fn settled_conflicts(&self) -> (u64, Vec<ToldFailure>) {
        let Some(backing) = &self.backing else { return (0, Vec::new()) };
        let all = backing.settled.all.borrow();
        (all.count, all.names.iter().rev().take(TOLD_MAX).cloned().collect())
    }

    /// Has the server of a name give it up to what is behind there. Whether it has; else something was changed
    /// meanwhile.
    pub(super) async fn have_given_up(
        self: &Rc<Self>,
        directory: FileId,
        name: &[u8],
        id: Option<FileId>,
    ) -> Result<bool, Failure> {
        let server = self.cluster.dentry_server(directory, name);
        let wish = self.reactor.random();
        let request = GiveUpNameRequest { wish, directory, name: name.to_vec(), id };
        loop {
            let reply: GiveUpNameReply = match server == self.index {
                true => self.give_up_name(request.clone()).await,
                false => self.peers.call(server, Operation::GiveUpName, &request, None).await?,
            };
            match reply.state {
                flush_states::RUNNING => {}
                _ if reply.reason.is_empty() => return Ok(reply.is_given_up),
                _ => return Err(Failure::with_text(Status::Io, String::from_utf8_lossy(&reply.reason))),
            }
        }
    }
}
