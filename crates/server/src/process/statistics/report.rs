//! What the counters say, as JSON (`exposition.rs` has them as Prometheus text); and a sample each second while
//! something happens.

use crate::core::{Core, Failure};
use crate::process::statistics::clients::ClientCounts;
pub use crate::process::statistics::exposition::prometheus;
use crate::process::statistics::jobs::JobCounters;
use crate::process::statistics::ranks::Ranks;
use crate::process::statistics::waits::{WaitGauge, WaitReason};
use crate::process::statistics::{Counters, Sample, SampleClass};
use reactor::device::DeviceStatistics;
use reactor::{BodyPiece, Class, ClientCounter, LoopStatistics, Nanos, OperationDelays, ReplyBody, ServeStatistics};
use std::fmt::Write as _;
use std::rc::Rc;
use wire::Decode;
use wire::handshake::Role;
use wire::messages::{Empty, StatisticsFormat, StatisticsRequest};
use wire::operation::OperationClass;

const SAMPLE_INTERVAL_NS: Nanos = 1_000_000_000;
/// Peers that a report names; of more it tells the number.
const PEER_COUNT_MAX: usize = 256;
pub const CLASSES: [(&str, OperationClass); 2] =
    [("metadata", OperationClass::Metadata), ("data", OperationClass::Data)];

/// The counters in the format that is asked for.
pub fn statistics(core: &Core, params: &[u8]) -> Result<(Empty, ReplyBody), Failure> {
    let request = StatisticsRequest::from_bytes(params)?;
    let text = match request.format {
        StatisticsFormat::Json { samples } => json(core, samples as usize),
        StatisticsFormat::Prometheus => prometheus(core),
    };
    Ok((Empty {}, ReplyBody { pieces: vec![BodyPiece::Bytes(text.into_bytes())], guard: None }))
}

/// Takes a sample each second in which something happens, and one after it. Ends when a second passes in which nothing
/// came and nothing is under way, and no client is there that may do things by itself.
pub fn start_sampling(core: &Rc<Core>) {
    if core.statistics.sampling.replace(true) {
        return;
    }
    let core = core.clone();
    core.reactor.clone().spawn(Class::Background, async move {
        let mut was_idle = false;
        let seen = || (core.statistics.arrivals.get(), core.statistics.client_totals());
        let mut before = seen();
        loop {
            core.reactor.sleep(SAMPLE_INTERVAL_NS).await;
            core.statistics.collect_clients();
            let is_idle = std::mem::replace(&mut before, seen()) == before && core.statistics.work_under_way() == 0;
            if !is_idle || !was_idle {
                core.statistics.add_sample(sample(&core));
            }
            was_idle = is_idle;
            // Clients that share memory with us may go on at any time without a request.
            if core.life.is_stopping() || is_idle && !core.statistics.has_silent_clients() {
                break;
            }
        }
        core.statistics.sampling.set(false);
    });
}

fn sample(core: &Core) -> Sample {
    let (usage, now) = (core.store.usage(), core.reactor.now());
    let waits = CLASSES.map(|(_, class)| core.statistics.waits(class));
    Sample {
        number: 0,
        time: core.reactor.wall_clock(),
        started: core.life.started_at(),
        busy_ns: core.reactor.statistics().busy_ns,
        metadata: SampleClass::of(&core.statistics.class(OperationClass::Metadata, now)),
        data: SampleClass::of(&core.statistics.class(OperationClass::Data, now)),
        waits_ns: std::array::from_fn(|reason| waits.iter().map(|class| class[reason].total_ns(now)).sum()),
        clients: core.statistics.client_totals(),
        jobs: Vec::new(),
        journal_used: usage.journal_used,
        bytes_free: usage.free,
    }
}

/// Calls on the backing tree that are told.
const LONGEST_CALLS: usize = 4;

/// A JSON object in the making. Keys and texts are our own and need no escapes.
struct Object<'a> {
    out: &'a mut String,
    first: bool,
}

