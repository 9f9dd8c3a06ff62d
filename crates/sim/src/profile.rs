//! What one seed is about: how large the cluster is, what its clients do, and what goes wrong.

use crate::random::Random;
use client::Bounds as ClientBounds;
use reactor::{CacheFault, LeftoverFault, Nanos, Validation};
use reactor::{HAZARD_COUNT, SLOT_COUNT};
use server::{BackingFault, Bounds, ConflictPolicy, EntryKeeping, FlushPolicy, Flushing, JournalGrowth, ReadLeasing};
use wire::{Placement, Protection};

pub const MILLISECOND: Nanos = 1_000_000;
pub const SECOND: Nanos = 1_000_000_000;

/// What the caller may fix instead of the seed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Operations of all clients together.
    pub steps: Option<u64>,
    pub servers: Option<u32>,
    /// Nothing goes wrong.
    pub no_faults: bool,
    /// There is a backing tree.
    pub backing: bool,
    /// A rule is broken on purpose.
    pub sabotage: Sabotage,
}

/// What the clients do most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    Mixed,
    Names,
    Contents,
}

/// A rule that is broken on purpose, so that tests see that it is noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sabotage {
    #[default]
    None,
    /// Every append and exclusive create is carried out twice, as if the servers kept no outcomes.
    ApplyTwice,
    /// Some writes are acknowledged and never made.
    LoseWrites,
    /// A server forgets everything before the last look.
    LoseStore,
    /// Stored bytes change by themselves before the last look.
    FlipBits,
    /// Something is left behind when everything is deleted.
    LeaveBehind,
    /// Listings tell one name less than there is.
    HideNames,
    /// Directories are shown as if a server with a share of them did not answer.
    HideShares,
    /// Syncs are acknowledged and never made.
    SkipSyncs,
    /// The devices that keep stores say that they have flushed, and did not.
    IgnoreFlushes,
    /// Clients do not look whether something of this kind that they have read in a server's memory is so still.
    LeaveOut(Validation),
    /// Servers change names and rights without calling back what they have lent.
    KeepDelegations,
    /// Servers change things before those who keep entries have confirmed that they have forgotten them.
    HurryChanges,
    /// Servers change contents that clients have a lease of.
    IgnoreReadLeases,
    /// Servers do not know that somebody may still write to pages that they had registered.
    ForgetMappingLocks,
    /// Servers leave names and files in the attribute caches that clients see when they are not so any more, or leave
    /// some out in silence.
    Cache(CacheFault),
    /// Servers do not see which files clients hold that they have opened by a look.
    IgnoreHazards,
    /// Clients do not see what others have submitted, or are about to.
    IgnoreIntentLocks,
    /// Servers do other things before they take up what was submitted.
    LateSubmissions,
    /// Servers take up what clients have written client by client, not in the order of the writes.
    MixWrites,
    /// Servers that start again find too little or too much of what was submitted to the life before.
    Leftovers(LeftoverFault),
    /// Clients copy into registered pages once more after they have sent the commit.
    WriteOn,
    /// Servers do something wrong with their backing tree.
    Backing(BackingFault),
}

/// Which faults a run may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Servers are killed between two turns of their loop, and started again.
    pub kills: bool,
    /// Servers die between or within two writes to their store.
    pub torn_kills: bool,
    pub cuts: bool,
    pub partitions: bool,
    pub slow_servers: bool,
    pub client_crashes: bool,
    /// Servers are stopped in good order, and started again.
    pub stops: bool,
    /// The medium refuses to give space.
    pub refusals: bool,
    /// Wall clocks jump.
    pub clock_jumps: bool,
    /// Servers lose power, where media keep what was synced.
    pub power_losses: bool,
    /// Media refuse to make data or journals durable.
    pub failed_syncs: bool,
    /// Stored bytes go bad, where there are checksums.
    pub rot: bool,
    /// Bits change on the network, where connections are protected.
    pub flips: bool,
    /// Connections of strangers, who say nothing, nonsense, or the begin of something.
    pub strangers: bool,
}

impl Faults {
    pub fn any(&self) -> bool {
        *self != Faults::default()
    }

    /// With what may go wrong with the media.
    fn on_medium(self, seed: u64, stable: bool, checksums: bool) -> Faults {
        let mut random = Random::new(seed ^ 0x6d65_6469);
        let power_losses = stable && self.any() && random.percent(60);
        let failed_syncs = stable && self.any() && random.percent(15);
        let rot = checksums && self.any() && random.percent(15);
        Faults { power_losses, failed_syncs, rot, ..self }
    }

