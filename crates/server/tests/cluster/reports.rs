use crate::support::*;
use std::cell::Cell;
use std::rc::Rc;
use wire::messages::{Empty, StatisticsFormat, StatisticsRequest};
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
        for format in [StatisticsFormat::JSON, StatisticsFormat::Prometheus, StatisticsFormat::JSON_WHOLE] {
            let reply = caller.call(0, Operation::Statistics, &StatisticsRequest { format }).await.expect("told");
            texts.push(String::from_utf8(reply.body).expect("text"));
        }
        assert_eq!(status(&caller.call(0, Operation::Statistics, &7u8).await), Status::BadMessage);
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
            let format = StatisticsFormat::JSON_WHOLE;
            let reply = caller.call(0, Operation::Statistics, &StatisticsRequest { format }).await.expect("told");
            String::from_utf8(reply.body).expect("text")
        }
    });
    assert!((1..=3).contains(&samples(&all)), "an idle server takes no samples: {all}");
}

/// Goal: what the clients of each job asked for counts to it, to the byte; clients that name none count together, and
/// servers to nobody. Names are told as they are, whatever they hold.
#[test]
fn jobs_are_told_apart() {
    let test = TestCluster::new(2, 2);
    let quoted = "a\"b\\c";
    let jobs = [(0, 1, "812", 3u64), (1, 2, "813", 5), (2, 3, quoted, 2), (0, 4, "", 4)];
    for (node, session, job, count) in jobs {
        let caller = test.caller_of(node, session, 0, job);
        test.run(node, async move {
            for number in 0..count {
                let attributes = caller.create(ROOT, &format!("{session}-{number}")).await.expect("created");
                caller.write(attributes.id, attributes.layout, 0, &[1; 100]).await.expect("written");
                caller.read(attributes.id, attributes.layout, 0, 30).await.expect("read");
            }
        });
    }
    let texts: Vec<String> = test.server_indexes().map(|index| test.server(index).statistics_json()).collect();
    for (_, _, job, count) in jobs {
        let escaped = job.replace('\\', "\\\\").replace('"', "\\\"");
        let sum = |key: &str| texts.iter().map(|text| job_entry(text, &escaped, key)).sum::<u64>();
        let told = [sum("writes"), sum("bytes_in"), sum("reads"), sum("bytes_out"), sum("failed")];
        assert_eq!(told, [count, 100 * count, count, 30 * count, 0], "{job}: {texts:?}");
        assert!(sum("metadata") >= count && sum("arrivals") == sum("finished"), "{job}: {texts:?}");
    }
    assert!(texts[0].contains("\"job\":\"813\",\"program\":\"test\""), "peers say who they are: {}", texts[0]);
    // Nothing counts to nobody, and nothing twice.
    for text in &texts {
        let all =
            ["812", "813", "a\\\"b\\\\c", ""].map(|job| job_entry(text, job, "reads") + job_entry(text, job, "writes"));
        assert_eq!(all.iter().sum::<u64>(), number(text, "data", "finished"));
    }
    let pages: Vec<String> = test.server_indexes().map(|index| test.server(index).statistics_prometheus()).collect();
    pages.iter().for_each(|page| check_exposition(page));
    let page = pages.concat();
    assert!(page.contains("tabane_job_received_bytes_total{job=\"a\\\"b\\\\c\"}"), "{page}");
    assert!(page.contains("{job=\"(none)\"}"), "{page}");
}

/// A number in a server's entry of a job; 0 if it has none.
fn job_entry(text: &str, job: &str, key: &str) -> u64 {
    let list = &text[text.find("\"jobs\":[").expect("jobs are told")..];
    let list = &list[..list.find("\"busiest\":").expect("the list ends")];
    let Some(at) = list.find(&format!("\"job\":\"{job}\",")) else { return 0 };
    number(&format!("\"entry\":{}", &list[at..]), "entry", key)
}

/// The waits of a class for a reason: how many began, and for how long all were.
fn waits(text: &str, class: &str, reason: &str) -> (u64, u64) {
    let part = &text[text.find("\"classes\":").expect("classes are told")..];
    let part = &part[part.find(&format!("\"{class}\":")).expect("the class is told")..];
    (number(part, reason, "begun"), number(part, reason, "waited_ns"))
}

/// Goal: what requests wait for is told by reason, whoever looks: for the loop while it does other things, for their
/// turn at a file, for a sync, for a place among those that wait for other servers. Time at work and time that was
/// waited together are no more than what the callers have measured, but for what may have passed before a request was
/// seen; and the depth of the queue is the growth of what was waited.
#[test]
fn waits_have_reasons() {
    let test = TestCluster::new(3, 2);
    let caller = test.caller(0, 1);
    let file = test.run(0, async move {
        let file = caller.create(ROOT, "f").await.expect("created");
        // Some of it lies at each server, so that to cut it takes a while.
        for chunk in 0..4 {
            caller.write(file.id, file.layout, chunk * 4096, &[1; 100]).await.expect("written");
        }
        file
    });
    let home = test.caller(0, 1).home(file.id);
    let before = test.server(home).statistics_json();
    // The loop is away for a millisecond after each turn, while three callers ask.
    test.world.set_slowness(test.servers[home as usize], 1_000_000, 1_000_000);
    let asking: Vec<_> = (0..3)
        .map(|node| {
            let caller = test.caller(node, 10 + node as u64);
            let clock = test.reactor_of_caller(node);
            test.spawn(node, async move {
                let begun = clock.now();
                for _ in 0..50 {
                    caller.stat(file.id).await.expect("told");
                }
                clock.now() - begun
            })
        })
        .collect();
    let took: u64 = asking.iter().map(|slot| test.wait(slot)).sum();
    test.world.set_slowness(test.servers[home as usize], 0, 0);
    let after = test.server(home).statistics_json();
    let grown = |class: &str, reason: &str| {
        let (old, new) = (waits(&before, class, reason), waits(&after, class, reason));
        (new.0 - old.0, new.1 - old.1)
    };
    let (begun, waited) = grown("metadata", "unread");
    assert!(begun >= 140, "{begun}: {after}");
    assert!(waited > took / 3 && waited < took * 3 / 2, "{waited} of {took}: {after}");
    // Turns at a file: who cuts it waits for those who came before.
    let cutting: Vec<_> = (0..3)
        .map(|node| {
            let caller = test.caller(node, 20 + node as u64);
            test.spawn(node, async move { caller.truncate(file.id, 100 * node as u64).await.map(|_| ()) })
        })
        .collect();
    cutting.iter().for_each(|slot| test.wait(slot).expect("cut"));
    let caller = test.caller(0, 1);
    test.run(0, async move { caller.synchronise().await.expect("synchronised") });
    let after = test.server(home).statistics_json();
    let (begun, waited) = waits(&after, "metadata", "turn");
    assert!(begun >= 1 && waited > 0, "{after}");
    let syncs = test.server_indexes().map(|index| waits(&test.server(index).statistics_json(), "metadata", "sync").0);
    assert!(syncs.sum::<u64>() >= 1, "{after}");
    // At rest nothing waits, and totals stand still.
    test.settle();
    let rest = test.server(home).statistics_json();
    test.world.run_for(3 * SECOND);
    let later = test.server(home).statistics_json();
    for class in ["metadata", "data"] {
        assert_eq!((number(&later, class, "req_qdepth"), number(&later, class, "req_active")), (0, 0));
        for key in ["req_waittime_ns", "req_active_ns"] {
            assert_eq!(number(&rest, class, key), number(&later, class, key), "{key} of {class}");
        }
    }
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
            device: None,
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
