/*
 * Goal: nonblocking and split collective calls of all kinds do what their blocking namesakes do. Method: each kind
 * writes its part of a file and reads it back; results are printed, the file compared.
 */
#include "test.h"

#define COUNT 500

static int numbers[COUNT], back[COUNT];

static void fill(int kind) {
    for (int i = 0; i < COUNT; i++)
        numbers[i] = kind * 1000000 + rank * 10000 + i;
    memset(back, 0, sizeof back);
}

static void await(MPI_Request *request, const char *what) {
    MPI_Status status;
    int count;
    GOOD(MPI_Wait(request, &status));
    MPI_Get_count(&status, MPI_INT, &count);
    tell(what, count);
}

static void nonblocking(MPI_File file) {
    MPI_Offset own = (MPI_Offset)rank * COUNT;
    MPI_Request request;
    fill(1);
    GOOD(MPI_File_iwrite_at(file, own, numbers, COUNT, MPI_INT, &request));
    await(&request, "iwrite_at");
    GOOD(MPI_File_iread_at(file, own, back, COUNT, MPI_INT, &request));
    await(&request, "iread_at");
    CHECK(!memcmp(numbers, back, sizeof back));
    fill(2);
    GOOD(MPI_File_iwrite_at_all(file, own + 10000, numbers, COUNT, MPI_INT, &request));
    await(&request, "iwrite_at_all");
    GOOD(MPI_File_iread_at_all(file, own + 10000, back, COUNT, MPI_INT, &request));
    await(&request, "iread_at_all");
    CHECK(!memcmp(numbers, back, sizeof back));
    fill(3);
    GOOD(MPI_File_seek(file, own + 20000, MPI_SEEK_SET));
    GOOD(MPI_File_iwrite(file, numbers, COUNT, MPI_INT, &request));
    await(&request, "iwrite");
    GOOD(MPI_File_seek(file, -COUNT, MPI_SEEK_CUR));
    GOOD(MPI_File_iread(file, back, COUNT, MPI_INT, &request));
    await(&request, "iread");
    CHECK(!memcmp(numbers, back, sizeof back));
    fill(4);
    GOOD(MPI_File_seek(file, own + 30000, MPI_SEEK_SET));
    GOOD(MPI_File_iwrite_all(file, numbers, COUNT, MPI_INT, &request));
    await(&request, "iwrite_all");
    GOOD(MPI_File_seek(file, -COUNT, MPI_SEEK_CUR));
    GOOD(MPI_File_iread_all(file, back, COUNT, MPI_INT, &request));
    await(&request, "iread_all");
    CHECK(!memcmp(numbers, back, sizeof back));
    /* By the shared pointer; in which order nobody knows, so all write the same. */
    for (int i = 0; i < COUNT; i++)
        numbers[i] = 5000000 + i;
    MPI_Barrier(MPI_COMM_WORLD);
    GOOD(MPI_File_seek_shared(file, 40000, MPI_SEEK_SET));
    GOOD(MPI_File_iwrite_shared(file, numbers, COUNT, MPI_INT, &request));
    await(&request, "iwrite_shared");
    all_see(file);
    GOOD(MPI_File_seek_shared(file, 40000, MPI_SEEK_SET));
    GOOD(MPI_File_iread_shared(file, back, COUNT, MPI_INT, &request));
    await(&request, "iread_shared");
    CHECK(!memcmp(numbers, back, sizeof back));
    /* Several at once, waited for together. */
    MPI_Request several[10];
    MPI_Status statuses[10];
    fill(6);
    for (int i = 0; i < 10; i++)
        GOOD(MPI_File_iwrite_at(file, 50000 + own + 50 * i, numbers + 50 * i, 50, MPI_INT, &several[i]));
    GOOD(MPI_Waitall(10, several, statuses));
    int is_done = 0, which = 0;
    GOOD(MPI_File_iread_at(file, 50000 + own, back, COUNT, MPI_INT, &several[0]));
    while (!is_done)
        GOOD(MPI_Testany(1, several, &which, &is_done, &statuses[0]));
    CHECK(!memcmp(numbers, back, sizeof back));
}

static void split(MPI_File file) {
    MPI_Offset own = (MPI_Offset)rank * COUNT;
    MPI_Status status;
    fill(7);
    GOOD(MPI_File_write_at_all_begin(file, own + 60000, numbers, COUNT, MPI_INT));
    GOOD(MPI_File_write_at_all_end(file, numbers, &status));
    tell("write_at_all", count_of(&status, MPI_INT));
    GOOD(MPI_File_read_at_all_begin(file, own + 60000, back, COUNT, MPI_INT));
    GOOD(MPI_File_read_at_all_end(file, back, &status));
    tell("read_at_all", count_of(&status, MPI_INT));
    CHECK(!memcmp(numbers, back, sizeof back));
    fill(8);
    GOOD(MPI_File_seek(file, own + 70000, MPI_SEEK_SET));
    GOOD(MPI_File_write_all_begin(file, numbers, COUNT, MPI_INT));
    GOOD(MPI_File_write_all_end(file, numbers, &status));
    GOOD(MPI_File_seek(file, own + 70000, MPI_SEEK_SET));
    GOOD(MPI_File_read_all_begin(file, back, COUNT, MPI_INT));
    GOOD(MPI_File_read_all_end(file, back, &status));
    tell("read_all", count_of(&status, MPI_INT));
    CHECK(!memcmp(numbers, back, sizeof back));
    fill(9);
    GOOD(MPI_File_seek_shared(file, 80000, MPI_SEEK_SET));
    GOOD(MPI_File_write_ordered_begin(file, numbers, COUNT, MPI_INT));
    GOOD(MPI_File_write_ordered_end(file, numbers, &status));
    tell("write_ordered", count_of(&status, MPI_INT));
    GOOD(MPI_File_seek_shared(file, 80000, MPI_SEEK_SET));
    GOOD(MPI_File_read_ordered_begin(file, back, COUNT, MPI_INT));
    GOOD(MPI_File_read_ordered_end(file, back, &status));
    CHECK(!memcmp(numbers, back, sizeof back));
    /* One at a time. */
    GOOD(MPI_File_read_at_all_begin(file, 0, back, COUNT, MPI_INT));
    tell("second", MPI_File_read_all_begin(file, back, COUNT, MPI_INT) != MPI_SUCCESS);
    GOOD(MPI_File_read_at_all_end(file, back, &status));
    tell("end of none", MPI_File_read_all_end(file, back, &status) != MPI_SUCCESS);
}

int main(int argc, char **argv) {
    start(argc, argv);
    MPI_File file = open_new("requests");
    GOOD(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    nonblocking(file);
    split(file);
    GOOD(MPI_File_close(&file));
    end();
    return 0;
}
