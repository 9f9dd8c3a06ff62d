//! Parameters of `KeepEntries`, by which a client that keeps names and attributes for longer than a request (a mount,
//! whose kernel keeps them) is told in time that others change something.

use crate::message;

/// What a server says of a client's delegation of entries.
pub mod kept {
    /// There is none now: ask again.
    pub const NONE: u8 = 0;
    /// It stands: for `time_ms` from the moment on at which the request was sent.
    pub const HELD: u8 = 1;
    /// It is called back, or not known: everything that was kept has to be forgotten, which the next request confirms.
    pub const ENDED: u8 = 2;
    /// This server gives none.
    pub const NEVER: u8 = 3;
}

message! {
    /// `KeepEntries`: answered when there is something to say, after an eighth of the delegation's time at the latest.
    /// Changes nothing but what this session is told, and is not sent again when its reply is lost.
    pub struct KeepEntriesRequest {
        /// Whose changes take nothing back: the session of who keeps entries, which may ask by another one.
        pub session: u64,
        /// The delegation that the caller goes by; 0 for none.
        pub held: u64,
        /// The last one that he has let go of, with everything that he was told under it; 0 for none.
        pub ended: u64,
        /// Whether one is wanted. If not, this is answered at once, and what was asked for before is given up.
        pub wanted: bool,
    }
}

message! {
    /// Reply of `KeepEntries`.
    pub struct KeepEntriesReply {
        /// One of `kept`.
        pub state: u8,
        /// The delegation; 0 for none.
        pub number: u64,
        pub time_ms: u32,
    }
}
