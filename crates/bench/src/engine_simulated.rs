//! Experiments in the simulator: the servers and clients that also run for real, over a model of network, processors
//! and stores. docs/simulation.md says where the model's numbers come from.

use crate::collective_process::CollectiveProcess;
use crate::engine::{Engine, Outcome, Served, Setting};
use crate::exchange::Messages;
use crate::options::SiteUse;
use crate::reaction::{ReactionStep, SnapshotPlan, flush, snapshot_name, write_snapshot};
use crate::step::{Actor, Done, Step, Work, together};
use crate::target::fill_pattern;
use client::{FileId, FileRange};
use reactor::backing::{BackingError, BackingTree, CALL_SIZE_MAX};
use reactor::sim::{BackingCosts, CostModel, ProcessorCosts};
use sim::scale::{FlushPolicy, NodeFuture, ScaleCluster, ScaleOptions};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use wire::Placement;

const CHUNK_SIZE_DEFAULT: u32 = 1 << 20;
const SEED: u64 = 1;
/// Bytes of a stripe at the site.
const STRIPE_SIZE: u64 = 1 << 20;
/// Bytes of the journal of each server: the least that `tabane up` takes.
const JOURNAL_SIZE: u64 = 4 << 20;

/// Bytes of messages that a process takes at a time.
const SCRATCH_SIZE: usize = 1 << 20;

/// The numbers of the model. docs/simulation.md has the table with their sources.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Model {
    pub latency_us: f64,
    pub gbit_per_s: f64,
    pub message_us: f64,
    pub byte_ps: u64,
    pub store_byte_ps: u64,
    pub entry_ns: u64,
    pub site_gbit_per_s: f64,
    pub stripe_us: f64,
}

impl Default for Model {
    fn default() -> Model {
        Model {
            latency_us: 5.0,
            gbit_per_s: 100.0,
            message_us: 6.0,
            byte_ps: 143,
            store_byte_ps: 0,
            entry_ns: 150,
            site_gbit_per_s: 80.0,
            stripe_us: 100.0,
        }
    }
}

impl Model {
    /// Changes numbers as `name=value,...` says. Errors: words.
    pub fn parse(text: &str) -> Result<Model, String> {
        let mut model = Model::default();
        for item in text.split(',').filter(|item| !item.is_empty()) {
            let wrong = || {
                let names = "latency_us, gbit_per_s, message_us, byte_ps, store_byte_ps, entry_ns, site_gbit_per_s, \
                             stripe_us";
                format!("--model {item}: give name=number with one of {names}")
            };
            let (name, value) = item.split_once('=').ok_or_else(wrong)?;
            let number: f64 = value.parse().map_err(|_| wrong())?;
            if !(0.0..=1e9).contains(&number) || (name.ends_with("gbit_per_s") && number < 0.001) {
                return Err(format!("--model {item}: the number is out of range"));
            }
            match name {
                "latency_us" => model.latency_us = number,
                "gbit_per_s" => model.gbit_per_s = number,
                "message_us" => model.message_us = number,
                "byte_ps" => model.byte_ps = number as u64,
                "store_byte_ps" => model.store_byte_ps = number as u64,
                "entry_ns" => model.entry_ns = number as u64,
                "site_gbit_per_s" => model.site_gbit_per_s = number,
                "stripe_us" => model.stripe_us = number,
                _ => return Err(wrong()),
            }
        }
        Ok(model)
    }

    fn network(&self) -> CostModel {
        let bandwidth = (self.gbit_per_s * 1e9 / 8.0) as u64;
        CostModel { latency_ns: (self.latency_us * 1e3) as u64, bandwidth }
    }

    fn processor(&self) -> ProcessorCosts {
        ProcessorCosts {
            message_ns: (self.message_us * 1e3) as u64,
            byte_ps: self.byte_ps,
            store_byte_ps: self.store_byte_ps,
            entry_ns: self.entry_ns,
        }
    }

    fn site(&self) -> BackingCosts {
        BackingCosts {
            bandwidth: (self.site_gbit_per_s * 1e9 / 8.0) as u64,
            stripe_size: STRIPE_SIZE,
            stripe_ns: (self.stripe_us * 1e3) as u64,
        }
    }

    /// The same of the site.
    pub fn about_site(&self) -> String {
        format!(
            "Site: {} Gbit/s in all, {} µs where another host wrote to the stripe (1 MiB) last, 100 µs a call.",
            self.site_gbit_per_s, self.stripe_us
        )
    }

