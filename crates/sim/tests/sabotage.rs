//! Whether the checkers would notice: rules are broken on purpose, and the run has to say so.

use client::{FileSystem, OpenHow};
use reactor::sim::NodeId;
use reactor::{CacheFault, LeftoverFault, Validation};
use server::{EntryKeeping, ReadLeasing};
use sim::harness::Harness;
use sim::profile::{Faults, Flavour, Overrides, Profile, SECOND, Sabotage};
use sim::run::run_profile;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Runs some seeds without other faults, which pass when nothing is sabotaged.
fn problems(sabotage: Sabotage, change: impl Fn(&mut Profile)) -> Vec<String> {
    (0..4).flat_map(|seed| problems_of(seed, sabotage, &change)).collect()
}

fn problems_of(seed: u64, sabotage: Sabotage, change: impl Fn(&mut Profile)) -> Vec<String> {
    let mut profile = Profile::new(seed, &Overrides { no_faults: true, ..Overrides::default() });
    profile.sabotage = sabotage;
    change(&mut profile);
    run_profile(&profile, false).problems
}

fn assert_noticed(problems: &[String], words: &[&str]) {
    let noticed = problems.iter().any(|problem| words.iter().any(|words| problem.contains(words)));
    assert!(noticed, "nobody said any of {words:?}: {problems:#?}");
}

/// Goal: the runs of this file fail for their sabotage and for nothing else.
#[test]
fn without_sabotage_all_is_well() {
    assert_eq!(problems(Sabotage::None, |_| {}), Vec::<String>::new());
}

/// Goal: an operation that is applied twice is noticed.
#[test]
fn applied_twice() {
    let problems = problems(Sabotage::ApplyTwice, |_| {});
    assert_noticed(&problems, &["no order explains"]);
    assert_noticed(&problems, &["appended by nobody, or twice"]);
    assert_noticed(&problems, &["the size can't have been"]);
}

/// Goal: an acknowledged write that is not there is noticed.
#[test]
fn lost_writes() {
    assert_noticed(&problems(Sabotage::LoseWrites, |_| {}), &["no order of the writes explains"]);
}

/// Goal: a server that comes back empty is noticed by names, contents or sizes.
#[test]
fn lost_store() {
    assert_noticed(&problems(Sabotage::LoseStore, |_| {}), &["no order explains", "does not start"]);
}

/// Goal: bytes that go bad are noticed as torn chunks, and as errors where the store keeps checksums.
#[test]
fn flipped_bits() {
    assert_noticed(&problems(Sabotage::FlipBits, |profile| profile.checksums = false), &["torn or mixed"]);
    assert_noticed(&problems(Sabotage::FlipBits, |profile| profile.checksums = true), &["does not match its checksum"]);
}

/// Goal: what is left behind when everything was deleted is noticed.
#[test]
fn left_behind() {
    assert_noticed(&problems(Sabotage::LeaveBehind, |_| {}), &["something leaked"]);
}

/// Goal: a listing that misses a name is noticed.
#[test]
fn hidden_names() {
    assert_noticed(&problems(Sabotage::HideNames, |_| {}), &["the listing misses"]);
}

/// Goal: a directory that is shown as if a server did not answer is noticed when all do.
#[test]
fn hidden_shares() {
    let words = "shown without the share of a server, though none was silent";
    assert_noticed(&problems(Sabotage::HideShares, |_| {}), &[words]);
}

/// Goal: the same where servers were silent again and again from early on, once they are back: in runs that end with
/// directories.
#[test]
fn hidden_shares_after_faults() {
    let mut noticed = 0;
    for seed in 0..8 {
        let mut profile = Profile::new(seed, &Overrides::default());
        profile.sabotage = Sabotage::HideShares;
        profile.faults = Faults { kills: true, ..Faults::default() };
        (profile.fault_count, profile.flavour) = (16, Flavour::Names);
        let problems = run_profile(&profile, false).problems;
        noticed += usize::from(problems.iter().any(|problem| problem.contains("though none was silent")));
    }
    assert!(noticed >= 2, "noticed in {noticed} of 8 runs");
}

