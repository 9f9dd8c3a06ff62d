//! Writing into pages that a server of this machine registers, against real servers with their stores in memory.

#[path = "common/real.rs"]
mod real;

use client::OpenHow;
use reactor::{Call, Channel, ChannelOptions, DriverKind, Reactor, StoreMapping};
use real::Real;
use std::rc::Rc;
use wire::credentials::Credentials;
use wire::handshake::Role;
use wire::layout::ChunkRange;
use wire::messages::*;
use wire::operation::LEVEL_CLIENT;
use wire::submission::{ByteTransfer, Change, Made, Submission, SubmissionBytes, SubmittedBytes, WriteOrder, Written};
use wire::{Decode, Encode, FileId, Layout, Operation};

const CHUNK: u32 = 1 << 20;
const PAGE: u64 = 4096;

/// Bytes that name their version and their place.
fn version(number: u64, size: usize) -> Vec<u8> {
    (0..size).map(|at| (number * 101 + at as u64 / 7) as u8).collect()
}

/// How many requests of a kind a server has had.
fn arrived(client: &client::Client, server: u32, operation: Operation) -> u64 {
    let text = client.server_statistics(server, client::StatisticsFormat::JSON).expect("it answers");
    let name = format!("\"{}\":{{\"arrivals\":", operation.name());
    text.find(&name).map_or(0, |at| number_at(&text, at + name.len()))
}

fn number_at(text: &str, at: usize) -> u64 {
    text[at..].chars().take_while(char::is_ascii_digit).collect::<String>().parse().expect("a number")
}

/// Goal: what clients write into registered pages is what everybody reads, written over and over by two of them in
/// turns, in pieces of all sizes, and also what they wrote after each other's files were removed; and most of it goes
/// that way.
#[test]
fn contents() {
    const SIZE: usize = 6 * CHUNK as usize;
    let cluster = Real::in_memory("registered", 2, CHUNK);
    let (one, other) = (cluster.client(), cluster.client());
    let mut all = vec![0; SIZE];
    let files = [
        one.open(b"/f", &OpenHow::creating(0o644)).expect("made"),
        other.open(b"/f", &OpenHow::creating(0o644)).expect("is there"),
    ];
    let pieces = [
        (0, SIZE),
        (0, 1 << 20),
        (1 << 20, 3 << 20),
        (4096, 65_536),
        (100, 70_000),
        (5 << 20, 1 << 20),
        (8192, 16_384),
    ];
    for round in 0..60u64 {
        let (offset, size) = pieces[round as usize % pieces.len()];
        let bytes = version(round + 1, size);
        let (writer, file) = if round % 2 == 0 { (&one, &files[0]) } else { (&other, &files[1]) };
        assert_eq!(writer.write_at(file, &bytes, offset as u64), Ok(size));
        all[offset..offset + size].copy_from_slice(&bytes);
        // Pages that are free again meanwhile are somebody else's soon.
        let name = format!("/g{}", round % 3).into_bytes();
        let scratch = other.open(&name, &OpenHow::creating(0o644)).expect("made");
        assert_eq!(other.write_at(&scratch, &vec![0xEE; 3 << 20], 0), Ok(3 << 20));
        if round % 3 == 2 {
            other.unlink(&name).expect("removed");
        }
        other.close(&scratch);
        for reader in [&one, &other] {
            let file = reader.open(b"/f", &OpenHow::reading()).expect("is there");
            let mut read = vec![0; SIZE];
            assert_eq!(reader.read_at(&file, &mut read, 0), Ok(SIZE));
            assert!(read == all, "round {round}");
            reader.close(&file);
        }
    }
    let registered: u64 = (0..2).map(|server| arrived(&one, server, Operation::CommitRegistered)).sum();
    assert!(registered > 60, "only {registered} requests committed registered pages");
}

