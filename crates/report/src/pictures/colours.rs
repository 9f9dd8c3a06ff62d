//! Values as colours: light to dark blue, so that a grey print and any colour vision show the same order; from the
//! value on that counts as congested light to dark red. What is not known is hatched, and never looks like nothing.

use super::svg::Svg;
use crate::options::{Measure, Scale};

const BLUES: [[f64; 3]; 4] = [[247.0, 251.0, 255.0], [158.0, 202.0, 225.0], [49.0, 130.0, 189.0], [8.0, 48.0, 107.0]];
const REDS: [[f64; 3]; 3] = [[253.0, 174.0, 97.0], [215.0, 48.0, 31.0], [103.0, 0.0, 13.0]];
/// How far below the most a logarithmic scale begins.
const LOG_DECADES: f64 = 4.0;
/// Colours of each half that are told apart, so that equal neighbours become one.
const STEPS: f64 = 32.0;
const BAR_WIDTH: f64 = 260.0;
pub const LEGEND_HEIGHT: f64 = 56.0;

/// The fill of what is not known; see `Svg::begin`.
pub const UNKNOWN: &str = "url(#unknown)";

/// A colour of a page, which has one for light and one for dark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shade {
    Unknown,
    Blue(usize),
}

impl Shade {
    pub const COUNT: usize = 17;

    /// The name of its rule.
    pub fn class(self) -> String {
        match self {
            Shade::Unknown => "u".to_owned(),
            Shade::Blue(step) => format!("b{step}"),
        }
    }
}

/// On a dark page more is brighter. What is not known is grey on both.
pub fn page_colour(shade: Shade, dark: bool) -> String {
    const DARK: [[f64; 3]; 3] = [[22.0, 32.0, 46.0], [33.0, 113.0, 181.0], [186.0, 224.0, 255.0]];
    match (shade, dark) {
        (Shade::Unknown, false) => "#d4d4d4".to_owned(),
        (Shade::Unknown, true) => "#4d4d4d".to_owned(),
        (Shade::Blue(step), false) => mixed(&BLUES, step as f64 / (Shade::COUNT - 1) as f64),
        (Shade::Blue(step), true) => mixed(&DARK, step as f64 / (Shade::COUNT - 1) as f64),
    }
}

/// How values become colours.
#[derive(Debug, Clone, Copy)]
pub struct Colours {
    pub measure: Measure,
    scale: Scale,
    most: f64,
    congested_from: Option<f64>,
}

impl Colours {
    pub fn new(
        measure: Measure,
        scale: Scale,
        values: impl Iterator<Item = f64>,
        congested_from: Option<f64>,
    ) -> Colours {
        let most = values.fold(0.0, f64::max).max(congested_from.unwrap_or(0.0));
        Colours { measure, scale, most: if most > 0.0 { most } else { 1.0 }, congested_from }
    }

    /// `#rrggbb`, or the hatching.
    pub fn fill(&self, value: Option<f64>) -> String {
        let Some(value) = value else { return UNKNOWN.to_owned() };
        let (first, last) = (self.place(0.0), self.place(self.most));
        let share = |from: f64, to: f64| if to > from { (self.place(value) - from) / (to - from) } else { 1.0 };
        match self.congested_from {
            Some(from) if value >= from => mixed(&REDS, share(self.place(from), last)),
            Some(from) => mixed(&BLUES, share(first, self.place(from))),
            None => mixed(&BLUES, share(first, last)),
        }
    }

    pub fn most(&self) -> f64 {
        self.most
    }

    /// The shade of a value on a page; 0 has one of its own.
    pub fn shade(&self, value: Option<f64>) -> Shade {
        let Some(value) = value else { return Shade::Unknown };
        let share = (self.place(value) / self.place(self.most)).clamp(0.0, 1.0);
        Shade::Blue((share * (Shade::COUNT - 1) as f64).ceil() as usize)
    }

