//! `tabane salvage`: what is wrong with the store of a server that does not start, and putting right what can be.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, io_words};
use crate::json::{self, Fields, put_name};
use crate::run_directory::SETTINGS_FILE;
use crate::settings::{Settings, absolute};
use crate::text::{count_words, plural};
use reactor::{DriverKind, Reactor};
use serde_json::{Value, json};
use server::store::{Findings, StoreError};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Exit status when nothing could be looked at; 1 is that something is wrong with the store.
const EXIT_TROUBLE: u8 = 2;

/// `tabane salvage`.
pub fn run(arguments: &Arguments) -> Outcome {
    let (directory, mend) = (absolute(Path::new(&arguments.operands[0]))?, arguments.flag("mend"));
    // Before anything opens it: what does not exist would be made.
    check_directory(&directory)?;
    let reactor =
        Reactor::open(DriverKind::Auto).map_err(|error| trouble(&directory, &format!("event loop: {error}")))?;
    let storage = reactor.storage(&directory).map_err(|error| trouble(&directory, &medium_words(&error)))?;
    let findings = reactor
        .block_on(server::journal::salvage(&*storage, mend))
        .map_err(|error| trouble(&directory, &error_words(&error)))?;
    if arguments.flag("json") {
        json::print(&to_json(&directory, &findings, mend))?;
    } else {
        let text = to_text(&directory, &findings, mend);
        io::stdout().write_all(text.as_bytes()).map_err(Failure::of_output)?;
    }
    let is_left = !findings.unreadable.is_empty() || !(mend || findings.flipped.is_empty());
    if is_left { Err(Failure::Said(1)) } else { Ok(()) }
}

/// It could not be looked at.
fn trouble(directory: &Path, words: &str) -> Failure {
    eprintln!("tabane: salvage: {}: {words}", directory.display());
    Failure::Said(EXIT_TROUBLE)
}

fn medium_words(error: &io::Error) -> String {
    let advice = match error.kind() {
        io::ErrorKind::PermissionDenied => "; work as the user whose server it is",
        _ => "",
    };
    format!("{}{advice}", io_words(error))
}

fn error_words(error: &StoreError) -> String {
    match error {
        StoreError::Medium(_, error) if error.kind() == io::ErrorKind::WouldBlock => {
            "a server uses it; stop that server first".to_owned()
        }
        StoreError::Medium(attempt, error) => format!("{attempt}: {}", medium_words(error)),
        _ => error.to_string(),
    }
}

/// Refuses what is not the directory of a store, and says which may be meant.
fn check_directory(directory: &Path) -> Outcome {
    let refused = |words: &str| Err(Failure::usage(format!("{}: {words}", directory.display())));
    let is_store = |path: &Path| path.join("super").exists() || path.join("journal").exists();
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return refused("no such directory; 'tabane up' names the store in what it says of a server");
        }
        Err(error) => return Err(trouble(directory, &medium_words(&error))),
    };
    if is_store(directory) {
        return Ok(());
    }
    if let Ok(text) = fs::read_to_string(directory.join(SETTINGS_FILE))
        && let Ok(settings) = Settings::parse(&text)
    {
        let store = settings.store_of(0);
        return refused(&format!("a run directory; name the store of one server, such as {}", store.display()));
    }
    let mut stores: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| is_store(path)).collect();
    stores.sort();
    match stores.first() {
        Some(store) => {
            refused(&format!("a directory with stores in it; name one of them, such as {}", store.display()))
        }
        None => refused("there is no store in it; 'tabane up' names the store in what it says of a server"),
    }
}

fn to_text(directory: &Path, findings: &Findings, mend: bool) -> String {
    let Findings { flipped, unreadable, blocks, records } = findings;
    let store = directory.display();
    let mut text = format!(
        "store in {store}: looked at {} of the checkpoint and {} of the journal\n",
        plural(*blocks, "block"),
        plural(*records, "record")
    );
    for bit in flipped {
        let _ = writeln!(text, "{bit}: {}", if mend { "flipped, put right" } else { "flipped" });
    }
    for what in unreadable {
        let _ = writeln!(text, "can't be read: {what}");
    }
    let bits = plural(flipped.len() as u64, "flipped bit");
    text.push_str(&match (flipped.is_empty(), unreadable.is_empty(), mend) {
        (true, true, _) => {
            let words = "nothing is wrong with what a start reads; if a server says all the same that it is damaged, \
                         please report this\n";
            words.to_owned()
        }
        (false, true, false) => format!(
            "{bits}; nothing is lost: 'tabane salvage --mend {store}' puts that right, then 'tabane up' starts the \
             server\n"
        ),
        (false, true, true) => format!("{bits} put right, nothing is lost; 'tabane up' starts the server\n"),
        (_, false, _) => format!(
            "{} can't be mended, and the server will not start; keep a copy of the directory, and copy out what the \
             other servers have (docs/troubleshooting.md, \"A store is damaged, or gone\")\n",
            count_words(unreadable.len() as u64)
        ),
    });
    if !(flipped.is_empty() && unreadable.is_empty()) {
        text.push_str(
            "no kill and no full disk does this: have the memory of this machine tested, whose kernel may have logged \
             errors of it; if it is sound, please report this\n",
        );
    }
    text
}

fn to_json(directory: &Path, findings: &Findings, mend: bool) -> Value {
    let Findings { flipped, unreadable, blocks, records } = findings;
    let flipped = flipped
        .iter()
        .map(|bit| json!({ "file": bit.file, "byte": bit.offset, "bit": bit.bit, "what": bit.what }))
        .collect::<Vec<Value>>();
    let mut fields = Fields::new();
    put_name(&mut fields, "store", directory.as_os_str().as_bytes());
    fields.insert("blocks".to_owned(), json!(blocks));
    fields.insert("records".to_owned(), json!(records));
    fields.insert("mended".to_owned(), json!(mend && !flipped.is_empty()));
    fields.insert("flipped".to_owned(), Value::Array(flipped));
    fields.insert("unreadable".to_owned(), json!(unreadable));
    Value::Object(fields)
}
