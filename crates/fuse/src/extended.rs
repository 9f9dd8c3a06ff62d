//! Extended attributes of nodes.

use crate::errno::Errno;
use crate::protocol::{Getxattr, Header, Input, Setxattr};
use crate::serve::{Answer, Handled, Work, file_of};
use client::Status;

const SELINUX_LABEL: &[u8] = b"security.selinux";

impl Work<'_> {
    /// What a caller gets who has room for so many bytes, or for none and asks how many there are.
    fn sized(&mut self, value: &[u8], room: u32) -> Handled {
        if room == 0 {
            self.output.u32(value.len() as u32).u32(0);
        } else if value.len() > room as usize {
            return Err(Errno(libc::ERANGE));
        } else {
            self.output.bytes(value);
        }
        Ok(Answer::Output)
    }

    pub async fn get_extended(&mut self, header: &Header, mut input: Input<'_>) -> Handled {
        let Getxattr { size, .. } = Getxattr::parse(&mut input)?;
        let (node, name) = (file_of(header.node), input.name()?);
        let value = self.for_caller(header, async |files| files.get_extended_id(node, name).await).await;
        match value {
            // ls(1) asks for the label of each file, unless it is told once that the file system has none.
            Err(error) if error.status == Status::NoAttribute && name == SELINUX_LABEL => Err(Errno(libc::EOPNOTSUPP)),
            value => self.sized(&value?, size),
        }
    }

    pub async fn list_extended(&mut self, header: &Header, mut input: Input<'_>) -> Handled {
        let Getxattr { size, .. } = Getxattr::parse(&mut input)?;
        let node = file_of(header.node);
        let names = self.for_caller(header, async |files| files.list_extended_id(node).await).await?;
        self.sized(&names, size)
    }

    pub async fn set_extended(&mut self, header: &Header, mut input: Input<'_>) -> Handled {
        let request = Setxattr::parse(&mut input)?;
        let (node, name) = (file_of(header.node), input.name()?);
        let value = input.take(request.size as usize)?;
        let known = [
            (libc::XATTR_CREATE as u32, client::EXTENDED_CREATE),
            (libc::XATTR_REPLACE as u32, client::EXTENDED_REPLACE),
        ];
        let flags =
            known.iter().filter(|(theirs, _)| request.flags & theirs != 0).fold(0, |flags, (_, ours)| flags | ours);
        self.for_caller(header, async |files| files.set_extended_id(node, name, value, flags).await).await?;
        Ok(Answer::Output)
    }

    pub async fn remove_extended(&mut self, header: &Header, mut input: Input<'_>) -> Handled {
        let (node, name) = (file_of(header.node), input.name()?);
        self.for_caller(header, async |files| files.remove_extended_id(node, name).await).await?;
        Ok(Answer::Output)
    }
}
