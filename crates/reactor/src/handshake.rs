//! Mutual authentication before anything else is read: `wire::handshake` over a stream.
//!
//! Each side's MAC covers its own role, so that a reflected message proves nothing, and both nonces, so that a replayed
//! one doesn't either.

use crate::{Reactor, Stream};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use wire::credentials::Credentials;
use wire::handshake::{
    Challenge, HANDSHAKE_SIZE_MAX, HELLO_MAGIC, HELLO_SIZE_MAX, Hello, MAC_SIZE, NONCE_SIZE, Proof, Role, VOUCHER_SIZE,
    Welcome,
};
use wire::{Cluster, Decode, Encode, PROTOCOL_VERSION, Status};

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

const PROVER_SERVER: &[u8] = b"tabane server proof 1";
const PROVER_CLIENT: &[u8] = b"tabane client proof 1";
const VOUCHER: &[u8] = b"tabane voucher 1";

/// MAC over everything that the two sides have agreed on so far.
fn prove(cluster: &Cluster, prover: &[u8], hello: &Hello, server_nonce: &[u8; NONCE_SIZE]) -> Hmac<Sha256> {
    let mut mac =
        <Hmac<Sha256> as Mac>::new_from_slice(&cluster.key).unwrap_or_else(|_| unreachable!("any key size fits"));
    mac.update(prover);
    mac.update(&hello.to_bytes());
    mac.update(server_nonce);
    mac
}

/// MAC of which a caller's first message ends with the first bytes: see `Hello::voucher`.
fn vouch(cluster: &Cluster, hello: &Hello) -> Hmac<Sha256> {
    prove(cluster, VOUCHER, &Hello { voucher: [0; VOUCHER_SIZE], ..hello.clone() }, &[0; NONCE_SIZE])
}

fn finished(mac: Hmac<Sha256>) -> [u8; MAC_SIZE] {
    mac.finalize().into_bytes().into()
}

async fn send_message(stream: &Stream, message: &impl Encode) -> std::io::Result<()> {
    let body = message.to_bytes();
    assert!(body.len() <= HELLO_SIZE_MAX);
    let mut bytes = (body.len() as u16).to_le_bytes().to_vec();
    bytes.extend_from_slice(&body);
    stream.send_all(&bytes).await
}

async fn receive_message<T: for<'a> Decode<'a>>(stream: &Stream) -> Result<T, HandshakeError> {
    let mut size = [0; 2];
    stream.recv_exact(&mut size).await?;
    let size = u16::from_le_bytes(size) as usize;
    if size > HANDSHAKE_SIZE_MAX {
        return Err(refused(Status::BadMessage, "handshake message is too large"));
    }
    let mut body = vec![0; size];
    stream.recv_exact(&mut body).await?;
    T::from_bytes(&body).map_err(|error| refused(Status::BadMessage, error.0))
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
}

/// The connecting side. Errors name what the other side refused. `in_queue` hears of a server that has no connection
/// left how many are served before us, 0 if we have to come again, and how many others had their turn; and says whether we wait.
pub(crate) async fn introduce(
    reactor: &Reactor,
    stream: &Stream,
    cluster: &Cluster,
    who: &Introduction,
    in_queue: impl Fn(u32, u64) -> bool,
) -> Result<Welcome, HandshakeError> {
    let mut nonce = [0; NONCE_SIZE];
    reactor.fill_random(&mut nonce);
    let mut hello = Hello {
        magic: HELLO_MAGIC,
        protocol_version: PROTOCOL_VERSION,
        role: who.role,
        level: who.level,
        cluster: cluster.id,
        server: who.server,
        from_server: who.from_server,
        session: who.session,
        welcomes: who.welcomes,
        user: who.user.clone(),
        nonce,
        voucher: [0; VOUCHER_SIZE],
    };
    let mac = finished(vouch(cluster, &hello));
    hello.voucher = std::array::from_fn(|index| mac[index]);
    send_message(stream, &hello).await?;
    let challenge: Challenge = receive_message(stream).await?;
    if challenge.protocol_version != PROTOCOL_VERSION {
        let words = if challenge.protocol_version < PROTOCOL_VERSION {
            "the server is older: upgrade the server"
        } else {
            "the server is newer: upgrade this program"
        };
        return Err(refused(Status::VersionMismatch, words));
    }
    if let Some(status) = Status::from_code(challenge.status).filter(|status| *status != Status::Ok) {
        return Err(refused(status, "the server refused the connection"));
    }
    prove(cluster, PROVER_SERVER, &hello, &challenge.nonce)
        .verify_slice(&challenge.mac)
        .map_err(|_| refused(Status::KeyMismatch, "the server does not hold this cluster's key"))?;
    let proof = Proof { mac: finished(prove(cluster, PROVER_CLIENT, &hello, &challenge.nonce)) };
    send_message(stream, &proof).await?;
    let welcome = loop {
        let welcome: Welcome = receive_message(stream).await?;
        if welcome.places_before == 0 {
            break welcome;
        }
        if !in_queue(welcome.places_before, welcome.turns) {
            return Err(refused(Status::TooManyConnections, "the server has no connection left"));
        }
    };
    match Status::from_code(welcome.status) {
        Some(Status::Ok) => Ok(welcome),
        Some(Status::TooManyConnections) => {
            in_queue(0, welcome.turns);
            Err(refused(Status::TooManyConnections, "the server has no connection left"))
        }
        Some(status) => Err(refused(status, "the server refused the connection")),
        None => Err(refused(Status::BadMessage, "the server answered with an unknown status")),
    }
}

