//! The screen of `tabane top` for made-up servers, letter by letter, and what keys do to it.

use super::figures::{Backing, Device, HISTORY_SIZE, Kind, Report, Totals, Track};
use super::screen::{Palette, draw};
use super::table::Column;
use super::view::{ServerView, State, View, ViewAction};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Cell;
use ratatui::style::{Color, Modifier};
use std::collections::BTreeMap;

const SECOND: u64 = 1_000_000_000;

/// A server with a minute behind it: its load rises and falls `index + 1` times.
fn server(index: u32, state: State) -> ServerView {
    let mut track = Track::default();
    let mut totals = Totals::default();
    for second in 0..=HISTORY_SIZE as u64 + 1 {
        let phase = (second * u64::from(index + 1)) % 30;
        let load = 100 + 400 * phase.min(30 - phase) * u64::from(index + 1);
        totals.time_ns = second * SECOND;
        totals.operations += load;
        totals.started += load;
        totals.wait_ns += load * 12_345 * u64::from(index + 1);
        totals.bytes_read += load * 65_536;
        totals.bytes_written += load * 20_000;
        totals.busy_ns += SECOND / 60 * phase;
        let kind = |finished: u64, service_ns: u64, p99_ns: u64| Kind {
            finished,
            failed: finished / 50,
            service_ns: finished * service_ns,
            p99_ns,
            bytes: finished * 4096,
        };
        let operations = totals.operations;
        let kinds = BTreeMap::from([
            ("Write".to_owned(), kind(operations / 2, 84_000, 1_200_000)),
            ("Create".to_owned(), kind(operations / 3, 9_100, 44_000)),
            ("Stat".to_owned(), kind(operations / 6, 2_400, 9_000)),
        ]);
        track.take(Report {
            totals: totals.clone(),
            active: u64::from(index) + 1,
            connections: 7,
            bytes_total: 1 << 30,
            bytes_free: (1 << 30) / 5 * u64::from(4 - index % 4),
            backing: None,
            device: None,
            kinds,
            samples: Vec::new(),
        });
    }
    ServerView { index, address: format!("127.0.0.1:{}", 10_000 + index), state, track }
}

fn view() -> View {
    let states = [State::Up, State::Up, State::Silent(3), State::Down];
    View {
        cluster: "3f2a91c0".to_owned(),
        servers: states.into_iter().enumerate().map(|(index, state)| server(index as u32, state)).collect(),
        sort: Column::Server,
        reversed: false,
        paused: false,
        selected: None,
        interval_ms: 1000,
        clock: "12:34:56".to_owned(),
    }
}

fn drawn(view: &View, width: u16, height: u16, colours: bool) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view, Palette { colours })).unwrap();
    terminal
}

fn lines(view: &View, width: u16, height: u16) -> Vec<String> {
    let terminal = drawn(view, width, height, true);
    let cells = terminal.backend().buffer().content.chunks(usize::from(width));
    cells.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned()).collect()
}

/// Goal: the screen of 80 by 24 is what it was when it was last looked at.
/// Method: a snapshot; after a change that is meant, look at the new one and put it in place of the old one.
#[test]
fn snapshot() {
    let now = lines(&view(), 80, 24).join("\n");
    assert_eq!(now, include_str!("snapshot.txt").trim_end(), "the screen is otherwise now:\n{now}");
}

/// Goal: nothing is drawn where it does not belong, at any size: no panic, no row wider than the screen, the title
/// always there.
#[test]
fn all_sizes() {
    let view = view();
    for width in (1..=200).step_by(3) {
        for height in [1, 2, 5, 8, 9, 12, 17, 18, 24, 50] {
            let lines = lines(&view, width, height);
            let wanted = if width >= 60 && height >= 8 { " tabane top   cluster 3f2a91c0" } else { "tabane top wants" };
            let wanted = &wanted[..wanted.len().min(usize::from(width))].trim_end();
            assert!(lines[0].starts_with(wanted), "{width}x{height}: {}", lines[0]);
        }
    }
}

/// Goal: servers that do not answer are told apart, and their old figures are not shown as if they were new.
#[test]
fn silent_and_down() {
    let lines = lines(&view(), 100, 30);
    let row =
        |name: &str| lines[1..].iter().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{name}: {lines:?}"));
    assert!(lines[0].contains("2 up  1 silent  1 down"), "{}", lines[0]);
    for name in ["silent 3s", " down  "] {
        let row = row(&format!("{name} ")).clone();
        assert_eq!(row.matches(" -").count(), 8, "{row}");
    }
    assert!(row("cluster ").contains("cluster"), "{lines:?}");
}

/// Goal: without colours there are none, with them a server that is down is red.
#[test]
fn colours() {
    let plain = drawn(&view(), 100, 30, false);
    let coloured =
        plain.backend().buffer().content.iter().filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset);
    assert_eq!(coloured.count(), 0);
    let bright = drawn(&view(), 100, 30, true);
    assert!(bright.backend().buffer().content.iter().any(|cell| cell.fg == Color::Red));
}

/// Goal: the selected row is one bar from edge to edge, without holes of other colours; the others are none.
#[test]
fn selection_is_a_bar() {
    let mut view = view();
    view.wish(ViewAction::Down);
    let terminal = drawn(&view, 120, 40, true);
    let rows: Vec<_> = terminal.backend().buffer().content.chunks(120).skip(1).collect();
    let reversed = |row: &[Cell]| row.iter().take_while(|cell| cell.modifier.contains(Modifier::REVERSED)).count();
    let bars: Vec<_> = rows.iter().filter(|row| reversed(row) > 0).collect();
    assert_eq!(bars.len(), 1);
    let width = reversed(bars[0]);
    assert!(width > 90, "{width}");
    assert!(bars[0][..width].iter().all(|cell| cell.fg == Color::Reset && !cell.modifier.contains(Modifier::DIM)));
}

