//! Streams and listeners over the simulated network.
//!
//! A frozen node (it has crashed in the middle of its turn) hears nothing, and what it sends is swallowed.

use super::network::{Arrival, EndState, SimConnection, SimEnd};
use super::world::{NodeId, Universe};
use crate::hazard_pointers::HazardPointers;
use crate::short_circuit::{SharedStore, StampedRegion, StoreMapping};
use crate::stream::{ListenSocket, Socket, Stream};
use shm::client_counters::{ClientCounter, ClientCounters};
use shm::mapping::Mapped;
use shm::submission::LeftoverFault;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::rc::Rc;

/// One end of a simulated connection.
pub(super) struct SimSocket {
    pub(super) universe: Rc<Universe>,
    pub(super) node: NodeId,
    pub(super) connection: u64,
    pub(super) end: usize,
}

impl SimSocket {
    fn is_frozen(&self) -> bool {
        self.universe.node(self.node).frozen.get()
    }
}

impl Socket for SimSocket {
    fn try_recv(&self, places: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if self.is_frozen() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let mut network = self.universe.network.borrow_mut();
        let Some(connection) = network.connections.get_mut(&self.connection) else {
            return Err(ErrorKind::NotConnected.into());
        };
        let [mine, other] = two_ends(connection, self.end);
        if !mine.is_alive() {
            return Err(ErrorKind::NotConnected.into());
        }
        if mine.received.is_empty() {
            return match mine.broken {
                Some(kind) => Err(kind.into()),
                None if mine.finished => Ok(0),
                None => Err(ErrorKind::WouldBlock.into()),
            };
        }
        let mut received = 0;
        for place in places {
            let size = place.len().min(mine.received.len());
            let (front, back) = mine.received.as_slices();
            let from_front = size.min(front.len());
            place[..from_front].copy_from_slice(&front[..from_front]);
            place[from_front..size].copy_from_slice(&back[..size - from_front]);
            mine.received.drain(..size);
            received += size;
        }
        if mine.received.is_empty() {
            // Hundreds of thousands of connections are there at scale, most of them with nothing to say.
            mine.received = VecDeque::new();
        }
        let node = self.universe.node(self.node);
        node.spend(|costs| costs.message_ns + costs.bytes_ns(received));
        if std::mem::take(&mut other.wants_room) {
            network.send_to(&self.universe, self.connection, 1 - self.end, Arrival::Room);
        }
        Ok(received)
    }

