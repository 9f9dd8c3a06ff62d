//! Parameters of `Synchronise`.

use crate::identity::FileId;
use crate::message;

message! {
    /// `Synchronise`: everything that the server has acknowledged is to survive power loss, as far as its medium can,
    /// and errors of a file that came to light late are told.
    pub struct SynchroniseRequest {
        /// The file whose earlier errors are asked for; 0 for none.
        pub file: FileId,
        /// The last such error that the caller was told of by this server; 0 when none was.
        pub seen: u64,
        /// When the caller opened the file, in nanoseconds since the epoch: errors that others were told of before do
        /// not concern it.
        pub opened_at: i64,
        /// Only such errors are asked for.
        pub is_question: bool,
    }
}

message! {
    /// Reply of `Synchronise`.
    pub struct SynchroniseReply {
        /// An error of the file that the caller has not been told of; 0 when there is none.
        pub trouble: u64,
        /// Why the file can't be carried to the backing directory, if the error is of that; else nothing, and the
        /// server's medium has refused data.
        pub reason: Vec<u8>,
        /// From the file's home: servers that may hold chunks of it.
        pub holders: Vec<u32>,
        /// Who syncs a file has it carried to the backing directory too (`Flush`), and waits for that.
        pub carries: bool,
    }
}
