//! A quiet cluster on which operations are counted, one at a time.

use client::{Attributes, Credentials, File, FileSystem, OpenHow};
use reactor::Nanos;
use sim::harness::{Harness, SimClient};
use sim::profile::{MILLISECOND, Overrides, Profile, SECOND};
use std::cell::Cell;
use std::collections::BTreeMap;
use wire::{Operation, Placement};

pub const CHUNK_SIZE: u64 = 4096;
/// Every message is this long under way. Waiting is counted in there and back.
const LATENCY: Nanos = MILLISECOND;
/// After this long nothing is left of what an operation set off.
const SETTLING: Nanos = 3 * SECOND;
const LIMIT: Nanos = 600 * SECOND;
/// More than any socket holds up.
const SOCKET_BUFFER: usize = 1 << 20;

/// What an operation cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    /// Requests of the client, those that nobody waits for included.
    pub requests: u64,
    /// Round trips, of clients and between servers alike, one after the other, until the caller goes on.
    pub waits: u64,
    /// Requests between servers, those after the caller has gone on included.
    pub messages: u64,
}

pub struct Stage {
    pub servers: u32,
    /// Servers that hold parts of the files in this run.
    pub holders: u32,
    harness: Harness,
    client: SimClient,
    directory_count: Cell<u64>,
    /// What all operations have sent so far, and what belongs to preparations.
    sent: Cell<u64>,
}

/// Requests that servers got, by operation.
pub type Arrivals = BTreeMap<u16, u64>;

impl Stage {
    pub fn new(servers: u32) -> Stage {
        let overrides = Overrides { no_faults: true, servers: Some(servers), ..Overrides::default() };
        let mut profile = Profile::new(7, &overrides);
        profile.remember_all();
        (profile.placement, profile.chunk_sizes) = (Placement::Modular, vec![CHUNK_SIZE as u32]);
        profile.latency = (LATENCY, LATENCY);
        (profile.checksums, profile.stable_media, profile.short_circuit) = (false, false, false);
        (profile.journal_size, profile.session_grace) = (8 << 20, 3600 * SECOND);
        let harness = Harness::new(&profile, false);
        harness.world.set_socket_buffer(SOCKET_BUFFER);
        harness.wait_for_servers(LIMIT).expect("servers start");
        let client = harness.add_client();
        let directory_count = Cell::new(0);
        Stage { servers, holders: 1, harness, client, directory_count, sent: Cell::new(0) }
    }

    pub fn fs(&self) -> FileSystem {
        self.client.client.file_system.clone()
    }

    /// Another client, of root or of some user.
    pub fn other(&self, user: u32) -> SimClient {
        self.harness.add_client_as(Credentials::new(user, user))
    }

    /// Carries something out.
    pub fn run<T: 'static, F: Future<Output = T> + 'static>(&self, work: impl FnOnce(FileSystem) -> F) -> T {
        self.run_as(&self.client, work)
    }

