//! The little of HTTP/1.1 that pages need: one GET a connection, of bounded size and time.

pub mod listener;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const HEAD_SIZE_MAX: usize = 8 << 10;
/// For the whole head of a request.
const HEAD_TIME: Duration = Duration::from_secs(5);

/// A request's head.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub query: String,
    pub host: Option<String>,
    pub origin: Option<String>,
}

/// Why there is none.
#[derive(Debug, PartialEq, Eq)]
pub enum NoRequest {
    /// It is too large, or is none.
    Bad,
    /// It did not come in time, or the connection ended.
    Gone,
}

pub fn read(stream: &mut TcpStream, now: impl Fn() -> Instant) -> Result<Request, NoRequest> {
    let deadline = now() + HEAD_TIME;
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(now());
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            return Err(NoRequest::Gone);
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return Err(NoRequest::Gone),
            Ok(size) => head.extend_from_slice(&buffer[..size]),
        }
        if head.len() > HEAD_SIZE_MAX {
            return Err(NoRequest::Bad);
        }
    }
    parse(&head).ok_or(NoRequest::Bad)
}

fn parse(head: &[u8]) -> Option<Request> {
    let text = std::str::from_utf8(head).ok()?;
    let mut lines = text.split("\r\n");
    let mut words = lines.next()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    if words.next().is_some() || !version.starts_with("HTTP/1.") || !target.starts_with('/') {
        return None;
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut request = Request { method: method.into(), path: path.into(), query: query.into(), ..Request::default() };
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':')?;
        let value = value.trim();
        let field = match name.to_ascii_lowercase().as_str() {
            "host" => &mut request.host,
            "origin" => &mut request.origin,
            _ => continue,
        };
        // Two of them would let one be checked and another be meant.
        if field.replace(value.to_owned()).is_some() {
            return None;
        }
    }
    Some(request)
}

/// What every answer says: nothing is kept, nothing is framed, nothing comes from elsewhere.
const HEADERS: &str = "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
    Cross-Origin-Resource-Policy: same-origin\r\nContent-Security-Policy: default-src 'none'; script-src 'self'; \
    style-src 'self'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'\r\n\
    Connection: close\r\n";

pub fn answer(stream: &mut TcpStream, status: &str, kind: &str, body: &[u8]) -> std::io::Result<()> {
    let size = body.len();
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\n{HEADERS}\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)
}

/// The head of an answer that goes on.
pub fn begin_events(stream: &mut TcpStream) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{HEADERS}\r\n");
    stream.write_all(head.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a head is read as it is meant, and what could be meant in two ways is none.
    #[test]
    fn heads() {
        let request = parse(b"GET /events?token=ab HTTP/1.1\r\nHOST: localhost:80\r\nX: y\r\n\r\n").unwrap();
        assert_eq!((request.path.as_str(), request.query.as_str()), ("/events", "token=ab"));
        assert_eq!((request.host.as_deref(), request.origin), (Some("localhost:80"), None));
        for head in [
            "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            "GET http://a/ HTTP/1.1\r\n\r\n",
            "GET / HTTP/2\r\n\r\n",
            "GET /\r\n\r\n",
            "GET / x HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nnonsense\r\n\r\n",
            "\r\n\r\n",
        ] {
            assert_eq!(parse(head.as_bytes()), None, "{head:?}");
        }
        assert_eq!(parse(b"GET /\xff HTTP/1.1\r\n\r\n"), None);
    }
}
