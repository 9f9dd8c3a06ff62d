//! The script for fish.

use super::values_of;
use crate::commands::{self, Command, OperandKind};
use crate::options::{OptionRow, Value};
use std::fmt::Write as _;

const START: &str = "# Completion of tabane for fish, made by 'tabane completions fish'.\n\
    complete -c tabane -f\n\
    complete -c tabane -n __fish_use_subcommand -l help -d 'explain'\n\
    complete -c tabane -n __fish_use_subcommand -l version -d 'print the version'\n\
    complete -c tabane -n __fish_use_subcommand -a help -d 'explain a command'\n";

const INSIDE: &str = "-a '(tabane complete-paths (commandline -ct) 2>/dev/null)'";

/// The script.
pub fn script() -> String {
    let mut text = START.to_owned();
    let names: Vec<&str> = commands::all().map(|command| command.name).collect();
    let names = names.join(" ");
    for command in commands::all() {
        let summary = quoted(command.summary);
        let _ = writeln!(text, "complete -c tabane -n __fish_use_subcommand -a {} -d {summary}", command.name);
    }
    let _ = writeln!(text, "complete -c tabane -n '__fish_seen_subcommand_from help' -a '{names}'");
    for command in commands::all() {
        put_command(&mut text, command, &names);
    }
    text
}

fn put_command(text: &mut String, command: &Command, names: &str) {
    let start = format!("complete -c tabane -n '__fish_seen_subcommand_from {}'", command.name);
    for row in command.options.iter().map(|key| OptionRow::of(key)) {
        let long = if command.single_dash { "-o" } else { "-l" };
        let letters: String = row.letters.chars().map(|letter| format!(" -s {letter}")).collect();
        let value = match row.value {
            Value::Flag => String::new(),
            Value::Path => " -r -F".to_owned(),
            Value::Choice(_) => format!(" -x -a '{}'", values_of(row).join(" ")),
            _ => " -x".to_owned(),
        };
        let _ = writeln!(text, "{start} {long} {}{letters}{value} -d {}", row.name, quoted(row.help));
    }
    let operands = match command.operand_kind() {
        OperandKind::None => return,
        OperandKind::Local => "-F".to_owned(),
        OperandKind::Inside => INSIDE.to_owned(),
        OperandKind::BothSides => format!("-F {INSIDE}"),
        OperandKind::Program => "-a '(__fish_complete_subcommand)'".to_owned(),
        OperandKind::Command => format!("-a '{names}'"),
        OperandKind::Words(words) => format!("-a '{}'", words.replace('|', " ")),
    };
    let _ = writeln!(text, "{start} {operands}");
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}
