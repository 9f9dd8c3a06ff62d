//! A port at which pages are asked for.
//!
//! Invariants: (1) a request that names a host or an origin which is not this one is refused, so that no page of
//! elsewhere reaches it through somebody's browser; (2) no connection holds up another one, and there are at most
//! [`CONNECTIONS_MAX`] of them.

use super::{NoRequest, Request, answer};
use crate::clock;
use crate::failure::{Failure, Outcome, io_words};
use crate::threads;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const CONNECTIONS_MAX: usize = 64;
/// Who takes nothing for this long is cut off.
const WRITE_TIME: Duration = Duration::from_secs(10);

pub struct Listener {
    listener: TcpListener,
    pub address: SocketAddr,
}

impl Listener {
    /// `listen` is an address, with or without a port.
    pub fn bind(listen: &str) -> Outcome<Listener> {
        let address = address_of(listen)
            .ok_or_else(|| Failure::usage(format!("{listen}: an address is wanted, such as 127.0.0.1:8080")))?;
        let listener = TcpListener::bind(address).map_err(|error| {
            Failure::failed(match error.kind() {
                ErrorKind::AddrInUse => format!("{address}: something else listens there; name another port, or none"),
                _ => format!("{address}: {}", io_words(&error)),
            })
        })?;
        let address = listener.local_addr().map_err(|error| Failure::failed(io_words(&error)))?;
        Ok(Listener { listener, address })
    }

    /// Answers requests, each by a thread of its own, without end.
    pub fn serve(
        self,
        handle: impl Fn(&mut TcpStream, &Request) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Outcome {
        let (listener, handle) = (Arc::new(self), Arc::new(handle));
        let count = Arc::new(AtomicUsize::new(0));
        loop {
            let mut stream = match listener.listener.accept() {
                Ok((stream, _)) => stream,
                // Too many open files, or a connection that ended at once.
                Err(_) => {
                    clock::sleep_until(clock::monotonic() + Duration::from_millis(100));
                    continue;
                }
            };
            if stream.set_write_timeout(Some(WRITE_TIME)).is_err() {
                continue;
            }
            if count.load(Ordering::Acquire) >= CONNECTIONS_MAX {
                // It is about to be closed, with or without words.
                let _ =
                    words(&mut stream, "503 Service Unavailable", "there are too many connections; close other pages");
                continue;
            }
            let held = Held::new(&count);
            let (listener, handle) = (listener.clone(), handle.clone());
            threads::start("connection", move || {
                // Who has gone has gone.
                let _ = listener.connection(&mut stream, &*handle);
                drop(held);
            })?;
        }
    }

    fn connection(
        &self,
        stream: &mut TcpStream,
        handle: &dyn Fn(&mut TcpStream, &Request) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let request = match super::read(stream, clock::monotonic) {
            Ok(request) => request,
            Err(NoRequest::Gone) => return Ok(()),
            Err(NoRequest::Bad) => {
                return words(stream, "400 Bad Request", "this is no request that is understood here");
            }
        };
        match self.check(&request) {
            Ok(()) => handle(stream, &request),
            Err(why) => words(stream, "403 Forbidden", why),
        }
    }

    /// Whether the request is meant for this one; else words that say why not.
    fn check(&self, request: &Request) -> Result<(), &'static str> {
        let is_host = |host: &str| host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback() || ip == self.address.ip());
        // An address that others reach has names that only they know; no page on it rests on this.
        let any = !self.address.ip().is_loopback();
        let is_ours = |name: &str| any || host_of(name) == "localhost" || is_host(host_of(name));
        match &request.host {
            Some(host) if is_ours(host) => (),
            _ => return Err("the Host that was asked for is not this one; use the URL that was printed"),
        }
        if let Some(origin) = &request.origin {
            // Its own pages name the very host that they ask.
            let is_same = origin.strip_prefix("http://") == request.host.as_deref();
            if !is_same {
                return Err("a page of elsewhere (Origin) may not ask for this");
            }
        }
        Ok(())
    }
}

/// One of the connections that may be.
struct Held(Arc<AtomicUsize>);

impl Held {
    fn new(count: &Arc<AtomicUsize>) -> Held {
        count.fetch_add(1, Ordering::AcqRel);
        Held(count.clone())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

pub fn words(stream: &mut TcpStream, status: &str, words: &str) -> std::io::Result<()> {
    answer(stream, status, "text/plain; charset=utf-8", format!("{words}\n").as_bytes())
}

/// The answer to a request that wants to change something.
pub fn refuse_method(stream: &mut TcpStream) -> std::io::Result<()> {
    words(stream, "405 Method Not Allowed", "there is nothing to be changed here; only GET is answered")
}

/// What this machine calls itself.
pub fn own_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "HOST".to_owned() } else { name.trim().to_owned() }
}

/// The name without its port: `[::1]:80`, `localhost`.
fn host_of(name: &str) -> &str {
    if let Some(rest) = name.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    name.split(':').next().unwrap_or_default()
}

fn address_of(listen: &str) -> Option<SocketAddr> {
    let of_ip = |ip: IpAddr| SocketAddr::new(ip, 0);
    let listen = listen.replace("localhost", "127.0.0.1");
    listen.parse().ok().or_else(|| listen.parse().ok().map(of_ip))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: addresses and hosts are told apart from their ports, in all forms.
    #[test]
    fn addresses() {
        for (text, wanted) in [
            ("127.0.0.1", Some("127.0.0.1:0")),
            ("localhost:80", Some("127.0.0.1:80")),
            ("[::1]:80", Some("[::1]:80")),
            ("::1", Some("[::1]:0")),
            ("example.org", None),
            ("127.0.0.1:99999", None),
        ] {
            assert_eq!(address_of(text).map(|address| address.to_string()).as_deref(), wanted, "{text}");
        }
        assert_eq!(["[::1]:80", "localhost", "a.b:8"].map(host_of), ["::1", "localhost", "a.b"]);
    }
}
