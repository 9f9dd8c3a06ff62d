//! The cluster: id, key, map and addresses, and the text file in the run directory that holds them.

use crate::identity::{FileId, HASH_VERSION, Slot, dentry_slot, ring_hash};
use crate::layout::{Layout, LayoutPolicy, LayoutWish};
use crate::limits::*;
use std::fmt::Write as _;
use std::net::SocketAddr;

pub const KEY_SIZE: usize = 32;
const VIRTUAL_NODES: u64 = 100;
const FORMAT: &str = "tabane cluster 1";

/// How slots are assigned to servers and chunks of new files to slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Slot mod server count; chunks striped: perfectly even.
    Modular,
    /// Slots and chunks scattered by hash over a consistent-hashing ring with virtual nodes.
    Ring,
}

/// The map of a cluster whose slots have never moved, the only one that there is.
const MAP_VERSION_FIRST: u64 = 1;

impl Placement {
    pub fn name(self) -> &'static str {
        match self {
            Placement::Modular => "modular",
            Placement::Ring => "ring",
        }
    }

    pub fn parse(text: &str) -> Option<Placement> {
        [Placement::Modular, Placement::Ring].into_iter().find(|placement| placement.name() == text)
    }
}

/// How what travels over networks is protected from those who reach the network but do not hold the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Protection {
    /// Not beyond the handshake.
    Off = 0,
    /// What is changed, repeated, left out or put into another order on the way is noticed.
    Integrity = 1,
    /// The same, and nobody on the way reads it.
    Encryption = 2,
}

impl Protection {
    pub const ALL: [Protection; 3] = [Protection::Off, Protection::Integrity, Protection::Encryption];

    pub fn name(self) -> &'static str {
        match self {
            Protection::Off => "off",
            Protection::Integrity => "integrity",
            Protection::Encryption => "encryption",
        }
    }

    pub fn parse(text: &str) -> Option<Protection> {
        Protection::ALL.into_iter().find(|protection| protection.name() == text)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerAddress {
    pub address: SocketAddr,
}

/// Everything that a client or server has to know of its cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct Cluster {
    pub id: u128,
    pub key: [u8; KEY_SIZE],
    /// Rises with every change of the map.
    pub map_version: u64,
    pub slot_count: u32,
    pub placement: Placement,
    /// Chunk size of files whose creator did not choose, in bytes.
    pub chunk_size: u32,
    pub servers: Vec<ServerAddress>,
    /// Of all connections over networks.
    pub protection: Protection,
    /// Whose file it was read from, where it was: a user whose processes may serve it. No part of the text.
    pub owner: Option<u32>,
    map: Vec<u32>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cluster {:032x} of {} servers", self.id, self.servers.len())
    }
}

/// Slots of a cluster of `server_count` servers: the smallest allowed multiple of it.
pub fn slot_count_for(server_count: u32) -> u32 {
    let least = SLOT_COUNT_MIN.max(server_count * SLOTS_PER_SERVER_MIN);
    least.div_ceil(server_count) * server_count
}

impl Cluster {
    /// A new cluster. Panics unless 1 <= servers <= SERVER_COUNT_MAX.
    pub fn new(
        id: u128,
        key: [u8; KEY_SIZE],
        placement: Placement,
        chunk_size: u32,
        servers: Vec<ServerAddress>,
    ) -> Cluster {
        let server_count = servers.len() as u32;
        assert!((1..=SERVER_COUNT_MAX).contains(&server_count));
        let slot_count = slot_count_for(server_count);
        let map = first_map(placement, slot_count, server_count);
        Cluster {
            id,
            key,
            map_version: MAP_VERSION_FIRST,
            slot_count,
            placement,
            chunk_size,
            servers,
            protection: Protection::Off,
            owner: None,
            map,
        }
    }

    pub fn server_count(&self) -> u32 {
        self.servers.len() as u32
    }

    /// The server that a slot is assigned to. Panics on a slot out of range; decoded slots are checked before.
    pub fn server_of(&self, slot: Slot) -> u32 {
        self.map[slot as usize]
    }

    /// The server of a file's inode, or `None` when the id's slot is out of range.
    pub fn home_of(&self, file: FileId) -> Option<u32> {
        self.map.get(file.home() as usize).copied()
    }

    pub fn dentry_slot(&self, parent: FileId, name: &[u8]) -> Slot {
        dentry_slot(parent, name, self.slot_count)
    }

    /// The server of a directory entry.
    pub fn dentry_server(&self, parent: FileId, name: &[u8]) -> u32 {
        self.server_of(self.dentry_slot(parent, name))
    }

    /// The server of a chunk.
    pub fn chunk_server(&self, file: FileId, layout: &Layout, chunk_index: u64) -> u32 {
        self.server_of(layout.slot_of(file, chunk_index, self.slot_count))
    }

