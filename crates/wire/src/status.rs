//! The closed set of outcomes, and the one table that maps them to errno and to words.

macro_rules! statuses {
    ($($(#[$meta:meta])* $name:ident = $code:literal, $errno:literal, $words:literal;)*) => {
        /// The outcome of a request.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Status { $($(#[$meta])* $name = $code,)* }

        impl Status {
            pub fn from_code(code: u32) -> Option<Status> {
                match code { $($code => Some(Status::$name),)* _ => None }
            }

            /// The Linux errno that callers see (0 for `Ok`).
            pub fn errno(self) -> i32 {
                match self { $(Status::$name => $errno,)* }
            }

            pub fn words(self) -> &'static str {
                match self { $(Status::$name => $words,)* }
            }

            pub const ALL: &'static [Status] = &[$(Status::$name,)*];
        }
    };
}

statuses! {
    Ok = 0, 0, "success";
    NotFound = 1, 2, "no such file or directory";
    Exists = 2, 17, "file exists";
    NotDirectory = 3, 20, "not a directory";
    IsDirectory = 4, 21, "is a directory";
    NotEmpty = 5, 39, "directory not empty";
    NameTooLong = 6, 36, "name too long";
    Invalid = 7, 22, "invalid argument";
    AccessDenied = 8, 13, "permission denied";
    NotPermitted = 9, 1, "operation not permitted";
    NoSpace = 10, 28, "no space left on the server's store";
    TooLarge = 11, 27, "file or request too large";
    Io = 12, 5, "input/output error";
    Corrupt = 13, 5, "stored data does not match its checksum";
    /// A directory that the request relied on was removed; the client forgets its id and resolves again.
    StaleDirectory = 14, 116, "directory was removed meanwhile";
    StaleFile = 15, 116, "file was removed meanwhile";
    /// The slot of the request does not belong to this server.
    WrongServer = 16, 71, "request was sent to a server that is not responsible for it";
    UnknownOperation = 17, 38, "operation is not known to the server";
    BadMessage = 18, 71, "message is malformed";
    VersionMismatch = 19, 93, "protocol versions differ: upgrade the older side";
    KeyMismatch = 20, 13, "key does not match the cluster's key";
    ClusterMismatch = 21, 13, "server belongs to another cluster";
    /// The server no longer knows the session, so it cannot tell whether the request was applied.
    OutcomeUnknown = 22, 5, "outcome unknown: the server lost the session";
    Unreachable = 23, 113, "server is unreachable";
    TimedOut = 24, 110, "server was silent past the deadline";
    /// The last component is a symbolic link; the reply carries its target.
    IsSymlink = 25, 40, "is a symbolic link";
    SymlinkLoop = 26, 40, "too many levels of symbolic links";
    NotSupported = 27, 95, "operation not supported";
    TooManyConnections = 28, 11, "server has no connection left: raise --connections-max or close clients";
    WindowExceeded = 29, 71, "peer sent more than its window";
    ChunkSizeMismatch = 30, 22, "chunk size differs from the file's";
    /// The participant can't tell yet; the caller asks again.
    Busy = 31, 16, "busy";
    BadHandle = 32, 9, "bad file descriptor";
    NoAttribute = 33, 61, "no such attribute";
    TooManyLinks = 34, 31, "too many links";
    CrossDirectory = 35, 18, "not within one file system";
    Draining = 36, 108, "server takes no clients: it stops, or tells others that it lost power";
    Deadlock = 37, 35, "locks would deadlock";
    /// The entry's inode lives on another server; the caller asks that one by the file id in the reply.
    Elsewhere = 38, 66, "inode lives on another server";
    TooManyOpen = 48, 24, "too many open files: close some";
    OutOfRange = 52, 34, "name or value does not fit the range or the buffer";
    ArgumentTooLarge = 53, 7, "argument too large";
    WouldBlock = 54, 11, "the lock is held by another";
    NoLocks = 55, 37, "no locks available";
    IsSpecial = 60, 6, "is a pipe, socket or device: these are opened through a mount";
    /// Clients have to come through shared memory.
    NotLocal = 61, 113, "server takes clients of its own machine only: it was started with --transport shm";
    /// Bytes came with another checksum than they have, or with none where that is needed. Nothing was done; the caller
    /// sends them again.
    Damaged = 62, 5, "bytes were changed on their way";
    /// Of a connection whose bytes are proved. It is made anew, and what was under way is sent again.
    ChangedOnWay = 63, 71, "the connection was changed on its way";
    ProtectionMismatch = 64, 71, "cluster files differ in how connections are protected: copy the cluster file anew";
    /// Of a look for data or a hole, as lseek(2) has it.
    NoData = 47, 6, "nothing to find: the offset is at or beyond the end of the file, or only a hole follows";
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.words())
    }
}