impl<'a> Object<'a> {
    fn begin(out: &'a mut String) -> Object<'a> {
        out.push('{');
        Object { out, first: true }
    }

    fn key(&mut self, key: &str) -> &mut String {
        if !self.first {
            self.out.push(',');
        }
        self.first = false;
        // Writing to a string does not fail.
        let _ = write!(self.out, "\"{key}\":");
        self.out
    }

    fn number(&mut self, key: &str, value: u64) {
        let _ = write!(self.key(key), "{value}");
    }

    fn numbers(&mut self, values: &[(&str, u64)]) {
        for (key, value) in values {
            self.number(key, *value);
        }
    }

    fn text(&mut self, key: &str, value: &str) {
        let _ = write!(self.key(key), "\"{value}\"");
    }

    /// A text that may be anything, with what is no UTF-8 replaced.
    fn escaped(&mut self, key: &str, value: &[u8]) {
        let out = self.key(key);
        out.push('"');
        for character in String::from_utf8_lossy(value).chars() {
            match character {
                '"' | '\\' => out.extend(['\\', character]),
                character if u32::from(character) < 0x20 => {
                    let _ = write!(out, "\\u{:04x}", u32::from(character));
                }
                character => out.push(character),
            }
        }
        out.push('"');
    }

    fn object(&mut self, key: &str, fill: impl FnOnce(&mut Object<'_>)) {
        let out = self.key(key);
        let mut inner = Object::begin(out);
        fill(&mut inner);
        inner.out.push('}');
    }

    fn list<T>(&mut self, key: &str, items: impl Iterator<Item = T>, mut fill: impl FnMut(&mut Object<'_>, T)) {
        let out = self.key(key);
        out.push('[');
        for (index, item) in items.enumerate() {
            if index > 0 {
                out.push(',');
            }
            let mut inner = Object::begin(out);
            fill(&mut inner, item);
            inner.out.push('}');
        }
        out.push(']');
    }
}

/// Everything as one JSON object, with the youngest `sample_count` samples. Times are nanoseconds unless named else.
pub fn json(core: &Core, sample_count: usize) -> String {
    core.statistics.collect_clients();
    let mut text = String::with_capacity(8192);
    let mut object = Object::begin(&mut text);
    object.number("server", u64::from(core.index));
    object.text("address", &core.cluster.servers[core.index as usize].address.to_string());
    object.text("driver", core.reactor.driver_name());
    object.number("uptime_ns", core.reactor.now().saturating_sub(core.life.started()));
    // Since 1970, which clocks may disagree about.
    object.number("started_ns", core.life.started_at().max(0) as u64);
    object.number("wall_clock_ns", core.reactor.wall_clock().max(0) as u64);
    object.number("memory_max", crate::process::memory_terms(core).iter().map(|(_, bytes)| bytes).sum());
    let turns = core.reactor.statistics();
    object.object("loop", |object| {
        object.numbers(&[
            ("turns", turns.turns),
            ("polls", turns.polls),
            ("wakeups", turns.wakeups),
            ("sleeps", turns.sleeps),
            ("busy_ns", turns.busy_ns),
            ("waiting_ns", turns.waiting_ns),
        ]);
        object.numbers(&delay_numbers(&turns));
    });
    object.object("store", |object| {
        object.numbers(&store_numbers(core));
        object.text("pages_note", &core.options.pages_note);
        // Bytes of data that are in memory at most, of a store that a device keeps.
        object.number("buffer", core.options.device.as_ref().map_or(0, |device| device.buffer));
    });
    if let Some(numbers) = device_numbers(core) {
        object.object("device", |object| object.numbers(&numbers));
    }
    object.object("tables", |object| object.numbers(&table_numbers(core)));
    object.object("contact", |object| {
        object.numbers(&core.leases.numbers().collect::<Vec<_>>());
    });
    object.object("classes", |object| {
        for (name, class) in CLASSES {
            object.object(name, |object| {
                let now = core.reactor.now();
                let counters = core.statistics.class(class, now);
                put_counters(object, &counters);
                object.number("req_active_ns", counters.active_ns);
                object.object("waits", |object| put_waits(object, &core.statistics.waits(class), now));
            });
        }
    });
    object.object("operations", |object| {
        core.statistics.for_each(&mut |operation, counters| {
            object.object(operation.name(), |object| put_counters(object, counters));
        });
    });
    put_clients(&mut object, &core.statistics.client_totals());
    object.list("jobs", core.statistics.jobs().iter(), |object, (kind, job)| {
        object.text("kind", kind.word());
        object.escaped("job", job.name.as_bytes());
        object.escaped("program", job.program.as_bytes());
        object.number("connections", job.connections.into());
        object.numbers(&job_numbers(&job.counters));
        put_clients(object, &job.counters.clients);
        put_ranks(object, &core.statistics.ranks(), job.tag);
    });
    object.list("busiest", core.statistics.busiest().iter(), |object, busy| {
        object.text("id", &busy.id.to_string());
        object.text("object", if busy.is_directory { "directory" } else { "file" });
        object.numbers(&[
            ("requests", busy.requests),
            ("failed", busy.failed),
            ("service_ns", busy.service_ns),
            ("bytes_in", busy.bytes_in),
            ("bytes_out", busy.bytes_out),
            ("work", busy.work()),
            ("earlier_work_max", busy.earlier_work_max),
        ]);
    });
    put_peers(core, &mut object);
    put_backing(core, &mut object);
    object.list("samples", core.statistics.samples().youngest(sample_count), |object, sample| {
        put_sample(object, &sample);
    });
    text.push('}');
    text
}

pub fn store_numbers(core: &Core) -> [(&'static str, u64); 12] {
    let (usage, buffers) = (core.store.usage(), core.store.registered_usage());
    [
        ("bytes_total", usage.size),
        ("bytes_free", usage.free),
        ("bytes_backed", usage.backed),
        // Of what clients may write to by themselves, and of that, what those have mapped who have gone.
        ("bytes_registered", buffers.registered),
        ("bytes_orphaned", buffers.orphaned),
        ("page_size", core.store.page_size()),
        ("journal_size", usage.journal_size),
        ("journal_used", usage.journal_used),
        ("chunks", usage.chunks),
        ("files", usage.files),
        ("checkpoints", core.checkpoints.count.get()),
        ("checkpoints_failed", core.checkpoints.failed.get()),
    ]
}

/// What the loop adds to the time of operations on devices.
pub fn delay_numbers(turns: &LoopStatistics) -> [(&'static str, u64); 4] {
    let OperationDelays { handover, resumption } = turns.delays;
    [
        ("handovers", handover.count),
        ("handover_ns", handover.total_ns),
        ("resumptions", resumption.count),
        ("resumption_ns", resumption.total_ns),
    ]
}

/// Of the device that keeps a store, if one does.
pub fn device_numbers(core: &Core) -> Option<[(&'static str, u64); 19]> {
    let buffer = core.store.buffer_statistics()?;
    let DeviceStatistics { reads, writes, flushes, discards, .. } = buffer.device;
    Some([
        ("reads", reads.count),
        ("read_bytes", reads.bytes),
        ("read_ns", reads.time_ns),
        ("writes", writes.count),
        ("written_bytes", writes.bytes),
        ("write_ns", writes.time_ns),
        ("flushes", flushes.count),
        ("flush_ns", flushes.time_ns),
        ("discards", discards.count),
        ("discarded_bytes", discards.bytes),
        ("failed", buffer.device.failed),
        ("in_flight", u64::from(buffer.device.in_flight)),
        ("in_flight_most", u64::from(buffer.device.in_flight_most)),
        ("queued", u64::from(buffer.device.waiting)),
        ("queued_ns", buffer.device.waited_ns),
        ("buffer_resident", buffer.resident_bytes),
        ("buffer_dirty", buffer.dirty_bytes),
        ("buffer_waiting", buffer.waiting),
        ("buffer_waits", buffer.waits),
    ])
}

pub fn table_numbers(core: &Core) -> [(&'static str, u64); 12] {
    let tables = core.tables.borrow();
    let (open_files, orphans, _) = tables.open.counts();
    let waits = core.throttle.waits();
    [
        ("open_files", open_files),
        ("orphans", orphans),
        ("dentries", tables.names.count()),
        ("inodes", tables.inodes.count()),
        ("sessions", tables.sessions.count() as u64),
        ("intents", tables.intents.len() as u64),
        ("tombstones", tables.tombstones.len() as u64),
        ("marks", tables.marks.len() as u64),
        ("permits", core.throttle.permit_count() as u64),
        ("permit_waiters", waits.depth()),
        ("permit_waits", waits.begun()),
        ("permit_wait_ns", waits.total_ns(core.reactor.now())),
    ]
}

pub fn counter_numbers(counters: &Counters) -> [(&'static str, u64); 9] {
    [
        ("arrivals", counters.arrivals),
        ("finished", counters.finished),
        ("failed", counters.failed),
        ("req_qdepth", counters.qdepth),
        ("req_active", counters.active),
        ("req_waittime_ns", counters.wait_ns),
        ("service_ns", counters.service_ns),
        ("bytes_in", counters.bytes_in),
        ("bytes_out", counters.bytes_out),
    ]
}

/// What requests of a class wait for: how many do now, how many ever did, and for how long all of them.
fn put_waits(object: &mut Object<'_>, waits: &[WaitGauge], now: Nanos) {
    for (reason, gauge) in WaitReason::ALL.iter().zip(waits) {
        object.object(reason.word(), |object| {
            object.numbers(&[("depth", gauge.depth()), ("begun", gauge.begun()), ("waited_ns", gauge.total_ns(now))]);
        });
    }
}

/// What clients did without this server.
fn put_clients(object: &mut Object<'_>, counts: &ClientCounts) {
    object.object("clients", |object| object.numbers(&counts.numbers()));
}

/// Processes of a parallel program, those first that waited longest.
fn put_ranks(object: &mut Object<'_>, ranks: &Ranks, job: u32) {
    let (count, told) = ranks.of(job);
    object.object("ranks", |object| {
        object.number("count", count as u64);
        object.list("told", told.into_iter(), |object, (name, rank)| {
            object.escaped("rank", name.as_bytes());
            object.escaped("host", rank.host.as_bytes());
            let wanted = [ClientCounter::Answers, ClientCounter::AnswerNs, ClientCounter::ServedNs];
            object.numbers(&wanted.map(|counter| rank.counts.number(counter)));
        });
    });
}

pub fn job_numbers(counters: &JobCounters) -> [(&'static str, u64); 10] {
    [
        ("arrivals", counters.arrivals),
        ("finished", counters.finished),
        ("failed", counters.failed),
        ("reads", counters.reads),
        ("writes", counters.writes),
        ("metadata", counters.metadata),
        ("req_waittime_ns", counters.wait_ns),
        ("service_ns", counters.service_ns),
        ("bytes_in", counters.bytes_in),
        ("bytes_out", counters.bytes_out),
    ]
}

fn put_counters(object: &mut Object<'_>, counters: &Counters) {
    object.numbers(&counter_numbers(counters));
    object.numbers(&[
        ("service_ns_p50", counters.service_ns_quantile(500)),
        ("service_ns_p99", counters.service_ns_quantile(990)),
        ("service_ns_max", counters.service_ns_max),
    ]);
}

/// What goes through this server for others, and what comes through others.
pub fn relay_numbers(served: &ServeStatistics) -> [(&'static str, u64); 6] {
    let relay = &served.relay;
    [
        ("tunnels_of_clients", relay.tunnels_of_clients as u64),
        ("tunnels_of_servers", relay.tunnels_of_servers as u64),
        ("relay_streams", relay.streams as u64),
        ("relay_streams_total", relay.streams_total),
        ("relay_frames", relay.frames),
        ("relay_bytes", relay.bytes),
    ]
}

/// The backing tree, if there is one: its numbers, what is known of it, the calls that take longest, and what was
/// changed over it.
fn put_backing(core: &Core, object: &mut Object<'_>) {
    let (Some(backing), Some(path)) = (&core.backing, &core.options.backing) else { return };
    object.object("backing", |object| {
        object.escaped("path", path.as_os_str().as_encoded_bytes());
        object.numbers(&backing.numbers());
        object.numbers(&core.backing_changes());
        let now = core.reactor.now();
        object.list("longest_calls", backing.calls().into_iter().take(LONGEST_CALLS), |object, call| {
            object.text("operation", call.operation);
            object.escaped("path", &call.path);
            object.number("age_ns", now.saturating_sub(call.since));
            object.number("is_begun", call.is_begun.into());
        });
        object.text("flush_policy", core.options.flushing.policy.word());
        object.number("fsync_carries", u64::from(core.options.flushing.fsync_carries));
        let check = core.options.flushing.check;
        object.number("check_ns", if check == Nanos::MAX { 0 } else { check });
        let (failed, told) = core.flush_failures();
        object.number("flush_failed", failed);
        object.list("flush_failures", told.into_iter(), |object, (path, reason)| {
            object.escaped("path", &path);
            object.escaped("reason", &reason);
        });
        let (settled, told) = core.settled_conflicts();
        object.number("conflict_count", settled);
        object.list("conflicts_settled", told.into_iter(), |object, (path, what)| {
            object.escaped("path", &path);
            object.escaped("what", &what);
        });
        object.list("changed", core.some_backing_changes().into_iter(), |object, (what, path)| {
            object.text("what", what);
            object.escaped("path", &path);
        });
    });
}

fn put_peers(core: &Core, object: &mut Object<'_>) {
    let Some(handle) = core.life.handle() else { return };
    let served = handle.statistics();
    object.numbers(&[
        ("connections", served.connections as u64),
        ("connections_refused", served.connections_refused),
        ("bytes_received", served.bytes_received),
        ("bytes_sent", served.bytes_sent),
        ("bytes_copied", core.reactor.bytes_copied()),
    ]);
    object.numbers(&relay_numbers(&served));
    object.list("peers", handle.peers().iter().take(PEER_COUNT_MAX), |object, (peer, received, sent)| {
        object.text("session", &format!("{:016x}", peer.session));
        object.text(
            "role",
            match peer.role {
                Role::Server => "server",
                Role::Client => "client",
                Role::LowPriority => "low-priority client",
                Role::ClientTunnel | Role::ServerTunnel => unreachable!("tunnels make no requests"),
            },
        );
        if peer.role == Role::Server {
            object.number("server", u64::from(peer.from_server));
        }
        for (key, value) in ["job", "step", "rank", "host", "program"].iter().zip(peer.label.parts()) {
            if !value.is_empty() {
                object.escaped(key, value.as_bytes());
            }
        }
        object.numbers(&[
            ("level", u64::from(peer.level)),
            ("uid", u64::from(peer.user.uid)),
            ("bytes_received", *received),
            ("bytes_sent", *sent),
        ]);
    });
    object.list("channels", core.peers.statistics().iter(), |object, (server, level, channel)| {
        object.numbers(&[
            ("server", u64::from(*server)),
            ("level", u64::from(*level)),
            ("calls", channel.calls),
            ("resends", channel.resends),
            ("connects", channel.connects),
        ]);
    });
}

fn put_sample(object: &mut Object<'_>, sample: &Sample) {
    object.numbers(&[
        ("number", sample.number),
        ("time_ns", sample.time.max(0) as u64),
        ("started_ns", sample.started.max(0) as u64),
        ("busy_ns", sample.busy_ns),
        ("journal_used", sample.journal_used),
        ("bytes_free", sample.bytes_free),
    ]);
    for (name, class) in [("metadata", &sample.metadata), ("data", &sample.data)] {
        object.object(name, |object| {
            object.numbers(&[
                ("arrivals", class.arrivals),
                ("finished", class.finished),
                ("req_qdepth", class.qdepth),
                ("req_active", class.active),
                ("req_waittime_ns", class.wait_ns),
                ("req_active_ns", class.active_ns),
                ("service_ns", class.service_ns),
                ("bytes_in", class.bytes_in),
                ("bytes_out", class.bytes_out),
            ]);
        });
    }
    object.object("waits_ns", |object| {
        WaitReason::ALL.iter().zip(sample.waits_ns).for_each(|(reason, ns)| object.number(reason.word(), ns));
    });
    put_clients(object, &sample.clients);
    object.list("jobs", sample.jobs.iter(), |object, job| {
        object.text("kind", job.kind.word());
        object.escaped("job", job.name.as_bytes());
        object.number("is_new", job.is_new.into());
        object.numbers(&job_numbers(&job.counters));
        put_clients(object, &job.counters.clients);
    });
}
