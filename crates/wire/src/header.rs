//! The 64 bytes in front of every message.

use crate::codec::{Decode, Decoder, Encode, Malformed};
use crate::limits::{BODY_SIZE_MAX, PARAMS_SIZE_MAX};

/// Bytes of a header.
pub const HEADER_SIZE: usize = 64;
const MAGIC: u32 = u32::from_le_bytes(*b"TBN1");

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    Request = 1,
    Reply = 2,
    /// The server still has these requests (parameters: a list of call ids): their deadlines start anew.
    Working = 3,
    /// The sender closes the connection for the reason in `status`; parameters: an `ErrorDetail`.
    Goodbye = 4,
    /// A part of another connection that a tunnel carries: see `relay`.
    Stream = 5,
    /// The caller still waits for replies and has heard nothing for long. Nobody answers it: a machine that has
    /// forgotten the connection resets it.
    Waiting = 6,
}

impl Encode for FrameKind {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
}

impl<'a> Decode<'a> for FrameKind {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        match u8::decode(input)? {
            1 => Ok(FrameKind::Request),
            2 => Ok(FrameKind::Reply),
            3 => Ok(FrameKind::Working),
            4 => Ok(FrameKind::Goodbye),
            5 => Ok(FrameKind::Stream),
            6 => Ok(FrameKind::Waiting),
            _ => Err(Malformed("kind of frame is unknown")),
        }
    }
}

/// The furthest that the lowest unanswered session sequence of a session may lie behind another one.
pub const BEHIND_MAX: u64 = u32::MAX as u64;

/// A message's header. Its encoding ends with a check sum over itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub kind: FrameKind,
    /// Call level of the connection.
    pub level: u8,
    /// `Operation` of a request and of its reply; `StreamFrame` of a part of a stream.
    pub operation: u16,
    /// Counts the frames of this direction of this connection, from 0.
    pub frame_sequence: u64,
    /// Chosen by the caller, repeated in the reply.
    pub call_id: u64,
    /// Of a mutating request: its number within the session at this server, from 1; else 0.
    pub session_sequence: u64,
    /// Of a request: replies of all session sequences up to this have arrived, at most `BEHIND_MAX` below its own; of a
    /// reply: 0.
    pub session_acknowledged: u64,
    /// `Status` of a reply or goodbye. Of a request: bytes of `Credentials` at the front of its parameters, 0 when it
    /// is on behalf of the connection's user.
    pub status: u32,
    pub params_size: u32,
    pub body_size: u32,
    /// Of a request: milliseconds that the caller still waits. Of a reply: microseconds from when the request can have
    /// arrived to the reply, but for waits for its body.
    pub time: u32,
    /// Last number of the log of tree changes that the sender knows.
    pub tree_number: u64,
    /// Of a reply: number of the last error that the server has learnt of later than the request that it belongs to; 0
    /// for none. It has the place that the session sequence has in a request.
    pub late_error: u64,
}

impl Header {
    /// A header with all counters at zero.
    pub fn new(kind: FrameKind, operation: u16) -> Header {
        Header {
            kind,
            level: 0,
            operation,
            frame_sequence: 0,
            call_id: 0,
            session_sequence: 0,
            session_acknowledged: 0,
            status: 0,
            params_size: 0,
            body_size: 0,
            time: 0,
            tree_number: 0,
            late_error: 0,
        }
    }

    /// The 64 bytes.
    pub fn to_array(&self) -> [u8; HEADER_SIZE] {
        let mut array = [0; HEADER_SIZE];
        let mut position = 0;
        let mut put = |bytes: &[u8]| {
            array[position..position + bytes.len()].copy_from_slice(bytes);
            position += bytes.len();
        };
        put(&MAGIC.to_le_bytes());
        put(&[self.kind as u8, self.level]);
        put(&self.operation.to_le_bytes());
        put(&self.frame_sequence.to_le_bytes());
        put(&self.call_id.to_le_bytes());
        let is_reply = self.kind == FrameKind::Reply;
        put(&if is_reply { self.late_error } else { self.session_sequence }.to_le_bytes());
        let behind = self.session_sequence.saturating_sub(self.session_acknowledged);
        assert!(behind <= BEHIND_MAX, "a sequence is given out while the oldest one can be named");
        put(&(behind as u32).to_le_bytes());
        put(&self.status.to_le_bytes());
        put(&self.params_size.to_le_bytes());
        put(&self.body_size.to_le_bytes());
        put(&self.time.to_le_bytes());
        put(&self.tree_number.to_le_bytes());
        let sum = check_sum(&array[..HEADER_SIZE - 4]);
        array[HEADER_SIZE - 4..].copy_from_slice(&sum.to_le_bytes());
        array
    }

