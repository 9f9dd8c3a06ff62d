/*
 * MPI_File_* and PMPI_File_*. What is not here (get_group, error handlers, c2f and f2c) is MPI's own for our files too,
 * for their handles are MPI's. Calls on other files go on to MPI.
 */
#include "collective.h"
#include "context.h"
#include "requests.h"
#include "transfer.h"

#include <tabane.h>

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void *original(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) {
        fprintf(stderr, "libtabane_mpiio: there is no %s behind this library; is it loaded before MPI's?\n", name);
        abort();
    }
    return found;
}

/* MPI's own function. */
#define ORIGINAL(name) \
    ({ \
        static __typeof__(&name) known; \
        __typeof__(&name) it = __atomic_load_n(&known, __ATOMIC_RELAXED); \
        if (!it) { \
            it = (__typeof__(&name))original("P" #name); \
            __atomic_store_n(&known, it, __ATOMIC_RELAXED); \
        } \
        it; \
    })

#define OFFERED __attribute__((visibility("default")))
#define ALIAS(name) extern __typeof__(name) P##name __attribute__((alias(#name), visibility("default")));

/* A call with a handle `fh`: `ours`, if `file` is one of ours. */
#define CALL(name, parameters, arguments, ours) \
    OFFERED int name parameters { \
        struct file *file = file_of(fh); \
        if (!file) \
            return ORIGINAL(name) arguments; \
        return ours; \
    } \
    ALIAS(name)

/*
 * MPICH has words for classes that it was given, and for codes in them, but not for codes in its own classes: it shows
 * other ones then. So our codes are told here.
 */
OFFERED int MPI_Error_string(int code, char *words, int *size) {
    const char *ours = words_of_code(code);
    if (!ours)
        return ORIGINAL(MPI_Error_string)(code, words, size);
    *size = snprintf(words, MPI_MAX_ERROR_STRING, "%s", ours);
    if (*size >= MPI_MAX_ERROR_STRING)
        *size = MPI_MAX_ERROR_STRING - 1;
    return MPI_SUCCESS;
}
ALIAS(MPI_Error_string)

/* ---- Open and close ---- */

static int flags_of(int amode, struct problem *problem) {
    int kinds = !!(amode & MPI_MODE_RDONLY) + !!(amode & MPI_MODE_WRONLY) + !!(amode & MPI_MODE_RDWR);
    if (kinds != 1)
        fail(problem, MPI_ERR_AMODE, "tabane: an access mode has one of MPI_MODE_RDONLY, RDWR and WRONLY");
    else if ((amode & MPI_MODE_RDONLY) && (amode & (MPI_MODE_CREATE | MPI_MODE_EXCL)))
        fail(problem, MPI_ERR_AMODE, "tabane: who only reads makes no file: MPI_MODE_RDONLY with CREATE or EXCL");
    else if ((amode & MPI_MODE_RDWR) && (amode & MPI_MODE_SEQUENTIAL))
        fail(problem, MPI_ERR_AMODE, "tabane: MPI_MODE_SEQUENTIAL is for reading or writing, and not MPI_MODE_RDWR");
    return amode & MPI_MODE_RDONLY ? O_RDONLY : amode & MPI_MODE_WRONLY ? O_WRONLY : O_RDWR;
}

static void open_descriptor(struct file *file, int flags, struct problem *problem) {
    if (problem->class != MPI_SUCCESS)
        return;
    const struct hints *hints = &file->collective.hints;
    struct tabane_layout layout = {
        .chunk_size = hints->unit, .width = hints->factor, .run = hints->run, .first = hints->first};
    if (flags & O_CREAT)
        context_layout(file, &layout);
    file->descriptor = tabane_open_layout(file->path, flags, 0666, &layout);
    if (file->descriptor < 0)
        fail_errno(problem, "open");
}

/* The hidden file of the shared pointer: beside the file, with a number that no other open has. */
static void name_hidden(struct file *file) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const char *slash = strrchr(file->path, '/');
    int directory = (int)(slash + 1 - file->path);
    snprintf(file->shared_path, sizeof file->shared_path, "%.*s.%.180s.shared-%llx", directory, file->path, slash + 1,
             (unsigned long long)now.tv_sec << 44 ^ (unsigned long long)now.tv_nsec << 14 ^
                 (unsigned long long)getpid());
}

/* What the first process says about the file; the others go by that. */
static void share_path(struct file *file, struct problem *problem) {
    if (file->rank == 0 && problem->class == MPI_SUCCESS)
        name_hidden(file);
    if (file->process_count > 1) {
        PMPI_Bcast(file->path, sizeof file->path, MPI_BYTE, 0, file->comm);
        PMPI_Bcast(file->shared_path, sizeof file->shared_path, MPI_BYTE, 0, file->comm);
    }
}

