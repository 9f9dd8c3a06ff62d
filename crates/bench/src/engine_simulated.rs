//! Experiments in the simulator: the servers and clients that also run for real, over a model of network, processors
//! and stores. docs/simulation.md says where the model's numbers come from.

use crate::engine::{Engine, Outcome, Served, Setting};
use crate::step::{Actor, Done, Step};
use client::FileId;
use reactor::sim::{CostModel, ProcessorCosts};
use sim::scale::{NodeFuture, ScaleCluster, ScaleOptions};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use wire::Placement;

const CHUNK_SIZE_DEFAULT: u32 = 1 << 20;
const SEED: u64 = 1;
/// Bytes of the journal of each server: the least that `tabane up` takes.
const JOURNAL_SIZE: u64 = 4 << 20;

/// The numbers of the model. docs/simulation.md has the table with their sources.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Model {
    pub latency_us: f64,
    pub gbit_per_s: f64,
    pub message_us: f64,
    pub byte_ps: u64,
    pub store_byte_ps: u64,
    pub entry_ns: u64,
}

impl Default for Model {
    fn default() -> Model {
        Model { latency_us: 5.0, gbit_per_s: 100.0, message_us: 6.0, byte_ps: 143, store_byte_ps: 0, entry_ns: 150 }
    }
}

impl Model {
    /// Changes numbers as `name=value,...` says. Errors: words.
    pub fn parse(text: &str) -> Result<Model, String> {
        let mut model = Model::default();
        for item in text.split(',').filter(|item| !item.is_empty()) {
            let wrong = || {
                let names = "latency_us, gbit_per_s, message_us, byte_ps, store_byte_ps, entry_ns";
                format!("--model {item}: give name=number with one of {names}")
            };
            let (name, value) = item.split_once('=').ok_or_else(wrong)?;
            let number: f64 = value.parse().map_err(|_| wrong())?;
            if !(0.0..=1e9).contains(&number) || (name == "gbit_per_s" && number < 0.001) {
                return Err(format!("--model {item}: the number is out of range"));
            }
            match name {
                "latency_us" => model.latency_us = number,
                "gbit_per_s" => model.gbit_per_s = number,
                "message_us" => model.message_us = number,
                "byte_ps" => model.byte_ps = number as u64,
                "store_byte_ps" => model.store_byte_ps = number as u64,
                "entry_ns" => model.entry_ns = number as u64,
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

    /// For the heads of pictures.
    pub fn about(&self) -> String {
        format!(
            "Model: {} Gbit/s and {} µs a way; processor: {} µs a message, {} ps a byte, {} ns a name.",
            self.gbit_per_s, self.latency_us, self.message_us, self.byte_ps, self.entry_ns
        )
    }
}

pub struct Simulated {
    cluster: ScaleCluster,
    actors: Vec<Rc<RefCell<Option<Actor>>>>,
}

impl Simulated {
    pub fn start(model: &Model, setting: &Setting) -> Result<Simulated, String> {
        let placement = match &setting.placement {
            None => Placement::Modular,
            Some(name) => Placement::parse(name).ok_or_else(|| format!("--placement {name} is not known"))?,
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
            seed: SEED,
        };
        let cluster = ScaleCluster::start(&options)?;
        let actor = |rank| Rc::new(RefCell::new(Some(Actor::new(rank, setting.procs))));
        Ok(Simulated { cluster, actors: (0..setting.procs).map(actor).collect() })
    }
}

impl Engine for Simulated {
    fn act(&mut self, step: &Step, procs: Range<u32>) -> Result<Outcome, String> {
        let step = Rc::new(step.clone());
        let work = |rank: u32| {
            let (files, step) = (self.cluster.files(rank as usize).clone(), step.clone());
            let place = self.actors[rank as usize].clone();
            let future: NodeFuture<Result<Done, String>> = Box::pin(async move {
                let mut actor = place.take().ok_or("an earlier step has not ended")?;
                let done = actor.act(&files, &step).await;
                place.replace(Some(actor));
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

    fn procs(&self) -> u32 {
        self.actors.len() as u32
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
