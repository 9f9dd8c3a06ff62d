//! Connections whose peers have not proved themselves yet: how many there may be, and which of them goes when another
//! one comes.
//!
//! Invariants
//! 1. There are at most `STRANGERS_MAX` of them. Who is refused has cost a descriptor, and nothing was allocated for
//!    it.
//! 2. Who has sent nothing that only a holder of the key can make goes before everybody who has. Of these the origin
//!    that has most of them gives up its oldest one, so that nobody can take places from others by coming often.
//! 3. Who has sent such a thing keeps its place for `VOUCHED_NS`: meanwhile others wait in the kernel's queue of
//!    connections. So a crowd of key holders waits its turn, and is not thrown out by its own later members.

use crate::{Nanos, Stream};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Connections that may be unproven at a time, beyond `connections_max`.
pub const STRANGERS_MAX: usize = 256;
/// Memory of this process that one of them may hold: its task, its message, and what of the memory that it shares with
/// us was looked at.
pub const STRANGER_SIZE: usize = 16 << 10;
pub const STRANGER_SHARED_SIZE: usize = 256 << 10;
/// How long a holder of the key may take for the rest of the handshake while others want its place.
const VOUCHED_NS: Nanos = 1_000_000_000;

/// Where a connection comes from, for budgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StrangerOrigin {
    /// A user of this machine, by whichever way.
    User(u32),
    /// A host; of IPv6 its network, for within one a single machine may take any number of addresses.
    HostV4(u32),
    NetworkV6(u64),
    /// Another connection that carries it.
    Tunnel(u64),
    Unknown,
}

impl StrangerOrigin {
    /// Of a connection that was accepted.
    pub fn of(stream: &Stream) -> StrangerOrigin {
        if let Some(user) = stream.origin_user() {
            return StrangerOrigin::User(user);
        }
        match stream.peer_address().map(|address| address.ip().to_canonical()) {
            Ok(IpAddr::V4(address)) => StrangerOrigin::HostV4(address.to_bits()),
            Ok(IpAddr::V6(address)) => StrangerOrigin::NetworkV6((address.to_bits() >> 64) as u64),
            Err(_) => StrangerOrigin::Unknown,
        }
    }
}

struct Stranger<T> {
    source: StrangerOrigin,
    connection: T,
    /// Since when a holder of the key, if it is one.
    vouched: Option<Nanos>,
}

/// Those of one kind by their sources, each from the oldest to the newest.
type BySource = BTreeMap<StrangerOrigin, BTreeSet<u64>>;

/// What becomes of the next connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    Free,
    /// This one has to go for it.
    Instead(u64),
    /// There is none before this time.
    NotBefore(Nanos),
}

/// All of them, by the order in which they came; `T` is a connection.
pub(super) struct Strangers<T> {
    all: BTreeMap<u64, Stranger<T>>,
    silent: BySource,
    vouched: BySource,
    next: u64,
}

impl<T> Strangers<T> {
    pub fn new() -> Strangers<T> {
        Strangers { all: BTreeMap::new(), silent: BTreeMap::new(), vouched: BTreeMap::new(), next: 0 }
    }

    pub fn room(&self, now: Nanos) -> Room {
        if self.all.len() < STRANGERS_MAX {
            return Room::Free;
        }
        if let Some(oldest) = oldest_of_most(&self.silent) {
            return Room::Instead(oldest);
        }
        let Some(oldest) = oldest_of_most(&self.vouched) else { unreachable!("everybody is of one kind") };
        match self.all.get(&oldest).and_then(|stranger| stranger.vouched) {
            Some(since) if now < since + VOUCHED_NS => Room::NotBefore(since + VOUCHED_NS),
            _ => Room::Instead(oldest),
        }
    }

    /// Takes one in, for which there has to be room. The number names it.
    pub fn enter(&mut self, source: StrangerOrigin, connection: T) -> u64 {
        assert!(self.all.len() < STRANGERS_MAX, "somebody goes first");
        self.next += 1;
        self.all.insert(self.next, Stranger { source, connection, vouched: None });
        self.silent.entry(source).or_default().insert(self.next);
        self.next
    }

