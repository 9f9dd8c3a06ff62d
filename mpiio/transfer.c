/*
 * Moves bytes between memory and a file: one call where both are contiguous, else lists of ranges, which are bounded.
 */

#include "transfer.h"

#include <tabane.h>

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Ranges of the file in one list, and bytes of it. */
#define RANGE_COUNT_MAX 32768
#define LIST_SIZE_MAX (INT64_C(256) << 20)
/* Pieces of memory in one list (IOV_MAX); where that many are small, they are copied together, up to a size. */
#define VECTOR_COUNT_MAX 1024
#define COPY_SIZE_MAX (INT64_C(8) << 20)
#define SMALL_SIZE_MAX (16 << 10)
/* external32 is converted in parts of this size. */
#define EXTERNAL_SIZE_MAX (INT64_C(16) << 20)

/* One list under way. */
struct batch {
    struct tabane_range *ranges;
    size_t range_count;
    int64_t range_size;
    struct iovec *vector;
    int vector_count;
    int64_t vector_size;
    char *copy;
    int64_t copy_size; /* bytes of memory that lie in `copy` */
};

static int take_range(void *context, int64_t displacement, int64_t size) {
    struct batch *batch = context;
    struct tabane_range *last = batch->ranges + batch->range_count - 1;
    if (batch->range_count > 0 && last->offset + (off_t)last->size == displacement) {
        last->size += size;
    } else {
        if (batch->range_count == RANGE_COUNT_MAX)
            return 1;
        batch->ranges[batch->range_count++] = (struct tabane_range){displacement, size};
    }
    batch->range_size += size;
    return 0;
}

static int take_memory(void *context, int64_t displacement, int64_t size) {
    struct batch *batch = context;
    char *place = (char *)(intptr_t)displacement;
    struct iovec *last = batch->vector + batch->vector_count - 1;
    if (batch->vector_count > 0 && (char *)last->iov_base + last->iov_len == place) {
        last->iov_len += size;
    } else {
        if (batch->vector_count == VECTOR_COUNT_MAX)
            return 1;
        batch->vector[batch->vector_count++] = (struct iovec){place, size};
    }
    batch->vector_size += size;
    return 0;
}

/* Bytes between memory and `copy`, in the order of the data. */
struct copying {
    char *place;
    int is_out; /* from `copy` into memory */
};

static int copy_segment(void *context, int64_t displacement, int64_t size) {
    struct copying *copying = context;
    char *place = (char *)(intptr_t)displacement;
    memcpy(copying->is_out ? place : copying->place, copying->is_out ? copying->place : place, size);
    copying->place += size;
    return 0;
}

void memory_copy(const struct memory *memory, char *place, int64_t from, int64_t to, int is_out) {
    struct copying copying = {place, is_out};
    if (!memory->shape) {
        copy_segment(&copying, (int64_t)(intptr_t)memory->base + from, to - from);
        return;
    }
    shape_walk(memory->shape, (int64_t)(intptr_t)memory->base, from, to, copy_segment, &copying);
}

/* Cuts a list of ranges after `size` bytes. */
static void cut_ranges(struct batch *batch, int64_t size) {
    while (batch->range_size > size) {
        struct tabane_range *last = batch->ranges + batch->range_count - 1;
        int64_t more = batch->range_size - size;
        int64_t less = more < (int64_t)last->size ? more : (int64_t)last->size;
        last->size -= less;
        batch->range_size -= less;
        if (last->size == 0)
            batch->range_count--;
    }
}

static void ranges_of(const struct view *view, struct batch *batch, int64_t from, int64_t to) {
    batch->range_count = 0, batch->range_size = 0;
    if (view->is_contiguous)
        take_range(batch, view->base + from, to - from);
    else
        shape_walk(view->tiles, view->base, from, to, take_range, batch);
}

