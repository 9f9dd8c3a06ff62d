//! The script for zsh.

use super::{option_word, values_of};
use crate::commands::{self, Command, OperandKind};
use crate::options::{OptionRow, Value};
use std::fmt::Write as _;

const START: &str = r#"#compdef tabane
# Completion of tabane for zsh, made by 'tabane completions zsh'.

_tabane_inside() {
  local -a found directories files
  found=("${(@f)$(tabane complete-paths "$PREFIX" 2>/dev/null)}")
  found=(${found:#})
  directories=(${(M)found:#*/}) files=(${found:#*/})
  compadd -S '' -- $directories
  compadd -- $files
}

_tabane_both() {
  if [[ $PREFIX == :* || $PREFIX == tabane:* ]]; then _tabane_inside; else _files; fi
}

_tabane_commands() {
  local -a commands
  commands=(
"#;

/// The script.
pub fn script() -> String {
    let mut text = START.to_owned();
    for command in commands::all() {
        let _ = writeln!(text, "    {}", quoted(&format!("{}:{}", command.name, command.summary)));
    }
    text.push_str("    'help:explain a command'\n  )\n  _describe 'command' commands\n}\n\n_tabane() {\n");
    text.push_str("  if ((CURRENT == 2)); then _tabane_commands; return; fi\n");
    text.push_str("  local name=$words[2]\n  words=(${words[2,-1]}); ((CURRENT -= 1))\n  case $name in\n");
    for command in commands::all() {
        put_command(&mut text, command);
    }
    text.push_str("    help) _tabane_commands ;;\n  esac\n}\n\n_tabane \"$@\"\n");
    text
}

fn put_command(text: &mut String, command: &Command) {
    let _ = writeln!(text, "    {}) _arguments -s \\", command.name);
    for row in command.options.iter().map(|key| OptionRow::of(key)) {
        let value = match row.value {
            Value::Flag => String::new(),
            Value::Path => format!(":{}:_files", escaped(row.unit)),
            Value::Choice(_) => format!(":{}:({})", escaped(row.unit), values_of(row).join(" ")),
            _ => format!(":{}: ", escaped(row.unit)),
        };
        let help = escaped(row.help);
        // A long option may have its value behind an equals sign or as the next word.
        let equals = if row.value == Value::Flag || command.single_dash { "" } else { "=" };
        let _ = writeln!(text, "      {} \\", quoted(&format!("{}{equals}[{help}]{value}", option_word(command, row))));
        for letter in row.letters.chars() {
            let _ = writeln!(text, "      {} \\", quoted(&format!("-{letter}[{help}]{value}")));
        }
    }
    let operands = match command.operand_kind() {
        OperandKind::None => "",
        OperandKind::Local => "'*:directory:_files'",
        OperandKind::Inside => "'*:path inside the cluster:_tabane_inside'",
        OperandKind::BothSides => "'*:path:_tabane_both'",
        OperandKind::Program => "'*::program:_normal'",
        OperandKind::Command => "'*:command:_tabane_commands'",
        OperandKind::Words(words) => {
            let _ = writeln!(text, "      '*:word:({})' ;;", words.replace('|', " "));
            return;
        }
    };
    let _ = writeln!(text, "      '--help[explain this command]' {operands} ;;");
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// A text within a specification of `_arguments`.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        if matches!(letter, '[' | ']' | ':' | '\\' | '(' | ')') {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    escaped
}
