//! Opens through contact servers: what is answered there is never what was there before, whoever dies meanwhile, and
//! nothing is left open.
//!
//! The clients that look have contacts; the one that changes things has none. A name is lent from the second request
//! on, so two opens come first.

use client::{Contact, File, FileSystem, OpenHow, Options, Status};
use reactor::{Class, Nanos};
use server::Bounds;
use sim::harness::{Harness, SimClient};
use sim::profile::{Overrides, Profile, SECOND};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use wire::credentials::Credentials;
use wire::identity::dentry_slot;
use wire::{FileId, Placement};

const LIMIT: Nanos = 600 * SECOND;
const GRACE: Nanos = 5 * SECOND;
/// The time of a delegation, and what its giver adds.
const DELEGATION: Nanos = 2_200_000_000;

fn cluster(servers: u32) -> Harness {
    cluster_with_grace(servers, GRACE)
}

fn cluster_with_grace(servers: u32, grace: Nanos) -> Harness {
    cluster_with_bounds(servers, grace, Bounds::default())
}

fn cluster_with_bounds(servers: u32, grace: Nanos, bounds: Bounds) -> Harness {
    let overrides = Overrides { no_faults: true, servers: Some(servers), ..Overrides::default() };
    let mut profile = Profile::new(1, &overrides);
    profile.remember_all();
    profile.bounds = bounds;
    (profile.placement, profile.chunk_sizes) = (Placement::Modular, vec![4096]);
    (profile.client_timeout, profile.server_timeout) = (20 * SECOND, 4 * SECOND);
    (profile.session_grace, profile.latency) = (grace, (10_000, 200_000));
    let harness = Harness::new(&profile, false);
    harness.wait_for_servers(LIMIT).expect("servers start");
    harness
}

fn run<T: 'static>(harness: &Harness, client: &SimClient, work: impl AsyncFnOnce(FileSystem) -> T + 'static) -> T {
    let file_system = client.client.file_system.clone();
    harness.world.run(client.node, async move { work(file_system).await }, LIMIT).expect("it ends")
}

fn creating() -> OpenHow {
    OpenHow { create: true, ..OpenHow::reading_and_writing() }
}

/// A client of a user whose opens go to contacts.
fn looker(harness: &Harness, user: Credentials) -> SimClient {
    harness.add_client_with(Options { contact: Contact::Always, user, session: Some(7), ..Options::default() })
}

/// The home of a name in the root, and the contact of `looker` for it.
fn places(harness: &Harness, name: &str) -> (u32, u32) {
    let slot = dentry_slot(FileId::ROOT, name.as_bytes(), harness.cluster.slot_count);
    let home = harness.cluster.server_of(slot);
    let drawn = (7 % (u64::from(harness.cluster.server_count()) - 1)) as u32;
    (home, if drawn < home { drawn } else { drawn + 1 })
}

fn number(harness: &Harness, server: u32, name: &str) -> u64 {
    let numbers = harness.server(server).contact_numbers();
    numbers.into_iter().find(|(known, _)| *known == name).expect("it is counted").1
}

/// Makes a file and has it lent to the looker's contact.
fn lend(harness: &Harness, owner: &SimClient, looker: &SimClient) -> FileId {
    let id = run(harness, owner, async |fs| {
        let file = fs.open(b"/f", &OpenHow { mode: 0o644, ..creating() }).await.expect("create");
        fs.close(&file).await;
        file.id
    });
    lend_again(harness, looker);
    id
}

fn lend_again(harness: &Harness, looker: &SimClient) {
    let contact = places(harness, "f").1;
    let before = number(harness, contact, "contact_hits");
    run(harness, looker, async |fs| {
        for _ in 0..3 {
            let file = fs.open(b"/f", &OpenHow::reading()).await.expect("open");
            fs.close(&file).await;
        }
    });
    assert!(number(harness, contact, "contact_hits") >= before + 2, "the name is lent from the second open on");
}

