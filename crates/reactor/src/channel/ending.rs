//! Calls that end without a reply: silence, deadlines, callers that went away.

use super::ChannelInner;
use super::table::{BodyTarget, ChannelConnection, ChannelState, ReplyStage, WINDOW};
use crate::sealing::CHANGED;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use wire::{FrameKind, Header, Status};

/// Ends calls of which nothing was heard for too long. Sleeps while there are none.
pub(super) async fn watch(inner: std::rc::Weak<ChannelInner>) {
    loop {
        let Some(strong) = inner.upgrade() else {
            return;
        };
        let reactor = strong.reactor.clone();
        let period = (strong.options.timeout / 8).max(1_000_000);
        drop(strong);
        let alive = poll_fn(|cx| {
            let Some(strong) = inner.upgrade() else {
                return Poll::Ready(false);
            };
            let mut state = strong.state.borrow_mut();
            if state.closed && state.outstanding == 0 {
                return Poll::Ready(false);
            }
            if state.outstanding > 0 {
                return Poll::Ready(true);
            }
            state.watcher = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        if !alive {
            return;
        }
        reactor.sleep(period).await;
        if let Some(strong) = inner.upgrade() {
            strong.end_silent_calls();
        }
    }
}

impl ChannelInner {
    pub(super) fn end_silent_calls(self: &Rc<Self>) {
        let now = self.reactor.now();
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        state.note_body(now);
        let mut silent = false;
        let mut longest_silence = 0;
        for slot in 0..WINDOW {
            let Some(outstanding) = &mut state.calls[slot] else {
                continue;
            };
            let silence = now.saturating_sub(outstanding.last_life);
            longest_silence = longest_silence.max(silence);
            let is_silent = silence > self.options.timeout;
            // Answered early: the caller waits for the rest of his body to leave, and this machine may be gone.
            if outstanding.answered
                && let ChannelConnection::Open { link, .. } = &state.connection
            {
                silent |= is_silent && link.is_sending(outstanding.call_id);
                continue;
            }
            let is_over = is_silent || outstanding.deadline.is_some_and(|limit| now > limit);
            if outstanding.outcome.is_some() || !is_over {
                continue;
            }
            let operation = outstanding.operation;
            let failure = if outstanding.was_changed {
                silent |= is_silent && matches!(state.connection, ChannelConnection::Open { .. });
                self.failure(operation, Status::Unreachable, CHANGED)
            } else if matches!(state.connection, ChannelConnection::Open { .. }) {
                silent |= is_silent;
                self.failure(operation, Status::TimedOut, "no sign of life from the server for the time-out")
            } else {
                let words = format!("no connection: {}", state.last_error);
                self.failure(operation, Status::Unreachable, &words)
            };
            if let Some(outstanding) = &mut state.calls[slot] {
                outstanding.outcome = Some(Err(failure));
                if let Some(waker) = &outstanding.waker {
                    waker.wake_by_ref();
                }
            }
        }
        if silent {
            // A connection that leaves a call unanswered is not trusted with the next one.
            self.disconnect(state, "the server was silent");
            if state.outstanding > 0 {
                self.start_connecting(state);
            }
        } else if longest_silence > self.options.timeout / 4 {
            self.say_that_we_wait(state);
        }
    }

    /// Says something on a connection that has been silent. Where the server's machine has lost power after it had
    /// taken all that we sent, nothing is under way that it could refuse when it is back, and we would wait in vain.
    fn say_that_we_wait(&self, state: &mut ChannelState) {
        if let ChannelConnection::Open { link, .. } = &mut state.connection
            && !link.has_queued()
        {
            let mut header = Header::new(FrameKind::Waiting, 0);
            header.level = self.options.level;
            link.enqueue(header, &[], Vec::new(), 0, None);
            link.wake();
        }
    }

    /// Says goodbye where there is a connection, which the server closes then.
    pub(super) async fn end(self: &Rc<Self>) {
        {
            let mut state = self.state.borrow_mut();
            let state = &mut *state;
            if state.closed {
                return;
            }
            state.closed = true;
            self.fail_all(state, Status::Unreachable, "the channel was closed");
            state.wake_watcher();
            if let ChannelConnection::Open { link, stream, .. } = &mut state.connection {
                stream.expect(true);
                let mut header = Header::new(FrameKind::Goodbye, 0);
                header.level = self.options.level;
                link.enqueue(header, &[], Vec::new(), 0, None);
                if !matches!(link.flush(), Ok(true)) {
                    link.wake();
                }
            }
        }
        poll_fn(|cx| {
            let mut state = self.state.borrow_mut();
            if !matches!(state.connection, ChannelConnection::Open { .. }) {
                return Poll::Ready(());
            }
            state.room.push_back(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Ends the caller's part in a call: takes its memory back from the connection (invariant 3), and frees the slot
    /// unless the server may still answer (invariant 4).
    pub(super) fn part(self: &Rc<Self>, slot: usize) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let Some(outstanding) = &mut state.calls[slot] else {
            return;
        };
        let call_id = outstanding.call_id;
        outstanding.place.clear();
        outstanding.waker = None;
        outstanding.abandoned = true;
        let mut is_sending = false;
        let mut is_expected = false;
        if let ChannelConnection::Open { link, receiving, .. } = &mut state.connection {
            is_sending = !outstanding.body.is_empty() && link.is_sending(call_id);
            is_expected = !outstanding.answered && outstanding.sent_on == state.statistics.connects;
            if let ReplyStage::Body { header, target, received, .. } = receiving
                && header.call_id == call_id
                && let BodyTarget::Place(_) = target
            {
                *target = BodyTarget::Discard(header.body_size as usize - *received);
            }
        }
        if !is_expected && let Some(mut outstanding) = state.release(slot) {
            state.sequences.acknowledge(outstanding.session_sequence);
            outstanding.params = Vec::new();
            outstanding.body = Vec::new();
            outstanding.outcome = None;
            state.spare = Some(outstanding);
        }
        if is_sending {
            self.disconnect(state, "a call was given up while its body was being sent");
            if state.outstanding > 0 {
                self.start_connecting(state);
            }
        }
    }
}
