/*
 * Context. At the close the first process gathers what all did, and writes it into an attribute of the file's
 * directory; before it makes a file it looks there for what earlier files of the series had done to them.
 *
 * Nothing here is needed for a file to be right: an attribute that can't be read or written, or that holds something
 * else, is as none. Two jobs that write it at once lose one of both lines.
 */
#include "context.h"
#include "collective.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define HEAD "tabane-context 1\n"
/* Bytes of the attribute: a line of each series. */
#define LINE_SIZE_MAX 1024
#define TEXT_SIZE_MAX (SERIES_COUNT_MAX * LINE_SIZE_MAX + 64)
/* What was read of a directory holds for so many seconds in this process. */
#define KEPT_SECONDS 10
/* Nanoseconds a byte, to a server of the process's own node and to another. */
#define LOCAL_COST 0.25
#define REMOTE_COST 0.8
/* A layout is tried if it is expected to take less than this share of the usual one's time. */
#define GAIN_LEAST 0.8
/* It is refused if it moves less than this share of the bytes a second. */
#define SPEED_LEAST 0.95
/* Bytes of a chunk; chunks of a layout that was made for blocks are whole pages, and no larger than the usual ones. */
#define UNIT_LEAST (INT64_C(64) << 10)
#define UNIT_MAX (INT64_C(64) << 20)
#define PAGE_SIZE 4096
/* Runs that are tried to find one whose chunks fit the blocks best. */
#define RUN_COUNT_MAX 64
/* Older calls of a mode count as much as this less with each new one. */
#define KEPT_SHARE 0.7

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* ---- Series ---- */

void series_name(const char *path, char name[SERIES_NAME_SIZE_MAX]) {
    const char *part = strrchr(path, '/');
    part = part ? part + 1 : path;
    size_t size = 0;
    for (; *part && size + 1 < SERIES_NAME_SIZE_MAX; part++) {
        if (iscntrl((unsigned char)*part)) {
            size = 0;
            break;
        }
        if (!isdigit((unsigned char)*part))
            name[size++] = *part;
        else if (size == 0 || name[size - 1] != '#' || !isdigit((unsigned char)part[-1]))
            name[size++] = '#';
    }
    name[size] = 0;
}

/* One line, without its end; whether it says something that can be. */
static int parse_line(const char *line, struct series *it) {
    struct experience *e = &it->experience[0][0];
    struct context_layout *layout = &it->layout;
    int name = 0;
    long long n[9], x[12];
    memset(it, 0, sizeof *it);
    sscanf(line,
           "files=%lld used=%lld read=%lld/%lld/%lld write=%lld/%lld/%lld pauses=%d servers=%d layout=%lld,%d,%d,%d "
           "speed=%lld,%lld refused=%d read-apart=%lld,%lld,%lld read-combined=%lld,%lld,%lld "
           "write-apart=%lld,%lld,%lld write-combined=%lld,%lld,%lld name=%n",
           &n[0], &n[1], &n[2], &n[3], &n[4], &n[5], &n[6], &n[7], &it->pauses, &it->servers, &n[8], &layout->run,
           &layout->width, &layout->first, (long long *)&it->speed_usual, (long long *)&it->speed_own,
           &it->is_refused, &x[0], &x[1], &x[2], &x[3], &x[4], &x[5], &x[6], &x[7], &x[8], &x[9], &x[10], &x[11],
           &name);
    if (name == 0 || !line[name] || strlen(line + name) >= sizeof it->name)
        return 0;
    strcpy(it->name, line + name);
    it->files = n[0], it->used = n[1], layout->unit = n[8];
    for (int i = 0; i < 2; i++)
        it->bytes[i] = n[2 + 3 * i], it->calls[i] = n[3 + 3 * i], it->pieces[i] = n[4 + 3 * i];
    for (int i = 0; i < 4; i++)
        e[i] = (struct experience){x[3 * i], x[3 * i + 1], x[3 * i + 2]};
    int is_good = it->files >= 0 && it->speed_usual >= 0 && it->speed_own >= 0;
    for (int i = 0; i < 4; i++)
        is_good = is_good && e[i].measured >= 0 && e[i].expected >= 0 && e[i].calls >= 0 &&
                  (e[i].calls == 0) == (e[i].expected == 0);
    /* A layout that no server takes would keep files from being made. */
    int is_usual = layout->unit == 0;
    return is_good && (is_usual || (layout->unit >= UNIT_LEAST && layout->unit <= UNIT_MAX && layout->run >= 1 &&
                                    layout->width >= 0 && layout->first >= -1 && layout->first < it->servers));
}

