//! `tabane stat`.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, about_path};
use crate::json::{Owners, entry};
use crate::paths::{inside, shown, visible};
use crate::session::Session;
use crate::text::{kind_words, mode_words, time_full};
use client::{Attributes, Cluster, FileSystem, Kind};
use reactor::process::{group_name, user_name};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};

/// `tabane stat`.
pub fn run(arguments: &Arguments) -> Outcome {
    let session = Session::open(arguments)?;
    let mut failed = false;
    let mut owners = arguments.flag("json").then(Owners::default);
    for path in arguments.operand_bytes() {
        let path = inside(&path);
        match session.block_on(describe(&session.files, &path, owners.as_mut())) {
            Ok(text) => std::io::stdout().write_all(text.as_bytes()).map_err(Failure::of_output)?,
            Err(error) => {
                failed = true;
                eprintln!("tabane: stat: {}", about_path(&path, &error));
            }
        }
    }
    if failed { Err(Failure::Said(1)) } else { Ok(()) }
}

/// A name, with control characters quoted on a terminal.
fn on_output(name: &[u8]) -> String {
    let name = if std::io::stdout().is_terminal() { visible(name) } else { name.into() };
    String::from_utf8_lossy(&name).into_owned()
}

/// For programs where there are `owners`, else for people.
async fn describe(files: &FileSystem, path: &[u8], owners: Option<&mut Owners>) -> client::Result<String> {
    let attributes = files.lstat(path).await?;
    let target = match attributes.kind {
        Kind::Symlink => Some(files.readlink(path).await?),
        _ => None,
    };
    if let Some(owners) = owners {
        return Ok(format!("{}\n", line(files.cluster(), path, &attributes, target.as_deref(), owners)));
    }
    let mut name = on_output(&shown(path));
    if let Some(target) = target {
        let _ = write!(name, " -> {}", on_output(&target));
    }
    Ok(words(files.cluster(), &name, &attributes))
}

/// Major and minor number of a device.
fn device_numbers(attributes: &Attributes) -> (u64, u64) {
    let number = u64::from(attributes.device());
    (number >> 8 & 0xfff, number & 0xff | number >> 12 & 0xfff00)
}

fn chunk_count(attributes: &Attributes) -> u64 {
    attributes.size.div_ceil(u64::from(attributes.layout.chunk_size.max(1)))
}

/// What `ls` tells, and where the inode and its chunks are.
fn line(cluster: &Cluster, path: &[u8], attributes: &Attributes, target: Option<&[u8]>, owners: &mut Owners) -> Value {
    let mut fields = entry(path, attributes, target, owners);
    let Attributes { id, kind, layout, .. } = attributes;
    fields.insert("home".to_owned(), json!({ "server": cluster.home_of(*id), "slot": id.home() }));
    if *kind == Kind::File {
        let chunks = chunk_count(attributes);
        let layout = json!({
            "chunks": chunks,
            "chunk_size": layout.chunk_size,
            "width": layout.width,
            "first_slot": layout.first,
        });
        fields.insert("layout".to_owned(), layout);
    }
    if kind.is_device() {
        let (major, minor) = device_numbers(attributes);
        fields.insert("device".to_owned(), json!({ "major": major, "minor": minor }));
    }
    Value::Object(fields)
}

fn words(cluster: &Cluster, name: &str, attributes: &Attributes) -> String {
    let Attributes { id, kind, mode, uid, gid, .. } = attributes;
    let user = user_name(*uid).map(|name| format!(" ({name})")).unwrap_or_default();
    let group = group_name(*gid).map(|name| format!(" ({name})")).unwrap_or_default();
    let home = cluster.home_of(*id).map_or("none".to_owned(), |server| format!("server {server}, slot {}", id.home()));
    let mut text = String::new();
    let _ = writeln!(text, "  path: {name}");
    let _ = writeln!(text, "  kind: {}", kind_words(attributes));
    let _ = writeln!(text, "  size: {} bytes", attributes.size);
    if kind.is_device() {
        let (major, minor) = device_numbers(attributes);
        let _ = writeln!(text, "device: {major}, {minor}");
    }
    let _ = writeln!(text, "  mode: {mode:04o} ({})", mode_words(*kind, *mode));
    let _ = writeln!(text, " owner: {uid}{user}, group {gid}{group}");
    let note = match (kind, attributes.link_count) {
        (Kind::Directory, 1) => " (not known, nor are the times: a server with entries of it does not answer)",
        _ => "",
    };
    let _ = writeln!(text, " links: {}{note}", attributes.link_count);
    let _ = writeln!(text, "access: {}", time_full(attributes.atime));
    let _ = writeln!(text, "modify: {}", time_full(attributes.mtime));
    let _ = writeln!(text, "change: {}", time_full(attributes.ctime));
    let _ = writeln!(text, "    id: {id}, home {home}");
    if *kind == Kind::File {
        let layout = &attributes.layout;
        let chunks = chunk_count(attributes);
        let _ = writeln!(
            text,
            "layout: {chunks} chunks of {} bytes over {} slots from slot {}",
            layout.chunk_size, layout.width, layout.first
        );
    }
    text
}
