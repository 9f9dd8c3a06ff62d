//! Journal entries of names, inodes, sessions and intents: after-images, so that replaying one twice, or over a
//! checkpoint that already holds it, changes nothing. docs/names.md lists them byte by byte.

use crate::backing::table::{CarriedState, RootIdentity, Standing};
use crate::coordination::intents::{Intent, Origin};
use crate::coordination::prepared::PreparedChange;
use crate::files::file_locks::ranges::OwnerRange;
use crate::files::inodes::Inode;
use crate::names::NO_TIME;
use crate::store::EntryError;
use wire::limits::OUTCOME_SIZE_MAX;
use wire::messages::{BackingPlace, NameBehind};
use wire::messages::{LockOwner, LockSpace};
use wire::messages::{TreeEntry, TreeLogEntry};
use wire::{Decode, Decoder, Encode, FileId, Kind, Malformed};

/// Kinds of entries. Those of the store end below 64.
pub mod kind {
    pub const DENTRY_PUT: u8 = 64;
    pub const DENTRY_DELETE: u8 = 65;
    pub const INODE_PUT: u8 = 66;
    pub const INODE_DELETE: u8 = 67;
    pub const SESSION_PUT: u8 = 68;
    pub const SESSION_DELETE: u8 = 69;
    pub const OUTCOME: u8 = 70;
    pub const INTENT_PUT: u8 = 71;
    pub const INTENT_DELETE: u8 = 72;
    pub const TOMBSTONE: u8 = 73;
    pub const TOMBSTONE_DELETE: u8 = 77;
    pub const STEPS_DONE: u8 = 78;
    pub const MARK_PUT: u8 = 74;
    pub const MARK_DELETE: u8 = 75;
    pub const NUMBERS: u8 = 76;
    pub const PREPARED_PUT: u8 = 80;
    pub const PREPARED_DELETE: u8 = 81;
    pub const EXTENDED_PUT: u8 = 88;
    pub const EXTENDED_DELETE: u8 = 89;
    pub const LOCK_SET: u8 = 97;
    pub const ANNOUNCED_PUT: u8 = 112;
    pub const SHARE: u8 = 113;
    pub const SHARE_ANNOUNCED: u8 = 114;
    pub const FILE_ANNOUNCED: u8 = 115;
    pub const CHANGE_PUT: u8 = 116;
    pub const CHANGE_DELETE: u8 = 117;
    pub const DELEGATIONS_GIVEN: u8 = 118;
    pub const SUBMISSION_TAKEN: u8 = 119;
    pub const LOSS_UNTOLD: u8 = 120;
    pub const BACKING_ROOT: u8 = 128;
    pub const PLACE_PUT: u8 = 129;
    pub const PLACE_DELETE: u8 = 130;
    pub const STANDING_PUT: u8 = 131;
    pub const DIFFERENCE_PUT: u8 = 132;
    pub const DIFFERENCE_DELETE: u8 = 133;
    pub const LISTED: u8 = 134;
    pub const WRITTEN: u8 = 135;
    pub const CARRIED: u8 = 136;
    pub const NEXT_PUT: u8 = 137;
    pub const DIRECTORY_FORGOTTEN: u8 = 138;
    pub const UNLISTED: u8 = 139;
    pub const EXTENDED_TAKEN_UP: u8 = 140;
    pub const EXTENDED_KNOWN: u8 = 141;
    pub const EXTENDED_FORGOTTEN: u8 = 142;
    pub const ENTRIES_KEPT: u8 = 121;
    pub const LINKABLE_PUT: u8 = 100;
    pub const TREE_MARK: u8 = 104;
    pub const TREE_SETTLED: u8 = 105;
    pub const TREE_LOG: u8 = 106;
    pub const TREE_FLOOR: u8 = 107;
}