/// Goal: a file with several names is not lent: one of them may be about to be taken from it, under a lock that is not
/// asked for when another one is opened.
/// Method: it is opened more often than it takes, with two names and with one.
#[test]
fn files_with_several_names_are_not_lent() {
    let harness = cluster(3);
    let owner = harness.add_client();
    let looker = looker(&harness, Credentials::new(0, 0));
    run(&harness, &owner, async |fs| {
        let file = fs.open(b"/f", &OpenHow { mode: 0o644, ..creating() }).await.expect("create");
        fs.close(&file).await;
        fs.link(b"/f", b"/g").await.expect("link");
    });
    let contact = places(&harness, "f").1;
    run(&harness, &looker, async |fs| {
        for _ in 0..4 {
            let file = fs.open(b"/f", &OpenHow::reading()).await.expect("open");
            fs.close(&file).await;
        }
    });
    assert_eq!(number(&harness, contact, "contact_hits"), 0);
    run(&harness, &owner, async |fs| fs.unlink(b"/g").await.expect("unlink"));
    // Who was refused does not ask again at once.
    harness.world.run_for(10 * SECOND);
    lend_again(&harness, &looker);
}

/// Goal: what a contact had open for a client stays open when the contact dies, also for a client that has as many
/// files open at the home as it may have.
/// Method: one at the home, where one is allowed, and one through the contact, which dies and whose time passes; the
/// file has lost its name.
#[test]
fn what_a_dead_contact_had_open_has_room() {
    let harness = cluster_with_bounds(3, GRACE, Bounds { session_open_files: 1, ..Bounds::default() });
    let owner = harness.add_client();
    let looker = looker(&harness, Credentials::new(0, 0));
    lend(&harness, &owner, &looker);
    // What was closed is told later.
    harness.world.run_for(SECOND);
    let files = run(&harness, &looker, async |fs| {
        let near = fs.open(&beside(&fs, "g"), &creating()).await.expect("create");
        let through = fs.open(b"/f", &OpenHow::reading()).await.expect("open");
        let refused = fs.open(&beside(&fs, "h"), &creating()).await.expect_err("it has one open");
        assert_eq!(refused.status, Status::TooManyOpen);
        (near, through)
    });
    harness.kill(places(&harness, "f").1);
    run(&harness, &owner, async |fs| fs.unlink(b"/f").await.expect("unlink"));
    harness.world.run_for(4 * GRACE);
    run(&harness, &looker, async move |fs| {
        let (near, through) = files;
        assert_eq!(fs.stat_file(&through).await.expect("it is open").link_count, 0);
        fs.close(&through).await;
        fs.close(&near).await;
    });
}

/// Waits until no server has anything open, and no sessions of servers are left.
fn wait_until_closed(harness: &Harness) {
    let open = || harness.audits().iter().map(|(_, audit)| audit.open_files + audit.orphans).sum::<u64>();
    assert!(harness.world.run_until(|| open() == 0, LIMIT), "{} are still open", open());
}

/// What a change does to an open that begins after it.
struct Change {
    words: &'static str,
    make: fn(&FileSystem) -> reactor::LocalFuture<()>,
    expected: Result<bool, Status>,
}

/// A name at the same server as `/f`, so that no other one, which may be dead, has a part in a change of both.
fn beside(fs: &FileSystem, word: &str) -> Vec<u8> {
    let server = |name: &str| fs.cluster().dentry_server(FileId::ROOT, name.as_bytes());
    let mut names = (0..).map(|number| format!("{word}{number}"));
    format!("/{}", names.find(|name| server(name) == server("f")).expect("some name is there")).into_bytes()
}

