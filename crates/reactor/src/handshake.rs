//! Mutual authentication before anything else is read: `wire::handshake` over a stream.
//!
//! Both sides make one secret from the cluster's key and all that makes this connection this one: what the client
//! wants, both nonces, and the way between them, over an unprotected network with the addresses of both ends. So what
//! was said on one connection proves nothing on another, nor on one that somebody passes on. Each MAC has the name of
//! what it is for in it, so that a reflected one proves nothing either.

use crate::sealing::{self, CHANGED, Sealer};
use crate::{Reactor, Stream, Way};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use wire::credentials::Credentials;
use wire::handshake::{
    Challenge, GREETING_MAGIC, Greeting, HANDSHAKE_SIZE_MAX, HELLO_SIZE_MAX, Hello, MAC_SIZE, NONCE_SIZE, Proven, Role,
    VOUCHER_SIZE, Welcome,
};
use wire::label::Label;
use wire::{Cluster, Decode, Encode, PROTOCOL_VERSION, Protection, Status};

/// What a handshake ended with when it did not succeed.
#[derive(Debug)]
pub(crate) enum HandshakeError {
    /// The stream broke, or the peer closed it without a word.
    Broken(std::io::Error),
    /// One side refused the other.
    Refused(Status, &'static str),
}

impl From<std::io::Error> for HandshakeError {
    fn from(error: std::io::Error) -> Self {
        HandshakeError::Broken(error)
    }
}

fn refused(status: Status, words: &'static str) -> HandshakeError {
    HandshakeError::Refused(status, words)
}

const FOR_CONNECTION: &[u8] = b"tabane connection 3";
const FOR_CHALLENGE: &[u8] = b"challenge";
const FOR_HELLO: &[u8] = b"hello";
const FOR_WELCOME: &[u8] = b"welcome";
const FOR_SEALED: &[u8] = b"sealed ";
const FOR_FRAMES_OF_CLIENT: &[u8] = b"frames of the client";
const FOR_FRAMES_OF_SERVER: &[u8] = b"frames of the server";
const VOUCHER: &[u8] = b"tabane voucher 2";

/// What only the two ends of one connection know, and only if both hold the cluster's key.
struct Secret([u8; MAC_SIZE]);

fn mac_under(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(key).unwrap_or_else(|_| unreachable!("any key size fits"));
    parts.iter().for_each(|part| mac.update(part));
    mac
}

fn finished(mac: Hmac<Sha256>) -> [u8; MAC_SIZE] {
    mac.finalize().into_bytes().into()
}

/// An end of a connection: address and port.
type End = [u8; 18];

fn end_of(address: SocketAddr) -> End {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut end = [0; 18];
    end[..16].copy_from_slice(&ip.octets());
    end[16..].copy_from_slice(&address.port().to_le_bytes());
    end
}

/// The client's end and the server's as both see them, where nobody may pass a connection on: over a network without
/// protection, for whoever did would read and change what follows. With protection he gains nothing by it, and tunnels
/// and address translation may do it.
fn ends_of(cluster: &Cluster, stream: &Stream, is_client: bool) -> std::io::Result<[End; 2]> {
    if stream.way() != Way::Network || cluster.protection != Protection::Off {
        return Ok([[0; 18]; 2]);
    }
    let (own, other) = (end_of(stream.local_address()?), end_of(stream.peer_address()?));
    Ok(if is_client { [own, other] } else { [other, own] })
}

impl Secret {
    /// All parts have fixed sizes. Errors: the connection has ended.
    fn new(
        cluster: &Cluster,
        greeting: &Greeting,
        server_nonce: &[u8; NONCE_SIZE],
        stream: &Stream,
        is_client: bool,
    ) -> std::io::Result<Secret> {
        let [client, server] = ends_of(cluster, stream, is_client)?;
        let way = stream.way().to_bytes();
        let parts = [FOR_CONNECTION, &greeting.to_bytes(), server_nonce, &way, &client, &server];
        Ok(Secret(finished(mac_under(&cluster.key, &parts))))
    }

    fn mac(&self, purpose: &[u8], message: &[u8]) -> Hmac<Sha256> {
        mac_under(&self.0, &[purpose, message])
    }

    fn sealer(&self, protection: Protection, purpose: &[u8]) -> Sealer {
        let mut key = [0; sealing::KEY_SIZE];
        key.copy_from_slice(&finished(self.mac(purpose, &[]))[..sealing::KEY_SIZE]);
        Sealer::new(protection, key)
    }

