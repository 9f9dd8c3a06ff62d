/*
 * Goal: what is written through views of all kinds lies where MPI says, and is read back, from memory of all kinds.
 * Method: each process has a share of one file; all write, each reads its own and that of the next. Four kinds of view,
 * of memory and of call, all with one another. The files are compared with those of MPI's own.
 */
#include "test.h"

#define ROWS 12
#define COLUMNS 20

static MPI_Datatype committed(MPI_Datatype type) {
    MPI_Type_commit(&type);
    return type;
}

/* The share of a process in a field of ROWS x COLUMNS numbers for each process. */
static MPI_Datatype share(int kind, int owner, MPI_Offset *displacement, int *count) {
    MPI_Datatype type, inner;
    *displacement = 0;
    *count = ROWS * COLUMNS;
    if (kind == 0) { /* rows of all processes by turns */
        MPI_Type_vector(ROWS, COLUMNS, COLUMNS * process_count, MPI_INT, &type);
        *displacement = 24 + (MPI_Offset)owner * COLUMNS * sizeof(int);
    } else if (kind == 1) { /* a column of blocks in a matrix */
        int sizes[2] = {ROWS, COLUMNS * process_count}, parts[2] = {ROWS, COLUMNS}, starts[2] = {0, owner * COLUMNS};
        MPI_Type_create_subarray(2, sizes, parts, starts, MPI_ORDER_C, MPI_INT, &type);
    } else if (kind == 2) { /* cyclic in one dimension, in blocks in the other */
        int sizes[3] = {7, 5, 6 * process_count}, places[3] = {1, 1, process_count};
        int kinds[3] = {MPI_DISTRIBUTE_NONE, MPI_DISTRIBUTE_BLOCK, MPI_DISTRIBUTE_CYCLIC};
        int arguments[3] = {MPI_DISTRIBUTE_DFLT_DARG, MPI_DISTRIBUTE_DFLT_DARG, 4};
        MPI_Type_create_darray(process_count, owner, 3, sizes, kinds, arguments, places, MPI_ORDER_FORTRAN, MPI_INT,
                               &type);
        MPI_Type_size(type, count);
        *count /= sizeof(int);
    } else { /* structs of numbers and holes, resized so that others fit between */
        int sizes[3] = {2, 1, 3};
        MPI_Aint places[3] = {0, 12, 20};
        MPI_Datatype kinds[3] = {MPI_INT, MPI_INT, MPI_INT}, pair;
        MPI_Type_create_struct(3, sizes, places, kinds, &inner);
        MPI_Type_create_resized(inner, 0, 32 * process_count, &pair);
        MPI_Type_contiguous(4, pair, &type);
        MPI_Type_free(&inner), MPI_Type_free(&pair);
        *displacement = 100 + 32 * owner;
        *count = 24 * 5;
    }
    return committed(type);
}

/* Memory for `count` numbers: contiguous, with gaps, in reversed blocks, or described with a negative lower bound. */
static MPI_Datatype memory(int kind, int count, int *values, size_t *size, MPI_Aint *start) {
    MPI_Datatype type;
    *start = 0;
    *values = 1;
    *size = (size_t)count * 3 * sizeof(int) + 64;
    if (kind == 0) {
        *values = count;
        return MPI_INT;
    }
    if (kind == 1) {
        MPI_Type_vector(count, 1, 3, MPI_INT, &type);
    } else if (kind == 2) {
        int *places = malloc(count * sizeof *places);
        for (int i = 0; i < count; i++)
            places[i] = (count - 1 - i) * 2;
        MPI_Type_create_indexed_block(count, 1, places, MPI_INT, &type);
        free(places);
    } else {
        MPI_Aint places[2] = {-4 * (MPI_Aint)sizeof(int), 3 * sizeof(int)};
        int sizes[2] = {3, count - 3};
        MPI_Type_create_hindexed(2, sizes, places, MPI_INT, &type);
        *start = 8 * sizeof(int);
    }
    return committed(type);
}

static void put_and_get(MPI_File file, int owner, int call, int is_write, char *buffer, int values, MPI_Datatype type,
                        MPI_Status *status) {
    (void)owner;
    if (call == 0)
        GOOD(is_write ? MPI_File_write_all(file, buffer, values, type, status)
                      : MPI_File_read_all(file, buffer, values, type, status));
    else if (call == 1)
        GOOD(is_write ? MPI_File_write(file, buffer, values, type, status)
                      : MPI_File_read(file, buffer, values, type, status));
    else if (call == 2)
        GOOD(is_write ? MPI_File_write_at_all(file, 0, buffer, values, type, status)
                      : MPI_File_read_at_all(file, 0, buffer, values, type, status));
    else
        GOOD(is_write ? MPI_File_write_at(file, 0, buffer, values, type, status)
                      : MPI_File_read_at(file, 0, buffer, values, type, status));
}

static void one(int view, int kind, int call) {
    char name[64];
    snprintf(name, sizeof name, "views-%d-%d-%d", view, kind, call);
    MPI_File file = open_filled(name, 8000);
    for (int step = 0; step < 3; step++) { /* write the own share; read it; read the next one's */
        MPI_Offset displacement;
        int count, values, owner = step == 2 ? (rank + 1) % process_count : rank;
        size_t size;
        MPI_Aint begin;
        MPI_Status status;
        MPI_Datatype filetype = share(view, owner, &displacement, &count);
        MPI_Datatype type = memory(kind, count, &values, &size, &begin);
        char *buffer = calloc(1, size), *packed = calloc(count, sizeof(int));
        int *numbers = (int *)packed, at = 0;
        for (int i = 0; i < count; i++)
            numbers[i] = owner * 100000 + i;
        if (step == 0)
            MPI_Unpack(packed, count * sizeof(int), &at, buffer + begin, values, type, MPI_COMM_SELF);
        GOOD(MPI_File_set_view(file, displacement, MPI_INT, filetype, "native", MPI_INFO_NULL));
        put_and_get(file, owner, call, step == 0, buffer + begin, values, type, &status);
        CHECK(count_of(&status, MPI_INT) == count);
        if (step > 0) {
            char *got = calloc(count, sizeof(int));
            at = 0;
            MPI_Pack(buffer + begin, values, type, got, count * sizeof(int), &at, MPI_COMM_SELF);
            CHECK(!memcmp(got, packed, count * sizeof(int)));
            free(got);
        }
        all_see(file);
        if (type != MPI_INT)
            MPI_Type_free(&type);
        MPI_Type_free(&filetype);
        free(buffer), free(packed);
    }
    MPI_Offset size;
    GOOD(MPI_File_get_size(file, &size));
    tell(name, size);
    GOOD(MPI_File_close(&file));
}

int main(int argc, char **argv) {
    start(argc, argv);
    for (int view = 0; view < 4; view++)
        for (int kind = 0; kind < 4; kind++)
            for (int call = 0; call < 4; call++)
                one(view, kind, call);
    end();
    return 0;
}
