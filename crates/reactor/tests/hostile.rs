//! Peers that do not keep the protocol: each gets one clear error and is closed, and others go on undisturbed.
//!
//! The peers here speak to the server through bare streams, with a handshake of their own making.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use hmac::{Hmac, Mac};
use reactor::{
    Call, Channel, ChannelOptions, DriverKind, Incoming, Peer, Reactor, ServeOptions, ServerHandle, Service, Stream,
    local_name, serve,
};
use sha2::Sha256;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::credentials::{Credentials, GROUP_COUNT_MAX, Groups};
use wire::handshake::{Challenge, GREETING_MAGIC, Greeting, HELLO_SIZE_MAX, Hello, Proven, Role, Welcome};
use wire::header::HEADER_SIZE;
use wire::limits::{BODY_SIZE_MAX, PARAMS_SIZE_MAX, REQUEST_WINDOW};
use wire::messages::{Empty, ErrorDetail};
use wire::relay::{Credit, OpenStream, STREAM_DATA_SIZE_MAX, StreamFrame};
use wire::{Cluster, Decode, Encode, FrameKind, Header, Operation, PROTOCOL_VERSION, Placement, ServerAddress, Status};

const SECOND: u64 = 1_000_000_000;
const KEY: [u8; 32] = [9; 32];

/// Answers pings and keeps everything else for ever.
#[derive(Default)]
struct Keep(std::cell::RefCell<Vec<Incoming>>);

impl Service for Keep {
    fn connected(&self, _: &Peer, _: u64) -> Result<bool, Status> {
        Ok(true)
    }

    fn disconnected(&self, _: &Peer) {}

    fn request(self: Rc<Self>, incoming: Incoming) {
        match incoming.operation {
            Operation::Ping => incoming.reply(&Empty {}),
            _ => self.0.borrow_mut().push(incoming),
        }
    }
}

struct Fixture {
    reactor: Reactor,
    cluster: Rc<Cluster>,
    handle: ServerHandle,
    /// A well-behaved client, connected before any misdeed.
    good: Channel,
    /// Whether everybody speaks through shared memory.
    is_local: bool,
}

/// Servers that are spoken to over TCP and through shared memory; the rules are the same.
fn fixtures() -> [Fixture; 2] {
    [fixture(false), fixture(true)]
}

fn fixture(is_local: bool) -> Fixture {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let reactor = Reactor::open(DriverKind::Epoll).unwrap();
    let listener = reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    // The name of the local socket is made of it.
    let id = u128::from(std::process::id()) << 64 | u128::from(COUNT.fetch_add(1, Ordering::SeqCst));
    let servers = vec![ServerAddress { address: listener.local_address().unwrap() }];
    let cluster = Rc::new(Cluster::new(id, KEY, Placement::Modular, 1 << 20, servers));
    let options = ServeOptions {
        cluster: cluster.clone(),
        server: 0,
        connections_max: 8,
        incarnation: 1,
        shared: None,
        local_clients_only: false,
        registers_buffers: false,
        working_interval: SECOND,
        timeout: 10 * SECOND,
    };
    let handle = serve(&reactor, listener, options, Rc::new(Keep::default()));
    if is_local {
        handle.accept_local(reactor.listen_local(&local_name(&cluster, 0)).unwrap());
    }
    let options = ChannelOptions {
        cluster: cluster.clone(),
        server: 0,
        role: Role::Client,
        from_server: 0,
        level: 0,
        session: 1,
        user: Credentials::new(0, 0),
        label: wire::label::Label::default(),
        timeout: 5 * SECOND,
        relay: None,
    };
    let good = Channel::new(&reactor, options);
    reactor.block_on(good.call(Call::new(Operation::Ping, &Empty {}))).unwrap();
    Fixture { reactor, cluster, handle, good, is_local }
}

impl Fixture {
    /// The good client was not disturbed: it is served over the connection that it had.
    fn check_undisturbed(&self) {
        self.reactor.block_on(self.good.call(Call::new(Operation::Ping, &Empty {}))).unwrap();
        assert_eq!(self.good.statistics().connects, 1);
    }

