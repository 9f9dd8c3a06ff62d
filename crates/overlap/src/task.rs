//! The server task of those schedulers that run futures: one loop for all of them.
//!
//! It has a number of buffers and no more: who finds none waits for the oldest write, and meanwhile the client waits
//! for the server. Ends of writes are looked at whenever the task runs.

use crate::job::{Job, Mode, STEP_SIZE, Source, Tally};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

/// What the server task needs of a runtime.
pub trait Seat {
    /// Room for one packet.
    type Buffer;
    /// A write that has begun, or begins when it is polled; it gives the buffer back.
    type Write: Future<Output = Result<Self::Buffer, String>> + Unpin;

    /// Receives a whole packet; none at the end of the stream.
    fn receive(&self, buffer: Self::Buffer) -> impl Future<Output = Result<Option<(u64, Self::Buffer)>, String>>;

    /// Begins to write a payload.
    fn begin_write(&self, offset: u64, buffer: Self::Buffer) -> Self::Write;

    /// When the last write of a buffer was handed over and when it ended, where that is known.
    fn reached(&self, _buffer: &Self::Buffer) -> Option<(u64, u64)> {
        None
    }

    /// Lets others run: a step's worth of bytes was moved.
    fn pause(&self) -> impl Future<Output = ()>;
}

/// The writes that are under way, oldest first, and the buffers that are free.
struct Writes<'a, S: Seat> {
    seat: &'a S,
    under_way: VecDeque<(u64, S::Write)>,
    free: Vec<S::Buffer>,
    tally: &'a mut Tally,
}

impl<S: Seat> Writes<'_, S> {
    /// Takes back what the oldest writes had, as far as they have ended. Whether there was one.
    fn take_ended(&mut self, context: &mut Context<'_>) -> Result<bool, String> {
        let mut any = false;
        while let Some((began, write)) = self.under_way.front_mut() {
            let Poll::Ready(ended) = Pin::new(write).poll(context) else { break };
            let buffer = ended?;
            if let Some((handed_over, completed)) = self.seat.reached(&buffer) {
                self.tally.note_delays(*began, handed_over, completed);
            }
            self.tally.note_written(*began);
            self.under_way.pop_front();
            self.free.push(buffer);
            any = true;
        }
        Ok(any)
    }

    /// Waits for the oldest.
    async fn wait(&mut self) -> Result<(), String> {
        poll_fn(|context| match self.take_ended(context) {
            Ok(false) => Poll::Pending,
            Ok(true) => Poll::Ready(Ok(())),
            Err(words) => Poll::Ready(Err(words)),
        })
        .await
    }

    /// Waits for a packet, and looks at the writes whenever it is woken.
    async fn with<T>(&mut self, receive: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        let mut receive = pin!(receive);
        poll_fn(|context| match self.take_ended(context) {
            Ok(_) => receive.as_mut().poll(context),
            Err(words) => Poll::Ready(Err(words)),
        })
        .await
    }
}

/// Receives and writes until the client has no more.
pub async fn serve<S: Seat>(seat: &S, job: &Job, free: Vec<S::Buffer>, tally: &mut Tally) -> Result<(), String> {
    tally.begin();
    let mut source = Source::new(job, &tally.clock);
    let mut writes = Writes { seat, under_way: VecDeque::with_capacity(job.depth), free, tally };
    let mut stepped = 0;
    loop {
        while writes.under_way.len() >= job.depth {
            writes.wait().await?;
        }
        let buffer = writes.free.pop().expect("there are more buffers than writes under way");
        let packet = match job.mode {
            Mode::Disk => source.next(&writes.tally.clock).map(|offset| (offset, buffer)),
            _ => writes.with(seat.receive(buffer)).await?,
        };
        let Some((offset, buffer)) = packet else { break };
        job.check(offset)?;
        if job.mode == Mode::Network {
            writes.tally.note_received();
            writes.free.push(buffer);
        } else {
            let began = writes.tally.now();
            writes.under_way.push_back((began, seat.begin_write(offset, buffer)));
            writes.tally.note_held(writes.under_way.len());
        }
        stepped += job.size;
        if stepped >= STEP_SIZE {
            stepped = 0;
            seat.pause().await;
        }
    }
    while !writes.under_way.is_empty() {
        writes.wait().await?;
    }
    writes.tally.end();
    Ok(())
}
