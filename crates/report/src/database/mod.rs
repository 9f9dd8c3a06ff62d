//! The database that a place lies in: an SQLite file, or one of PostgreSQL ([`server`]). Statements are the same for
//! both, with the words that both have; their parameters are `?1`, `?2`, and so on. All numbers have 64 bits.

mod server;

use crate::failure::Outcome;
use rusqlite::types::ToSqlOutput;
pub use server::{Server, words as server_words};
use std::collections::HashSet;

/// Why something could not be asked or changed.
#[derive(Debug)]
pub enum Error {
    Sqlite(rusqlite::Error),
    Server(postgres::Error),
    /// A row was asked for, and there is none.
    NoRow,
}

pub type Result<T> = std::result::Result<T, Error>;

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Error {
        match error {
            rusqlite::Error::QueryReturnedNoRows => Error::NoRow,
            error => Error::Sqlite(error),
        }
    }
}

impl From<postgres::Error> for Error {
    fn from(error: postgres::Error) -> Error {
        Error::Server(error)
    }
}

/// A parameter.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    Number(Option<i64>),
    Text(Option<&'a str>),
}

impl From<i64> for Value<'_> {
    fn from(number: i64) -> Self {
        Value::Number(Some(number))
    }
}

impl From<Option<i64>> for Value<'_> {
    fn from(number: Option<i64>) -> Self {
        Value::Number(number)
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Value::Text(Some(text))
    }
}

impl<'a> From<&'a String> for Value<'a> {
    fn from(text: &'a String) -> Self {
        Value::Text(Some(text))
    }
}

impl<'a> From<&'a Option<String>> for Value<'a> {
    fn from(text: &'a Option<String>) -> Self {
        Value::Text(text.as_deref())
    }
}

/// The parameters of a statement.
macro_rules! values {
    ($($value:expr),* $(,)?) => { &[$($crate::database::Value::from($value)),*] };
}
pub(crate) use values;

impl rusqlite::ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Value::Number(number) => number.to_sql(),
            Value::Text(text) => text.to_sql(),
        }
    }
}

/// A row that a statement has found.
pub enum Row<'a> {
    Sqlite(&'a rusqlite::Row<'a>),
    Server(&'a postgres::Row),
}

impl Row<'_> {
    /// A column, by its number from 0 on.
    pub fn get<T: Column>(&self, index: usize) -> Result<T> {
        match self {
            Row::Sqlite(row) => T::of_sqlite(row, index),
            Row::Server(row) => T::of_server(row, index),
        }
    }
}

