//! Times as logs write them, and as people read them.

use crate::clock::{Nanos, SECOND};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// 1970 to about 2260: what fits into 64 bits of nanoseconds.
const SECONDS_MAX: i64 = i64::MAX / SECOND - 1;

/// Reads `1409777887`, `1409777887.590578`, `2026-11-25T10:00:00`, `2026-11-25 10:00:00+09:00`; what names no zone is
/// of `zone`.
pub fn parse(text: &str, zone: &TimeZone) -> Option<Nanos> {
    let text = text.trim();
    if let Some(nanos) = parse_seconds(text) {
        return Some(nanos);
    }
    if let Ok(moment) = text.parse::<Timestamp>() {
        return to_nanos(moment);
    }
    let civil: DateTime = text.parse().ok()?;
    to_nanos(zone.to_timestamp(civil).ok()?)
}

fn to_nanos(moment: Timestamp) -> Option<Nanos> {
    Nanos::try_from(moment.as_nanosecond()).ok().filter(|nanos| *nanos >= 0)
}

/// Seconds with a decimal fraction, exactly.
pub fn parse_seconds(text: &str) -> Option<Nanos> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if whole.is_empty() || !whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let seconds: i64 = whole.parse().ok().filter(|seconds| *seconds < SECONDS_MAX)?;
    let digits = fraction.bytes().chain(std::iter::repeat(b'0')).take(9);
    let nanos = digits.fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
    Some(seconds * SECOND + nanos)
}

/// `2026-11-25T10:00:00.500Z`.
pub fn exact(nanos: Nanos) -> String {
    match Timestamp::from_nanosecond(i128::from(nanos)) {
        Ok(moment) => format!("{moment:.3}"),
        Err(_) => format!("{nanos} ns"),
    }
}

/// Seconds since 1970, with three digits behind the point.
pub fn seconds(nanos: Nanos) -> String {
    format!("{}.{:03}", nanos.div_euclid(SECOND), nanos.rem_euclid(SECOND) / 1_000_000)
}

/// `2026-11-25 10:00:00` in a zone.
pub fn readable(nanos: Nanos, zone: &TimeZone) -> String {
    match Timestamp::from_nanosecond(i128::from(nanos)) {
        Ok(moment) => zone.to_datetime(moment).strftime("%Y-%m-%d %H:%M:%S").to_string(),
        Err(_) => format!("{nanos} ns"),
    }
}

/// `10:00:00`, in a zone.
pub fn clock_time(nanos: Nanos, zone: &TimeZone) -> String {
    match Timestamp::from_nanosecond(i128::from(nanos)) {
        Ok(moment) => zone.to_datetime(moment).strftime("%H:%M:%S").to_string(),
        Err(_) => String::new(),
    }
}

/// The zone of a name, or this machine's.
pub fn zone(name: Option<&str>) -> Result<TimeZone, String> {
    match name {
        None => Ok(TimeZone::system()),
        Some(name) => TimeZone::get(name).map_err(|_| format!("--time-zone {name}: no such zone is known here")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every form is read to the nanosecond, zones count where the text names none, and nonsense is refused.
    #[test]
    fn forms_of_times() {
        let tokyo = TimeZone::get("Asia/Tokyo").unwrap();
        let wanted = 1_795_600_800 * SECOND;
        for text in ["1795600800", "2026-11-25T10:00:00+00:00", "2026-11-25T19:00:00", "2026-11-25 10:00:00Z"] {
            assert_eq!(parse(text, &tokyo), Some(wanted), "{text}");
        }
        assert_eq!(parse("1409777887.590578", &tokyo), Some(1_409_777_887_590_578_000));
        assert_eq!(parse("1409777887.5905780011", &tokyo), Some(1_409_777_887_590_578_001));
        for text in ["", "Unknown", "None", ".5", "-5", "1e9", "99999999999", "2026-13-01T00:00:00", "１２"] {
            assert_eq!(parse(text, &tokyo), None, "{text}");
        }
        assert_eq!(exact(wanted + SECOND / 2), "2026-11-25T10:00:00.500Z");
        assert_eq!(readable(wanted, &tokyo), "2026-11-25 19:00:00");
    }
}