/* The memory of bytes `from` to `to`, or of the first of them. */
static void vector_of(const struct memory *memory, struct batch *batch, int is_write, int64_t from, int64_t to) {
    batch->vector_count = 0, batch->vector_size = 0, batch->copy_size = 0;
    int64_t base = (int64_t)(intptr_t)memory->base;
    if (!memory->shape) {
        take_memory(batch, base + from, to - from);
        return;
    }
    shape_walk(memory->shape, base, from, to, take_memory, batch);
    int64_t size = to - from < COPY_SIZE_MAX ? to - from : COPY_SIZE_MAX;
    if (batch->vector_size >= size || batch->vector_size / VECTOR_COUNT_MAX > SMALL_SIZE_MAX)
        return;
    if (!batch->copy)
        batch->copy = malloc(COPY_SIZE_MAX);
    if (!batch->copy)
        return;
    if (is_write)
        memory_copy(memory, batch->copy, from, from + size, 0);
    batch->vector[0] = (struct iovec){batch->copy, size};
    batch->vector_count = 1, batch->vector_size = batch->copy_size = size;
}

/* Moves a list; fewer bytes only at the end of the file, or on a failure. */
static int64_t move_list(struct file *file, int is_write, struct batch *batch, struct problem *problem) {
    ssize_t result;
    int is_single = batch->range_count == 1 && batch->vector_count == 1;
    struct tabane_range *first = batch->ranges;
    void *place = batch->vector[0].iov_base;
    if (is_single && is_write)
        result = tabane_pwrite(file->descriptor, place, first->size, first->offset);
    else if (is_single)
        result = tabane_pread(file->descriptor, place, first->size, first->offset);
    else if (is_write)
        result = tabane_pwritev_list(file->descriptor, first, batch->range_count, batch->vector, batch->vector_count);
    else
        result = tabane_preadv_list(file->descriptor, first, batch->range_count, batch->vector, batch->vector_count);
    if (result < 0)
        fail_errno(problem, is_write ? "a write" : "a read");
    else if (result == 0 && is_write)
        fail(problem, MPI_ERR_IO, "tabane: a write to %s has written nothing", file->path);
    return result < 0 ? 0 : result;
}

static void open_batch(struct batch *batch) {
    memset(batch, 0, sizeof *batch);
    batch->ranges = malloc(RANGE_COUNT_MAX * sizeof *batch->ranges);
    batch->vector = malloc(VECTOR_COUNT_MAX * sizeof *batch->vector);
    if (!batch->ranges || !batch->vector)
        abort();
}

static void close_batch(struct batch *batch) {
    free(batch->ranges), free(batch->vector), free(batch->copy);
}

static int64_t move_memory(struct file *file, int is_write, int64_t position, const struct memory *memory,
                           int64_t size, struct problem *problem) {
    int64_t done = 0;
    if (file->view.is_contiguous && !memory->shape) {
        struct tabane_range range = {file->view.base + position, size};
        struct iovec place = {memory->base, size};
        struct batch batch = {.ranges = &range, .range_count = 1, .vector = &place, .vector_count = 1};
        while (done < size && problem->class == MPI_SUCCESS) {
            int64_t moved = move_list(file, is_write, &batch, problem);
            done += moved;
            if (moved == 0 || !is_write)
                break;
            range.offset += moved, range.size -= moved;
            place.iov_base = (char *)place.iov_base + moved, place.iov_len -= moved;
        }
        return done;
    }
    struct batch batch;
    open_batch(&batch);
    while (done < size && problem->class == MPI_SUCCESS) {
        int64_t end = size - done < LIST_SIZE_MAX ? size : done + LIST_SIZE_MAX;
        ranges_of(&file->view, &batch, position + done, position + end);
        vector_of(memory, &batch, is_write, done, done + batch.range_size);
        cut_ranges(&batch, batch.vector_size);
        int64_t moved = move_list(file, is_write, &batch, problem);
        if (batch.copy_size > 0 && !is_write)
            memory_copy(memory, batch.copy, done, done + moved, 1);
        done += moved;
        if (moved < batch.range_size && !is_write)
            break;
    }
    close_batch(&batch);
    return done;
}

