/*
 * Context: what files of a series had done to them, kept with their directory, and what the next file of the series is
 * given for it: a layout and modes. A series are the files of a directory whose names are the same but for digits.
 */
#ifndef TABANE_MPIIO_CONTEXT_H
#define TABANE_MPIIO_CONTEXT_H

#include "file.h"

#include <tabane.h>

#define CONTEXT_ATTRIBUTE "user.tabane.context"
/* Series that a directory remembers; those go that were not used for longest. */
#define SERIES_COUNT_MAX 24
#define SERIES_NAME_SIZE_MAX 256
/* Files with fewer bytes moved, over all processes, are not learned from. */
#define LEARNED_SIZE_LEAST (INT64_C(1) << 20)

/* Where chunks lie; `unit` 0: as usual. As in struct tabane_layout. */
struct context_layout {
    int64_t unit;
    int32_t run, width, first;
};

struct series {
    char name[SERIES_NAME_SIZE_MAX]; /* runs of digits are '#' */
    int64_t used;                    /* seconds since 1970 */
    int64_t files;                   /* that were learned from */
    int64_t bytes[2], calls[2], pieces[2]; /* of the last file: reads, writes */
    int32_t pauses;                        /* percent of the time that the last file was open, without an access */
    int32_t servers;                       /* of the cluster that `layout` is for */
    struct context_layout layout;          /* for the next file */
    int32_t is_refused;                    /* it was tried, and was slower */
    int64_t speed_usual, speed_own;        /* bytes a second, of files as usual, and of those with `layout` */
    struct experience experience[2][2];    /* of reads and writes: apart, and combined */
};

/* The name of a series: of a path's last part, with each run of digits as '#'. Empty: it can't be kept. */
void series_name(const char *path, char name[SERIES_NAME_SIZE_MAX]);
/* A directory's series, of a text; returns how many. What can't be read is left out. */
int series_parse(const char *text, struct series *all);
/* The text of series, which ends with a NUL. To be freed. */
char *series_print(const struct series *all, int count);

/*
 * The time that an access of all these shares would take with a layout, in nanoseconds, by who has to move how much to
 * whom: the busiest server's or node's.
 */
double layout_time(const struct context_layout *layout, int servers, const struct share *shares, int count);
/*
 * The layout that would take the least time, where that is much less than with `usual`; else one with `unit` 0.
 */
struct context_layout layout_for(const struct tabane_layout *usual, const struct share *shares, int count);

/* Takes in what one file had done to it; `held` is the layout that it had. */
void series_learn(struct series *series, const struct tabane_layout *held, const struct share *shares, int count,
                  double open_seconds);

/* What the first process knows of a file's series: read from its directory at first. */
const struct series *context_of(struct file *file);
/* The layout of a file that is about to be made; by the first process. */
void context_layout(struct file *file, struct tabane_layout *layout);
/*
 * A call has ended that moved `size` bytes from `position` on, and took so long; 0: nobody waited for it. Of collective
 * calls the first process learns what their mode took.
 */
void context_note(struct file *file, int is_write, int64_t position, int64_t size, double seconds, int is_collective);
/* How often a mode took how much longer or shorter than expected. By the first process. */
const struct experience *context_experience(struct file *file, int is_write);
/* At the close: takes in what all processes did. By all processes; `moved` is the most that one has. */
void context_close(struct file *file, int64_t moved);
/* Gives back what it has. */
void context_drop(struct context *context);
/* Before the close: finds where this process runs; returns the bytes that it has moved. */
int64_t context_finish(struct file *file);

#endif
