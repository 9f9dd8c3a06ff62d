/* Bytes between memory and a file, by this process alone. */
#ifndef TABANE_MPIIO_TRANSFER_H
#define TABANE_MPIIO_TRANSFER_H

#include "file.h"

/* Memory of a call: a shape that is repeated, or contiguous bytes. */
struct memory {
    char *base;
    struct shape *shape; /* NULL: contiguous */
};

/* A part of a file, and where its bytes are in memory. */
struct piece {
    int64_t offset, size;
    char *place;
};

/*
 * Moves `count` values between memory and `size_of_data` bytes of data from `position` on. Returns the bytes of memory
 * that were moved.
 */
int64_t transfer(struct file *file, int is_write, int64_t position, void *buffer, int64_t count, MPI_Datatype type,
                 struct problem *problem);

struct started;

/*
 * Starts what `transfer` does, to go on by itself. NULL, with nothing done, where it takes more than one list, or a
 * lock, or is refused: `transfer` does it then.
 */
struct started *transfer_start(struct file *file, int is_write, int64_t position, void *buffer, int64_t count,
                               MPI_Datatype type);

/*
 * Whether it is done, or with `waits` once it is; then `moved` has the bytes of memory that were moved, and there is
 * nothing left of it.
 */
int transfer_end(struct started *started, int waits, int64_t *moved, struct problem *problem);

/*
 * Moves pieces in their order, and uses them up. Returns the offset of the first byte that is not there, because the
 * file ends before it; INT64_MAX where all were moved, or on a failure.
 */
int64_t transfer_pieces(struct file *file, int is_write, struct piece *pieces, int64_t piece_count,
                        struct problem *problem);

/* Bytes of the file that `count` values take, or -1. */
int64_t data_size(const struct file *file, int64_t count, MPI_Datatype type);

/* Bytes of an access from `position` on; a problem where it ends beyond all offsets. */
int64_t access_size(const struct file *file, int64_t position, int64_t count, MPI_Datatype type,
                    struct problem *problem);

/* The memory of `count` values; `flat` is of their datatype. To be dropped by `memory_drop`. */
struct memory memory_of(const struct flat *flat, void *buffer, int64_t count);
void memory_drop(struct memory *memory);

/* Copies bytes `from` to `to` of memory, in the order of its data, to `place`, or with `is_out` from there. */
void memory_copy(const struct memory *memory, char *place, int64_t from, int64_t to, int is_out);

#endif
