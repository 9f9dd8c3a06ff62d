//! Parameters of requests that turn on who the caller is.

use crate::credentials::Credentials;
use crate::identity::FileId;
use crate::message;
use crate::messages::Entry;

message! {
    /// `Unlink` and `RemoveDirectory`.
    pub struct RemoveRequest<'a> {
        pub entry: Entry<'a>,
        /// The caller must own what is removed: the directory is sticky and another user's.
        pub owned: bool,
    }
}

message! {
    /// `CheckCaller`, to the home of an inode whose name is being changed on another server: refuses with
    /// `NotPermitted` when it has to be the caller's own and is not, and with `AccessDenied` when it is a directory
    /// that the caller has to have the right to write to and has not. Reply: `PrepareReply`. Changes nothing.
    pub struct CheckCallerRequest {
        pub file: FileId,
        pub user: Credentials,
        pub owned: bool,
        /// Whether a directory gets another parent.
        pub moved: bool,
    }
}