/// One entry. `Nothing` is left out; it keeps the lists of handlers simple.
#[derive(Debug, Clone, PartialEq)]
pub enum Record<'a> {
    Nothing,
    DentryPut {
        parent: FileId,
        name: &'a [u8],
        id: FileId,
        kind: Kind,
    },
    DentryDelete {
        parent: FileId,
        name: &'a [u8],
    },
    InodePut(Inode),
    InodeDelete(FileId),
    SessionPut {
        session: u64,
        born: u64,
    },
    SessionDelete(u64),
    /// The reply's parameters of a request that changed something.
    Outcome {
        session: u64,
        sequence: u64,
        reply: &'a [u8],
    },
    /// How many pieces of a request are live that takes several steps, beside the effect of the last of them.
    StepsDone {
        session: u64,
        sequence: u64,
        pieces: u32,
    },
    IntentPut {
        number: u64,
        intent: Intent,
    },
    IntentDelete(u64),
    Tombstone(FileId),
    /// The directory was not removed after all: for repairs alone.
    TombstoneDelete(FileId),
    MarkPut {
        directory: FileId,
        coordinator: u32,
        attempt: u64,
    },
    MarkDelete(FileId),
    /// Whether other servers may hold delegations of names here.
    DelegationsGiven(bool),
    /// Whether a session may hold a delegation of this server's entries.
    EntriesKept {
        session: u64,
        held: bool,
    },
    /// Whether this server lost power, and not all others have had their clients forget directories since.
    LossUntold(bool),
    /// The change is this submission of a queue, which is thereby taken up.
    SubmissionTaken {
        queue: u32,
        number: u64,
    },
    /// A change that waits for its coordinator's decision.
    PreparedPut {
        coordinator: u32,
        number: u64,
        change: PreparedChange,
    },
    PreparedDelete {
        coordinator: u32,
        number: u64,
    },
    /// The file was made without a name and may be given one. Ends with its first name, and with the inode.
    LinkablePut(FileId),
    /// An extended attribute.
    ExtendedPut {
        file: FileId,
        name: &'a [u8],
        value: &'a [u8],
    },
    ExtendedDelete {
        file: FileId,
        name: &'a [u8],
    },
    /// An owner holds a range of a file, all of it in its mode, or nothing of it. What it holds beside the range stays.
    LockSet {
        file: FileId,
        space: LockSpace,
        owner: LockOwner,
        range: OwnerRange,
        held: bool,
    },
    /// Servers with a share of a directory whose home is here, each with the time through which its changes count no
    /// more, because a utimens came after them.
    AnnouncedPut {
        directory: FileId,
        shares: Vec<(u32, i64)>,
    },
    /// One more server has a share of a directory whose home is here.
    ShareAnnounced {
        directory: FileId,
        server: u32,
    },
    /// One more server may know of bytes of a file whose home is here.
    FileAnnounced {
        file: FileId,
        server: u32,
        generation: u32,
    },
    /// When entries of a directory changed here last, told for itself: in checkpoints, where entries do not tell.
    Share {
        directory: FileId,
        time: i64,
    },
    /// Changes of a file's chunks here are done up to this number of its home.
    ChangePut {
        file: FileId,
        number: u64,
    },
    ChangeDelete(FileId),
    /// No number or generation from these on was given out before.
    Numbers {
        number_limit: u64,
        generation_limit: u32,
    },
    /// A tree change is under way.
    TreeMark {
        number: u64,
        entries: Vec<TreeEntry>,
    },
    /// The end of the tree change, and of all before it, is known here.
    TreeSettled(u64),
    TreeLog(TreeLogEntry),
    /// Tree changes up to this one are no longer in the log.
    TreeFloor(u64),
    /// There is a backing tree, with this root.
    BackingRoot(RootIdentity),
    /// Where something that was taken up is behind.
    PlacePut {
        id: FileId,
        place: BackingPlace,
    },
    /// Nothing is known any more of a file whose home is elsewhere.
    PlaceDelete(FileId),
    /// A chunk of a file that was taken up is here.
    StandingPut {
        file: FileId,
        index: u64,
        standing: Standing,
    },
    /// What the tree has at a name, which is not what is here, or is what a flush has put there.
    DifferencePut {
        directory: FileId,
        name: &'a [u8],
        behind: NameBehind,
    },
    /// Both sides agree again.
    DifferenceDelete {
        directory: FileId,
        name: &'a [u8],
    },
    /// All names that a directory has behind, and that belong to this server, are known here.
    Listed(FileId),
    /// They are not, or perhaps no more.
    Unlisted(FileId),
    /// An extended attribute that a file or directory has behind.
    ExtendedTakenUp {
        file: FileId,
        name: &'a [u8],
        value: &'a [u8],
    },
    /// All of them that are users' are here.
    ExtendedKnown(FileId),
    /// They are not here any more, for there was no room.
    ExtendedForgotten(FileId),
    /// Something that is behind was changed on this server; whether that may be any of its carried chunks.
    Written {
        id: FileId,
        rest: bool,
    },
    /// What was here when a flush began is behind, at this place.
    Carried {
        id: FileId,
        place: BackingPlace,
        state: CarriedState,
    },
    /// A flush is about to give what it has written its name, which is going to be this place.
    NextPut {
        id: FileId,
        place: BackingPlace,
    },
    /// A directory that is gone here is gone behind.
    DirectoryForgotten(FileId),
}

