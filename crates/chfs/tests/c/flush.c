/* What is made and written is behind after chfs_sync, and errno tells when something could not go. */
#include <chfs.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

static void write_whole(const char *path, const char *text) {
    int fd = chfs_create(path, O_WRONLY | O_TRUNC, S_IFREG | 0644);
    CHECK(fd >= 0 && chfs_write(fd, text, strlen(text)) == (ssize_t)strlen(text) && chfs_close(fd) == 0);
}

static void is_behind(const char *path, const char *text) {
    char name[4096], bytes[100] = "";
    snprintf(name, sizeof(name), "%s/%s", getenv("BACKING"), path);
    FILE *file = fopen(name, "r");
    CHECK(file != NULL);
    CHECK(fread(bytes, 1, sizeof(bytes) - 1, file) == strlen(text) && strcmp(bytes, text) == 0);
    fclose(file);
}

int main(void) {
    char name[4096], bytes[100] = "";
    CHECK(chfs_init(NULL) == 0);
    int fd = chfs_open("/there", O_RDONLY);
    CHECK(fd >= 0 && chfs_read(fd, bytes, sizeof(bytes)) == 5 && memcmp(bytes, "there", 5) == 0);
    CHECK(chfs_close(fd) == 0);
    CHECK(chfs_mkdir("/d", 0755) == 0);
    write_whole("/d/made", "made");
    write_whole("/there", "changed");
    snprintf(name, sizeof(name), "%s/d", getenv("BACKING"));
    CHECK(access(name, F_OK) == -1);
    errno = 0;
    chfs_sync();
    CHECK(errno != EIO);
    is_behind("d/made", "made");
    is_behind("there", "changed");

    /* Somebody else has made a file where a directory is to be. */
    snprintf(name, sizeof(name), "%s/other", getenv("BACKING"));
    FILE *file = fopen(name, "w");
    CHECK(file != NULL && fclose(file) == 0);
    CHECK(chfs_mkdir("/d/other", 0755) == 0);
    char there[4200];
    snprintf(there, sizeof(there), "%s/d/other", getenv("BACKING"));
    CHECK(rename(name, there) == 0);
    errno = 0;
    chfs_sync();
    CHECK(errno == EIO);
    CHECK(unlink(there) == 0);
    errno = 0;
    chfs_sync();
    CHECK(errno != EIO && access(there, F_OK) == 0);
    CHECK(chfs_term() == 0);
    return 0;
}