int series_parse(const char *text, struct series *all) {
    int count = 0;
    if (strncmp(text, HEAD, sizeof HEAD - 1))
        return 0;
    text += sizeof HEAD - 1;
    while (*text && count < SERIES_COUNT_MAX) {
        char line[LINE_SIZE_MAX];
        size_t size = strcspn(text, "\n");
        if (size < sizeof line) {
            memcpy(line, text, size);
            line[size] = 0;
            count += parse_line(line, all + count);
        }
        text += size + (text[size] == '\n');
    }
    return count;
}

char *series_print(const struct series *all, int count) {
    char *text = malloc(TEXT_SIZE_MAX);
    if (!text)
        abort();
    size_t size = snprintf(text, TEXT_SIZE_MAX, HEAD);
    for (const struct series *it = all; it < all + count; it++) {
        const struct context_layout *layout = &it->layout;
        size += snprintf(text + size, TEXT_SIZE_MAX - size,
                         "files=%lld used=%lld read=%lld/%lld/%lld write=%lld/%lld/%lld pauses=%d servers=%d "
                         "layout=%lld,%d,%d,%d speed=%lld,%lld refused=%d",
                         (long long)it->files, (long long)it->used, (long long)it->bytes[0], (long long)it->calls[0],
                         (long long)it->pieces[0], (long long)it->bytes[1], (long long)it->calls[1],
                         (long long)it->pieces[1], it->pauses, it->servers, (long long)layout->unit, layout->run,
                         layout->width, layout->first, (long long)it->speed_usual, (long long)it->speed_own,
                         it->is_refused);
        for (int i = 0; i < 4; i++) {
            static const char *const names[] = {"read-apart", "read-combined", "write-apart", "write-combined"};
            const struct experience *e = &it->experience[0][0] + i;
            size += snprintf(text + size, TEXT_SIZE_MAX - size, " %s=%lld,%lld,%lld", names[i],
                             (long long)e->measured, (long long)e->expected, (long long)e->calls);
        }
        size += snprintf(text + size, TEXT_SIZE_MAX - size, " name=%s\n", it->name);
    }
    return text;
}

/* ---- Layouts ---- */

/* Bytes of a share that each server has with a layout: added to `bytes`. */
static void spread(const struct context_layout *layout, int servers, int64_t low, int64_t high, double total,
                   double *bytes) {
    int64_t stretch = layout->unit * layout->run;
    int width = layout->width > 0 && layout->width < servers ? layout->width : servers;
    int first = layout->first > 0 ? layout->first : 0;
    if (high <= low)
        return;
    if ((high - low) / stretch > 4 * width) {
        for (int i = 0; i < width; i++)
            bytes[(first + i) % servers] += total / width;
        return;
    }
    for (int64_t from = low, to; from < high; from = to) {
        to = least((from / stretch + 1) * stretch, high);
        bytes[(first + from / stretch % width) % servers] += total * (double)(to - from) / (double)(high - low);
    }
}

static double largest(const double *values, int count) {
    double found = 0;
    for (int i = 0; i < count; i++)
        found = values[i] > found ? values[i] : found;
    return found;
}

