//! Goal: every change of names, contents, attributes and locks happens as a whole or not at all, once, and leaves
//! nothing behind, whatever breaks at whichever of its steps. Method: a story (`names.rs`, `contents.rs`, `files.rs`)
//! sets a scene and then does its deeds, one after the other. It is first played without a fault, up to each of its
//! deeds, to learn what is seen then: by all, and with the actor dead. Then it is played again and again, each time
//! with one fault at one moment:
//! - a server's n-th write to its store is torn and its last, for each server and n;
//! - a server is killed when the n-th piece of bytes was sent or arrived, for each server and n, and stays down for
//!   longer than others wait for it, so that they give up; or comes back at once;
//! - all that is on its way is lost at that moment, with all connections;
//! - the one who does the deeds dies at that moment.
//!
//! Afterwards the answers and what is seen must be those of the run without a fault; where a server or the actor died,
//! the deed that was under way may have happened or not. Then the checker is asked, everything is deleted, and the
//! tables of the servers must be empty.
//!
//! `STORY=name` in the environment plays one alone.

mod contents;
mod files;
mod look;
mod names;
mod stage;

use client::check::CheckOptions;
use look::View;
use reactor::LocalFuture;
use sim::profile::SECOND;
use stage::{Cast, LIMIT, SERVER_TIMEOUT, SERVERS, Stage};
use std::cell::RefCell;
use std::rc::Rc;

pub type SetUp = fn(Cast) -> LocalFuture<()>;
pub type Deed = fn(Cast) -> LocalFuture<String>;

pub struct Story {
    pub name: &'static str,
    pub set_up: SetUp,
    pub deeds: &'static [Deed],
    /// A deed of which parts may be there when it did not come to its end: each chunk as before or as after.
    pub in_parts: bool,
    /// All servers are restarted just before the deeds.
    pub restarted: bool,
}

/// What a deed was told.
pub fn told<T>(result: client::Result<T>) -> String {
    result.map_or_else(|error| format!("{:?}", error.status), |_| "done".to_owned())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Write { server: u32 },
    Kill { server: u32, for_long: bool },
    Loss,
    ActorDies,
}

/// What a story shows without a fault.
struct Course {
    answers: Vec<String>,
    /// After so many deeds: what is seen, and what is seen when the actor died then.
    alive: Vec<View>,
    dead: Vec<View>,
}

fn begin(story: &Story) -> Stage {
    let stage = Stage::new(story.name.bytes().map(u64::from).sum());
    stage.run(story.set_up);
    stage.settle().unwrap_or_else(|words| panic!("{}, set up: {words}", story.name));
    if story.restarted {
        stage.restart_all();
    }
    stage
}

/// What a fresh client sees, and what the actor sees of what it has open.
fn look(stage: &Stage) -> View {
    let mut view = stage.ask(|files| Box::pin(async move { look::look_around(&files).await }));
    if stage.actor_is_alive() {
        view.extend(stage.run(|cast| {
            Box::pin(async move {
                let handles = cast.handles.borrow().clone();
                look::look_at_handles(&cast.actor, &handles).await
            })
        }));
    }
    view
}

fn learn(story: &Story) -> Course {
    let mut course = Course { answers: Vec::new(), alive: Vec::new(), dead: Vec::new() };
    for count in 0..=story.deeds.len() {
        for dies in [false, true] {
            let stage = begin(story);
            let answers: Vec<String> = story.deeds[..count].iter().map(|deed| stage.run(deed)).collect();
            if dies {
                stage.kill_actor();
            }
            stage.settle().unwrap_or_else(|words| panic!("{}, without a fault: {words}", story.name));
            let view = look(&stage);
            if dies {
                course.dead.push(view)
            } else {
                course.alive.push(view)
            }
            course.answers = answers;
            stage.clear_away().unwrap_or_else(|words| panic!("{}, without a fault: {words}", story.name));
        }
    }
    course
}

/// Does the deeds in turn until one fails that ought not to; the answers so far are in the cell.
fn play(stage: &Stage, story: &Story, course: &Course, answers: &Rc<RefCell<Vec<String>>>) -> Rc<RefCell<Option<()>>> {
    let (cast, answers) = (stage.cast.clone(), answers.clone());
    let deeds: Vec<(Deed, String)> = story.deeds.iter().copied().zip(course.answers.iter().cloned()).collect();
    stage.start(async move {
        for (deed, expected) in deeds {
            let answer = deed(cast.clone()).await;
            let as_expected = answer == expected;
            answers.borrow_mut().push(answer);
            if !as_expected {
                return;
            }
        }
    })
}