impl<'a> Record<'a> {
    /// Keeps the reply of a request, beside the effect that it tells of; nothing of one that has no sequence.
    pub fn outcome(origin: Option<Origin>, reply: &'a [u8]) -> Record<'a> {
        match origin {
            Some(Origin { session, sequence }) => Record::Outcome { session, sequence, reply },
            None => Record::Nothing,
        }
    }

    /// Keeps how far a request has come that takes several steps; nothing of one that has no sequence.
    pub fn steps_done(origin: Option<Origin>, pieces: u32) -> Record<'a> {
        match origin {
            Some(Origin { session, sequence }) => Record::StepsDone { session, sequence, pieces },
            None => Record::Nothing,
        }
    }
}

impl Record<'_> {
    /// The entry's kind; nothing for `Nothing`.
    pub fn kind(&self) -> Option<u8> {
        Some(match self {
            Record::Nothing => return None,
            Record::DentryPut { .. } => kind::DENTRY_PUT,
            Record::DentryDelete { .. } => kind::DENTRY_DELETE,
            Record::InodePut(_) => kind::INODE_PUT,
            Record::InodeDelete(_) => kind::INODE_DELETE,
            Record::SessionPut { .. } => kind::SESSION_PUT,
            Record::SessionDelete(_) => kind::SESSION_DELETE,
            Record::Outcome { .. } => kind::OUTCOME,
            Record::StepsDone { .. } => kind::STEPS_DONE,
            Record::IntentPut { .. } => kind::INTENT_PUT,
            Record::IntentDelete(_) => kind::INTENT_DELETE,
            Record::Tombstone(_) => kind::TOMBSTONE,
            Record::TombstoneDelete(_) => kind::TOMBSTONE_DELETE,
            Record::MarkPut { .. } => kind::MARK_PUT,
            Record::MarkDelete(_) => kind::MARK_DELETE,
            Record::PreparedPut { .. } => kind::PREPARED_PUT,
            Record::PreparedDelete { .. } => kind::PREPARED_DELETE,
            Record::DelegationsGiven(_) => kind::DELEGATIONS_GIVEN,
            Record::LossUntold(_) => kind::LOSS_UNTOLD,
            Record::EntriesKept { .. } => kind::ENTRIES_KEPT,
            Record::SubmissionTaken { .. } => kind::SUBMISSION_TAKEN,
            Record::LinkablePut(_) => kind::LINKABLE_PUT,
            Record::ExtendedPut { .. } => kind::EXTENDED_PUT,
            Record::ExtendedDelete { .. } => kind::EXTENDED_DELETE,
            Record::LockSet { .. } => kind::LOCK_SET,
            Record::AnnouncedPut { .. } => kind::ANNOUNCED_PUT,
            Record::ShareAnnounced { .. } => kind::SHARE_ANNOUNCED,
            Record::FileAnnounced { .. } => kind::FILE_ANNOUNCED,
            Record::Share { .. } => kind::SHARE,
            Record::ChangePut { .. } => kind::CHANGE_PUT,
            Record::ChangeDelete(_) => kind::CHANGE_DELETE,
            Record::Numbers { .. } => kind::NUMBERS,
            Record::TreeMark { .. } => kind::TREE_MARK,
            Record::TreeSettled(_) => kind::TREE_SETTLED,
            Record::TreeLog(_) => kind::TREE_LOG,
            Record::TreeFloor(_) => kind::TREE_FLOOR,
            Record::BackingRoot(_) => kind::BACKING_ROOT,
            Record::PlacePut { .. } => kind::PLACE_PUT,
            Record::PlaceDelete(_) => kind::PLACE_DELETE,
            Record::StandingPut { .. } => kind::STANDING_PUT,
            Record::DifferencePut { .. } => kind::DIFFERENCE_PUT,
            Record::DifferenceDelete { .. } => kind::DIFFERENCE_DELETE,
            Record::Listed(_) => kind::LISTED,
            Record::Unlisted(_) => kind::UNLISTED,
            Record::Written { .. } => kind::WRITTEN,
            Record::ExtendedTakenUp { .. } => kind::EXTENDED_TAKEN_UP,
            Record::ExtendedKnown(_) => kind::EXTENDED_KNOWN,
            Record::ExtendedForgotten(_) => kind::EXTENDED_FORGOTTEN,
            Record::Carried { .. } => kind::CARRIED,
            Record::NextPut { .. } => kind::NEXT_PUT,
            Record::DirectoryForgotten(_) => kind::DIRECTORY_FORGOTTEN,
        })
    }

    /// Whether it changes an entry of a directory, and therefore the directory's times.
    pub fn is_dentry(&self) -> bool {
        matches!(self, Record::DentryPut { .. } | Record::DentryDelete { .. })
    }

    /// Whether it is of a change of the tree of directories.
    pub fn is_tree_change(&self) -> bool {
        matches!(self, Record::TreeMark { .. } | Record::TreeSettled(_) | Record::TreeLog(_))
    }

    /// Whether it is an answer that is larger than what sessions keep.
    pub fn is_too_large(&self) -> bool {
        matches!(self, Record::Outcome { reply, .. } if reply.len() > OUTCOME_SIZE_MAX)
    }

    /// Appends the entry's bytes, without its kind. `time` is the time of the change, which entries of directories
    /// carry.
    pub fn encode(&self, time: i64, out: &mut Vec<u8>) {
        if self.is_dentry() {
            time.encode(out);
        }
        match self {
            Record::Nothing => {}
            Record::DentryPut { parent, name, id, kind } => {
                parent.encode(out);
                id.encode(out);
                kind.encode(out);
                out.extend_from_slice(name);
            }
            Record::DentryDelete { parent, name } => {
                parent.encode(out);
                out.extend_from_slice(name);
            }
            Record::InodePut(inode) => inode.encode(out),
            Record::InodeDelete(id) | Record::Tombstone(id) | Record::TombstoneDelete(id) | Record::MarkDelete(id) => {
                id.encode(out)
            }
            Record::DelegationsGiven(given) => given.encode(out),
            Record::LossUntold(untold) => untold.encode(out),
            Record::EntriesKept { session, held } => {
                session.encode(out);
                held.encode(out);
            }
            Record::SubmissionTaken { queue, number } => {
                queue.encode(out);
                number.encode(out);
            }
            Record::LinkablePut(id) | Record::ChangeDelete(id) => id.encode(out),
            Record::ChangePut { file, number } => {
                file.encode(out);
                number.encode(out);
            }
            Record::SessionPut { session, born } => {
                session.encode(out);
                born.encode(out);
            }
            Record::SessionDelete(session) => session.encode(out),
            Record::Outcome { session, sequence, reply } => {
                session.encode(out);
                sequence.encode(out);
                out.extend_from_slice(reply);
            }
            Record::StepsDone { session, sequence, pieces } => {
                session.encode(out);
                sequence.encode(out);
                pieces.encode(out);
            }
            Record::IntentPut { number, intent } => {
                number.encode(out);
                intent.encode(out);
            }
            Record::IntentDelete(number) => number.encode(out),
            Record::MarkPut { directory, coordinator, attempt } => {
                directory.encode(out);
                coordinator.encode(out);
                attempt.encode(out);
            }
            Record::PreparedPut { coordinator, number, change } => {
                coordinator.encode(out);
                number.encode(out);
                change.encode(out);
            }
            Record::PreparedDelete { coordinator, number } => {
                coordinator.encode(out);
                number.encode(out);
            }
            Record::ExtendedPut { file, name, value } | Record::ExtendedTakenUp { file, name, value } => {
                file.encode(out);
                name.encode(out);
                out.extend_from_slice(value);
            }
            Record::ExtendedDelete { file, name } => {
                file.encode(out);
                out.extend_from_slice(name);
            }
            Record::LockSet { file, space, owner, range, held } => {
                file.encode(out);
                space.encode(out);
                owner.encode(out);
                range.encode(out);
                held.encode(out);
            }
            Record::AnnouncedPut { directory, shares } => {
                directory.encode(out);
                for (server, time) in shares {
                    server.encode(out);
                    time.encode(out);
                }
            }
            Record::ShareAnnounced { directory, server } => {
                directory.encode(out);
                server.encode(out);
            }
            Record::FileAnnounced { file, server, generation } => {
                file.encode(out);
                server.encode(out);
                generation.encode(out);
            }
            Record::Share { directory, time } => {
                directory.encode(out);
                time.encode(out);
            }
            Record::Numbers { number_limit, generation_limit } => {
                number_limit.encode(out);
                generation_limit.encode(out);
            }
            Record::TreeMark { number, entries } => {
                number.encode(out);
                entries.encode(out);
            }
            Record::TreeSettled(number) | Record::TreeFloor(number) => number.encode(out),
            Record::TreeLog(entry) => entry.encode(out),
            Record::BackingRoot(RootIdentity { file_system, inode }) => {
                file_system.encode(out);
                inode.encode(out);
            }
            Record::PlacePut { id, place } | Record::NextPut { id, place } => {
                id.encode(out);
                place.encode(out);
            }
            Record::Carried { id, place, state } => {
                id.encode(out);
                place.encode(out);
                out.push(*state as u8);
            }
            Record::Written { id, rest } => {
                id.encode(out);
                rest.encode(out);
            }
            Record::PlaceDelete(id)
            | Record::Listed(id)
            | Record::Unlisted(id)
            | Record::DirectoryForgotten(id)
            | Record::ExtendedKnown(id)
            | Record::ExtendedForgotten(id) => id.encode(out),
            Record::StandingPut { file, index, standing } => {
                file.encode(out);
                index.encode(out);
                out.push(*standing as u8);
            }
            Record::DifferencePut { directory, name, behind } => {
                directory.encode(out);
                behind.encode(out);
                out.extend_from_slice(name);
            }
            Record::DifferenceDelete { directory, name } => {
                directory.encode(out);
                out.extend_from_slice(name);
            }
        }
    }

    /// Reads an entry back, with the time of the change if it carries one.
    pub fn decode<'a>(kind: u8, bytes: &'a [u8]) -> Result<(Record<'a>, i64), EntryError> {
        decode(kind, bytes).map_err(|error| EntryError(format!("entry of kind {kind}: {error}")))
    }
}

