//! What the program may be told: one table of options, which also makes the help.

use crate::profile::{Overrides, Sabotage};
use std::ops::Range;

/// One option.
pub struct OptionRow {
    pub name: &'static str,
    /// Word for its value; empty when it takes none.
    pub value: &'static str,
    pub default: &'static str,
    pub help: &'static str,
}

/// All options.
pub const TABLE: &[OptionRow] = &[
    OptionRow { name: "seeds", value: "A..B", default: "0..100", help: "seeds to run, B not included" },
    OptionRow {
        name: "list",
        value: "FILE",
        default: "",
        help: "run the seeds of a file instead: one a line, # begins a remark",
    },
    OptionRow { name: "forever", value: "", default: "", help: "go on from the first seed until one fails" },
    OptionRow { name: "seed-from", value: "clock", default: "", help: "draw the first seed from the clock" },
    OptionRow { name: "steps", value: "COUNT", default: "300", help: "operations of all clients of a run together" },
    OptionRow { name: "servers", value: "COUNT", default: "by seed", help: "servers of every cluster, 1 to 5" },
    OptionRow { name: "jobs", value: "COUNT", default: "1", help: "processes that share the seeds" },
    OptionRow { name: "no-faults", value: "", default: "", help: "nothing is ever broken" },
    OptionRow { name: "backing", value: "", default: "", help: "every cluster has a backing tree" },
    OptionRow { name: "sabotage", value: "", default: "", help: "break a rule on purpose, so that every run fails" },
    OptionRow { name: "trace", value: "", default: "", help: "print every operation and fault as it happens" },
    OptionRow { name: "worker", value: "", default: "", help: "print one line a seed, for the process that leads" },
    OptionRow { name: "help", value: "", default: "", help: "print this" },
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Ranges of seeds, in order.
    pub seeds: Vec<Range<u64>>,
    /// Go on after the last of them until a seed fails.
    pub forever: bool,
    pub overrides: Overrides,
    pub jobs: u32,
    pub trace: bool,
    pub worker: bool,
    pub help: bool,
}

/// The text of `--help`.
pub fn help() -> String {
    let mut text =
        "Runs whole simulated clusters against a model; every seed is one run, the same each time.\n\n".to_owned();
    for row in TABLE {
        let option = format!("--{} {}", row.name, row.value);
        let default = if row.default.is_empty() { String::new() } else { format!(" [{}]", row.default) };
        text += &format!("  {option:<20} {}{default}\n", row.help);
    }
    text + "\nExample: sim --seeds 0..1000 --jobs 2\n"
}

/// Reads the command line. Errors say what is wrong with it.
pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        seeds: only(0..100),
        forever: false,
        overrides: Overrides::default(),
        jobs: 1,
        trace: false,
        worker: false,
        help: false,
    };
    while let Some(argument) = arguments.next() {
        let row = argument.strip_prefix("--").and_then(|name| TABLE.iter().find(|row| row.name == name));
        let row = row.ok_or_else(|| format!("{argument} is not an option; see --help"))?;
        let value = if row.value.is_empty() { None } else { arguments.next() };
        if !row.value.is_empty() && value.is_none() {
            return Err(format!("--{} needs a value: {}", row.name, row.value));
        }
        options.take(row.name, value.as_deref().unwrap_or(""))?;
    }
    if !options.forever && options.seeds.iter().any(|range| range.end == u64::MAX) {
        return Err("--seed-from clock gives seeds without end; say --forever too".to_owned());
    }
    Ok(options)
}

