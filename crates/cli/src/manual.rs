//! `tabane man`: the manual pages, made from the tables of options and commands, in the macros of man(7).

use crate::arguments::Arguments;
use crate::commands::{self, Command};
use crate::failure::{Failure, Outcome, io_words};
use crate::options::{OptionRow, TABLE, Value};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// `tabane man DIR`.
pub fn run(arguments: &Arguments) -> Outcome {
    let directory = Path::new(&arguments.operands[0]);
    for (path, text) in pages() {
        let path = directory.join(path);
        let written = path.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::write(&path, text));
        written.map_err(|error| Failure::failed(format!("{}: {}", path.display(), io_words(&error))))?;
    }
    Ok(())
}

/// All pages and where each belongs.
fn pages() -> Vec<(PathBuf, String)> {
    let mut pages =
        vec![(PathBuf::from("man1/tabane.1"), overview()), (PathBuf::from("man5/tabane-config.5"), config_page())];
    for command in commands::all() {
        pages.push((PathBuf::from(format!("man1/tabane-{}.1", command.name)), page(command)));
    }
    pages
}

/// The head that all pages have. No date: pages made from the same source are the same.
fn head(title: &str, section: u8, name: &str, summary: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let (title, name, summary) = (title.to_ascii_uppercase(), escaped(name), escaped(summary));
    format!(
        ".TH \"{}\" \"{section}\" \"\" \"tabane {version}\" \"Tabane\"\n.SH NAME\n{name} \\- {summary}\n",
        escaped(&title)
    )
}

fn overview() -> String {
    let mut text = head("tabane", 1, "tabane", "bundle the storage of several servers into one file system");
    text.push_str(".SH SYNOPSIS\n.B tabane\n.I COMMAND\n.RI [ OPTIONS ]\n\\&...\n.SH DESCRIPTION\n");
    put_text(
        &mut text,
        "The cluster is found by --cluster, else by TABANE_CLUSTER, else by the config file, else in the default run directory.",
    );
    let mut group = "";
    for command in commands::all() {
        if command.group != group {
            group = command.group;
            let _ = writeln!(text, ".SS \"{}\"", escaped(group));
        }
        let name = escaped(&format!("tabane-{}", command.name));
        let _ = writeln!(text, ".TP\n.BR {name} (1)\n{}", escaped_line(command.summary));
    }
    put_exit_status(&mut text);
    text.push_str(".SH EXAMPLES\n");
    put_example(
        &mut text,
        "tabane up --servers 4\ntabane cp -r /usr/share :/\ntabane find /share -name '*.html' -count\ntabane down",
    );
    text.push_str(".SH SEE ALSO\n.BR tabane\\-config (5)\n");
    text
}

fn put_exit_status(text: &mut String) {
    text.push_str(".SH EXIT STATUS\n");
    put_text(
        text,
        "0 success, 1 failure, 2 wrong command line or config file, 128 and the number of the signal that ended it. \
         Commands that say otherwise say so on their page.",
    );
}

fn page(command: &Command) -> String {
    let name = format!("tabane-{}", command.name);
    let mut text = head(&name, 1, &name, command.summary);
    let _ = write!(text, ".SH SYNOPSIS\n.B tabane {}\n", escaped(command.name));
    if !command.options.is_empty() {
        text.push_str(".RI [ OPTIONS ]\n");
    }
    if !command.operands.is_empty() {
        let _ = writeln!(text, "{}", escaped_line(command.operands));
    }
    if command.details.is_empty() {
        let _ = write!(text, ".SH DESCRIPTION\n{}.\n", escaped_line(&capitalised(command.summary)));
    } else {
        text.push_str(".SH DESCRIPTION\n");
    }
    for (index, paragraph) in command.details.iter().enumerate() {
        if index > 0 {
            text.push_str(".PP\n");
        }
        put_text(&mut text, paragraph);
    }
    if !command.options.is_empty() {
        text.push_str(".SH OPTIONS\n");
        for key in command.options {
            put_option(&mut text, command, OptionRow::of(key));
        }
    }
    put_exit_status(&mut text);
    text.push_str(".SH EXAMPLES\n");
    put_example(&mut text, command.example);
    text.push_str(".SH SEE ALSO\n.BR tabane (1),\n.BR tabane\\-config (5)\n");
    text
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_ascii_uppercase().to_string() + letters.as_str())
}

fn put_option(text: &mut String, command: &Command, row: &OptionRow) {
    let dashes = if command.single_dash { "-" } else { "--" };
    let mut words: Vec<String> = row.letters.chars().map(|letter| format!("\\fB\\-{letter}\\fR")).collect();
    words.push(format!("\\fB{}\\fR", escaped(&format!("{dashes}{}", row.name))));
    let mut words = words.join(", ");
    if row.value != Value::Flag {
        let _ = write!(words, " \\fI{}\\fR", escaped(row.unit));
    }
    let _ = write!(text, ".TP\n{words}\n");
    put_text(text, &format!("{}.", row.help));
    if !row.default.is_empty() {
        put_text(text, &format!("Default: {}.", row.default));
    }
    if let Some(variable) = row.variable_name() {
        put_text(text, &format!("In the environment: {variable}."));
    }
}

