//! `tabane-report serve`: the counters of all servers of a cluster on one port, as Prometheus wants them. Whoever asks
//! has them asked for, by `tabane status --metrics`, but no more often than once a second.

use crate::clock;
use crate::failure::{Failure, Outcome};
use crate::http::answer;
use crate::http::listener::{Listener, own_name, refuse_method, words};
use crate::options::ServeOptions;
use crate::record::Asker;
use std::io::Write as _;
use std::net::TcpStream;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const KIND: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Well below the time in which Prometheus wants a page: who does not answer until then is down on it.
const ANSWER_TIME: &str = "--timeout-ms=3000";
/// How long an answer serves who asks after it.
const KEPT: Duration = Duration::from_secs(1);

pub fn run(options: &ServeOptions) -> Outcome {
    let listener = Listener::bind(&options.listen)?;
    let metrics =
        Metrics { asker: Asker::new(options.tabane.as_deref(), options.cluster.as_deref()), last: Mutex::default() };
    // A cluster that does not answer at all is another one than was meant.
    metrics.page().map_err(Failure::failed)?;
    let address = listener.address;
    let mut lines = match address.ip().is_unspecified() {
        true => format!("http://{}:{}/metrics\n", own_name(), address.port()),
        false => format!("http://{address}/metrics\n"),
    };
    if !address.ip().is_loopback() {
        lines.push_str("whoever reaches this address reads them: names of jobs, and what they do\n");
    }
    // Who reads these words no more may still have the page asked for.
    let _: std::io::Result<()> = std::io::stdout().write_all((lines + "Ctrl-C ends it\n").as_bytes());
    listener.serve(move |stream, request| match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/metrics") => metrics.answer(stream),
        ("GET", _) => words(stream, "404 Not Found", "there is no such page; the one there is, is /metrics"),
        _ => refuse_method(stream),
    })
}

struct Metrics {
    asker: Asker,
    /// When it was asked for, and what came.
    last: Mutex<Option<(Instant, Result<String, String>)>>,
}

impl Metrics {
    fn answer(&self, stream: &mut TcpStream) -> std::io::Result<()> {
        match self.page() {
            Ok(page) => answer(stream, "200 OK", KIND, page.as_bytes()),
            Err(why) => words(stream, "503 Service Unavailable", &why),
        }
    }

    /// The page, or why there is none. Who comes while it is being asked for waits and gets the same.
    fn page(&self) -> Result<String, String> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((asked, page)) = &*last
            && clock::monotonic().saturating_duration_since(*asked) < KEPT
        {
            return page.clone();
        }
        let page = self.ask();
        *last = Some((clock::monotonic(), page.clone()));
        page
    }

    fn ask(&self) -> Result<String, String> {
        let mut command = self.asker.command(&["status", "--metrics", ANSWER_TIME]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = command.output().map_err(|error| match self.asker.failed(&error) {
            Failure::Failed(words) | Failure::Usage(words) => words,
            _ => "it can't be asked".to_owned(),
        })?;
        let page = String::from_utf8_lossy(&output.stdout);
        // Servers that are down are on the page as that.
        if page.is_empty() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(said.lines().next().unwrap_or("nothing answers").trim_start_matches("tabane: ").to_owned());
        }
        Ok(page.into_owned())
    }
}
