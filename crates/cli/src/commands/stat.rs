//! `tabane stat`.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, about_path};
use crate::paths::{inside, shown, visible};
use crate::session::Session;
use crate::text::{kind_words, mode_words, time_full};
use client::{Attributes, Cluster, FileSystem, Kind};
use reactor::process::{group_name, user_name};
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};

/// `tabane stat`.
pub fn run(arguments: &Arguments) -> Outcome {
    let session = Session::open(arguments)?;
    let mut failed = false;
    for path in arguments.operand_bytes() {
        let path = inside(&path);
        match session.block_on(describe(&session.files, &path)) {
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

async fn describe(files: &FileSystem, path: &[u8]) -> client::Result<String> {
    let attributes = files.lstat(path).await?;
    let mut name = on_output(&shown(path));
    if attributes.kind == Kind::Symlink {
        let target = files.readlink(path).await?;
        let _ = write!(name, " -> {}", on_output(&target));
    }
    Ok(words(files.cluster(), &name, &attributes))
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
        let number = attributes.device();
        let _ = writeln!(text, "device: {}, {}", number >> 8 & 0xfff, number & 0xff | number >> 12 & 0xfff00);
    }
    let _ = writeln!(text, "  mode: {mode:04o} ({})", mode_words(*kind, *mode));
    let _ = writeln!(text, " owner: {uid}{user}, group {gid}{group}");
    let _ = writeln!(text, " links: {}", attributes.link_count);
    let _ = writeln!(text, "access: {}", time_full(attributes.atime));
    let _ = writeln!(text, "modify: {}", time_full(attributes.mtime));
    let _ = writeln!(text, "change: {}", time_full(attributes.ctime));
    let _ = writeln!(text, "    id: {id}, home {home}");
    if *kind == Kind::File {
        let layout = &attributes.layout;
        let chunks = attributes.size.div_ceil(u64::from(layout.chunk_size.max(1)));
        let _ = writeln!(
            text,
            "layout: {chunks} chunks of {} bytes over {} slots from slot {}",
            layout.chunk_size, layout.width, layout.first
        );
    }
    text
}
