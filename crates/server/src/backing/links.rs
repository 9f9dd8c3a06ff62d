//! Several names of one inode, at its home. One of them is its place, by which it is carried and fetched; the others
//! are hard links to what is there. A file that is written anew has another inode behind: its other names are told,
//! differ then, and are linked to it again.
//!
//! Invariants
//! 1. Before the first link is made the home has journalled that there are links (`BackingPlace::has_links`), and the
//!    name of the place that it is one of several: from then on a change of any name moves the ctime of all.
//! 2. A record that says that an inode is behind at a name other than its place is true of the inode behind that the
//!    place has: whoever gives the place another one parts the links from it first.
//! 3. While a file is written to where it is its links are known by their inode alone, as its place is.
//! 4. A link that was made is found by the inode number of the place, whoever made it; so who was cut off begins anew.

use super::BackingFault;
use super::carry::{Carried, CarryTask, is_known, known_found, request_name, words};
use super::change_list::list_links;
use super::conflicts::SOMEBODY;
use crate::core::{Core, Failure};
use crate::journal::records::Record;
use crate::process::options::ConflictPolicy;
use reactor::backing::{BackingAttributes, BackingDirectory, FileKind, RenameMode};
use std::rc::Rc;
use wire::FileId;
use wire::messages::*;

/// Why no link was made: one that has left its place can be written anew then.
const NO_LINK: &str =
    "it is a second name of a file, and no hard link can be made there; a copy in its place can be carried";
const NAME_IS_TAKEN: &str =
    "somebody else has changed it there; it is a second name of a file, which is there by its other one: rename either";
/// What has to wait until the file has its place again.
pub const OTHER_IS_CHANGED: &str = "somebody else has changed the file there of which it is a second name";

/// Whether a carry has failed because no link was made.
pub fn is_no_link(reason: &[u8]) -> bool {
    reason.starts_with(NO_LINK.as_bytes()) || [NAME_IS_TAKEN, OTHER_IS_CHANGED].iter().any(|no| no.as_bytes() == reason)
}

/// Times that the names of an inode are listed anew where one of them was changed meanwhile.
const ROUNDS_MAX: u32 = 8;

/// Whether something is another name of what was found at a place.
fn is_link_of(found: &BackingAttributes, original: &BackingAttributes, place: &BackingPlace) -> bool {
    found.identity.device == original.identity.device && is_known(found, &place.known().of_links())
}

impl Core {
    /// All names by which an inode is behind that has several, but for its place.
    pub(super) async fn links_of(self: &Rc<Self>, id: FileId) -> Result<Vec<ChangedEntry>, Failure> {
        let mut links = Vec::new();
        self.list_all(&list_links(id), &mut |link| links.push(link)).await?;
        Ok(links)
    }

    /// What is behind at the place of an inode is about to be another inode: its other names are not behind then.
    pub(super) async fn part_links(
        self: &Rc<Self>,
        request: &CarryInodeRequest,
        task: &CarryTask,
    ) -> Result<(), Failure> {
        if self.backing().has_fault(BackingFault::ForgetsLinks) {
            return Ok(());
        }
        let has_links = self.tables.borrow().backing.place(request.id).is_some_and(|place| place.has_links);
        task.has_parted.set(task.has_parted.get() || has_links);
        self.note_links(request, &|link| NameBehind { same_as: FileId::default(), ..link }).await
    }

    /// Changes what is noted at all names by which an inode is behind, but for its place.
    pub(super) async fn note_links(
        self: &Rc<Self>,
        request: &CarryInodeRequest,
        note: &dyn Fn(NameBehind) -> NameBehind,
    ) -> Result<(), Failure> {
        let place = self.tables.borrow().backing.place(request.id).cloned();
        let Some(place) = place.filter(|place| place.has_links) else { return Ok(()) };
        // The place itself is left when the inode has another one.
        let of_request = [(request.parent, request_name(request)), (place.parent, place.name())];
        let is_other = |link: &ChangedEntry| !of_request.contains(&(link.directory, &*link.name));
        for _ in 0..ROUNDS_MAX {
            let mut is_whole = true;
            for link in self.links_of(request.id).await?.into_iter().filter(is_other) {
                let noted = note(link.behind.clone());
                is_whole &= noted == link.behind
                    || self.have_noted_if((link.directory, &link.name), noted, link.behind).await?;
            }
            if is_whole {
                return Ok(());
            }
        }
        Err(words("its other names are changed all the time"))
    }

