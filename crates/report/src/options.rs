//! The command line.

use crate::failure::{Failure, Outcome};
use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// More intervals than this no picture and no table is read for.
pub const INTERVALS_MAX: i64 = 1_000_000;

const ABOUT: &str = "What a job did, and how its I/O servers were meanwhile, from logs that a site keeps anyway.

First read the logs into a place (a file, or postgresql://...), then ask about a job:

  tabane-report import site.db --jobs sacct.txt --nodes nodes.csv --lustre oss1.log oss2.log
  tabane-report job 4711 site.db --csv profiles --heat-map 4711.svg";

const IMPORT_EXAMPLES: &str = "Examples:
  sacct -aPX -o jobid,jobidraw,jobname,user,state,start,end,nodelist | tabane-report import site.db --jobs -
  scontrol show topology >switches && tabane-report import site.db --nodes switches
  tabane-report import site.db --lustre oss1=monday.log oss1=tuesday.log
  tabane-report import site.db --every 60 --command \\
    'pdsh -w oss[1-4] lctl get_param ost.OSS.ost_io.stats obdfilter.*.stats obdfilter.*.job_stats'

What is there already stays as it is: the same file twice changes nothing, and a file that has grown may be read again.
An import takes effect as a whole or not at all.";

const JOB_EXAMPLES: &str = "Examples:
  tabane-report job 4711 site.db
  tabane-report job 4711 site.db --interval 60 --csv profiles
  tabane-report job 4711 site.db --heat-map when.svg --congested-from 16
  tabane-report job 4711 site.db --heat-map where.svg --map machine --measure req_waittime";

const NEIGHBOURS_EXAMPLES: &str = "Examples:
  tabane-report neighbours 4711 site.db
  tabane-report neighbours 4711 site.db --interval 60 --csv neighbours.csv";

const HTML_EXAMPLES: &str = "Examples:
  tabane-report html 4711 site.db --output 4711.html";

const ADVICE_EXAMPLES: &str = "Examples:
  tabane-report advice 4711 site.db
  tabane-report advice";

const HISTORY_EXAMPLES: &str = "Examples:
  tabane-report history fluid site.db
  tabane-report history fluid site.db --id 4711 --csv runs.csv";

const RECORD_EXAMPLES: &str = "Examples:
  tabane-report record run.db --every 10
  tabane-report record run.db --cluster /tmp/run --name fluid --until-input-ends";

const WATCH_EXAMPLES: &str = "Examples:
  tabane-report watch --cluster /tmp/run
  tabane-report watch --listen 127.0.0.1:8080 --from site.db --step 60";

const THIN_EXAMPLES: &str = "Examples:
  tabane-report thin site.db --older 2592000 --every 600
  tabane-report thin site.db --servers 'oss*'";

const SERVE_EXAMPLES: &str = "Examples:
  tabane-report serve --cluster /tmp/run
  tabane-report serve --listen 127.0.0.1:9299";

const COMPARE_EXAMPLES: &str = "Examples:
  tabane-report compare 4711 4712 site.db
  tabane-report compare 4711 4711 monday.db tuesday.db --interval 60 --csv compared.csv";

#[derive(Parser)]
#[command(name = "tabane-report", about = ABOUT, disable_version_flag = true, max_term_width = 120)]
struct CommandLine {
    /// Print the version
    #[arg(short = 'V', long)]
    version: bool,
    #[command(subcommand)]
    command: Option<Verb>,
}

#[derive(Subcommand)]
enum Verb {
    /// Read jobs, nodes and statistics of servers into a place
    #[command(after_help = IMPORT_EXAMPLES)]
    Import(ImportOptions),
    /// What a job did, and how its servers were meanwhile: words, CSV, heat maps
    #[command(after_help = JOB_EXAMPLES)]
    Job(JobOptions),
    /// Which other jobs were in the way of a job: its waiting at each server, shared out by what came there meanwhile
    #[command(after_help = NEIGHBOURS_EXAMPLES)]
    Neighbours(NeighboursOptions),
    /// Two jobs, or a job in two places, and how their servers were: means, most, ratios
    #[command(after_help = COMPARE_EXAMPLES)]
    Compare(CompareOptions),
    /// All that is known of a job on one page, which needs no network and no scripts
    #[command(after_help = HTML_EXAMPLES)]
    Html(HtmlOptions),
    /// What of a job's I/O may be made better: rules, each with what to change; without a job the table of all rules
    #[command(after_help = ADVICE_EXAMPLES)]
    Advice(AdviceOptions),
    /// A run of a program among earlier ones of its name
    #[command(after_help = HISTORY_EXAMPLES)]
    History(HistoryOptions),
    /// Record what the servers of a Tabane cluster tell of themselves
    #[command(after_help = RECORD_EXAMPLES)]
    Record(RecordOptions),
    /// A live page about the servers of a Tabane cluster, or a place that is replayed
    #[command(after_help = WATCH_EXAMPLES)]
    Watch(WatchOptions),
    /// All servers of a Tabane cluster on one port, for Prometheus
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(ServeOptions),
    /// Keep fewer samples of times that are long past
    #[command(after_help = THIN_EXAMPLES)]
    Thin(ThinOptions),
    /// What imports left out, with files and lines, and why
    Events(EventsOptions),
}

/// What the command line asks for.
pub enum Command {
    Print(String),
    Import(Box<ImportOptions>),
    Job(Box<JobOptions>),
    Neighbours(NeighboursOptions),
    Compare(CompareOptions),
    Html(HtmlOptions),
    Advice(AdviceOptions),
    History(HistoryOptions),
    Record(RecordOptions),
    Watch(WatchOptions),
    Serve(ServeOptions),
    Thin(ThinOptions),
    Events(EventsOptions),
}

#[derive(Debug, Args)]
pub struct ImportOptions {
    /// The place: a file, made when it is not there, or postgresql://USER@HOST/DATABASE
    pub place: PathBuf,
    /// Jobs: what sacct or PBS wrote of them, or a CSV table; - for standard input
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub jobs: Vec<PathBuf>,
    /// How --jobs is written; told from its first line where this is not given
    #[arg(long, value_enum)]
    pub format: Option<JobsFormat>,
    /// Nodes: what 'scontrol show topology' prints, or a CSV table with the columns node, rack, x, y, io_server
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub nodes: Vec<PathBuf>,
    /// Lustre's statistics of one server: what 'lctl get_param' prints, again and again, or JSON lines of fluentd. The
    /// server is SERVER, or what the file is called up to the first dot; hosts that pdsh or fluentd name go before
    #[arg(long, value_name = "[SERVER=]FILE", num_args = 1..)]
    pub lustre: Vec<String>,
    /// Network counters of one server, each time behind a line of 'date +%s': InfiniBand's in sysfs (grep -H), what
    /// 'lnetctl stats show' prints, /proc/net/dev
    #[arg(long, value_name = "[SERVER=]FILE", num_args = 1..)]
    pub network: Vec<String>,
    /// What 'tabane status --json' printed, again and again: the servers of a Tabane cluster
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub tabane: Vec<PathBuf>,
    /// A command that prints Lustre's statistics now, run by sh: 'ssh oss1 lctl get_param ost.OSS.ost_io.stats'
    #[arg(long, value_name = "COMMAND")]
    pub command: Option<String>,
    /// Run --command every so many seconds, until Ctrl-C
    #[arg(long, value_name = "SECONDS", requires = "command", value_parser = positive)]
    pub every: Option<f64>,
    /// Stop after so many runs of --command
    #[arg(long, value_name = "COUNT", requires = "every")]
    pub runs: Option<u64>,
    /// Whose statistics --command prints, or standard input holds
    #[arg(long, value_name = "NAME")]
    pub server: Option<String>,
    /// What is to be added to a server's clock, where its logs have no other clock to compare with
    #[arg(long, value_name = "SERVER=SECONDS", num_args = 1..)]
    pub clock_offset: Vec<String>,
    /// The zone of times that name none, such as sacct's [default: this machine's]
    #[arg(long, value_name = "ZONE")]
    pub time_zone: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum JobsFormat {
    /// sacct --parsable2, with the columns JobID, Start, End, NodeList; also JobIDRaw, JobName, User, State
    Sacct,
    /// sacct --json
    SacctJson,
    /// Accounting files of PBS or Torque
    Pbs,
    /// A table with the columns id, start, end, nodes; also raw_id, name, user, state
    Csv,
}

#[derive(Debug, Args)]
pub struct JobOptions {
    /// The job's id, as the batch system shows it
    pub id: String,
    /// The place that imports were made into
    pub place: PathBuf,
    #[command(flatten)]
    pub asking: Asking,
    /// Write a CSV table for each server into this directory; - prints one table of all
    #[arg(long, value_name = "DIRECTORY")]
    pub csv: Option<PathBuf>,
    /// Draw a heat map into this SVG file
    #[arg(long, value_name = "FILE")]
    pub heat_map: Option<PathBuf>,
    /// What the heat map shows: servers by time, or the machine by X and Y
    #[arg(long, value_enum, default_value = "servers")]
    pub map: Map,
    /// What the heat map's colours stand for
    #[arg(long, value_enum, default_value = "req_qdepth")]
    pub measure: Measure,
    /// Show values from this one on as congested: in other colours, and counted. In the unit of the measure
    #[arg(long, value_name = "VALUE", value_parser = positive)]
    pub congested_from: Option<f64>,
    /// How colours grow with the value
    #[arg(long, value_enum, default_value = "linear")]
    pub scale: Scale,
    /// Darshan's log of the job, or what 'darshan-parser' has printed of it: its bytes and times stand beside those of
    /// the servers
    #[arg(long, value_name = "FILE")]
    pub darshan: Option<PathBuf>,
}

/// How every question about a job is meant.
#[derive(Debug, Args)]
pub struct Asking {
    /// Seconds that one row or column is about [default: as the samples lie, 1 at least]
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    pub interval: Option<f64>,
    /// The service of the servers whose queue is looked at
    #[arg(long, value_name = "NAME", default_value = "ost_io")]
    pub service: String,
    /// What Lustre calls the job in job_stats, if not by its id
    #[arg(long, value_name = "TEXT", num_args = 1..)]
    pub lustre_id: Vec<String>,
    /// The zone in which times are shown [default: this machine's]
    #[arg(long, value_name = "ZONE")]
    pub time_zone: Option<String>,
}

impl Asking {
    /// As it is without any option.
    pub fn plain() -> Asking {
        Asking { interval: None, service: "ost_io".to_owned(), lustre_id: Vec::new(), time_zone: None }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Map {
    Servers,
    Machine,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Measure {
    /// Requests that wait, as a request found them on average
    ReqQdepth,
    /// Microseconds that a request waits on average
    ReqWaittime,
    /// Requests in work, as a request found them on average
    ReqActive,
    /// Requests a second
    Requests,
    /// Bytes read and written a second
    Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scale {
    Linear,
    Log,
}

#[derive(Debug, Args)]
pub struct NeighboursOptions {
    /// The id of the job that was waiting, as the batch system shows it
    pub id: String,
    /// The place that imports were made into
    pub place: PathBuf,
    #[command(flatten)]
    pub asking: Asking,
    /// Write a CSV table of servers, jobs and intervals into this file; - prints it
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct CompareOptions {
    /// The id of the first job, as the batch system shows it
    #[arg(value_name = "JOB")]
    pub id: String,
    /// The id of the second one
    #[arg(value_name = "JOB")]
    pub other: String,
    /// The place that imports were made into
    pub place: PathBuf,
    /// The place of the second job, if that is another one
    #[arg(value_name = "PLACE")]
    pub other_place: Option<PathBuf>,
    #[command(flatten)]
    pub asking: Asking,
    /// Write a CSV table of servers and measures into this file; - prints it
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct HtmlOptions {
    /// The job's id, as the batch system shows it
    pub id: String,
    /// The place that imports were made into
    pub place: PathBuf,
    #[command(flatten)]
    pub asking: Asking,
    /// Write the page into this file; without it, it is printed
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct AdviceOptions {
    /// The job's id, as the batch system shows it
    #[arg(requires = "place")]
    pub id: Option<String>,
    /// The place that imports were made into
    pub place: Option<PathBuf>,
    #[command(flatten)]
    pub asking: Asking,
}

#[derive(Debug, Args)]
pub struct HistoryOptions {
    /// The name of the jobs
    pub name: String,
    /// The place that imports were made into
    pub place: PathBuf,
    /// The run that is told of [default: the last one]
    #[arg(long, value_name = "JOB")]
    pub id: Option<String>,
    #[command(flatten)]
    pub asking: Asking,
    /// Write a CSV table of all runs into this file; - prints it
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct RecordOptions {
    /// The place: a file, made when it is not there, or postgresql://USER@HOST/DATABASE; with --report it may be left
    /// out
    #[arg(required_unless_present = "report")]
    pub place: Option<PathBuf>,
    /// Write the job's page into this file at the end
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// The cluster, as for 'tabane status'
    #[arg(long, value_name = "PATH")]
    pub cluster: Option<PathBuf>,
    /// The program that asks the servers [default: tabane beside this program, else of the PATH]
    #[arg(long, value_name = "FILE")]
    pub tabane: Option<PathBuf>,
    /// Seconds from one question to the next
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = positive)]
    pub every: f64,
    /// Stop after so many questions
    #[arg(long, value_name = "COUNT")]
    pub runs: Option<u64>,
    /// Stop when standard input ends, or a line 'end' comes in it; 'exit STATUS' says what the job came to
    #[arg(long)]
    pub until_input_ends: bool,
    /// The job's id [default: TABANE_JOB, that of a batch system, else the cluster's]
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,
    /// The job's name, by which 'history' finds its earlier runs
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The job began this many seconds ago
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    pub since: Option<f64>,
    /// The job is all the time since the servers were started
    #[arg(long, conflicts_with = "since")]
    pub whole: bool,
    /// Keep one sample a minute of what is older than so many seconds
    #[arg(long, value_name = "SECONDS", default_value = "86400", value_parser = positive)]
    pub thin_after: f64,
}

#[derive(Debug, Args)]
pub struct ThinOptions {
    /// The place
    pub place: PathBuf,
    /// Samples that are older than so many seconds
    #[arg(long, value_name = "SECONDS", default_value = "86400", value_parser = positive)]
    pub older: f64,
    /// One of each so many seconds stays
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = positive)]
    pub every: f64,
    /// Samples of these servers; * stands for any letters
    #[arg(long, value_name = "PATTERN", default_value = "*")]
    pub servers: String,
}

#[derive(Debug, Args)]
pub struct ServeOptions {
    /// Where /metrics is served
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9299")]
    pub listen: String,
    /// The cluster, as for 'tabane status'
    #[arg(long, value_name = "PATH")]
    pub cluster: Option<PathBuf>,
    /// The program that asks the servers [default: tabane beside this program, else of the PATH]
    #[arg(long, value_name = "FILE")]
    pub tabane: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct WatchOptions {
    /// Where the page is served
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub listen: String,
    /// Replay this place
    #[arg(long, value_name = "PLACE", conflicts_with_all = ["cluster", "tabane"])]
    pub from: Option<PathBuf>,
    /// The cluster, as for 'tabane status'
    #[arg(long, value_name = "PATH")]
    pub cluster: Option<PathBuf>,
    /// The program that asks the servers [default: tabane beside this program, else of the PATH]
    #[arg(long, value_name = "FILE")]
    pub tabane: Option<PathBuf>,
    /// Seconds from one frame to the next
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = positive)]
    pub every: f64,
    /// Seconds of a place's time from one frame to the next
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = positive)]
    pub step: f64,
}

#[derive(Debug, Args)]
pub struct EventsOptions {
    /// The place that imports were made into
    pub place: PathBuf,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value.is_finite() => Ok(value),
        _ => Err("a number above 0 is wanted".into()),
    }
}

/// Reads the command line. Help and version come back as a text to print.
pub fn read() -> Outcome<Command> {
    parse(std::env::args_os())
}

fn parse(arguments: impl IntoIterator<Item = std::ffi::OsString>) -> Outcome<Command> {
    let line = match CommandLine::try_parse_from(arguments) {
        Ok(line) => line,
        Err(error) if error.kind() == ErrorKind::DisplayHelp => return Ok(Command::Print(error.to_string())),
        Err(error) => return Err(Failure::usage(words_of(&error))),
    };
    if line.version {
        return Ok(Command::Print(crate::version::line("tabane-report")));
    }
    match line.command {
        Some(Verb::Import(options)) => {
            check_import(&options)?;
            Ok(Command::Import(Box::new(options)))
        }
        Some(Verb::Job(options)) => Ok(Command::Job(Box::new(options))),
        Some(Verb::Neighbours(options)) => Ok(Command::Neighbours(options)),
        Some(Verb::Compare(options)) => Ok(Command::Compare(options)),
        Some(Verb::Html(options)) => Ok(Command::Html(options)),
        Some(Verb::Advice(options)) => Ok(Command::Advice(options)),
        Some(Verb::History(options)) => Ok(Command::History(options)),
        Some(Verb::Record(options)) => Ok(Command::Record(options)),
        Some(Verb::Watch(options)) => Ok(Command::Watch(options)),
        Some(Verb::Serve(options)) => Ok(Command::Serve(options)),
        Some(Verb::Thin(options)) => Ok(Command::Thin(options)),
        Some(Verb::Events(options)) => Ok(Command::Events(options)),
        None => Err(Failure::usage("name a command, such as import or job; see tabane-report --help")),
    }
}

fn check_import(options: &ImportOptions) -> Outcome {
    let reads = !options.jobs.is_empty() || !options.nodes.is_empty() || !options.lustre.is_empty();
    let reads = reads || !options.network.is_empty() || !options.tabane.is_empty();
    if !reads && options.command.is_none() && options.clock_offset.is_empty() {
        return Err(Failure::usage(
            "import: name what to read: --jobs, --nodes, --lustre, --network, --tabane or --command",
        ));
    }
    let names = options.jobs.iter().chain(&options.nodes).chain(&options.tabane).map(|file| file.as_os_str() == "-");
    let standard_inputs =
        names.chain(options.lustre.iter().chain(&options.network).map(|name| name == "-" || name.ends_with("=-")));
    if standard_inputs.filter(|is| *is).count() > 1 {
        return Err(Failure::usage("import: standard input (-) can be read only once"));
    }
    Ok(())
}

/// clap's words without its head and its advice on help, on one line.
fn words_of(error: &clap::Error) -> String {
    let text = error.to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    let line = first.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    format!("{}; see tabane-report --help", line.strip_prefix("error: ").unwrap_or(&line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Outcome<Command> {
        parse(line.split(' ').map(Into::into))
    }

    /// Goal: what can't be meant is refused with words on one line that say what is wanted.
    #[test]
    fn refusals() {
        for (line, words) in [
            ("tabane-report", "name a command"),
            ("tabane-report import x.db", "name what to read"),
            ("tabane-report import x.db --jobs - --lustre oss1=-", "only once"),
            ("tabane-report import x.db --every 5", "--command"),
            ("tabane-report job 1 x.db --interval 0", "above 0"),
            ("tabane-report job 1 x.db --interval nan", "above 0"),
            ("tabane-report job 1 x.db --map moon", "moon"),
            ("tabane-report job 1", "PLACE"),
            ("tabane-report advice 1", "PLACE"),
            ("tabane-report record x.db --every 0", "above 0"),
        ] {
            match of(line) {
                Err(Failure::Usage(said)) => assert!(said.contains(words) && !said.contains('\n'), "{line}: {said}"),
                _ => panic!("{line} was taken"),
            }
        }
    }

    /// Goal: the help of every command is there, with examples, and no line of it is wider than a terminal takes.
    #[test]
    fn help() {
        for line in [
            "tabane-report --help",
            "tabane-report import --help",
            "tabane-report job --help",
            "tabane-report neighbours --help",
            "tabane-report html --help",
            "tabane-report advice --help",
            "tabane-report history --help",
            "tabane-report record --help",
            "tabane-report watch --help",
        ] {
            let Ok(Command::Print(text)) = of(line) else { panic!("{line}") };
            assert!(text.contains("  tabane-report "), "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
        }
    }
}
