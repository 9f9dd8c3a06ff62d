/*
 * HPIO: regions of one size at one distance, of all processes by turns, written and read. After the benchmark of Ching
 * et al. (Noncontiguous I/O through PVFS, 2002; Evaluating I/O Characteristics and Methods for Storing Structured
 * Scientific Data, IPDPS 2006), whose patterns it has: contiguous or not, in memory and in the file.
 *
 *     mpiexec -n 2 hpio [OPTIONS] PATH
 *
 * Region `i` of process `r` of `n` lies at (i n + r) (size + spacing) in a file that is not contiguous, else at
 * (r count + i) size; in memory the same without the others. Each pass is timed from a barrier to the slowest process's
 * end, with a sync if it is asked for. One line of JSON is printed for each repetition of each pass; bytes are those of
 * regions. Verification is apart from what is timed: memory is compared after each read, the file's gaps at the end.
 */
#include <mpi.h>

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pattern {
    long size, spacing, count;
    int is_memory_spread, is_file_spread, is_collective, is_synced, repetitions;
    const char *path, *label;
};

static int rank, process_count;

static void fail(const char *what) {
    fprintf(stderr, "hpio: process %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void check(int result, const char *call) {
    char words[MPI_MAX_ERROR_STRING];
    int size;
    if (result == MPI_SUCCESS)
        return;
    MPI_Error_string(result, words, &size);
    fprintf(stderr, "hpio: process %d: %s: %s\n", rank, call, words);
    MPI_Abort(MPI_COMM_WORLD, 1);
}
#define CHECK(call) check(call, #call)

/* Regions of `size` bytes, the first bytes of `stride`; a contiguous run of them where these are the same. */
static MPI_Datatype regions(const struct pattern *it, long stride) {
    MPI_Datatype type;
    MPI_Type_create_hvector((int)it->count, (int)it->size, stride, MPI_BYTE, &type);
    MPI_Type_commit(&type);
    return type;
}

static unsigned char byte_of(int process, long region, long place, int salt) {
    unsigned long number = ((unsigned long)process * 1000003u + region) * 1009u + place * 31u + salt * 7919u;
    return (unsigned char)(number * 2654435761u >> 13);
}

static long memory_stride(const struct pattern *it) {
    return it->size + (it->is_memory_spread ? it->spacing : 0);
}

static void fill(const struct pattern *it, unsigned char *memory, int salt) {
    memset(memory, 0, memory_stride(it) * it->count);
    for (long i = 0; i < it->count; i++)
        for (long j = 0; j < it->size; j++)
            memory[i * memory_stride(it) + j] = byte_of(rank, i, j, salt);
}

static void verify(const struct pattern *it, const unsigned char *memory, int salt) {
    for (long i = 0; i < it->count; i++)
        for (long j = 0; j < memory_stride(it); j++) {
            unsigned char expected = j < it->size ? byte_of(rank, i, j, salt) : 0;
            if (memory[i * memory_stride(it) + j] != expected)
                fail("what was read is not what was written");
        }
}

static MPI_File open_view(const struct pattern *it, int amode, MPI_Datatype filetype) {
    MPI_File file;
    MPI_Offset start = (MPI_Offset)rank * it->size * it->count;
    if (it->is_file_spread)
        start = (MPI_Offset)rank * (it->size + it->spacing);
    CHECK(MPI_File_open(MPI_COMM_WORLD, it->path, amode, MPI_INFO_NULL, &file));
    CHECK(MPI_File_set_view(file, start, MPI_BYTE, filetype, "native", MPI_INFO_NULL));
    return file;
}

/* One pass; returns seconds of the slowest process. */
static double pass(const struct pattern *it, MPI_File file, int is_write, void *memory, MPI_Datatype type) {
    MPI_Status status;
    int size;
    double seconds, slowest;
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    if (it->is_collective && is_write)
        CHECK(MPI_File_write_at_all(file, 0, memory, 1, type, &status));
    else if (it->is_collective)
        CHECK(MPI_File_read_at_all(file, 0, memory, 1, type, &status));
    else if (is_write)
        CHECK(MPI_File_write_at(file, 0, memory, 1, type, &status));
    else
        CHECK(MPI_File_read_at(file, 0, memory, 1, type, &status));
    if (is_write && it->is_synced)
        CHECK(MPI_File_sync(file));
    seconds = MPI_Wtime() - start;
    MPI_Get_count(&status, MPI_BYTE, &size);
    if (size != it->size * it->count)
        fail("fewer bytes than asked for");
    MPI_Allreduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

static void print(const struct pattern *it, const char *what, int repetition, double seconds) {
    double bytes = (double)it->size * it->count * process_count;
    if (rank == 0) {
        printf("{\"label\":\"%s\",\"pass\":\"%s\",\"repetition\":%d,\"processes\":%d,\"size\":%ld,\"spacing\":%ld,"
               "\"count\":%ld,\"memory\":\"%s\",\"file\":\"%s\",\"collective\":%s,\"bytes\":%.0f,\"seconds\":%.6f,"
               "\"mib_per_second\":%.1f}\n",
               it->label, what, repetition, process_count, it->size, it->spacing, it->count,
               it->is_memory_spread ? "spread" : "contiguous", it->is_file_spread ? "spread" : "contiguous",
               it->is_collective ? "true" : "false", bytes, seconds, bytes / seconds / (1 << 20));
        fflush(stdout);
    }
}

/* Gaps hold zeros: nobody has written there. ROMIO's two-phase puts others there, so this is told and no failure. */
static void verify_gaps(const struct pattern *it) {
    MPI_File file;
    MPI_Status status;
    MPI_Offset size;
    long stride = it->size + it->spacing, bytes = 0;
    unsigned char *part = malloc(stride * 1024);
    CHECK(MPI_File_open(MPI_COMM_SELF, it->path, MPI_MODE_RDONLY, MPI_INFO_NULL, &file));
    CHECK(MPI_File_get_size(file, &size));
    if (size != stride * (it->count * process_count - 1) + it->size)
        fail("the file has another size");
    for (MPI_Offset at = 0; at < size; at += stride * 1024) {
        int count;
        CHECK(MPI_File_read_at(file, at, part, (int)(stride * 1024), MPI_BYTE, &status));
        MPI_Get_count(&status, MPI_BYTE, &count);
        for (long i = 0; i < count; i++)
            bytes += i % stride >= it->size && part[i] != 0;
    }
    CHECK(MPI_File_close(&file));
    free(part);
    if (bytes > 0)
        fprintf(stderr, "hpio: %s: %ld bytes between the regions, where nobody wrote, are not zero\n", it->label,
                bytes);
}

static void run(const struct pattern *it) {
    long stride = it->size + it->spacing;
    MPI_Datatype filetype = it->is_file_spread ? regions(it, stride * process_count) : regions(it, it->size);
    MPI_Datatype type = regions(it, memory_stride(it));
    unsigned char *memory = malloc(memory_stride(it) * it->count);
    if (!memory)
        fail("no memory");
    for (int i = 0; i < it->repetitions; i++) {
        if (rank == 0)
            MPI_File_delete(it->path, MPI_INFO_NULL);
        MPI_Barrier(MPI_COMM_WORLD);
        fill(it, memory, i);
        MPI_File file = open_view(it, MPI_MODE_CREATE | MPI_MODE_RDWR, filetype);
        print(it, "write", i, pass(it, file, 1, memory, type));
        print(it, "rewrite", i, pass(it, file, 1, memory, type));
        memset(memory, 0, memory_stride(it) * it->count);
        print(it, "read", i, pass(it, file, 0, memory, type));
        verify(it, memory, i);
        CHECK(MPI_File_close(&file));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0 && it->is_file_spread)
        verify_gaps(it);
    if (rank == 0)
        MPI_File_delete(it->path, MPI_INFO_NULL);
    free(memory);
    MPI_Type_free(&filetype), MPI_Type_free(&type);
}

static void usage(void) {
    if (rank == 0)
        fprintf(stderr, "usage: hpio [-s SIZE] [-p SPACING] [-n COUNT] [-m c|n] [-f c|n] [-i] [-y] [-r REPETITIONS] "
                        "[-l LABEL] PATH\n"
                        "  -s, -p, -n   bytes of a region (5992), bytes between two (256), regions a process (30729)\n"
                        "  -m, -f       memory and file are contiguous or not: c or n (c, n)\n"
                        "  -i           independent calls, not collective ones\n"
                        "  -y           a write is timed with MPI_File_sync\n");
    MPI_Finalize();
    exit(2);
}

int main(int argc, char **argv) {
    struct pattern it = {5992, 256, 30729, 0, 1, 1, 0, 3, NULL, ""};
    int option;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &process_count);
    while ((option = getopt(argc, argv, "s:p:n:m:f:iyr:l:")) != -1)
        switch (option) {
        case 's':
            it.size = atol(optarg);
            break;
        case 'p':
            it.spacing = atol(optarg);
            break;
        case 'n':
            it.count = atol(optarg);
            break;
        case 'm':
            it.is_memory_spread = optarg[0] == 'n';
            break;
        case 'f':
            it.is_file_spread = optarg[0] == 'n';
            break;
        case 'i':
            it.is_collective = 0;
            break;
        case 'y':
            it.is_synced = 1;
            break;
        case 'r':
            it.repetitions = atoi(optarg);
            break;
        case 'l':
            it.label = optarg;
            break;
        default:
            usage();
        }
    if (optind + 1 != argc || it.size <= 0 || it.spacing < 0 || it.count <= 0 || it.size * it.count > 2000000000)
        usage();
    it.path = argv[optind];
    run(&it);
    MPI_Finalize();
    return 0;
}
