/*
 * Collective accesses in which processes combine what they write or read before servers are asked: which mode, who asks
 * which server, and the exchange itself.
 */
#ifndef TABANE_MPIIO_COLLECTIVE_H
#define TABANE_MPIIO_COLLECTIVE_H

#include "file.h"
#include "transfer.h"

/* What happens to a collective access. */
enum mode {
    MODE_AUTO,   /* the one that is cheapest for the pieces at hand */
    MODE_LIST,   /* each process sends its own lists of ranges; no exchange */
    MODE_NODE,   /* processes of a node combine; of these, one asks each server */
    MODE_STRIPE, /* one process asks each server, on the server's node where there is one */
    MODE_VIEW,   /* processes get equal parts of the file, in their order */
    MODE_COUNT,
};

void collective_open(struct collective *collective);
/* By all processes. */
void collective_close(struct collective *collective);

/* Takes the hints of the first process for all; values that can't be taken are a problem. By all processes. */
void hints_take(struct file *file, MPI_Info info, struct problem *problem);
/* The same of the hints in TABANE_MPIIO_HINTS: key=value, with commas between them. */
void hints_of_environment(struct file *file, struct problem *problem);
/* Tells the hints that hold. */
void hints_tell(const struct file *file, MPI_Info info);

/*
 * `transfer` by all processes of the file together, each with its own access, or with a problem of its own, where
 * nothing is moved by anybody. Returns the bytes of memory that were moved here. Agrees on nothing at its end.
 */
int64_t transfer_collective(struct file *file, int is_write, int64_t position, void *buffer, int64_t count,
                            MPI_Datatype type, struct problem *problem);

/* A group of processes that combine, `node` or all of a file's. Collective; NULL where there is no memory. */
struct group *group_open(MPI_Comm comm, int descriptor, const struct hints *hints, struct problem *problem);
void group_close(struct group *group);

/* How the file is cut, for one access. */
struct cut {
    int is_by_process; /* equal parts in order of processes, of `low` to `high`; else by servers */
    int64_t low, high;
};

/*
 * Moves what each process of the group has to move. The view of each ascends. Returns the bytes of data that were
 * moved here. Processes whose share fails go on with the others until all stop.
 */
int64_t exchange(struct group *group, struct file *file, int is_write, const struct cut *cut, int64_t position,
                 const struct memory *memory, int64_t size, struct problem *problem);

#endif