    /// The stream on which to go on, as the client has it or the server.
    fn stream_above(&self, stream: &Stream, protection: Protection, is_client: bool) -> Stream {
        if protection == Protection::Off {
            return stream.clone();
        }
        let sealers = [FOR_FRAMES_OF_CLIENT, FOR_FRAMES_OF_SERVER].map(|purpose| self.sealer(protection, purpose));
        let [of_client, of_server] = sealers;
        if is_client {
            sealing::seal(stream, of_client, of_server)
        } else {
            sealing::seal(stream, of_server, of_client)
        }
    }

    /// A message as it travels: with its MAC, and unreadable where that is asked for.
    fn prove(&self, protection: Protection, purpose: &[u8], mut message: Vec<u8>) -> Vec<u8> {
        if protection == Protection::Encryption {
            message = self.sealer(protection, &[FOR_SEALED, purpose].concat()).seal_message(&message);
        }
        Proven { mac: finished(self.mac(purpose, &message)), message: &message }.to_bytes()
    }

    /// The opposite. Errors: `status`, when it is not what the other side has said.
    fn checked(
        &self,
        protection: Protection,
        purpose: &[u8],
        bytes: &[u8],
        (status, words): (Status, &'static str),
    ) -> Result<Vec<u8>, HandshakeError> {
        let proven: Proven = decoded(bytes)?;
        self.mac(purpose, proven.message).verify_slice(&proven.mac).map_err(|_| refused(status, words))?;
        if protection != Protection::Encryption {
            return Ok(proven.message.to_vec());
        }
        let mut sealer = self.sealer(protection, &[FOR_SEALED, purpose].concat());
        sealer.open_message(proven.message).map_err(|_| refused(status, words))
    }
}

/// How what travels by a way is protected: nobody is between two processes of one machine but the kernel.
fn protection_of(cluster: &Cluster, stream: &Stream) -> Protection {
    if matches!(stream.way(), Way::Local(_)) { Protection::Off } else { cluster.protection }
}

/// MAC of which a caller's first message ends with the first bytes: see `Greeting::voucher`.
fn vouch(cluster: &Cluster, greeting: &Greeting) -> Hmac<Sha256> {
    let greeting = Greeting { voucher: [0; VOUCHER_SIZE], ..greeting.clone() };
    mac_under(&cluster.key, &[VOUCHER, &greeting.to_bytes()])
}

async fn send_bytes(stream: &Stream, body: &[u8]) -> std::io::Result<()> {
    assert!(body.len() <= HELLO_SIZE_MAX);
    let mut bytes = (body.len() as u16).to_le_bytes().to_vec();
    bytes.extend_from_slice(body);
    stream.send_all(&bytes).await
}

async fn receive_bytes(stream: &Stream, size_max: usize) -> Result<Vec<u8>, HandshakeError> {
    let mut size = [0; 2];
    stream.recv_exact(&mut size).await?;
    let size = u16::from_le_bytes(size) as usize;
    if size > size_max {
        return Err(refused(Status::BadMessage, "handshake message is too large"));
    }
    let mut body = vec![0; size];
    stream.recv_exact(&mut body).await?;
    Ok(body)
}

fn decoded<'a, T: Decode<'a>>(bytes: &'a [u8]) -> Result<T, HandshakeError> {
    T::from_bytes(bytes).map_err(|error| refused(Status::BadMessage, error.0))
}

/// Everything about a connecting side that goes into its `Hello`.
#[derive(Debug, Clone)]
pub(crate) struct Introduction {
    pub role: Role,
    pub level: u8,
    pub server: u32,
    pub from_server: u32,
    pub session: u64,
    /// See `Hello`.
    pub welcomes: u64,
    pub user: Credentials,
    pub label: Label,
}

/// The connecting side: the stream on which to go on, and the server's welcome. Errors name what the other side
/// refused. `in_queue` hears of a server that has no connection left how many are served before us, 0 if we have to
/// come again, and how many others had their turn; and says whether we wait.
pub(crate) async fn introduce(
    reactor: &Reactor,
    stream: &Stream,
    cluster: &Cluster,
    who: &Introduction,
    in_queue: impl Fn(u32, u64) -> bool,
) -> Result<(Stream, Welcome), HandshakeError> {
    let mut nonce = [0; NONCE_SIZE];
    reactor.fill_random(&mut nonce);
    let mut greeting = Greeting {
        magic: GREETING_MAGIC,
        protocol_version: PROTOCOL_VERSION,
        cluster: cluster.id,
        server: who.server,
        protection: cluster.protection as u8,
        nonce,
        voucher: [0; VOUCHER_SIZE],
    };
    let mac = finished(vouch(cluster, &greeting));
    greeting.voucher = std::array::from_fn(|index| mac[index]);
    send_bytes(stream, &greeting.to_bytes()).await?;
    let challenge: Challenge = decoded(&receive_bytes(stream, HANDSHAKE_SIZE_MAX).await?)?;
    check_challenge(&challenge)?;
    let secret = Secret::new(cluster, &greeting, &challenge.nonce, stream, true)?;
    secret.mac(FOR_CHALLENGE, &[]).verify_slice(&challenge.mac).map_err(|_| {
        let words = "the server does not hold this cluster's key, or the connection was passed on on its way: by \
                     somebody in between, or by a tunnel or address translation, which need --protect integrity";
        refused(Status::KeyMismatch, words)
    })?;
    let hello = Hello {
        role: who.role,
        level: who.level,
        from_server: who.from_server,
        session: who.session,
        welcomes: who.welcomes,
        user: who.user.clone(),
        label: who.label.clone(),
    };
    let protection = protection_of(cluster, stream);
    send_bytes(stream, &secret.prove(protection, FOR_HELLO, hello.to_bytes())).await?;
    let mut number = 0;
    let welcome = loop {
        let welcome = receive_welcome(stream, &secret, protection, number).await?;
        number += 1;
        if welcome.places_before == 0 {
            break welcome;
        }
        if !in_queue(welcome.places_before, welcome.turns) {
            return Err(refused(Status::TooManyConnections, "the server has no connection left"));
        }
    };
    match Status::from_code(welcome.status) {
        Some(Status::Ok) => Ok((secret.stream_above(stream, protection, true), welcome)),
        Some(Status::TooManyConnections) => {
            in_queue(0, welcome.turns);
            Err(refused(Status::TooManyConnections, "the server has no connection left"))
        }
        Some(status) => Err(refused(status, "the server refused the connection")),
        None => Err(refused(Status::BadMessage, "the server answered with an unknown status")),
    }
}

/// The `number`th thing that a server says of a connection; the first is 0. Each has a key of its own, for more than
/// one may be said.
async fn receive_welcome(
    stream: &Stream,
    secret: &Secret,
    protection: Protection,
    number: u64,
) -> Result<Welcome, HandshakeError> {
    let bytes = receive_bytes(stream, HANDSHAKE_SIZE_MAX).await?;
    decoded(&secret.checked(protection, &for_welcome(number), &bytes, (Status::ChangedOnWay, CHANGED))?)
}

fn for_welcome(number: u64) -> Vec<u8> {
    [FOR_WELCOME, &number.to_le_bytes()].concat()
}

fn check_challenge(challenge: &Challenge) -> Result<(), HandshakeError> {
    if challenge.protocol_version != PROTOCOL_VERSION {
        let words = if challenge.protocol_version < PROTOCOL_VERSION {
            "the server is older: upgrade the server"
        } else {
            "the server is newer: upgrade this program"
        };
        return Err(refused(Status::VersionMismatch, words));
    }
    match Status::from_code(challenge.status) {
        Some(Status::Ok) | None => Ok(()),
        Some(status) => Err(refused(status, "the server refused the connection")),
    }
}

/// A peer that has proved itself and waits for its welcome.
pub(crate) struct Guest {
    pub hello: Hello,
    /// The stream on which to go on after that.
    pub stream: Stream,
    below: Stream,
    secret: Secret,
    protection: Protection,
    /// What it was told so far.
    told_count: Cell<u64>,
}

impl Guest {
    pub(crate) async fn welcome(&self, welcome: &Welcome) -> std::io::Result<()> {
        let purpose = for_welcome(self.told_count.replace(self.told_count.get() + 1));
        send_bytes(&self.below, &self.secret.prove(self.protection, &purpose, welcome.to_bytes())).await
    }

