//! Queues and locks within one process, by hand.

use super::queue::BELL_COUNT;
use super::*;
use crate::region::OpenMode;
use crate::sim::World;
use shm::submission::{
    INTENT_LOCK_COUNT, INTENT_LOCKS_OFFSET, NO_INTENT_LOCK, SEQUENCE_WORD, SLOT_COUNT, SUBMISSION_WORDS,
};

/// A submission that is told from others by its number, and is no write.
fn words(number: u64) -> SubmissionWords {
    let mut words = [number; SUBMISSION_WORDS];
    words[SEQUENCE_WORD] = 0;
    words
}

fn region() -> Rc<dyn Region> {
    let world = World::new(1);
    let node = world.add_node("node", std::net::IpAddr::from([10, 0, 0, 1]));
    let storage = world.reactor(node).storage(std::path::Path::new("/submissions")).expect("storage");
    let region = storage.open("submissions", SUBMISSION_QUEUES_SIZE, OpenMode::CreateNew).expect("created");
    region.allocate(0, SUBMISSION_QUEUES_SIZE).expect("allocated");
    region
}

fn client(submissions: &Rc<SubmissionQueues>, owner: u64) -> (Rc<SubmissionQueue>, usize) {
    let mapping_lock = submissions.mapping_lock().expect("shared");
    let queue = submissions.open_queue(owner, &mapping_lock).expect("a queue");
    (Rc::new(submissions.seen_by(mapping_lock)), queue)
}

/// Goal: what is submitted is taken up once, in order; what is locked is locked once; there is an end to the room.
#[test]
fn submitting() {
    let submissions = Rc::new(SubmissionQueues::new(region()));
    submissions.reset();
    let ((one, queue), (other, _)) = (client(&submissions, 7), client(&submissions, 8));
    let begin =
        |who: &Rc<SubmissionQueue>, owner, number: u64| who.begin(owner, [number as usize, 100], &words(number));
    assert!(begin(&one, 7, 1).is_none(), "nobody may submit yet");
    submissions.allow(true);
    assert!(begin(&one, 9, 1).is_none(), "nobody's queue");
    let first = begin(&one, 7, 1).expect("it begins");
    assert!(one.is_locked(1) && one.is_locked(100) && !other.is_locked(2));
    assert!(begin(&other, 8, 2).is_none(), "the second intent lock is another one's");
    assert!(!other.is_locked(2), "and the first is free again");
    assert_eq!(first.commit(), Some(0));
    assert!(begin(&other, 8, 2).is_none() && submissions.forbid());
    assert_eq!(submissions.next().map(|next| (next.queue, next.words[0])), Some((queue, 1)));
    submissions.taken(queue, [1, 100]);
    assert!(submissions.next().is_none() && !one.is_locked(1) && !one.is_locked(100));
    submissions.allow(true);
    for number in 0..SLOT_COUNT {
        assert!(one.begin(7, [number as usize; 2], &words(number)).and_then(PendingSubmission::commit).is_some());
    }
    assert!(one.begin(7, [200, 201], &words(0)).is_none(), "no room");
    assert!(submissions.forbid());
    for number in 0..SLOT_COUNT {
        assert_eq!(submissions.next().map(|next| (next.queue, next.words)), Some((queue, words(number))));
        submissions.taken(queue, [number as usize; 2]);
    }
    assert!(!submissions.forbid());
}

