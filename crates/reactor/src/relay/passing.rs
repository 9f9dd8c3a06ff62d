//! What a contact does with a stream that is for another server: its bytes go on as they came, in both directions.

use super::End;
use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;
use wire::Status;

/// What was passed on so far.
#[derive(Default)]
pub(crate) struct Passed {
    pub(crate) frames: Cell<u64>,
    pub(crate) bytes: Cell<u64>,
}

/// Passes bytes on between the two until either side ends, and tells the other why.
pub(crate) async fn pass_on(one: End, other: End, passed: &Passed) {
    poll_fn(|cx| {
        one.watch(cx.waker());
        other.watch(cx.waker());
        move_pieces(&one, &other, passed);
        move_pieces(&other, &one, passed);
        match (one.over(), other.over()) {
            (None, None) => Poll::Pending,
            (one_over, other_over) => {
                other.finish(one_over.unwrap_or(Status::Ok));
                one.finish(other_over.unwrap_or(Status::Ok));
                Poll::Ready(())
            }
        }
    })
    .await;
}

/// Hands over what is here, for as long as there is room for it.
fn move_pieces(from: &End, to: &End, passed: &Passed) {
    while let Some(cost) = from.next_cost()
        && to.has_room(cost)
        && let Some((bytes, freeing)) = from.take()
    {
        passed.frames.set(passed.frames.get() + 1);
        passed.bytes.set(passed.bytes.get() + bytes.len() as u64);
        to.put(bytes, freeing);
    }
}
