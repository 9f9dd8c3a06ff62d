//! The entry point of the fuzz targets: every decoder on the same input. What decodes must encode to the same bytes.

use crate::attributes::Attributes;
use crate::handshake::{Challenge, Greeting, Hello, Proven, Welcome};
use crate::header::HEADER_SIZE;
use crate::messages::*;
use crate::relay::{Credit, OpenStream};
use crate::{Cluster, Decode, Encode, Header};

fn check<'a, T: Decode<'a> + Encode>(input: &'a [u8]) -> usize {
    match T::from_bytes(input) {
        Ok(value) => {
            assert_eq!(value.to_bytes(), input, "an encoding is not unique");
            1
        }
        Err(_) => 0,
    }
}

macro_rules! decoders {
    ($($type:ty),* $(,)?) => {
        /// Runs every decoder; the number of those that accept the input.
        pub fn decode_everything(input: &[u8]) -> usize {
            let mut accepted = 0;
            $(accepted += check::<$type>(input);)*
            if let Some(array) = input.first_chunk::<HEADER_SIZE>()
                && let Ok(header) = Header::from_array(array)
            {
                assert_eq!(&header.to_array(), array);
                accepted += 1;
            }
            if let Ok(text) = std::str::from_utf8(input)
                && let Ok(cluster) = Cluster::parse(text)
            {
                assert_eq!(Cluster::parse(&cluster.to_text()).as_ref(), Ok(&cluster));
                accepted += 1;
            }
            accepted
        }
    };
}

decoders!(
    Greeting,
    Hello,
    Challenge,
    Proven,
    Welcome,
    OpenStream,
    Credit,
    Attributes,
    ErrorDetail,
    EntryRequest,
    EntryReply,
    OpenRequest,
    OpenReply,
    FileRequest,
    SetAttributesRequest,
    MakeDirectoryRequest,
    MakeSymlinkRequest,
    MakeNodeRequest,
    TreeEntry,
    TreeLogRequest,
    TreeLogReply,
    PrepareTreeRequest,
    PrepareTreeReply,
    NumberChangeRequest,
    MarkTreeRequest,
    ResolveTreeRequest,
    AskParentsReply,
    ReadDirectoryRequest,
    ListingReply,
    ListingEntry,
    FileSystemReply,
    BackingShare,
    BackingSpace,
    CarryTime,
    DataRequest,
    ReadReply,
    LocateReply,
    WriteReply,
    RegisterBuffersRequest,
    RegisterBuffersReply,
    CommitRegisteredRequest,
    CommitRegisteredReply,
    TruncateRequest,
    ReserveAppendRequest,
    ReserveAppendReply,
    StatisticsRequest,
    Empty,
    AnnounceRequest,
    AnnounceReply,
    GlimpseRequest,
    GlimpseReply,
    ReapChunksRequest,
    TruncateChunksRequest,
    MarkDirectoryRequest,
    ResolveDirectoryRequest,
    OpenIdRequest,
    LinkRequest,
    RenameRequest,
    RenamedReply,
    CheckRequest,
    CheckReply,
    CheckName,
    CheckInode,
    CheckShare,
    CheckId,
    CheckPromise,
    CheckDamage,
    RepairRequest,
    PrepareDentryRequest,
    PrepareLinkRequest,
    PrepareReply,
    ResolvePreparedRequest,
    AskDecisionRequest,
    AskDecisionReply,
    RemoveRequest,
    CheckCallerRequest,
    NoteRenamedRequest,
    CloseRequest,
    CloseManyRequest,
    ReclaimRequest,
    ReclaimReply,
    MakeTemporaryRequest,
    LinkOpenRequest,
    GetExtendedRequest,
    SetExtendedRequest,
    ListExtendedRequest,
    ExtendedReply,
    RemoveExtendedRequest,
    SynchroniseRequest,
    SynchroniseReply,
    LockRequest,
    LockReply,
    AwaitLockRequest,
    AwaitPermitRequest,
    AwaitPermitReply,
    NoteCountersRequest,
    ReturnPermitRequest,
    TestLockReply,
    AnnounceDirectoryRequest,
    AnnounceDirectoryReply,
    GlimpseDirectoryRequest,
    GlimpseDirectoryReply,
    FindRequest,
    FindReply,
    FoundEntry,
    AppendRequest,
    AllocateRequest,
    SeekRequest,
    AllocatedRequest,
    AllocatedReply,
    SeekReply,
    CopyRangeRequest,
    ReserveChunksRequest,
    WriteChunksRequest,
    OpenThroughReply,
    DelegationRequest,
    DelegationReply,
    RecallRequest,
    KeepEntriesRequest,
    KeepEntriesReply,
    CloseHeldRequest,
    ReclaimHeldRequest,
    AskPlaceRequest,
    BackingPlace,
    FlushRequest,
    FlushReply,
    AskForFlushRequest,
    AskForFlushReply,
    StageRequest,
    StageReply,
    CacheStateRequest,
    CacheStateReply,
    ListChangesRequest,
    ListChangesReply,
    AskCarriedRequest,
    AskCarriedReply,
    CarryInodeRequest,
    CarryInodeReply,
    GiveUpNameRequest,
    GiveUpNameReply,
    WriteShareRequest,
    WriteShareReply,
    NoteCarriedRequest,
    NoteBehindRequest,
    ListCarriedRequest,
    ListCarriedReply,
    CompareShareRequest,
    CompareShareReply,
    Vec<u64>,
);
