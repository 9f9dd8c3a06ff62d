//! Fixed little-endian encoding of message parameters. Decoding borrows from the input and never allocates more
//! than the input's own size justifies.

/// The input is not a valid encoding: too short, too long, or a value outside its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "malformed message: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

/// Reads values off the front of a byte slice.
#[derive(Clone, Copy)]
pub struct Decoder<'a> {
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    pub fn new(input: &'a [u8]) -> Self {
        Decoder { rest: input }
    }

    /// Takes the next `size` bytes.
    pub fn take(&mut self, size: usize) -> Result<&'a [u8], Malformed> {
        if size > self.rest.len() {
            return Err(Malformed("ends too early"));
        }
        let (head, rest) = self.rest.split_at(size);
        self.rest = rest;
        Ok(head)
    }

    /// Bytes not yet taken.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Ends decoding: leftover bytes are an error.
    pub fn finish(self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed("has bytes left over")) }
    }
}

/// A value that appends its encoding to a buffer.
pub trait Encode {
    fn encode(&self, out: &mut Vec<u8>);

    /// The encoding in a buffer of its own.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        self.encode(&mut out);
        out
    }
}

/// A value that can be read back from its encoding.
pub trait Decode<'a>: Sized {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed>;

    /// Decodes all of `input`; leftover bytes are an error.
    fn from_bytes(input: &'a [u8]) -> Result<Self, Malformed> {
        let mut decoder = Decoder::new(input);
        let value = Self::decode(&mut decoder)?;
        decoder.finish()?;
        Ok(value)
    }
}

macro_rules! integer_codec {
    ($($type:ty),*) => {$(
        impl Encode for $type {
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
        impl<'a> Decode<'a> for $type {
            fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
                let bytes = input.take(size_of::<$type>())?;
                let mut array = [0; size_of::<$type>()];
                array.copy_from_slice(bytes);
                Ok(<$type>::from_le_bytes(array))
            }
        }
    )*};
}
integer_codec!(u8, u16, u32, u64, u128, i64);

impl Encode for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl<'a> Decode<'a> for bool {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        match u8::decode(input)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("truth value is neither 0 nor 1")),
        }
    }
}

/// Bytes with their size in front (32 bits).
impl Encode for &[u8] {
    fn encode(&self, out: &mut Vec<u8>) {
        (self.len() as u32).encode(out);
        out.extend_from_slice(self);
    }
}

impl<'a> Decode<'a> for &'a [u8] {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        let size = u32::decode(input)? as usize;
        input.take(size)
    }
}

impl<const N: usize> Encode for [u8; N] {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

impl<'a, const N: usize> Decode<'a> for [u8; N] {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(input.take(N)?);
        Ok(array)
    }
}

impl<const N: usize> Encode for [u64; N] {
    fn encode(&self, out: &mut Vec<u8>) {
        self.iter().for_each(|number| number.encode(out));
    }
}

impl<'a, const N: usize> Decode<'a> for [u64; N] {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        let mut array = [0; N];
        for number in &mut array {
            *number = u64::decode(input)?;
        }
        Ok(array)
    }
}

/// A text as its bytes.
impl Encode for String {
    fn encode(&self, out: &mut Vec<u8>) {
        self.as_bytes().encode(out);
    }
}

impl<'a> Decode<'a> for String {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        let text = std::str::from_utf8(<&[u8]>::decode(input)?).map_err(|_| Malformed("text is not UTF-8"))?;
        Ok(text.to_owned())
    }
}

/// A list with its count in front (32 bits). The count is checked against the bytes that are there.
impl<T: Encode> Encode for Vec<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        (self.len() as u32).encode(out);
        for item in self {
            item.encode(out);
        }
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for Vec<T> {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        let count = u32::decode(input)? as usize;
        if count > input.remaining() {
            return Err(Malformed("list is longer than the message"));
        }
        let mut items = Vec::with_capacity(count.min(1024));
        for _ in 0..count {
            items.push(T::decode(input)?);
        }
        Ok(items)
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.is_some().encode(out);
        if let Some(value) = self {
            value.encode(out);
        }
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for Option<T> {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        if bool::decode(input)? { Ok(Some(T::decode(input)?)) } else { Ok(None) }
    }
}

/// What it holds, for fields that are large and most often absent.
impl<T: Encode> Encode for Box<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        (**self).encode(out);
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for Box<T> {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        T::decode(input).map(Box::new)
    }
}

/// Defines a message: a struct whose fields are encoded in order. Borrowing messages take the lifetime `'a`.
#[macro_export]
macro_rules! message {
    ($(#[$meta:meta])* pub struct $name:ident<'a> { $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name<'a> { $($(#[$field_meta])* pub $field: $type,)* }
        impl<'a> $crate::Encode for $name<'a> {
            fn encode(&self, out: &mut Vec<u8>) { $($crate::Encode::encode(&self.$field, out);)* }
        }
        impl<'a> $crate::Decode<'a> for $name<'a> {
            fn decode(input: &mut $crate::Decoder<'a>) -> Result<Self, $crate::Malformed> {
                Ok($name { $($field: $crate::Decode::decode(input)?,)* })
            }
        }
    };
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name { $($(#[$field_meta])* pub $field: $type,)* }
        impl $crate::Encode for $name {
            #[allow(unused_variables)]
            fn encode(&self, out: &mut Vec<u8>) { $($crate::Encode::encode(&self.$field, out);)* }
        }
        impl<'a> $crate::Decode<'a> for $name {
            #[allow(unused_variables)]
            fn decode(input: &mut $crate::Decoder<'a>) -> Result<Self, $crate::Malformed> {
                Ok($name { $($field: $crate::Decode::decode(input)?,)* })
            }
        }
    };
}
