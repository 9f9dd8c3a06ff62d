/*
 * A checkpoint of several processes in one shared file, over tabane.h.
 *
 *     cc checkpoint.c -o checkpoint $(pkg-config --cflags --libs tabane)
 *     ./checkpoint 4
 *
 * Each of the given number of processes writes its own part of /checkpoint, and all of them read the part of their
 * neighbour when all have written. The cluster is found by TABANE_CLUSTER, else in the default run directory.
 */
#include <tabane.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PART_SIZE (3 * 1024 * 1024 + 4711)
#define PROCESSES_MAX 64

/* Ends the process with what the library says about its last call. */
static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, tabane_error_message());
    exit(1);
}

/* What process `rank` writes at `offset` of its part. */
static char letter(int rank, size_t offset) {
    return (char)('a' + (rank * 7 + offset / 1000) % 26);
}

static void write_part(int rank) {
    char *part = malloc(PART_SIZE);
    for (size_t i = 0; i < PART_SIZE; i++)
        part[i] = letter(rank, i);
    int descriptor = tabane_open("/checkpoint", O_WRONLY | O_CREAT, 0644);
    if (descriptor < 0)
        fail("open /checkpoint");
    if (tabane_pwrite(descriptor, part, PART_SIZE, (off_t)rank * PART_SIZE) != PART_SIZE)
        fail("write to /checkpoint");
    if (tabane_close(descriptor) < 0)
        fail("close /checkpoint");
    free(part);
}

/* Compares a part with what its process wrote; anything else than that would be a fault of the file system. */
static void read_part(int rank) {
    char *part = malloc(PART_SIZE);
    int descriptor = tabane_open("/checkpoint", O_RDONLY, 0);
    if (descriptor < 0)
        fail("open /checkpoint");
    if (tabane_pread(descriptor, part, PART_SIZE, (off_t)rank * PART_SIZE) != PART_SIZE)
        fail("read from /checkpoint");
    for (size_t i = 0; i < PART_SIZE; i++) {
        if (part[i] != letter(rank, i)) {
            fprintf(stderr, "part %d differs at byte %zu\n", rank, i);
            exit(1);
        }
    }
    tabane_close(descriptor);
    free(part);
}

/* Runs `work` in a process for each rank; `shift` is added to the rank. Returns how many failed. */
static int in_all(int count, void (*work)(int), int shift) {
    int failed = 0;
    for (int rank = 0; rank < count; rank++) {
        if (fork() == 0) {
            if (tabane_init(NULL) < 0)
                fail("connect to the cluster");
            work((rank + shift) % count);
            tabane_term();
            _exit(0);
        }
    }
    for (int rank = 0; rank < count; rank++) {
        int status;
        wait(&status);
        failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    return failed;
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 4;
    if (count < 1 || count > PROCESSES_MAX) {
        fprintf(stderr, "usage: checkpoint PROCESSES (1 to %d)\n", PROCESSES_MAX);
        return 2;
    }
    if (in_all(count, write_part, 0) || in_all(count, read_part, 1))
        return 1;

    struct stat attributes;
    if (tabane_init(NULL) < 0 || tabane_stat("/checkpoint", &attributes) < 0)
        fail("stat /checkpoint");
    printf("%d processes wrote %lld bytes on %d servers, and read what their neighbours wrote\n", count,
           (long long)attributes.st_size, tabane_server_count());
    return tabane_term() < 0;
}
