//! A Tabane cluster through the client's blocking face.

use crate::meter::Meter;
use crate::options::Options;
use crate::page_buffer::PageBuffer;
use crate::target::{
    Attributes, Counts, How, Make, Result, SearchPattern, Share, Space, Target, Transfers, check_size,
};
use client::tests::{Clock, Order, Test, Tests};
use client::{Client, DirectoryEntry, File, FileSystem, Kind, OpenHow, Search, Status};
use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// Names that `make_many` makes at once.
const AT_ONCE_COUNT: usize = 64;

/// The cluster that TABANE_CLUSTER names, as a target.
pub struct Tabane {
    client: Client,
    chunk_size: u32,
}

impl Tabane {
    pub fn open(options: &Options) -> Result<Tabane> {
        let path = options.cluster.as_ref().ok_or("TABANE_CLUSTER is not set")?;
        let cluster = client::load_cluster(path).map_err(words)?;
        let own = client::Options::of_this_process().map_err(words)?;
        let client = Client::connect(cluster, own).map_err(words)?;
        Ok(Tabane { client, chunk_size: options.chunk_size })
    }
}

/// Makes what `next` names, one after the other, until the time is over.
async fn make_each(
    files: &FileSystem,
    kind: Make,
    next: impl Fn() -> Option<String>,
    meter: &RefCell<&mut Meter<'_>>,
) -> client::Result<u64> {
    let how = OpenHow { write: true, create: true, exclusive: true, ..OpenHow::default() };
    let mut count = 0;
    let mut began = meter.borrow().read();
    while let Some(path) = next() {
        match kind {
            Make::Files => files.close(&files.open(path.as_bytes(), &how).await?).await,
            Make::Directories => {
                files.mkdir(path.as_bytes(), 0o777).await?;
            }
        }
        count += 1;
        began = meter.borrow_mut().note_one_of_many(began);
        if meter.borrow().is_over() {
            break;
        }
    }
    Ok(count)
}

/// Moves pieces one after the other, until there are no more or the time is over. Returns their number.
async fn transfer_each(
    files: &FileSystem,
    file: &File,
    transfers: &RefCell<Transfers<'_>>,
    meter: &RefCell<&mut Meter<'_>>,
) -> Result<u64> {
    let (size, is_write, touch) = {
        let transfers = transfers.borrow();
        (transfers.size, transfers.is_write, transfers.touch)
    };
    let mut buffer = PageBuffer::new(size);
    let mut count = 0;
    while !meter.borrow().is_over() {
        let Some(offset) = (transfers.borrow_mut().next)() else { break };
        if is_write {
            touch(offset, &mut buffer)?;
        }
        let began = meter.borrow().read();
        let moved = match is_write {
            true => files.write_at(file, &buffer, offset).await,
            false => files.read_at(file, &mut buffer, offset).await,
        };
        check_size(moved.map_err(words)?, size, offset)?;
        meter.borrow_mut().note_one_of_many(began);
        if !is_write {
            touch(offset, &mut buffer)?;
        }
        count += 1;
    }
    Ok(count)
}

