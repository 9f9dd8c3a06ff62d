/* A cluster file in another user's directory is not believed. */
#include <chfs.h>

#include "check.h"

int main(void) {
    CHECK(chfs_init(NULL) == -1);
    CHECK(chfs_mkdir("x", 0755) == -1);
    return 0;
}