/// All changes that end delegations: whether the open then finds another file, or which error it gets.
fn changes() -> Vec<Change> {
    fn unlink(fs: &FileSystem) -> reactor::LocalFuture<()> {
        let fs = fs.clone();
        Box::pin(async move { fs.unlink(b"/f").await.expect("unlink") })
    }
    fn away(fs: &FileSystem) -> reactor::LocalFuture<()> {
        let fs = fs.clone();
        Box::pin(async move { fs.rename(b"/f", &beside(&fs, "elsewhere"), 0).await.expect("rename") })
    }
    fn over(fs: &FileSystem) -> reactor::LocalFuture<()> {
        let fs = fs.clone();
        Box::pin(async move {
            let other = beside(&fs, "other");
            let file = fs.open(&other, &OpenHow { mode: 0o644, ..creating() }).await.expect("create");
            fs.close(&file).await;
            fs.rename(&other, b"/f", 0).await.expect("rename");
        })
    }
    fn chmod(fs: &FileSystem) -> reactor::LocalFuture<()> {
        let fs = fs.clone();
        Box::pin(async move { fs.chmod(b"/f", 0o600).await.map(drop).expect("chmod") })
    }
    fn chown(fs: &FileSystem) -> reactor::LocalFuture<()> {
        let fs = fs.clone();
        Box::pin(async move {
            fs.chmod(b"/f", 0o640).await.map(drop).expect("chmod");
            fs.chown(b"/f", Some(3), Some(4)).await.map(drop).expect("chown");
        })
    }
    let of = |words, make, expected| Change { words, make, expected };
    vec![
        of("unlink", unlink, Err(Status::NotFound)),
        of("rename away", away, Err(Status::NotFound)),
        of("rename over", over, Ok(true)),
        of("chmod", chmod, Err(Status::AccessDenied)),
        of("chown", chown, Err(Status::AccessDenied)),
    ]
}

fn open_id(harness: &Harness, looker: &SimClient) -> Result<FileId, Status> {
    run(harness, looker, async |fs| {
        let file = fs.open(b"/f", &OpenHow::reading()).await.map_err(|error| error.status)?;
        fs.close(&file).await;
        Ok(file.id)
    })
}

/// Goal: an open that begins after a change of a lent name was answered sees the change, for every kind of change, with
/// everybody alive, with the contact cut off from the home, killed, or with the home killed and started again before
/// it.
#[test]
fn changes_are_seen() {
    for trouble in ["none", "cut off", "contact killed", "home killed"] {
        for change in changes() {
            let harness = cluster(4);
            let (owner, looker) = (harness.add_client(), looker(&harness, Credentials::new(1, 1)));
            let id = lend(&harness, &owner, &looker);
            let (home, contact) = places(&harness, "f");
            match trouble {
                "cut off" => harness.world.partition(harness.node(home), harness.node(contact)),
                "contact killed" => harness.kill(contact),
                "home killed" => {
                    harness.kill(home);
                    harness.restart(home);
                    harness.wait_for_servers(LIMIT).expect("it starts");
                }
                _ => {}
            }
            let make = change.make;
            let before = harness.world.now();
            run(&harness, &owner, async move |fs| make(&fs).await);
            let took = harness.world.now() - before;
            let words = format!("{} with {trouble}", change.words);
            assert!(took < DELEGATION + 4 * SECOND, "{words}: {took} ns");
            let found = open_id(&harness, &looker).map(|found| found != id);
            assert_eq!(found, change.expected, "{words}");
            if trouble == "none" {
                assert!(took < SECOND, "{words}: called back, not waited for: {took} ns");
                assert!(number(&harness, home, "delegations_recalled") > 0, "{words}");
            }
            harness.world.heal(harness.node(home), harness.node(contact));
            harness.restart(contact);
            harness.wait_for_servers(LIMIT).expect("it starts");
            wait_until_closed(&harness);
        }
    }
}

/// Goal: a contact that can't be asked costs an open no more than a moment, and a delegation that nobody uses ends by
/// itself.
#[test]
fn silent_contacts_are_left_out() {
    let harness = cluster(3);
    let (owner, looker) = (harness.add_client(), looker(&harness, Credentials::new(0, 0)));
    lend(&harness, &owner, &looker);
    let (home, contact) = places(&harness, "f");
    harness.world.run_for(5 * SECOND);
    assert_eq!(number(&harness, home, "delegated_files"), 0);
    assert_eq!((number(&harness, contact, "contact_names"), number(&harness, contact, "contact_files")), (0, 0));
    harness.kill(contact);
    let before = harness.world.now();
    open_id(&harness, &looker).expect("the home answers");
    assert!(harness.world.now() - before < 3 * SECOND);
}