    /// For the heads of pictures.
    pub fn about(&self) -> String {
        format!(
            "Model: {} Gbit/s and {} µs a way; processor: {} µs a message, {} ps a byte, {} ns a name.",
            self.gbit_per_s, self.latency_us, self.message_us, self.byte_ps, self.entry_ns
        )
    }
}

pub struct Simulated {
    /// By process, where they write to the site themselves.
    sites: Vec<BackingTree>,
    cluster: ScaleCluster,
    plan: Option<SnapshotPlan>,
    processes: Vec<Rc<RefCell<Option<Process>>>>,
}

/// One process: what it does alone, and with others.
struct Process {
    actor: Actor,
    collective: CollectiveProcess<Messages>,
}

impl Simulated {
    pub fn start(model: &Model, setting: &Setting) -> Result<Simulated, String> {
        let placement = match &setting.placement {
            None => Placement::Modular,
            Some(name) => Placement::parse(name).ok_or_else(|| format!("--placement {name} is not known"))?,
        };
        let flush = match setting.site {
            SiteUse::Behind { flush, .. } => {
                Some(FlushPolicy::of_word(flush).ok_or_else(|| format!("--flush {flush} is not known"))?)
            }
            _ => None,
        };
        let options = ScaleOptions {
            servers: setting.servers,
            clients: setting.procs,
            placement,
            chunk_size: if setting.chunk_size == 0 { CHUNK_SIZE_DEFAULT } else { setting.chunk_size },
            store_size: setting.store_size,
            journal_size: JOURNAL_SIZE,
            network: model.network(),
            server_processor: model.processor(),
            client_processor: model.processor(),
            contact: setting.contact,
            backing_costs: (setting.site != SiteUse::None).then(|| model.site()),
            flush,
            seed: SEED,
        };
        let cluster = ScaleCluster::start(&options)?;
        let address_of = cluster.client_addresses();
        let address_of: Rc<dyn Fn(u32) -> SocketAddr> = Rc::new(move |rank| Messages::address(address_of(rank)));
        let scratch = Rc::new(RefCell::new(vec![0; SCRATCH_SIZE]));
        let process = |rank: u32| -> Result<Rc<RefCell<Option<Process>>>, String> {
            let reactor = cluster.reactor(rank as usize);
            let messages = Messages::listen(&reactor, rank, address_of.clone(), scratch.clone())?;
            let collective = CollectiveProcess::new(rank, setting.procs, messages);
            Ok(Rc::new(RefCell::new(Some(Process { actor: Actor::new(rank, setting.procs), collective }))))
        };
        let processes = (0..setting.procs).map(process).collect::<Result<_, _>>()?;
        let sites = match setting.site {
            SiteUse::Direct(_) => {
                (0..setting.procs as usize).map(|rank| cluster.site(rank)).collect::<Result<_, _>>()?
            }
            _ => Vec::new(),
        };
        Ok(Simulated { cluster, plan: None, sites, processes })
    }

    /// A step of rdbench: computing is time that passes, and cells hold what [`snapshot_contents`] says.
    fn act_reaction(&mut self, step: &ReactionStep, procs: Range<u32>) -> Result<Outcome, String> {
        match step {
            ReactionStep::Begin(plan) => self.plan = Some(*plan),
            ReactionStep::Compute { time, .. } => {
                self.cluster.pass(*time);
                return Ok(Outcome { done: Vec::new(), seconds: *time as f64 / 1e9, copied: 0 });
            }
            // What was not synced is there as well.
            ReactionStep::Flush if !self.sites.is_empty() => {}
            ReactionStep::Flush => {
                let files = self.cluster.files(0).clone();
                return self.together(vec![(0, Box::pin(async move { flush(&files).await.map(|()| 0) }))]);
            }
            ReactionStep::WriteSnapshot { number } => {
                let plan = self.plan.ok_or("nothing was begun")?;
                let work = procs.map(|rank| (rank as usize, self.write(plan, rank, *number))).collect();
                return self.together(work);
            }
        }
        Ok(Outcome { done: Vec::new(), seconds: 0.0, copied: 0 })
    }

    fn write(&self, plan: SnapshotPlan, rank: u32, number: u32) -> NodeFuture<Result<u64, String>> {
        let (name, ranges) = (snapshot_name(number), plan.ranges(rank));
        let mut bytes = Vec::new();
        for FileRange { offset, size } in &ranges {
            let first = bytes.len();
            bytes.resize(first + *size as usize, 0);
            fill_pattern(u64::from(number), *offset, &mut bytes[first..]);
        }
        let work = bytes.len() as u64;
        match self.sites.get(rank as usize) {
            Some(site) => {
                let site = site.clone();
                Box::pin(async move { write_to_site(&site, &plan, &ranges, &name, &bytes).await.map(|()| work) })
            }
            None => {
                let files = self.cluster.files(rank as usize).clone();
                Box::pin(async move { write_snapshot(&files, &plan, rank, &name, &bytes).await.map(|()| work) })
            }
        }
    }

