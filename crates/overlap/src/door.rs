//! How a server is reached, and how its device is opened, by those that have no means of their own.

use crate::job::{Job, Mode};
use std::fs::File;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::time::Duration;

/// Attempts to open a device that the ring of the run before still has, 10 ms apart.
const ATTEMPTS_MAX: u32 = 300;

/// Tells the client where to connect.
pub fn announce(port: u16) -> Result<(), String> {
    let mut output = io::stdout().lock();
    writeln!(output, "port {port}").and_then(|()| output.flush()).map_err(|error| format!("standard output: {error}"))
}

/// The client's connection, non-blocking and tuned as the reactor's are; none where nothing is received.
pub fn accept(job: &Job) -> Result<Option<TcpStream>, String> {
    let said = |error: io::Error| format!("network: {error}");
    if job.mode == Mode::Disk {
        return Ok(None);
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(said)?;
    announce(listener.local_addr().map_err(said)?.port())?;
    let (stream, peer) = listener.accept().map_err(said)?;
    tune(stream, peer).map(Some).map_err(said)
}

/// As the reactor does it: the sizes of buffers and the model of the network are those of one machine.
pub fn tune(stream: TcpStream, peer: SocketAddr) -> io::Result<TcpStream> {
    let descriptor = OwnedFd::from(stream);
    reactor::tune_connection(&descriptor, peer)?;
    let stream = TcpStream::from(descriptor);
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// Opens the device past the page cache. A block device that others use is refused.
pub fn open(job: &Job) -> Result<File, String> {
    let said = |error: io::Error| format!("{}: {error}", job.path.display());
    let is_block_device = std::fs::metadata(&job.path).map_err(said)?.file_type().is_block_device();
    let flags = libc::O_DIRECT | if is_block_device { libc::O_EXCL } else { 0 };
    again_while_busy(|| std::fs::File::options().read(true).write(true).custom_flags(flags).open(&job.path))
        .map_err(said)
}

/// The kernel takes the ring of a process that has ended apart in its own time, and with it what was registered.
#[expect(clippy::disallowed_methods, reason = "before anything runs")]
pub fn again_while_busy<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..ATTEMPTS_MAX {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => std::thread::sleep(Duration::from_millis(10)),
            result => return result,
        }
    }
    attempt()
}
