/*
 * Goal: explicit offsets, individual, shared and ordered pointers lead where MPI says, through views too, and are told
 * and moved. Method: results of every call are printed, and the files compared.
 */
#include "test.h"

static void individual(void) {
    MPI_File file = open_new("individual");
    MPI_Offset offset, displacement;
    MPI_Status status;
    int numbers[10];
    MPI_Datatype pairs;
    MPI_Type_vector(5, 2, 2 * process_count, MPI_INT, &pairs);
    MPI_Type_commit(&pairs);
    GOOD(MPI_File_set_view(file, 8 + 2 * rank * sizeof(int), MPI_INT, pairs, "native", MPI_INFO_NULL));
    for (int i = 0; i < 10; i++)
        numbers[i] = 1000 * rank + i;
    GOOD(MPI_File_write(file, numbers, 3, MPI_INT, MPI_STATUS_IGNORE));
    GOOD(MPI_File_get_position(file, &offset));
    tell("after 3", offset);
    GOOD(MPI_File_write(file, numbers + 3, 7, MPI_INT, MPI_STATUS_IGNORE));
    for (int i = 0; i < 12; i += 3) {
        GOOD(MPI_File_get_byte_offset(file, i, &displacement));
        tell("byte offset", displacement);
    }
    all_see(file);
    GOOD(MPI_File_seek(file, -4, MPI_SEEK_CUR));
    GOOD(MPI_File_read(file, numbers, 2, MPI_INT, &status));
    CHECK(numbers[0] == 1000 * rank + 6 && numbers[1] == 1000 * rank + 7);
    GOOD(MPI_File_seek(file, 1, MPI_SEEK_SET));
    GOOD(MPI_File_read_all(file, numbers, 4, MPI_INT, &status));
    CHECK(numbers[0] == 1000 * rank + 1);
    GOOD(MPI_File_get_position(file, &offset));
    tell("after read", offset);
    GOOD(MPI_File_seek(file, 0, MPI_SEEK_END));
    GOOD(MPI_File_get_position(file, &offset));
    tell("end", offset);
    GOOD(MPI_File_seek(file, -1, MPI_SEEK_END));
    GOOD(MPI_File_read(file, numbers, 1, MPI_INT, &status));
    tell("last", numbers[0]);
    tell("before the beginning", MPI_File_seek(file, -1, MPI_SEEK_SET) != MPI_SUCCESS);
    MPI_Type_free(&pairs);
    GOOD(MPI_File_close(&file));
}

static void shared(void) {
    MPI_File file = open_new("shared");
    MPI_Offset offset;
    int record[3] = {rank, rank, rank};
    for (int i = 0; i < 20; i++)
        GOOD(MPI_File_write_shared(file, record, 3, MPI_INT, MPI_STATUS_IGNORE));
    all_see(file);
    GOOD(MPI_File_get_position_shared(file, &offset));
    tell("shared", offset);
    /* All have written at the end, none over another; who came first nobody knows. */
    int count = 20 * process_count, *all = malloc(count * sizeof record), seen[64] = {0};
    GOOD(MPI_File_read_at_all(file, 0, all, 3 * count, MPI_INT, MPI_STATUS_IGNORE));
    for (int i = 0; i < count; i++) {
        CHECK(all[3 * i] == all[3 * i + 1] && all[3 * i] == all[3 * i + 2]);
        seen[all[3 * i]]++;
    }
    for (int i = 0; i < process_count; i++)
        CHECK(seen[i] == 20);
    free(all);
    /* The same by reads: each record is read by one process. */
    GOOD(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
    int mine[64] = {0}, together[64];
    for (int i = 0; i < 20; i++) {
        GOOD(MPI_File_read_shared(file, record, 3, MPI_INT, MPI_STATUS_IGNORE));
        mine[record[0]]++;
    }
    MPI_Allreduce(mine, together, process_count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < process_count; i++)
        CHECK(together[i] == 20);
    GOOD(MPI_File_seek_shared(file, -12, MPI_SEEK_END));
    GOOD(MPI_File_get_position_shared(file, &offset));
    tell("from the end", offset);
    MPI_Barrier(MPI_COMM_WORLD);
    /* A view begins anew. */
    GOOD(MPI_File_set_view(file, 4, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    GOOD(MPI_File_get_position_shared(file, &offset));
    tell("in a new view", offset);
    GOOD(MPI_File_close(&file));
    if (rank == 0)
        GOOD(MPI_File_delete(path("shared"), MPI_INFO_NULL));
}

static void ordered(void) {
    MPI_File file = open_filled("ordered", 1000);
    MPI_Datatype pieces;
    MPI_Offset offset;
    MPI_Status status;
    int numbers[64];
    MPI_Type_vector(2, 3, 4, MPI_INT, &pieces);
    MPI_Type_commit(&pieces);
    GOOD(MPI_File_set_view(file, 12, MPI_INT, pieces, "native", MPI_INFO_NULL));
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 64; i++)
            numbers[i] = 10000 * rank + 100 * round + i;
        /* of different sizes, and none at all of one */
        GOOD(MPI_File_write_ordered(file, numbers, rank == round ? 0 : rank + round, MPI_INT, &status));
        tell("ordered", count_of(&status, MPI_INT));
    }
    all_see(file);
    GOOD(MPI_File_get_position_shared(file, &offset));
    tell("position", offset);
    GOOD(MPI_File_seek_shared(file, 5, MPI_SEEK_SET));
    GOOD(MPI_File_read_ordered(file, numbers, 2 + rank, MPI_INT, &status));
    tell("read", sum_of(numbers, (2 + rank) * sizeof(int)));
    GOOD(MPI_File_read_ordered(file, numbers, 60, MPI_INT, &status));
    MPI_Type_free(&pieces);
    GOOD(MPI_File_close(&file));
}

/* With MPI_MODE_APPEND both pointers begin at the end. */
static void append(void) {
    MPI_File file = open_new("append");
    MPI_Offset offset;
    int number = rank;
    GOOD(MPI_File_write_at(file, 4 * rank, &number, 1, MPI_INT, MPI_STATUS_IGNORE));
    GOOD(MPI_File_close(&file));
    file = open_as("append", MPI_MODE_WRONLY | MPI_MODE_APPEND);
    GOOD(MPI_File_get_position(file, &offset));
    tell("append", offset);
    GOOD(MPI_File_get_position_shared(file, &offset));
    tell("append, shared", offset);
    MPI_Barrier(MPI_COMM_WORLD);
    GOOD(MPI_File_write_ordered(file, &number, 1, MPI_INT, MPI_STATUS_IGNORE));
    GOOD(MPI_File_close(&file));
}

/* Once forwards, by the shared pointer alone. */
static void sequential(void) {
    MPI_File file = open_as("sequential", MPI_MODE_CREATE | MPI_MODE_WRONLY | MPI_MODE_SEQUENTIAL);
    int number = rank + 1;
    GOOD(MPI_File_write_ordered(file, &number, 1, MPI_INT, MPI_STATUS_IGNORE));
    tell("seek", class_of(MPI_File_seek(file, 0, MPI_SEEK_SET)) == MPI_ERR_UNSUPPORTED_OPERATION);
    tell("at", class_of(MPI_File_write_at(file, 0, &number, 1, MPI_INT, MPI_STATUS_IGNORE)) ==
                   MPI_ERR_UNSUPPORTED_OPERATION);
    GOOD(MPI_File_close(&file));
}

int main(int argc, char **argv) {
    start(argc, argv);
    individual();
    shared();
    ordered();
    append();
    sequential();
    end();
    return 0;
}
