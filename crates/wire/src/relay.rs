//! What travels on a tunnel: one connection that carries the byte streams of many others. Each frame has a `Header` of
//! kind `Stream`; its `operation` says which of these it is, its `call_id` names the stream, and nothing else in it
//! counts.

use crate::codec::Malformed;
use crate::message;

/// What a frame of a tunnel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum StreamFrame {
    /// The caller begins a stream; parameters: `OpenStream`. Numbers of streams rise, from 1.
    Open = 1,
    /// Bytes of the stream, as parameters or as a body.
    Data = 2,
    /// The receiver has room again; parameters: `Credit`.
    Credit = 3,
    /// The sender sends and takes no more; `status` says why. A stream is over when both sides have said so.
    End = 4,
    /// The receiver is to answer `Pong` at once; of no stream.
    Ping = 5,
    Pong = 6,
}

impl StreamFrame {
    /// The frame of an operation number.
    pub fn from_code(code: u16) -> Result<StreamFrame, Malformed> {
        Ok(match code {
            1 => StreamFrame::Open,
            2 => StreamFrame::Data,
            3 => StreamFrame::Credit,
            4 => StreamFrame::End,
            5 => StreamFrame::Ping,
            6 => StreamFrame::Pong,
            _ => return Err(Malformed("frame of a tunnel is unknown")),
        })
    }
}

message! {
    pub struct OpenStream {
        /// Whom the stream is for: the accepting server itself, or one that a client wants to be passed on to.
        pub server: u32,
    }
}

message! {
    pub struct Credit {
        /// Room that has become free, as `STREAM_WINDOW` counts it.
        pub size: u32,
    }
}

/// Room that the receiver of a stream keeps for bytes that were not taken yet: the sum over frames of data of their
/// bytes and `STREAM_FRAME_COST` each.
pub const STREAM_WINDOW: usize = 128 * 1024;
/// What a frame of data takes of the window beside its bytes, so that many small ones are bounded as well.
pub const STREAM_FRAME_COST: usize = 256;
/// Most bytes of a frame of data.
pub const STREAM_DATA_SIZE_MAX: usize = 32 * 1024;

const _: () = assert!(STREAM_DATA_SIZE_MAX + STREAM_FRAME_COST <= STREAM_WINDOW / 2);
