/*
 * tabane.h - the C interface of Tabane. Generated from crates/capi; do not edit.
 *
 * Programs link against libtabane (pkg-config: tabane).
 */

#ifndef TABANE_H
#define TABANE_H

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

/*
 A listing under way. One thread at a time may use it.
 */
struct tabane_directory;

/*
 Gets one entry of a listing: the caller's context, the name, its attributes, and 0. Other than 0 ends the listing.
 */
typedef int (*tabane_filler)(void *context, const char *name, const struct stat *attributes, off_t offset);

/*
 How a file is spread over the servers. Chunk `i` is at server `(first + i / run % width) % servers` by modular
 placement, and where a hash of file and chunk leads by ring placement; `tabane_locate` knows for both.
 */
struct tabane_layout {
  /*
   Bytes of a chunk.
   */
  size_t chunk_size;
  /*
   Servers that the file is spread over.
   */
  int width;
  /*
   Neighbouring chunks at the same server.
   */
  int run;
  /*
   The server of chunk 0.
   */
  int first;
  /*
   Servers of the cluster.
   */
  int servers;
  /*
   Whether chunks are placed by a hash (ring placement).
   */
  int is_hashed;
};

/*
 A range of a file, in bytes.
 */
struct tabane_range {
  off_t offset;
  size_t size;
};

/*
 What to look for; all of it must hold. `tabane_search_init` lets everything through.
 */
struct tabane_search {
  /*
   The name matches this pattern, as in glob(7); NULL for any.
   */
  const char *name;
  /*
   DT_REG, DT_DIR or DT_LNK; DT_UNKNOWN for any.
   */
  unsigned char kind;
  /*
   Least and largest size in bytes; a largest of -1 is none.
   */
  int64_t size_min;
  int64_t size_max;
  /*
   The modification time is later than this, and not later than the other; a tv_nsec of UTIME_OMIT is no limit.
   */
  struct timespec modified_after;
  struct timespec modified_until;
  /*
   Owner and group; -1 for any.
   */
  uid_t uid;
  gid_t gid;
  /*
   Permission bits that are all set.
   */
  mode_t mode;
  /*
   Levels of directories that are searched: 1 for the names in PATH alone, -1 for all below.
   */
  int depth_max;
  /*
   Only names that this server has, from 0; -1 for all servers. So several processes can search one tree together.
   */
  int server;
};

/*
 Gets one name that fits: the caller's context, the path, and DT_REG, DT_DIR or DT_LNK. Other than 0 ends the search.
 */
typedef int (*tabane_found)(void *context, const char *path, unsigned char kind);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Connects this process to a cluster, named by its run directory or cluster file; NULL takes the one
 that `TABANE_CLUSTER` names, else the one that `tabane up` has started where it does by itself. Does nothing when
 connected already. Servers are first talked to when they are first needed.

 `cluster` is NULL or a NUL-terminated string.
 */
int tabane_init(const char *cluster);

/*
 Whether this process is connected: 1 or 0.
 */
int tabane_initialized(void);

/*
 Closes all descriptors and connections. Fails with ESHUTDOWN when not connected. A program that ends by exit(3) or
 by returning from main need not call it.
 */
int tabane_term(void);

/*
 The version of this library, as text.
 */
const char *tabane_version(void);

/*
 The number of servers of the cluster, or -1.
 */
int tabane_server_count(void);

/*
 What the last failed call of this thread says about its failure: the path, the server, the operation and what to do.
 Valid until the thread's next failure.
 */
const char *tabane_error_message(void);

/*
 Words for an errno value, as strerror(3) has them. Valid until this thread's next call.
 */
const char *tabane_strerror(int number);

/*
 Starts a listing. NULL and errno on failure.

 `path` is a NUL-terminated string.
 */
struct tabane_directory *tabane_opendir(const char *path);

/*
 The next entry, valid until the next call for the same listing. NULL with errno unchanged at the end, NULL with
 errno set on failure.

 `directory` comes from `tabane_opendir` and was not closed.
 */
