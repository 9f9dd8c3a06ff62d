//! What `tabane find` is told to look for, in the words of find(1), as tests that servers understand.

use crate::arguments::Arguments;
use crate::copy::place::Side;
use crate::failure::{Failure, Outcome, show};
use crate::paths::{Sided, shown, sided};
use crate::session::Session;
use client::tests::{Bits, Clock, Ids, Order, PATTERN_SIZE_MAX, Test, Tests};
use client::{FileId, Kind};
use reactor::process::{group_id, user_id};
use wire::glob;

const SECOND_NS: i64 = 1_000_000_000;
const MINUTE_NS: i64 = 60 * SECOND_NS;
const DAY_NS: i64 = 24 * 60 * MINUTE_NS;

/// All conditions; all must hold.
#[derive(Debug, Default)]
pub struct Conditions {
    /// What servers can tell.
    pub tests: Tests,
    /// Of the whole path, which only this side knows.
    path: Option<Vec<u8>>,
}

/// A number with a sign before it: more than it, less than it, or it.
fn signed(text: &str) -> Option<(Order, u64)> {
    let (order, digits) = match text.as_bytes().first()? {
        b'+' => (Order::More, &text[1..]),
        b'-' => (Order::Less, &text[1..]),
        _ => (Order::Equal, text),
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten().map(|count| (order, count))
}

/// `[+-]N[bckwMG]`: units, rounded up.
fn size_test(text: &str) -> Option<Test> {
    let unit = match text.as_bytes().last()? {
        b'c' => 1,
        b'w' => 2,
        b'b' => 512,
        b'k' => 1 << 10,
        b'M' => 1 << 20,
        b'G' => 1 << 30,
        _ => 0,
    };
    let digits = if unit == 0 { text } else { &text[..text.len() - 1] };
    let (order, count) = signed(digits)?;
    Some(Test::Size { order, unit: if unit == 0 { 512 } else { unit }, count })
}

/// Days of age, with what is left of a day cut off.
fn days_test(clock: Clock, text: &str, now: i64) -> Option<Test> {
    let (order, count) = signed(text)?;
    let ago = |days: u64| -> Option<i64> { Some(now.saturating_sub(i64::try_from(days).ok()?.checked_mul(DAY_NS)?)) };
    Some(match order {
        Order::Equal => Test::Time { clock, after: ago(count + 1)?, until: ago(count)? },
        Order::More => Test::Time { clock, after: i64::MIN, until: ago(count + 1)? },
        Order::Less => Test::Time { clock, after: ago(count)?, until: i64::MAX },
    })
}

/// Minutes of age, rounded up.
fn minutes_test(clock: Clock, text: &str, now: i64) -> Option<Test> {
    let (order, count) = signed(text)?;
    let ago = |minutes: u64| -> Option<i64> {
        Some(now.saturating_sub(i64::try_from(minutes).ok()?.checked_mul(MINUTE_NS)?))
    };
    Some(match order {
        Order::Equal => {
            let until = if count == 0 { i64::MAX } else { ago(count - 1)? };
            Test::Time { clock, after: ago(count)?, until }
        }
        Order::More => Test::Time { clock, after: i64::MIN, until: ago(count)?.saturating_sub(1) },
        Order::Less => Test::Time { clock, after: ago(count)?, until: i64::MAX },
    })
}

/// Octal bits: exactly these, with `-` all of them, with `/` any of them.
fn permissions_test(text: &str) -> Option<Test> {
    let (how, digits) = match text.as_bytes().first()? {
        b'-' => (Bits::All, &text[1..]),
        b'/' => (Bits::Any, &text[1..]),
        _ => (Bits::Exactly, text),
    };
    let bits = u32::from_str_radix(digits, 8).ok().filter(|bits| *bits <= 0o7777 && !digits.starts_with('+'))?;
    Some(Test::Permissions { how, bits })
}

/// The id of an inode, as messages and `stat` have it.
pub fn file_id_of(text: &str) -> Option<FileId> {
    let is_hexadecimal = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hexadecimal.then(|| u64::from_str_radix(text, 16).ok()).flatten().map(FileId)
}

fn id_of(text: &str, by_name: fn(&str) -> Option<u32>) -> Option<u32> {
    by_name(text).or_else(|| text.parse().ok())
}

/// Options with a text, and how to read it. The last words say what is wanted.
type Reading = (&'static str, &'static str, fn(&str, i64) -> Option<Test>, &'static str);

const READINGS: &[Reading] = &[
    ("find-size", "size", |text, _| size_test(text), "[+-]N[bcwkMG] is wanted, such as +10k"),
    ("mtime", "mtime", |text, now| days_test(Clock::Modification, text, now), "[+-]DAYS is wanted, such as -7"),
    ("ctime", "ctime", |text, now| days_test(Clock::Change, text, now), "[+-]DAYS is wanted, such as -7"),
    ("mmin", "mmin", |text, now| minutes_test(Clock::Modification, text, now), "[+-]MINUTES is wanted, such as -30"),
    ("cmin", "cmin", |text, now| minutes_test(Clock::Change, text, now), "[+-]MINUTES is wanted, such as -30"),
    ("user", "user", |text, _| id_of(text, user_id).map(Test::Owner), "there is no such user"),
    ("group", "group", |text, _| id_of(text, group_id).map(Test::Group), "there is no such group"),
    ("find-uid", "uid", |text, _| text.parse().ok().map(Test::Owner), "a number is wanted"),
    ("find-gid", "gid", |text, _| text.parse().ok().map(Test::Group), "a number is wanted"),
    (
        "perm",
        "perm",
        |text, _| permissions_test(text),
        "octal bits are wanted: 644 exactly, -600 all of them, /022 any of them",
    ),
    (
        "links",
        "links",
        |text, _| signed(text).map(|(order, count)| Test::Links { order, count }),
        "[+-]N is wanted, such as +1",
    ),
    (
        "find-id",
        "id",
        |text, _| Some(Test::Ids(Ids::new(vec![file_id_of(text)?]).ok()?)),
        "the id of an inode is wanted, as stat prints it",
    ),
];

/// When a file was changed, in nanoseconds since the epoch: one of the cluster behind a colon, else one of this
/// machine. Errors name the side that was asked.
fn time_of_change(session: &Session, path: &[u8]) -> Outcome<i64> {
    let (place, path, side) = match sided(path) {
        Sided::Inside(path) => {
            let side = "in the cluster; a file of this machine is written without a colon".to_owned();
            (Side::Cluster(session.files.clone()), path, side)
        }
        Sided::Local(path) => {
            let words = "on this machine; a file of the cluster is written with a colon, as";
            let side = format!("{words} :{}", show(&shown(&path)));
            (Side::Local, path, side)
        }
    };
    let facts = session.block_on(place.source_facts(&path, true));
    facts.map(|facts| facts.mtime).map_err(|reason| Failure::failed(format!("-newer {reason}: asked for {side}")))
}

impl Conditions {
    pub fn of(arguments: &Arguments, session: &Session) -> Outcome<Conditions> {
        let now = session.reactor.wall_clock();
        let mut tests = Vec::new();
        for (key, any_case) in [("name", false), ("iname", true)] {
            let Some(pattern) = arguments.bytes(key) else { continue };
            if pattern.len() > PATTERN_SIZE_MAX {
                return Err(Failure::usage(format!("-{key}: a pattern has at most {PATTERN_SIZE_MAX} bytes")));
            }
            tests.push(Test::Name { pattern, any_case });
        }
        match arguments.text("type").as_deref() {
            Some("d") => tests.push(Test::Kind(Kind::Directory)),
            Some("l") => tests.push(Test::Kind(Kind::Symlink)),
            Some(_) => tests.push(Test::Kind(Kind::File)),
            None => {}
        }
        for (key, name, read, wanted) in READINGS {
            let Some(text) = arguments.text(key) else { continue };
            tests.push(read(&text, now).ok_or_else(|| Failure::usage(format!("-{name} {text}: {wanted}")))?);
        }
        if let Some(path) = arguments.bytes("newer") {
            tests.push(Test::Time {
                clock: Clock::Modification,
                after: time_of_change(session, &path)?,
                until: i64::MAX,
            });
        }
        if arguments.flag("empty") {
            tests.push(Test::Empty);
        }
        Ok(Conditions { tests: Tests(tests), path: arguments.bytes("find-path") })
    }

    /// Whether servers alone can count.
    pub fn are_for_servers(&self) -> bool {
        self.path.is_none()
    }

    pub fn hold_for_path(&self, path: &[u8]) -> bool {
        self.path.as_ref().is_none_or(|pattern| glob::matches(pattern, path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::{Attributes, FileId};
    use wire::search::Verdict;
    use wire::{Layout, LayoutPolicy};

    const NOW: i64 = 20_000 * DAY_NS;

    fn holds(test: Option<Test>, size: u64, mtime: i64) -> bool {
        let attributes = Attributes {
            id: FileId(1),
            kind: Kind::File,
            mode: 0o640,
            uid: 0,
            gid: 0,
            link_count: 1,
            size,
            atime: 0,
            mtime,
            ctime: 0,
            version: 1,
            truncate_generation: 0,
            times_set: 0,
            layout: Layout::default_for(LayoutPolicy::Modular, 0, 1024, 4096),
        };
        Tests(vec![test.expect("the text is a test")]).judge(&attributes, true) == Verdict::Yes
    }

    /// Goal: sizes are compared as find(1) does: in units, rounded up.
    #[test]
    fn sizes() {
        let size = |text, size| holds(size_test(text), size, 0);
        assert!(size("3901c", 3901) && !size("3901c", 3900));
        assert!(size("1k", 1) && size("1k", 1024) && !size("1k", 1025) && size("-1k", 0));
        assert!(size("+1", 513) && !size("+1", 512) && size("2b", 1024));
        for text in ["", "+", "k", "1x", "+-1", "++1"] {
            assert_eq!(size_test(text), None, "{text}");
        }
    }

    /// Goal: days are cut off, minutes rounded up, as find(1) has them.
    #[test]
    fn ages() {
        let days = |text, age: i64| holds(days_test(Clock::Modification, text, NOW), 0, NOW - age);
        assert!(days("0", 0) && days("0", DAY_NS - 1) && !days("0", DAY_NS));
        assert!(days("1", DAY_NS) && days("+1", 2 * DAY_NS) && !days("+1", 2 * DAY_NS - 1));
        assert!(days("-1", DAY_NS - 1) && !days("-1", DAY_NS) && days("-1", -5));
        let minutes = |text, age: i64| holds(minutes_test(Clock::Modification, text, NOW), 0, NOW - age);
        assert!(minutes("1", 1) && minutes("1", MINUTE_NS - 1) && !minutes("1", MINUTE_NS));
        assert!(minutes("-2", MINUTE_NS) && minutes("+2", 2 * MINUTE_NS + 1) && !minutes("+2", 2 * MINUTE_NS));
    }

    /// Goal: bits are read in octal with their signs, and nothing else.
    #[test]
    fn permissions() {
        let bits = |text| holds(permissions_test(text), 0, 0);
        assert!(bits("640") && bits("-600") && bits("/022") == (0o640 & 0o022 != 0) && !bits("-601"));
        for text in ["", "u+w", "8", "-", "+7", "77777"] {
            assert_eq!(permissions_test(text), None, "{text}");
        }
    }
}
