//! Patterns of names, as in glob(7): `*`, `?`, `[a-z]`, `[!a-z]`, and `\` before a letter that means itself. Bytes, not
//! characters.

/// A pattern that many names are compared with. What most patterns are is told apart once, for a search spends its time
/// here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// `*words*`
    HazardPointers(Vec<u8>),
    /// `*words`
    EndsWith(Vec<u8>),
    /// `words*`
    StartsWith(Vec<u8>),
    /// `words`
    Is(Vec<u8>),
    Other(Vec<u8>),
}

impl Pattern {
    pub fn new(pattern: &[u8]) -> Pattern {
        let is_plain = |words: &[u8]| !words.iter().any(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\'));
        match pattern {
            [b'*', words @ .., b'*'] if is_plain(words) => Pattern::HazardPointers(words.to_vec()),
            [b'*', words @ ..] if is_plain(words) => Pattern::EndsWith(words.to_vec()),
            [words @ .., b'*'] if is_plain(words) => Pattern::StartsWith(words.to_vec()),
            words if is_plain(words) => Pattern::Is(words.to_vec()),
            _ => Pattern::Other(pattern.to_vec()),
        }
    }

    /// As [`matches`].
    pub fn matches(&self, name: &[u8]) -> bool {
        match self {
            Pattern::HazardPointers(words) => holds(name, words),
            Pattern::EndsWith(words) => name.ends_with(words),
            Pattern::StartsWith(words) => name.starts_with(words),
            Pattern::Is(words) => name == words,
            Pattern::Other(pattern) => matches(pattern, name),
        }
    }
}

/// Bytes that `holds` looks at in one step, each with the one behind it.
const STEP: usize = size_of::<u64>();

/// Whether the words are somewhere in the name. Where their first two bytes are is found for the bytes of a machine
/// word at a time.
fn holds(name: &[u8], words: &[u8]) -> bool {
    let [first, second, ..] = words else {
        return words.first().is_none_or(|byte| name.contains(byte));
    };
    if name.len() < STEP {
        return name.windows(words.len()).any(|window| window == words);
    }
    let (first, second) = (u64::from_ne_bytes([*first; STEP]), u64::from_ne_bytes([*second; STEP]));
    let end = name.len() - STEP;
    let mut at = 0;
    while let Some(bytes) = name[at..].first_chunk::<STEP>() {
        let word = u64::from_le_bytes(*bytes);
        let mut pairs = zero_bytes(word ^ first) & zero_bytes(word ^ second) >> 8;
        while pairs != 0 {
            if name[at + pairs.trailing_zeros() as usize / 8..].starts_with(words) {
                return true;
            }
            pairs &= pairs - 1;
        }
        if at == end {
            break;
        }
        // The last byte of this step is the first of a pair of the next one, and the last step is whole.
        at = (at + STEP - 1).min(end);
    }
    false
}

/// The upper bit of each byte that is zero. (H. S. Warren, Hacker's Delight, 6-1)
fn zero_bytes(word: u64) -> u64 {
    const LOW: u64 = u64::from_ne_bytes([0x7f; STEP]);
    !(((word & LOW) + LOW) | word | LOW)
}

/// Whether the whole name matches the pattern.
pub fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut position) = (0, 0);
    // The last star, and how much of the name it has taken so far: the only place to go back to.
    let mut star: Option<(usize, usize)> = None;
    while position < name.len() {
        if pattern.get(at) == Some(&b'*') {
            star = Some((at, position));
            at += 1;
            // The last one takes what is left.
            if at == pattern.len() {
                return true;
            }
            continue;
        }
        match match_one(&pattern[at..], name[position]) {
            Some(size) => {
                at += size;
                position += 1;
            }
            None => match star {
                Some((star_at, taken)) => {
                    at = star_at + 1;
                    let Some(skipped) = next_start(&pattern[at..], &name[taken + 1..]) else { return false };
                    position = taken + 1 + skipped;
                    star = Some((star_at, position));
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// How many bytes of a name go by before one that what follows a star may begin with; nothing when there is none. Most
/// names that a search looks at do not match, and this is where their time goes.
fn next_start(pattern: &[u8], name: &[u8]) -> Option<usize> {
    match pattern.first() {
        Some(b'?' | b'[' | b'\\' | b'*') | None => Some(0),
        Some(literal) => name.iter().position(|byte| byte == literal),
    }
}

/// Matches one byte with the head of the pattern; returns the size of that head.
fn match_one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [b'[', rest @ ..] => match set_of(rest) {
            Some((set, size)) => set.contains(byte).then_some(size + 1),
            None => (byte == b'[').then_some(1),
        },
        [literal, ..] => (*literal == byte).then_some(1),
    }
}

/// What stands between brackets.
struct ByteSet<'a> {
    negated: bool,
    members: &'a [u8],
}

impl ByteSet<'_> {
    fn contains(&self, byte: u8) -> bool {
        let mut members = self.members;
        let mut found = false;
        while let Some((first, rest)) = members.split_first() {
            match rest {
                [b'-', last, after @ ..] => {
                    found |= (*first..=*last).contains(&byte);
                    members = after;
                }
                _ => {
                    found |= *first == byte;
                    members = rest;
                }
            }
        }
        found != self.negated
    }
}

