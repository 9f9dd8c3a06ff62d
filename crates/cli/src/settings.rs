//! How the servers of a run directory are started: kept there, so that they can be started again in the same way.

use crate::arguments::{Arguments, number_of};
use crate::device_store::{self, Devices};
use crate::failure::{Failure, Outcome};
use crate::flushing;
use crate::options::{BUFFER_SIZE_MIN, OptionRow, STORE_SIZE_MAX, STORE_SIZE_MIN};
use crate::pin::Pin;
use crate::site_look::{SiteLook, look_at};
use crate::text::{parse_size, size_words};
use client::Cluster;
use server::{Flushing, Transport};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use wire::Protection;

const FORMAT: &str = "tabane servers 1";
const MEBIBYTE: u64 = 1 << 20;
/// Transports by their numbers at "local" in the file.
const LOCAL: [Transport; 3] = [Transport::Tcp, Transport::Auto, Transport::Shm];

/// The value of --transport.
pub fn transport(arguments: &Arguments) -> Transport {
    Transport::of_word(&arguments.text_or_default("transport")).unwrap_or(Transport::Auto)
}

/// How a new cluster's connections over networks are protected.
pub fn protection(arguments: &Arguments) -> Protection {
    Protection::parse(&arguments.text_or_default("protect")).expect("the table names all")
}

/// What every server of a cluster is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Directory that holds one store a server.
    pub stores: PathBuf,
    /// Whether that directory is ours to remove.
    pub made_stores: bool,
    /// What keeps the stores, where that directory is only for what is in memory of them.
    pub devices: Option<Devices>,
    /// Bytes of data of each server.
    pub store_size: u64,
    pub journal_size: u64,
    pub checksums: bool,
    pub transport: Transport,
    pub short_circuit: bool,
    /// Whether clients that read from the stores' mappings may also register pages to write to.
    pub registered_buffers: bool,
    pub pin: Pin,
    /// Whether stores in memory get mounts of their own with huge pages.
    pub huge_pages: bool,
    pub connections_max: u64,
    /// First of the ports for Prometheus; 0 means none.
    pub metrics_port: u64,
    pub timeout_ms: u64,
    pub session_grace_ms: u64,
    /// The backing directory, as it is named by all hosts.
    pub backing: Option<PathBuf>,
    /// When changes over it go back by themselves.
    pub flushing: Flushing,
}

/// The value of --store.
#[derive(Debug, Default, PartialEq, Eq)]
struct StoreText {
    directory: Option<PathBuf>,
    size: Option<u64>,
    /// Where stores are that devices keep.
    devices: Vec<PathBuf>,
    buffer: Option<u64>,
}

impl StoreText {
    /// Reads `memory[:DIR][,size=SIZE]` and `nvme:PATH[,PATH...][,size=SIZE][,buffer=SIZE]`. The error says what is
    /// wanted.
    fn parse(text: &str) -> Result<StoreText, String> {
        let wanted = || format!("{} is wanted", OptionRow::of("store").unit);
        let mut parts = text.split(',');
        let mut store = StoreText::default();
        match parts.next().unwrap_or_default().split_once(':') {
            Some(("memory", "")) => {}
            Some(("memory", parameter)) if parameter.starts_with("size=") => store.take_parameter(parameter)?,
            Some(("memory", directory)) => store.directory = Some(PathBuf::from(directory)),
            None if text.split(',').next() == Some("memory") => {}
            Some(("nvme", path)) if is_path(path) => store.devices.push(PathBuf::from(path)),
            Some(("nvme", _)) => return Err("the nvme store wants a directory, file or block device first".to_owned()),
            _ => return Err(wanted()),
        }
        for part in parts.filter(|part| !part.is_empty()) {
            match !store.devices.is_empty() && is_path(part) && part.contains('/') {
                true => store.devices.push(PathBuf::from(part)),
                false => store.take_parameter(part)?,
            }
        }
        Ok(store)
    }

