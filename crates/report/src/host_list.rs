//! Host lists as Slurm writes them: `n[1-3,07],login`, also with several brackets, `r[1-2]n[01-16]`.

/// What one list may name; more is a mistake or an attack.
pub const HOSTS_MAX: usize = 1_000_000;

/// Whether a list can be read, without making its names. Errors: words on what is wrong with it.
pub fn check(text: &str) -> Result<(), String> {
    walk(text, |_| ())
}

/// All names of a list. Errors: likewise.
pub fn names(text: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    walk(text, |pieces| write_names(pieces, &mut String::new(), &mut |name| names.push(name)))?;
    Ok(names)
}

/// Calls `each` with the pieces of every part of the list, as long as all together name no more than is taken.
fn walk(text: &str, mut each: impl FnMut(&[NamePiece<'_>])) -> Result<(), String> {
    let mut count = 0;
    for part in parts(text)? {
        let pieces = pieces(part)?;
        let names = pieces.iter().try_fold(1usize, |names, piece| names.checked_mul(piece.len()));
        count += names.filter(|names| *names <= HOSTS_MAX).unwrap_or(HOSTS_MAX + 1);
        if count > HOSTS_MAX {
            return Err(format!("it names more than {} hosts", crate::words::count(HOSTS_MAX as u64)));
        }
        each(&pieces);
    }
    Ok(())
}

/// The list cut at its commas outside of brackets.
fn parts(text: &str) -> Result<Vec<&str>, String> {
    let mut parts = Vec::new();
    let (mut inside, mut begun) = (false, 0);
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'[' if inside => return Err("a bracket within a bracket".into()),
            b'[' => inside = true,
            b']' if !inside => return Err("a bracket that nothing opens".into()),
            b']' => inside = false,
            b',' if !inside => {
                parts.push(text[begun..index].trim());
                begun = index + 1;
            }
            _ => (),
        }
    }
    if inside {
        return Err("a bracket that nothing closes".into());
    }
    parts.push(text[begun..].trim());
    parts.retain(|part| !part.is_empty());
    Ok(parts)
}

/// A piece of a name: a text as it is, or numbers.
enum NamePiece<'a> {
    Text(&'a str),
    /// First and last of each range, and digits at least.
    Numbers(Vec<(u64, u64, usize)>),
}

impl NamePiece<'_> {
    fn len(&self) -> usize {
        match self {
            NamePiece::Text(_) => 1,
            NamePiece::Numbers(ranges) => ranges
                .iter()
                .fold(0usize, |sum, (first, last, _)| sum.saturating_add((last - first).saturating_add(1) as usize)),
        }
    }
}

fn pieces(part: &str) -> Result<Vec<NamePiece<'_>>, String> {
    let mut pieces = Vec::new();
    let mut rest = part;
    while let Some((before, after)) = rest.split_once('[') {
        let (inside, after) = after.split_once(']').ok_or("a bracket that nothing closes")?;
        pieces.push(NamePiece::Text(before));
        pieces.push(NamePiece::Numbers(inside.split(',').map(range).collect::<Result<_, _>>()?));
        rest = after;
    }
    pieces.push(NamePiece::Text(rest));
    Ok(pieces)
}

fn range(text: &str) -> Result<(u64, u64, usize), String> {
    let (first, last) = text.trim().split_once('-').unwrap_or((text.trim(), text.trim()));
    let number = |text: &str| text.parse::<u64>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    match (number(first), number(last)) {
        (Some(from), Some(to)) if from <= to => Ok((from, to, first.len())),
        _ => Err(format!("\"{}\" is no range of numbers", crate::words::name(text))),
    }
}

fn write_names(pieces: &[NamePiece<'_>], begun: &mut String, each: &mut impl FnMut(String)) {
    let Some((piece, rest)) = pieces.split_first() else {
        each(begun.clone());
        return;
    };
    let size = begun.len();
    match piece {
        NamePiece::Text(text) => {
            begun.push_str(text);
            write_names(rest, begun, each);
            begun.truncate(size);
        }
        NamePiece::Numbers(ranges) => {
            for (first, last, digits) in ranges {
                for number in *first..=*last {
                    begun.push_str(&format!("{number:0digits$}"));
                    write_names(rest, begun, each);
                    begun.truncate(size);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: lists are expanded as Slurm does it, and what is no list is refused without harm.
    #[test]
    fn lists() {
        assert_eq!(names("n[1-3,07],login").unwrap(), ["n1", "n2", "n3", "n07", "login"]);
        assert_eq!(names("r[1-2]n[09-10]x").unwrap(), ["r1n09x", "r1n10x", "r2n09x", "r2n10x"]);
        assert_eq!(names("").unwrap(), Vec::<String>::new());
        for text in ["n[1-", "n]1[", "n[[1]]", "n[3-1]", "n[a-b]", "n[]", "n[1-99999999999999999999]"] {
            assert!(names(text).is_err() && check(text).is_err(), "{text}");
        }
        for text in ["n[0-18446744073709551615]", "n[0-99999][0-99999][0-99999]", "n[0-999999],n[0-5]"] {
            assert!(names(text).unwrap_err().contains("more than"), "{text}");
        }
    }
}