double layout_time(const struct context_layout *layout, int servers, const struct share *shares, int count) {
    double *bytes = calloc(3 * servers, sizeof *bytes), *at_server = bytes + servers, *at_node = at_server + servers;
    if (!bytes)
        abort();
    for (const struct share *it = shares; it < shares + count; it++) {
        double away = 0;
        memset(bytes, 0, servers * sizeof *bytes);
        for (int i = 0; i < 2; i++)
            spread(layout, servers, it->low[i], it->high[i], (double)it->bytes[i], bytes);
        for (int server = 0; server < servers; server++) {
            int is_local = it->home >= 0 && server >= it->home && server < it->home + it->local_count;
            at_server[server] += bytes[server] * (is_local ? LOCAL_COST : REMOTE_COST);
            away += is_local ? 0 : bytes[server] * REMOTE_COST;
        }
        if (it->home >= 0 && it->home < servers)
            at_node[it->home] += away;
    }
    double busiest = largest(at_server, 2 * servers);
    free(bytes);
    return busiest;
}

/* From the first byte of a share to behind the last one. */
static int64_t low_of(const struct share *it) {
    if (it->bytes[0] == 0 || it->bytes[1] == 0)
        return it->low[it->bytes[1] > 0];
    return least(it->low[0], it->low[1]);
}

static int64_t high_of(const struct share *it) {
    return most(it->bytes[0] > 0 ? it->high[0] : 0, it->bytes[1] > 0 ? it->high[1] : 0);
}

static int by_place(const void *one, const void *other) {
    int64_t a = low_of(*(const struct share *const *)one), b = low_of(*(const struct share *const *)other);
    return (a > b) - (a < b);
}

/*
 * Processes have blocks of the file, one behind the other, and those of a node are neighbours: the blocks of each node
 * at its servers. Chunks are whole pages; of the runs the one whose chunks miss the blocks by least.
 */
static struct context_layout layout_of_blocks(const struct tabane_layout *usual, const struct share *shares,
                                              int count) {
    struct context_layout layout = {0};
    const struct share **sorted = malloc(count * sizeof *sorted);
    int used = 0, turns = 0;
    int64_t last = 0;
    if (!sorted)
        abort();
    for (int i = 0; i < count; i++)
        if (shares[i].bytes[0] + shares[i].bytes[1] > 0)
            sorted[used++] = shares + i;
    qsort(sorted, used, sizeof *sorted, by_place);
    int is_fit = used > 1 && sorted[0]->home >= 0 && sorted[0]->local_count > 0;
    for (int i = 1; i < used && is_fit; i++) {
        is_fit = low_of(sorted[i]) >= high_of(sorted[i - 1]);
        if (sorted[i]->home != sorted[i - 1]->home)
            turns++, last = low_of(sorted[i]);
    }
    if (is_fit && turns > 0) {
        int64_t block = (last - low_of(sorted[0])) / turns / sorted[0]->local_count, missed_least = INT64_MAX;
        int64_t unit_most = (int64_t)usual->chunk_size, run = (block + unit_most - 1) / unit_most;
        for (int tries = 0; tries < RUN_COUNT_MAX; run++, tries++) {
            int64_t unit = (block / run + PAGE_SIZE / 2) / PAGE_SIZE * PAGE_SIZE;
            if (unit > unit_most)
                continue;
            if (unit < UNIT_LEAST || run > INT32_MAX)
                break;
            int64_t missed = llabs(unit * run - block);
            if (missed < missed_least) {
                missed_least = missed;
                layout = (struct context_layout){unit, (int32_t)run, usual->servers, sorted[0]->home};
            }
        }
    }
    free(sorted);
    return layout;
}

/* A file that is smaller than one chunk of each server, over all of them. */
static struct context_layout layout_of_small(const struct tabane_layout *usual, const struct share *shares,
                                             int count) {
    int64_t end = 0;
    for (int i = 0; i < count; i++)
        end = most(end, high_of(shares + i));
    int64_t unit = (end / usual->servers + UNIT_LEAST) / UNIT_LEAST * UNIT_LEAST;
    if (usual->servers < 2 || unit >= (int64_t)usual->chunk_size)
        return (struct context_layout){0};
    return (struct context_layout){unit, 1, usual->servers, -1};
}