/// Goal: a client whose contact has died asks another one, at once and without an error, and goes to the home when the
/// last has. Method: contacts are killed one after the other; each open takes no longer than a connection that is
/// refused, the next contact answers, and what is open with a dead one stays open.
#[test]
fn dead_contacts_are_replaced() {
    let harness = cluster(4);
    let (owner, looker) = (harness.add_client(), looker(&harness, Credentials::new(0, 0)));
    lend(&harness, &owner, &looker);
    let (home, first) = places(&harness, "f");
    let others: Vec<u32> = harness.server_indexes().filter(|server| *server != home).collect();
    let drawn = others.iter().position(|server| *server == first).expect("a contact is no home");
    let file = run(&harness, &looker, async |fs| fs.open(b"/f", &OpenHow::reading()).await.expect("open"));
    for turn in 0..3 {
        let (dead, next) = (others[(drawn + turn) % 3], others[(drawn + turn + 1) % 3]);
        harness.kill(dead);
        for _ in 0..3 {
            let before = harness.world.now();
            open_id(&harness, &looker).expect("somebody answers");
            let took = harness.world.now() - before;
            assert!(took < SECOND / 10, "turn {turn}: {took} ns");
        }
        if turn < 2 {
            assert!(number(&harness, next, "contact_hits") >= 2, "turn {turn}: the next contact answers");
        }
    }
    run(&harness, &owner, async |fs| fs.unlink(b"/f").await.expect("unlink"));
    harness.world.run_for(3 * GRACE);
    let handle = file.clone();
    run(&harness, &looker, async move |fs| {
        assert_eq!(fs.read_at(&handle, &mut [0; 10], 0).await, Ok(0));
        fs.close(&handle).await;
    });
    others.iter().for_each(|server| harness.restart(*server));
    harness.wait_for_servers(LIMIT).expect("they start");
    wait_until_closed(&harness);
}

/// Goal: what a contact's client has open stays when it loses its name, until it is closed: with everybody alive, after
/// the home, and after the contact was killed and started again.
#[test]
fn open_files_stay() {
    for killed in ["none", "home", "contact", "both"] {
        let harness = cluster(4);
        let (owner, looker) = (harness.add_client(), looker(&harness, Credentials::new(0, 0)));
        run(&harness, &owner, async |fs| {
            let file = fs.open(b"/f", &creating()).await.expect("create");
            fs.write_at(&file, &[5; 10_000], 0).await.expect("write");
            fs.close(&file).await;
        });
        lend_again(&harness, &looker);
        let (home, contact) = places(&harness, "f");
        let file = run(&harness, &looker, async |fs| fs.open(b"/f", &OpenHow::reading()).await.expect("open"));
        let restart = || {
            let named = [("home", home), ("contact", contact)];
            let concerned = named.iter().filter(|(name, _)| killed == *name || killed == "both");
            let servers: Vec<u32> = concerned.map(|(_, server)| *server).collect();
            servers.iter().for_each(|server| harness.kill(*server));
            servers.iter().for_each(|server| harness.restart(*server));
            harness.wait_for_servers(LIMIT).expect("they start");
        };
        restart();
        run(&harness, &owner, async |fs| fs.unlink(b"/f").await.expect("unlink"));
        restart();
        harness.world.run_for(3 * GRACE);
        let handle = file.clone();
        run(&harness, &looker, async move |fs| {
            let mut place = vec![0; 10_000];
            assert_eq!(fs.read_at(&handle, &mut place, 0).await, Ok(10_000), "killed: {killed}");
            assert!(place.iter().all(|byte| *byte == 5));
            fs.close(&handle).await;
        });
        wait_until_closed(&harness);
    }
}

/// Goal: what a contact's client has open stays also while a call of that client waits for the dead contact: the
/// connection is made anew all the time then, and it is not only its return that tells that something may have been
/// lost.
#[test]
fn open_files_stay_while_somebody_waits() {
    let harness = cluster(4);
    let (owner, looker) = (harness.add_client(), looker(&harness, Credentials::new(0, 0)));
    lend(&harness, &owner, &looker);
    let file = run(&harness, &looker, async |fs| fs.open(b"/f", &OpenHow::reading()).await.expect("open"));
    run(&harness, &owner, async |fs| fs.unlink(b"/f").await.expect("unlink"));
    let contact = places(&harness, "f").1;
    let waits = looker.client.file_system.clone();
    harness.world.reactor(looker.node).spawn(Class::Metadata, async move {
        let server = |name: &str| waits.cluster().dentry_server(FileId::ROOT, name.as_bytes());
        let mut names = (0..).map(|number| format!("w{number}"));
        let name = names.find(|name| server(name) == contact).expect("some name is there");
        let _ = waits.stat(format!("/{name}").as_bytes()).await;
    });
    harness.world.run_for(10_000);
    harness.kill(contact);
    harness.world.run_for(3 * GRACE);
    let read = async move |fs: FileSystem| fs.read_at(&file, &mut [0; 10], 0).await;
    assert_eq!(run(&harness, &looker, read), Ok(0), "it is open, and empty");
}