    fn take_parameter(&mut self, parameter: &str) -> Result<(), String> {
        let (place, text, least) = match parameter.split_once('=') {
            Some(("size", size)) => (&mut self.size, size, STORE_SIZE_MIN),
            Some(("buffer", size)) if !self.devices.is_empty() => (&mut self.buffer, size, BUFFER_SIZE_MIN),
            Some(("buffer", _)) => return Err(format!("\"{parameter}\" is for --store nvme:PATH")),
            _ => return Err(format!("\"{parameter}\" is not known; size=SIZE is")),
        };
        let size = parse_size(text).filter(|size| (least..=STORE_SIZE_MAX).contains(size));
        let (least, most) = (size_words(least), size_words(STORE_SIZE_MAX));
        *place = Some(size.ok_or_else(|| format!("\"{parameter}\": a size from {least} to {most} is wanted"))?);
        Ok(())
    }
}

/// Whether a part of --store names a file or directory, and is no parameter.
fn is_path(part: &str) -> bool {
    part.starts_with(['/', '.']) || !part.is_empty() && !part.contains('=')
}

fn store_text(arguments: &Arguments) -> Outcome<StoreText> {
    let text = arguments.text_or_default("store");
    let mut store = StoreText::parse(&text).map_err(|reason| Failure::usage(format!("--store {text}: {reason}")))?;
    if let Some(directory) = arguments.path("dir") {
        if store.directory.as_ref().is_some_and(|other| *other != directory) {
            return Err(Failure::usage("--dir and --store name different directories; name one".to_owned()));
        }
        store.directory = Some(directory);
    }
    if let Some(directory) = &store.directory {
        store.directory = Some(absolute(directory)?);
    }
    for path in &mut store.devices {
        // A slash at the end makes no difference.
        *path = absolute(path)?.components().collect();
        if path.to_str().is_none_or(|text| text.contains(['\n', ','])) {
            return Err(Failure::usage(format!(
                "--store nvme:{path:?}: a path without commas and line ends is wanted"
            )));
        }
    }
    Ok(store)
}

/// A path that holds from everywhere. The servers run in another directory than ours.
pub fn absolute(path: &Path) -> Outcome<PathBuf> {
    std::path::absolute(path).map_err(|error| Failure::failed(format!("{}: {error}", path.display())))
}

/// The value of --backing, as a path that holds from everywhere. Whether there is such a directory is another question,
/// for each host. Errors: it has no such path, or one that can't be noted down.
fn wanted_backing(arguments: &Arguments) -> Outcome<Option<PathBuf>> {
    let Some(path) = arguments.path("backing") else { return Ok(None) };
    let path = absolute(&path)?;
    // What is there already is named by its own path, so that it can be compared.
    let time = Duration::from_millis(arguments.number("timeout-ms"));
    let looked = look_at(&path, time)?.ok_or_else(|| silent_backing(&path, time))?;
    let path = looked.map_or(path, |look| look.path);
    match path.to_str().is_some_and(|text| !text.contains('\n')) {
        true => Ok(Some(path)),
        false => {
            Err(Failure::failed(format!("--backing {path:?}: the path of a backing directory has to be plain text")))
        }
    }
}

/// That nothing is heard of a backing directory.
fn silent_backing(backing: &Path, time: Duration) -> Failure {
    let (path, seconds) = (backing.display(), time.as_secs_f64());
    Failure::failed(format!(
        "--backing {path}: its file system has not answered for {seconds} s; try 'ls {path}', which waits until it \
         does, and mount it anew if it never does"
    ))
}

/// What tells a backing directory on this host from others: the numbers of its inode and of its file system, which is 0
/// where that does not say. Errors: this host does not have it, nothing is heard of it for a time, or it holds the
/// cluster's own files or lies among them; `others` are directories of such files, each with what it is.
pub fn check_backing(backing: &Path, time: Duration, others: &[(&str, &Path)]) -> Outcome<(u64, u64)> {
    let refused = |why: String| {
        let path = backing.display();
        Failure::failed(format!("--backing {path}: {why}; name a directory of the site's file system"))
    };
    let looked = look_at(backing, time)?.ok_or_else(|| silent_backing(backing, time))?;
    let SiteLook { is_directory, inode, file_system, .. } =
        looked.map_err(|error| refused(crate::failure::io_words(&error)))?;
    if !is_directory {
        return Err(refused("it is no directory".to_owned()));
    }
    for (what, path) in others {
        let path = existing_path(path);
        if let Some(words) = server::backing_conflict(backing, &path) {
            return Err(refused(format!("it {words} {what}, {}", path.display())));
        }
    }
    Ok((inode, file_system))
}

