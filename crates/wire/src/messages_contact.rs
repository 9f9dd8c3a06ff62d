//! Parameters of what passes between clients, contact servers and the homes of files: `OpenThrough`, `Delegate`,
//! `Recall`, `CloseHeld` and `ReclaimHeld`.
//!
//! A contact server answers opens of names whose home is another server, for as long as that server has lent it a name.
//! It has such a file open at the home itself, under the session of its own connection; its clients have it open with
//! the contact.

use crate::attributes::Attributes;
use crate::identity::FileId;
use crate::message;
use crate::messages::{Batch, Closed, Entry, OpenReply};

message! {
    /// Reply of `OpenThrough`, whose parameters are an `OpenRequest` without PLACES. Of what is held the attributes are
    /// those at the time of the delegation, of which only size and times can have changed.
    pub struct OpenThroughReply {
        /// Nothing where the contact does not know the name: the home is to be asked.
        pub held: Option<OpenReply>,
    }
}

message! {
    /// `Delegate`, of a contact to the home of a name: to be told before the name leads elsewhere, or the rights to
    /// what it leads to change. The file is open to the caller from then on.
    pub struct DelegationRequest<'a> {
        pub entry: Entry<'a>,
    }
}

message! {
    /// What a delegation is of.
    pub struct Delegation {
        pub attributes: Attributes,
        /// The number of the caller's open.
        pub open_number: u64,
        /// Milliseconds from the moment on at which the caller asked.
        pub delegation_ms: u32,
    }
}

message! {
    /// Reply of `Delegate`; nothing where the home lends nothing: every open is to be asked for there.
    pub struct DelegationReply {
        pub delegated: Option<Delegation>,
    }
}

message! {
    /// `Recall`, of a file's home to a contact: delegations of the file that were given with open numbers below this
    /// one have ended when it is answered.
    pub struct RecallRequest {
        pub file: FileId,
        pub number: u64,
    }
}

message! {
    /// `CloseHeld`: the contact and all of its clients have let go of these.
    pub struct CloseHeldRequest {
        pub closed: Batch<Closed>,
    }
}

message! {
    /// `ReclaimHeld`, in pages: the contact has these open and, after the last page, nothing else that it opened before
    /// the first. Idempotent. Reply: `ReclaimReply`.
    pub struct ReclaimHeldRequest {
        pub files: Batch<FileId>,
        /// The number that the first page was answered with; 0 on the first.
        pub since: u64,
        pub last: bool,
    }
}
