/*
 * Goal: external32 puts big-endian values of MPI's sizes into the file, at places that count in those sizes, and reads
 * them back; short reads are told in whole values. Method: bytes of the file are compared with what the standard says,
 * and read back. ROMIO converts contiguous data alone, so this runs over tabane: alone.
 */
#include "test.h"

static void contiguous(void) {
    MPI_File file = open_new("external");
    MPI_Status status;
    int numbers[3] = {1, 256, -2};
    double values[2] = {1.0, -2.5}, back[4] = {0};
    unsigned char bytes[28];
    const unsigned char expected[28] = {0, 0, 0, 1, 0, 0, 1, 0, 255, 255, 255, 254, 0x3f, 0xf0, 0, 0, 0, 0,
                                        0, 0, 0xc0, 4, 0, 0, 0, 0, 0, 0};
    MPI_Aint extent;
    GOOD(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "external32", MPI_INFO_NULL));
    GOOD(MPI_File_get_type_extent(file, MPI_DOUBLE, &extent));
    CHECK(extent == 8);
    GOOD(MPI_File_get_type_extent(file, MPI_LONG_DOUBLE, &extent));
    CHECK(extent == 16);
    if (rank == 0) {
        GOOD(MPI_File_write_at(file, 0, numbers, 3, MPI_INT, &status));
        CHECK(count_of(&status, MPI_INT) == 3);
        GOOD(MPI_File_write_at(file, 12, values, 2, MPI_DOUBLE, &status));
        GOOD(MPI_File_read_at(file, 12, back, 4, MPI_DOUBLE, &status));
        CHECK(count_of(&status, MPI_DOUBLE) == 2);
        CHECK(back[0] == 1.0 && back[1] == -2.5 && back[2] == 0);
    }
    GOOD(MPI_File_close(&file));
    file = open_as("external", MPI_MODE_RDONLY);
    GOOD(MPI_File_read_at_all(file, 0, bytes, 28, MPI_BYTE, &status));
    CHECK(count_of(&status, MPI_BYTE) == 28);
    CHECK(!memcmp(bytes, expected, 28));
    GOOD(MPI_File_close(&file));
}

/* Each process has every so many-th value, and structs in memory. */
static void strided(void) {
    MPI_File file = open_new("external-strided");
    MPI_Datatype filetype, pair, spread;
    MPI_Status status;
    struct { int number; double value; } items[50], back[50];
    int sizes[2] = {1, 1};
    MPI_Aint places[2] = {0, 8};
    MPI_Datatype kinds[2] = {MPI_INT, MPI_DOUBLE};
    MPI_Type_create_struct(2, sizes, places, kinds, &pair);
    MPI_Type_create_resized(pair, 0, sizeof items[0], &spread);
    MPI_Type_commit(&spread);
    MPI_Type_vector(1, 3, 3 * process_count, MPI_INT, &filetype);
    MPI_Datatype tiles;
    MPI_Type_create_resized(filetype, 0, 3 * 4 * process_count, &tiles);
    MPI_Type_commit(&tiles);
    for (int i = 0; i < 50; i++)
        items[i].number = rank * 100 + i, items[i].value = rank + i / 8.0;
    memset(back, 0, sizeof back);
    GOOD(MPI_File_set_view(file, 12 * rank, MPI_INT, tiles, "external32", MPI_INFO_NULL));
    GOOD(MPI_File_write_all(file, items, 50, spread, &status));
    CHECK(count_of(&status, MPI_BYTE) == 50 * 12);
    GOOD(MPI_File_read_at_all(file, 0, back, 50, spread, &status));
    for (int i = 0; i < 50; i++)
        CHECK(items[i].number == back[i].number && items[i].value == back[i].value);
    all_see(file);
    /* Value 3 of process 0 is a struct's number, at the beginning of its tile. */
    unsigned char bytes[4];
    GOOD(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    GOOD(MPI_File_read_at_all(file, 3 * 12 * process_count, bytes, 4, MPI_BYTE, &status));
    CHECK(bytes[0] == 0 && bytes[3] == 3);
    MPI_Type_free(&filetype), MPI_Type_free(&tiles), MPI_Type_free(&pair), MPI_Type_free(&spread);
    GOOD(MPI_File_close(&file));
}

int main(int argc, char **argv) {
    start(argc, argv);
    contiguous();
    strided();
    end();
    return 0;
}