    /// From which value to which one a shade is.
    pub fn range(&self, shade: Shade) -> Option<(f64, f64)> {
        let Shade::Blue(step) = shade else { return None };
        let at = |step: usize| self.value_at(self.place(self.most) * step as f64 / (Shade::COUNT - 1) as f64);
        Some((at(step.saturating_sub(1)), at(step)))
    }

    /// Where a value lies on the scale.
    fn place(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => value,
            Scale::Log => {
                let least = self.most / 10f64.powf(LOG_DECADES);
                (value.max(least) / least).log10()
            }
        }
    }

    fn value_at(&self, place: f64) -> f64 {
        match self.scale {
            Scale::Linear => place,
            Scale::Log => self.most / 10f64.powf(LOG_DECADES - place),
        }
    }

    /// A bar of all colours with values below it.
    pub fn draw_legend(&self, svg: &mut Svg, x: f64, y: f64) {
        let last = self.place(self.most);
        let steps = 65;
        for step in 0..steps {
            let value = self.value_at(last * (f64::from(step) + 0.5) / f64::from(steps));
            let left = x + BAR_WIDTH * f64::from(step) / f64::from(steps);
            svg.rectangle((left, y, BAR_WIDTH / f64::from(steps) + 0.5, 12.0), &self.fill(Some(value)), None);
        }
        svg.frame((x, y, BAR_WIDTH, 12.0));
        for quarter in 0..=2 {
            let place = last * f64::from(quarter) / 2.0;
            let anchor = ["start", "middle", "end"][quarter as usize];
            let words = self.measure.words(self.value_at(place));
            let words = if quarter == 0 && self.scale == Scale::Log { format!("up to {words}") } else { words };
            svg.text(x + BAR_WIDTH * f64::from(quarter) / 2.0, y + 26.0, 12, anchor, &words);
        }
        if let Some(from) = self.congested_from {
            let at = x + BAR_WIDTH * self.place(from) / last;
            svg.line((at, y - 4.0), (at, y + 16.0));
            svg.text(x, y + 42.0, 12, "start", &format!("congested from {} on", self.measure.words(from)));
        }
        svg.rectangle((x + BAR_WIDTH + 40.0, y, 24.0, 12.0), UNKNOWN, None);
        svg.frame((x + BAR_WIDTH + 40.0, y, 24.0, 12.0));
        svg.text(x + BAR_WIDTH + 70.0, y + 11.0, 12, "start", "not known");
    }
}

fn mixed(colours: &[[f64; 3]], share: f64) -> String {
    let share = (share.clamp(0.0, 1.0) * STEPS).round() / STEPS * (colours.len() - 1) as f64;
    let index = (share as usize).min(colours.len() - 2);
    let part = share - index as f64;
    let channel = |channel: usize| {
        let (from, to) = (colours[index][channel], colours[index + 1][channel]);
        (from + (to - from) * part).round() as u8
    };
    format!("#{:02x}{:02x}{:02x}", channel(0), channel(1), channel(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the ends of both halves have the colours that are meant, on both scales; and unknown is none of them.
    #[test]
    fn ends() {
        for scale in [Scale::Linear, Scale::Log] {
            let colours = Colours::new(Measure::ReqQdepth, scale, [0.0, 64.0].into_iter(), Some(16.0));
            assert_eq!((colours.fill(Some(0.0)).as_str(), colours.fill(Some(16.0)).as_str()), ("#f7fbff", "#fdae61"));
            assert_eq!((colours.fill(Some(64.0)).as_str(), colours.fill(None).as_str()), ("#67000d", UNKNOWN));
            assert!((colours.value_at(colours.place(10.0)) - 10.0).abs() < 1e-9);
        }
        let nothing = Colours::new(Measure::Bytes, Scale::Log, std::iter::empty(), None);
        assert_eq!(nothing.fill(Some(0.0)), "#f7fbff");
    }
}
