// A program that ends without a further word: with a file that has lost its name, open in itself and in children of which one
// never uses it and one does. What the children's ends tell must take nothing from the parent.
#include "check.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <tabane.h>
#include <unistd.h>

static void in_child(int descriptor, int uses_it) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char place[5];
        if (uses_it) {
            CHECK(tabane_pread(descriptor, place, 5, 0) == 5);
        }
        exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void) {
    CHECK(tabane_init(NULL) == 0);
    int descriptor = tabane_open("/file", O_RDWR | O_CREAT, 0644);
    CHECK(descriptor >= 0);
    CHECK(tabane_write(descriptor, "hello", 5) == 5);
    in_child(descriptor, 0);
    CHECK(tabane_unlink("/file") == 0);
    in_child(descriptor, 0);
    in_child(descriptor, 1);
    char place[5];
    CHECK(tabane_pread(descriptor, place, 5, 0) == 5);
    return 0;
}
