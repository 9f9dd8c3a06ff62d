/*
 * MPI-IO on a mount: collective writes of strided data, shared file pointers and atomic mode. With MPICH, whose ROMIO
 * takes the calls of POSIX and locks of fcntl(2) for it.
 *
 *     mpicc mpiio.c -o mpiio
 *     mpirun -n 3 ./mpiio job/file          (job is a mount)
 *
 * Everything that is written is read by another process, and compared.
 */
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_COUNT 200     /* blocks of each process */
#define BLOCK_SIZE 1000     /* numbers of a block */
#define RECORD_COUNT 50     /* records of each process */
#define OVERLAP_SIZE 100000 /* numbers that all processes write */
#define ROUND_COUNT 5

static int rank, process_count;

/* Ends all processes with a reason. */
static void fail(const char *what) {
    fprintf(stderr, "process %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Ends all processes if a call has failed, with the words of MPI. */
static void check(int result, const char *call) {
    char words[MPI_MAX_ERROR_STRING];
    int size;
    if (result == MPI_SUCCESS)
        return;
    MPI_Error_string(result, words, &size);
    fprintf(stderr, "%s: ", call);
    fail(words);
}

static MPI_File open_file(const char *path) {
    MPI_File file;
    check(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file), path);
    check(MPI_File_set_size(file, 0), "MPI_File_set_size");
    return file;
}

/* The blocks of `owner`, which lie between those of the others, are what this process sees of the file. */
static void see_blocks_of(MPI_File file, int owner) {
    MPI_Datatype blocks;
    MPI_Type_vector(BLOCK_COUNT, BLOCK_SIZE, BLOCK_SIZE * process_count, MPI_INT, &blocks);
    MPI_Type_commit(&blocks);
    MPI_Offset first = (MPI_Offset)owner * BLOCK_SIZE * sizeof(int);
    check(MPI_File_set_view(file, first, MPI_INT, blocks, "native", MPI_INFO_NULL), "MPI_File_set_view");
    MPI_Type_free(&blocks);
}

/* All processes write their strided parts together, and read that of the next one. */
static void strided(const char *path) {
    static int numbers[BLOCK_COUNT * BLOCK_SIZE];
    const int count = BLOCK_COUNT * BLOCK_SIZE, next = (rank + 1) % process_count;
    MPI_File file = open_file(path);
    for (int i = 0; i < count; i++)
        numbers[i] = rank * count + i;
    see_blocks_of(file, rank);
    check(MPI_File_write_all(file, numbers, count, MPI_INT, MPI_STATUS_IGNORE), "MPI_File_write_all");
    check(MPI_File_sync(file), "MPI_File_sync");
    MPI_Barrier(MPI_COMM_WORLD);
    see_blocks_of(file, next);
    check(MPI_File_read_all(file, numbers, count, MPI_INT, MPI_STATUS_IGNORE), "MPI_File_read_all");
    for (int i = 0; i < count; i++)
        if (numbers[i] != next * count + i)
            fail("a strided part is not what was written");
    check(MPI_File_close(&file), "MPI_File_close");
}

/* All processes append records by the pointer that they share: each record has to be there once. */
static void shared_pointer(const char *path) {
    MPI_File file = open_file(path);
    for (int i = 0; i < RECORD_COUNT; i++) {
        int record = rank * RECORD_COUNT + i;
        check(MPI_File_write_shared(file, &record, 1, MPI_INT, MPI_STATUS_IGNORE), "MPI_File_write_shared");
    }
    /* A process that is ahead of the others would put its ordered record among theirs. */
    MPI_Barrier(MPI_COMM_WORLD);
    int last = -1 - rank;
    check(MPI_File_write_ordered(file, &last, 1, MPI_INT, MPI_STATUS_IGNORE), "MPI_File_write_ordered");
    check(MPI_File_sync(file), "MPI_File_sync");
    MPI_Barrier(MPI_COMM_WORLD);

    const int count = process_count * RECORD_COUNT;
    int *records = malloc((count + process_count) * sizeof(int));
    char *seen = calloc(count, 1);
    check(MPI_File_read_at(file, 0, records, count + process_count, MPI_INT, MPI_STATUS_IGNORE), "MPI_File_read_at");
    for (int i = 0; i < count; i++)
        if (records[i] < 0 || records[i] >= count || seen[records[i]]++)
            fail("a record is missing, or there twice");
    for (int i = 0; i < process_count; i++)
        if (records[count + i] != -1 - i)
            fail("ordered records are out of order");
    free(records);
    free(seen);
    check(MPI_File_close(&file), "MPI_File_close");
}

/* All processes write the same range in atomic mode, over many chunks or not: what is read is all of one of them. */
static void atomic(const char *path) {
    static int numbers[OVERLAP_SIZE];
    MPI_File file = open_file(path);
    check(MPI_File_set_atomicity(file, 1), "MPI_File_set_atomicity");
    for (int round = 0; round < ROUND_COUNT; round++) {
        for (int i = 0; i < OVERLAP_SIZE; i++)
            numbers[i] = rank;
        check(MPI_File_write_at(file, 0, numbers, OVERLAP_SIZE, MPI_INT, MPI_STATUS_IGNORE), "MPI_File_write_at");
        check(MPI_File_read_at(file, 0, numbers, OVERLAP_SIZE, MPI_INT, MPI_STATUS_IGNORE), "MPI_File_read_at");
        for (int i = 0; i < OVERLAP_SIZE; i++)
            if (numbers[i] != numbers[0])
                fail("atomic mode: the writes of two processes are mixed");
    }
    check(MPI_File_close(&file), "MPI_File_close");
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &process_count);
    if (argc != 2)
        fail("usage: mpiio PATH");
    strided(argv[1]);
    shared_pointer(argv[1]);
    atomic(argv[1]);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d processes: strided, shared and atomic parts are as they were written\n", process_count);
    MPI_Finalize();
    return 0;
}
