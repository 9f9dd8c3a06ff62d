//! glommio: a task for each write, of which there are as many as may be under way, in its own memory. Its buffered
//! stream, by which small packets would be received several at a time, now and then does not tell of the stream's end,
//! and is left alone.

use crate::door;
use crate::job::{HEADER_SIZE, Job, Mode, Tally};
use crate::task::{Seat, serve};
use futures_lite::AsyncRead;
use glommio::io::{DmaBuffer, DmaFile, OpenOptions};
use glommio::net::TcpStream;
use glommio::{LocalExecutorBuilder, Placement, Task};
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::os::fd::{FromRawFd, IntoRawFd};
use std::os::unix::fs::FileTypeExt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

/// How often the better one looks at its rings, and how long it spins before it sleeps.
const PREEMPT_TIME: Duration = Duration::from_micros(100);
const SPIN_TIME: Duration = Duration::from_micros(50);

struct GlommioSeat {
    stream: Option<RefCell<TcpStream>>,
    file: Option<Rc<DmaFile>>,
    size: usize,
    is_best: bool,
}

impl GlommioSeat {
    /// Receives all bytes of a place; false at the end of the stream before the first.
    async fn fill(&self, place: &mut [u8]) -> Result<bool, String> {
        let stream = self.stream.as_ref().expect("packets are received where there is a client");
        let mut done = 0;
        while done < place.len() {
            let result =
                poll_fn(|context| Pin::new(&mut *stream.borrow_mut()).poll_read(context, &mut place[done..])).await;
            match result.map_err(|error| format!("network: {error}"))? {
                0 if done == 0 => return Ok(false),
                0 => return Err("the client ended within a packet".to_owned()),
                count => done += count,
            }
        }
        Ok(true)
    }
}

/// A permit for one buffer, and the buffer once there is a packet: glommio takes it with the write.
pub struct Permit(Option<DmaBuffer>);

impl Seat for GlommioSeat {
    type Buffer = Permit;
    type Write = Permitted;

    async fn receive(&self, permit: Permit) -> Result<Option<(u64, Permit)>, String> {
        let mut header = [0; HEADER_SIZE];
        if !self.fill(&mut header).await? {
            return Ok(None);
        }
        let mut buffer = permit.0.unwrap_or_else(|| glommio::allocate_dma_buffer(self.size));
        if !self.fill(buffer.as_bytes_mut()).await? {
            return Err("the client ended within a packet".to_owned());
        }
        Ok(Some((u64::from_le_bytes(header), Permit(Some(buffer)))))
    }

    fn begin_write(&self, offset: u64, permit: Permit) -> Permitted {
        let file = self.file.clone().expect("writes have a device");
        let size = self.size;
        let buffer = permit.0.unwrap_or_else(|| glommio::allocate_dma_buffer(size));
        Permitted(glommio::spawn_local(async move {
            match file.write_at(buffer, offset).await {
                Ok(count) if count == size => Ok(()),
                Ok(count) => Err(format!("{count} of {size} bytes at offset {offset} were written")),
                Err(error) => Err(format!("write of {size} bytes at offset {offset}: {error}")),
            }
        }))
    }

    async fn pause(&self) {
        if self.is_best {
            glommio::executor().yield_now().await;
        } else {
            glommio::executor().yield_if_needed().await;
        }
    }
}

/// A write that gives its permit back.
pub struct Permitted(Task<Result<(), String>>);

impl Future for Permitted {
    type Output = Result<Permit, String>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|result| result.map(|()| Permit(None)))
    }
}

pub fn run(job: &Job, tally: &mut Tally, is_best: bool) -> Result<(), String> {
    let mut builder = LocalExecutorBuilder::new(Placement::Unbound);
    if is_best {
        builder = builder.preempt_timer(PREEMPT_TIME).spin_before_park(SPIN_TIME);
        // All buffers in the memory that its ring knows.
        builder = builder.io_memory((job.size * job.buffer_count()).next_power_of_two().max(10 << 20));
    }
    let executor = builder.make().map_err(|error| format!("glommio: {error}"))?;
    tally.buffers = (job.size * job.depth) as u64;
    let free = (0..job.buffer_count()).map(|_| Permit(None)).collect();
    executor.run(async {
        let file = if job.mode == Mode::Network { None } else { Some(Rc::new(open(job).await?)) };
        let stream = door::accept(job)?.map(|stream| {
            // SAFETY: the descriptor is given away.
            let stream = unsafe { TcpStream::from_raw_fd(stream.into_raw_fd()) };
            RefCell::new(stream)
        });
        serve(&GlommioSeat { stream, file, size: job.size, is_best }, job, free, tally).await
    })
}

async fn open(job: &Job) -> Result<DmaFile, String> {
    // Told in words, and waited for, where the run before still has it.
    drop(door::open(job)?);
    let metadata = std::fs::metadata(&job.path).map_err(|error| format!("{}: {error}", job.path.display()))?;
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    if metadata.file_type().is_block_device() {
        options.custom_flags(libc::O_EXCL);
    }
    options.dma_open(&job.path).await.map_err(|error| error.to_string())
}
