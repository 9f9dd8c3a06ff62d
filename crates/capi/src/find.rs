//! find: the names of a tree that fit, picked by the servers that have them.

use crate::convert::*;
use crate::mounted;
use client::descriptors::Mounted;
use client::tests::{Bits, Clock, Order, Test, Tests};
use client::{Error, Kind, Result, Search, Status};
use libc::{c_char, c_int, c_uchar, c_void, gid_t, mode_t, timespec, uid_t};
use std::ffi::CString;

const NANOS_PER_SECOND: i64 = 1_000_000_000;
/// Of an owner, a group, a depth, a server, or a largest size: any.
const ANY: i64 = -1;

/// What to look for; all of it must hold. `tabane_search_init` lets everything through.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TabaneSearch {
    /// The name matches this pattern, as in glob(7); NULL for any.
    pub name: *const c_char,
    /// DT_REG, DT_DIR or DT_LNK; DT_UNKNOWN for any.
    pub kind: c_uchar,
    /// Least and largest size in bytes; a largest of -1 is none.
    pub size_min: i64,
    pub size_max: i64,
    /// The modification time is later than this, and not later than the other; a tv_nsec of UTIME_OMIT is no limit.
    pub modified_after: timespec,
    pub modified_until: timespec,
    /// Owner and group; -1 for any.
    pub uid: uid_t,
    pub gid: gid_t,
    /// Permission bits that are all set.
    pub mode: mode_t,
    /// Levels of directories that are searched: 1 for the names in PATH alone, -1 for all below.
    pub depth_max: c_int,
    /// Only names that this server has, from 0; -1 for all servers. So several processes can search one tree together.
    pub server: c_int,
}

/// Gets one name that fits: the caller's context, the path, and DT_REG, DT_DIR or DT_LNK. Other than 0 ends the search.
pub type TabaneFound = Option<unsafe extern "C" fn(context: *mut c_void, path: *const c_char, kind: c_uchar) -> c_int>;

/// Sets a search to what fits everything.
///
/// # Safety
/// `search` points to memory for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_search_init(search: *mut TabaneSearch) {
    let no_limit = timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT };
    let all = TabaneSearch {
        name: std::ptr::null(),
        kind: libc::DT_UNKNOWN,
        size_min: 0,
        size_max: ANY,
        modified_after: no_limit,
        modified_until: no_limit,
        uid: ANY as uid_t,
        gid: ANY as gid_t,
        mode: 0,
        depth_max: ANY as c_int,
        server: ANY as c_int,
    };
    if !search.is_null() {
        // SAFETY: not null, and the caller promises the rest.
        unsafe { search.write(all) };
    }
}

/// Finds names below the directory `path`, which is not among them. The servers apply the conditions and send what
/// fits. `found` gets each name, in no order; directories that come and go meanwhile may or may not be searched.
///
/// # Safety
/// `path` is a NUL-terminated string, `search` points to a search, whose name is NULL or a NUL-terminated string;
/// `found` may be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_find(
    path: *const c_char,
    search: *const TabaneSearch,
    context: *mut c_void,
    found: TabaneFound,
) -> c_int {
    let find = || {
        // SAFETY: the caller promises it.
        let (path, wanted) = unsafe { (bytes_of(path, "path")?, Wanted::of(search)?) };
        let found = found.ok_or_else(|| Error::new(Status::Invalid, "found is a null pointer"))?;
        walk(&*mounted()?, path, &wanted, &mut |path, kind| {
            // SAFETY: the caller promises that it may be called.
            unsafe { found(context, path.as_ptr(), kind) == 0 }
        })
    };
    status_of(find())
}

/// Counts the names that `tabane_find` would find; where they are not directories, they do not even travel. -1 and
/// errno on failure.
///
/// # Safety
/// As of `tabane_find`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_find_count(path: *const c_char, search: *const TabaneSearch) -> i64 {
    let count = || {
        // SAFETY: the caller promises it.
        let (path, mut wanted) = unsafe { (bytes_of(path, "path")?, Wanted::of(search)?) };
        wanted.search.count_only = true;
        let mut told = 0;
        let counted = walk(&*mounted()?, path, &wanted, &mut |_, _| {
            told += 1;
            true
        })?;
        Ok(told + counted as i64)
    };
    offset_of(count())
}

/// A search that was checked.
struct Wanted {
    search: Search,
    depth_max: u64,
    server: Option<u32>,
}

