/* Every function of tabane.h: what it does and how it fails. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <sys/file.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <tabane.h>

#include "check.h"

#define SIZE 50000

static char data[SIZE], place[SIZE + 100];

static void files(void) {
    for (int i = 0; i < SIZE; i++)
        data[i] = (char)(i * 7 % 251);
    int fd = tabane_open("/d/file", O_RDWR | O_CREAT | O_EXCL, 0644);
    CHECK(fd >= 0);
    FAILS(tabane_open("d/file", O_RDWR | O_CREAT | O_EXCL, 0644), EEXIST);
    FAILS(tabane_open("/d/missing", O_RDONLY, 0), ENOENT);
    FAILS(tabane_open("/d", O_WRONLY, 0), EISDIR);
    FAILS(tabane_open("/d/file", O_RDONLY | O_DIRECTORY, 0), ENOTDIR);
    FAILS(tabane_open(NULL, O_RDONLY, 0), EINVAL);
    CHECK(tabane_write(fd, data, 20000) == 20000);
    CHECK(tabane_pwrite(fd, data + 20000, SIZE - 20000, 20000) == SIZE - 20000);
    CHECK(tabane_lseek(fd, 0, SEEK_CUR) == 20000);
    CHECK(tabane_lseek(fd, -10, SEEK_END) == SIZE - 10);
    CHECK(tabane_read(fd, place, 100) == 10 && memcmp(place, data + SIZE - 10, 10) == 0);
    CHECK(tabane_read(fd, place, 100) == 0);
    FAILS(tabane_lseek(fd, -1, SEEK_SET), EINVAL);
    FAILS(tabane_lseek(fd, 0, 77), EINVAL);
    CHECK(tabane_pread(fd, place, sizeof(place), 0) == SIZE && memcmp(place, data, SIZE) == 0);
    FAILS(tabane_pread(fd, place, 1, -1), EINVAL);
    FAILS(tabane_pread(fd, NULL, 1, 0), EINVAL);
    CHECK(tabane_pread(fd, NULL, 0, 0) == 0);
    CHECK(tabane_fsync(fd) == 0);

    memset(place, 0, sizeof(place));
    struct iovec parts[3] = {{place, 5000}, {NULL, 0}, {place + 5000, 30000}};
    CHECK(tabane_preadv(fd, parts, 3, 1000) == 35000 && memcmp(place, data + 1000, 35000) == 0);
    CHECK(tabane_lseek(fd, 0, SEEK_SET) == 0);
    CHECK(tabane_readv(fd, parts, 3) == 35000 && memcmp(place, data, 35000) == 0);
    CHECK(tabane_pwritev(fd, parts, 3, SIZE) == 35000);
    CHECK(tabane_writev(fd, parts, 1) == 5000 && tabane_lseek(fd, 0, SEEK_CUR) == 40000);
    FAILS(tabane_preadv(fd, parts, -1, 0), EINVAL);
    FAILS(tabane_preadv(fd, NULL, 1, 0), EINVAL);

    struct tabane_range list[3] = {{20000, 7000}, {0, 0}, {100, 28000}};
    CHECK(tabane_preadv_list(fd, list, 3, parts, 3) == 35000);
    CHECK(memcmp(place, data + 20000, 7000) == 0 && memcmp(place + 7000, data + 100, 28000) == 0);
    memcpy(place, data + 5, 35000);
    CHECK(tabane_pwritev_list(fd, list, 3, parts, 3) == 35000);
    CHECK(tabane_pread(fd, place, 28000, 100) == 28000);
    CHECK(memcmp(place, data + 7005, 19900) == 0);
    CHECK(memcmp(place + 19900, data + 5, 7000) == 0 || memcmp(place + 19900, data + 26905, 7000) == 0);
    CHECK(tabane_pwrite(fd, data, SIZE, 0) == SIZE);
    list[1] = (struct tabane_range){SIZE + 35000 - 10, 35000 - 7000 - 28000 + 1};
    FAILS(tabane_preadv_list(fd, list, 3, parts, 3), EINVAL);
    list[0].size -= 1;
    CHECK(tabane_preadv_list(fd, list, 3, parts, 3) == 35000);
    list[1].offset = SIZE + 35000;
    CHECK(tabane_preadv_list(fd, list, 3, parts, 3) == 34999);
    FAILS(tabane_preadv_list(fd, NULL, 3, parts, 3), EINVAL);
    FAILS(tabane_preadv_list(fd, list, 3, parts, -1), EINVAL);
    list[1].offset = -1;
    FAILS(tabane_pwritev_list(fd, list, 3, parts, 3), EINVAL);
    CHECK(tabane_preadv_list(fd, NULL, 0, NULL, 0) == 0);
    list[1] = (struct tabane_range){(off_t)1 << 50, 0};
    list[2].size += 1;
    CHECK(tabane_pwritev_list(fd, list, 3, parts, 3) == 35000 && tabane_preadv_list(fd, list, 3, parts, 3) == 35000);
    CHECK(tabane_pread(fd, place, 10, SIZE + 35000) == 0);
    CHECK(tabane_pwrite(fd, data, SIZE, 0) == SIZE);

    struct tabane_layout layout;
    CHECK(tabane_layout(fd, &layout) == 0 && layout.chunk_size >= 4096 && layout.run >= 1);
    CHECK(layout.servers == tabane_server_count() && layout.servers > 0 && layout.width <= layout.servers);
    int servers[4] = {-1, -1, -1, -1};
    off_t chunk = (off_t)layout.chunk_size;
    CHECK(tabane_locate(fd, chunk - 1, (size_t)chunk + 2, servers, 2) == 3);
    CHECK(servers[0] == layout.first && servers[1] >= 0 && servers[1] < layout.servers && servers[2] == -1);
    CHECK(layout.is_hashed || servers[1] == (layout.first + 1 / layout.run % layout.width) % layout.servers);
    CHECK(tabane_locate(fd, 0, 0, NULL, 0) == 0 && tabane_locate(fd, 0, 1, NULL, 0) == 1);
    FAILS(tabane_locate(fd, 0, 1, NULL, 1), EINVAL);
    FAILS(tabane_locate(fd, -1, 1, servers, 1), EINVAL);
    FAILS(tabane_locate(fd, INT64_MAX, 1, servers, 1), EFBIG);
    FAILS(tabane_layout(fd, NULL), EINVAL);
    FAILS(tabane_layout(-1, &layout), EBADF);
    CHECK(tabane_is_local(layout.first) == 1);
    FAILS(tabane_is_local(layout.servers), EINVAL);
    FAILS(tabane_is_local(-1), EINVAL);
    char below[8];
    FAILS(tabane_path_below_mount("/dev/null", below, sizeof below), EXDEV);
    FAILS(tabane_path_below_mount(NULL, below, sizeof below), EINVAL);
    FAILS(tabane_path_below_mount("/dev/null", NULL, 1), EINVAL);

    struct stat st;
    CHECK(tabane_fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == SIZE + 35000);
    CHECK((st.st_mode & 0777) == 0644 && st.st_nlink == 1 && st.st_blksize == 4096);
    CHECK(tabane_ftruncate(fd, 12345) == 0);
    CHECK(tabane_stat("/d/file", &st) == 0 && st.st_size == 12345);
    CHECK(tabane_pread(fd, place, sizeof(place), 12000) == 345);
    CHECK(tabane_truncate("/d/file", 0) == 0);
    CHECK(tabane_pread(fd, place, sizeof(place), 0) == 0);
    FAILS(tabane_truncate("/d/file", -1), EINVAL);
    FAILS(tabane_truncate("/d", 0), EISDIR);
    CHECK(tabane_close(fd) == 0);
    FAILS(tabane_close(fd), EBADF);
    FAILS(tabane_read(fd, place, 1), EBADF);
    FAILS(tabane_fsync(-1), EBADF);

    /* A file that is spread as the caller wants it; what is there already stays as it is. */
    struct tabane_layout wanted = {.chunk_size = 8192, .width = 1, .run = 3, .first = layout.servers - 1};
    for (int round = 0; round < 2; round++) {
        fd = tabane_open_layout("/d/narrow", O_RDWR | O_CREAT, 0600, &wanted);
        CHECK(fd >= 0 && tabane_layout(fd, &layout) == 0 && layout.chunk_size == 8192);
        CHECK(layout.is_hashed || (layout.width == 1 && layout.run == 3 && layout.first == layout.servers - 1));
        CHECK(tabane_locate(fd, 0, 4 * 8192, servers, 4) == 4);
        for (int i = 0; i < 4 && !layout.is_hashed; i++)
            CHECK(servers[i] == layout.first);
        CHECK(tabane_pwrite(fd, data, 30000, 5000) == 30000);
        CHECK(tabane_pread(fd, place, 30000, 5000) == 30000 && !memcmp(place, data, 30000));
        CHECK(tabane_close(fd) == 0);
        wanted.chunk_size = 16384, wanted.width = wanted.run = 2, wanted.first = -1;
    }
    wanted.width = 1 << 30;
    fd = tabane_open_layout("/d/wide", O_RDWR | O_CREAT, 0600, &wanted);
    CHECK(fd >= 0 && tabane_layout(fd, &layout) == 0 && layout.width == layout.servers && tabane_close(fd) == 0);
    CHECK(tabane_unlink("/d/narrow") == 0 && tabane_unlink("/d/wide") == 0);
    wanted.first = layout.servers;
    FAILS(tabane_open_layout("/d/none", O_RDWR | O_CREAT, 0600, &wanted), EINVAL);
    wanted.first = -1, wanted.width = -1;
    FAILS(tabane_open_layout("/d/none", O_RDWR | O_CREAT, 0600, &wanted), EINVAL);
    wanted.width = 0, wanted.chunk_size = 100;
    FAILS(tabane_open_layout("/d/none", O_RDWR | O_CREAT, 0600, &wanted), EINVAL);

    fd = tabane_open("/d/log", O_WRONLY | O_CREAT | O_APPEND, 0600);
    int other = tabane_open("/d/log", O_WRONLY | O_APPEND, 0);
    CHECK(fd >= 0 && other >= 0 && fd != other);
    CHECK(tabane_write(fd, "one ", 4) == 4 && tabane_write(other, "two ", 4) == 4 && tabane_write(fd, "three", 5) == 5);
    FAILS(tabane_read(fd, place, 1), EBADF);
    CHECK(tabane_close(fd) == 0 && tabane_close(other) == 0);
    fd = tabane_open("/d/log", O_RDONLY, 0);
    CHECK(tabane_read(fd, place, 100) == 13 && memcmp(place, "one two three", 13) == 0);
    FAILS(tabane_write(fd, "x", 1), EBADF);
    FAILS(tabane_ftruncate(fd, 0), EINVAL);
    CHECK(tabane_close(fd) == 0);
    fd = tabane_creat("/d/log", 0600);
    CHECK(fd >= 0 && tabane_fstat(fd, &st) == 0 && st.st_size == 0 && tabane_close(fd) == 0);
}

