//! Forms in which numbers, times and modes are shown and read.

use client::{Attributes, Kind};
use reactor::Nanos;

const SUFFIXES: [&str; 5] = ["", "K", "M", "G", "T"];

/// Reads bytes with an optional suffix: `47008`, `64K`, `1.5G`, `1MiB`. Powers of 1,024.
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let suffix = suffix.trim().to_ascii_uppercase();
    let suffix = suffix.strip_suffix("IB").or(suffix.strip_suffix('B')).unwrap_or(&suffix);
    let power = SUFFIXES.iter().position(|known| *known == suffix)? as u32;
    let unit = 1024u64.pow(power);
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(unit);
    }
    let fraction: f64 = number.parse().ok()?;
    let bytes = fraction * unit as f64;
    (bytes.is_finite() && bytes < 1e18).then_some(bytes.round() as u64)
}

/// Bytes in the unit that fits: `1.5 GiB`.
pub fn size_words(bytes: u64) -> String {
    let (value, power) = scaled(bytes);
    match power {
        0 => format!("{bytes} B"),
        _ => format!("{value:.1} {}iB", SUFFIXES[power]),
    }
}

/// Bytes as `ls -h` shows them: `1.5G`.
pub fn size_short(bytes: u64) -> String {
    let (value, power) = scaled(bytes);
    match power {
        0 => bytes.to_string(),
        _ if value < 10.0 => format!("{value:.1}{}", SUFFIXES[power]),
        _ => format!("{value:.0}{}", SUFFIXES[power]),
    }
}

fn scaled(bytes: u64) -> (f64, usize) {
    let mut value = bytes as f64;
    let mut power = 0;
    while value >= 1024.0 && power + 1 < SUFFIXES.len() {
        value /= 1024.0;
        power += 1;
    }
    (value, power)
}

/// A whole number with commas between thousands.
pub fn count_words(number: u64) -> String {
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

/// A rate in few letters: `7`, `1,234`, `12.3k`, `1.2M`.
pub fn count_short(number: f64) -> String {
    match number {
        ..0.05 => "0".to_owned(),
        ..9.95 => format!("{number:.1}"),
        ..9999.5 => count_words(number.round() as u64),
        ..99_950.0 => format!("{:.1}k", number / 1e3),
        ..999_500.0 => format!("{:.0}k", number / 1e3),
        _ => format!("{:.1}M", number / 1e6),
    }
}

/// `one file`, `3 files`.
pub fn plural(count: u64, word: &str) -> String {
    if count == 1 { format!("1 {word}") } else { format!("{} {word}s", count_words(count)) }
}

/// Breaks a text into lines of at most `width_max` letters, each behind `indent` spaces, which count.
pub fn wrapped(text: &str, indent: usize, width_max: usize) -> String {
    let mut lines = String::new();
    let mut width = 0;
    for word in text.split_whitespace() {
        let size = word.chars().count();
        if width > 0 && width + 1 + size > width_max - indent {
            lines.push('\n');
            width = 0;
        }
        if width == 0 {
            lines.extend(std::iter::repeat_n(' ', indent));
        } else {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += size;
    }
    lines.push('\n');
    lines
}

/// A duration as people say it.
pub fn duration_words(duration: Nanos) -> String {
    let seconds = duration / 1_000_000_000;
    match seconds {
        0..10 => format!("{:.1} s", duration as f64 / 1e9),
        10..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {:02} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// `drwxr-xr-x`.
pub fn mode_words(kind: Kind, mode: u32) -> String {
    let mut words = String::with_capacity(10);
    words.push(match kind {
        Kind::File => '-',
        Kind::Directory => 'd',
        Kind::Symlink => 'l',
        Kind::Fifo => 'p',
        Kind::Socket => 's',
        Kind::CharacterDevice => 'c',
        Kind::BlockDevice => 'b',
    });
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        words.push(if bits & 4 != 0 { 'r' } else { '-' });
        words.push(if bits & 2 != 0 { 'w' } else { '-' });
        words.push(match (mode & special != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
        });
    }
    words
}

/// `directory`, `file` or `symbolic link`.
pub fn kind_words(attributes: &Attributes) -> &'static str {
    match attributes.kind {
        Kind::File if attributes.size == 0 => "empty file",
        Kind::File => "file",
        Kind::Directory => "directory",
        Kind::Symlink => "symbolic link",
        Kind::Fifo => "named pipe",
        Kind::Socket => "socket",
        Kind::CharacterDevice => "character device",
        Kind::BlockDevice => "block device",
    }
}

/// A time to the minute: `2026-11-21 06:39`.
pub fn time_short(nanoseconds: i64) -> String {
    match reactor::process::local_time(nanoseconds.div_euclid(1_000_000_000)) {
        Some(time) => format!("{:04}-{:02}-{:02} {:02}:{:02}", time.year, time.month, time.day, time.hour, time.minute),
        None => format!("{nanoseconds} ns"),
    }
}

/// A time in full: `2026-11-21 06:39:00.000000000 +0100`.
pub fn time_full(nanoseconds: i64) -> String {
    match reactor::process::local_time(nanoseconds.div_euclid(1_000_000_000)) {
        Some(time) => {
            let offset = time.offset_seconds.abs() / 60;
            let sign = if time.offset_seconds < 0 { '-' } else { '+' };
            format!(
                "{}:{:02}.{:09} {sign}{:02}{:02}",
                time_short(nanoseconds),
                time.second,
                nanoseconds.rem_euclid(1_000_000_000),
                offset / 60,
                offset % 60
            )
        }
        None => format!("{nanoseconds} ns"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: sizes are read as documented, and nonsense is refused.
    #[test]
    fn sizes() {
        for (text, bytes) in
            [("47008", 47_008), ("64K", 65_536), ("1.5G", 3 << 29), ("1MiB", 1 << 20), ("2gb", 2 << 30)]
        {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for text in ["", "K", "-1", "1X", "1.2.3", "99999999999999999999", "20000000T", "nan"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
        assert_eq!((size_words(1536).as_str(), size_short(1536).as_str()), ("1.5 KiB", "1.5K"));
        assert_eq!((size_words(12).as_str(), size_short(20 << 20).as_str()), ("12 B", "20M"));
    }

    /// Goal: counts, durations and modes read well.
    #[test]
    fn words() {
        assert_eq!(count_words(1_234_567), "1,234,567");
        assert_eq!(count_words(999), "999");
        assert_eq!(plural(1, "file"), "1 file");
        for (number, words) in [(0.0, "0"), (2.5, "2.5"), (1234.4, "1,234"), (12_345.0, "12.3k"), (2e6, "2.0M")] {
            assert_eq!(count_short(number), words);
        }
        assert_eq!(duration_words(61_000_000_000), "1 min 01 s");
        assert_eq!(mode_words(Kind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode_words(Kind::File, 0o4650), "-rwSr-x---");
        assert_eq!(mode_words(Kind::File, 0o2644), "-rw-r-Sr--");
    }
}
