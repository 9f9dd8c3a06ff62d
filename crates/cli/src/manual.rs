//! `tabane man`: the manual pages, by clap's writer over the command lines that the tables make. What that writer does
//! not know is put beside it: settings, exit status and examples.

use crate::arguments::Arguments;
use crate::command_line;
use crate::commands::{self, Command};
use crate::failure::{Failure, Outcome, io_words};
use crate::options::TABLE;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};
use std::io;
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
fn head(command: clap::Command, section: &str, text: &mut Vec<u8>) -> io::Result<Man> {
    let title = command.get_display_name().unwrap_or(command.get_name()).to_ascii_uppercase();
    let source = format!("tabane {}", env!("CARGO_PKG_VERSION"));
    // An empty word of a request has to be written as such.
    let page = Man::new(command).title(title).section(section).date("\"\"").source(source).manual("Tabane");
    page.render_title(text)?;
    page.render_name_section(text)?;
    Ok(page)
}

/// A page of what was written one after the other, as pure as man(7) wants it.
fn assembled(write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
    let mut text = Vec::new();
    write(&mut text).expect("memory takes what is written");
    // Before each part roff's writer says how apostrophes are printed. Nor does it know what else groff beautifies.
    let text = String::from_utf8_lossy(&text).replace(".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n", "");
    text.replace("\\*(Aq", "\\(aq").replace('^', "\\(ha").replace('~', "\\(ti").replace('`', "\\(ga")
}

fn overview() -> String {
    let about = "bundle the storage of several servers into one file system";
    let usage = "tabane [--cluster PATH] COMMAND [OPTIONS] ...";
    let command = clap::Command::new("tabane").about(about).override_usage(usage).long_about(
        "The cluster is found by --cluster, before or behind the command, else by TABANE_CLUSTER, else by the config \
         file, else in the default run directory.",
    );
    assembled(|text| {
        let page = head(command, "1", text)?;
        page.render_synopsis_section(text)?;
        page.render_description_section(text)?;
        let mut rest = Roff::new();
        let mut group = "";
        for command in commands::all() {
            if command.group != group {
                group = command.group;
                rest.control("SS", [group]);
            }
            rest.control("TP", []).text([bold(format!("tabane-{}", command.name)), roman("(1)")]);
            rest.text([roman(command.summary)]);
        }
        put_exit_status(&mut rest);
        let example =
            "tabane up --servers 4\ntabane cp -r /usr/share :/\ntabane find /share -name '*.html' -count\ntabane down";
        put_examples(&mut rest, example, "tabane-config(5)");
        rest.to_writer(text)
    })
}

fn page(command: &Command) -> String {
    let page = assembled(|text| {
        let page = head(command_line::of(command), "1", text)?;
        page.render_synopsis_section(text)?;
        page.render_description_section(text)?;
        page.render_options_section(text)?;
        let mut rest = Roff::new();
        put_exit_status(&mut rest);
        put_examples(&mut rest, command.example, "tabane(1), tabane-config(5)");
        rest.to_writer(text)
    });
    if command.single_dash { page.replace("\\fB\\-\\-", "\\fB\\-") } else { page }
}

fn put_exit_status(page: &mut Roff) {
    page.control("SH", ["EXIT STATUS"]).text([roman(
        "0 success, 1 failure, 2 wrong command line or config file, 128 and the number of the signal that ended it. \
         Commands that say otherwise say so on their page.",
    )]);
}

fn put_examples(page: &mut Roff, example: &str, see_also: &str) {
    page.control("SH", ["EXAMPLES"]).control("nf", []).control("RS", ["4"]);
    for line in example.lines() {
        page.text([roman(line)]);
    }
    page.control("RE", []).control("fi", []);
    page.control("SH", ["SEE ALSO"]).text([roman(see_also)]);
}

fn config_page() -> String {
    let command = clap::Command::new("tabane-config").about("settings of tabane in a file");
    assembled(|text| {
        head(command, "5", text)?;
        let mut rest = Roff::new();
        rest.control("SH", ["SYNOPSIS"]).text([italic("$TABANE_CONFIG")]).control("br", []);
        rest.text([italic("$XDG_CONFIG_HOME/tabane/config.toml")]).control("br", []);
        rest.text([italic("~/.config/tabane/config.toml")]).control("SH", ["DESCRIPTION"]).text([roman(
            "The first of these that is set is the config file. It is TOML. Keys at the top hold for every command \
             that has the setting; those in a table named after a command hold for that command and come first there. \
             The command line and the environment come before the file. Unknown keys, and values out of range, are \
             refused with file and line.",
        )]);
        rest.control("PP", []).text([roman(
            "A path that begins with ~/ is one in the home directory. Sizes are numbers, or text such as \"64K\".",
        )]);
        rest.control("SH", ["SETTINGS"]);
        for row in TABLE.iter().filter(|row| row.variable) {
            let form = if row.unit.is_empty() { "true|false" } else { row.unit };
            let default = if row.default.is_empty() { "false" } else { row.default };
            rest.control("TP", []).text([bold(row.name), roman(" = "), italic(form)]);
            rest.text([roman(format!("{}. Default: {default}.", row.help))]);
        }
        let example = "run-directory = \"~/tabane\"\nchunk-size = \"4M\"\n[cp]\njobs = 64";
        put_examples(&mut rest, example, "tabane(1), tabane-config(1)");
        rest.to_writer(text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::process::{Command as Program, Stdio};

    /// Goal: letters that groff would take for its own come out as they are, and find's options have one dash.
    #[test]
    fn letters() {
        let text = assembled(|text| Roff::new().text([roman(".x -y 'a' \\ ~^`")]).to_writer(text));
        assert_eq!(text, "\\&.x \\-y \\(aqa\\(aq \\\\ \\(ti\\(ha\\(ga\n");
        let find = page(commands::find("find").unwrap());
        assert!(find.contains("\n\\fB\\-name\\fR \\fI<PATTERN>\\fR\n") && !find.contains("\\fB\\-\\-"), "{find}");
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
