//! `tabane completions`: what the shells need. Each of the three scripts beside this file asks `tabane complete-words`
//! what a word may become; the answer is clap's, over the command line that the tables make.
//!
//! Paths inside the cluster are asked from its servers.

use crate::arguments::{Arguments, CLUSTER, count_before_command, environment};
use crate::command_line::{self, OPERANDS, help_option};
use crate::commands::{self, Command, OperandKind};
use crate::config::Config;
use crate::failure::{Failure, Outcome};
use crate::help::nearest;
use crate::options::{OptionRow, Value};
use crate::paths::{Sided, join, sided};
use crate::session::{Session, find_cluster};
use clap::{Arg, ArgAction, ValueHint};
use clap_complete::engine::{
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter, complete,
};
use client::{FileSystem, Kind, Options};
use reactor::Nanos;
use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// What the shells call us with; the words of the command line follow, the last of which is to be completed.
pub const WORDS: &str = "complete-words";
const SCRIPTS: [(&str, &str); 3] =
    [("bash", include_str!("tabane.bash")), ("zsh", include_str!("tabane.zsh")), ("fish", include_str!("tabane.fish"))];
/// Longest time that somebody who pressed the tabulator waits.
const PATIENCE_MS: u64 = 1000;
const NANOS_PER_MS: Nanos = 1_000_000;
/// More names help nobody.
const NAME_COUNT_MAX: usize = 1000;

/// `tabane completions SHELL`.
pub fn run(arguments: &Arguments) -> Outcome {
    let shell = arguments.operands[0].to_string_lossy().into_owned();
    let Some((_, script)) = SCRIPTS.iter().find(|(name, _)| *name == shell) else {
        let near = nearest(&shell, SCRIPTS.iter().map(|(name, _)| *name));
        let hint = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        return Err(Failure::usage(format!("\"{shell}\" is not a shell that is known; bash, zsh and fish are{hint}")));
    };
    std::io::stdout().write_all(script.as_bytes()).map_err(Failure::of_output)
}

/// Prints what the last word may become, one candidate a line, each with a tabulator and what it means.
pub fn print_candidates(words: &[OsString]) -> Outcome {
    let mut output = std::io::stdout().lock();
    for (value, meaning) in candidates(words) {
        // What is not one word to a shell can't be told to it line by line.
        if !value.iter().any(|byte| matches!(byte, b'\n' | b'\t')) {
            let line = [&value[..], b"\t", meaning.as_bytes(), b"\n"].concat();
            output.write_all(&line).map_err(Failure::of_output)?;
        }
    }
    Ok(())
}

/// What the last word may become, and what each means.
fn candidates(words: &[OsString]) -> Vec<(Vec<u8>, String)> {
    let Some((last, before)) = words.split_last() else { return Vec::new() };
    let first = before.get(count_before_command(before));
    let command = first.and_then(|name| commands::find(name.to_str()?));
    if command.is_none() && first.is_some_and(|word| word != "help") {
        return Vec::new();
    }
    let cluster = cluster_words(command, before);
    let spelled = words.iter().map(|word| command.map_or_else(|| word.clone(), |command| command.spelled_out(word)));
    // Where there is nothing to complete, clap answers with an error.
    let found = complete(&mut program(command, &cluster), spelled.collect(), before.len(), Some(Path::new(".")))
        .unwrap_or_default();
    let mut found: Vec<(Vec<u8>, String)> =
        found.iter().map(|candidate| (candidate.get_value().as_bytes().to_vec(), meaning(candidate))).collect();
    let is_option = |(value, _): &(Vec<u8>, String)| value.starts_with(b"-");
    // Options are offered to those who ask for them, or where nothing else is.
    if last.is_empty() && !found.iter().all(is_option) {
        found.retain(|candidate| !is_option(candidate));
    }
    if command.is_some_and(|command| command.single_dash) && !last.as_bytes().starts_with(b"--") {
        for (value, _) in found.iter_mut().filter(|(value, _)| value.starts_with(b"--")) {
            value.remove(0);
        }
    }
    found
}

fn meaning(candidate: &CompletionCandidate) -> String {
    candidate.get_help().map(|help| help.to_string().replace('\n', " ")).unwrap_or_default()
}

/// What a line says of the cluster, in the words of any command: paths inside are asked from there.
fn cluster_words(command: Option<&Command>, before: &[OsString]) -> Vec<OsString> {
    let spelled = before.iter().map(|word| command.map_or_else(|| word.clone(), |command| command.spelled_out(word)));
    // Behind these stand the words of another program, or nothing but operands.
    let ours: Vec<OsString> = spelled.take_while(|word| word != "--").collect();
    let named = ours.iter().position(|word| word.as_bytes().starts_with(CLUSTER.as_bytes()));
    let Some(named) = named else { return Vec::new() };
    let count = count_before_command(&ours[named..]).min(if ours[named] == CLUSTER { 2 } else { 1 });
    ours[named..named + count].to_vec()
}

