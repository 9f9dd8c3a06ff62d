//! A model of what things cost, for worlds whose question is not "what may go wrong" but "how does it scale".
//!
//! Without a model latencies are drawn at random and one node turns at a time. With one, nodes turn side by side: what
//! a node does in a turn takes its processor a time that adds up from what it sent, received, stored and looked at, and
//! keeps it from its next turn for so long. What it sends leaves when that much of the turn is over, waits for its turn
//! at the sender's and at the receiver's network card, and takes the way between them. Nothing is drawn at random.
//!
//! Invariants
//! 1. `Agenda::planned` of a node is the time of its one valid entry in `Agenda::queue`; entries with another time are
//!    void.
//! 2. Whatever makes a node runnable is its own turn, an arrival or a wake by the network (`Universe::touch`), or
//!    somebody outside of the world, who comes in through `run_until` (`review_agenda`).

use super::network::{Arrival, SimConnection};
use super::world::{Node, NodeId, Universe, World};
use crate::Nanos;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What travels with each piece of bytes: headers of frame, network and transport.
const FRAME_SIZE: u64 = 66;
/// The least that a turn takes, so that time passes whatever a node does.
const TURN_NS_MIN: Nanos = 200;

/// The network between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostModel {
    /// From card to card, in nanoseconds.
    pub latency_ns: Nanos,
    /// Of each card, in bytes per second, each way.
    pub bandwidth: u64,
}

/// What the processor of a node takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessorCosts {
    /// For each call that sends or receives, with its share of what is done about the message.
    pub message_ns: Nanos,
    /// For each byte that is sent or received, in picoseconds.
    pub byte_ps: u64,
    /// For each byte that is stored, in picoseconds, beyond that.
    pub store_byte_ps: u64,
    /// For each entry of a directory that is gone through.
    pub entry_ns: Nanos,
}

impl ProcessorCosts {
    pub(super) fn bytes_ns(&self, size: usize) -> Nanos {
        size as u64 * self.byte_ps / 1000
    }

    pub(super) fn store_ns(&self, size: u64) -> Nanos {
        size * self.store_byte_ps / 1000
    }
}

impl Node {
    /// Where the node's processor is in time: later than the world while it turns.
    pub(super) fn moment(&self, universe: &Universe) -> Nanos {
        universe.time.get() + self.spent.get()
    }

    /// Takes time of the processor, where there is a model of it.
    pub(super) fn spend(&self, time: impl FnOnce(&ProcessorCosts) -> Nanos) {
        if let Some(costs) = &self.costs.get() {
            self.spent.set(self.spent.get() + time(costs));
        }
    }
}

impl CostModel {
    fn transfer_ns(&self, size: u64) -> Nanos {
        (u128::from(size) * 1_000_000_000 / u128::from(self.bandwidth)) as Nanos
    }

    /// When something that is sent now is at the other end, behind what its sender's and its receiver's cards have
    /// before it.
    pub(super) fn arrival_time(
        &self,
        universe: &Universe,
        connection: &mut SimConnection,
        end: usize,
        arrival: &Arrival,
    ) -> Nanos {
        let payload = if let Arrival::Bytes(bytes) = arrival { bytes.len() as u64 } else { 0 };
        let transfer = self.transfer_ns(payload + FRAME_SIZE);
        let node = |end: usize| connection.ends[end].node.map(|node| universe.node(node));
        let (from, to) = (node(1 - end), node(end));
        let leaves = from.as_ref().map_or(universe.time.get(), |node| node.moment(universe));
        let card = |node: &Option<std::rc::Rc<Node>>, way: usize, at: Nanos| match node {
            None => at,
            Some(node) => {
                let start = node.card_free[way].get().max(at);
                node.card_free[way].set(start + transfer);
                start
            }
        };
        let sent = card(&from, 0, leaves);
        let received = card(&to, 1, sent + self.latency_ns);
        let target = &mut connection.ends[end];
        target.last_arrival = target.last_arrival.max(received + transfer);
        target.last_arrival
    }
}

