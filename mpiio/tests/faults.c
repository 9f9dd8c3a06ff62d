/*
 * Collective calls while servers die, and in a store that is too small. Runs as `faults KIND PLACE MODE`: PLACE is
 * tabane:/ and a directory, MODE a value of the hint tabane_collective; faults.sh does what the kinds need around it.
 *
 *   endure  rounds of collective writes and reads until PLACE/stop is there; all have to do what they are to do
 *   fail    rounds until a call fails: at all processes the same one, each in time, with words
 *   die     as endure, but process 1 kills itself within a collective write
 */
#include "test.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

/* HPIO's shape: pieces, their bytes, and bytes between those of a process and its neighbour's. */
enum { PIECE = 5992, SPACING = 256, PIECES = 400, STRIDE = PIECE + SPACING };
/* Seconds that a call may take: where servers are started again, and where one is not, for which TABANE_TIMEOUT_MS (8 s
   here) is waited once. */
enum { ENDURED_MAX = 60, FAILED_MAX = 14 };

static const char *mode;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static unsigned char byte_of(int process, int round, size_t at) {
    return (unsigned char)(process * 89 + round * 31 + at * 7 + at / PIECE);
}

/* The processes' pieces take turns; that of `process`. */
static void set_view(MPI_File file, int process) {
    MPI_Datatype piece, pieces;
    GOOD(MPI_Type_contiguous(PIECE, MPI_BYTE, &piece));
    GOOD(MPI_Type_create_resized(piece, 0, (MPI_Aint)STRIDE * process_count, &pieces));
    GOOD(MPI_Type_commit(&pieces));
    GOOD(MPI_File_set_view(file, (MPI_Offset)STRIDE * process, MPI_BYTE, pieces, "native", MPI_INFO_NULL));
    MPI_Type_free(&piece);
    MPI_Type_free(&pieces);
}

static void *kill_soon(void *argument) {
    struct timespec pause = {0, 2000000};
    (void)argument;
    nanosleep(&pause, NULL);
    kill(getpid(), SIGKILL);
    return NULL;
}

/* Whether the script has made a file that says so; asked by process 0, for all. */
static int is_told_to_stop(void) {
    int is_told = 0;
    if (rank == 0)
        is_told = access(getenv("FAULTS_STOP"), F_OK) == 0;
    MPI_Bcast(&is_told, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return is_told;
}

/* All processes have to be told the same of one collective call, in time. */
static int same_for_all(int result, double since, const char *call) {
    int class = result == MPI_SUCCESS ? MPI_SUCCESS : class_of(result), least, most;
    MPI_Allreduce(&class, &least, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(&class, &most, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (least != most) {
        fprintf(stderr, "process %d: %s: class %d here, %d to %d elsewhere\n", rank, call, class, least, most);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    if (now() - since > (class == MPI_SUCCESS ? ENDURED_MAX : FAILED_MAX)) {
        fprintf(stderr, "process %d: %s took %.1f s\n", rank, call, now() - since);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return class;
}

static void tell_failure(int result, double since, const char *call) {
    char words[MPI_MAX_ERROR_STRING];
    int size;
    if (rank != 0)
        return;
    MPI_Error_string(result, words, &size);
    printf("%s: %s: %s (after %.1f s)\n", call, class_of(result) == MPI_ERR_NO_SPACE ? "no space" : "failed", words,
           now() - since);
}

int main(int argc, char **argv) {
    MPI_File file;
    MPI_Info info;
    const size_t size = (size_t)PIECE * PIECES;
    unsigned char *bytes = malloc(size), *read = malloc(size);
    int round, result = MPI_SUCCESS;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &process_count);
    CHECK(argc == 4 && getenv("FAULTS_STOP"));
    place = argv[2], mode = argv[3];
    MPI_Info_create(&info);
    MPI_Info_set(info, "tabane_collective", mode);
    GOOD(MPI_File_open(MPI_COMM_WORLD, path(mode), MPI_MODE_CREATE | MPI_MODE_RDWR, info, &file));
    MPI_File_set_errhandler(file, MPI_ERRORS_RETURN);

    for (round = 0; !is_told_to_stop(); round++) {
        int is_filling = strcmp(argv[1], "fail") == 0;
        /* A file that fails grows, so that a store fills as well. */
        MPI_Offset offset = is_filling ? (MPI_Offset)round * size : 0;
        int reader = (rank + 1) % process_count;
        double since = now();
        pthread_t killer;

        for (size_t at = 0; at < size; at++)
            bytes[at] = byte_of(rank, round, at);
        set_view(file, rank);
        if (strcmp(argv[1], "die") == 0 && rank == 1 && round == 3)
            CHECK(pthread_create(&killer, NULL, kill_soon, NULL) == 0);
        result = MPI_File_write_at_all(file, offset, bytes, size, MPI_BYTE, MPI_STATUS_IGNORE);
        if (same_for_all(result, since, "write_at_all") != MPI_SUCCESS) {
            tell_failure(result, since, "write_at_all");
            break;
        }
        since = now();
        result = MPI_File_sync(file);
        if (same_for_all(result, since, "sync") != MPI_SUCCESS) {
            tell_failure(result, since, "sync");
            break;
        }
        MPI_Barrier(MPI_COMM_WORLD);

        since = now();
        memset(read, 0, size);
        set_view(file, reader);
        result = MPI_File_read_at_all(file, offset, read, size, MPI_BYTE, MPI_STATUS_IGNORE);
        if (same_for_all(result, since, "read_at_all") != MPI_SUCCESS) {
            tell_failure(result, since, "read_at_all");
            break;
        }
        for (size_t at = 0; at < size; at++)
            if (read[at] != byte_of(reader, round, at)) {
                fprintf(stderr, "process %d: round %d: byte %zu of process %d is wrong\n", rank, round, at, reader);
                MPI_Abort(MPI_COMM_WORLD, 1);
            }
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0) {
            printf("round %d\n", round);
            fflush(stdout);
        }
    }
    if (strcmp(argv[1], "fail") != 0 && result != MPI_SUCCESS)
        MPI_Abort(MPI_COMM_WORLD, 1);
    /* A file of which a server is gone closes too, with an error or without. */
    MPI_File_close(&file);
    MPI_Info_free(&info);
    free(bytes);
    free(read);
    if (rank == 0)
        printf("done\n");
    MPI_Finalize();
    return 0;
}
