//! Changes that clients of this machine post in memory that both share, instead of asking for them (docs/posts.md).
//!
//! Invariants
//! 1. What was posted is done before any other step of this server (`Gate`), so between two steps it counts as done.
//! 2. Clients may post only what is done at once when it is taken up: nobody has to be asked or waited for. Where that
//!    may not be so for something that the attribute cache does not tell, nobody may post (`may_post`).
//! 3. Posts are not left lying: as long as anybody may post, this server looks now and then.

use crate::core::Core;
use crate::failure::Failure;
use crate::handlers::{self, PostedSource};
use crate::names::cursor_of_hash;
use crate::store::PAGE_SIZE;
use reactor::log::{self, Level};
use reactor::{Class, Gate, Nanos, PostWords, Posts, Region, SLOT_COUNT};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use wire::identity::dentry_hash;
use wire::posts::{
    Change, Made, POSTED_CHUNK_SIZE_MAX, POSTED_SIZE_MAX, Post, PostBytes, PostedBytes, STAGING_RING_SIZE,
};
use wire::{FileId, Operation, Status};

/// Time between looks while there may be posts, and looks in vain after which nobody may post until somebody asks
/// again.
const LOOK_NS: Nanos = 20_000_000;
const LOOKS_MAX: u32 = 50;
/// File ids that a client is given at a time.
const NUMBER_COUNT: u64 = 1024;
/// Bytes of the journal that a post takes at most, beside what names servers; and those that no post may have.
const RECORD_SIZE_MAX: u64 = 512;
const RESERVE: u64 = 16 << 10;
/// The same of a write, with the whole of a chunk of which each page is an extent and a range of its own; and pages
/// that the writes of one client take at most: those of as many bytes as it may have posted, and two more for each.
const WRITE_RECORD_SIZE_MAX: u64 = RECORD_SIZE_MAX + 24 * (POSTED_CHUNK_SIZE_MAX as u64 / PAGE_SIZE);
const WRITE_PAGES_MAX: u64 = STAGING_RING_SIZE / PAGE_SIZE + 2 * SLOT_COUNT;
const _: () = assert!(STAGING_RING_SIZE >= POSTED_SIZE_MAX as u64);

/// What this server does about posts.
#[derive(Default)]
pub struct PostWork {
    is_watched: Cell<bool>,
    taken: Cell<u64>,
    failed: Cell<u64>,
    /// Whose lanes there are: user and connection.
    clients: RefCell<BTreeMap<usize, (u32, u64)>>,
}

impl PostWork {
    /// Posts that were taken up, and those among them that could not be done.
    pub fn numbers(&self) -> (u64, u64) {
        (self.taken.get(), self.failed.get())
    }
}

