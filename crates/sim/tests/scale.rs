//! Clusters at scale: what they cost follows the model, and the same run comes out the same.

#![allow(clippy::unwrap_used)] // Tests, including their helpers.

use client::tests::{Test, Tests};
use client::{Contact, OpenHow, Search, Status};
use reactor::Nanos;
use reactor::sim::{CostModel, ProcessorCosts};
use sim::scale::{NodeFuture, ScaleCluster, ScaleOptions, Together};
use wire::Placement;

fn options(servers: u32, clients: u32) -> ScaleOptions {
    ScaleOptions {
        backing_costs: None,
        flush: None,
        servers,
        clients,
        placement: Placement::Modular,
        chunk_size: 64 << 10,
        store_size: 64 << 20,
        journal_size: 4 << 20,
        network: CostModel { latency_ns: 10_000, bandwidth: 1_000_000_000 },
        server_processor: ProcessorCosts::default(),
        client_processor: ProcessorCosts::default(),
        contact: Contact::Off,
        seed: 1,
    }
}

fn run_one<T: 'static>(
    cluster: &ScaleCluster,
    work: impl AsyncFnOnce(client::FileSystem) -> T + 'static,
) -> Together<T> {
    let files = cluster.files(0).clone();
    let work: NodeFuture<T> = Box::pin(work(files));
    cluster.run(vec![(0, work)]).unwrap()
}

fn ping_time(options: &ScaleOptions) -> Nanos {
    let cluster = ScaleCluster::start(options).unwrap();
    run_one(&cluster, async |files| files.ping(0).await.unwrap());
    run_one(&cluster, async |files| files.ping(0).await.unwrap()).took
}

/// Goal: a round trip takes what the model says: the way twice, and each message at either end.
/// Method: the same ping with costs raised one at a time.
#[test]
fn round_trips_cost_what_the_model_says() {
    let plain = ping_time(&options(2, 1));
    assert!((20_000..22_000).contains(&plain), "{plain}");
    let mut far = options(2, 1);
    far.network.latency_ns += 50_000;
    assert_eq!(ping_time(&far), plain + 100_000);
    let mut slow = options(2, 1);
    slow.server_processor.message_ns = 7_000;
    let took = ping_time(&slow);
    assert!((plain + 13_000..plain + 15_000).contains(&took), "{took} {plain}");
}

/// Goal: bytes take the time of the slowest card, and clients share the card of the server that they all ask.
/// Method: one and four clients write 16 chunks each to one server.
#[test]
fn cards_are_shared() {
    let took = |clients: u32| {
        let cluster = ScaleCluster::start(&options(1, clients)).unwrap();
        let work = |number: usize| -> (usize, NodeFuture<Result<(), Status>>) {
            let files = cluster.files(number).clone();
            let future = async move {
                let how = OpenHow { write: true, create: true, ..OpenHow::default() };
                let file = files.open(format!("/file{number}").as_bytes(), &how).await.map_err(|error| error.status)?;
                files.write_at(&file, &vec![1; 1 << 20], 0).await.map_err(|error| error.status)?;
                files.close(&file).await;
                Ok(())
            };
            (number, Box::pin(future))
        };
        let together = cluster.run((0..clients as usize).map(work).collect()).unwrap();
        assert!(together.results.iter().all(Result::is_ok), "{:?}", together.results);
        together.took
    };
    let (one, four) = (took(1), took(4));
    // A MiB takes 1.05 ms at 1 GB/s.
    assert!((1_050_000..1_500_000).contains(&one), "{one}");
    assert!((4_194_000..4_700_000).contains(&four), "{four}");
}

/// Goal: the same run twice comes out the same, to the last event.
#[test]
fn runs_repeat() {
    let run = || {
        let cluster = ScaleCluster::start(&options(16, 1)).unwrap();
        let took = run_one(&cluster, async |files| {
            for number in 0..50 {
                let how = OpenHow { write: true, create: true, exclusive: true, ..OpenHow::default() };
                let file = files.open(format!("/file{number}").as_bytes(), &how).await.unwrap();
                files.close(&file).await;
            }
        })
        .took;
        (took, cluster.trace_hash())
    };
    assert_eq!(run(), run());
}

/// Goal: many servers that announce themselves at once, to a directory's home and to a file's, do not fill a small
/// journal: nobody is told that there is no space. Method: a journal of 256 KiB, 300 servers; 64 clients make entries
/// in one directory, and write chunks of one file.
#[test]
fn announcements_at_scale() {
    const SERVERS: u32 = 300;
    const CLIENTS: usize = 64;
    let mut options = options(SERVERS, CLIENTS as u32);
    (options.journal_size, options.chunk_size, options.store_size) = (256 << 10, 4096, 4 << 20);
    let cluster = ScaleCluster::start(&options).unwrap();
    run_one(&cluster, async |files| {
        files.mkdir(b"/directory", 0o777).await.unwrap();
        let how = OpenHow { write: true, create: true, ..OpenHow::default() };
        let file = files.open(b"/file", &how).await.unwrap();
        files.close(&file).await;
    });
    let work = |number: usize| -> (usize, NodeFuture<Result<(), String>>) {
        let files = cluster.files(number).clone();
        let future = async move {
            let words = |error: client::Error| error.to_string();
            let how = OpenHow { write: true, ..OpenHow::default() };
            let file = files.open(b"/file", &how).await.map_err(words)?;
            for own in (number..4 * SERVERS as usize).step_by(CLIENTS) {
                let path = format!("/directory/{own}");
                let made = files.open(path.as_bytes(), &OpenHow { create: true, ..how }).await.map_err(words)?;
                files.close(&made).await;
                files.write_at(&file, &[7; 4096], own as u64 * 4096).await.map_err(words)?;
            }
            files.close(&file).await;
            Ok(())
        };
        (number, Box::pin(future))
    };
    let together = cluster.run((0..CLIENTS).map(work).collect()).unwrap();
    let failed: Vec<&String> = together.results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert!(failed.is_empty(), "{} clients failed: {}", failed.len(), failed[0]);
}

