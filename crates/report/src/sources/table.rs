//! Tables with a line of column names: CSV, and sacct's with bars between.

use crate::words;
use std::collections::HashMap;

/// How cells are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Csv,
    /// `sacct --parsable2`: bars, and no quotes.
    Bars,
}

impl Style {
    /// The cells of one line. A cell never holds a line end, so that one stray quote can't swallow a file.
    pub fn cells(self, line: &str) -> Result<Vec<String>, String> {
        match self {
            Style::Bars => Ok(line.split('|').map(str::to_owned).collect()),
            Style::Csv => {
                let mut reader = csv::ReaderBuilder::new()
                    .has_headers(false)
                    .flexible(true)
                    .trim(csv::Trim::All)
                    .buffer_capacity(line.len().clamp(64, 1 << 16))
                    .from_reader(line.as_bytes());
                let mut record = csv::StringRecord::new();
                match reader.read_record(&mut record) {
                    Ok(_) => Ok(record.iter().map(str::to_owned).collect()),
                    Err(_) => Err("is no line of a CSV table".to_owned()),
                }
            }
        }
    }
}

/// Which columns a table has.
pub struct Columns {
    style: Style,
    places: HashMap<String, usize>,
    count: usize,
}

impl Columns {
    /// Of the first line. Errors: which column is missing, and which there are.
    pub fn of(style: Style, line: &str, needed: &[&str]) -> Result<Columns, String> {
        let names: Vec<String> = style
            .cells(line.trim_start_matches('\u{feff}'))?
            .iter()
            .map(|name| name.trim().to_ascii_lowercase())
            .collect();
        let places = names.iter().enumerate().map(|(index, name)| (name.clone(), index)).collect();
        let columns = Columns { style, places, count: names.len() };
        match needed.iter().find(|name| !columns.places.contains_key(**name)) {
            Some(missing) => Err(format!(
                "there is no column {missing} in the first line; it has {}",
                words::name(&names.join(", "))
            )),
            None => Ok(columns),
        }
    }

    pub fn row(&self, line: &str) -> Result<TableRow<'_>, String> {
        let cells = self.style.cells(line)?;
        if cells.len() < self.count {
            return Err(format!("has {} of {} columns", cells.len(), self.count));
        }
        Ok(TableRow { columns: self, cells })
    }
}

pub struct TableRow<'a> {
    columns: &'a Columns,
    cells: Vec<String>,
}

impl TableRow<'_> {
    /// A cell; empty where there is no such column.
    pub fn get(&self, column: &str) -> &str {
        self.columns.places.get(column).and_then(|place| self.cells.get(*place)).map_or("", |cell| cell.trim())
    }
}
