//! `tabane chmod`, `chown` and `chgrp`.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, about_path};
use crate::mode::ModeChange;
use crate::paths::{inside, join};
use crate::session::Session;
use client::{AttributeChanges, Attributes, FileSystem, Kind};
use reactor::process::{group_id, user_id};

/// `tabane chmod`.
pub fn run_chmod(arguments: &Arguments) -> Outcome {
    let text = first_operand(arguments);
    let change = ModeChange::parse(&text)
        .ok_or_else(|| Failure::usage(format!("{text} is no mode: give an octal number, or such as u=rwx,go-w")))?;
    let session = Session::open(arguments)?;
    let umask = session.files.options().umask;
    change_all(arguments, &session, &|attributes: &Attributes| {
        let mode = change.apply(attributes.mode, attributes.kind == Kind::Directory, umask);
        AttributeChanges { mode: Some(mode), ..AttributeChanges::default() }
    })
}

/// `tabane chown`.
pub fn run_chown(arguments: &Arguments) -> Outcome {
    let text = first_operand(arguments);
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, group),
        None => (text.as_str(), ""),
    };
    let uid = if user.is_empty() { None } else { Some(id_of(user, user_id(user), "user")?) };
    let gid = if group.is_empty() { None } else { Some(id_of(group, group_id(group), "group")?) };
    change_owner(arguments, uid, gid)
}

/// `tabane chgrp`.
pub fn run_chgrp(arguments: &Arguments) -> Outcome {
    let text = first_operand(arguments);
    let gid = id_of(&text, group_id(&text), "group")?;
    change_owner(arguments, None, Some(gid))
}

fn change_owner(arguments: &Arguments, uid: Option<u32>, gid: Option<u32>) -> Outcome {
    let session = Session::open(arguments)?;
    change_all(arguments, &session, &|_: &Attributes| AttributeChanges { uid, gid, ..AttributeChanges::default() })
}

fn first_operand(arguments: &Arguments) -> String {
    let operands = arguments.operand_bytes();
    String::from_utf8_lossy(&operands[0]).into_owned()
}

/// A user or group by name, or by number when nobody has such a name.
fn id_of(text: &str, named: Option<u32>, what: &str) -> Result<u32, Failure> {
    let id = named.or_else(|| text.parse().ok().filter(|id| *id != u32::MAX));
    id.ok_or_else(|| Failure::usage(format!("there is no {what} {text}")))
}

/// Changes every path, and with --recursive what is beneath; goes on after failures, which are said at once.
fn change_all(arguments: &Arguments, session: &Session, changes: &dyn Fn(&Attributes) -> AttributeChanges) -> Outcome {
    let mut failed = false;
    let recursive = arguments.flag("recursive");
    for operand in &arguments.operand_bytes()[1..] {
        let mut paths = vec![(inside(operand), !recursive)];
        while let Some((path, follow)) = paths.pop() {
            let changed = session.block_on(change(&session.files, &path, follow, changes));
            let found = match changed {
                Ok(kind) if recursive && kind == Kind::Directory => session.block_on(names(&session.files, &path)),
                Ok(_) => Ok(Vec::new()),
                Err(error) => Err(error),
            };
            match found {
                Ok(names) => paths.extend(names.iter().map(|name| (join(&path, name), false))),
                Err(error) => {
                    failed = true;
                    eprintln!("tabane: {}: {}", arguments.command.name, about_path(&path, &error));
                }
            }
        }
    }
    if failed { Err(Failure::Said(1)) } else { Ok(()) }
}

/// Changes one path. The mode of a symbolic link is nobody's business; its owner is its own.
async fn change(
    files: &FileSystem,
    path: &[u8],
    follow: bool,
    changes: &dyn Fn(&Attributes) -> AttributeChanges,
) -> client::Result<Kind> {
    let attributes = if follow { files.stat(path).await? } else { files.lstat(path).await? };
    let changes = changes(&attributes);
    if changes.mode.is_none() || attributes.kind != Kind::Symlink {
        files.set_attributes(path, follow, &changes).await?;
    }
    Ok(attributes.kind)
}

async fn names(files: &FileSystem, path: &[u8]) -> client::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    files
        .read_directory(path, &mut |entry| {
            names.push(entry.name.clone());
            true
        })
        .await?;
    Ok(names)
}
