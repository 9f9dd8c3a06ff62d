//! Names of our own in directories behind: of files that are being written, and of those that have to give way. All
//! begin with `.tabane-` and the cluster's id, and nobody sees them here.

use crate::core::Core;
use wire::FileId;

const PREFIX: &[u8] = b".tabane-";
const PARKED: &[u8] = b"-parked";

/// What a hidden name says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HiddenName {
    /// The lower half of the id of the cluster that it belongs to.
    pub cluster: u64,
    /// Whether it is one that gave way. It is whole, and may be the only one there is of it; any other is half written,
    /// or has its name in a moment.
    pub is_parked: bool,
}

impl HiddenName {
    /// `None` for a name that is none of any cluster.
    pub fn of(name: &[u8]) -> Option<HiddenName> {
        let rest = name.strip_prefix(PREFIX)?;
        let (rest, is_parked) = rest.strip_suffix(PARKED).map_or((rest, false), |rest| (rest, true));
        let (cluster, file) = (rest.get(..16)?, rest.get(16..)?.strip_prefix(b"-")?);
        let number = |digits: &[u8]| {
            let is_written_so = digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
            let text = std::str::from_utf8(digits).ok().filter(|_| is_written_so)?;
            u64::from_str_radix(text, 16).ok()
        };
        number(file)?;
        Some(HiddenName { cluster: number(cluster)?, is_parked })
    }
}

impl Core {
    fn hidden_prefix(&self) -> Vec<u8> {
        [PREFIX, format!("{:016x}-", self.cluster.id as u64).as_bytes()].concat()
    }

    /// Whether a name is one of this cluster's own.
    pub(crate) fn is_hidden(&self, name: &[u8]) -> bool {
        name.starts_with(PREFIX) && name.starts_with(&self.hidden_prefix())
    }

    /// The name of a file while it is written.
    pub(super) fn hidden_name(&self, id: FileId) -> Vec<u8> {
        [self.hidden_prefix(), format!("{id}").into_bytes()].concat()
    }

    /// The name of a file that gives way to another one.
    pub(super) fn parked_name(&self, id: FileId) -> Vec<u8> {
        [self.hidden_name(id), PARKED.to_vec()].concat()
    }

    /// The name beside another one that somebody else has changed.
    pub(super) fn name_beside(&self, name: &[u8], id: FileId) -> Vec<u8> {
        let end = format!(".tabane-{id}").into_bytes();
        [&name[..name.len().min(255 - end.len())], &end].concat()
    }
}

/// The name beside another one for what somebody else has put there, and has that inode number.
pub fn name_of_theirs(name: &[u8], inode: u64) -> Vec<u8> {
    let end = format!(".tabane-theirs-{inode:x}").into_bytes();
    [&name[..name.len().min(255 - end.len())], &end].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_names_are_told_from_others() {
        let of = |text: &str| HiddenName::of(text.as_bytes());
        let own = |is_parked| Some(HiddenName { cluster: 0x0123_4567_89ab_cdef, is_parked });
        assert_eq!(of(".tabane-0123456789abcdef-4a"), own(false));
        assert_eq!(of(".tabane-0123456789abcdef-4a-parked"), own(true));
        for text in [
            ".tabane-",
            ".tabane-0123456789abcdef",
            ".tabane-0123456789abcdef-",
            ".tabane-0123456789abcdef--parked",
            ".tabane-0123456789abcdeF-4a",
            ".tabane-+123456789abcdef-4a",
            ".tabane-0123456789abcde-4a",
            ".tabane-0123456789abcdef-4a.bak",
            ".tabane-0123456789abcdef-11112222333344445",
            "x.tabane-0123456789abcdef-4a",
            "results.tabane-4a",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