/// Goal: what was told to be synced and is gone after a loss of power is noticed.
#[test]
fn skipped_syncs() {
    let mixed = problems(Sabotage::SkipSyncs, |profile| profile.stable_media = true);
    assert_noticed(&mixed, &["no order of the writes explains"]);
    assert_noticed(&mixed, &["the size can't have been"]);
    let names = problems(Sabotage::SkipSyncs, |profile| {
        profile.stable_media = true;
        profile.flavour = Flavour::Names;
    });
    assert_noticed(&names, &["no order explains"]);
}

/// Goal: devices that acknowledge flushes which they do not make are noticed when power is lost.
#[test]
fn ignored_flushes() {
    let problems = problems(Sabotage::IgnoreFlushes, |profile| (profile.stable_media, profile.devices) = (true, true));
    assert_noticed(&problems, &["no order of the writes explains", "the size can't have been", "does not start"]);
}

/// Goal: bytes that were read by short circuit from a server's memory while they changed, or after, are noticed.
#[test]
fn trusted_memory() {
    let mut problems = Vec::new();
    for seed in 0..40 {
        let mut profile = Profile::new(seed, &Overrides { no_faults: true, ..Overrides::default() });
        profile.sabotage = Sabotage::LeaveOut(Validation::Bytes);
        (profile.stable_media, profile.checksums, profile.short_circuit) = (false, false, true);
        (profile.relaying, profile.crowded, profile.flavour) = (false, true, Flavour::Contents);
        (profile.clients, profile.tasks, profile.pause_max) = (4, 4, 0);
        problems.extend(run_profile(&profile, false).problems);
    }
    assert_noticed(&problems, &["torn or mixed", "no order of the writes explains"]);
}

/// Goal: names and files that servers show when they are not so any more are noticed, by what clients see and by the
/// servers themselves.
#[test]
fn kept_in_the_attribute_cache() {
    let sabotage = Sabotage::Cache(CacheFault::KeepsEverything);
    let mut problems = Vec::new();
    let is_seen = |problems: &[String]| problems.iter().any(|problem| problem.contains("no order explains"));
    // A name that is left leads to a cell, and that tells that the file is gone: it takes one that only moved.
    let mut seeds = 0..100;
    while let Some(seed) = seeds.next().filter(|_| !is_seen(&problems)) {
        problems.extend(problems_of(seed, sabotage, |profile| {
            (profile.stable_media, profile.checksums, profile.short_circuit) = (false, false, true);
            (profile.relaying, profile.crowded, profile.flavour) = (false, true, Flavour::Names);
        }));
    }
    assert_noticed(&problems, &["no order explains"]);
    assert_noticed(&problems, &["a name is published as"]);
}

/// Goal: files that a client has opened by a look at the attribute cache, and that are given up all the same when they
/// lose their names, are noticed; also when the connection ends over which they were held.
#[test]
fn ignored_hazards() {
    for faults in [Faults::default(), Faults { cuts: true, ..Faults::default() }] {
        let problems_of = |sabotage| problems_by_attribute_caches(sabotage, faults);
        assert_eq!(problems_of(Sabotage::None), Vec::<String>::new());
        assert_noticed(&problems_of(Sabotage::IgnoreHazards), &["the file is gone, though it was open"]);
    }
}

/// Goal: clients that do not look again whether what they have read in an attribute cache still stands are noticed, if
/// only since they do not tell of the close of a file that has lost its name. Bytes of small files are read on the word
/// of such a cell, too.
#[test]
fn trusted_cells() {
    let problems = problems_by_attribute_caches(Sabotage::LeaveOut(Validation::Cell), Faults::default());
    let words = ["no order explains", "the file is gone, though it was open", "nobody has open is not reaped"];
    let words = [&words[..], &["submitted could not be done"]].concat();
    let contents = ["no order of the writes explains", "torn or mixed, nobody wrote them so"];
    assert_noticed(&problems, &[&words[..], &contents].concat());
}

