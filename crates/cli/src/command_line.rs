//! Command lines as clap knows them, made from the tables of commands and options.
//!
//! What a value may be is not said here: values of the environment and the config file are checked by the same rule,
//! that of the table (`arguments.rs`).

use crate::commands::Command;
use crate::failure::Failure;
use crate::options::{OptionRow, Value};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, value_parser};
use std::ffi::OsString;
use std::fmt::Write as _;

/// Columns of a help text.
pub const WIDTH: usize = 100;
/// Id of what is not an option.
pub const OPERANDS: &str = "operands";

/// A command with its options and operands. Operands are counted by whoever reads them.
pub fn of(command: &Command) -> clap::Command {
    let name = command.name;
    let mut usage = format!("tabane {name} [OPTIONS] {}", command.operands);
    usage.truncate(usage.trim_end().len());
    let example: String = command.example.lines().fold("Example:".to_owned(), |text, line| text + "\n  " + line);
    // What is said before the options stands where clap has a text before the help.
    let layout = "{about}\n\n{usage-heading} {usage}\n\n{before-help}Options:\n{options}{after-help}\n";
    let made = clap::Command::new(name)
        .display_name(format!("tabane-{name}"))
        .bin_name(format!("tabane {name}"))
        .about(command.summary)
        .after_help(example)
        .override_usage(usage)
        .help_template(format!("tabane {name}: {layout}"))
        .next_line_help(true)
        .term_width(WIDTH)
        .no_binary_name(true)
        .args_override_self(true)
        .disable_help_flag(true)
        .args(command.options.iter().map(|key| option(OptionRow::of(key))))
        .arg(help_option(command.find_letter('h').is_none()))
        .arg(operands(command));
    let details = command.details.join("\n\n");
    if details.is_empty() { made } else { made.before_help(details.clone()).long_about(details) }
}

fn option(row: &'static OptionRow) -> Arg {
    let mut help = row.help.to_owned();
    let mut letters = row.letters.chars();
    let first = letters.next();
    for letter in letters.clone() {
        let _ = write!(help, " (also -{letter})");
    }
    if !row.default.is_empty() {
        let _ = write!(help, " (default: {})", row.default);
    }
    if let Some(variable) = row.variable_name() {
        let _ = write!(help, " [{variable}]");
    }
    let option = Arg::new(row.key).long(row.name).short(first).short_aliases(letters).help(help);
    let valued = |option: Arg| option.value_parser(value_parser!(OsString));
    match row.value {
        Value::Flag if !row.variable => option.action(ArgAction::SetTrue),
        // A setting may be on in the environment or the config file, and off here.
        Value::Flag => valued(option).num_args(0..=1).require_equals(true).default_missing_value("1").value_name("1|0"),
        _ => {
            // Clusters that are named more than once are compared.
            let option = valued(option).value_name(row.unit).allow_hyphen_values(true);
            if row.key == "cluster" { option.action(ArgAction::Append) } else { option }
        }
    }
}

/// The option that explains a command; its letter may mean something else there.
pub fn help_option(has_letter: bool) -> Arg {
    let option = Arg::new("help").long("help").help("explain this command").action(ArgAction::Help);
    if has_letter { option.short('h') } else { option }
}

fn operands(command: &Command) -> Arg {
    // The usage line and the details tell of them.
    let operands = Arg::new(OPERANDS).num_args(0..).action(ArgAction::Append).hide(true);
    operands.value_parser(value_parser!(OsString)).trailing_var_arg(command.takes_command_line)
}

/// What clap found wrong.
pub fn failure(command: &Command, error: &clap::Error) -> Failure {
    match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(word))) => command.unknown_option(word),
        _ => Failure::usage(first_line(error)),
    }
}

/// What is wrong, without a usage line.
fn first_line(error: &clap::Error) -> String {
    let words = error.to_string();
    let line = words.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands;

    /// Goal: clap accepts what is made of each row, its own checks of duplicates and contradictions included.
    #[test]
    fn all_commands_are_sound() {
        commands::all().for_each(|command| of(command).debug_assert());
    }
}