/// The set after an opening bracket, and its size with the closing one. `None` without a closing one.
fn set_of(rest: &[u8]) -> Option<(ByteSet<'_>, usize)> {
    let negated = matches!(rest.first(), Some(b'!' | b'^'));
    let from = usize::from(negated);
    // A closing bracket that comes first is a member.
    let end = from + 1 + rest.get(from + 1..)?.iter().position(|byte| *byte == b']')?;
    Some((ByteSet { negated, members: &rest[from..end] }, end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the rules of glob(7), and no run-away time for patterns with many stars.
    #[test]
    fn patterns() {
        for (pattern, name) in [
            ("*", ""),
            ("*.txt", "a.txt"),
            ("a*b*c", "aXXbYYbZc"),
            ("?[a-c]?", "xbz"),
            ("[!a-c]", "d"),
            ("[]x]", "]"),
            ("\\*", "*"),
            ("[", "["),
            ("*01*", "file01"),
            ("[a-]", "-"),
        ] {
            assert!(matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        for (pattern, name) in
            [("", "a"), ("*.txt", "a.text"), ("[a-c]", "d"), ("[!a-c]", "b"), ("\\*", "x"), ("a", "ab")]
        {
            assert!(!matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        let name = vec![b'a'; 255];
        assert!(!matches(b"*a*a*a*a*a*a*a*a*a*b", &name));
    }

    /// The rules as they are told, without any haste.
    fn told(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => (0..=name.len()).any(|taken| told(rest, &name[taken..])),
            (_, []) => false,
            _ => match_one(pattern, name[0]).is_some_and(|size| told(&pattern[size..], &name[1..])),
        }
    }

    /// Words of all lengths up to this one.
    fn words(letters: &[u8], length_max: u32) -> Vec<Vec<u8>> {
        let count = letters.len();
        let of_length = |length: u32| {
            (0..count.pow(length))
                .map(move |number| (0..length).map(|place| letters[number / count.pow(place) % count]).collect())
        };
        (0..=length_max).flat_map(of_length).collect()
    }

    /// Goal: no short cut changes what matches.
    /// Method: all short patterns with all short names, compared with the rules told plainly.
    #[test]
    fn short_cuts_change_nothing() {
        let names = words(b"ab\\", 5);
        for pattern in words(b"ab*?\\", 5).into_iter().chain(words(b"a*[]", 5)) {
            for name in &names {
                let (found, wanted) = (matches(&pattern, name), told(&pattern, name));
                assert_eq!(found, wanted, "{} {}", pattern.escape_ascii(), name.escape_ascii());
                let found = Pattern::new(&pattern).matches(name);
                assert_eq!(found, wanted, "{} {} made ready", pattern.escape_ascii(), name.escape_ascii());
            }
        }
    }

    /// Goal: words are found wherever they are in names of every length, and nowhere else. Method: names of letters
    /// that are few, so that parts of the words are met often, compared with the rules told plainly.
    #[test]
    fn words_within_long_names() {
        let mut state = 7u64;
        let mut letter = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            [b'0', b'1', 0x80, 0xff][(state >> 60) as usize % 4]
        };
        let mut found = 0;
        for round in 0..20_000 {
            let name: Vec<u8> = (0..round % 40).map(|_| letter()).collect();
            let pattern = [b"*", (0..round / 40 % 6).map(|_| letter()).collect::<Vec<u8>>().as_slice(), b"*"].concat();
            let wanted = told(&pattern, &name);
            assert_eq!(
                Pattern::new(&pattern).matches(&name),
                wanted,
                "{} {}",
                pattern.escape_ascii(),
                name.escape_ascii()
            );
            found += u32::from(wanted);
        }
        assert!((2_000..18_000).contains(&found), "both happen often: {found}");
    }
}