struct context_layout layout_for(const struct tabane_layout *usual, const struct share *shares, int count) {
    struct context_layout as_usual = {(int64_t)usual->chunk_size, usual->run, usual->width, usual->first}, best = {0};
    struct context_layout others[] = {layout_of_blocks(usual, shares, count), layout_of_small(usual, shares, count)};
    double time = GAIN_LEAST * layout_time(&as_usual, usual->servers, shares, count);
    for (int i = usual->is_hashed; i < 2; i++) {
        double other = others[i].unit > 0 ? layout_time(others + i, usual->servers, shares, count) : time;
        if (other < time)
            best = others[i], time = other;
    }
    return best;
}

/* ---- What is learned ---- */

static int is_same_layout(const struct context_layout *layout, const struct tabane_layout *held) {
    return layout->unit == (int64_t)held->chunk_size &&
           (held->is_hashed || (layout->run == held->run && (layout->width == 0 || layout->width == held->width) &&
                                (layout->first < 0 || layout->first == held->first)));
}

void series_learn(struct series *it, const struct tabane_layout *held, const struct share *shares, int count,
                  double open_seconds) {
    int64_t bytes[2] = {0}, calls[2] = {0}, pieces[2] = {0};
    double seconds[2] = {0}, busy = 0;
    int is_written = 0;
    for (const struct share *share = shares; share < shares + count; share++) {
        for (int i = 0; i < 2; i++) {
            bytes[i] += share->bytes[i], calls[i] += share->calls[i], pieces[i] += share->pieces[i];
            seconds[i] = share->seconds[i] > seconds[i] ? share->seconds[i] : seconds[i];
        }
        is_written |= share->bytes[1] > 0;
        busy = share->seconds[0] + share->seconds[1] > busy ? share->seconds[0] + share->seconds[1] : busy;
    }
    int64_t before = it->bytes[1];
    for (int i = 0; i < (is_written ? 2 : 1); i++)
        it->bytes[i] = bytes[i], it->calls[i] = calls[i], it->pieces[i] = pieces[i];
    it->pauses = open_seconds > busy ? (int32_t)(100 * (open_seconds - busy) / open_seconds) : 0;
    it->files++;
    /* Files have the layout that suits who writes them: what is read again later has it already. */
    if (!is_written)
        return;
    int is_other = bytes[1] > 2 * before || before > 2 * bytes[1] || it->servers != held->servers;
    int64_t speed = seconds[1] > 0 ? (int64_t)((double)bytes[1] / seconds[1]) : 0;
    it->servers = held->servers;
    if (is_other) {
        it->layout = (struct context_layout){0};
        it->is_refused = 0, it->speed_usual = it->speed_own = 0;
    }
    struct context_layout found = layout_for(held, shares, count);
    if (it->layout.unit == 0 || !is_same_layout(&it->layout, held)) {
        it->speed_usual = speed;
        if (!it->is_refused)
            it->layout = found, it->speed_own = 0;
    } else if (found.unit > 0) {
        /* Processes have moved to other nodes since. */
        it->layout = found, it->speed_own = 0;
    } else {
        it->speed_own = most(speed, it->speed_own);
        it->is_refused = (double)it->speed_own < SPEED_LEAST * (double)it->speed_usual;
    }
}

/* ---- The attribute ---- */

/* The directory that was read last. */
static struct {
    char path[PATH_SIZE_MAX];
    time_t read;
    struct series all[SERIES_COUNT_MAX];
    int count;
} kept;
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;

