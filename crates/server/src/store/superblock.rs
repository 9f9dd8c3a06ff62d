//! The superblock: whose store this is, how it is laid out, and where recovery starts.
//!
//! Region `super`: at 0 the identity, written last at creation and never again; behind it the placement, which stores
//! that were made before it was kept lack, and how the journal grows, where it does; at 4096 and 8192 two checkpoint
//! heads, of which the valid one with the higher version counts. A new head never overwrites the one that counts.

use super::entries::Reader;
use super::journal::Position;
use super::salvage::has_flipped_identity;
use super::{JournalGrowth, Lsn, StoreError, StoreIdentity, StoreOptions};
use reactor::Region;
use std::rc::Rc;
use wire::Placement;

/// Version of everything on the medium; others are refused.
pub const FORMAT_VERSION: u32 = 7;
/// Version of the placement hash (siphash-1-3 of parent id and name).
pub const PLACEMENT_VERSION: u32 = 1;
/// Bytes of the region.
pub const SUPER_SIZE: u64 = 16 * 1024;
const MAGIC: u64 = u64::from_le_bytes(*b"TabaneSt");
pub const HEAD_OFFSET: u64 = 4096;
const HEAD_STEP: u64 = 4096;
/// Bytes of the identity with its checksum; the placement's number follows, and its checksum.
pub const IDENTITY_SIZE: u64 = 64;
/// Where an identity says whose store it is.
const OWNER_AT: usize = 16;
/// Where an identity says how large `data` and the journal are.
const SIZES_AT: usize = 40;
/// Where is told how the journal grows, with a checksum; zeros where it does not.
pub const GROWTH_OFFSET: u64 = 72;
pub const GROWTH_SIZE: u64 = 16;
const PLACEMENTS: [Placement; 2] = [Placement::Modular, Placement::Ring];

/// Where recovery starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Number of the checkpoint; each new one has the next.
    pub sequence: u64,
    /// Where replay of the journal starts.
    pub start: Position,
    /// Segments of the checkpoint.
    pub segments: u32,
    /// Blocks in all segments.
    pub blocks: u64,
    /// Records of the journal below this one survive power loss.
    pub durable: Lsn,
    /// Names the time since power came on when this was written.
    pub power_cycle: u128,
}

/// Bytes of a head without its checksum.
pub const HEAD_SIZE: usize = 72;

/// See the module.
pub struct Superblock {
    region: Rc<dyn Region>,
    /// The cluster whose store this is.
    pub owner: u128,
    /// How the store is laid out.
    pub options: StoreOptions,
    /// The head that counts.
    pub head: Head,
    /// Where it is: the first or the second place.
    place: u64,
    /// Number of the head that was written last; each has the next.
    version: u64,
    /// A head that is written but does not count yet.
    prepared: Option<Head>,
}

impl Superblock {
    /// Writes a new superblock; the identity last, and its magic after the rest.
    pub fn create(region: Rc<dyn Region>, options: StoreOptions, identity: StoreIdentity, head: Head) -> Superblock {
        let owner = identity.cluster_id;
        let mut superblock = Superblock { region, owner, options, head, place: 1, version: 0, prepared: None };
        superblock.advance(head);
        let bytes = encode_identity(&options, identity);
        assert!(bytes.len() as u64 == IDENTITY_SIZE);
        superblock.region.write(IDENTITY_SIZE, &encode_placement(identity.placement));
        if options.journal_growth.size_max > options.journal_size {
            superblock.region.write(GROWTH_OFFSET, &encode_growth(options.journal_growth));
        }
        superblock.region.write(8, &bytes[8..]);
        superblock.region.write(0, &bytes[..8]);
        superblock
    }

    /// Whether the region holds a superblock that was completely written.
    pub fn is_complete(region: &dyn Region) -> bool {
        let mut magic = [0; 8];
        region.read(0, &mut magic);
        u64::from_le_bytes(magic) == MAGIC && newest_head(region).is_some()
    }

    /// Reads and checks a superblock. Errors: `Incompatible`, `Damaged`.
    pub fn open(region: Rc<dyn Region>, identity: StoreIdentity) -> Result<Superblock, StoreError> {
        if region.size() < SUPER_SIZE {
            return Err(StoreError::Incompatible("the file `super` is too short".into()));
        }
        let options = read_identity(region.as_ref(), identity)?;
        let (version, place, head) = newest_head(region.as_ref())
            .ok_or_else(|| StoreError::Damaged("neither checkpoint head in `super` is readable".into()))?;
        Ok(Superblock { region, owner: identity.cluster_id, options, head, place, version, prepared: None })
    }

    /// Makes another head the one that counts.
    pub fn advance(&mut self, head: Head) {
        self.prepare(head);
        self.accept();
    }

