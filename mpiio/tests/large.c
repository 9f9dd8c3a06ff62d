/*
 * Goal: offsets and sizes beyond 4 GiB, counts beyond what lists take at once, and the calls with large counts (MPI 4).
 * Method: parts of a sparse file are written far from one another and read back, as many small pieces.
 */
#include "test.h"

#define PIECES 35000

int main(int argc, char **argv) {
    start(argc, argv);
    MPI_File file = open_new("large");
    MPI_Datatype strided, spread;
    MPI_Status status;
    MPI_Offset far = (MPI_Offset)5 << 30, size;
    int *numbers = malloc(PIECES * 4 * sizeof *numbers), *back = calloc(PIECES * 4, sizeof *back);
    for (int i = 0; i < PIECES * 4; i++)
        numbers[i] = rank * 1000000 + i;
    /* More pieces than a list takes, in the file and in memory. */
    MPI_Type_vector(PIECES, 1, 256 * process_count, MPI_INT, &strided);
    MPI_Type_vector(PIECES, 1, 4, MPI_INT, &spread);
    MPI_Type_commit(&strided), MPI_Type_commit(&spread);
    GOOD(MPI_File_set_view(file, far + 1024 * rank, MPI_INT, strided, "native", MPI_INFO_NULL));
    GOOD(MPI_File_write_at_all(file, 0, numbers, 1, spread, &status));
    tell("written", count_of(&status, MPI_INT));
    GOOD(MPI_File_read_at_all(file, 0, back, 1, spread, &status));
    tell("read", count_of(&status, MPI_INT));
    for (int i = 0; i < PIECES * 4; i++)
        CHECK(back[i] == (i % 4 || i >= 4 * PIECES - 3 ? 0 : numbers[i]));
    all_see(file);
    GOOD(MPI_File_get_size(file, &size));
    tell("size", size);
    /* The end within many pieces. */
    GOOD(MPI_File_set_size(file, far + 10000 * 1024 * process_count));
    GOOD(MPI_File_read_at(file, 0, back, PIECES, MPI_INT, &status));
    CHECK(count_of(&status, MPI_INT) == 10000);
    GOOD(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
#if MPI_VERSION >= 4
    GOOD(MPI_File_write_at_all_c(file, rank * 4000, numbers, 1000, MPI_INT, &status));
    GOOD(MPI_File_read_at_c(file, rank * 4000, back, 1000, MPI_INT, &status));
    CHECK(!memcmp(numbers, back, 4000));
    MPI_Datatype large;
    MPI_Count sizes[2] = {2, 3}, places[2] = {0, 10};
    MPI_Type_indexed_c(2, sizes, places, MPI_INT, &large);
    MPI_Type_commit(&large);
    GOOD(MPI_File_set_view(file, 20000 + 52 * rank, MPI_INT, large, "native", MPI_INFO_NULL));
    GOOD(MPI_File_write_all_c(file, numbers, 5, MPI_INT, &status));
    GOOD(MPI_File_seek(file, 0, MPI_SEEK_SET));
    GOOD(MPI_File_read_c(file, back, 5, MPI_INT, &status));
    CHECK(!memcmp(numbers, back, 20));
    MPI_Type_free(&large);
#else
    GOOD(MPI_File_write_at_all(file, rank * 4000, numbers, 1000, MPI_INT, &status));
    MPI_Datatype large;
    int sizes[2] = {2, 3}, places[2] = {0, 10};
    MPI_Type_indexed(2, sizes, places, MPI_INT, &large);
    MPI_Type_commit(&large);
    GOOD(MPI_File_set_view(file, 20000 + 52 * rank, MPI_INT, large, "native", MPI_INFO_NULL));
    GOOD(MPI_File_write_all(file, numbers, 5, MPI_INT, &status));
    MPI_Type_free(&large);
#endif
    all_see(file);
    /* What is compared is small. */
    char *bytes = malloc(30000);
    GOOD(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    GOOD(MPI_File_read_at_all(file, 0, bytes, 30000, MPI_BYTE, &status));
    tell("contents", sum_of(bytes, 30000));
    GOOD(MPI_File_close(&file));
    if (rank == 0)
        GOOD(MPI_File_delete(path("large"), MPI_INFO_NULL));
    MPI_Type_free(&strided), MPI_Type_free(&spread);
    free(numbers), free(back), free(bytes);
    end();
    return 0;
}
