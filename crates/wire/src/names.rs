//! Names of directory entries as they travel: 1 to 255 bytes, any but `/` and NUL, never `.` or `..`.

use crate::codec::{Decode, Decoder, Encode, Malformed};
use crate::limits::NAME_SIZE_MAX;
use crate::status::Status;

/// A checked name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name<'a>(&'a [u8]);

impl<'a> Name<'a> {
    /// Checks a name. Errors: `NameTooLong` past 255 bytes; `Invalid` when empty, `.`, `..` or holding `/` or NUL.
    pub fn new(bytes: &'a [u8]) -> Result<Name<'a>, Status> {
        if bytes.len() > NAME_SIZE_MAX {
            return Err(Status::NameTooLong);
        }
        if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.iter().any(|b| matches!(b, 0 | b'/')) {
            return Err(Status::Invalid);
        }
        Ok(Name(bytes))
    }

    pub fn as_bytes(&self) -> &'a [u8] {
        self.0
    }
}

impl Encode for Name<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.0.len() as u8);
        out.extend_from_slice(self.0);
    }
}

impl<'a> Decode<'a> for Name<'a> {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        let size = u8::decode(input)? as usize;
        Name::new(input.take(size)?).map_err(|_| Malformed("name of a directory entry is not valid"))
    }
}
