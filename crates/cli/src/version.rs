//! Which build this is. `make` says the commit; see scripts/revision.sh.

/// The line of `--version`: the program's name, its version, and the commit it was built from.
pub fn line(program: &str) -> String {
    let revision = match option_env!("TABANE_REVISION") {
        Some(words) if !words.is_empty() => words,
        _ => "commit not recorded: not built by make",
    };
    format!("{program} {} ({revision})\n", env!("CARGO_PKG_VERSION"))
}
