//! Who may see the page, and what they get.
//!
//! Invariants: (1) nothing is answered but words to who has not the token; (2) a request that names a host or an origin
//! which is not this server is refused, so that no page of elsewhere reaches it through somebody's browser; (3) no
//! connection holds up another one, and there are at most [`CONNECTIONS_MAX`] of them.

use super::http::{self, NoRequest, Request};
use crate::clock;
use crate::failure::{Failure, Outcome, io_words};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const CONNECTIONS_MAX: usize = 64;
/// Who takes nothing for this long is cut off.
const WRITE_TIME: Duration = Duration::from_secs(10);
/// How often a connection on which nothing happens is tried.
const PING_TIME: Duration = Duration::from_secs(15);
/// Columns of the picture of servers by time that a page begins with.
const HISTORY_MAX: usize = 120;
const TOKEN_SIZE: usize = 16;

const PAGE: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("page.js");
const STYLE: &str = include_str!("page.css");

/// The newest frame, and what a page that comes later has to know of those before.
pub struct Board {
    state: Mutex<BoardState>,
    changed: Condvar,
}

#[derive(Default)]
struct BoardState {
    number: u64,
    frame: Arc<str>,
    /// Of each frame its time, and what each server had to bear, by name.
    history: VecDeque<Value>,
}

impl Board {
    pub fn new() -> Board {
        Board { state: Mutex::default(), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, BoardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn publish(&self, frame: &str) {
        let column = column_of(frame);
        let mut state = self.state();
        state.number += 1;
        state.frame = frame.into();
        state.history.push_back(column);
        if state.history.len() > HISTORY_MAX {
            state.history.pop_front();
        }
        drop(state);
        self.changed.notify_all();
    }

    /// The newest frame with its number, if it is another one than `seen`, or comes within the time.
    fn newer(&self, seen: u64) -> Option<(u64, Arc<str>)> {
        let state = self.state();
        let is_old = |state: &mut BoardState| state.number == seen;
        let waited = self.changed.wait_timeout_while(state, PING_TIME, is_old);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (state.number != seen).then(|| (state.number, state.frame.clone()))
    }

    fn history(&self) -> (u64, String) {
        let state = self.state();
        (state.number, json!({ "columns": state.history }).to_string())
    }
}

/// What the picture needs of a frame.
fn column_of(frame: &str) -> Value {
    let frame: Value = serde_json::from_str(frame).unwrap_or_default();
    let burden = |server: &Value| match &server["depth"] {
        Value::Null => server["wait"].clone(),
        depth => depth.clone(),
    };
    let servers = frame["servers"].as_array().into_iter().flatten();
    let values: serde_json::Map<String, Value> =
        servers.filter_map(|server| Some((server["name"].as_str()?.to_owned(), burden(server)))).collect();
    json!({ "time": frame["time"], "values": values })
}

pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    token: String,
}

impl Server {
    /// `listen` is an address, with or without a port.
    pub fn bind(listen: &str) -> Outcome<Server> {
        let address = address_of(listen)
            .ok_or_else(|| Failure::usage(format!("{listen}: an address is wanted, such as 127.0.0.1:8080")))?;
        let listener = TcpListener::bind(address).map_err(|error| {
            Failure::failed(match error.kind() {
                ErrorKind::AddrInUse => format!("{address}: something else listens there; name another port, or none"),
                _ => format!("{address}: {}", io_words(&error)),
            })
        })?;
        let address = listener.local_addr().map_err(|error| Failure::failed(io_words(&error)))?;
        Ok(Server { listener, address, token: token()? })
    }

    pub fn announce(&self) {
        let (address, port) = (self.address, self.address.port());
        let mut lines = vec![format!("http://{address}/?token={}", self.token)];
        if address.ip().is_loopback() {
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            let host = if host.trim().is_empty() { "HOST" } else { host.trim() };
            lines.push(format!("from elsewhere: ssh -L {port}:{address} {host}, then the same URL"));
        } else {
            lines.push(
                "others on this network reach it too; the token is all that keeps them out, and travels openly".into(),
            );
        }
        lines.push("Ctrl-C ends it".to_owned());
        // Who reads these words no more may still have the page open.
        let _ = std::io::stdout().write_all((lines.join("\n") + "\n").as_bytes());
    }