    fn together(&self, work: Vec<(usize, NodeFuture<Result<u64, String>>)>) -> Result<Outcome, String> {
        let together = self.cluster.run(work)?;
        let done = together.results.into_iter().map(|result| result.map(Done::of_work));
        Ok(Outcome { done: done.collect::<Result<_, _>>()?, seconds: together.took as f64 / 1e9, copied: 0 })
    }
}

/// What a simulated snapshot holds: bytes that say where and in which file they are.
pub fn snapshot_contents(number: u32, size: u64) -> Vec<u8> {
    let mut bytes = vec![0; size as usize];
    fill_pattern(u64::from(number), 0, &mut bytes);
    bytes
}

/// Writes a process's block to the site, with as many calls under way as a tree has, as a page cache does when it is
/// synchronised.
async fn write_to_site(
    site: &BackingTree,
    plan: &SnapshotPlan,
    ranges: &[FileRange],
    name: &str,
    bytes: &[u8],
) -> Result<(), String> {
    let words = |error: BackingError| error.to_string();
    let root = site.root().await.map_err(words)?;
    let file = match root.make_file(name, 0o644).await {
        Err(error) if error.is_taken() => root.open_to_write(name).await,
        made => made,
    };
    let file = &file.map_err(words)?;
    let mut calls: Vec<Work<'_>> = Vec::new();
    let mut first = 0;
    for FileRange { offset, size } in ranges {
        let range = &bytes[first..][..*size as usize];
        for (offset, call) in (*offset..).step_by(CALL_SIZE_MAX).zip(range.chunks(CALL_SIZE_MAX)) {
            calls.push(Box::pin(async move { file.write(offset, call.to_vec()).await.0.map(drop).map_err(words) }));
        }
        first += range.len();
    }
    together(calls).await?;
    if plan.synced { file.sync().await.map_err(words) } else { Ok(()) }
}

impl Engine for Simulated {
    fn act(&mut self, step: &Step, procs: Range<u32>) -> Result<Outcome, String> {
        if let Step::Reaction(step) = step {
            return self.act_reaction(step, procs);
        }
        let step = Rc::new(step.clone());
        let work = |rank: u32| {
            let (files, step) = (self.cluster.files(rank as usize).clone(), step.clone());
            let place = self.processes[rank as usize].clone();
            let future: NodeFuture<Result<Done, String>> = Box::pin(async move {
                let mut process = place.take().ok_or("an earlier step has not ended")?;
                let done = match &*step {
                    Step::Collective(step) => process.collective.act(&files, process.actor.open_file()?, step).await,
                    step => process.actor.act(&files, step).await,
                };
                place.replace(Some(process));
                done
            });
            (rank as usize, future)
        };
        let together = self.cluster.run(procs.map(work).collect())?;
        let done = together.results.into_iter().collect::<Result<Vec<Done>, String>>()?;
        Ok(Outcome { done, seconds: together.took as f64 / 1e9, copied: 0 })
    }

    fn served(&mut self) -> Result<Vec<Served>, String> {
        self.cluster.statistics().iter().map(|text| Served::read(text)).collect()
    }

    fn server_of(&self, directory: u64, name: &str) -> u32 {
        self.cluster.files(0).cluster().dentry_server(FileId(directory), name.as_bytes())
    }

    fn now(&mut self) -> f64 {
        self.cluster.now() as f64 / 1e9
    }

    fn behind(&mut self) -> Result<u64, String> {
        Ok(self.cluster.site_bytes_written())
    }

    fn read_behind(&mut self, name: &str) -> Result<Vec<u8>, String> {
        self.cluster.read_site(name).ok_or_else(|| format!("{name}: is not at the site"))
    }

    fn procs(&self) -> u32 {
        self.processes.len() as u32
    }

    fn end(self: Box<Self>) -> Result<(), String> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: numbers of the model are changed by name, and everything else is refused.
    #[test]
    fn models() {
        let model = Model::parse("latency_us=1.5,entry_ns=80").unwrap();
        assert_eq!(model, Model { latency_us: 1.5, entry_ns: 80, ..Model::default() });
        for wrong in ["latency", "latency_us=x", "colour=3", "gbit_per_s=0", "message_us=-1"] {
            assert!(Model::parse(wrong).is_err(), "{wrong}");
        }
    }
}