/// What a column can be: a number or a text, or either or nothing.
pub trait Column: Sized {
    fn of_sqlite(row: &rusqlite::Row<'_>, index: usize) -> Result<Self>;
    fn of_server(row: &postgres::Row, index: usize) -> Result<Self>;
}

impl<T> Column for T
where
    T: rusqlite::types::FromSql + for<'a> postgres::types::FromSql<'a>,
{
    fn of_sqlite(row: &rusqlite::Row<'_>, index: usize) -> Result<T> {
        Ok(row.get(index)?)
    }

    fn of_server(row: &postgres::Row, index: usize) -> Result<T> {
        Ok(row.try_get(index)?)
    }
}

/// See the module.
pub enum Database {
    Sqlite(rusqlite::Connection),
    Server(Box<Server>),
}

impl Database {
    /// All rows that a statement finds, each as `read` has it.
    pub fn query<T>(
        &self,
        statement: &str,
        values: &[Value<'_>],
        mut read: impl FnMut(&Row<'_>) -> Result<T>,
    ) -> Result<Vec<T>> {
        match self {
            Database::Sqlite(connection) => {
                let mut statement = connection.prepare_cached(statement)?;
                let mut rows = statement.query(rusqlite::params_from_iter(values))?;
                let mut found = Vec::new();
                while let Some(row) = rows.next()? {
                    found.push(read(&Row::Sqlite(row))?);
                }
                Ok(found)
            }
            Database::Server(server) => {
                server.query(statement, values)?.iter().map(|row| read(&Row::Server(row))).collect()
            }
        }
    }

    /// The first row, if there is one.
    pub fn first<T>(
        &self,
        statement: &str,
        values: &[Value<'_>],
        read: impl FnMut(&Row<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        Ok(self.query(statement, values, read)?.into_iter().next())
    }

    /// The only row. Errors: `NoRow` too.
    pub fn only<T>(&self, statement: &str, values: &[Value<'_>], read: impl FnMut(&Row<'_>) -> Result<T>) -> Result<T> {
        self.first(statement, values, read)?.ok_or(Error::NoRow)
    }

    /// Changes something. Returns how many rows.
    pub fn execute(&self, statement: &str, values: &[Value<'_>]) -> Result<u64> {
        match self {
            Database::Sqlite(connection) => {
                let mut statement = connection.prepare_cached(statement)?;
                Ok(statement.execute(rusqlite::params_from_iter(values))? as u64)
            }
            Database::Server(server) => server.execute(statement, values),
        }
    }

    /// Puts samples into the place, each as many numbers as its table has columns. Which of them were not there: of two
    /// with one key the first.
    pub fn insert_samples(&self, samples: &[Vec<Option<i64>>]) -> Result<Vec<bool>> {
        const COLUMNS: usize = 15;
        match self {
            Database::Sqlite(connection) => {
                let mut statement = connection.prepare_cached(
                    "INSERT INTO samples VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)
                     ON CONFLICT DO NOTHING",
                )?;
                let mut is_new = |sample: &Vec<Option<i64>>| {
                    Ok(statement.execute(rusqlite::params_from_iter(sample)).map(|changed| changed > 0)?)
                };
                samples.iter().map(&mut is_new).collect()
            }
            Database::Server(server) => {
                let rows = server.insert_rows("samples", COLUMNS, "series, time_ns", samples)?;
                let made = rows.iter().map(|row| Ok((Some(row.try_get(0)?), Some(row.try_get(1)?))));
                let mut made = made.collect::<Result<HashSet<(Option<i64>, Option<i64>)>>>()?;
                Ok(samples.iter().map(|sample| made.remove(&(sample[0], sample[1]))).collect())
            }
        }
    }

    /// Samples that are put into the place together: a server is asked for all of them at once.
    pub fn batch_size(&self) -> usize {
        match self {
            Database::Sqlite(_) => 1,
            Database::Server(_) => 1000,
        }
    }

    /// Statements without parameters.
    pub fn execute_all(&self, statements: &str) -> Result<()> {
        match self {
            Database::Sqlite(connection) => Ok(connection.execute_batch(statements)?),
            Database::Server(server) => server.execute_all(statements),
        }
    }

    /// From here on one state is seen, whatever others change.
    pub fn begin_reading(&self) -> Result<()> {
        match self {
            Database::Sqlite(_) => self.execute_all("BEGIN"),
            Database::Server(_) => self.execute_all("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"),
        }
    }

    /// What is changed from here on counts as a whole, or not at all; nobody else changes anything meanwhile.
    pub fn begin(&self) -> Result<Transaction<'_>> {
        match self {
            Database::Sqlite(_) => self.execute_all("BEGIN IMMEDIATE")?,
            Database::Server(server) => server.begin()?,
        }
        Ok(Transaction { database: self, is_open: true })
    }
}

/// Changes that do not count yet; they are undone when it is dropped.
pub struct Transaction<'a> {
    pub database: &'a Database,
    is_open: bool,
}

impl Transaction<'_> {
    pub fn commit(mut self) -> Result<()> {
        self.database.execute_all("COMMIT")?;
        self.is_open = false;
        Ok(())
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if self.is_open {
            // What can't be undone now is undone with the connection.
            let _: Result<()> = self.database.execute_all("ROLLBACK");
        }
    }
}

/// Whether a place is named by an address and not as a file.
pub fn is_address(name: &str) -> bool {
    name.contains("://")
}

/// Opens a place on a server. Errors: words.
pub fn connect(address: &str) -> Outcome<Database> {
    Server::connect(address).map(|server| Database::Server(Box::new(server)))
}
