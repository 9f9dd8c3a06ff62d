/*
 * Which mode a collective access takes: by hints, or by what the modes are expected to cost; and the groups of
 * processes that combine.
 */
#include "collective.h"
#include "context.h"

#include <tabane.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bounds of cb_buffer_size. */
#define BUFFER_SIZE_LEAST (INT64_C(64) << 10)
#define BUFFER_SIZE_MAX (INT64_C(1) << 30)

static const char *const mode_names[MODE_COUNT] = {"auto", "list", "node", "stripe", "view"};

/* ---- Hints ---- */

/* The value of a hint; 0 where it isn't given. */
static int hint(MPI_Info info, const char *key, char words[MPI_MAX_INFO_VAL + 1]) {
    int is_given = 0;
    PMPI_Info_get(info, key, MPI_MAX_INFO_VAL, words, &is_given);
    return is_given;
}

static void hint_number(MPI_Info info, const char *key, int64_t least, int64_t most, int64_t *value,
                        struct problem *problem) {
    char words[MPI_MAX_INFO_VAL + 1], *end;
    if (!hint(info, key, words))
        return;
    long long number = strtoll(words, &end, 10);
    if (end == words || *end || number < least || number > most)
        fail(problem, MPI_ERR_INFO_VALUE, "tabane: the hint %s is a number from %lld to %lld, and not \"%.40s\"", key,
             (long long)least, (long long)most, words);
    else
        *value = number;
}

static void hint_mode(MPI_Info info, struct hints *hints, struct problem *problem) {
    char words[MPI_MAX_INFO_VAL + 1];
    if (!hint(info, "tabane_collective", words))
        return;
    for (int mode = 0; mode < MODE_COUNT; mode++)
        if (!strcmp(words, mode_names[mode])) {
            hints->mode_of_reads = hints->mode_of_writes = mode;
            return;
        }
    fail(problem, MPI_ERR_INFO_VALUE,
         "tabane: the hint tabane_collective is auto, list, node, stripe or view, and not \"%.40s\"", words);
}

/* ROMIO's words for whether processes exchange data: enable, disable, or automatic, which is our own choice. */
static void hint_romio(MPI_Info info, const char *key, int32_t *mode, struct problem *problem) {
    char words[MPI_MAX_INFO_VAL + 1];
    if (!hint(info, key, words))
        return;
    if (!strcmp(words, "disable"))
        *mode = MODE_LIST;
    else if (!strcmp(words, "enable") && *mode != MODE_NODE && *mode != MODE_VIEW)
        *mode = MODE_STRIPE;
    else if (strcmp(words, "enable") && strcmp(words, "automatic"))
        fail(problem, MPI_ERR_INFO_VALUE, "tabane: the hint %s is enable, disable or automatic, and not \"%.40s\"", key,
             words);
}

static void hint_switch(MPI_Info info, const char *key, int32_t *is_on, struct problem *problem) {
    char words[MPI_MAX_INFO_VAL + 1];
    if (!hint(info, key, words))
        return;
    if (!strcmp(words, "enable") || !strcmp(words, "disable"))
        *is_on = words[0] == 'e';
    else
        fail(problem, MPI_ERR_INFO_VALUE, "tabane: the hint %s is enable or disable, and not \"%.40s\"", key, words);
}

static void hints_read(struct hints *hints, MPI_Info info, struct problem *problem) {
    int64_t count = hints->aggregator_count;
    hint_mode(info, hints, problem);
    hint_romio(info, "romio_cb_read", &hints->mode_of_reads, problem);
    hint_romio(info, "romio_cb_write", &hints->mode_of_writes, problem);
    hint_switch(info, "tabane_turns", &hints->has_turns, problem);
    hint_switch(info, "tabane_context", &hints->has_context, problem);
    hint_number(info, "cb_nodes", 1, INT32_MAX, &count, problem);
    hint_number(info, "cb_buffer_size", BUFFER_SIZE_LEAST, BUFFER_SIZE_MAX, &hints->buffer_size, problem);
    hints->aggregator_count = (int32_t)count;
    int64_t unit = 0, factor = 0, first = -1, run = 0;
    hint_number(info, "striping_unit", 1, INT32_MAX, &unit, problem);
    hint_number(info, "striping_factor", 1, INT32_MAX, &factor, problem);
    hint_number(info, "start_iodevice", 0, INT32_MAX, &first, problem);
    hint_number(info, "tabane_run", 1, INT32_MAX, &run, problem);
    hints->run = run > 0 ? (int32_t)run : hints->run;
    hints->unit = unit > 0 ? (int32_t)unit : hints->unit;
    hints->factor = factor > 0 ? (int32_t)factor : hints->factor;
    hints->first = first >= 0 ? (int32_t)first : hints->first;
}

