/*
 * The exchange of a collective access. The file is gone through in rounds. In each one a part of the file, the window,
 * is dealt out to processes, the aggregators: each has some intervals of it. Writes: all put their bytes of the window
 * where its aggregator finds them, and aggregators write what was put there. Reads: all say what they want, aggregators
 * read that once, and all take theirs.
 *
 * An aggregator's part of the window is an image of the file's bytes with a bit for each byte that is wanted, so that
 * neither order nor overlaps matter, and memory is bounded whatever the pieces are. Processes of one node share one
 * image, and put and take their bytes themselves; others send them, as a list of pieces and their bytes.
 *
 * Invariants:
 * 1. All processes of a group go through the same rounds: a round's window, and whether there is one, follow from what
 *    all have told each other at its beginning.
 * 2. Nobody touches an image between the second and the third meeting of a round but its aggregator.
 */
#include "collective.h"

#include <tabane.h>

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Looks at a meeting before a process sleeps, where each has a core. */
#define LOOK_COUNT 2000
/* What an aggregator has of a window unless a hint says it: shared images stay in the processors' caches. */
#define BUFFER_SIZE_SHARED (INT64_C(2) << 20)
#define BUFFER_SIZE_APART (INT64_C(16) << 20)
/* A window: its chunks, and its bytes. */
#define INTERVAL_COUNT_MAX (1 << 16)
#define WINDOW_SIZE_MAX (INT64_C(1) << 30)
/* Pieces that an aggregator has at hand. */
#define PIECE_COUNT_MAX 32768
/* Bytes that nobody wants, and that are read with what is wanted on both sides of them. */
#define GAP_SIZE_MAX 4096
/* What a process sends in a round: pieces, and bytes, unless its part of the window is more. */
#define SPAN_COUNT_MAX 65536
#define SENT_SIZE_LEAST (INT64_C(64) << 10)

/* What a process tells the others at the beginning of a round. */
struct notice {
    int64_t next;  /* the first byte of the file that it still has to move; INT64_MAX: none */
    int64_t limit; /* the first byte of the file that was not there when it was read; INT64_MAX: none */
    int64_t has_failed;
};

/* What processes of one node share, before the image. */
struct meeting {
    _Alignas(64) uint32_t arrived;
    uint32_t sleeping;
    _Alignas(64) uint32_t number; /* of meetings that are over */
    _Alignas(64) struct notice notices[];
};

/* A part of the window that one aggregator has. */
struct interval {
    int aggregator;
    int64_t begin, end;
    int64_t place; /* in the image: the shared one, or that of its aggregator; a multiple of 64 */
};

struct group {
    MPI_Comm comm;
    int rank, process_count;
    int64_t chunk_size;
    int server_count;
    int *aggregators;     /* the process that asks each server */
    int chunk_count;      /* of a window by servers */
    int part_count;       /* of a window by processes, and bytes of each */
    int64_t part_size;
    int64_t window_size;  /* bytes of the image of a window */
    int *servers;         /* of the chunks of a window */
    struct interval *intervals;
    char *image;          /* of the window, or of this process's intervals */
    uint64_t *wanted;     /* a bit for each byte of it */
    int64_t image_size;
    struct piece *pieces; /* for an aggregator */
    int is_shared;
    int look_count;
    MPI_Win shared;
    struct meeting *meeting; /* with `is_shared` */
};

/* A piece as it travels: where it lies in its aggregator's image. */
struct span {
    int64_t place, size;
};

/* What goes to or comes from one process by messages. */
struct parcel {
    struct span *spans;
    int64_t span_count, span_room;
    char *bytes;
    int64_t size, room;
};

/* One access. */
struct walk {
    struct group *group;
    struct file *file;
    int is_write;
    const struct cut *cut;
    const struct memory *memory;
    int64_t start, end;       /* of all data, as positions */
    int64_t next;             /* of what is still to be moved, by servers */
    int64_t round;
    int interval_count;
    struct parcel *parcels;   /* by process, without a shared image */
    int64_t span_count;       /* of all parcels in this round */
    int64_t limit;
    struct problem *problem;
};

/* ---- Meetings ---- */

static void futex(uint32_t *word, int operation, uint32_t value) {
    syscall(SYS_futex, word, operation, value, NULL, NULL, 0);
}