impl Settings {
    /// The settings of a new cluster with this id and number of servers. Nothing is created. Errors: `Usage`; `Failed`
    /// when there is too little space.
    pub fn for_new_cluster(arguments: &Arguments, id: u128, servers: u32) -> Outcome<Settings> {
        let mut settings = Settings::wanted(arguments, id)?;
        if let Some(devices) = settings.devices.as_ref().filter(|devices| devices.paths.len() > servers as usize) {
            let words =
                format!("--store nvme: names {} places for fewer servers; leave some away", devices.paths.len());
            return Err(Failure::usage(words));
        }
        if settings.store_size == 0 {
            settings.store_size = match &settings.devices {
                Some(devices) => devices.share(&settings.stores, servers, settings.journal_size)?,
                None => share_of_free_space(&settings.stores, servers, settings.journal_size)?,
            };
        }
        let free = free_space_of(&settings.stores)?;
        settings.find_buffer(free, servers)?;
        Ok(settings)
    }

    /// The same with a store size of 0 where none was asked for.
    pub fn wanted(arguments: &Arguments, id: u128) -> Outcome<Settings> {
        let store = store_text(arguments)?;
        let stores = store.directory.unwrap_or_else(|| {
            let prefix = id >> 96;
            PathBuf::from(format!("/dev/shm/tabane-{}-{prefix:08x}", reactor::process::user()))
        });
        let journal_size = arguments.number("journal-size");
        // Bits go bad on disks.
        let checksums = match arguments.is_given("checksums") {
            true => arguments.flag("checksums"),
            false => !store.devices.is_empty(),
        };
        Ok(Settings {
            made_stores: !stores.exists(),
            stores,
            devices: (!store.devices.is_empty()).then(|| Devices {
                made: store.devices.iter().map(|path| !path.exists()).collect(),
                paths: store.devices,
                buffer: store.buffer.unwrap_or(0),
            }),
            store_size: store.size.unwrap_or(0),
            journal_size,
            checksums,
            transport: transport(arguments),
            short_circuit: arguments.text_or_default("short-circuit") != "off",
            registered_buffers: arguments.text_or_default("short-circuit") == "auto",
            pin: Pin::wanted(arguments)?,
            huge_pages: arguments.text_or_default("huge-pages") != "off",
            connections_max: arguments.number("connections-max"),
            metrics_port: arguments.number("metrics-port"),
            timeout_ms: arguments.number("timeout-ms"),
            session_grace_ms: arguments.number("session-grace-ms"),
            backing: wanted_backing(arguments)?,
            flushing: flushing::wanted(arguments)?,
        })
    }

    /// Gives stores on devices a share of the memory that is free, unless they were told theirs.
    pub fn find_buffer(&mut self, free: u64, servers: u32) -> Outcome {
        if self.devices.as_ref().is_some_and(|devices| devices.buffer == 0) {
            let buffer = device_store::share_of_memory(&self.stores, free, servers, self)?;
            if let Some(devices) = &mut self.devices {
                devices.buffer = buffer;
            }
        }
        Ok(())
    }

    /// Bytes that a store takes in its directory, beside its checkpoints.
    pub fn size_in_directory(&self) -> u64 {
        let data = self.devices.as_ref().map_or(self.store_size, |devices| devices.buffer.min(self.store_size));
        data + self.journal_size
    }

    /// Where the stores are, for people.
    pub fn place_words(&self) -> String {
        match &self.devices {
            Some(devices) => format!(
                "stores on {}, {} of each in memory, in {}",
                devices.words(),
                size_words(devices.buffer),
                self.stores.display()
            ),
            None => format!("stores in {}", self.stores.display()),
        }
    }

