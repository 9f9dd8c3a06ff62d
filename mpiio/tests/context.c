/*
 * What is learned of a series, without a cluster: names of series, the attribute's text, also a broken one, layouts for
 * patterns of processes on nodes, and when a layout is kept or given up. Linked with the library's own sources.
 */
#include "../collective.h"
#include "../context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (INT64_C(1) << 20)

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "context.c:%d: %s\n", __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

static void check_name(const char *path, const char *expected) {
    char name[SERIES_NAME_SIZE_MAX];
    series_name(path, name);
    if (strcmp(name, expected)) {
        fprintf(stderr, "context.c: %s is of %s, and not of %s\n", path, name, expected);
        exit(1);
    }
}

static void names(void) {
    check_name("/run/out_0001.h5", "out_#.h#");
    check_name("/run/out_12.nc", "out_#.nc");
    check_name("/r1/plt00010", "plt#");
    check_name("/007", "#");
    check_name("/a1b22c333", "a#b#c#");
    check_name("/restart.nc", "restart.nc");
    check_name("/#1", "##");
    check_name("/two\nlines1", "");
    char path[300] = "/";
    memset(path + 1, 'x', 255);
    check_name(path, path + 1);
}

static struct series some_series(int number) {
    struct series it = {.used = 1000 + number, .files = 3, .bytes = {0, 5 * MIB}, .calls = {0, 7}, .pieces = {0, 70},
                        .pauses = 40, .servers = 4, .layout = {MIB, 16, 4, 2}, .speed_usual = 100, .speed_own = 200};
    snprintf(it.name, sizeof it.name, "out_#.%d with spaces = signs", number);
    it.experience[1][0] = (struct experience){12, 34, 5};
    return it;
}

static void texts(void) {
    struct series all[SERIES_COUNT_MAX], again[SERIES_COUNT_MAX];
    for (int i = 0; i < SERIES_COUNT_MAX; i++)
        all[i] = some_series(i);
    char *text = series_print(all, SERIES_COUNT_MAX);
    memset(again, 0, sizeof again);
    CHECK(series_parse(text, again) == SERIES_COUNT_MAX);
    for (int i = 0; i < SERIES_COUNT_MAX; i++)
        CHECK(!strcmp(all[i].name, again[i].name) && all[i].layout.run == again[i].layout.run &&
              all[i].experience[1][0].expected == again[i].experience[1][0].expected &&
              all[i].speed_own == again[i].speed_own && all[i].pieces[1] == again[i].pieces[1]);
    /* One line more than there is room for. */
    char *more = malloc(2 * strlen(text));
    sprintf(more, "%s%s", text, strchr(text, '\n') + 1);
    CHECK(series_parse(more, again) == SERIES_COUNT_MAX);
    /* Cut anywhere, and with any byte changed: what is left can be used. */
    size_t size = strlen(text);
    for (size_t i = 0; i < size; i += 1 + i / 1000) {
        char kept = text[i];
        for (int value = 0; value < 256; value += 17) {
            text[i] = (char)value;
            int count = series_parse(text, again);
            CHECK(count >= 0 && count <= SERIES_COUNT_MAX);
            for (int j = 0; j < count; j++)
                CHECK(again[j].name[0] && (again[j].layout.unit == 0 || again[j].layout.run >= 1) &&
                      again[j].layout.first < again[j].servers);
        }
        text[i] = kept;
    }
    CHECK(series_parse("", again) == 0);
    CHECK(series_parse("tabane-context 2\n", again) == 0);
    CHECK(series_parse("tabane-context 1\nfiles=1 name=x\n", again) == 0);
    free(text), free(more);
}

/* One process, that has written a block. */
static struct share writer(int64_t low, int64_t size, int home, int local_count) {
    return (struct share){.low = {0, low}, .high = {0, low + size}, .bytes = {0, size}, .calls = {0, 4},
                          .pieces = {0, 4}, .seconds = {0, 1}, .home = home, .local_count = local_count};
}

static struct tabane_layout usual(int servers) {
    return (struct tabane_layout){.chunk_size = MIB, .width = servers, .run = 1, .servers = servers};
}

/* The share of all bytes that lie at servers of their writers' nodes. */
static double local_part(const struct context_layout *layout, int servers, const struct share *shares, int count) {
    int64_t all = 0, local = 0, step = 4096;
    for (const struct share *it = shares; it < shares + count; it++)
        for (int64_t at = it->low[1]; at < it->high[1]; at += step) {
            int server = (int)((layout->first + at / layout->unit / layout->run % layout->width) % servers);
            local += server >= it->home && server < it->home + it->local_count;
            all++;
        }
    return (double)local / (double)all;
}