/// Which node turns next, and when.
#[derive(Default)]
pub(super) struct Agenda {
    queue: BinaryHeap<Reverse<(Nanos, NodeId)>>,
    planned: Vec<Option<Nanos>>,
    touched: Vec<NodeId>,
}

impl Agenda {
    fn plan(&mut self, node: NodeId, at: Option<Nanos>) {
        if self.planned.len() <= node.0 {
            self.planned.resize(node.0 + 1, None);
        }
        if self.planned[node.0] != at {
            self.planned[node.0] = at;
            self.queue.extend(at.map(|at| Reverse((at, node))));
        }
    }

    fn next(&mut self) -> Option<(Nanos, NodeId)> {
        while let Some(Reverse((at, node))) = self.queue.peek().copied() {
            if self.planned[node.0] == Some(at) {
                return Some((at, node));
            }
            self.queue.pop();
        }
        None
    }
}

impl Universe {
    /// A node may have something to do.
    pub(super) fn touch(&self, node: Option<NodeId>) {
        if let (Some(agenda), Some(node)) = (self.agenda.borrow_mut().as_mut(), node) {
            agenda.touched.push(node);
        }
    }
}

impl World {
    /// Lets nodes turn side by side, with a network as the model says.
    pub fn set_cost_model(&self, model: CostModel) {
        assert!(model.bandwidth > 0);
        self.universe.network.borrow_mut().model = Some(model);
        self.universe.agenda.replace(Some(Agenda::default()));
    }

    /// Sets what a node's processor takes from now on.
    pub fn set_processor(&self, node: NodeId, costs: ProcessorCosts) {
        self.universe.node(node).costs.set(Some(costs));
    }

    /// Ends all nodes at once, at the end of a world.
    pub fn stop_all(&self) {
        for reactor in self.reactors.borrow_mut().drain(..).flatten() {
            reactor.shutdown();
        }
    }

    /// Looks at every node anew: somebody outside may have given them something to do.
    pub(super) fn review_agenda(&self) {
        if let Some(agenda) = self.universe.agenda.borrow_mut().as_mut() {
            agenda.touched = (0..self.reactors.borrow().len()).map(NodeId).collect();
        }
    }

    fn plan_touched(&self) {
        loop {
            let touched = self.universe.agenda.borrow_mut().as_mut().and_then(|agenda| agenda.touched.pop());
            let Some(node) = touched else { return };
            let at = self.reactors.borrow()[node.0].as_ref().and_then(|reactor| self.runs_at(node, reactor));
            if let Some(agenda) = self.universe.agenda.borrow_mut().as_mut() {
                agenda.plan(node, at);
            }
        }
    }

    /// The next thing by the agenda: an event of the network, or a turn. False if nothing will ever happen by itself.
    pub(super) fn step_by_model(&self, limit: Nanos) -> bool {
        self.plan_touched();
        let universe = &*self.universe;
        let turn = universe.agenda.borrow_mut().as_mut().and_then(Agenda::next);
        let event = universe.network.borrow().next_event();
        let Some(next) = turn.map(|(at, _)| at).into_iter().chain(event).min() else { return false };
        let next = next.max(self.now());
        if next > limit {
            self.advance(limit.max(self.now()));
            return true;
        }
        self.advance(next);
        match turn {
            // Events come before turns of the same time.
            Some((at, node)) if event.is_none_or(|event| event > at) => self.turn_by_model(node),
            _ => {}
        }
        true
    }

    fn turn_by_model(&self, id: NodeId) {
        let universe = &*self.universe;
        let reactor = self.reactors.borrow()[id.0].clone();
        let Some(reactor) = reactor else { return };
        let node = universe.node(id);
        self.note_turn(&node, &reactor);
        reactor.turn(false);
        universe.trace(1 + id.0 as u64, reactor.statistics().polls);
        let spent = node.spent.replace(0).max(TURN_NS_MIN);
        node.not_before.set(self.now() + spent);
        universe.touch(Some(id));
    }
}
