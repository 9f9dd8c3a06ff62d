//! Promises of this server that other servers have to help with. Each is journalled before anything of it happens and
//! is driven on (`coordination`) until all have answered, also over restarts.

use wire::messages::TreeEntry;
use wire::{Decode, Decoder, Encode, FileId, Layout, Malformed};

/// A request of a session that changes something, by its number there: what an intent answers when it is done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Origin {
    pub session: u64,
    pub sequence: u64,
}

/// How far the removal of a directory, or a tree change, has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RemovalPhase {
    /// Servers are being asked whether their share is empty. Found at recovery, it is given up.
    Marking = 1,
    /// Given up: the marks are being lifted.
    Aborting = 2,
    /// The directory is gone: tombstones are being set.
    Committed = 3,
}

/// A promise; servers that have to answer are named by number.
#[derive(Debug, Clone, PartialEq)]
pub enum Intent {
    /// The file is gone; its chunks are to be freed.
    Reap { file: FileId, holders: Vec<u32> },
    /// The file was cut; chunks elsewhere are to follow. `reply` holds the parameters of the reply that the origin then
    /// gets, also when the file was removed meanwhile: it was cut before.
    Truncate {
        file: FileId,
        layout: Layout,
        size: u64,
        generation: u32,
        holders: Vec<u32>,
        origin: Option<Origin>,
        reply: Vec<u8>,
    },
    /// A directory is being removed.
    RemoveDirectory { directory: FileId, attempt: u64, phase: RemovalPhase },
    /// An append is decided: its bytes are the only chunk of `stage`, a file without inode (`handlers::bytes::append`).
    /// The origin is told the offset.
    Append { file: FileId, stage: FileId, layout: Layout, offset: u64, size: u32, origin: Option<Origin> },
    /// A change of names is decided; what was prepared on other servers, by number, is to be done there.
    Names { parts: Vec<(u32, u64)> },
    /// A tree change is under way, at the sequencer; the intent's number is the change's.
    Tree { phase: RemovalPhase, entries: Vec<TreeEntry> },
    /// Rights on a directory have changed here, and all servers are to know; then the origin gets `reply`.
    Rights { directory: FileId, origin: Option<Origin>, reply: Vec<u8> },
}

fn encode_origin(origin: &Option<Origin>, out: &mut Vec<u8>) {
    origin.is_some().encode(out);
    let Origin { session, sequence } = origin.unwrap_or_default();
    session.encode(out);
    sequence.encode(out);
}

fn decode_origin(input: &mut Decoder<'_>) -> Result<Option<Origin>, Malformed> {
    let is_there = bool::decode(input)?;
    let origin = Origin { session: u64::decode(input)?, sequence: u64::decode(input)? };
    if !is_there && origin != Origin::default() {
        return Err(Malformed("a request that there is not has a session or a sequence"));
    }
    Ok(is_there.then_some(origin))
}

impl Encode for Intent {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Intent::Reap { file, holders } => {
                out.push(1);
                file.encode(out);
                holders.encode(out);
            }
            Intent::Truncate { file, layout, size, generation, holders, origin, reply } => {
                out.push(2);
                file.encode(out);
                layout.encode(out);
                size.encode(out);
                generation.encode(out);
                holders.encode(out);
                encode_origin(origin, out);
                reply.as_slice().encode(out);
            }
            Intent::RemoveDirectory { directory, attempt, phase } => {
                out.push(3);
                directory.encode(out);
                attempt.encode(out);
                out.push(*phase as u8);
            }
            Intent::Append { file, stage, layout, offset, size, origin } => {
                out.push(5);
                file.encode(out);
                stage.encode(out);
                layout.encode(out);
                offset.encode(out);
                size.encode(out);
                encode_origin(origin, out);
            }
            Intent::Names { parts } => {
                out.push(4);
                (parts.len() as u32).encode(out);
                for (server, number) in parts {
                    server.encode(out);
                    number.encode(out);
                }
            }
            Intent::Tree { phase, entries } => {
                out.push(16);
                out.push(*phase as u8);
                entries.encode(out);
            }
            Intent::Rights { directory, origin, reply } => {
                out.push(17);
                directory.encode(out);
                encode_origin(origin, out);
                reply.as_slice().encode(out);
            }
        }
    }
}

impl RemovalPhase {
    fn decode(input: &mut Decoder<'_>) -> Result<Self, Malformed> {
        match u8::decode(input)? {
            1 => Ok(RemovalPhase::Marking),
            2 => Ok(RemovalPhase::Aborting),
            3 => Ok(RemovalPhase::Committed),
            _ => Err(Malformed("phase of a removal or tree change is unknown")),
        }
    }
}

impl<'a> Decode<'a> for Intent {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        match u8::decode(input)? {
            1 => Ok(Intent::Reap { file: Decode::decode(input)?, holders: Decode::decode(input)? }),
            2 => {
                let file = Decode::decode(input)?;
                let layout = Decode::decode(input)?;
                let size = Decode::decode(input)?;
                let generation = Decode::decode(input)?;
                let holders = Decode::decode(input)?;
                let origin = decode_origin(input)?;
                let reply = <&[u8]>::decode(input)?.to_vec();
                Ok(Intent::Truncate { file, layout, size, generation, holders, origin, reply })
            }
            3 => {
                let directory = Decode::decode(input)?;
                let attempt = Decode::decode(input)?;
                let phase = RemovalPhase::decode(input)?;
                Ok(Intent::RemoveDirectory { directory, attempt, phase })
            }
            4 => {
                let count = u32::decode(input)? as usize;
                let mut parts = Vec::with_capacity(count.min(8));
                for _ in 0..count {
                    parts.push((u32::decode(input)?, u64::decode(input)?));
                }
                Ok(Intent::Names { parts })
            }
            16 => Ok(Intent::Tree { phase: RemovalPhase::decode(input)?, entries: Decode::decode(input)? }),
            17 => {
                let directory = Decode::decode(input)?;
                let origin = decode_origin(input)?;
                let reply = <&[u8]>::decode(input)?.to_vec();
                Ok(Intent::Rights { directory, origin, reply })
            }
            5 => Ok(Intent::Append {
                file: Decode::decode(input)?,
                stage: Decode::decode(input)?,
                layout: Decode::decode(input)?,
                offset: Decode::decode(input)?,
                size: Decode::decode(input)?,
                origin: decode_origin(input)?,
            }),
            _ => Err(Malformed("kind of intent is unknown")),
        }
    }
}
