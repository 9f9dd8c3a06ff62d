//! The reactor of this project with its device seam.

use crate::door;
use crate::job::{HEADER_SIZE, Job, Mode, Tally};
use crate::task::{Seat, serve};
use reactor::device::{Buffer, Device, DeviceOptions, DeviceTransfer, DirectMode};
use reactor::{DriverKind, Reactor, Stream};
use std::future::Future;
use std::io::{ErrorKind, IoSliceMut};
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Where the payload is in a buffer.
const PAYLOAD_START: usize = 4096;

struct OurSeat {
    reactor: Reactor,
    stream: Option<Stream>,
    device: Option<Device>,
    size: usize,
}

/// A write of the seam, in the words of the task.
struct OurWrite(DeviceTransfer);

impl Future for OurWrite {
    type Output = Result<Buffer, String>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|(result, buffer)| match result {
            Ok(_) => Ok(buffer),
            Err(error) => Err(error.to_string()),
        })
    }
}

impl OurSeat {
    fn stream(&self) -> &Stream {
        self.stream.as_ref().expect("packets are received where there is a client")
    }
}

impl Seat for OurSeat {
    type Buffer = Buffer;
    type Write = OurWrite;

    async fn receive(&self, mut buffer: Buffer) -> Result<Option<(u64, Buffer)>, String> {
        // The header lies right before the payload, which lies at the start of a page: one call receives both.
        let packet = &mut buffer[PAYLOAD_START - HEADER_SIZE..PAYLOAD_START + self.size];
        let mut done = 0;
        while done < packet.len() {
            match self.stream().try_recv(&mut [IoSliceMut::new(&mut packet[done..])]) {
                Ok(0) if done == 0 => return Ok(None),
                Ok(0) => return Err("the client ended within a packet".to_owned()),
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.stream().readable().await,
                Err(error) => return Err(format!("network: {error}")),
            }
        }
        let mut header = [0; HEADER_SIZE];
        header.copy_from_slice(&packet[..HEADER_SIZE]);
        Ok(Some((u64::from_le_bytes(header), buffer)))
    }

    fn begin_write(&self, offset: u64, buffer: Buffer) -> OurWrite {
        let device = self.device.as_ref().expect("writes have a device");
        OurWrite(device.write_part(offset, buffer, PAYLOAD_START, self.size))
    }

    async fn pause(&self) {
        self.reactor.yield_now().await;
    }
}

pub fn run(job: &Job, tally: &mut Tally, driver: DriverKind) -> Result<(), String> {
    let reactor = Reactor::open(driver).map_err(|error| error.to_string())?;
    let device = match job.mode {
        Mode::Network => None,
        _ => {
            let (writable, direct, depth) = (true, DirectMode::Auto, job.depth as u32);
            let options = DeviceOptions { writable, direct, depth, ..DeviceOptions::default() };
            let open = || reactor.open_device(&job.path, &options);
            Some(door::again_while_busy(open).map_err(|error| error.to_string())?)
        }
    };
    let pool = reactor.buffer_pool(PAYLOAD_START + job.size, job.buffer_count() as u32);
    let pool = pool.map_err(|error| error.to_string())?;
    tally.buffers = pool.memory();
    let free: Vec<Buffer> = std::iter::from_fn(|| pool.take()).collect();
    let inner = reactor.clone();
    reactor.block_on(async {
        let said = |error: std::io::Error| format!("network: {error}");
        let stream = match job.mode {
            Mode::Disk => None,
            _ => {
                let listener = inner.listen((Ipv4Addr::LOCALHOST, 0).into()).map_err(said)?;
                door::announce(listener.local_address().map_err(said)?.port())?;
                Some(listener.accept().await.map_err(said)?.0)
            }
        };
        let seat = OurSeat { reactor: inner.clone(), stream, device, size: job.size };
        serve(&seat, job, free, tally).await
    })
}
