//! The table of commands: what `tabane` can do, and all that its help, manual pages, completions and config file say of
//! it.
//!
//! Options are named by their keys; their own table is `options.rs`.

mod clusters;
mod files;
mod program;

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome};
use crate::help;
use crate::options::OptionRow;
use std::ffi::{OsStr, OsString};

/// One command.
#[derive(Debug)]
pub struct Command {
    pub name: &'static str,
    /// Heading under which the overview lists it.
    pub group: &'static str,
    pub summary: &'static str,
    /// Operands as the usage line shows them.
    pub operands: &'static str,
    /// Fewest and most of them.
    pub operand_count: (usize, usize),
    pub details: &'static [&'static str],
    pub example: &'static str,
    /// Keys of its options.
    pub options: &'static [&'static str],
    /// Long options have one dash, as those of find(1).
    pub single_dash: bool,
    /// The first operand begins another program's command line, which is left alone.
    pub takes_command_line: bool,
    pub run: fn(&Arguments) -> Outcome,
}

/// What operands stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperandKind {
    None,
    /// Paths of this machine.
    Local,
    /// Paths inside the cluster.
    Inside,
    /// Paths of this machine, and behind a colon those inside the cluster.
    BothSides,
    /// A program with its arguments.
    Program,
    /// A command of ours.
    Command,
    /// One of these, with bars between them.
    Words(&'static str),
}

const MANY: usize = usize::MAX;
const CLUSTERS: &str = "Clusters";
const FILES: &str = "Files (paths are inside the cluster)";
const PROGRAM: &str = "This program";

/// Says how paths of `cp` and `checksum` are written.
const TWO_SIDES: &str = "A path inside the cluster is written with a colon in front, as :/path or tabane:/path; any \
     other path is one of this machine.";

/// Lists of options one after the other, whose sizes add up to `COUNT`.
const fn joined<const COUNT: usize>(lists: &[&[&'static str]]) -> [&'static str; COUNT] {
    let mut all = [""; COUNT];
    let (mut list, mut filled) = (0, 0);
    while list < lists.len() {
        let mut place = 0;
        while place < lists[list].len() {
            all[filled] = lists[list][place];
            filled += 1;
            place += 1;
        }
        list += 1;
    }
    assert!(filled == COUNT);
    all
}

/// All commands, in the order of the overview.
pub fn all() -> impl Iterator<Item = &'static Command> {
    clusters::ROWS.iter().chain(files::ROWS).chain(program::ROWS)
}

/// The command of a name.
pub fn find(name: &str) -> Option<&'static Command> {
    all().find(|command| command.name == name)
}

impl Command {
    /// The rows of its options.
    pub fn rows(&self) -> impl Iterator<Item = &'static OptionRow> + '_ {
        self.options.iter().map(|key| OptionRow::of(key))
    }

    /// Its option with this letter.
    pub fn find_letter(&self, letter: char) -> Option<&'static OptionRow> {
        self.rows().find(|row| row.letters.contains(letter))
    }

    /// A word of the command line, with the second dash where this command does not ask for it.
    pub fn spelled_out(&self, word: &OsStr) -> OsString {
        let name = word.to_str().and_then(|word| word.strip_prefix('-')).filter(|_| self.single_dash);
        // A value may begin with a dash too, but then goes on with a digit.
        let is_option = |name: &&str| name.len() > 1 && name.starts_with(|letter: char| letter.is_ascii_alphabetic());
        match name.filter(is_option) {
            Some(name) => OsString::from(format!("--{name}")),
            None => word.to_owned(),
        }
    }

    /// What the shell may complete as an operand.
    pub fn operand_kind(&self) -> OperandKind {
        match self.operands {
            "DIR" => OperandKind::Local,
            _ if self.details.contains(&TWO_SIDES) => OperandKind::BothSides,
            _ if self.group == FILES && self.operands.contains("PATH") => OperandKind::Inside,
            _ if self.takes_command_line => OperandKind::Program,
            "[COMMAND]" => OperandKind::Command,
            operands if operands.contains('|') => OperandKind::Words(operands),
            _ => OperandKind::None,
        }
    }

    /// From which operand on patterns are replaced by what they match, and whether only behind a colon. Not for
    /// commands that make what they are told.
    pub fn expands(&self) -> Option<(usize, bool)> {
        let makes = matches!(self.name, "mkdir" | "put" | "ln" | "fallocate") || self.takes_command_line;
        match self.operand_kind() {
            _ if makes => None,
            OperandKind::Inside => Some((usize::from(matches!(self.name, "chmod" | "chown" | "chgrp")), false)),
            OperandKind::BothSides => Some((0, true)),
            _ => None,
        }
    }

    /// What the operands are, for people.
    pub fn operands_words(&self) -> &'static str {
        if self.operands.is_empty() { "nothing" } else { self.operands }
    }

    /// The failure of an option that this command does not have.
    pub fn unknown_option(&self, word: &str) -> Failure {
        let near = help::nearest(word.trim_start_matches('-'), self.rows().map(|row| row.name));
        let hint = near
            .map(|near| format!("; did you mean {}{near}?", if self.single_dash { "-" } else { "--" }))
            .unwrap_or_default();
        let word = if self.single_dash { word.replacen("--", "-", 1) } else { word.to_owned() };
        Failure::usage(format!("there is no option {word}{hint}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Goal: within a command no flag and no letter means two things, and all keys are in the table of options.
    #[test]
    fn commands_are_sound() {
        for command in all() {
            let mut names = HashSet::new();
            for row in command.rows() {
                assert!(names.insert(row.name.to_owned()), "{}: --{}", command.name, row.name);
                for letter in row.letters.chars() {
                    assert!(names.insert(letter.to_string()), "{}: -{letter}", command.name);
                }
            }
            assert!(command.example.starts_with("tabane "), "{}", command.name);
        }
    }

    /// Goal: 'tabane config' knows every setting, so that none is missing in what it explains.
    #[test]
    fn config_has_all_settings() {
        let config = find("config").unwrap();
        for row in crate::options::TABLE.iter().filter(|row| row.variable) {
            assert!(config.options.contains(&row.key), "add \"{}\" to the options of config", row.key);
        }
    }
}