/// Goal: clients that do not see what others have submitted are noticed, as are servers that do something else first,
/// and those that forget with a restart what was submitted, or do it once more.
#[test]
fn submissions_out_of_order() {
    let names = ["no order explains", "submitted could not be done", "there is still", "the file is gone"];
    let words = [&names[..], &["the size can't have been"]].concat();
    for sabotage in [Sabotage::IgnoreIntentLocks, Sabotage::LateSubmissions] {
        assert_noticed(&problems_by_attribute_caches(sabotage, Faults::default()), &words);
    }
    let kills = Faults { kills: true, torn_kills: true, ..Faults::default() };
    assert_eq!(problems_by_attribute_caches(Sabotage::None, kills), Vec::<String>::new());
    assert_eq!(problems_by_attribute_caches(Sabotage::None, Faults::default()), Vec::<String>::new());
    for fault in [LeftoverFault::Lost, LeftoverFault::Repeated] {
        assert_noticed(&problems_by_attribute_caches(Sabotage::Leftovers(fault), kills), &words);
    }
}

/// Goal: a change that does not wait until those who keep names have confirmed that they have forgotten them is
/// noticed; one that waits never is, whatever breaks.
#[test]
fn hurried_changes() {
    let kills = Faults { kills: true, torn_kills: true, cuts: true, partitions: true, ..Faults::default() };
    for faults in [Faults::default(), kills] {
        assert_eq!(problems_by_keepers(Sabotage::None, faults), Vec::<String>::new());
    }
    let problems = problems_by_keepers(Sabotage::HurryChanges, Faults::default());
    assert_noticed(&problems, &["no order explains"]);
}

/// Runs seeds in which half of the clients keep names, until something is said.
fn problems_by_keepers(sabotage: Sabotage, faults: Faults) -> Vec<String> {
    for seed in 0..if sabotage == Sabotage::None { 12 } else { 400 } {
        let mut profile = Profile::new(seed, &Overrides::default());
        (profile.sabotage, profile.faults, profile.keepers) = (sabotage, faults, true);
        profile.bounds.entry_keeping = EntryKeeping { holders: 64, time: SECOND, rest: 0 };
        (profile.clients, profile.tasks, profile.pause_max) = (4, 1, 20_000_000);
        (profile.crowded, profile.flavour, profile.fault_count) = (true, Flavour::Names, 12);
        // Children keep nothing.
        profile.forks = false;
        let problems = run_profile(&profile, false).problems;
        if !problems.is_empty() {
            return problems;
        }
    }
    Vec::new()
}

/// Runs seeds in which clients look at attribute caches, until something is said.
fn problems_by_attribute_caches(sabotage: Sabotage, faults: Faults) -> Vec<String> {
    let mut problems = Vec::new();
    for seed in 0..if sabotage == Sabotage::None { 24 } else { 300 } {
        let mut profile = Profile::new(seed, &Overrides { servers: Some(1), ..Overrides::default() });
        profile.sabotage = sabotage;
        (profile.stable_media, profile.checksums, profile.short_circuit) = (false, false, true);
        (profile.relaying, profile.crowded, profile.flavour) = (false, true, Flavour::Mixed);
        (profile.clients, profile.tasks, profile.steps, profile.pause_max) = (4, 4, 600, 0);
        (profile.faults, profile.fault_count) = (faults, 20);
        problems.extend(run_profile(&profile, false).problems);
        if !problems.is_empty() {
            break;
        }
    }
    problems
}