static void free_file(struct file *file) {
    collective_close(&file->collective);
    context_drop(&file->context);
    view_drop(&file->view);
    if (file->comm != MPI_COMM_NULL)
        PMPI_Comm_free(&file->comm);
    free(file);
}

/* The others open what the first process has open, without asking any server. */
static void import_descriptor(struct file *file, struct problem *problem) {
    struct {
        int64_t size;
        char bytes[EXPORT_SIZE_MAX];
    } exported = {0};
    if (file->process_count == 1)
        return;
    if (file->rank == 0 && problem->class == MPI_SUCCESS) {
        exported.size = tabane_export(file->descriptor, exported.bytes, sizeof exported.bytes);
        if (exported.size < 0)
            fail_errno(problem, "open");
    }
    PMPI_Bcast(&exported, sizeof exported, MPI_BYTE, 0, file->comm);
    if (file->rank == 0 || problem->class != MPI_SUCCESS || exported.size < 0)
        return;
    file->descriptor = tabane_import(exported.bytes, exported.size);
    if (file->descriptor < 0)
        fail_errno(problem, "open");
}

/* The first process opens, and makes the file if that is asked for; then the others have it too. */
static void open_all(struct file *file, MPI_Info info, struct problem *problem) {
    struct stat attributes;
    int flags = flags_of(file->amode, problem);
    share_path(file, problem);
    hints_of_environment(file, problem);
    hints_take(file, info, problem);
    agree(file, problem, file->amode, "the access mode");
    connect_cluster(problem);
    if (file->rank == 0) {
        int made = file->amode & MPI_MODE_CREATE ? O_CREAT | (file->amode & MPI_MODE_EXCL ? O_EXCL : 0) : 0;
        open_descriptor(file, flags | made, problem);
    }
    agree(file, problem, 0, NULL);
    import_descriptor(file, problem);
    if (problem->class == MPI_SUCCESS && file->amode & MPI_MODE_APPEND && file->rank == 0) {
        if (tabane_fstat(file->descriptor, &attributes) == 0)
            file->position = attributes.st_size;
        else
            fail_errno(problem, "the size of a file");
    }
    view_make(&file->view, 0, MPI_BYTE, MPI_BYTE, "native", 1, problem);
    file->position = agree(file, problem, file->position, NULL);
    file->shared_start = file->position;
    clock_gettime(CLOCK_MONOTONIC, &file->context.opened);
}

/* `path` and `problem` are what the first process knows of the name. */
static int open_ours(MPI_Comm comm, const char *path, struct problem problem, int rank, int process_count, int amode,
                     MPI_Info info, MPI_File *fh) {
    struct file *file = calloc(1, sizeof *file);
    if (!file)
        abort();
    strcpy(file->path, path);
    file->rank = rank, file->process_count = process_count, file->amode = amode;
    file->descriptor = file->shared_descriptor = -1;
    file->comm = MPI_COMM_NULL;
    file->view.etype = file->view.filetype = MPI_DATATYPE_NULL;
    collective_open(&file->collective);
    pthread_mutex_init(&file->lock, NULL);
    pthread_mutex_init(&file->atomic_lock, NULL);
    pthread_mutex_init(&file->shared_lock, NULL);
    if (process_count > 1) {
        int result = PMPI_Comm_dup(comm, &file->comm);
        if (result != MPI_SUCCESS) {
            free(file);
            return result;
        }
        PMPI_Comm_set_errhandler(file->comm, MPI_ERRORS_RETURN);
    }
    open_all(file, info, &problem);
    if (problem.class == MPI_SUCCESS) {
        int access = amode & (MPI_MODE_RDONLY | MPI_MODE_WRONLY | MPI_MODE_RDWR);
        if (ORIGINAL(MPI_File_open)(comm, "/dev/null", access, MPI_INFO_NULL, fh) == MPI_SUCCESS) {
            file->handle = *fh;
            file_enter(file);
            return MPI_SUCCESS;
        }
        fail(&problem, MPI_ERR_OTHER, "tabane: MPI does not open /dev/null, whose handle a file would have");
    }
    if (file->descriptor >= 0)
        tabane_close(file->descriptor);
    free_file(file);
    return raise_problem(MPI_FILE_NULL, &problem);
}

OFFERED int MPI_File_open(MPI_Comm comm, const char *name, int amode, MPI_Info info, MPI_File *fh) {
    int is_inter = 0, rank = 0, process_count = 1, ours = 0;
    char path[PATH_SIZE_MAX] = "";
    struct problem problem = {0};
    if (comm == MPI_COMM_NULL || PMPI_Comm_test_inter(comm, &is_inter) != MPI_SUCCESS || is_inter)
        return ORIGINAL(MPI_File_open)(comm, name, amode, info, fh);
    PMPI_Comm_rank(comm, &rank);
    PMPI_Comm_size(comm, &process_count);
    /* What is mounted where may differ from node to node: the first process decides. */
    if (rank == 0) {
        ours = is_ours(name, path, &problem);
        if (is_explained())
            fprintf(stderr, "tabane: %s is %s%s\n", name ? name : "(no name)",
                    ours ? "of the cluster: " : "MPI's own", path);
    }
    if (process_count > 1)
        PMPI_Bcast(&ours, 1, MPI_INT, 0, comm);
    if (!ours)
        return ORIGINAL(MPI_File_open)(comm, name, amode, info, fh);
    return open_ours(comm, path, problem, rank, process_count, amode, info, fh);
}
ALIAS(MPI_File_open)

