//! The config file: settings of the table of options, for those who do not want to say them each time.
//!
//! TOML. Keys at the top hold for every command that has the setting; those of a table that is named after a command
//! hold for that command and come first there. Only settings can stand here, that is options that have an environment
//! variable: what a flag like `-f` asks for is asked for by the one who types it.

use crate::arguments::{Environment, check, number_of};
use crate::commands::{self, Command};
use crate::failure::{Failure, Outcome, io_words};
use crate::help::nearest;
use crate::options::{OptionRow, TABLE, Value};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Names the config file; the one of the user is not read then.
pub const VARIABLE: &str = "TABANE_CONFIG";
/// Larger files are no config files.
const FILE_SIZE_MAX: u64 = 1 << 20;

#[derive(Debug)]
struct ConfigEntry {
    command: Option<&'static str>,
    row: &'static OptionRow,
    value: OsString,
    line: usize,
}

/// What the config file says; every value fits its row of the table.
#[derive(Debug, Default)]
pub struct Config {
    pub path: PathBuf,
    entries: Vec<ConfigEntry>,
}

/// Where the config file is looked for; `None` where there is no home directory either.
pub fn file_path(environment: Environment<'_>) -> Option<PathBuf> {
    if let Some(path) = environment(VARIABLE) {
        return Some(PathBuf::from(path));
    }
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let directory =
        environment("XDG_CONFIG_HOME").and_then(absolute).or_else(|| Some(home(environment)?.join(".config")));
    directory.map(|directory| directory.join("tabane/config.toml"))
}

fn home(environment: Environment<'_>) -> Option<PathBuf> {
    environment("HOME").map(PathBuf::from).filter(|path| path.is_absolute())
}

impl Config {
    /// Reads the config file, if there is one. Errors: `Usage`, with file and line; the one that TABANE_CONFIG names is
    /// missing.
    pub fn read(environment: Environment<'_>) -> Outcome<Config> {
        let Some(path) = file_path(environment) else { return Ok(Config::default()) };
        let named = environment(VARIABLE).is_some();
        match std::fs::metadata(&path) {
            Ok(facts) if facts.len() > FILE_SIZE_MAX => {
                return Err(Failure::usage(format!("{}: too large for a config file", path.display())));
            }
            _ => {}
        }
        match std::fs::read_to_string(&path) {
            Ok(text) => Config::parse(path, &text, home(environment).as_deref()),
            Err(error) if !named && matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                Ok(Config::default())
            }
            Err(error) => {
                let advice = if named { format!("; {VARIABLE} names it") } else { String::new() };
                Err(Failure::usage(format!("config file {}: {}{advice}", path.display(), io_words(&error))))
            }
        }
    }

    fn parse(path: PathBuf, text: &str, home: Option<&Path>) -> Outcome<Config> {
        let mut reader = Reader { text, home, entries: Vec::new() };
        let outcome = match DeTable::parse(text) {
            Ok(table) => reader.take_all(table.get_ref()),
            Err(error) => Err((error.span().map_or(0, |span| span.start), error.message().trim().to_owned())),
        };
        match outcome {
            Ok(()) => Ok(Config { path, entries: reader.entries }),
            Err((offset, words)) => {
                Err(Failure::usage(format!("{}:{}: {words}", path.display(), line_of(text, offset))))
            }
        }
    }

    /// What the file says about an option of a command: the value and its line.
    pub fn find(&self, command: &Command, row: &OptionRow) -> Option<(&OsString, usize)> {
        let of =
            |name: Option<&str>| self.entries.iter().find(|entry| entry.row.key == row.key && entry.command == name);
        of(Some(command.name)).or_else(|| of(None)).map(|entry| (&entry.value, entry.line))
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count()
}

struct Reader<'a> {
    text: &'a str,
    home: Option<&'a Path>,
    entries: Vec<ConfigEntry>,
}

/// Where in the text, and what is wrong there.
type Mistake = (usize, String);