/* More ranges than one message takes, from and to as many buffers as a call takes. */
static void many_ranges(void) {
    enum { COUNT = 5120, STEP = 16, PART = 7, BUFFERS = 1024, BUFFER = COUNT / BUFFERS * PART };
    static struct tabane_range ranges[COUNT];
    static struct iovec parts[BUFFERS];
    static char from[COUNT * PART], into[COUNT * PART], whole[COUNT * STEP];
    for (int i = 0; i < COUNT; i++)
        ranges[i] = (struct tabane_range){(off_t)(COUNT - 1 - i) * STEP, PART};
    for (int i = 0; i < BUFFERS; i++)
        parts[i] = (struct iovec){from + i * BUFFER, BUFFER};
    for (int i = 0; i < COUNT * PART; i++)
        from[i] = (char)(i * 11 % 253 + 1);
    int fd = tabane_open("/d/ranges", O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && tabane_pwritev_list(fd, ranges, COUNT, parts, BUFFERS) == COUNT * PART);
    CHECK(tabane_pread(fd, whole, sizeof(whole), 0) == (COUNT - 1) * STEP + PART);
    for (int i = 0; i < COUNT; i++) {
        CHECK(memcmp(whole + (COUNT - 1 - i) * STEP, from + i * PART, PART) == 0);
        CHECK(whole[(COUNT - 1 - i) * STEP + PART] == 0);
    }
    for (int i = 0; i < BUFFERS; i++)
        parts[i].iov_base = into + i * BUFFER;
    CHECK(tabane_preadv_list(fd, ranges, COUNT, parts, BUFFERS) == COUNT * PART);
    CHECK(memcmp(into, from, sizeof(from)) == 0);
    CHECK(tabane_close(fd) == 0 && tabane_unlink("/d/ranges") == 0);
}