/* Returns when all processes of the node have come. What they stored before is seen after. */
static void meet(struct group *group) {
    struct meeting *meeting = group->meeting;
    uint32_t number = __atomic_load_n(&meeting->number, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&meeting->arrived, 1, __ATOMIC_ACQ_REL) == (uint32_t)group->process_count) {
        __atomic_store_n(&meeting->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&meeting->number, number + 1, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&meeting->sleeping, __ATOMIC_SEQ_CST) > 0)
            futex(&meeting->number, FUTEX_WAKE, INT_MAX);
        return;
    }
    for (int i = 0; i < group->look_count; i++)
        if (__atomic_load_n(&meeting->number, __ATOMIC_ACQUIRE) != number)
            return;
    __atomic_add_fetch(&meeting->sleeping, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&meeting->number, __ATOMIC_SEQ_CST) == number)
        futex(&meeting->number, FUTEX_WAIT, number);
    __atomic_sub_fetch(&meeting->sleeping, 1, __ATOMIC_SEQ_CST);
}

/* Joins what all tell; all get the same. */
static struct notice tell_all(struct group *group, struct notice mine) {
    struct notice all = mine;
    if (!group->is_shared) {
        int64_t values[3] = {mine.next, mine.limit, -mine.has_failed};
        reduce_all(values, 3, MPI_INT64_T, MPI_MIN, group->comm);
        return (struct notice){values[0], values[1], -values[2]};
    }
    struct notice *notices = group->meeting->notices;
    notices[group->rank] = mine;
    meet(group);
    for (int i = 0; i < group->process_count; i++) {
        all.next = notices[i].next < all.next ? notices[i].next : all.next;
        all.limit = notices[i].limit < all.limit ? notices[i].limit : all.limit;
        all.has_failed |= notices[i].has_failed;
    }
    return all;
}

/* ---- Groups ---- */

static void *take(size_t size) {
    void *place = calloc(1, size ? size : 1);
    if (!place)
        abort();
    return place;
}

static int64_t round_up(int64_t value, int64_t unit) {
    return (value + unit - 1) / unit * unit;
}

/* Which process asks each server: one on its node, and for each server another one as far as there are others. */
static void choose_aggregators(struct group *group, int process_limit) {
    int count = group->server_count;
    int *near = take(count * sizeof *near), *all = take((size_t)count * group->process_count * sizeof *all);
    int *load = take(group->process_count * sizeof *load);
    for (int server = 0; server < count; server++)
        near[server] = tabane_is_local(server) == 1;
    PMPI_Allgather(near, count, MPI_INT, all, count, MPI_INT, group->comm);
    for (int server = 0; server < count; server++) {
        int best = 0;
        for (int rank = 1; rank < process_limit; rank++) {
            int is_near = all[(size_t)rank * count + server], best_is_near = all[(size_t)best * count + server];
            if (is_near > best_is_near || (is_near == best_is_near && load[rank] < load[best]))
                best = rank;
        }
        group->aggregators[server] = best;
        load[best]++;
    }
    free(near), free(all), free(load);
}

/* How large windows are: `buffer_size` for each aggregator, in whole chunks. */
static void size_window(struct group *group, const struct hints *hints, int width) {
    int by_server = width < group->process_count ? width : group->process_count;
    int64_t buffer_size = group->is_shared ? BUFFER_SIZE_SHARED : BUFFER_SIZE_APART;
    if (hints->buffer_size > 0)
        buffer_size = hints->buffer_size;
    group->part_count = group->process_count;
    if (hints->aggregator_count > 0 && hints->aggregator_count < group->process_count)
        group->part_count = hints->aggregator_count;
    int64_t chunk_count = buffer_size * by_server / group->chunk_size;
    if (chunk_count > WINDOW_SIZE_MAX / group->chunk_size)
        chunk_count = WINDOW_SIZE_MAX / group->chunk_size;
    if (chunk_count > INTERVAL_COUNT_MAX)
        chunk_count = INTERVAL_COUNT_MAX;
    group->chunk_count = chunk_count > 0 ? (int)chunk_count : 1;
    int64_t part_size = buffer_size < WINDOW_SIZE_MAX / group->part_count ? buffer_size
                                                                          : WINDOW_SIZE_MAX / group->part_count;
    group->part_size = round_up(part_size, 64);
    int64_t chunks_size = group->chunk_count * round_up(group->chunk_size, 64);
    int64_t parts_size = group->part_count * group->part_size;
    group->window_size = chunks_size > parts_size ? chunks_size : parts_size;
    int interval_count = group->chunk_count > group->part_count ? group->chunk_count : group->part_count;
    group->servers = take(group->chunk_count * sizeof *group->servers);
    group->intervals = take(interval_count * sizeof *group->intervals);
    group->pieces = take(PIECE_COUNT_MAX * sizeof *group->pieces);
}