    fn greeting(&self) -> Greeting {
        Greeting {
            magic: GREETING_MAGIC,
            protocol_version: PROTOCOL_VERSION,
            cluster: self.cluster.id,
            server: 0,
            protection: 0,
            nonce: [7; 32],
            voucher: [0; 16],
        }
    }

    fn hello(&self) -> Hello {
        Hello {
            role: Role::Client,
            level: 0,
            from_server: 0,
            session: 2,
            welcomes: 0,
            user: Credentials { uid: 6, gid: 7, groups: Groups::new(&[5, 4000, 77]) },
            label: wire::label::Label::default(),
        }
    }

    fn secret(&self, stream: &Stream, challenge: &Challenge) -> [u8; 32] {
        self.secret_of(challenge, self.is_local, self.ends_of(stream))
    }

    /// The client's address and the server's, where they count.
    fn ends_of(&self, stream: &Stream) -> [[u8; 18]; 2] {
        match self.is_local {
            true => [[0; 18]; 2],
            false => [stream.local_address(), stream.peer_address()].map(|address| end_of(address.unwrap())),
        }
    }

    fn secret_of(&self, challenge: &Challenge, is_local: bool, [client, server]: [[u8; 18]; 2]) -> [u8; 32] {
        // Both are processes of one user.
        let way = [if is_local { 3 } else { 1 }, 0, 0, 0, 0, 0, 0, 0, 0];
        let greeting = self.greeting().to_bytes();
        mac(&KEY, &[b"tabane connection 3", &greeting, &challenge.nonce, &way, &client, &server])
    }

    /// A message under a proof.
    fn proven(&self, stream: &Stream, challenge: &Challenge, message: &[u8]) -> Vec<u8> {
        proven_under(&self.secret(stream, challenge), message)
    }

    async fn connect(&self) -> Stream {
        if self.is_local {
            return self.reactor.connect_local(&local_name(&self.cluster, 0), None).unwrap();
        }
        self.reactor.connect(self.cluster.servers[0].address).await.unwrap()
    }

    /// A connection of an authenticated client.
    async fn admitted(&self) -> Stream {
        self.admitted_as(Role::Client).await
    }

    async fn admitted_as(&self, role: Role) -> Stream {
        let (stream, challenge) = self.greeted().await;
        let hello = Hello { role, ..self.hello() }.to_bytes();
        send_bytes(&stream, &self.proven(&stream, &challenge, &hello)).await;
        let answer = receive_bytes(&stream).await.unwrap();
        let answer = Proven::from_bytes(&answer).unwrap();
        let first = 0u64.to_le_bytes();
        let proof = mac(&self.secret(&stream, &challenge), &[b"welcome", &first, answer.message]);
        assert_eq!(answer.mac, proof, "a welcome is proved");
        assert_eq!(Welcome::from_bytes(answer.message).unwrap().status, Status::Ok as u32);
        stream
    }

    /// A connection that was greeted on, and the server's answer, which proves it.
    async fn greeted(&self) -> (Stream, Challenge) {
        let stream = self.connect().await;
        send(&stream, &self.greeting()).await;
        let challenge: Challenge = receive(&stream).await.unwrap();
        assert_eq!(
            challenge.mac,
            mac(&self.secret(&stream, &challenge), &[b"challenge"]),
            "the server proves itself first"
        );
        (stream, challenge)
    }

    /// What a client is told that says this after the greeting.
    async fn answer_to(&self, stream: &Stream, proof: &[u8]) -> Status {
        send_bytes(stream, proof).await;
        let answer = receive_bytes(stream).await.unwrap();
        let welcome = Welcome::from_bytes(Proven::from_bytes(&answer).unwrap().message).unwrap();
        assert!(is_closed(stream).await);
        Status::from_code(welcome.status).unwrap()
    }
}

fn end_of(address: SocketAddr) -> [u8; 18] {
    let SocketAddr::V4(address) = address else { unreachable!("the tests use addresses of version 4") };
    let mut end = [0; 18];
    end[..16].copy_from_slice(&address.ip().to_ipv6_mapped().octets());
    end[16..].copy_from_slice(&address.port().to_le_bytes());
    end
}

fn proven_under(secret: &[u8; 32], message: &[u8]) -> Vec<u8> {
    Proven { mac: mac(secret, &[b"hello", message]), message }.to_bytes()
}

fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(key).unwrap();
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

async fn send(stream: &Stream, message: &impl Encode) {
    send_bytes(stream, &message.to_bytes()).await;
}

async fn send_bytes(stream: &Stream, body: &[u8]) {
    let mut bytes = (body.len() as u16).to_le_bytes().to_vec();
    bytes.extend_from_slice(body);
    stream.send_all(&bytes).await.unwrap();
}

async fn receive<T: for<'a> Decode<'a>>(stream: &Stream) -> Option<T> {
    Some(T::from_bytes(&receive_bytes(stream).await?).unwrap())
}

async fn receive_bytes(stream: &Stream) -> Option<Vec<u8>> {
    let mut size = [0; 2];
    stream.recv_exact(&mut size).await.ok()?;
    let mut body = vec![0; u16::from_le_bytes(size) as usize];
    stream.recv_exact(&mut body).await.ok()?;
    Some(body)
}

/// Whether the server has closed the stream; everything that it still sent is read.
async fn is_closed(stream: &Stream) -> bool {
    let mut scratch = [0; 4096];
    loop {
        match stream.recv(&mut scratch).await {
            Ok(0) | Err(_) => return true,
            Ok(_) => {}
        }
    }
}

/// The status of the goodbye that the server sends before it closes the stream.
async fn goodbye(stream: &Stream) -> Status {
    let mut array = [0; HEADER_SIZE];
    stream.recv_exact(&mut array).await.unwrap();
    let header = Header::from_array(&array).unwrap();
    assert_eq!(header.kind, FrameKind::Goodbye);
    let mut params = vec![0; header.params_size as usize];
    stream.recv_exact(&mut params).await.unwrap();
    assert!(!ErrorDetail::from_bytes(&params).unwrap().text.is_empty(), "a goodbye says why");
    assert!(is_closed(stream).await);
    Status::from_code(header.status).unwrap()
}

fn request(sequence: u64, operation: Operation) -> Header {
    let mut header = Header::new(FrameKind::Request, operation as u16);
    header.frame_sequence = sequence;
    header.call_id = sequence + 1;
    header
}

/// Goal: another version is told so, whatever else its greeting holds, and which side to upgrade can be told from the
/// answer.
#[test]
fn other_versions_are_told() {
    for fixture in fixtures() {
        for version in [0, PROTOCOL_VERSION + 1, u32::MAX] {
            fixture.reactor.block_on(async {
                let stream = fixture.connect().await;
                let greeting = Greeting { protocol_version: version, ..fixture.greeting() };
                send(&stream, &greeting).await;
                let challenge: Challenge = receive(&stream).await.unwrap();
                assert_eq!(challenge.status, Status::VersionMismatch as u32);
                assert_eq!(challenge.protocol_version, PROTOCOL_VERSION);
                assert!(is_closed(&stream).await);
            });
        }
        fixture.check_undisturbed();
    }
}

/// Goal: what was overheard proves nothing.
/// Method: replay a whole recorded handshake on a new connection; reflect the server's own MAC; send none at all;
/// prove it for another way than the one that is taken, or for other addresses.
#[test]
fn replayed_and_reflected_proofs_are_refused() {
    for fixture in fixtures() {
        fixture.reactor.block_on(async {
            let (first, challenge) = fixture.greeted().await;
            let hello = fixture.hello().to_bytes();
            let recorded = fixture.proven(&first, &challenge, &hello);
            for kind in ["replayed", "reflected", "empty", "of another way", "of other ends"] {
                let (stream, fresh) = fixture.greeted().await;
                assert_ne!(fresh.nonce, challenge.nonce, "a nonce was used twice");
                let proof = match kind {
                    "replayed" => recorded.clone(),
                    "reflected" => Proven { mac: fresh.mac, message: &hello }.to_bytes(),
                    "empty" => Proven { mac: [0; 32], message: &hello }.to_bytes(),
                    "of another way" => {
                        let ends = fixture.ends_of(&stream);
                        proven_under(&fixture.secret_of(&fresh, !fixture.is_local, ends), &hello)
                    }
                    _ => proven_under(&fixture.secret_of(&fresh, fixture.is_local, [[1; 18]; 2]), &hello),
                };
                let status = fixture.answer_to(&stream, &proof).await;
                assert_eq!(status, Status::KeyMismatch, "a proof that was {kind} was taken");
            }
        });
        fixture.check_undisturbed();
    }
}

