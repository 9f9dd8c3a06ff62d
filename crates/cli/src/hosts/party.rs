//! The hosts' programs as the one who gives the orders sees them: launched, told, heard, and ended.
//!
//! Invariants
//! 1. Every launch that was started is ended, or left alone after it agreed, before `Party` goes.
//! 2. What a launcher says beside reports is kept as its last words only, at most `WORDS_SIZE_MAX` bytes.

use super::launcher::Launcher;
use super::orders::{Lines, MARK, VERSION, report};
use crate::activity::ProgressLine;
use crate::failure::{Failure, Outcome, io_words};
use crate::launch::stop_asked;
use crate::text::{duration_words, plural};
use crate::together::{Either, race};
use reactor::process::{ProcessId, SIGKILL, SIGTERM, Signals, spawn_detached};
use reactor::{Class, Nanos, Reactor, Stream, pipes};
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::task::{Poll, Waker};

const NANOS_PER_MS: Nanos = 1_000_000;
const WORDS_SIZE_MAX: usize = 4 << 10;
/// Lines of last words that are shown.
const WORDS_LINE_COUNT: usize = 6;
const LOOK_INTERVAL: Nanos = 5 * NANOS_PER_MS;
/// How long a launcher may take to end after its hosts have.
const END_INTERVAL: Nanos = 5_000 * NANOS_PER_MS;
/// How often those who read orders from a file are told that we are alive.
const BEAT_INTERVAL: Nanos = 1_000 * NANOS_PER_MS;

/// What was heard.
struct Inbox {
    /// Reports by number of host, oldest first.
    reports: Vec<VecDeque<Value>>,
    /// How the launch of a host ended.
    ended: Vec<Option<String>>,
    waker: Option<Waker>,
}

/// A launcher that runs.
struct Launch {
    numbers: Vec<usize>,
    child: Rc<RefCell<Child>>,
    input: Option<Stream>,
    words: Rc<RefCell<Vec<u8>>>,
}

/// All hosts that were called together.
pub struct Party<'a> {
    reactor: &'a Reactor,
    names: Vec<String>,
    launches: Vec<Launch>,
    inbox: Rc<RefCell<Inbox>>,
    /// Where those who have no standard input read.
    orders: Option<PathBuf>,
    /// Launchers for all stay as long as the servers that they have started.
    stays: bool,
}

/// How the hosts are reached.
pub struct Reach<'a> {
    pub launcher: &'a Launcher,
    pub binary: &'a Path,
    /// Where orders may be written for those who read them there.
    pub orders: PathBuf,
}

/// What became of a wait for reports: for each host asked the report, or why there is none.
pub type Answers = Vec<(usize, Result<Value, String>)>;