/// The program with all its commands, one of them with its options and operands. `cluster`: see `cluster_words`.
fn program(wanted: Option<&Command>, cluster: &[OsString]) -> clap::Command {
    let version = Arg::new("version").short('V').long("version").help("print the version").action(ArgAction::SetTrue);
    let named = Arg::new("cluster").long("cluster").help(OptionRow::of("cluster").help).action(ArgAction::Append);
    let named = named.value_hint(ValueHint::AnyPath);
    let names = Arg::new(OPERANDS).add(ArgValueCandidates::new(command_names));
    let help = clap::Command::new("help").about("explain a command").arg(names);
    let all = commands::all().map(|command| match wanted {
        Some(wanted) if wanted.name == command.name => with_completers(command, cluster),
        _ => clap::Command::new(command.name).about(command.summary),
    });
    clap::Command::new("tabane")
        .no_binary_name(true)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .disable_help_subcommand(true)
        .args([help_option(true).help("explain"), version, named])
        .subcommands(all.chain([help]))
}

/// A command of which clap knows what its values and operands stand for.
fn with_completers(command: &Command, cluster: &[OsString]) -> clap::Command {
    let operands = command.operand_kind();
    command_line::of(command).mut_args(|argument| match argument.get_id().as_str() {
        "help" => argument,
        OPERANDS => match operands {
            OperandKind::None | OperandKind::Program => argument,
            OperandKind::Local => argument.value_hint(ValueHint::AnyPath),
            OperandKind::Inside => argument.add(completer(cluster, inside)),
            OperandKind::BothSides => argument.add(completer(cluster, both_sides)),
            OperandKind::Command => argument.add(ArgValueCandidates::new(command_names)),
            OperandKind::Words(words) => argument.add(of_words(words.split('|').collect())),
        },
        "newer" => argument.add(completer(cluster, both_sides)),
        key => match OptionRow::of(key).value {
            Value::Path => argument.value_hint(ValueHint::AnyPath),
            Value::Choice(words) => argument.add(of_words(words.to_vec())),
            _ => argument,
        },
    })
}

fn completer(cluster: &[OsString], offer: fn(&OsStr, &[OsString]) -> Vec<CompletionCandidate>) -> ArgValueCompleter {
    let cluster = cluster.to_vec();
    ArgValueCompleter::new(move |word: &OsStr| offer(word, &cluster))
}

fn of_words(words: Vec<&'static str>) -> ArgValueCandidates {
    ArgValueCandidates::new(move || words.iter().map(CompletionCandidate::new).collect::<Vec<_>>())
}

fn command_names() -> Vec<CompletionCandidate> {
    commands::all().map(|command| CompletionCandidate::new(command.name).help(Some(command.summary.into()))).collect()
}

fn both_sides(word: &OsStr, cluster: &[OsString]) -> Vec<CompletionCandidate> {
    match sided(word.as_bytes()) {
        Sided::Inside(_) => inside(word, cluster),
        Sided::Local(_) => PathCompleter::any().complete(word),
    }
}

/// Paths inside the cluster; none when there is no cluster.
fn inside(word: &OsStr, cluster: &[OsString]) -> Vec<CompletionCandidate> {
    let paths = paths_inside(word.as_bytes(), cluster).unwrap_or_default();
    paths.into_iter().map(|path| CompletionCandidate::new(OsString::from_vec(path))).collect()
}

/// The paths inside the cluster that a word may become, directories with a slash.
fn paths_inside(word: &[u8], cluster: &[OsString]) -> Outcome<Vec<Vec<u8>>> {
    // The command whose settings say where the cluster is.
    let command = commands::find("ls").expect("ls is in the table");
    let arguments = Arguments::parse(command, cluster, &environment, || Config::read(&environment))?;
    let cluster = find_cluster(&arguments)?;
    let mut options = Options::of_this_process().map_err(|error| Failure::failed(error.message))?;
    options.timeout_ms = PATIENCE_MS;
    let session = Session::with(cluster, options)?;
    let (prefix, path) = match sided(word) {
        // A bare colon is the root.
        Sided::Inside(path) if matches!(word, b":" | b"tabane:") => (word, path),
        Sided::Inside(path) => (&word[..word.len() - path.len()], path),
        Sided::Local(path) => (&word[..0], path),
    };
    let directory_size = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let (directory, name) = path.split_at(directory_size);
    let found = session.reactor.block_on(crate::together::race(
        names(&session.files, directory, name),
        session.reactor.sleep(PATIENCE_MS * NANOS_PER_MS),
    ));
    let crate::together::Either::First(mut names) = found else { return Ok(Vec::new()) };
    names.sort();
    let path = |(name, is_directory): &(Vec<u8>, bool)| {
        let end: &[u8] = if *is_directory { b"/" } else { b"" };
        [prefix, &join(directory, name), end].concat()
    };
    Ok(names.iter().map(path).collect())
}