    /// The layout of a new file at `home`, of a wish that was checked.
    pub fn layout_for(&self, home: Slot, wish: &LayoutWish) -> Layout {
        let policy = match self.placement {
            Placement::Modular => LayoutPolicy::Modular,
            Placement::Ring => LayoutPolicy::Ring,
        };
        let chunk_size = if wish.chunk_size == 0 { self.chunk_size } else { wish.chunk_size };
        let mut layout = Layout::default_for(policy, home, self.slot_count, chunk_size);
        if policy == LayoutPolicy::Modular {
            let first = wish.first.and_then(|first| self.map.iter().position(|server| *server == first));
            layout.first = first.map_or(home, |slot| slot as Slot);
            layout.run = wish.run.max(1);
            if (1..self.server_count()).contains(&wish.width) {
                layout.width = wish.width;
            }
        }
        layout
    }

    /// The cluster file's text.
    pub fn to_text(&self) -> String {
        let mut text = format!("{FORMAT}\nid = {:032x}\nkey = ", self.id);
        for byte in self.key {
            let _ = write!(text, "{byte:02x}");
        }
        let _ = write!(
            text,
            "\nhash = {HASH_VERSION}\nmap = {}\nslots = {}\nplacement = {}\nchunk-size = {}\nprotect = {}\n",
            self.map_version,
            self.slot_count,
            self.placement.name(),
            self.chunk_size,
            self.protection.name()
        );
        for server in &self.servers {
            let _ = writeln!(text, "server = {}", server.address);
        }
        text
    }

    /// Reads a cluster file. The error says which line is wrong.
    pub fn parse(text: &str) -> Result<Cluster, String> {
        let mut lines = text.lines();
        if lines.next() != Some(FORMAT) {
            return Err(format!("is not a cluster file of this version (it must start with \"{FORMAT}\")"));
        }
        let mut fields = ClusterFields::default();
        for line in lines.filter(|line| !line.trim().is_empty()) {
            let (key, value) = line.split_once('=').ok_or_else(|| format!("line \"{line}\" has no '='"))?;
            fields.take(key.trim(), value.trim()).ok_or_else(|| format!("line \"{line}\" is not understood"))?;
        }
        fields.finish()
    }
}

#[derive(Default)]
struct ClusterFields {
    id: Option<u128>,
    key: Option<[u8; KEY_SIZE]>,
    hash: Option<u32>,
    map_version: Option<u64>,
    slot_count: Option<u32>,
    placement: Option<Placement>,
    chunk_size: Option<u32>,
    protection: Option<Protection>,
    servers: Vec<ServerAddress>,
}

impl ClusterFields {
    fn take(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "id" => self.id = Some(u128::from_str_radix(value, 16).ok()?),
            "key" => self.key = Some(parse_key(value)?),
            "hash" => self.hash = Some(value.parse().ok()?),
            "map" => self.map_version = Some(value.parse().ok()?),
            "slots" => self.slot_count = Some(value.parse().ok()?),
            "placement" => self.placement = Some(Placement::parse(value)?),
            "chunk-size" => self.chunk_size = Some(value.parse().ok()?),
            "protect" => self.protection = Some(Protection::parse(value)?),
            "server" => self.servers.push(ServerAddress { address: value.parse().ok()? }),
            _ => return None,
        }
        Some(())
    }

    fn finish(self) -> Result<Cluster, String> {
        let missing = |name: &str| format!("has no line \"{name} = ...\"");
        let server_count = self.servers.len() as u32;
        if !(1..=SERVER_COUNT_MAX).contains(&server_count) {
            return Err(missing("server"));
        }
        if self.hash != Some(HASH_VERSION) {
            return Err(format!("uses another version of the hashes than this program ({HASH_VERSION})"));
        }
        let map_version = self.map_version.ok_or_else(|| missing("map"))?;
        if map_version != MAP_VERSION_FIRST {
            return Err(format!(
                "map = {map_version} is of a later version of Tabane, which can move slots; this one knows map \
                 {MAP_VERSION_FIRST} alone"
            ));
        }
        let slot_count = self.slot_count.ok_or_else(|| missing("slots"))?;
        if slot_count != slot_count_for(server_count) {
            return Err(format!("slots = {slot_count} does not fit {server_count} servers"));
        }
        let chunk_size = self.chunk_size.ok_or_else(|| missing("chunk-size"))?;
        if !(CHUNK_SIZE_MIN..=CHUNK_SIZE_MAX).contains(&chunk_size) {
            return Err(format!("chunk-size = {chunk_size} is out of range ({CHUNK_SIZE_MIN} to {CHUNK_SIZE_MAX})"));
        }
        let placement = self.placement.ok_or_else(|| missing("placement"))?;
        Ok(Cluster {
            id: self.id.ok_or_else(|| missing("id"))?,
            key: self.key.ok_or_else(|| missing("key"))?,
            map_version,
            slot_count,
            placement,
            chunk_size,
            map: first_map(placement, slot_count, server_count),
            servers: self.servers,
            // Files of earlier versions say nothing of it.
            protection: self.protection.unwrap_or(Protection::Off),
            owner: None,
        })
    }
}

fn parse_key(text: &str) -> Option<[u8; KEY_SIZE]> {
    if text.len() != KEY_SIZE * 2 || !text.is_ascii() {
        return None;
    }
    let mut key = [0; KEY_SIZE];
    for (index, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[index * 2..index * 2 + 2], 16).ok()?;
    }
    Some(key)
}