static void attributes(void) {
    struct stat st;
    CHECK(tabane_symlink("file", "/d/link") == 0);
    FAILS(tabane_symlink("file", "/d/link"), EEXIST);
    CHECK(tabane_lstat("/d/link", &st) == 0 && S_ISLNK(st.st_mode) && st.st_size == 4);
    CHECK(tabane_stat("/d/link", &st) == 0 && S_ISREG(st.st_mode));
    memset(place, 'x', 10);
    CHECK(tabane_readlink("/d/link", place, 100) == 4 && memcmp(place, "filex", 5) == 0);
    CHECK(tabane_readlink("/d/link", place, 2) == 2);
    FAILS(tabane_readlink("/d/file", place, 100), EINVAL);

    CHECK(tabane_link("/d/file", "/d/second") == 0 && tabane_stat("/d/second", &st) == 0 && st.st_nlink == 2);
    FAILS(tabane_link("/d/file", "/d/second"), EEXIST);
    FAILS(tabane_link("/d", "/e"), EPERM);
    FAILS(tabane_rename2("/d/second", "/d/link", 1), EEXIST);
    CHECK(tabane_rename2("/d/second", "/d/link", 2) == 0 && tabane_lstat("/d/link", &st) == 0 && S_ISREG(st.st_mode));
    CHECK(tabane_rename("/d/second", "/d/link") == 0 && tabane_lstat("/d/link", &st) == 0 && S_ISLNK(st.st_mode));
    FAILS(tabane_rename("/d/second", "/d/third"), ENOENT);
    CHECK(tabane_rename("/d", "/e") == 0 && tabane_stat("/e/file", &st) == 0);
    FAILS(tabane_stat("/d/file", &st), ENOENT);
    FAILS(tabane_rename("/e", "/e/below"), EINVAL);
    CHECK(tabane_rename2("/e", "/d", 1) == 0 && tabane_stat("/d/file", &st) == 0);
    FAILS(tabane_rename2("/d/file", "/d/third", 3), EINVAL);
    CHECK(tabane_stat("/d/file", &st) == 0 && st.st_nlink == 1);

    CHECK(tabane_chmod("/d/file", 0751) == 0 && tabane_stat("/d/file", &st) == 0 && (st.st_mode & 07777) == 0751);
    CHECK(tabane_chown("/d/file", -1, -1) == 0 && tabane_lchown("/d/link", -1, -1) == 0);
    struct timespec times[2] = {{1000, 1}, {-2, 999999999}};
    CHECK(tabane_utimens("/d/file", times, 0) == 0 && tabane_stat("/d/file", &st) == 0);
    CHECK(st.st_atim.tv_sec == 1000 && st.st_atim.tv_nsec == 1);
    CHECK(st.st_mtim.tv_sec == -2 && st.st_mtim.tv_nsec == 999999999);
    times[0].tv_nsec = UTIME_OMIT;
    times[1].tv_nsec = UTIME_NOW;
    int fd = tabane_open("/d/file", O_RDWR, 0);
    CHECK(tabane_futimens(fd, times) == 0 && tabane_fstat(fd, &st) == 0);
    CHECK(st.st_atim.tv_sec == 1000 && st.st_mtim.tv_sec > 1000000000);
    CHECK(tabane_fchmod(fd, 0600) == 0 && tabane_fchown(fd, -1, -1) == 0 && tabane_close(fd) == 0);
    times[1].tv_nsec = 1000000000;
    FAILS(tabane_utimens("/d/file", times, 0), EINVAL);
    FAILS(tabane_utimens("/d/file", NULL, 1), EINVAL);
    CHECK(tabane_utimens("/d/link", NULL, AT_SYMLINK_NOFOLLOW) == 0);
    FAILS(tabane_stat("/d/missing", &st), ENOENT);
    CHECK(strstr(tabane_error_message(), "/d/missing") != NULL);
    CHECK(strcmp(tabane_strerror(ENOENT), strerror(ENOENT)) == 0);
    FAILS(tabane_stat("/d/file/x", &st), ENOTDIR);
    FAILS(tabane_stat("/d/file", NULL), EINVAL);

    struct statvfs space;
    CHECK(tabane_statvfs("/", &space) == 0 && space.f_namemax == 255 && space.f_blocks >= space.f_bfree);
    CHECK(space.f_bfree > 0 && space.f_frsize == 4096);
    FAILS(tabane_statvfs("/missing", &space), ENOENT);
}

