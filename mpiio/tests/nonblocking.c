/*
 * Goal: many nonblocking calls go on together, with pieces of memory and of the file, in any order, and end as they
 * should; one that is refused says so. MPICH's own library does not stand that many.
 */
#define THREADS /* Open MPI has no polled requests: calls go on where threads may call MPI */
#include "test.h"

#define COUNT 500

static int back[COUNT];

/* Many that go on together: pieces of memory and of the file, more of them than one list has room for, and the end of
 * the file. */
static void many(MPI_File file) {
    enum { CALLS = 50, ROWS = 40000 };
    static int rows[2 * ROWS], rows_back[2 * ROWS], all[CALLS][COUNT];
    static MPI_Request requests[2 * CALLS];
    static MPI_Status statuses[2 * CALLS];
    MPI_Datatype every_other, tiles;
    MPI_Offset own = (MPI_Offset)rank * COUNT * CALLS;
    for (int i = 0; i < CALLS; i++) {
        for (int j = 0; j < COUNT; j++)
            all[i][j] = i * 100000 + rank * 1000 + j;
        GOOD(MPI_File_iwrite_at(file, 100000 + own + (MPI_Offset)i * COUNT, all[i], COUNT, MPI_INT, &requests[i]));
    }
    int is_done = 0;
    while (!is_done)
        GOOD(MPI_Testall(CALLS, requests, &is_done, statuses));
    for (int i = 0; i < CALLS; i++)
        CHECK(count_of(&statuses[i], MPI_INT) == COUNT);
    memset(all, 0, sizeof all);
    for (int i = CALLS - 1; i >= 0; i--)
        GOOD(MPI_File_iread_at(file, 100000 + own + (MPI_Offset)i * COUNT, all[i], COUNT, MPI_INT, &requests[i]));
    for (int left = CALLS; left > 0; left--) {
        int which = -1;
        GOOD(MPI_Waitany(CALLS, requests, &which, statuses));
        CHECK(all[which][COUNT - 1] == which * 100000 + rank * 1000 + COUNT - 1);
    }
    /* Every other number of memory, in every second place of a file's part. */
    GOOD(MPI_Type_vector(ROWS, 1, 2, MPI_INT, &every_other));
    GOOD(MPI_Type_commit(&every_other));
    GOOD(MPI_Type_create_resized(MPI_INT, 0, 8, &tiles));
    GOOD(MPI_Type_commit(&tiles));
    GOOD(MPI_Barrier(MPI_COMM_WORLD));
    GOOD(MPI_File_set_view(file, 4 * (300000 + (MPI_Offset)rank * 3 * ROWS), MPI_INT, tiles, "native", MPI_INFO_NULL));
    for (int i = 0; i < 2 * ROWS; i++)
        rows[i] = rank * 1000000 + i;
    GOOD(MPI_File_iwrite_at(file, 0, rows, 1, every_other, &requests[0]));
    GOOD(MPI_File_iwrite_at(file, ROWS, rows, 100, MPI_INT, &requests[1]));
    GOOD(MPI_Waitall(2, requests, statuses));
    CHECK(count_of(&statuses[0], MPI_INT) == ROWS);
    GOOD(MPI_File_iread_at(file, 0, rows_back, 1, every_other, &requests[0]));
    GOOD(MPI_File_iread_at(file, 0, back, COUNT, MPI_INT, &requests[1]));
    GOOD(MPI_Waitall(1, requests, statuses));
    /* Datatypes may go while calls are under way. */
    GOOD(MPI_Type_free(&every_other));
    GOOD(MPI_Waitall(1, requests + 1, statuses + 1));
    for (int i = 2 * ROWS - 2; i >= 0; i -= 2)
        CHECK(rows_back[i] == rows[i]);
    GOOD(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    GOOD(MPI_Type_free(&tiles));
    MPI_Offset size = 0;
    GOOD(MPI_File_sync(file));
    GOOD(MPI_Barrier(MPI_COMM_WORLD));
    GOOD(MPI_File_get_size(file, &size));
    GOOD(MPI_File_iread_at(file, size / 4 - 7, back, COUNT, MPI_INT, &requests[0]));
    GOOD(MPI_Wait(&requests[0], &statuses[0]));
    CHECK(count_of(&statuses[0], MPI_INT) == 7);
    GOOD(MPI_Barrier(MPI_COMM_WORLD));
}

/* Of a file that may not be written. */
static void refused(void) {
    MPI_File file;
    MPI_Request request;
    MPI_Status status;
    GOOD(MPI_File_open(MPI_COMM_WORLD, path("nonblocking"), MPI_MODE_RDONLY, MPI_INFO_NULL, &file));
    int result = MPI_File_iwrite_at(file, 0, back, COUNT, MPI_INT, &request);
    if (result == MPI_SUCCESS)
        result = MPI_Wait(&request, &status);
    CHECK(result != MPI_SUCCESS);
    GOOD(MPI_File_close(&file));
}

int main(int argc, char **argv) {
    start(argc, argv);
    MPI_File file = open_new("nonblocking");
    GOOD(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    many(file);
    GOOD(MPI_File_close(&file));
    refused();
    end();
    return 0;
}
