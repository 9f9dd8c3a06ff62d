//! Pictures of what experiments measured, as SVG: panels side by side, each with a title, labelled axes and a legend.
//!
//! Colours are those of Okabe and Ito ("Color Universal Design", 2008), which people with any colour vision tell apart,
//! put in an order of falling lightness; each series has a mark of its own besides, so that a grey print says the same.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, DefaultFormatting, KeyPointHint, Ranged, ValueFormatter};
use plotters::prelude::*;
use std::ops::Range;
use std::path::Path;

const PANEL_SIZE: (u32, u32) = (580, 420);
/// One panel alone is wider, so that the head has room.
const WIDTH_ALONE: u32 = 760;
/// Room for the head of a picture with two lines about it, and for each line more.
const HEAD_HEIGHT: u32 = 74;
const LINE_HEIGHT: u32 = 17;
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(120, 100, 20),
    RGBColor(230, 159, 0),
    RGBColor(40, 40, 40),
];
const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(225, 225, 225);
const LEGEND_LINE: i32 = 18;
/// Where titles and legends begin: above the axis.
const LEGEND_LEFT: i32 = 84;
const TITLE_HEIGHT: i32 = 32;
const CATEGORY_NAMES_MAX: usize = 16;
/// More lines than this over a logarithmic axis would crowd.
const LOG_LINES_MAX: usize = 10;
const FONT: &str = "sans-serif";

/// Named points; x is the index of a category.
#[derive(Debug, Clone)]
pub struct Series {
    pub name: String,
    pub points: Vec<(usize, f64)>,
    /// Drawn thin and grey: what the others are to be compared with.
    pub is_reference: bool,
}

/// How values are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Lines with marks; the axis starts at zero.
    Lines,
    /// Lines with marks over a logarithmic axis.
    LogLines,
    /// Bars beside each other for each category.
    Bars,
}

/// One diagram.
#[derive(Debug, Clone)]
pub struct Panel {
    pub title: String,
    pub x_label: String,
    pub y_label: String,
    /// What stands below the axis, one for each index.
    pub categories: Vec<String>,
    pub series: Vec<Series>,
    pub look: Look,
}

/// A whole picture.
#[derive(Debug, Clone)]
pub struct Picture {
    pub title: String,
    /// What was measured where: real or simulated, hosts, machine.
    pub about: Vec<String>,
    pub panels: Vec<Panel>,
}

impl Picture {
    /// Writes the picture. Errors: words that name the file.
    pub fn draw(&self, file: &Path) -> Result<(), String> {
        let columns = if self.panels.len() > 3 { self.panels.len().div_ceil(2) } else { self.panels.len() }.max(1);
        let rows = self.panels.len().div_ceil(columns).max(1);
        let width = if columns == 1 { WIDTH_ALONE } else { PANEL_SIZE.0 * columns as u32 };
        let size = (width, PANEL_SIZE.1 * rows as u32 + self.head_height());
        let mut text = String::new();
        self.draw_into(&mut text, size, (rows, columns)).map_err(|words| format!("{}: {words}", file.display()))?;
        std::fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
    }

    fn head_height(&self) -> u32 {
        HEAD_HEIGHT + LINE_HEIGHT * self.about.len().saturating_sub(2) as u32
    }

    fn draw_into(&self, text: &mut String, size: (u32, u32), grid: (usize, usize)) -> Result<(), String> {
        let area = SVGBackend::with_string(text, size).into_drawing_area();
        area.fill(&WHITE).map_err(said)?;
        let (head, body) = area.split_vertically(self.head_height());
        let line = |text: &str, size: i32, at: i32| {
            let style = (FONT, size).into_font().color(&INK);
            head.draw(&Text::new(text.to_owned(), (16, at), style)).map_err(said)
        };
        line(&self.title, 20, 12)?;
        for (index, about) in self.about.iter().enumerate() {
            line(about, 13, 38 + index as i32 * LINE_HEIGHT as i32)?;
        }
        for (panel, area) in self.panels.iter().zip(body.split_evenly(grid)) {
            panel.draw(&area)?;
        }
        area.present().map_err(said)
    }
}