struct dirent *tabane_readdir(struct tabane_directory *directory);

/*
 Starts a listing over.

 `directory` comes from `tabane_opendir` and was not closed.
 */
void tabane_rewinddir(struct tabane_directory *directory);

/*
 Ends a listing.

 `directory` comes from `tabane_opendir` and is not used again.
 */
int tabane_closedir(struct tabane_directory *directory);

/*
 Lists the share of one server of a directory, from 0 to `tabane_server_count() - 1`, so that several processes can
 list a large directory together. `filler` gets every entry; `.` and `..` are not among them.

 `path` is a NUL-terminated string; `filler` may be called with `context`.
 */
int tabane_readdir_index(const char *path, int index, void *context, tabane_filler filler);

/*
 The value of an extended attribute of what a path leads to. Returns its size; a `size` of 0 asks for that alone.

 `path` and `name` are NUL-terminated strings; `value` points to `size` writable bytes.
 */
ssize_t tabane_getxattr(const char *path, const char *name, void *value, size_t size);

/*
 As `tabane_getxattr`; of a symbolic link, its own.

 As there.
 */
ssize_t tabane_lgetxattr(const char *path, const char *name, void *value, size_t size);

/*
 As `tabane_getxattr`, of an open file.

 `name` is a NUL-terminated string; `value` points to `size` writable bytes.
 */
ssize_t tabane_fgetxattr(int descriptor, const char *name, void *value, size_t size);

/*
 Sets an extended attribute of what a path leads to. `flags`: XATTR_CREATE, XATTR_REPLACE or 0.

 `path` and `name` are NUL-terminated strings; `value` points to `size` readable bytes.
 */
int tabane_setxattr(const char *path, const char *name, const void *value, size_t size, int flags);

/*
 As `tabane_setxattr`; of a symbolic link, its own.

 As there.
 */
int tabane_lsetxattr(const char *path, const char *name, const void *value, size_t size, int flags);

/*
 As `tabane_setxattr`, of an open file.

 `name` is a NUL-terminated string; `value` points to `size` readable bytes.
 */
int tabane_fsetxattr(int descriptor, const char *name, const void *value, size_t size, int flags);

/*
 The names of the extended attributes of what a path leads to, each with a NUL behind it. Returns the size of the
 list; a `size` of 0 asks for that alone.

 `path` is a NUL-terminated string; `list` points to `size` writable bytes.
 */
ssize_t tabane_listxattr(const char *path, char *list, size_t size);

/*
 As `tabane_listxattr`; of a symbolic link, its own.

 As there.
 */
ssize_t tabane_llistxattr(const char *path, char *list, size_t size);

/*
 As `tabane_listxattr`, of an open file.

 `list` points to `size` writable bytes.
 */
ssize_t tabane_flistxattr(int descriptor, char *list, size_t size);

/*
 Removes an extended attribute of what a path leads to.

 `path` and `name` are NUL-terminated strings.
 */
int tabane_removexattr(const char *path, const char *name);

/*
 As `tabane_removexattr`; of a symbolic link, its own.

 As there.
 */
int tabane_lremovexattr(const char *path, const char *name);

/*
 As `tabane_removexattr`, of an open file.

 `name` is a NUL-terminated string.
 */
int tabane_fremovexattr(int descriptor, const char *name);

/*
 Opens a file as open(2) does. `mode` counts with O_CREAT and O_TMPFILE only, and is always passed. Returns a
 descriptor.

 `path` is a NUL-terminated string.
 */
int tabane_open(const char *path, int flags, mode_t mode);

/*
 As `tabane_open`; a file that is made by it is spread over the servers as `layout` says: `chunk_size`, `width` and
 `run`, each 0 for the usual, and `first`, -1 for the usual. `servers` and `is_hashed` don't count; with ring
 placement `chunk_size` alone does. A `width` beyond the number of servers stands for all of them. NULL: all as
 usual.
 Errors: EINVAL for a chunk size out of range, or a server that isn't there.

 `path` is a NUL-terminated string; `layout` is NULL or may be read.
 */
