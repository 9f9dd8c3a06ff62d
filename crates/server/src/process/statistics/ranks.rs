//! What each process of a parallel program waited for this server, as it says itself: the slowest holds up all others.
//!
//! Invariant: there are at most `RANK_COUNT_MAX` entries. Where more would be, one that is not connected is forgotten,
//! and if all are, the new one is not told apart.

use super::clients::ClientCounts;
use reactor::ClientCounter;
use std::collections::BTreeMap;
use std::rc::Rc;
use wire::label::{LABEL_SIZE_MAX, Label};

/// Ranks of all jobs together.
pub const RANK_COUNT_MAX: usize = 4096;
/// Ranks of a job that are told, those first that waited longest.
const TOLD_MAX: usize = 64;

/// A rank: the tag of its job, and what it is called.
pub type RankKey = (u32, Rc<str>);

/// What it did.
#[derive(Debug, Default)]
pub struct Rank {
    /// Where it runs.
    pub host: String,
    connections: u32,
    pub counts: ClientCounts,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Ranks {
    ranks: BTreeMap<RankKey, Rank>,
}

impl Ranks {
    /// A client of a job with this tag is connected. None if it names no rank.
    pub fn connect(&mut self, job: u32, label: &Label) -> Option<RankKey> {
        if label.job.is_empty() || label.rank.is_empty() {
            return None;
        }
        let key = (job, Rc::from(&*label.rank));
        if self.ranks.len() >= RANK_COUNT_MAX && !self.ranks.contains_key(&key) {
            let (gone, _) = self.ranks.iter().find(|(_, rank)| rank.connections == 0)?;
            let gone = gone.clone();
            self.ranks.remove(&gone);
        }
        let rank = self.ranks.entry(key.clone()).or_default();
        rank.connections += 1;
        rank.host.clone_from(&label.host);
        Some(key)
    }

    pub fn disconnect(&mut self, key: &RankKey) {
        if let Some(rank) = self.ranks.get_mut(key) {
            rank.connections = rank.connections.saturating_sub(1);
        }
    }

    /// It has done more.
    pub fn add(&mut self, key: &RankKey, grown: &ClientCounts) {
        if let Some(rank) = self.ranks.get_mut(key) {
            rank.counts.add(grown);
        }
    }

    /// How many a job has, and what those did that waited longest, with their names.
    pub fn of(&self, job: u32) -> (usize, Vec<(&str, &Rank)>) {
        let all = self.ranks.range((job, Rc::from(""))..).take_while(|((tag, _), _)| *tag == job);
        let mut all: Vec<(&str, &Rank)> = all.map(|((_, name), rank)| (&**name, rank)).collect();
        let count = all.len();
        all.sort_by_key(|(_, rank)| std::cmp::Reverse(rank.counts.0[ClientCounter::AnswerNs as usize]));
        all.truncate(TOLD_MAX);
        (count, all)
    }

    /// Most bytes that the table takes.
    pub fn memory_max() -> u64 {
        // Nodes of the tree may be half empty; a name is on the heap with two counts.
        (RANK_COUNT_MAX * (2 * (size_of::<RankKey>() + size_of::<Rank>()) + LABEL_SIZE_MAX)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(rank: usize) -> Label {
        Label::new("7", "0", &rank.to_string(), &format!("n{}", rank / 2), "ior")
    }

    fn waited(ns: u64) -> ClientCounts {
        let mut counts = ClientCounts::default();
        counts.0[ClientCounter::AnswerNs as usize] = ns;
        counts
    }

    /// Goal: who waited longest is told first, by job; of several connections of one rank all count.
    #[test]
    fn slowest_first() {
        let mut ranks = Ranks::default();
        assert!(ranks.connect(3, &Label::new("7", "0", "", "n0", "ior")).is_none(), "it names no rank");
        let keys: Vec<RankKey> = (0..100).map(|rank| ranks.connect(3, &label(rank)).unwrap()).collect();
        let again = ranks.connect(3, &label(13)).unwrap();
        let other = ranks.connect(4, &label(13)).unwrap();
        keys.iter().for_each(|key| ranks.add(key, &waited(10)));
        ranks.add(&again, &waited(5));
        ranks.add(&other, &waited(1_000));
        ranks.disconnect(&again);
        let (count, told) = ranks.of(3);
        assert_eq!((count, told.len()), (100, TOLD_MAX));
        let (name, rank) = told[0];
        assert_eq!((name, &*rank.host, rank.counts), ("13", "n6", waited(15)));
        assert_eq!(ranks.of(4).0, 1);
        assert_eq!(ranks.of(2).0 + ranks.of(5).0, 0);
    }

    /// Goal: however many come and go, the table is bounded; those that are connected stay.
    #[test]
    fn bounded() {
        let mut ranks = Ranks::default();
        let stays = ranks.connect(1, &label(0)).unwrap();
        for rank in 1..2 * RANK_COUNT_MAX {
            let key = ranks.connect(1, &label(rank)).unwrap();
            ranks.disconnect(&key);
        }
        ranks.add(&stays, &waited(1));
        assert_eq!((ranks.of(1).0, ranks.of(1).1[0].0), (RANK_COUNT_MAX, "0"));
        for rank in 0..RANK_COUNT_MAX {
            ranks.connect(2, &label(rank));
        }
        assert_eq!((ranks.of(1).0, ranks.of(2).0), (1, RANK_COUNT_MAX - 1));
        assert!(ranks.connect(2, &label(RANK_COUNT_MAX)).is_none(), "all are connected");
        ranks.disconnect(&(2, "x".into()));
        ranks.add(&(2, "x".into()), &waited(1));
    }
}
