//! Operations by number, with their call level and scheduling class.

/// How heavy an operation is; the server's queues and statistics are kept per class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationClass {
    Metadata,
    Data,
}

/// Call levels: a request of one level may only cause requests of higher ones, so that no cycle can form.
pub const LEVEL_CLIENT: u8 = 0;
pub const LEVEL_COORDINATION: u8 = 1;
pub const LEVEL_PARTICIPANT: u8 = 2;
pub const LEVEL_GLIMPSE: u8 = 3;
pub const LEVEL_COUNT: usize = 4;

macro_rules! operations {
    ($($name:ident = $code:literal, $level:ident, $class:ident, $mutating:literal;)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Operation { $($name = $code,)* }

        impl Operation {
            pub const ALL: &'static [Operation] = &[$(Operation::$name,)*];

            pub fn from_code(code: u16) -> Option<Operation> {
                match code { $($code => Some(Operation::$name),)* _ => None }
            }

            /// The call level that the operation travels at.
            pub fn level(self) -> u8 {
                match self { $(Operation::$name => $level,)* }
            }

            pub fn class(self) -> OperationClass {
                match self { $(Operation::$name => OperationClass::$class,)* }
            }

            /// Whether the operation carries a session sequence, and its outcome is kept so that a resend is not a
            /// second execution. Operations between servers are idempotent by their generations and need none.
            pub fn is_mutating(self) -> bool {
                match self { $(Operation::$name => $mutating,)* }
            }

            pub fn name(self) -> &'static str {
                match self { $(Operation::$name => stringify!($name),)* }
            }

            /// Index into tables of `Operation::TABLE_SIZE` counters.
            pub fn index(self) -> usize {
                self as usize
            }

            pub const TABLE_SIZE: usize = 128;
        }
    };
}

/// What the parameters of an operation begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OperationObject {
    /// The id of the file or directory that it is about.
    Inode,
    /// The id of the directory in which the name is that it is about.
    Directory,
}

impl Operation {
    /// The one object that an operation of clients is about, with whose id its parameters begin. A search is about all
    /// of a tree.
    pub fn object(self) -> Option<OperationObject> {
        match self {
            Operation::Lookup
            | Operation::Open
            | Operation::OpenExisting
            | Operation::OpenThrough
            | Operation::Stat
            | Operation::Look
            | Operation::MakeDirectory
            | Operation::MakeSymlink
            | Operation::MakeNode
            | Operation::Unlink
            | Operation::RemoveDirectory
            | Operation::ReadDirectory
            | Operation::Rename
            | Operation::Link
            | Operation::MakeTemporary => Some(OperationObject::Directory),
            Operation::StatId
            | Operation::LookId
            | Operation::SetAttributes
            | Operation::OpenId
            | Operation::OpenIdExisting
            | Operation::Read
            | Operation::Locate
            | Operation::Write
            | Operation::CommitRegistered
            | Operation::Append
            | Operation::ReserveAppend
            | Operation::Truncate
            | Operation::Synchronise
            | Operation::GetAttribute
            | Operation::SetAttribute
            | Operation::ListAttributes
            | Operation::RemoveAttribute
            | Operation::LinkOpen
            | Operation::Lock
            | Operation::Unlock
            | Operation::TestLock
            | Operation::AwaitLock
            | Operation::Allocate
            | Operation::Seek
            | Operation::CopyRange => Some(OperationObject::Inode),
            _ => None,
        }
    }
}