/// Assigns slots to servers. Modular: slot mod N. Ring: each slot to the next virtual node clockwise (consistent
/// hashing as in Karger et al., STOC 1997).
fn first_map(placement: Placement, slot_count: u32, server_count: u32) -> Vec<u32> {
    match placement {
        Placement::Modular => (0..slot_count).map(|slot| slot % server_count).collect(),
        Placement::Ring => {
            let mut ring: Vec<(u64, u32)> = (0..server_count)
                .flat_map(|server| {
                    (0..VIRTUAL_NODES).map(move |node| (ring_hash(1, u64::from(server) * VIRTUAL_NODES + node), server))
                })
                .collect();
            ring.sort_unstable();
            let next = |slot: u32| {
                let position = ring_hash(2, u64::from(slot));
                let index = ring.partition_point(|(node, _)| *node < position) % ring.len();
                ring[index].1
            };
            (0..slot_count).map(next).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(count: u32, placement: Placement) -> Cluster {
        let servers = (0..count)
            .map(|i| ServerAddress { address: SocketAddr::from(([127, 0, 0, 1], 4000 + i as u16)) })
            .collect();
        Cluster::new(7, [9; KEY_SIZE], placement, 1 << 20, servers)
    }

    /// Goal: a cluster file read back is the cluster that was written.
    #[test]
    fn text_round_trip() {
        for placement in [Placement::Modular, Placement::Ring] {
            for protection in Protection::ALL {
                let cluster = Cluster { protection, ..cluster(5, placement) };
                assert_eq!(Cluster::parse(&cluster.to_text()), Ok(cluster));
            }
        }
    }

    /// Goal: a damaged cluster file is refused with words; one that says nothing of protection has none.
    /// Method: drop each line in turn.
    #[test]
    fn missing_lines_are_refused() {
        let text = cluster(1, Placement::Modular).to_text();
        for skipped in text.lines() {
            let cut: Vec<&str> = text.lines().filter(|line| *line != skipped).collect();
            let is_needed = !skipped.starts_with("protect");
            assert_eq!(Cluster::parse(&cut.join("\n")).is_err(), is_needed, "{skipped}");
        }
    }

    /// Goal: what a later version may write into the file is refused with words, not taken for what this one knows.
    #[test]
    fn later_versions_are_refused() {
        let text = cluster(2, Placement::Modular).to_text();
        for (line, word) in [("map = 1", "map = 2"), (&*format!("hash = {HASH_VERSION}"), "hash = 99")] {
            assert!(text.contains(line));
            let error = Cluster::parse(&text.replace(line, word)).expect_err(word);
            assert!(error.contains("version"), "{error}");
        }
    }

    /// Goal: modular placement spreads neighbouring chunks over all servers, perfectly even.
    #[test]
    fn modular_is_even() {
        let cluster = cluster(5, Placement::Modular);
        let layout = cluster.layout_for(3, &LayoutWish::default());
        let file = FileId::new(10, 3);
        let mut counts = [0; 5];
        for chunk in 0..1000 {
            counts[cluster.chunk_server(file, &layout, chunk) as usize] += 1;
        }
        assert_eq!(counts, [200; 5]);
        assert_eq!(cluster.chunk_server(file, &layout, 0), cluster.server_of(3));
    }

    /// Goal: a wish is kept: where a file begins, over how many servers, and how many neighbours share one; too many
    /// servers stand for all, and where a hash leads only the chunk size counts.
    #[test]
    fn wishes() {
        let file = FileId::new(10, 3);
        let modular = cluster(5, Placement::Modular);
        let wish = LayoutWish { chunk_size: 8192, width: 2, run: 3, first: Some(4) };
        let layout = modular.layout_for(3, &wish);
        let servers: Vec<u32> = (0..8).map(|chunk| modular.chunk_server(file, &layout, chunk)).collect();
        assert_eq!((servers, layout.chunk_size), (vec![4, 4, 4, 0, 0, 0, 4, 4], 8192));
        let all = modular.layout_for(3, &LayoutWish { width: 5, ..LayoutWish::default() });
        assert_eq!(all, modular.layout_for(3, &LayoutWish::default()));
        let ring = cluster(5, Placement::Ring);
        assert_eq!(ring.layout_for(3, &wish), ring.layout_for(3, &LayoutWish::of_chunk_size(8192)));
        assert!(LayoutWish { first: Some(5), ..wish }.check(5).is_err());
        assert!(LayoutWish { chunk_size: 7, ..wish }.check(5).is_err() && wish.check(5).is_ok());
    }

    /// Goal: ring placement uses every server, within a factor of two of even.
    #[test]
    fn ring_reaches_all() {
        let cluster = cluster(8, Placement::Ring);
        let layout = cluster.layout_for(0, &LayoutWish::default());
        let mut counts = [0u32; 8];
        for chunk in 0..8000 {
            counts[cluster.chunk_server(FileId::new(2, 0), &layout, chunk) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (500..2000).contains(count)), "{counts:?}");
    }
}
