/*
 * Datatypes as shapes: where the bytes of one value of a datatype lie, as a tree that is never larger than what the
 * datatype was made from. A vector of a million blocks is one node.
 */
#ifndef TABANE_MPIIO_SHAPE_H
#define TABANE_MPIIO_SHAPE_H

#include <mpi.h>

#include <stdint.h>

/* What a shape is made of. */
enum shape_kind {
    SHAPE_BLOCK,  /* bytes one after the other, from displacement 0 on */
    SHAPE_REPEAT, /* another shape several times, at displacements 0, stride, 2 stride, ... */
    SHAPE_LIST,   /* several blocks or shapes, each at its displacement */
};

struct shape;

struct shape_entry {
    int64_t displacement;
    int64_t begin;       /* bytes of data in the entries before it */
    struct shape *child; /* NULL: a block, up to the beginning of the next entry */
};

struct shape {
    enum shape_kind kind;
    int users;
    int64_t size;  /* bytes of data */
    int64_t count; /* of repetitions, or of entries */
    int64_t stride;
    struct shape *child;
    struct shape_entry *entries;
    MPI_Datatype element; /* what a block is made of, in FORM_ELEMENTS */
    int64_t element_size;
};

/* What is asked of a datatype. */
enum form {
    FORM_MEMORY,   /* where its bytes lie */
    FORM_EXTERNAL, /* the same in a file in external32, whose values have sizes of their own and are not aligned */
    FORM_ELEMENTS, /* as in memory, each block of elements of one datatype that MPI made */
    FORM_COUNT,
};

/* A datatype: its shape lies at displacement `shift`. `extent` is the distance of one value to the next. */
struct flat {
    struct shape *shape;
    int64_t shift;
    int64_t lower;
    int64_t extent;
    int is_ascending; /* each byte lies behind the one before it */
    int is_ordered;   /* each segment begins no earlier than the one before it; they may overlap */
    int users;
};

/* Gets a segment: its displacement and size in bytes. Other than 0 ends the walk. */
typedef int (*shape_segment)(void *context, int64_t displacement, int64_t size);

/*
 * A datatype, flat; kept with it (as an attribute) until it is freed. NULL where it can't be taken apart. To be
 * released.
 */
struct flat *flat_of(MPI_Datatype type, enum form form);
void flat_release(struct flat *flat);

/* Whether the datatype is one that MPI made and nobody frees. */
int type_is_predefined(MPI_Datatype type);

/* Segments of the bytes `from` to `to` of a shape that lies at `base`, in the order of the datatype. */
int shape_walk(const struct shape *shape, int64_t base, int64_t from, int64_t to, shape_segment segment, void *context);

/* Displacement of one byte of a shape. */
int64_t shape_displacement(const struct shape *shape, int64_t position);

/* `count` values, one after the other at distance `stride`. To be released. */
struct shape *shape_repeat(int64_t count, int64_t stride, struct shape *child);
void shape_release(struct shape *shape);

/* Whether each byte lies behind the one before it, also from one repetition at distance `stride` to the next. */
int shape_ascends(const struct shape *shape, int64_t stride);

#endif
