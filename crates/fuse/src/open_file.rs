//! Open files: reads and writes, and whatever else goes by a handle.
//!
//! The kernel keeps no pages of what is read and written (direct I/O), so that every mount sees what any other has
//! written; pages of mapped files are the exception. Several reads and writes of one file may be under way at once.

use crate::device::TRANSFER_SIZE_MAX;
use crate::errno::Errno;
use crate::port::Message;
use crate::protocol::{
    CopyRange, FSYNC_DATA, Fallocate, Flush, Fsync, Header, Input, Lseek, Open, Read, Release, WRITE_CACHE,
    WRITE_KILL_SUIDGID, Write, opcode,
};
use crate::serve::{Answer, Handled, Work, file_of};
use client::{Allocation, Credentials, File, OpenHow};
use fuser::FopenFlags;
use std::sync::Arc;

/// What the kernel is told of every open file.
pub const OPEN_FLAGS: u32 = FopenFlags::FOPEN_DIRECT_IO.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES).bits();

/// Set by the kernel when a file is opened to be executed.
const FOR_EXECUTION: u32 = 0o40;

/// A file that is open in some process.
#[derive(Debug)]
pub struct OpenFile {
    pub file: File,
    /// Who opened it. What is done through it is done on that user's behalf.
    pub user: Credentials,
}

impl OpenFile {
    pub fn new(file: File, user: Credentials) -> OpenFile {
        OpenFile { file, user }
    }
}

/// What the flags of open(2) mean, and the rights (as in `access`) that they take.
pub fn how_to_open(flags: u32) -> Result<(OpenHow, u8), Errno> {
    let has = |flag: i32| flags & flag as u32 != 0;
    let (read, write) = match flags as i32 & libc::O_ACCMODE {
        libc::O_RDONLY => (true, false),
        libc::O_WRONLY => (false, true),
        libc::O_RDWR => (true, true),
        _ => return Err(Errno(libc::EINVAL)),
    };
    let truncate = has(libc::O_TRUNC);
    let reading =
        if flags & FOR_EXECUTION != 0 { wire::credentials::access::EXECUTE } else { wire::credentials::access::READ };
    let rights = if read { reading } else { 0 } | if write || truncate { wire::credentials::access::WRITE } else { 0 };
    Ok((OpenHow { read, write, truncate, append: has(libc::O_APPEND), ..OpenHow::default() }, rights))
}

