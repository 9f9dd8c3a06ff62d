//! Help texts, made from the tables.

use crate::command_line;
use crate::commands::{self, Command};
use crate::failure::Failure;
use crate::options::TABLE;
use std::fmt::Write as _;
use strsim::levenshtein;

/// What `tabane --help` prints.
pub fn overview() -> String {
    let mut text = "tabane bundles the storage of several servers into one file system.\n\n\
         Usage: tabane [--cluster PATH] COMMAND [OPTIONS] ...\n"
        .to_owned();
    let mut group = "";
    for command in commands::all() {
        if command.group != group {
            group = command.group;
            let _ = write!(text, "\n{group}\n");
        }
        let _ = writeln!(text, "  {:<11} {}", command.name, command.summary);
    }
    text.push_str(
        "\nThe cluster is found by --cluster, before or behind the command, else by TABANE_CLUSTER, else by the\n\
         config file, else in the default run directory. 'tabane COMMAND --help' explains a command. A first \
         session:\n\n  \
         tabane up --servers 4\n  tabane cp -r /usr/share :/\n  \
         tabane find /share -name '*.html' --count\n  tabane down\n",
    );
    text
}

/// What `tabane COMMAND --help` prints.
pub fn of_command(command: &Command) -> String {
    let text = command_line::of(command).render_help().to_string();
    if command.single_dash { text.replace("\n      --", "\n  -") } else { text }
}

/// docs/commands.md, whole.
pub fn reference() -> String {
    let mut text = "# Commands and options\n\n\
         Made from the tables in crates/cli by `tabane help --markdown`; a test keeps it up to date.\n\n\
         Exit status: 0 success, 1 failure, 2 wrong command line or config file, 128 and the number of the signal that \
         ended it; `tabane run` and `tabane flock` give that of their command, `tabane check` and `tabane salvage` \
         have their own.\n\n\
         ## Settings\n\nOn the command line as `--servers 4`, in the environment as `TABANE_SERVERS=4`, in the config \
         file as `servers = 4` ([configuration.md](configuration.md)), in this order.\n\n\
         | setting | variable | form | default | meaning |\n|---|---|---|---|---|\n"
        .to_owned();
    for row in TABLE {
        if let Some(variable) = row.variable_name() {
            let unit = if row.unit.is_empty() { "1\\|0".to_owned() } else { row.unit.replace('|', "\\|") };
            let default = if row.default.is_empty() { "0" } else { row.default };
            let _ = writeln!(
                text,
                "| `{}` | `{variable}` | {unit} | {default} | {} |",
                row.name,
                row.help.replace('|', "\\|")
            );
        }
    }
    for command in commands::all() {
        let _ = write!(text, "\n## tabane {}\n\n```text\n{}```\n", command.name, of_command(command));
    }
    text
}

/// The failure of a name that no command has.
pub fn unknown_command(name: &str) -> Failure {
    let near = other_name(name).or_else(|| nearest(name, commands::all().map(|command| command.name)));
    let hint = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
    Failure::usage(format!("there is no command \"{name}\"{hint}"))
}

/// The command that does what others know by this name.
fn other_name(name: &str) -> Option<&'static str> {
    const NAMES: [(&str, &[&str]); 11] = [
        ("up", &["start", "create", "init"]),
        ("down", &["stop", "shutdown", "destroy", "kill"]),
        ("cp", &["copy", "push", "pull", "upload", "download"]),
        ("mv", &["move", "rename", "ren"]),
        ("rm", &["remove", "delete", "del", "unlink"]),
        ("ls", &["list", "dir"]),
        ("ln", &["link", "symlink"]),
        ("umount", &["unmount"]),
        ("check", &["fsck", "verify"]),
        ("salvage", &["repair", "recover", "rescue", "mend"]),
        ("logs", &["log", "journal"]),
    ];
    NAMES.iter().find(|(_, others)| others.contains(&name)).map(|(command, _)| *command)
}

/// The known word that is nearest to a mistyped one, if any is near (Levenshtein 1966).
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let budget = 1 + word.len() / 4;
    known
        .map(|candidate| (levenshtein(word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= budget || (word.len() > 2 && candidate.starts_with(word)))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: mistyped words lead to the right ones, others to none.
    #[test]
    fn suggestions() {
        let known = || ["servers", "store", "chunk-size"].into_iter();
        assert_eq!(nearest("server", known()), Some("servers"));
        assert_eq!(nearest("chunksize", known()), Some("chunk-size"));
        assert_eq!(nearest("chunk", known()), Some("chunk-size"));
        assert_eq!(nearest("verbose", known()), None);
    }

    /// Goal: who takes a command by another program's name for it is shown ours, which is a command and not the other
    /// one.
    #[test]
    fn other_names() {
        for (said, meant) in [
            ("start", "up"),
            ("stop", "down"),
            ("copy", "cp"),
            ("unmount", "umount"),
            ("upp", "up"),
            ("repair", "salvage"),
        ] {
            let Failure::Usage(words) = unknown_command(said) else { panic!("{said}") };
            assert!(words.ends_with(&format!("did you mean {meant}?")), "{words}");
        }
        let all = ["up", "down", "cp", "mv", "rm", "ls", "ln", "umount", "check", "salvage", "logs"];
        assert!(all.iter().all(|name| commands::find(name).is_some()));
    }

    /// Goal: every command's help is complete and fits the width.
    #[test]
    fn help_of_all_commands() {
        for command in commands::all() {
            let text = of_command(command);
            assert!(text.contains("\n\nExample:\n  tabane"), "{text}");
            let dashes = if command.single_dash { "-" } else { "--" };
            for row in command.rows() {
                assert!(text.contains(&format!("{dashes}{}", row.name)), "{}: {text}", row.name);
            }
            assert!(command.example.lines().all(|line| text.contains(&format!("\n  {line}\n"))), "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= command_line::WIDTH), "{text}");
        }
    }

    /// Goal: the reference in docs/ is what the tables say. To renew it: `tabane help --markdown > docs/commands.md`.
    #[test]
    fn reference_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/commands.md");
        let current = std::fs::read_to_string(path).unwrap() == reference();
        assert!(current, "renew it: tabane help --markdown > docs/commands.md");
    }
}