    /// What the command line asks for that a cluster which exists already has otherwise, in words.
    pub fn differences(&self, cluster: &Cluster, arguments: &Arguments) -> Outcome<Vec<String>> {
        let mut differences = Vec::new();
        let mut compare = |key: &str, has: String, wanted: Option<String>| {
            if let Some(wanted) = wanted.filter(|wanted| *wanted != has) {
                differences.push(format!("--{key} is {has}, not {wanted}"));
            }
        };
        let numbers = [
            ("servers", u64::from(cluster.server_count())),
            ("chunk-size", u64::from(cluster.chunk_size)),
            ("journal-size", self.journal_size),
            ("connections-max", self.connections_max),
            ("metrics-port", self.metrics_port),
        ];
        for (key, has) in numbers.into_iter().filter(|(key, _)| arguments.is_on_command_line(key)) {
            compare(key, has.to_string(), arguments.number_given(key).map(|number| number.to_string()));
        }
        if arguments.is_on_command_line("placement") {
            compare("placement", cluster.placement.name().to_owned(), arguments.text("placement"));
        }
        if arguments.is_on_command_line("store") || arguments.is_on_command_line("dir") {
            let store = store_text(arguments)?;
            let directory = store.directory.map(|path| path.display().to_string());
            compare("dir", self.stores.display().to_string(), directory);
            compare("store size=", self.store_size.to_string(), store.size.map(|size| size.to_string()));
            let own = self.devices.clone().unwrap_or_default();
            let asked = Devices { paths: store.devices, ..Devices::default() };
            let is_named = arguments.is_on_command_line("store");
            compare("store nvme:", own.words(), is_named.then(|| asked.words()));
            compare("store buffer=", own.buffer.to_string(), store.buffer.map(|size| size.to_string()));
        }
        if arguments.is_on_command_line("protect") {
            let wanted =
                Protection::parse(&arguments.text_or_default("protect")).map(|wanted| wanted.name().to_owned());
            compare("protect", cluster.protection.name().to_owned(), wanted);
        }
        if arguments.is_on_command_line("transport") {
            compare("transport", self.transport.word().to_owned(), arguments.text("transport"));
        }
        if arguments.is_on_command_line("short-circuit") {
            compare("short-circuit", self.short_circuit().to_owned(), arguments.text("short-circuit"));
        }
        if arguments.is_on_command_line("pin") {
            compare("pin", self.pin.to_string(), Some(Pin::wanted(arguments)?.to_string()));
        }
        if arguments.is_on_command_line("huge-pages") {
            compare("huge-pages", self.huge_pages().to_owned(), arguments.text("huge-pages"));
        }
        if arguments.is_on_command_line("backing") {
            let words =
                |path: &Option<PathBuf>| path.as_ref().map_or("none".to_owned(), |path| path.display().to_string());
            compare("backing", words(&self.backing), Some(words(&wanted_backing(arguments)?)));
        }
        let wanted = flushing::texts(&flushing::wanted(arguments)?);
        for ((key, has), (_, wanted)) in flushing::texts(&self.flushing).into_iter().zip(wanted) {
            if arguments.is_on_command_line(key) {
                compare(key, has, Some(wanted));
            }
        }
        if arguments.is_on_command_line("checksums") {
            let words = |is_on: bool| if is_on { "on" } else { "off" }.to_owned();
            compare("checksums", words(self.checksums), Some(words(arguments.flag("checksums"))));
        }
        Ok(differences)
    }

