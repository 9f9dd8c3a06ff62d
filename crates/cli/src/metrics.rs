//! The counters of all servers as one page of Prometheus' text: what each server prints, told apart by a label.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Whether a server answered, which only somebody else can say.
const UP: &str = "tabane_server_up";

/// A metric: its help and type, and all servers' numbers.
#[derive(Default)]
struct Family {
    head: String,
    samples: String,
}

/// One page of those of several servers, in their order; nothing of one that did not answer but that.
pub fn merged<'a>(pages: impl Iterator<Item = (u32, Option<&'a str>)>) -> String {
    let head = format!("# HELP {UP} Whether the server answered.\n# TYPE {UP} gauge\n");
    let mut families = BTreeMap::from([(UP, Family { head, samples: String::new() })]);
    for (server, page) in pages {
        let up = families.entry(UP).or_default();
        let _ = writeln!(up.samples, "{UP}{{server=\"{server}\"}} {}", u8::from(page.is_some()));
        for line in page.unwrap_or_default().lines() {
            match line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE ")) {
                Some(about) => {
                    let family = families.entry(about.split(' ').next().unwrap_or_default()).or_default();
                    // All servers say the same of it.
                    if family.samples.is_empty() {
                        let _ = writeln!(family.head, "{line}");
                    }
                }
                None => put(&mut families, server, line),
            }
        }
    }
    families.into_values().fold(String::new(), |text, family| text + &family.head + &family.samples)
}

/// Adds a line `name value` or `name{labels} value`.
fn put<'a>(families: &mut BTreeMap<&'a str, Family>, server: u32, line: &'a str) {
    let Some(end) = line.find(['{', ' ']) else { return };
    let (name, rest) = line.split_at(end);
    let samples = &mut families.entry(name).or_default().samples;
    let _ = match rest.strip_prefix('{') {
        Some(labels) => writeln!(samples, "{name}{{server=\"{server}\",{labels}"),
        None => writeln!(samples, "{name}{{server=\"{server}\"}}{rest}"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each metric is there once with its help and type, whoever of the servers has it, and each number with its
    /// server; a label's text is left alone.
    #[test]
    fn one_page_of_several() {
        let first = "# HELP tabane_files Files.\n# TYPE tabane_files gauge\ntabane_files 7\n\
                     # HELP tabane_job_reads_total Reads.\n# TYPE tabane_job_reads_total counter\n\
                     tabane_job_reads_total{job=\"a } {\\\"b\"} 1\n";
        let second = "# HELP tabane_files Files.\n# TYPE tabane_files gauge\ntabane_files 8\n";
        let page = merged([(0, Some(first)), (1, None), (2, Some(second))].into_iter());
        let wanted = "# HELP tabane_files Files.\n# TYPE tabane_files gauge\n\
                      tabane_files{server=\"0\"} 7\ntabane_files{server=\"2\"} 8\n\
                      # HELP tabane_job_reads_total Reads.\n# TYPE tabane_job_reads_total counter\n\
                      tabane_job_reads_total{server=\"0\",job=\"a } {\\\"b\"} 1\n\
                      # HELP tabane_server_up Whether the server answered.\n# TYPE tabane_server_up gauge\n\
                      tabane_server_up{server=\"0\"} 1\ntabane_server_up{server=\"1\"} 0\n\
                      tabane_server_up{server=\"2\"} 1\n";
        assert_eq!(page, wanted);
    }
}