static void close_groups(struct collective *it) {
    group_close(it->all), group_close(it->node);
    if (it->node_comm != MPI_COMM_NULL)
        PMPI_Comm_free(&it->node_comm);
    it->all = it->node = NULL;
}

void hints_of_environment(struct file *file, struct problem *problem) {
    const char *given = getenv("TABANE_MPIIO_HINTS");
    MPI_Info info = MPI_INFO_NULL;
    char words[1024], *rest = words, *pair;
    if (given && *given && file->rank == 0) {
        snprintf(words, sizeof words, "%s", given);
        PMPI_Info_create(&info);
        while ((pair = strsep(&rest, ",")) != NULL) {
            char *value = strchr(pair, '=');
            if (!value || value == pair || !value[1]) {
                fail(problem, MPI_ERR_INFO_VALUE,
                     "tabane: TABANE_MPIIO_HINTS has key=value, with commas between them, and not \"%.40s\"", pair);
                break;
            }
            *value = 0;
            PMPI_Info_set(info, pair, value + 1);
        }
    }
    hints_take(file, info, problem);
    if (info != MPI_INFO_NULL)
        PMPI_Info_free(&info);
}

void hints_take(struct file *file, MPI_Info info, struct problem *problem) {
    struct {
        struct hints hints;
        struct problem problem;
    } first;
    memset(&first, 0, sizeof first);
    first.hints = file->collective.hints;
    if (file->rank == 0 && info != MPI_INFO_NULL)
        hints_read(&first.hints, info, &first.problem);
    if (file->process_count > 1)
        PMPI_Bcast(&first, sizeof first, MPI_BYTE, 0, file->comm);
    if (first.problem.class != MPI_SUCCESS) {
        fail(problem, first.problem.class, "%s", first.problem.words);
        return;
    }
    if (memcmp(&file->collective.hints, &first.hints, sizeof first.hints) != 0)
        close_groups(&file->collective);
    file->collective.hints = first.hints;
}

static const char *romio_word(int mode) {
    return mode == MODE_AUTO ? "automatic" : mode == MODE_LIST ? "disable" : "enable";
}

void hints_tell(const struct file *file, MPI_Info info) {
    const struct hints *hints = &file->collective.hints;
    char words[32];
    int is_one = hints->mode_of_reads == hints->mode_of_writes;
    PMPI_Info_set(info, "tabane_collective", mode_names[is_one ? hints->mode_of_writes : MODE_AUTO]);
    PMPI_Info_set(info, "romio_cb_read", romio_word(hints->mode_of_reads));
    PMPI_Info_set(info, "romio_cb_write", romio_word(hints->mode_of_writes));
    PMPI_Info_set(info, "tabane_turns", hints->has_turns ? "enable" : "disable");
    PMPI_Info_set(info, "tabane_context", hints->has_context ? "enable" : "disable");
    if (hints->buffer_size > 0) {
        snprintf(words, sizeof words, "%lld", (long long)hints->buffer_size);
        PMPI_Info_set(info, "cb_buffer_size", words);
    }
    if (hints->aggregator_count > 0) {
        snprintf(words, sizeof words, "%d", hints->aggregator_count);
        PMPI_Info_set(info, "cb_nodes", words);
    }
}

/* ---- The mode of an access ---- */

/* What the processes know of an access together. */
struct survey {
    int64_t problems, unfit; /* processes that failed already, and that can only take MODE_LIST */
    int64_t bytes, pieces, remote; /* in all; servers on other nodes, for each process */
    int64_t low, high;             /* from the first to the last byte */
    int64_t knows_series;            /* whether this is not the first file of its series */
    struct experience experience[2]; /* what is known of lists, and of combining; both of the first process alone */
};

static void join_surveys(void *from, void *into, int *count, MPI_Datatype *type) {
    const struct survey *one = from;
    struct survey *all = into;
    (void)type;
    for (int i = 0; i < *count; i++, one++, all++) {
        all->problems += one->problems, all->unfit += one->unfit;
        all->bytes += one->bytes, all->pieces += one->pieces, all->remote += one->remote;
        all->low = one->low < all->low ? one->low : all->low;
        all->high = one->high > all->high ? one->high : all->high;
        all->knows_series += one->knows_series;
        for (int j = 0; j < 2; j++) {
            all->experience[j].measured += one->experience[j].measured;
            all->experience[j].expected += one->experience[j].expected;
            all->experience[j].calls += one->experience[j].calls;
        }
    }
}

static void join_with_all(struct file *file, struct survey *survey) {
    static MPI_Op joining = MPI_OP_NULL;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    MPI_Datatype type;
    pthread_mutex_lock(&lock);
    if (joining == MPI_OP_NULL)
        PMPI_Op_create(join_surveys, 1, &joining);
    pthread_mutex_unlock(&lock);
    PMPI_Type_contiguous(sizeof *survey, MPI_BYTE, &type);
    PMPI_Type_commit(&type);
    reduce_all(survey, 1, type, joining, file->comm);
    PMPI_Type_free(&type);
}

