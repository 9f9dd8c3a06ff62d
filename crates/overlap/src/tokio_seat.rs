//! tokio, which has no I/O on devices of its own: writes are calls that wait, in its workers or its blocking threads.

use crate::door;
use crate::job::{Job, Mode, Tally};
use crate::memory::{Arena, Slot};
use crate::pool::write_at;
use crate::task::{Seat, serve};
use reactor::call_clock::CallClock;
use std::fs::File;
use std::future::Future;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};
use tokio::task::JoinHandle;

/// Who writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Writers {
    Workers,
    Blocking,
}

/// Room for a packet, and when its last write began and ended.
struct Room {
    slot: Slot,
    began: u64,
    ended: u64,
}

struct TokioSeat {
    handle: Handle,
    stream: Option<TcpStream>,
    file: Option<Arc<File>>,
    path: Arc<PathBuf>,
    clock: CallClock,
    writers: Writers,
}

struct TokioWrite(JoinHandle<Result<Room, String>>);

impl Future for TokioWrite {
    type Output = Result<Room, String>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|result| result.map_err(|error| error.to_string())?)
    }
}

impl Seat for TokioSeat {
    type Buffer = Room;
    type Write = TokioWrite;

    async fn receive(&self, mut room: Room) -> Result<Option<(u64, Room)>, String> {
        let stream = self.stream.as_ref().expect("packets are received where there is a client");
        let mut done = 0;
        while done < room.slot.packet().len() {
            match stream.try_read(&mut room.slot.packet()[done..]) {
                Ok(0) if done == 0 => return Ok(None),
                Ok(0) => return Err("the client ended within a packet".to_owned()),
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    stream.readable().await.map_err(|error| format!("network: {error}"))?;
                }
                Err(error) => return Err(format!("network: {error}")),
            }
        }
        Ok(Some((room.slot.offset(), room)))
    }

    fn begin_write(&self, offset: u64, mut room: Room) -> TokioWrite {
        let file = self.file.clone().expect("writes have a device");
        let (path, clock) = (self.path.clone(), self.clock);
        let write = move || {
            room.began = clock.read();
            let size = room.slot.payload().len();
            let result = write_at(&file, room.slot.payload(), offset);
            room.ended = clock.read();
            if result == size as i32 { Ok(room) } else { Err(crate::failure(&path, result, size, offset)) }
        };
        TokioWrite(match self.writers {
            Writers::Workers => self.handle.spawn(async move { write() }),
            Writers::Blocking => self.handle.spawn_blocking(write),
        })
    }

    fn reached(&self, room: &Room) -> Option<(u64, u64)> {
        Some((room.began, room.ended))
    }

    async fn pause(&self) {
        tokio::task::yield_now().await;
    }
}

pub fn run(job: &Job, tally: &mut Tally, writers: Writers) -> Result<(), String> {
    let file = if job.mode == Mode::Network { None } else { Some(Arc::new(door::open(job)?)) };
    let slots = Arena::slots(job.size, job.buffer_count()).map_err(|error| error.to_string())?;
    tally.buffers = slots[0].mapping().1 as u64;
    let free = slots.into_iter().map(|slot| Room { slot, began: 0, ended: 0 }).collect();
    let mut builder = Builder::new_multi_thread();
    // As many as there are cores, and threads that write as many as there are writes under way.
    let runtime = builder.enable_io().max_blocking_threads(job.depth).build().map_err(|error| error.to_string())?;
    let stream = door::accept(job)?;
    runtime.block_on(async {
        let stream = stream.map(TcpStream::from_std).transpose().map_err(|error| format!("network: {error}"))?;
        let (handle, clock, path) = (runtime.handle().clone(), tally.clock, Arc::new(job.path.clone()));
        serve(&TokioSeat { handle, stream, file, path, clock, writers }, job, free, tally).await
    })
}