OFFERED int MPI_File_close(MPI_File *fh) {
    struct file *file = fh ? file_of(*fh) : NULL;
    if (!file)
        return ORIGINAL(MPI_File_close)(fh);
    struct problem problem = {0};
    int is_used = shared_is_used(file);
    int64_t moved = context_finish(file);
    shared_close(file);
    /* The first process comes last: what the others have open rests on what it has. */
    if (file->rank != 0 && tabane_close(file->descriptor) != 0)
        fail_errno(&problem, "close");
    /* Whether any process has used the shared pointer, and the most bytes that one has moved. */
    int64_t told = agree(file, &problem, (int64_t)is_used << 62 | moved, NULL);
    is_used = told >> 62 & 1;
    struct problem last = {0};
    if (problem.class == MPI_SUCCESS)
        context_close(file, file->amode & MPI_MODE_DELETE_ON_CLOSE ? 0 : told & ~(INT64_C(1) << 62));
    if (file->rank == 0 && tabane_close(file->descriptor) != 0)
        fail_errno(&last, "close");
    agree(file, &last, 0, NULL);
    if (problem.class == MPI_SUCCESS)
        problem = last;
    if (is_used && file->rank == 0)
        shared_remove(file->shared_path);
    if (file->amode & MPI_MODE_DELETE_ON_CLOSE) {
        if (file->rank == 0 && tabane_unlink(file->path) != 0)
            fail_errno(&problem, "deletion at close");
        agree(file, &problem, 0, NULL);
    }
    file_leave(file);
    free_file(file);
    int code = raise_problem(*fh, &problem);
    int result = ORIGINAL(MPI_File_close)(fh);
    return code != MPI_SUCCESS ? code : result;
}
ALIAS(MPI_File_close)

OFFERED int MPI_File_delete(const char *name, MPI_Info info) {
    char path[PATH_SIZE_MAX];
    struct problem problem = {0};
    if (!is_ours(name, path, &problem))
        return ORIGINAL(MPI_File_delete)(name, info);
    connect_cluster(&problem);
    if (problem.class == MPI_SUCCESS && tabane_unlink(path) != 0)
        fail_errno(&problem, "deletion");
    return raise_problem(MPI_FILE_NULL, &problem);
}
ALIAS(MPI_File_delete)

/* ---- Sizes, information, modes ---- */

static void size_of(struct file *file, int64_t *size, struct problem *problem) {
    struct stat attributes;
    if (tabane_fstat(file->descriptor, &attributes) == 0)
        *size = attributes.st_size;
    else
        fail_errno(problem, "the size of a file");
}

/* By the first process, when all are here; the others wait for it. */
static int set_size(struct file *file, MPI_Offset size, int is_reserved) {
    struct problem problem = {0};
    if (size < 0)
        fail(&problem, MPI_ERR_ARG, "tabane: a size is not negative");
    if (file->amode & MPI_MODE_RDONLY)
        fail(&problem, MPI_ERR_READ_ONLY, "tabane: %s is open for reading only", file->path);
    if (file->amode & MPI_MODE_SEQUENTIAL)
        fail(&problem, MPI_ERR_UNSUPPORTED_OPERATION, "tabane: MPI_MODE_SEQUENTIAL knows no sizes");
    agree(file, &problem, size, "the size");
    if (problem.class == MPI_SUCCESS && file->rank == 0) {
        int result = 0;
        if (!is_reserved)
            result = tabane_ftruncate(file->descriptor, size);
        else if (size > 0)
            result = tabane_fallocate(file->descriptor, 0, 0, size);
        if (result != 0)
            fail_errno(&problem, "a change of the size");
    }
    agree(file, &problem, 0, NULL);
    return raise_problem(file->handle, &problem);
}
CALL(MPI_File_set_size, (MPI_File fh, MPI_Offset size), (fh, size), set_size(file, size, 0))
CALL(MPI_File_preallocate, (MPI_File fh, MPI_Offset size), (fh, size), set_size(file, size, 1))

static int get_size(struct file *file, MPI_Offset *size) {
    struct problem problem = {0};
    int64_t bytes = 0;
    size_of(file, &bytes, &problem);
    if (problem.class == MPI_SUCCESS)
        *size = bytes;
    return raise_problem(file->handle, &problem);
}
CALL(MPI_File_get_size, (MPI_File fh, MPI_Offset *size), (fh, size), get_size(file, size))

