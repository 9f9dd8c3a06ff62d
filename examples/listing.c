/*
 * A listing whose work is shared out by server, over chfs.h: the way programs written for CHFS search large directories.
 *
 *     cc listing.c -o listing $(pkg-config --cflags --libs chfs)
 *     ./listing 100
 *
 * Makes a directory of as many files as asked for, and counts on each server which of them it has.
 */
#include <chfs.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    return 1;
}

/* Gets one entry of the listing. */
static int count_file(void *counter, const char *name, const struct stat *attributes, off_t offset) {
    (void)name, (void)offset;
    if (S_ISREG(attributes->st_mode))
        ++*(int *)counter;
    return 0;
}

int main(int argc, char **argv) {
    int wanted = argc > 1 ? atoi(argv[1]) : 100;
    if (chfs_init(NULL) < 0)
        return fail("connect to the cluster");
    if (chfs_mkdir("listing", 0755) < 0 && errno != EEXIST)
        return fail("make the directory listing");
    for (int i = 0; i < wanted; i++) {
        char path[64];
        snprintf(path, sizeof path, "listing/file.%d", i);
        int descriptor = chfs_create(path, O_WRONLY, 0644);
        if (descriptor < 0 || chfs_write(descriptor, path, strlen(path)) < 0 || chfs_close(descriptor) < 0)
            return fail(path);
    }

    int total = 0;
    for (int server = 0; server < chfs_size(); server++) {
        int files = 0;
        if (chfs_readdir_index("listing", server, &files, count_file) < 0)
            return fail("read the directory listing");
        printf("server %d has %d files\n", server, files);
        total += files;
    }
    printf("%d files on %d servers\n", total, chfs_size());
    chfs_term();
    return total != wanted;
}