fn decode<'a>(kind: u8, bytes: &'a [u8]) -> Result<(Record<'a>, i64), Malformed> {
    let mut input = Decoder::new(bytes);
    let time = match kind {
        kind::DENTRY_PUT | kind::DENTRY_DELETE => Decode::decode(&mut input)?,
        _ => NO_TIME,
    };
    let record = match kind {
        kind::DENTRY_PUT => {
            let (parent, id) = (Decode::decode(&mut input)?, Decode::decode(&mut input)?);
            let kind = Decode::decode(&mut input)?;
            Record::DentryPut { parent, id, kind, name: rest(&mut input)? }
        }
        kind::DENTRY_DELETE => Record::DentryDelete { parent: Decode::decode(&mut input)?, name: rest(&mut input)? },
        kind::INODE_PUT => Record::InodePut(Decode::decode(&mut input)?),
        kind::INODE_DELETE => Record::InodeDelete(Decode::decode(&mut input)?),
        kind::SESSION_PUT => {
            Record::SessionPut { session: Decode::decode(&mut input)?, born: Decode::decode(&mut input)? }
        }
        kind::SESSION_DELETE => Record::SessionDelete(Decode::decode(&mut input)?),
        kind::OUTCOME => {
            let (session, sequence) = (Decode::decode(&mut input)?, Decode::decode(&mut input)?);
            Record::Outcome { session, sequence, reply: rest(&mut input)? }
        }
        kind::STEPS_DONE => Record::StepsDone {
            session: Decode::decode(&mut input)?,
            sequence: Decode::decode(&mut input)?,
            pieces: Decode::decode(&mut input)?,
        },
        kind::INTENT_PUT => {
            Record::IntentPut { number: Decode::decode(&mut input)?, intent: Decode::decode(&mut input)? }
        }
        kind::INTENT_DELETE => Record::IntentDelete(Decode::decode(&mut input)?),
        kind::TOMBSTONE => Record::Tombstone(Decode::decode(&mut input)?),
        kind::TOMBSTONE_DELETE => Record::TombstoneDelete(Decode::decode(&mut input)?),
        kind::MARK_PUT => Record::MarkPut {
            directory: Decode::decode(&mut input)?,
            coordinator: Decode::decode(&mut input)?,
            attempt: Decode::decode(&mut input)?,
        },
        kind::PREPARED_PUT => Record::PreparedPut {
            coordinator: Decode::decode(&mut input)?,
            number: Decode::decode(&mut input)?,
            change: Decode::decode(&mut input)?,
        },
        kind::PREPARED_DELETE => {
            Record::PreparedDelete { coordinator: Decode::decode(&mut input)?, number: Decode::decode(&mut input)? }
        }
        kind::DELEGATIONS_GIVEN => Record::DelegationsGiven(Decode::decode(&mut input)?),
        kind::LOSS_UNTOLD => Record::LossUntold(Decode::decode(&mut input)?),
        kind::ENTRIES_KEPT => {
            Record::EntriesKept { session: Decode::decode(&mut input)?, held: Decode::decode(&mut input)? }
        }
        kind::SUBMISSION_TAKEN => {
            Record::SubmissionTaken { queue: Decode::decode(&mut input)?, number: Decode::decode(&mut input)? }
        }
        kind::LINKABLE_PUT => Record::LinkablePut(Decode::decode(&mut input)?),
        kind::LOCK_SET => Record::LockSet {
            file: Decode::decode(&mut input)?,
            space: Decode::decode(&mut input)?,
            owner: Decode::decode(&mut input)?,
            range: Decode::decode(&mut input)?,
            held: Decode::decode(&mut input)?,
        },
        kind::EXTENDED_PUT => Record::ExtendedPut {
            file: Decode::decode(&mut input)?,
            name: Decode::decode(&mut input)?,
            value: rest(&mut input)?,
        },
        kind::EXTENDED_TAKEN_UP => Record::ExtendedTakenUp {
            file: Decode::decode(&mut input)?,
            name: Decode::decode(&mut input)?,
            value: rest(&mut input)?,
        },
        kind::EXTENDED_DELETE => Record::ExtendedDelete { file: Decode::decode(&mut input)?, name: rest(&mut input)? },
        kind::CHANGE_PUT => {
            Record::ChangePut { file: Decode::decode(&mut input)?, number: Decode::decode(&mut input)? }
        }
        kind::CHANGE_DELETE => Record::ChangeDelete(Decode::decode(&mut input)?),
        kind::MARK_DELETE => Record::MarkDelete(Decode::decode(&mut input)?),
        kind::ANNOUNCED_PUT => {
            let directory = Decode::decode(&mut input)?;
            let mut shares = Vec::with_capacity(input.remaining() / 12);
            while input.remaining() > 0 {
                shares.push((Decode::decode(&mut input)?, Decode::decode(&mut input)?));
            }
            Record::AnnouncedPut { directory, shares }
        }
        kind::SHARE_ANNOUNCED => {
            Record::ShareAnnounced { directory: Decode::decode(&mut input)?, server: Decode::decode(&mut input)? }
        }
        kind::FILE_ANNOUNCED => Record::FileAnnounced {
            file: Decode::decode(&mut input)?,
            server: Decode::decode(&mut input)?,
            generation: Decode::decode(&mut input)?,
        },
        kind::SHARE => Record::Share { directory: Decode::decode(&mut input)?, time: Decode::decode(&mut input)? },
        kind::NUMBERS => {
            Record::Numbers { number_limit: Decode::decode(&mut input)?, generation_limit: Decode::decode(&mut input)? }
        }
        kind::TREE_MARK => {
            Record::TreeMark { number: Decode::decode(&mut input)?, entries: Decode::decode(&mut input)? }
        }
        kind::TREE_SETTLED => Record::TreeSettled(Decode::decode(&mut input)?),
        kind::TREE_LOG => Record::TreeLog(Decode::decode(&mut input)?),
        kind::TREE_FLOOR => Record::TreeFloor(Decode::decode(&mut input)?),
        kind::BACKING_ROOT => Record::BackingRoot(RootIdentity {
            file_system: Decode::decode(&mut input)?,
            inode: Decode::decode(&mut input)?,
        }),
        kind::PLACE_PUT => Record::PlacePut { id: Decode::decode(&mut input)?, place: Decode::decode(&mut input)? },
        kind::PLACE_DELETE => Record::PlaceDelete(Decode::decode(&mut input)?),
        kind::STANDING_PUT => Record::StandingPut {
            file: Decode::decode(&mut input)?,
            index: Decode::decode(&mut input)?,
            standing: Standing::of_code(Decode::decode(&mut input)?).ok_or(Malformed("standing is unknown"))?,
        },
        kind::DIFFERENCE_PUT => {
            let (directory, behind) = (Decode::decode(&mut input)?, Decode::decode(&mut input)?);
            Record::DifferencePut { directory, behind, name: rest(&mut input)? }
        }
        kind::DIFFERENCE_DELETE => {
            Record::DifferenceDelete { directory: Decode::decode(&mut input)?, name: rest(&mut input)? }
        }
        kind::LISTED => Record::Listed(Decode::decode(&mut input)?),
        kind::UNLISTED => Record::Unlisted(Decode::decode(&mut input)?),
        kind::EXTENDED_KNOWN => Record::ExtendedKnown(Decode::decode(&mut input)?),
        kind::EXTENDED_FORGOTTEN => Record::ExtendedForgotten(Decode::decode(&mut input)?),
        kind::WRITTEN => Record::Written { id: Decode::decode(&mut input)?, rest: Decode::decode(&mut input)? },
        kind::CARRIED => Record::Carried {
            id: Decode::decode(&mut input)?,
            place: Decode::decode(&mut input)?,
            state: CarriedState::of_code(Decode::decode(&mut input)?).ok_or(Malformed("state of a carried file"))?,
        },
        kind::NEXT_PUT => Record::NextPut { id: Decode::decode(&mut input)?, place: Decode::decode(&mut input)? },
        kind::DIRECTORY_FORGOTTEN => Record::DirectoryForgotten(Decode::decode(&mut input)?),
        _ => return Err(Malformed("kind is unknown: the store was written by a newer version")),
    };
    input.finish()?;
    Ok((record, time))
}