/// Goal: what did not happen says so in the middle of its chart.
#[test]
fn empty_charts() {
    let mut view = view();
    for server in &mut view.servers {
        server.track.history.iter_mut().for_each(|rates| rates.bytes_read = 0.0);
    }
    let words = |width| lines(&view, width, 40).join("\n").matches("none for a minute").count();
    assert_eq!((words(120), words(60)), (1, 0));
}

/// Goal: what is little is still to be seen in its chart.
#[test]
fn little_is_seen() {
    let mut view = view();
    for server in &mut view.servers {
        server.track.history.iter_mut().for_each(|rates| rates.busy = 0.001);
    }
    for (height, chart_height) in [(24, 6), (40, 10)] {
        let lines = lines(&view, 120, height);
        let mut chart = lines[1..=chart_height].iter().flat_map(|line| line.chars().skip(91));
        assert!(chart.any(|letter| letter == '▁'), "{lines:#?}");
    }
}

/// Goal: keys do what the foot of the screen says.
#[test]
fn keys() {
    let mut view = view();
    let order = |view: &View| view.rows().iter().map(|server| server.index).collect::<Vec<u32>>();
    assert_eq!(order(&view), [0, 1, 2, 3]);
    view.wish(ViewAction::Reverse);
    assert_eq!(order(&view), [3, 2, 1, 0]);
    view.wish(ViewAction::Sort);
    view.wish(ViewAction::Sort);
    assert_eq!((view.sort, order(&view)), (Column::Operations, vec![1, 0, 2, 3]));
    view.wish(ViewAction::Reverse);
    // Of whom nothing is known comes last either way.
    assert_eq!(order(&view), [0, 1, 2, 3]);
    view.wish(ViewAction::Down);
    view.wish(ViewAction::Down);
    assert_eq!(view.selected, Some(1));
    assert!(lines(&view, 80, 24).iter().any(|line| line.contains("server 1")));
    view.wish(ViewAction::Up);
    view.wish(ViewAction::Up);
    assert_eq!(view.selected, Some(0));
    view.wish(ViewAction::All);
    view.wish(ViewAction::Pause);
    assert!(view.paused && lines(&view, 80, 24)[0].contains(" paused "));
    for _ in 0..10 {
        view.wish(ViewAction::Slower);
    }
    assert_eq!(view.interval_ms, 10_000);
    for _ in 0..10 {
        view.wish(ViewAction::Faster);
    }
    assert_eq!(view.interval_ms, 250);
}

/// Goal: with more servers than lines the selected one is always among those shown, and the cluster's row stays.
#[test]
fn many_servers() {
    let mut view = view();
    view.servers = (0..60).map(|index| server(index, State::Up)).collect();
    for _ in 0..40 {
        view.wish(ViewAction::Down);
    }
    let lines = lines(&view, 80, 24);
    assert!(lines.iter().any(|line| line.split_ascii_whitespace().take(2).any(|word| word == "39")), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("cluster ") && line.contains('%')), "{lines:#?}");
}

/// Goal: where devices keep the stores there is one line more, which says what they do, together.
#[test]
fn devices() {
    let mut view = view();
    assert!(!lines(&view, 80, 24).iter().any(|line| line.contains("devices")));
    for server in view.servers.iter_mut().take(2) {
        let before = server.track.report.clone().unwrap();
        let mut after = before.clone();
        after.totals.time_ns += 2 * SECOND;
        let device = |read_bytes, operation_ns| Device {
            read_bytes,
            written_bytes: 2 * read_bytes,
            flushes: operation_ns / SECOND,
            operation_ns,
            queued_ns: operation_ns / 2,
            dirty_bytes: 3 << 20,
        };
        server.track.take(Report { device: Some(device(0, 0)), ..before });
        after.device = Some(device(8 << 20, 20 * SECOND));
        server.track.take(after);
    }
    let lines = lines(&view, 100, 24);
    let line = lines.iter().find(|line| line.contains("devices")).unwrap();
    let words = " devices  read 8.0M/s  written 16M/s  flushes 20/s  depth 20.0  queued 10.0  to write 6.0M";
    assert_eq!(line, words);
}

/// Goal: with a backing directory there is one line more, which says what goes on there and what hangs.
#[test]
fn backing_directory() {
    let mut view = view();
    assert!(!lines(&view, 80, 24).iter().any(|line| line.contains("backing")));
    for (server, longest_ns) in view.servers.iter_mut().zip([0, 5 * SECOND]) {
        let before = server.track.report.clone().unwrap();
        let mut after = before.clone();
        after.totals.time_ns += 2 * SECOND;
        let backing = |calls, fetched_bytes| Backing {
            calls,
            fetched_bytes,
            carried_bytes: 0,
            evicted_bytes: 0,
            changed: 3,
            longest_ns,
        };
        server.track.take(Report { backing: Some(backing(10, 0)), ..before });
        after.backing = Some(backing(30, 8 << 20));
        server.track.take(after);
    }
    let lines = lines(&view, 100, 24);
    let line = lines.iter().find(|line| line.contains("backing")).unwrap();
    let words = " backing  20 calls/s  fetched 8.0M/s  carried 0/s  evicted 0/s  to carry 6  no answer for 5.0s";
    assert_eq!(line, words);
}