static int get_amode(struct file *file, int *amode) {
    *amode = file->amode;
    return MPI_SUCCESS;
}
CALL(MPI_File_get_amode, (MPI_File fh, int *amode), (fh, amode), get_amode(file, amode))

static void tell(MPI_Info info, const char *key, long long value) {
    char words[32];
    snprintf(words, sizeof words, "%lld", value);
    PMPI_Info_set(info, key, words);
}

/* What is used: the layout, and the hints that hold. */
static int get_info(struct file *file, MPI_Info *info) {
    struct tabane_layout layout;
    struct problem problem = {0};
    if (tabane_layout(file->descriptor, &layout) != 0)
        fail_errno(&problem, "the layout of a file");
    if (problem.class != MPI_SUCCESS)
        return raise_problem(file->handle, &problem);
    int result = PMPI_Info_create(info);
    if (result != MPI_SUCCESS)
        return result;
    tell(*info, "striping_unit", (long long)layout.chunk_size);
    tell(*info, "striping_factor", layout.width);
    if (!layout.is_hashed)
        tell(*info, "tabane_run", layout.run);
    if (!layout.is_hashed)
        tell(*info, "start_iodevice", layout.first);
    hints_tell(file, *info);
    return MPI_SUCCESS;
}
CALL(MPI_File_get_info, (MPI_File fh, MPI_Info *info), (fh, info), get_info(file, info))

static int set_info(struct file *file, MPI_Info info) {
    struct problem problem = {0};
    hints_take(file, info, &problem);
    agree(file, &problem, 0, NULL);
    return raise_problem(file->handle, &problem);
}
CALL(MPI_File_set_info, (MPI_File fh, MPI_Info info), (fh, info), set_info(file, info))

static int set_atomicity(struct file *file, int flag) {
    struct problem problem = {0};
    agree(file, &problem, !!flag, "the atomic mode");
    if (problem.class == MPI_SUCCESS) {
        pthread_mutex_lock(&file->lock);
        file->is_atomic = !!flag;
        pthread_mutex_unlock(&file->lock);
    }
    return raise_problem(file->handle, &problem);
}
CALL(MPI_File_set_atomicity, (MPI_File fh, int flag), (fh, flag), set_atomicity(file, flag))

static int get_atomicity(struct file *file, int *flag) {
    pthread_mutex_lock(&file->lock);
    *flag = file->is_atomic;
    pthread_mutex_unlock(&file->lock);
    return MPI_SUCCESS;
}
CALL(MPI_File_get_atomicity, (MPI_File fh, int *flag), (fh, flag), get_atomicity(file, flag))

/* When all are here, one process syncs: that speaks for what all have written. */
static int sync_all(struct file *file) {
    struct problem problem = {0};
    agree(file, &problem, 0, NULL);
    if (problem.class == MPI_SUCCESS && file->rank == 0 && tabane_fsync(file->descriptor) != 0)
        fail_errno(&problem, "a sync");
    agree(file, &problem, 0, NULL);
    return raise_problem(file->handle, &problem);
}
CALL(MPI_File_sync, (MPI_File fh), (fh), sync_all(file))

/* ---- Views and pointers ---- */

static int set_view(struct file *file, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype,
                    const char *representation, MPI_Info info) {
    struct problem problem = {0};
    struct view view;
    hints_take(file, info, &problem);
    int is_sequential = !!(file->amode & MPI_MODE_SEQUENTIAL);
    if ((displacement == MPI_DISPLACEMENT_CURRENT) != is_sequential)
        fail(&problem, MPI_ERR_ARG, "tabane: the displacement is MPI_DISPLACEMENT_CURRENT in sequential mode, %s",
             "and nowhere else");
    else if (!is_sequential && displacement < 0)
        fail(&problem, MPI_ERR_ARG, "tabane: the displacement of a view is not negative");
    int64_t is_used = shared_is_used(file);
    if (is_sequential && problem.class == MPI_SUCCESS)
        displacement = view_offset(&file->view, shared_get(file, &problem));
    view_make(&view, displacement, etype, filetype, representation, file->amode & MPI_MODE_RDONLY, &problem);
    /* Nobody sees the file anew while others still use the shared pointer as it was. */
    is_used = agree(file, &problem, is_used, NULL);
    if (problem.class == MPI_SUCCESS && is_used && file->rank == 0)
        shared_set(file, 0, &problem);
    if (is_used)
        agree(file, &problem, 0, NULL);
    if (problem.class != MPI_SUCCESS) {
        view_drop(&view);
        return raise_problem(file->handle, &problem);
    }
    pthread_mutex_lock(&file->lock);
    struct view last = file->view;
    file->view = view;
    file->position = file->shared_start = 0;
    pthread_mutex_unlock(&file->lock);
    view_drop(&last);
    return MPI_SUCCESS;
}
CALL(MPI_File_set_view,
     (MPI_File fh, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype, const char *representation,
      MPI_Info info),
     (fh, displacement, etype, filetype, representation, info),
     set_view(file, displacement, etype, filetype, representation, info))