impl Reader<'_> {
    fn take_all(&mut self, table: &DeTable<'_>) -> Result<(), Mistake> {
        // The parser gives keys in the order of their letters; the first mistake in the file is the one to tell.
        let mut keys: Vec<_> = table.iter().collect();
        keys.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in keys {
            match value.get_ref() {
                DeValue::Table(inner) => self.take_command(key.span().start, key.get_ref(), inner)?,
                _ => self.take(None, key.span().start, key.get_ref(), value)?,
            }
        }
        Ok(())
    }

    fn take_command(&mut self, offset: usize, name: &str, table: &DeTable<'_>) -> Result<(), Mistake> {
        let Some(command) = commands::find(name) else {
            let near = nearest(name, commands::all().map(|command| command.name));
            let hint = near.map(|near| format!("; did you mean [{near}]?")).unwrap_or_default();
            return Err((offset, format!("[{name}] is not the name of a command{hint}")));
        };
        let mut keys: Vec<_> = table.iter().collect();
        keys.sort_by_key(|(key, _)| key.span().start);
        keys.into_iter().try_for_each(|(key, value)| self.take(Some(command), key.span().start, key.get_ref(), value))
    }

    fn take(
        &mut self,
        command: Option<&'static Command>,
        offset: usize,
        key: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<(), Mistake> {
        let row = setting_of(command, key).map_err(|words| (offset, words))?;
        let at = value.span().start;
        let text = value_text(row, value.get_ref(), self.home).map_err(|reason| (at, format!("{key}: {reason}")))?;
        check(row, &text).map_err(|reason| (at, format!("{key} = {}: {reason}", text.display())))?;
        let line = line_of(self.text, offset);
        let command = command.map(|command| command.name);
        if let Some(other) = self.entries.iter().find(|entry| entry.row.key == row.key && entry.command == command) {
            return Err((offset, format!("{key} is there already, in line {}", other.line)));
        }
        self.entries.push(ConfigEntry { command, row, value: text, line });
        Ok(())
    }
}