/// Goal: nobody between the two sides adds groups to a user, and hellos with too many groups, or with others than they
/// say, are refused, from whoever holds the key too. Method: a proof over a hello with other groups than were sent;
/// hellos whose groups were changed byte by byte.
#[test]
fn groups_are_proved_and_bounded() {
    for fixture in fixtures() {
        let hello = fixture.hello();
        fixture.reactor.block_on(async {
            let (stream, challenge) = fixture.greeted().await;
            let proven = fixture.proven(&stream, &challenge, &hello.to_bytes());
            let mac = Proven::from_bytes(&proven).unwrap().mac;
            let other = Hello { user: Credentials::new(0, 0), ..hello.clone() }.to_bytes();
            let status = fixture.answer_to(&stream, &Proven { mac, message: &other }.to_bytes()).await;
            assert_eq!(status, Status::KeyMismatch);
        });
        let bytes = hello.to_bytes();
        let groups = bytes.len() - hello.user.groups.to_bytes().len();
        let with = |count: u16, numbers: &[u32]| {
            let mut changed = bytes[..groups].to_vec();
            changed.extend_from_slice(&count.to_le_bytes());
            numbers.iter().for_each(|number| changed.extend_from_slice(&number.to_le_bytes()));
            changed
        };
        let many: Vec<u32> = (0..GROUP_COUNT_MAX as u32 + 1).collect();
        let cases =
            [with(257, &many), with(u16::MAX, &[1]), with(2, &[2, 1]), with(1, &[]), vec![b'x'; HELLO_SIZE_MAX + 1]];
        for (index, body) in cases.into_iter().enumerate() {
            let status = fixture.reactor.block_on(async {
                let (stream, challenge) = fixture.greeted().await;
                fixture.answer_to(&stream, &fixture.proven(&stream, &challenge, &body)).await
            });
            assert_eq!(status, Status::BadMessage, "case {index}");
        }
        fixture.check_undisturbed();
    }
}

/// Goal: strangers who say something else than a greeting, too much or too little, are told so or forgotten, and hold
/// no slot.
/// Method: random bytes, a greeting cut short within its frame, one that is too long; and peers that go in the middle
/// of a greeting, a proof, a header, parameters or a body, more of them than there are connections.
#[test]
fn strangers_and_truncated_messages() {
    for fixture in fixtures() {
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 600], &[2, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]] {
            let challenge: Challenge = fixture.reactor.block_on(async {
                let stream = fixture.connect().await;
                stream.send_all(bytes).await.unwrap();
                receive(&stream).await.unwrap()
            });
            assert_ne!(challenge.status, Status::Ok as u32);
        }
        let mut header = request(0, Operation::Write);
        (header.params_size, header.body_size, header.session_sequence) = (100, 5000, 1);
        let begun = [&header.to_array()[..], &[0; 100], &[1; 300]].concat();
        for round in 0..30 {
            fixture.reactor.block_on(async {
                let greeting = fixture.greeting().to_bytes();
                let stream = fixture.connect().await;
                match round % 5 {
                    0 => stream
                        .send_all(&[&(greeting.len() as u16).to_le_bytes()[..], &greeting[..20]].concat())
                        .await
                        .unwrap(),
                    1 => send(&stream, &fixture.greeting()).await,
                    cut => {
                        let size = [30, HEADER_SIZE + 40, begun.len()][cut - 2];
                        drop(stream);
                        fixture.admitted().await.send_all(&begun[..size]).await.unwrap();
                    }
                }
            });
        }
        fixture.check_undisturbed();
    }
}