/// The accepting side up to the proof: afterwards the peer is who its `Hello` says. The caller sends the `Welcome`.
/// `vouched` hears that somebody who holds the key has made the `Hello`.
pub(crate) async fn examine(
    reactor: &Reactor,
    stream: &Stream,
    cluster: &Cluster,
    server: u32,
    vouched: impl FnOnce(),
) -> Result<Hello, HandshakeError> {
    let hello = match receive_hello(stream).await {
        Err(HandshakeError::Refused(status, words)) => {
            send_refusal(stream, status).await?;
            return Err(refused(status, words));
        }
        other => other?,
    };
    if let Err((status, words)) = check_hello(&hello, cluster, server) {
        send_refusal(stream, status).await?;
        return Err(refused(status, words));
    }
    if vouch(cluster, &hello).verify_truncated_left(&hello.voucher).is_ok() {
        vouched();
    }
    let mut nonce = [0; NONCE_SIZE];
    reactor.fill_random(&mut nonce);
    let mac = finished(prove(cluster, PROVER_SERVER, &hello, &nonce));
    let challenge = Challenge { protocol_version: PROTOCOL_VERSION, status: Status::Ok as u32, nonce, mac };
    send_message(stream, &challenge).await?;
    let proof: Proof = receive_message(stream).await?;
    if prove(cluster, PROVER_CLIENT, &hello, &nonce).verify_slice(&proof.mac).is_err() {
        send_message(stream, &refusal(Status::KeyMismatch)).await?;
        return Err(refused(Status::KeyMismatch, "the client does not hold this cluster's key"));
    }
    Ok(hello)
}

async fn receive_hello(stream: &Stream) -> Result<Hello, HandshakeError> {
    // The magic number and version come first in every version, so that strangers and other versions are told apart
    // before the rest is understood.
    let mut start = [0; 2 + 8 + 4];
    stream.recv_exact(&mut start).await?;
    let size = u16::from_le_bytes([start[0], start[1]]) as usize;
    let magic = start[2..10].first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
    let version = start[10..].first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes));
    if magic != Some(HELLO_MAGIC) {
        return Err(refused(Status::BadMessage, "the peer does not speak this protocol"));
    }
    if version != Some(PROTOCOL_VERSION) {
        return Err(refused(Status::VersionMismatch, "the client speaks another version"));
    }
    if !(12..=HELLO_SIZE_MAX).contains(&size) {
        return Err(refused(Status::BadMessage, "handshake message has a wrong size"));
    }
    let mut body = vec![0; size];
    body[..12].copy_from_slice(&start[2..]);
    stream.recv_exact(&mut body[12..]).await?;
    Hello::from_bytes(&body).map_err(|error| refused(Status::BadMessage, error.0))
}

fn check_hello(hello: &Hello, cluster: &Cluster, server: u32) -> Result<(), (Status, &'static str)> {
    if hello.cluster != cluster.id {
        return Err((Status::ClusterMismatch, "the client belongs to another cluster"));
    }
    if hello.server != server {
        return Err((Status::WrongServer, "the client wants another server"));
    }
    let level_fits = match hello.role {
        Role::Client | Role::Patient | Role::ClientTrunk => hello.level == wire::operation::LEVEL_CLIENT,
        Role::ServerTrunk => hello.level == wire::operation::LEVEL_CLIENT && hello.from_server < cluster.server_count(),
        Role::Server => {
            (1..wire::operation::LEVEL_COUNT as u8).contains(&hello.level) && hello.from_server < cluster.server_count()
        }
    };
    if !level_fits {
        return Err((Status::BadMessage, "role and call level do not fit"));
    }
    Ok(())
}

/// A `Challenge` that only says why not.
async fn send_refusal(stream: &Stream, status: Status) -> std::io::Result<()> {
    let challenge = Challenge {
        protocol_version: PROTOCOL_VERSION,
        status: status as u32,
        nonce: [0; NONCE_SIZE],
        mac: [0; MAC_SIZE],
    };
    send_message(stream, &challenge).await
}

pub(crate) fn refusal(status: Status) -> Welcome {
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

/// Says that so many are served before the peer is, it included.
pub(crate) async fn send_place(stream: &Stream, places_before: u32, turns: u64) -> std::io::Result<()> {
    send_message(stream, &Welcome { places_before, turns, ..refusal(Status::TooManyConnections) }).await
}

pub(crate) async fn send_welcome(stream: &Stream, welcome: &Welcome) -> std::io::Result<()> {
    send_message(stream, welcome).await
}