static void open_shared(struct group *group, struct problem *problem) {
    int64_t head = sizeof(struct meeting) + group->process_count * sizeof(struct notice);
    head = round_up(head, 4096);
    int64_t bits = round_up(group->window_size / 8 + 8, 4096);
    int64_t size = group->rank == 0 ? head + bits + group->window_size : 0;
    char *base = NULL;
    MPI_Aint first_size;
    int unit;
    if (PMPI_Win_allocate_shared(size, 1, MPI_INFO_NULL, group->comm, &base, &group->shared) != MPI_SUCCESS ||
        PMPI_Win_shared_query(group->shared, 0, &first_size, &unit, &base) != MPI_SUCCESS) {
        fail(problem, MPI_ERR_NO_MEM, "tabane: no memory that the processes of a node share");
        return;
    }
    if (group->rank == 0)
        memset(base, 0, head + bits);
    group->meeting = (struct meeting *)base;
    group->wanted = (uint64_t *)(base + head);
    group->image = base + head + bits;
    group->image_size = group->window_size;
    PMPI_Barrier(group->comm);
}

/* Whether all processes of the group are on one node. */
static int is_one_node(const struct group *group) {
    MPI_Comm node;
    int count, is_one;
    PMPI_Comm_split_type(group->comm, MPI_COMM_TYPE_SHARED, group->rank, MPI_INFO_NULL, &node);
    PMPI_Comm_size(node, &count);
    PMPI_Comm_free(&node);
    is_one = count == group->process_count;
    PMPI_Allreduce(MPI_IN_PLACE, &is_one, 1, MPI_INT, MPI_MIN, group->comm);
    return is_one;
}

struct group *group_open(MPI_Comm comm, int descriptor, const struct hints *hints, struct problem *problem) {
    struct group *group = take(sizeof *group);
    struct tabane_layout layout = {0};
    group->comm = comm;
    group->shared = MPI_WIN_NULL;
    PMPI_Comm_rank(comm, &group->rank);
    PMPI_Comm_size(comm, &group->process_count);
    int is_good = tabane_layout(descriptor, &layout) == 0;
    if (!is_good)
        fail_errno(problem, "the layout of a file");
    PMPI_Allreduce(MPI_IN_PLACE, &is_good, 1, MPI_INT, MPI_MIN, comm);
    if (!is_good) {
        free(group);
        return NULL;
    }
    group->chunk_size = layout.chunk_size;
    group->server_count = layout.servers;
    group->aggregators = take(layout.servers * sizeof *group->aggregators);
    group->is_shared = is_one_node(group);
    size_window(group, hints, layout.width);
    choose_aggregators(group, group->part_count);
    group->look_count = group->process_count <= sysconf(_SC_NPROCESSORS_ONLN) ? LOOK_COUNT : 0;
    if (group->is_shared)
        open_shared(group, problem);
    is_good = !group->is_shared || group->meeting;
    PMPI_Allreduce(MPI_IN_PLACE, &is_good, 1, MPI_INT, MPI_MIN, comm);
    if (!is_good) {
        group_close(group);
        return NULL;
    }
    return group;
}

void group_close(struct group *group) {
    if (!group)
        return;
    if (group->shared != MPI_WIN_NULL)
        PMPI_Win_free(&group->shared);
    if (!group->is_shared)
        free(group->image), free(group->wanted);
    free(group->aggregators), free(group->servers), free(group->intervals), free(group->pieces);
    free(group);
}

/* ---- Windows ---- */

