/* The table of files, failures in MPI's classes, views, and agreement. */

#include "file.h"

#include <tabane.h>

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUCKET_COUNT 256
/* Codes of MPI for our words: MPI has room for some thousands, and keeps them for ever. */
#define CODE_COUNT_MAX 512
/* Pieces that are looked at to find how large they are. */
#define SAMPLE_COUNT_MAX 64

static struct file *buckets[BUCKET_COUNT];
static pthread_rwlock_t table = PTHREAD_RWLOCK_INITIALIZER;

static struct file **bucket_of(MPI_File handle) {
    uint64_t key = (uint64_t)(uintptr_t)handle;
    return &buckets[(key * 0x9e3779b97f4a7c15u) >> 56];
}

struct file *file_of(MPI_File handle) {
    pthread_rwlock_rdlock(&table);
    struct file *file = *bucket_of(handle);
    while (file && file->handle != handle)
        file = file->next;
    pthread_rwlock_unlock(&table);
    return file;
}

void file_enter(struct file *file) {
    pthread_rwlock_wrlock(&table);
    struct file **bucket = bucket_of(file->handle);
    file->next = *bucket;
    *bucket = file;
    pthread_rwlock_unlock(&table);
}

void file_leave(struct file *file) {
    pthread_rwlock_wrlock(&table);
    struct file **place = bucket_of(file->handle);
    while (*place != file)
        place = &(*place)->next;
    *place = file->next;
    pthread_rwlock_unlock(&table);
}

int is_ours(const char *name, char *path, struct problem *problem) {
    static const char prefix[] = "tabane:";
    path[0] = 0;
    if (!name)
        return 0;
    if (strncmp(name, prefix, sizeof prefix - 1))
        return tabane_path_below_mount(name, path, PATH_SIZE_MAX) > 0;
    name += sizeof prefix - 1;
    if (name[0] != '/')
        fail(problem, MPI_ERR_BAD_FILE, "tabane: behind tabane: comes a path from the root, as in tabane:/a/b");
    else if (strlen(name) >= PATH_SIZE_MAX)
        fail(problem, MPI_ERR_BAD_FILE, "tabane: a path has up to %d bytes", PATH_SIZE_MAX - 1);
    else
        strcpy(path, name);
    return 1;
}

int is_explained(void) {
    return getenv("TABANE_MPIIO_EXPLAIN") != NULL;
}

void connect_cluster(struct problem *problem) {
    if (problem->class == MPI_SUCCESS && tabane_init(NULL) != 0)
        fail_errno(problem, "no connection to a cluster");
}

void fail(struct problem *problem, int class, const char *format, ...) {
    if (problem->class != MPI_SUCCESS)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(problem->words, sizeof problem->words, format, arguments);
    va_end(arguments);
    problem->class = class;
}

static int class_of(int number) {
    switch (number) {
    case ENOENT:
        return MPI_ERR_NO_SUCH_FILE;
    case EEXIST:
        return MPI_ERR_FILE_EXISTS;
    case EACCES:
    case EPERM:
        return MPI_ERR_ACCESS;
    case EROFS:
        return MPI_ERR_READ_ONLY;
    case ENOSPC:
        return MPI_ERR_NO_SPACE;
    case EDQUOT:
        return MPI_ERR_QUOTA;
    case ENAMETOOLONG:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENXIO:
        return MPI_ERR_BAD_FILE;
    case EBUSY:
    case ETXTBSY:
        return MPI_ERR_FILE_IN_USE;
    case EOPNOTSUPP:
        return MPI_ERR_UNSUPPORTED_OPERATION;
    default:
        return MPI_ERR_IO;
    }
}

void fail_errno(struct problem *problem, const char *what) {
    int number = errno;
    const char *words = tabane_error_message();
    fail(problem, class_of(number), "tabane: %s: %s", what, words && *words ? words : tabane_strerror(number));
}

/* Codes of MPI that have words of ours. */
static struct problem words_known[CODE_COUNT_MAX];
static int codes_known[CODE_COUNT_MAX], code_count;
static pthread_mutex_t codes_lock = PTHREAD_MUTEX_INITIALIZER;

