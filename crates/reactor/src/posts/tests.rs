//! Lanes and claims within one process, by hand.

use super::*;
use crate::region::OpenMode;
use crate::sim::World;

/// A post that is told from others by its number, and is no write.
fn words(number: u64) -> PostWords {
    let mut words = [number; POST_WORDS];
    words[TICKET_WORD] = 0;
    words
}

fn region() -> Rc<dyn Region> {
    let world = World::new(1);
    let node = world.add_node("node", std::net::IpAddr::from([10, 0, 0, 1]));
    let storage = world.reactor(node).storage(std::path::Path::new("/posts")).expect("storage");
    let region = storage.open("posts", POSTS_SIZE, OpenMode::CreateNew).expect("created");
    region.allocate(0, POSTS_SIZE).expect("allocated");
    region
}

fn client(posts: &Rc<Posts>, owner: u64) -> (Rc<Lane>, usize) {
    let mapping_lock = posts.mapping_lock().expect("lent");
    let lane = posts.open_lane(owner, &mapping_lock).expect("a lane");
    (Rc::new(posts.seen_by(mapping_lock)), lane)
}

/// Goal: what is posted is taken up once, in order; what is claimed is claimed once; there is an end to the room.
#[test]
fn posting() {
    let posts = Rc::new(Posts::new(region()));
    posts.reset();
    let ((one, lane), (other, _)) = (client(&posts, 7), client(&posts, 8));
    let begin = |who: &Rc<Lane>, owner, number: u64| who.begin(owner, [number as usize, 100], &words(number));
    assert!(begin(&one, 7, 1).is_none(), "nobody may post yet");
    posts.allow(true);
    assert!(begin(&one, 9, 1).is_none(), "nobody's lane");
    let first = begin(&one, 7, 1).expect("it begins");
    assert!(one.is_claimed(1) && one.is_claimed(100) && !other.is_claimed(2));
    assert!(begin(&other, 8, 2).is_none(), "the second claim is another one's");
    assert!(!other.is_claimed(2), "and the first is free again");
    assert_eq!(first.commit(), Some(0));
    assert!(begin(&other, 8, 2).is_none() && posts.forbid());
    assert_eq!(posts.next().map(|(at, post)| (at, post[0])), Some((lane, 1)));
    posts.taken(lane, [1, 100]);
    assert!(posts.next().is_none() && !one.is_claimed(1) && !one.is_claimed(100));
    posts.allow(true);
    for number in 0..SLOT_COUNT {
        assert!(one.begin(7, [number as usize; 2], &words(number)).and_then(Posting::commit).is_some());
    }
    assert!(one.begin(7, [200, 201], &words(0)).is_none(), "no room");
    assert!(posts.forbid());
    for number in 0..SLOT_COUNT {
        assert_eq!(posts.next(), Some((lane, words(number))));
        posts.taken(lane, [number as usize; 2]);
    }
    assert!(!posts.forbid());
}