    /// The value of --short-circuit.
    pub fn short_circuit(&self) -> &'static str {
        match (self.short_circuit, self.registered_buffers) {
            (false, _) => "off",
            (true, false) => "reads",
            (true, true) => "auto",
        }
    }

    /// The value of --huge-pages.
    pub fn huge_pages(&self) -> &'static str {
        if self.huge_pages { "auto" } else { "off" }
    }

    /// The store of one server.
    pub fn store_of(&self, index: u32) -> PathBuf {
        self.stores.join(format!("server-{index}"))
    }

    /// The text of the settings file.
    pub fn to_text(&self) -> String {
        let mut text = format!("{FORMAT}\n");
        let _ = writeln!(text, "stores = {}", self.stores.display());
        let _ = writeln!(text, "pin = {}", self.pin);
        let numbers = [
            ("made-stores", u64::from(self.made_stores)),
            ("store-size", self.store_size),
            ("journal-size", self.journal_size),
            ("checksums", u64::from(self.checksums)),
            ("local", LOCAL.iter().position(|own| *own == self.transport).unwrap_or(0) as u64),
            ("short_circuit", u64::from(self.short_circuit) + u64::from(self.short_circuit && self.registered_buffers)),
            ("huge-pages", u64::from(self.huge_pages)),
            ("connections-max", self.connections_max),
            ("metrics-port", self.metrics_port),
            ("timeout-ms", self.timeout_ms),
            ("session-grace-ms", self.session_grace_ms),
        ];
        for (key, number) in numbers {
            let _ = writeln!(text, "{key} = {number}");
        }
        if let Some(devices) = &self.devices {
            let _ = writeln!(text, "devices = {}", devices.words());
            let made: Vec<&str> = devices.made.iter().map(|made| if *made { "1" } else { "0" }).collect();
            let _ = writeln!(text, "made-devices = {}\nbuffer = {}", made.join(","), devices.buffer);
        }
        if let Some(backing) = &self.backing {
            let _ = writeln!(text, "backing = {}", backing.display());
            for (key, value) in flushing::texts(&self.flushing) {
                let _ = writeln!(text, "{key} = {value}");
            }
        }
        text
    }

    /// Reads a settings file. The error says what is missing.
    pub fn parse(text: &str) -> Result<Settings, String> {
        let mut lines = text.lines();
        if lines.next() != Some(FORMAT) {
            return Err(format!("does not start with \"{FORMAT}\""));
        }
        let fields: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(" = ")).collect();
        let field = |key: &str| {
            let found = fields.iter().find(|(known, _)| *known == key).map(|(_, value)| *value);
            found.ok_or_else(|| format!("has no line \"{key} = ...\""))
        };
        let plain = |key: &str| field(key)?.parse::<u64>().map_err(|_| format!("has no number at \"{key}\""));
        let checked = |key: &str| {
            number_of(OptionRow::of(key), field(key)?).ok_or_else(|| format!("has a value out of range at \"{key}\""))
        };
        Ok(Settings {
            stores: PathBuf::from(field("stores")?),
            made_stores: plain("made-stores")? == 1,
            devices: match field("devices") {
                Ok(paths) => Some(Devices {
                    paths: paths.split(',').map(PathBuf::from).collect(),
                    made: field("made-devices")?.split(',').map(|made| made == "1").collect(),
                    buffer: plain("buffer")?,
                }),
                Err(_) => None,
            },
            store_size: checked("store-size")?,
            journal_size: checked("journal-size")?,
            checksums: plain("checksums")? == 1,
            transport: *LOCAL
                .get(plain("local")? as usize)
                .ok_or_else(|| "has a value out of range at \"local\"".to_owned())?,
            short_circuit: plain("short_circuit")? != 0,
            registered_buffers: plain("short_circuit")? == 2,
            pin: Pin::parse(field("pin")?)?,
            huge_pages: plain("huge-pages")? == 1,
            connections_max: checked("connections-max")?,
            metrics_port: checked("metrics-port")?,
            timeout_ms: checked("timeout-ms")?,
            session_grace_ms: checked("session-grace-ms")?,
            backing: field("backing").ok().map(PathBuf::from),
            // Without a backing directory there is nothing about it.
            flushing: flushing::of_texts(&|key| field(key).unwrap_or(OptionRow::of(key).default).to_owned())?,
        })
    }
}

/// A path with all links on its way followed, as far as it exists.
fn existing_path(path: &Path) -> PathBuf {
    for above in path.ancestors() {
        if let (Ok(real), Ok(rest)) = (above.canonicalize(), path.strip_prefix(above)) {
            return if rest.as_os_str().is_empty() { real } else { real.join(rest) };
        }
    }
    path.to_owned()
}

/// Three quarters of the free space, shared out. Errors: too little of it.
fn share_of_free_space(stores: &Path, servers: u32, journal_size: u64) -> Outcome<u64> {
    let existing = stores.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    share_of(existing, free_space_of(stores)?, servers, journal_size)
}

fn free_space_of(stores: &Path) -> Outcome<u64> {
    crate::store_memory::free_space(stores)
        .map_err(|error| Failure::failed(format!("{}: {error}; choose another directory with --dir", stores.display())))
}