/// Goal: a contact that its home has forgotten learns of it, also where their connection has outlived the silence, and
/// whatever the contact says first when it is heard again. Method: the two are parted for longer than the time of grace
/// and for less than a connection takes to be given up, while the name goes of a file that the contact has opened for
/// its client; then a name is asked for at once, or the contact tells what it has open when it is time to.
#[test]
fn forgotten_contacts_learn_of_it() {
    for asks in [true, false] {
        let harness = cluster_with_grace(4, SECOND);
        let (owner, looker) = (harness.add_client(), looker(&harness, Credentials::new(0, 0)));
        lend(&harness, &owner, &looker);
        let (home, contact) = places(&harness, "f");
        let file = run(&harness, &looker, async |fs| fs.open(b"/f", &OpenHow::reading()).await.expect("open"));
        harness.world.partition(harness.node(home), harness.node(contact));
        run(&harness, &owner, async |fs| fs.unlink(b"/f").await.expect("unlink"));
        let opened: Rc<RefCell<Option<File>>> = Rc::default();
        if asks {
            run(&harness, &owner, async |fs| drop(fs.open(&beside(&fs, "other"), &creating()).await.expect("create")));
            let (fs, found) = (looker.client.file_system.clone(), opened.clone());
            harness.world.reactor(looker.node).spawn(Class::Metadata, async move {
                for _ in 0..2 {
                    found.replace(Some(fs.open(&beside(&fs, "other"), &OpenHow::reading()).await.expect("open")));
                }
            });
        }
        harness.world.run_for(SECOND / 2);
        assert_eq!(number(&harness, contact, "contact_sessions_lost"), 0, "it has heard nothing");
        harness.world.heal(harness.node(home), harness.node(contact));
        harness.world.run_for(SECOND);
        assert_eq!(number(&harness, contact, "contact_sessions_lost"), 1, "asks: {asks}");
        let read = async move |fs: FileSystem| {
            let outcome = fs.read_at(&file, &mut [0; 10], 0).await.map_err(|error| error.status);
            fs.close(&file).await;
            outcome
        };
        assert_eq!(run(&harness, &looker, read), Err(Status::StaleFile), "asks: {asks}");
        harness.world.run_for(3 * SECOND);
        assert_eq!(number(&harness, contact, "contact_sessions_lost"), 1, "and is known since");
    }
}

/// Goal: a delegation that a home gives while it is called back is none. Method: opens and replacements of one name at
/// once, many times over, with answers that take very different times; the name always leads to the newest file that a
/// rename has put there before the open began.
#[test]
fn grants_and_recalls_cross() {
    let harness = cluster(4);
    harness.world.set_latency(None, 10_000, 40_000_000);
    let owner = harness.add_client();
    let lookers: Vec<SimClient> = (0..3)
        .map(|session| {
            harness.add_client_with(Options {
                contact: Contact::Always,
                session: Some(7 + session),
                ..Options::default()
            })
        })
        .collect();
    let newest: Rc<RefCell<Vec<FileId>>> = Rc::default();
    let ended = Rc::new(RefCell::new(0));
    let (known, count) = (newest.clone(), ended.clone());
    let fs = owner.client.file_system.clone();
    // What a rename gives a name is lent only where its inode is beside the name.
    let home = places(&harness, "f").0;
    let new = (0..).map(|number| format!("new{number}")).find(|name| places(&harness, name).0 == home);
    let new = format!("/{}", new.expect("some name is there")).into_bytes();
    harness.world.reactor(owner.node).spawn(Class::Data, async move {
        for _ in 0..60 {
            let file = fs.open(&new, &creating()).await.expect("create");
            fs.close(&file).await;
            fs.rename(&new, b"/f", 0).await.expect("rename");
            known.borrow_mut().push(file.id);
            fs.reactor().sleep(fs.reactor().random() % 1_500_000_000).await;
        }
        *count.borrow_mut() += 1;
    });
    for looker in &lookers {
        let (fs, known, count) = (looker.client.file_system.clone(), newest.clone(), ended.clone());
        harness.world.reactor(looker.node).spawn(Class::Data, async move {
            while *count.borrow() == 0 {
                let before = known.borrow().len();
                if let Ok(file) = fs.open(b"/f", &OpenHow::reading()).await {
                    let old = known.borrow().iter().position(|id| *id == file.id);
                    assert!(old.is_none_or(|place| place + 1 >= before), "an open found number {old:?} of {before}");
                    fs.close(&file).await;
                }
            }
        });
    }
    assert!(harness.world.run_until(|| *ended.borrow() == 1, LIMIT), "it never ends");
    let hits: u64 = harness.server_indexes().map(|server| number(&harness, server, "contact_hits")).sum();
    let recalled: u64 = harness.server_indexes().map(|server| number(&harness, server, "delegations_recalled")).sum();
    assert!(hits > 20 && recalled > 5, "{hits} hits, {recalled} recalls");
}