/// Names in a directory that begin in a certain way, hidden ones only when asked for; none when it can't be read.
async fn names(files: &FileSystem, directory: &[u8], start: &[u8]) -> Vec<(Vec<u8>, bool)> {
    let mut names = Vec::new();
    let path = if directory.is_empty() { b"/" } else { directory };
    let mut take = |entry: &client::DirectoryEntry| {
        let hidden = entry.name.starts_with(b".") && !start.starts_with(b".");
        if entry.name.starts_with(start) && !hidden {
            names.push((entry.name.clone(), entry.kind == Kind::Directory));
        }
        names.len() < NAME_COUNT_MAX
    };
    // Nothing to offer is all that an error means here.
    let _ = files.read_directory(path, false, &mut take).await;
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command as Program, Stdio};

    /// What is offered for the last word of a line, without what it means.
    fn offered(line: &str) -> Vec<String> {
        let words: Vec<OsString> = line.split(' ').skip(1).map(OsString::from).collect();
        candidates(&words).into_iter().map(|(value, _)| String::from_utf8(value).unwrap()).collect()
    }

    /// Goal: every command and every option of it is offered, in the form in which its help shows it.
    #[test]
    fn all_are_offered() {
        for command in commands::all() {
            assert!(offered("tabane ").contains(&command.name.to_owned()), "{}", command.name);
            let (dashes, options) = match command.single_dash {
                true => ("-", offered(&format!("tabane {} -", command.name))),
                false => ("--", offered(&format!("tabane {} --", command.name))),
            };
            for row in command.rows() {
                assert!(options.contains(&format!("{dashes}{}", row.name)), "{}: {options:?}", command.name);
            }
        }
    }

    /// Goal: commands, options, values, words of operands and files are offered each where it belongs.
    #[test]
    fn offers() {
        assert_eq!(offered("tabane um"), ["umount"]);
        assert_eq!(offered("tabane --v"), ["--version"]);
        assert_eq!(offered("tabane --cl"), ["--cluster"]);
        assert_eq!(offered("tabane --cluster /etc/hostnam"), ["/etc/hostname"]);
        assert_eq!(offered("tabane --cluster=/etc/hostnam"), ["--cluster=/etc/hostname"]);
        assert_eq!(offered("tabane --cluster x um"), ["umount"]);
        assert_eq!(offered("tabane --cluster=x ls -"), offered("tabane ls -"));
        assert_eq!(offered("tabane --cluster x find -mind"), ["-mindepth"]);
        assert_eq!(offered("tabane --cluster x help umo"), ["umount"]);
        assert_eq!(offered("tabane up --plac"), ["--placement"]);
        assert_eq!(offered("tabane up --placement r"), ["ring"]);
        assert_eq!(offered("tabane up --placement=m"), ["--placement=modular"]);
        assert!(offered("tabane up --servers ").is_empty());
        assert_eq!(offered("tabane ls -"), offered("tabane ls --all -"));
        assert!(offered("tabane ls -").contains(&"-l".to_owned()));
        assert_eq!(offered("tabane find -mind"), ["-mindepth"]);
        assert_eq!(offered("tabane find --mind"), ["--mindepth"]);
        assert_eq!(offered("tabane find /x -type "), ["f", "d", "l"]);
        assert_eq!(offered("tabane find /x -newer /etc/hostnam"), ["/etc/hostname"]);
        assert_eq!(offered("tabane completions z"), ["zsh"]);
        assert_eq!(offered("tabane help umo"), ["umount"]);
        assert_eq!(offered("tabane config umo"), ["umount"]);
        assert_eq!(offered("tabane cp /etc/host"), offered("tabane mount /etc/host"));
        assert!(offered("tabane cp /etc/passw").contains(&"/etc/passwd".to_owned()));
        assert!(offered("tabane down ").iter().all(|word| word.starts_with('-')));
        assert!(offered("tabane run -- l").is_empty() && offered("tabane nothing ").is_empty());
    }

    /// Goal: the command behind which the scripts offer programs is the one that runs programs.
    #[test]
    fn programs_are_those_of_run() {
        let run = commands::all().filter(|command| command.operand_kind() == OperandKind::Program);
        assert_eq!(run.map(|command| command.name).collect::<Vec<_>>(), ["run"]);
    }

    /// Goal: the shells that are installed here accept the scripts. Bash is always asked, for all of our tools need it.
    /// Method: each shell reads its script without running it.
    #[test]
    fn shells_accept_scripts() {
        for (shell, script) in SCRIPTS {
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
}