static int get_view(struct file *file, MPI_Offset *displacement, MPI_Datatype *etype, MPI_Datatype *filetype,
                    char *representation) {
    const struct view *view = &file->view;
    *displacement = view->displacement;
    *etype = view->etype, *filetype = view->filetype;
    if (!type_is_predefined(view->etype))
        PMPI_Type_dup(view->etype, etype);
    if (!type_is_predefined(view->filetype))
        PMPI_Type_dup(view->filetype, filetype);
    strcpy(representation, view->representation);
    return MPI_SUCCESS;
}
CALL(MPI_File_get_view,
     (MPI_File fh, MPI_Offset *displacement, MPI_Datatype *etype, MPI_Datatype *filetype, char *representation),
     (fh, displacement, etype, filetype, representation),
     get_view(file, displacement, etype, filetype, representation))

static int type_extent(struct file *file, MPI_Datatype type, MPI_Count *extent) {
    struct problem problem = {0};
    enum form form = file->view.is_external ? FORM_EXTERNAL : FORM_MEMORY;
    struct flat *flat = type == MPI_DATATYPE_NULL ? NULL : flat_of(type, form);
    if (flat)
        *extent = flat->extent;
    else
        fail(&problem, MPI_ERR_TYPE, "tabane: no datatype that can be taken apart");
    flat_release(flat);
    return raise_problem(file->handle, &problem);
}

static int type_extent_small(struct file *file, MPI_Datatype type, MPI_Aint *extent) {
    MPI_Count large = 0;
    int code = type_extent(file, type, &large);
    *extent = (MPI_Aint)large;
    return code;
}
CALL(MPI_File_get_type_extent, (MPI_File fh, MPI_Datatype type, MPI_Aint *extent), (fh, type, extent),
     type_extent_small(file, type, extent))

static void check_not_sequential(struct file *file, struct problem *problem) {
    if (file->amode & MPI_MODE_SEQUENTIAL)
        fail(problem, MPI_ERR_UNSUPPORTED_OPERATION,
             "tabane: in MPI_MODE_SEQUENTIAL a file is read and written by the shared pointer alone, in order");
}

/* Where a seek leads, in bytes of data. */
static int64_t seek_target(struct file *file, MPI_Offset offset, int whence, int64_t current, struct problem *problem) {
    int64_t start = 0, target = 0, size = file->view.etype_size > 0 ? file->view.etype_size : 1;
    if (whence == MPI_SEEK_CUR) {
        start = current;
    } else if (whence == MPI_SEEK_END) {
        int64_t file_size = 0;
        size_of(file, &file_size, problem);
        start = (view_size(&file->view, file_size) + size - 1) / size * size;
    } else if (whence != MPI_SEEK_SET) {
        fail(problem, MPI_ERR_ARG, "tabane: a seek counts from MPI_SEEK_SET, MPI_SEEK_CUR or MPI_SEEK_END");
    }
    if (__builtin_mul_overflow((int64_t)offset, size, &target) || __builtin_add_overflow(target, start, &target) ||
        target < 0)
        fail(problem, MPI_ERR_ARG, "tabane: a seek leads before the beginning of the view, or beyond all offsets");
    return target;
}

static int seek(struct file *file, MPI_Offset offset, int whence) {
    struct problem problem = {0};
    check_not_sequential(file, &problem);
    pthread_mutex_lock(&file->lock);
    int64_t target = seek_target(file, offset, whence, file->position, &problem);
    if (problem.class == MPI_SUCCESS)
        file->position = target;
    pthread_mutex_unlock(&file->lock);
    return raise_problem(file->handle, &problem);
}
CALL(MPI_File_seek, (MPI_File fh, MPI_Offset offset, int whence), (fh, offset, whence), seek(file, offset, whence))

static int64_t in_etypes(const struct file *file, int64_t position) {
    return file->view.etype_size > 0 ? position / file->view.etype_size : position;
}

static int get_position(struct file *file, MPI_Offset *offset) {
    struct problem problem = {0};
    check_not_sequential(file, &problem);
    pthread_mutex_lock(&file->lock);
    *offset = in_etypes(file, file->position);
    pthread_mutex_unlock(&file->lock);
    return raise_problem(file->handle, &problem);
}
CALL(MPI_File_get_position, (MPI_File fh, MPI_Offset *offset), (fh, offset), get_position(file, offset))

