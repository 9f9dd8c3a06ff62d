//! Places in PostgreSQL: tables in a schema of their own, `tabane_report`, so that they may be in a database that a
//! site has for other things too. The address is a URI as libpq has it; what it does not say is as libpq has it too
//! (`PGHOST`, `PGPORT`, `PGUSER`, `PGDATABASE`, `PGPASSWORD`, `PGPASSFILE`, `~/.pgpass`). Connections are not
//! encrypted: a server of another host is reached through a tunnel.

use super::{Result, Value};
use crate::failure::{Failure, Outcome};
use postgres::config::{Host, SslMode};
use postgres::types::{IsNull, ToSql, Type, private::BytesMut, to_sql_checked};
use postgres::{Client, Config, NoTls, Row, Statement};
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

const SCHEMES: [&str; 2] = ["postgresql://", "postgres://"];
/// Where a server of this machine listens, as Debian's and Red Hat's packages have it.
const SOCKET_DIRECTORY: &str = "/var/run/postgresql";
const PORT: u16 = 5432;
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// How long to wait for another import.
const BUSY_TIME: &str = "10s";
/// "TABR", which only programs that write into places lock.
const LOCK: i64 = 0x5441_4252;
/// Statements that the server keeps prepared for us.
const PREPARED_MAX: usize = 64;

/// A connection.
pub struct Server {
    client: RefCell<Client>,
    prepared: RefCell<HashMap<String, Statement>>,
}

impl Server {
    /// Errors: words for what the address lacks, and what the server says.
    pub fn connect(address: &str) -> Outcome<Server> {
        let config = config_of(address)?;
        let mut client =
            config.connect(NoTls).map_err(|error| Failure::failed(format!("{address}: {}", words(&error))))?;
        let settings = format!("SET search_path TO tabane_report; SET lock_timeout TO '{BUSY_TIME}'");
        client.batch_execute(&settings).map_err(|error| Failure::failed(format!("{address}: {}", words(&error))))?;
        Ok(Server { client: RefCell::new(client), prepared: RefCell::default() })
    }

    fn prepared(&self, statement: &str, values: &[Value<'_>]) -> Result<Statement> {
        // Where a parameter is only compared with nothing, no column tells its type.
        let types: Vec<Type> = values.iter().map(Value::server_type).collect();
        // Theirs are `$1` where SQLite's are `?1`.
        self.prepared_of(&statement.replace('?', "$"), &types)
    }

    fn prepared_of(&self, statement: &str, types: &[Type]) -> Result<Statement> {
        let mut prepared = self.prepared.borrow_mut();
        if let Some(known) = prepared.get(statement) {
            return Ok(known.clone());
        }
        let made = self.client.borrow_mut().prepare_typed(statement, types)?;
        if prepared.len() >= PREPARED_MAX {
            prepared.clear();
        }
        prepared.insert(statement.to_owned(), made.clone());
        Ok(made)
    }

    pub fn query(&self, statement: &str, values: &[Value<'_>]) -> Result<Vec<Row>> {
        let statement = self.prepared(statement, values)?;
        Ok(self.client.borrow_mut().query(&statement, &parameters(values))?)
    }

    pub fn execute(&self, statement: &str, values: &[Value<'_>]) -> Result<u64> {
        let statement = self.prepared(statement, values)?;
        Ok(self.client.borrow_mut().execute(&statement, &parameters(values))?)
    }

    /// Puts rows of numbers into a table by one question, `columns` of them each. Returns the first `key` numbers of
    /// those that were not there.
    pub fn insert_rows(&self, table: &str, columns: usize, key: &str, rows: &[Vec<Option<i64>>]) -> Result<Vec<Row>> {
        let arrays: Vec<String> = (1..=columns).map(|number| format!("${number}::bigint[]")).collect();
        let statement = format!(
            "INSERT INTO {table} SELECT * FROM unnest({}) ON CONFLICT DO NOTHING RETURNING {key}",
            arrays.join(", ")
        );
        let turned: Vec<Vec<Option<i64>>> =
            (0..columns).map(|column| rows.iter().map(|row| row[column]).collect()).collect();
        let parameters: Vec<&(dyn ToSql + Sync)> = turned.iter().map(|column| column as &(dyn ToSql + Sync)).collect();
        let statement = self.prepared_of(&statement, &vec![Type::INT8_ARRAY; columns])?;
        Ok(self.client.borrow_mut().query(&statement, &parameters)?)
    }

    pub fn execute_all(&self, statements: &str) -> Result<()> {
        Ok(self.client.borrow_mut().batch_execute(statements)?)
    }

    pub fn begin(&self) -> Result<()> {
        self.execute_all(&format!("BEGIN; SELECT pg_advisory_xact_lock({LOCK})"))
    }
}

fn parameters<'a>(values: &'a [Value<'a>]) -> Vec<&'a (dyn ToSql + Sync)> {
    values.iter().map(|value| value as &(dyn ToSql + Sync)).collect()
}

impl Value<'_> {
    fn server_type(&self) -> Type {
        match self {
            Value::Number(_) => Type::INT8,
            Value::Text(_) => Type::TEXT,
        }
    }
}

impl ToSql for Value<'_> {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> std::result::Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Value::Number(number) => number.to_sql(kind, out),
            // No text of theirs has a NUL.
            Value::Text(Some(text)) if text.contains('\0') => text.replace('\0', "\u{fffd}").to_sql(kind, out),
            Value::Text(text) => text.to_sql(kind, out),
        }
    }

