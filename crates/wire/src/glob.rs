//! Patterns of names, as in glob(7): `*`, `?`, `[a-z]`, `[!a-z]`, and `\` before a letter that means itself. Bytes, not characters.

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

/// How many bytes of a name go by before one that what follows a star may begin with; nothing when there is none. Most names that a
/// search looks at do not match, and this is where their time goes.
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
            }
        }
    }
}