    pub fn run_as<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        client: &SimClient,
        work: impl FnOnce(FileSystem) -> F,
    ) -> T {
        let work = work(client.client.file_system.clone());
        self.harness.world.run(client.node, work, LIMIT).expect("it ends")
    }

    /// Carries something out and counts what it costs.
    pub fn measure<T: 'static, F: Future<Output = T> + 'static>(&self, work: impl FnOnce(FileSystem) -> F) -> Measured {
        self.measure_as(&self.client, work)
    }

    pub fn measure_as<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        client: &SimClient,
        work: impl FnOnce(FileSystem) -> F,
    ) -> Measured {
        let world = &self.harness.world;
        world.run_for(SETTLING);
        let (before, start) = (self.arrivals(), world.now());
        self.run_as(client, work);
        let took = world.now() - start;
        world.run_for(SETTLING);
        let mut measured = Measured { requests: 0, waits: took / (2 * LATENCY), messages: 0 };
        for (code, count) in self.arrivals() {
            let count = count - before.get(&code).copied().unwrap_or(0);
            let operation = Operation::from_code(code).expect("it is one");
            match operation.level() {
                wire::operation::LEVEL_CLIENT => measured.requests += count,
                _ => measured.messages += count,
            }
        }
        self.sent.set(self.sent.get() + measured.requests + measured.messages);
        measured
    }

    /// What all servers have been asked since they were started.
    pub fn arrivals(&self) -> Arrivals {
        let mut arrivals = Arrivals::new();
        for server in self.harness.server_indexes() {
            let text = self.harness.server(server).statistics_prometheus();
            for line in text.lines() {
                let Some(line) = line.strip_prefix("tabane_operation_arrivals_total{operation=\"") else { continue };
                let (name, count) = line.split_once("\"} ").expect("a counter");
                let known = Operation::ALL.iter().find(|operation| operation.name() == name).expect("an operation");
                // They come by the clock, whatever is done.
                if *known == Operation::NoteCounters {
                    continue;
                }
                *arrivals.entry(*known as u16).or_default() += count.parse::<u64>().expect("a number");
            }
        }
        arrivals
    }

    /// A new directory of which every server has had an entry, so that its home knows them all.
    pub fn directory(&self) -> String {
        let directory = self.bare_directory();
        for server in 0..self.servers {
            let path = self.name(&directory, server, "warm");
            self.run(|fs| async move {
                fs.mkdir(path.as_bytes(), 0o755).await.expect("mkdir");
                fs.rmdir(path.as_bytes()).await.expect("rmdir");
            });
        }
        directory
    }

    /// A new directory in the root.
    pub fn bare_directory(&self) -> String {
        self.directory_count.set(self.directory_count.get() + 1);
        let path = format!("/case{}", self.directory_count.get());
        let made = path.clone();
        self.run(|fs| async move { fs.mkdir(made.as_bytes(), 0o777).await.expect("mkdir") });
        path
    }

    /// A path in a directory whose name is on a server.
    pub fn name(&self, directory: &str, server: u32, what: &str) -> String {
        let path = directory.to_owned();
        let parent = self.run(|fs| async move { fs.directory(path.as_bytes()).await.expect("it is there") });
        let server = server % self.servers;
        let names = (0..).map(|number| format!("{what}{number}"));
        let fits = |name: &String| self.harness.cluster.dentry_server(parent, name.as_bytes()) == server;
        format!("{directory}/{}", names.into_iter().find(fits).expect("there are enough"))
    }

    /// The server that is home to an inode.
    pub fn home(&self, path: &str) -> u32 {
        let id = self.stat(path).id;
        self.harness.cluster.home_of(id).expect("it has a home")
    }

    pub fn stat(&self, path: &str) -> Attributes {
        let path = path.to_owned();
        self.run(|fs| async move { fs.lstat(path.as_bytes()).await.expect("stat") })
    }

    /// A new empty file with name and inode on one server.
    pub fn file(&self, directory: &str, server: u32, what: &str) -> (String, File) {
        let path = self.name(directory, server, what);
        let made = path.clone();
        let file = self.run(|fs| async move { fs.open(made.as_bytes(), &creating()).await.expect("create") });
        (path, file)
    }

    /// A new file with a chunk on each of the holders, the first of which is its home; closed and open again.
    pub fn full_file(&self, directory: &str, server: u32, what: &str) -> (String, File) {
        let (path, file) = self.file(directory, server, what);
        let bytes = vec![1; (u64::from(self.holders) * CHUNK_SIZE) as usize];
        let again = path.clone();
        let file = self.run(|fs| async move {
            fs.write_at(&file, &bytes, 0).await.expect("write");
            fs.close(&file).await;
            fs.open(again.as_bytes(), &OpenHow::reading_and_writing()).await.expect("open")
        });
        (path, file)
    }

    /// A file whose name was parted from its inode: the name is on `server`, the inode on the next one.
    pub fn parted_file(&self, directory: &str, server: u32, what: &str) -> String {
        let (old, file) = self.file(directory, server + 1, &format!("old-{what}"));
        let new = self.name(directory, server, what);
        let path = new.clone();
        self.run(|fs| async move {
            fs.close(&file).await;
            fs.rename(old.as_bytes(), path.as_bytes(), 0).await.expect("rename");
        });
        new
    }
}

pub fn creating() -> OpenHow {
    OpenHow { create: true, ..OpenHow::reading_and_writing() }
}
