//! From a command line, the environment and the config file to checked values, by the tables of options and commands.

use crate::command_line::{self, OPERANDS};
use crate::commands::Command;
use crate::config::Config;
use crate::failure::{Failure, Outcome};
use crate::options::{OptionRow, Value};
use crate::text::parse_size;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Where a value came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueOrigin {
    CommandLine,
    Environment,
    /// The config file, in this line.
    File(usize),
}

#[derive(Debug)]
struct Given {
    key: &'static str,
    value: OsString,
    source: ValueOrigin,
}

/// What a command was told; every value fits its row of the table.
#[derive(Debug)]
pub struct Arguments {
    pub command: &'static Command,
    given: Vec<Given>,
    /// What is not an option.
    pub operands: Vec<OsString>,
    /// The same once patterns among them were replaced by what they match.
    expanded: RefCell<Option<Vec<Vec<u8>>>>,
    /// Whether the help was asked for; then nothing else was checked.
    pub help: bool,
}

/// The environment as a function, so that tests bring their own.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The environment of this program. Empty variables count as unset.
#[allow(clippy::disallowed_methods)] // The one place where this program reads its environment.
pub fn environment(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The option that may stand before a command too, as it is written there.
pub const CLUSTER: &str = "--cluster";

/// How many words stand before the name of the command: those of `--cluster`.
pub fn count_before_command(words: &[OsString]) -> usize {
    let mut count = 0;
    while let Some(word) = words.get(count) {
        match word.as_bytes().strip_prefix(CLUSTER.as_bytes()) {
            Some(b"") => count += 2,
            Some([b'=', ..]) => count += 1,
            _ => break,
        }
    }
    count.min(words.len())
}

impl Arguments {
    /// Reads what follows the command's name; `config` is asked for the config file when that counts. Errors: `Usage`.
    pub fn parse(
        command: &'static Command,
        words: &[OsString],
        environment: Environment<'_>,
        config: impl FnOnce() -> Outcome<Config>,
    ) -> Outcome<Arguments> {
        let mut arguments =
            Arguments { command, given: Vec::new(), operands: Vec::new(), expanded: RefCell::default(), help: false };
        arguments.take_words(words)?;
        if arguments.help {
            return Ok(arguments);
        }
        arguments.take_environment(environment)?;
        arguments.take_config(&config()?);
        let count = arguments.operands.len();
        if count < command.operand_count.0 {
            return Err(Failure::usage(format!("{} is missing", command.operands)));
        }
        if count > command.operand_count.1 {
            let first = arguments.operands[command.operand_count.1].display();
            return Err(Failure::usage(format!("\"{first}\" is too much: {} is wanted", command.operands_words())));
        }
        Ok(arguments)
    }

    fn take_environment(&mut self, environment: Environment<'_>) -> Outcome {
        for row in self.missing_settings() {
            let variable = row.variable_name().and_then(|name| Some((environment(&name)?, name)));
            if let Some((value, name)) = variable {
                check(row, &value).map_err(|reason| Failure::usage(format!("{name}={}: {reason}", value.display())))?;
                self.given.push(Given { key: row.key, value, source: ValueOrigin::Environment });
            }
        }
        if let Some((key, row)) = self.stand_in()
            && let Some(value) = row.variable_name().and_then(|name| environment(&name))
        {
            self.given.push(Given { key, value, source: ValueOrigin::Environment });
        }
        Ok(())
    }

    fn take_config(&mut self, config: &Config) {
        for row in self.missing_settings() {
            if let Some((value, line)) = config.find(self.command, row) {
                self.given.push(Given { key: row.key, value: value.clone(), source: ValueOrigin::File(line) });
            }
        }
        if let Some((key, row)) = self.stand_in()
            && let Some((value, line)) = config.find(self.command, row)
        {
            self.given.push(Given { key, value: value.clone(), source: ValueOrigin::File(line) });
        }
    }

    /// Where nobody named the cluster it is that of the run directory, which not every command can be told: what counts
    /// for the one, and the setting that stands in.
    fn stand_in(&self) -> Option<(&'static str, &'static OptionRow)> {
        let (cluster, directory) = ("cluster", "run-directory");
        let wants = self.takes(cluster) && !self.takes(directory) && !self.is_given(cluster);
        wants.then(|| (cluster, OptionRow::of(directory)))
    }

    /// Settings that nobody gave so far.
    fn missing_settings(&self) -> Vec<&'static OptionRow> {
        self.command.rows().filter(|row| row.variable && !self.is_given(row.key)).collect()
    }

    fn take_words(&mut self, words: &[OsString]) -> Outcome {
        let command = self.command;
        let words = words.iter().map(|word| command.spelled_out(word));
        let matches = match command_line::of(command).try_get_matches_from(words) {
            Err(error) if error.kind() == ErrorKind::DisplayHelp => {
                self.help = true;
                return Ok(());
            }
            matches => matches.map_err(|error| command_line::failure(command, &error))?,
        };
        let on_command_line = |key: &str| matches.value_source(key) == Some(ValueSource::CommandLine);
        for row in command.rows().filter(|row| on_command_line(row.key)) {
            let values: Vec<&OsStr> = matches.get_raw(row.key).into_iter().flatten().collect();
            let value = values.last().copied().unwrap_or_default().to_owned();
            if let Some(other) = values.iter().find(|other| Path::new(other) != Path::new(&value)) {
                let words = format!("--{} names {} and {}; name one", row.name, other.display(), value.display());
                return Err(Failure::usage(words));
            }
            check(row, &value)
                .map_err(|reason| Failure::usage(format!("--{} {}: {reason}", row.name, value.display())))?;
            self.given.push(Given { key: row.key, value, source: ValueOrigin::CommandLine });
        }
        self.operands = matches.get_raw(OPERANDS).into_iter().flatten().map(OsStr::to_owned).collect();
        Ok(())
    }

    /// Whether the command has this option.
    pub fn takes(&self, key: &str) -> bool {
        self.command.options.contains(&key)
    }

    fn find(&self, key: &str) -> Option<&Given> {
        assert!(self.command.options.contains(&key), "{} has no option {key}", self.command.name);
        self.given.iter().find(|given| given.key == key)
    }

    /// Whether somebody chose this value.
    pub fn is_given(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// Whether it was chosen on the command line itself.
    pub fn is_on_command_line(&self, key: &str) -> bool {
        self.find(key).is_some_and(|given| given.source == ValueOrigin::CommandLine)
    }

    /// Where a value came from; `None` for a default.
    pub fn source(&self, key: &str) -> Option<ValueOrigin> {
        self.find(key).map(|given| given.source)
    }

    /// A flag.
    pub fn flag(&self, key: &str) -> bool {
        self.find(key).is_some_and(|given| flag_value(&given.value) == Some(true))
    }

    /// A text, if one was given.
    pub fn text(&self, key: &str) -> Option<String> {
        self.find(key).map(|given| given.value.to_string_lossy().into_owned())
    }

    /// Bytes as they were given.
    pub fn bytes(&self, key: &str) -> Option<Vec<u8>> {
        self.find(key).map(|given| given.value.as_bytes().to_vec())
    }

    /// A path, if one was given.
    pub fn path(&self, key: &str) -> Option<PathBuf> {
        self.find(key).map(|given| PathBuf::from(&given.value))
    }

    /// The given text, or the default of the table.
    pub fn text_or_default(&self, key: &str) -> String {
        self.text(key).unwrap_or_else(|| OptionRow::of(key).default.to_owned())
    }

    /// A number or a size, given or by default. Panics when there is neither: the tables are ours.
    pub fn number(&self, key: &str) -> u64 {
        let text = self.text_or_default(key);
        number_of(OptionRow::of(key), &text).unwrap_or_else(|| panic!("--{key} has no default"))
    }

    /// A number or a size, if one was given.
    pub fn number_given(&self, key: &str) -> Option<u64> {
        self.text(key).and_then(|text| number_of(OptionRow::of(key), &text))
    }

    /// Replaces patterns among the operands: `operand_bytes` gives these from now on.
    pub fn set_expanded(&self, operands: Vec<Vec<u8>>) {
        self.expanded.replace(Some(operands));
    }

    /// Operands as bytes.
    pub fn operand_bytes(&self) -> Vec<Vec<u8>> {
        if let Some(expanded) = &*self.expanded.borrow() {
            return expanded.clone();
        }
        self.operands.iter().map(|operand| operand.clone().into_vec()).collect()
    }
}

/// The number that a text stands for.
pub fn number_of(row: &OptionRow, text: &str) -> Option<u64> {
    let (number, least, most) = match row.value {
        Value::Number { least, most } => (text.trim().parse().ok()?, least, most),
        Value::Size { least, most } => (parse_size(text)?, least, most),
        Value::Octal => (u64::from_str_radix(text, 8).ok()?, 0, 0o7777),
        _ => return None,
    };
    (least..=most).contains(&number).then_some(number)
}

/// Whether the text of a flag says yes.
pub fn is_on(value: &str) -> bool {
    flag_value(OsStr::new(value)) == Some(true)
}

pub fn flag_value(value: &OsStr) -> Option<bool> {
    match value.to_str()? {
        "1" | "yes" | "true" | "on" => Some(true),
        "0" | "no" | "false" | "off" => Some(false),
        _ => None,
    }
}

/// Whether a value fits its row. The error says what would.
pub fn check(row: &OptionRow, value: &OsStr) -> Result<(), String> {
    let text = value.to_str();
    let fits = match row.value {
        Value::Path => !value.is_empty(),
        Value::Text => text.is_some(),
        Value::Flag => flag_value(value).is_some(),
        Value::Choice(words) => text.is_some_and(|text| words.contains(&text)),
        _ => text.and_then(|text| number_of(row, text)).is_some(),
    };
    if fits {
        return Ok(());
    }
    Err(match row.value {
        Value::Path => "a path is wanted".to_owned(),
        Value::Text => "is not readable text".to_owned(),
        Value::Flag => "1 or 0 is wanted".to_owned(),
        Value::Choice(words) => format!("one of {} is wanted", words.join(", ")),
        Value::Octal => "permission bits in octal are wanted, such as 755".to_owned(),
        Value::Number { least, most } => format!("a number from {least} to {most} is wanted"),
        Value::Size { least, most } => format!(
            "a size from {} to {} is wanted, such as 47008, 64K or 2G",
            crate::text::size_words(least),
            crate::text::size_words(most)
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands;

    fn parse(line: &str, variables: &[(&str, &str)]) -> Outcome<Arguments> {
        let words: Vec<OsString> =
            line.split(' ').skip(1).filter(|word| !word.is_empty()).map(OsString::from).collect();
        let command = commands::find(line.split(' ').next().unwrap()).unwrap();
        let environment =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
        Arguments::parse(command, &words, &environment, || Config::read(&environment))
    }

    fn usage(line: &str, variables: &[(&str, &str)]) -> String {
        match parse(line, variables) {
            Err(Failure::Usage(words)) => words,
            other => panic!("{line}: {other:?}"),
        }
    }

    /// Goal: flags, environment and defaults, in this order.
    #[test]
    fn sources_in_order() {
        let arguments =
            parse("up --servers 3 --chunk-size=64K", &[("TABANE_SERVERS", "5"), ("TABANE_PORT", "9000")]).unwrap();
        assert_eq!(arguments.number("servers"), 3);
        assert_eq!(arguments.number("chunk-size"), 65_536);
        assert_eq!(arguments.number("port"), 9000);
        assert_eq!(arguments.number("connections-max"), 256);
        assert!(arguments.is_on_command_line("servers") && !arguments.is_on_command_line("port"));
        assert!(!arguments.flag("checksums") && parse("up", &[("TABANE_CHECKSUMS", "yes")]).unwrap().flag("checksums"));
    }

    /// Goal: a flag that is a setting can be switched off where it is on elsewhere; other flags take no value.
    #[test]
    fn flags_with_values() {
        let on = [("TABANE_CHECKSUMS", "1")];
        assert!(!parse("up --checksums=no", &on).unwrap().flag("checksums"));
        assert!(parse("up --checksums", &[]).unwrap().flag("checksums"));
        assert!(usage("up --checksums=maybe", &[]).contains("1 or 0"));
        assert!(usage("ls --all=1", &[]).contains("--all"));
    }

    /// Goal: letters together, operands between options, long names after one dash where a command wants them, and
    /// everything behind the command of `run` left alone.
    #[test]
    fn forms_of_command_lines() {
        let arguments = parse("ls -la /x -R", &[]).unwrap();
        assert!(arguments.flag("long") && arguments.flag("all") && arguments.flag("recursive"));
        assert_eq!(arguments.operands, ["/x"]);
        let arguments = parse("ls /x -l /y --all -- -z", &[]).unwrap();
        assert_eq!(arguments.operands, ["/x", "/y", "-z"]);
        let arguments = parse("find /x -name *.c -type f -size +3k", &[]).unwrap();
        assert_eq!(arguments.text("name").as_deref(), Some("*.c"));
        assert_eq!(arguments.text("find-size").as_deref(), Some("+3k"));
        assert_eq!(parse("find -mtime -1 -perm -600", &[]).unwrap().text("mtime").as_deref(), Some("-1"));
        let arguments = parse("logs -n5 --lines=6 -fn 7", &[]).unwrap();
        assert!(arguments.flag("follow") && arguments.number("lines") == 7);
        let arguments = parse("flock -n /lock ls -l -- -a", &[]).unwrap();
        assert_eq!(arguments.operands, ["/lock", "ls", "-l", "--", "-a"]);
        let arguments = parse("run --servers 2 -- ls -l --help", &[]).unwrap();
        assert_eq!(arguments.operands, ["ls", "-l", "--help"]);
        assert!(parse("ls -h", &[]).unwrap().flag("human") && parse("cp -h", &[]).unwrap().help);
    }

    /// Goal: --cluster may be said more than once, but not of different clusters; of other options the last one counts.
    #[test]
    fn one_cluster() {
        let arguments = parse("ls --cluster run/ -l --cluster=run", &[("TABANE_CLUSTER", "other")]).unwrap();
        assert_eq!(arguments.path("cluster"), Some(PathBuf::from("run")));
        assert!(usage("ls --cluster a --cluster b", &[]).contains("--cluster names a and b; name one"));
        assert_eq!(parse("ls --jobs 3 --jobs 4", &[]).unwrap().number("jobs"), 4);
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        for (line, count) in [
            ("ls --cluster a", 0),
            ("--cluster a ls", 2),
            ("--cluster=a ls", 1),
            ("--cluster a --cluster=b ls", 3),
            ("--cluster", 1),
            ("--clusters ls", 0),
        ] {
            assert_eq!(count_before_command(&words(line)), count, "{line}");
        }
    }

    /// Goal: where nobody names the cluster it is that of the run directory, for commands that can't be told one too.
    #[test]
    fn run_directory_stands_in() {
        let directory = ("TABANE_RUN_DIRECTORY", "/run/own");
        let cluster = |variables: &[(&str, &str)]| parse("ls", variables).unwrap().path("cluster");
        assert_eq!(cluster(&[directory]), Some(PathBuf::from("/run/own")));
        assert_eq!(cluster(&[directory, ("TABANE_CLUSTER", "/other")]), Some(PathBuf::from("/other")));
        assert_eq!(parse("ls --cluster c", &[directory]).unwrap().path("cluster"), Some(PathBuf::from("c")));
        assert_eq!(parse("status", &[directory]).unwrap().path("cluster"), None);
    }

    /// Goal: what is wrong is refused with words that say what would be right.
    #[test]
    fn mistakes() {
        assert!(usage("up --server 3", &[]).contains("did you mean --servers"));
        assert!(usage("up --servers 0", &[]).contains("a number from 1"));
        assert!(usage("up --chunk-size 1", &[]).contains("such as 47008"));
        assert!(usage("up --placement spiral", &[]).contains("modular, ring"));
        assert!(usage("up --servers", &[]).contains("COUNT"));
        assert!(usage("up there", &[]).contains("\"there\" is too much"));
        assert!(usage("up", &[("TABANE_SERVERS", "many")]).starts_with("TABANE_SERVERS=many"));
        assert!(usage("mkdir --mode 9", &[]).contains("octal"));
        assert!(usage("mkdir", &[]).contains("PATH"));
    }
}