int tabane_open_layout(const char *path, int flags, mode_t mode, const struct tabane_layout *layout);

/*
 Makes a file, or cuts it to no bytes, and opens it for writing.

 `path` is a NUL-terminated string.
 */
int tabane_creat(const char *path, mode_t mode);

/*
 Closes a descriptor, after the calls that were started on it are done.
 */
int tabane_close(int descriptor);

/*
 Reads at the file position and moves it. Returns the bytes read, 0 at the end of the file.

 `buffer` points to `size` writable bytes.
 */
ssize_t tabane_read(int descriptor, void *buffer, size_t size);

/*
 Writes at the file position, or at the end with O_APPEND, and moves the position. Returns the bytes written.

 `buffer` points to `size` readable bytes.
 */
ssize_t tabane_write(int descriptor, const void *buffer, size_t size);

/*
 Reads at an offset; the file position stays.

 `buffer` points to `size` writable bytes.
 */
ssize_t tabane_pread(int descriptor, void *buffer, size_t size, off_t offset);

/*
 Writes at an offset; the file position stays.

 `buffer` points to `size` readable bytes.
 */
ssize_t tabane_pwrite(int descriptor, const void *buffer, size_t size, off_t offset);

/*
 Reads into several buffers at the file position and moves it.

 `vector` points to `count` elements that name writable bytes, none overlapping another.
 */
ssize_t tabane_readv(int descriptor, const struct iovec *vector, int count);

/*
 Writes from several buffers at the file position, or at the end with O_APPEND, and moves the position.

 `vector` points to `count` elements that name readable bytes.
 */
ssize_t tabane_writev(int descriptor, const struct iovec *vector, int count);

/*
 Reads into several buffers at an offset; the file position stays.

 `vector` points to `count` elements that name writable bytes, none overlapping another.
 */
ssize_t tabane_preadv(int descriptor, const struct iovec *vector, int count, off_t offset);

/*
 Writes from several buffers at an offset; the file position stays.

 `vector` points to `count` elements that name readable bytes.
 */
ssize_t tabane_pwritev(int descriptor, const struct iovec *vector, int count, off_t offset);

/*
 Reads a list of ranges, in any order, into several buffers, in which the bytes of one range follow those of the one
 before it; the file position stays. All together are one request to each server that holds a part. Returns the bytes
 read of all ranges: what of them lies beyond the end of the file is missing, and its place in the buffers has no
 meaning. Errors: EINVAL unless the buffers are as large as the ranges.

 `ranges` points to `range_count` elements, `vector` to `count` elements that name writable bytes, none overlapping
 another.
 */
ssize_t tabane_preadv_list(int descriptor,
                           const struct tabane_range *ranges,
                           size_t range_count,
                           const struct iovec *vector,
                           int count);

/*
 Writes a list of ranges, in any order, from several buffers, in which the bytes of one range follow those of the one
 before it; the file position stays. All together are one request to each server that gets a part. Where ranges
 overlap, either may win. Returns the bytes written, counted from the beginning of the list. Errors: EINVAL unless
 the buffers are as large as the ranges.

 `ranges` points to `range_count` elements, `vector` to `count` elements that name readable bytes.
 */
ssize_t tabane_pwritev_list(int descriptor,
                            const struct tabane_range *ranges,
                            size_t range_count,
                            const struct iovec *vector,
                            int count);

/*
 Moves the file position: SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA or SEEK_HOLE. Returns the new one.
 */
off_t tabane_lseek(int descriptor, off_t offset, int whence);

/*
 Sets a search to what fits everything.

 `search` points to memory for one.
 */
void tabane_search_init(struct tabane_search *search);

/*
 Finds names below the directory `path`, which is not among them. The servers apply the conditions and send what
 fits. `found` gets each name, in no order; directories that come and go meanwhile may or may not be searched.

 `path` is a NUL-terminated string, `search` points to a search, whose name is NULL or a NUL-terminated string;
 `found` may be called with `context`.
 */
