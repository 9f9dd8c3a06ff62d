//! A tiny answerer of `GET /metrics` on a loopback port: one request a connection, of bounded size and time.

use crate::core::Core;
use crate::waiting::until;
use reactor::{Class, Listener, Nanos, Stream};
use std::cell::Cell;
use std::rc::Rc;

const REQUEST_SIZE_MAX: usize = 4096;
const TIMEOUT_NS: Nanos = 5_000_000_000;
const CONNECTIONS_MAX: usize = 8;
/// Most bytes of the requests and replies under way.
pub const MEMORY_MAX: u64 = CONNECTIONS_MAX as u64 * (REQUEST_SIZE_MAX as u64 + (64 << 10));

/// Answers until the server stops.
pub async fn serve(core: Rc<Core>, listener: Listener) {
    let open = Rc::new(Cell::new(0));
    while !core.stopping.get() {
        let Ok((stream, _)) = listener.accept().await else {
            core.reactor.sleep(TIMEOUT_NS).await;
            continue;
        };
        if open.get() == CONNECTIONS_MAX {
            continue;
        }
        open.set(open.get() + 1);
        let (task_core, open) = (core.clone(), open.clone());
        core.reactor.spawn(Class::Background, async move {
            let deadline = task_core.reactor.now() + TIMEOUT_NS;
            // Who is too slow is cut off.
            let _ = until(&task_core.reactor, deadline, answer(&task_core, &stream)).await;
            open.set(open.get() - 1);
        });
    }
}

async fn answer(core: &Core, stream: &Stream) -> std::io::Result<()> {
    let mut request = vec![0; REQUEST_SIZE_MAX];
    let mut size = 0;
    while size < request.len() && !request[..size].windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.recv(&mut request[size..]).await? {
            0 => return Ok(()),
            received => size += received,
        }
    }
    let asked = &request[..size];
    let (status, body) = if asked.starts_with(b"GET /metrics ") || asked.starts_with(b"GET /metrics?") {
        ("200 OK", crate::report::prometheus(core))
    } else {
        ("404 Not Found", "ask for /metrics\n".to_string())
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.send_all(head.as_bytes()).await?;
    stream.send_all(body.as_bytes()).await?;
    stream.shutdown();
    Ok(())
}