/// Has several tasks done at once that count what they do; the sum. Errors: the last of them, when all have ended.
async fn all_at_once<E>(
    mut tasks: Vec<Pin<Box<impl Future<Output = std::result::Result<u64, E>>>>>,
) -> std::result::Result<u64, E> {
    let (mut count, mut outcome) = (0, Ok(()));
    poll_fn(|context| {
        tasks.retain_mut(|task| match task.as_mut().poll(context) {
            Poll::Pending => true,
            Poll::Ready(Ok(done)) => {
                count += done;
                false
            }
            Poll::Ready(Err(error)) => {
                outcome = Err(error);
                false
            }
        });
        if tasks.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outcome.map(|()| count)
}

fn words(error: client::Error) -> String {
    error.message
}

fn attributes_of(attributes: &client::Attributes) -> Attributes {
    Attributes { size: attributes.size, mtime: attributes.mtime }
}

impl Target for Tabane {
    type File = File;

    fn open(&self, path: &str, how: How) -> Result<File> {
        let create = how != How::Read;
        let how = OpenHow {
            read: !create,
            write: create,
            create,
            exclusive: how == How::CreateNew,
            chunk_size: self.chunk_size,
            ..OpenHow::default()
        };
        self.client.open(path.as_bytes(), &how).map_err(words)
    }

    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> Result<()> {
        match self.client.write_at(file, bytes, offset).map_err(words)? {
            size if size == bytes.len() => Ok(()),
            size => Err(format!("write at {offset}: {size} of {} bytes written", bytes.len())),
        }
    }

    fn read_at(&self, file: &File, place: &mut [u8], offset: u64) -> Result<usize> {
        self.client.read_at(file, place, offset).map_err(words)
    }

    fn transfer(&self, file: &File, transfers: Transfers<'_>, meter: &mut Meter) -> Result<u64> {
        self.client.run(async |_, files: &FileSystem| {
            let depth = transfers.depth;
            let (transfers, meter) = (RefCell::new(transfers), RefCell::new(meter));
            all_at_once((0..depth).map(|_| Box::pin(transfer_each(files, file, &transfers, &meter))).collect()).await
        })
    }

    fn sync(&self, file: &File) -> Result<()> {
        self.client.synchronise(file).map_err(words)
    }

    fn close(&self, file: File) -> Result<()> {
        self.client.close(&file);
        Ok(())
    }

    fn stat(&self, path: &str) -> Result<Option<Attributes>> {
        match self.client.stat(path.as_bytes()) {
            Ok(attributes) => Ok(Some(attributes_of(&attributes))),
            Err(error) if error.status == Status::NotFound => Ok(None),
            Err(error) => Err(error.message),
        }
    }

    fn unlink(&self, path: &str) -> Result<()> {
        self.client.unlink(path.as_bytes()).map_err(words)
    }

    fn make_directory(&self, path: &str) -> Result<()> {
        match self.client.mkdir(path.as_bytes(), 0o777) {
            Err(error) if error.status != Status::Exists => Err(error.message),
            _ => Ok(()),
        }
    }

    fn make_many(
        &self,
        kind: Make,
        paths: &mut (dyn Iterator<Item = String> + Send),
        meter: &mut Meter,
    ) -> Result<u64> {
        let made = self.client.run(async |_, files: &FileSystem| {
            let (paths, meter) = (RefCell::new(paths), RefCell::new(meter));
            let make = |_| Box::pin(make_each(files, kind, || paths.borrow_mut().next(), &meter));
            all_at_once((0..AT_ONCE_COUNT).map(make).collect()).await
        });
        made.map_err(words)
    }

    fn remove_directory(&self, path: &str) -> Result<()> {
        match self.client.rmdir(path.as_bytes()) {
            Err(error) if error.status != Status::NotFound => Err(error.message),
            _ => Ok(()),
        }
    }

    fn list(&self, directory: &str, on_entry: &mut dyn FnMut(&[u8], bool) -> bool) -> Result<()> {
        let mut note = |entry: &DirectoryEntry| on_entry(&entry.name, entry.kind == Kind::Directory);
        self.client.read_directory(directory.as_bytes(), false, &mut note).map_err(words)
    }

    fn space(&self) -> Result<Space> {
        let servers = self.client.stat_file_system().map_err(words)?;
        let space = client::Space::of(&client::total(&servers));
        Ok(Space { bytes: space.available, files: None })
    }

    const EXAMINES: bool = false;

    /// The servers look at the entries; what comes here are directories and a number.
    fn find(
        &self,
        directory: &str,
        share: Share,
        wanted: &SearchPattern,
        on_directory: &mut dyn FnMut(&[u8]),
    ) -> Result<Counts> {
        let pattern = format!("*{}*", wanted.part).into_bytes();
        let tests = Tests(vec![
            Test::Name { pattern, any_case: false },
            Test::Kind(Kind::File),
            Test::Size { order: Order::Equal, unit: 1, count: wanted.size },
            Test::Time { clock: Clock::Modification, after: wanted.newer_than, until: i64::MAX },
        ]);
        let mut counts = Counts::default();
        for server in share.servers(self.client.server_count()) {
            let search = Search { tests: tests.clone(), count_only: true, server: Some(server) };
            let mut stream = self.client.open_search(directory.as_bytes(), &search).map_err(words)?;
            while !stream.is_at_end() {
                let page = self.client.next_found(&mut stream).map_err(words)?;
                counts.found += page.counted;
                for entry in page.entries {
                    match entry.kind {
                        Kind::Directory => on_directory(&entry.name),
                        _ => counts.found += u64::from(entry.matches),
                    }
                }
            }
        }
        Ok(counts)
    }

    fn server_count(&self) -> u32 {
        self.client.server_count()
    }

    fn ping(&self, server: u32) -> Result<()> {
        self.client.ping(server).map_err(words)
    }
}
