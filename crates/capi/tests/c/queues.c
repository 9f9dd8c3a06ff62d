// Eighty programs one after the other, each of which submits changes, writes into registered pages, forks a child that never
// uses the library nor executes anything, and ends. The children stay until somebody opens the pipe "children" of the
// cluster's directory.
#include "check.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <tabane.h>
#include <unistd.h>

#define LARGE (512 << 10)

static void leave_child(const char *pipe) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        // Nobody is to wait for what it might say.
        close(1);
        close(2);
        char byte;
        int released = open(pipe, O_RDONLY);
        _exit(released < 0 || read(released, &byte, 1) != 0);
    }
}

static void program(int number, const char *pipe) {
    char path[32];
    snprintf(path, sizeof path, "/f%d", number);
    CHECK(tabane_init(NULL) == 0);
    for (int round = 0; round < 20; round++) {
        int descriptor = tabane_open(path, O_RDWR | O_CREAT | O_EXCL, 0644);
        CHECK(descriptor >= 0);
        CHECK(tabane_write(descriptor, "hello", 5) == 5);
        CHECK(tabane_close(descriptor) == 0);
        CHECK(tabane_unlink(path) == 0);
    }
    int descriptor = tabane_open("/large", O_RDWR | O_CREAT, 0644);
    CHECK(descriptor >= 0);
    char *bytes = calloc(1, LARGE);
    CHECK(bytes != NULL);
    for (int round = 0; round < 4; round++) {
        CHECK(tabane_pwrite(descriptor, bytes, LARGE, 0) == LARGE);
    }
    leave_child(pipe);
    exit(0);
}

int main(void) {
    char pipe[4096];
    snprintf(pipe, sizeof pipe, "%s/children", getenv("TABANE_CLUSTER"));
    CHECK(mkfifo(pipe, 0600) == 0);
    for (int number = 0; number < 80; number++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            program(number, pipe);
        }
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    return 0;
}