    pub fn serve(self, board: &Arc<Board>) -> Outcome {
        let server = Arc::new(self);
        let count = Arc::new(AtomicUsize::new(0));
        loop {
            let mut stream = match server.listener.accept() {
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
            let (server, board) = (server.clone(), board.clone());
            super::start("connection", move || {
                // Who has gone has gone.
                let _ = server.connection(&mut stream, &board);
                drop(held);
            })?;
        }
    }

    fn connection(&self, stream: &mut TcpStream, board: &Board) -> std::io::Result<()> {
        let request = match http::read(stream, clock::monotonic) {
            Ok(request) => request,
            Err(NoRequest::Gone) => return Ok(()),
            Err(NoRequest::Bad) => {
                return words(stream, "400 Bad Request", "this is no request that is understood here");
            }
        };
        if let Err(why) = self.check(&request) {
            return words(stream, "403 Forbidden", why);
        }
        if request.method != "GET" {
            return words(
                stream,
                "405 Method Not Allowed",
                "there is nothing to be changed here; only GET is answered",
            );
        }
        let script = "text/javascript; charset=utf-8";
        match request.path.as_str() {
            "/" => {
                let page = PAGE.replace("TOKEN", &self.token);
                http::answer(stream, "200 OK", "text/html; charset=utf-8", page.as_bytes())
            }
            "/page.js" => http::answer(stream, "200 OK", script, SCRIPT.as_bytes()),
            "/page.css" => http::answer(stream, "200 OK", "text/css; charset=utf-8", STYLE.as_bytes()),
            "/frame" => {
                let frame = board.state().frame.clone();
                http::answer(stream, "200 OK", "application/json", frame.as_bytes())
            }
            "/events" => self.events(stream, board),
            _ => words(stream, "404 Not Found", "there is no such page; the one there is, is /"),
        }
    }

    /// Whether the request may be answered; else words that say why not.
    fn check(&self, request: &Request) -> Result<(), &'static str> {
        let is_host = |host: &str| host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback() || ip == self.address.ip());
        let any = self.address.ip().is_unspecified();
        let is_ours = |name: &str| {
            let host = host_of(name);
            host == "localhost" || is_host(host) || any && host.parse::<IpAddr>().is_ok()
        };
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
        let given = request.query.split('&').find_map(|part| part.strip_prefix("token="));
        match given.is_some_and(|given| is_equal(given.as_bytes(), self.token.as_bytes())) {
            true => Ok(()),
            false => Err("the token is missing or wrong; use the URL that was printed when this was started"),
        }
    }

    /// Frames, until the other side has gone or takes none any more.
    fn events(&self, stream: &mut TcpStream, board: &Board) -> std::io::Result<()> {
        http::begin_events(stream)?;
        let (mut seen, history) = board.history();
        write!(stream, "event: history\ndata: {history}\n\n")?;
        // The frame that the history ends with.
        seen = seen.saturating_sub(1);
        loop {
            match board.newer(seen) {
                Some((number, frame)) => {
                    write!(stream, "id: {number}\ndata: {frame}\n\n")?;
                    seen = number;
                }
                None => stream.write_all(b": still here\n\n")?,
            }
        }
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

fn words(stream: &mut TcpStream, status: &str, words: &str) -> std::io::Result<()> {
    http::answer(stream, status, "text/plain; charset=utf-8", format!("{words}\n").as_bytes())
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

/// In a time that tells nothing of where they differ.
fn is_equal(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |differs, (one, other)| differs | (one ^ other)) == 0
}

fn token() -> Outcome<String> {
    let mut bytes = [0; TOKEN_SIZE];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| Failure::failed(format!("/dev/urandom: {}", io_words(&error))))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
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
        assert!(is_equal(b"ab", b"ab") && !is_equal(b"ab", b"ac") && !is_equal(b"ab", b"abc"));
    }

    /// Goal: a page that comes late knows the last frames, and their number is bounded.
    #[test]
    fn history() {
        let board = Board::new();
        for number in 0..200 {
            let server = json!({ "name": "s", "depth": null, "wait": number });
            board.publish(&json!({ "time": number, "servers": [server] }).to_string());
        }
        let (number, history) = board.history();
        let history: Value = serde_json::from_str(&history).unwrap();
        let columns = history["columns"].as_array().unwrap();
        assert_eq!((number, columns.len()), (200, HISTORY_MAX));
        assert_eq!(columns[HISTORY_MAX - 1], json!({ "time": 199, "values": { "s": 199 } }));
        assert_eq!(board.newer(199).map(|(number, _)| number), Some(200));
    }
}
