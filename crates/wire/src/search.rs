//! What a search looks for: tests that must all hold, the same for servers, which apply them to the entries they hold,
//! and for clients, which apply them where a server can't tell.

use crate::attributes::{Attributes, Kind};
use crate::codec::{Decode, Decoder, Encode, Malformed};
use crate::glob::Pattern;
use crate::identity::FileId;
use crate::limits::NAME_SIZE_MAX;

/// Tests of one search.
pub const TEST_COUNT_MAX: usize = 64;
/// Inodes that one test names.
pub const ID_COUNT_MAX: usize = 4096;
/// Bytes of a pattern.
pub const PATTERN_SIZE_MAX: usize = 1024;

/// How a number compares with the wanted one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Order {
    Less = 1,
    Equal = 2,
    More = 3,
}

impl Order {
    fn holds(self, value: u64, wanted: u64) -> bool {
        match self {
            Order::Less => value < wanted,
            Order::Equal => value == wanted,
            Order::More => value > wanted,
        }
    }
}

/// Which time of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Clock {
    Access = 1,
    Modification = 2,
    Change = 3,
}

/// How permission bits compare with the wanted ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Bits {
    Exactly = 1,
    All = 2,
    Any = 3,
}

macro_rules! bytes {
    ($type:ident: $($name:ident),*) => {
        impl Encode for $type {
            fn encode(&self, out: &mut Vec<u8>) {
                out.push(*self as u8);
            }
        }
        impl<'a> Decode<'a> for $type {
            fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
                let code = u8::decode(input)?;
                [$($type::$name),*].into_iter().find(|value| *value as u8 == code).ok_or(Malformed("test is unknown"))
            }
        }
    };
}

bytes!(Order: Less, Equal, More);
bytes!(Clock: Access, Modification, Change);
bytes!(Bits: Exactly, All, Any);

/// One test of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    /// The name matches a pattern as in glob(7), whole; `any_case` makes letters of ASCII equal.
    Name {
        pattern: Vec<u8>,
        any_case: bool,
    },
    Kind(Kind),
    /// The size in units, rounded up, as find(1) counts.
    Size {
        order: Order,
        unit: u64,
        count: u64,
    },
    /// The time is later than `after` and not later than `until`; nanoseconds since the epoch.
    Time {
        clock: Clock,
        after: i64,
        until: i64,
    },
    Owner(u32),
    Group(u32),
    Permissions {
        how: Bits,
        bits: u32,
    },
    Links {
        order: Order,
        count: u64,
    },
    /// A file of no bytes, or a directory without entries.
    Empty,
    /// The entry is of one of these inodes.
    Ids(Ids),
}

/// Numbers of inodes, in ascending order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ids(Vec<FileId>);

impl Ids {
    /// Errors: more than `ID_COUNT_MAX` of them.
    pub fn new(mut ids: Vec<FileId>) -> Result<Ids, Malformed> {
        if ids.len() > ID_COUNT_MAX {
            return Err(Malformed("too many inodes"));
        }
        ids.sort_unstable();
        Ok(Ids(ids))
    }

    fn contain(&self, id: FileId) -> bool {
        self.0.binary_search(&id).is_ok()
    }
}

impl Encode for Test {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Test::Name { pattern, any_case } => (1u8, pattern.as_slice(), *any_case).encode_all(out),
            Test::Kind(kind) => (2u8, *kind).encode_all(out),
            Test::Size { order, unit, count } => (3u8, *order, *unit, *count).encode_all(out),
            Test::Time { clock, after, until } => (4u8, *clock, *after, *until).encode_all(out),
            Test::Owner(uid) => (5u8, *uid).encode_all(out),
            Test::Group(gid) => (6u8, *gid).encode_all(out),
            Test::Permissions { how, bits } => (7u8, *how, *bits).encode_all(out),
            Test::Links { order, count } => (8u8, *order, *count).encode_all(out),
            Test::Empty => out.push(9),
            Test::Ids(ids) => (10u8, ids.0.clone()).encode_all(out),
        }
    }
}

/// Values one after the other.
trait EncodeAll {
    fn encode_all(&self, out: &mut Vec<u8>);
}

macro_rules! encode_all {
    ($($type:ident $index:tt),*) => {
        impl<$($type: Encode),*> EncodeAll for ($($type,)*) {
            fn encode_all(&self, out: &mut Vec<u8>) {
                $(self.$index.encode(out);)*
            }
        }
    };
}

encode_all!(A 0, B 1);
encode_all!(A 0, B 1, C 2);
encode_all!(A 0, B 1, C 2, D 3);