/// Goal: opens that contacts answer from delegations which nobody called back are noticed.
#[test]
fn kept_delegations() {
    // As for clients of other machines: others look at attribute caches, and submit only while nothing is delegated.
    let delegated = |profile: &mut Profile| {
        (profile.contacts, profile.short_circuit) = (true, false);
        profile.servers = profile.servers.max(2);
        profile.clients = 4;
        profile.crowded = true;
        profile.flavour = Flavour::Names;
    };
    // A delegation has to stand just when somebody changes the file, and somebody has to look then.
    let problems =
        |sabotage| (0..40).map(|seed| problems_of(seed, sabotage, delegated)).find(|found| !found.is_empty());
    assert_noticed(&problems(Sabotage::KeepDelegations).unwrap_or_default(), &["no order explains"]);
    assert_eq!(problems(Sabotage::None), None);
}

/// Goal: contents that a client reads by a lease while a server lets others change them are noticed.
#[test]
fn ignored_read_leases() {
    let leased = |profile: &mut Profile| {
        (profile.servers, profile.clients, profile.tasks) = (1, 4, 4);
        (profile.short_circuit, profile.crowded, profile.pause_max) = (false, true, 0);
        (profile.flavour, profile.latency) = (Flavour::Contents, (5_000, 50_000));
        profile.read_leasing = ReadLeasing { time: 20_000_000, rest: 0 };
    };
    assert_eq!(problems(Sabotage::None, leased), Vec::<String>::new());
    let problems = problems(Sabotage::IgnoreReadLeases, leased);
    assert_noticed(&problems, &["the size can't have been", "no order of the writes explains"]);
}

/// What is said of chunks that somebody else has written into.
const TORN: [&str; 2] = ["torn or mixed", "no order of the writes explains"];

/// Runs seeds in which clients write into registered pages, under one kind of fault, until one has such chunks, or
/// without sabotage any problem.
fn problems_with_buffers(sabotage: Sabotage, faults: Faults) -> Vec<String> {
    let mut problems = Vec::new();
    // Whoever writes late must meet pages that somebody else has got meanwhile, which few runs have.
    let seeds = if sabotage == Sabotage::None { 0..24 } else { 0..100 };
    for seed in seeds {
        let mut profile = Profile::new(seed, &Overrides { servers: Some(1), ..Overrides::default() });
        profile.sabotage = sabotage;
        (profile.stable_media, profile.checksums) = (false, false);
        (profile.short_circuit, profile.registered_buffers) = (true, true);
        profile.read_leasing = ReadLeasing::OFF;
        (profile.flavour, profile.crowded, profile.pause_max) = (Flavour::Contents, true, 0);
        (profile.clients, profile.tasks, profile.steps) = (4, 4, 400);
        (profile.chunk_sizes, profile.store_size) = (vec![47_008], 64 << 20);
        (profile.faults, profile.fault_count) = (faults, 30);
        problems.extend(run_profile(&profile, false).problems);
        let is_torn = |problem: &String| TORN.iter().any(|words| problem.contains(words));
        if problems.iter().any(|problem| sabotage == Sabotage::None || is_torn(problem)) {
            break;
        }
    }
    problems
}

/// Goal: pages that are given to others while somebody who has lost his connection may still copy into them are
/// noticed, and nothing is when the server knows; the same when it was killed and started in between.
#[test]
fn forgotten_mapping_locks() {
    let cuts = Faults { cuts: true, ..Faults::default() };
    let kills = Faults { kills: true, torn_kills: true, ..Faults::default() };
    for faults in [cuts, kills] {
        assert_eq!(problems_with_buffers(Sabotage::None, faults), Vec::<String>::new());
        let problems = problems_with_buffers(Sabotage::ForgetMappingLocks, faults);
        assert_noticed(&problems, &TORN);
    }
}

/// Goal: a client that writes to registered pages once more after it has sent their commit is noticed, in runs without
/// any fault and in those where its connections end.
#[test]
fn late_copies() {
    for faults in [Faults::default(), Faults { cuts: true, ..Faults::default() }] {
        assert_eq!(problems_with_buffers(Sabotage::None, faults), Vec::<String>::new());
        let problems = problems_with_buffers(Sabotage::WriteOn, faults);
        assert_noticed(&problems, &TORN);
    }
}

