//! What `tabane top` draws: a line about the cluster, its last minute as charts, a row for each server, and what keeps
//! them busy.

use super::figures::{BackingRates, DeviceRates, HISTORY_SIZE, KindRates, Rates, join_kinds, join_rates};
use super::table::{COLUMNS, Column, Row, cells, span_short};
use super::view::{State, View};
use crate::status::CALL_HANGS_NS;
use crate::text::{count_short, count_words, size_short};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Paragraph, Sparkline, Widget};

/// Smaller terminals get a line that says so.
const WIDTH_MIN: u16 = 60;
const HEIGHT_MIN: u16 = 8;
const CHARTS_HEIGHT: u16 = 6;
/// With fewer lines there is no room for charts.
const HEIGHT_OF_CHARTS: u16 = 18;
const TALL_CHARTS_HEIGHT: u16 = 10;
const HEIGHT_OF_TALL_CHARTS: u16 = 34;
const EIGHTHS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
/// Width from which on shares are drawn as bars too.
const WIDTH_OF_BARS: u16 = 104;
const BAR_WIDTH: usize = 8;
/// Widest bar of a kind of operation.
const KIND_BAR_WIDTH: usize = 40;
/// Of what did not happen.
const NONE: &str = "none for a minute";

/// Colours, or none of them.
#[derive(Debug, Clone, Copy)]
pub struct Palette {
    pub colours: bool,
}

impl Palette {
    fn colour(self, colour: Color) -> Style {
        if self.colours { Style::new().fg(colour) } else { Style::new() }
    }

    fn dim(self) -> Style {
        if self.colours { Style::new().fg(Color::DarkGray) } else { Style::new().add_modifier(Modifier::DIM) }
    }

