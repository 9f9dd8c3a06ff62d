//! A value over time, drawn as an area; what is not known is a gap.

use super::{escaped, heat};
use crate::clock::Nanos;
use jiff::tz::TimeZone;
use std::fmt::Write as _;

const HEIGHT: f64 = 60.0;

pub struct Curve {
    /// One for each column: the most of what shares it.
    values: Vec<Option<f64>>,
}

impl Curve {
    /// `merged` intervals share a column.
    pub fn thinned(values: &[Option<f64>], merged: usize) -> Curve {
        let most = |values: &[Option<f64>]| values.iter().copied().flatten().reduce(f64::max);
        Curve { values: values.chunks(merged).map(most).collect() }
    }

    pub fn draw(
        &self,
        page: &mut String,
        title: &str,
        class: &str,
        span: (Nanos, Nanos),
        zone: &TimeZone,
        show: &dyn Fn(f64) -> String,
    ) {
        let most = self.values.iter().copied().flatten().fold(0.0, f64::max);
        let about = match self.values.iter().any(Option::is_some) {
            true => format!("{title}: {} at most", show(most)),
            false => format!("{title}: not known"),
        };
        let columns = self.values.len().max(1);
        let _ = write!(
            page,
            "<figure><figcaption>{0}</figcaption><svg class=\"curve {class}\" viewBox=\"0 0 {columns} {HEIGHT}\" \
             preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{0}\"><path d=\"",
            escaped(&about)
        );
        let scale = if most > 0.0 { (HEIGHT - 1.0) / most } else { 0.0 };
        let mut column = 0;
        for run in self.values.chunk_by(|one, other| one.is_some() == other.is_some()) {
            if run[0].is_some() {
                let _ = write!(page, "M{column} {HEIGHT}");
                for value in run {
                    let top = HEIGHT - value.unwrap_or(0.0) * scale;
                    let _ = write!(page, "V{top:.1}h1");
                }
                let _ = write!(page, "V{HEIGHT}z");
            }
            column += run.len();
        }
        page.push_str("\"/></svg>");
        heat::put_time_axis(page, span, zone);
        page.push_str("</figure>\n");
    }
}