/// The share of each server in what is free on a medium. Errors: too little.
pub fn share_of(medium: &Path, free: u64, servers: u32, journal_size: u64) -> Outcome<u64> {
    let usable = (free / 4 * 3).saturating_sub(journal_size * u64::from(servers));
    let share = usable / u64::from(servers) / MEBIBYTE * MEBIBYTE;
    if share < STORE_SIZE_MIN {
        return Err(Failure::failed(format!(
            "{} has {} free, too little for {servers} servers; free some space, choose another directory with --dir, \
             or say less with --store memory:size=SIZE and --journal-size SIZE",
            medium.display(),
            size_words(free)
        )));
    }
    Ok(share.min(STORE_SIZE_MAX))
}

/// Settings of nothing in particular.
#[cfg(test)]
pub fn for_tests() -> Settings {
    Settings {
        stores: PathBuf::from("/dev/shm/some where = else"),
        made_stores: true,
        devices: None,
        store_size: 1 << 30,
        journal_size: 1 << 26,
        checksums: false,
        transport: Transport::Shm,
        short_circuit: true,
        registered_buffers: true,
        pin: Pin::Listed(vec![0, 4, 5, 6]),
        huge_pages: true,
        connections_max: 10,
        metrics_port: 0,
        timeout_ms: 5,
        session_grace_ms: 6,
        backing: None,
        flushing: Flushing::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: settings read back are those that were written.
    #[test]
    fn text_round_trip() {
        let settings = for_tests();
        assert_eq!(Settings::parse(&settings.to_text()), Ok(settings.clone()));
        let flushing = Flushing { rate: 7, ..Flushing::default() };
        let over = Settings { backing: Some(PathBuf::from("/scratch/a = b")), flushing, ..settings.clone() };
        assert_eq!(Settings::parse(&over.to_text()), Ok(over));
        let text = settings.to_text();
        for skipped in 0..text.lines().count() {
            let cut: Vec<&str> =
                text.lines().enumerate().filter(|(i, _)| *i != skipped).map(|(_, line)| line).collect();
            assert!(Settings::parse(&cut.join("\n")).is_err(), "line {skipped} is not needed?");
        }
    }

    /// Goal: all documented forms of --store are read, others refused.
    #[test]
    fn store_forms() {
        let store = |directory: Option<&str>, size| StoreText {
            directory: directory.map(PathBuf::from),
            size,
            ..StoreText::default()
        };
        let devices = |paths: &[&str], size, buffer| StoreText {
            devices: paths.iter().map(PathBuf::from).collect(),
            size,
            buffer,
            ..StoreText::default()
        };
        assert_eq!(StoreText::parse("memory"), Ok(store(None, None)));
        assert_eq!(StoreText::parse("memory:"), Ok(store(None, None)));
        assert_eq!(StoreText::parse("memory:/x"), Ok(store(Some("/x"), None)));
        assert_eq!(StoreText::parse("memory:/x,size=1G"), Ok(store(Some("/x"), Some(1 << 30))));
        assert_eq!(StoreText::parse("memory:size=64M"), Ok(store(None, Some(64 << 20))));
        assert_eq!(StoreText::parse("memory,size=64M"), Ok(store(None, Some(64 << 20))));
        assert_eq!(StoreText::parse("nvme:/dev/x"), Ok(devices(&["/dev/x"], None, None)));
        let both = Ok(devices(&["/a", "/b"], Some(1 << 30), Some(64 << 20)));
        assert_eq!(StoreText::parse("nvme:/a,/b,size=1G,buffer=64M"), both);
        assert_eq!(StoreText::parse("nvme:/a,buffer=64M,/b,size=1G"), both);
        assert_eq!(StoreText::parse("nvme:/a=b"), Ok(devices(&["/a=b"], None, None)));
        assert!(StoreText::parse("nvme:/x,64M").is_err_and(|words| words.contains("is not known")));
        let refused = ["memory:/x,buffer=64M", "memory:/x,/y", "nvme", "nvme:", "nvme:size=1G", "nvme:/x,buffer=1M"];
        assert!(refused.iter().all(|text| StoreText::parse(text).is_err()));
        for text in ["", "disk:/x", "memory:/x,size=1", "memory:/x,speed=9"] {
            assert!(StoreText::parse(text).is_err(), "{text}");
        }
    }
}