impl Work<'_> {
    fn file(&self, handle: u64) -> Result<Arc<OpenFile>, Errno> {
        self.mounted.files.get(handle)
    }

    pub async fn open(&mut self, header: &Header, mut input: Input<'_>) -> Handled {
        let Open { flags, .. } = Open::parse(&mut input)?;
        let node = file_of(header.node);
        let (how, rights) = how_to_open(flags)?;
        let opened = self.for_caller(header, async |files| files.open_id(node, &how, rights).await).await;
        let (opened, _) = opened?;
        let handle = self.mounted.files.insert(OpenFile::new(opened, self.mounted.callers.of(header)));
        self.output.opened(handle, OPEN_FLAGS);
        Ok(Answer::Output)
    }

    pub async fn read(&mut self, message: &mut Message) -> Handled {
        let request = Read::parse(&mut message.input())?;
        let open = self.file(request.handle)?;
        let size = (request.size as usize).min(TRANSFER_SIZE_MAX);
        let place = message.place(size);
        let read =
            self.run_as(&open.user, async |files| files.read_at(&open.file, place, request.offset).await).await?;
        Ok(Answer::Data(read))
    }

    pub async fn write(&mut self, header: &Header, mut input: Input<'_>) -> Handled {
        let request = Write::parse(&mut input)?;
        let bytes = input.take(request.size as usize)?;
        let open = self.file(request.handle)?;
        let append = request.flags & libc::O_APPEND as u32 != 0 && request.write_flags & WRITE_CACHE == 0;
        let write = async |files: &client::FileSystem| match append {
            true => files.append(&open.file, bytes).await.map(|_| bytes.len()),
            false => files.write_at(&open.file, bytes, request.offset).await,
        };
        // Whoever was handed the descriptor of the superuser may not do all that he may.
        let loses_bits = request.write_flags & WRITE_KILL_SUIDGID != 0 && open.user.is_root();
        let written = match loses_bits {
            true => self.run_as(&self.mounted.callers.of(header), write).await?,
            false => self.run_as(&open.user, write).await?,
        };
        self.output.u32(written as u32).u32(0);
        Ok(Answer::Output)
    }

    /// Some process closes a descriptor: its locks of ranges go, and it is told what went wrong unnoticed.
    pub async fn flush(&mut self, header: &Header, mut input: Input<'_>) -> Handled {
        let request = Flush::parse(&mut input)?;
        let open = self.file(request.handle)?;
        self.release_owner(file_of(header.node), &open, request.lock_owner).await;
        self.run(async |files| files.late_error(&open.file).await).await?;
        Ok(Answer::Output)
    }

    /// The last descriptor of an open file is gone, and with it its locks.
    pub async fn release(&mut self, mut input: Input<'_>) -> Handled {
        let request = Release::parse(&mut input)?;
        let open = self.mounted.files.remove(request.handle)?;
        self.release_owners_of(request.handle, &open).await;
        self.run(async |files| files.close(&open.file).await).await;
        Ok(Answer::Output)
    }

    pub async fn synchronise(&mut self, mut input: Input<'_>) -> Handled {
        let request = Fsync::parse(&mut input)?;
        // Contents and attributes of a file reach the medium together.
        let _data_alone = request.flags & FSYNC_DATA != 0;
        let open = self.file(request.handle)?;
        self.run(async |files| files.synchronise(&open.file).await).await?;
        Ok(Answer::Output)
    }

    pub async fn synchronise_all(&mut self) -> Handled {
        self.run(async |files| files.synchronise_all().await).await?;
        Ok(Answer::Output)
    }

    pub async fn allocate(&mut self, mut input: Input<'_>) -> Handled {
        let request = Fallocate::parse(&mut input)?;
        let open = self.file(request.handle)?;
        let mode = request.mode as i32;
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let kind = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => Allocation::Reserve,
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => Allocation::Punch,
            libc::FALLOC_FL_ZERO_RANGE => Allocation::Zero,
            _ => return Err(Errno(libc::EOPNOTSUPP)),
        };
        let allocate = async |files: &client::FileSystem| {
            files.allocate(&open.file, kind, keep_size, request.offset, request.size).await
        };
        self.run_as(&open.user, allocate).await?;
        Ok(Answer::Output)
    }

    /// lseek(2) to data or to a hole; the kernel does the others itself.
    pub async fn seek(&mut self, mut input: Input<'_>) -> Handled {
        let request = Lseek::parse(&mut input)?;
        let open = self.file(request.handle)?;
        let offset = request.offset;
        let found = match request.whence as i32 {
            libc::SEEK_DATA => self.run(async |files| files.seek_data(&open.file, offset).await).await?,
            libc::SEEK_HOLE => self.run(async |files| files.seek_hole(&open.file, offset).await).await?,
            _ => return Err(Errno(libc::EINVAL)),
        };
        self.output.u64(found);
        Ok(Answer::Output)
    }

    pub async fn copy_range(&mut self, header: &Header, mut input: Input<'_>) -> Handled {
        let request = CopyRange::parse(&mut input)?;
        if request.flags != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let (source, target) = (self.file(request.handle)?, self.file(request.target_handle)?);
        // The older form of the request has 32 bits for what was copied.
        let wide = header.opcode == opcode::COPY_FILE_RANGE_64;
        let size = if wide { request.size } else { request.size.min(1 << 31) };
        let (from, to) = (request.offset, request.target_offset);
        let copy =
            async |files: &client::FileSystem| files.copy_range(&source.file, from, &target.file, to, size).await;
        let copied = self.run_as(&target.user, copy).await?;
        self.output.u64(copied);
        Ok(Answer::Output)
    }
}