    /// Without what may take back what somebody was told.
    fn without_losses(self) -> Faults {
        Faults { power_losses: false, failed_syncs: false, ..self }
    }

    /// With what may come over the network.
    fn on_network(self, seed: u64, protection: Protection) -> Faults {
        let mut random = Random::new(seed ^ 0x6e65_7477);
        let flips = protection != Protection::Off && self.any() && random.percent(50);
        Faults { flips, strangers: self.any() && random.percent(20), ..self }
    }
}

/// One run.
#[derive(Clone, Debug)]
pub struct Profile {
    pub seed: u64,
    pub servers: u32,
    pub clients: u32,
    /// Operations that each client has under way at a time, at most.
    pub tasks: u32,
    /// Operations of all clients together.
    pub steps: u64,
    pub placement: Placement,
    /// Chunk sizes of new files, in bytes.
    pub chunk_sizes: Vec<u32>,
    /// Servers that new files are spread over, and neighbouring chunks at one of them; 0: the usual way.
    pub stripes: (u32, u32),
    pub checksums: bool,
    /// Of connections over the network.
    pub protection: Protection,
    /// Whether the servers' media keep what was synced when power is lost (a disk), or nothing (tmpfs).
    pub stable_media: bool,
    /// Whether those are devices, with the stores in memory.
    pub devices: bool,
    /// Bytes of data that servers have in memory at most then.
    pub buffer: u64,
    /// Whether servers with their store in memory lend it to some of their clients, to read from.
    pub short_circuit: bool,
    /// Whether some clients reach the servers through one of them.
    pub relaying: bool,
    /// Whether every other client keeps what it is told of names, as the kernel of a mount does.
    pub keepers: bool,
    /// Whether clients ask contacts first.
    pub contacts: bool,
    /// Connections of each server.
    pub connections_max: usize,
    /// Whether they also register pages for them to write to.
    pub registered_buffers: bool,
    pub read_leasing: ReadLeasing,
    /// How much servers remember.
    pub bounds: Bounds,
    /// How much clients remember.
    pub client_bounds: ClientBounds,
    /// Files that a client holds by hazard pointers, and submissions of it that wait, at each server.
    pub hazards: usize,
    pub submissions: u64,
    pub store_size: u64,
    pub journal_size: u64,
    /// How it grows, on media that forget.
    pub journal_growth: JournalGrowth,
    /// Silence after which a client gives up, and a server on another.
    pub client_timeout: Nanos,
    pub server_timeout: Nanos,
    pub session_grace: Nanos,
    pub faults: Faults,
    /// How often something goes wrong, at most.
    pub fault_count: u64,
    /// Longest pause of a client between two operations.
    pub pause_max: Nanos,
    pub flavour: Flavour,
    /// Whether clients but the first come late, and sleep through a part of what others do.
    pub tardy: bool,
    /// Whether clients fork children now and then.
    pub forks: bool,
    /// Whether clients meet on few names and offsets.
    pub crowded: bool,
    /// Latency of the network: least and most.
    pub latency: (Nanos, Nanos),
    pub sabotage: Sabotage,
    /// Whether the cluster has a backing tree.
    pub backing: bool,
    /// When changes over it go back by themselves.
    pub flushing: Flushing,
}

const STEPS_DEFAULT: u64 = 300;
const CONNECTIONS_MAX: usize = 256;
/// Journals from this size on do not become the smallest where they grow.
const LARGE_JOURNAL_SIZE: u64 = 1 << 20;
/// Sessions that servers know at least where there is a backing tree.
const BACKING_SESSIONS_MIN: usize = 8;
/// Bytes that are always enough.
const STORE_SIZE: u64 = 64 << 20;

impl Profile {
    /// Whether stores lie in memory that a device keeps.
    pub fn is_on_devices(&self) -> bool {
        self.stable_media && self.devices
    }

    /// Servers and clients remember as much as real ones, for tests that count what they ask each other.
    pub fn remember_all(&mut self) {
        self.bounds = Bounds::default();
        self.client_bounds = ClientBounds::default();
        (self.hazards, self.submissions) = (HAZARD_COUNT, SLOT_COUNT);
    }

    /// Whether a server may say that its store is full.
    pub fn may_be_full(&self) -> bool {
        self.store_size < STORE_SIZE || self.faults.refusals
    }

