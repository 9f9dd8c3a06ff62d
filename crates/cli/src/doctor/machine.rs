//! What `tabane doctor` asks of a machine; tests answer in its place.

use crate::arguments::environment;
use crate::failure::io_words;
use reactor::{DriverKind, Reactor};
use std::fs::OpenOptions;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;

/// A machine as seen by a program that runs on it.
pub trait Machine {
    /// The text of a file of the kernel or of the system's configuration.
    fn text(&self, path: &str) -> Option<String>;
    /// Names in a directory.
    fn names(&self, path: &str) -> Vec<String>;
    /// Opens a file for reading and writing. The error is in words.
    fn opens(&self, path: &str) -> Result<(), String>;
    /// Bytes free and in all of a file system.
    fn space(&self, path: &str) -> Option<(u64, u64)>;
    /// Whether the event loop can be had over io_uring.
    fn io_uring(&self) -> Result<(), String>;
    /// Whether this machine can speak to itself over TCP.
    fn loopback(&self) -> Result<(), String>;
    /// Whether a program is found by its name.
    fn program(&self, name: &str) -> bool;
    fn is_root(&self) -> bool;
    /// Seconds since 1970.
    fn time(&self) -> i64;
}

/// The machine that we run on.
pub struct ThisMachine;

impl Machine for ThisMachine {
    fn text(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(path).ok()
    }

    fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn opens(&self, path: &str) -> Result<(), String> {
        OpenOptions::new().read(true).write(true).open(path).map(drop).map_err(|error| io_words(&error))
    }

    fn space(&self, path: &str) -> Option<(u64, u64)> {
        reactor::process::file_system_space(Path::new(path)).ok()
    }

    fn io_uring(&self) -> Result<(), String> {
        Reactor::open(DriverKind::IoUring).map(drop).map_err(|error| io_words(&error))
    }

    fn loopback(&self) -> Result<(), String> {
        let connected =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| TcpStream::connect(listener.local_addr()?));
        connected.map(drop).map_err(|error| io_words(&error))
    }

    fn program(&self, name: &str) -> bool {
        let path = environment("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
    }

    fn is_root(&self) -> bool {
        reactor::process::user() == 0
    }

    fn time(&self) -> i64 {
        Reactor::open(DriverKind::Epoll).map_or(0, |reactor| reactor.wall_clock() / 1_000_000_000)
    }
}