int tabane_find(const char *path, const struct tabane_search *search, void *context, tabane_found found);

/*
 Counts the names that `tabane_find` would find; where they are not directories, they do not even travel. -1 and
 errno on failure.

 As of `tabane_find`.
 */
int64_t tabane_find_count(const char *path, const struct tabane_search *search);

/*
 Attributes of what a path leads to.

 `path` is a NUL-terminated string; `place` may be written.
 */
int tabane_stat(const char *path, struct stat *place);

/*
 Attributes of what a path names; of a symbolic link, its own.

 `path` is a NUL-terminated string; `place` may be written.
 */
int tabane_lstat(const char *path, struct stat *place);

/*
 Attributes of an open file.

 `place` may be written.
 */
int tabane_fstat(int descriptor, struct stat *place);

/*
 Sets the permission bits.

 `path` is a NUL-terminated string.
 */
int tabane_chmod(const char *path, mode_t mode);

/*
 Sets the permission bits of an open file.
 */
int tabane_fchmod(int descriptor, mode_t mode);

/*
 Sets owner and group; -1 leaves one as it is.

 `path` is a NUL-terminated string.
 */
int tabane_chown(const char *path, uid_t uid, gid_t gid);

/*
 Sets owner and group, of a symbolic link its own.

 `path` is a NUL-terminated string.
 */
int tabane_lchown(const char *path, uid_t uid, gid_t gid);

/*
 Sets owner and group of an open file.
 */
int tabane_fchown(int descriptor, uid_t uid, gid_t gid);

/*
 Sets the times of access and modification, in this order, with UTIME_NOW and UTIME_OMIT; NULL sets both to now. With
 AT_SYMLINK_NOFOLLOW in `flags`, those of a symbolic link itself.

 `path` is a NUL-terminated string; `times` is NULL or points to two elements.
 */
int tabane_utimens(const char *path, const struct timespec *times, int flags);

/*
 Sets the times of an open file, as `tabane_utimens` does.

 `times` is NULL or points to two elements.
 */
int tabane_futimens(int descriptor, const struct timespec *times);

/*
 Cuts or extends a file.

 `path` is a NUL-terminated string.
 */
int tabane_truncate(const char *path, off_t size);

/*
 Cuts or extends an open file.
 */
int tabane_ftruncate(int descriptor, off_t size);

/*
 Space and counts of the whole file system; over a backing directory the space of that, as far as what is written
 gets there. `path` has to exist.

 `path` is a NUL-terminated string; `place` may be written.
 */
int tabane_statvfs(const char *path, struct statvfs *place);

/*
 Tells how an open file is spread over the servers.

 `place` may be written.
 */
int tabane_layout(int descriptor, struct tabane_layout *place);

/*
 Tells the server of each chunk that a range of an open file touches, in order, whether or not anything is written
 there: of the first `count` of them in `servers`, which may be NULL where `count` is 0. Returns the number of
 chunks, which may be more than `count`. No server is asked.

 `servers` points to room for `count` numbers.
 */
ssize_t tabane_locate(int descriptor, off_t offset, size_t size, int *servers, size_t count);

/*
 1 if a server runs on this machine, else 0, or -1 with errno set: EINVAL where there is no such server.
 */
int tabane_is_local(int server);

/*
 With `is_on` 1, reads and writes of an open file of more than 64 KiB at a server that is reached by messages wait
 for a permit of it, of which it gives a few at a time, in the order in which they are asked for: for calls that many
 processes make at once. With 0 they don't, as after an open.
 */
int tabane_throttle(int descriptor, int is_on);

/*
 Puts an open file into a few bytes that other processes, on any host, can open it by (`tabane_import`), without any
 server being asked. Returns how many there are, at most 128; with `size` 0 only that. What they say holds while this
 process has the file open: who imported it has it then too, also when it has lost its name. Fails with ERANGE when
 there is no room for them, EISDIR for a directory.

 `place` points to `size` bytes that may be written.
 */