    /// The run that a seed stands for.
    pub fn new(seed: u64, overrides: &Overrides) -> Profile {
        let mut random = Random::new(seed ^ 0x7072_6f66);
        let servers = random.between(1, 5) as u32;
        let faults = draw_faults(&mut random);
        let all_sizes = [4096, 47_008, 1 << 20];
        let chunk_sizes = match random.below(4) {
            0 => all_sizes.to_vec(),
            which => vec![all_sizes[which as usize - 1]],
        };
        let devices = Random::new(seed ^ 0x6465_7669).percent(50);
        let (checksums, stable_media) = (random.percent(30), Random::new(seed ^ 0x6469_736b).percent(35));
        // Sessions are given up on before their clients give up.
        let forgetful = random.percent(20);
        let latency_min = random.between(5_000, 200_000);
        let mut extra = Random::new(seed ^ 0x6578_7472_6100);
        let (tardy, filling) = (extra.percent(25), faults.any() && !overrides.no_faults && extra.percent(6));
        let protection = draw_protection(&mut Random::new(seed ^ 0x7072_6f74));
        let journal_growth = draw_journal_growth(&mut Random::new(seed ^ 0x6772_6f77));
        let table_seed = (!overrides.no_faults).then_some(seed);
        let faults = Faults { kills: faults.kills || filling, ..faults };
        let faults = faults.on_medium(seed, stable_media, checksums).on_network(seed, protection);
        let faults = if overrides.backing { faults.without_losses() } else { faults };
        let bounds = Bounds {
            entry_keeping: draw_entry_keeping(&mut Random::new(seed ^ 0x6b65_6570)),
            taken_up_names: draw_taken_up_names(&mut Random::new(seed ^ 0x6e61_6d65)),
            ..draw_table_bounds(table_seed, draw_bounds(&mut Random::new(seed ^ 0x626f_756e_6473)))
        };
        // Flushes, and who looks at what they have left, are clients too; one that never finds room is told that the
        // server can't be reached.
        let sessions_min = if overrides.backing { BACKING_SESSIONS_MIN } else { 0 };
        let bounds = Bounds { sessions: bounds.sessions.max(sessions_min), ..bounds };
        Profile {
            seed,
            servers: overrides.servers.unwrap_or(servers),
            clients: random.between(1, 4) as u32,
            tasks: random.between(1, 4) as u32,
            steps: overrides.steps.unwrap_or(STEPS_DEFAULT),
            placement: if random.percent(25) { Placement::Ring } else { Placement::Modular },
            chunk_sizes,
            // Not drawn, so that other seeds go on as before.
            stripes: if seed % 4 == 3 { (1 + (seed / 4 % 3) as u32, 1 + (seed / 16 % 3) as u32) } else { (0, 0) },
            checksums,
            protection,
            store_size: match random.percent(6).then(|| random.between(1, 3) << 20) {
                _ if filling => extra.between(1, 2) << 20,
                drawn => drawn.unwrap_or(STORE_SIZE),
            },
            tardy,
            // Where servers know few sessions there are no more than the clients have that a run begins with.
            forks: bounds.sessions == Bounds::default().sessions && Random::new(seed ^ 0x666f_726b).percent(30),
            // A small journal makes checkpoints frequent.
            journal_size: match *random.choose(&[64 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 8 << 20]) {
                ..LARGE_JOURNAL_SIZE if journal_growth != JournalGrowth::NONE && !stable_media => 64 << 10,
                // A sync of a device may take a hundred times as long as another, while which those that are under way
                // would fill a tiny one.
                drawn if stable_media && devices => drawn.max(256 << 10),
                drawn => drawn,
            },
            journal_growth,
            client_timeout: if forgetful { 20 * SECOND } else { random.between(2, 10) * SECOND },
            server_timeout: random.between(1, 4) * SECOND,
            session_grace: if forgetful { random.between(1, 10) * SECOND / 5 } else { random.between(3, 60) * SECOND },
            faults: if overrides.no_faults { Faults::default() } else { faults },
            fault_count: random.between(1, 16),
            pause_max: *random.choose(&[0, MILLISECOND, 20 * MILLISECOND]),
            flavour: *random.choose(&[Flavour::Mixed, Flavour::Mixed, Flavour::Names, Flavour::Contents]),
            crowded: random.percent(60),
            latency: (latency_min, latency_min * random.between(1, 20)),
            stable_media,
            devices,
            buffer: *Random::new(seed ^ 0x6275_6666).choose(&[256 << 10, 1 << 20, 4 << 20, STORE_SIZE]),
            short_circuit: Random::new(seed ^ 0x006c_656e_7400).percent(60),
            relaying: Random::new(seed ^ 0x7265_6c61_7900).percent(35),
            keepers: Random::new(seed ^ 0x6b65_7074).percent(25),
            contacts: Random::new(seed ^ 0x636f_6e74).percent(40),
            connections_max: CONNECTIONS_MAX,
            registered_buffers: Random::new(seed ^ 0x6772_616e_7400).percent(70),
            read_leasing: draw_read_leasing(&mut Random::new(seed ^ 0x6c65_6173_6500)),
            bounds,
            client_bounds: draw_client_bounds(seed, table_seed),
            hazards: small_or(table_seed, 0x6861_7a61, 4, HAZARD_COUNT),
            submissions: small_or(table_seed, 0x7175_6575, 3, SLOT_COUNT as usize - 1) as u64 + 1,
            sabotage: overrides.sabotage,
            backing: overrides.backing,
            flushing: Flushing {
                on_conflict: draw_conflict_policy(&mut Random::new(seed ^ 0x7768_6963)),
                atomic_below: *Random::new(seed ^ 0x6174_6f6d).choose(&[0, 0, 10_000, u64::MAX]),
                check: draw_check(&mut Random::new(seed ^ 0x6368_6563)),
                fsync_carries: Random::new(seed ^ 0x6673_796e).percent(40),
                grace: *Random::new(seed ^ 0x6772_6163).choose(&[0, 50 * MILLISECOND, SECOND, 20 * SECOND]),
                ..draw_flushing(&mut Random::new(seed ^ 0x7061_6365))
            },
        }
    }
}

