//! `tabane status --lost`: what can't be had while servers are down.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, show};
use crate::hosts::HostsRecord;
use crate::json::{Fields, put_name};
use crate::session::Session;
use crate::text::{count_words, plural};
use client::Kind;
use client::check::{Lost, LostCounts};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Lists it. `gone` are the servers that do not answer, with the reason. Exit status 1 unless all servers are up.
pub fn run(
    arguments: &Arguments,
    session: &Session,
    run_directory: Option<&Path>,
    gone: BTreeMap<u32, String>,
) -> Outcome {
    let is_json = arguments.flag("json");
    let record = run_directory.and_then(HostsRecord::of);
    for (server, reason) in &gone {
        let host = record.as_ref().map(|record| format!(" on host {}", record.name_of(*server))).unwrap_or_default();
        eprintln!("tabane: status: {reason}{host}");
    }
    let down = gone.into_keys().collect::<std::collections::BTreeSet<u32>>();
    if down.is_empty() {
        let text = if is_json {
            summary_json(&LostCounts::default(), &[])
        } else {
            "all servers are up: nothing is lost\n".to_owned()
        };
        return std::io::stdout().write_all(text.as_bytes()).map_err(Failure::of_output);
    }
    if down.len() == session.files.server_count() as usize {
        return Err(Failure::failed("no server is up, so nobody knows what is lost; 'tabane up' starts them again"));
    }
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut said = Ok(());
    let mut tell = |lost: Lost| {
        let line = if is_json { format!("{}\n", lost_json(&lost)) } else { lost_line(&lost) };
        said = out.write_all(line.as_bytes());
        said.is_ok()
    };
    let counts =
        session.block_on(session.files.list_lost(&down, &mut tell)).map_err(|error| Failure::failed(error.message))?;
    let servers: Vec<u32> = down.into_iter().collect();
    let end = if is_json { summary_json(&counts, &servers) } else { String::new() };
    said.and_then(|()| out.write_all(end.as_bytes())).and_then(|()| out.flush()).map_err(Failure::of_output)?;
    let listed: Vec<String> = servers.iter().map(u32::to_string).collect();
    let LostCounts { inodes, chunks, names, rests } = counts;
    Err(Failure::failed(format!(
        "without server {}: {} with the name here and the inode there, {} with chunks there, {} there, of {} only a \
         rest is here; what was there as a whole is not known",
        listed.join(", "),
        plural(inodes, "file"),
        count_words(chunks),
        plural(names, "name"),
        count_words(rests)
    )))
}

fn kind_word(kind: Option<Kind>) -> &'static str {
    match kind {
        None | Some(Kind::File) => "file",
        Some(Kind::Directory) => "directory",
        Some(Kind::Symlink) => "symlink",
        Some(Kind::Fifo) => "pipe",
        Some(Kind::Socket) => "socket",
        Some(Kind::CharacterDevice | Kind::BlockDevice) => "device",
    }
}

fn numbers(servers: &[u32]) -> String {
    let words: Vec<String> = servers.iter().map(u32::to_string).collect();
    if words.is_empty() { "-".to_owned() } else { words.join(",") }
}

/// `chunks  2  file  /a/b`: what is lost, the servers that have it, the kind, and the path or the id.
fn lost_line(lost: &Lost) -> String {
    let place = match &lost.path {
        Some(path) => show(path),
        None => format!("<{}>", lost.id),
    };
    format!("{:<6}  {:>4}  {:<9}  {place}\n", lost.part.word(), numbers(&lost.servers), kind_word(lost.kind))
}

fn lost_json(lost: &Lost) -> Value {
    let mut fields = Fields::new();
    fields.insert("lost".to_owned(), json!(lost.part.word()));
    fields.insert("servers".to_owned(), json!(lost.servers));
    fields.insert("kind".to_owned(), json!(kind_word(lost.kind)));
    fields.insert("id".to_owned(), json!(lost.id.to_string()));
    match &lost.path {
        Some(path) => put_name(&mut fields, "path", path),
        None => drop(fields.insert("path".to_owned(), Value::Null)),
    }
    Value::Object(fields)
}

fn summary_json(counts: &LostCounts, servers: &[u32]) -> String {
    let LostCounts { inodes, chunks, names, rests } = counts;
    let summary = json!({ "down": servers, "inode": inodes, "chunks": chunks, "name": names, "rest": rests });
    format!("{summary}\n")
}
