//! Every decoder against the kept corpus, and against mutations of valid messages.
//!
//! `cargo fuzz run messages` in `fuzz/` looks for new inputs with coverage feedback; what it finds is kept in
//! `fuzz/corpus/messages` and replayed here.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use wire::credentials::{Credentials, Groups};
use wire::fuzz::decode_everything;
use wire::handshake::{GREETING_MAGIC, Greeting, Hello, Role};
use wire::label::Label;
use wire::layout::ChunkRange;
use wire::messages::*;
use wire::search::{Ids, Order, Test, Tests, Verdict};
use wire::{Attributes, Encode, FileId, FrameKind, Header, Kind, Layout, LayoutPolicy, LayoutWish, Name};

fn layout() -> Layout {
    Layout { policy: LayoutPolicy::Modular, chunk_size: 1 << 20, first: 3, width: 1024, run: 1 }
}

const WISH: LayoutWish = LayoutWish { chunk_size: 4096, width: 2, run: 3, first: Some(1) };

fn attributes() -> Attributes {
    Attributes {
        id: FileId::new(9, 3),
        kind: Kind::File,
        mode: 0o644,
        uid: 1,
        gid: 2,
        link_count: 1,
        size: 3901,
        atime: -1,
        mtime: 2,
        ctime: 3,
        version: 4,
        truncate_generation: 5,
        times_set: 6,
        layout: layout(),
    }
}

fn wish() -> LockDescription {
    LockDescription {
        file: FileId(77),
        space: LockSpace::Ranges,
        kind: OwnerKind::Process,
        owner: 5,
        range: LockRange { start: 6, end: 7 },
        exclusive: false,
        ticket: 8,
    }
}