/// Goal: restarts that forget what was written by submissions are noticed, and nothing is when all is well.
#[test]
fn lost_submitted_writes() {
    assert_eq!(problems_of_submitted_writes(Sabotage::None, Faults::default()), Vec::<String>::new());
    let kills = Faults { kills: true, torn_kills: true, ..Faults::default() };
    assert_eq!(problems_of_submitted_writes(Sabotage::None, kills), Vec::<String>::new());
    assert_noticed(
        &problems_of_submitted_writes(Sabotage::Leftovers(LeftoverFault::Lost), kills),
        &["no order of the writes explains"],
    );
}

/// Runs seeds in which clients submit writes, until something is said of them.
fn problems_of_submitted_writes(sabotage: Sabotage, faults: Faults) -> Vec<String> {
    let mut problems = Vec::new();
    for seed in 0..if sabotage == Sabotage::None { 24 } else { 300 } {
        let mut profile = Profile::new(seed, &Overrides { servers: Some(1), ..Overrides::default() });
        profile.sabotage = sabotage;
        (profile.stable_media, profile.checksums, profile.relaying) = (false, false, false);
        (profile.short_circuit, profile.registered_buffers) = (true, true);
        profile.read_leasing = ReadLeasing::OFF;
        (profile.flavour, profile.crowded, profile.pause_max) = (Flavour::Contents, true, 0);
        (profile.clients, profile.tasks, profile.steps) = (3, 3, 500);
        (profile.store_size, profile.journal_size) = (64 << 20, 8 << 20);
        (profile.faults, profile.fault_count) = (faults, 20);
        let found = run_profile(&profile, false).problems;
        let is_of_writes = |problem: &String| problem.contains("no order of the writes explains");
        if sabotage == Sabotage::None || found.iter().any(is_of_writes) {
            problems.extend(found);
        }
        if !problems.is_empty() {
            break;
        }
    }
    problems
}

/// A server with its store in memory, and two clients of its machine.
struct Pair {
    harness: Harness,
    /// Whose turn it is: what clients wait for, and raise.
    turn: Rc<Cell<u32>>,
    /// Findings of the clients.
    wrong: Rc<Cell<u32>>,
    /// Both go on when they have done their part.
    clients: RefCell<Vec<FileSystem>>,
}

/// What a client of a pair has.
struct Party {
    files: FileSystem,
    turn: Rc<Cell<u32>>,
    wrong: Rc<Cell<u32>>,
}

impl Pair {
    fn new(seed: u64, sabotage: Sabotage) -> Pair {
        let mut profile = Profile::new(seed, &Overrides { no_faults: true, servers: Some(1), ..Overrides::default() });
        profile.sabotage = sabotage;
        (profile.stable_media, profile.checksums, profile.relaying, profile.contacts) = (false, false, false, false);
        (profile.short_circuit, profile.registered_buffers) = (true, true);
        (profile.store_size, profile.journal_size, profile.chunk_sizes) = (64 << 20, 8 << 20, vec![1 << 20]);
        let harness = Harness::new(&profile, false);
        harness.wait_for_servers(3600 * SECOND).expect("servers start");
        Pair { harness, turn: Rc::default(), wrong: Rc::default(), clients: RefCell::default() }
    }

    fn start<F: Future<Output = ()> + 'static>(&self, part: impl FnOnce(Party) -> F) -> NodeId {
        let client = self.harness.add_client();
        let files = client.client.file_system.clone();
        self.clients.borrow_mut().push(files.clone());
        let party = Party { files, turn: self.turn.clone(), wrong: self.wrong.clone() };
        self.harness.world.reactor(client.node).spawn(reactor::Class::Metadata, part(party));
        client.node
    }

    /// Lets both go on until it is this turn. Returns how much was wrong, submissions that could not be done included.
    fn run(&self, last: u32) -> u32 {
        let limit = 3600 * SECOND;
        assert!(self.harness.world.run_until(|| self.turn.get() == last, limit), "nobody waits for ever");
        let is_failed = |error: &&String| error.contains("submitted could not be done");
        let audits = self.harness.audits();
        let failed = audits.iter().flat_map(|(_, audit)| &audit.errors).filter(is_failed).count();
        self.wrong.get() + failed as u32
    }
}