    fn accepts(kind: &Type) -> bool {
        <i64 as ToSql>::accepts(kind) || <&str as ToSql>::accepts(kind)
    }

    to_sql_checked!();
}

#[allow(clippy::disallowed_methods)] // As libpq does.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn config_of(address: &str) -> Outcome<Config> {
    if !SCHEMES.iter().any(|scheme| address.starts_with(scheme)) {
        let scheme = address.split_once("://").map_or("", |(scheme, _)| scheme);
        return Err(Failure::usage(format!(
            "{scheme}:// is no kind of place; name a file, or an address that begins with postgresql://"
        )));
    }
    let mut config: Config = address.parse().map_err(|error: postgres::Error| {
        Failure::usage(format!("the address of the place can't be read: {}", words(&error)))
    })?;
    if config.get_password().is_some() {
        return Err(Failure::usage(
            "an address with a password is seen by everybody on this machine; put the password into PGPASSWORD or \
             ~/.pgpass",
        ));
    }
    if !matches!(config.get_ssl_mode(), SslMode::Disable | SslMode::Prefer) {
        return Err(Failure::usage(
            "connections to places are not encrypted; leave sslmode away and use a tunnel (ssh -L)",
        ));
    }
    if config.get_hosts().is_empty() {
        config.host(variable("PGHOST").as_deref().unwrap_or(SOCKET_DIRECTORY));
    }
    if config.get_ports().is_empty() {
        config.port(variable("PGPORT").and_then(|port| port.parse().ok()).unwrap_or(PORT));
    }
    if config.get_user().is_none() {
        config.user(variable("PGUSER").or_else(|| variable("USER")).as_deref().unwrap_or("root"));
    }
    if config.get_dbname().is_none()
        && let Some(name) = variable("PGDATABASE")
    {
        config.dbname(&name);
    }
    if let Some(password) = variable("PGPASSWORD").or_else(|| password_of_file(&config)) {
        config.password(password);
    }
    config.application_name("tabane-report").connect_timeout(CONNECT_TIME);
    Ok(config)
}

/// The password that libpq's file has for such a connection: lines of host, port, database, user and password, with
/// colons between them.
fn password_of_file(config: &Config) -> Option<String> {
    let own = || Some(PathBuf::from(variable("HOME")?).join(".pgpass"));
    let text = std::fs::read_to_string(variable("PGPASSFILE").map(PathBuf::from).or_else(own)?).ok()?;
    let host = match config.get_hosts().first()? {
        Host::Tcp(name) => name.clone(),
        Host::Unix(_) => "localhost".to_owned(),
    };
    let (port, user) = (config.get_ports().first()?.to_string(), config.get_user()?);
    let wanted = [&host, &port, config.get_dbname().unwrap_or(user), user];
    text.lines().find_map(|line| password_of_line(line, wanted))
}

fn password_of_line(line: &str, wanted: [&str; 4]) -> Option<String> {
    let mut parts = vec![String::new()];
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        let is_end = letter == ':' && parts.len() < 5;
        let letter = if letter == '\\' { letters.next() } else { Some(letter) };
        match parts.last_mut() {
            Some(last) if !is_end => last.extend(letter),
            _ => parts.push(String::new()),
        }
    }
    let fits = parts.iter().zip(wanted).all(|(part, wanted)| part == "*" || part == wanted);
    (parts.len() == 5 && fits && !line.starts_with('#')).then(|| parts.swap_remove(4))
}

/// What a server says, in its own words and on one line.
pub fn words(error: &postgres::Error) -> String {
    use std::error::Error as _;
    let said = match (error.as_db_error(), error.source()) {
        (Some(said), _) => said.message().to_owned(),
        (None, Some(source)) => source.to_string(),
        (None, None) => error.to_string(),
    };
    said.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: addresses that can't be, or are not safe, are refused in words; what one does not say is filled in.
    #[test]
    fn addresses() {
        let refused = |address: &str| match config_of(address) {
            Err(Failure::Usage(words)) => words,
            other => panic!("{address}: {other:?}"),
        };
        assert!(refused("mysql://host/db").starts_with("mysql:// is no kind of place"));
        assert!(refused("postgresql://a:secret@host/db").contains("PGPASSWORD"));
        assert!(refused("postgresql://host/db?sslmode=require").contains("not encrypted"));
        assert!(refused("postgresql://host/db?nonsense=1").contains("can't be read"));
        let config = config_of("postgresql://site@db.example:5433/reports").unwrap();
        assert_eq!((config.get_user(), config.get_dbname()), (Some("site"), Some("reports")));
        assert_eq!(config.get_ports(), [5433]);
        assert!(config_of("postgresql:///reports").unwrap().get_hosts().len() == 1);
    }

    /// Goal: libpq's file of passwords is read as libpq reads it.
    #[test]
    fn passwords() {
        let wanted = ["db", "5432", "reports", "site"];
        for (line, password) in [
            ("db:5432:reports:site:secret", Some("secret")),
            ("*:*:*:site:a\\:b:c\\\\", Some("a:b:c\\")),
            ("db:5432:reports:other:secret", None),
            ("db:5432:reports:site", None),
            ("#b:5432:reports:site:secret", None),
            ("", None),
        ] {
            assert_eq!(password_of_line(line, wanted).as_deref(), password, "{line}");
        }
    }
}