/// Goal: an authenticated peer that breaks the rules of frames gets one goodbye that says why.
#[test]
fn broken_frames_end_the_connection() {
    for fixture in fixtures() {
        let mut out_of_sequence = request(5, Operation::Ping);
        out_of_sequence.frame_sequence = 5;
        let mut other_level = request(0, Operation::Ping);
        other_level.level = 2;
        let mut sequence_missing = request(0, Operation::Unlink);
        sequence_missing.session_sequence = 0;
        let mut sequence_given = request(0, Operation::Ping);
        sequence_given.session_sequence = 3;
        let mut unknown = request(0, Operation::Ping);
        unknown.operation = 9999;
        let mut oversized_params = request(0, Operation::Ping);
        oversized_params.params_size = PARAMS_SIZE_MAX as u32 + 1;
        let mut oversized_body = request(0, Operation::Write);
        oversized_body.body_size = BODY_SIZE_MAX as u32 + 1;
        let mut reply = request(0, Operation::Ping);
        reply.kind = FrameKind::Reply;
        let mut waiting_with_body = request(0, Operation::Ping);
        waiting_with_body.kind = FrameKind::Waiting;
        waiting_with_body.body_size = 8;
        let mut goodbye_with_body = waiting_with_body;
        goodbye_with_body.kind = FrameKind::Goodbye;
        let of_servers = request(0, Operation::Glimpse);
        let mut user_missing = request(0, Operation::Ping);
        user_missing.status = 10;
        let cases = [
            ("out of sequence", out_of_sequence, Status::BadMessage),
            ("another call level", other_level, Status::BadMessage),
            ("mutating without a sequence", sequence_missing, Status::BadMessage),
            ("reading with a sequence", sequence_given, Status::BadMessage),
            ("unknown operation", unknown, Status::UnknownOperation),
            ("oversized parameters", oversized_params, Status::BadMessage),
            ("oversized body", oversized_body, Status::BadMessage),
            ("a reply", reply, Status::BadMessage),
            ("a sign of waiting with a body", waiting_with_body, Status::BadMessage),
            ("a goodbye with a body", goodbye_with_body, Status::BadMessage),
            ("an operation of servers", of_servers, Status::BadMessage),
            ("a user who is not named", user_missing, Status::BadMessage),
        ];
        for (name, header, expected) in cases {
            let status = fixture.reactor.block_on(async {
                let stream = fixture.admitted().await;
                stream.send_all(&header.to_array()).await.unwrap();
                goodbye(&stream).await
            });
            assert_eq!(status, expected, "{name}");
        }
        let random: Vec<u8> = (0..500u32).map(|i| (i * 31 + 7) as u8).collect();
        fixture.reactor.block_on(async {
            let stream = fixture.admitted().await;
            stream.send_all(&random).await.unwrap();
            assert_eq!(goodbye(&stream).await, Status::BadMessage);
        });
        fixture.check_undisturbed();
    }
}

/// Goal: a frame that was sent before can't be sent again.
#[test]
fn replayed_frames_end_the_connection() {
    for fixture in fixtures() {
        fixture.reactor.block_on(async {
            let stream = fixture.admitted().await;
            let ping = request(0, Operation::Ping).to_array();
            stream.send_all(&ping).await.unwrap();
            let mut answer = [0; HEADER_SIZE];
            stream.recv_exact(&mut answer).await.unwrap();
            assert_eq!(Header::from_array(&answer).unwrap().kind, FrameKind::Reply);
            stream.send_all(&ping).await.unwrap();
            assert_eq!(goodbye(&stream).await, Status::BadMessage);
        });
        fixture.check_undisturbed();
    }
}

/// Goal: the request window is kept, and what a peer may make the server hold is bounded by it.
#[test]
fn exceeded_windows_end_the_connection() {
    for fixture in fixtures() {
        fixture.reactor.block_on(async {
            let stream = fixture.admitted().await;
            for sequence in 0..u64::from(REQUEST_WINDOW) + 1 {
                stream.send_all(&request(sequence, Operation::StatId).to_array()).await.unwrap();
            }
            assert_eq!(goodbye(&stream).await, Status::WindowExceeded);
        });
        fixture.check_undisturbed();
    }
}

/// Goal: no connection slot is lost to peers that were closed.
#[test]
fn closed_peers_leave_nothing() {
    for fixture in fixtures() {
        for _ in 0..9 {
            fixture.reactor.block_on(async {
                let stream = fixture.admitted().await;
                stream.send_all(&[0xee; 100]).await.unwrap();
                goodbye(&stream).await;
            });
        }
        fixture.check_undisturbed();
        assert_eq!(fixture.handle.statistics().connections, 1);
    }
}