/* As many of the pieces as one list has room for; small ones that are many are copied together. */
static void take_pieces(struct batch *batch, int is_write, const struct piece *pieces, int64_t piece_count) {
    int64_t taken = 0, size = 0;
    batch->range_count = 0, batch->range_size = 0;
    batch->vector_count = 0, batch->vector_size = 0, batch->copy_size = 0;
    while (taken < piece_count && taken < RANGE_COUNT_MAX && size < COPY_SIZE_MAX)
        size += pieces[taken++].size;
    int is_copied = taken > VECTOR_COUNT_MAX && size / taken <= SMALL_SIZE_MAX && size <= COPY_SIZE_MAX;
    if (is_copied && !batch->copy)
        batch->copy = malloc(COPY_SIZE_MAX);
    is_copied = is_copied && batch->copy;
    taken = 0;
    while (taken < piece_count) {
        const struct piece *piece = pieces + taken;
        if (is_copied && batch->copy_size + piece->size > COPY_SIZE_MAX)
            break;
        if (batch->range_size > 0 && batch->range_size + piece->size > LIST_SIZE_MAX)
            break;
        if (take_range(batch, piece->offset, piece->size))
            break;
        if (!is_copied && take_memory(batch, (int64_t)(intptr_t)piece->place, piece->size)) {
            cut_ranges(batch, batch->range_size - piece->size);
            break;
        }
        if (is_copied && is_write)
            memcpy(batch->copy + batch->copy_size, piece->place, piece->size);
        batch->copy_size += is_copied ? piece->size : 0;
        taken++;
    }
    if (is_copied) {
        batch->vector[0] = (struct iovec){batch->copy, batch->copy_size};
        batch->vector_count = 1, batch->vector_size = batch->copy_size;
    }
}

/* Leaves out the first `size` bytes; returns the pieces that are used up. */
static int64_t drop_pieces(struct piece *pieces, int64_t size) {
    int64_t dropped = 0;
    while (size > 0 && size >= pieces[dropped].size)
        size -= pieces[dropped++].size;
    if (size > 0)
        pieces[dropped].offset += size, pieces[dropped].place += size, pieces[dropped].size -= size;
    return dropped;
}

int64_t transfer_pieces(struct file *file, int is_write, struct piece *pieces, int64_t piece_count,
                        struct problem *problem) {
    struct batch batch;
    int64_t missing = INT64_MAX;
    open_batch(&batch);
    while (piece_count > 0 && problem->class == MPI_SUCCESS) {
        take_pieces(&batch, is_write, pieces, piece_count);
        int64_t moved = move_list(file, is_write, &batch, problem), at = 0;
        for (int64_t i = 0; batch.copy_size > 0 && !is_write && at < moved; i++) {
            int64_t size = pieces[i].size < moved - at ? pieces[i].size : moved - at;
            memcpy(pieces[i].place, batch.copy + at, size);
            at += size;
        }
        int64_t dropped = drop_pieces(pieces, moved);
        pieces += dropped, piece_count -= dropped;
        if (moved < batch.range_size && !is_write) {
            missing = pieces->offset;
            break;
        }
    }
    close_batch(&batch);
    return missing;
}

int64_t data_size(const struct file *file, int64_t count, MPI_Datatype type) {
    int64_t size = -1, all;
    if (file->view.is_external) {
        struct flat *flat = flat_of(type, FORM_EXTERNAL);
        if (flat)
            size = flat->shape->size;
        flat_release(flat);
    } else {
        MPI_Count one = 0;
        if (PMPI_Type_size_x(type, &one) == MPI_SUCCESS)
            size = one;
    }
    return size < 0 || __builtin_mul_overflow(size, count, &all) ? -1 : all;
}

/* Values between memory and external32. */
struct conversion {
    char *packed;
    int64_t size; /* of `packed` */
    MPI_Aint at;
    int is_out; /* into memory */
    int is_bad; /* MPI has refused */
};

static void convert(struct conversion *it, const struct shape *shape, char *place) {
    if (shape->size == 0 || it->is_bad)
        return;
    if (shape->kind == SHAPE_BLOCK) {
        int64_t count = shape->size / shape->element_size;
        for (int64_t done = 0; done < count && !it->is_bad;) {
            int part = count - done < INT_MAX ? (int)(count - done) : INT_MAX;
            char *from = place + done * shape->element_size;
            int result = it->is_out ? PMPI_Unpack_external("external32", it->packed, it->size, &it->at, from, part,
                                                           shape->element)
                                    : PMPI_Pack_external("external32", from, part, shape->element, it->packed, it->size,
                                                         &it->at);
            it->is_bad = result != MPI_SUCCESS;
            done += part;
        }
    } else if (shape->kind == SHAPE_REPEAT) {
        for (int64_t i = 0; i < shape->count; i++)
            convert(it, shape->child, place + i * shape->stride);
    } else {
        for (int64_t i = 0; i < shape->count; i++)
            convert(it, shape->entries[i].child, place + shape->entries[i].displacement);
    }
}

