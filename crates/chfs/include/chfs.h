/*
 * chfs.h - Tabane behind the C interface of CHFS.
 *
 * Programs written for CHFS compile against this header and link against libchfs (pkg-config: chfs). Every function
 * that can fail returns -1 and sets errno. Paths start at the root of the file system, with or without a slash in front.
 * Descriptors are the file system's own. All functions may be called from any thread.
 *
 * Environment: TABANE_CLUSTER or CHFS_SERVER name the cluster's run directory or cluster file; CHFS_CHUNK_SIZE (bytes)
 * and CHFS_RPC_TIMEOUT_MSEC set what their functions set; CHFS_ASYNC_ACCESS and CHFS_BUF_SIZE are understood and need
 * nothing done.
 */
#ifndef TABANE_CHFS_H
#define TABANE_CHFS_H

#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct stat;

/* Gets one entry of a listing; other than 0 ends the listing. The last argument is 0. */
#define TABANE_CHFS_FILLER(name) int (*name)(void *, const char *, const struct stat *, off_t)

/* Connecting. A null server takes the environment's. Of several calls of chfs_init each wants a chfs_term of its own,
 * and the last one disconnects. chfs_size is the number of servers. */
int chfs_init(const char *server);
int chfs_initialized(void);
int chfs_term(void);
int chfs_term_without_sync(void);
int chfs_size(void);
const char *chfs_version(void);

/* Settings. The chunk size (bytes, 0 for the cluster's) counts for files made afterwards, the time-out (milliseconds
 * that a server may be silent) for a later chfs_init; the others tune what does not exist here, and do nothing. */
void chfs_set_chunk_size(int chunk_size);
void chfs_set_buf_size(int buf_size);
void chfs_set_async_access(int enable);
void chfs_set_rdma_thresh(size_t thresh);
void chfs_set_rpc_timeout_msec(int timeout);
void chfs_set_node_list_cache_timeout(int timeout);
void chfs_set_stagein_buf_size(int buf_size);

/* Files. Of flags, O_EXCL, O_TRUNC and O_APPEND count; everything else is let through. Files are open for reading and
 * writing whatever the access mode. A create without O_TRUNC keeps what is there. The mode is taken as it is. */
int chfs_create(const char *path, int32_t flags, mode_t mode);
int chfs_create_chunk_size(const char *path, int32_t flags, mode_t mode, int chunk_size);
int chfs_open(const char *path, int32_t flags);
int chfs_close(int fd);
ssize_t chfs_pwrite(int fd, const void *buf, size_t size, off_t offset);
ssize_t chfs_write(int fd, const void *buf, size_t size);
ssize_t chfs_pread(int fd, void *buf, size_t size, off_t offset);
ssize_t chfs_read(int fd, void *buf, size_t size);
off_t chfs_seek(int fd, off_t off, int whence);
int chfs_fsync(int fd);

/* Names. chfs_stat does not follow a symbolic link at the end of the path. chfs_readlink returns the target's size and
 * puts a NUL behind it where there is room. */
int chfs_truncate(const char *path, off_t len);
int chfs_unlink(const char *path);
int chfs_mkdir(const char *path, mode_t mode);
int chfs_rmdir(const char *path);
int chfs_stat(const char *path, struct stat *st);
int chfs_symlink(const char *target, const char *path);
int chfs_readlink(const char *path, char *buf, size_t size);

/* Listings: of all servers, or of one of them (0 to chfs_size() - 1) so that processes can share the work. */
int chfs_readdir(const char *path, void *buf, TABANE_CHFS_FILLER(filler));
int chfs_readdir_index(const char *path, int index, void *buf, TABANE_CHFS_FILLER(filler));

/* Flushing has nothing to do: a write that has returned is with the servers. Staging in from a backing store is not
 * supported: ENOTSUP. */
void chfs_sync(void);
int chfs_stagein(const char *path);

#ifdef __cplusplus
}
#endif

#endif