impl<'a> Decode<'a> for Test {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        Ok(match u8::decode(input)? {
            1 => {
                let pattern: &[u8] = Decode::decode(input)?;
                if pattern.len() > PATTERN_SIZE_MAX {
                    return Err(Malformed("pattern is too long"));
                }
                Test::Name { pattern: pattern.to_vec(), any_case: Decode::decode(input)? }
            }
            2 => Test::Kind(Decode::decode(input)?),
            3 => {
                let (order, unit) = (Decode::decode(input)?, Decode::decode(input)?);
                if unit == 0 {
                    return Err(Malformed("a unit of no bytes"));
                }
                Test::Size { order, unit, count: Decode::decode(input)? }
            }
            4 => Test::Time {
                clock: Decode::decode(input)?,
                after: Decode::decode(input)?,
                until: Decode::decode(input)?,
            },
            5 => Test::Owner(Decode::decode(input)?),
            6 => Test::Group(Decode::decode(input)?),
            7 => Test::Permissions { how: Decode::decode(input)?, bits: Decode::decode(input)? },
            8 => Test::Links { order: Decode::decode(input)?, count: Decode::decode(input)? },
            9 => Test::Empty,
            10 => {
                let told: Vec<FileId> = Decode::decode(input)?;
                if !told.is_sorted() {
                    return Err(Malformed("inodes in no order"));
                }
                Test::Ids(Ids::new(told)?)
            }
            _ => return Err(Malformed("test is unknown")),
        })
    }
}

/// What came of the tests of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Verdict {
    No = 1,
    Yes = 2,
    /// Something is missing: complete attributes, or whether a directory has entries.
    Undecided = 3,
}

bytes!(Verdict: No, Yes, Undecided);

/// All tests of a search; all must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tests(pub Vec<Test>);

impl Encode for Tests {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.0.len() as u8);
        self.0.iter().for_each(|test| test.encode(out));
    }
}

impl<'a> Decode<'a> for Tests {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        let count = u8::decode(input)? as usize;
        if count > TEST_COUNT_MAX {
            return Err(Malformed("too many tests"));
        }
        (0..count).map(|_| Test::decode(input)).collect::<Result<_, _>>().map(Tests)
    }
}

impl Tests {
    /// Whether any test looks at more than name, kind and number.
    pub fn need_attributes(&self) -> bool {
        self.0.iter().any(|test| !matches!(test, Test::Name { .. } | Test::Kind(_) | Test::Ids(_)))
    }

    /// Whether the tests of name, kind and number hold. For many names there is [`NameTests`].
    pub fn hold_for_name(&self, name: &[u8], kind: Kind, id: FileId) -> bool {
        NameTests::new(self).hold(name, kind, id)
    }

    /// What comes of the other tests. Unless `is_final`, sizes, times and links of the attributes are not the last
    /// word.
    pub fn judge(&self, attributes: &Attributes, is_final: bool) -> Verdict {
        let mut verdict = Verdict::Yes;
        for test in &self.0 {
            match test.holds(attributes, is_final) {
                Some(true) => {}
                Some(false) => return Verdict::No,
                None => verdict = Verdict::Undecided,
            }
        }
        verdict
    }
}

/// The tests of names, kinds and numbers of a search, made ready for many entries: nothing is allocated for one.
#[derive(Debug)]
pub struct NameTests {
    /// Cheaper than patterns, so they come first.
    kinds: Vec<Kind>,
    ids: Vec<Ids>,
    patterns: Vec<Pattern>,
    /// In small letters, to be compared with names in small letters.
    any_case: Vec<Pattern>,
}

impl NameTests {
    pub fn new(tests: &Tests) -> NameTests {
        let mut ready = NameTests { kinds: Vec::new(), ids: Vec::new(), patterns: Vec::new(), any_case: Vec::new() };
        for test in &tests.0 {
            match test {
                Test::Name { pattern, any_case: false } => ready.patterns.push(Pattern::new(pattern)),
                Test::Name { pattern, any_case: true } => {
                    ready.any_case.push(Pattern::new(&pattern.to_ascii_lowercase()));
                }
                Test::Kind(kind) => ready.kinds.push(*kind),
                Test::Ids(ids) => ready.ids.push(ids.clone()),
                _ => {}
            }
        }
        ready
    }

    /// Whether all of them hold.
    pub fn hold(&self, name: &[u8], kind: Kind, id: FileId) -> bool {
        self.kinds.iter().all(|wanted| *wanted == kind)
            && self.ids.iter().all(|ids| ids.contain(id))
            && self.patterns.iter().all(|pattern| pattern.matches(name))
            && (self.any_case.is_empty() || self.hold_in_any_case(name))
    }

    fn hold_in_any_case(&self, name: &[u8]) -> bool {
        let mut buffer = [0; NAME_SIZE_MAX];
        // No entry has a longer name.
        let Some(small) = buffer.get_mut(..name.len()) else { return false };
        small.copy_from_slice(name);
        small.make_ascii_lowercase();
        self.any_case.iter().all(|pattern| pattern.matches(small))
    }
}