/// A frame of a tunnel.
fn of_stream(sequence: u64, kind: StreamFrame, stream: u64) -> Header {
    let mut header = Header::new(FrameKind::Stream, kind as u16);
    (header.frame_sequence, header.call_id) = (sequence, stream);
    header
}

/// Frames, each with its parameters.
type Frames = Vec<(Header, Vec<u8>)>;

/// The frames as they travel.
fn frames(list: &[(Header, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (header, params) in list {
        let header = Header { params_size: params.len() as u32, ..*header };
        bytes.extend_from_slice(&header.to_array());
        bytes.extend_from_slice(params);
    }
    bytes
}

/// Goal: whoever breaks the rules of a tunnel is hung up on: frames of streams that do not exist or are over, numbers
/// that come again, more streams than are allowed, data beyond the window or of no size, room that nobody has,
/// requests. Method: each misdeed on a tunnel of its own.
#[test]
fn tunnels_keep_their_rules() {
    let open = |sequence, stream| (of_stream(sequence, StreamFrame::Open, stream), OpenStream { server: 0 }.to_bytes());
    let data = |sequence, stream, size| (of_stream(sequence, StreamFrame::Data, stream), vec![0x55; size]);
    let end = |sequence, stream| (of_stream(sequence, StreamFrame::End, stream), Vec::new());
    let credit = |sequence, size| (of_stream(sequence, StreamFrame::Credit, 1), Credit { size }.to_bytes());
    // A stream for a server that is not there gets no room back.
    let nowhere = (of_stream(0, StreamFrame::Open, 1), OpenStream { server: 1 }.to_bytes());
    let flood = (1..9).map(|sequence| data(sequence, 1, STREAM_DATA_SIZE_MAX));
    let mut large = data(1, 1, 1);
    large.0.body_size = STREAM_DATA_SIZE_MAX as u32 + 1;
    let misdeeds: Vec<(&str, Frames)> = vec![
        ("data of no stream", vec![data(0, 1, 10)]),
        ("data after the end", vec![open(0, 1), end(1, 1), data(2, 1, 10)]),
        ("the number after the last", vec![open(0, u64::MAX)]),
        ("the same number again", vec![open(0, 1), open(1, 1)]),
        ("too many streams", (0..9).map(|sequence| open(sequence, sequence + 1)).collect()),
        ("more than the window", std::iter::once(nowhere).chain(flood).collect()),
        ("data without bytes", vec![open(0, 1), data(1, 1, 0)]),
        ("too large a frame", vec![open(0, 1), large]),
        ("room that nobody has", vec![open(0, 1), credit(1, 1)]),
        ("a request", vec![(request(0, Operation::Ping), Vec::new())]),
        ("a frame of no kind", vec![(Header::new(FrameKind::Stream, 77), Vec::new())]),
    ];
    for fixture in fixtures() {
        fixture.reactor.block_on(async {
            for (words, list) in &misdeeds {
                let stream = fixture.admitted_as(Role::ClientTunnel).await;
                stream.send_all(&frames(list)).await.unwrap();
                assert!(is_closed(&stream).await, "{words}");
            }
        });
        fixture.check_undisturbed();
        assert_eq!(fixture.handle.statistics().relay.tunnels_of_clients, 0);
    }
}

/// Goal: a peer that asks and asks and never reads makes the server hold little, and is hung up on.
/// Method: pings until the tunnel ends; far fewer than would fill a memory.
#[test]
fn tunnel_that_never_reads() {
    for fixture in fixtures() {
        fixture.reactor.block_on(async {
            let stream = fixture.admitted_as(Role::ClientTunnel).await;
            let mut sequence = 0;
            loop {
                let ping = frames(&[(of_stream(sequence, StreamFrame::Ping, 0), Vec::new())]);
                if stream.send_all(&ping).await.is_err() {
                    break;
                }
                sequence += 1;
                assert!(sequence < 1 << 20, "nobody minds");
            }
        });
        fixture.check_undisturbed();
    }
}