/* The window from the chunk of byte `next` on; its last chunk may end beyond the offsets that are asked for. */
static void cut_by_servers(struct walk *walk, int64_t next) {
    struct group *group = walk->group;
    int64_t begin = next / group->chunk_size * group->chunk_size, stride = round_up(group->chunk_size, 64);
    int64_t size = group->chunk_count * group->chunk_size;
    if (size > INT64_MAX - begin)
        size = INT64_MAX - begin;
    ssize_t count = tabane_locate(walk->file->descriptor, begin, size, group->servers, group->chunk_count);
    if (count < 0)
        fail_errno(walk->problem, "the servers of a file");
    walk->interval_count = count < 0 ? 0 : count < group->chunk_count ? (int)count : group->chunk_count;
    for (int i = 0; i < walk->interval_count; i++) {
        struct interval *it = group->intervals + i;
        it->aggregator = group->aggregators[group->servers[i]];
        it->begin = begin + i * group->chunk_size, it->end = it->begin + group->chunk_size;
        it->place = i * stride;
    }
}

/* The next part of what each process has of the file, in the order of processes. */
static void cut_by_processes(struct walk *walk) {
    struct group *group = walk->group;
    int64_t size = walk->cut->high - walk->cut->low, whole = round_up(size / group->part_count + 1, 64);
    walk->interval_count = 0;
    for (int i = 0; i < group->part_count; i++) {
        struct interval *it = group->intervals + i;
        int64_t begin = walk->cut->low + i * whole, end = begin + whole;
        it->aggregator = i;
        it->begin = begin + walk->round * group->part_size;
        it->end = it->begin + group->part_size < end ? it->begin + group->part_size : end;
        it->end = it->end < walk->cut->high ? it->end : walk->cut->high;
        it->place = i * group->part_size;
        if (it->begin >= it->end)
            it->begin = it->end = 0;
    }
    walk->interval_count = group->part_count;
}

/* Where each interval is in the image that its aggregator has for itself. */
static void place_apart(struct walk *walk) {
    struct group *group = walk->group;
    int64_t *next = take(group->process_count * sizeof *next), mine;
    for (int i = 0; i < walk->interval_count; i++) {
        struct interval *it = group->intervals + i;
        it->place = next[it->aggregator];
        next[it->aggregator] += round_up(it->end - it->begin, 64);
    }
    mine = next[group->rank];
    free(next);
    if (mine <= group->image_size)
        return;
    free(group->image), free(group->wanted);
    group->image = malloc(mine);
    if (!group->image)
        abort();
    group->wanted = take(mine / 8 + 8);
    group->image_size = mine;
}

/* Bytes of the data of this access that lie before a byte of the file, as a position. */
static int64_t position_of(const struct walk *walk, int64_t offset) {
    int64_t position = view_size(&walk->file->view, offset);
    return position < walk->start ? walk->start : position > walk->end ? walk->end : position;
}

/* ---- Pieces of this process ---- */

/* What is done with a piece. */
typedef void (*piece_act)(struct walk *walk, const struct interval *interval, int64_t place, int64_t position,
                          int64_t size);

/* A way through the data of this process. */
struct visit {
    struct walk *walk;
    piece_act act;
    int first; /* of the intervals, which have one size each, but for the last */
    int64_t position;
};

static int visit_segment(void *context, int64_t displacement, int64_t size) {
    struct visit *visit = context;
    const struct interval *intervals = visit->walk->group->intervals + visit->first;
    int64_t step = intervals[0].end - intervals[0].begin;
    while (size > 0) {
        if (visit->walk->span_count >= SPAN_COUNT_MAX && !visit->walk->cut->is_by_process)
            return 1;
        int64_t index = (displacement - intervals[0].begin) / step;
        const struct interval *it = intervals + index;
        int64_t part = it->end - displacement < size ? it->end - displacement : size;
        visit->act(visit->walk, it, it->place + displacement - it->begin, visit->position, part);
        visit->position += part, displacement += part, size -= part;
    }
    return 0;
}

/* Goes through this process's data from position `from` to `to`, which lie in these intervals. */
static void visit_data(struct visit *visit, int64_t from, int64_t to) {
    const struct view *view = &visit->walk->file->view;
    if (from >= to)
        return;
    visit->position = from;
    if (view->is_contiguous)
        visit_segment(visit, view->base + from, to - from);
    else
        shape_walk(view->tiles, view->base, from, to, visit_segment, visit);
}