impl<'a> Party<'a> {
    /// Runs the hosts' program on these hosts. `names` are those of all hosts; their places are their numbers.
    pub fn call(reactor: &'a Reactor, reach: &Reach<'_>, names: Vec<String>, numbers: &[usize]) -> Outcome<Party<'a>> {
        let inbox = Inbox { reports: vec![VecDeque::new(); names.len()], ended: vec![None; names.len()], waker: None };
        let launcher = reach.launcher;
        let orders = launcher.has_one_reader().then(|| reach.orders.clone());
        let stays = !launcher.is_for_one_host();
        let inbox = Rc::new(RefCell::new(inbox));
        let mut party = Party { reactor, names, launches: Vec::new(), inbox, orders, stays };
        if let Some(path) = &party.orders {
            write_order(path, "\n")
                .map_err(|error| Failure::failed(format!("{}: {}", path.display(), io_words(&error))))?;
        }
        let groups: Vec<Vec<usize>> = match launcher.is_for_one_host() {
            true => numbers.iter().map(|number| vec![*number]).collect(),
            false => vec![numbers.to_vec()],
        };
        for group in groups {
            let mut command = vec![reach.binary.display().to_string(), "host".to_owned()];
            if launcher.is_for_one_host() {
                command.push(format!("--number={}", group[0]));
            } else {
                let listed: Vec<String> = group.iter().map(usize::to_string).collect();
                command.push(format!("--numbers={}", listed.join(",")));
            }
            if let Some(path) = &party.orders {
                command.push(format!("--orders={}", path.display()));
            }
            let hosts: Vec<&str> = group.iter().map(|number| party.names[*number].as_str()).collect();
            let words = launcher.words_for(&hosts, &command);
            party.launch(&words, group);
        }
        party.beat();
        Ok(party)
    }

    /// Starts one launcher. One that can't be started counts as ended.
    fn launch(&mut self, words: &[String], numbers: Vec<usize>) {
        match self.spawn(words, &numbers) {
            Ok(launch) => self.launches.push(launch),
            Err(error) => {
                let reason = format!(
                    "the launcher {} can't be started: {}; install it, or name another with --launcher",
                    words[0],
                    io_words(&error)
                );
                let mut inbox = self.inbox.borrow_mut();
                numbers.iter().for_each(|number| inbox.ended[*number] = Some(reason.clone()));
            }
        }
    }

    fn spawn(&self, words: &[String], numbers: &[usize]) -> std::io::Result<Launch> {
        let (input, their_input) = pipes::pair(self.reactor)?;
        let (output, their_output) = pipes::pair(self.reactor)?;
        let (errors, their_errors) = pipes::pair(self.reactor)?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir("/");
        command.stdin(Stdio::from(their_input)).stdout(Stdio::from(their_output)).stderr(Stdio::from(their_errors));
        let child = Rc::new(RefCell::new(spawn_detached(&mut command)?));
        drop(command);
        let launch = Launch { numbers: numbers.to_vec(), child, input: Some(input), words: Rc::default() };
        let hear = Hear {
            reactor: self.reactor.clone(),
            inbox: self.inbox.clone(),
            numbers: numbers.to_vec(),
            words: launch.words.clone(),
            child: launch.child.clone(),
            program: words[0].clone(),
        };
        self.reactor.spawn(Class::Data, hear.all(output, errors));
        Ok(launch)
    }

    /// Tells those who read a file that we are alive, until it goes.
    fn beat(&self) {
        let Some(path) = self.orders.clone() else { return };
        let reactor = self.reactor.clone();
        self.reactor.spawn(Class::Background, async move {
            while path.exists() && write_order(&path, "\n").is_ok() {
                reactor.sleep(BEAT_INTERVAL).await;
            }
        });
    }

    /// The name of a host.
    pub fn name(&self, number: usize) -> &str {
        &self.names[number]
    }

    /// Tells all hosts something. Whoever can't be told has gone, which its launch will say.
    pub async fn tell(&self, order: &Value) {
        let line = format!("{order}\n");
        if let Some(path) = &self.orders {
            // A full disk shows as hosts that do not answer.
            if let Err(error) = write_order(path, &line) {
                eprintln!("tabane: {}: {}", path.display(), io_words(&error));
            }
            return;
        }
        for launch in &self.launches {
            if let Some(input) = &launch.input {
                let _: std::io::Result<()> = input.send_all(line.as_bytes()).await;
            }
        }
    }

    /// Waits until each of these hosts has reported this, or failed, or gone. Errors: a signal asked us to stop.
    pub async fn hear(
        &self,
        kind: &str,
        numbers: &[usize],
        timeout: Nanos,
        signals: Option<&Signals>,
    ) -> Outcome<Answers> {
        let deadline = self.reactor.now().saturating_add(timeout);
        let mut answers: Vec<Option<Result<Value, String>>> = numbers.iter().map(|_| None).collect();
        let (line, answered) = (ProgressLine::default(), Cell::new(0));
        let words = || format!("{} of {} have answered", answered.get(), plural(numbers.len() as u64, "host"));
        let all = poll_fn(|context| {
            let mut inbox = self.inbox.borrow_mut();
            for (number, answer) in numbers.iter().zip(&mut answers) {
                while answer.is_none()
                    && let Some(next) = inbox.reports[*number].pop_front()
                {
                    *answer = judged(next, kind);
                }
                if answer.is_none() {
                    *answer = inbox.ended[*number].clone().map(Err);
                }
            }
            answered.set(answers.iter().flatten().count());
            if answered.get() == numbers.len() {
                return Poll::Ready(());
            }
            inbox.waker = Some(context.waker().clone());
            Poll::Pending
        });
        let stopped = async {
            match signals {
                Some(signals) => stop_asked(signals).await,
                None => std::future::pending().await,
            }
        };
        let waiting = race(self.reactor.sleep_until(deadline), line.say_waiting(self.reactor, words));
        let outcome = race(race(all, waiting), stopped).await;
        if let Either::Second(signal) = outcome {
            return Err(Failure::Said(signal.exit_code()));
        }
        let late = |number: usize| {
            let words = self.last_words(number);
            let words = if words.is_empty() { String::new() } else { format!("; the launcher said: {words}") };
            Err(format!("no answer within {}{words}", duration_words(timeout)))
        };
        let answers = numbers.iter().zip(answers);
        Ok(answers.map(|(number, answer)| (*number, answer.unwrap_or_else(|| late(*number)))).collect())
    }

    fn last_words(&self, number: usize) -> String {
        let launch = self.launches.iter().find(|launch| launch.numbers.contains(&number));
        launch.map(|launch| words_of(&launch.words.borrow())).unwrap_or_default()
    }

    /// Ends the orders: hosts that made something take it back. Returns what each of these says of that.
    pub async fn give_up(&mut self, numbers: &[usize], timeout: Nanos) -> Answers {
        self.end_orders();
        let answers = self.hear(report::UNDONE, numbers, timeout, None).await.unwrap_or_default();
        self.end_launches().await;
        answers
    }

    fn end_orders(&mut self) {
        if let Some(path) = &self.orders {
            // Those who read it see that it has gone.
            let _: std::io::Result<()> = std::fs::remove_file(path);
        }
        self.launches.iter_mut().for_each(|launch| drop(launch.input.take()));
    }

    /// After a host has agreed: launchers for one host end by themselves, others stay as long as their servers live.
    pub async fn leave(mut self) {
        self.end_orders();
        if !self.stays {
            self.end_launches().await;
        }
    }

    /// Waits for the launchers' ends; those that do not end are killed.
    async fn end_launches(&mut self) {
        self.end_orders();
        for (interval, signal) in [(END_INTERVAL, SIGTERM), (END_INTERVAL / 5, SIGKILL)] {
            let deadline = self.reactor.now() + interval;
            while self.launches.iter().any(is_running) && self.reactor.now() < deadline {
                self.reactor.sleep(LOOK_INTERVAL).await;
            }
            for launch in self.launches.iter().filter(|launch| is_running(launch)) {
                if let Some(process) = ProcessId::of(launch.child.borrow().id()) {
                    let _: std::io::Result<bool> = process.signal(signal);
                }
            }
        }
    }
}