/// Goal: a directory is searched by its id as by its path, each server's share alone; one that is gone is empty, and a
/// server that there is not is refused.
#[test]
fn searches_by_id() {
    let cluster = ScaleCluster::start(&options(3, 1)).unwrap();
    let work = async |files: client::FileSystem| {
        let directory = files.mkdir(b"/directory", 0o777).await.unwrap().id;
        for number in 0..30 {
            let how = OpenHow { write: true, create: true, ..OpenHow::default() };
            let file = files.open(format!("/directory/{number}").as_bytes(), &how).await.unwrap();
            files.close(&file).await;
        }
        let names = async |server: Option<u32>, tests: Vec<Test>| {
            let search = Search { tests: Tests(tests), server, ..Search::default() };
            let mut stream = files.open_search_id(directory, &search).await.unwrap();
            let mut found = Vec::new();
            while !stream.is_at_end() {
                let page = files.next_found(&mut stream).await?;
                found.extend(page.entries.into_iter().map(|entry| entry.name));
            }
            found.sort();
            Ok::<_, client::Error>(found)
        };
        let all = names(None, Vec::new()).await.unwrap();
        assert_eq!(all.len(), 30);
        let mut parts = Vec::new();
        for server in 0..3 {
            parts.extend(names(Some(server), Vec::new()).await.unwrap());
        }
        parts.sort();
        assert_eq!(parts, all);
        let ones = Test::Name { pattern: b"*1".to_vec(), any_case: false };
        assert_eq!(names(None, vec![ones]).await.unwrap(), [&b"1"[..], b"11", b"21"]);
        let beyond = Search { server: Some(3), ..Search::default() };
        assert_eq!(files.open_search_id(directory, &beyond).await.unwrap_err().status, Status::Invalid);
        for number in 0..30 {
            files.unlink(format!("/directory/{number}").as_bytes()).await.unwrap();
        }
        files.rmdir(b"/directory").await.unwrap();
        assert_eq!(names(None, Vec::new()).await.unwrap().len(), 0);
    };
    run_one(&cluster, work);
}

/// Requests that the home of a file answers while so many clients open it at once, 8 servers.
fn home_requests(contact: Contact, clients: u32) -> u64 {
    let cluster = ScaleCluster::start(&ScaleOptions { contact, ..options(8, clients) }).unwrap();
    run_one(&cluster, async |files| {
        let how = OpenHow { write: true, create: true, ..OpenHow::default() };
        let file = files.open(b"/shared", &how).await.unwrap();
        files.close(&file).await;
    });
    let each = |work: &dyn Fn(client::FileSystem) -> NodeFuture<()>| {
        let all = (0..clients as usize).map(|number| (number, work(cluster.files(number).clone()))).collect();
        cluster.run(all).unwrap();
    };
    each(&|files| Box::pin(async move { files.stat(b"/shared").await.map(|_| ()).unwrap() }));
    let arrivals = |operation: &str| -> Vec<u64> {
        let key = format!("\"{operation}\":{{\"arrivals\":");
        let number = |text: String| {
            let tail = text.find(&key).map(|start| &text[start + key.len()..]);
            tail.map_or(0, |tail| tail[..tail.find(',').unwrap()].parse().unwrap())
        };
        cluster.statistics().into_iter().map(number).collect()
    };
    each(&|files| Box::pin(async move { drop(files.open(b"/shared", &OpenHow::reading()).await.unwrap()) }));
    // Contacts send opens on to the home alone.
    let opens = arrivals("OpenExisting");
    let home = (0..opens.len()).max_by_key(|server| opens[*server]).unwrap();
    assert_eq!(opens.iter().sum::<u64>(), opens[home]);
    ["OpenExisting", "OpenThrough", "Delegate", "ReclaimHeld", "CloseHeld"]
        .iter()
        .map(|name| arrivals(name)[home])
        .sum()
}

/// Goal: with contacts the home of a file that everybody opens answers as many requests for 512 clients as for 64;
/// without, one for each client.
#[test]
fn contacts_take_open_storms_off_the_home() {
    for clients in [8, 64, 512] {
        assert_eq!(home_requests(Contact::Off, clients), u64::from(clients));
    }
    let counts: Vec<u64> = [64, 256, 512].map(|clients| home_requests(Contact::Always, clients)).to_vec();
    // Each of the seven contacts sends one client on and asks once.
    assert_eq!(counts, [14, 14, 14]);
}
