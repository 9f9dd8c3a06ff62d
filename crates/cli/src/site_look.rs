//! A look at a directory of somebody else's file system, which may never answer. Another process has it: who waits for
//! such a file system can't be ended by anybody before it answers, and would keep this command from ending too.

use crate::failure::{Failure, Outcome, io_words};
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The word by which this program is told to be that process.
pub const WORD: &str = "--look-at-site";

/// What there is.
#[derive(Debug, PartialEq, Eq)]
pub struct SiteLook {
    /// The path without links on the way.
    pub path: PathBuf,
    pub is_directory: bool,
    /// The inode's number, and that of its file system, which is 0 where that does not say.
    pub inode: u64,
    pub file_system: u64,
}

fn look(path: &Path) -> io::Result<SiteLook> {
    let facts = std::fs::metadata(path)?;
    Ok(SiteLook {
        path: path.canonicalize()?,
        is_directory: facts.is_dir(),
        inode: facts.ino(),
        file_system: reactor::process::file_system_number(path)?,
    })
}

/// The process that looks: prints what there is at the path, or an error's number.
pub fn run(words: &[OsString]) -> Outcome {
    let [path] = words else { return Err(Failure::usage(format!("{WORD} takes a path"))) };
    let told = match look(Path::new(path)) {
        Ok(look) => json!({
            "path": look.path.as_os_str().as_bytes(),
            "is_directory": look.is_directory,
            "inode": look.inode,
            "file_system": look.file_system,
        }),
        Err(error) => json!({ "errno": error.raw_os_error().unwrap_or(libc::EIO) }),
    };
    io::stdout().write_all(told.to_string().as_bytes()).map_err(Failure::of_output)
}

/// What there is at a path; nothing if that is not told within a time. Errors: it can't be looked at; or, as a failure,
/// the process that is to look can't be started.
pub fn look_at(path: &Path, time: Duration) -> Outcome<Option<io::Result<SiteLook>>> {
    let failed = |error: io::Error| Failure::failed(format!("a process that looks at a path: {}", io_words(&error)));
    let program = std::env::current_exe().map_err(failed)?;
    let (mut own, other) = UnixStream::pair().map_err(failed)?;
    own.set_read_timeout(Some(time)).map_err(failed)?;
    let mut child = {
        let mut command = Command::new(program);
        command.arg(WORD).arg(path).stdin(Stdio::null()).stdout(OwnedFd::from(other)).stderr(Stdio::null());
        // With the command its end of the stream goes, so that the stream ends with the process.
        command.spawn().map_err(failed)?
    };
    let mut text = Vec::new();
    match own.read_to_end(&mut text) {
        // It tells everything at once. If it does not, it ends when it can, and nobody waits for that.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            let _ = child.kill();
            return Ok(None);
        }
        read => drop(read.map_err(failed)?),
    }
    child.wait().map_err(failed)?;
    let value: Value = serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
    Ok(Some(parse(&value).unwrap_or_else(|| Err(errno_of(&value)))))
}

fn parse(value: &Value) -> Option<io::Result<SiteLook>> {
    let bytes = value["path"].as_array()?.iter().map(|byte| u8::try_from(byte.as_u64()?).ok());
    Some(Ok(SiteLook {
        path: PathBuf::from(OsStr::from_bytes(&bytes.collect::<Option<Vec<u8>>>()?)),
        is_directory: value["is_directory"].as_bool()?,
        inode: value["inode"].as_u64()?,
        file_system: value["file_system"].as_u64()?,
    }))
}

fn errno_of(value: &Value) -> io::Error {
    let number = value["errno"].as_i64().and_then(|number| i32::try_from(number).ok());
    io::Error::from_raw_os_error(number.unwrap_or(libc::EIO))
}