/// The setting of a key, which may be written with underscores. The error says what there is.
fn setting_of(command: Option<&'static Command>, key: &str) -> Result<&'static OptionRow, String> {
    let name = key.replace('_', "-");
    let settings = || TABLE.iter().filter(|row| row.variable);
    let Some(row) = settings().find(|row| row.name == name) else {
        let near = nearest(&name, settings().map(|row| row.name));
        return Err(match near {
            Some(near) => format!("there is no setting {key}; did you mean {near}?"),
            None if TABLE.iter().any(|row| row.name == name) => {
                format!("{key} can only be given on the command line, as --{name}")
            }
            None => format!("there is no setting {key} ('tabane config' lists all)"),
        });
    };
    match command.filter(|command| !command.options.contains(&row.key)) {
        Some(command) => Err(format!("'tabane {}' has no setting {key}", command.name)),
        None => Ok(row),
    }
}

/// A value as the command line would have it.
fn value_text(row: &OptionRow, value: &DeValue<'_>, home: Option<&Path>) -> Result<OsString, String> {
    match value {
        DeValue::String(text) => Ok(match (row.value, text.strip_prefix("~/"), home) {
            (Value::Path, Some(rest), Some(home)) => home.join(rest).into_os_string(),
            _ => OsString::from(&**text),
        }),
        DeValue::Boolean(value) if row.value == Value::Flag => Ok(OsString::from(if *value { "1" } else { "0" })),
        DeValue::Integer(number) if matches!(row.value, Value::Number { .. } | Value::Size { .. }) => {
            let digits = u64::from_str_radix(number.as_str(), number.radix());
            digits.map(|number| OsString::from(number.to_string())).map_err(|_| wanted(row))
        }
        _ => Err(wanted(row)),
    }
}

/// The form of a value in the file.
fn wanted(row: &OptionRow) -> String {
    match row.value {
        Value::Flag => "true or false is wanted".to_owned(),
        Value::Number { least, most } => format!("a number from {least} to {most} is wanted"),
        Value::Size { .. } => "a size is wanted: a number, or text such as \"64K\"".to_owned(),
        _ => format!("text in quotes is wanted: {}", row.unit),
    }
}

/// A value as the file would have it.
pub fn value_in_file(row: &OptionRow, value: &str) -> String {
    match row.value {
        Value::Flag => crate::arguments::is_on(value).to_string(),
        Value::Number { .. } | Value::Size { .. }
            if number_of(row, value).is_some_and(|_| value.parse::<u64>().is_ok()) =>
        {
            value.to_owned()
        }
        _ => quoted(value),
    }
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            _ if letter.is_control() => quoted.push_str(&format!("\\u{:04X}", letter as u32)),
            _ => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Outcome<Config> {
        Config::parse(PathBuf::from("/home/me/config.toml"), text, Some(Path::new("/home/me")))
    }

    fn mistake(text: &str) -> String {
        match parse(text) {
            Err(Failure::Usage(words)) => words,
            other => panic!("{text}: {other:?}"),
        }
    }

    fn found(config: &Config, command: &str, key: &str) -> Option<(String, usize)> {
        let found = config.find(commands::find(command).unwrap(), OptionRow::of(key));
        found.map(|(value, line)| (value.to_str().unwrap().to_owned(), line))
    }

    /// Goal: each kind of value is read, a command's own table comes before the top, and lines are those of the file.
    #[test]
    fn values_and_tables() {
        let text = "# mine\njobs = 4\nchunk_size = \"64K\"\nchecksums = true\nrun-directory = \"~/run\"\n\n\
                    [cp]\njobs = 0x40\n";
        let config = parse(text).unwrap();
        assert_eq!(found(&config, "ls", "jobs"), Some(("4".to_owned(), 2)));
        assert_eq!(found(&config, "cp", "jobs"), Some(("64".to_owned(), 8)));
        assert_eq!(found(&config, "up", "chunk-size"), Some(("64K".to_owned(), 3)));
        assert_eq!(found(&config, "up", "checksums"), Some(("1".to_owned(), 4)));
        assert_eq!(found(&config, "up", "run-directory"), Some(("/home/me/run".to_owned(), 5)));
        assert_eq!(found(&config, "up", "port"), None);
        assert!(parse("").unwrap().entries.is_empty());
    }

    /// Goal: every mistake names file and line and says what would be right.
    #[test]
    fn mistakes() {
        let has = |text: &str, words: &[&str]| {
            let said = mistake(text);
            assert!(words.iter().all(|word| said.contains(word)), "{text}: {said}");
        };
        has("\nserver = 3", &["/home/me/config.toml:2: there is no setting server", "did you mean servers?"]);
        has("talkative = 3", &["config.toml:1: there is no setting talkative ("]);
        has("[upp]\nservers = 1", &["config.toml:1: [upp] is not the name of a command", "did you mean [up]?"]);
        has("[ls]\nservers = 1", &["config.toml:2: 'tabane ls' has no setting servers"]);
        has("recursive = true", &["config.toml:1: recursive can only be given on the command line, as --recursive"]);
        has("servers = 0", &["config.toml:1: servers = 0: a number from 1"]);
        has("servers = -1", &["config.toml:1: servers: a number from 1"]);
        has("servers = [1]", &["a number from 1"]);
        has("chunk-size = 1.5", &["such as \"64K\""]);
        has("checksums = 1", &["true or false"]);
        has("dir = 7", &["text in quotes"]);
        has("placement = \"spiral\"", &["one of modular, ring"]);
        has("chunk-size = 1\nchunk_size = 2", &["config.toml:1: chunk-size = 1"]);
        has("chunk-size = \"1M\"\nchunk_size = \"2M\"", &["config.toml:2: chunk_size is there already, in line 1"]);
        has("jobs = 1\nport = = 2", &["config.toml:2: "]);
        has("jobs = 1\njobs = 2", &["config.toml:2: "]);
    }

    /// Goal: TABANE_CONFIG comes first, then XDG_CONFIG_HOME, then the home directory; a file that was named has to be
    /// there.
    #[test]
    fn places() {
        let of = |variables: &[(&str, &str)]| {
            let variables: Vec<(String, OsString)> =
                variables.iter().map(|(name, value)| ((*name).to_owned(), OsString::from(value))).collect();
            move |name: &str| variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
        };
        let path = |variables: &[(&str, &str)]| file_path(&of(variables)).map(|path| path.display().to_string());
        assert_eq!(path(&[]), None);
        assert_eq!(path(&[("HOME", "/home/me")]).as_deref(), Some("/home/me/.config/tabane/config.toml"));
        let both = [("HOME", "/home/me"), ("XDG_CONFIG_HOME", "/c")];
        assert_eq!(path(&both).as_deref(), Some("/c/tabane/config.toml"));
        assert_eq!(path(&[("HOME", "/home/me"), ("TABANE_CONFIG", "x.toml")]).as_deref(), Some("x.toml"));
        assert!(Config::read(&of(&[("HOME", "/nowhere/at/all")])).unwrap().entries.is_empty());
        let named = Config::read(&of(&[("TABANE_CONFIG", "/nowhere/at/all")]));
        assert!(matches!(named, Err(Failure::Usage(words)) if words.contains("TABANE_CONFIG names it")));
    }

    /// Goal: what is printed as a config file is read as the same values.
    #[test]
    fn printed_values_are_read_back() {
        for (key, value) in [("servers", "3"), ("chunk-size", "64K"), ("dir", "/a \"b\"\\\u{7}"), ("checksums", "yes")]
        {
            let row = OptionRow::of(key);
            let config = parse(&format!("{key} = {}", value_in_file(row, value))).unwrap();
            let read = found(&config, "up", key).unwrap().0;
            assert_eq!(read, if key == "checksums" { "1" } else { value });
        }
    }
}
