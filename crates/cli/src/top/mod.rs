//! `tabane top`: what the servers do, live.
//!
//! `figures.rs` makes rates of their reports, `view.rs` keeps what is shown and in which order, `table.rs` has the
//! columns, `screen.rs` draws, `terminal.rs` takes the terminal and gives it back. One task for each server asks it
//! again and again and notes the answer, so that one that is silent holds up nothing; the loop below looks at the
//! notes, at the keys and at the clock.

mod figures;
mod screen;
mod table;
mod terminal;
mod view;

use crate::arguments::Arguments;
use crate::colours::colours_wanted;
use crate::failure::{Failure, Outcome, io_words};
use crate::launch::stop_asked;
use crate::run_directory::{of_cluster_path, process_of};
use crate::session::{Session, cluster_path, find_cluster};
use crate::together::{Either, race};
use crate::up::catch_signals;
use client::{FileSystem, Options, StatisticsFormat};
use figures::{Report, Track};
use reactor::process::Signals;
use reactor::{Class, Nanos};
use screen::Palette;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::io::{IsTerminal, Write as _};
use std::path::PathBuf;
use std::rc::Rc;
use table::{Column, Row};
use terminal::{Input, Screen};
use view::{ServerView, State, View};

const NANOS_PER_MS: Nanos = 1_000_000;
/// How often keys and notes are looked at.
const LOOK_INTERVAL: Nanos = 50 * NANOS_PER_MS;
/// A server that leaves a question unanswered for this long is silent.
const PATIENCE: Nanos = 500 * NANOS_PER_MS;
/// How long one question may take before the next one; the server is shown as silent long before. Who looks only once
/// waits this long.
const QUESTION_MS_MAX: u64 = 2000;

/// What the task of a server notes.
struct Note {
    track: Track,
    answered: Option<Nanos>,
    /// The first question since then.
    asked: Option<Nanos>,
    /// Intervals that passed without an answer since then.
    missed: u64,
}

/// What the tasks and the loop share.
struct Watch {
    files: FileSystem,
    run_directory: Option<PathBuf>,
    interval_ms: std::cell::Cell<u64>,
    notes: RefCell<Vec<Note>>,
    started: Nanos,
    /// How long this program did not run though it wanted to: stopped, or on a machine with too much to do. Nobody was
    /// silent then as far as it can tell.
    away: std::cell::Cell<Nanos>,
}

/// `tabane top`.
pub fn run(arguments: &Arguments) -> Outcome {
    let (once, json) = (arguments.flag("once"), arguments.flag("json"));
    let terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if !once && !json && !terminal {
        return Err(Failure::usage(
            "it draws on a terminal, and this is none; use --once for one table or --json for programs",
        ));
    }
    let mut options = Options::of_this_process().map_err(|error| Failure::failed(error.message))?;
    options.timeout_ms = QUESTION_MS_MAX;
    let session = Session::with(find_cluster(arguments)?, options)?;
    let signals = catch_signals(&session.reactor)?;
    let cluster = session.files.cluster().clone();
    let sort = Column::of_name(&arguments.text_or_default("sort")).expect("the table names all columns");
    let mut view = View {
        cluster: format!("{:08x}", cluster.id >> 96),
        servers: (0..cluster.server_count())
            .map(|index| ServerView {
                index,
                address: cluster.servers[index as usize].address.to_string(),
                state: State::Asked,
                track: Track::default(),
            })
            .collect(),
        sort,
        reversed: arguments.flag("reverse"),
        paused: false,
        selected: None,
        interval_ms: arguments.number("interval-ms"),
        clock: String::new(),
    };
    let watch = Rc::new(Watch {
        files: session.files.clone(),
        run_directory: of_cluster_path(&cluster_path(arguments)),
        interval_ms: std::cell::Cell::new(view.interval_ms),
        notes: RefCell::new(
            (0..cluster.server_count())
                .map(|_| Note { track: Track::default(), answered: None, asked: None, missed: 0 })
                .collect(),
        ),
        started: session.reactor.now(),
        away: std::cell::Cell::new(0),
    });
    for index in 0..cluster.server_count() {
        session.reactor.spawn(Class::Background, ask_again_and_again(session.reactor.clone(), watch.clone(), index));
    }
    let palette = Palette { colours: colours_wanted(arguments, true) };
    session.reactor.block_on(async {
        match (once, json) {
            (true, _) => tell_once(&session, &watch, &signals, &mut view, json).await,
            (false, true) => tell_for_ever(&session, &watch, &signals, &mut view).await,
            (false, false) => show(&session, &watch, &signals, &mut view, palette).await,
        }
    })
}