impl Test {
    fn holds(&self, attributes: &Attributes, is_final: bool) -> Option<bool> {
        match self {
            Test::Name { .. } | Test::Kind(_) | Test::Ids(_) => Some(true),
            Test::Owner(uid) => Some(attributes.uid == *uid),
            Test::Group(gid) => Some(attributes.gid == *gid),
            Test::Permissions { how: Bits::Exactly, bits } => Some(attributes.mode == *bits),
            Test::Permissions { how: Bits::All, bits } => Some(attributes.mode & bits == *bits),
            Test::Permissions { how: Bits::Any, bits } => Some(*bits == 0 || attributes.mode & bits != 0),
            Test::Empty if attributes.kind == Kind::Symlink || attributes.kind.is_special() => Some(false),
            _ if !is_final => None,
            Test::Size { order, unit, count } => Some(order.holds(attributes.size.div_ceil(*unit), *count)),
            Test::Time { clock, after, until } => {
                let time = match clock {
                    Clock::Access => attributes.atime,
                    Clock::Modification => attributes.mtime,
                    Clock::Change => attributes.ctime,
                };
                Some(time > *after && time <= *until)
            }
            Test::Links { order, count } => Some(order.holds(attributes.link_count.into(), *count)),
            Test::Empty if attributes.kind == Kind::File => Some(attributes.size == 0),
            Test::Empty if attributes.link_count > 2 => Some(false),
            Test::Empty => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layout, LayoutPolicy};

    fn file(size: u64) -> Attributes {
        Attributes {
            id: FileId(1),
            kind: Kind::File,
            mode: 0o640,
            uid: 7,
            gid: 8,
            link_count: 2,
            size,
            atime: 10,
            mtime: 20,
            ctime: 30,
            version: 1,
            truncate_generation: 0,
            times_set: 0,
            layout: Layout::default_for(LayoutPolicy::Modular, 0, 1024, 4096),
        }
    }

    /// Goal: each test says yes and no where find(1) does, and all must hold.
    #[test]
    fn tests_hold() {
        let judge = |tests: &[Test]| Tests(tests.to_vec()).judge(&file(1025), true);
        let size = |order, count| Test::Size { order, unit: 1024, count };
        assert_eq!(judge(&[size(Order::Equal, 2), size(Order::Less, 3), size(Order::More, 1)]), Verdict::Yes);
        assert_eq!(judge(&[size(Order::Equal, 1)]), Verdict::No);
        let time = |after, until| Test::Time { clock: Clock::Modification, after, until };
        assert_eq!((judge(&[time(19, 20)]), judge(&[time(20, 30)])), (Verdict::Yes, Verdict::No));
        let bits = |how, bits| Test::Permissions { how, bits };
        assert_eq!(judge(&[bits(Bits::Exactly, 0o640), bits(Bits::All, 0o600), bits(Bits::Any, 0o044)]), Verdict::Yes);
        assert_eq!(judge(&[bits(Bits::All, 0o644)]), Verdict::No);
        assert_eq!((judge(&[Test::Owner(7), Test::Group(9)]), judge(&[Test::Empty])), (Verdict::No, Verdict::No));
    }

    /// Goal: what is not final decides nothing that it could change, and rights at once.
    #[test]
    fn undecided() {
        let tests = Tests(vec![Test::Links { order: Order::Equal, count: 3 }, Test::Owner(7)]);
        assert_eq!(tests.judge(&file(0), false), Verdict::Undecided);
        assert_eq!(Tests(vec![Test::Empty, Test::Owner(8)]).judge(&file(0), false), Verdict::No);
        let directory = Attributes { kind: Kind::Directory, ..file(0) };
        assert_eq!(Tests(vec![Test::Empty]).judge(&directory, true), Verdict::Undecided);
    }

    /// Goal: names are compared with and without case, and what is encoded comes back.
    #[test]
    fn names_and_round_trip() {
        let name = |any_case| Test::Name { pattern: b"*.TXT".to_vec(), any_case };
        let holds = |test, kind| Tests(vec![test]).hold_for_name(b"a.txt", kind, FileId(7));
        assert!(holds(name(true), Kind::File));
        assert!(!holds(name(false), Kind::File));
        assert!(!holds(Test::Kind(Kind::Symlink), Kind::File));
        let ids = |ids: &[u64]| Test::Ids(Ids::new(ids.iter().copied().map(FileId).collect()).expect("few"));
        assert!(holds(ids(&[9, 7]), Kind::File) && !holds(ids(&[9, 8]), Kind::File) && !holds(ids(&[]), Kind::File));
        assert!(Ids::new(vec![FileId(1); ID_COUNT_MAX + 1]).is_err());
        let all = Tests(vec![
            name(true),
            Test::Kind(Kind::Directory),
            Test::Size { order: Order::More, unit: 512, count: 9 },
            Test::Time { clock: Clock::Change, after: -5, until: i64::MAX },
            Test::Owner(1),
            Test::Group(2),
            Test::Permissions { how: Bits::Any, bits: 0o111 },
            Test::Links { order: Order::Less, count: 2 },
            Test::Empty,
            ids(&[3, 1, 2]),
        ]);
        assert_eq!(Tests::from_bytes(&all.to_bytes()), Ok(all));
    }
}
