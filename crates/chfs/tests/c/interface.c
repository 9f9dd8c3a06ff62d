/* What programs written for CHFS rely on, call by call. */
#include <chfs.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

#define SIZE 100000
/* The flag values that IOR passes as they are. */
#define IOR_RDONLY 0x01
#define IOR_WRONLY 0x02
#define IOR_RDWR 0x04
#define IOR_CREAT 0x10
#define IOR_TRUNC 0x20

static char data[SIZE], place[SIZE + 100];

static void files(void) {
    struct stat st;
    for (int i = 0; i < SIZE; i++)
        data[i] = (char)(i * 11 % 251);
    int fd = chfs_create("/d/f", IOR_CREAT | IOR_TRUNC | IOR_WRONLY, 0664);
    CHECK(fd >= 0);
    CHECK(chfs_pwrite(fd, data, SIZE, 0) == SIZE);
    CHECK(chfs_pread(fd, place, SIZE + 100, 0) == SIZE && memcmp(place, data, SIZE) == 0);
    CHECK(chfs_fsync(fd) == 0 && chfs_close(fd) == 0);
    CHECK(chfs_stat("d/f", &st) == 0 && st.st_size == SIZE && st.st_mode == (S_IFREG | 0664));
    CHECK(st.st_blksize == 5000);

    /* A create without O_TRUNC keeps what is there. */
    fd = chfs_create("d/f", O_RDWR, 0600);
    CHECK(fd >= 0 && chfs_pread(fd, place, SIZE, 0) == SIZE && memcmp(place, data, SIZE) == 0 && chfs_close(fd) == 0);
    FAILS(chfs_create("/d/f", O_CREAT | O_EXCL | O_RDWR, 0600), EEXIST);

    /* The access mode is ignored: IOR_RDONLY reads as O_WRONLY. */
    fd = chfs_open("/d/f", IOR_RDONLY);
    CHECK(fd >= 0 && chfs_read(fd, place, 1000) == 1000 && memcmp(place, data, 1000) == 0);
    CHECK(chfs_seek(fd, 0, SEEK_CUR) == 1000 && chfs_seek(fd, -10, SEEK_END) == SIZE - 10);
    CHECK(chfs_read(fd, place, 1000) == 10 && chfs_read(fd, place, 1000) == 0);
    CHECK(chfs_seek(fd, 50, SEEK_SET) == 50 && chfs_write(fd, "hello", 5) == 5);
    FAILS(chfs_seek(fd, -1, SEEK_SET), EINVAL);
    CHECK(chfs_pread(fd, place, 5, 50) == 5 && memcmp(place, "hello", 5) == 0 && chfs_close(fd) == 0);
    CHECK((fd = chfs_open("/d/f", IOR_RDWR)) >= 0 && chfs_close(fd) == 0);
    FAILS(chfs_close(fd), EBADF);
    FAILS(chfs_open("/d/missing", O_RDWR | O_CREAT), ENOENT);
    FAILS(chfs_open("/d", O_RDONLY), EISDIR);

    /* Permission bits do not keep the owner's program out. */
    CHECK((fd = chfs_create("/d/sealed", O_EXCL, 0000)) >= 0 && chfs_close(fd) == 0);
    CHECK((fd = chfs_open("/d/sealed", O_RDWR)) >= 0 && chfs_write(fd, "x", 1) == 1 && chfs_close(fd) == 0);

    fd = chfs_open("/d/sealed", O_APPEND);
    CHECK(fd >= 0 && chfs_write(fd, "yz", 2) == 2 && chfs_pread(fd, place, 10, 0) == 3 && memcmp(place, "xyz", 3) == 0);
    CHECK(chfs_close(fd) == 0);
    CHECK((fd = chfs_open("/d/sealed", O_TRUNC)) >= 0 && chfs_close(fd) == 0);
    CHECK(chfs_stat("/d/sealed", &st) == 0 && st.st_size == 0);
    CHECK(chfs_truncate("/d/sealed", 70000) == 0 && chfs_stat("/d/sealed", &st) == 0 && st.st_size == 70000);
    FAILS(chfs_truncate("/d/sealed", -1), EINVAL);

    CHECK((fd = chfs_create_chunk_size("/d/own", 0, 0644, 47008)) >= 0 && chfs_close(fd) == 0);
    CHECK(chfs_stat("/d/own", &st) == 0 && st.st_blksize == 47008);
    FAILS(chfs_create_chunk_size("/d/own", 0, 0644, 0), EINVAL);
    chfs_set_chunk_size(8192);
    CHECK((fd = chfs_create("/d/set", 0, 0644)) >= 0 && chfs_close(fd) == 0);
    CHECK(chfs_stat("/d/set", &st) == 0 && st.st_blksize == 8192);
    chfs_set_chunk_size(1);
    FAILS(chfs_create("/d/impossible", 0, 0644), EINVAL);
    chfs_set_chunk_size(0);
    CHECK((fd = chfs_create("/d/default", 0, 0644)) >= 0 && chfs_close(fd) == 0);
    CHECK(chfs_stat("/d/default", &st) == 0 && st.st_blksize == 65536);
}