/// One valid encoding of most messages.
fn seeds() -> Vec<Vec<u8>> {
    let name = Name::new(b"some name").unwrap();
    let entry = Entry { parent: FileId::ROOT, name, ancestors: Ancestors(vec![FileId(5), FileId(6)]), known: 7 };
    let moved = TreeEntry { directory: FileId(5), kind: tree_kinds::MOVED, parent: FileId(6) };
    let greeting = Greeting {
        magic: GREETING_MAGIC,
        protocol_version: 1,
        cluster: 7,
        server: 0,
        protection: 1,
        nonce: [3; 32],
        voucher: [9; 16],
    };
    let hello = Hello {
        role: Role::Client,
        level: 0,
        from_server: 0,
        session: 8,
        welcomes: 3,
        user: Credentials { uid: 3, gid: 4, groups: Groups::new(&[4, 5, 70_000]) },
        label: Label::new("812", "0", "3", "node1", "ior"),
    };
    let other = entry.clone();
    let node = MakeNodeRequest { entry: entry.clone(), kind: Kind::Fifo, mode: 0o600, device: 0, group: Some(1) };
    let range = ChunkRange { chunk_index: 1, chunk_offset: 2, size: 3 };
    vec![
        greeting.to_bytes(),
        hello.to_bytes(),
        EntryRequest { entry: entry.clone() }.to_bytes(),
        EntryReply { attributes: attributes(), target: b"target" }.to_bytes(),
        OpenRequest { entry: entry.clone(), flags: 3, access: 6, mode: 0o600, layout: WISH, group: Some(5) }.to_bytes(),
        RenameRequest { from: entry.clone(), to: entry.clone(), flags: 1 }.to_bytes(),
        RenamedReply { number: 9, before: 7, directories: vec![FileId(1), FileId(2)] }.to_bytes(),
        PrepareDentryRequest {
            coordinator: 1,
            number: 2,
            parent: FileId(3),
            name,
            id: FileId(4),
            kind: Kind::File,
            rule: entry_rules::REPLACE,
        }
        .to_bytes(),
        PrepareReply { verdict: 0, found: Some(FileId(5)), kind: Some(Kind::File) }.to_bytes(),
        RemoveRequest { entry: entry.clone(), owned: true }.to_bytes(),
        SynchroniseRequest { file: FileId(6), seen: 7, opened_at: -8, is_question: true }.to_bytes(),
        SynchroniseReply { trouble: 9, reason: b"full".to_vec(), holders: vec![1, 2], carries: true }.to_bytes(),
        CheckCallerRequest { file: FileId(6), user: Credentials::new(7, 8), owned: true, moved: false }.to_bytes(),
        NoteRenamedRequest { file: FileId(6), time: -7 }.to_bytes(),
        MakeSymlinkRequest { entry, target: Target(b"there"), group: None }.to_bytes(),
        DataRequest { file: FileId(77), layout: layout(), pieces: Pieces(vec![range; 3]), sums: vec![1, 2, 3] }
            .to_bytes(),
        ReadReply { complete: true, size: Some(9), sums: vec![7] }.to_bytes(),
        OpenReply { attributes: attributes(), created: false, open_number: 5, places: None, contents: None }.to_bytes(),
        DelegationReply {
            delegated: Some(Delegation { attributes: attributes(), open_number: 5, delegation_ms: 2_000 }),
        }
        .to_bytes(),
        ReclaimHeldRequest { files: Batch(vec![FileId(7)]), since: 3, last: true }.to_bytes(),
        AskPlaceRequest { id: FileId::taken_up(7, 3) }.to_bytes(),
        BackingPlace {
            parent: FileId::ROOT,
            path: b"a/b".to_vec(),
            device: 1,
            inode: 2,
            size: 3,
            mtime: -4,
            ctime: 5,
            base: 6,
            carried: 7,
            chunk_size: 4096,
            has_links: true,
        }
        .to_bytes(),
        FlushRequest { ticket: 3, paths: vec![b"a/b".to_vec()], file: FileId(4) }.to_bytes(),
        ListChangesRequest { stage: 1, directory: 2, cursor: 3, name: b"a".to_vec(), files: vec![4, 5] }.to_bytes(),
        AskCarriedRequest { id: FileId(5), hindrance: b"read-only".to_vec() }.to_bytes(),
        FlushReply {
            ticket: 3,
            state: flush_states::ENDED,
            done: 1,
            bytes: 2,
            progress: 3,
            left: 0,
            failed: 1,
            paths: vec![b"a".to_vec()],
            reasons: vec![b"why".to_vec()],
            settled: 1,
            settled_paths: vec![b"b".to_vec()],
            settled_words: vec![b"what".to_vec()],
        }
        .to_bytes(),
        GiveUpNameRequest { wish: 3, directory: FileId::ROOT, name: b"name".to_vec(), id: Some(FileId(7)) }.to_bytes(),
        AskForFlushReply { newest: 2, ended: 1, done: 0, bytes: 7 }.to_bytes(),
        StageRequest {
            parts: StageParts(vec![StagePart { file: FileId(7), layout: layout(), first: 3, count: 2 }; 2]),
        }
        .to_bytes(),
        StageReply { failures: vec![StageFailure { part: 1, status: 5, text: b"why".to_vec() }] }.to_bytes(),
        ListCarriedReply {
            files: vec![FileId(7)],
            is_last: false,
            next: ListCarriedRequest { directory: 1, cursor: 2 },
        }
        .to_bytes(),
        CompareShareRequest { file: FileId(7), layout: layout(), size: 3, from: 2, paths: vec![b"a".to_vec()] }
            .to_bytes(),
        CompareShareReply { bytes: 1, next: u64::MAX, path: b"a".to_vec(), difference: b"what".to_vec() }.to_bytes(),
        GiveUpNameReply { state: flush_states::ENDED, is_given_up: true, reason: Vec::new() }.to_bytes(),
        NoteBehindRequest {
            directory: FileId::ROOT,
            name: b"name".to_vec(),
            behind: NameBehind {
                known: Some(KnownBehind { inode: 1, size: 2, mtime: -3, ctime: 4 }),
                next: None,
                same_as: FileId(7),
            },
            kind: note_kinds::NOW,
            seen: None,
        }
        .to_bytes(),
        CloseHeldRequest { closed: Batch(vec![Closed { file: FileId(7), number: 3 }]) }.to_bytes(),
        RecallRequest { file: FileId(7), number: 9 }.to_bytes(),
        KeepEntriesRequest { session: 3, held: 1, ended: 2, wanted: true }.to_bytes(),
        KeepEntriesReply { state: kept::HELD, number: 3, time_ms: 4 }.to_bytes(),
        OpenReply {
            attributes: attributes(),
            created: false,
            open_number: 5,
            places: Some(LocateReply {
                number: 3,
                places: vec![BytePlace { chunk: 0, offset: 0, size: 3901, at: 8192 }],
            }),
            contents: None,
        }
        .to_bytes(),
        OpenReply {
            attributes: attributes(),
            created: false,
            open_number: 5,
            places: None,
            contents: Some(LeasedContents { time: 2_000_000, bytes: (*b"all of it").into() }),
        }
        .to_bytes(),
        RegisterBuffersRequest { returned: vec![1, 2], size: 1 << 20 }.to_bytes(),
        RegisterBuffersReply { generation: 7, at: 8192, size: 1 << 20 }.to_bytes(),
        CommitRegisteredRequest {
            file: FileId(77),
            layout: layout(),
            pieces: Pieces(vec![range; 2]),
            places: vec![RegisteredPlace { generation: 7, at: 8192 }; 2],
        }
        .to_bytes(),
        CommitRegisteredReply { end: Some(9) }.to_bytes(),
        LocateReply { number: 3, places: vec![BytePlace { chunk: 1, offset: 2, size: 3, at: 4 }; 2] }.to_bytes(),
        ListingEntry {
            next_cursor: 1,
            id: FileId(2),
            kind: Kind::Symlink,
            name,
            attributes: Some(Box::new(attributes())),
            size_final: true,
        }
        .to_bytes(),
        CheckRequest {
            table: CheckTable::Names,
            position: 1,
            position_within: 2,
            wanted: CheckWanted::Ids(vec![FileId(3), FileId(4)]),
        }
        .to_bytes(),
        CheckRequest {
            table: CheckTable::Shares,
            position: 0,
            position_within: 0,
            wanted: CheckWanted::Parts { bits: [0x5a; 32], leave_plain_out: true },
        }
        .to_bytes(),
        CheckInode {
            id: FileId(1),
            kind: Kind::File,
            link_count: 2,
            size: 3,
            truncate_generation: 4,
            parent: Some(FileId(7)),
            holders: vec![5, 6],
            announced: vec![5],
        }
        .to_bytes(),
        RepairRequest { step: RepairStep::PutName { parent: FileId(1), name, id: FileId(2), kind: Kind::Symlink } }
            .to_bytes(),
        RepairRequest { step: RepairStep::AddHolder { file: FileId(1), server: 2, announced: Some(3) } }.to_bytes(),
        ErrorDetail { id: FileId(1), text: b"why" }.to_bytes(),
        LockRequest { wish: wish(), wait: true }.to_bytes(),
        TestLockReply {
            held: Some(HeldLock {
                owner: LockOwner { session: 1, kind: OwnerKind::Description, id: 2 },
                range: LockRange::WHOLE,
                exclusive: true,
            }),
        }
        .to_bytes(),
        SetExtendedRequest {
            file: FileId(77),
            name: ExtendedName::new(b"user.some").unwrap(),
            flags: extended_flags::CREATE,
        }
        .to_bytes(),
        GetExtendedRequest { file: FileId(77), name: ExtendedName::new(b"user.some").unwrap(), size_max: 9 }.to_bytes(),
        Header::new(FrameKind::Request, 13).to_array().to_vec(),
        vec![1u64, 2, 3].to_bytes(),
        LinkOpenRequest { file: FileId(7), to: other }.to_bytes(),
        CloseRequest { closed: Closed { file: FileId(7), number: 8 }, settle: true }.to_bytes(),
        CloseManyRequest { closed: Batch(vec![Closed { file: FileId(7), number: 8 }; 3]) }.to_bytes(),
        ReclaimRequest { files: Batch(vec![FileId(7), FileId(8)]), last: true }.to_bytes(),
        MakeTemporaryRequest {
            directory: FileId(7),
            slot: 8,
            mode: 0o600,
            layout: LayoutWish::of_chunk_size(4096),
            linkable: true,
            group: None,
        }
        .to_bytes(),
        PrepareTreeRequest { coordinator: 1, number: 2, entries: vec![moved.clone()], reparents: true }.to_bytes(),
        MarkTreeRequest { number: 3, entries: vec![moved.clone()] }.to_bytes(),
        ResolveTreeRequest { number: 3, commit: true, entries: vec![moved] }.to_bytes(),
        TreeLogReply {
            number: 3,
            complete: true,
            entries: vec![TreeLogEntry { number: 3, directory: FileId(5), kind: tree_kinds::RIGHTS }],
        }
        .to_bytes(),
        AnnounceDirectoryRequest { directory: FileId(7), server: 2 }.to_bytes(),
        GlimpseDirectoryReply { time: i64::MIN, subdirectories: 3 }.to_bytes(),
        FindRequest {
            listing: ReadDirectoryRequest {
                directory: FileId::ROOT,
                cursor: 0,
                size_max: 4096,
                with_attributes: false,
                ancestors: Ancestors(vec![FileId(5)]),
                known: 4,
            },
            count_only: true,
            tests: Tests(vec![
                Test::Name { pattern: b"*.html".to_vec(), any_case: true },
                Test::Size { order: Order::More, unit: 1024, count: 10 },
                Test::Empty,
                Test::Ids(Ids::new(vec![FileId(7), FileId(3)]).expect("few")),
            ]),
        }
        .to_bytes(),
        FoundEntry { id: FileId(9), kind: Kind::File, verdict: Verdict::Undecided, name }.to_bytes(),
        AllocateRequest {
            file: FileId(77),
            layout: layout(),
            offset: 5,
            size: 1 << 30,
            mode: allocate_mode::ZERO,
            grow: true,
        }
        .to_bytes(),
        SeekRequest { file: FileId(77), layout: layout(), offset: 9, hole: true }.to_bytes(),
        SeekReply { found: Some(7), exact: false }.to_bytes(),
        CopyRangeRequest {
            source: FileId(77),
            source_layout: layout(),
            from: range,
            target: FileId(78),
            target_layout: layout(),
            to: range,
        }
        .to_bytes(),
        ReserveChunksRequest { file: FileId(77), layout: layout(), pieces: Pieces(vec![range; 2]), patient: true }
            .to_bytes(),
        WriteChunksRequest {
            file: FileId(77),
            layout: layout(),
            number: 8,
            pieces: Pieces(vec![range; 2]),
            sums: vec![8, 9],
            damaged: true,
        }
        .to_bytes(),
        node.to_bytes(),
        GlimpseDirectoryRequest { directory: FileId(7), time: -1, kept: true }.to_bytes(),
        CheckRequest {
            table: CheckTable::Removed,
            position: 0,
            position_within: 0,
            wanted: CheckWanted::Ids(vec![FileId(1)]),
        }
        .to_bytes(),
        RepairRequest { step: RepairStep::LiftTombstone { directory: FileId(1) } }.to_bytes(),
        AllocatedRequest { files: vec![FileId(1), FileId(2)], from_chunk: 3 }.to_bytes(),
        AllocatedReply { bytes: vec![4096, 0], next_chunk: 1 << 40 }.to_bytes(),
    ]
}