/// Policies, and spells and ages that a run gets beyond.
fn draw_flushing(random: &mut Random) -> Flushing {
    use FlushPolicy::{Idle, Immediate, Manual, OnClose};
    Flushing {
        policy: *random.choose(&[Manual, Manual, Idle, Idle, Idle, Immediate, OnClose]),
        idle: *random.choose(&[0, MILLISECOND, 50 * MILLISECOND, SECOND]),
        age: *random.choose(&[SECOND / 2, 5 * SECOND, 300 * SECOND]),
        rate: *random.choose(&[0, 0, 1 << 20]),
        writers: random.between(1, 16) as u32,
        on_conflict: ConflictPolicy::Both,
        grace: 0,
        atomic_below: 0,
        check: Nanos::MAX,
        fsync_carries: false,
    }
}

/// How many names of the site a server keeps that nobody uses.
fn draw_taken_up_names(random: &mut Random) -> usize {
    *random.choose(&[usize::MAX, usize::MAX, 0, 5, 20])
}

/// After what time what is known of the site is looked at again.
fn draw_check(random: &mut Random) -> Nanos {
    *random.choose(&[Nanos::MAX, Nanos::MAX, 50 * MILLISECOND, SECOND, 10 * SECOND])
}

/// What becomes of names that somebody else has changed.
fn draw_conflict_policy(random: &mut Random) -> ConflictPolicy {
    use ConflictPolicy::{Both, Ours, Theirs};
    *random.choose(&[Both, Ours, Theirs])
}

fn draw_protection(random: &mut Random) -> Protection {
    use Protection::{Encryption, Integrity, Off};
    *random.choose(&[Off, Off, Off, Off, Off, Integrity, Integrity, Encryption])
}

/// Mostly so small that a run gets beyond each of them, and the real ones now and then.
fn draw_bounds(random: &mut Random) -> Bounds {
    if random.percent(20) {
        return Bounds::default();
    }
    let bounds = Bounds {
        tree_log: random.between(2, 12) as usize,
        tombstones: random.between(1, 12) as usize,
        delegated_files: random.between(1, 6) as usize,
        contact_names: random.between(1, 6) as usize,
        contact_files: random.between(1, 6) as usize,
        read_leased_files: random.between(1, 6) as usize,
        ..Bounds::default()
    };
    // Not drawn, so that older seeds go on as before. Two tables take two; files and what is split take the rest.
    let index_blocks = 2 + (bounds.contact_names as u64 - 1) * 3 + bounds.tombstones as u64 % 3;
    Bounds { index_blocks, ..bounds }
}

