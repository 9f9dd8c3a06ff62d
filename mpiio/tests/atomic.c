/*
 * Goal: in atomic mode accesses that overlap happen one after the other, also of many parts; without it what one
 * process has written another one sees after the calls that MPI asks for. Method: all processes write the same places
 * again and again; what each reads is of one process. It is tried over servers that share the file's chunks.
 */
#include "test.h"

#define SIZE 600000
#define ROUND_COUNT 6

static int numbers[SIZE];

static void overlap(MPI_File file, int count) {
    for (int round = 0; round < ROUND_COUNT; round++) {
        for (int i = 0; i < count; i++)
            numbers[i] = rank + 1;
        GOOD(MPI_File_write_at(file, 0, numbers, count, MPI_INT, MPI_STATUS_IGNORE));
        GOOD(MPI_File_read_at(file, 0, numbers, count, MPI_INT, MPI_STATUS_IGNORE));
        for (int i = 0; i < count; i++)
            CHECK(numbers[i] == numbers[0]);
    }
}

int main(int argc, char **argv) {
    start(argc, argv);
    MPI_File file = open_new("atomic");
    MPI_Datatype strided;
    GOOD(MPI_File_set_atomicity(file, 1));
    overlap(file, SIZE);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Type_vector(10, 10, 25, MPI_INT, &strided);
    MPI_Type_commit(&strided);
    GOOD(MPI_File_set_view(file, 0, MPI_INT, strided, "native", MPI_INFO_NULL));
    overlap(file, 100000);
    MPI_Barrier(MPI_COMM_WORLD);
    /* At last all write the same, that the file be the same whoever came last. */
    for (int i = 0; i < SIZE; i++)
        numbers[i] = 77;
    GOOD(MPI_File_write_all(file, numbers, 100000, MPI_INT, MPI_STATUS_IGNORE));
    GOOD(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    GOOD(MPI_File_write_at_all(file, 0, numbers, SIZE, MPI_INT, MPI_STATUS_IGNORE));
    GOOD(MPI_File_set_atomicity(file, 0));
    if (rank == 0)
        GOOD(MPI_File_write_at(file, 40, numbers + 1, 1, MPI_INT, MPI_STATUS_IGNORE));
    all_see(file);
    GOOD(MPI_File_read_at(file, 40, numbers, 1, MPI_INT, MPI_STATUS_IGNORE));
    tell("seen", numbers[0]);
    MPI_Type_free(&strided);
    GOOD(MPI_File_close(&file));
    end();
    return 0;
}
