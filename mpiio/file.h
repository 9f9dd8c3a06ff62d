/*
 * Files of ours: the state that lies beside a handle of MPI, failures, and what processes agree on.
 */
#ifndef TABANE_MPIIO_FILE_H
#define TABANE_MPIIO_FILE_H

#include "shape.h"

#include <pthread.h>
#include <stdint.h>
#include <time.h>

#define PATH_SIZE_MAX 4096
#define WORDS_SIZE_MAX 256
/* Bytes of a file that tabane_export gives. */
#define EXPORT_SIZE_MAX 128

/* A failure: a class of MPI (MPI_SUCCESS: none), and words for it. */
struct problem {
    int class;
    char words[WORDS_SIZE_MAX];
};

/* What a process sees of a file. */
struct view {
    MPI_Offset displacement;
    MPI_Datatype etype, filetype; /* copies, unless MPI made them */
    int64_t etype_size, filetype_size, filetype_extent;
    struct flat *filetype_flat;
    struct shape *tiles; /* the filetype again and again, which lies at `base` */
    int64_t base;
    int is_contiguous; /* byte `p` of the data is byte `base + p` of the file */
    int is_ascending;  /* as in a flat datatype, over all tiles */
    int is_external;   /* external32 */
    char representation[32];
};

/* Hints of a file, the same at all its processes. */
struct hints {
    int32_t mode_of_reads, mode_of_writes; /* enum mode */
    int32_t aggregator_count;              /* cb_nodes; 0: one for each server, or each process with MODE_VIEW */
    int32_t has_turns;                     /* large bodies wait for permits of servers */
    int32_t unit, factor;                  /* striping_unit and striping_factor of a file that is made; 0: the usual */
    int32_t first;                         /* start_iodevice; -1: the usual */
    int32_t run;                           /* tabane_run; 0: the usual */
    int32_t has_context;                   /* tabane_context: learns from this file, and from earlier ones for it */
    int32_t unused;
    int64_t buffer_size;                   /* cb_buffer_size: bytes of an aggregator in one round; 0: a usual one */
};

struct group;

/* What a file has for collective accesses (collective.c). */
struct collective {
    struct hints hints;
    int remote_count; /* of servers on other nodes; -1: not known yet */
    /* Of the call that is under way: nanoseconds that its mode is expected to take (0: nothing is learned of it). */
    double expected;
    int is_combined;
    /* Processes that combine, made when they first do: those of this node, and all. */
    MPI_Comm node_comm;
    struct group *node, *all;
};

/* What calls of one mode took, and what the model expected of them, in nanoseconds; older calls count less. */
struct experience {
    int64_t measured, expected, calls;
};

/* What one process did to a file, and where it runs. */
struct share {
    int64_t low[2], high[2]; /* reads, writes: from the first byte to behind the last one */
    int64_t bytes[2], calls[2], pieces[2];
    double seconds[2]; /* within calls that waited for it */
    int32_t home, local_count; /* the first server of its node, and how many follow it there; -1: none */
};

struct series;

/* What is learned of a file while it is open (context.c). */
struct context {
    struct timespec opened;
    struct share share;
    int is_known;          /* the next two, which the first process has */
    struct series *series; /* NULL: there was none */
    struct experience experience[2][2];
};

/* A split collective call that has begun. */
enum split {
    SPLIT_NONE,
    SPLIT_READ_AT,
    SPLIT_WRITE_AT,
    SPLIT_READ,
    SPLIT_WRITE,
    SPLIT_READ_ORDERED,
    SPLIT_WRITE_ORDERED,
};

struct file {
    MPI_File handle;
    struct file *next;
    MPI_Comm comm; /* of our own; MPI_COMM_NULL: of one process */
    int rank, process_count;
    int amode, descriptor;
    char path[PATH_SIZE_MAX];
    struct view view;
    struct collective collective;
    pthread_mutex_t lock; /* the members from here on */
    int64_t position;     /* of this process, in bytes of the view's data */
    struct context context;
    int is_atomic;
    enum split split;
    int64_t split_size;
    pthread_mutex_t atomic_lock; /* one access at a time, in atomic mode */
    pthread_mutex_t shared_lock;
    char shared_path[PATH_SIZE_MAX]; /* the hidden file that keeps the pointer, made when it is first needed */
    int shared_descriptor;           /* -1: not open */
    int64_t shared_start;            /* where the pointer is as long as there is no such file */
};

/* Which of our states belongs to a handle; NULL: none, the file is MPI's own. */
struct file *file_of(MPI_File handle);
void file_enter(struct file *file);
void file_leave(struct file *file);

/*
 * Whether a file is ours, by its name: `tabane:/path`, or a path below a mount of the cluster. Puts the path within the
 * cluster into `path`, which has room for PATH_SIZE_MAX bytes; a name that is wrong is ours, with a problem.
 */
int is_ours(const char *name, char *path, struct problem *problem);

/* Whether the first process of a file says what is done, and why (TABANE_MPIIO_EXPLAIN). */
int is_explained(void);

/* Connects this process to the cluster. */
void connect_cluster(struct problem *problem);

void fail(struct problem *problem, int class, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* By errno and tabane_error_message. */
void fail_errno(struct problem *problem, const char *what);
/* Hands a problem to the error handler of the file, or of none; returns its code. */
int raise_problem(MPI_File handle, const struct problem *problem);
/* Our words for a code, which stay; NULL: it is none of ours. */
const char *words_of_code(int code);

/*
 * Combines values of all processes, in place. MPI's own calls keep the core while they wait for the others, and servers
 * of this node may need it: this one lets go of it between looks.
 */
int reduce_all(void *values, int count, MPI_Datatype type, MPI_Op operation, MPI_Comm comm);

/*
 * All processes learn of the first one's problem, if any has one. Returns the largest `value` and `flags` joined;
 * with `is_same`, values that differ are a problem (MPI_ERR_NOT_SAME, with `what` in its words). Waits for all.
 */
int64_t agree(struct file *file, struct problem *problem, int64_t value, const char *is_same);

double seconds_since(const struct timespec *start);

/* Sets a view; the flat types are made before, by `view_make`, which may fail. */
void view_make(struct view *view, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype,
               const char *representation, int is_read_only, struct problem *problem);
void view_drop(struct view *view);
/* Offset in the file of a byte of data. */
int64_t view_offset(const struct view *view, int64_t position);
/* Pieces of the file that an access has, by the size of its first ones. */
int64_t piece_count(const struct view *view, int64_t position, int64_t size);
/* Bytes of data before the end of a file of this size. */
int64_t view_size(const struct view *view, int64_t file_size);

/* The shared pointer, in bytes of data: moved by an amount, or set; returns where it was. */
int64_t shared_move(struct file *file, int64_t amount, struct problem *problem);
int64_t shared_get(struct file *file, struct problem *problem);
void shared_set(struct file *file, int64_t position, struct problem *problem);
int shared_is_used(struct file *file);
void shared_close(struct file *file);
/* By one process, when all have closed it. */
void shared_remove(const char *path);

#endif