async fn ask_again_and_again(reactor: reactor::Reactor, watch: Rc<Watch>, index: u32) {
    let mut format = StatisticsFormat::JSON_WHOLE;
    loop {
        let begun = reactor.now();
        watch.notes.borrow_mut()[index as usize].asked.get_or_insert(watch.time(begun));
        if let Ok(text) = watch.files.server_statistics(index, format).await
            && let Ok(report) = serde_json::from_str::<Value>(&text)
        {
            let note = &mut watch.notes.borrow_mut()[index as usize];
            note.track.take(Report::parse(&report));
            note.answered = Some(watch.time(reactor.now()));
            note.asked = None;
            note.missed = 0;
            format = StatisticsFormat::JSON;
        }
        let interval = watch.interval_ms.get() * NANOS_PER_MS;
        let spent = reactor.now().saturating_sub(begun);
        reactor.sleep(interval.saturating_sub(spent).max(LOOK_INTERVAL)).await;
    }
}

impl Watch {
    /// The time as it passed for us.
    fn time(&self, now: Nanos) -> Nanos {
        now.saturating_sub(self.away.get())
    }

    /// Sleeps, and takes what it sleeps longer as time away.
    async fn sleep(&self, reactor: &reactor::Reactor, duration: Nanos) {
        let begun = reactor.now();
        reactor.sleep(duration).await;
        let late = reactor.now().saturating_sub(begun + duration);
        if late > LOOK_INTERVAL {
            self.away.set(self.away.get() + late);
        }
    }

    /// How a server is at a time of ours. One whose process was started from here and has ended is down at once.
    fn state(&self, index: u32, now: Nanos) -> State {
        let process = self.run_directory.as_ref().and_then(|directory| process_of(directory, index));
        if process.is_some_and(|process| !process.is_alive()) {
            return State::Down;
        }
        let notes = self.notes.borrow();
        let note = &notes[index as usize];
        let silence = now.saturating_sub(note.answered.unwrap_or(self.started));
        let waited = note.asked.map_or(0, |asked| now.saturating_sub(asked));
        match note.answered {
            _ if waited > PATIENCE => State::Silent(silence / 1_000_000_000),
            Some(_) => State::Up,
            None => State::Asked,
        }
    }

    /// Brings a view up to now. For intervals without an answer its history gets nothing.
    fn refresh(&self, view: &mut View, now: Nanos) {
        let now = self.time(now);
        for server in &mut view.servers {
            server.state = self.state(server.index, now);
            let note = &mut self.notes.borrow_mut()[server.index as usize];
            if server.state != State::Up && server.state != State::Asked {
                let silence = now.saturating_sub(note.answered.unwrap_or(self.started));
                let missed = silence / (self.interval_ms.get() * NANOS_PER_MS);
                (note.missed..missed).for_each(|_| note.track.missed());
                note.missed = note.missed.max(missed);
            }
            server.track = note.track.clone();
        }
        self.interval_ms.set(view.interval_ms);
    }

    /// Whether all that can be known after two questions is known.
    fn is_complete(&self, view: &View) -> bool {
        let is_known = |server: &ServerView| server.state == State::Up && server.track.rates.is_some();
        view.servers.iter().all(|server| is_known(server) || server.state == State::Down)
    }
}

/// The screen, until a key or a signal ends it.
async fn show(session: &Session, watch: &Watch, signals: &Signals, view: &mut View, palette: Palette) -> Outcome {
    let broken = |error: std::io::Error| Failure::failed(format!("the terminal: {}", io_words(&error)));
    let mut screen = Screen::open().map_err(broken)?;
    let mut drawn = String::new();
    loop {
        let now = session.reactor.now();
        if !view.paused {
            watch.refresh(view, now);
            view.clock = clock(session.reactor.wall_clock());
        }
        let seen = format!("{view:?}{:?}", screen.size());
        if seen != drawn {
            screen.draw(view, palette).map_err(broken)?;
            drawn = seen;
        }
        match race(watch.sleep(&session.reactor, LOOK_INTERVAL), stop_asked(signals)).await {
            Either::First(()) => {}
            Either::Second(signal) => return Err(Failure::Said(signal.exit_code())),
        }
        while let Some(input) = screen.input().map_err(broken)? {
            match input {
                Input::Quit => return Ok(()),
                Input::ViewAction(wish) => view.wish(wish),
            }
        }
    }
}

