//! Forms in which numbers are shown to people.

use crate::clock::{Nanos, SECOND};

/// Letters of a name that are shown; logs may hold anything.
const NAME_LETTERS_MAX: usize = 120;

/// A whole number with commas between thousands.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut words = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            words.push(',');
        }
        words.push(digit);
    }
    words
}

/// `1 line`, `3 lines`.
pub fn plural(number: u64, word: &str) -> String {
    if number == 1 { format!("1 {word}") } else { format!("{} {word}s", count(number)) }
}

/// Bytes in the unit that fits: `1.5 GiB`.
pub fn size(bytes: f64) -> String {
    let mut value = bytes;
    for unit in ["B", "KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            return if unit == "B" { format!("{value:.0} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.1} PiB")
}

/// Three digits that count: `0.0123`, `12.3`, `12,345`.
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => return "0".to_owned(),
        ..0.01 => return format!("{value:.1e}"),
        ..0.1 => 4,
        ..1.0 => 3,
        ..10.0 => 2,
        ..100.0 => 1,
        _ if value > 0.0 && value < 1e15 => return count(value.round() as u64),
        _ => 0,
    };
    format!("{value:.digits$}")
}

/// Microseconds in the unit that fits: `12 us`, `3.4 ms`, `1.2 s`.
pub fn microseconds(value: f64) -> String {
    match value {
        ..1e3 => format!("{} us", number(value)),
        ..1e6 => format!("{} ms", number(value / 1e3)),
        _ => format!("{} s", number(value / 1e6)),
    }
}

/// A duration as people say it.
pub fn duration(duration: Nanos) -> String {
    let seconds = duration / SECOND;
    match seconds {
        ..10 => format!("{:.1} s", duration as f64 / 1e9),
        10..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {:02} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// A name that came from outside, for a line on a terminal: no control characters, and not too long.
pub fn name(text: &str) -> String {
    let mut shown: String = text.chars().take(NAME_LETTERS_MAX).flat_map(char_shown).collect();
    if text.chars().nth(NAME_LETTERS_MAX).is_some() {
        shown.push_str("...");
    }
    shown
}

fn char_shown(letter: char) -> Vec<char> {
    if letter.is_control() { letter.escape_default().collect() } else { vec![letter] }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: figures read well, and names of logs can't command a terminal.
    #[test]
    fn shown() {
        assert_eq!((count(1_234_567).as_str(), plural(1, "line").as_str()), ("1,234,567", "1 line"));
        assert_eq!((size(1536.0).as_str(), size(12.0).as_str()), ("1.5 KiB", "12 B"));
        assert_eq!(
            (number(0.0123).as_str(), number(12.34).as_str(), number(12_345.4).as_str()),
            ("0.0123", "12.3", "12,345")
        );
        assert_eq!((microseconds(3400.0).as_str(), duration(61 * SECOND).as_str()), ("3.40 ms", "1 min 01 s"));
        assert_eq!(name("a\u{1b}[2J"), "a\\u{1b}[2J");
        assert!(name(&"x".repeat(500)).len() < 130);
    }
}
