//! On whose behalf a request is. The kernel tells user and group; supplementary groups are read from `/proc`, where the
//! process that waits for its request can be found.

use crate::protocol::Header;
use client::{Credentials, Groups};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Processes whose groups are remembered.
const KNOWN_COUNT_MAX: usize = 1024;
/// How often what is remembered of a process is used before it is read again.
const USE_COUNT_MAX: u32 = 256;
/// Calls of `age` that it is remembered for: three quarters of a second to one.
const AGE_MAX: u32 = 3;

struct Known {
    groups: Groups,
    use_count: u32,
    /// Calls of `age` since it was read.
    age: u32,
}

/// Finds out who callers are.
#[derive(Default)]
pub struct Callers(Mutex<HashMap<(u32, u32, u32), Known>>);

impl Callers {
    /// Who asks, by what is known of that process.
    pub fn of(&self, header: &Header) -> Credentials {
        let (uid, gid) = (header.uid, header.gid);
        if uid == 0 {
            return Credentials::new(uid, gid);
        }
        let key = (header.pid, uid, gid);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(process) = known.get_mut(&key).filter(|process| process.use_count < USE_COUNT_MAX) {
            process.use_count += 1;
            return Credentials { uid, gid, groups: process.groups.clone() };
        }
        let groups = groups_of(header.pid);
        if known.len() >= KNOWN_COUNT_MAX {
            known.clear();
        }
        known.insert(key, Known { groups: groups.clone(), use_count: 0, age: 0 });
        Credentials { uid, gid, groups }
    }

    /// Time has passed.
    pub fn age(&self) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, process| {
            process.age += 1;
            process.age <= AGE_MAX
        });
    }

    /// Forgets what is known of a process that was refused something. True if its groups are others by now.
    pub fn changed(&self, header: &Header, before: &Credentials) -> bool {
        if header.uid == 0 {
            return false;
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.remove(&(header.pid, header.uid, header.gid));
        groups_of(header.pid) != before.groups
    }
}

/// The supplementary groups of a thread, as proc(5) has them; none when it is not to be found.
fn groups_of(pid: u32) -> Groups {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    let groups: Vec<u32> = line.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
    Groups::new(&groups)
}
