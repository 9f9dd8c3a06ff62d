//! The place: one SQLite file with jobs, nodes, servers, samples and events.
//!
//! Invariants: (1) the file bears our application id and the version of its schema, so that no other database is ever
//! written to; (2) whatever changes it is one transaction; (3) the times in it are nanoseconds since 1970, UTC.

use crate::failure::{Failure, Outcome};
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::path::Path;
use std::time::Duration;

/// "TABR".
const APPLICATION_ID: i64 = 0x5441_4252;
pub const SCHEMA_VERSION: i64 = 1;
/// How long to wait for another import.
const BUSY_TIME: Duration = Duration::from_secs(10);
/// Pages that SQLite keeps; what an import changes beyond that it writes out before the end.
const CACHE_KIB: i64 = 64 << 10;

/// Version 1. `job_id` is the batch system's, `lustre_id` what Lustre counts it under where that differs (Slurm's raw
/// id of an array's task). A series is what one thing of a server printed over time; its samples are counters, each
/// since `since_ns` where that is known, and unknown ones are NULL.
const SCHEMA: &str = "
CREATE TABLE jobs (
    job_id TEXT PRIMARY KEY, lustre_id TEXT, name TEXT, user TEXT, state TEXT,
    start_ns INTEGER, end_ns INTEGER, nodes TEXT
) WITHOUT ROWID;
CREATE INDEX jobs_by_lustre_id ON jobs (lustre_id) WHERE lustre_id IS NOT NULL;
CREATE TABLE nodes (name TEXT PRIMARY KEY, rack TEXT, x INTEGER, y INTEGER) WITHOUT ROWID;
CREATE TABLE node_servers (node TEXT, server TEXT, PRIMARY KEY (node, server)) WITHOUT ROWID;
CREATE TABLE servers (server INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, clock_offset_ns INTEGER);
CREATE TABLE series (
    series INTEGER PRIMARY KEY, server INTEGER NOT NULL, kind TEXT NOT NULL, part TEXT NOT NULL, job TEXT NOT NULL,
    UNIQUE (server, kind, part, job)
);
CREATE INDEX series_by_job ON series (job) WHERE job <> '';
CREATE TABLE samples (
    series INTEGER, time_ns INTEGER, snapshot_ns INTEGER, since_ns INTEGER,
    wait_count INTEGER, wait_us INTEGER, depth_count INTEGER, depth INTEGER, active_count INTEGER, active INTEGER,
    reads INTEGER, read_bytes INTEGER, writes INTEGER, write_bytes INTEGER, operations INTEGER,
    PRIMARY KEY (series, time_ns)
) WITHOUT ROWID;
CREATE TABLE events (source TEXT, line INTEGER, why TEXT, PRIMARY KEY (source, line, why)) WITHOUT ROWID;
";

/// Opens a place to be read.
pub fn open(file: &Path) -> Outcome<Connection> {
    refuse_url(file)?;
    if !file.exists() {
        return Err(Failure::failed(format!(
            "{}: there is no such place; make it with 'tabane-report import'",
            file.display()
        )));
    }
    // Only one thread has the connection, so SQLite needs no lock for each value that is read.
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection =
        Connection::open_with_flags(file, flags).and_then(prepared).map_err(|error| about(file, &error))?;
    match version(&connection).map_err(|error| about(file, &error))? {
        KnownPlace::Ours => Ok(connection),
        KnownPlace::Empty => Err(Failure::failed(format!("{}: nothing was imported into it yet", file.display()))),
        KnownPlace::Other(words) => Err(Failure::failed(format!("{}: {words}", file.display()))),
    }
}

/// Opens a place to be written to, and makes it if it is not there. Whether it was made tells the second value.
pub fn open_or_make(file: &Path) -> Outcome<(Connection, bool)> {
    refuse_url(file)?;
    let made = !file.exists();
    let connection = Connection::open(file).and_then(prepared).map_err(|error| about(file, &error))?;
    match version(&connection).map_err(|error| about(file, &error))? {
        KnownPlace::Ours | KnownPlace::Empty => Ok((connection, made)),
        KnownPlace::Other(words) => Err(Failure::failed(format!("{}: {words}", file.display()))),
    }
}

/// Makes the tables in a transaction that is open, unless they are there.
pub fn make_tables(connection: &Connection) -> rusqlite::Result<()> {
    if matches!(version(connection)?, KnownPlace::Empty) {
        connection.execute_batch(SCHEMA)?;
        connection.pragma_update(None, "application_id", APPLICATION_ID)?;
        connection.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    }
    Ok(())
}

fn prepared(connection: Connection) -> rusqlite::Result<Connection> {
    connection.busy_timeout(BUSY_TIME)?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    Ok(connection)
}

enum KnownPlace {
    Ours,
    Empty,
    Other(String),
}

fn version(connection: &Connection) -> rusqlite::Result<KnownPlace> {
    let number = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?;
    let (application, version) = (number("application_id")?, number("user_version")?);
    Ok(match (application, version) {
        (APPLICATION_ID, SCHEMA_VERSION) => KnownPlace::Ours,
        (APPLICATION_ID, _) => KnownPlace::Other(format!(
            "its schema is version {version}, this program knows version {SCHEMA_VERSION}; use the tabane-report that \
             wrote it"
        )),
        (0, 0) if tables == 0 => KnownPlace::Empty,
        _ => KnownPlace::Other("is another program's database; name a file of its own".into()),
    })
}

fn refuse_url(file: &Path) -> Outcome {
    match file.to_str() {
        Some(name) if name.contains("://") => {
            Err(Failure::usage(format!("{name}: only files are known as places so far; name a file")))
        }
        _ => Ok(()),
    }
}

/// What SQLite says of a place, with what to do.
pub fn about(file: &Path, error: &rusqlite::Error) -> Failure {
    let words = match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => "is no place: it is not an SQLite file".to_owned(),
        Some(ErrorCode::ReadOnly) => "can't be written to; see to its rights and those of its directory".to_owned(),
        Some(ErrorCode::CannotOpen) => "can't be opened; see to the rights of the file and its directory".to_owned(),
        Some(ErrorCode::PermissionDenied) => "permission denied".to_owned(),
        Some(ErrorCode::DiskFull) => "its file system is full; nothing was changed".to_owned(),
        Some(ErrorCode::DatabaseCorrupt) => "is damaged; make it anew from the logs".to_owned(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            format!("another import has been at it for {} s; try again", BUSY_TIME.as_secs())
        }
        _ => error.to_string(),
    };
    Failure::failed(format!("{}: {words}", file.display()))
}
