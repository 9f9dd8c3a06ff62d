//! `tabane df`.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, about_path};
use crate::json;
use crate::paths::inside;
use crate::session::Session;
use crate::text::size_short;
use crate::together::join_all;
use client::total;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write as _;
use wire::messages::{BackingShare, FileSystemReply};

/// `tabane df`.
pub fn run(arguments: &Arguments) -> Outcome {
    let session = Session::open(arguments)?;
    let are_missing = say_missing(&session, &arguments.operand_bytes());
    if are_missing.contains(&true) && !are_missing.contains(&false) {
        return Err(Failure::Said(1));
    }
    let shown = show(arguments, &session);
    if are_missing.contains(&true) { shown.and(Err(Failure::Said(1))) } else { shown }
}

/// Says which paths are not there. Whether each is missing.
fn say_missing(session: &Session, paths: &[Vec<u8>]) -> Vec<bool> {
    let look = |path: &Vec<u8>| {
        let path = inside(path);
        let found = session.block_on(session.files.stat(&path));
        found.map_err(|error| eprintln!("tabane: df: {}", about_path(&path, &error))).is_err()
    };
    paths.iter().map(look).collect()
}

/// Prints the figures of all servers.
fn show(arguments: &Arguments, session: &Session) -> Outcome {
    let count = session.files.server_count();
    let replies = session.block_on(join_all((0..count).map(|server| session.files.stat_server(server))));
    if arguments.flag("json") {
        return print_json(&replies);
    }
    let human = arguments.flag("human");
    let unit = if human { "size" } else { "KiB" };
    // What is clean is neither free nor lost: it goes when there is no room.
    let has_clean = replies.iter().flatten().any(|reply| reply.backing.is_some());
    let clean = if has_clean { format!(" {:>12}", "clean") } else { String::new() };
    let mut text = format!(
        "{:<8} {unit:>12} {:>12} {:>12}{clean} {:>5} {:>12} {:>12}\n",
        "server", "used", "free", "use", "inodes", "chunks"
    );
    let mut known = Vec::new();
    let mut failed = false;
    for (server, reply) in replies.into_iter().enumerate() {
        match reply {
            Ok(reply) => {
                row(&mut text, &server.to_string(), &reply, human);
                known.push(reply);
            }
            Err(error) => {
                failed = true;
                eprintln!("tabane: df: {error}");
            }
        }
    }
    let all = total(&known);
    if known.len() > 1 {
        row(&mut text, "all", &all, human);
    }
    if let Some(backing) = &all.backing {
        row_behind(&mut text, backing, human);
    }
    std::io::stdout().write_all(text.as_bytes()).map_err(Failure::of_output)?;
    if failed { Err(Failure::Said(1)) } else { Ok(()) }
}

/// A server that does not answer has a reason instead of figures.
fn print_json(replies: &[client::Result<FileSystemReply>]) -> Outcome {
    let servers = replies.iter().enumerate().map(|(server, reply)| match reply {
        Ok(space) => {
            let mut fields = figures(space);
            fields["server"] = json!(server);
            fields
        }
        Err(error) => json!({ "server": server, "reason": error.to_string() }),
    });
    let known: Vec<FileSystemReply> = replies.iter().flatten().cloned().collect();
    let all = total(&known);
    let mut shown = json!({ "servers": servers.collect::<Vec<Value>>(), "all": figures(&all) });
    if let Some(BackingShare { space, .. }) = all.backing {
        shown["backing"] = json!(space.map(|space| json!({
            "bytes_total": space.bytes_total,
            "bytes_used": space.bytes_total.saturating_sub(space.bytes_free),
            "bytes_free": space.bytes_free,
        })));
    }
    json::print(&shown)?;
    if known.len() == replies.len() { Ok(()) } else { Err(Failure::Said(1)) }
}

fn figures(space: &FileSystemReply) -> Value {
    let mut figures = json!({
        "bytes_total": space.bytes_total,
        "bytes_used": space.bytes_total.saturating_sub(space.bytes_free),
        "bytes_free": space.bytes_free,
        "inodes": space.inodes,
        "chunks": space.chunks,
    });
    if let Some(backing) = &space.backing {
        figures["bytes_clean"] = json!(backing.bytes_clean);
    }
    figures
}

/// Sizes as they are shown: all, used and free; and the part that is used.
fn sizes(total: u64, free: u64, human: bool) -> ([String; 3], u64) {
    let used = total.saturating_sub(free);
    let share = used.checked_mul(100).and_then(|used| used.checked_div(total)).unwrap_or(0);
    ([total, used, free].map(|bytes| size(bytes, human)), share)
}

fn size(bytes: u64, human: bool) -> String {
    if human { size_short(bytes) } else { (bytes / 1024).to_string() }
}

fn row(text: &mut String, name: &str, space: &FileSystemReply, human: bool) {
    let ([total, used, free], share) = sizes(space.bytes_total, space.bytes_free, human);
    let clean = space.backing.as_ref().map(|backing| format!(" {:>12}", size(backing.bytes_clean, human)));
    let (clean, inodes, chunks) = (clean.unwrap_or_default(), space.inodes, space.chunks);
    let _ = writeln!(text, "{name:<8} {total:>12} {used:>12} {free:>12}{clean} {share:>4}% {inodes:>12} {chunks:>12}");
}

/// The file system of the backing directory.
fn row_behind(text: &mut String, backing: &BackingShare, human: bool) {
    let _ = match backing.space {
        None => writeln!(text, "behind   (nothing is heard of the file system of the backing directory)"),
        Some(space) => {
            let ([total, used, free], share) = sizes(space.bytes_total, space.bytes_free, human);
            writeln!(text, "behind   {total:>12} {used:>12} {free:>12} {:>12} {share:>4}%", "")
        }
    };
}
