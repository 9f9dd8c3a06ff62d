//! Who may do what to an inode, and what becomes of its setuid and setgid bits: the rules of POSIX, and of Linux where
//! POSIX leaves it open. They are applied at the inode's home; rights of the directories on a path are checked by
//! clients.

use crate::core::Caller;
use wire::credentials::Credentials;
use wire::{Attributes, Kind};

const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

impl Caller {
    pub fn credentials(&self) -> &Credentials {
        &self.peer.user
    }

    /// Whether the caller has all rights of `access` (4 read, 2 write, 1 execute).
    pub fn may(&self, attributes: &Attributes, access: u8) -> bool {
        self.credentials().may(attributes, access)
    }

    pub fn owns(&self, attributes: &Attributes) -> bool {
        self.credentials().owns(attributes)
    }
}

/// Gives to a new inode the group of the directory that it begins in, when that has the setgid bit. Nobody makes a
/// program that runs as a group which he is not in.
pub fn inherit_group(attributes: &mut Attributes, group: Option<u32>, who: &Credentials) {
    let Some(group) = group else { return };
    attributes.gid = group;
    let runs_as_group = attributes.mode & GROUP_EXECUTE != 0 && attributes.kind != Kind::Directory;
    if runs_as_group && !who.is_root() && !who.is_in_group(group) {
        attributes.mode &= !SETGID;
    }
}

/// The permission bits that a chmod to `mode` leads to, for an inode of group `group`.
pub fn chosen_mode(mode: u32, group: u32, who: &Credentials) -> u32 {
    let mode = mode & 0o7777;
    if who.is_root() || who.is_in_group(group) { mode } else { mode & !SETGID }
}

/// What chown leaves of a mode: the rights of programs that were given in the name of the former owner end.
pub fn drop_for_owner(attributes: &mut Attributes, who: &Credentials) {
    let keeps_setgid = attributes.mode & GROUP_EXECUTE == 0 && (who.is_root() || who.is_in_group(attributes.gid));
    if attributes.kind != Kind::Directory {
        attributes.mode &= if keeps_setgid { !SETUID } else { !(SETUID | SETGID) };
    }
}

/// Whether a mode has bits that a change of the contents may take away.
pub fn has_dropped_bits(mode: u32) -> bool {
    mode & (SETUID | SETGID) != 0
}

/// What a change of its contents leaves of a file's mode.
pub fn drop_for_contents(attributes: &mut Attributes, who: &Credentials) {
    if attributes.mode & (SETUID | SETGID) != 0 && !who.is_root() {
        drop_for_owner(attributes, who);
    }
}

/// The same at the home when the contents change elsewhere, by a user whom the home is not told.
pub fn drop_for_announced(attributes: &mut Attributes) {
    let runs_as_group = attributes.mode & GROUP_EXECUTE != 0;
    attributes.mode &= if runs_as_group { !(SETUID | SETGID) } else { !SETUID };
}
