//! Rights on directories that are taken away and given while others use them.

use client::{Credentials, FileSystem, OpenHow, Status};
use reactor::Class;
use sim::check::rights::{Attempt, Change, check};
use sim::harness::{Harness, SimClient};
use sim::history::NEVER;
use sim::profile::{Overrides, Profile, SECOND};
use sim::random::Random;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const LIMIT: u64 = 600 * SECOND;
const MODES: [u32; 5] = [0o755, 0o700, 0o777, 0o711, 0o733];
const SEARCH: u32 = 1;
const CHANGE: u32 = 3;

/// What all clients of a story note.
#[derive(Default)]
struct Notes {
    moments: Cell<u64>,
    changes: RefCell<Vec<Change>>,
    attempts: RefCell<Vec<Attempt>>,
    /// Clients at work.
    working: Cell<u32>,
}

impl Notes {
    fn moment(&self) -> u64 {
        self.moments.set(self.moments.get() + 1);
        self.moments.get()
    }
}

/// Root changes the directory's mode again and again.
async fn govern(fs: FileSystem, notes: Rc<Notes>, directory: &'static str, mut random: Random) {
    for _ in 0..25 {
        fs.reactor().sleep(random.below(20_000_000)).await;
        let (mode, start) = (*random.choose(&MODES), notes.moment());
        let end = match fs.chmod(directory.as_bytes(), mode).await {
            Ok(_) => notes.moment(),
            Err(_) => NEVER,
        };
        notes.changes.borrow_mut().push(Change { start, end, mode });
    }
}

/// A user looks and creates beneath the directory.
async fn use_it(fs: FileSystem, notes: Rc<Notes>, directory: &'static str, mut random: Random) {
    let own = format!("{directory}/own{}", random.next());
    let deep = format!("{directory}/sub/file");
    let link = format!("/link{}", directory.replace('/', ""));
    for _ in 0..60 {
        fs.reactor().sleep(random.below(8_000_000)).await;
        let start = notes.moment();
        let create = OpenHow { create: true, exclusive: true, ..OpenHow::reading_and_writing() };
        let (wanted, outcome) = match random.below(5) {
            0 => (SEARCH, fs.stat(deep.as_bytes()).await.map(drop)),
            1 => (SEARCH, fs.open(deep.as_bytes(), &OpenHow::reading()).await.map(drop)),
            2 => (SEARCH, fs.stat(link.as_bytes()).await.map(drop)),
            3 => (CHANGE, fs.open(own.as_bytes(), &create).await.map(drop)),
            _ => (CHANGE, fs.unlink(own.as_bytes()).await),
        };
        let allowed = match outcome.map_err(|error| error.status) {
            Ok(()) => true,
            Err(Status::AccessDenied) => false,
            // Whether the name is there is told to those who may search only, and says nothing of the right to write.
            Err(Status::Exists | Status::NotFound) if wanted == CHANGE => {
                let end = notes.moment();
                notes.attempts.borrow_mut().push(Attempt { start, end, wanted: SEARCH, allowed: true });
                continue;
            }
            Err(Status::TimedOut | Status::Unreachable | Status::OutcomeUnknown) => continue,
            Err(status) => panic!("{status:?} is nothing that {directory} can be a reason for"),
        };
        let end = notes.moment();
        notes.attempts.borrow_mut().push(Attempt { start, end, wanted, allowed });
    }
}

fn spawn<F: Future<Output = ()> + 'static>(harness: &Harness, client: &SimClient, notes: &Rc<Notes>, work: F) {
    notes.working.set(notes.working.get() + 1);
    let notes = notes.clone();
    harness.world.reactor(client.node).spawn(Class::Data, async move {
        work.await;
        notes.working.set(notes.working.get() - 1);
    });
}

/// One story; how many attempts were allowed and refused.
fn story(seed: u64, servers: u32, faults: bool) -> (usize, usize) {
    let overrides = Overrides { no_faults: true, servers: Some(servers), ..Overrides::default() };
    let mut profile = Profile::new(seed, &overrides);
    (profile.client_timeout, profile.server_timeout) = (10 * SECOND, 2 * SECOND);
    (profile.store_size, profile.journal_size) = (64 << 20, 8 << 20);
    profile.session_grace = 60 * SECOND;
    let harness = Harness::new(&profile, false);
    harness.wait_for_servers(LIMIT).expect("servers start");
    let mut random = Random::new(seed);
    let root = harness.add_client();
    // The directory whose rights change is the root directory now and then: it is known in another way than others.
    let directory = if random.percent(25) { "/" } else { "/shared/place" };
    let directory = if directory == "/" { "" } else { directory };
    let fs = root.client.file_system.clone();
    let set_up = async move {
        fs.chmod(b"/", 0o755).await.expect("chmod");
        fs.create_all(format!("{directory}/sub").as_bytes(), 0o755).await.expect("mkdir");
        let create = OpenHow { create: true, mode: 0o644, ..OpenHow::reading_and_writing() };
        fs.open(format!("{directory}/sub/file").as_bytes(), &create).await.expect("create");
        let link = format!("/link{}", directory.replace('/', ""));
        fs.symlink(format!("{directory}/sub/file").as_bytes(), link.as_bytes()).await.expect("symlink");
    };
    harness.world.run(root.node, set_up, LIMIT).expect("the set-up ends");
    let notes = Rc::new(Notes::default());
    let begun = Change { start: notes.moment(), end: notes.moment(), mode: 0o755 };
    notes.changes.borrow_mut().push(begun);
    let changed: &'static str = if directory.is_empty() { "/" } else { directory };
    spawn(&harness, &root, &notes, govern(root.client.file_system.clone(), notes.clone(), changed, random.fork()));
    for user in 0..3 {
        let client = harness.add_client_as(Credentials::new(7000 + user / 2, 7000));
        let fs = client.client.file_system.clone();
        spawn(&harness, &client, &notes, use_it(fs, notes.clone(), directory, random.fork()));
    }
    let ended = || notes.working.get() == 0;
    for _ in 0..if faults { 3 } else { 0 } {
        harness.world.run_until(ended, random.below(200_000_000));
        let victim = random.below(servers.into()) as u32;
        harness.kill(victim);
        harness.world.run_until(ended, random.below(500_000_000));
        harness.restart(victim);
    }
    assert!(harness.world.run_until(ended, LIMIT), "seed {seed}: it never ends");
    let (changes, attempts) = (notes.changes.borrow(), notes.attempts.borrow());
    let findings = check(&changes, &attempts);
    assert!(findings.is_empty(), "seed {seed}, {servers} servers: {findings:#?}\n{changes:#?}");
    let allowed = attempts.iter().filter(|attempt| attempt.allowed).count();
    (allowed, attempts.len() - allowed)
}

/// Goal: rights on directories that were taken away are never honoured afterwards, and those that were given are not
/// refused. Method: root changes the mode of a directory while users look, open and create beneath it, also through a
/// symbolic link, with servers killed in between; each outcome is explained by a mode that the directory had meanwhile.
#[test]
fn taken_away_is_gone() {
    let (mut allowed, mut refused) = (0, 0);
    for seed in 0..60 {
        let counts = story(seed, 1 + (seed % 4) as u32, seed % 3 == 2);
        (allowed, refused) = (allowed + counts.0, refused + counts.1);
    }
    assert!(allowed > 500 && refused > 500, "{allowed} allowed, {refused} refused");
}