fn is_running(launch: &Launch) -> bool {
    matches!(launch.child.borrow_mut().try_wait(), Ok(None))
}

/// What a report means to someone who waits for this kind; nothing when it is about something else.
fn judged(next: Value, kind: &str) -> Option<Result<Value, String>> {
    match next["report"].as_str() {
        Some(report::FAILED) => Some(Err(next["words"].as_str().unwrap_or("failed").to_owned())),
        Some(report::HELLO) => {
            let version = next["version"].as_str().unwrap_or("?");
            (version != VERSION).then(|| {
                Err(format!(
                    "tabane there is version {version}, here {VERSION}; install the same, or name it with --binary"
                ))
            })
        }
        Some(told) if told == kind => Some(Ok(next)),
        _ => None,
    }
}

fn write_order(path: &Path, line: &str) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    options.append(true).create(line == "\n" && !path.exists()).mode(0o600).open(path)?.write_all(line.as_bytes())
}

fn words_of(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(WORDS_LINE_COUNT)..].join(" / ")
}

/// Who listens to one launcher.
struct Hear {
    reactor: Reactor,
    inbox: Rc<RefCell<Inbox>>,
    numbers: Vec<usize>,
    words: Rc<RefCell<Vec<u8>>>,
    child: Rc<RefCell<Child>>,
    program: String,
}