impl Party {
    async fn wait_for(&self, turn: u32) {
        while self.turn.get() != turn {
            self.files.reactor().sleep(1_000).await;
        }
    }

    async fn pause(&self, most: u64) {
        self.files.reactor().sleep(self.files.reactor().random() % most).await;
    }

    fn end_turn(&self) {
        self.turn.set(self.turn.get() + 1);
    }

    async fn open(&self, path: &str, create: bool) -> client::File {
        let how = OpenHow { create, ..OpenHow::reading_and_writing() };
        self.files.open(path.as_bytes(), &how).await.expect("open")
    }

    async fn write(&self, file: &client::File, byte: u8) {
        self.files.write_at(file, &[byte; 100], 0).await.expect("write");
    }

    /// Reads what was written, and whether all of it is this byte.
    async fn finds(&self, file: &client::File, byte: u8) -> bool {
        let mut found = [0; 100];
        self.files.read_at(file, &mut found, 0).await.expect("read");
        found == [byte; 100]
    }
}

/// Writes of two clients to the same bytes, one after the other, and a read of one of them now and then. Returns how
/// many reads did not find the last write.
fn misread(seed: u64, sabotage: Sabotage) -> u32 {
    const ROUNDS: u32 = 40;
    const WRITES: u32 = 3;
    let pair = Pair::new(seed, sabotage);
    for index in 0..2 {
        pair.start(async move |party| {
            let file = party.open("/both", true).await;
            // Whose write each is has no pattern.
            for number in (0..ROUNDS * WRITES).filter(|number| number.wrapping_mul(0x9E37_79B9) >> 20 & 1 == index) {
                party.wait_for(number).await;
                party.write(&file, number as u8).await;
                if number % WRITES == WRITES - 1 && !party.finds(&file, number as u8).await {
                    party.wrong.set(party.wrong.get() + 1);
                }
                party.end_turn();
            }
        });
    }
    pair.run(ROUNDS * WRITES)
}

/// One client makes a file and writes to it, while the other one changes the mode so that something has to be done
/// before each write. Returns how many of these submissions the server could not make.
fn overtaken(seed: u64, sabotage: Sabotage) -> u32 {
    const ROUNDS: u32 = 40;
    let pair = Pair::new(seed, sabotage);
    for index in 0..2 {
        pair.start(async move |party| {
            for round in 0..ROUNDS {
                let path = format!("/f{round}");
                if index == 0 {
                    party.wait_for(3 * round).await;
                    let file = party.open(&path, true).await;
                    party.end_turn();
                    party.write(&file, 1).await;
                    party.files.close(&file).await;
                } else {
                    while party.turn.get() <= 3 * round {
                        party.files.reactor().sleep(1_000).await;
                    }
                    party.pause(20_000_000).await;
                    party.files.chmod(path.as_bytes(), 0o6700).await.expect("chmod");
                }
                party.end_turn();
                while party.turn.get() < 3 * round + 3 {
                    party.files.reactor().sleep(1_000).await;
                }
            }
        });
    }
    pair.run(3 * ROUNDS)
}

/// One client removes a file while the other one writes to it once more and closes it. Returns how many of these
/// submissions the server could not make.
fn unlinked(seed: u64, sabotage: Sabotage) -> u32 {
    const ROUNDS: u32 = 40;
    let pair = Pair::new(seed, sabotage);
    for index in 0..2 {
        pair.start(async move |party| {
            for round in 0..ROUNDS {
                let path = format!("/f{round}");
                party.wait_for(4 * round + index).await;
                // Opened by a look, so that nobody has to be told of the close.
                let file = party.open(&path, index == 0).await;
                party.write(&file, 1).await;
                party.write(&file, 1).await;
                if index == 0 {
                    party.files.close(&file).await;
                }
                party.end_turn();
                while party.turn.get() < 4 * round + 2 {
                    party.files.reactor().sleep(1_000).await;
                }
                party.pause(100_000).await;
                if index == 0 {
                    party.files.unlink(path.as_bytes()).await.expect("unlink");
                } else {
                    party.write(&file, 2).await;
                    party.files.close(&file).await;
                }
                party.end_turn();
            }
        });
    }
    pair.run(4 * ROUNDS)
}

