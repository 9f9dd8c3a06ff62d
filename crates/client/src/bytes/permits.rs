//! Permits for large bodies of collective calls, of the servers that they go to or come from.

use crate::error::{Attempt, RequestError};
use crate::open_files::file::File;
use crate::servers::Servers;
use reactor::Class;
use wire::messages::{AwaitPermitReply, AwaitPermitRequest, ReturnPermitRequest};
use wire::{Decode, Operation};

/// One large body's; given back when it is dropped.
pub(crate) struct Permit<'s> {
    servers: &'s Servers,
    server: u32,
    number: u64,
}

impl Servers {
    /// Waits for a permit for a body of `size` bytes, if this file's bodies need one.
    pub(crate) async fn await_permit(&self, file: &File, server: u32, size: usize) -> Attempt<Option<Permit<'_>>> {
        if size <= self.options.bounds.free_body_size || !file.is_throttled() {
            return Ok(None);
        }
        let number = self.permit_count.get() + 1;
        self.permit_count.set(number);
        let permit = Permit { servers: self, server, number };
        let operation = Operation::AwaitPermit;
        loop {
            let reply = self.ask(server, operation, &AwaitPermitRequest { number }).await?;
            let reply = AwaitPermitReply::from_bytes(&reply.params)
                .map_err(|malformed| RequestError::malformed(operation, server, malformed))?;
            if reply.is_granted {
                return Ok(Some(permit));
            }
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let Some(servers) = self.servers.own.upgrade() else { return };
        let (server, number) = (self.server, self.number);
        self.servers.reactor.spawn(Class::Metadata, async move {
            // What is not given back ends by itself.
            let _: Attempt<_> = servers.ask(server, Operation::ReturnPermit, &ReturnPermitRequest { number }).await;
        });
    }
}