/// Where a post comes from.
#[derive(Clone, Copy)]
enum Poster<'a> {
    /// A client that has this lane now.
    Lane(&'a Posts, usize),
    /// It was posted to an earlier life, which may have done it, and ended before it had said so; with the bytes of a
    /// write.
    Earlier(Option<&'a [u8]>),
}

/// Around each step of this server.
struct PostGate {
    core: Weak<Core>,
    posts: Rc<Posts>,
    writes_allowed: Cell<bool>,
}

impl Gate for PostGate {
    /// What was posted is taken up whenever this server comes to run, also when nobody asks it anything.
    fn look(&self) -> bool {
        let Some(core) = self.core.upgrade() else { return false };
        let is_posted = self.posts.has_lanes() && self.posts.look();
        if is_posted {
            core.take_up(&self.posts);
            let is_allowed = self.writes_allowed.get();
            if !core.may_post(&self.posts) || is_allowed && !core.may_post_writes(&self.posts, is_allowed) {
                // As a step would.
                self.posts.forbid();
                core.take_up(&self.posts);
                self.leave();
            }
        }
        is_posted
    }

    fn enter(&self) -> bool {
        let Some(core) = self.core.upgrade() else { return false };
        if self.posts.has_lanes() {
            self.look();
            // What was posted meanwhile.
            if self.posts.forbid() {
                core.take_up(&self.posts);
            }
        }
        true
    }

    fn leave(&self) {
        let Some(core) = self.core.upgrade() else { return };
        if !self.posts.has_lanes() {
            if self.writes_allowed.replace(false) {
                core.store.keep_pages(0);
            }
            return;
        }
        if !core.may_post(&self.posts) {
            return self.posts.refuse();
        }
        self.writes_allowed.set(core.may_post_writes(&self.posts, self.writes_allowed.get()));
        self.posts.allow(self.writes_allowed.get());
    }
}

impl Core {
    /// Ends the posts of this life: whatever program is next finds that nothing is left.
    pub fn end_posts(self: &Rc<Self>) {
        let Some(lent) = self.store.lent() else { return };
        let posts = lent.posts();
        posts.forbid();
        self.take_up(posts);
        posts.end();
    }

    /// Begins a life of this server: takes up what was posted to the one before, and from now on what is posted to this
    /// one.
    pub fn begin_posts(self: &Rc<Self>) {
        // Also where nobody may read along any more.
        let Some(lent) = self.store.lent() else { return };
        let posts = lent.posts();
        // Bytes lie in pages that are free as far as this life knows, until they are written anew: nothing is written
        // before all are here.
        let bytes_of = |words: PostWords| {
            let change = PostBytes::of(&words).post(&words)?.change;
            let PostedBytes { at, size, .. } = change.bytes()?;
            let is_inside = at.checked_add(size.into()).is_some_and(|end| end <= lent.size());
            let mut bytes = vec![0; size as usize];
            is_inside.then(|| lent.read(at, &mut bytes)).map(|()| bytes)
        };
        let leftovers: Vec<_> = posts.leftovers().into_iter().map(|words| (words, bytes_of(words))).collect();
        for (words, bytes) in &leftovers {
            self.do_posted(words, Poster::Earlier(bytes.as_deref()));
        }
        posts.reset();
        self.reactor.add_gate(Rc::new(PostGate {
            core: Rc::downgrade(self),
            posts: posts.clone(),
            writes_allowed: Cell::new(false),
        }));
    }

    fn take_up(self: &Rc<Self>, posts: &Posts) {
        while let Some((lane, post)) = posts.next() {
            if let Some(next) = posts.next_but_one(lane) {
                self.prefetch_post(&next);
            }
            let claims = self.do_posted(&post, Poster::Lane(posts, lane));
            posts.taken(lane, claims);
        }
    }

    /// Has the memory fetched that a post will change.
    fn prefetch_post(&self, words: &PostWords) {
        let bytes = PostBytes::of(words);
        let Some(post) = bytes.post(words) else { return };
        let tables = self.tables.borrow();
        if post.change.bytes().is_some() {
            tables.inodes.prefetch(post.file);
            return;
        }
        let hash = dentry_hash(post.parent, post.name);
        tables.names.prefetch(post.parent, cursor_of_hash(hash));
        if let Some(publisher) = &tables.publisher {
            publisher.prefetch_name(hash);
            publisher.prefetch_buckets(hash);
            publisher.prefetch_inode(post.file);
        }
        if post.change == Change::Unlink {
            tables.inodes.prefetch(post.file);
            self.store.prefetch(post.file.0);
        }
    }

    /// Does what was posted. Returns the claims for it.
    fn do_posted(self: &Rc<Self>, words: &PostWords, poster: Poster<'_>) -> [usize; 2] {
        self.posting.taken.set(self.posting.taken.get() + 1);
        let bytes = PostBytes::of(words);
        let Some(post) = bytes.post(words) else {
            self.posting.failed.set(self.posting.failed.get() + 1);
            return [0; 2];
        };
        let (operation, result) = self.at_posted_time(post.time, || match post.change {
            Change::Unlink => (Operation::Unlink, handlers::unlink_posted(self, post.parent, post.name, post.file)),
            Change::Create(made) => {
                let is_its_own = match poster {
                    Poster::Lane(posts, lane) => self.takes_number(posts, lane, &post, &made),
                    Poster::Earlier(_) => true,
                };
                let result = match is_its_own {
                    true => handlers::create_posted(self, &post, &made),
                    false => {
                        let words = "the file's number or owner is not its client's";
                        Err(Failure::with_text(Status::NotPermitted, words))
                    }
                };
                (Operation::Open, result)
            }
            Change::Begin(bytes) => {
                (Operation::CommitGranted, handlers::begin_posted(self, post.file, &bytes, self.source_of(poster)))
            }
            Change::Write(range, bytes) => {
                (Operation::Write, handlers::write_posted(self, post.file, &range, &bytes, self.source_of(poster)))
            }
        });
        let is_done_before = |status| matches!(status, Status::NotFound | Status::Exists | Status::StaleFile);
        let result = match (result, poster) {
            (Err(failure), Poster::Earlier(_)) if is_done_before(failure.status) => Ok(()),
            (result, _) => result,
        };
        self.statistics.arrived(operation);
        self.statistics.started(operation, 0);
        self.statistics.finished(operation, 0, result.is_err(), 0, 0);
        if !self.statistics.sampling.get() {
            crate::report::start_sampling(self);
        }
        if let Err(failure) = result {
            self.posting.failed.set(self.posting.failed.get() + 1);
            let words = "a change that a client of this machine had made could not be done";
            let text = String::from_utf8_lossy(&failure.text).into_owned();
            log::event(Level::Error, "post-failed", words, &[("status", &failure.status), ("why", &text)]);
        }
        post.claims()
    }

    /// Where the bytes of a post are.
    fn source_of<'a>(&self, poster: Poster<'a>) -> PostedSource<'a> {
        match poster {
            Poster::Lane(_, lane) => {
                let connection = self.posting.clients.borrow().get(&lane).map_or(0, |(_, connection)| *connection);
                PostedSource::Granted(connection)
            }
            Poster::Earlier(bytes) => PostedSource::Bytes(bytes.unwrap_or_default()),
        }
    }

    /// Takes the number of a file that a client has made from those that it was given. False when it is none of them,
    /// or the client makes it for another user.
    fn takes_number(&self, posts: &Posts, lane: usize, post: &Post<'_>, made: &Made) -> bool {
        let (numbers, number) = (posts.numbers(lane), post.file.sequence());
        let is_its_own = self.posting.clients.borrow().get(&lane).is_some_and(|(uid, _)| *uid == made.uid);
        if !is_its_own || !numbers.contains(&number) {
            return false;
        }
        posts.use_number(lane, number);
        true
    }

    /// The client of a connection may post.
    pub fn lane_opened(&self, lane: usize, uid: u32, connection: u64) {
        self.posting.clients.borrow_mut().insert(lane, (uid, connection));
    }

    /// Somebody who may post has made a file in a directory: the next ones need not be asked for.
    pub fn invite_posts(self: &Rc<Self>, lane: usize, directory: FileId) {
        let Some(lent) = self.lent() else { return };
        if let Some(publisher) = &self.tables.borrow().publisher {
            publisher.publish_directory(directory);
        }
        if lent.posts().numbers(lane).is_empty()
            && self.check_file_numbers().is_ok()
            && let Ok(numbers) = self.next_numbers(NUMBER_COUNT)
        {
            lent.posts().set_numbers(lane, numbers);
        }
    }

    /// Whether whatever may be posted from now on would be done at once.
    fn may_post(&self, posts: &Posts) -> bool {
        // Of a file that goes all servers may have to be told.
        let one = RECORD_SIZE_MAX + 8 * u64::from(self.cluster.server_count());
        // Once more as much may be posted while that is taken up.
        let most = 2 * posts.lane_count() as u64 * SLOT_COUNT * one + RESERVE;
        self.posting.is_watched.get()
            && !self.stopping.get()
            // Names that other servers were lent are called back first.
            && self.delegations.is_empty()
            && !self.is_journal_low()
            && self.store.journal_room().0 > most
    }

    /// Whether the same is so of writes: there is room for all that may be posted while as much is taken up, and twice
    /// as much where they have not been allowed so far, so that chunks go on getting more than they need at a time.
    fn may_post_writes(&self, posts: &Posts, is_allowed: bool) -> bool {
        let lanes = posts.lane_count() as u64;
        let pages = 2 * lanes * WRITE_PAGES_MAX;
        self.store.keep_pages(pages);
        let one = WRITE_RECORD_SIZE_MAX + 8 * u64::from(self.cluster.server_count());
        self.store.has_ready_pages(if is_allowed { pages } else { 2 * pages })
            && self.store.journal_room().0 > 2 * lanes * SLOT_COUNT * one + RESERVE
    }

    /// Somebody changes names, and may post such changes for a while.
    pub fn watch_posts(self: &Rc<Self>) {
        if self.posting.is_watched.replace(true) {
            return;
        }
        let core = self.clone();
        self.reactor.spawn(Class::Background, async move {
            let (mut seen, mut looks) = (core.posting.taken.get(), 0);
            while looks < LOOKS_MAX && !core.stopping.get() {
                core.reactor.sleep(LOOK_NS).await;
                looks = if core.posting.taken.get() == seen { looks + 1 } else { 0 };
                seen = core.posting.taken.get();
            }
            core.posting.is_watched.set(false);
        });
    }
}