ssize_t tabane_export(int descriptor, void *place, size_t size);

/*
 Opens a file that another process of the same cluster has exported, with what that one may do with it, and at
 position 0. Returns a descriptor of this process's own, to be closed as any other. Fails with EINVAL for bytes that
 are no exported file, or one of another cluster; when the exporter has closed a file that has no name any more, uses
 of the descriptor fail with ESTALE.

 `exported` points to `size` bytes.
 */
int tabane_import(const void *exported, size_t size);

/*
 Locks a whole file for its descriptor, as flock(2) does. `operation`: LOCK_SH, LOCK_EX or LOCK_UN, with LOCK_NB or
 without.
 */
int tabane_flock(int descriptor, int operation);

/*
 Locks and unlocks a range of a file, or asks who has a lock, as fcntl(2) does with F_SETLK, F_SETLKW and F_GETLK
 (owned by this process) and with F_OFD_SETLK, F_OFD_SETLKW and F_OFD_GETLK (owned by the descriptor).

 `lock` may be read and written.
 */
int tabane_fcntl_lock(int descriptor, int command, struct flock *lock);

/*
 Tells the path within the cluster of a path below a mount of it (`tabane mount`), so that a program can reach the
 file without the mount; the file itself need not be there. The cluster is that of this process: the one that it is
 connected to, else the one that `tabane_init(NULL)` would take. Returns the bytes of the path, which are put into
 `buffer` with a zero behind them.

 Fails with EXDEV where the path is below no mount of the cluster, or below one that is read only, and with ERANGE if
 the buffer is too small.

 `path` is a NUL-terminated string; `size` bytes of `buffer` may be written.
 */
ssize_t tabane_path_below_mount(const char *path, char *buffer, size_t size);

/*
 Makes a directory.

 `path` is a NUL-terminated string.
 */
int tabane_mkdir(const char *path, mode_t mode);

/*
 Removes an empty directory.

 `path` is a NUL-terminated string.
 */
int tabane_rmdir(const char *path);

/*
 Removes a file or a symbolic link.

 `path` is a NUL-terminated string.
 */
int tabane_unlink(const char *path);

/*
 Makes a symbolic link at `path` that leads to `target`.

 Both are NUL-terminated strings.
 */
int tabane_symlink(const char *target, const char *path);

/*
 Makes a pipe, socket or device, as mknod(2): the type in `mode`, the number of a device in `device`, which takes the
 superuser. It can be opened through a mount alone (else ENXIO).

 `path` is a NUL-terminated string.
 */
int tabane_mknod(const char *path, mode_t mode, dev_t device);

/*
 Makes `to` one more name of the file or symbolic link `from`, which is not followed.

 Both are NUL-terminated strings.
 */
int tabane_link(const char *from, const char *to);

/*
 Gives an open file a name, as linkat(2) does with AT_EMPTY_PATH: its first one if it was opened with O_TMPFILE, else
 one more. A file without a name that had one, or that was opened with O_TMPFILE and O_EXCL, fails with ENOENT.

 `path` is a NUL-terminated string.
 */
int tabane_link_open(int descriptor, const char *path);

/*
 Renames a file, symbolic link or directory; what `to` named is replaced, if it is no directory or an empty one.

 Both are NUL-terminated strings.
 */
int tabane_rename(const char *from, const char *to);

/*
 As `tabane_rename`. `flags` are those of renameat2: 0, RENAME_NOREPLACE (1) or RENAME_EXCHANGE (2).

 Both are NUL-terminated strings.
 */
int tabane_rename2(const char *from, const char *to, unsigned int flags);

/*
 Stores the target of a symbolic link, cut to `size` bytes and without a NUL at its end. Returns the bytes stored.

 `path` is a NUL-terminated string; `buffer` points to `size` writable bytes.
 */
ssize_t tabane_readlink(const char *path, char *buffer, size_t size);

