use crate::support::*;
use std::cell::Cell;
use std::rc::Rc;
use wire::messages::{Empty, StatisticsRequest};
use wire::{FileId, Operation, Status};

const ROOT: FileId = FileId::ROOT;

/// A value of a JSON text that is too simple to need a parser: the number after `"key":` behind `"section":`.
fn number(text: &str, section: &str, key: &str) -> u64 {
    let part = &text[text.find(&format!("\"{section}\":")).expect("the section is there")..];
    let key = format!("\"{key}\":");
    let digits = &part[part.find(&key).expect("the key is there") + key.len()..];
    let end = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().expect("a number")
}

/// Each metric has its help and its type, in this order and once, and all of its samples stand below.
fn check_exposition(page: &str) {
    let mut known: Vec<&str> = Vec::new();
    let mut lines = page.lines().peekable();
    while let Some(help) = lines.next() {
        let (name, words) = help.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')).expect(help);
        assert!(!known.contains(&name) && words.ends_with('.'), "{help}");
        known.push(name);
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        assert_eq!(lines.next(), Some(format!("# TYPE {name} {kind}").as_str()));
        let mut samples = 0;
        while let Some(sample) = lines.next_if(|line| !line.starts_with('#')) {
            let (metric, value) = sample.rsplit_once(' ').expect(sample);
            assert!(metric == name || metric.starts_with(&format!("{name}{{")), "{sample} is below {name}");
            assert!(value.parse::<f64>().is_ok(), "{sample}");
            samples += 1;
        }
        assert!(samples > 0, "{name} has no value");
    }
    assert!(known.len() > 60, "{known:?}");
}

/// Goal: what clients did is what the statistics say, in both formats, and samples are taken while something happens
/// only.
#[test]
fn counters_tell_what_happened() {
    let test = TestCluster::new(1, 1);
    let caller = test.caller(0, 1);
    let texts = test.run(0, async move {
        for number in 0..7 {
            let attributes = caller.create(ROOT, &format!("f{number}")).await.expect("created");
            caller.write(attributes.id, attributes.layout, 0, &[1; 100]).await.expect("written");
            caller.read(attributes.id, attributes.layout, 0, 50).await.expect("read");
        }
        assert_eq!(status(&caller.create(ROOT, "f0").await), Status::Exists);
        let mut texts = Vec::new();
        for format in 0..3 {
            let reply = caller.call(0, Operation::Statistics, &StatisticsRequest { format }).await.expect("told");
            texts.push(String::from_utf8(reply.body).expect("text"));
        }
        assert_eq!(
            status(&caller.call(0, Operation::Statistics, &StatisticsRequest { format: 3 }).await),
            Status::Invalid
        );
        texts
    });
    for text in [&texts[0], &texts[2]] {
        assert_eq!(number(text, "Open", "arrivals"), 8);
        assert_eq!(number(text, "Open", "failed"), 1);
        assert_eq!(number(text, "Open", "req_active"), 0);
        assert_eq!(number(text, "Write", "bytes_in"), 700);
        assert_eq!(number(text, "Read", "bytes_out"), 350);
        assert_eq!(number(text, "data", "finished"), 14);
        assert_eq!(number(text, "tables", "inodes"), 8);
        let (open, close) = (text.matches(['{', '[']).count(), text.matches(['}', ']']).count());
        assert_eq!(open, close, "{text}");
    }
    assert!(texts[1].contains("tabane_operation_arrivals_total{operation=\"Open\"} 8\n"), "{}", texts[1]);
    check_exposition(&texts[1]);
    test.world.run_for(10 * SECOND);
    let samples = |text: &str| text.matches("\"time_ns\"").count();
    let all = test.run(0, {
        let caller = test.caller(0, 1);
        async move {
            let reply = caller.call(0, Operation::Statistics, &StatisticsRequest { format: 2 }).await.expect("told");
            String::from_utf8(reply.body).expect("text")
        }
    });
    assert!((1..=3).contains(&samples(&all)), "an idle server takes no samples: {all}");
}