static void links(void) {
    struct stat st;
    CHECK(chfs_symlink("f", "/d/link") == 0);
    FAILS(chfs_symlink("f", "d/link"), EEXIST);
    CHECK(chfs_stat("/d/link", &st) == 0 && S_ISLNK(st.st_mode) && st.st_size == 1);
    memset(place, 'x', 10);
    CHECK(chfs_readlink("/d/link", place, 10) == 1 && strcmp(place, "f") == 0);
    CHECK(chfs_readlink("/d/link", place, 1) == 1);
    FAILS(chfs_readlink("/d/f", place, 10), EINVAL);
    FAILS(chfs_readlink("/d/missing", place, 10), ENOENT);
}

struct found {
    int count;
    long size;
    int stop;
};

static int found(void *buf, const char *name, const struct stat *st, off_t offset) {
    struct found *found = buf;
    CHECK(strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && st != NULL && offset == 0);
    found->count++;
    found->size += S_ISREG(st->st_mode) ? st->st_size : 0;
    return found->stop;
}

static void listings(void) {
    char name[64];
    CHECK(chfs_mkdir("l", 0700) == 0 && chfs_mkdir("/l/sub", 0700) == 0);
    for (int i = 0; i < 200; i++) {
        snprintf(name, sizeof(name), "/l/%d", i);
        int fd = chfs_create(name, 0, 0644);
        CHECK(fd >= 0 && chfs_pwrite(fd, data, i * 100, 0) == i * 100 && chfs_close(fd) == 0);
    }
    struct found all = {0}, shares = {0}, first = {.stop = 1};
    CHECK(chfs_readdir("/l", &all, found) == 0 && all.count == 201 && all.size == 199 * 200 / 2 * 100);
    for (int index = 0; index < chfs_size(); index++)
        CHECK(chfs_readdir_index("l/", index, &shares, found) == 0);
    CHECK(shares.count == 201 && shares.size == all.size);
    CHECK(chfs_readdir_index("/l", chfs_size(), &shares, found) == 0 && shares.count == 201);
    FAILS(chfs_readdir_index("/l", -1, &shares, found), EINVAL);
    CHECK(chfs_readdir("/l", &first, found) == 0 && first.count == 1);
    FAILS(chfs_readdir("/missing", &all, found), ENOENT);
    struct found root = {0};
    CHECK(chfs_readdir("", &root, found) == 0 && root.count == 2);
    FAILS(chfs_rmdir("/l"), ENOTEMPTY);
    for (int i = 0; i < 200; i++) {
        snprintf(name, sizeof(name), "l/%d", i);
        CHECK(chfs_unlink(name) == 0);
    }
    FAILS(chfs_unlink("l/0"), ENOENT);
    CHECK(chfs_rmdir("/l/sub") == 0 && chfs_rmdir("l") == 0);
    FAILS(chfs_rmdir("/l"), ENOENT);
    FAILS(chfs_mkdir("/d", 0755), EEXIST);
}

int main(void) {
    struct stat st;
    CHECK(chfs_initialized() == 0 && chfs_init(NULL) == 0 && chfs_init("ignored when connected") == 0);
    CHECK(chfs_initialized() == 1 && chfs_size() == 3);
    CHECK(chfs_stat("/", &st) == 0 && S_ISDIR(st.st_mode) && chfs_stat("", &st) == 0 && S_ISDIR(st.st_mode));
    CHECK(chfs_mkdir("/d", 0775) == 0 && chfs_stat("/d", &st) == 0 && st.st_mode == (S_IFDIR | 0775));
    files();
    links();
    listings();
    chfs_sync();
    FAILS(chfs_stagein("/d/f"), ENOTSUP);
    FAILS(chfs_stagein("/d/none"), ENOENT);
    CHECK(chfs_term() == 0 && chfs_initialized() == 1 && chfs_stat("/d/f", &st) == 0);
    CHECK(chfs_term() == 0 && chfs_initialized() == 0 && chfs_term() == 0);
    FAILS(chfs_stat("/d/f", &st), ESHUTDOWN);
    CHECK(chfs_init(getenv("CHFS_SERVER")) == 0 && chfs_stat("/d/f", &st) == 0 && st.st_size == SIZE);
    CHECK(chfs_term() == 0);
    return 0;
}
