/*
 * A series of files: each process writes a block of each, in CALLS calls, together or by itself, and reads it back. One
 * line a file: seconds that the writes took.
 *
 *     series DIRECTORY BLOCK-SIZE FILES CALLS [independent]
 */
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, process_count;

static void check(int result, const char *what) {
    char words[MPI_MAX_ERROR_STRING];
    int size;
    if (result == MPI_SUCCESS)
        return;
    MPI_Error_string(result, words, &size);
    fprintf(stderr, "series: process %d: %s: %s\n", rank, what, words);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static MPI_File open_one(const char *directory, int number, int amode) {
    char name[512];
    MPI_File file;
    snprintf(name, sizeof name, "%s/out_%04d.dat", directory, number);
    int result = MPI_File_open(MPI_COMM_WORLD, name, amode, MPI_INFO_NULL, &file);
    /* All have failed then, and all end; who aborts may not be heard. */
    if (result != MPI_SUCCESS) {
        char words[MPI_MAX_ERROR_STRING];
        int size;
        MPI_Error_string(result, words, &size);
        if (rank == 0)
            fprintf(stderr, "series: open: %s\n", words);
        MPI_Finalize();
        exit(1);
    }
    return file;
}

static char byte_of(long offset, int number) {
    return (char)(offset * 31 + offset / 4093 + number);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &process_count);
    if (argc < 5)
        return fprintf(stderr, "series DIRECTORY BLOCK-SIZE FILES CALLS [independent]\n"), 2;
    long block = atol(argv[2]), files = atol(argv[3]), calls = atol(argv[4]), size = block / calls;
    int is_alone = argc > 5;
    char *bytes = malloc(block), *read = malloc(block);
    for (int number = 0; number < files; number++) {
        long start = rank * block;
        for (long i = 0; i < block; i++)
            bytes[i] = byte_of(start + i, number);
        MPI_File file = open_one(argv[1], number, MPI_MODE_CREATE | MPI_MODE_WRONLY);
        MPI_Barrier(MPI_COMM_WORLD);
        double seconds = -MPI_Wtime(), slowest;
        for (long at = 0; at < size * calls; at += size)
            check((is_alone ? MPI_File_write_at : MPI_File_write_at_all)(file, start + at, bytes + at, (int)size,
                                                                         MPI_BYTE, MPI_STATUS_IGNORE), "write");
        seconds += MPI_Wtime();
        MPI_Allreduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        check(MPI_File_close(&file), "close");
        file = open_one(argv[1], number, MPI_MODE_RDONLY);
        memset(read, 0, block);
        check(MPI_File_read_at_all(file, start, read, (int)(size * calls), MPI_BYTE, MPI_STATUS_IGNORE), "read");
        if (memcmp(read, bytes, size * calls) != 0)
            check(MPI_ERR_IO, "what was read is not what was written");
        check(MPI_File_close(&file), "close");
        if (rank == 0)
            printf("%d %.6f\n", number, slowest), fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
