//! What commands share that print JSON for programs; docs/json.md has the fields of each.
//!
//! Invariant: a name is told exactly, whatever bytes it has: as text, in which U+FFFD stands for what is no UTF-8, and
//! then once more as base64, in a field of the same name with `_base64` behind it.

use crate::base64;
use crate::failure::{Failure, Outcome};
use crate::paths::shown;
use client::{Attributes, Kind};
use reactor::Nanos;
use reactor::process::{group_name, user_name};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::io::{self, Write};

/// The fields of one object.
pub type Fields = Map<String, Value>;

/// Puts a name or a path into an object.
pub fn put_name(fields: &mut Fields, field: &str, name: &[u8]) {
    fields.insert(field.to_owned(), Value::from(String::from_utf8_lossy(name)));
    if std::str::from_utf8(name).is_err() {
        fields.insert(format!("{field}_base64"), Value::from(base64::encode(name)));
    }
}

/// An object with a path inside the cluster and other fields, on a line of its own.
pub fn write_path_line(output: &mut impl Write, path: &[u8], fields: Value) -> io::Result<()> {
    let Value::Object(mut fields) = fields else { unreachable!("fields are an object") };
    put_name(&mut fields, "path", path);
    writeln!(output, "{}", Value::Object(fields))
}

/// Prints a document.
pub fn print(document: &Value) -> Outcome {
    io::stdout().write_all(format!("{document:#}\n").as_bytes()).map_err(Failure::of_output)
}

/// A duration in seconds, to the microsecond.
pub fn seconds(duration: Nanos) -> f64 {
    (duration / 1000) as f64 / 1e6
}

/// A type of inodes in one word.
pub fn kind_word(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Directory => "directory",
        Kind::Symlink => "symlink",
        Kind::Fifo => "pipe",
        Kind::Socket => "socket",
        Kind::CharacterDevice => "character-device",
        Kind::BlockDevice => "block-device",
    }
}

/// Names of users or groups that were looked up; the numbers of those that have none.
#[derive(Default)]
pub struct Owners {
    users: HashMap<u32, Option<String>>,
    groups: HashMap<u32, Option<String>>,
}

impl Owners {
    pub fn user(&mut self, uid: u32) -> Option<&str> {
        self.users.entry(uid).or_insert_with(|| user_name(uid)).as_deref()
    }

    pub fn group(&mut self, gid: u32) -> Option<&str> {
        self.groups.entry(gid).or_insert_with(|| group_name(gid)).as_deref()
    }
}

/// What `ls` and `stat` tell of an entry. Times are nanoseconds since 1970, sizes bytes, the mode is in octal.
pub fn entry(path: &[u8], attributes: &Attributes, target: Option<&[u8]>, owners: &mut Owners) -> Fields {
    let mut fields = Fields::new();
    put_name(&mut fields, "path", &shown(path));
    if let Some(target) = target {
        put_name(&mut fields, "target", target);
    }
    let facts = json!({
        "type": kind_word(attributes.kind),
        "mode": format!("{:04o}", attributes.mode),
        "links": attributes.link_count,
        "uid": attributes.uid,
        "gid": attributes.gid,
        "user": owners.user(attributes.uid),
        "group": owners.group(attributes.gid),
        "bytes": attributes.size,
        "atime_ns": attributes.atime,
        "mtime_ns": attributes.mtime,
        "ctime_ns": attributes.ctime,
        "id": attributes.id.to_string(),
    });
    if let Value::Object(facts) = facts {
        fields.extend(facts);
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: names of any bytes make valid JSON, and those that are no text are there exactly as well.
    #[test]
    fn names() {
        let mut line = Vec::new();
        write_path_line(&mut line, b"/a\"\\\n\xff", json!({ "bytes": 3 })).unwrap();
        let line: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(line, json!({ "bytes": 3, "path": "/a\"\\\n\u{fffd}", "path_base64": "L2EiXAr/" }));
        let mut line = Vec::new();
        write_path_line(&mut line, "/é".as_bytes(), json!({})).unwrap();
        assert_eq!(line, "{\"path\":\"/é\"}\n".as_bytes());
    }
}
