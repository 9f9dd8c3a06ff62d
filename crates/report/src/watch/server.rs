//! Who may see the page, and what they get: nothing but words, whoever has not the token.

use crate::failure::{Failure, Outcome, io_words};
use crate::http::listener::{Listener, own_name, refuse_method, words};
use crate::http::{self, Request};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
    listener: Listener,
    token: String,
}

impl Server {
    /// `listen` is an address, with or without a port.
    pub fn bind(listen: &str) -> Outcome<Server> {
        Ok(Server { listener: Listener::bind(listen)?, token: token()? })
    }

    pub fn announce(&self) {
        let (address, port) = (self.listener.address, self.listener.address.port());
        let mut lines = vec![format!("http://{address}/?token={}", self.token)];
        if address.ip().is_loopback() {
            lines.push(format!("from elsewhere: ssh -L {port}:{address} {}, then the same URL", own_name()));
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
        let pages = Pages { token: self.token, board: board.clone() };
        self.listener.serve(move |stream, request| pages.answer(stream, request))
    }
}

/// What there is to see.
struct Pages {
    token: String,
    board: Arc<Board>,
}

impl Pages {
    fn answer(&self, stream: &mut TcpStream, request: &Request) -> std::io::Result<()> {
        if !self.has_token(request) {
            let why = "the token is missing or wrong; use the URL that was printed when this was started";
            return words(stream, "403 Forbidden", why);
        }
        if request.method != "GET" {
            return refuse_method(stream);
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
                let frame = self.board.state().frame.clone();
                http::answer(stream, "200 OK", "application/json", frame.as_bytes())
            }
            "/events" => self.events(stream),
            _ => words(stream, "404 Not Found", "there is no such page; the one there is, is /"),
        }
    }

    fn has_token(&self, request: &Request) -> bool {
        let given = request.query.split('&').find_map(|part| part.strip_prefix("token="));
        given.is_some_and(|given| is_equal(given.as_bytes(), self.token.as_bytes()))
    }

    /// Frames, until the other side has gone or takes none any more.
    fn events(&self, stream: &mut TcpStream) -> std::io::Result<()> {
        http::begin_events(stream)?;
        let (mut seen, history) = self.board.history();
        write!(stream, "event: history\ndata: {history}\n\n")?;
        // The frame that the history ends with.
        seen = seen.saturating_sub(1);
        loop {
            match self.board.newer(seen) {
                Some((number, frame)) => {
                    write!(stream, "id: {number}\ndata: {frame}\n\n")?;
                    seen = number;
                }
                None => stream.write_all(b": still here\n\n")?,
            }
        }
    }
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

    /// Goal: a token is the same to the last byte, or another one.
    #[test]
    fn tokens() {
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