    /// Writes another head beside the one that counts.
    pub fn prepare(&mut self, head: Head) {
        self.version += 1;
        let mut bytes = encode_head(self.version, &head);
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        self.region.write(HEAD_OFFSET + (1 - self.place) * HEAD_STEP, &bytes);
        self.prepared = Some(head);
    }

    /// The head that was prepared counts from now on.
    pub fn accept(&mut self) {
        if let Some(head) = self.prepared.take() {
            self.head = head;
            self.place = 1 - self.place;
        }
    }

    /// The region, to be made durable.
    pub fn region(&self) -> &Rc<dyn Region> {
        &self.region
    }
}

/// A head without its checksum.
pub fn encode_head(version: u64, head: &Head) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_SIZE + 4);
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&head.sequence.to_le_bytes());
    bytes.extend_from_slice(&head.start.at.to_le_bytes());
    bytes.extend_from_slice(&head.start.lsn.to_le_bytes());
    bytes.extend_from_slice(&head.start.previous.to_le_bytes());
    bytes.extend_from_slice(&head.segments.to_le_bytes());
    bytes.extend_from_slice(&head.blocks.to_le_bytes());
    bytes.extend_from_slice(&head.durable.to_le_bytes());
    bytes.extend_from_slice(&head.power_cycle.to_le_bytes());
    bytes
}

fn encode_identity(options: &StoreOptions, identity: StoreIdentity) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(80);
    bytes.extend_from_slice(&MAGIC.to_le_bytes());
    bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes.extend_from_slice(&PLACEMENT_VERSION.to_le_bytes());
    bytes.extend_from_slice(&identity.cluster_id.to_le_bytes());
    bytes.extend_from_slice(&identity.server.to_le_bytes());
    bytes.extend_from_slice(&identity.slots.to_le_bytes());
    bytes.extend_from_slice(&options.size.to_le_bytes());
    bytes.extend_from_slice(&options.journal_size.to_le_bytes());
    bytes.extend_from_slice(&u32::from(options.checksums).to_le_bytes());
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

fn read_identity(region: &dyn Region, identity: StoreIdentity) -> Result<StoreOptions, StoreError> {
    if has_flipped_identity(region) {
        return Err(StoreError::Damaged("the identity in `super` does not match its checksum".into()));
    }
    let mut bytes = vec![0; 60];
    region.read(0, &mut bytes);
    let mut crc = [0; 4];
    region.read(bytes.len() as u64, &mut crc);
    let incompatible = |what: String| Err(StoreError::Incompatible(what));
    let mut reader = Reader(&bytes);
    let mut next = || reader.u32().unwrap_or_default();
    let (magic_low, magic_high, format, placement) = (next(), next(), next(), next());
    if u64::from(magic_high) << 32 | u64::from(magic_low) != MAGIC {
        return incompatible(
            "its file `super` does not begin as one of a store: it is damaged, or the creation of the store was \
             interrupted"
                .into(),
        );
    }
    if format != FORMAT_VERSION {
        return incompatible(format!("its format is version {format}; this program reads version {FORMAT_VERSION}"));
    }
    if placement != PLACEMENT_VERSION {
        return incompatible(format!(
            "its placement is version {placement}; this program uses version {PLACEMENT_VERSION}"
        ));
    }
    if crc32c::crc32c(&bytes) != u32::from_le_bytes(crc) {
        return Err(StoreError::Damaged("the identity in `super` does not match its checksum".into()));
    }
    let cluster_id = reader.u128().unwrap_or_default();
    let (server, slots) = (reader.u32().unwrap_or_default(), reader.u32().unwrap_or_default());
    let placement = read_placement(region)?.unwrap_or(identity.placement);
    let found = StoreIdentity { cluster_id, server, slots, placement: identity.placement };
    if found != identity {
        return incompatible(format!(
            "it belongs to server {server} of cluster {cluster_id:032x} with {slots} slots, not to server {} of \
             cluster {:032x} with {} slots",
            identity.server, identity.cluster_id, identity.slots
        ));
    }
    if placement != identity.placement {
        return incompatible(format!(
            "its placement is {}, and the cluster file says {}: names and chunks would be looked for at other servers; \
             put the cluster file back as it was",
            placement.name(),
            identity.placement.name()
        ));
    }
    let (size, journal_size) = (reader.u64().unwrap_or_default(), reader.u64().unwrap_or_default());
    let no_growth = JournalGrowth { size_max: journal_size, ..JournalGrowth::NONE };
    let journal_growth = read_growth(region)?.unwrap_or(no_growth);
    Ok(StoreOptions { size, journal_size, journal_growth, checksums: reader.u32().unwrap_or_default() != 0 })
}