struct found_context {
    int count, directories;
};

static int count_found(void *context, const char *path, unsigned char kind) {
    struct found_context *found = context;
    CHECK(path[0] == '/');
    found->count++;
    found->directories += kind == DT_DIR;
    return found->count == 1000;
}

/* Finds among `count` files, ten of which are large. */
static void search(const char *directory, int count) {
    struct tabane_search search;
    struct found_context found = {0, 0};
    char below[64];
    snprintf(below, sizeof(below), "%s/below", directory);
    CHECK(tabane_mkdir(below, 0700) == 0);
    tabane_search_init(&search);
    CHECK(tabane_find(directory, &search, &found, count_found) == 0);
    CHECK(found.count == count + 1 && found.directories == 1);
    CHECK(tabane_find_count(directory, &search) == count + 1);
    int shares = 0;
    for (search.server = 0; search.server < tabane_server_count(); search.server++)
        shares += tabane_find_count(directory, &search);
    CHECK(shares == count + 1);
    search.server = -1;
    search.kind = DT_REG;
    search.size_min = SIZE;
    CHECK(tabane_find_count(directory, &search) == 10);
    search.size_max = SIZE - 1;
    CHECK(tabane_find_count(directory, &search) == 0);
    search.size_min = 0;
    CHECK(tabane_find_count(directory, &search) == count - 10);
    search.name = "e29*";
    CHECK(tabane_find_count(directory, &search) == 11);
    search.uid = geteuid() + 1;
    CHECK(tabane_find_count(directory, &search) == 0);
    search.uid = geteuid();
    search.modified_after.tv_nsec = 0;
    CHECK(tabane_find_count(directory, &search) == 11);
    search.modified_until.tv_nsec = 0;
    CHECK(tabane_find_count(directory, &search) == 0);
    tabane_search_init(&search);
    search.depth_max = 0;
    CHECK(tabane_find_count(directory, &search) == 0);
    search.depth_max = 1;
    search.mode = 0700;
    CHECK(tabane_find_count(directory, &search) == 1);
    FAILS(tabane_find("/missing", &search, &found, count_found), ENOENT);
    FAILS(tabane_find(directory, NULL, &found, count_found), EINVAL);
    FAILS(tabane_find(directory, &search, &found, NULL), EINVAL);
    search.server = 99;
    FAILS(tabane_find_count(directory, &search), EINVAL);
    CHECK(tabane_rmdir(below) == 0);
}

