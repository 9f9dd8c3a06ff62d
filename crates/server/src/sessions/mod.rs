//! Sessions of clients: each mutating request happens once, however often it is sent.
//!
//! A session numbers its mutating requests to this server from 1 and has at most `REQUEST_WINDOW` of them open, no two
//! of which are equal modulo that window; so that many places hold everything that may be asked again, and one that
//! waits long holds up no other.
//!
//! Invariants
//! 1. A place belongs to one sequence; a later sequence of the same place takes it over, for the session has then the
//!    earlier one's reply.
//! 2. A request whose effect is journalled has its outcome in the same journal record.

pub mod expiry;
pub mod low_priority;
pub mod service;
pub mod throttle;

use crate::coordination::intents::Origin;
use crate::store::FastMap;
use reactor::Nanos;
use wire::Status;
use wire::limits::{OUTCOME_SIZE_MAX, REQUEST_WINDOW};

/// What came of a request: the encoded parameters of its reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub status: Status,
    pub bytes: Vec<u8>,
}

impl Default for Outcome {
    fn default() -> Self {
        Outcome { status: Status::Ok, bytes: Vec::new() }
    }
}

enum SlotState<W> {
    Empty,
    /// Under way; who sent it again waits here.
    Active(Vec<W>),
    Done,
}

struct SlotEntry<W> {
    sequence: u64,
    state: SlotState<W>,
    outcome: Outcome,
    /// Whether it is under way since an earlier life of the server, so that nobody here has its deadline.
    is_resumed: bool,
    /// Pieces of it that are live from an earlier life of the server, which was cut off between two steps.
    pieces_done: u32,
}

struct Session<W> {
    connections: u32,
    /// Since when it has no connection.
    idle_since: Nanos,
    /// Welcomes that it had received when it began here: what it says then is that it was told of that.
    born: u64,
    acknowledged: u64,
    places: Vec<SlotEntry<W>>,
}