    /// Has what is behind at the place of an inode another name there, or that name be its place. One that is the last
    /// has no links any more.
    pub(super) async fn carry_link(self: &Rc<Self>, request: &CarryInodeRequest) -> Result<Carried, Failure> {
        let backing = self.backing();
        let place = self.tables.borrow().backing.place(request.id).cloned().filter(|place| place.inode != 0);
        let place = place.ok_or_else(|| words("the file is not there yet of which it is a second name"))?;
        let source = self.open_parent_of(&place).await?;
        let is_it = |found: &BackingAttributes| !self.checks_identity() || is_known(found, &place.known());
        let original = backing.look_for(&source, place.name()).await?.filter(is_it);
        let original = original.ok_or_else(|| words(OTHER_IS_CHANGED))?;
        self.know_links(request.id, &place).await?;
        let is_linked = |found: &BackingAttributes| is_link_of(found, &original, &place);
        let (parent, _, name) = self.open_parent(request).await?;
        let found = backing.look_for(&parent, name).await?;
        let mut settled = Vec::new();
        if found.as_ref().is_some_and(is_linked) {
            // Whoever has made it may not have come to see that it is durable, nor to rename it.
            backing.sync_names(&parent).await?;
            backing.remove_hidden(&parent, &self.hidden_name(request.id)).await?;
        } else if request.way == carry_ways::LINK_AS_PLACE {
            // It is no link of it any more: whoever lists names next sees to what it is.
            self.leave_link(request).await?;
            return Err(words(format!("{SOMEBODY}, and it is the last name of a file")));
        } else {
            let replaced = match found {
                Some(theirs) if !self.may_be_replaced(request, &theirs) => {
                    settled = self.settle_link_conflict(request, (&parent, name), &theirs).await?;
                    None
                }
                found => found,
            };
            self.make_link(request, (&source, &parent, name), (&place, &original), replaced.is_some()).await?;
        }
        let known = place.known().of_links();
        self.note_now(request, &known).await?;
        if request.way == carry_ways::LINK_AS_PLACE {
            // What it was known by there moves with what becomes of it here.
            self.note_linked_place(request.id, &place).await?;
            let (parent, path) = (request.parent, request.path.clone());
            self.change_place(request.id, &place, |now| BackingPlace { parent, path, ..now }).await?;
            return self.end_links(request).await.map(|last| Carried { known: last.unwrap_or(known), settled });
        }
        Ok(Carried { known, settled })
    }

    /// Notes that an inode has several names behind, before it has.
    async fn know_links(self: &Rc<Self>, id: FileId, place: &BackingPlace) -> Result<(), Failure> {
        if place.has_links {
            return Ok(());
        }
        self.note_linked_place(id, place).await?;
        self.change_place(id, place, |now| BackingPlace { has_links: true, ..now }).await
    }

    /// Journals something else of a place, if the inode has that one still.
    async fn change_place(
        self: &Rc<Self>,
        id: FileId,
        place: &BackingPlace,
        change: impl FnOnce(BackingPlace) -> BackingPlace,
    ) -> Result<(), Failure> {
        if self.is_journal_low() {
            self.checkpoints.finished().wait().await;
        }
        let now = self.tables.borrow().backing.place(id).cloned().filter(|now| now.inode == place.inode);
        let now = now.ok_or_else(|| words("it was given another place meanwhile"))?;
        self.change([Record::PlacePut { id, place: change(now) }])?;
        self.syncs.durable().await
    }

