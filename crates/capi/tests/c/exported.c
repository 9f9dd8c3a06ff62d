/* Open files that are handed to other processes as bytes. */
#include <fcntl.h>
#include <sys/wait.h>
#include <tabane.h>
#include <unistd.h>

#include "check.h"

static char bytes[128];
static ssize_t size;

/* What the importer does, in a process of its own. */
static void import_and_use(void) {
    CHECK(tabane_import(NULL, size) == -1 && errno == EINVAL);
    CHECK(tabane_import(bytes, size - 1) == -1 && errno == EINVAL);
    CHECK(tabane_import("no exported file at all", 23) == -1 && errno == EINVAL);
    int own = tabane_import(bytes, size);
    CHECK(own >= 0 && tabane_lseek(own, 0, SEEK_CUR) == 0);
    char read[7];
    CHECK(tabane_read(own, read, 7) == 7 && memcmp(read, "0123456", 7) == 0);
    CHECK(tabane_pwrite(own, "importer", 8, 20000) == 8);
    CHECK(tabane_close(own) == 0);
}

static void in_child(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        import_and_use();
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void) {
    CHECK(tabane_init(NULL) == 0);
    int descriptor = tabane_open("/exported", O_RDWR | O_CREAT, 0644);
    CHECK(descriptor >= 0 && tabane_pwrite(descriptor, "0123456789", 10, 0) == 10);
    CHECK(tabane_lseek(descriptor, 5, SEEK_SET) == 5);
    CHECK(tabane_export(1 << 20, bytes, sizeof bytes) == -1 && errno == EBADF);
    CHECK(tabane_export(descriptor, bytes, 10) == -1 && errno == ERANGE);
    size = tabane_export(descriptor, NULL, 0);
    CHECK(size > 10 && size <= (ssize_t)sizeof bytes);
    CHECK(tabane_export(descriptor, bytes, sizeof bytes) == size);
    in_child();
    CHECK(tabane_unlink("/exported") == 0);
    in_child();
    char read[8];
    struct stat st;
    CHECK(tabane_pread(descriptor, read, 8, 20000) == 8 && memcmp(read, "importer", 8) == 0);
    CHECK(tabane_fstat(descriptor, &st) == 0 && st.st_size == 20008 && st.st_nlink == 0);
    /* Who exports for reading gives no more. */
    int reader = tabane_open("/read", O_WRONLY | O_CREAT, 0644);
    CHECK(reader >= 0 && tabane_close(reader) == 0);
    reader = tabane_open("/read", O_RDONLY, 0);
    CHECK(reader >= 0 && tabane_export(reader, bytes, sizeof bytes) == size);
    int imported = tabane_import(bytes, size);
    CHECK(imported >= 0 && imported != reader);
    CHECK(tabane_pwrite(imported, "x", 1, 0) == -1 && errno == EBADF && tabane_close(imported) == 0);
    CHECK(tabane_pread(reader, read, 1, 0) == 0 && tabane_close(reader) == 0);
    int directory = tabane_open("/", O_RDONLY | O_DIRECTORY, 0);
    CHECK(directory >= 0 && tabane_export(directory, bytes, sizeof bytes) == -1 && errno == EISDIR);
    CHECK(tabane_close(directory) == 0);
    /* When the exporter has closed it, a file without a name is gone for whoever imported it. */
    CHECK(tabane_export(descriptor, bytes, sizeof bytes) == size);
    imported = tabane_import(bytes, size);
    CHECK(imported >= 0 && tabane_close(descriptor) == 0);
    CHECK(tabane_term() == 0);
    return 0;
}