/* All pieces of the window; by servers up to position `to`, or as far as one round goes, which is returned. */
static int64_t visit_window(struct walk *walk, piece_act act, int64_t to) {
    struct visit visit = {walk, act, 0, to};
    if (!walk->cut->is_by_process) {
        visit_data(&visit, walk->next, to);
        return visit.position;
    }
    for (visit.first = 0; visit.first < walk->interval_count; visit.first++) {
        const struct interval *it = walk->group->intervals + visit.first;
        if (it->begin < it->end)
            visit_data(&visit, position_of(walk, it->begin), position_of(walk, it->end));
    }
    return to;
}

/* Marks bytes of an image as wanted. Others may mark theirs in the same words at the same time. */
static void mark(uint64_t *wanted, int64_t place, int64_t size) {
    int64_t first = place / 64, last = (place + size - 1) / 64;
    uint64_t head = ~UINT64_C(0) << (place % 64), tail = ~UINT64_C(0) >> (63 - (place + size - 1) % 64);
    if (first == last) {
        __atomic_fetch_or(wanted + first, head & tail, __ATOMIC_RELAXED);
        return;
    }
    __atomic_fetch_or(wanted + first, head, __ATOMIC_RELAXED);
    for (int64_t i = first + 1; i < last; i++)
        __atomic_store_n(wanted + i, ~UINT64_C(0), __ATOMIC_RELAXED);
    __atomic_fetch_or(wanted + last, tail, __ATOMIC_RELAXED);
}

static void put_shared(struct walk *walk, const struct interval *interval, int64_t place, int64_t position,
                       int64_t size) {
    (void)interval;
    if (walk->is_write)
        memory_copy(walk->memory, walk->group->image + place, position - walk->start, position - walk->start + size, 0);
    mark(walk->group->wanted, place, size);
}

static void get_shared(struct walk *walk, const struct interval *interval, int64_t place, int64_t position,
                       int64_t size) {
    (void)interval;
    memory_copy(walk->memory, walk->group->image + place, position - walk->start, position - walk->start + size, 1);
}

static void *grown(void *place, int64_t *room, int64_t needed, size_t unit) {
    if (needed <= *room)
        return place;
    *room = needed > 2 * *room ? needed : 2 * *room;
    place = realloc(place, *room * unit);
    if (!place)
        abort();
    return place;
}

static void put_parcel(struct walk *walk, const struct interval *interval, int64_t place, int64_t position,
                       int64_t size) {
    struct parcel *parcel = walk->parcels + interval->aggregator;
    parcel->spans = grown(parcel->spans, &parcel->span_room, parcel->span_count + 1, sizeof *parcel->spans);
    parcel->spans[parcel->span_count++] = (struct span){place, size};
    walk->span_count++;
    if (walk->is_write) {
        parcel->bytes = grown(parcel->bytes, &parcel->room, parcel->size + size, 1);
        memory_copy(walk->memory, parcel->bytes + parcel->size, position - walk->start,
                    position - walk->start + size, 0);
    }
    parcel->size += size;
}

/* The bytes of all parcels have come, one parcel behind the other, in the order in which they were asked for. */
static void get_parcel(struct walk *walk, const struct interval *interval, int64_t place, int64_t position,
                       int64_t size) {
    struct parcel *parcel = walk->parcels + interval->aggregator;
    (void)place;
    memory_copy(walk->memory, parcel->bytes + parcel->size, position - walk->start, position - walk->start + size, 1);
    parcel->size += size;
}

/* ---- The aggregator's part ---- */

/* The first bit from `from` on that is set, or clear; `to` where there is none before it. */
static int64_t next_bit(const uint64_t *bits, int64_t from, int64_t to, int is_set) {
    while (from < to) {
        uint64_t word = (is_set ? bits[from / 64] : ~bits[from / 64]) >> (from % 64);
        if (word != 0) {
            int64_t found = from + __builtin_ctzll(word);
            return found < to ? found : to;
        }
        from = (from / 64 + 1) * 64;
    }
    return to;
}

static void move_pieces(struct walk *walk, int64_t *count) {
    int64_t missing = transfer_pieces(walk->file, walk->is_write, walk->group->pieces, *count, walk->problem);
    walk->limit = missing < walk->limit ? missing : walk->limit;
    *count = 0;
}

