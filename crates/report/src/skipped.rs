//! `tabane-report events`: what imports left out, and why.

use crate::failure::{Failure, Outcome};
use crate::options::EventsOptions;
use crate::{place, words};
use std::io::Write;

pub fn run(options: &EventsOptions) -> Outcome {
    let connection = place::open(&options.place)?;
    let failed = |error: rusqlite::Error| place::about(&options.place, &error);
    let mut statement =
        connection.prepare("SELECT source, line, why FROM events ORDER BY source, line").map_err(failed)?;
    let mut rows = statement.query([]).map_err(failed)?;
    let mut output = std::io::BufWriter::new(std::io::stdout().lock());
    while let Some(row) = rows.next().map_err(failed)? {
        let read = || Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?, row.get::<_, String>(2)?));
        let (source, line, why) = read().map_err(failed)?;
        let line = if line > 0 { format!("{line}:") } else { String::new() };
        writeln!(output, "{}:{line} {}", words::name(&source), words::name(&why)).map_err(Failure::of_output)?;
    }
    output.flush().map_err(Failure::of_output)
}