    fn bold(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// For a share of what there is: the fuller the warmer.
    fn share(self, share: f64) -> Style {
        self.colour(match share {
            ..0.7 => Color::Green,
            ..0.9 => Color::Yellow,
            _ => Color::Red,
        })
    }

    fn state(self, state: &State) -> Style {
        match state {
            State::Asked => self.dim(),
            State::Up => self.colour(Color::Green),
            State::Silent(_) => self.colour(Color::Yellow).add_modifier(Modifier::BOLD),
            State::Down => self.colour(Color::Red).add_modifier(Modifier::BOLD),
        }
    }
}

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, view: &View, palette: Palette) {
    let area = frame.area();
    if area.width < WIDTH_MIN || area.height < HEIGHT_MIN {
        let words = format!("tabane top wants {WIDTH_MIN} x {HEIGHT_MIN}; this is {} x {}", area.width, area.height);
        frame.render_widget(Paragraph::new(words), area);
        return;
    }
    let charts = match area.height {
        ..HEIGHT_OF_CHARTS => 0,
        HEIGHT_OF_CHARTS..HEIGHT_OF_TALL_CHARTS => CHARTS_HEIGHT,
        _ => TALL_CHARTS_HEIGHT,
    };
    let rows = (view.servers.len() as u16).saturating_add(2);
    let behind = BackingRates::join(view.servers.iter().filter_map(|server| server.track.backing));
    let devices = DeviceRates::join(view.servers.iter().filter_map(|server| server.track.device));
    let [title, charts, table, device, backing, kinds, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(charts),
        Constraint::Max(rows.max(3)),
        Constraint::Length(devices.is_some().into()),
        Constraint::Length(behind.is_some().into()),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(area);
    let buffer = frame.buffer_mut();
    draw_title(buffer, title, view, palette);
    if charts.height > 0 {
        draw_charts(buffer, charts, view, palette);
    }
    draw_table(buffer, table, view, palette);
    if let Some(devices) = devices {
        draw_devices(buffer, device, &devices, palette);
    }
    if let Some(behind) = behind {
        draw_backing(buffer, backing, &behind, palette);
    }
    draw_kinds(buffer, kinds, view, palette);
    draw_foot(buffer, foot, view, palette);
}

fn draw_title(buffer: &mut Buffer, area: Rect, view: &View, palette: Palette) {
    let mut spans = vec![
        Span::styled(" tabane top ", palette.colour(Color::Cyan).add_modifier(Modifier::BOLD | Modifier::REVERSED)),
        Span::raw(format!("  cluster {}  ", view.cluster)),
    ];
    let counted = |wanted: &dyn Fn(&State) -> bool| view.servers.iter().filter(|server| wanted(&server.state)).count();
    let groups = [
        (counted(&|state| *state == State::Up), "up", State::Up),
        (counted(&|state| matches!(state, State::Silent(_))), "silent", State::Silent(0)),
        (counted(&|state| *state == State::Down), "down", State::Down),
        (counted(&|state| *state == State::Asked), "asked", State::Asked),
    ];
    for (count, word, state) in groups.iter().filter(|(count, ..)| *count > 0) {
        spans.push(Span::styled(format!("{count} {word}  "), palette.state(state)));
    }
    if view.paused {
        spans.push(Span::styled(" paused ", palette.bold().add_modifier(Modifier::REVERSED)));
    }
    Line::from(spans).render(area, buffer);
    let right = Line::styled(format!("{} ", view.clock), palette.dim()).right_aligned();
    let room = Rect { x: area.right().saturating_sub(10), width: 10.min(area.width), ..area };
    right.render(room, buffer);
}

/// A minute in this many columns, oldest at the left; what is not known yet is nothing.
fn resampled(values: &[f64], width: usize) -> Vec<f64> {
    let missing = HISTORY_SIZE - values.len().min(HISTORY_SIZE);
    let at = |second: usize| if second < missing { 0.0 } else { values[second - missing] };
    (0..width)
        .map(|column| {
            let first = column * HISTORY_SIZE / width;
            let end = ((column + 1) * HISTORY_SIZE / width).max(first + 1);
            (first..end).map(at).sum::<f64>() / (end - first) as f64
        })
        .collect()
}

/// The last minute of the whole cluster. The youngest seconds of all servers stand together.
fn cluster_history(view: &View, take: impl Fn(&Rates) -> f64) -> Vec<f64> {
    let size = view.servers.iter().map(|server| server.track.history.len()).max().unwrap_or(0);
    let mut sums = vec![0.0; size];
    for server in &view.servers {
        for (sum, rates) in sums.iter_mut().rev().zip(server.track.history.iter().rev()) {
            *sum += take(rates);
        }
    }
    sums
}

/// Name, value of now, the last minute, the most that it can be where that is known, and colour.
type Chart = (&'static str, String, Vec<f64>, Option<f64>, Color);

fn draw_charts(buffer: &mut Buffer, area: Rect, view: &View, palette: Palette) {
    let rates = join_rates(view.servers.iter().filter_map(|server| server.track.rates)).unwrap_or_default();
    let count = view.servers.len().max(1) as f64;
    let charts: [Chart; 4] = [
        ("ops/s", count_short(rates.operations), cluster_history(view, |rates| rates.operations), None, Color::Cyan),
        (
            "read/s",
            size_short(rates.bytes_read as u64),
            cluster_history(view, |rates| rates.bytes_read),
            None,
            Color::Green,
        ),
        (
            "write/s",
            size_short(rates.bytes_written as u64),
            cluster_history(view, |rates| rates.bytes_written),
            None,
            Color::Magenta,
        ),
        (
            "busy",
            format!("{:.0}%", rates.busy * 100.0),
            cluster_history(view, |rates| rates.busy),
            Some(count),
            Color::Yellow,
        ),
    ];
    let areas: [Rect; 4] = Layout::horizontal([Constraint::Fill(1); 4]).areas(area);
    for ((name, now, history, top, colour), area) in charts.into_iter().zip(areas) {
        let style = palette.colour(colour);
        let title = Line::from(vec![
            Span::styled(format!(" {name} "), palette.dim()),
            Span::styled(format!("{now} "), style.add_modifier(Modifier::BOLD)),
        ]);
        let most = history.iter().copied().fold(0.0, f64::max);
        let mut block = Block::bordered().border_type(BorderType::Rounded).border_style(palette.dim()).title_top(title);
        if top.is_none() && most > 0.0 {
            let words = if name == "ops/s" { count_short(most) } else { size_short(most as u64) };
            block = block.title_bottom(Line::styled(format!(" most {words} "), palette.dim()).right_aligned());
        }
        let inner = block.inner(area);
        block.render(area, buffer);
        if most == 0.0 {
            if usize::from(inner.width) >= NONE.len() {
                let middle = Rect { y: inner.y + inner.height / 2, height: inner.height.min(1), ..inner };
                Line::styled(NONE, palette.dim()).centered().render(middle, buffer);
            }
            continue;
        }
        let top = top.unwrap_or(most).max(f64::MIN_POSITIVE);
        let heights: Vec<u64> = resampled(&history, usize::from(inner.width))
            .into_iter()
            // What is little is still to be seen; nothing is nothing.
            .map(|value| {
                if value > 0.0 {
                    ((value / top * 1000.0) as u64).max(1000u64.div_ceil(8 * u64::from(inner.height.max(1))))
                } else {
                    0
                }
            })
            .collect();
        Sparkline::default().data(heights).max(1000).style(style).render(inner, buffer);
    }
}

/// The columns' places: start and width. The last one takes what is left.
fn places(area: Rect) -> Vec<(u16, u16)> {
    let mut x = area.x + 1;
    let wide = area.width >= WIDTH_OF_BARS;
    COLUMNS
        .iter()
        .map(|column| {
            let extra = if wide && matches!(column, Column::Busy | Column::Space) { BAR_WIDTH as u16 + 1 } else { 0 };
            let breath = if wide { 1 } else { 0 };
            let width = (column.width() as u16 + extra + breath).min(area.right().saturating_sub(x));
            let place = (x, width);
            x += width + 1;
            place
        })
        .collect()
}

fn draw_table(buffer: &mut Buffer, area: Rect, view: &View, palette: Palette) {
    let places = places(area);
    let end = places.last().map_or(area.x, |(x, width)| x + width + 2);
    let chart = Rect { x: end, width: area.right().saturating_sub(end + 1), ..area };
    let head = palette.dim().add_modifier(Modifier::BOLD);
    for (column, (x, width)) in COLUMNS.iter().zip(&places) {
        let sorted = *column == view.sort;
        let style = if sorted { palette.colour(Color::Cyan).add_modifier(Modifier::BOLD) } else { head };
        let mark = if !sorted {
            ""
        } else if view.ascending() {
            "▲"
        } else {
            "▼"
        };
        put_right(buffer, *x, area.y, *width, &format!("{mark}{}", column.head()), style);
    }
    if chart.width >= 6 {
        put_right(buffer, chart.x, area.y, chart.width.min(HISTORY_SIZE as u16), "ops/s, last minute", head);
    }
    let rows = view.rows();
    let room = usize::from(area.height.saturating_sub(2));
    let first = view.first_row(rows.len(), room);
    let top =
        view.servers.iter().flat_map(|server| &server.track.history).map(|rates| rates.operations).fold(0.0, f64::max);
    let mut y = area.y + 1;
    for (position, server) in rows.iter().enumerate().skip(first).take(room) {
        let row = Row::of(server);
        let selected = view.selected == Some(server.index);
        if selected {
            // One bar from edge to edge, in which colours would be holes.
            draw_row(buffer, &places, y, &row, Palette { colours: false }, Modifier::REVERSED);
            let width = places.last().map_or(0, |(x, width)| x + width + 1 - area.x);
            let bar = Rect { y, width: width.min(area.width), height: 1, ..area };
            buffer.set_style(bar, Style::new().remove_modifier(Modifier::DIM).add_modifier(Modifier::REVERSED));
        } else {
            draw_row(buffer, &places, y, &row, palette, Modifier::empty());
        }
        let history: Vec<f64> = server.track.history.iter().map(|rates| rates.operations).collect();
        put_spark(buffer, chart, y, &history, top, palette.colour(Color::Cyan));
        let more = position + 1 == first + room && position + 1 < rows.len();
        if more || (position == first && first > 0) {
            buffer.set_string(area.x, y, if more { "↓" } else { "↑" }, palette.dim());
        }
        y += 1;
    }
    if y < area.bottom() {
        draw_row(buffer, &places, y, &Row::of_all(&view.servers), palette, Modifier::BOLD);
        let history = cluster_history(view, |rates| rates.operations);
        let top = history.iter().copied().fold(0.0, f64::max);
        put_spark(buffer, chart, y, &history, top, palette.colour(Color::Cyan).add_modifier(Modifier::BOLD));
    }
}

fn draw_row(buffer: &mut Buffer, places: &[(u16, u16)], y: u16, row: &Row, palette: Palette, modifier: Modifier) {
    for ((column, text), (x, width)) in COLUMNS.iter().zip(cells(row)).zip(places) {
        let style = match column {
            Column::State => row.state.as_ref().map_or(Style::new(), |state| palette.state(state)),
            Column::Busy => row.busy.map_or(Style::new(), |share| palette.share(share)),
            Column::Space => row.space.map_or(Style::new(), |share| palette.share(share)),
            Column::Queued if row.queued.is_some_and(|queued| queued >= 1.0) => palette.colour(Color::Yellow),
            _ if text == "-" || (text == "0" && *column != Column::Server) => palette.dim(),
            _ => Style::new(),
        };
        put_right(buffer, *x, y, *width, &text, style.add_modifier(modifier));
        let share = match column {
            Column::Busy => row.busy,
            Column::Space => row.space,
            _ => None,
        };
        if let Some(share) = share.filter(|_| usize::from(*width) > BAR_WIDTH + 4) {
            put_bar(buffer, *x + width - 5 - BAR_WIDTH as u16, y, share, style, palette);
        }
    }
}

/// A share as a bar, with its rest dimmed.
fn put_bar(buffer: &mut Buffer, x: u16, y: u16, share: f64, style: Style, palette: Palette) {
    let full = (share.clamp(0.0, 1.0) * BAR_WIDTH as f64).round() as usize;
    buffer.set_string(x, y, "━".repeat(full), style);
    buffer.set_string(x + full as u16, y, "─".repeat(BAR_WIDTH - full), palette.dim());
}

fn put_spark(buffer: &mut Buffer, area: Rect, y: u16, history: &[f64], top: f64, style: Style) {
    if area.width < 6 {
        return;
    }
    let width = usize::from(area.width).min(HISTORY_SIZE);
    for (column, value) in resampled(history, width).into_iter().enumerate() {
        let level = if value > 0.0 && top > 0.0 { ((value / top * 8.0).round() as usize).clamp(1, 8) } else { 0 };
        buffer.set_string(area.x + column as u16, y, EIGHTHS[level], style);
    }
}

fn put_right(buffer: &mut Buffer, x: u16, y: u16, width: u16, text: &str, style: Style) {
    let size = text.chars().count().min(usize::from(width));
    buffer.set_stringn(x + width - size as u16, y, text, usize::from(width), style);
}

/// What the devices do that keep the stores, and what they lack.
fn draw_devices(buffer: &mut Buffer, area: Rect, rates: &DeviceRates, palette: Palette) {
    let mut spans = vec![Span::styled(" devices ", palette.bold())];
    let mut put = |words: String, is_plain: bool| {
        spans.push(Span::styled(words, if is_plain { Style::new() } else { palette.dim() }));
    };
    put(format!(" read {}/s", size_short(rates.read as u64)), rates.read > 0.0);
    put(format!("  written {}/s", size_short(rates.written as u64)), rates.written > 0.0);
    put(format!("  flushes {}/s", count_short(rates.flushes)), rates.flushes > 0.0);
    put(format!("  depth {:.1}", rates.depth), rates.depth > 0.0);
    put(format!("  queued {:.1}", rates.queued), rates.queued > 0.0);
    put(format!("  to write {}", size_short(rates.dirty)), rates.dirty > 0);
    Line::from(spans).render(area, buffer);
}

/// What servers do with the backing directory, and what of here is not there.
fn draw_backing(buffer: &mut Buffer, area: Rect, rates: &BackingRates, palette: Palette) {
    let sizes = [("fetched", rates.fetched), ("carried", rates.carried), ("evicted", rates.evicted)];
    let mut spans = vec![Span::styled(" backing ", palette.bold())];
    spans.push(Span::raw(format!(" {} calls/s", count_short(rates.calls))));
    for (word, bytes) in sizes {
        let style = if bytes > 0.0 { Style::new() } else { palette.dim() };
        spans.push(Span::styled(format!("  {word} {}/s", size_short(bytes as u64)), style));
    }
    let style = if rates.changed > 0 { palette.colour(Color::Yellow) } else { palette.dim() };
    spans.push(Span::styled(format!("  to carry {}", count_words(rates.changed)), style));
    if rates.longest_ns > CALL_HANGS_NS {
        let style = palette.colour(Color::Red).add_modifier(Modifier::BOLD);
        spans.push(Span::styled(format!("  no answer for {}", span_short(rates.longest_ns as f64)), style));
    }
    Line::from(spans).render(area, buffer);
}

fn draw_kinds(buffer: &mut Buffer, area: Rect, view: &View, palette: Palette) {
    if area.height < 4 {
        return;
    }
    let chosen = view.servers.iter().filter(|server| view.selected.is_none_or(|index| index == server.index));
    let kinds = join_kinds(chosen.map(|server| &server.track));
    let whose = view.selected.map_or("all servers".to_owned(), |index| format!("server {index}"));
    let title = Line::from(vec![
        Span::styled(" busiest operations ", palette.bold()),
        Span::styled(format!("{whose} "), palette.dim()),
    ]);
    let block = Block::bordered().border_type(BorderType::Rounded).border_style(palette.dim()).title_top(title);
    let inner = block.inner(area);
    block.render(area, buffer);
    let head = palette.dim().add_modifier(Modifier::BOLD);
    let widths = [10u16, 10, 10, 12, 10];
    let name_width = 18;
    let put_all = |buffer: &mut Buffer, y: u16, name: &str, texts: [String; 5], style: Style| {
        buffer.set_stringn(inner.x + 1, y, name, name_width, style);
        let mut x = inner.x + 1 + name_width as u16;
        for (text, width) in texts.iter().zip(widths) {
            if x + width <= inner.right() {
                put_right(buffer, x, y, width, text, if text == "0" { palette.dim() } else { style });
            }
            x += width;
        }
        x
    };
    let heads = ["ops/s", "bytes/s", "mean", "99% so far", "failed/s"].map(str::to_owned);
    put_all(buffer, inner.y, "operation", heads, head);
    let most = kinds.first().map_or(1.0, |kind| kind.operations).max(f64::MIN_POSITIVE);
    for (kind, y) in kinds.iter().zip(inner.y + 1..inner.bottom()) {
        let end = put_all(buffer, y, &kind.name, kind_texts(kind), Style::new());
        let room = usize::from(inner.right().saturating_sub(end + 3)).min(KIND_BAR_WIDTH);
        let size = ((kind.operations / most * room as f64).round() as usize).max(1);
        if room >= 6 {
            buffer.set_string(end + 2, y, "━".repeat(size), palette.colour(Color::Cyan));
        }
    }
    if kinds.is_empty() {
        buffer.set_stringn(
            inner.x + 1,
            inner.y + 1,
            "nothing is asked of them now",
            usize::from(inner.width) - 1,
            palette.dim(),
        );
    }
}

fn kind_texts(kind: &KindRates) -> [String; 5] {
    [
        count_short(kind.operations),
        size_short(kind.bytes as u64),
        span_short(kind.service_ns),
        span_short(kind.p99_ns as f64),
        count_short(kind.failed),
    ]
}

fn draw_foot(buffer: &mut Buffer, area: Rect, view: &View, palette: Palette) {
    let pause = if view.paused { "go on" } else { "pause" };
    let sort = format!("sort: {}", view.sort.head());
    let every = format!("every {}", span_short(view.interval_ms as f64 * 1e6));
    let keys = [
        ("q", "quit"),
        ("s", &*sort),
        ("r", "reverse"),
        ("space", pause),
        ("+ -", &*every),
        ("↑↓", "select"),
        ("esc", "all"),
    ];
    let mut spans = vec![Span::raw(" ")];
    for (key, meaning) in keys {
        spans.push(Span::styled(key, palette.colour(Color::Cyan).add_modifier(Modifier::BOLD)));
        spans.push(Span::styled(format!(" {meaning}   "), palette.dim()));
    }
    Line::from(spans).render(area, buffer);
}