fn rest<'a>(input: &mut Decoder<'a>) -> Result<&'a [u8], Malformed> {
    input.take(input.remaining())
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::coordination::intents::RemovalPhase;
    use wire::messages::tree_kinds;
    use wire::messages::{NextBehind, OwnerKind};
    use wire::{Attributes, Layout, LayoutPolicy};

    pub fn samples() -> Vec<Record<'static>> {
        let layout = Layout::default_for(LayoutPolicy::Ring, 9, 1024, 47_008);
        let file = FileId::new(8, 9);
        let attributes = Attributes {
            id: file,
            kind: Kind::File,
            mode: 0o600,
            uid: 1,
            gid: 2,
            link_count: 1,
            size: 1 << 40,
            atime: -1,
            mtime: 2,
            ctime: 3,
            version: 4,
            truncate_generation: 5,
            times_set: 6,
            layout,
        };
        let truncate = Intent::Truncate {
            file,
            layout,
            size: 77,
            generation: 3,
            holders: vec![1, 2],
            origin: Some(Origin { session: 4, sequence: 5 }),
            reply: vec![1, 2, 3],
        };
        let moved = TreeEntry { directory: file, kind: tree_kinds::MOVED, parent: FileId::ROOT };
        let removal = Intent::RemoveDirectory { directory: file, attempt: 6, phase: RemovalPhase::Aborting };
        let place = BackingPlace {
            parent: FileId::ROOT,
            path: b"a/b".to_vec(),
            device: 1,
            inode: 2,
            size: 3,
            mtime: -4,
            ctime: 5,
            base: 3,
            carried: 3,
            chunk_size: 47_008,
            has_links: true,
        };
        let known = place.known();
        vec![
            Record::DentryPut { parent: file, name: b"name", id: FileId::ROOT, kind: Kind::Symlink },
            Record::DentryDelete { parent: file, name: b"name" },
            Record::InodePut(Inode::new(attributes)),
            Record::InodeDelete(file),
            Record::SessionPut { session: 3, born: 1 },
            Record::SessionDelete(4),
            Record::Outcome { session: 1, sequence: 2, reply: b"reply" },
            Record::StepsDone { session: 1, sequence: 2, pieces: 3 },
            Record::IntentPut { number: 1, intent: truncate },
            Record::IntentPut { number: 2, intent: Intent::Reap { file, holders: vec![7] } },
            Record::IntentPut { number: 3, intent: removal },
            Record::IntentDelete(9),
            Record::Tombstone(file),
            Record::TombstoneDelete(file),
            Record::MarkPut { directory: file, coordinator: 4, attempt: 5 },
            Record::MarkDelete(file),
            Record::IntentPut { number: 4, intent: Intent::Names { parts: vec![(1, 2), (3, 4)] } },
            Record::PreparedPut {
                coordinator: 1,
                number: 2,
                change: PreparedChange::Dentry {
                    parent: file,
                    name: b"n".as_slice().into(),
                    id: file,
                    kind: Kind::File,
                },
            },
            Record::PreparedPut { coordinator: 1, number: 3, change: PreparedChange::Link { file, up: true } },
            Record::PreparedDelete { coordinator: 1, number: 2 },
            Record::LinkablePut(FileId(5)),
            Record::DelegationsGiven(true),
            Record::LossUntold(true),
            Record::EntriesKept { session: 5, held: true },
            Record::SubmissionTaken { queue: 3, number: u64::MAX },
            Record::ExtendedPut { file, name: b"user.name", value: b"value" },
            Record::ExtendedDelete { file, name: b"user.name" },
            Record::LockSet {
                file,
                space: LockSpace::Ranges,
                owner: LockOwner { session: 1, kind: OwnerKind::Description, id: 2 },
                range: OwnerRange { start: 3, end: 4, exclusive: true },
                held: true,
            },
            Record::ChangePut { file, number: 1 << 40 },
            Record::ChangeDelete(file),
            Record::IntentPut {
                number: 5,
                intent: Intent::Append {
                    file,
                    stage: FileId::new(3, 9),
                    layout,
                    offset: 1 << 40,
                    size: 65_536,
                    origin: Some(Origin { session: 1, sequence: 2 }),
                },
            },
            Record::Numbers { number_limit: 1 << 50, generation_limit: 9 },
            Record::PreparedPut { coordinator: 1, number: 4, change: PreparedChange::Tree { number: 9 } },
            Record::IntentPut {
                number: 5,
                intent: Intent::Tree { phase: RemovalPhase::Marking, entries: vec![moved.clone()] },
            },
            Record::IntentPut {
                number: 6,
                intent: Intent::Rights {
                    directory: file,
                    origin: Some(Origin { session: 1, sequence: 2 }),
                    reply: vec![3],
                },
            },
            Record::TreeMark { number: 7, entries: vec![moved] },
            Record::TreeSettled(7),
            Record::TreeLog(TreeLogEntry { number: 7, directory: file, kind: tree_kinds::RIGHTS }),
            Record::TreeFloor(8),
            Record::AnnouncedPut { directory: file, shares: vec![(1, NO_TIME), (2, 77)] },
            Record::Share { directory: file, time: 5 },
            Record::ShareAnnounced { directory: file, server: 3 },
            Record::FileAnnounced { file, server: 3, generation: 7 },
            Record::BackingRoot(RootIdentity { file_system: 1, inode: 2 }),
            Record::PlacePut { id: FileId::taken_up(8, 9), place: place.clone() },
            Record::PlaceDelete(file),
            Record::StandingPut { file, index: 7, standing: Standing::Dirty },
            Record::DifferencePut {
                directory: file,
                name: b"name",
                behind: NameBehind { known: Some(known.clone()), next: None, same_as: file },
            },
            Record::DifferencePut {
                directory: file,
                name: b"name",
                behind: NameBehind {
                    known: None,
                    next: Some(NextBehind { known, id: file }),
                    same_as: FileId::default(),
                },
            },
            Record::ExtendedTakenUp { file, name: b"user.name", value: b"value" },
            Record::ExtendedKnown(file),
            Record::ExtendedForgotten(file),
            Record::Written { id: file, rest: true },
            Record::Carried { id: file, place: place.clone(), state: CarriedState::Partly },
            Record::NextPut { id: file, place: place.clone() },
            Record::DirectoryForgotten(file),
            Record::DifferenceDelete { directory: file, name: b"name" },
            Record::Listed(file),
            Record::Unlisted(file),
        ]
    }

    /// Goal: every entry read back is the one that was written.
    #[test]
    fn round_trip() {
        for record in samples() {
            let mut bytes = Vec::new();
            record.encode(77, &mut bytes);
            let kind = record.kind().expect("samples have kinds");
            let time = if record.is_dentry() { 77 } else { NO_TIME };
            assert_eq!(Record::decode(kind, &bytes), Ok((record, time)));
        }
    }

    /// Goal: damaged entries give an error or another entry, never a panic.
    /// Method: every entry cut at every byte, and with every byte changed.
    #[test]
    fn damaged_entries_do_not_panic() {
        for record in samples() {
            let mut bytes = Vec::new();
            record.encode(77, &mut bytes);
            let kind = record.kind().expect("samples have kinds");
            for end in 0..bytes.len() {
                let _ = Record::decode(kind, &bytes[..end]).is_err();
                let mut changed = bytes.clone();
                changed[end] ^= 0xff;
                let _ = Record::decode(kind, &changed).is_err();
            }
        }
        assert!(Record::decode(200, b"").is_err());
    }
}
