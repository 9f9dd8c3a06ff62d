//! `exchange-memory`: what shared memory and the scheduler alone allow. Clients put messages as large as those of a
//! stat into memory that servers look at, each looks at all of its peers and gives the core away while there is
//! nothing: no rings, no framing, no sessions, no names, no journal. Beside mdtest in one run through shared memory it
//! says which part of a figure are the switches from process to process, which no file system that asks a server can do
//! without.
//!
//! A message is a run of words of the group memory, the first of which is its number: it is stored last and looked at
//! first, so that the words behind it are whole once it has changed. A client asks one thing at a time.

use crate::group::{Failure, Group, Pass};
use crate::target::mix;
use crate::workload_exchange::{Belongings, REPLY_SIZE, REQUEST_SIZE};

/// Words of a message, its number included; messages of several processes share no cache line.
const REQUEST_WORDS: usize = 1 + REQUEST_SIZE.div_ceil(8);
const REPLY_WORDS: usize = 1 + REPLY_SIZE.div_ceil(8);
const PLACE_WORDS: usize = 32;
/// Number of a request that says that no more come.
const LAST: u64 = u64::MAX;

/// The ranks below `clients` ask, the others answer.
pub fn run(group: &Group, clients: u32) -> Result<(), Failure> {
    if group.pass == Pass::Verify {
        return Ok(());
    }
    let most = group.shared_word_count() / PLACE_WORDS;
    if group.procs as usize > most {
        return Err(format!("exchange-memory takes up to {most} processes, clients and servers together").into());
    }
    if group.rank < clients { ask(group, clients) } else { answer(group, clients) }
}

/// First word of the place for messages to `rank`.
fn place(rank: u32) -> usize {
    rank as usize * PLACE_WORDS
}

/// Shows a message of so many words to `rank`.
fn send(group: &Group, rank: u32, number: u64, words: usize) {
    let first = place(rank);
    (1..words).for_each(|word| group.share(first + word, number));
    group.share(first, number);
}

/// Takes the words of a message for this rank from `rank`, whose number has been seen.
fn take(group: &Group, rank: u32, words: usize) -> u64 {
    let first = place(group.rank);
    (1..words).fold(0, |sum, word| sum ^ group.shared_by(rank, first + word))
}

fn ask(group: &Group, clients: u32) -> Result<(), Failure> {
    let belongings = Belongings::new(group.options.pages);
    group.barrier()?;
    let server_count = u64::from(group.procs - clients);
    let servers = clients..group.procs;
    group.phase(0, group.options.files, |meter| {
        let mut done = 0;
        while done < group.options.files && !meter.is_over() {
            let server = clients + (mix(done << 8 | u64::from(group.rank)) % server_count) as u32;
            done += 1;
            belongings.touch();
            send(group, server, done, REQUEST_WORDS);
            while group.shared_by(server, place(group.rank)) != done {
                std::thread::yield_now();
            }
            std::hint::black_box(take(group, server, REPLY_WORDS));
            meter.note_call();
        }
        servers.for_each(|server| group.share(place(server), LAST));
        Ok(done)
    })
}

fn answer(group: &Group, clients: u32) -> Result<(), Failure> {
    let belongings = Belongings::new(group.options.pages);
    group.barrier()?;
    let mut answered = vec![0; clients as usize];
    group.attend(0, || {
        let mut asking = clients;
        while asking > 0 {
            let mut idle = true;
            for client in 0..clients {
                let number = group.shared_by(client, place(group.rank));
                if std::mem::replace(&mut answered[client as usize], number) == number {
                    continue;
                }
                idle = false;
                if number == LAST {
                    asking -= 1;
                    continue;
                }
                std::hint::black_box(take(group, client, REQUEST_WORDS));
                belongings.touch();
                send(group, client, number, REPLY_WORDS);
            }
            if idle {
                std::thread::yield_now();
            }
        }
        Ok(())
    })
}