static int get_byte_offset(struct file *file, MPI_Offset offset, MPI_Offset *displacement) {
    struct problem problem = {0};
    int64_t position = 0;
    check_not_sequential(file, &problem);
    if (offset < 0 || __builtin_mul_overflow((int64_t)offset, file->view.etype_size, &position) ||
        position >= file->view.tiles->size)
        fail(&problem, MPI_ERR_ARG, "tabane: an offset is not negative, nor beyond all offsets");
    if (problem.class == MPI_SUCCESS)
        *displacement = view_offset(&file->view, position);
    return raise_problem(file->handle, &problem);
}
CALL(MPI_File_get_byte_offset, (MPI_File fh, MPI_Offset offset, MPI_Offset *displacement), (fh, offset, displacement),
     get_byte_offset(file, offset, displacement))

static int seek_shared(struct file *file, MPI_Offset offset, int whence) {
    struct problem problem = {0};
    check_not_sequential(file, &problem);
    agree(file, &problem, offset, "the offset");
    agree(file, &problem, whence, "from where it counts");
    if (problem.class == MPI_SUCCESS && file->rank == 0) {
        int64_t current = whence == MPI_SEEK_CUR ? shared_get(file, &problem) : 0;
        int64_t target = seek_target(file, offset, whence, current, &problem);
        if (problem.class == MPI_SUCCESS)
            shared_set(file, target, &problem);
    }
    agree(file, &problem, 0, NULL);
    return raise_problem(file->handle, &problem);
}
CALL(MPI_File_seek_shared, (MPI_File fh, MPI_Offset offset, int whence), (fh, offset, whence),
     seek_shared(file, offset, whence))

static int get_position_shared(struct file *file, MPI_Offset *offset) {
    struct problem problem = {0};
    check_not_sequential(file, &problem);
    int64_t position = shared_get(file, &problem);
    if (problem.class == MPI_SUCCESS)
        *offset = in_etypes(file, position);
    return raise_problem(file->handle, &problem);
}
CALL(MPI_File_get_position_shared, (MPI_File fh, MPI_Offset *offset), (fh, offset), get_position_shared(file, offset))

/* ---- Access ---- */

/* Which pointer says where. */
enum pointer { POINTER_AT, POINTER_OWN, POINTER_SHARED, POINTER_ORDERED };

struct access {
    int is_write;
    enum pointer pointer;
    MPI_Offset offset;
    void *buffer;
    MPI_Count count;
    MPI_Datatype type;
};

/* Bytes of data that an access asks for. */
static int64_t check_access(struct file *file, const struct access *access, struct problem *problem) {
    int64_t size = 0;
    if (access->count < 0)
        fail(problem, MPI_ERR_COUNT, "tabane: a count is not negative");
    else if (access->type == MPI_DATATYPE_NULL)
        fail(problem, MPI_ERR_TYPE, "tabane: the datatype is MPI_DATATYPE_NULL");
    else if (access->pointer == POINTER_AT && access->offset < 0)
        fail(problem, MPI_ERR_ARG, "tabane: an offset is not negative");
    else if (access->is_write && (file->amode & MPI_MODE_RDONLY))
        fail(problem, MPI_ERR_READ_ONLY, "tabane: %s is open for reading only", file->path);
    else if (!access->is_write && (file->amode & MPI_MODE_WRONLY))
        fail(problem, MPI_ERR_ACCESS, "tabane: %s is open for writing only", file->path);
    if (access->pointer == POINTER_AT || access->pointer == POINTER_OWN)
        check_not_sequential(file, problem);
    if (problem->class != MPI_SUCCESS)
        return 0;
    size = data_size(file, access->count, access->type);
    if (size < 0)
        fail(problem, MPI_ERR_COUNT, "tabane: an access is larger than the largest offset");
    else if (file->view.etype_size > 0 && size % file->view.etype_size != 0)
        fail(problem, MPI_ERR_IO, "tabane: an access is made of whole etypes");
    return problem->class == MPI_SUCCESS ? size : 0;
}

/* The places of all processes, one behind the other in their order; the last one moves the pointer for all. */
static int64_t ordered_position(struct file *file, int64_t size, struct problem *problem) {
    struct {
        int64_t start;
        struct problem problem;
    } move = {0};
    int64_t before = 0;
    int last = file->process_count - 1;
    if (file->process_count > 1)
        PMPI_Exscan(&size, &before, 1, MPI_INT64_T, MPI_SUM, file->comm);
    if (file->rank == 0)
        before = 0;
    if (file->rank == last)
        move.start = shared_move(file, before + size, &move.problem);
    if (file->process_count > 1)
        PMPI_Bcast(&move, sizeof move, MPI_BYTE, last, file->comm);
    if (move.problem.class != MPI_SUCCESS)
        fail(problem, move.problem.class, "%s", move.problem.words);
    return move.start + before;
}

