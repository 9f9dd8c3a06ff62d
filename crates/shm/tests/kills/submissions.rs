//! Submission queues whose client, or whose server, is killed.

use crate::{Child, MOMENTS_MAX, Notes, Random, WORK_MAX, fork, map, memory_file, shared};
use shm::mapping::{Mapped, Mapping};
use shm::submission::{
    INTENT_LOCK_COUNT, NO_INTENT_LOCK, QUEUE_COUNT, SEQUENCE_WORD, SLOT_COUNT, SUBMISSION_QUEUES_SIZE,
    SUBMISSION_WORDS, SubmissionArea, SubmissionConsumer, SubmissionWords,
};
use std::os::fd::OwnedFd;
use std::rc::Rc;

const NOTES_OFFSET: usize = SUBMISSION_QUEUES_SIZE.next_multiple_of(4096) as usize;
/// Notes: the number of the last submission that its client was about to commit, and of the last one that it has
/// committed; the last one that a server has taken up; the life of the server, which names its client and queue.
const BEGUN: usize = 0;
const COMMITTED: usize = 1;
const APPLIED: usize = 2;
const LIFE: usize = 3;

fn file() -> OwnedFd {
    memory_file(NOTES_OFFSET as u64 + 4096)
}

fn parts(file: &OwnedFd) -> (Mapped<SubmissionArea>, Mapped<Notes>) {
    let mapping: Rc<Mapping> = map(file);
    (shared(&mapping, 0), shared(&mapping, NOTES_OFFSET))
}

/// What submission `number` says, and what it locks: odd ones are writes, which lock nothing.
fn words(number: u64) -> SubmissionWords {
    let mut words = [number; SUBMISSION_WORDS];
    words[SEQUENCE_WORD] = 0;
    words
}

fn locks(number: u64) -> [usize; 2] {
    match number % 2 {
        0 => [number as usize % INTENT_LOCK_COUNT, (number as usize / 3) % INTENT_LOCK_COUNT],
        _ => [NO_INTENT_LOCK; 2],
    }
}

/// Submits one after the other for ever.
fn submit(file: &OwnedFd) {
    let (area, notes) = parts(file);
    loop {
        let (owner, number) = (notes.get(LIFE), notes.get(COMMITTED) + 1);
        // 0 stands for nobody: there is no server yet.
        let Some(queue) = area.queue_of(owner).filter(|_| owner != 0) else { continue };
        let Some(at) = area.next_number(queue) else { continue };
        if !area.is_allowed() || area.waiting_before(queue, at) >= SLOT_COUNT {
            continue;
        }
        let Some(beginning) = area.begin(owner, (queue, at), locks(number), &words(number), |_| true) else { continue };
        let may = area.may_go_on(&beginning) && (number % 2 == 0 || area.number_write(&beginning, number as usize));
        // Clients look at what a submission rests on; so they are about to submit for a good part of the time.
        rest(number % 32);
        notes.set(BEGUN, number);
        if may && area.commit(&beginning) {
            notes.set(COMMITTED, number);
        } else {
            area.abandon(&beginning);
        }
    }
}

/// Takes up a submission, which is the next one, or where a life begins one that an earlier one has taken up and not
/// noted as such.
fn apply(submission: &SubmissionWords, notes: &Notes, may_repeat: bool) -> u64 {
    let (number, applied) = (submission[0], notes.get(APPLIED));
    let is_whole = submission.iter().enumerate().all(|(index, word)| index == SEQUENCE_WORD || *word == number);
    assert!(is_whole, "torn: {submission:?}");
    assert_eq!(number % 2 == 1, submission[SEQUENCE_WORD] != 0, "writes have numbers");
    assert!(number == applied + 1 || may_repeat && number <= applied, "{number} is taken up after {applied}");
    assert!(number <= notes.get(BEGUN), "{number} was not submitted");
    notes.set(APPLIED, number.max(applied));
    number
}

fn take_up(server: &SubmissionConsumer, notes: &Notes) {
    while let Some((queue, number)) = server.head(true) {
        let number = apply(&server.submission(queue, number), notes, false);
        server.taken(queue, locks(number));
    }
}

/// Does nothing for a moment.
fn rest(turns: u64) {
    (0..turns).for_each(|_| std::hint::spin_loop());
}

/// A step, and time until the next one in which clients may submit.
fn step(server: &SubmissionConsumer, notes: &Notes) {
    server.look();
    take_up(server, notes);
    server.forbid();
    take_up(server, notes);
    server.allow(true);
    rest(128);
}

pub fn clients_are_killed(rounds: u64) {
    let file = file();
    let (area, notes) = parts(&file);
    let server = SubmissionConsumer::new(area);
    server.reset();
    let (mut random, mut unnoted, mut about_to) = (Random(2), 0, 0);
    for round in 1..=rounds {
        let queue = round as usize % QUEUE_COUNT;
        server.open_queue(queue, round);
        notes.set(LIFE, round);
        server.allow(true);
        let client = fork(|| submit(&file));
        let goal = notes.get(COMMITTED) + 1 + random.below(WORK_MAX);
        client.runs_until(&notes, COMMITTED, goal, || step(&server, &notes));
        client.kill_after(random.below(MOMENTS_MAX));
        about_to += u64::from(server.next_number(queue).is_none());
        step(&server, &notes);
        let (applied, committed) = (notes.get(APPLIED), notes.get(COMMITTED));
        assert!(applied >= committed && applied <= notes.get(BEGUN), "{applied} of {committed} are taken up");
        unnoted += applied - committed;
        notes.set(COMMITTED, applied);
        server.close_queue(queue);
        assert!((0..INTENT_LOCK_COUNT).all(|lock| !server.is_locked(lock)), "locks of the dead are free");
    }
    println!("submissions: {} by {rounds} killed clients; {about_to} were about to submit", notes.get(APPLIED));
    println!("submissions: {unnoted} clients died before they knew of what they had submitted");
}

/// A server for ever, which begins with what an earlier life has left.
fn serve(file: &OwnedFd) {
    let (area, notes) = parts(file);
    let server = SubmissionConsumer::new(area);
    let leftovers = server.leftovers();
    let applied = notes.get(APPLIED);
    assert!(
        leftovers.iter().filter(|left| left.words[0] <= applied).count() <= 1,
        "only the last one may be there again"
    );
    for leftover in leftovers {
        apply(&leftover.words, &notes, true);
        server.leftover_taken(&leftover);
    }
    server.reset();
    let life = notes.get(LIFE) + 1;
    server.open_queue(life as usize % QUEUE_COUNT, life);
    notes.set(LIFE, life);
    server.allow(true);
    loop {
        step(&server, &notes);
    }
}

pub fn servers_are_killed(rounds: u64) {
    let file = file();
    let (_, notes) = parts(&file);
    let client = fork(|| submit(&file));
    let mut random = Random(3);
    for _ in 0..rounds {
        let server = fork(|| serve(&file));
        let goal = notes.get(APPLIED) + 1 + random.below(WORK_MAX);
        server.runs_until(&notes, APPLIED, goal, || assert!(client.is_there(), "the client has failed"));
        server.kill_after(random.below(MOMENTS_MAX));
    }
    Child::kill(client);
    // A last life finds all that was committed.
    let server = fork(|| serve(&file));
    server.runs_until(&notes, APPLIED, notes.get(COMMITTED), || ());
    server.kill();
    assert!(notes.get(APPLIED) <= notes.get(BEGUN));
    println!("submissions: {} to {rounds} killed servers", notes.get(APPLIED));
}