/// Bytes of the journal's region, percents of a checkpoint, and the checksum of both.
fn encode_growth(growth: JournalGrowth) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&growth.size_max.to_le_bytes());
    bytes[8..12].copy_from_slice(&growth.checkpoint_percent.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..12]);
    bytes[12..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Bytes of the region of a journal that grows, as the bytes at `GROWTH_OFFSET` say.
pub fn grown_journal_size(growth: &[u8]) -> u64 {
    Reader(growth).u64().unwrap_or_default()
}

/// How the journal grows; nothing where it does not. Errors: `Damaged`.
fn read_growth(region: &dyn Region) -> Result<Option<JournalGrowth>, StoreError> {
    let mut bytes = [0; 16];
    region.read(GROWTH_OFFSET, &mut bytes);
    if bytes == [0; 16] {
        return Ok(None);
    }
    let mut reader = Reader(&bytes);
    let growth = JournalGrowth {
        size_max: reader.u64().unwrap_or_default(),
        checkpoint_percent: reader.u32().unwrap_or_default(),
    };
    if encode_growth(growth) != bytes {
        return Err(StoreError::Damaged(
            "what `super` says of the journal's growth does not match its checksum".into(),
        ));
    }
    Ok(Some(growth))
}

/// The number of a placement, from 1, and its checksum.
fn encode_placement(placement: Placement) -> [u8; 8] {
    let number = PLACEMENTS.iter().position(|known| *known == placement).map_or(0, |index| index as u32 + 1);
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes[4..].copy_from_slice(&crc32c::crc32c(&number.to_le_bytes()).to_le_bytes());
    bytes
}

/// Whether these are the bytes of an identity, of whatever store, that this program reads.
pub fn is_identity(bytes: &[u8]) -> bool {
    let mut reader = Reader(bytes);
    reader.u64() == Some(MAGIC) && (reader.u32(), reader.u32()) == (Some(FORMAT_VERSION), Some(PLACEMENT_VERSION))
}

/// The cluster whose store it is, as an identity says.
pub fn owner(identity: &[u8]) -> u128 {
    Reader(&identity[OWNER_AT..]).u128().unwrap_or_default()
}

/// Bytes of `data` and of the journal, as an identity says.
pub fn sizes(identity: &[u8]) -> (u64, u64) {
    let mut reader = Reader(&identity[SIZES_AT..]);
    (reader.u64().unwrap_or_default(), reader.u64().unwrap_or_default())
}

/// Whether these are the bytes of a placement.
pub fn is_placement(bytes: &[u8]) -> bool {
    PLACEMENTS.into_iter().any(|placement| encode_placement(placement) == bytes)
}

/// The placement that the store was made for; nothing in a store that was made before it was kept. Errors: `Damaged`.
fn read_placement(region: &dyn Region) -> Result<Option<Placement>, StoreError> {
    let mut bytes = [0; 8];
    region.read(IDENTITY_SIZE, &mut bytes);
    if bytes == [0; 8] {
        return Ok(None);
    }
    let found = PLACEMENTS.into_iter().find(|placement| encode_placement(*placement) == bytes);
    found.map(Some).ok_or_else(|| StoreError::Damaged("the placement in `super` is none".into()))
}

/// Version, place and contents of the head that counts.
fn newest_head(region: &dyn Region) -> Option<(u64, u64, Head)> {
    let heads = [0, 1].map(|place| read_head(region, place).map(|(version, head)| (version, place, head)));
    heads.into_iter().flatten().max_by_key(|(version, ..)| *version)
}

fn read_head(region: &dyn Region, place: u64) -> Option<(u64, Head)> {
    let mut bytes = [0; HEAD_SIZE + 4];
    region.read(HEAD_OFFSET + place * HEAD_STEP, &mut bytes);
    let (fields, crc) = bytes.split_at(HEAD_SIZE);
    if crc32c::crc32c(fields).to_le_bytes() != crc {
        return None;
    }
    decode_head(fields)
}

/// The version and the fields of a head. Nothing when they make no sense: a page of zeros has the checksum of nothing
/// else, and no head is number 0.
pub fn decode_head(fields: &[u8]) -> Option<(u64, Head)> {
    let mut reader = Reader(fields);
    let (version, sequence) = (reader.u64()?, reader.u64()?);
    let start = Position { at: reader.u64()?, lsn: reader.u64()?, previous: reader.u32()? };
    let (segments, blocks) = (reader.u32()?, reader.u64()?);
    let (durable, power_cycle) = (reader.u64()?, reader.u128()?);
    let head = Head { sequence, start, segments, blocks, durable, power_cycle };
    (version > 0 && sequence > 0 && start.lsn > 0).then_some((version, head))
}
