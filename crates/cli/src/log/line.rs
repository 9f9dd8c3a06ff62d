//! One line of a log: time, level, and key=value.

use reactor::log::Level;
use std::fmt;

/// A line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// Nanoseconds since the epoch, whole milliseconds of them; `None` for lines that have no time of their own.
    pub time: Option<i64>,
    pub level: Level,
    pub fields: Vec<(String, String)>,
}

impl LogLine {
    pub fn new(time: i64, level: Level) -> LogLine {
        LogLine { time: Some(time - time.rem_euclid(1_000_000)), level, fields: Vec::new() }
    }

    pub fn add(&mut self, key: &str, value: impl fmt::Display) {
        self.fields.push((key.to_owned(), value.to_string()));
    }

    pub fn field(&self, key: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// Reads a line. What is not one of ours, such as the words of a panic, becomes the message of one without a time.
    pub fn parse(text: &str) -> LogLine {
        LogLine::parse_ours(text).unwrap_or_else(|| {
            let is_bad = text.starts_with("tabane: ") || text.starts_with("thread '") || text.contains("panicked at");
            let mut line =
                LogLine { time: None, level: if is_bad { Level::Error } else { Level::Info }, fields: Vec::new() };
            line.add("message", text);
            line
        })
    }

    fn parse_ours(text: &str) -> Option<LogLine> {
        let (time, rest) = text.split_once(' ')?;
        let (level, mut rest) = rest.split_once(' ')?;
        let mut line = LogLine { time: Some(parse_time(time)?), level: Level::of_name(level)?, fields: Vec::new() };
        while !rest.is_empty() {
            let (key, after) = rest.split_once('=')?;
            let (value, after) = take_value(after)?;
            line.fields.push((key.to_owned(), value));
            rest = after;
        }
        Some(line)
    }
}

/// A value and what follows the blank behind it.
fn take_value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let (value, rest) = text.split_once(' ').unwrap_or((text, ""));
        return Some((value.to_owned(), rest));
    };
    let mut value = String::new();
    let mut letters = quoted.char_indices();
    while let Some((index, letter)) = letters.next() {
        match letter {
            '"' => {
                let rest = &quoted[index + 1..];
                return Some((value, rest.strip_prefix(' ').unwrap_or(rest)));
            }
            '\\' => match letters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            _ => value.push(letter),
        }
    }
    None
}

impl fmt::Display for LogLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.time {
            Some(time) => write!(f, "{} {}", time_words(time), self.level.name())?,
            None => return f.write_str(self.field("message").unwrap_or_default()),
        }
        for (key, value) in &self.fields {
            let plain = !value.is_empty() && !value.contains([' ', '"', '=', '\\', '\n']);
            if plain {
                write!(f, " {key}={value}")?;
            } else {
                let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                write!(f, " {key}=\"{value}\"")?;
            }
        }
        Ok(())
    }
}

/// A time in UTC to the millisecond (RFC 3339).
pub fn time_words(nanoseconds: i64) -> String {
    let seconds = nanoseconds.div_euclid(1_000_000_000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = date_of(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        nanoseconds.rem_euclid(1_000_000_000) / 1_000_000
    )
}

fn parse_time(text: &str) -> Option<i64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (time, millis) = time.split_once('.')?;
    let mut time = time.splitn(3, ':').map(|part| part.parse::<i64>().ok());
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    let seconds = days_of(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    Some((seconds * 1000 + millis.parse::<i64>().ok()?) * 1_000_000)
}

/// Days since the epoch of a day of the Gregorian calendar (Howard Hinnant, "chrono-compatible low-level date
/// algorithms").
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Year, month and day of a number of days since the epoch; the inverse.
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is written is read back as it was, whatever the values hold.
    #[test]
    fn round_trip() {
        let mut line = LogLine::new(1_792_000_000_123_456_789, Level::Error);
        for value in ["plain", "", "two words", "a=b", "say \"no\"", "back\\slash", "line\nbreak", "é"] {
            line.add("key", value);
        }
        let text = line.to_string();
        assert!(!text.contains('\n'), "{text}");
        assert_eq!(LogLine::parse(&text), line);
        assert!(text.starts_with("2026-10-14T17:46:40.123Z error key=plain key=\"\" "), "{text}");
    }

    /// Goal: days and dates fit together over leap years and centuries.
    #[test]
    fn calendar() {
        for (date, days) in [((1970, 1, 1), 0), ((2000, 2, 29), 11_016), ((2100, 3, 1), 47_541), ((1969, 12, 31), -1)] {
            assert_eq!((days_of(date.0, date.1, date.2), date_of(days)), (days, date));
        }
    }

    /// Goal: lines of others are kept as they are, and those of failures count as such.
    #[test]
    fn other_lines() {
        let line = LogLine::parse("thread 'main' panicked at x.rs:1:1:");
        assert_eq!(
            (line.level, line.time, line.to_string()),
            (Level::Error, None, "thread 'main' panicked at x.rs:1:1:".to_owned())
        );
        assert_eq!(LogLine::parse("  12.0 MiB  buffers").level, Level::Info);
        for text in
            ["2026-10-14T17:46:40.123Z error key=\"open", "2026-10-14 error a=b", "2026-10-14T17:46:40.123Z bad a=b"]
        {
            assert_eq!(LogLine::parse(text).time, None, "{text}");
        }
    }
}