fn config_page() -> String {
    let mut text = head("tabane-config", 5, "tabane-config", "settings of tabane in a file");
    text.push_str(".SH SYNOPSIS\n.I $TABANE_CONFIG\n.br\n.I $XDG_CONFIG_HOME/tabane/config.toml\n.br\n");
    text.push_str(".I \\(ti/.config/tabane/config.toml\n.SH DESCRIPTION\n");
    put_text(
        &mut text,
        "The first of these that is set is the config file. It is TOML. Keys at the top hold for every command that has the \
         setting; those in a table named after a command hold for that command and come first there. The command line and the \
         environment come before the file. Unknown keys, and values out of range, are refused with file and line.",
    );
    text.push_str(".PP\n");
    put_text(
        &mut text,
        "A path that begins with ~/ is one in the home directory. Sizes are numbers, or text such as \"64K\".",
    );
    text.push_str(".SH SETTINGS\n");
    for row in TABLE.iter().filter(|row| row.variable) {
        let form = if row.unit.is_empty() { "true|false" } else { row.unit };
        let default = if row.default.is_empty() { "false" } else { row.default };
        let _ = write!(text, ".TP\n\\fB{}\\fR = \\fI{}\\fR\n", escaped(row.name), escaped(form));
        put_text(&mut text, &format!("{}.", row.help));
        put_text(&mut text, &format!("Default: {default}."));
    }
    text.push_str(".SH EXAMPLES\n");
    put_example(&mut text, "run-directory = \"~/tabane\"\nchunk-size = \"4M\"\n\n[cp]\njobs = 64");
    text.push_str(".SH SEE ALSO\n.BR tabane (1),\n.BR tabane\\-config (1)\n");
    text
}

fn put_example(text: &mut String, example: &str) {
    text.push_str(".nf\n.RS 4\n");
    for line in example.lines() {
        let _ = writeln!(text, "{}", if line.is_empty() { "\\&".to_owned() } else { escaped_line(line) });
    }
    text.push_str(".RE\n.fi\n");
}

/// A paragraph, each sentence on a line of its own, as man(7) wants it.
fn put_text(text: &mut String, paragraph: &str) {
    let words: Vec<&str> = paragraph.split_whitespace().collect();
    let mut line = String::new();
    for (index, word) in words.iter().enumerate() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        let next_is_sentence =
            words.get(index + 1).is_some_and(|next| next.starts_with(|letter: char| letter.is_uppercase()));
        if (word.ends_with('.') && next_is_sentence) || line.len() > 72 || index + 1 == words.len() {
            let _ = writeln!(text, "{}", escaped_line(&line));
            line.clear();
        }
    }
}

/// A text as groff prints it letter by letter.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        match letter {
            '\\' => escaped.push_str("\\e"),
            '-' => escaped.push_str("\\-"),
            '\'' => escaped.push_str("\\(aq"),
            '"' => escaped.push_str("\\(dq"),
            '`' => escaped.push_str("\\(ga"),
            '^' => escaped.push_str("\\(ha"),
            '~' => escaped.push_str("\\(ti"),
            _ => escaped.push(letter),
        }
    }
    escaped
}

/// The same at the beginning of a line, where a dot would make a request.
fn escaped_line(text: &str) -> String {
    let escaped = escaped(text);
    if escaped.starts_with('.') { format!("\\&{escaped}") } else { escaped }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::process::{Command as Program, Stdio};

    /// Goal: letters that groff would take for its own come out as they are.
    #[test]
    fn escapes() {
        assert_eq!(escaped_line(".x -y 'a' \\"), "\\&.x \\-y \\(aqa\\(aq \\e");
        let mut text = String::new();
        put_text(&mut text, "One. Two has two. Lines end.");
        assert_eq!(text, "One.\nTwo has two.\nLines end.\n");
    }

    /// Goal: pages hold nothing but requests that are known, and plain ASCII lines.
    #[test]
    fn pages_are_plain() {
        for (path, text) in pages() {
            for line in text.lines() {
                let known = ["TH", "SH", "SS", "PP", "TP", "B", "BR", "I", "RI", "RS", "RE", "br", "nf", "fi"];
                let request = line.strip_prefix('.').map(|line| line.split(' ').next().unwrap());
                assert!(request.is_none_or(|request| known.contains(&request)), "{}: {line}", path.display());
                assert!(line.is_ascii() && line == line.trim_end() && !line.is_empty(), "{}: {line:?}", path.display());
            }
        }
    }

    /// Goal: groff and mandoc, where they are installed, have nothing to complain about.
    #[test]
    fn formatters_accept_pages() {
        for words in [&["groff", "-man", "-ww", "-z"][..], &["mandoc", "-T", "lint", "-W", "warning"]] {
            for (path, text) in pages() {
                let child = Program::new(words[0])
                    .args(&words[1..])
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn();
                let Ok(mut child) = child else {
                    eprintln!("{} is not installed: the pages were not shown to it", words[0]);
                    break;
                };
                child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
                let output = child.wait_with_output().unwrap();
                let complaint = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
                // Pages have no date on purpose.
                let complaint: Vec<&str> = complaint.lines().filter(|line| !line.contains("missing date")).collect();
                assert!(complaint.is_empty(), "{} {}: {complaint:?}\n{text}", words[0], path.display());
            }
        }
    }
}