    /// Says that so many are served before the peer is, it included.
    pub(crate) async fn tell_place(&self, places_before: u32, turns: u64) -> std::io::Result<()> {
        self.welcome(&Welcome { places_before, turns, ..refusal(Status::TooManyConnections) }).await
    }

    /// Sends it away; so many have had their turn so far. The error is for whoever counts these.
    pub(crate) async fn refuse(&self, status: Status, turns: u64) -> Result<HandshakeError, HandshakeError> {
        self.welcome(&Welcome { turns, ..refusal(status) }).await?;
        Ok(refused(status, "the connection was refused"))
    }
}

/// The accepting side up to the proof: afterwards the peer is who its `Hello` says. `vouched` hears that somebody who
/// holds the key has made the `Greeting`.
pub(crate) async fn examine(
    reactor: &Reactor,
    stream: &Stream,
    cluster: &Cluster,
    server: u32,
    vouched: impl FnOnce(),
) -> Result<Guest, HandshakeError> {
    let greeting = match receive_greeting(stream).await.and_then(|greeting| check_greeting(greeting, cluster, server)) {
        Err(HandshakeError::Refused(status, words)) => {
            send_bytes(stream, &challenge(status, [0; NONCE_SIZE], [0; MAC_SIZE]).to_bytes()).await?;
            return Err(refused(status, words));
        }
        other => other?,
    };
    if vouch(cluster, &greeting).verify_truncated_left(&greeting.voucher).is_ok() {
        vouched();
    }
    let mut nonce = [0; NONCE_SIZE];
    reactor.fill_random(&mut nonce);
    let secret = Secret::new(cluster, &greeting, &nonce, stream, false)?;
    let mac = finished(secret.mac(FOR_CHALLENGE, &[]));
    send_bytes(stream, &challenge(Status::Ok, nonce, mac).to_bytes()).await?;
    let protection = protection_of(cluster, stream);
    let hello = receive_bytes(stream, HELLO_SIZE_MAX).await;
    match hello.and_then(|hello| check_hello(&hello, &secret, protection, cluster)) {
        Ok(hello) => {
            let above = secret.stream_above(stream, protection, false);
            Ok(Guest { hello, stream: above, below: stream.clone(), secret, protection, told_count: Cell::new(0) })
        }
        Err(HandshakeError::Refused(status, words)) => {
            let refusal = refusal(status).to_bytes();
            send_bytes(stream, &secret.prove(protection, &for_welcome(0), refusal)).await?;
            Err(refused(status, words))
        }
        Err(error) => Err(error),
    }
}

async fn receive_greeting(stream: &Stream) -> Result<Greeting, HandshakeError> {
    // The magic number and version come first in every version, so that strangers and other versions are told apart
    // before the rest is understood.
    let mut start = [0; 2 + 8 + 4];
    stream.recv_exact(&mut start).await?;
    let size = u16::from_le_bytes([start[0], start[1]]) as usize;
    let magic = start[2..10].first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
    let version = start[10..].first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes));
    if magic != Some(GREETING_MAGIC) {
        return Err(refused(Status::BadMessage, "the peer does not speak this protocol"));
    }
    if version != Some(PROTOCOL_VERSION) {
        return Err(refused(Status::VersionMismatch, "the client speaks another version"));
    }
    if !(12..=HANDSHAKE_SIZE_MAX).contains(&size) {
        return Err(refused(Status::BadMessage, "handshake message has a wrong size"));
    }
    let mut body = [0; HANDSHAKE_SIZE_MAX];
    let body = &mut body[..size];
    body[..12].copy_from_slice(&start[2..]);
    stream.recv_exact(&mut body[12..]).await?;
    decoded(body)
}

