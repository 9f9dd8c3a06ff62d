//! Synchronous 64-byte requests and replies over TCP loopback: what the loop itself costs.
//!
//! `cargo run --release --example pingpong -- [PAIRS] [SECONDS] [uring|epoll] [shared|loop]`
//!
//! Starts PAIRS server processes and as many client processes; each client talks to one server, one request at a time.
//! Servers run over the driver named; clients call through `Shared` (as programs do), or run a loop of their own.

use reactor::{Class, DriverKind, Reactor, Shared, Stream};
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

const MESSAGE_SIZE: usize = 64;

fn kind(name: &str) -> DriverKind {
    if name == "epoll" { DriverKind::Epoll } else { DriverKind::IoUring }
}

fn serve(driver: &str) -> std::io::Result<()> {
    let reactor = Reactor::open(kind(driver))?;
    let listener = reactor.listen(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    println!("{}", listener.local_address()?);
    let ended = reactor.block_on(async {
        // One client, then the end.
        let (stream, _) = listener.accept().await?;
        let handle = reactor.spawn_joinable(Class::Data, async move {
            let mut message = [0; MESSAGE_SIZE];
            while stream.recv_exact(&mut message).await.is_ok() {
                stream.send_all(&message).await?;
            }
            std::io::Result::Ok(())
        });
        handle.await
    });
    eprintln!("  server {:?}", reactor.statistics());
    ended
}

async fn exchange(stream: &Stream) -> std::io::Result<()> {
    let mut message = [1; MESSAGE_SIZE];
    stream.send_all(&message).await?;
    stream.recv_exact(&mut message).await
}

fn request_shared(address: SocketAddr, seconds: u64) -> std::io::Result<u64> {
    let shared = Shared::new(|_| RefCell::new(None::<Stream>))?;
    shared.run(async |reactor, place| {
        let stream = reactor.connect(address).await?;
        place.replace(Some(stream));
        std::io::Result::Ok(())
    })?;
    let mut count = 0;
    let end = shared.run(async |reactor, _| reactor.now()) + seconds * 1_000_000_000;
    loop {
        let (result, now) = shared.run(async |reactor, place| {
            let Some(stream) = place.borrow().clone() else { return (Ok(()), u64::MAX) };
            (exchange(&stream).await, reactor.now())
        });
        result?;
        count += 1;
        if now >= end {
            return Ok(count);
        }
    }
}

fn request_loop(address: SocketAddr, seconds: u64, driver: &str) -> std::io::Result<u64> {
    let reactor = Reactor::open(kind(driver))?;
    reactor.block_on(async {
        let stream = reactor.connect(address).await?;
        let end = reactor.now() + seconds * 1_000_000_000;
        let mut count = 0;
        while reactor.now() < end {
            exchange(&stream).await?;
            count += 1;
        }
        Ok(count)
    })
}

fn start(arguments: &[&str]) -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?).args(arguments).stdout(Stdio::piped()).spawn()
}

fn first_line(child: &mut Child) -> std::io::Result<String> {
    let mut line = String::new();
    let output = child.stdout.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
    BufReader::new(output).read_line(&mut line)?;
    Ok(line.trim().to_owned())
}

/// CPU time of all children that have ended, in seconds.
fn children_cpu() -> f64 {
    // SAFETY: writes one local, which is a valid value when zeroed.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    [usage.ru_utime, usage.ru_stime].iter().map(|time| time.tv_sec as f64 + time.tv_usec as f64 / 1e6).sum()
}

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |index: usize, default: &str| arguments.get(index).cloned().unwrap_or_else(|| default.to_owned());
    match argument(0, "2").as_str() {
        "server" => return serve(&argument(1, "uring")),
        "client" => {
            let address = argument(1, "").parse().map_err(|_| std::io::ErrorKind::InvalidInput)?;
            let seconds = argument(2, "3").parse().unwrap_or(3);
            let count = if argument(4, "shared") == "shared" {
                request_shared(address, seconds)?
            } else {
                request_loop(address, seconds, &argument(3, "uring"))?
            };
            println!("{count}");
            return std::io::stdout().flush();
        }
        _ => {}
    }
    let pairs: usize = argument(0, "2").parse().unwrap_or(2);
    let (seconds, driver, face) = (argument(1, "3"), argument(2, "uring"), argument(3, "shared"));
    let mut servers = (0..pairs).map(|_| start(&["server", &driver])).collect::<std::io::Result<Vec<Child>>>()?;
    let addresses = servers.iter_mut().map(first_line).collect::<std::io::Result<Vec<String>>>()?;
    let mut clients = addresses
        .iter()
        .map(|address| start(&["client", address, &seconds, &driver, &face]))
        .collect::<std::io::Result<Vec<Child>>>()?;
    let mut total = 0u64;
    for client in &mut clients {
        total += first_line(client)?.parse::<u64>().unwrap_or(0);
    }
    for child in clients.iter_mut().chain(&mut servers) {
        child.wait()?;
    }
    let rate = total as f64 / seconds.parse::<f64>().unwrap_or(3.0);
    println!(
        "{pairs}+{pairs} {driver} {face}: {rate:.0} operations/s, {:.1} us of CPU each",
        children_cpu() * 1e6 / total as f64
    );
    Ok(())
}
