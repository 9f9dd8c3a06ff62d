//! The driver of one simulated node.

use super::backing::SimBacking;
use super::device;
use super::disk::SimStorage;
use super::network::Network;
use super::world::{Node, NodeId, Universe};
use crate::Nanos;
use crate::backing::Backing;
use crate::device::{Device, DeviceOptions};
use crate::driver::{Driver, SIMULATED_NAME};
use crate::operations::{OperationDelays, OperationTable};
use crate::region::Storage;
use crate::stream::{Listener, Stream};
use crate::task::ReadyQueue;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

pub(crate) struct SimDriver {
    universe: Rc<Universe>,
    id: NodeId,
    node: Rc<Node>,
    operations: Rc<OperationTable>,
}

impl SimDriver {
    pub fn new(universe: Rc<Universe>, id: NodeId) -> SimDriver {
        let node = universe.node(id);
        let (clock_universe, clock_node) = (universe.clone(), node.clone());
        let clock = move || clock_node.local_time(clock_node.moment(&clock_universe));
        SimDriver { universe, id, node, operations: Rc::new(OperationTable::new(Box::new(clock))) }
    }
}

impl Driver for SimDriver {
    fn name(&self) -> &'static str {
        SIMULATED_NAME
    }

    fn now(&self) -> Nanos {
        self.node.local_time(self.node.moment(&self.universe))
    }

    fn is_core_wanted(&self) -> bool {
        self.node.core_wanted.get()
    }

    fn wall_clock(&self) -> i64 {
        self.universe.wall_clock(&self.node)
    }

    fn random(&self) -> u64 {
        self.node.random.next()
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&self.node.random.next().to_le_bytes()[..part.len()]);
        }
    }

    fn connect(&self, address: SocketAddr) -> io::Result<Stream> {
        Network::connect(&self.universe, self.id, address)
    }

    fn listen(&self, address: SocketAddr) -> io::Result<Listener> {
        Network::listen(&self.universe, self.id, address)
    }

    fn storage(&self, directory: &Path) -> io::Result<Rc<dyn Storage>> {
        Ok(Rc::new(SimStorage::new(self.universe.clone(), self.id, &directory.to_string_lossy())))
    }

    fn note_entries(&self, count: u64) {
        self.node.spend(|costs| count * costs.entry_ns);
    }

    fn device(&self, path: &Path, options: &DeviceOptions) -> io::Result<Device> {
        device::open(&self.universe, &self.node, &self.operations, path, options)
    }

    fn backing(&self, root: &Path) -> io::Result<Box<dyn Backing>> {
        Ok(Box::new(SimBacking::new(&self.universe, &self.node, root)))
    }

    /// The world wakes tasks itself, between turns; operations on devices and calls on the site complete here.
    fn poll(&self) -> bool {
        let ended = self.node.site_calls.complete_due(&self.universe);
        self.node.devices.complete_due(&self.universe) | ended
    }

    fn operation_delays(&self) -> OperationDelays {
        self.operations.delays()
    }

    fn submit(&self) {
        self.operations.note_submitted();
    }

    fn wait(&self, _until: Option<Nanos>) {
        panic!("a simulated reactor is turned by its world: use World::run instead of block_on");
    }

    fn attach(&self, _queue: &Arc<ReadyQueue>) {}
}
