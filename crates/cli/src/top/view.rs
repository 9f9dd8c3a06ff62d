//! What `tabane top` knows and how its reader wants to see it.

use super::figures::Track;
use super::table::{COLUMNS, Column, Row};
use crate::text::duration_words;
use std::cmp::Ordering;

/// How a server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It was asked for the first time just now.
    Asked,
    Up,
    /// It has said nothing for so many seconds.
    Silent(u64),
    /// Its process has ended.
    Down,
}

impl State {
    pub fn words(self) -> String {
        match self {
            State::Asked => "asked".to_owned(),
            State::Up => "up".to_owned(),
            State::Silent(seconds @ ..100) => format!("silent {seconds}s"),
            State::Silent(seconds) => format!("silent {}m", seconds / 60),
            State::Down => "down".to_owned(),
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            State::Asked => "asked",
            State::Up => "up",
            State::Silent(_) => "silent",
            State::Down => "down",
        }
    }
}

/// One server.
#[derive(Debug, Clone)]
pub struct ServerView {
    pub index: u32,
    pub address: String,
    pub state: State,
    pub track: Track,
}

/// Everything that is shown.
#[derive(Debug, Clone)]
pub struct View {
    pub cluster: String,
    pub servers: Vec<ServerView>,
    pub sort: Column,
    pub reversed: bool,
    pub paused: bool,
    /// Whose operations are shown.
    pub selected: Option<u32>,
    pub interval_ms: u64,
    pub clock: String,
}

/// What a key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ViewAction {
    Sort,
    Reverse,
    Pause,
    Slower,
    Faster,
    Up,
    Down,
    All,
}

const INTERVALS_MS: [u64; 6] = [250, 500, 1000, 2000, 5000, 10_000];

impl View {
    /// Whether the least stands first. Names begin with the least, figures with the most.
    pub fn ascending(&self) -> bool {
        matches!(self.sort, Column::Server | Column::State) != self.reversed
    }

    /// The servers in the order in which they are shown. Those of which nothing is known come last.
    pub fn rows(&self) -> Vec<&ServerView> {
        let mut rows: Vec<(Option<f64>, &ServerView)> =
            self.servers.iter().map(|server| (figure(server, self.sort), server)).collect();
        rows.sort_by(|(left, one), (right, other)| {
            let by_figure = match (left, right) {
                (Some(left), Some(right)) if self.ascending() => left.total_cmp(right),
                (Some(left), Some(right)) => right.total_cmp(left),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => Ordering::Equal,
            };
            by_figure.then(one.index.cmp(&other.index))
        });
        rows.into_iter().map(|(_, server)| server).collect()
    }

    /// The first row that is shown when only `room` of them fit: the selected one is among them.
    pub fn first_row(&self, count: usize, room: usize) -> usize {
        let selected = self.selected.and_then(|index| self.rows().iter().position(|server| server.index == index));
        let last = count.saturating_sub(room);
        selected.map_or(0, |position| (position + 1).saturating_sub(room).min(last))
    }

    /// Does what a key asks for.
    pub fn wish(&mut self, wish: ViewAction) {
        match wish {
            ViewAction::Sort => {
                let position = COLUMNS.iter().position(|column| *column == self.sort).unwrap_or(0);
                self.sort = COLUMNS[(position + 1) % COLUMNS.len()];
                self.reversed = false;
            }
            ViewAction::Reverse => self.reversed = !self.reversed,
            ViewAction::Pause => self.paused = !self.paused,
            ViewAction::Slower => {
                self.interval_ms =
                    INTERVALS_MS.into_iter().find(|step| *step > self.interval_ms).unwrap_or(self.interval_ms);
            }
            ViewAction::Faster => {
                let faster = INTERVALS_MS.into_iter().rev().find(|step| *step < self.interval_ms);
                self.interval_ms = faster.unwrap_or(self.interval_ms);
            }
            ViewAction::Up | ViewAction::Down => self.select(wish == ViewAction::Down),
            ViewAction::All => self.selected = None,
        }
    }

    fn select(&mut self, down: bool) {
        let indices: Vec<u32> = self.rows().iter().map(|server| server.index).collect();
        let position = self.selected.and_then(|index| indices.iter().position(|other| *other == index));
        let next = match (position, down) {
            (None, true) => 0,
            (None, false) => indices.len().saturating_sub(1),
            (Some(position), true) => (position + 1).min(indices.len().saturating_sub(1)),
            (Some(position), false) => position.saturating_sub(1),
        };
        self.selected = indices.get(next).copied();
    }

    /// One line on top of a table that is text.
    pub fn title(&self) -> String {
        let up = self.servers.iter().filter(|server| server.state == State::Up).count();
        format!(
            "cluster {}, {up} of {} servers up, over {}",
            self.cluster,
            self.servers.len(),
            duration_words(self.interval_ms * 1_000_000)
        )
    }
}

fn figure(server: &ServerView, column: Column) -> Option<f64> {
    let row = Row::of(server);
    match column {
        Column::Server => Some(f64::from(server.index)),
        Column::State => Some(match server.state {
            State::Down => 0.0,
            State::Silent(_) => 1.0,
            State::Asked => 2.0,
            State::Up => 3.0,
        }),
        Column::Operations => row.rates.map(|rates| rates.operations),
        Column::Read => row.rates.map(|rates| rates.bytes_read),
        Column::Written => row.rates.map(|rates| rates.bytes_written),
        Column::Queued => row.queued,
        Column::Wait => row.rates.and_then(|rates| rates.wait_ns),
        Column::Active => row.active.map(|active| active as f64),
        Column::Busy => row.busy,
        Column::Space => row.space,
    }
}
