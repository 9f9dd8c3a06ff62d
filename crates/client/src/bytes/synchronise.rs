//! fsync and its kin: what was acknowledged is made to survive power loss, as far as the servers' media can, and errors
//! that were not told yet are.
//!
//! All servers that this handle has written to are asked at once, then the file's home and the server of the name that
//! it was opened by, which know the file's size and its name; last those that only others have written to.

use crate::error::{Attempt, Error, RequestError, Result};
use crate::filesystem::FileSystem;
use crate::open_files::file::File;
use crate::servers::join::join_all;
use std::collections::BTreeSet;
use wire::messages::{SynchroniseReply, SynchroniseRequest};
use wire::{Decode, FileId, Kind, Operation};

impl FileSystem {
    /// Makes a file's contents, its attributes and its name survive power loss; of a directory, its entries. Where the
    /// servers want that (`--fsync-backing`), it is in the backing directory as well then.
    ///
    /// Errors: `Io` and others when it can't be done, when data that was acknowledged earlier was lost, or when the
    /// file can't be carried to the backing directory; each such error is told once to each handle.
    pub async fn synchronise(&self, file: &File) -> Result<()> {
        let result = match file.kind {
            Kind::Directory => self.ask_all_to_synchronise().await,
            _ => self.synchronise_file(file).await.map_err(|request_error| request_error.about_file(file.id)),
        };
        // What a shortened write met before is the older story.
        if let Some(error) = file.take_pending_error() {
            return Err(error);
        }
        if result? {
            return self.carry_told(file).await;
        }
        Ok(())
    }

    /// Has it carried; that it can't be is told once, also where its home tells it.
    async fn carry_told(&self, file: &File) -> Result<()> {
        let Err(error) = self.carry(file.id).await else { return Ok(()) };
        let home = self.servers.home_of(file.id).map_err(|request_error| request_error.about_file(file.id))?;
        let told = self.servers.ask_late_error(home, file).await;
        // Data that was lost is the worse news; the other one is told next.
        Err(told.filter(|told| told.is_of_medium).map_or(error, |told| told.error.about_file(file.id)))
    }

    /// Makes everything that all servers have acknowledged survive power loss.
    pub async fn synchronise_all(&self) -> Result<()> {
        self.ask_all_to_synchronise().await.map(drop)
    }

    /// The same. Whether what is synced is to be carried to the backing directory.
    async fn ask_all_to_synchronise(&self) -> Result<bool> {
        let mut carries = false;
        let asked = (0..self.servers.server_count()).map(|server| self.ask_to_synchronise(server, None));
        let results = join_all(asked).await;
        for (server, result) in results.into_iter().enumerate() {
            let reply = result.map_err(|request_error| match request_error {
                RequestError::Server(failure) => Error::new(failure.status, failure.to_string()),
                RequestError::Local(status, words) => Error::new(status, format!("server {server}: {words}")),
            })?;
            carries |= reply.carries;
        }
        Ok(carries)
    }

    /// Whether the file is to be carried to the backing directory.
    async fn synchronise_file(&self, file: &File) -> Attempt<bool> {
        let home = self.servers.home_of(file.id)?;
        let written_bits = file.take_written_servers();
        let written = (0..self.servers.server_count())
            .filter(|server| *server != home && written_bits >> (server % u64::BITS) & 1 == 1)
            .collect::<BTreeSet<u32>>();
        let result = self.synchronise_servers(file, home, written).await;
        if result.is_err() {
            file.note_written_servers(written_bits);
        }
        result
    }

    async fn synchronise_servers(&self, file: &File, home: u32, written: BTreeSet<u32>) -> Attempt<bool> {
        let mut first = Ok(false);
        self.ask_some(file, written.iter().copied(), &mut first).await;
        let last = [Some(home), file.name_server().filter(|server| *server != home && !written.contains(server))];
        let holders = self.ask_some(file, last.into_iter().flatten(), &mut first).await;
        let others: BTreeSet<u32> =
            holders.into_iter().filter(|server| *server != home && !written.contains(server)).collect();
        let others = others.into_iter().filter(|server| *server < self.servers.server_count());
        self.ask_some(file, others, &mut first).await;
        first
    }

    /// Asks some servers at once. What goes wrong first stays in `first`, else whether one of them wants the file
    /// carried; the holders that are known come back.
    async fn ask_some(&self, file: &File, servers: impl Iterator<Item = u32>, first: &mut Attempt<bool>) -> Vec<u32> {
        let mut holders = Vec::new();
        for reply in join_all(servers.map(|server| self.ask_to_synchronise(server, Some(file)))).await {
            match reply {
                Ok(reply) => {
                    if let Ok(carries) = first {
                        *carries |= reply.carries;
                    }
                    holders.extend(reply.holders);
                }
                Err(request_error) if first.is_ok() => *first = Err(request_error),
                Err(_) => {}
            }
        }
        holders
    }

    async fn ask_to_synchronise(&self, server: u32, file: Option<&File>) -> Attempt<SynchroniseReply> {
        let operation = Operation::Synchronise;
        let request = match file {
            Some(file) => file.synchronise_request(server),
            None => SynchroniseRequest { file: FileId::default(), seen: 0, opened_at: 0, is_question: false },
        };
        let reply = self.servers.ask(server, operation, &request).await?;
        let reply = SynchroniseReply::from_bytes(&reply.params)
            .map_err(|malformed| RequestError::malformed(operation, server, malformed))?;
        match file.and_then(|file| file.take_late_error(server, &reply)) {
            Some(late_error) => Err(late_error.error),
            None => Ok(reply),
        }
    }
}