/* Moves what is wanted of an interval, or remembers it as pieces that are moved later. */
static void move_interval(struct walk *walk, const struct interval *it, int64_t *count) {
    struct group *group = walk->group;
    int64_t begin = it->place, end = it->place + it->end - it->begin, gap = walk->is_write ? 0 : GAP_SIZE_MAX;
    int64_t from = next_bit(group->wanted, begin, end, 1);
    while (from < end) {
        int64_t to = next_bit(group->wanted, from, end, 0), next = next_bit(group->wanted, to, end, 1);
        while (next < end && next - to <= gap) {
            to = next_bit(group->wanted, next, end, 0);
            next = next_bit(group->wanted, to, end, 1);
        }
        if (*count == PIECE_COUNT_MAX)
            move_pieces(walk, count);
        group->pieces[(*count)++] = (struct piece){it->begin + from - begin, to - from, group->image + from};
        from = next;
    }
    memset(group->wanted + begin / 64, 0, (round_up(end, 64) - begin) / 8);
}

/* Moves what all want of this process's intervals. */
static void serve(struct walk *walk) {
    int64_t count = 0;
    for (int i = 0; i < walk->interval_count; i++) {
        const struct interval *it = walk->group->intervals + i;
        if (it->aggregator == walk->group->rank && it->begin < it->end)
            move_interval(walk, it, &count);
    }
    if (count > 0)
        move_pieces(walk, &count);
}

/* ---- Rounds ---- */

static void round_shared(struct walk *walk, int64_t to) {
    visit_window(walk, put_shared, to);
    meet(walk->group);
    serve(walk);
    if (!walk->is_write) {
        meet(walk->group);
        visit_window(walk, get_shared, to);
    }
    walk->next = to;
}

/* What goes to each process, and comes from it, one behind the other. */
struct lanes {
    int *out, *out_start, *in, *in_start;
    int64_t in_total;
};

static struct lanes lanes_open(int process_count) {
    struct lanes lanes;
    lanes.out = take(4 * process_count * sizeof *lanes.out);
    lanes.out_start = lanes.out + process_count;
    lanes.in = lanes.out_start + process_count;
    lanes.in_start = lanes.in + process_count;
    return lanes;
}

/* With `out` filled in, tells each process what will come. */
static void lanes_tell(struct lanes *lanes, const struct group *group) {
    int64_t out = 0;
    PMPI_Alltoall(lanes->out, 1, MPI_INT, lanes->in, 1, MPI_INT, group->comm);
    lanes->in_total = 0;
    for (int i = 0; i < group->process_count; i++) {
        lanes->out_start[i] = (int)out, lanes->in_start[i] = (int)lanes->in_total;
        out += lanes->out[i], lanes->in_total += lanes->in[i];
    }
}

static void send_spans(struct walk *walk, struct lanes *lanes, const struct span *out, struct span **in) {
    MPI_Datatype type;
    lanes_tell(lanes, walk->group);
    *in = take(lanes->in_total * sizeof **in);
    PMPI_Type_contiguous(sizeof **in, MPI_BYTE, &type);
    PMPI_Type_commit(&type);
    PMPI_Alltoallv(out, lanes->out, lanes->out_start, type, *in, lanes->in, lanes->in_start, type, walk->group->comm);
    PMPI_Type_free(&type);
}

/* Puts bytes that have come into the image, or packs what others have asked for. */
static void place_spans(struct walk *walk, const struct span *spans, int64_t count, char *bytes, int is_in) {
    for (int64_t i = 0; i < count; i++) {
        char *place = walk->group->image + spans[i].place;
        memcpy(is_in ? place : bytes, is_in ? bytes : place, spans[i].size);
        bytes += spans[i].size;
    }
}

