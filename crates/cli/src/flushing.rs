//! When changes over a backing directory go back by themselves, and how fast, and when it is looked at again: options
//! of `up`, `run` and `server`, and lines of the settings file.

use crate::arguments::{Arguments, number_of};
use crate::failure::{Failure, Outcome};
use crate::options::OptionRow;
use crate::text::parse_size;
use reactor::Nanos;
use server::{ConflictPolicy, FlushPolicy, Flushing};

/// The options, as they are called.
const KEYS: [&str; 10] = [
    "backing-check",
    "flush",
    "flush-idle-ms",
    "flush-age",
    "flush-rate",
    "flush-writers",
    "flush-atomic",
    "on-conflict",
    "grace-ms",
    "fsync-backing",
];
const ALL: &str = "all";
const OFF: &str = "off";
const NANOS_PER_MS: Nanos = 1_000_000;
const NANOS_PER_SECOND: Nanos = 1_000 * NANOS_PER_MS;
const AUTO: &str = "auto";
/// The longest spell: an hour.
const IDLE_MS_MAX: u64 = 3_600_000;
/// The longest time between two looks: a day.
const CHECK_SECONDS_MAX: u64 = 86_400;

/// What the command line asks for. Errors: `Usage` for one of them without --backing, or a spell that is none.
pub fn wanted(arguments: &Arguments) -> Outcome<Flushing> {
    if let Some(key) = KEYS.iter().find(|key| arguments.is_on_command_line(key))
        && !arguments.is_given("backing")
    {
        return Err(Failure::usage(format!("--{key} is about a backing directory; name that with --backing")));
    }
    of_texts(&|key| arguments.text_or_default(key)).map_err(Failure::usage)
}

/// The options that stand for it.
pub fn texts(flushing: &Flushing) -> [(&'static str, String); 10] {
    let idle = match flushing.idle {
        0 => AUTO.to_owned(),
        idle => (idle / NANOS_PER_MS).to_string(),
    };
    let atomic_text = match flushing.atomic_below {
        u64::MAX => ALL.to_owned(),
        size => size.to_string(),
    };
    let check_text = match flushing.check {
        Nanos::MAX => OFF.to_owned(),
        check => (check / NANOS_PER_SECOND).to_string(),
    };
    let [check, policy, idle_ms, age, rate, writers, atomic, on_conflict, grace_ms, fsync] = KEYS;
    [
        (check, check_text),
        (policy, flushing.policy.word().to_owned()),
        (idle_ms, idle),
        (age, (flushing.age / NANOS_PER_SECOND).to_string()),
        (rate, flushing.rate.to_string()),
        (writers, flushing.writers.to_string()),
        (atomic, atomic_text),
        (on_conflict, flushing.on_conflict.word().to_owned()),
        (grace_ms, (flushing.grace / NANOS_PER_MS).to_string()),
        (fsync, u8::from(flushing.fsync_carries).to_string()),
    ]
}

/// The reverse, from the text of each. Errors: words.
pub fn of_texts(text: &dyn Fn(&'static str) -> String) -> Result<Flushing, String> {
    let number = |key: &'static str| {
        let text = text(key);
        number_of(OptionRow::of(key), &text).ok_or_else(|| format!("--{key} {text}: is out of range"))
    };
    let [check, policy, idle_ms, age, rate, writers, atomic, on_conflict, grace_ms, fsync] = KEYS;
    let word = text(policy);
    let idle_text = text(idle_ms);
    let idle = match idle_text.parse::<u64>() {
        Ok(idle @ 1..=IDLE_MS_MAX) => idle * NANOS_PER_MS,
        _ if idle_text == AUTO => 0,
        _ => return Err(format!("--{idle_ms} {idle_text}: '{AUTO}' or 1 to {IDLE_MS_MAX} milliseconds are wanted")),
    };
    let atomic_text = text(atomic);
    let atomic_below = match parse_size(&atomic_text) {
        Some(size) => size,
        None if atomic_text == ALL => u64::MAX,
        None => return Err(format!("--{atomic} {atomic_text}: '{ALL}' or a size as 1M or 0 is wanted")),
    };
    let check_text = text(check);
    let check = match check_text.parse::<u64>() {
        Ok(seconds @ 1..=CHECK_SECONDS_MAX) => seconds * NANOS_PER_SECOND,
        _ if check_text == OFF => Nanos::MAX,
        _ => return Err(format!("--{check} {check_text}: '{OFF}' or 1 to {CHECK_SECONDS_MAX} seconds are wanted")),
    };
    let conflicts = text(on_conflict);
    let conflicts = ConflictPolicy::of_word(&conflicts)
        .ok_or_else(|| format!("--{on_conflict} {conflicts}: one of both, ours, theirs is wanted"))?;
    let fsync_carries = crate::arguments::flag_value(text(fsync).as_ref()) == Some(true);
    let flush_policy =
        FlushPolicy::of_word(&word).ok_or_else(|| format!("--{policy} {word}: there is no such policy"))?;
    if fsync_carries && flush_policy == FlushPolicy::Never {
        return Err(format!(
            "--{fsync} has fsync wait until a file is in the backing directory, and with --{policy} never none goes \
             there; leave out one of the two"
        ));
    }
    Ok(Flushing {
        policy: flush_policy,
        idle,
        age: number(age)? * NANOS_PER_SECOND,
        rate: number(rate)?,
        writers: number(writers)? as u32,
        on_conflict: conflicts,
        grace: number(grace_ms)? * NANOS_PER_MS,
        atomic_below,
        check,
        fsync_carries,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip() {
        let told = Flushing {
            policy: FlushPolicy::OnClose,
            idle: 50 * NANOS_PER_MS,
            age: 7 * NANOS_PER_SECOND,
            rate: 1 << 20,
            writers: 3,
            on_conflict: ConflictPolicy::Ours,
            grace: 3 * NANOS_PER_MS,
            atomic_below: u64::MAX,
            check: Nanos::MAX,
            fsync_carries: true,
        };
        for flushing in [told, Flushing::default()] {
            let texts = texts(&flushing);
            let found = |key: &str| texts.iter().find(|(own, _)| *own == key).map(|(_, text)| text.clone());
            assert_eq!(of_texts(&|key| found(key).unwrap_or_default()), Ok(flushing));
        }
    }

    #[test]
    fn bad_texts_are_refused() {
        let defaults = texts(&Flushing::default());
        for (wrong, text) in [
            ("backing-check", "0"),
            ("backing-check", "never"),
            ("flush", "often"),
            ("flush-idle-ms", "0"),
            ("flush-idle-ms", "soon"),
            ("flush-writers", "0"),
            ("flush-rate", "x"),
            ("flush-atomic", "some"),
            ("on-conflict", "mine"),
        ] {
            let of = |key: &str| match key == wrong {
                true => text.to_owned(),
                false => defaults.iter().find(|(own, _)| *own == key).map_or(String::new(), |(_, text)| text.clone()),
            };
            assert!(of_texts(&of).is_err(), "{wrong} {text}");
        }
    }
}