/*
 * What an access costs, in nanoseconds of all its processes together. In lists each piece has its price, at the client
 * and at the server. Combined it is copied once more, and what aggregators then have are pieces again where nobody
 * writes or reads between them. Measured with `mpiio/bench/hpio.c` (notes/2026-11-27-collective.md), servers on other
 * nodes over TCP.
 */
struct costs {
    double listed_piece, listed_byte;
    double combined_piece, combined_byte, combined_gap;
};

static const struct costs costs_of[2][2] = {
    /* reads of servers on this node, and of others */
    {{80, 0.10, 10, 0.18, 30}, {1000, 0.8, 30, 1.0, 30}},
    /* writes */
    {{190, 0.25, 15, 0.22, 190}, {250, 0.8, 40, 1.0, 250}},
};

/* Before anything is combined: processes meet; the first time on a file they need memory that they share. */
#define ROUND_COST 30e3
#define GROUP_COST 10e6

/* Bytes that are moved of each byte from the first to the last one, if as many as this are, pieces have no gaps. */
#define DENSITY_LEAST 0.95

/*
 * Costs are what is expected; how long calls took beside that is learned (context.h). A mode that was not tried yet is
 * tried after some calls in the other, if it is not expected to take much longer: in the first file of a series, later
 * only after so many calls that one more is little. One that was tried has to be better by a tenth.
 */
#define TRIED_CALLS 2
#define TRIAL_COST_MOST 1.5
#define TRIAL_SHARE 16
#define ADVANTAGE_LEAST 0.9

static double ratio_of(const struct experience *it) {
    return it->expected > 0 ? (double)it->measured / (double)it->expected : 1;
}

/* Whether to combine, by what both are expected to take and by what calls took. */
static int is_combined_better(double list, double combined, const struct experience *experience, int is_first_file,
                              double *expected) {
    double costs[2] = {list, combined};
    int best = combined < list, other = !best;
    int64_t calls = experience[0].calls + experience[1].calls;
    if (experience[0].calls >= TRIED_CALLS && experience[1].calls >= TRIED_CALLS) {
        int used = costs[1] * ratio_of(experience + 1) < costs[0] * ratio_of(experience);
        if (costs[used] * ratio_of(experience + used) < ADVANTAGE_LEAST * costs[!used] * ratio_of(experience + !used))
            best = used;
    } else if (experience[best].calls >= TRIED_CALLS && costs[other] < TRIAL_COST_MOST * costs[best] &&
               (is_first_file || calls >= TRIAL_SHARE)) {
        best = other;
    }
    *expected = costs[best];
    return best;
}

static enum mode cheapest_mode(struct file *file, int is_write, const struct survey *it) {
    const struct costs *costs = &costs_of[is_write][it->remote > 0];
    int64_t span = it->high - it->low;
    int64_t gaps = (double)it->bytes < DENSITY_LEAST * (double)span ? it->pieces : 0;
    double list = (double)it->pieces * costs->listed_piece + (double)it->bytes * costs->listed_byte;
    double start = file->collective.all ? ROUND_COST : GROUP_COST;
    double combined = start + (double)it->pieces * costs->combined_piece + (double)it->bytes * costs->combined_byte +
                      (double)gaps * costs->combined_gap;
    int is_combined = is_combined_better(list, combined, it->experience, it->knows_series == 0,
                                         &file->collective.expected);
    enum mode mode = is_combined ? MODE_STRIPE : MODE_LIST;
    /* What the memory takes that processes share is a matter of its own. */
    if (is_combined && !file->collective.all)
        file->collective.expected = 0;
    if (file->rank == 0 && is_explained())
        fprintf(stderr,
                "tabane: %s %s: %lld bytes in %lld pieces, which lie within %lld, servers on %s: list %.0f us (%.0f ns "
                "a piece, %.2f a byte; %lld calls took %.2f of what was expected), stripe %.0f us (%.0f a piece, "
                "%.2f a byte, %.0f a gap; %lld calls, %.2f): %s\n",
                is_write ? "write to" : "read of", file->path, (long long)it->bytes, (long long)it->pieces,
                (long long)span, it->remote > 0 ? "other nodes" : "this node", list / 1000, costs->listed_piece,
                costs->listed_byte, (long long)it->experience[0].calls, ratio_of(it->experience), combined / 1000,
                costs->combined_piece, costs->combined_byte, costs->combined_gap, (long long)it->experience[1].calls,
                ratio_of(it->experience + 1), mode_names[mode]);
    return mode;
}

