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
use wire::messages::FileSystemReply;

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
    let mut text = format!(
        "{:<8} {unit:>12} {:>12} {:>12} {:>5} {:>12} {:>12}\n",
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
    if known.len() > 1 {
        row(&mut text, "all", &total(&known), human);
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
    json::print(&json!({ "servers": servers.collect::<Vec<Value>>(), "all": figures(&total(&known)) }))?;
    if known.len() == replies.len() { Ok(()) } else { Err(Failure::Said(1)) }
}

fn figures(space: &FileSystemReply) -> Value {
    json!({
        "bytes_total": space.bytes_total,
        "bytes_used": space.bytes_total.saturating_sub(space.bytes_free),
        "bytes_free": space.bytes_free,
        "inodes": space.inodes,
        "chunks": space.chunks,
    })
}

fn row(text: &mut String, name: &str, space: &FileSystemReply, human: bool) {
    let size = |bytes: u64| if human { size_short(bytes) } else { (bytes / 1024).to_string() };
    let used = space.bytes_total.saturating_sub(space.bytes_free);
    let share = used.checked_mul(100).and_then(|used| used.checked_div(space.bytes_total)).unwrap_or(0);
    let _ = writeln!(
        text,
        "{name:<8} {:>12} {:>12} {:>12} {share:>4}% {:>12} {:>12}",
        size(space.bytes_total),
        size(used),
        size(space.bytes_free),
        space.inodes,
        space.chunks
    );
}
