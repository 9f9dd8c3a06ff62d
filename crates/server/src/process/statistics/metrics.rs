//! A tiny answerer of `GET /metrics` on a loopback port: one request a connection, of bounded size and time.

use crate::core::{Core, until};
use reactor::{Class, Listener, Nanos, Stream};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

const REQUEST_SIZE_MAX: usize = 4096;
const TIMEOUT_NS: Nanos = 5_000_000_000;
const CONNECTIONS_MAX: usize = 16;
/// Most bytes of the requests and replies under way.
pub const MEMORY_MAX: u64 = CONNECTIONS_MAX as u64 * (REQUEST_SIZE_MAX as u64 + (64 << 10));

/// Who is connected, from the oldest to the newest, and whether it has asked for something.
type OpenPages = BTreeMap<u64, (Stream, bool)>;

/// Who goes when another one comes and there is no room: anybody of this machine may come, so it is the oldest that has
/// not asked for anything; without such a one the oldest that has not taken its answer.
fn least_wanted(open: &OpenPages) -> Option<u64> {
    let silent = open.iter().find(|(_, (_, has_asked))| !has_asked);
    silent.or(open.first_key_value()).map(|(number, _)| *number)
}

/// Answers until the server stops.
pub async fn serve(core: Rc<Core>, listener: Listener) {
    let open: Rc<RefCell<OpenPages>> = Rc::default();
    let mut next = 0;
    while !core.life.is_stopping() {
        let Ok((stream, _)) = listener.accept().await else {
            core.reactor.sleep(TIMEOUT_NS).await;
            continue;
        };
        if open.borrow().len() == CONNECTIONS_MAX {
            let number = least_wanted(&open.borrow());
            let gone = number.and_then(|number| open.borrow_mut().remove(&number));
            gone.inspect(|(stream, _)| stream.shutdown());
            // Its task ends first, so that no more of them are there than may be.
            core.reactor.yield_now().await;
        }
        next += 1;
        open.borrow_mut().insert(next, (stream.clone(), false));
        let (task_core, open, number) = (core.clone(), open.clone(), next);
        core.reactor.spawn(Class::Background, async move {
            let deadline = task_core.reactor.now() + TIMEOUT_NS;
            let asked = || {
                open.borrow_mut().entry(number).and_modify(|(_, has_asked)| *has_asked = true);
            };
            // Who is too slow is cut off.
            let _ = until(&task_core.reactor, deadline, answer(&task_core, &stream, asked)).await;
            open.borrow_mut().remove(&number);
        });
    }
}

async fn answer(core: &Core, stream: &Stream, asked: impl Fn()) -> std::io::Result<()> {
    let mut request = vec![0; REQUEST_SIZE_MAX];
    let mut size = 0;
    while size < request.len() && !request[..size].windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.recv(&mut request[size..]).await? {
            0 => return Ok(()),
            received => size += received,
        }
    }
    asked();
    let request = &request[..size];
    let (status, body) = if request.starts_with(b"GET /metrics ") || request.starts_with(b"GET /metrics?") {
        ("200 OK", crate::process::statistics::report::prometheus(core))
    } else {
        ("404 Not Found", "ask for /metrics\n".to_string())
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.send_all(head.as_bytes()).await?;
    stream.send_all(body.as_bytes()).await?;
    stream.shutdown();
    Ok(())
}