/// Goal: of writes that pages are not for, such as small odd pieces of large chunks, some of which happen to be whole
/// pages, no page becomes the file's, and one registered buffer is enough; nor of a large one alone; then they do, and
/// the bytes count as all others.
#[test]
fn pages_are_asked_for_where_they_pay() {
    const PIECE: u64 = 47_008;
    let cluster = Real::in_memory("paying", 2, CHUNK);
    let client = cluster.client();
    let sum = |operation| (0..2).map(|server| arrived(&client, server, operation)).sum::<u64>();
    let file = client.open(b"/odd", &OpenHow::creating(0o644)).expect("made");
    // Piece 2431 ends with a page and begins a chunk there, piece 2944 begins with one.
    for index in (2420..2440).chain(2935..2950) {
        assert_eq!(client.write_at(&file, &version(index, PIECE as usize), index * PIECE), Ok(PIECE as usize));
    }
    let file = client.open(b"/large", &OpenHow::creating(0o644)).expect("made");
    let bytes = version(1, CHUNK as usize);
    let write = |index: u64| {
        assert_eq!(client.write_at(&file, &bytes, index % 16 * 2 * u64::from(CHUNK)), Ok(bytes.len()));
    };
    write(0);
    assert_eq!(sum(Operation::CommitRegistered), 0);
    assert!(sum(Operation::RegisterBuffers) <= 2, "one for what is submitted to each server");
    let count = (1..1000).take_while(|index| (write(*index), sum(Operation::CommitRegistered) == 0).1).count();
    assert!(count < 900, "no pages were registered in {count} writes");
    for server in 0..2 {
        let text = client.server_statistics(server, client::StatisticsFormat::JSON).expect("it answers");
        let Some(at) = text.find("\"CommitRegistered\":{") else { continue };
        let key = "\"bytes_in\":";
        let bytes_in = number_at(&text, at + text[at..].find(key).expect("it is told") + key.len());
        assert_eq!(bytes_in, arrived(&client, server, Operation::CommitRegistered) * u64::from(CHUNK));
    }
}

/// One connection of ours, spoken over by hand.
struct Raw {
    reactor: Reactor,
    channel: Channel,
}

impl Raw {
    fn connect(cluster: &Real, session: u64) -> Raw {
        let reactor = Reactor::open(DriverKind::Auto).expect("the kernel gives a loop");
        let options = ChannelOptions {
            cluster: Rc::new(cluster.cluster.clone()),
            server: 0,
            role: Role::Client,
            from_server: 0,
            level: LEVEL_CLIENT,
            session,
            user: Credentials::new(reactor::process::user(), 0),
            label: wire::label::Label::default(),
            timeout: 10_000_000_000,
            relay: None,
        };
        let channel = Channel::new(&reactor, options);
        let raw = Raw { reactor, channel };
        raw.ask(Operation::Ping, &Empty {});
        raw
    }

    fn ask(&self, operation: Operation, request: &impl Encode) -> Option<Vec<u8>> {
        let reply = self.reactor.block_on(self.channel.call(Call::new(operation, request)));
        reply.ok().map(|reply| reply.params)
    }

    fn register(&self, returned: Vec<u64>, size: u64) -> RegisterBuffersReply {
        let reply = self.ask(Operation::RegisterBuffers, &RegisterBuffersRequest { returned, size }).expect("answered");
        RegisterBuffersReply::from_bytes(&reply).expect("well-formed")
    }

    fn mapping(&self) -> Rc<StoreMapping> {
        self.channel.mapping().expect("shared")
    }

    /// Whether the server takes one piece from some pages; nothing if it refuses the request.
    fn commit(&self, (file, layout): (FileId, Layout), piece: ChunkRange, generation: u64, at: u64) -> Option<bool> {
        let (pieces, places) = (Pieces(vec![piece]), vec![RegisteredPlace { generation, at }]);
        let request = CommitRegisteredRequest { file, layout, pieces, places };
        let reply = self.ask(Operation::CommitRegistered, &request)?;
        Some(CommitRegisteredReply::from_bytes(&reply).expect("well-formed").end.is_some())
    }
}

