//! Servers by time: a row for each server, a column for each interval.

use super::Head;
use super::colours::{Colours, LEGEND_HEIGHT};
use super::svg::Svg;
use crate::analysis::Row;
use crate::clock::{Nanos, SECOND};
use crate::options::{Measure, Scale};
use crate::{times, words};
use jiff::tz::TimeZone;

/// Columns of a picture; intervals beyond that share one, which shows the most of them: peaks stay.
const COLUMNS_MAX: usize = 720;
/// Rows of a picture; neighbours beyond that share one in the same way.
const ROWS_MAX: usize = 1_500;
/// Cells with words where the pointer rests; more would make the file large.
const TITLES_MAX: usize = 20_000;
const WIDTH: f64 = 760.0;
const LEFT_MIN: f64 = 60.0;
const LEFT_MAX: f64 = 260.0;
const RIGHT: f64 = 30.0;
const HEAD_HEIGHT: f64 = 84.0;
const AXIS_HEIGHT: f64 = 40.0;
const LETTER_WIDTH: f64 = 7.0;

/// Gathers what is drawn, a server at a time.
pub struct ServersPicture {
    measure: Measure,
    congested_from: Option<f64>,
    /// Intervals that share a column.
    merged: usize,
    rows: Vec<(String, Vec<Option<f64>>)>,
    /// Intervals of servers that are congested, and that are known.
    congested: u64,
    known: u64,
}

impl ServersPicture {
    pub fn new(measure: Measure, intervals: usize, congested_from: Option<f64>) -> ServersPicture {
        let merged = intervals.div_ceil(COLUMNS_MAX).max(1);
        ServersPicture { measure, congested_from, merged, rows: Vec::new(), congested: 0, known: 0 }
    }

    pub fn add(&mut self, server: &str, rows: &[Row]) {
        for value in rows.iter().filter_map(|row| self.measure.of(row)) {
            self.known += 1;
            self.congested += u64::from(self.congested_from.is_some_and(|from| value >= from));
        }
        let most = |rows: &[Row]| rows.iter().filter_map(|row| self.measure.of(row)).reduce(f64::max);
        self.rows.push((server.to_owned(), rows.chunks(self.merged).map(most).collect()));
    }

    /// How many intervals of servers were congested, in words.
    pub fn congestion(&self) -> Option<String> {
        let from = self.congested_from?;
        Some(format!(
            "congested ({} from {} on): {} of {} known intervals of servers",
            self.measure.title(),
            self.measure.words(from),
            words::count(self.congested),
            words::count(self.known)
        ))
    }

    pub fn draw(mut self, head: &Head, span: (Nanos, Nanos), scale: Scale, zone: &TimeZone) -> String {
        self.merge_rows();
        let values = self.rows.iter().flat_map(|(_, values)| values.iter().copied().flatten());
        let colours = Colours::new(self.measure, scale, values, self.congested_from);
        let longest = self.rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).min(34);
        let left = (longest as f64 * LETTER_WIDTH + 16.0).clamp(LEFT_MIN, LEFT_MAX);
        let row_height = (480.0 / self.rows.len().max(1) as f64).clamp(3.0, 24.0);
        let height = row_height * self.rows.len().max(1) as f64;
        let mut svg = Svg::begin(left + WIDTH + RIGHT, HEAD_HEIGHT + height + AXIS_HEIGHT + LEGEND_HEIGHT + 10.0);
        draw_head(&mut svg, head);
        let area = (left, HEAD_HEIGHT, WIDTH, height);
        self.draw_cells(&mut svg, area, row_height, span, &colours, zone);
        svg.frame(area);
        draw_time_axis(&mut svg, area, span, zone);
        colours.draw_legend(&mut svg, left, HEAD_HEIGHT + height + AXIS_HEIGHT + 8.0);
        svg.end()
    }

    fn merge_rows(&mut self) {
        let together = self.rows.len().div_ceil(ROWS_MAX);
        if together < 2 {
            return;
        }
        let merge = |rows: &[(String, Vec<Option<f64>>)]| {
            let name = format!("{} to {}", rows[0].0, rows[rows.len() - 1].0);
            let most = |column: usize| rows.iter().filter_map(|(_, values)| values[column]).reduce(f64::max);
            (name, (0..rows[0].1.len()).map(most).collect())
        };
        self.rows = self.rows.chunks(together).map(merge).collect();
    }

    fn draw_cells(
        &self,
        svg: &mut Svg,
        area: super::svg::Area,
        row_height: f64,
        span: (Nanos, Nanos),
        colours: &Colours,
        zone: &TimeZone,
    ) {
        let columns = self.rows.first().map_or(0, |(_, values)| values.len()).max(1);
        let with_titles = columns * self.rows.len() <= TITLES_MAX;
        let label_every = (13.0 / row_height).ceil() as usize;
        let width = area.2 / columns as f64;
        for (index, (name, values)) in self.rows.iter().enumerate() {
            let top = area.1 + index as f64 * row_height;
            if index.is_multiple_of(label_every) {
                let shown: String = name.chars().take(34).collect();
                svg.text(area.0 - 8.0, top + row_height / 2.0 + 4.0, 12, "end", &shown);
            }
            let mut column = 0;
            while column < values.len() {
                let fill = colours.fill(values[column]);
                // Neighbours of one colour become one, unless each has its words.
                let same = values[column..].iter().take_while(|value| colours.fill(**value) == fill).count();
                let count = if with_titles { 1 } else { same.max(1) };
                let title = with_titles.then(|| self.title(name, values[column], column, columns, span, zone));
                let left = area.0 + column as f64 * width;
                svg.rectangle((left, top, width * count as f64, row_height), &fill, title.as_deref());
                column += count;
            }
        }
    }

    fn title(
        &self,
        name: &str,
        value: Option<f64>,
        column: usize,
        columns: usize,
        span: (Nanos, Nanos),
        zone: &TimeZone,
    ) -> String {
        let at = span.0 + ((span.1 - span.0) as f64 * column as f64 / columns as f64) as Nanos;
        let value = value.map_or_else(|| "not known".to_owned(), |value| self.measure.words(value));
        format!("{name}, {}: {value}", times::clock_time(at, zone))
    }
}

pub fn draw_head(svg: &mut Svg, head: &Head) {
    svg.text(16.0, 28.0, 18, "start", &head.title);
    for (index, about) in head.about.iter().enumerate() {
        svg.text(16.0, 48.0 + index as f64 * 17.0, 13, "start", about);
    }
}

/// Round times below the area, at most eight.
fn draw_time_axis(svg: &mut Svg, area: super::svg::Area, span: (Nanos, Nanos), zone: &TimeZone) {
    const STEPS: [i64; 18] =
        [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200, 86_400];
    let length = span.1 - span.0;
    let fits = |step: &i64| length / (step * SECOND) < 8;
    let step = STEPS.into_iter().find(fits).unwrap_or((length / SECOND / 8 / 86_400 + 1) * 86_400) * SECOND;
    let bottom = area.1 + area.3;
    let mut at = span.0.div_euclid(step) * step;
    while at <= span.1 && at < Nanos::MAX {
        if at >= span.0 {
            let x = area.0 + area.2 * ((at - span.0) as f64 / length as f64);
            svg.line((x, bottom), (x, bottom + 5.0));
            let words = if step >= 86_400 * SECOND { times::readable(at, zone) } else { times::clock_time(at, zone) };
            svg.text(x, bottom + 19.0, 12, "middle", &words);
        }
        at = at.saturating_add(step);
    }
    svg.text(area.0 + area.2 / 2.0, bottom + 35.0, 12, "middle", "time");
}