    /// Reads a header and checks it against all limits.
    pub fn from_array(array: &[u8; HEADER_SIZE]) -> Result<Header, Malformed> {
        let mut input = Decoder::new(array);
        if u32::decode(&mut input)? != MAGIC {
            return Err(Malformed("frame does not start with the magic number"));
        }
        let sum = u32::from_le_bytes([array[60], array[61], array[62], array[63]]);
        if check_sum(&array[..HEADER_SIZE - 4]) != sum {
            return Err(Malformed("check sum of the header is wrong"));
        }
        let kind = FrameKind::decode(&mut input)?;
        let level = u8::decode(&mut input)?;
        let operation = u16::decode(&mut input)?;
        let frame_sequence = u64::decode(&mut input)?;
        let call_id = u64::decode(&mut input)?;
        let number = u64::decode(&mut input)?;
        let (session_sequence, late_error) = if kind == FrameKind::Reply { (0, number) } else { (number, 0) };
        let behind = u32::decode(&mut input)?;
        let header = Header {
            kind,
            level,
            operation,
            frame_sequence,
            call_id,
            session_sequence,
            session_acknowledged: session_sequence.saturating_sub(u64::from(behind)),
            status: u32::decode(&mut input)?,
            params_size: u32::decode(&mut input)?,
            body_size: u32::decode(&mut input)?,
            time: u32::decode(&mut input)?,
            tree_number: u64::decode(&mut input)?,
            late_error,
        };
        if header.params_size as usize > PARAMS_SIZE_MAX {
            return Err(Malformed("parameters are larger than allowed"));
        }
        if header.body_size as usize > BODY_SIZE_MAX {
            return Err(Malformed("body is larger than allowed"));
        }
        Ok(header)
    }
}

/// Sum over the header's words: finds a stream that lost its place, not an attacker.
fn check_sum(bytes: &[u8]) -> u32 {
    let mut sum: u64 = 0x9e37_79b9_7f4a_7c15;
    for word in bytes.chunks(4) {
        let mut array = [0; 4];
        array[..word.len()].copy_from_slice(word);
        sum = (sum ^ u64::from(u32::from_le_bytes(array))).wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(23);
    }
    (sum >> 32) as u32 ^ sum as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a header survives its encoding, and no single changed bit goes unnoticed.
    /// Method: encode one with distinct fields, decode it, then flip each of its 512 bits in turn.
    #[test]
    fn round_trip_and_bit_flips() {
        let header = Header {
            kind: FrameKind::Request,
            level: 2,
            operation: 13,
            frame_sequence: 77,
            call_id: 5,
            session_sequence: 1000,
            session_acknowledged: 990,
            status: 3,
            params_size: 100,
            body_size: 4096,
            time: 30_000,
            tree_number: 9,
            late_error: 0,
        };
        let reply = Header { late_error: 1 << 60, session_sequence: 0, session_acknowledged: 0, ..header };
        let reply = Header { kind: FrameKind::Reply, ..reply };
        assert_eq!(Header::from_array(&reply.to_array()), Ok(reply));
        let array = header.to_array();
        assert_eq!(Header::from_array(&array), Ok(header));
        for bit in 0..HEADER_SIZE * 8 {
            let mut changed = array;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::from_array(&changed).is_err(), "bit {bit} was flipped unnoticed");
        }
    }

    /// Goal: sizes past the limits are refused before anything is allocated for them.
    #[test]
    fn oversized_is_refused() {
        let mut header = Header::new(FrameKind::Request, 1);
        header.params_size = PARAMS_SIZE_MAX as u32 + 1;
        assert!(Header::from_array(&header.to_array()).is_err());
        header.params_size = 0;
        header.body_size = BODY_SIZE_MAX as u32 + 1;
        assert!(Header::from_array(&header.to_array()).is_err());
    }
}