/// Goal: a server that may sleep is woken when a queue is half full and when it is full, not for each submission; and
/// not any more when the connection has gone.
#[test]
fn bells() {
    struct Counted(Cell<u32>);
    impl Bell for Counted {
        fn ring(&self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let submissions = Rc::new(SubmissionQueues::new(region()));
    submissions.reset();
    let mapping_lock = submissions.mapping_lock().expect("shared");
    let queue = submissions.open_queue(7, &mapping_lock).expect("a queue");
    let counted = Rc::new(Counted(Cell::new(0)));
    let bell: Rc<dyn Bell> = counted.clone();
    let mut client = submissions.seen_by(mapping_lock);
    client.bell = Some(Rc::downgrade(&bell));
    let client = Rc::new(client);
    submissions.allow(true);
    let submission =
        |number: u64| client.begin(7, [number as usize; 2], &words(number)).and_then(PendingSubmission::commit);
    let rung = |number| {
        assert_eq!(submission(number), Some(number));
        counted.0.get()
    };
    let rings: Vec<u32> = (0..SLOT_COUNT).map(rung).collect();
    assert!((0..SLOT_COUNT).all(|number| rings[number as usize] == u32::from(number >= BELL_COUNT)));
    assert_eq!((submission(100), counted.0.get()), (None, 2));
    drop(bell);
    drop(counted);
    assert!(submission(100).is_none() && submissions.look());
    submissions.taken(queue, [0; 2]);
    assert!(submission(100).is_some());
}

/// Goal: a number that was not used in a submission is there for the next one, whatever became of the one that it was
/// meant for.
#[test]
fn numbers_are_used_once() {
    let submissions = Rc::new(SubmissionQueues::new(region()));
    submissions.reset();
    let (client, queue) = client(&submissions, 7);
    submissions.allow(true);
    assert_eq!(client.unused_number(7), None);
    submissions.set_numbers(queue, 50..52);
    let begin = || client.begin(7, [1, 2], &words(5)).expect("it begins");
    drop(begin());
    assert_eq!(client.unused_number(7), Some(50));
    assert!(begin().commit_made(50).is_some() && submissions.look());
    assert_eq!((client.unused_number(7), submissions.numbers(queue)), (Some(51), 50..52));
    submissions.use_number(queue, 50);
    submissions.taken(queue, [1, 2]);
    let last = begin();
    submissions.forbid();
    assert!(last.commit_made(51).is_none());
    submissions.allow(true);
    assert_eq!((client.unused_number(7), submissions.numbers(queue)), (Some(51), 51..52));
    assert!(begin().commit_made(51).is_some() && client.unused_number(7).is_none());
}

/// Goal: what a queue has locked it locks again only on purpose, for several submissions then, and it is free after the
/// last of them; what only comes to the same intent lock keeps none of its submissions back; nonsense in an intent lock
/// does no harm.
#[test]
fn intent_locks_nest() {
    let submissions = Rc::new(SubmissionQueues::new(region()));
    submissions.reset();
    let ((one, queue), (other, _)) = (client(&submissions, 7), client(&submissions, 8));
    submissions.allow(true);
    for _ in 0..2 {
        assert!(one.begin_on_top(7, [1, 1], &words(5)).and_then(PendingSubmission::commit).is_some());
    }
    assert!(one.begin(7, [1, 1], &words(5)).is_none() && one.begin(7, [2, 1], &words(5)).is_none());
    assert!(!one.is_locked(2) && other.begin_on_top(8, [1, 1], &words(5)).is_none());
    assert!(submissions.look());
    submissions.taken(queue, [1, 1]);
    assert!(one.is_locked(1) && other.begin(8, [1, 2], &words(6)).is_none());
    submissions.taken(queue, [1, 1]);
    assert!(!one.is_locked(1) && submissions.next().is_none());
    for round in 0..2 {
        let same = 1 + round * INTENT_LOCK_COUNT;
        assert!(one.begin(7, [same, NO_INTENT_LOCK], &words(5)).and_then(PendingSubmission::commit).is_some());
        assert!(
            one.begin(7, [same, NO_INTENT_LOCK], &words(5)).is_none() && other.begin(8, [1, 9], &words(5)).is_none()
        );
    }
    assert!(submissions.look());
    (0..2).for_each(|_| submissions.taken(queue, [1, NO_INTENT_LOCK]));
    assert!(!one.is_locked(1) && submissions.next().is_none());
    // The number of submissions lies above the queue's tag.
    let nonsense = u16::MAX << 8 | (queue as u16 + 1);
    submissions.region.write(INTENT_LOCKS_OFFSET + 2, &nonsense.to_le_bytes());
    assert!(one.begin_on_top(7, [1, 1], &words(5)).is_none(), "no more can be counted");
    submissions.close_queue(queue);
    assert!(!other.is_locked(1));
}

/// Goal: a step that begins meanwhile undoes what is about to be submitted, and nothing begins within it; who gives up
/// leaves nothing.
#[test]
fn steps_come_between() {
    let submissions = Rc::new(SubmissionQueues::new(region()));
    submissions.reset();
    let (client, queue) = client(&submissions, 7);
    submissions.allow(true);
    let begin = || client.begin(7, [1, 2], &words(5));
    let begun = begin().expect("it begins");
    assert!(!submissions.forbid() && begin().is_none());
    submissions.allow(true);
    assert!(begun.commit().is_none(), "a step has been");
    assert!(!client.is_locked(1));
    drop(begin().expect("it begins"));
    assert!(!submissions.forbid() && !client.is_locked(1) && !client.is_locked(2));
    submissions.allow(true);
    let begun = begin().expect("it begins");
    submissions.forbid();
    submissions.close_queue(queue);
    submissions.allow(true);
    assert!(begun.commit().is_none() && begin().is_none() && !submissions.has_queues());
}

/// Goal: what was submitted to a server that ended is there for the next one, once; a queue is not given to another one
/// while somebody has it mapped.
#[test]
fn lives() {
    let region = region();
    let submissions = Rc::new(SubmissionQueues::new(region.clone()));
    submissions.reset();
    let (client, queue) = client(&submissions, 7);
    submissions.allow(true);
    assert!(client.begin(7, [1, 2], &words(5)).and_then(PendingSubmission::commit).is_some());
    let begun = client.begin(7, [3, 4], &words(6)).expect("it begins");
    let next = Rc::new(SubmissionQueues::new(region));
    assert!(begun.commit().is_none());
    let leftovers = next.leftovers();
    assert_eq!(leftovers.iter().map(|left| (left.queue, left.words)).collect::<Vec<_>>(), [(queue, words(5))]);
    next.leftover_taken(&leftovers[0]);
    assert!(next.leftovers().is_empty(), "it is noted");
    next.reset();
    assert!(next.leftovers().is_empty() && !client.is_locked(1));
    next.allow(true);
    assert!(client.begin(7, [1, 2], &words(5)).is_none(), "the queue is nobody's");
    let mapping_lock = next.mapping_lock().expect("shared");
    assert_ne!(next.open_queue(8, &mapping_lock), Some(queue), "it is still mapped");
    drop((client, submissions));
    let another = next.mapping_lock().expect("shared");
    assert_eq!(next.open_queue(9, &another), Some(queue));
    assert_eq!(next.consumer.next_number(queue), Some(leftovers[0].number + 1), "no number comes twice");
}

/// Goal: nonsense in the shared words does no harm.
#[test]
fn nonsense() {
    let submissions = Rc::new(SubmissionQueues::new(region()));
    submissions.reset();
    let (_client, queue) = client(&submissions, 7);
    submissions.region.write(queue_range(queue).0, &[0xFF; 8]);
    assert!(!submissions.forbid());
    assert!(submissions.next().is_none());
    submissions.close_queue(queue);
}

/// Goal: writes of several clients are taken up in the order of their numbers, and a file that is written to is known
/// as such until all writes are taken up; who submits a name's change and who writes to its file see each other; nobody
/// writes where that is not allowed.
#[test]
fn writes() {
    let submissions = Rc::new(SubmissionQueues::new(region()));
    submissions.reset();
    let ((one, queue), (other, other_queue)) = (client(&submissions, 7), client(&submissions, 8));
    let begin = |who: &Rc<SubmissionQueue>, owner, submission| {
        who.begin(owner, [NO_INTENT_LOCK; 2], &words(submission)).expect("it begins")
    };
    let write = |who, owner, submission, file| {
        let pending = begin(who, owner, submission);
        pending.number_write(file) && pending.commit().is_some()
    };
    submissions.allow(false);
    assert!(!write(&one, 7, 1, 100));
    submissions.forbid();
    submissions.allow(true);
    assert!(!one.is_written(100));
    assert!(write(&one, 7, 1, 100) && write(&other, 8, 2, 100) && write(&one, 7, 3, 200) && write(&other, 8, 4, 100));
    assert!(one.is_written(100) && one.is_written(200) && !other.is_written(300));
    assert!(submissions.look());
    let mut all = Vec::new();
    while let Some(Submitted { queue: from, words, .. }) = submissions.next() {
        all.push((from, words[0]));
        submissions.taken(from, [NO_INTENT_LOCK; 2]);
    }
    assert_eq!(all, [(queue, 1), (other_queue, 2), (queue, 3), (other_queue, 4)]);
    assert!(one.is_written(100), "until a step has been");
    submissions.forbid();
    submissions.allow(true);
    assert!(!one.is_written(100) && !one.is_written(200));

    let removal = one.begin(7, [100, 100], &words(6)).expect("it begins");
    let late = begin(&other, 8, 7);
    assert!(!late.number_write(100) && other.is_written(100));
    drop((late, removal));
    let own = begin(&one, 7, 8);
    assert!(own.number_write(100));
    submissions.forbid();
    submissions.allow(true);
    assert!(own.commit().is_none() && !one.is_written(100));

    // What was submitted to an earlier life counts as such until that is taken up, in the order of all writes.
    assert!(write(&other, 8, 9, 200) && write(&one, 7, 10, 100));
    let next = SubmissionQueues::new(submissions.region.clone());
    assert!(one.is_written(100) && one.is_written(200));
    assert_eq!(next.leftovers().iter().map(|left| left.words[0]).collect::<Vec<_>>(), [9, 10]);
    next.reset();
    assert!(!one.is_written(100) && !one.is_written(200));
}

/// Goal: what another version has submitted is seen to be so; what a life that has ended in order leaves is nothing to
/// anybody, and what one that was killed leaves is there.
/// Method: lives of this version over a region, whose version is changed by hand.
#[test]
fn versions() {
    let region = region();
    assert_eq!(
        submissions_left(region.as_ref()),
        SubmissionsLeft::Ours,
        "from before there were versions, or just made"
    );
    let submissions = Rc::new(SubmissionQueues::new(region.clone()));
    submissions.reset();
    assert_eq!(submissions_left(region.as_ref()), SubmissionsLeft::Ours);
    let set = |layout: u64| submissions.region.write(LAYOUT_OFFSET, &layout.to_le_bytes());
    set(SUBMISSION_LAYOUT + 1);
    assert_eq!(submissions_left(region.as_ref()), SubmissionsLeft::OfLayout(SUBMISSION_LAYOUT + 1));
    set((SUBMISSION_LAYOUT + 1) | NOTHING_LEFT);
    assert_eq!(submissions_left(region.as_ref()), SubmissionsLeft::Nothing);
    set(SUBMISSION_LAYOUT);
    let (client, queue) = client(&submissions, 7);
    submissions.allow(true);
    assert!(client.begin(7, [1, 2], &words(1)).and_then(PendingSubmission::commit).is_some());
    let word = || {
        let mut word = [0; 8];
        submissions.region.read(LAYOUT_OFFSET, &mut word);
        u64::from_le_bytes(word)
    };
    submissions.end();
    assert_eq!(word(), SUBMISSION_LAYOUT, "something is left");
    assert!(submissions.forbid() && submissions.next().is_some());
    submissions.taken(queue, [1, 2]);
    submissions.end();
    assert_eq!(word(), SUBMISSION_LAYOUT | NOTHING_LEFT);
    submissions.allow(true);
    assert!(client.begin(7, [1, 2], &words(2)).is_none(), "it has ended");
    assert_eq!(submissions_left(region.as_ref()), SubmissionsLeft::Ours, "whose version it is");
}
