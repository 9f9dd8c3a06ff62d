//! The blocking face against real servers.

#[path = "common/real.rs"]
mod real;

use client::{OpenHow, Status};
use real::Real;

/// Goal: many threads share one client; each finds its own bytes, and all find those of a file that they share. Method:
/// every thread writes a file of its own and its stripes of a shared one, then reads both back whole; over stores on a
/// disk, and in memory, where the client submits, looks and reads by itself.
#[test]
fn threads_share_a_client() {
    for start in [Real::start, Real::in_memory] {
        threads_share_a_client_of(&start("threads", 2, 4096));
    }
}

fn threads_share_a_client_of(cluster: &Real) {
    const THREADS: usize = 8;
    const STRIPE: usize = 10_000;
    const STRIPES: usize = 40;
    let client = cluster.client();
    client.mkdir(b"/d", 0o755).expect("made");
    let shared = client.open(b"/d/shared", &OpenHow::creating(0o644)).expect("made");
    let stripe = |thread: usize, number: usize| vec![(thread * 31 + number * 7 + 1) as u8; STRIPE];
    let offset = |thread: usize, number: usize| ((number * THREADS + thread) * STRIPE) as u64;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (client, shared) = (client.clone(), shared.clone());
            scope.spawn(move || {
                let path = format!("/d/own{thread}");
                let own = client.open(path.as_bytes(), &OpenHow::creating(0o600)).expect("made");
                for number in 0..STRIPES {
                    let bytes = stripe(thread, number);
                    assert_eq!(client.write_at(&shared, &bytes, offset(thread, number)), Ok(STRIPE));
                    assert_eq!(client.write_at(&own, &bytes, (number * STRIPE) as u64), Ok(STRIPE));
                }
                let mut place = vec![0; STRIPE * STRIPES + 1];
                assert_eq!(client.read_at(&own, &mut place, 0), Ok(STRIPE * STRIPES));
                for number in 0..STRIPES {
                    assert!(place[number * STRIPE..][..STRIPE] == stripe(thread, number));
                }
                client.close(&own);
            });
        }
    });
    let other = cluster.client();
    let file = other.open(b"/d/shared", &OpenHow::reading()).expect("is there");
    let mut place = vec![0; THREADS * STRIPE * STRIPES + 100];
    assert_eq!(other.read_at(&file, &mut place, 0), Ok(THREADS * STRIPE * STRIPES));
    for thread in 0..THREADS {
        for number in 0..STRIPES {
            assert!(place[offset(thread, number) as usize..][..STRIPE] == stripe(thread, number));
        }
    }
    let mut names = Vec::new();
    other
        .read_directory(b"/d", true, &mut |entry| {
            // A callback may use the client itself.
            assert!(other.stat_entry(entry).expect("is there").size > 0);
            names.push(entry.name.clone());
            true
        })
        .expect("listed");
    assert_eq!(names.len(), THREADS + 1);
}

/// Goal: a cluster that nobody serves is an error that names the server, soon; not a hang.
#[test]
fn unreachable_is_an_error() {
    let cluster = {
        let real = Real::start("gone", 1, 4096);
        real.cluster.clone()
    };
    let address = cluster.servers[0].address.to_string();
    let options = client::Options { timeout_ms: 300, ..client::Options::default() };
    let client = client::Client::connect(cluster, options).expect("needs nobody");
    let error = client.stat(b"/f").expect_err("nobody is there");
    assert!(matches!(error.status, Status::Unreachable | Status::TimedOut), "{error}");
    assert!(error.message.contains(&address) && error.message.contains("/f"), "{error}");
}

/// Goal: a client with another key is refused with an error that says so.
#[test]
fn wrong_key_is_refused() {
    let cluster = Real::start("key", 1, 4096);
    let mut other = cluster.cluster.clone();
    other.key = [1; 32];
    let client = client::Client::connect(other, client::Options::default()).expect("needs nobody");
    let error = client.stat(b"/").expect_err("the key is wrong");
    assert_eq!(error.status, Status::KeyMismatch, "{error}");
}