fn check_greeting(greeting: Greeting, cluster: &Cluster, server: u32) -> Result<Greeting, HandshakeError> {
    if greeting.cluster != cluster.id {
        return Err(refused(Status::ClusterMismatch, "the client belongs to another cluster"));
    }
    if greeting.server != server {
        return Err(refused(Status::WrongServer, "the client wants another server"));
    }
    if greeting.protection != cluster.protection as u8 {
        return Err(refused(Status::ProtectionMismatch, "the client's cluster file protects connections otherwise"));
    }
    Ok(greeting)
}

/// The `Hello` of a client that holds the key.
fn check_hello(
    bytes: &[u8],
    secret: &Secret,
    protection: Protection,
    cluster: &Cluster,
) -> Result<Hello, HandshakeError> {
    let words = "the client does not hold this cluster's key, or is not who was greeted";
    let hello = secret.checked(protection, FOR_HELLO, bytes, (Status::KeyMismatch, words))?;
    let hello: Hello = decoded(&hello)?;
    let level_fits = match hello.role {
        Role::Client | Role::LowPriority | Role::ClientTunnel => hello.level == wire::operation::LEVEL_CLIENT,
        Role::ServerTunnel => {
            hello.level == wire::operation::LEVEL_CLIENT && hello.from_server < cluster.server_count()
        }
        Role::Server => {
            (1..wire::operation::LEVEL_COUNT as u8).contains(&hello.level) && hello.from_server < cluster.server_count()
        }
    };
    if level_fits { Ok(hello) } else { Err(refused(Status::BadMessage, "role and call level do not fit")) }
}

fn challenge(status: Status, nonce: [u8; NONCE_SIZE], mac: [u8; MAC_SIZE]) -> Challenge {
    Challenge { protocol_version: PROTOCOL_VERSION, status: status as u32, nonce, mac }
}

fn refusal(status: Status) -> Welcome {
    Welcome {
        status: status as u32,
        request_window: 0,
        bytes_window: 0,
        session_known: false,
        incarnation: 0,
        working_interval_ms: 0,
        places_before: 0,
        turns: 0,
    }
}
