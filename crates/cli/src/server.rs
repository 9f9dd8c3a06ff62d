//! `tabane server`: one server, in the foreground.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome};
use crate::flushing;
use crate::launch::stop_asked;
use crate::log::tell;
use crate::pin::Pin;
use crate::session::find_cluster;
use crate::settings::transport;
use crate::store_memory::pages_note;
use crate::text::size_words;
use crate::together::{Either, race};
use crate::up::catch_signals;
use reactor::log::{Fact, Level};
use reactor::process::Signals;
use reactor::{DriverKind, Nanos, Reactor};
use server::{DeviceStore, JournalGrowth, ReadLeasing, Server, ServerOptions, StartError};
use std::fmt::Write as _;
use std::rc::Rc;

const NANOS_PER_MS: Nanos = 1_000_000;
/// How long the remains of a killed server are waited for, and how often they are looked at: the kernel ends a ring,
/// and closes what it holds, on a worker of its own, which a machine that is busy lets wait.
const REMAINS_TIME: Nanos = 20_000 * NANOS_PER_MS;
const REMAINS_INTERVAL: Nanos = 20 * NANOS_PER_MS;

/// `tabane server`.
pub fn run(arguments: &Arguments) -> Outcome {
    let options = server_options(arguments)?;
    // Where that is not allowed, fewer connections fit; whoever finds no room is told.
    let _ = reactor::process::allow_open_files();
    let reactor = Reactor::open(DriverKind::Auto).map_err(|error| Failure::failed(format!("event loop: {error}")))?;
    Pin::wanted(arguments)?.apply(&reactor, &options.cluster, options.index)?;
    let signals = catch_signals(&reactor)?;
    crate::log::begin(&reactor, options.index, arguments.path("log"));
    reactor.block_on(serve(&reactor, &signals, options)).inspect_err(|failure| {
        if let Failure::Failed(words) = failure {
            tell(Level::Error, "server-failed", words, &[]);
        }
    })
}

fn server_options(arguments: &Arguments) -> Outcome<ServerOptions> {
    let missing = |name: &str| Failure::usage(format!("--{name} is missing"));
    let directory = arguments.path("directory").ok_or_else(|| missing("directory"))?;
    let index = arguments.number_given("index").ok_or_else(|| missing("index"))?;
    let store_size = arguments.number_given("store-size").ok_or_else(|| missing("size"))?;
    let metrics_port = arguments.number("metrics-port") as u16;
    let device = device_store(arguments, store_size)?;
    let pages_note = match &device {
        Some(_) => DEVICE_NOTE.to_owned(),
        None => pages_note(&directory, arguments.text_or_default("huge-pages") != "off"),
    };
    Ok(ServerOptions {
        cluster: Rc::new(find_cluster(arguments)?),
        index: index as u32,
        directory,
        device,
        store_size,
        journal_size: arguments.number("journal-size"),
        journal_growth: JournalGrowth::of_store(store_size),
        checksums: arguments.flag("checksums"),
        transport: transport(arguments),
        short_circuit: arguments.text_or_default("short-circuit") != "off",
        registered_buffers: arguments.text_or_default("short-circuit") == "auto",
        read_leasing: ReadLeasing::default(),
        bounds: server::Bounds::default(),
        pages_note,
        connections_max: arguments.number("connections-max") as usize,
        timeout: arguments.number("timeout-ms") * NANOS_PER_MS,
        session_grace: arguments.number("session-grace-ms") * NANOS_PER_MS,
        metrics_port: (metrics_port != 0).then_some(metrics_port),
        backing: arguments.path("backing"),
        flushing: flushing::wanted(arguments)?,
    })
}

/// Why a store on a device lies on small pages.
const DEVICE_NOTE: &str = "a device keeps them, and single pages of each are in memory";

