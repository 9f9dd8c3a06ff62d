//! Moments of a run that can be told apart by what the network does, for tests that let something break at each of
//! them.

use super::network::Arrival;
use super::world::{NodeId, World};

impl World {
    /// Counts pieces of bytes: each when it is sent and once more when it arrives. As long as it stays, no node has
    /// heard anything new or said anything.
    pub fn traffic(&self) -> u64 {
        self.universe.network.borrow().traffic
    }

    /// Breaks all connections between two nodes: both sides see a reset, and everything that is on its way is lost.
    pub fn lose(&self, one: NodeId, other: NodeId) {
        let universe = &*self.universe;
        universe.trace(0x44, (one.0 as u64) << 32 | other.0 as u64);
        let mut network = universe.network.borrow_mut();
        for id in network.connections_of(one, Some(other)) {
            for end in 0..2 {
                let lost = network.take_in_flight(id, end).into_iter();
                let size: usize =
                    lost.map(|arrival| if let Arrival::Bytes(bytes) = arrival { bytes.len() } else { 0 }).sum();
                if let Some(connection) = network.connections.get_mut(&id) {
                    connection.ends[end].in_flight -= size;
                }
                network.send_to(universe, id, end, Arrival::Reset);
            }
        }
    }
}
