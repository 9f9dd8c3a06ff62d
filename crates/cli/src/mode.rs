//! Modes as chmod(1) takes them: octal, or symbolic such as `u=rwx,go-w,a+X`.

/// A change of permission bits.
#[derive(Debug, Clone, PartialEq)]
pub enum ModeChange {
    Octal(u32),
    Clauses(Vec<Clause>),
}

/// What one operator does.
#[derive(Debug, Clone, PartialEq)]
pub struct Clause {
    /// Whose bits: a mask of 0700, 0070 and 0007; nobody named means all, but for the umask.
    who: u32,
    everybody: bool,
    operator: u8,
    what: Vec<u8>,
}

const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
const STICKY: u32 = 0o1000;

impl ModeChange {
    /// Reads a mode; nothing when it is none.
    pub fn parse(text: &str) -> Option<ModeChange> {
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777).map(ModeChange::Octal);
        }
        let mut clauses = Vec::new();
        for part in text.split(',') {
            parse_part(part.as_bytes(), &mut clauses)?;
        }
        Some(ModeChange::Clauses(clauses))
    }

    /// The mode that an inode of mode `mode` gets. Of a directory, an octal mode leaves setuid and setgid as they are
    /// unless it sets them, as with GNU chmod.
    pub fn apply(&self, mode: u32, is_directory: bool, umask: u32) -> u32 {
        match self {
            ModeChange::Octal(new) if is_directory => new | (mode & (SETUID | SETGID)),
            ModeChange::Octal(new) => *new,
            ModeChange::Clauses(clauses) => {
                clauses.iter().fold(mode, |mode, clause| clause.apply(mode, is_directory, umask))
            }
        }
    }
}

fn parse_part(part: &[u8], clauses: &mut Vec<Clause>) -> Option<()> {
    let mut who = 0;
    let start = part.iter().position(|byte| b"+-=".contains(byte))?;
    for byte in &part[..start] {
        who |= match byte {
            b'u' => 0o700,
            b'g' => 0o070,
            b'o' => 0o007,
            b'a' => 0o777,
            _ => return None,
        };
    }
    let everybody = who == 0;
    let mut rest = &part[start..];
    while let Some((operator, after)) = rest.split_first() {
        let end = after.iter().position(|byte| b"+-=".contains(byte)).unwrap_or(after.len());
        let what = &after[..end];
        let copies = what.len() == 1 && b"ugo".contains(&what[0]);
        if !copies && !what.iter().all(|byte| b"rwxXst".contains(byte)) {
            return None;
        }
        let who = if everybody { 0o777 } else { who };
        clauses.push(Clause { who, everybody, operator: *operator, what: what.to_vec() });
        rest = &after[end..];
    }
    Some(())
}

impl Clause {
    fn apply(&self, mode: u32, is_directory: bool, umask: u32) -> u32 {
        let mut bits = 0;
        for byte in &self.what {
            bits |= match byte {
                b'r' => 0o444,
                b'w' => 0o222,
                b'x' => 0o111,
                b'X' if is_directory || mode & 0o111 != 0 => 0o111,
                b'X' => 0,
                b'u' => (mode >> 6 & 7) * 0o111,
                b'g' => (mode >> 3 & 7) * 0o111,
                b'o' => (mode & 7) * 0o111,
                _ => 0,
            };
        }
        bits &= self.who;
        if self.everybody {
            bits &= !umask;
        }
        let (for_user, for_group) = (self.who & 0o700 != 0, self.who & 0o070 != 0);
        let special = |wanted: bool, bit: u32| if wanted { bit } else { 0 };
        let runs_as = special(for_user, SETUID) | special(for_group, SETGID);
        bits |= special(self.what.contains(&b's'), runs_as);
        bits |= special(self.what.contains(&b't') && self.who & 0o777 == 0o777, STICKY);
        match self.operator {
            b'+' => mode | bits,
            b'-' => mode & !bits,
            _ => {
                // Directories keep setuid and setgid unless these are named.
                let kept = if is_directory { 0 } else { runs_as };
                let sticky = if self.who == 0o777 { STICKY } else { 0 };
                mode & !(self.who | kept | sticky) | bits
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: modes lead to what chmod(1) makes of them.
    #[test]
    fn modes() {
        let cases = [
            ("640", 0o777, false, 0o640),
            ("0755", 0o2700, true, 0o2755),
            ("u=rwx,go=rx", 0o000, false, 0o755),
            ("go-w", 0o666, false, 0o644),
            ("+w", 0o444, false, 0o644),
            ("a+w", 0o444, false, 0o666),
            ("a+X", 0o644, false, 0o644),
            ("a+X", 0o644, true, 0o755),
            ("u+X", 0o645, false, 0o745),
            ("g=u", 0o740, false, 0o770),
            ("u+s,g+s", 0o755, false, 0o6755),
            ("u-s", 0o6755, false, 0o2755),
            ("+t", 0o777, true, 0o1777),
            ("o=", 0o1777, true, 0o1770),
            ("u+r-w", 0o200, false, 0o400),
            ("=", 0o777, false, 0o000),
        ];
        for (text, before, is_directory, after) in cases {
            let change = ModeChange::parse(text).expect(text);
            let made = change.apply(before, is_directory, 0o022);
            assert_eq!(made, after, "{text} of {before:o} is {made:o}");
        }
        for wrong in ["", "rwx", "u", "z+r", "u+q", "u+ug", "8", "77777", "u+r,,"] {
            assert_eq!(ModeChange::parse(wrong), None, "{wrong}");
        }
    }
}