/* A code of the problem's class for its words; the class itself once there are too many. */
static int code_of(const struct problem *problem) {
    int code = problem->class, class = 0, i = 0;
    pthread_mutex_lock(&codes_lock);
    while (i < code_count && (words_known[i].class != problem->class || strcmp(words_known[i].words, problem->words)))
        i++;
    if (i < code_count) {
        code = codes_known[i];
    } else if (code_count < CODE_COUNT_MAX && PMPI_Add_error_code(problem->class, &code) == MPI_SUCCESS) {
        PMPI_Add_error_string(code, problem->words);
        if (PMPI_Error_class(code, &class) != MPI_SUCCESS || class != problem->class)
            code = problem->class;
        words_known[code_count] = *problem;
        codes_known[code_count++] = code;
    } else {
        code = problem->class;
    }
    pthread_mutex_unlock(&codes_lock);
    return code;
}

const char *words_of_code(int code) {
    const char *words = NULL;
    pthread_mutex_lock(&codes_lock);
    for (int i = 0; i < code_count && !words; i++)
        if (codes_known[i] == code && code != words_known[i].class)
            words = words_known[i].words;
    pthread_mutex_unlock(&codes_lock);
    return words;
}

/* Whether the handler of this file ends the program. */
static int is_fatal(MPI_File handle) {
    MPI_Errhandler handler;
    if (PMPI_File_get_errhandler(handle, &handler) != MPI_SUCCESS)
        return 0;
    int is_fatal = handler == MPI_ERRORS_ARE_FATAL;
#if MPI_VERSION >= 4
    is_fatal = is_fatal || handler == MPI_ERRORS_ABORT;
#endif
    PMPI_Errhandler_free(&handler);
    return is_fatal;
}

int raise_problem(MPI_File handle, const struct problem *problem) {
    if (problem->class == MPI_SUCCESS)
        return MPI_SUCCESS;
    int code = code_of(problem);
    if (is_fatal(handle)) {
        fprintf(stderr, "%s\n", problem->words);
        code = problem->class;
#if defined(OPEN_MPI)
        if (handle == MPI_FILE_NULL)
            PMPI_Abort(MPI_COMM_WORLD, code);
#endif
    }
#if defined(OPEN_MPI)
    /* It takes no MPI_FILE_NULL here; a handler of the program's own for failures to open is not called then. */
    if (handle == MPI_FILE_NULL)
        return code;
#endif
    PMPI_File_call_errhandler(handle, code);
    return code;
}

int reduce_all(void *values, int count, MPI_Datatype type, MPI_Op operation, MPI_Comm comm) {
    MPI_Request request;
    int is_over = 0, result = PMPI_Iallreduce(MPI_IN_PLACE, values, count, type, operation, comm, &request);
    while (result == MPI_SUCCESS && !is_over) {
        result = PMPI_Test(&request, &is_over, MPI_STATUS_IGNORE);
        if (!is_over)
            sched_yield();
    }
    return result;
}

int64_t agree(struct file *file, struct problem *problem, int64_t value, const char *is_same) {
    if (file->process_count == 1)
        return value;
    /* One reduction: the class and the first process that has it, and the least and the largest value. */
    int64_t all[3] = {0, value, -value};
    if (problem->class != MPI_SUCCESS)
        all[0] = ((int64_t)problem->class << 32) | (int64_t)(INT32_MAX - file->rank);
    if (reduce_all(all, 3, MPI_INT64_T, MPI_MAX, file->comm) != MPI_SUCCESS) {
        fail(problem, MPI_ERR_OTHER, "tabane: the processes can't agree on the end of a collective call");
        return value;
    }
    if (all[0] != 0) {
        PMPI_Bcast(problem, sizeof *problem, MPI_BYTE, INT32_MAX - (int)(all[0] & INT32_MAX), file->comm);
        return value;
    }
    if (is_same && all[1] != -all[2])
        fail(problem, MPI_ERR_NOT_SAME, "tabane: the processes name different values: %s", is_same);
    return all[1];
}

double seconds_since(const struct timespec *start) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - start->tv_sec) + 1e-9 * (double)(now.tv_nsec - start->tv_nsec);
}

void view_drop(struct view *view) {
    shape_release(view->tiles);
    flat_release(view->filetype_flat);
    if (view->etype != MPI_DATATYPE_NULL && !type_is_predefined(view->etype))
        PMPI_Type_free(&view->etype);
    if (view->filetype != MPI_DATATYPE_NULL && !type_is_predefined(view->filetype))
        PMPI_Type_free(&view->filetype);
    memset(view, 0, sizeof *view);
    view->etype = view->filetype = MPI_DATATYPE_NULL;
}