    fn try_send(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let offered: usize = pieces.iter().map(|piece| piece.len()).sum();
        if self.is_frozen() {
            return Ok(offered);
        }
        let universe = &*self.universe;
        let mut network = universe.network.borrow_mut();
        let (buffer_size, in_pieces) = (network.buffer_size, network.model.is_none());
        let Some(connection) = network.connections.get_mut(&self.connection) else {
            return Err(ErrorKind::NotConnected.into());
        };
        let [mine, other] = two_ends(connection, self.end);
        if let Some(kind) = mine.broken {
            return Err(kind.into());
        }
        if mine.finish_sent || mine.state == EndState::Closed {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let room = buffer_size.saturating_sub(other.received.len() + other.in_flight);
        if mine.state != EndState::Open || room == 0 {
            mine.wants_room = true;
            return Err(ErrorKind::WouldBlock.into());
        }
        let mut sent = offered.min(room);
        let node = universe.node(self.node);
        node.spend(|costs| costs.message_ns + costs.bytes_ns(sent));
        if in_pieces && sent > 1 && universe.below(4) == 0 {
            sent = universe.between(1, sent as u64) as usize;
        }
        other.in_flight += sent;
        let mut bytes = Vec::with_capacity(sent);
        for piece in pieces {
            bytes.extend_from_slice(&piece[..piece.len().min(sent - bytes.len())]);
        }
        if self.end == 0 && in_pieces {
            connection.overhear(&bytes);
        }
        // It may arrive in pieces.
        while in_pieces && bytes.len() > 1 && universe.below(3) == 0 {
            let rest = bytes.split_off(universe.between(1, bytes.len() as u64 - 1) as usize);
            let first = std::mem::replace(&mut bytes, rest);
            network.send_to(universe, self.connection, 1 - self.end, Arrival::Bytes(first));
        }
        if !bytes.is_empty() {
            network.send_to(universe, self.connection, 1 - self.end, Arrival::Bytes(bytes));
        }
        Ok(sent)
    }

    fn shutdown(&self) {
        if self.is_frozen() {
            return;
        }
        let mut network = self.universe.network.borrow_mut();
        let Some(connection) = network.connections.get_mut(&self.connection) else { return };
        let mine = &mut connection.ends[self.end];
        mine.finished = true;
        if mine.state == EndState::Connecting {
            mine.broken.get_or_insert(ErrorKind::BrokenPipe);
        } else if mine.is_alive() && !std::mem::replace(&mut mine.finish_sent, true) {
            network.send_to(&self.universe, self.connection, 1 - self.end, Arrival::Finish);
        }
    }

    fn peer_address(&self) -> io::Result<SocketAddr> {
        let network = self.universe.network.borrow();
        let connection = network.connections.get(&self.connection).ok_or(ErrorKind::NotConnected)?;
        Ok(connection.ends[1 - self.end].address)
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        let network = self.universe.network.borrow();
        let connection = network.connections.get(&self.connection).ok_or(ErrorKind::NotConnected)?;
        Ok(connection.ends[self.end].address)
    }

    fn take_error(&self) -> io::Result<()> {
        let network = self.universe.network.borrow();
        let connection = network.connections.get(&self.connection).ok_or(ErrorKind::NotConnected)?;
        let mine = &connection.ends[self.end];
        match (mine.broken, mine.state) {
            (Some(kind), _) => Err(kind.into()),
            (None, EndState::Open) => Ok(()),
            (None, EndState::Connecting) => Err(ErrorKind::WouldBlock.into()),
            (None, _) => Err(ErrorKind::NotConnected.into()),
        }
    }

    /// Every other connection is one within a machine.
    fn share(&self, region: &Rc<StampedRegion>, shared: &SharedStore) -> bool {
        if self.is_frozen() || self.universe.below(2) == 0 {
            return false;
        }
        let mut network = self.universe.network.borrow_mut();
        let Some(connection) = network.connections.get_mut(&self.connection) else { return false };
        region.attribute_cache().set_fault(self.universe.cache_fault.get());
        if self.universe.ignores_intent_locks.get() {
            region.submissions().ignore_intent_locks();
        }
        if self.universe.mixes_writes.get() {
            region.submissions().ignore_order();
        }
        if self.universe.takes_submissions_late.get() {
            region.submissions().come_late();
        }
        if self.universe.leftover_fault.get() != LeftoverFault::None {
            region.submissions().set_leftover_fault(self.universe.leftover_fault.get());
        }
        region.submissions().limit_slots(self.universe.submissions_max.get());
        let hazards = HazardPointers::of_simulation();
        hazards.limit(self.universe.hazards_max.get());
        if self.universe.ignores_hazards.get() {
            hazards.ignore();
        }
        connection.hazards = Some(hazards.clone());
        let counters = Mapped::<ClientCounters>::alone();
        connection.counters = Some(counters.clone());
        connection.shared = Some(region.mapping(self.universe.trust.get(), shared, Some(hazards), Some(counters)));
        true
    }

    fn hazards(&self) -> Option<Rc<HazardPointers>> {
        let network = self.universe.network.borrow();
        let connection = network.connections.get(&self.connection)?;
        connection.hazards.clone()
    }

    fn counters(&self) -> Option<Mapped<ClientCounters>> {
        let network = self.universe.network.borrow();
        network.connections.get(&self.connection)?.counters.clone()
    }

    fn count(&self, counts: &[(ClientCounter, u64)]) -> bool {
        self.counters().is_some_and(|counters| {
            counts.iter().for_each(|(counter, count)| counters.add(*counter, *count));
            true
        })
    }

    fn mapping(&self) -> Option<Rc<StoreMapping>> {
        let network = self.universe.network.borrow();
        let connection = network.connections.get(&self.connection)?;
        connection.shared.clone()
    }

    fn set_buffer_sizes(&self, _receive: usize, _send: usize) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for SimSocket {
    fn drop(&mut self) {
        if !self.is_frozen() {
            if let (0, Some(mapping)) = (self.end, self.mapping()) {
                mapping.end();
            }
            self.universe.network.borrow_mut().close(&self.universe, self.connection, self.end);
        }
    }
}

/// The end asked for, then the other one.
fn two_ends(connection: &mut SimConnection, end: usize) -> [&mut SimEnd; 2] {
    let [caller, called] = &mut connection.ends;
    if end == 0 { [caller, called] } else { [called, caller] }
}

pub(super) struct SimListener {
    pub(super) universe: Rc<Universe>,
    pub(super) node: NodeId,
    pub(super) address: SocketAddr,
    pub(super) id: u64,
}

impl ListenSocket for SimListener {
    fn try_accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let mut network = self.universe.network.borrow_mut();
        let Some(listening) = network.listeners.get_mut(&self.address).filter(|listening| listening.id == self.id)
        else {
            return Err(ErrorKind::WouldBlock.into());
        };
        let connection = listening.queue.pop_front().ok_or(ErrorKind::WouldBlock)?;
        // Its caller may have given up meanwhile, and everything about it is forgotten.
        let ends = &network.connections.get(&connection).ok_or(ErrorKind::ConnectionAborted)?.ends;
        let (peer, readiness) = (ends[0].address, ends[1].readiness.clone());
        drop(network);
        let socket = SimSocket { universe: self.universe.clone(), node: self.node, connection, end: 1 };
        Ok((Stream::new(socket, readiness), peer))
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        let mut network = self.universe.network.borrow_mut();
        if network.listeners.get(&self.address).is_some_and(|listening| listening.id == self.id)
            && let Some(listening) = network.listeners.remove(&self.address)
        {
            for connection in listening.queue {
                network.close(&self.universe, connection, 1);
            }
        }
    }
}