static void layouts(void) {
    struct share shares[8];
    struct tabane_layout four = usual(4);
    struct context_layout found;
    /* A process a node; blocks of whole chunks, of an odd size, behind a head. */
    int64_t sizes[] = {16 * MIB, 47008 * 500, 3 * MIB + 4096, MIB};
    for (int i = 0; i < 4; i++)
        for (int head = 0; head < 2; head++) {
            for (int rank = 0; rank < 4; rank++)
                shares[rank] = writer(head * 2048 + rank * sizes[i], sizes[i], (rank + 1) % 4, 1);
            found = layout_for(&four, shares, 4);
            CHECK(found.unit > 0 && found.unit % 4096 == 0 && found.unit <= MIB && found.first == 1);
            CHECK(local_part(&found, 4, shares, 4) > 0.97);
        }
    /* Two a node, and two servers on each: neighbours together, and by turns. */
    for (int rank = 0; rank < 4; rank++)
        shares[rank] = writer(rank * 8 * MIB, 8 * MIB, rank / 2 * 2, 2);
    found = layout_for(&four, shares, 4);
    CHECK(found.unit == MIB && found.run == 8 && found.first == 0 && local_part(&found, 4, shares, 4) == 1);
    for (int rank = 0; rank < 8; rank++)
        shares[rank] = writer(rank * 8 * MIB, 8 * MIB, rank % 4, 1);
    found = layout_for(&four, shares, 8);
    CHECK(found.unit == MIB && found.run == 8 && local_part(&found, 4, shares, 8) == 1);
    /* Nodes against the order of servers, processes that write all over the file, one node: nothing to gain. */
    for (int rank = 0; rank < 4; rank++)
        shares[rank] = writer(rank * 16 * MIB, 16 * MIB, 3 - rank, 1);
    CHECK(layout_for(&four, shares, 4).unit == 0);
    for (int rank = 0; rank < 4; rank++)
        shares[rank] = writer(rank * 4096, 64 * MIB, rank, 1);
    CHECK(layout_for(&four, shares, 4).unit == 0);
    for (int rank = 0; rank < 4; rank++)
        shares[rank] = writer(rank * 16 * MIB, 16 * MIB, 0, 4);
    CHECK(layout_for(&four, shares, 4).unit == 0);
    /* A small file lies at one server; it is spread. Larger ones are already. */
    shares[0] = writer(0, MIB, -1, 0);
    found = layout_for(&four, shares, 1);
    CHECK(found.unit > 0 && found.unit < MIB && found.run == 1 && found.first == -1);
    shares[0] = writer(0, 4 * MIB, -1, 0);
    CHECK(layout_for(&four, shares, 1).unit == 0);
    /* Ring placement knows of chunk sizes alone. */
    four.is_hashed = 1;
    for (int rank = 0; rank < 4; rank++)
        shares[rank] = writer(rank * 16 * MIB, 16 * MIB, rank, 1);
    CHECK(layout_for(&four, shares, 4).unit == 0);
    /* Large: no more work than servers and processes. */
    struct tabane_layout many = usual(192);
    struct share *ranks = calloc(12288, sizeof *ranks);
    for (int rank = 0; rank < 12288; rank++)
        ranks[rank] = writer(rank * 256 * MIB, 256 * MIB, rank / 64, 1);
    found = layout_for(&many, ranks, 12288);
    CHECK(found.unit == MIB && found.run == 64 * 256);
    free(ranks);
}

static void learning(void) {
    struct share shares[4];
    struct series it = {0};
    struct tabane_layout held = usual(4);
    for (int rank = 0; rank < 4; rank++)
        shares[rank] = writer(rank * 16 * MIB, 16 * MIB, rank, 1);
    series_learn(&it, &held, shares, 4, 2);
    CHECK(it.files == 1 && it.layout.run == 16 && it.speed_usual == 64 * MIB && it.pauses == 50 && !it.is_refused);
    /* The next file has it, and was faster: it stays. */
    struct tabane_layout own = held;
    own.run = 16;
    for (int rank = 0; rank < 4; rank++)
        shares[rank].seconds[1] = 0.5;
    series_learn(&it, &own, shares, 4, 2);
    CHECK(it.layout.run == 16 && it.speed_own == 128 * MIB && !it.is_refused);
    /* One file that happens to be slower does not take it away. */
    for (int rank = 0; rank < 4; rank++)
        shares[rank].seconds[1] = 3;
    series_learn(&it, &own, shares, 4, 4);
    CHECK(!it.is_refused);
    /* Whoever reads it later changes nothing of that. */
    struct share reader = shares[0];
    reader.bytes[0] = 64 * MIB, reader.high[0] = 64 * MIB, reader.bytes[1] = 0;
    series_learn(&it, &own, &reader, 1, 4);
    CHECK(it.bytes[0] == 64 * MIB && it.bytes[1] == 64 * MIB && it.layout.run == 16 && it.speed_usual == 64 * MIB);
    /* A cluster with other servers: from the beginning. */
    struct tabane_layout two = usual(2);
    for (int rank = 0; rank < 4; rank++)
        shares[rank].home = rank / 2, shares[rank].seconds[1] = 1;
    series_learn(&it, &two, shares, 4, 2);
    CHECK(it.layout.run == 32 && it.speed_own == 0 && it.speed_usual == 64 * MIB);
    /* Slower: given up, for as long as files are alike. */
    own = two, own.run = 32;
    for (int rank = 0; rank < 4; rank++)
        shares[rank].seconds[1] = 1.2;
    series_learn(&it, &own, shares, 4, 2);
    CHECK(it.is_refused);
    series_learn(&it, &two, shares, 4, 2);
    CHECK(it.is_refused);
    for (int rank = 0; rank < 4; rank++)
        shares[rank] = writer(rank * 64 * MIB, 64 * MIB, rank / 2, 1);
    series_learn(&it, &two, shares, 4, 2);
    CHECK(!it.is_refused && it.layout.run == 128);
}

int main(void) {
    names();
    texts();
    layouts();
    learning();
    printf("done\n");
    return 0;
}