    /// Only a holder of the key can have sent what this one has sent. False if it had to go meanwhile.
    pub fn vouch(&mut self, number: u64, now: Nanos) -> bool {
        let Some(stranger) = self.all.get_mut(&number) else { return false };
        if stranger.vouched.is_none() {
            stranger.vouched = Some(now);
            remove(&mut self.silent, stranger.source, number);
            self.vouched.entry(stranger.source).or_default().insert(number);
        }
        true
    }

    /// Takes one out that has proved itself, or has gone. Nothing if it was taken out before.
    pub fn leave(&mut self, number: u64) -> Option<T> {
        let stranger = self.all.remove(&number)?;
        let kind = if stranger.vouched.is_some() { &mut self.vouched } else { &mut self.silent };
        remove(kind, stranger.source, number);
        Some(stranger.connection)
    }

    /// The next one to go where room is needed for other reasons.
    pub fn least_wanted(&self) -> Option<u64> {
        oldest_of_most(&self.silent)
    }
}

fn remove(kind: &mut BySource, source: StrangerOrigin, number: u64) {
    if let Some(numbers) = kind.get_mut(&source) {
        numbers.remove(&number);
        if numbers.is_empty() {
            kind.remove(&source);
        }
    }
}

fn oldest_of_most(kind: &BySource) -> Option<u64> {
    let most = kind.values().max_by_key(|numbers| (numbers.len(), std::cmp::Reverse(numbers.first().copied())))?;
    most.first().copied()
}

#[cfg(test)]
mod tests {
    use super::{Room, STRANGERS_MAX, StrangerOrigin, Strangers, VOUCHED_NS};

    /// Takes one in, and answers who had to go for it.
    fn enter(strangers: &mut Strangers<()>, source: StrangerOrigin, now: u64) -> (u64, Option<u64>) {
        let gone = match strangers.room(now) {
            Room::Instead(number) => strangers.leave(number).map(|()| number),
            _ => None,
        };
        (strangers.enter(source, ()), gone)
    }

    /// Goal: who comes often takes places from itself alone.
    /// Method: one user fills all places, and goes on; another one comes now and then, and stays.
    #[test]
    fn most_of_one_origin_go_first() {
        let mut strangers = Strangers::new();
        let (crowd, other) = (StrangerOrigin::User(65_534), StrangerOrigin::HostV4(7));
        let first: Vec<u64> = (0..STRANGERS_MAX).map(|_| enter(&mut strangers, crowd, 0).0).collect();
        let mut others = Vec::new();
        for (round, oldest) in first.iter().enumerate().take(STRANGERS_MAX / 2) {
            let (number, gone) = enter(&mut strangers, if round % 4 == 0 { other } else { crowd }, 0);
            assert_eq!(gone, Some(*oldest), "the oldest of the crowd");
            others.extend((round % 4 == 0).then_some(number));
        }
        assert!(others.iter().all(|number| strangers.leave(*number).is_some()), "none of the others had to go");
    }

    /// Goal: holders of the key are not thrown out by those who are none, nor by their like while they may still be at
    /// it.
    /// Method: all places with such; what becomes of the next one, at once and after a while; then one that is silent.
    #[test]
    fn holders_of_the_key_keep_their_places() {
        let mut strangers = Strangers::new();
        let numbers: Vec<u64> =
            (0..STRANGERS_MAX).map(|_| enter(&mut strangers, StrangerOrigin::User(1), 0).0).collect();
        assert!(numbers.iter().all(|number| strangers.vouch(*number, 5)));
        assert_eq!(strangers.room(6), Room::NotBefore(5 + VOUCHED_NS));
        assert_eq!(strangers.room(5 + VOUCHED_NS), Room::Instead(numbers[0]));
        assert_eq!(strangers.leave(numbers[9]), Some(()));
        assert!(!strangers.vouch(numbers[9], 6), "it is not there any more");
        let (silent, gone) = enter(&mut strangers, StrangerOrigin::HostV4(1), 6);
        assert_eq!(gone, None);
        assert_eq!(strangers.room(6), Room::Instead(silent));
        assert_eq!(strangers.least_wanted(), Some(silent));
    }
}