/// What keeps the store. Errors: one of the two is missing.
fn device_store(arguments: &Arguments, store_size: u64) -> Outcome<Option<DeviceStore>> {
    match (arguments.path("device"), arguments.number_given("buffer")) {
        (Some(path), Some(buffer)) => Ok(Some(DeviceStore { path, buffer: buffer.min(store_size) })),
        (None, None) => Ok(None),
        _ => Err(Failure::usage("--device and --buffer go together".to_owned())),
    }
}

async fn serve(reactor: &Reactor, signals: &Signals, options: ServerOptions) -> Outcome {
    let (index, cluster) = (options.index, options.cluster.clone());
    let server = start(reactor, options).await.map_err(|error| Failure::failed(error.to_string()))?;
    let address = cluster.servers[index as usize].address;
    let facts: [Fact<'_>; 3] =
        [("address", &address), ("event_loop", &reactor.driver_name()), ("version", &env!("CARGO_PKG_VERSION"))];
    tell(Level::Info, "server-started", "it takes requests now", &facts);
    println!("server {index} of {cluster:?} listens on {address}, event loop over {}", reactor.driver_name());
    print!("{}", memory_words(&server.memory_max()));
    println!("{}", survival_words(server.survives_power_loss()));
    let asked = race(stop_asked(signals), server.wait_for_shutdown_request());
    let why = match race(asked, server.wait_for_medium_failure()).await {
        Either::First(Either::First(signal)) => {
            let why = format!("signal {}", signal.number);
            // Whoever asks once more does not wait, nor does anybody for a medium that is broken.
            let asked = race(stop_asked(signals), server.wait_for_shutdown_request());
            let cut_off = race(asked, server.wait_for_medium_failure());
            let _: Either<(), _> = race(server.flush_before_end(), cut_off).await;
            why
        }
        Either::First(Either::Second(())) => "a client's request".to_owned(),
        Either::Second(words) => {
            tell(
                Level::Error,
                "medium-failed",
                "nothing that is given now would survive power loss",
                &[("reason", &words)],
            );
            server.stop().await;
            return Err(Failure::failed(format!(
                "server {index} stops, for nothing that it is given now would survive power loss: {words}; mend the \
                 medium and start the server again"
            )));
        }
    };
    println!("server {index} stops: {why}");
    tell(Level::Info, "server-stopping", "it was asked to", &[("reason", &why)]);
    server.stop().await;
    tell(Level::Info, "server-stopped", "everything is written", &[]);
    Ok(())
}

/// Starts the server. What is in use may be so by the remains of a killed server: the kernel gives back the address and
/// the directory of a ring only some time after its process has gone.
async fn start(reactor: &Reactor, options: ServerOptions) -> Result<Server, StartError> {
    let give_up = reactor.now() + REMAINS_TIME;
    loop {
        let error = match Server::start(reactor, options.clone()).await {
            Ok(server) => return Ok(server),
            Err(error) => error,
        };
        let in_use = match &error {
            StartError::Listen(_, error) => error.kind() == std::io::ErrorKind::AddrInUse,
            StartError::InUse(_) => true,
            _ => false,
        };
        if !in_use || reactor.now() >= give_up {
            return Err(error);
        }
        reactor.sleep(REMAINS_INTERVAL).await;
    }
}

/// What the store's medium keeps.
fn survival_words(survives_power_loss: bool) -> &'static str {
    if survives_power_loss {
        "what was acknowledged survives a killed server; what was synced survives power loss"
    } else {
        "what was acknowledged survives a killed server; nothing survives power loss, for the store is in memory \
         (tmpfs)"
    }
}

/// The most memory that a server may use beside what it stores: each part with its reason, and the sum.
fn memory_words(parts: &[(&'static str, u64)]) -> String {
    let mut words = "memory at most, beside what is stored:\n".to_owned();
    for (reason, bytes) in parts {
        let _ = writeln!(words, "  {:>10}  {reason}", size_words(*bytes));
    }
    let sum = parts.iter().map(|(_, bytes)| bytes).sum();
    let _ = writeln!(words, "  {:>10}  in all", size_words(sum));
    words
}
