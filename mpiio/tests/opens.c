/*
 * Goal: processes that open a file together ask a server once. Method: they open many, one after the other, and each
 * uses what it has; run.sh counts what servers are asked.
 */
#include "test.h"

int main(int argc, char **argv) {
    start(argc, argv);
    for (int i = 0; i < 100; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        MPI_File file = open_as(name, MPI_MODE_RDWR | MPI_MODE_CREATE);
        int value = rank;
        GOOD(MPI_File_write_at(file, rank * sizeof value, &value, 1, MPI_INT, MPI_STATUS_IGNORE));
        GOOD(MPI_File_read_at(file, rank * sizeof value, &value, 1, MPI_INT, MPI_STATUS_IGNORE));
        CHECK(value == rank);
        GOOD(MPI_File_close(&file));
    }
    end();
    return 0;
}