/// Goal: what a contact is given while it tells the home all that it has open there is not taken for open, for the home
/// closes whatever it was not told of. Method: the way between both is cut while a name is asked for, at one moment
/// after the other, so that question and list are sent together; then the name goes, and who has opened it reads.
#[test]
fn grants_and_reclaims_cross() {
    for moment in 0..12 {
        let harness = cluster(4);
        let (owner, looker) = (harness.add_client(), looker(&harness, Credentials::new(0, 0)));
        lend(&harness, &owner, &looker);
        let (home, contact) = places(&harness, "f");
        run(&harness, &owner, async |fs| fs.unlink(b"/f").await.expect("unlink"));
        wait_until_closed(&harness);
        harness.world.set_latency(None, 1_000_000, 1_000_000);
        // The second time that it is asked for the contact asks; the first one leaves nothing open at the home.
        run(&harness, &looker, async |fs| {
            drop(fs.open(b"/f", &OpenHow::reading()).await.expect_err("it is not there"))
        });
        run(&harness, &owner, async |fs| {
            let file = fs.open(b"/f", &creating()).await.expect("create");
            fs.close(&file).await;
        });
        let opened: Rc<RefCell<Option<File>>> = Rc::default();
        let (fs, found) = (looker.client.file_system.clone(), opened.clone());
        harness.world.reactor(looker.node).spawn(Class::Metadata, async move {
            found.replace(Some(fs.open(b"/f", &OpenHow::reading()).await.expect("open")));
        });
        harness.world.run_for(moment * 500_000);
        harness.world.cut(harness.node(home), harness.node(contact));
        assert!(harness.world.run_until(|| opened.borrow().is_some(), LIMIT), "it is opened in the end");
        run(&harness, &owner, async |fs| fs.unlink(b"/f").await.expect("unlink"));
        let file = opened.take().expect("it was opened");
        let read = async move |fs: FileSystem| fs.read_at(&file, &mut [0; 10], 0).await;
        assert_eq!(run(&harness, &looker, read), Ok(0), "cut after {moment} half milliseconds");
    }
}