operations! {
    Ping = 1, LEVEL_CLIENT, Metadata, false;
    Lookup = 2, LEVEL_CLIENT, Metadata, false;
    Open = 3, LEVEL_CLIENT, Metadata, true;
    Stat = 4, LEVEL_CLIENT, Metadata, false;
    StatId = 5, LEVEL_CLIENT, Metadata, false;
    Look = 57, LEVEL_CLIENT, Metadata, false;
    LookId = 58, LEVEL_CLIENT, Metadata, false;
    Stage = 59, LEVEL_CLIENT, Data, false;
    SetAttributes = 6, LEVEL_CLIENT, Metadata, true;
    MakeDirectory = 7, LEVEL_CLIENT, Metadata, true;
    MakeSymlink = 8, LEVEL_CLIENT, Metadata, true;
    MakeNode = 54, LEVEL_CLIENT, Metadata, true;
    Unlink = 9, LEVEL_CLIENT, Metadata, true;
    RemoveDirectory = 10, LEVEL_CLIENT, Metadata, true;
    ReadDirectory = 11, LEVEL_CLIENT, Metadata, false;
    StatFileSystem = 12, LEVEL_CLIENT, Metadata, false;
    Read = 13, LEVEL_CLIENT, Data, false;
    Locate = 61, LEVEL_CLIENT, Data, false;
    Write = 14, LEVEL_CLIENT, Data, true;
    RegisterBuffers = 62, LEVEL_CLIENT, Data, false;
    CommitRegistered = 63, LEVEL_CLIENT, Data, true;
    Close = 15, LEVEL_CLIENT, Metadata, false;
    Truncate = 16, LEVEL_CLIENT, Metadata, true;
    ReserveAppend = 17, LEVEL_CLIENT, Metadata, true;
    Statistics = 18, LEVEL_CLIENT, Metadata, false;
    Shutdown = 19, LEVEL_CLIENT, Metadata, false;
    OpenExisting = 20, LEVEL_CLIENT, Metadata, false;
    OpenId = 21, LEVEL_CLIENT, Metadata, true;
    OpenIdExisting = 22, LEVEL_CLIENT, Metadata, false;
    Rename = 32, LEVEL_CLIENT, Metadata, true;
    Link = 33, LEVEL_CLIENT, Metadata, true;
    Append = 34, LEVEL_CLIENT, Data, true;
    Synchronise = 35, LEVEL_CLIENT, Data, false;
    GetAttribute = 36, LEVEL_CLIENT, Metadata, false;
    SetAttribute = 37, LEVEL_CLIENT, Metadata, true;
    ListAttributes = 38, LEVEL_CLIENT, Metadata, false;
    RemoveAttribute = 39, LEVEL_CLIENT, Metadata, true;
    MakeTemporary = 43, LEVEL_CLIENT, Metadata, true;
    LinkOpen = 44, LEVEL_CLIENT, Metadata, true;
    CloseMany = 45, LEVEL_CLIENT, Metadata, false;
    Reclaim = 46, LEVEL_CLIENT, Metadata, false;
    Lock = 47, LEVEL_CLIENT, Metadata, true;
    Unlock = 48, LEVEL_CLIENT, Metadata, true;
    TestLock = 49, LEVEL_CLIENT, Metadata, false;
    AwaitLock = 60, LEVEL_CLIENT, Metadata, false;
    Find = 50, LEVEL_CLIENT, Metadata, false;
    TreeLog = 53, LEVEL_CLIENT, Metadata, false;
    Check = 51, LEVEL_CLIENT, Metadata, false;
    Repair = 52, LEVEL_CLIENT, Metadata, true;
    Allocated = 55, LEVEL_CLIENT, Metadata, false;
    Allocate = 40, LEVEL_CLIENT, Data, true;
    Seek = 41, LEVEL_CLIENT, Data, false;
    CopyRange = 42, LEVEL_CLIENT, Data, true;
    OpenThrough = 23, LEVEL_CLIENT, Metadata, false;
    KeepEntries = 24, LEVEL_CLIENT, Metadata, false;
    AwaitPermit = 25, LEVEL_CLIENT, Metadata, false;
    ReturnPermit = 26, LEVEL_CLIENT, Metadata, false;
    NoteCounters = 27, LEVEL_CLIENT, Metadata, false;
    Announce = 64, LEVEL_GLIMPSE, Metadata, false;
    ReapChunks = 65, LEVEL_PARTICIPANT, Metadata, false;
    TruncateChunks = 66, LEVEL_PARTICIPANT, Metadata, false;
    MarkDirectory = 67, LEVEL_PARTICIPANT, Metadata, false;
    ResolveDirectory = 68, LEVEL_PARTICIPANT, Metadata, false;
    PrepareDentry = 69, LEVEL_PARTICIPANT, Metadata, false;
    PrepareLink = 70, LEVEL_PARTICIPANT, Metadata, false;
    ResolvePrepared = 71, LEVEL_PARTICIPANT, Metadata, false;
    AnnounceDirectory = 80, LEVEL_GLIMPSE, Metadata, false;
    CheckCaller = 95, LEVEL_PARTICIPANT, Metadata, false;
    NoteRenamed = 77, LEVEL_PARTICIPANT, Metadata, false;
    PrepareTree = 72, LEVEL_COORDINATION, Metadata, false;
    NumberChange = 73, LEVEL_COORDINATION, Metadata, false;
    MarkTree = 74, LEVEL_PARTICIPANT, Metadata, false;
    ResolveTree = 75, LEVEL_PARTICIPANT, Metadata, false;
    AskParents = 76, LEVEL_GLIMPSE, Metadata, false;
    FetchChunks = 84, LEVEL_PARTICIPANT, Data, false;
    ReserveChunks = 85, LEVEL_PARTICIPANT, Data, false;
    WriteChunks = 86, LEVEL_PARTICIPANT, Data, false;
    Glimpse = 96, LEVEL_GLIMPSE, Metadata, false;
    AskDecision = 97, LEVEL_GLIMPSE, Metadata, false;
    GlimpseDirectory = 98, LEVEL_GLIMPSE, Metadata, false;
    Delegate = 99, LEVEL_COORDINATION, Metadata, false;
    Recall = 100, LEVEL_GLIMPSE, Metadata, false;
    CloseHeld = 101, LEVEL_COORDINATION, Metadata, false;
    ReclaimHeld = 102, LEVEL_COORDINATION, Metadata, false;
    AskPlace = 112, LEVEL_GLIMPSE, Metadata, false;
    Flush = 56, LEVEL_CLIENT, Metadata, false;
    ListChanges = 113, LEVEL_GLIMPSE, Metadata, false;
    AskCarried = 114, LEVEL_GLIMPSE, Metadata, false;
    CarryInode = 115, LEVEL_PARTICIPANT, Metadata, false;
    WriteShare = 116, LEVEL_GLIMPSE, Data, false;
    NoteCarried = 117, LEVEL_GLIMPSE, Metadata, false;
    NoteBehind = 118, LEVEL_GLIMPSE, Metadata, false;
    AskForFlush = 119, LEVEL_GLIMPSE, Metadata, false;
    CacheState = 120, LEVEL_CLIENT, Metadata, false;
    GiveUpName = 121, LEVEL_COORDINATION, Metadata, false;
    ListCarried = 122, LEVEL_CLIENT, Metadata, false;
    CompareShare = 123, LEVEL_CLIENT, Data, false;
}