/* Tiles as far as offsets go. */
static void view_tile(struct view *view) {
    const struct flat *flat = view->filetype_flat;
    int64_t larger = flat->extent > flat->shape->size ? flat->extent : flat->shape->size;
    int64_t count = (INT64_MAX / 2) / (larger > 0 ? larger : 1);
    view->filetype_size = flat->shape->size;
    view->filetype_extent = flat->extent;
    view->tiles = shape_repeat(count, flat->extent, flat->shape);
    view->base = view->displacement + flat->shift;
    view->is_contiguous = view->tiles->kind == SHAPE_BLOCK;
    view->is_ascending = shape_ascends(flat->shape, flat->extent);
}

/* What MPI asks of the displacements of etypes and filetypes. */
static void check_order(const struct flat *flat, const char *which, int is_read_only, struct problem *problem) {
    if (!flat || flat->shape->size == 0)
        return;
    if (flat->shift + shape_displacement(flat->shape, 0) < 0 || !flat->is_ordered)
        fail(problem, MPI_ERR_IO, "tabane: the displacements of %s are not negative and ascend", which);
    else if (!flat->is_ascending && !is_read_only)
        fail(problem, MPI_ERR_IO, "tabane: the parts of %s overlap, and the file is open for writing", which);
}

void view_make(struct view *view, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype,
               const char *representation, int is_read_only, struct problem *problem) {
    memset(view, 0, sizeof *view);
    view->etype = view->filetype = MPI_DATATYPE_NULL;
    if (problem->class != MPI_SUCCESS)
        return;
    if (etype == MPI_DATATYPE_NULL || filetype == MPI_DATATYPE_NULL) {
        fail(problem, MPI_ERR_TYPE, "tabane: a view takes two datatypes, and one is MPI_DATATYPE_NULL");
        return;
    }
    snprintf(view->representation, sizeof view->representation, "%s", representation ? representation : "");
    view->is_external = !strcmp(view->representation, "external32");
    view->displacement = displacement;
    if (!view->is_external && strcmp(view->representation, "native") && strcmp(view->representation, "internal")) {
        fail(problem, MPI_ERR_UNSUPPORTED_DATAREP,
             "tabane: representations of data are native, internal and external32, and not %s", view->representation);
        return;
    }
    enum form form = view->is_external ? FORM_EXTERNAL : FORM_MEMORY;
    struct flat *flat = flat_of(etype, form);
    view->filetype_flat = flat_of(filetype, form);
    if (flat)
        view->etype_size = flat->shape->size;
    if (!flat || !view->filetype_flat)
        fail(problem, MPI_ERR_TYPE, "tabane: a datatype of the view can't be taken apart");
    else if (view->etype_size <= 0 && view->filetype_flat->shape->size > 0)
        fail(problem, MPI_ERR_ARG, "tabane: the elementary datatype of a view has bytes");
    else if (view->etype_size > 0 && view->filetype_flat->shape->size % view->etype_size != 0)
        fail(problem, MPI_ERR_ARG, "tabane: the filetype of a view is made of whole etypes");
    check_order(flat, "an etype", is_read_only, problem);
    check_order(view->filetype_flat, "a filetype", is_read_only, problem);
    flat_release(flat);
    if (problem->class != MPI_SUCCESS)
        return;
    view_tile(view);
    view->etype = etype, view->filetype = filetype;
    if (!type_is_predefined(etype))
        PMPI_Type_dup(etype, &view->etype);
    if (!type_is_predefined(filetype))
        PMPI_Type_dup(filetype, &view->filetype);
}

int64_t view_offset(const struct view *view, int64_t position) {
    if (view->is_contiguous || view->filetype_size == 0)
        return view->base + position;
    return view->base + shape_displacement(view->tiles, position);
}

int64_t view_size(const struct view *view, int64_t file_size) {
    if (view->filetype_size == 0 || file_size <= view->base)
        return 0;
    if (view->is_contiguous)
        return file_size - view->base;
    /* The least position whose byte is at or beyond the end. */
    int64_t low = 0, high = view->tiles->size;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (view_offset(view, middle) < file_size)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Counts pieces, of the file or of memory. */
struct sample {
    int64_t count, size;
};

static int count_piece(void *context, int64_t displacement, int64_t size) {
    struct sample *sample = context;
    (void)displacement;
    sample->count++, sample->size += size;
    return sample->count == SAMPLE_COUNT_MAX;
}

int64_t piece_count(const struct view *view, int64_t position, int64_t size) {
    struct sample sample = {0};
    if (size == 0 || view->is_contiguous)
        return size > 0;
    shape_walk(view->tiles, view->base, position, position + size, count_piece, &sample);
    return sample.size > 0 ? size / (sample.size / sample.count > 0 ? sample.size / sample.count : 1) : 0;
}