static enum mode choose_mode(struct file *file, int is_write, const struct survey *survey) {
    const struct hints *hints = &file->collective.hints;
    enum mode mode = is_write ? hints->mode_of_writes : hints->mode_of_reads;
    if (survey->unfit > 0 || survey->bytes == 0)
        return MODE_LIST;
    return mode == MODE_AUTO ? cheapest_mode(file, is_write, survey) : mode;
}

/* Servers on other nodes. */
static int remote_count(struct file *file) {
    struct tabane_layout layout;
    struct collective *it = &file->collective;
    if (it->remote_count < 0 && tabane_layout(file->descriptor, &layout) == 0) {
        it->remote_count = 0;
        for (int server = 0; server < layout.servers; server++)
            it->remote_count += tabane_is_local(server) == 0;
    }
    return it->remote_count > 0 ? it->remote_count : 0;
}

static struct group *group_for(struct file *file, enum mode mode, struct problem *problem) {
    struct collective *it = &file->collective;
    if (mode == MODE_NODE && !it->node) {
        PMPI_Comm_split_type(file->comm, MPI_COMM_TYPE_SHARED, file->rank, MPI_INFO_NULL, &it->node_comm);
        PMPI_Comm_set_errhandler(it->node_comm, MPI_ERRORS_RETURN);
        it->node = group_open(it->node_comm, file->descriptor, &it->hints, problem);
    } else if (mode != MODE_NODE && !it->all) {
        it->all = group_open(file->comm, file->descriptor, &it->hints, problem);
    }
    return mode == MODE_NODE ? it->node : it->all;
}

void collective_open(struct collective *it) {
    memset(it, 0, sizeof *it);
    it->node_comm = MPI_COMM_NULL;
    it->remote_count = -1;
    it->hints.has_turns = it->hints.has_context = 1;
    it->hints.first = -1;
}

void collective_close(struct collective *it) {
    close_groups(it);
}

static int64_t transfer_together(struct file *file, int is_write, int64_t position, void *buffer, int64_t count,
                                 MPI_Datatype type, struct problem *problem) {
    struct survey survey = {.low = INT64_MAX};
    struct flat *flat = NULL;
    int64_t size = 0, moved = 0;
    if (problem->class == MPI_SUCCESS)
        size = access_size(file, position, count, type, problem);
    if (problem->class == MPI_SUCCESS && !(flat = flat_of(type, FORM_MEMORY)))
        fail(problem, MPI_ERR_TYPE, "tabane: the datatype in memory can't be taken apart");
    pthread_mutex_lock(&file->lock);
    survey.unfit = file->is_atomic || !file->view.is_ascending;
    pthread_mutex_unlock(&file->lock);
    survey.problems = problem->class != MPI_SUCCESS;
    survey.bytes = size, survey.pieces = piece_count(&file->view, position, size);
    survey.remote = remote_count(file);
    if (size > 0) {
        survey.low = view_offset(&file->view, position);
        survey.high = view_offset(&file->view, position + size - 1) + 1;
    }
    if (file->rank == 0 && file->collective.hints.has_context) {
        survey.knows_series = context_of(file) != NULL;
        memcpy(survey.experience, context_experience(file, is_write), sizeof survey.experience);
    }
    join_with_all(file, &survey);
    file->collective.expected = 0;
    enum mode mode = choose_mode(file, is_write, &survey);
    file->collective.is_combined = mode != MODE_LIST;
    if (survey.problems > 0) {
        /* Nobody moves anything; the end of the call tells why. */
    } else if (mode == MODE_LIST) {
        moved = transfer(file, is_write, position, buffer, count, type, problem);
    } else {
        struct cut cut = {mode == MODE_VIEW, survey.low, survey.high};
        struct group *group = group_for(file, mode, problem);
        struct memory memory = memory_of(flat, buffer, count);
        if (group)
            moved = exchange(group, file, is_write, &cut, position, &memory, size, problem);
        memory_drop(&memory);
    }
    flat_release(flat);
    return moved;
}

int64_t transfer_collective(struct file *file, int is_write, int64_t position, void *buffer, int64_t count,
                            MPI_Datatype type, struct problem *problem) {
    const struct hints *hints = &file->collective.hints;
    int mode = is_write ? hints->mode_of_writes : hints->mode_of_reads;
    if (file->process_count == 1)
        return transfer(file, is_write, position, buffer, count, type, problem);
    tabane_throttle(file->descriptor, hints->has_turns);
    file->collective.expected = 0;
    int is_alone = mode == MODE_LIST || file->view.is_external;
    int64_t moved = is_alone ? transfer(file, is_write, position, buffer, count, type, problem)
                             : transfer_together(file, is_write, position, buffer, count, type, problem);
    tabane_throttle(file->descriptor, 0);
    return moved;
}