/* Converts `count` values that begin at `place`; 0 where MPI refuses. */
static int convert_values(const struct flat *elements, char *place, int64_t count, char *packed, int64_t size,
                          int is_out) {
    struct conversion it = {.packed = packed, .size = size, .is_out = is_out};
    for (int64_t i = 0; i < count; i++)
        convert(&it, elements->shape, place + i * elements->extent + elements->shift);
    return !it.is_bad;
}

/* Fills what was not read of a value with what memory has of it, so that all of it can be converted back. */
static int complete_value(const struct flat *elements, char *place, char *packed, int64_t got, int64_t one) {
    char *whole = malloc(one);
    if (!whole)
        abort();
    int is_good = convert_values(elements, place, 1, whole, one, 0);
    memcpy(packed + got, whole + got, one - got);
    free(whole);
    return is_good;
}

/* In external32, part by part. */
static int64_t move_external(struct file *file, int is_write, int64_t position, char *buffer, int64_t count,
                             MPI_Datatype type, struct problem *problem) {
    struct flat *elements = flat_of(type, FORM_ELEMENTS);
    int64_t one = data_size(file, 1, type), moved = 0;
    int64_t part_max = EXTERNAL_SIZE_MAX / one > 0 ? EXTERNAL_SIZE_MAX / one : 1;
    char *packed = malloc((part_max < count ? part_max : count) * one);
    if (!elements)
        fail(problem, MPI_ERR_TYPE, "tabane: the datatype in memory can't be taken apart");
    if (!packed)
        fail(problem, MPI_ERR_NO_MEM, "tabane: no memory for the conversion to external32");
    for (int64_t done = 0; done < count && problem->class == MPI_SUCCESS;) {
        int64_t part = count - done < part_max ? count - done : part_max, size = part * one;
        char *place = buffer + done * elements->extent;
        struct memory memory = {packed, NULL};
        int is_good = !is_write || convert_values(elements, place, part, packed, size, 0);
        int64_t got = is_good ? move_memory(file, is_write, position + done * one, &memory, size, problem) : 0;
        int64_t whole = got / one, rest = got % one;
        if (!is_write && rest > 0) {
            char *last = place + whole * elements->extent;
            is_good = is_good && complete_value(elements, last, packed + whole * one, rest, one);
            is_good = is_good && convert_values(elements, place, whole + 1, packed, size, 1);
        } else if (!is_write) {
            is_good = is_good && convert_values(elements, place, whole, packed, size, 1);
        }
        if (!is_good)
            fail(problem, MPI_ERR_CONVERSION, "tabane: MPI does not convert a datatype to or from external32");
        moved += whole * elements->shape->size + rest * elements->shape->size / one;
        if (got < size)
            break;
        done += part;
    }
    free(packed);
    flat_release(elements);
    return moved;
}

/* Locks what an access is about to touch, from the first to the last byte; without order among them the whole file. */
static int lock_range(struct file *file, short kind, int64_t position, int64_t size, struct problem *problem) {
    const struct view *view = &file->view;
    struct flock lock = {.l_type = kind, .l_whence = SEEK_SET};
    if (view->is_ascending) {
        lock.l_start = view_offset(view, position);
        lock.l_len = view_offset(view, position + size - 1) + 1 - lock.l_start;
    }
    if (tabane_fcntl_lock(file->descriptor, F_OFD_SETLKW, &lock) == 0)
        return 1;
    fail_errno(problem, "a lock for atomic mode");
    return 0;
}

int64_t access_size(const struct file *file, int64_t position, int64_t count, MPI_Datatype type,
                    struct problem *problem) {
    int64_t size = data_size(file, count, type), end;
    if (size == 0)
        return 0;
    if (size < 0 || __builtin_add_overflow(position, size, &end) || end > file->view.tiles->size) {
        fail(problem, MPI_ERR_ARG, "tabane: an access ends beyond the largest offset, or the filetype has no bytes");
        return 0;
    }
    return size;
}

struct memory memory_of(const struct flat *flat, void *buffer, int64_t count) {
    struct memory memory = {(char *)buffer + flat->shift, shape_repeat(count, flat->extent, flat->shape)};
    if (memory.shape->kind == SHAPE_BLOCK)
        memory_drop(&memory);
    return memory;
}

