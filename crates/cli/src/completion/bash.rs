//! The script for bash. It needs nothing but bash 4.

use super::{option_word, values_of};
use crate::commands::{self, Command, OperandKind};
use crate::options::{OptionRow, Value};
use std::fmt::Write as _;

/// What does not depend on the tables. Words are cut at blanks here, for bash itself also cuts them at colons and
/// equals signs.
const START: &str = r#"# Completion of tabane for bash, made by 'tabane completions bash'.
_tabane() {
  local line=${COMP_LINE:0:COMP_POINT} current previous options= kind=none values= name word
  local -a words
  current=${line##*[[:space:]]}
  read -ra words <<<"${line%"$current"}"
  previous=${words[${#words[@]}-1]}
  if [[ $current == --*=* ]]; then
    previous=${current%%=*} current=${current#*=}
  fi
"#;

const END: &str = r#"  case $kind in
    words) COMPREPLY=($(compgen -W "$values" -- "$current")) ;;
    files) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
    inside | both)
      if [[ $current == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$current"))
      elif [[ $kind == inside || $current == :* || $current == tabane:* ]]; then
        compopt -o filenames -o nospace 2>/dev/null
        mapfile -t COMPREPLY < <(tabane complete-paths "$current" 2>/dev/null)
        # Bash replaces only what is behind the last colon.
        if [[ $current == *:* && $COMP_WORDBREAKS == *:* ]]; then
          COMPREPLY=("${COMPREPLY[@]#"${current%"${current##*:}"}"}")
        fi
      else
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
      fi ;;
    program) compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current"; [[ $current == -* ]] || compgen -c -f -- "$current") ;;
    options) COMPREPLY=($(compgen -W "$options" -- "$current")) ;;
  esac
}
complete -F _tabane tabane
"#;

/// The script.
pub fn script() -> String {
    let mut text = START.to_owned();
    let mut names: Vec<&str> = commands::all().map(|command| command.name).collect();
    names.push("help");
    let names = names.join(" ");
    let _ = writeln!(text, "  if ((${{#words[@]}} < 2)); then\n    kind=words values=\"{names} --help --version\"");
    text.push_str("  else case ${words[1]} in\n");
    for command in commands::all() {
        put_command(&mut text, command, &names);
    }
    let _ = writeln!(text, "    help) kind=words values=\"{names}\" ;;");
    text.push_str("  esac; fi\n");
    text.push_str(END);
    text
}

fn put_command(text: &mut String, command: &Command, names: &str) {
    let options: Vec<String> = command.options.iter().map(|key| option_word(command, OptionRow::of(key))).collect();
    let _ = writeln!(text, "    {}) options=\"{} --help\"", command.name, options.join(" "));
    let kind = match command.operand_kind() {
        OperandKind::None => "kind=options".to_owned(),
        OperandKind::Local => "kind=files; [[ $current == -* ]] && kind=options".to_owned(),
        OperandKind::Inside => "kind=inside".to_owned(),
        OperandKind::BothSides => "kind=both".to_owned(),
        OperandKind::Program => "kind=program".to_owned(),
        OperandKind::Command => format!("kind=words values=\"{names} $options\""),
        OperandKind::Words(words) => format!("kind=words values=\"{} $options\"", words.replace('|', " ")),
    };
    let _ = writeln!(text, "      {kind}");
    let mut cases = String::new();
    for row in command.options.iter().map(|key| OptionRow::of(key)).filter(|row| row.value != Value::Flag) {
        let letters: String = row.letters.chars().map(|letter| format!(" | -{letter}")).collect();
        let answer = match row.value {
            Value::Path => "kind=files".to_owned(),
            Value::Choice(_) => format!("kind=words values=\"{}\"", values_of(row).join(" ")),
            _ => "kind=none".to_owned(),
        };
        let _ = writeln!(cases, "        {}{letters}) {answer} ;;", option_word(command, row));
    }
    if !cases.is_empty() {
        let _ = write!(text, "      case $previous in\n{cases}      esac\n");
    }
    text.push_str("      ;;\n");
}