/// Goal: a contact that has as much open at a home as a session may have there still tells what it has open, so that
/// what it was given unheard is closed. Method: a home that lets a session have one file open gives it to the contact,
/// and the way between both is lost while the answer is on it: for a moment, so that the question is asked again, or
/// until the contact has given it up, whose list is empty then.
#[test]
fn full_contacts_tell_what_they_have_open() {
    for is_short in [true, false] {
        for moment in 0..10 {
            let bounds = Bounds { session_open_files: 1, ..Bounds::default() };
            let harness = cluster_with_bounds(4, 60 * SECOND, bounds);
            let (owner, looker) = (harness.add_client(), looker(&harness, Credentials::new(0, 0)));
            let (home, contact) = places(&harness, "f");
            let (home_node, contact_node) = (harness.node(home), harness.node(contact));
            run(&harness, &owner, async |fs| {
                let file = fs.open(b"/f", &creating()).await.expect("create");
                fs.close(&file).await;
            });
            harness.world.set_latency(None, 1_000_000, 1_000_000);
            let ended = Rc::new(Cell::new(false));
            let (fs, told) = (looker.client.file_system.clone(), ended.clone());
            harness.world.reactor(looker.node).spawn(Class::Metadata, async move {
                // From the second one on the contact asks.
                for _ in 0..3 {
                    let file = fs.open(b"/f", &OpenHow::reading()).await.expect("open");
                    fs.close(&file).await;
                }
                told.set(true);
            });
            let is_given = || number(&harness, home, "delegations_given") > 0;
            assert!(harness.world.run_until(is_given, LIMIT), "nothing is lent");
            harness.world.run_for(moment * 100_000);
            match is_short {
                true => harness.world.cut(home_node, contact_node),
                false => {
                    harness.world.partition(home_node, contact_node);
                    harness.world.run_for(10 * SECOND);
                    harness.world.heal(home_node, contact_node);
                }
            }
            assert!(harness.world.run_until(|| ended.get(), LIMIT), "it is opened in the end");
            run(&harness, &owner, async |fs| fs.unlink(b"/f").await.expect("unlink"));
            let open = || harness.audits().iter().map(|(_, audit)| audit.open_files + audit.orphans).sum::<u64>();
            let closed = harness.world.run_until(|| open() == 0, 40 * SECOND);
            assert!(closed, "short: {is_short}, {moment}: {} are still open", open());
        }
    }
}

/// Goal: what a contact keeps is bounded, and opens of names that find no room there are answered all the same. Method:
/// more names of one home than a contact keeps delegations of, each opened until it would be lent, all within the time
/// of a delegation.
#[test]
fn delegations_are_bounded() {
    const NAMES: usize = 1_500;
    const DELEGATIONS: u64 = 1_024;
    const WORKERS: usize = 20;
    let harness = cluster(2);
    let (owner, looker) = (harness.add_client(), looker(&harness, Credentials::new(0, 0)));
    let home = places(&harness, "n0").0;
    let names = (0..).map(|number| format!("n{number}")).filter(|name| places(&harness, name).0 == home);
    let names: Rc<Vec<String>> = Rc::new(names.take(NAMES).collect());
    let made = names.clone();
    let ids: Rc<Vec<FileId>> = Rc::new(run(&harness, &owner, async move |fs| {
        let mut ids = Vec::new();
        for name in made.iter() {
            let file = fs.open(format!("/{name}").as_bytes(), &creating()).await.expect("create");
            fs.close(&file).await;
            ids.push(file.id);
        }
        ids
    }));
    let ended = Rc::new(RefCell::new(0));
    for worker in 0..WORKERS {
        let (fs, names, ids, ended) = (looker.client.file_system.clone(), names.clone(), ids.clone(), ended.clone());
        harness.world.reactor(looker.node).spawn(Class::Data, async move {
            for index in (worker..NAMES).step_by(WORKERS) {
                for _ in 0..3 {
                    let file =
                        fs.open(format!("/{}", names[index]).as_bytes(), &OpenHow::reading()).await.expect("open");
                    assert_eq!(file.id, ids[index]);
                    fs.close(&file).await;
                }
            }
            *ended.borrow_mut() += 1;
        });
    }
    let most = RefCell::new(0);
    let kept = || number(&harness, 1 - home, "contact_names");
    let look = || {
        let now = kept();
        most.replace_with(|most| now.max(*most));
        *ended.borrow() == WORKERS
    };
    assert!(harness.world.run_until(look, LIMIT), "it never ends");
    assert_eq!(*most.borrow(), DELEGATIONS, "as many as there is room for");
    let lent = || number(&harness, 1 - home, "contact_hits");
    let before = lent();
    // When the delegations have ended, and their home has swept them up, there is room again.
    harness.world.run_until(|| false, 2 * DELEGATION);
    let last = names[NAMES - 1].clone();
    run(&harness, &looker, async move |fs| {
        for _ in 0..3 {
            let file = fs.open(format!("/{last}").as_bytes(), &OpenHow::reading()).await.expect("open");
            fs.close(&file).await;
        }
    });
    assert!(lent() > before, "the name is lent now");
    wait_until_closed(&harness);
}