type Pixel = (i32, i32);
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Panel {
    fn values(&self) -> impl Iterator<Item = f64> + '_ {
        self.series.iter().flat_map(|series| series.points.iter().map(|(_, value)| *value))
    }

    fn draw(&self, area: &Area<'_>) -> Result<(), String> {
        let most = self.values().fold(0.0, f64::max);
        if self.look == Look::LogLines {
            let least = self.values().filter(|value| *value > 0.0).fold(f64::MAX, f64::min);
            if least < most {
                return self.draw_over(area, LogAxis(least / 1.6..most * 2.0));
            }
        }
        self.draw_over(area, 0.0..if most > 0.0 { most * 1.15 } else { 1.0 })
    }

    fn draw_over<Y>(&self, area: &Area<'_>, y: Y) -> Result<(), String>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let margin = if self.look == Look::Bars { 0.6 } else { 0.3 };
        let x = -margin..self.categories.len().max(1) as f64 - 1.0 + margin;
        let width = area.dim_in_pixel().0 as i32;
        let (head, area) = area.split_vertically(TITLE_HEIGHT + self.legend_rows(width) * LEGEND_LINE + 4);
        self.draw_head(&head, width)?;
        let area = &area;
        let mut chart = ChartBuilder::on(area)
            .margin(4)
            .margin_left(12)
            .margin_right(16)
            .x_label_area_size(46)
            .y_label_area_size(78)
            .build_cartesian_2d(x, y)
            .map_err(said)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE.mix(0.0))
            .bold_line_style(GRID)
            .axis_style(INK)
            .label_style((FONT, 13).into_font().color(&INK))
            .axis_desc_style((FONT, 14).into_font().color(&INK))
            .x_labels(self.categories.len())
            .y_labels(8)
            .x_label_formatter(&|at| self.category_at(*at))
            .y_label_formatter(&|value| short(*value))
            .x_desc(&self.x_label)
            .y_desc(&self.y_label)
            .draw()
            .map_err(said)?;
        let base = area.get_base_pixel();
        let pixel = |x: f64, y: f64| {
            let (x, y) = chart.backend_coord(&(x, y));
            (x - base.0, y - base.1)
        };
        // Least important first, so that nothing hides the curves that the picture is about.
        for (number, series) in self.series.iter().enumerate() {
            let style = Style { number, is_reference: series.is_reference };
            if self.look == Look::Bars {
                self.draw_bars(area, series, style, &pixel)?;
                continue;
            }
            let points: Vec<Pixel> = series.points.iter().map(|(x, y)| pixel(*x as f64, *y)).collect();
            style.draw_line(area, &points)?;
            for point in points {
                style.draw_mark(area, point)?;
            }
        }
        Ok(())
    }

    fn draw_bars(
        &self,
        area: &Area<'_>,
        series: &Series,
        style: Style,
        pixel: &impl Fn(f64, f64) -> Pixel,
    ) -> Result<(), String> {
        let width = 0.8 / self.series.len().max(1) as f64;
        for (x, value) in &series.points {
            let left = *x as f64 - 0.4 + width * style.number as f64;
            let (from, to) = (pixel(left + width * 0.04, *value), pixel(left + width * 0.96, 0.0));
            area.draw(&Rectangle::new([from, to], style.colour().filled())).map_err(said)?;
        }
        Ok(())
    }

    /// Series that stand beside each other in the legend.
    fn legend_columns(&self, width: i32) -> i32 {
        ((width - LEGEND_LEFT) / self.legend_width()).clamp(1, self.series.len().max(1) as i32)
    }

    fn legend_rows(&self, width: i32) -> i32 {
        (self.series.len() as i32 + self.legend_columns(width) - 1) / self.legend_columns(width)
    }

    /// Of one name with its sample.
    fn legend_width(&self) -> i32 {
        let longest = self.series.iter().map(|series| series.name.chars().count()).max().unwrap_or(0) as i32;
        longest * 7 + 50
    }

    /// The title, and below it the legend, where it hides nothing.
    fn draw_head(&self, area: &Area<'_>, width: i32) -> Result<(), String> {
        let font = (FONT, 16).into_font().color(&INK);
        area.draw(&Text::new(self.title.clone(), (LEGEND_LEFT, 6), font)).map_err(said)?;
        let columns = self.legend_columns(width);
        for (number, series) in self.series.iter().enumerate() {
            let (column, row) = (number as i32 % columns, number as i32 / columns);
            let x = LEGEND_LEFT + column * self.legend_width();
            let middle = TITLE_HEIGHT + LEGEND_LINE / 2 + row * LEGEND_LINE;
            let style = Style { number, is_reference: series.is_reference };
            if self.look == Look::Bars {
                let corners = [(x + 10, middle - 6), (x + 26, middle + 6)];
                area.draw(&Rectangle::new(corners, style.colour().filled())).map_err(said)?;
            } else {
                style.draw_line(area, &[(x, middle), (x + 30, middle)])?;
                style.draw_mark(area, (x + 15, middle))?;
            }
            let font = (FONT, 13).into_font().color(&INK);
            area.draw(&Text::new(series.name.clone(), (x + 36, middle - 7), font)).map_err(said)?;
        }
        Ok(())
    }

    /// Only whole indexes have a name, and every fourth where they would touch each other.
    fn category_at(&self, at: f64) -> String {
        let index = at.round();
        if self.categories.len() > CATEGORY_NAMES_MAX && !(index as usize).is_multiple_of(4) {
            return String::new();
        }
        match self.categories.get(index as usize) {
            Some(name) if (at - index).abs() < 1e-6 && index >= 0.0 => name.clone(),
            _ => String::new(),
        }
    }
}

