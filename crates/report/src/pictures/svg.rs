//! The few elements that the pictures are made of. Every text is escaped here and nowhere else.

use std::fmt::Write;

const INK: &str = "#282828";

/// Left, top, width, height.
pub type Area = (f64, f64, f64, f64);

pub struct Svg {
    text: String,
}

impl Svg {
    pub fn begin(width: f64, height: f64) -> Svg {
        let mut svg = Svg { text: String::new() };
        svg.write(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" shape-rendering=\"crispEdges\">\n\
             <defs><pattern id=\"unknown\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" \
             patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" fill=\"#ffffff\"/>\
             <rect width=\"2\" height=\"6\" fill=\"#c8c8c8\"/></pattern></defs>\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
        ));
        svg
    }

    pub fn end(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }

    fn write(&mut self, arguments: std::fmt::Arguments<'_>) {
        // Writing into a text does not fail.
        let _ = self.text.write_fmt(arguments);
    }

    /// A filled rectangle; the title is shown where the pointer rests.
    pub fn rectangle(&mut self, area: Area, fill: &str, title: Option<&str>) {
        let (x, y, width, height) = area;
        self.write(format_args!(
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{fill}\"",
            short(x),
            short(y),
            short(width),
            short(height)
        ));
        match title {
            Some(title) => self.write(format_args!("><title>{}</title></rect>\n", escaped(title))),
            None => self.text.push_str("/>\n"),
        }
    }

    pub fn frame(&mut self, area: Area) {
        self.outline(area, INK, 1.0);
    }

    pub fn outline(&mut self, area: Area, colour: &str, width: f64) {
        let (x, y, w, h) = area;
        self.write(format_args!(
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"{colour}\" \
             stroke-width=\"{width}\"/>\n",
            short(x),
            short(y),
            short(w),
            short(h)
        ));
    }

    pub fn line(&mut self, from: (f64, f64), to: (f64, f64)) {
        self.write(format_args!(
            "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"{INK}\"/>\n",
            short(from.0),
            short(from.1),
            short(to.0),
            short(to.1)
        ));
    }

    /// `anchor` is start, middle or end.
    pub fn text(&mut self, x: f64, y: f64, size: u32, anchor: &str, words: &str) {
        self.write(format_args!(
            "<text x=\"{}\" y=\"{}\" font-size=\"{size}\" text-anchor=\"{anchor}\" fill=\"{INK}\">{}</text>\n",
            short(x),
            short(y),
            escaped(words)
        ));
    }
}

/// Two digits behind the point at most.
fn short(value: f64) -> String {
    let text = format!("{value:.2}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A text that is nothing but a text, also where it came from a log.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // XML has no way to write these.
            letter if letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}') => safe.push('\u{fffd}'),
            letter => safe.push(letter),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: whatever a name holds, the picture is XML, and the name is a text in it.
    #[test]
    fn hostile_names() {
        let name = "<script>alert(1)</script>&\"'\u{0}\u{1b}\u{ffff}]]>";
        let mut svg = Svg::begin(10.0, 10.0);
        svg.text(0.0, 0.0, 12, "start", name);
        svg.rectangle((0.0, 0.0, 1.0, 1.0), "#ffffff", Some(name));
        let text = svg.end();
        let document = roxmltree::Document::parse(&text).unwrap();
        assert!(document.descendants().all(|node| !node.has_tag_name("script")));
        let shown = document.descendants().find(|node| node.has_tag_name("text")).and_then(|node| node.text()).unwrap();
        assert!(shown.starts_with("<script>alert(1)</script>&\"'"), "{shown}");
    }
}