/* Sends the spans of all parcels, and the bytes of writes; serves; brings the bytes of reads. */
static void send_parcels(struct walk *walk) {
    struct group *group = walk->group;
    int count = group->process_count;
    struct lanes pieces = lanes_open(count), bytes = lanes_open(count);
    int64_t span_count = 0, size = 0;
    for (int i = 0; i < count; i++) {
        pieces.out[i] = (int)walk->parcels[i].span_count, bytes.out[i] = (int)walk->parcels[i].size;
        span_count += pieces.out[i], size += bytes.out[i];
    }
    struct span *spans = take(span_count * sizeof *spans), *wanted;
    char *own = take(size);
    for (int64_t i = 0, at = 0, byte = 0; i < count; byte += walk->parcels[i].size, at += pieces.out[i], i++) {
        memcpy(spans + at, walk->parcels[i].spans, pieces.out[i] * sizeof *spans);
        if (walk->is_write)
            memcpy(own + byte, walk->parcels[i].bytes, walk->parcels[i].size);
    }
    send_spans(walk, &pieces, spans, &wanted);
    lanes_tell(&bytes, group);
    char *others = take(bytes.in_total);
    for (int64_t i = 0; i < pieces.in_total; i++)
        mark(group->wanted, wanted[i].place, wanted[i].size);
    if (walk->is_write) {
        PMPI_Alltoallv(own, bytes.out, bytes.out_start, MPI_BYTE, others, bytes.in, bytes.in_start, MPI_BYTE,
                       group->comm);
        place_spans(walk, wanted, pieces.in_total, others, 1);
        serve(walk);
    } else {
        serve(walk);
        place_spans(walk, wanted, pieces.in_total, others, 0);
        PMPI_Alltoallv(others, bytes.in, bytes.in_start, MPI_BYTE, own, bytes.out, bytes.out_start, MPI_BYTE,
                       group->comm);
        for (int i = 0; i < count; i++) {
            struct parcel *parcel = walk->parcels + i;
            parcel->bytes = grown(parcel->bytes, &parcel->room, parcel->size, 1);
            memcpy(parcel->bytes, own + bytes.out_start[i], bytes.out[i]);
            parcel->size = 0;
        }
    }
    free(pieces.out), free(bytes.out), free(spans), free(wanted), free(own), free(others);
}

static void round_by_messages(struct walk *walk, int64_t to) {
    struct group *group = walk->group;
    int64_t most = group->window_size / group->process_count;
    most = most > SENT_SIZE_LEAST ? most : SENT_SIZE_LEAST;
    if (!walk->cut->is_by_process && to - walk->next > most)
        to = walk->next + most;
    for (int i = 0; i < group->process_count; i++)
        walk->parcels[i].span_count = walk->parcels[i].size = 0;
    walk->span_count = 0;
    place_apart(walk);
    to = visit_window(walk, put_parcel, to);
    send_parcels(walk);
    walk->span_count = 0;
    if (!walk->is_write)
        visit_window(walk, get_parcel, to);
    walk->next = to;
}

/* What this process still has to do, for the others. */
static struct notice notice_of(const struct walk *walk) {
    struct notice notice = {INT64_MAX, walk->limit, walk->problem->class != MPI_SUCCESS};
    const struct group *group = walk->group;
    if (walk->cut->is_by_process) {
        int64_t whole = round_up((walk->cut->high - walk->cut->low) / group->part_count + 1, 64);
        if (walk->round * group->part_size < whole)
            notice.next = walk->round;
    } else if (walk->next < walk->end && view_offset(&walk->file->view, walk->next) < walk->limit) {
        notice.next = view_offset(&walk->file->view, walk->next);
    }
    return notice;
}

int64_t exchange(struct group *group, struct file *file, int is_write, const struct cut *cut, int64_t position,
                 const struct memory *memory, int64_t size, struct problem *problem) {
    struct walk walk = {.group = group, .file = file, .is_write = is_write, .cut = cut, .memory = memory,
                        .start = position, .end = position + size, .next = position, .limit = INT64_MAX,
                        .problem = problem};
    if (!group->is_shared)
        walk.parcels = take(group->process_count * sizeof *walk.parcels);
    for (;; walk.round++) {
        struct notice all = tell_all(group, notice_of(&walk));
        walk.limit = all.limit;
        if (all.has_failed || all.next == INT64_MAX)
            break;
        if (cut->is_by_process)
            cut_by_processes(&walk);
        else
            cut_by_servers(&walk, all.next);
        /* Another process may not have come as far as this one, which then has nothing to do yet. */
        int64_t to = walk.end;
        if (!cut->is_by_process)
            to = walk.interval_count > 0 ? position_of(&walk, group->intervals[walk.interval_count - 1].end) : 0;
        to = to > walk.next ? to : walk.next;
        if (group->is_shared)
            round_shared(&walk, to);
        else
            round_by_messages(&walk, to);
    }
    for (int i = 0; walk.parcels && i < group->process_count; i++)
        free(walk.parcels[i].spans), free(walk.parcels[i].bytes);
    free(walk.parcels);
    return walk.limit == INT64_MAX ? size : position_of(&walk, walk.limit) - position;
}