/// Goal: the metrics page answers, refuses other paths, and cuts off who says nothing sensible; who says nothing at all
/// takes nothing from others, however many they are.
/// Method: a real server on the loopback, for simulated nodes have none; 300 silent connections, and more before each
/// question.
#[test]
fn metrics_page() {
    let directory = std::env::temp_dir().join(format!("tabane-metrics-{}", std::process::id()));
    let reactor = reactor::Reactor::open(reactor::DriverKind::Epoll).expect("a reactor");
    let (server, port) = start_somewhere(&reactor, &directory);
    let ask = |request: &'static [u8]| {
        reactor.block_on(async {
            let stream = reactor.connect(([127, 0, 0, 1], port).into()).await.expect("connected");
            stream.send_all(request).await.expect("sent");
            let mut answer = Vec::new();
            let mut part = [0; 512];
            while let Ok(size) = stream.recv(&mut part).await
                && size > 0
            {
                answer.extend_from_slice(&part[..size]);
            }
            String::from_utf8_lossy(&answer).into_owned()
        })
    };
    let page = ask(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains("\ntabane_inodes 1\n"), "{page}");
    assert!(ask(b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(ask(&[b'x'; 4096]).starts_with("HTTP/1.1 404"), "a request that never ends is not read to its end");
    let silent = || std::net::TcpStream::connect(("127.0.0.1", port)).expect("somebody listens");
    let mut crowd: Vec<_> = (0..300).map(|_| silent()).collect();
    for _ in 0..20 {
        crowd.extend((0..20).map(|_| silent()));
        assert!(ask(b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 OK\r\n"));
    }
    reactor.block_on(server.stop());
    std::fs::remove_dir_all(&directory).expect("the store is there");
}

/// A server of a cluster of one, on ports that were free a moment ago.
fn start_somewhere(reactor: &reactor::Reactor, directory: &std::path::Path) -> (server::Server, u16) {
    use wire::{Cluster, Placement, ServerAddress};
    for _ in 0..20 {
        let probes = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let [address, page] = probes.each_ref().map(|probe| probe.local_addr().expect("it is bound"));
        drop(probes);
        let cluster = Cluster::new(1, [2; 32], Placement::Modular, 4096, vec![ServerAddress { address }]);
        let options = server::ServerOptions {
            cluster: std::rc::Rc::new(cluster),
            index: 0,
            directory: directory.to_path_buf(),
            store_size: 8 << 20,
            journal_size: 1 << 20,
            journal_growth: server::JournalGrowth::NONE,
            checksums: false,
            connections_max: 4,
            timeout: 2 * SECOND,
            session_grace: 2 * SECOND,
            transport: server::Transport::Tcp,
            short_circuit: true,
            registered_buffers: true,
            read_leasing: server::ReadLeasing::default(),
            bounds: server::Bounds::default(),
            pages_note: String::new(),
            metrics_port: Some(page.port()),
            backing: None,
            flushing: MANUAL,
        };
        match reactor.block_on(server::Server::start(reactor, options)) {
            Ok(server) => return (server, page.port()),
            Err(server::StartError::Listen(..)) => {}
            Err(other) => panic!("{other}"),
        }
    }
    panic!("no port stays free");
}

/// Goal: a server whose store is in memory faults space in while nobody asks for anything, up to its bound; one whose
/// store is on a disk does not, for that would be written out. Method: the same server over both kinds of media, and
/// ten seconds more after it has all.
#[test]
fn idle_servers_fault_space_in() {
    let test = TestCluster::new(5, 1);
    let backed = || number(&test.server(0).statistics_json(), "store", "bytes_backed");
    assert!(!test.world.run_until(|| backed() > 0, SECOND));
    test.lose_power(0);
    test.world.set_volatile(test.servers[0], true);
    test.world.restart(test.servers[0]);
    test.start(0);
    assert!(test.world.run_until(|| backed() == 2 << 20, SECOND));
    assert!(!test.world.run_until(|| backed() != 2 << 20, 10 * SECOND));
}

/// Goal: space is faulted in slowly where others want the core, and at once when they don't any more.
/// Method: a node whose processor is wanted; a step of 256 KiB a second or so, then all that is missing.
#[test]
fn space_is_faulted_in_beside_others() {
    let test = TestCluster::new(6, 1);
    let backed = || number(&test.server(0).statistics_json(), "store", "bytes_backed");
    test.lose_power(0);
    test.world.set_volatile(test.servers[0], true);
    test.world.set_core_wanted(test.servers[0], true);
    test.world.restart(test.servers[0]);
    test.start(0);
    assert!(!test.world.run_until(|| backed() > 0, SECOND / 2));
    assert!(test.world.run_until(|| backed() > 0, SECOND));
    assert!(!test.world.run_until(|| backed() == 2 << 20, 2 * SECOND));
    test.world.set_core_wanted(test.servers[0], false);
    assert!(test.world.run_until(|| backed() == 2 << 20, SECOND));
}

/// Goal: the owner may shut a server down, others may not; the bounds of its memory are named.
#[test]
fn shutdown_is_asked_for() {
    let test = TestCluster::new(3, 1);
    let stranger = test.caller_as(0, 1, 4_000_000);
    let owner = test.caller_as(1, 2, 0);
    let refused = test.run(0, async move { status(&stranger.call(0, Operation::Shutdown, &Empty {}).await) });
    assert_eq!(refused, Status::NotPermitted);
    let server = test.server(0);
    assert!(server.memory_max().iter().all(|(reason, bytes)| !reason.is_empty() && *bytes > 0));
    let asked = test.run(1, async move { status(&owner.call(0, Operation::Shutdown, &Empty {}).await) });
    assert_eq!(asked, Status::Ok);
    let told = test.world.run(test.servers[0], async move { server.wait_for_shutdown_request().await }, LIMIT);
    assert!(told.is_some());
}

/// Goal: a cluster of several hosts without protection says so in the log of each server.
#[test]
fn no_protection_is_told() {
    let told = Rc::new(Cell::new(0));
    let count = told.clone();
    reactor::log::take_events(move |event| count.set(count.get() + usize::from(event.name == "not-protected")));
    let test = TestCluster::new(1, 3);
    assert_eq!((told.get(), test.servers.len()), (3, 3));
}