static int count_entry(void *context, const char *name, const struct stat *st, off_t offset) {
    CHECK(name[0] == 'e' && offset == 0 && S_ISREG(st->st_mode));
    /* Ten of them have many chunks, so that their sizes have to be asked for. */
    CHECK(st->st_size == (atoi(name + 1) < 10 ? SIZE : 1));
    ++*(int *)context;
    return 0;
}

static int stop_at_once(void *context, const char *name, const struct stat *st, off_t offset) {
    (void)name, (void)st, (void)offset;
    ++*(int *)context;
    return 1;
}

static void directories(void) {
    enum { COUNT = 300 };
    char name[64];
    CHECK(tabane_mkdir("/many", 0755) == 0);
    FAILS(tabane_mkdir("/many", 0755), EEXIST);
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof(name), "/many/e%d", i);
        int fd = tabane_creat(name, 0600);
        int size = i < 10 ? SIZE : 1;
        CHECK(fd >= 0 && tabane_write(fd, data, size) == size && tabane_close(fd) == 0);
    }
    struct tabane_directory *directory = tabane_opendir("/many");
    CHECK(directory != NULL);
    for (int round = 0; round < 2; round++) {
        static char seen[COUNT];
        memset(seen, 0, sizeof(seen));
        int dots = 0, total = 0;
        struct dirent *entry;
        errno = 0;
        while ((entry = tabane_readdir(directory)) != NULL) {
            if (entry->d_name[0] == '.') {
                CHECK(entry->d_type == DT_DIR);
                dots++;
                continue;
            }
            int number = atoi(entry->d_name + 1);
            CHECK(entry->d_type == DT_REG && entry->d_ino != 0 && !seen[number]);
            seen[number] = 1;
            total++;
        }
        CHECK(errno == 0 && dots == 2 && total == COUNT);
        tabane_rewinddir(directory);
    }
    CHECK(tabane_closedir(directory) == 0);
    FAILS(tabane_closedir(NULL), EBADF);
    CHECK(tabane_opendir("/missing") == NULL && errno == ENOENT);
    CHECK(tabane_opendir("/d/file") == NULL && errno == ENOTDIR);

    int total = 0, share = 0;
    for (int server = 0; server < tabane_server_count(); server++)
        CHECK(tabane_readdir_index("/many", server, &total, count_entry) == 0);
    CHECK(total == COUNT);
    CHECK(tabane_readdir_index("/many", 0, &share, stop_at_once) == 0 && share == 1);
    FAILS(tabane_readdir_index("/many", 99, &share, stop_at_once), EINVAL);
    FAILS(tabane_readdir_index("/many", -1, &share, stop_at_once), EINVAL);
    FAILS(tabane_readdir_index("/many", 0, &share, NULL), EINVAL);

    search("/many", COUNT);
    FAILS(tabane_rmdir("/many"), ENOTEMPTY);
    FAILS(tabane_unlink("/many"), EISDIR);
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof(name), "many/e%d", i);
        CHECK(tabane_unlink(name) == 0);
    }
    FAILS(tabane_unlink("/many/e0"), ENOENT);
    CHECK(tabane_rmdir("/many") == 0);
    FAILS(tabane_rmdir("/many"), ENOENT);
    FAILS(tabane_rmdir("/d/file"), ENOTDIR);
    FAILS(tabane_rmdir("/"), EBUSY);
}