/// One client removes a file while the other one opens it and has its connection cut. Returns how often the file was
/// gone though that one had it open, or was there when nobody had it open any more.
fn cut_off(seed: u64, sabotage: Sabotage) -> u32 {
    const ROUNDS: u32 = 40;
    let pair = Pair::new(seed, sabotage);
    let opener = pair.start(async move |party| {
        for round in 0..ROUNDS {
            party.wait_for(4 * round + 1).await;
            party.end_turn();
            party.pause(300_000).await;
            let path = format!("/f{round}");
            let file = party.open(&path, false).await;
            party.end_turn();
            party.wait_for(4 * round + 4).await;
            let is_there = party.files.read_at(&file, &mut [0; 100], 0).await.is_ok();
            party.wrong.set(party.wrong.get() + u32::from(!is_there));
            party.files.close(&file).await;
        }
        party.end_turn();
    });
    let (world, server) = (pair.harness.world.clone(), pair.harness.node(0));
    pair.start(async move |party| {
        for round in 0..ROUNDS {
            party.wait_for(4 * round).await;
            let path = format!("/f{round}");
            let file = party.open(&path, true).await;
            party.write(&file, 1).await;
            party.files.close(&file).await;
            party.end_turn();
            while party.turn.get() < 4 * round + 2 {
                party.files.reactor().sleep(1_000).await;
            }
            party.pause(300_000).await;
            world.cut(opener, server);
            party.wait_for(4 * round + 3).await;
            party.files.unlink(path.as_bytes()).await.expect("unlink");
            party.end_turn();
        }
    });
    let wrong = pair.run(4 * ROUNDS + 1);
    pair.harness.world.run_for(10 * SECOND);
    let audits = pair.harness.audits();
    wrong + audits.iter().map(|(_, audit)| u32::from(audit.open_files > 0)).sum::<u32>()
}

/// Goal: of the checks that a client makes before what it has read in shared memory counts (`Snapshot::holds`), each is
/// noticed when it is left out. Those of cells and bytes have tests of their own.
/// Method: scripts of two clients, in which what a check is for happens often, and a workload for the absence of names.
#[test]
fn left_out_validations() {
    let scripts = [
        (unlinked as fn(_, _) -> _, Validation::Unwritten),
        (overtaken, Validation::Waiting),
        (cut_off, Validation::Hazard),
    ];
    for (script, validation) in scripts {
        assert_eq!((0..10).map(|seed| script(seed, Sabotage::None)).sum::<u32>(), 0, "without {validation:?}");
        let is_noticed = (0..100).any(|seed| script(seed, Sabotage::LeaveOut(validation)) > 0);
        assert!(is_noticed, "{validation:?} is not noticed");
    }
    let problems = problems_by_attribute_caches(Sabotage::LeaveOut(Validation::Absence), Faults::default());
    assert_noticed(&problems, &["no order explains", "submitted could not be done", "the file is gone"]);
}

/// Goal: writes that are taken up client by client are noticed where a later one of another client goes to the same
/// bytes, and so are reads that do not wait for what was submitted, and servers that do something else first; nothing
/// is when all is well.
#[test]
fn submitted_writes_out_of_order() {
    let wrong = |sabotage| (0..20).map(|seed| misread(seed, sabotage)).sum::<u32>();
    assert_eq!(wrong(Sabotage::None), 0);
    for sabotage in [Sabotage::MixWrites, Sabotage::IgnoreIntentLocks, Sabotage::LateSubmissions] {
        assert!(wrong(sabotage) > 0, "{sabotage:?} is not noticed");
    }
}
