/* Requests of nonblocking calls, and what MPI is told of any call. */
#ifndef TABANE_MPIIO_REQUESTS_H
#define TABANE_MPIIO_REQUESTS_H

#include "file.h"

struct started;

/* Whether calls may go on while the program does something else. */
int requests_overlap(void);

/*
 * Makes the request of a call that goes on, or that is done already (`started` is NULL). Returns a code of MPI; where
 * it makes no request, the call has ended.
 */
int request_make(struct file *file, struct started *started, int64_t moved, const struct problem *problem,
                 MPI_Request *handle);

void fill_status(MPI_Status *status, int64_t size);

#endif
