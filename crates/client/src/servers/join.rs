//! Waits for several futures at once.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

enum Slot<F: Future> {
    Running(Pin<Box<F>>),
    Done(Option<F::Output>),
}

/// Runs all futures side by side; the outputs come in the order of the futures.
pub(crate) fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> JoinAll<F> {
    JoinAll { slots: futures.into_iter().map(|future| Slot::Running(Box::pin(future))).collect() }
}

/// The future of `join_all`.
pub(crate) struct JoinAll<F: Future> {
    slots: Vec<Slot<F>>,
}

impl<F: Future> Unpin for JoinAll<F> {}

impl<F: Future> Future for JoinAll<F> {
    type Output = Vec<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut all_done = true;
        for slot in &mut self.slots {
            if let Slot::Running(future) = slot {
                match future.as_mut().poll(context) {
                    Poll::Ready(output) => *slot = Slot::Done(Some(output)),
                    Poll::Pending => all_done = false,
                }
            }
        }
        if !all_done {
            return Poll::Pending;
        }
        let outputs = std::mem::take(&mut self.slots).into_iter().map(|slot| match slot {
            Slot::Done(Some(output)) => output,
            _ => unreachable!("every future was seen to be done"),
        });
        Poll::Ready(outputs.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;
    use std::task::Waker;

    /// Goal: outputs keep the order of the futures, and a future that is done is not polled again.
    /// Method: futures that become ready at their n-th poll and panic on one more.
    #[test]
    fn keeps_order_and_polls_no_more() {
        struct After(u32, u32, Rc<Cell<u32>>);
        impl Future for After {
            type Output = u32;
            fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<u32> {
                assert_ne!(self.1, u32::MAX, "polled after it was done");
                self.2.set(self.2.get() + 1);
                if self.1 == 0 {
                    self.1 = u32::MAX;
                    return Poll::Ready(self.0);
                }
                self.1 -= 1;
                Poll::Pending
            }
        }
        let polls = Rc::new(Cell::new(0));
        let mut joined = join_all([After(1, 2, polls.clone()), After(2, 0, polls.clone()), After(3, 1, polls.clone())]);
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut joined).poll(&mut context).is_pending());
        assert!(Pin::new(&mut joined).poll(&mut context).is_pending());
        assert_eq!(Pin::new(&mut joined).poll(&mut context), Poll::Ready(vec![1, 2, 3]));
        assert_eq!(polls.get(), 3 + 1 + 2);
    }
}
