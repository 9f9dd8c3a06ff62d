//! `tabane chmod`, `chown` and `chgrp`.

use crate::activity::{Activity, Prints};
use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, about_path};
use crate::json;
use crate::mode::ModeChange;
use crate::paths::{inside, join};
use crate::session::Session;
use crate::text::count_words;
use crate::up::catch_signals;
use crate::work::{Urgency, Work, run_all, run_until_asked};
use client::{AttributeChanges, Attributes, FileSystem, Kind, Status};
use reactor::process::{group_id, user_id};
use serde_json::json;
use std::cell::Cell;
use std::rc::Rc;

const ENTRIES_MAX: usize = 1 << 18;

/// `tabane chmod`.
pub fn run_chmod(arguments: &Arguments) -> Outcome {
    let text = first_operand(arguments);
    let change = ModeChange::parse(&text)
        .ok_or_else(|| Failure::usage(format!("{text} is no mode: give an octal number, or such as u=rwx,go-w")))?;
    let session = Session::open(arguments)?;
    let umask = session.files.options().umask;
    change_all(arguments, &session, move |attributes: &Attributes| {
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
    change_all(arguments, &session, move |_: &Attributes| AttributeChanges { uid, gid, ..AttributeChanges::default() })
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

/// What is to be changed: the operand itself, or an entry that was listed on the way.
struct RightsChange {
    path: Vec<u8>,
    /// As listed, if the server that listed it has them.
    attributes: Option<Attributes>,
    /// What a link leads to is changed, not the link.
    follow: bool,
}

struct Changing {
    command: &'static str,
    files: FileSystem,
    work: Rc<Work<RightsChange>>,
    changes: Box<Changes>,
    recursive: bool,
    activity: Activity,
    failures: Cell<u64>,
}

type Changes = dyn Fn(&Attributes) -> AttributeChanges;

/// Changes every path, and with --recursive what is beneath; goes on after failures, which are said at once. A
/// directory is changed before it is listed, for only then its owner may be allowed to.
fn change_all(
    arguments: &Arguments,
    session: &Session,
    changes: impl Fn(&Attributes) -> AttributeChanges + 'static,
) -> Outcome {
    let recursive = arguments.flag("recursive");
    let changing = Rc::new(Changing {
        command: arguments.command.name,
        files: session.files.clone(),
        work: Work::new(ENTRIES_MAX),
        changes: Box::new(changes),
        recursive,
        activity: Activity::new("changed"),
        failures: Cell::new(0),
    });
    let signals = catch_signals(&session.reactor)?;
    let started = session.reactor.now();
    for operand in arguments.operand_bytes()[1..].iter().rev() {
        changing.push(RightsChange { path: inside(operand), attributes: None, follow: !recursive });
    }
    let interrupted = session.block_on(async {
        let (own, jobs) = (changing.clone(), arguments.number("jobs") as usize);
        let handle = async move |item| own.handle(item).await;
        let changed = run_all(&session.reactor, jobs, &changing.work, handle);
        let shown = changing.activity.show(&session.reactor, arguments, Prints::AtTheEnd);
        run_until_asked(&session.reactor, &signals, &changing.work, changed, shown).await
    });
    if arguments.flag("json") {
        json::print(&json!({
            "changed": changing.activity.done.get(),
            "failures": changing.failures.get(),
            "seconds": json::seconds(session.reactor.now() - started),
            "interrupted": interrupted.is_some(),
        }))?;
    }
    if interrupted.is_some() {
        let count = count_words(changing.activity.done.get());
        eprintln!("tabane: {}: interrupted: {count} changed, all else is as it was", changing.command);
    }
    match interrupted {
        Some(signal) => Err(Failure::Said(signal.exit_code())),
        None if changing.failures.get() > 0 => Err(Failure::Said(1)),
        None => Ok(()),
    }
}

impl Changing {
    fn push(&self, item: RightsChange) {
        self.activity.add_found();
        self.work.push(Urgency::First, item);
    }

    async fn handle(&self, item: RightsChange) {
        if let Err(error) = self.change_and_list(&item).await {
            self.failures.set(self.failures.get() + 1);
            self.activity.clear();
            eprintln!("tabane: {}: {}", self.command, about_path(&item.path, &error));
        }
    }

    async fn change_and_list(&self, item: &RightsChange) -> client::Result<()> {
        let kind = self.change(item).await?;
        self.activity.add_done();
        if !self.recursive || kind != Kind::Directory {
            return Ok(());
        }
        let mut stream = self.files.open_directory(&item.path, true).await?;
        while !stream.is_at_end() && !self.work.is_stopped() {
            for entry in self.files.next_page(&mut stream).await? {
                let path = join(&item.path, &entry.name);
                self.push(RightsChange {
                    path,
                    attributes: entry.attributes.map(|attributes| *attributes),
                    follow: false,
                });
            }
        }
        Ok(())
    }

    /// Changes one path. The mode of a symbolic link is nobody's business; its owner is its own.
    async fn change(&self, item: &RightsChange) -> client::Result<Kind> {
        let attributes = match &item.attributes {
            Some(listed) => listed.clone(),
            None if item.follow => self.files.stat(&item.path).await?,
            None => self.files.lstat(&item.path).await?,
        };
        let changes = (self.changes)(&attributes);
        if changes.mode.is_some() && attributes.kind == Kind::Symlink {
            return Ok(attributes.kind);
        }
        let changed = self.files.set_attributes_id(attributes.id, &changes).await;
        if changed.as_ref().is_err_and(|error| matches!(error.status, Status::NotFound | Status::StaleFile)) {
            // The name stands for something else by now, or for nothing.
            self.files.set_attributes(&item.path, item.follow, &changes).await?;
        } else {
            changed?;
        }
        Ok(attributes.kind)
    }
}