/// What to do with a request.
pub enum Admission<'a, W> {
    /// It is new: execute it.
    New,
    /// It was executed: answer with this.
    Repeated(&'a Outcome),
    /// It is under way; give the waiting copy to `wait`.
    Active(&'a mut Vec<W>),
    /// It was acknowledged long ago, or the session is not known.
    Unknown,
}

/// All sessions of this server; `W` is a request that waits for the outcome of its first copy.
pub struct Sessions<W> {
    table: FastMap<u64, Session<W>>,
    count_max: usize,
}

impl<W> Session<W> {
    fn new(now: Nanos) -> Session<W> {
        Session { connections: 0, idle_since: now, born: 0, acknowledged: 0, places: Vec::new() }
    }

    fn place(&mut self, sequence: u64) -> &mut SlotEntry<W> {
        if self.places.is_empty() {
            let empty = || SlotEntry {
                sequence: 0,
                state: SlotState::Empty,
                outcome: Outcome::default(),
                is_resumed: false,
                pieces_done: 0,
            };
            self.places = (0..REQUEST_WINDOW).map(|_| empty()).collect();
        }
        &mut self.places[(sequence % u64::from(REQUEST_WINDOW)) as usize]
    }
}

impl<W> Sessions<W> {
    /// A table of at most `count_max` sessions.
    pub fn new(count_max: usize) -> Sessions<W> {
        Sessions { table: FastMap::default(), count_max }
    }

    pub fn is_known(&self, session: u64) -> bool {
        self.table.contains_key(&session)
    }

    /// Welcomes that a session had received when it began here.
    pub fn born(&self, session: u64) -> Option<u64> {
        self.table.get(&session).map(|session| session.born)
    }

    /// Adds a session without a connection; a known one stays as it is, but for `born`.
    pub fn add(&mut self, session: u64, born: u64, now: Nanos) {
        self.table.entry(session).or_insert_with(|| Session::new(now)).born = born;
    }

    pub fn remove(&mut self, session: u64) {
        self.table.remove(&session);
    }

    /// Whether another session fits; `Some(idle)` names the one that has to go for it.
    pub fn room(&self) -> Result<Option<u64>, Status> {
        if self.table.len() < self.count_max {
            return Ok(None);
        }
        let idle = self.table.iter().filter(|(_, session)| session.connections == 0 && !session.is_active());
        let oldest = idle.min_by_key(|(id, session)| (session.idle_since, **id));
        oldest.map(|(id, _)| Some(*id)).ok_or(Status::TooManyConnections)
    }

    pub fn connected(&mut self, session: u64) {
        if let Some(session) = self.table.get_mut(&session) {
            session.connections += 1;
        }
    }

    /// A session whose connections are not counted was heard of.
    pub fn heard(&mut self, session: u64, now: Nanos) {
        if let Some(session) = self.table.get_mut(&session) {
            session.idle_since = now;
        }
    }

    /// True when the session has no connection left.
    pub fn disconnected(&mut self, session: u64, now: Nanos) -> bool {
        let Some(session) = self.table.get_mut(&session) else { return false };
        session.connections = session.connections.saturating_sub(1);
        session.idle_since = now;
        session.connections == 0
    }

    /// Whether a session has no connection, and nothing is under way for it.
    pub fn is_idle(&self, session: u64) -> bool {
        self.table.get(&session).is_some_and(|session| session.connections == 0 && !session.is_active())
    }

    /// Sessions without connection since `before`, and the time since which the oldest other one has none.
    pub fn expired(&self, before: Nanos) -> (Vec<u64>, Option<Nanos>) {
        let mut gone = Vec::new();
        let mut next: Option<Nanos> = None;
        for (id, session) in self.table.iter().filter(|(_, session)| session.connections == 0) {
            if session.idle_since <= before && !session.is_active() {
                gone.push(*id);
            } else {
                next = Some(next.map_or(session.idle_since, |known| known.min(session.idle_since)));
            }
        }
        gone.sort_unstable();
        (gone, next)
    }

    /// Takes in a request. `acknowledged`: replies of all sequences up to it have arrived at the session.
    pub fn begin(&mut self, Origin { session, sequence }: Origin, acknowledged: u64) -> Admission<'_, W> {
        let Some(session) = self.table.get_mut(&session) else { return Admission::Unknown };
        session.acknowledged = session.acknowledged.max(acknowledged);
        if sequence <= session.acknowledged {
            return Admission::Unknown;
        }
        let place = session.place(sequence);
        if place.sequence > sequence {
            return Admission::Unknown;
        }
        if place.sequence < sequence || matches!(place.state, SlotState::Empty) {
            if place.sequence < sequence {
                place.pieces_done = 0;
            }
            place.sequence = sequence;
            place.is_resumed = false;
            place.state = SlotState::Active(Vec::new());
            return Admission::New;
        }
        match &mut place.state {
            SlotState::Active(waiting) => Admission::Active(waiting),
            _ => Admission::Repeated(&place.outcome),
        }
    }

    /// Notes at recovery that a request is under way (its intent is).
    pub fn resume(&mut self, Origin { session, sequence }: Origin) {
        if let Some(session) = self.table.get_mut(&session) {
            let place = session.place(sequence);
            if place.sequence < sequence || matches!(place.state, SlotState::Empty) {
                place.sequence = sequence;
                place.is_resumed = true;
                place.state = SlotState::Active(Vec::new());
            }
        }
    }

    /// Whether a request is under way since an earlier life of the server.
    pub fn is_resumed(&self, Origin { session, sequence }: Origin) -> bool {
        let places = self.table.get(&session).map(|session| &session.places);
        let place = places.and_then(|places| places.get((sequence % u64::from(REQUEST_WINDOW)) as usize));
        place.is_some_and(|place| place.sequence == sequence && place.is_resumed)
    }

    /// Takes those copies of a request that is under way which need not wait any longer.
    pub fn take_waiting(
        &mut self,
        Origin { session, sequence }: Origin,
        mut is_late: impl FnMut(&W) -> bool,
    ) -> Vec<W> {
        let Some(session) = self.table.get_mut(&session) else { return Vec::new() };
        let place = session.place(sequence);
        match &mut place.state {
            SlotState::Active(waiting) if place.sequence == sequence => {
                waiting.extract_if(.., |copy| is_late(copy)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Keeps the outcome of a request and returns who waits for it.
    pub fn finish(&mut self, Origin { session, sequence }: Origin, status: Status, bytes: &[u8]) -> Vec<W> {
        let Some(session) = self.table.get_mut(&session) else { return Vec::new() };
        let place = session.place(sequence);
        if place.sequence != sequence {
            return Vec::new();
        }
        // What is longer comes of a request that has changed nothing (`Core::commit` refuses others), and need not be
        // kept: asked again, it is found out again.
        let state = if bytes.len() <= OUTCOME_SIZE_MAX {
            place.outcome.status = status;
            place.outcome.bytes.clear();
            place.outcome.bytes.extend_from_slice(bytes);
            SlotState::Done
        } else {
            SlotState::Empty
        };
        match std::mem::replace(&mut place.state, state) {
            SlotState::Active(waiting) => waiting,
            _ => Vec::new(),
        }
    }

    /// Forgets that a request was begun, for its body never came; returns who sent it again meanwhile.
    pub fn abandon(&mut self, Origin { session, sequence }: Origin) -> Vec<W> {
        let Some(session) = self.table.get_mut(&session) else { return Vec::new() };
        let place = session.place(sequence);
        if place.sequence != sequence {
            return Vec::new();
        }
        match std::mem::replace(&mut place.state, SlotState::Empty) {
            SlotState::Active(waiting) => waiting,
            done => {
                place.state = done;
                Vec::new()
            }
        }
    }

    /// Takes in an outcome from the journal or a checkpoint. One of a session that was forgotten before, of what went
    /// on by itself after that, does not bring it back: it would count as known, and nobody would be told what it has
    /// lost.
    pub fn restore(&mut self, Origin { session, sequence }: Origin, reply: &[u8]) {
        let Some(session) = self.table.get_mut(&session) else { return };
        let place = session.place(sequence);
        if sequence >= place.sequence {
            place.sequence = sequence;
            place.outcome = Outcome { bytes: reply.to_vec(), ..Outcome::default() };
            place.state = SlotState::Done;
        }
    }

    /// Takes in from the journal how many pieces of a request are live that was cut off between two of its steps. Its
    /// outcome, if it has one, comes later.
    pub fn restore_steps(&mut self, Origin { session, sequence }: Origin, pieces: u32) {
        let Some(session) = self.table.get_mut(&session) else { return };
        let place = session.place(sequence);
        if sequence > place.sequence || sequence == place.sequence && matches!(place.state, SlotState::Empty) {
            place.sequence = sequence;
            place.state = SlotState::Empty;
            place.pieces_done = pieces;
        }
    }

    /// Pieces of a request under way that an earlier life of the server has made live.
    pub fn pieces_done(&self, Origin { session, sequence }: Origin) -> u32 {
        let places = self.table.get(&session).map(|session| &session.places);
        let place = places.and_then(|places| places.get((sequence % u64::from(REQUEST_WINDOW)) as usize));
        place.filter(|place| place.sequence == sequence).map_or(0, |place| place.pieces_done)
    }

    pub fn count(&self) -> usize {
        self.table.len()
    }

    /// Numbers of all sessions, sorted.
    pub fn ids(&self) -> Vec<u64> {
        let mut ids: Vec<u64> = self.table.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Visits the successful outcomes of a session that may still be asked for.
    pub fn for_each_outcome(&self, session: u64, visit: &mut dyn FnMut(u64, &[u8])) {
        let Some(session) = self.table.get(&session) else { return };
        for place in &session.places {
            let kept = matches!(place.state, SlotState::Done) && place.outcome.status == Status::Ok;
            if kept && place.sequence > session.acknowledged {
                visit(place.sequence, &place.outcome.bytes);
            }
        }
    }
}

impl<W> Session<W> {
    fn is_active(&self) -> bool {
        self.places.iter().any(|place| matches!(place.state, SlotState::Active(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(session: u64, sequence: u64) -> Origin {
        Origin { session, sequence }
    }

    fn sessions() -> Sessions<u32> {
        let mut sessions = Sessions::new(4);
        sessions.add(9, 0, 0);
        sessions
    }

    /// Goal: a request is executed once; a copy waits for it or gets its outcome.
    #[test]
    fn once() {
        let mut sessions = sessions();
        assert!(matches!(sessions.begin(origin(9, 1), 0), Admission::New));
        match sessions.begin(origin(9, 1), 0) {
            Admission::Active(waiting) => waiting.push(77),
            _ => panic!("the request is under way"),
        }
        assert_eq!(sessions.finish(origin(9, 1), Status::Ok, b"reply"), vec![77]);
        match sessions.begin(origin(9, 1), 0) {
            Admission::Repeated(outcome) => assert_eq!(outcome.bytes, b"reply"),
            _ => panic!("the outcome is kept"),
        }
        assert!(matches!(sessions.begin(origin(8, 1), 0), Admission::Unknown));
    }

    /// Goal: what was acknowledged is not executed again, and a place is taken over by its next sequence only.
    #[test]
    fn window() {
        let mut sessions = sessions();
        let window = u64::from(REQUEST_WINDOW);
        assert!(matches!(sessions.begin(origin(9, 1), 0), Admission::New));
        assert!(matches!(sessions.begin(origin(9, 1 + window), 1), Admission::New));
        assert!(matches!(sessions.begin(origin(9, 1), 0), Admission::Unknown));
        assert!(sessions.finish(origin(9, 1), Status::Ok, b"late").is_empty());
        assert!(matches!(sessions.begin(origin(9, 1 + window), 1), Admission::Active(_)));
    }

    /// Goal: a request whose body never came may be executed when it comes again.
    #[test]
    fn abandoned() {
        let mut sessions = sessions();
        assert!(matches!(sessions.begin(origin(9, 3), 0), Admission::New));
        if let Admission::Active(waiting) = sessions.begin(origin(9, 3), 0) {
            waiting.push(5);
        }
        assert_eq!(sessions.abandon(origin(9, 3)), vec![5]);
        assert!(matches!(sessions.begin(origin(9, 3), 0), Admission::New));
    }

    /// Goal: a long failure is not kept, a short one is; nor is a long answer, which comes of a request without effect.
    #[test]
    fn failures() {
        let mut sessions = sessions();
        assert!(matches!(sessions.begin(origin(9, 2), 0), Admission::New));
        sessions.finish(origin(9, 2), Status::Ok, &[b'x'; OUTCOME_SIZE_MAX + 1]);
        assert!(matches!(sessions.begin(origin(9, 2), 0), Admission::New));
        assert!(matches!(sessions.begin(origin(9, 1), 0), Admission::New));
        sessions.finish(origin(9, 1), Status::IsSymlink, &[b'x'; OUTCOME_SIZE_MAX + 1]);
        assert!(matches!(sessions.begin(origin(9, 1), 0), Admission::New));
        sessions.finish(origin(9, 1), Status::Exists, b"short");
        assert!(
            matches!(sessions.begin(origin(9, 1), 0), Admission::Repeated(outcome) if outcome.status == Status::Exists)
        );
    }

    /// Goal: a session that was forgotten stays so, whatever ends on its behalf later.
    #[test]
    fn outcomes_of_the_forgotten() {
        let mut sessions = sessions();
        sessions.restore(origin(9, 1), b"kept");
        assert!(matches!(sessions.begin(origin(9, 1), 0), Admission::Repeated(outcome) if outcome.bytes == b"kept"));
        sessions.remove(9);
        sessions.restore(origin(9, 2), b"late");
        assert!(!sessions.is_known(9) && matches!(sessions.begin(origin(9, 2), 0), Admission::Unknown));
    }

    /// Goal: of a request that was cut off between two steps the next life knows how many are done, when it comes
    /// again; of the next one in its place none, and of one that has its outcome nothing is done again.
    #[test]
    fn steps_of_an_earlier_life() {
        let mut sessions = sessions();
        sessions.restore_steps(origin(9, 1), 2);
        sessions.restore_steps(origin(9, 1), 3);
        assert!(matches!(sessions.begin(origin(9, 1), 0), Admission::New));
        assert_eq!(sessions.pieces_done(origin(9, 1)), 3);
        sessions.finish(origin(9, 1), Status::Ok, b"done");
        let next = 1 + u64::from(REQUEST_WINDOW);
        assert!(matches!(sessions.begin(origin(9, next), 1), Admission::New));
        assert_eq!(sessions.pieces_done(origin(9, next)), 0);
        sessions.restore_steps(origin(9, 2), 1);
        sessions.restore(origin(9, 2), b"kept");
        assert!(matches!(sessions.begin(origin(9, 2), 0), Admission::Repeated(_)));
        sessions.restore_steps(origin(7, 1), 1);
        assert_eq!(sessions.pieces_done(origin(7, 1)), 0, "the session is not known");
    }

    /// Goal: a full table makes room by its oldest idle session, and refuses when there is none.
    #[test]
    fn bounded() {
        let mut sessions = Sessions::<u32>::new(2);
        sessions.add(1, 0, 50);
        sessions.add(2, 0, 40);
        assert_eq!(sessions.room(), Ok(Some(2)));
        sessions.connected(2);
        assert_eq!(sessions.room(), Ok(Some(1)));
        sessions.connected(1);
        assert_eq!(sessions.room(), Err(Status::TooManyConnections));
        assert!(sessions.disconnected(1, 100));
        assert_eq!(sessions.expired(99), (vec![], Some(100)));
        assert_eq!(sessions.expired(100), (vec![1], None));
    }
}
