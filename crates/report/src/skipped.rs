//! `tabane-report events`: what imports left out, and why.

use crate::database;
use crate::failure::{Failure, Outcome};
use crate::options::EventsOptions;
use crate::{place, words};
use std::io::Write;

pub fn run(options: &EventsOptions) -> Outcome {
    let database = place::open(&options.place)?;
    let failed = |error: database::Error| place::about(&options.place, &error);
    let all = "SELECT source, line, why FROM events ORDER BY source, line, why";
    let read = |row: &database::Row<'_>| Ok((row.get::<String>(0)?, row.get::<i64>(1)?, row.get::<String>(2)?));
    let mut output = std::io::BufWriter::new(std::io::stdout().lock());
    for (source, line, why) in database.query(all, &[], read).map_err(failed)? {
        let line = if line > 0 { format!("{line}:") } else { String::new() };
        writeln!(output, "{}:{line} {}", words::name(&source), words::name(&why)).map_err(Failure::of_output)?;
    }
    output.flush().map_err(Failure::of_output)
}
