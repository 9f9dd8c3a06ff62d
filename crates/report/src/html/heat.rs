//! Servers by time, small enough for a page: cells of one colour are one path of whole numbers.

use super::escaped;
use crate::analysis::Row;
use crate::clock::Nanos;
use crate::options::{Measure, Scale};
use crate::pictures::colours::{Colours, Shade};
use crate::{times, words};
use jiff::tz::TimeZone;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Rows of a picture; servers beyond share one with their neighbours.
const ROWS_MAX: usize = 100;
/// Times below a picture.
const TIMES_MAX: i64 = 4;

pub struct HeatMap {
    measure: Measure,
    /// Servers that share a row, and intervals that share a column.
    together: usize,
    merged: usize,
    rows: Vec<HeatRow>,
    added: usize,
}

struct HeatRow {
    first: String,
    last: String,
    values: Vec<Option<f64>>,
}

impl HeatMap {
    pub fn new(measure: Measure, servers: usize, merged: usize) -> HeatMap {
        let together = servers.div_ceil(ROWS_MAX).max(1);
        HeatMap { measure, together, merged, rows: Vec::new(), added: 0 }
    }

    pub fn title(&self) -> &'static str {
        self.measure.title()
    }

    /// Servers come in their order.
    pub fn add(&mut self, server: &str, rows: &[Row]) {
        let most = |rows: &[Row]| rows.iter().filter_map(|row| self.measure.of(row)).reduce(f64::max);
        let values: Vec<Option<f64>> = rows.chunks(self.merged).map(most).collect();
        let begins = self.added.is_multiple_of(self.together);
        self.added += 1;
        match self.rows.last_mut().filter(|_| !begins) {
            Some(row) => {
                row.last = server.to_owned();
                for (most, value) in row.values.iter_mut().zip(values) {
                    *most = most.iter().copied().chain(value).reduce(f64::max);
                }
            }
            None => self.rows.push(HeatRow { first: server.to_owned(), last: server.to_owned(), values }),
        }
    }

    pub fn draw(&self, page: &mut String, span: (Nanos, Nanos), zone: &TimeZone) {
        let values = || self.rows.iter().flat_map(|row| row.values.iter().copied().flatten());
        let colours = Colours::new(self.measure, Scale::Linear, values(), None);
        let columns = self.rows.first().map_or(1, |row| row.values.len()).max(1);
        let count = self.rows.len().max(1);
        // Below ten pixels a row there is no room for each name.
        let label_every = count.div_ceil(40);
        page.push_str("<figure><div class=\"heat\"><div class=\"names\">");
        for row in self.rows.iter().step_by(label_every) {
            let name = match row.first == row.last {
                true => words::name(&row.first),
                false => format!("{} to {}", words::name(&row.first), words::name(&row.last)),
            };
            let _ = write!(page, "<span>{}</span>", escaped(&name));
        }
        let height = (count * 12).clamp(24, 480);
        let _ = write!(
            page,
            "</div><svg style=\"height:{height}px\" viewBox=\"0 0 {columns} {count}\" preserveAspectRatio=\"none\" \
             role=\"img\" aria-label=\"{}\">",
            escaped(&format!("servers by time: {}", self.title()))
        );
        for (shade, path) in self.paths(&colours) {
            let title = match colours.range(shade) {
                Some((from, to)) => format!("{} to {}", self.measure.words(from), self.measure.words(to)),
                None => "not known".to_owned(),
            };
            let _ = write!(page, "<path class=\"{}\" d=\"{path}\"><title>{title}</title></path>", shade.class());
        }
        page.push_str("</svg></div>");
        put_time_axis(page, span, zone);
        self.put_legend(page, &colours, values().count() > 0);
        page.push_str("</figure>\n");
    }

    /// Runs of cells, by shade.
    fn paths(&self, colours: &Colours) -> BTreeMap<Shade, String> {
        let mut paths: BTreeMap<Shade, String> = BTreeMap::new();
        for (index, row) in self.rows.iter().enumerate() {
            let shades: Vec<Shade> = row.values.iter().map(|value| colours.shade(*value)).collect();
            let mut column = 0;
            for run in shades.chunk_by(|one, other| one == other) {
                let path = paths.entry(run[0]).or_default();
                let _ = write!(path, "M{column} {index}h{0}v1h-{0}z", run.len());
                column += run.len();
            }
        }
        paths
    }

    fn put_legend(&self, page: &mut String, colours: &Colours, any: bool) {
        page.push_str("<div class=\"legend\">");
        if any {
            let _ = write!(page, "<span>0</span><svg viewBox=\"0 0 {} 1\" preserveAspectRatio=\"none\">", Shade::COUNT);
            for step in 0..Shade::COUNT {
                let _ = write!(page, "<path class=\"{}\" d=\"M{step} 0h1v1h-1z\"/>", Shade::Blue(step).class());
            }
            let _ = write!(page, "</svg><span>{}</span>", self.measure.words(colours.most()));
        }
        page.push_str("<svg viewBox=\"0 0 1 1\" class=\"small\"><path class=\"u\" d=\"M0 0h1v1h-1z\"/></svg>");
        page.push_str("<span>not known</span></div>");
    }
}

/// Times below a picture, from edge to edge.
pub fn put_time_axis(page: &mut String, span: (Nanos, Nanos), zone: &TimeZone) {
    page.push_str("<div class=\"times\">");
    for part in 0..=TIMES_MAX {
        let at = span.0 + (span.1 - span.0) / TIMES_MAX * part;
        let _ = write!(page, "<span>{}</span>", times::clock_time(at, zone));
    }
    page.push_str("</div>");
}
