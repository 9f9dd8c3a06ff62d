//! `tabane doctor`: whether this machine has what Tabane needs, and what to do where it has not; and, beside a cluster,
//! whether its clock agrees with the servers'.

mod checks;
mod clocks;
mod machine;

use crate::arguments::Arguments;
use crate::colours::{Colour, colours_wanted, painted};
use crate::failure::{Failure, Outcome};
use crate::text::wrapped;
use checks::{Finding, Health};
use machine::ThisMachine;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};

const ADVICE_WIDTH: usize = 100;

/// `tabane doctor`.
pub fn run(arguments: &Arguments) -> Outcome {
    let mut findings = checks::all(&ThisMachine);
    findings.extend(clocks::look(arguments));
    let text = if arguments.flag("json") {
        format!("{:#}\n", json_of(&findings))
    } else {
        table(&findings, colours_wanted(arguments, std::io::stdout().is_terminal()))
    };
    std::io::stdout().write_all(text.as_bytes()).map_err(Failure::of_output)?;
    // What is wrong was said, with what to do.
    if findings.iter().any(|finding| finding.health == Health::Missing) { Err(Failure::Said(1)) } else { Ok(()) }
}

fn word(health: Health) -> &'static str {
    match health {
        Health::Ok => "ok",
        Health::Warning => "warning",
        Health::Missing => "missing",
    }
}

fn table(findings: &[Finding], colours: bool) -> String {
    let width = findings.iter().map(|finding| finding.subject.len()).max().unwrap_or(0);
    let mut text = String::new();
    for finding in findings {
        let colour = match finding.health {
            Health::Ok => Colour::Green,
            Health::Warning => Colour::Yellow,
            Health::Missing => Colour::Red,
        };
        let state = painted(&format!("{:<7}", word(finding.health)), colour, colours);
        let _ = writeln!(text, "{state}  {:width$}  {}", finding.subject, finding.found);
        if !finding.advice.is_empty() {
            text.push_str(&wrapped(&finding.advice, 11 + width, ADVICE_WIDTH));
        }
    }
    let count = |health: Health| findings.iter().filter(|finding| finding.health == health).count();
    let _ = match (count(Health::Missing), count(Health::Warning)) {
        (0, 0) => writeln!(text, "all is well"),
        (0, warnings) => writeln!(text, "it works here; {} could be better", warnings),
        (missing, _) => writeln!(text, "{missing} missing: clusters do not work here before that is mended"),
    };
    text
}

fn json_of(findings: &[Finding]) -> Value {
    let rows = findings.iter().map(|finding| {
        json!({
            "subject": finding.subject,
            "state": word(finding.health),
            "found": finding.found,
            "advice": (!finding.advice.is_empty()).then_some(&finding.advice),
        })
    });
    json!({
        "healthy": findings.iter().all(|finding| finding.health != Health::Missing),
        "checks": rows.collect::<Vec<Value>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the table says what is wrong and how to mend it, in colours only when these are wanted.
    #[test]
    fn tables() {
        let finding =
            |health, advice: &str| Finding { subject: "x", health, found: "y".to_owned(), advice: advice.to_owned() };
        let plain = table(&[finding(Health::Ok, ""), finding(Health::Warning, "do it")], false);
        assert_eq!(plain, "ok       x  y\nwarning  x  y\n            do it\nit works here; 1 could be better\n");
        let coloured = table(&[finding(Health::Missing, "do it")], true);
        assert!(
            coloured.contains("\x1b[31mmissing\x1b[0m") && coloured.contains("1 missing: clusters do not work"),
            "{coloured:?}"
        );
    }
}