/// Plays a story with a fault at the n-th moment. None when it ends before.
fn strike(story: &Story, course: &Course, fault: Fault, at: u64) -> Option<Result<(), String>> {
    let stage = begin(story);
    let world = stage.harness.world.clone();
    let answers = Rc::default();
    if let Fault::Write { server } = fault {
        world.crash_after_writes(stage.harness.node(server), at, true);
    }
    let first = world.traffic();
    let playing = play(&stage, story, course, &answers);
    let strikes = || match fault {
        Fault::Write { server } => !stage.harness.is_running(server),
        _ => world.traffic() >= first + at,
    };
    let over = || playing.borrow().is_some() && stage.is_quiet();
    assert!(world.run_until(|| strikes() || over(), LIMIT), "{} never ends", story.name);
    if !strikes() && !world.run_until(strikes, 2 * SECOND) {
        return None;
    }
    match fault {
        Fault::Write { server } => revive_after(&stage, server, SECOND / 10),
        Fault::Kill { server, for_long } => {
            stage.harness.kill(server);
            revive_after(&stage, server, if for_long { SERVER_TIMEOUT + SECOND } else { 0 });
        }
        Fault::Loss => stage.lose_messages(),
        Fault::ActorDies => stage.kill_actor(),
    }
    if stage.actor_is_alive() && stage.wait(&playing).is_none() {
        return Some(Err("a deed is never answered".to_owned()));
    }
    for server in 0..SERVERS {
        world.crash_after_writes(stage.harness.node(server), u64::MAX, false);
    }
    Some(judge(&stage, story, course, fault, &answers.take()))
}

fn revive_after(stage: &Stage, server: u32, pause: u64) {
    stage.harness.world.run_for(pause);
    stage.revive(server);
}

fn judge(stage: &Stage, story: &Story, course: &Course, fault: Fault, answers: &[String]) -> Result<(), String> {
    stage.settle()?;
    let told = answers.iter().zip(&course.answers).take_while(|(answer, expected)| answer == expected).count();
    if let Some(other) = answers.get(told) {
        let may_fail = matches!(fault, Fault::Write { .. } | Fault::Kill { .. });
        if !may_fail || !["Unreachable", "TimedOut", "Io"].contains(&other.as_str()) {
            return Err(format!("deed {told} was told {other} instead of {}", course.answers[told]));
        }
    }
    let views = if stage.actor_is_alive() { &course.alive } else { &course.dead };
    let view = look(stage);
    let (before, after) = (&views[told], views.get(told + 1).unwrap_or(&views[told]));
    let fits = view == *before || view == *after || story.in_parts && look::is_between(before, after, &view);
    if !fits {
        return Err(format!("told {answers:?}, seen {view:#?}, before {before:#?}, after {after:#?}"));
    }
    let check = stage.ask(|files| {
        Box::pin(async move { files.check(&CheckOptions { data: true }, &|_| {}).await.expect("the check ends") })
    });
    if !check.faults.is_empty() || !check.undecided.is_empty() {
        return Err(format!("the checker finds {:?}, undecided {:?}", check.faults, check.undecided));
    }
    stage.clear_away()
}

/// Plays a story with every fault at every moment; the number of runs, and what was wrong.
fn enumerate(story: &Story) -> (u64, Vec<String>) {
    let course = learn(story);
    let mut faults = vec![Fault::Loss, Fault::ActorDies];
    for server in 0..SERVERS {
        faults.push(Fault::Write { server });
        faults.extend([false, true].map(|for_long| Fault::Kill { server, for_long }));
    }
    let mut count = 0;
    let mut wrong = Vec::new();
    for fault in faults {
        for at in 1.. {
            match strike(story, &course, fault, at) {
                None => break,
                Some(Ok(())) => count += 1,
                Some(Err(words)) => wrong.push(format!("{}, {fault:?}, moment {at}: {words}", story.name)),
            }
        }
    }
    (count + wrong.len() as u64, wrong)
}

fn tell(stories: &[Story]) {
    #[allow(clippy::disallowed_methods)] // For work by hand.
    let wanted = std::env::var("STORY").ok();
    let mut all_wrong = Vec::new();
    for story in stories.iter().filter(|story| wanted.as_ref().is_none_or(|name| name == story.name)) {
        let (count, wrong) = enumerate(story);
        println!("{}: {count} runs, {} wrong", story.name, wrong.len());
        assert!(count > 20, "{}: the faults strike {count} times only", story.name);
        all_wrong.extend(wrong);
    }
    assert!(all_wrong.is_empty(), "{} runs failed:\n{}", all_wrong.len(), all_wrong.join("\n"));
}

#[test]
fn names_of_files() {
    tell(names::FILES);
}

#[test]
fn names_of_directories() {
    tell(names::DIRECTORIES);
}

#[test]
fn contents_of_files() {
    tell(contents::STORIES);
}

#[test]
fn open_files_locks_and_attributes() {
    tell(files::STORIES);
}