/// Numbers from a fixed seed (splitmix64, Steele et al., OOPSLA 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}

/// Goal: no decoder panics, and each valid encoding is accepted.
#[test]
fn valid_messages_are_accepted() {
    for seed in seeds() {
        assert!(decode_everything(&seed) > 0, "{seed:?} was refused");
    }
}

/// Goal: no input makes a decoder panic, allocate without bound, or accept two encodings of one value.
/// Method: mutate valid messages: flips, cuts, insertions and large counts, from a fixed seed.
#[test]
fn mutations_never_panic() {
    let seeds = seeds();
    let mut random = Random(2);
    for _ in 0..200_000 {
        let mut input = seeds[random.below(seeds.len())].clone();
        for _ in 0..=random.below(4) {
            let position = random.below(input.len().max(1));
            match random.below(5) {
                0 if !input.is_empty() => input[position] ^= 1 << random.below(8),
                1 => input.truncate(position),
                2 => input.insert(position.min(input.len()), random.below(256) as u8),
                3 if input.len() >= position + 4 => input[position..position + 4].fill(0xff),
                _ => input.extend_from_slice(&[0; 3]),
            }
        }
        decode_everything(&input);
    }
}

/// Goal: inputs that once mattered stay harmless.
#[test]
fn corpus_is_replayed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/messages");
    let mut count = 0;
    for file in std::fs::read_dir(&folder).expect("the corpus is part of the repository") {
        decode_everything(&std::fs::read(file.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count >= seeds().len(), "the corpus in {} is incomplete", folder.display());
}

/// Goal: the book names the version that the code speaks.
#[test]
fn book_names_the_version() {
    let book = include_str!("../../../docs/protocol.md");
    assert!(book.contains(&format!("\nVersion {}. ", wire::PROTOCOL_VERSION)));
}

/// Writes the seeds into the corpus: `cargo test -p wire --test decoders -- --ignored write_corpus`.
#[test]
#[ignore = "writes files into the repository; run by hand after a new message"]
fn write_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/messages");
    for (index, seed) in seeds().iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{index:02}")), seed).unwrap();
    }
}