    /// Where the inode behind has one name, all that it is known by counts again. What that is. As long as it has
    /// another one, whoever is to remove that, its ctime moves still.
    async fn end_links(self: &Rc<Self>, request: &CarryInodeRequest) -> Result<Option<KnownBehind>, Failure> {
        let place = self.tables.borrow().backing.place(request.id).cloned();
        let Some(place) = place.filter(|place| place.has_links && !place.is_being_written()) else { return Ok(None) };
        let parent = self.open_parent_of(&place).await?;
        let found = self.backing().look_for(&parent, place.name()).await?;
        let is_alone = |found: &BackingAttributes| found.link_count == 1 && is_known(found, &place.known());
        let Some(found) = found.filter(is_alone) else { return Ok(None) };
        let known = known_found(&found);
        let ctime = known.ctime;
        self.change_place(request.id, &place, |now| BackingPlace { has_links: false, ctime, ..now }).await?;
        self.note_now(request, &known).await?;
        Ok(Some(known))
    }

    /// Has the server of a name know that what is there is no link of the inode.
    async fn leave_link(self: &Rc<Self>, request: &CarryInodeRequest) -> Result<(), Failure> {
        self.leave_name(request.id, (request.parent, request_name(request)), request.known.clone()).await
    }

    /// Has the server of the name that is an inode's place know that there are others.
    async fn note_linked_place(self: &Rc<Self>, id: FileId, place: &BackingPlace) -> Result<(), Failure> {
        let (directory, name) = (place.parent, place.name().to_vec());
        let behind = NameBehind { known: Some(place.known().of_links()), next: None, same_as: id };
        let server = self.cluster.dentry_server(directory, &name);
        self.send_note(server, NoteBehindRequest { directory, name, behind, kind: note_kinds::LINKED, seen: None })
            .await
    }

    /// Somebody else has the name that a link is to have. Returns what became of that, if the name is free now.
    async fn settle_link_conflict(
        self: &Rc<Self>,
        request: &CarryInodeRequest,
        at: (&BackingDirectory, &[u8]),
        theirs: &BackingAttributes,
    ) -> Result<Vec<u8>, Failure> {
        let takes = self.backing().on_conflict == ConflictPolicy::Ours && theirs.kind != FileKind::Directory;
        match takes {
            true => self.move_aside(at, &request.path, theirs).await,
            false => Err(words(NAME_IS_TAKEN)),
        }
    }

    async fn make_link(
        self: &Rc<Self>,
        request: &CarryInodeRequest,
        (source, parent, name): (&BackingDirectory, &BackingDirectory, &[u8]),
        (place, original): (&BackingPlace, &BackingAttributes),
        replaces: bool,
    ) -> Result<(), Failure> {
        let backing = self.backing();
        let is_linked = |found: &BackingAttributes| is_link_of(found, original, place);
        self.note_next(request, place.known().of_links()).await?;
        let hidden = self.hidden_name(request.id);
        let made = async {
            backing.remove_hidden(parent, &hidden).await?;
            let linked = source.link(place.name(), parent, &hidden).await;
            // It may have happened all the same.
            let found = backing.look_for(parent, &hidden).await?;
            match (found, linked) {
                (Some(found), _) if is_linked(&found) => {}
                (_, Err(error)) if error.is_no_link() => {
                    return Err(words(format!("{NO_LINK}: {error}")));
                }
                (_, Err(error)) => return Err(backing.failure(error)),
                (_, Ok(())) => return Err(words("somebody else is changing its other name there")),
            }
            let renamed = match replaces {
                true => parent.rename(&hidden, parent, name, RenameMode::Replace).await,
                false => parent.rename_new(&hidden, parent, name).await,
            };
            match backing.look_for(parent, name).await? {
                Some(found) if is_linked(&found) => Ok(()),
                _ => Err(renamed.err().map_or_else(
                    || words("somebody else is changing the same name there"),
                    |error| if error.is_taken() { words(SOMEBODY) } else { backing.failure(error) },
                )),
            }
        };
        if let Err(failure) = made.await {
            // It goes with the next attempt, if not now. Whether the name has it all the same is found out then.
            let _: Result<(), Failure> = backing.remove_hidden(parent, &hidden).await;
            return Err(failure);
        }
        backing.sync_names(parent).await
    }
}