static void extended(void) {
    char place[100];
    int fd = tabane_open("/d/file", O_RDWR, 0);
    FAILS(tabane_getxattr("/d/file", "user.a", place, 100), ENODATA);
    CHECK(tabane_listxattr("/d/file", place, 100) == 0);
    CHECK(tabane_setxattr("/d/file", "user.a", "value", 5, 0) == 0);
    FAILS(tabane_setxattr("/d/file", "user.a", "value", 5, XATTR_CREATE), EEXIST);
    FAILS(tabane_fsetxattr(fd, "user.b", "", 0, XATTR_REPLACE), ENODATA);
    CHECK(tabane_fsetxattr(fd, "user.b", "", 0, XATTR_CREATE) == 0);
    FAILS(tabane_setxattr("/d/file", "user.b", "", 0, 3), EINVAL);
    CHECK(tabane_getxattr("/d/file", "user.a", place, 100) == 5 && memcmp(place, "value", 5) == 0);
    CHECK(tabane_getxattr("/d/file", "user.a", NULL, 0) == 5 && tabane_fgetxattr(fd, "user.b", place, 1) == 0);
    FAILS(tabane_getxattr("/d/file", "user.a", place, 4), ERANGE);
    CHECK(tabane_flistxattr(fd, place, 100) == 14 && memcmp(place, "user.a\0user.b", 14) == 0);
    CHECK(tabane_listxattr("/d/file", NULL, 0) == 14);
    FAILS(tabane_listxattr("/d/file", place, 13), ERANGE);
    FAILS(tabane_setxattr("/d/file", "other.a", "", 0, 0), EOPNOTSUPP);
    FAILS(tabane_setxattr("/d/file", "system.posix_acl_access", "", 0, 0), EOPNOTSUPP);
    FAILS(tabane_setxattr("/d/file", "user.", "", 0, 0), EINVAL);
    FAILS(tabane_setxattr("/d/file", "", "", 0, 0), ERANGE);
    FAILS(tabane_lsetxattr("/d/link", "user.a", "", 0, 0), EPERM);
    FAILS(tabane_lgetxattr("/d/link", "user.a", place, 100), ENODATA);
    CHECK(tabane_llistxattr("/d/link", place, 100) == 0);
    static char large[65537];
    memset(large, 'x', sizeof(large));
    FAILS(tabane_setxattr("/d/file", "user.large", large, 65537, 0), E2BIG);
    CHECK(tabane_setxattr("/d", "user.large", large, 65536, 0) == 0);
    FAILS(tabane_setxattr("/d", "user.more", large, 65536, 0), ENOSPC);
    static char back[65536];
    CHECK(tabane_getxattr("/d", "user.large", back, 65536) == 65536 && memcmp(back, large, 65536) == 0);
    CHECK(tabane_removexattr("/d", "user.large") == 0);
    FAILS(tabane_removexattr("/d", "user.large"), ENODATA);
    FAILS(tabane_lremovexattr("/d/link", "user.a"), EPERM);
    CHECK(tabane_fremovexattr(fd, "user.a") == 0 && tabane_removexattr("/d/file", "user.b") == 0);
    CHECK(tabane_flistxattr(fd, place, 100) == 0 && tabane_close(fd) == 0);
    FAILS(tabane_fgetxattr(fd, "user.a", place, 100), EBADF);
}