/// Of what sessions, files and locks a server knows, and what it does at a time: each small in a part of the runs in
/// which things go wrong, for the tests of single things count on none being refused.
fn draw_table_bounds(seed: Option<u64>, bounds: Bounds) -> Bounds {
    let real = Bounds::default();
    let mut number = 0;
    let mut draw = |least: usize, most: usize, real: usize| {
        number += 1;
        least + small_or(seed, 0x7461_626c ^ (number << 48), most - least, real - least)
    };
    Bounds {
        // Clients of all phases at once, but for some.
        sessions: draw(6, 12, real.sessions),
        session_open_files: draw(1, 6, real.session_open_files),
        open_files: draw(4, 16, real.open_files),
        file_lock_ranges: draw(1, 6, real.file_lock_ranges),
        session_lock_ranges: draw(1, 6, real.session_lock_ranges),
        lock_ranges: draw(2, 8, real.lock_ranges),
        session_lock_waiters: draw(1, 3, real.session_lock_waiters),
        lock_waiters: draw(1, 4, real.lock_waiters),
        session_lock_listeners: draw(0, 2, real.session_lock_listeners),
        active_requests: draw(1, 6, real.active_requests),
        submission_queues: draw(0, 2, real.submission_queues),
        permits: draw(1, 2, real.permits),
        permit_waiters: draw(0, 3, real.permit_waiters),
        session_permit_listeners: draw(0, 2, real.session_permit_listeners),
        memos: draw(1, 4, real.memos),
        wishes: draw(1, 4, real.wishes),
        ..bounds
    }
}

fn draw_client_bounds(seed: u64, table_seed: Option<u64>) -> ClientBounds {
    let real = ClientBounds::default();
    ClientBounds {
        directory_cache_size: *Random::new(seed ^ 0x6361_6368_6500).choose(&[1 << 10, 4 << 10, 8 << 20, 8 << 20]),
        placed_chunks: 1 + small_or(table_seed, 0x706c_6163, 3, real.placed_chunks - 1),
        read_leases: 1 + small_or(table_seed, 0x6c65_6173, 2, real.read_leases - 1),
        free_body_size: small_or(table_seed, 0x7065_726d, 3000, real.free_body_size),
    }
}

/// Up to `most` in a third of the runs with a seed, else what is `real`.
fn small_or(seed: Option<u64>, salt: u64, most: usize, real: usize) -> usize {
    let Some(seed) = seed else { return real };
    let mut random = Random::new(seed ^ salt);
    if random.percent(33) { random.between(0, most as u64) as usize } else { real }
}

/// Mostly by so much that the small checkpoints of a run make the smallest journals grow, at most to a few laps.
fn draw_journal_growth(random: &mut Random) -> JournalGrowth {
    if random.percent(30) {
        return JournalGrowth::NONE;
    }
    let size_max = *random.choose(&[96 << 10, 128 << 10, 200 << 10, 512 << 10, 16 << 20]);
    JournalGrowth { size_max, checkpoint_percent: *random.choose(&[75, 300, 1000, 4000]) }
}

/// Often longer than in reality, and of files that are still warm: most are, in a run as short as this.
fn draw_read_leasing(random: &mut Random) -> ReadLeasing {
    ReadLeasing {
        time: *random.choose(&[0, 2 * MILLISECOND, 20 * MILLISECOND, 200 * MILLISECOND]),
        rest: *random.choose(&[0, 0, MILLISECOND, 20 * MILLISECOND]),
    }
}

/// Shorter than in reality, so that who waits for one that is gone does not give up.
fn draw_entry_keeping(random: &mut Random) -> EntryKeeping {
    EntryKeeping {
        holders: *random.choose(&[1, 2, 64]),
        time: *random.choose(&[50 * MILLISECOND, 400 * MILLISECOND, SECOND]),
        rest: *random.choose(&[0, 0, 2 * MILLISECOND, 100 * MILLISECOND]),
    }
}

fn draw_faults(random: &mut Random) -> Faults {
    let mut faults = Faults::default();
    if random.percent(15) {
        return faults;
    }
    faults.kills = random.percent(40);
    faults.torn_kills = random.percent(50);
    faults.cuts = random.percent(50);
    faults.partitions = random.percent(35);
    faults.slow_servers = random.percent(25);
    faults.client_crashes = random.percent(20);
    faults.stops = random.percent(20);
    faults.refusals = random.percent(10);
    faults.clock_jumps = random.percent(15);
    faults
}
