//! `tabane-report advice`: what of a job's I/O may be made better, by rules that are in one table.
//!
//! A rule is a measure, a threshold, a sentence, what to change and the chapter that says how ([`rules`]). It sees
//! [`Evidence`], which is the same for a job of a place and for the last minutes of a cluster that is watched. What is
//! not known fires nothing.

mod evidence;
mod rules;

pub use evidence::Evidence;
pub use rules::{Finding, RULES};

use crate::asked::Asked;
use crate::failure::{Failure, Outcome};
use crate::options::AdviceOptions;
use std::io::Write;

/// Sentences of one rule; of more those with most weight.
const FINDINGS_MAX: usize = 4;

/// What rules have to say, in the order of their table; of each the worst first.
pub fn findings(evidence: &Evidence) -> Vec<Finding> {
    let mut all = Vec::new();
    for rule in &RULES {
        let mut found = (rule.judge)(evidence, rule);
        found.sort_by(|one, other| other.weight.total_cmp(&one.weight));
        found.truncate(FINDINGS_MAX);
        all.extend(found);
    }
    all
}

pub fn run(options: &AdviceOptions) -> Outcome {
    let text = match (&options.id, &options.place) {
        (Some(id), Some(place)) => {
            let asked = Asked::open(id, place, &options.asking)?;
            let evidence = Evidence::of(&asked)?;
            asked.head().join("\n") + "\n" + &words(&findings(&evidence), &evidence)
        }
        _ => table(),
    };
    std::io::stdout().write_all(text.as_bytes()).map_err(Failure::of_output)
}

fn words(findings: &[Finding], evidence: &Evidence) -> String {
    let mut lines = Vec::new();
    for finding in findings {
        lines.push(format!("{}: {}", finding.rule.name, finding.words));
        lines.push(format!("  {} ({})", finding.rule.change, finding.rule.chapter));
    }
    if lines.is_empty() {
        lines.push(nothing_words(evidence).to_owned());
    }
    lines.join("\n") + "\n"
}

/// That nothing fires is worth little where little is known.
pub fn nothing_words(evidence: &Evidence) -> &'static str {
    if evidence.is_empty() { "nothing is known of its servers in this time" } else { "no rule has anything to say" }
}

/// The table of all rules, in Markdown.
pub fn table() -> String {
    let mut text =
        String::from("| rule | measure, and from where on | what to change | chapter |\n|---|---|---|---|\n");
    for rule in &RULES {
        let chapter = format!("[{}]({})", rule.chapter.trim_end_matches(".md"), rule.chapter);
        text += &format!("| `{}` | {}: {} | {} | {chapter} |\n", rule.name, rule.measure, rule.threshold, rule.change);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Goal: there are at least twelve rules, each with a name of its own and a chapter that is there; the chapter on
    /// reports has the table as the program prints it.
    #[test]
    fn the_table_is_documented() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let mut names: Vec<&str> = RULES.iter().map(|rule| rule.name).collect();
        names.sort_unstable();
        names.dedup();
        assert!(names.len() == RULES.len() && names.len() >= 12);
        for rule in &RULES {
            assert!(docs.join(rule.chapter).is_file(), "{}", rule.chapter);
        }
        let chapter = std::fs::read_to_string(docs.join("report.md")).unwrap();
        assert!(chapter.contains(&table()), "put this into docs/report.md:\n{}", table());
    }
}