/// Goal: a server that may sleep is woken when a lane is half full and when it is full, not for each post; and not any
/// more when the connection has gone.
#[test]
fn bells() {
    struct Counted(Cell<u32>);
    impl Bell for Counted {
        fn ring(&self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let posts = Rc::new(Posts::new(region()));
    posts.reset();
    let mapping_lock = posts.mapping_lock().expect("lent");
    let lane = posts.open_lane(7, &mapping_lock).expect("a lane");
    let counted = Rc::new(Counted(Cell::new(0)));
    let bell: Rc<dyn Bell> = counted.clone();
    let mut client = posts.seen_by(mapping_lock);
    client.bell = Some(Rc::downgrade(&bell));
    let client = Rc::new(client);
    posts.allow(true);
    let post = |number: u64| client.begin(7, [number as usize; 2], &words(number)).and_then(Posting::commit);
    let rung = |number| {
        assert_eq!(post(number), Some(number));
        counted.0.get()
    };
    let rings: Vec<u32> = (0..SLOT_COUNT).map(rung).collect();
    assert!((0..SLOT_COUNT).all(|number| rings[number as usize] == u32::from(number >= BELL_COUNT)));
    assert_eq!((post(100), counted.0.get()), (None, 2));
    drop(bell);
    drop(counted);
    assert!(post(100).is_none() && posts.look());
    posts.taken(lane, [0; 2]);
    assert!(post(100).is_some());
}

/// Goal: a number that was not used in a post is there for the next one, whatever became of the one that it was meant
/// for.
#[test]
fn numbers_are_used_once() {
    let posts = Rc::new(Posts::new(region()));
    posts.reset();
    let (client, lane) = client(&posts, 7);
    posts.allow(true);
    assert_eq!(client.unused_number(7), None);
    posts.set_numbers(lane, 50..52);
    let begin = || client.begin(7, [1, 2], &words(5)).expect("it begins");
    drop(begin());
    assert_eq!(client.unused_number(7), Some(50));
    assert!(begin().commit_made(50).is_some() && posts.look());
    assert_eq!((client.unused_number(7), posts.numbers(lane)), (Some(51), 50..52));
    posts.use_number(lane, 50);
    posts.taken(lane, [1, 2]);
    let last = begin();
    posts.forbid();
    assert!(last.commit_made(51).is_none());
    posts.allow(true);
    assert_eq!((client.unused_number(7), posts.numbers(lane)), (Some(51), 51..52));
    assert!(begin().commit_made(51).is_some() && client.unused_number(7).is_none());
}

/// Goal: what a lane has claimed it claims again only on purpose, for several posts then, and it is free after the last
/// of them; what only comes to the same claim keeps none of its posts back; nonsense in a claim does no harm.
#[test]
fn claims_nest() {
    let posts = Rc::new(Posts::new(region()));
    posts.reset();
    let ((one, lane), (other, _)) = (client(&posts, 7), client(&posts, 8));
    posts.allow(true);
    for _ in 0..2 {
        assert!(one.begin_on_top(7, [1, 1], &words(5)).and_then(Posting::commit).is_some());
    }
    assert!(one.begin(7, [1, 1], &words(5)).is_none() && one.begin(7, [2, 1], &words(5)).is_none());
    assert!(!one.is_claimed(2) && other.begin_on_top(8, [1, 1], &words(5)).is_none());
    assert!(posts.look());
    posts.taken(lane, [1, 1]);
    assert!(one.is_claimed(1) && other.begin(8, [1, 2], &words(6)).is_none());
    posts.taken(lane, [1, 1]);
    assert!(!one.is_claimed(1) && posts.next().is_none());
    for round in 0..2 {
        let same = 1 + round * CLAIM_COUNT;
        assert!(one.begin(7, [same, NO_CLAIM], &words(5)).and_then(Posting::commit).is_some());
        assert!(one.begin(7, [same, NO_CLAIM], &words(5)).is_none() && other.begin(8, [1, 9], &words(5)).is_none());
    }
    assert!(posts.look());
    (0..2).for_each(|_| posts.taken(lane, [1, NO_CLAIM]));
    assert!(!one.is_claimed(1) && posts.next().is_none());
    posts.words.claim(1).store(u16::MAX << 8 | tag_of(lane), Ordering::Relaxed);
    assert!(one.begin_on_top(7, [1, 1], &words(5)).is_none(), "no more can be counted");
    posts.close_lane(lane);
    assert!(!other.is_claimed(1));
}

/// Goal: a step that begins meanwhile undoes what is about to be posted, and nothing begins within it; who gives up
/// leaves nothing.
#[test]
fn steps_come_between() {
    let posts = Rc::new(Posts::new(region()));
    posts.reset();
    let (client, lane) = client(&posts, 7);
    posts.allow(true);
    let begin = || client.begin(7, [1, 2], &words(5));
    let begun = begin().expect("it begins");
    assert!(!posts.forbid() && begin().is_none());
    posts.allow(true);
    assert!(begun.commit().is_none(), "a step has been");
    assert!(!client.is_claimed(1));
    drop(begin().expect("it begins"));
    assert!(!posts.forbid() && !client.is_claimed(1) && !client.is_claimed(2));
    posts.allow(true);
    let begun = begin().expect("it begins");
    posts.forbid();
    posts.close_lane(lane);
    posts.allow(true);
    assert!(begun.commit().is_none() && begin().is_none() && !posts.has_lanes());
}

/// Goal: what was posted to a server that ended is there for the next one, once; a lane is not given to another one
/// while somebody has it mapped.
#[test]
fn lives() {
    let region = region();
    let posts = Rc::new(Posts::new(region.clone()));
    posts.reset();
    let (client, lane) = client(&posts, 7);
    posts.allow(true);
    assert!(client.begin(7, [1, 2], &words(5)).and_then(Posting::commit).is_some());
    let begun = client.begin(7, [3, 4], &words(6)).expect("it begins");
    let next = Rc::new(Posts::new(region));
    assert!(begun.commit().is_none());
    assert_eq!(next.leftovers(), [words(5)]);
    next.reset();
    assert!(next.leftovers().is_empty() && !client.is_claimed(1));
    next.allow(true);
    assert!(client.begin(7, [1, 2], &words(5)).is_none(), "the lane is nobody's");
    let mapping_lock = next.mapping_lock().expect("lent");
    assert_ne!(next.open_lane(8, &mapping_lock), Some(lane), "it is still mapped");
    drop((client, posts));
    let another = next.mapping_lock().expect("lent");
    assert_eq!(next.open_lane(9, &another), Some(lane));
}

/// Goal: nonsense in the shared words does no harm.
#[test]
fn nonsense() {
    let posts = Rc::new(Posts::new(region()));
    posts.reset();
    let (_client, lane) = client(&posts, 7);
    posts.words.lane(lane, STATE_WORD).store(u64::MAX, Ordering::Relaxed);
    assert!(!posts.forbid());
    assert!(posts.next().is_none());
    posts.close_lane(lane);
}

/// Goal: writes of several clients are taken up in the order of their numbers, and a file that is written to is known
/// as such until all writes are taken up; who posts a name's change and who writes to its file see each other; nobody
/// writes where that is not allowed.
#[test]
fn writes() {
    let posts = Rc::new(Posts::new(region()));
    posts.reset();
    let ((one, lane), (other, other_lane)) = (client(&posts, 7), client(&posts, 8));
    let begin = |who: &Rc<Lane>, owner, post| who.begin(owner, [NO_CLAIM; 2], &words(post)).expect("it begins");
    let write = |who, owner, post, file| {
        let posting = begin(who, owner, post);
        posting.number_write(file) && posting.commit().is_some()
    };
    posts.allow(false);
    assert!(!write(&one, 7, 1, 100));
    posts.forbid();
    posts.allow(true);
    assert!(!one.is_written(100));
    assert!(write(&one, 7, 1, 100) && write(&other, 8, 2, 100) && write(&one, 7, 3, 200) && write(&other, 8, 4, 100));
    assert!(one.is_written(100) && one.is_written(200) && !other.is_written(300));
    assert!(posts.look());
    let mut all = Vec::new();
    while let Some((from, post)) = posts.next() {
        all.push((from, post[0]));
        posts.taken(from, [NO_CLAIM; 2]);
    }
    assert_eq!(all, [(lane, 1), (other_lane, 2), (lane, 3), (other_lane, 4)]);
    assert!(one.is_written(100), "until a step has been");
    posts.forbid();
    posts.allow(true);
    assert!(!one.is_written(100) && !one.is_written(200));

    // A number that was taken after the server had begun to look waits for the next time, and so does what is behind
    // it.
    assert!(posts.look() || write(&one, 7, 5, 100));
    posts.open.borrow_mut().iter_mut().for_each(|open| open.posted += u64::from(open.lane == lane));
    assert!(posts.next().is_none() && posts.look());
    assert_eq!(posts.next().map(|(_, post)| post[0]), Some(5));
    posts.taken(lane, [NO_CLAIM; 2]);

    let removal = one.begin(7, [100, 100], &words(6)).expect("it begins");
    let late = begin(&other, 8, 7);
    assert!(!late.number_write(100) && other.is_written(100));
    drop((late, removal));
    let own = begin(&one, 7, 8);
    assert!(own.number_write(100));
    posts.forbid();
    posts.allow(true);
    assert!(own.commit().is_none() && !one.is_written(100));

    // What was posted to an earlier life counts as such until that is taken up, in the order of all writes.
    assert!(write(&other, 8, 9, 200) && write(&one, 7, 10, 100));
    let next = Posts::new(posts.region.clone());
    assert!(one.is_written(100) && one.is_written(200));
    assert_eq!(next.leftovers().iter().map(|post| post[0]).collect::<Vec<_>>(), [9, 10]);
    next.reset();
    assert!(!one.is_written(100) && !one.is_written(200));
}

/// Goal: what another version has posted is seen to be so; what a life that has ended in order leaves is nothing to
/// anybody, and what one that was killed leaves is there.
/// Method: lives of this version over a region, whose version is changed by hand.
#[test]
fn versions() {
    let region = region();
    assert_eq!(posts_left(region.as_ref()), PostsLeft::Ours, "from before there were versions, or just made");
    let posts = Rc::new(Posts::new(region.clone()));
    posts.reset();
    assert_eq!(posts_left(region.as_ref()), PostsLeft::Ours);
    let set = |layout: u64| posts.words.at(LAYOUT_WORD).store(layout, Ordering::Relaxed);
    set(POSTS_LAYOUT + 1);
    assert_eq!(posts_left(region.as_ref()), PostsLeft::OfLayout(POSTS_LAYOUT + 1));
    set((POSTS_LAYOUT + 1) | NOTHING_LEFT);
    assert_eq!(posts_left(region.as_ref()), PostsLeft::Nothing);
    set(POSTS_LAYOUT);
    let (client, lane) = client(&posts, 7);
    posts.allow(true);
    assert!(client.begin(7, [1, 2], &words(1)).and_then(Posting::commit).is_some());
    let word = || posts.words.at(LAYOUT_WORD).load(Ordering::Relaxed);
    posts.end();
    assert_eq!(word(), POSTS_LAYOUT, "something is left");
    assert!(posts.forbid() && posts.next().is_some());
    posts.taken(lane, [1, 2]);
    posts.end();
    assert_eq!(word(), POSTS_LAYOUT | NOTHING_LEFT);
    posts.allow(true);
    assert!(client.begin(7, [1, 2], &words(2)).is_none(), "it has ended");
    assert_eq!(posts_left(region.as_ref()), PostsLeft::Ours, "whose version it is");
}
