//! In which manner `tabane cp` copies: what it keeps, what becomes of what is there already, what it says.

use super::facts::Facts;
use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome};
use client::{Credentials, Options};

/// What becomes of a file or link that is at the target already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    Replace,
    /// `-u`: only an older one is replaced.
    ReplaceOlder,
    /// `-n`.
    Keep,
}

impl Existing {
    /// Whether what was found at the target of a source is to stay as it is.
    pub fn stays(self, source: &Facts, found: Option<&Facts>) -> bool {
        match self {
            Existing::Replace => false,
            Existing::ReplaceOlder => found.is_some_and(|found| found.mtime >= source.mtime),
            Existing::Keep => found.is_some(),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Manner {
    pub recursive: bool,
    /// Extended attributes are kept as well, and groups that the caller is in.
    pub preserve: bool,
    /// All is kept that can be: several names of one file, and what the target's file system has a place for.
    pub archive: bool,
    pub existing: Existing,
    /// What is copied is printed.
    pub verbose: bool,
    caller: Credentials,
}

impl Manner {
    /// Errors: `Usage` when options contradict each other.
    pub fn of(arguments: &Arguments) -> Outcome<Manner> {
        let archive = arguments.flag("archive");
        let existing = match (arguments.flag("update"), arguments.flag("no-clobber")) {
            (true, true) => {
                return Err(Failure::usage(
                    "-u replaces what is older at the target, -n replaces nothing; leave one of them away",
                ));
            }
            (true, false) => Existing::ReplaceOlder,
            (false, true) => Existing::Keep,
            (false, false) => Existing::Replace,
        };
        let verbose = arguments.flag("verbose");
        if verbose && arguments.flag("json") {
            return Err(Failure::usage("-v and --json both print on standard output; leave one of them away"));
        }
        Ok(Manner {
            recursive: archive || arguments.flag("recursive"),
            preserve: archive || arguments.flag("preserve"),
            archive,
            existing,
            verbose,
            caller: Options::of_this_process().map_err(|error| Failure::failed(error.message))?.user,
        })
    }

    /// Whether a file or link that is in the way is replaced.
    pub fn replaces(&self) -> bool {
        self.existing != Existing::Keep
    }

    /// Whether a copy gets this group of its source.
    pub fn keeps_group(&self, group: u32) -> bool {
        self.preserve && self.caller.is_in_group(group)
    }
}
