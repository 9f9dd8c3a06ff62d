/* The cluster is found through TABANE_CLUSTER. */
#include <chfs.h>

#include "check.h"

int main(void) {
    CHECK(chfs_init(NULL) == 0 && chfs_size() == 3);
    CHECK(chfs_mkdir("x", 0755) == 0);
    CHECK(chfs_term_without_sync() == 0);
    return 0;
}