void memory_drop(struct memory *memory) {
    shape_release(memory->shape);
    memory->shape = NULL;
}

int64_t transfer(struct file *file, int is_write, int64_t position, void *buffer, int64_t count, MPI_Datatype type,
                 struct problem *problem) {
    if (problem->class != MPI_SUCCESS)
        return 0;
    int64_t size = access_size(file, position, count, type, problem), moved = 0;
    if (size == 0)
        return 0;
    pthread_mutex_lock(&file->lock);
    int is_atomic = file->is_atomic;
    pthread_mutex_unlock(&file->lock);
    if (is_atomic) {
        pthread_mutex_lock(&file->atomic_lock);
        lock_range(file, is_write ? F_WRLCK : F_RDLCK, position, size, problem);
    }
    if (problem->class != MPI_SUCCESS) {
        /* Nothing is moved without the lock. */
    } else if (file->view.is_external) {
        moved = move_external(file, is_write, position, buffer, count, type, problem);
    } else {
        struct flat *flat = flat_of(type, FORM_MEMORY);
        if (!flat) {
            fail(problem, MPI_ERR_TYPE, "tabane: the datatype in memory can't be taken apart");
        } else {
            struct memory memory = memory_of(flat, buffer, count);
            moved = move_memory(file, is_write, position, &memory, size, problem);
            memory_drop(&memory);
            flat_release(flat);
        }
    }
    if (is_atomic) {
        lock_range(file, F_UNLCK, position, size, problem);
        pthread_mutex_unlock(&file->atomic_lock);
    }
    return moved;
}

/* A list that goes on by itself. */
struct started {
    struct file *file;
    int is_write, call;
    int64_t position, size;
    struct flat *flat;
    struct memory memory;
    struct batch batch; /* of which the copy of small pieces stays */
};

static void drop_started(struct started *started) {
    close_batch(&started->batch);
    memory_drop(&started->memory);
    flat_release(started->flat);
    free(started);
}

struct started *transfer_start(struct file *file, int is_write, int64_t position, void *buffer, int64_t count,
                               MPI_Datatype type) {
    struct problem problem = {0};
    int64_t size = access_size(file, position, count, type, &problem);
    pthread_mutex_lock(&file->lock);
    int is_atomic = file->is_atomic;
    pthread_mutex_unlock(&file->lock);
    if (problem.class != MPI_SUCCESS || size == 0 || size > LIST_SIZE_MAX || is_atomic || file->view.is_external)
        return NULL;
    struct flat *flat = flat_of(type, FORM_MEMORY);
    struct started *started = flat ? calloc(1, sizeof *started) : NULL;
    if (!started) {
        flat_release(flat);
        return NULL;
    }
    *started = (struct started){.file = file, .is_write = is_write, .position = position, .size = size, .flat = flat};
    started->memory = memory_of(flat, buffer, count);
    struct batch *batch = &started->batch;
    open_batch(batch);
    ranges_of(&file->view, batch, position, position + size);
    vector_of(&started->memory, batch, is_write, 0, batch->range_size);
    started->call = -1;
    if (batch->range_size == size && batch->vector_size == size)
        started->call = (is_write ? tabane_start_pwritev_list : tabane_start_preadv_list)(
            file->descriptor, batch->ranges, batch->range_count, batch->vector, batch->vector_count);
    if (started->call < 0) {
        drop_started(started);
        return NULL;
    }
    free(batch->ranges), free(batch->vector);
    batch->ranges = NULL, batch->vector = NULL;
    return started;
}

int transfer_end(struct started *started, int waits, int64_t *moved, struct problem *problem) {
    ssize_t got = 0;
    int result = waits ? 1 : tabane_test(started->call, &got);
    if (result == 0)
        return 0;
    if (waits)
        got = tabane_wait(started->call);
    if (result < 0 || got < 0) {
        fail_errno(problem, started->is_write ? "a write" : "a read");
        got = 0;
    } else if (started->is_write && got < started->size) {
        /* Why it was cut short is told to who goes on. */
        got = move_memory(started->file, 1, started->position, &started->memory, started->size, problem);
    } else if (started->batch.copy_size > 0 && !started->is_write) {
        memory_copy(&started->memory, started->batch.copy, 0, got, 1);
    }
    *moved = got;
    drop_started(started);
    return 1;
}
