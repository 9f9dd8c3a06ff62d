//! The client: sends packets as fast as the server takes them.

use crate::comparison::SILENCE_SECONDS_MAX;
use crate::job::HEADER_SIZE;
use reactor::call_clock::CallClock;
use std::io::{self, ErrorKind, IoSlice, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Bytes in one call, about.
const CALL_SIZE: usize = 256 << 10;

/// What a client is to send.
pub struct Stream {
    pub port: u16,
    pub size: usize,
    /// Offsets run from 0 up to this, again and again.
    pub extent: u64,
    /// Packets, and how long.
    pub count: u64,
    pub seconds: f64,
    /// Contents differ from place to place, as this says; else they are the same everywhere.
    pub seed: Option<u64>,
}

/// Sends. Returns how many packets. A server that ends before us is none of our business: it says why.
pub fn send(plan: &Stream) -> io::Result<u64> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, plan.port))?;
    let peer = stream.peer_addr()?;
    let descriptor = OwnedFd::from(stream);
    reactor::tune_connection(&descriptor, peer)?;
    let mut stream = TcpStream::from(descriptor);
    stream.set_write_timeout(Some(Duration::from_secs(SILENCE_SECONDS_MAX)))?;
    let clock = CallClock::calibrated();
    let end = clock.after(clock.read(), (plan.seconds * 1e9) as u64);
    let batch = (CALL_SIZE / plan.size).clamp(1, 64);
    let mut payloads = vec![0; plan.size * if plan.seed.is_some() { batch } else { 1 }];
    fill_pattern(1, 0, &mut payloads);
    let (mut sent, mut offset) = (0, 0);
    while sent < plan.count && clock.read() < end {
        let count = (plan.count - sent).min(batch as u64);
        let offsets: Vec<[u8; HEADER_SIZE]> =
            (0..count).map(|index| ((offset + index * plan.size as u64) % plan.extent).to_le_bytes()).collect();
        let mut pieces = Vec::with_capacity(2 * offsets.len());
        if let Some(seed) = plan.seed {
            for (header, payload) in offsets.iter().zip(payloads.chunks_mut(plan.size)) {
                fill_pattern(seed, u64::from_le_bytes(*header), payload);
            }
        }
        for (index, header) in offsets.iter().enumerate() {
            let at = if plan.seed.is_some() { index * plan.size } else { 0 };
            pieces.extend([IoSlice::new(header), IoSlice::new(&payloads[at..at + plan.size])]);
        }
        match send_all(&mut stream, &mut pieces) {
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                return Ok(sent);
            }
            result => result?,
        }
        sent += count;
        offset = (offset + count * plan.size as u64) % plan.extent;
    }
    Ok(sent)
}

fn send_all(stream: &mut TcpStream, mut pieces: &mut [IoSlice<'_>]) -> io::Result<()> {
    while !pieces.is_empty() {
        let sent = stream.write_vectored(pieces)?;
        IoSlice::advance_slices(&mut pieces, sent);
    }
    Ok(())
}

/// Contents of a place: each word is that of its offset, as the bench's are.
pub fn fill_pattern(seed: u64, offset: u64, place: &mut [u8]) {
    for (index, word) in place.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&mix(seed ^ offset.wrapping_add(index as u64 * 8)).to_le_bytes());
    }
}

/// Finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