static void directory_of(const char *path, char directory[PATH_SIZE_MAX]) {
    const char *slash = strrchr(path, '/');
    snprintf(directory, PATH_SIZE_MAX, "%.*s", slash && slash > path ? (int)(slash - path) : 1, path);
}

/* Has `kept` be of the directory; with the lock held. */
static void read_directory(const char *directory, int is_fresh) {
    if (!is_fresh && !strcmp(kept.path, directory) && time(NULL) - kept.read < KEPT_SECONDS)
        return;
    char *text = malloc(TEXT_SIZE_MAX);
    if (!text)
        abort();
    ssize_t size = tabane_getxattr(directory, CONTEXT_ATTRIBUTE, text, TEXT_SIZE_MAX - 1);
    text[size > 0 ? size : 0] = 0;
    kept.count = series_parse(text, kept.all);
    kept.read = time(NULL);
    strcpy(kept.path, directory);
    free(text);
}

/* The series in `kept`; NULL: none. */
static struct series *find(const char *name) {
    for (int i = 0; i < kept.count; i++)
        if (!strcmp(kept.all[i].name, name))
            return kept.all + i;
    return NULL;
}

/* The same, or a place for a new one: where the one was that was not used for longest. */
static struct series *find_or_make(const char *name) {
    struct series *it = find(name);
    if (it)
        return it;
    it = kept.all;
    if (kept.count < SERIES_COUNT_MAX)
        it = kept.all + kept.count++;
    else
        for (int i = 1; i < kept.count; i++)
            it = kept.all[i].used < it->used ? kept.all + i : it;
    memset(it, 0, sizeof *it);
    strcpy(it->name, name);
    return it;
}

static void write_directory(const char *directory) {
    char *text = series_print(kept.all, kept.count);
    if (tabane_setxattr(directory, CONTEXT_ATTRIBUTE, text, strlen(text), 0) != 0 && is_explained())
        fprintf(stderr, "tabane: the context of %s is not kept: %s\n", directory, tabane_error_message());
    free(text);
}

/* ---- A file ---- */

const struct series *context_of(struct file *file) {
    struct context *it = &file->context;
    char directory[PATH_SIZE_MAX], name[SERIES_NAME_SIZE_MAX];
    if (it->is_known || !file->collective.hints.has_context)
        return it->series;
    it->is_known = 1;
    series_name(file->path, name);
    directory_of(file->path, directory);
    pthread_mutex_lock(&kept_lock);
    read_directory(directory, 0);
    struct series *found = name[0] ? find(name) : NULL;
    if (found && (it->series = malloc(sizeof *found)) != NULL)
        *it->series = *found;
    pthread_mutex_unlock(&kept_lock);
    if (it->series)
        memcpy(it->experience, it->series->experience, sizeof it->experience);
    return it->series;
}

void context_layout(struct file *file, struct tabane_layout *layout) {
    const struct hints *hints = &file->collective.hints;
    int is_chosen = hints->unit > 0 || hints->factor > 0 || hints->run > 0 || hints->first >= 0;
    const struct series *it = is_chosen ? NULL : context_of(file);
    if (!it || it->layout.unit == 0 || it->is_refused)
        return;
    layout->chunk_size = (size_t)it->layout.unit, layout->run = it->layout.run;
    layout->width = it->layout.width, layout->first = it->layout.first;
    if (is_explained())
        fprintf(stderr, "tabane: %s, if it is new, has a layout for its series %s: chunks of %lld bytes, %d in a row "
                        "at a server%s\n",
                file->path, it->name, (long long)it->layout.unit, it->layout.run,
                it->layout.first >= 0 ? ", each node's blocks at its own servers" : "");
}

static void learn_mode(struct experience *it, double expected, double measured) {
    it->measured = (int64_t)(KEPT_SHARE * (double)it->measured + measured);
    it->expected = (int64_t)(KEPT_SHARE * (double)it->expected + expected) + 1;
    it->calls++;
}