/* Where an access begins, in bytes of the view's data; pointers move on. */
static int64_t place_of(struct file *file, const struct access *access, struct problem *problem) {
    int64_t size = check_access(file, access, problem), position = 0;
    switch (access->pointer) {
    case POINTER_AT:
        if (__builtin_mul_overflow((int64_t)access->offset, file->view.etype_size, &position))
            fail(problem, MPI_ERR_ARG, "tabane: an offset is beyond all offsets");
        break;
    case POINTER_OWN:
        pthread_mutex_lock(&file->lock);
        position = file->position;
        file->position += size;
        pthread_mutex_unlock(&file->lock);
        break;
    case POINTER_SHARED:
        if (problem->class == MPI_SUCCESS)
            position = shared_move(file, size, problem);
        break;
    case POINTER_ORDERED:
        position = ordered_position(file, size, problem);
        break;
    }
    return position;
}

/* With `is_collective` all processes do this together, and learn of each other's problems. */
static int64_t perform(struct file *file, const struct access *access, int is_collective, struct problem *problem) {
    struct timespec start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    int64_t position = place_of(file, access, problem);
    int64_t (*move)(struct file *, int, int64_t, void *, int64_t, MPI_Datatype, struct problem *) =
        is_collective ? transfer_collective : transfer;
    int64_t moved = move(file, access->is_write, position, access->buffer, access->count, access->type, problem);
    if (is_collective)
        agree(file, problem, 0, NULL);
    if (problem->class == MPI_SUCCESS)
        context_note(file, access->is_write, position, moved, seconds_since(&start), is_collective);
    return moved;
}

static int blocking(struct file *file, const struct access *access, int is_collective, MPI_Status *status) {
    struct problem problem = {0};
    int64_t moved = perform(file, access, is_collective, &problem);
    fill_status(status, moved);
    return raise_problem(file->handle, &problem);
}

static int begin_split(struct file *file, const struct access *access, enum split split) {
    struct problem problem = {0};
    pthread_mutex_lock(&file->lock);
    int is_free = file->split == SPLIT_NONE;
    pthread_mutex_unlock(&file->lock);
    if (!is_free)
        fail(&problem, MPI_ERR_IO, "tabane: one split collective call at a time may be under way on a file");
    int64_t moved = perform(file, access, 1, &problem);
    if (problem.class == MPI_SUCCESS) {
        pthread_mutex_lock(&file->lock);
        file->split = split, file->split_size = moved;
        pthread_mutex_unlock(&file->lock);
    }
    return raise_problem(file->handle, &problem);
}

static int end_split(struct file *file, enum split split, MPI_Status *status) {
    struct problem problem = {0};
    pthread_mutex_lock(&file->lock);
    int64_t moved = file->split_size;
    if (file->split == split)
        file->split = SPLIT_NONE;
    else
        fail(&problem, MPI_ERR_IO, "tabane: no split collective call of this kind has begun");
    pthread_mutex_unlock(&file->lock);
    if (problem.class == MPI_SUCCESS)
        fill_status(status, moved);
    return raise_problem(file->handle, &problem);
}

/* The request is complete from the beginning where the call can't go on by itself. */
static int nonblocking(struct file *file, const struct access *access, MPI_Request *request) {
    struct problem problem = {0};
    struct started *started = NULL;
    int64_t moved = 0, position = place_of(file, access, &problem);
    *request = MPI_REQUEST_NULL;
    if (problem.class == MPI_SUCCESS && requests_overlap())
        started = transfer_start(file, access->is_write, position, access->buffer, access->count, access->type);
    if (!started)
        moved = transfer(file, access->is_write, position, access->buffer, access->count, access->type, &problem);
    if (problem.class != MPI_SUCCESS)
        return raise_problem(file->handle, &problem);
    /* Nobody has waited for it. */
    int64_t size = started ? data_size(file, access->count, access->type) : moved;
    context_note(file, access->is_write, position, size, 0, 0);
    return request_make(file, started, moved, &problem, request);
}

#define ACCESS(is_write, pointer, offset) \
    &(struct access) { is_write, pointer, offset, (void *)(uintptr_t)buffer, count, type }

/* Calls of reads (is_write 0) or writes, for counts of one kind. */
#define CALLS_AT(name, PLACE, COUNT, is_write, is_collective) \
    CALL(name, \
         (MPI_File fh, MPI_Offset offset, PLACE buffer, COUNT count, MPI_Datatype type, MPI_Status *status), \
         (fh, offset, buffer, count, type, status), \
         blocking(file, ACCESS(is_write, POINTER_AT, offset), is_collective, status))
#define CALLS(name, PLACE, COUNT, is_write, pointer, is_collective) \
    CALL(name, (MPI_File fh, PLACE buffer, COUNT count, MPI_Datatype type, MPI_Status *status), \
         (fh, buffer, count, type, status), blocking(file, ACCESS(is_write, pointer, 0), is_collective, status))