/// The time of day.
fn clock(nanoseconds: i64) -> String {
    match reactor::process::local_time(nanoseconds.div_euclid(1_000_000_000)) {
        Some(time) => format!("{:02}:{:02}:{:02}", time.hour, time.minute, time.second),
        None => String::new(),
    }
}

/// Waits until two answers of every server are there, or time enough for them has passed.
async fn wait_for_rates(session: &Session, watch: &Watch, signals: &Signals, view: &mut View) -> Outcome {
    let give_up = watch.started + (2 * view.interval_ms + QUESTION_MS_MAX) * NANOS_PER_MS;
    loop {
        watch.refresh(view, session.reactor.now());
        if watch.is_complete(view) || watch.time(session.reactor.now()) >= give_up {
            return Ok(());
        }
        if let Either::Second(signal) = race(watch.sleep(&session.reactor, LOOK_INTERVAL), stop_asked(signals)).await {
            return Err(Failure::Said(signal.exit_code()));
        }
    }
}

async fn tell_once(session: &Session, watch: &Watch, signals: &Signals, view: &mut View, json: bool) -> Outcome {
    wait_for_rates(session, watch, signals, view).await?;
    let text = if json {
        format!("{}\n", json_of(view, session.reactor.wall_clock()))
    } else {
        format!("{}\n{}", view.title(), table::text(&view.rows(), &view.servers))
    };
    std::io::stdout().write_all(text.as_bytes()).map_err(Failure::of_output)?;
    match view.servers.iter().filter(|server| server.state != State::Up).count() {
        0 => Ok(()),
        count => Err(Failure::failed(format!(
            "{count} of {} servers do not answer; 'tabane status' says more, 'tabane up' starts again what has ended",
            view.servers.len()
        ))),
    }
}

/// One line of JSON each interval, until nobody reads or a signal comes.
async fn tell_for_ever(session: &Session, watch: &Watch, signals: &Signals, view: &mut View) -> Outcome {
    wait_for_rates(session, watch, signals, view).await?;
    loop {
        watch.refresh(view, session.reactor.now());
        let mut output = std::io::stdout().lock();
        writeln!(output, "{}", json_of(view, session.reactor.wall_clock()))
            .and_then(|()| output.flush())
            .map_err(Failure::of_output)?;
        let interval = watch.sleep(&session.reactor, view.interval_ms * NANOS_PER_MS);
        if let Either::Second(signal) = race(interval, stop_asked(signals)).await {
            return Err(Failure::Said(signal.exit_code()));
        }
    }
}

fn json_of(view: &View, time_ns: i64) -> Value {
    let servers: Vec<Value> = view
        .rows()
        .into_iter()
        .map(|server| {
            let mut object = json_row(&Row::of(server));
            object["server"] = server.index.into();
            object["address"] = server.address.clone().into();
            object["state"] = server.state.word().into();
            object["connections"] = match &server.track.report {
                Some(report) if server.state == State::Up => report.connections.into(),
                _ => Value::Null,
            };
            object
        })
        .collect();
    let operations: Vec<Value> = figures::join_kinds(view.servers.iter().map(|server| &server.track))
        .into_iter()
        .map(|kind| {
            json!({
                "operation": kind.name,
                "operations_per_second": kind.operations,
                "failed_per_second": kind.failed,
                "bytes_per_second": kind.bytes,
                "service_ns": kind.service_ns,
                "service_ns_p99": kind.p99_ns,
            })
        })
        .collect();
    json!({
        "time_ns": time_ns,
        "cluster": view.cluster,
        "servers": servers,
        "all": json_row(&Row::of_all(&view.servers)),
        "operations": operations,
    })
}

fn json_row(row: &Row) -> Value {
    let rates = row.rates;
    json!({
        "operations_per_second": rates.map(|rates| rates.operations),
        "bytes_read_per_second": rates.map(|rates| rates.bytes_read),
        "bytes_written_per_second": rates.map(|rates| rates.bytes_written),
        "req_qdepth": row.queued,
        "req_waittime_ns": rates.and_then(|rates| rates.wait_ns),
        "req_active": row.active,
        "busy": row.busy,
        "space_used": row.space,
    })
}

#[cfg(test)]
mod tests;
