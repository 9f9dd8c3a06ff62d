//! Parameters of requests about extended attributes. Values and lists of names may be larger than parameters, so they
//! travel as bodies, both ways.

use crate::codec::{Decode, Decoder, Encode, Malformed};
use crate::identity::FileId;
use crate::limits::EXTENDED_NAME_SIZE_MAX;
use crate::message;
use crate::status::Status;

/// The whole name of an extended attribute, name space included: 1 to 255 bytes without NUL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtendedName<'a>(&'a [u8]);

impl<'a> ExtendedName<'a> {
    /// Checks a name. Errors, as Linux has them: `OutOfRange` when empty or longer than 255 bytes, `Invalid` with a
    /// NUL.
    pub fn new(bytes: &'a [u8]) -> Result<ExtendedName<'a>, Status> {
        if bytes.is_empty() || bytes.len() > EXTENDED_NAME_SIZE_MAX {
            return Err(Status::OutOfRange);
        }
        if bytes.contains(&0) {
            return Err(Status::Invalid);
        }
        Ok(ExtendedName(bytes))
    }

    pub fn as_bytes(&self) -> &'a [u8] {
        self.0
    }
}

impl Encode for ExtendedName<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.0.len() as u8);
        out.extend_from_slice(self.0);
    }
}

impl<'a> Decode<'a> for ExtendedName<'a> {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        let size = u8::decode(input)? as usize;
        ExtendedName::new(input.take(size)?).map_err(|_| Malformed("name of an extended attribute is not valid"))
    }
}

message! {
    /// `GetAttribute`, to the file's home. The reply's body is the value.
    pub struct GetExtendedRequest<'a> {
        pub file: FileId,
        pub name: ExtendedName<'a>,
        /// Bytes that the caller takes; 0 asks for the size alone. A larger value is `OutOfRange`.
        pub size_max: u32,
    }
}

/// Flags of `SetExtendedRequest`. Unknown bits, and both together, are refused.
pub mod extended_flags {
    /// The attribute must not exist.
    pub const CREATE: u32 = 1;
    /// The attribute must exist.
    pub const REPLACE: u32 = 2;
}

message! {
    /// `SetAttribute`, to the file's home. The request's body is the value. Reply: `Empty`.
    pub struct SetExtendedRequest<'a> {
        pub file: FileId,
        pub name: ExtendedName<'a>,
        pub flags: u32,
    }
}

message! {
    /// `ListAttributes`, to the file's home. The reply's body is the names, each with a NUL behind it, sorted.
    pub struct ListExtendedRequest {
        pub file: FileId,
        /// As in `GetExtendedRequest`.
        pub size_max: u32,
    }
}

message! {
    /// Reply of `GetAttribute` and `ListAttributes`.
    pub struct ExtendedReply {
        /// Bytes of the value or the list, also when only the size was asked for.
        pub size: u32,
    }
}

message! {
    /// `RemoveAttribute`, to the file's home. Reply: `Empty`.
    pub struct RemoveExtendedRequest<'a> {
        pub file: FileId,
        pub name: ExtendedName<'a>,
    }
}