/// Goal: a client that lies about its pages gets nothing: a run that is not its own, of another generation or
/// connection, used twice, beyond its end or beyond everything; and nothing of what others have written changes.
#[test]
fn hostile_clients() {
    let cluster = Real::in_memory("hostile", 1, CHUNK);
    let honest = cluster.client();
    let file = honest.open(b"/f", &OpenHow::creating(0o644)).expect("made");
    let bytes = version(3, 2 << 20);
    assert_eq!(honest.write_at(&file, &bytes, 0), Ok(bytes.len()));
    let other = honest.open(b"/other", &OpenHow::creating(0o644)).expect("made");
    let target = (other.id, other.layout);

    let (one, two) = (Raw::connect(&cluster, 71), Raw::connect(&cluster, 72));
    let (mine, foreign) = (one.register(vec![], 1 << 20), two.register(vec![], 1 << 20));
    assert!(mine.size >= 16 * PAGE && foreign.size >= 16 * PAGE && mine.generation != foreign.generation);
    let piece = ChunkRange { chunk_index: 0, chunk_offset: 0, size: 2 * PAGE as u32 };
    let commit = |generation, at| one.commit(target, piece, generation, at);
    assert_eq!(commit(foreign.generation, foreign.at), Some(false), "somebody else's");
    assert_eq!(commit(foreign.generation, mine.at), Some(false), "of another generation");
    assert_eq!(commit(mine.generation, foreign.at), Some(false), "of another generation");
    assert_eq!(commit(mine.generation, mine.at + mine.size - PAGE), Some(false), "one page too far");
    assert_eq!(commit(mine.generation, mine.at.wrapping_sub(PAGE)), Some(false), "one page before");
    for at in [u64::MAX, u64::MAX - PAGE + 1, 1 << 63, (1 << 44) - PAGE, u64::from(u32::MAX) * PAGE] {
        assert_eq!(commit(mine.generation, at), Some(false), "{at} is nowhere");
    }
    assert_eq!(commit(mine.generation, mine.at + 2 * PAGE + 1), Some(false), "within a page");
    // Pages that a refusal has named may be spoilt, others are as before.
    let (offset, place) = (8 * PAGE, mine.at + 8 * PAGE);
    let pages = one.mapping().registered(mine.at, mine.size).expect("mapped");
    pages.write(mine.at + offset, &[7; 2 * PAGE as usize]);
    assert_eq!(commit(mine.generation, place), Some(true));
    assert_eq!(commit(mine.generation, place), Some(false), "used twice");
    assert_eq!(commit(mine.generation, place - PAGE), Some(false), "a page of it was used");
    let empty = ChunkRange { size: 0, ..piece };
    let beyond = ChunkRange { chunk_offset: CHUNK - 1, ..piece };
    let far = ChunkRange { chunk_index: u64::MAX, ..piece };
    let raw = |piece| Raw::connect(&cluster, 73).commit(target, piece, mine.generation, mine.at + 12 * PAGE);
    assert!([empty, beyond, far].into_iter().all(|piece| raw(piece) != Some(true)));
    let fewer = CommitRegisteredRequest {
        file: other.id,
        layout: other.layout,
        pieces: Pieces(vec![piece; 2]),
        places: vec![],
    };
    assert!(Raw::connect(&cluster, 74).ask(Operation::CommitRegistered, &fewer).is_none());

    // What is given back is void, and so is what a connection had that has ended; nobody else can give it back.
    drop(pages);
    two.register(vec![mine.generation], 0);
    assert_eq!(commit(mine.generation, mine.at + 12 * PAGE), Some(true), "still registered");
    one.register(vec![mine.generation, 12_345], 0);
    assert_eq!(commit(mine.generation, mine.at + 14 * PAGE), Some(false), "given back");

    let mut read = vec![0; bytes.len()];
    assert_eq!(honest.read_at(&file, &mut read, 0), Ok(read.len()));
    assert!(read == bytes);
}

