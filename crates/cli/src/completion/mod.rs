//! `tabane completions`: what the shells need, made from the tables of options and commands. Written here and not by a
//! library for command lines, for find's options with one dash and paths inside the cluster are beyond what such a
//! library describes.
//!
//! Paths inside the cluster are asked from its servers by `tabane complete-paths WORD`, which the shells call.

mod bash;
mod fish;
mod zsh;

use crate::arguments::{Arguments, environment};
use crate::commands::{self, Command};
use crate::config::Config;
use crate::failure::{Failure, Outcome};
use crate::help::nearest;
use crate::options::{OptionRow, Value};
use crate::paths::{Sided, join, sided};
use crate::session::{Session, find_cluster};
use client::{FileSystem, Kind, Options};
use reactor::Nanos;
use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;

/// What the shells call us with for paths inside the cluster.
pub const PATHS: &str = "complete-paths";
/// Longest time that somebody who pressed the tabulator waits.
const PATIENCE_MS: u64 = 1000;
const NANOS_PER_MS: Nanos = 1_000_000;
/// More names help nobody.
const NAME_COUNT_MAX: usize = 1000;

/// `tabane completions SHELL`.
pub fn run(arguments: &Arguments) -> Outcome {
    let shell = arguments.operands[0].to_string_lossy().into_owned();
    let text = match &*shell {
        "bash" => bash::script(),
        "zsh" => zsh::script(),
        "fish" => fish::script(),
        _ => {
            let near = nearest(&shell, ["bash", "zsh", "fish"].into_iter());
            let hint = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            return Err(Failure::usage(format!(
                "\"{shell}\" is not a shell that is known; bash, zsh and fish are{hint}"
            )));
        }
    };
    std::io::stdout().write_all(text.as_bytes()).map_err(Failure::of_output)
}

/// The option as it is typed.
fn option_word(command: &Command, row: &OptionRow) -> String {
    format!("{}{}", if command.single_dash { "-" } else { "--" }, row.name)
}

/// The words that an option's value may be.
fn values_of(row: &OptionRow) -> &'static [&'static str] {
    match row.value {
        Value::Choice(words) => words,
        _ => &[],
    }
}

/// Prints the paths inside the cluster that a word may become, directories with a slash. Says nothing when there is no
/// cluster.
pub fn print_paths(words: &[OsString]) -> Outcome {
    let word = words.first().map(|word| word.as_bytes().to_vec()).unwrap_or_default();
    // The command whose settings say where the cluster is.
    let command = commands::find("ls").expect("ls is in the table");
    let arguments = Arguments::parse(command, &[], &environment, || Config::read(&environment))?;
    let Ok(cluster) = find_cluster(&arguments) else { return Ok(()) };
    let mut options = Options::of_this_process().map_err(|error| Failure::failed(error.message))?;
    options.timeout_ms = PATIENCE_MS;
    let session = Session::with(cluster, options)?;
    let (prefix, path) = match sided(&word) {
        // A bare colon is the root.
        Sided::Inside(path) if matches!(&word[..], b":" | b"tabane:") => (word.clone(), path),
        Sided::Inside(path) => (word[..word.len() - path.len()].to_vec(), path),
        Sided::Local(path) => (Vec::new(), path),
    };
    let directory_size = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let (directory, name) = path.split_at(directory_size);
    let found = session.reactor.block_on(crate::together::race(
        names(&session.files, directory, name),
        session.reactor.sleep(PATIENCE_MS * NANOS_PER_MS),
    ));
    let mut output = std::io::stdout().lock();
    if let crate::together::Either::First(mut names) = found {
        names.sort();
        for (name, is_directory) in names {
            let mut line = [&prefix[..], &join(directory, &name)].concat();
            line.extend_from_slice(if is_directory { b"/\n" } else { b"\n" });
            output.write_all(&line).map_err(Failure::of_output)?;
        }
    }
    Ok(())
}