/// A logarithmic axis whose lines are at 1, 2 and 5 of each power of ten, or, where these would crowd, at the powers
/// alone: each has its name beside it, and equal distances are equal factors.
struct LogAxis(Range<f64>);

impl LogAxis {
    fn lines(&self) -> Vec<f64> {
        let exponents = self.0.start.log10().floor() as i32..=self.0.end.log10().ceil() as i32;
        let of = |digits: &'static [f64]| {
            let all = exponents
                .clone()
                .flat_map(move |exponent| digits.iter().map(move |digit| digit * 10f64.powi(exponent)));
            all.filter(|value| self.0.contains(value)).collect::<Vec<f64>>()
        };
        let fine = of(&[1.0, 2.0, 5.0]);
        if fine.len() > LOG_LINES_MAX { of(&[1.0]) } else { fine }
    }
}

impl Ranged for LogAxis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value / self.0.start).ln() / (self.0.end / self.0.start).ln();
        limit.0 + (f64::from(limit.1 - limit.0) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.lines()
    }

    fn range(&self) -> Range<f64> {
        self.0.clone()
    }
}

impl From<LogAxis> for Range<f64> {
    fn from(axis: LogAxis) -> Range<f64> {
        axis.0
    }
}

#[derive(Clone, Copy)]
struct Style {
    number: usize,
    is_reference: bool,
}

impl Style {
    fn colour(self) -> RGBColor {
        if self.is_reference { RGBColor(130, 130, 130) } else { COLOURS[self.number % COLOURS.len()] }
    }

    fn draw_line(self, area: &Area<'_>, points: &[Pixel]) -> Result<(), String> {
        let width = if self.is_reference { 1 } else { 2 };
        area.draw(&PathElement::new(points.to_vec(), self.colour().stroke_width(width))).map_err(said)
    }

    /// The mark of a series: neighbours differ in shape, and those of one shape in being full or hollow.
    fn draw_mark(self, area: &Area<'_>, at: Pixel) -> Result<(), String> {
        let (full, hollow, white) = (self.colour().filled(), self.colour().stroke_width(2), WHITE.filled());
        let corners = |size: i32| [(at.0 - size, at.1 - size), (at.0 + size, at.1 + size)];
        let result = match self.number % 8 {
            _ if self.is_reference => Ok(()),
            0 => area.draw(&Circle::new(at, 5, full)),
            1 => area.draw(&Rectangle::new(corners(4), full)),
            2 => area.draw(&TriangleMarker::new(at, 7, full)),
            3 => area.draw(&Circle::new(at, 4, white)).and_then(|()| area.draw(&Circle::new(at, 5, hollow))),
            4 => area
                .draw(&Rectangle::new(corners(4), white))
                .and_then(|()| area.draw(&Rectangle::new(corners(4), hollow))),
            5 => area.draw(&Cross::new(at, 5, hollow)),
            6 => area.draw(&Polygon::new(
                vec![(at.0, at.1 - 6), (at.0 + 6, at.1), (at.0, at.1 + 6), (at.0 - 6, at.1)],
                full,
            )),
            _ => area.draw(&Circle::new(at, 3, full)),
        };
        result.map_err(said)
    }
}

/// A number as people read it: 1.5 k, 20 M.
fn short(value: f64) -> String {
    let scaled = [(1e9, " G"), (1e6, " M"), (1e3, " k")].into_iter().find(|(scale, _)| value.abs() >= *scale);
    let (value, suffix) = scaled.map_or((value, ""), |(scale, suffix)| (value / scale, suffix));
    let text = if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") };
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a logarithmic axis has lines over its whole length, evenly, none twice, and not too many; and it is one.
    #[test]
    fn logarithmic_axes() {
        assert_eq!(LogAxis(130.0..5_500.0).lines(), [200.0, 500.0, 1_000.0, 2_000.0, 5_000.0]);
        assert_eq!(LogAxis(0.5e6..2e9).lines(), [1e6, 1e7, 1e8, 1e9]);
        let axis = LogAxis(1.0..100.0);
        assert_eq!([1.0, 10.0, 100.0].map(|value| axis.map(&value, (200, 0))), [200, 100, 0]);
    }

    /// Goal: what is said about a picture has room above its panels, however many lines that takes.
    #[test]
    fn heads_have_room() {
        for lines in 0..6u32 {
            let about = vec!["about it".to_owned(); lines as usize];
            let picture = Picture { title: "title".to_owned(), about, panels: Vec::new() };
            let last = 38 + lines * LINE_HEIGHT;
            assert!(picture.head_height() >= last, "{lines} lines end at {last}");
        }
    }

    /// Goal: numbers on axes are short and exact.
    #[test]
    fn numbers() {
        let texts = [0.0, 0.25, 7.0, 100.0, 1_500.0, 20_000.0, 3_000_000.0].map(short);
        assert_eq!(texts, ["0", "0.25", "7", "100", "1.5 k", "20 k", "3 M"]);
    }
}