#define CALLS_NONBLOCKING_AT(name, PLACE, COUNT, is_write) \
    CALL(name, \
         (MPI_File fh, MPI_Offset offset, PLACE buffer, COUNT count, MPI_Datatype type, MPI_Request *request), \
         (fh, offset, buffer, count, type, request), \
         nonblocking(file, ACCESS(is_write, POINTER_AT, offset), request))
#define CALLS_NONBLOCKING(name, PLACE, COUNT, is_write, pointer) \
    CALL(name, (MPI_File fh, PLACE buffer, COUNT count, MPI_Datatype type, MPI_Request *request), \
         (fh, buffer, count, type, request), nonblocking(file, ACCESS(is_write, pointer, 0), request))
#define CALLS_BEGIN_AT(name, PLACE, COUNT, is_write, split) \
    CALL(name, (MPI_File fh, MPI_Offset offset, PLACE buffer, COUNT count, MPI_Datatype type), \
         (fh, offset, buffer, count, type), begin_split(file, ACCESS(is_write, POINTER_AT, offset), split))
#define CALLS_BEGIN(name, PLACE, COUNT, is_write, pointer, split) \
    CALL(name, (MPI_File fh, PLACE buffer, COUNT count, MPI_Datatype type), (fh, buffer, count, type), \
         begin_split(file, ACCESS(is_write, pointer, 0), split))
#define CALLS_END(name, PLACE, split) \
    CALL(name, (MPI_File fh, PLACE buffer, MPI_Status *status), (fh, buffer, status), end_split(file, split, status))

#define CALLS_OF(verb, VERB, PLACE, COUNT, kind, is_write) \
    CALLS_AT(MPI_File_##verb##_at##kind, PLACE, COUNT, is_write, 0) \
    CALLS_AT(MPI_File_##verb##_at_all##kind, PLACE, COUNT, is_write, 1) \
    CALLS(MPI_File_##verb##kind, PLACE, COUNT, is_write, POINTER_OWN, 0) \
    CALLS(MPI_File_##verb##_all##kind, PLACE, COUNT, is_write, POINTER_OWN, 1) \
    CALLS(MPI_File_##verb##_shared##kind, PLACE, COUNT, is_write, POINTER_SHARED, 0) \
    CALLS(MPI_File_##verb##_ordered##kind, PLACE, COUNT, is_write, POINTER_ORDERED, 1) \
    CALLS_NONBLOCKING_AT(MPI_File_i##verb##_at##kind, PLACE, COUNT, is_write) \
    CALLS_NONBLOCKING_AT(MPI_File_i##verb##_at_all##kind, PLACE, COUNT, is_write) \
    CALLS_NONBLOCKING(MPI_File_i##verb##kind, PLACE, COUNT, is_write, POINTER_OWN) \
    CALLS_NONBLOCKING(MPI_File_i##verb##_all##kind, PLACE, COUNT, is_write, POINTER_OWN) \
    CALLS_NONBLOCKING(MPI_File_i##verb##_shared##kind, PLACE, COUNT, is_write, POINTER_SHARED) \
    CALLS_BEGIN_AT(MPI_File_##verb##_at_all_begin##kind, PLACE, COUNT, is_write, SPLIT_##VERB##_AT) \
    CALLS_BEGIN(MPI_File_##verb##_all_begin##kind, PLACE, COUNT, is_write, POINTER_OWN, SPLIT_##VERB) \
    CALLS_BEGIN(MPI_File_##verb##_ordered_begin##kind, PLACE, COUNT, is_write, POINTER_ORDERED, SPLIT_##VERB##_ORDERED)

/* NOLINTBEGIN: the names are MPI's */
CALLS_OF(read, READ, void *, int, , 0)
CALLS_OF(write, WRITE, const void *, int, , 1)
CALLS_END(MPI_File_read_at_all_end, void *, SPLIT_READ_AT)
CALLS_END(MPI_File_read_all_end, void *, SPLIT_READ)
CALLS_END(MPI_File_read_ordered_end, void *, SPLIT_READ_ORDERED)
CALLS_END(MPI_File_write_at_all_end, const void *, SPLIT_WRITE_AT)
CALLS_END(MPI_File_write_all_end, const void *, SPLIT_WRITE)
CALLS_END(MPI_File_write_ordered_end, const void *, SPLIT_WRITE_ORDERED)

#if MPI_VERSION >= 4
CALLS_OF(read, READ, void *, MPI_Count, _c, 0)
CALLS_OF(write, WRITE, const void *, MPI_Count, _c, 1)
CALL(MPI_File_get_type_extent_c, (MPI_File fh, MPI_Datatype type, MPI_Count *extent), (fh, type, extent),
     type_extent(file, type, extent))
#endif
/* NOLINTEND */
