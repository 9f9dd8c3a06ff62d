//! The columns of `tabane top`: the same on the screen and as text.

use super::figures::{Rates, join_rates};
use super::view::{ServerView, State};
use crate::text::{count_short, size_short};

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    Server,
    State,
    Operations,
    Read,
    Written,
    Queued,
    Wait,
    Active,
    Busy,
    Space,
}

pub const COLUMNS: [Column; 10] = [
    Column::Server,
    Column::State,
    Column::Operations,
    Column::Read,
    Column::Written,
    Column::Queued,
    Column::Wait,
    Column::Active,
    Column::Busy,
    Column::Space,
];

impl Column {
    /// Its name for --sort.
    pub fn name(self) -> &'static str {
        match self {
            Column::Server => "server",
            Column::State => "state",
            Column::Operations => "operations",
            Column::Read => "read",
            Column::Written => "write",
            Column::Queued => "queue",
            Column::Wait => "wait",
            Column::Active => "active",
            Column::Busy => "busy",
            Column::Space => "space",
        }
    }

    pub fn of_name(name: &str) -> Option<Column> {
        COLUMNS.into_iter().find(|column| column.name() == name)
    }

    pub fn head(self) -> &'static str {
        match self {
            Column::Operations => "ops/s",
            Column::Read => "read/s",
            Column::Written => "write/s",
            _ => self.name(),
        }
    }

    pub fn width(self) -> usize {
        match self {
            Column::Server => 7,
            Column::State => 9,
            Column::Operations | Column::Read | Column::Written => 8,
            Column::Wait => 7,
            Column::Queued => 6,
            Column::Active => 6,
            Column::Busy => 5,
            Column::Space => 5,
        }
    }
}

/// What a row shows; `None` where nothing is known.
pub struct Row {
    pub name: String,
    pub state: Option<State>,
    pub rates: Option<Rates>,
    pub queued: Option<f64>,
    pub active: Option<u64>,
    pub busy: Option<f64>,
    /// Share of the store that is used.
    pub space: Option<f64>,
}

impl Row {
    pub fn of(server: &ServerView) -> Row {
        let report = server.track.report.as_ref().filter(|_| server.state == State::Up);
        let rates = server.track.rates.filter(|_| server.state == State::Up);
        Row {
            name: server.index.to_string(),
            state: Some(server.state),
            rates,
            queued: rates.map(|rates| rates.queued),
            active: report.map(|report| report.active),
            busy: rates.map(|rates| rates.busy),
            space: report.and_then(|report| used(report.bytes_total, report.bytes_free)),
        }
    }

    /// The whole cluster: sums, and means of shares and waiting times, over the servers that answer.
    pub fn of_all(servers: &[ServerView]) -> Row {
        let up = || servers.iter().filter(|server| server.state == State::Up);
        let reports = || up().filter_map(|server| server.track.report.as_ref());
        let rates = join_rates(up().filter_map(|server| server.track.rates));
        let any = reports().next().is_some();
        let total = reports().map(|report| report.bytes_total).sum();
        let free = reports().map(|report| report.bytes_free).sum();
        Row {
            name: "cluster".to_owned(),
            state: None,
            rates,
            queued: rates.map(|rates| rates.queued),
            active: any.then(|| reports().map(|report| report.active).sum()),
            busy: rates.map(|rates| rates.busy),
            space: used(total, free),
        }
    }
}

fn used(total: u64, free: u64) -> Option<f64> {
    (total > 0).then(|| total.saturating_sub(free) as f64 / total as f64)
}

/// The texts of a row, column by column.
pub fn cells(row: &Row) -> [String; 10] {
    let dash = || "-".to_owned();
    let rate = |take: &dyn Fn(&Rates) -> String| row.rates.as_ref().map_or_else(dash, take);
    let percent = |share: Option<f64>| share.map_or_else(dash, |share| format!("{:.0}%", share * 100.0));
    COLUMNS.map(|column| match column {
        Column::Server => row.name.clone(),
        Column::State => row.state.map_or_else(String::new, State::words),
        Column::Operations => rate(&|rates| count_short(rates.operations)),
        Column::Read => rate(&|rates| size_short(rates.bytes_read as u64)),
        Column::Written => rate(&|rates| size_short(rates.bytes_written as u64)),
        Column::Queued => row.queued.map_or_else(dash, depth_short),
        Column::Wait => rate(&|rates| rates.wait_ns.map_or_else(dash, span_short)),
        Column::Active => row.active.map_or_else(dash, |active| active.to_string()),
        Column::Busy => percent(row.busy),
        Column::Space => percent(row.space),
    })
}

/// A mean number of requests: with a digit behind the point below 10.
fn depth_short(depth: f64) -> String {
    if depth < 9.95 { format!("{depth:.1}") } else { format!("{depth:.0}") }
}

/// A time in three letters and a unit.
pub fn span_short(nanoseconds: f64) -> String {
    let (value, unit) = match nanoseconds {
        ..999.5 => return format!("{nanoseconds:.0}ns"),
        ..999_500.0 => (nanoseconds / 1e3, "us"),
        ..999_500_000.0 => (nanoseconds / 1e6, "ms"),
        _ => (nanoseconds / 1e9, "s"),
    };
    if value < 9.95 { format!("{value:.1}{unit}") } else { format!("{value:.0}{unit}") }
}

/// The table as plain text, with the row of the cluster at its end.
pub fn text(rows: &[&ServerView], all: &[ServerView]) -> String {
    let mut lines = vec![COLUMNS.map(|column| column.head().to_owned())];
    lines.extend(rows.iter().map(|server| cells(&Row::of(server))));
    lines.push(cells(&Row::of_all(all)));
    let widths: [usize; 10] =
        std::array::from_fn(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0));
    let mut text = String::new();
    for line in &lines {
        let cells: Vec<String> = line.iter().zip(widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: times keep to few letters in all sizes.
    #[test]
    fn spans() {
        for (nanoseconds, words) in
            [(0.0, "0ns"), (999.0, "999ns"), (1234.0, "1.2us"), (9960.0, "10us"), (999_999.0, "1.0ms"), (12e9, "12s")]
        {
            assert_eq!(span_short(nanoseconds), words);
        }
    }

    /// Goal: every column is found by the name that --sort takes, and its own texts fit it.
    #[test]
    fn columns() {
        for column in COLUMNS {
            assert_eq!(Column::of_name(column.name()), Some(column));
            assert!(column.head().len() < column.width() + 1 && column.width() < 10, "{}", column.name());
        }
    }
}
