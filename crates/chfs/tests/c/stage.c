/* What was staged in is read though it is not behind any more; what was not is not. */
#include <chfs.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

enum { SIZE = 400000 };

static char bytes[SIZE], text[SIZE];

static const char *behind(const char *path) {
    static char name[4096];
    snprintf(name, sizeof(name), "%s/%s", getenv("BACKING"), path);
    return name;
}

int main(void) {
    CHECK(chfs_init(NULL) == 0);
    for (int i = 0; i < SIZE; i++) text[i] = (char)(i / 7 + i);
    CHECK(mkdir(behind("d"), 0755) == 0 && symlink("staged", behind("d/link")) == 0);
    const char *files[] = {"d/staged", "d/other"};
    for (int i = 0; i < 2; i++) {
        FILE *file = fopen(behind(files[i]), "w");
        CHECK(file != NULL && fwrite(text, 1, SIZE, file) == SIZE && fclose(file) == 0);
    }
    CHECK(chfs_stagein("/d") == 0 && chfs_stagein("/d/link") == 0);
    CHECK(chfs_stagein("d/staged") == 0 && chfs_stagein("/d/staged") == 0);
    FAILS(chfs_stagein("/d/none"), ENOENT);
    int other = chfs_open("/d/other", O_RDONLY);
    CHECK(other >= 0 && unlink(behind("d/staged")) == 0 && unlink(behind("d/other")) == 0);
    int fd = chfs_open("/d/staged", O_RDONLY);
    CHECK(fd >= 0 && chfs_pread(fd, bytes, SIZE, 0) == SIZE && memcmp(bytes, text, SIZE) == 0);
    CHECK(chfs_close(fd) == 0);
    CHECK(chfs_pread(other, bytes, SIZE, 0) == -1);
    CHECK(chfs_close(other) == 0);
    CHECK(chfs_term() == 0);
    return 0;
}
