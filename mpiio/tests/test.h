/*
 * What the tests share. Each runs as `NAME PLACE`: PLACE is a directory on tmpfs, or tabane:/ and a directory. What it
 * prints and the files that it leaves must be the same for both (run.sh compares them), so it prints results and no
 * words of an MPI.
 */
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, process_count;
static const char *place;

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "process %d: %s:%d: %s\n", rank, __FILE__, __LINE__, #condition); \
            MPI_Abort(MPI_COMM_WORLD, 1); \
        } \
    } while (0)

/* A call that has to succeed. */
#define GOOD(call) good(call, #call, __LINE__)

static inline void good(int result, const char *call, int line) {
    char words[MPI_MAX_ERROR_STRING];
    int size;
    if (result == MPI_SUCCESS)
        return;
    MPI_Error_string(result, words, &size);
    fprintf(stderr, "process %d: line %d: %s: %s\n", rank, line, call, words);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static inline void start(int argc, char **argv) {
#ifdef THREADS
    int level;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
#else
    MPI_Init(&argc, &argv);
#endif
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &process_count);
    CHECK(argc == 2);
    place = argv[1];
}

/* A path in the place; valid until the fourth next call. */
static inline const char *path(const char *name) {
    static char paths[4][1024];
    static int next;
    char *it = paths[next++ % 4];
    snprintf(it, sizeof paths[0], "%s/%s", place, name);
    return it;
}

static inline MPI_File open_as(const char *name, int amode) {
    MPI_File file;
    GOOD(MPI_File_open(MPI_COMM_WORLD, path(name), amode, MPI_INFO_NULL, &file));
    return file;
}

static inline MPI_File open_new(const char *name) {
    MPI_File file = open_as(name, MPI_MODE_CREATE | MPI_MODE_RDWR);
    GOOD(MPI_File_set_size(file, 0));
    return file;
}

/* The same with bytes in it: what MPI's own library leaves between parts of a new file differs from run to run. */
static inline MPI_File open_filled(const char *name, int size) {
    MPI_File file = open_new(name);
    char *bytes = malloc(size);
    memset(bytes, 0x5a, size);
    if (rank == 0)
        GOOD(MPI_File_write_at(file, 0, bytes, size, MPI_BYTE, MPI_STATUS_IGNORE));
    free(bytes);
    GOOD(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    GOOD(MPI_File_sync(file));
    return file;
}

/* A number of the contents, by FNV-1a. */
static inline unsigned sum_of(const void *bytes, size_t size) {
    unsigned sum = 2166136261u;
    for (size_t i = 0; i < size; i++)
        sum = (sum ^ ((const unsigned char *)bytes)[i]) * 16777619u;
    return sum;
}

/* Prints what all processes say, in their order. */
static inline void tell(const char *what, long long value) {
    long long all[64];
    CHECK(process_count <= 64);
    MPI_Gather(&value, 1, MPI_LONG_LONG, all, 1, MPI_LONG_LONG, 0, MPI_COMM_WORLD);
    if (rank != 0)
        return;
    printf("%s:", what);
    for (int i = 0; i < process_count; i++)
        printf(" %lld", all[i]);
    printf("\n");
}

static inline long long count_of(const MPI_Status *status, MPI_Datatype type) {
    MPI_Count count;
    MPI_Get_elements_x(status, type, &count);
    return count;
}

static inline int class_of(int code) {
    int class;
    MPI_Error_class(code, &class);
    return class;
}

/* Every process has written and seen what the others did. */
static inline void all_see(MPI_File file) {
    GOOD(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    GOOD(MPI_File_sync(file));
}

static inline void end(void) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("done\n");
    MPI_Finalize();
}
