//! `tabane config`: each setting, its value, and where that came from.

use crate::arguments::{Arguments, ValueOrigin, environment};
use crate::commands::{Command, find};
use crate::config::{Config, file_path, value_in_file};
use crate::failure::{Failure, Outcome};
use crate::help::unknown_command;
use crate::options::{OptionRow, TABLE, Value};
use serde_json::json;
use std::fmt::Write as _;
use std::io::Write as _;

struct Setting {
    row: &'static OptionRow,
    /// Empty: the default, which is said in words.
    value: Option<String>,
    source: Option<ValueOrigin>,
}

/// `tabane config`.
pub fn run(arguments: &Arguments) -> Outcome {
    let config = Config::read(&environment)?;
    let command = match arguments.operands.first() {
        Some(name) => Some(find(&name.to_string_lossy()).ok_or_else(|| unknown_command(&name.to_string_lossy()))?),
        None => None,
    };
    let settings = settings(arguments, &config, command);
    let text = if arguments.flag("json") {
        json_text(&config, &settings)
    } else if arguments.flag("explain") {
        explanation(&config, &settings)
    } else {
        as_file(&config, &settings)
    };
    std::io::stdout().write_all(text.as_bytes()).map_err(Failure::of_output)
}

/// All settings, or those of one command, for which its own table of the config file comes before the top.
fn settings(arguments: &Arguments, config: &Config, command: Option<&Command>) -> Vec<Setting> {
    let wanted = |row: &&OptionRow| row.variable && command.is_none_or(|command| command.options.contains(&row.key));
    TABLE
        .iter()
        .filter(wanted)
        .map(|row| {
            let source = arguments.source(row.key);
            let value = arguments.text(row.key);
            if matches!(source, None | Some(ValueOrigin::File(_)))
                && let Some((value, line)) = command.and_then(|command| config.find(command, row))
            {
                let (value, source) = (Some(value.to_string_lossy().into_owned()), Some(ValueOrigin::File(line)));
                return Setting { row, value, source };
            }
            Setting { row, value, source }
        })
        .collect()
}

impl Setting {
    fn value(&self) -> &str {
        match &self.value {
            Some(value) if self.row.value == Value::Flag => {
                if crate::arguments::is_on(value) {
                    "true"
                } else {
                    "false"
                }
            }
            Some(value) => value,
            None if self.row.value == Value::Flag => "false",
            None => self.row.default,
        }
    }

    fn source_words(&self, config: &Config) -> String {
        match self.source {
            None => "default".to_owned(),
            Some(ValueOrigin::CommandLine) => format!("--{} on the command line", self.row.name),
            Some(ValueOrigin::Environment) => {
                format!("{} in the environment", self.row.variable_name().unwrap_or_default())
            }
            Some(ValueOrigin::File(line)) => format!("{}:{line}", config.path.display()),
        }
    }

    fn source_word(&self) -> &'static str {
        match self.source {
            None => "default",
            Some(ValueOrigin::CommandLine) => "flag",
            Some(ValueOrigin::Environment) => "environment",
            Some(ValueOrigin::File(_)) => "file",
        }
    }
}

fn place_words() -> String {
    match file_path(&environment) {
        Some(path) if path.is_file() => format!("config file: {}", path.display()),
        Some(path) => format!("config file: {} (not there)", path.display()),
        None => "config file: none, for HOME and TABANE_CONFIG are not set".to_owned(),
    }
}

fn explanation(config: &Config, settings: &[Setting]) -> String {
    let mut text = format!("{}\n", place_words());
    let mut rows = vec![["setting".to_owned(), "value".to_owned(), "from".to_owned()]];
    rows.extend(
        settings
            .iter()
            .map(|setting| [setting.row.name.to_owned(), setting.value().to_owned(), setting.source_words(config)]),
    );
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (first, second) = (width(0), width(1));
    for [name, value, source] in &rows {
        let _ = writeln!(text, "{name:first$}  {value:second$}  {source}");
    }
    text
}

/// A config file that says the same: what somebody chose, and the defaults as comments.
fn as_file(config: &Config, settings: &[Setting]) -> String {
    let mut text = format!("# {}\n", place_words());
    for setting in settings {
        let row = setting.row;
        let _ = write!(text, "\n# {}", row.help);
        if !row.unit.is_empty() {
            let _ = write!(text, " [{}]", row.unit);
        }
        text.push('\n');
        match &setting.value {
            Some(value) => {
                let _ = writeln!(text, "# from {}", setting.source_words(config));
                let _ = writeln!(text, "{} = {}", row.name, value_in_file(row, value));
            }
            None if row.value == Value::Flag => {
                let _ = writeln!(text, "# {} = false", row.name);
            }
            None => {
                let _ = writeln!(text, "# {} = {}", row.name, value_in_file(row, row.default));
            }
        }
    }
    text
}

fn json_text(config: &Config, settings: &[Setting]) -> String {
    let settings: Vec<_> = settings
        .iter()
        .map(|setting| {
            json!({
                "setting": setting.row.name,
                "value": setting.value(),
                "source": setting.source_word(),
                "where": setting.source_words(config),
                "default": if setting.row.value == Value::Flag { "false" } else { setting.row.default },
                "unit": setting.row.unit,
                "help": setting.row.help,
            })
        })
        .collect();
    let path = file_path(&environment).map(|path| path.display().to_string());
    format!("{:#}\n", json!({ "config_file": path, "settings": settings }))
}
