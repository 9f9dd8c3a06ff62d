//! Open files as a few bytes: a process that is handed them has the file open too, and asks no server for it.
//!
//! What was imported is registered nowhere. It rests on the exporter's open: while that lasts, the file is there also
//! without a name, as its rights were checked then. Afterwards a file that has lost its last name is stale to whoever
//! has imported it. Closing tells the home where sizes are to be settled in, and else nobody.

use crate::error::Error;
use crate::filesystem::FileSystem;
use crate::open_files::file::{File, OpenHow};
use wire::{Decode, Encode, FileId, Kind, Layout, Status, message};

/// The first bytes, with the version of what follows.
const MAGIC: u32 = u32::from_le_bytes(*b"TBX1");
const READ: u8 = 1;
const WRITE: u8 = 2;
const APPEND: u8 = 4;

message! {
    /// What the bytes say; a CRC-32C of them comes last.
    pub struct ExportedFile {
        pub magic: u32,
        pub cluster: u128,
        /// The exporter's.
        pub session: u64,
        pub file: FileId,
        pub layout: Layout,
        pub truncate_generation: u32,
        pub access: u8,
        /// As errors that came to light later are told from older ones: when it was opened, and the server of its name.
        pub opened_at: i64,
        pub name_server: Option<u32>,
    }
}

fn unfit(words: &str) -> Error {
    Error::new(Status::Invalid, words)
}

impl FileSystem {
    /// An open file as bytes, some 90 of them, for `import` in other processes of any host. Errors: `IsDirectory`,
    /// `Invalid` for what is neither file nor directory.
    pub fn export(&self, file: &File) -> Result<Vec<u8>, Error> {
        match file.kind {
            Kind::File => {}
            Kind::Directory => return Err(Error::new(Status::IsDirectory, "directories are not exported")),
            _ => return Err(unfit("only files are exported")),
        }
        let flags = [(file.read, READ), (file.write, WRITE), (file.append, APPEND)];
        let exported = ExportedFile {
            magic: MAGIC,
            cluster: self.cluster().id,
            session: file.session(),
            file: file.id,
            layout: file.layout,
            truncate_generation: file.known_size().truncate_generation,
            access: flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum(),
            opened_at: file.opened_at(),
            name_server: file.name_server(),
        };
        let mut bytes = exported.to_bytes();
        crc32c::crc32c(&bytes).encode(&mut bytes);
        Ok(bytes)
    }

    /// A file that another process has open and has exported. See the module's head for how long it stays.
    ///
    /// Errors: `Invalid` for bytes that are not whole, of another version, or of another cluster.
    pub fn import(&self, bytes: &[u8]) -> Result<File, Error> {
        let (bytes, sum) = bytes.split_last_chunk().ok_or_else(|| unfit("this is no exported file: too short"))?;
        if bytes.first_chunk().is_some_and(|magic| u32::from_le_bytes(*magic) != MAGIC) {
            return Err(unfit("this is no exported file, or one of another version of Tabane"));
        }
        if u32::from_le_bytes(*sum) != crc32c::crc32c(bytes) {
            return Err(unfit("an exported file has been changed on its way"));
        }
        let exported = ExportedFile::from_bytes(bytes).map_err(|malformed| unfit(malformed.0))?;
        if exported.cluster != self.cluster().id {
            return Err(unfit("the file was exported by a process of another cluster"));
        }
        let has = |flag: u8| exported.access & flag != 0;
        let how = OpenHow { read: has(READ), write: has(WRITE), append: has(APPEND), ..OpenHow::default() };
        let file = File::imported(&exported, &how, self.sessions_lost());
        file.note_opened(exported.opened_at, exported.name_server);
        Ok(file)
    }
}