void context_note(struct file *file, int is_write, int64_t position, int64_t size, double seconds, int is_collective) {
    struct share *it = &file->context.share;
    struct collective *collective = &file->collective;
    if (!collective->hints.has_context)
        return;
    if (is_collective && file->rank == 0 && collective->expected > 0)
        learn_mode(&file->context.experience[is_write][collective->is_combined], collective->expected, seconds * 1e9);
    pthread_mutex_lock(&file->lock);
    it->seconds[is_write] += seconds;
    if (size > 0) {
        int64_t low = view_offset(&file->view, position), high = view_offset(&file->view, position + size - 1) + 1;
        it->low[is_write] = it->bytes[is_write] > 0 ? least(it->low[is_write], low) : low;
        it->high[is_write] = most(it->high[is_write], high);
        it->bytes[is_write] += size;
        it->calls[is_write]++;
        it->pieces[is_write] += piece_count(&file->view, position, size);
    }
    pthread_mutex_unlock(&file->lock);
}

const struct experience *context_experience(struct file *file, int is_write) {
    context_of(file);
    return file->context.experience[is_write];
}

/* Where this process runs: the first server of its node, and how many follow it there. */
static void find_home(struct share *share, int servers) {
    share->home = -1;
    for (int server = 0; server < servers; server++) {
        int is_local = tabane_is_local(server) == 1;
        if (is_local && share->home < 0)
            share->home = server;
        else if (!is_local && share->home >= 0)
            break;
        share->local_count += is_local;
    }
}

int64_t context_finish(struct file *file) {
    struct share *it = &file->context.share;
    struct tabane_layout held;
    if (file->collective.hints.has_context && it->bytes[0] + it->bytes[1] > 0 &&
        tabane_layout(file->descriptor, &held) == 0)
        find_home(it, held.servers);
    return it->bytes[0] + it->bytes[1];
}

static void learn(struct file *file, const struct tabane_layout *held, const struct share *shares) {
    struct context *it = &file->context;
    char directory[PATH_SIZE_MAX], name[SERIES_NAME_SIZE_MAX];
    series_name(file->path, name);
    directory_of(file->path, directory);
    if (!name[0])
        return;
    context_of(file);
    pthread_mutex_lock(&kept_lock);
    read_directory(directory, 1);
    struct series *series = find_or_make(name);
    series_learn(series, held, shares, file->process_count, seconds_since(&it->opened));
    memcpy(series->experience, it->experience, sizeof it->experience);
    series->used = (int64_t)time(NULL);
    write_directory(directory);
    if (is_explained())
        fprintf(stderr,
                "tabane: %s: %lld bytes read in %lld pieces, %lld written in %lld, %d %% pauses; the next file of %s "
                "gets %s\n",
                file->path, (long long)series->bytes[0], (long long)series->pieces[0], (long long)series->bytes[1],
                (long long)series->pieces[1], series->pauses, name,
                series->layout.unit == 0 ? "the usual layout"
                : series->is_refused     ? "the usual layout, which was faster"
                                         : "a layout of its own");
    pthread_mutex_unlock(&kept_lock);
}

void context_close(struct file *file, int64_t moved) {
    struct context *it = &file->context;
    struct tabane_layout held;
    if (file->collective.hints.has_context && moved * file->process_count >= LEARNED_SIZE_LEAST) {
        struct share *shares = file->rank == 0 ? calloc(file->process_count, sizeof *shares) : NULL;
        if (file->rank == 0 && !shares)
            abort();
        if (shares)
            shares[0] = it->share;
        if (file->process_count > 1)
            PMPI_Gather(&it->share, sizeof it->share, MPI_BYTE, shares, sizeof it->share, MPI_BYTE, 0, file->comm);
        if (file->rank == 0 && tabane_layout(file->descriptor, &held) == 0 && held.servers > 0)
            learn(file, &held, shares);
        free(shares);
    }
}

void context_drop(struct context *it) {
    free(it->series);
    it->series = NULL;
}