/// Numbers that look random, the same ones each time (Marsaglia, "Xorshift RNGs", 2003).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Goal: whatever a client submits, the server goes on, and nothing that others have made changes. Method: words that
/// mean nothing, and sound submissions of what is not the client's, each with a word or two changed: files made with
/// the number and the name of another one, other users' files, removals that name the wrong file, bytes in pages of
/// nobody or of others.
#[test]
fn hostile_submissions() {
    const SESSION: u64 = 81;
    const ROUNDS: u64 = 30_000;
    let cluster = Real::in_memory("hostile-submissions", 1, CHUNK);
    let honest = cluster.client();
    honest.mkdir(b"/d", 0o755).expect("made");
    let file = honest.open(b"/d/f", &OpenHow::creating(0o644)).expect("made");
    let bytes = version(5, 300_000);
    assert_eq!(honest.write_at(&file, &bytes, 0), Ok(bytes.len()));
    let directory = honest.stat(b"/d").expect("is there").id;
    let raw = Raw::connect(&cluster, SESSION);
    let (mine, mapping) = (raw.register(vec![], 1 << 20), raw.mapping());
    let mut random = Random(1);
    let mut submitted = 0;
    for round in 0..ROUNDS {
        let stranger = FileId::new(random.below(1 << 20), 0);
        let made =
            Made { mode: random.next() as u32, chunk_size: random.next() as u32, uid: random.next() as u32, gid: 0 };
        // Another's registered buffer, or pages beyond our own.
        let (wrong, beyond) = (mine.generation ^ (1 + random.below(9)), mine.at + mine.size);
        let (generation, at) = if random.below(2) == 0 { (wrong, mine.at) } else { (mine.generation, beyond) };
        let pieces = SubmittedBytes { at, size: 1 + random.below(1 << 16) as u32, generation };
        let order = if random.below(2) == 0 { WriteOrder::Number } else { WriteOrder::IntentLock };
        let transfer = if random.below(2) == 0 { ByteTransfer::Copy } else { ByteTransfer::Swap };
        let chunk_index = random.below(4);
        let written = Written { chunk_index, chunk_offset: 0, layout: file.layout, order, transfer };
        let name = |change, file| Submission { parent: directory, name: b"f", file, time: 0, change };
        let words = match random.below(7) {
            0 => name(Change::Create(made), file.id).words(),
            1 => name(Change::Create(made), stranger).words(),
            2 => name(Change::Unlink, stranger).words(),
            3..=5 => Submission::of_write(file.id, 0, written, pieces).words(),
            _ => None,
        };
        let is_sound = words.is_some();
        let mut words = words.unwrap_or_else(|| std::array::from_fn(|_| random.next()));
        for _ in 0..if is_sound { random.below(3) } else { 0 } {
            // Not which registered buffer or which file is meant.
            let word = [0, 1, 14, 15][random.below(4) as usize];
            words[word] ^= 1 << random.below(64);
        }
        // What is allowed to this client is no attack.
        let bytes = SubmissionBytes::of(&words);
        if bytes
            .submission(&words)
            .is_some_and(|submission| submission.change == Change::Unlink && submission.file == file.id)
        {
            continue;
        }
        let intent_locks = [random.next() as usize, random.next() as usize];
        if let Some(pending) = mapping.begin_submission(SESSION, intent_locks, &words) {
            if random.below(2) == 0 {
                let _ = pending.number_write(random.next() as usize);
            }
            submitted += u64::from(pending.commit().is_some());
        }
        if round % 32 == 0 {
            assert!(raw.ask(Operation::Ping, &Empty {}).is_some(), "the server answers after {submitted} submissions");
        }
    }
    assert!(submitted > ROUNDS / 4, "{submitted} were submitted");
    let mut names = Vec::new();
    let mut note = |entry: &client::DirectoryEntry| {
        names.push(entry.name.clone());
        true
    };
    honest.read_directory(b"/d", true, &mut note).expect("listed");
    assert_eq!(names, [b"f".to_vec()]);
    for client in [honest, cluster.client()] {
        let file = client.open(b"/d/f", &OpenHow::reading()).expect("is there");
        let mut read = vec![0; bytes.len() + 1];
        assert_eq!(client.read_at(&file, &mut read, 0), Ok(bytes.len()));
        assert!(read[..bytes.len()] == bytes);
        let new = client.open(b"/d/g", &OpenHow::creating(0o644)).expect("others make files");
        assert_eq!(client.write_at(&new, b"x", 0), Ok(1));
        client.close(&new);
        client.unlink(b"/d/g").expect("and remove them");
    }
}

/// Goal: pages that a client has mapped whose connection has ended are given to nobody, and are everybody's once it
/// unmaps them. Method: a client keeps its mapping and goes on writing to it while another one fills files.
#[test]
fn whoever_has_gone_may_write_on() {
    let cluster = Real::in_memory("gone", 1, CHUNK);
    let honest = cluster.client();
    let raw = Raw::connect(&cluster, 81);
    let buffer = raw.register(vec![], 2 << 20);
    assert!(buffer.size > 0);
    let pages = raw.mapping().registered(buffer.at, buffer.size).expect("mapped");
    let orphaned = || {
        let (text, key) =
            (honest.server_statistics(0, client::StatisticsFormat::JSON).expect("it answers"), "\"bytes_orphaned\":");
        number_at(&text, text.find(key).expect("it is told") + key.len())
    };
    drop(raw);
    let deadline = reactor::barrier::monotonic_now() + 60_000_000_000;
    while orphaned() != buffer.size {
        assert!(reactor::barrier::monotonic_now() < deadline, "the server notices that the connection has ended");
    }
    let bytes = version(9, 3 << 20);
    for number in 0..20 {
        pages.write(buffer.at, &vec![0xEE; buffer.size as usize]);
        let name = format!("/f{number}").into_bytes();
        let file = honest.open(&name, &OpenHow::creating(0o644)).expect("made");
        assert_eq!(honest.write_at(&file, &bytes, 0), Ok(bytes.len()));
        honest.close(&file);
    }
    pages.write(buffer.at, &vec![0xEE; buffer.size as usize]);
    let check = || {
        for number in 0..20 {
            let file = honest.open(format!("/f{number}").as_bytes(), &OpenHow::reading()).expect("is there");
            let mut read = vec![0; bytes.len()];
            assert_eq!(honest.read_at(&file, &mut read, 0), Ok(read.len()));
            assert!(read == bytes, "file {number}");
            honest.close(&file);
        }
    };
    check();
    assert_eq!(orphaned(), buffer.size, "still mapped");
    drop(pages);
    // Whoever asks for pages has the server look.
    let other = Raw::connect(&cluster, 82);
    other.register(vec![], 1 << 20);
    assert_eq!(orphaned(), 0);
    check();
}