/// Names in a directory that begin in a certain way, hidden ones only when asked for; none when it can't be read. A
/// name with a line break can't be told to a shell line by line and is left out.
async fn names(files: &FileSystem, directory: &[u8], start: &[u8]) -> Vec<(Vec<u8>, bool)> {
    let mut names = Vec::new();
    let path = if directory.is_empty() { b"/" } else { directory };
    let mut take = |entry: &client::DirectoryEntry| {
        let hidden = entry.name.starts_with(b".") && !start.starts_with(b".");
        if entry.name.starts_with(start) && !hidden && !entry.name.contains(&b'\n') {
            names.push((entry.name.clone(), entry.kind == Kind::Directory));
        }
        names.len() < NAME_COUNT_MAX
    };
    // Nothing to offer is all that an error means here.
    let _ = files.read_directory(path, &mut take).await;
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command as Program, Stdio};

    fn scripts() -> [(&'static str, String); 3] {
        [("bash", bash::script()), ("zsh", zsh::script()), ("fish", fish::script())]
    }

    /// Goal: every command and every option is in each script.
    #[test]
    fn scripts_are_complete() {
        for (shell, script) in scripts() {
            for command in commands::all() {
                assert!(script.contains(command.name), "{shell}: {}", command.name);
                for key in command.options {
                    assert!(script.contains(OptionRow::of(key).name), "{shell}: {} {key}", command.name);
                }
            }
        }
    }

    /// Goal: the shells that are installed here accept the scripts. Bash is always asked, for all of our tools need it.
    /// Method: each shell reads its script without running it.
    #[test]
    fn shells_accept_scripts() {
        for (shell, script) in scripts() {
            let option = if shell == "fish" { "--no-execute" } else { "-n" };
            let child =
                Program::new(shell).args([option, "/dev/stdin"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
            let mut child = match child {
                Err(_) if shell != "bash" => {
                    eprintln!("{shell} is not installed: its script was not tried");
                    continue;
                }
                child => child.unwrap(),
            };
            child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
            let output = child.wait_with_output().unwrap();
            let complaint = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && complaint.is_empty(), "{shell}: {complaint}");
        }
    }

    /// Goal: bash offers commands, options, values, words of operands and files, each where it belongs.
    /// Method: the script in a real bash, asked as the tabulator asks, with a stand-in for the program.
    #[test]
    fn bash_offers() {
        let offered = |line: &str| {
            let ask = "tabane() { printf '%s\\n' \"$2\"one \"$2\"two/; }\n\
                       COMP_LINE=$LINE COMP_POINT=${#LINE} COMP_WORDBREAKS=$' \\t\\n\"=:' COMPREPLY=()\n_tabane\n\
                       printf '%s\\n' \"${COMPREPLY[@]}\"";
            let script = format!("{}\ncompopt() {{ :; }}\n{ask}", bash::script());
            let output = Program::new("bash").arg("-c").arg(script).env("LINE", line).output().unwrap();
            assert!(output.stderr.is_empty(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap().split_ascii_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(offered("tabane um"), "umount");
        assert_eq!(offered("tabane up --plac"), "--placement");
        assert_eq!(offered("tabane up --placement r"), "ring");
        assert_eq!(offered("tabane up --placement=m"), "modular");
        assert_eq!(offered("tabane up --servers "), "");
        assert_eq!(offered("tabane find -mind"), "-mindepth");
        assert_eq!(offered("tabane completions z"), "zsh");
        assert_eq!(offered("tabane help umo"), "umount");
        assert_eq!(offered("tabane ls /x/"), "/x/one /x/two/");
        // What stands before the last colon is kept by the shell.
        assert_eq!(offered("tabane cp :/x/"), "/x/one /x/two/");
        assert_eq!(offered("tabane cp /etc/host"), offered("tabane mount /etc/host"));
        assert!(offered("tabane cp /etc/passw").contains("/etc/passwd"));
    }
}
