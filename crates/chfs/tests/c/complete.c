/* Every function of the interface, with the argument list that programs expect. */
#include <chfs.h>
#include <sys/stat.h>

#include "check.h"

typedef int filler(void *, const char *, const struct stat *, off_t);

int (*init)(const char *) = chfs_init;
int (*initialized)(void) = chfs_initialized;
int (*term)(void) = chfs_term;
int (*term_without_sync)(void) = chfs_term_without_sync;
int (*size)(void) = chfs_size;
const char *(*version)(void) = chfs_version;
void (*set_chunk_size)(int) = chfs_set_chunk_size;
void (*set_buf_size)(int) = chfs_set_buf_size;
void (*set_async_access)(int) = chfs_set_async_access;
void (*set_rdma_thresh)(size_t) = chfs_set_rdma_thresh;
void (*set_rpc_timeout_msec)(int) = chfs_set_rpc_timeout_msec;
void (*set_node_list_cache_timeout)(int) = chfs_set_node_list_cache_timeout;
int (*create)(const char *, int32_t, mode_t) = chfs_create;
int (*create_chunk_size)(const char *, int32_t, mode_t, int) = chfs_create_chunk_size;
int (*open_file)(const char *, int32_t) = chfs_open;
int (*close_file)(int) = chfs_close;
ssize_t (*pwrite_file)(int, const void *, size_t, off_t) = chfs_pwrite;
ssize_t (*write_file)(int, const void *, size_t) = chfs_write;
ssize_t (*pread_file)(int, void *, size_t, off_t) = chfs_pread;
ssize_t (*read_file)(int, void *, size_t) = chfs_read;
off_t (*seek)(int, off_t, int) = chfs_seek;
int (*fsync_file)(int) = chfs_fsync;
int (*truncate_file)(const char *, off_t) = chfs_truncate;
int (*unlink_file)(const char *) = chfs_unlink;
int (*make_directory)(const char *, mode_t) = chfs_mkdir;
int (*remove_directory)(const char *) = chfs_rmdir;
int (*stat_file)(const char *, struct stat *) = chfs_stat;
int (*list)(const char *, void *, filler *) = chfs_readdir;
int (*list_index)(const char *, int, void *, filler *) = chfs_readdir_index;
int (*make_symlink)(const char *, const char *) = chfs_symlink;
int (*read_symlink)(const char *, char *, size_t) = chfs_readlink;
void (*sync_all)(void) = chfs_sync;
void (*set_stagein_buf_size)(int) = chfs_set_stagein_buf_size;
int (*stagein)(const char *) = chfs_stagein;

int main(void) {
    /* Without a cluster nothing works, and nothing crashes. */
    struct stat st;
    CHECK(initialized() == 0);
    FAILS(init(NULL), ENOENT);
    FAILS(init("/nonexistent"), ENOENT);
    FAILS(size(), ESHUTDOWN);
    FAILS(stat_file("/", &st), ESHUTDOWN);
    FAILS(create("/x", 0, 0644), ESHUTDOWN);
    FAILS(close_file(3), ESHUTDOWN);
    CHECK(term() == 0 && version()[0] != 0);
    return 0;
}
