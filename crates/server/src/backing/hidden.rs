//! Names of our own in directories behind: of files that are being written, and of those that have to give way. All
//! begin with `.tabane-` and the cluster's id, and nobody sees them here.

use crate::core::Core;
use wire::FileId;

impl Core {
    fn hidden_prefix(&self) -> Vec<u8> {
        format!(".tabane-{:016x}-", self.cluster.id as u64).into_bytes()
    }

    /// Whether a name is one of this cluster's own.
    pub(super) fn is_hidden(&self, name: &[u8]) -> bool {
        name.starts_with(b".tabane-") && name.starts_with(&self.hidden_prefix())
    }

    /// The name of a file while it is written.
    pub(super) fn hidden_name(&self, id: FileId) -> Vec<u8> {
        [self.hidden_prefix(), format!("{id}").into_bytes()].concat()
    }

    /// The name of a file that gives way to another one.
    pub(super) fn parked_name(&self, id: FileId) -> Vec<u8> {
        [self.hidden_name(id), b"-parked".to_vec()].concat()
    }

    /// The name beside another one that somebody else has changed.
    pub(super) fn name_beside(&self, name: &[u8], id: FileId) -> Vec<u8> {
        let end = format!(".tabane-{id}").into_bytes();
        [&name[..name.len().min(255 - end.len())], &end].concat()
    }
}