impl Hear {
    async fn all(self, output: Stream, errors: Stream) {
        let lines = Lines::new(output);
        let heard = async {
            while let Ok(Some(line)) = lines.next().await {
                self.take(&line);
            }
        };
        // What a launcher leaves running may hold its error output open for ever.
        let complaints = async {
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = errors.recv(&mut chunk).await {
                self.keep(&chunk[..count]);
            }
        };
        let heard = async {
            heard.await;
            self.wait_for_end().await
        };
        let complaints = async {
            complaints.await;
            std::future::pending::<ExitStatus>().await
        };
        let (Either::First(status) | Either::Second(status)) = race(heard, complaints).await;
        // Its last words may still be on their way.
        let mut chunk = [0; 4096];
        let rest = async {
            while let Ok(count @ 1..) = errors.recv(&mut chunk).await {
                self.keep(&chunk[..count]);
            }
        };
        race(rest, self.reactor.sleep(100 * NANOS_PER_MS)).await;
        let reason = self.reason(status);
        let mut inbox = self.inbox.borrow_mut();
        for number in &self.numbers {
            inbox.ended[*number] = Some(reason.clone());
        }
        if let Some(waker) = inbox.waker.take() {
            waker.wake();
        }
    }

    async fn wait_for_end(&self) -> ExitStatus {
        loop {
            if let Ok(Some(status)) = self.child.borrow_mut().try_wait() {
                return status;
            }
            self.reactor.sleep(LOOK_INTERVAL).await;
        }
    }

    fn take(&self, line: &str) {
        let report = line.split_once(MARK).and_then(|(_, text)| serde_json::from_str::<Value>(text).ok());
        let Some(report) = report else {
            self.keep(line.as_bytes());
            self.keep(b"\n");
            return;
        };
        let number =
            report["number"].as_u64().map(|number| number as usize).filter(|number| self.numbers.contains(number));
        let mut inbox = self.inbox.borrow_mut();
        match number {
            Some(number) => inbox.reports[number].push_back(report),
            // Who does not know its own number speaks for all.
            None => self.numbers.iter().for_each(|number| inbox.reports[*number].push_back(report.clone())),
        }
        if let Some(waker) = inbox.waker.take() {
            waker.wake();
        }
    }

    fn keep(&self, bytes: &[u8]) {
        let mut words = self.words.borrow_mut();
        words.extend_from_slice(bytes);
        let excess = words.len().saturating_sub(WORDS_SIZE_MAX);
        words.drain(..excess);
    }

    /// Why nothing more is to be heard.
    fn reason(&self, status: ExitStatus) -> String {
        let words = words_of(&self.words.borrow());
        let lower = words.to_lowercase();
        let missing = status.code() == Some(127)
            || ["no such file", "not found", "exec of", "execve", "permission denied"]
                .iter()
                .any(|word| lower.contains(word));
        let is_of_host = !lower.contains("resolve") && !lower.contains("namespace") && !lower.contains("publickey");
        let is_ssh = self.program.ends_with("ssh") && status.code() == Some(255);
        let hint = if is_ssh {
            "; 'ssh HOST true' has to work from here without being asked anything"
        } else if missing && is_of_host {
            "; is the program there? --binary PATH says where it is on the hosts"
        } else {
            ""
        };
        let said = if words.is_empty() { "and said nothing".to_owned() } else { format!("and said: {words}") };
        format!("the launcher {} ended ({status}) {said}{hint}", self.program)
    }
}