/*
 Reserves, punches or zeroes a range as fallocate(2) does: `mode` is 0 or a sum of FALLOC_FL_KEEP_SIZE, and one of
 FALLOC_FL_PUNCH_HOLE (with FALLOC_FL_KEEP_SIZE only) and FALLOC_FL_ZERO_RANGE. Other modes fail with EOPNOTSUPP.
 */
int tabane_fallocate(int descriptor, int mode, off_t offset, off_t size);

/*
 Copies between two open files, on the servers, as copy_file_range(2) does: from and to the offsets, which move, or,
 where one is NULL, the file position. Returns the bytes copied: fewer than `size` at the end of the source, and in
 very large calls. `flags` is 0.

 `offset_in` and `offset_out` are NULL or point to offsets.
 */
ssize_t tabane_copy_file_range(int descriptor_in,
                               off_t *offset_in,
                               int descriptor_out,
                               off_t *offset_out,
                               size_t size,
                               unsigned int flags);

/*
 Sets the permission bits that new files and directories do not get, and returns those before. At the start they are
 the umask that the process has then: later calls of umask(2) are not seen, for the kernel tells a process its umask
 only while it changes it. (mode_t)-1 when not connected.
 */
mode_t tabane_umask(mode_t mask);

/*
 Whether the process's real user may read (R_OK), write (W_OK) and execute or search (X_OK) what a path leads to, or
 whether it is there (F_OK), as access(2) has it.

 `path` is a NUL-terminated string.
 */
int tabane_access(const char *path, int mode);

/*
 As `tabane_access`, with AT_EACCESS in `flags` for the effective user.

 `path` is a NUL-terminated string.
 */
int tabane_faccess(const char *path, int mode, int flags);

/*
 Starts what tabane_preadv_list does. Returns a number for tabane_test and tabane_wait, one of which has to say that
 the call is done before its buffers are used or freed. Calls go on in the order in which servers answer; closing the
 descriptor waits for its calls, but what is under way when the process ends may not be done. Errors: EBUSY with
 4,096 calls that are under way or were not asked about.

 `ranges` points to `range_count` elements, `vector` to `count` elements that name writable bytes, none overlapping
 another, which stay and are used by nobody else until the call is done.
 */
int tabane_start_preadv_list(int descriptor,
                             const struct tabane_range *ranges,
                             size_t range_count,
                             const struct iovec *vector,
                             int count);

/*
 Starts what tabane_pwritev_list does, as tabane_start_preadv_list starts reads.

 `ranges` points to `range_count` elements, `vector` to `count` elements that name readable bytes, which stay
 unchanged until the call is done.
 */
int tabane_start_pwritev_list(int descriptor,
                              const struct tabane_range *ranges,
                              size_t range_count,
                              const struct iovec *vector,
                              int count);

/*
 Whether a call that was started is done: 1, with the bytes that it moved in `moved`, or 0 while it is under way.
 What servers have answered is taken in; nothing is waited for. Fails as the call did, or with EINVAL for a number of
 no call; a number is of no call any more once 1 or -1 was returned for it.

 `moved` is NULL or points to a number.
 */
int tabane_test(int number, ssize_t *moved);

/*
 Waits until a call that was started is done. Returns the bytes that it moved, or fails as it did; the number is of
 no call any more then.
 */
ssize_t tabane_wait(int number);

/*
 Makes a file's contents, its attributes and its name survive power loss, as far as the servers' media can (not on
 tmpfs); of a directory, its entries. Reports data that was acknowledged and could not be kept, once to each
 descriptor.
 */
int tabane_fsync(int descriptor);

/*
 As `tabane_fsync`.
 */
int tabane_fdatasync(int descriptor);

/*
 Makes everything that was acknowledged to anybody survive power loss. Unlike sync(2) it can fail.
 */
int tabane_sync(void);

/*
 As `tabane_sync`; the descriptor has to be an open one.
 */
int tabane_syncfs(int descriptor);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TABANE_H */