impl Options {
    fn take(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "seeds" => self.seeds = only(seeds(value)?),
            "list" => self.seeds = listed(value)?,
            "forever" => self.forever = true,
            "seed-from" if value == "clock" => self.seeds = only(fresh_seed()..u64::MAX),
            "seed-from" => return Err(format!("--seed-from {value}: only the clock gives seeds")),
            "steps" => self.overrides.steps = Some(number(name, value, 1, 1_000_000)?),
            "servers" => self.overrides.servers = Some(number(name, value, 1, 5)? as u32),
            "jobs" => self.jobs = number(name, value, 1, 256)? as u32,
            "no-faults" => self.overrides.no_faults = true,
            "backing" => self.overrides.backing = true,
            "sabotage" => self.overrides.sabotage = Sabotage::LeaveBehind,
            "trace" => self.trace = true,
            "worker" => self.worker = true,
            "help" => self.help = true,
            _ => unreachable!("the option is in the table"),
        }
        Ok(())
    }

    /// The command line that runs some seeds as this one would.
    pub fn arguments(&self, seeds: &Range<u64>) -> Vec<String> {
        let mut arguments = vec!["--seeds".to_owned(), format!("{}..{}", seeds.start, seeds.end)];
        if let Some(steps) = self.overrides.steps {
            arguments.extend(["--steps".to_owned(), steps.to_string()]);
        }
        if let Some(servers) = self.overrides.servers {
            arguments.extend(["--servers".to_owned(), servers.to_string()]);
        }
        if self.overrides.no_faults {
            arguments.push("--no-faults".to_owned());
        }
        if self.overrides.backing {
            arguments.push("--backing".to_owned());
        }
        if self.overrides.sabotage != Sabotage::None {
            arguments.push("--sabotage".to_owned());
        }
        arguments
    }
}

fn number(name: &str, value: &str, least: u64, most: u64) -> Result<u64, String> {
    let number = value.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("--{name} {value} is not a number from {least} to {most}"))
}

fn only(range: Range<u64>) -> Vec<Range<u64>> {
    std::iter::once(range).collect()
}

/// A seed that nobody has seen: microseconds since the epoch. More of them pass in a second than are run in one.
fn fresh_seed() -> u64 {
    reactor::workers::wall_clock().unsigned_abs() / 1_000
}

/// The seeds of a list. Errors name the line.
fn listed(path: &str) -> Result<Vec<Range<u64>>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("--list {path}: {error}"))?;
    let mut seeds = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let word = line.split('#').next().unwrap_or("").trim();
        if !word.is_empty() {
            let seed: u64 = word.parse().map_err(|_| format!("{path}:{}: {word} is not a seed", index + 1))?;
            seeds.push(seed..seed + 1);
        }
    }
    if seeds.is_empty() { Err(format!("--list {path}: there is no seed in it")) } else { Ok(seeds) }
}

fn seeds(value: &str) -> Result<Range<u64>, String> {
    let wrong = || format!("--seeds {value} is not like 0..100");
    if let Ok(seed) = value.parse::<u64>() {
        return Ok(seed..seed + 1);
    }
    let (start, end) = value.split_once("..").ok_or_else(wrong)?;
    let (start, end) = (start.parse().map_err(|_| wrong())?, end.parse().map_err(|_| wrong())?);
    if start < end { Ok(start..end) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Options, String> {
        parse(text.split_whitespace().map(str::to_owned))
    }

    /// Goal: what is understood comes back as the same command line; the rest is refused in words.
    #[test]
    fn command_lines() {
        let text = "--seeds 5..9 --steps 40 --servers 3 --no-faults --backing --sabotage";
        let options = of(text).expect("understood");
        assert_eq!(options.arguments(&options.seeds[0]).join(" "), text);
        assert_eq!(of("--seeds 7").expect("understood").seeds, only(7..8));
        let soak = of("--forever --seed-from clock").expect("understood");
        assert!(soak.forever && soak.seeds[0].start > 1_700_000_000_000_000, "{:?}", soak.seeds);
        assert!(of("--seed-from clock").is_err(), "it would never end");
        for wrong in [
            "--seed-from dice",
            "--list /nowhere",
            "--seeds 9..5",
            "--seeds",
            "--servers 6",
            "--steps x",
            "-x",
            "stray",
            "--seeds a..b",
        ] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
