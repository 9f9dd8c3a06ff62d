//! monoio over io_uring: receives and writes are operations of its ring, a task for each write.

use crate::door;
use crate::job::{Job, Mode, Tally};
use crate::memory::{Arena, Slot};
use crate::task::{Seat, serve};
use monoio::buf::{IoBuf, IoBufMut};
use monoio::fs::File;
use monoio::io::AsyncReadRent;
use monoio::net::TcpStream;
use monoio::task::JoinHandle;
use monoio::{IoUringDriver, RuntimeBuilder};
use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

/// The rest of a packet that is being received.
struct Rest {
    slot: Slot,
    done: usize,
}

// SAFETY: the memory stays where it is for as long as the slot lives.
unsafe impl IoBuf for Rest {
    fn read_ptr(&self) -> *const u8 {
        self.slot.payload().as_ptr()
    }

    fn bytes_init(&self) -> usize {
        0
    }
}

// SAFETY: as above; the rest of a packet lies within its slot.
unsafe impl IoBufMut for Rest {
    fn write_ptr(&mut self) -> *mut u8 {
        self.slot.packet()[self.done..].as_mut_ptr()
    }

    fn bytes_total(&mut self) -> usize {
        self.slot.packet().len() - self.done
    }

    unsafe fn set_init(&mut self, _: usize) {}
}

/// The payload of a slot that is being written.
struct Payload(Slot);

// SAFETY: as above.
unsafe impl IoBuf for Payload {
    fn read_ptr(&self) -> *const u8 {
        self.0.payload().as_ptr()
    }

    fn bytes_init(&self) -> usize {
        self.0.payload().len()
    }
}

struct MonoioSeat {
    stream: Option<RefCell<TcpStream>>,
    file: Option<Rc<File>>,
    path: Rc<PathBuf>,
}

impl Seat for MonoioSeat {
    type Buffer = Slot;
    type Write = JoinHandle<Result<Slot, String>>;

    #[expect(clippy::await_holding_refcell_ref, reason = "one packet is received at a time")]
    async fn receive(&self, slot: Slot) -> Result<Option<(u64, Slot)>, String> {
        let stream = self.stream.as_ref().expect("packets are received where there is a client");
        let mut stream = stream.borrow_mut();
        let mut rest = Rest { slot, done: 0 };
        while rest.bytes_total() > 0 {
            let (result, back) = stream.read(rest).await;
            rest = back;
            match result.map_err(|error| format!("network: {error}"))? {
                0 if rest.done == 0 => return Ok(None),
                0 => return Err("the client ended within a packet".to_owned()),
                count => rest.done += count,
            }
        }
        Ok(Some((rest.slot.offset(), rest.slot)))
    }

    fn begin_write(&self, offset: u64, slot: Slot) -> Self::Write {
        let (file, path) = (self.file.clone().expect("writes have a device"), self.path.clone());
        monoio::spawn(async move {
            let size = slot.payload().len();
            let (result, payload) = file.write_at(Payload(slot), offset).await;
            let result = match result {
                Ok(count) => count as i32,
                Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
            };
            if result == size as i32 { Ok(payload.0) } else { Err(crate::failure(&path, result, size, offset)) }
        })
    }

    async fn pause(&self) {
        // Each receipt is an operation of its ring, and lets others run.
    }
}

pub fn run(job: &Job, tally: &mut Tally) -> Result<(), String> {
    let file = if job.mode == Mode::Network { None } else { Some(door::open(job)?) };
    let free = Arena::slots(job.size, job.buffer_count()).map_err(|error| error.to_string())?;
    tally.buffers = free[0].mapping().1 as u64;
    let said = |error: std::io::Error| format!("monoio: {error}");
    let mut runtime = RuntimeBuilder::<IoUringDriver>::new().build().map_err(said)?;
    let stream = door::accept(job)?;
    runtime.block_on(async {
        let stream = stream.map(TcpStream::from_std).transpose().map_err(said)?.map(RefCell::new);
        let file = file.map(File::from_std).transpose().map_err(said)?.map(Rc::new);
        serve(&MonoioSeat { stream, file, path: Rc::new(job.path.clone()) }, job, free, tally).await
    })
}