impl Wanted {
    /// # Safety
    /// `search` is null or points to a search, whose name is null or a string.
    unsafe fn of(search: *const TabaneSearch) -> Result<Wanted> {
        // SAFETY: the caller promises it.
        let Some(search) = (unsafe { search.as_ref() }) else {
            return Err(Error::new(Status::Invalid, "search is a null pointer"));
        };
        let mut tests = Vec::new();
        if !search.name.is_null() {
            // SAFETY: the caller promises it.
            let pattern = unsafe { bytes_of(search.name, "name") }?.to_vec();
            tests.push(Test::Name { pattern, any_case: false });
        }
        match search.kind {
            libc::DT_UNKNOWN => {}
            libc::DT_REG => tests.push(Test::Kind(Kind::File)),
            libc::DT_DIR => tests.push(Test::Kind(Kind::Directory)),
            libc::DT_LNK => tests.push(Test::Kind(Kind::Symlink)),
            other => return Err(Error::new(Status::Invalid, format!("kind {other} is not DT_REG, DT_DIR or DT_LNK"))),
        }
        let size = |order, count: i64| Test::Size { order, unit: 1, count: count as u64 };
        if search.size_min > 0 {
            tests.push(size(Order::More, search.size_min - 1));
        }
        match search.size_max {
            ANY => {}
            0.. => tests.push(size(Order::Less, search.size_max.saturating_add(1))),
            _ => return Err(Error::new(Status::Invalid, "the largest size is negative, and not -1")),
        }
        let (after, until) = (limit(&search.modified_after, i64::MIN), limit(&search.modified_until, i64::MAX));
        if (after, until) != (i64::MIN, i64::MAX) {
            tests.push(Test::Time { clock: Clock::Modification, after, until });
        }
        if search.uid != ANY as uid_t {
            tests.push(Test::Owner(search.uid));
        }
        if search.gid != ANY as gid_t {
            tests.push(Test::Group(search.gid));
        }
        if search.mode != 0 {
            tests.push(Test::Permissions { how: Bits::All, bits: search.mode });
        }
        let server = (search.server != ANY as c_int).then(|| u32::try_from(search.server)).transpose();
        let server = server.map_err(|_| Error::new(Status::Invalid, "the server is negative, and not -1"))?;
        let depth_max = u64::try_from(search.depth_max).unwrap_or(u64::MAX);
        Ok(Wanted { search: Search { tests: Tests(tests), ..Search::default() }, depth_max, server })
    }
}

/// A time in nanoseconds; `none` where there is no limit.
fn limit(time: &timespec, none: i64) -> i64 {
    match time.tv_nsec {
        libc::UTIME_OMIT => none,
        nanoseconds => time.tv_sec.saturating_mul(NANOS_PER_SECOND).saturating_add(nanoseconds),
    }
}

/// Searches a directory and what is below it until `found` returns false. Returns how many matches were only counted.
fn walk(
    mounted: &Mounted,
    path: &[u8],
    wanted: &Wanted,
    found: &mut dyn FnMut(&CString, c_uchar) -> bool,
) -> Result<u64> {
    let mut counted = 0;
    let mut left = vec![(path.to_vec(), 0)];
    while let Some((directory, depth)) = left.pop() {
        if depth >= wanted.depth_max {
            continue;
        }
        // Directories of other servers are needed to go on in, so all are asked, unless this is the last level.
        let alone = wanted.server.filter(|_| depth + 1 >= wanted.depth_max);
        let mut search = Search { server: alone, ..wanted.search.clone() };
        search.count_only &= alone.is_some() || wanted.server.is_none();
        let mut stream = match mounted.client.open_search(&directory, &search) {
            // Others may remove directories meanwhile.
            Err(error) if error.status == Status::NotFound && depth > 0 => continue,
            stream => stream?,
        };
        while !stream.is_at_end() {
            let page = mounted.client.next_found(&mut stream)?;
            counted += page.counted;
            for entry in page.entries {
                let path = [&directory[..], if directory.ends_with(b"/") { b"" } else { b"/" }, &entry.name].concat();
                if entry.matches && wanted.server.is_none_or(|server| server == entry.server) {
                    let path = path.clone();
                    let path = CString::new(path).map_err(|_| Error::new(Status::BadMessage, "a name holds a NUL"))?;
                    if !found(&path, type_of(entry.kind)) {
                        return Ok(counted);
                    }
                }
                if entry.kind == Kind::Directory {
                    left.push((path, depth + 1));
                }
            }
        }
    }
    Ok(counted)
}