static struct flock lock_of(short type, off_t start, off_t len) {
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
}

static void locks(void) {
    int one = tabane_open("/d/file", O_RDWR, 0), two = tabane_open("/d/file", O_RDWR, 0);
    CHECK(tabane_flock(one, LOCK_SH) == 0 && tabane_flock(two, LOCK_SH | LOCK_NB) == 0);
    FAILS(tabane_flock(one, LOCK_EX | LOCK_NB), EWOULDBLOCK);
    CHECK(tabane_flock(two, LOCK_UN) == 0 && tabane_flock(one, LOCK_EX) == 0);
    FAILS(tabane_flock(two, LOCK_SH | LOCK_NB), EWOULDBLOCK);
    FAILS(tabane_flock(two, 77), EINVAL);

    struct flock lock = lock_of(F_WRLCK, 10, 10);
    CHECK(tabane_fcntl_lock(one, F_OFD_SETLK, &lock) == 0);
    FAILS(tabane_fcntl_lock(two, F_OFD_SETLK, &lock), EAGAIN);
    lock = lock_of(F_UNLCK, 12, 2);
    CHECK(tabane_fcntl_lock(one, F_OFD_SETLK, &lock) == 0);
    lock = lock_of(F_RDLCK, 12, 0);
    CHECK(tabane_fcntl_lock(two, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_WRLCK && lock.l_pid == -1);
    CHECK(lock.l_start == 14 && lock.l_len == 6);
    lock = lock_of(F_RDLCK, 12, 2);
    CHECK(tabane_fcntl_lock(two, F_OFD_SETLKW, &lock) == 0);
    lock = lock_of(F_RDLCK, 100, -10);
    CHECK(tabane_fcntl_lock(one, F_SETLKW, &lock) == 0 && tabane_fcntl_lock(two, F_SETLK, &lock) == 0);
    lock = lock_of(F_WRLCK, 0, 0);
    lock.l_start = 80;
    CHECK(tabane_fcntl_lock(two, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_RDLCK && lock.l_pid == getpid());
    CHECK(lock.l_start == 90 && lock.l_len == 10);
    lock = lock_of(F_RDLCK, 5, -6);
    FAILS(tabane_fcntl_lock(one, F_SETLK, &lock), EINVAL);
    lock = lock_of(F_RDLCK, 5, 1);
    FAILS(tabane_fcntl_lock(one, F_GETFD, &lock), EINVAL);
    FAILS(tabane_fcntl_lock(one, F_SETLK, NULL), EINVAL);

    int reader = tabane_open("/d/file", O_RDONLY, 0);
    lock = lock_of(F_WRLCK, 200, 1);
    FAILS(tabane_fcntl_lock(reader, F_SETLK, &lock), EBADF);
    /* Closing any descriptor of the file releases what the process has locked; what another one owns stays. */
    CHECK(tabane_close(reader) == 0);
    lock = lock_of(F_WRLCK, 90, 10);
    CHECK(tabane_fcntl_lock(two, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK);
    CHECK(tabane_close(one) == 0 && tabane_flock(two, LOCK_EX | LOCK_NB) == 0);
    lock = lock_of(F_WRLCK, 0, 0);
    CHECK(tabane_fcntl_lock(two, F_OFD_SETLK, &lock) == 0 && tabane_close(two) == 0);
    FAILS(tabane_flock(two, LOCK_EX), EBADF);
}

/* Files that lose their name while they are open, and files that never had one. */
static void nameless(void) {
    struct stat st;
    char buffer[8];
    int gone = tabane_open("/d/gone", O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(gone >= 0 && tabane_pwrite(gone, "gone", 4, 0) == 4 && tabane_unlink("/d/gone") == 0);
    FAILS(tabane_stat("/d/gone", &st), ENOENT);
    CHECK(tabane_fstat(gone, &st) == 0 && st.st_nlink == 0 && st.st_size == 4);
    CHECK(tabane_pwrite(gone, "!", 1, 4) == 1 && tabane_pread(gone, buffer, 8, 0) == 5);
    CHECK(tabane_ftruncate(gone, 2) == 0 && tabane_fstat(gone, &st) == 0 && st.st_size == 2);
    FAILS(tabane_link_open(gone, "/d/again"), ENOENT);
    CHECK(tabane_close(gone) == 0);
    int made = tabane_open("/d", O_TMPFILE | O_RDWR, 0640);
    CHECK(made >= 0 && tabane_write(made, "made", 4) == 4);
    CHECK(tabane_fstat(made, &st) == 0 && st.st_nlink == 0 && (st.st_mode & 07777) == 0640);
    CHECK(tabane_link_open(made, "/d/made") == 0 && tabane_close(made) == 0);
    CHECK(tabane_stat("/d/made", &st) == 0 && st.st_nlink == 1 && st.st_size == 4 && tabane_unlink("/d/made") == 0);
    int own = tabane_open("/d", O_TMPFILE | O_EXCL | O_WRONLY, 0600);
    CHECK(own >= 0);
    FAILS(tabane_link_open(own, "/d/own"), ENOENT);
    CHECK(tabane_close(own) == 0);
    FAILS(tabane_open("/d", O_TMPFILE | O_RDONLY, 0600), EINVAL);
    FAILS(tabane_open("/d/file", O_TMPFILE | O_RDWR, 0600), ENOTDIR);
    FAILS(tabane_link_open(999, "/d/own"), EBADF);
}

int main(void) {
    CHECK(tabane_initialized() == 0);
    FAILS(tabane_mkdir("/d", 0755), ESHUTDOWN);
    FAILS(tabane_term(), ESHUTDOWN);
    FAILS(tabane_init("/nonexistent"), ENOENT);
    CHECK(tabane_init(NULL) == 0 && tabane_init(NULL) == 0 && tabane_initialized() == 1);
    CHECK(tabane_server_count() == 3 && tabane_version()[0] != 0);
    CHECK(tabane_mkdir("/d", 0755) == 0);
    files();
    many_ranges();
    attributes();
    extended();
    locks();
    directories();
    nameless();
    CHECK(tabane_term() == 0 && tabane_initialized() == 0);
    CHECK(tabane_init(NULL) == 0);
    struct stat st;
    CHECK(tabane_stat("/d/file", &st) == 0 && tabane_term() == 0);
    return 0;
}
