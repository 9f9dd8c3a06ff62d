/*
 * Goal: collective writes and reads move the bytes that each process names, in every mode, whatever the pieces are.
 * Method: all processes draw from one seed, so that each knows what all do. In each round the file is dealt out in
 * pieces of random sizes, some to nobody, for writes each to one process, for reads some to several; processes without
 * any piece come as well. A model of the file is kept in memory and compared with what is read, by the same way and by
 * independent reads, up to and beyond the end of the file. Hints change from round to round: modes, numbers of
 * aggregators, sizes of windows from one chunk on. Then all write over each other. In the end one process fails, and all
 * are told.
 */
#include "test.h"

#define ROUND_COUNT 40
#define FILE_SIZE_MAX (5 << 20)
#define PIECE_COUNT_MAX 4000

static unsigned long long state = 20261127;
static unsigned char *model, *memory, *whole;
static long model_size;

static long draw(long limit) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (long)((state >> 33) % limit);
}

struct deal {
    int count, is_open_ended;
    MPI_Aint places[PIECE_COUNT_MAX];
    int sizes[PIECE_COUNT_MAX];
    long size;
};

/* Pieces of this process; all processes draw the same for all. */
static void deal_out(struct deal *mine, int is_write) {
    long from = draw(3) ? draw(model_size + 1) : 0, limit = FILE_SIZE_MAX - (is_write ? 0 : draw(2) * (1 << 20));
    long largest = draw(4) == 0 ? 30 : draw(2) ? 6000 : 300000;
    int busy = 1 + (int)draw(process_count), gaps = (int)draw(3);
    memset(mine, 0, sizeof *mine);
    for (int total = 0; from < limit && total < PIECE_COUNT_MAX; total++) {
        long size = 1 + draw(largest);
        int owner = (int)draw(busy), second = (int)draw(busy), is_gap = gaps > 0 && draw(gaps + 1) == 0;
        size = size < limit - from ? size : limit - from;
        int is_mine = owner == rank || (!is_write && second == rank);
        if (is_mine && !is_gap) {
            mine->places[mine->count] = from, mine->sizes[mine->count] = (int)size;
            mine->count++, mine->size += size;
        }
        from += size;
        if (is_write && !is_gap && from > model_size)
            model_size = from;
    }
}

/* Bytes of a piece of a file in one round, by which process it is. */
static unsigned char byte_of(int round, long place) {
    return (unsigned char)((place * 2654435761u >> 7) + round * 37);
}

static MPI_Datatype filetype_of(const struct deal *mine) {
    MPI_Datatype type;
    if (mine->count == 0)
        GOOD(MPI_Type_contiguous(1, MPI_BYTE, &type));
    else
        GOOD(MPI_Type_create_hindexed(mine->count, mine->sizes, mine->places, MPI_BYTE, &type));
    GOOD(MPI_Type_commit(&type));
    return type;
}

static void set_hints(MPI_File file) {
    static const char *const modes[] = {"list", "node", "stripe", "view", "auto"};
    static const char *const sizes[] = {"65536", "200000", "16777216"};
    MPI_Info info;
    char words[32];
    GOOD(MPI_Info_create(&info));
    GOOD(MPI_Info_set(info, "tabane_collective", modes[draw(5)]));
    GOOD(MPI_Info_set(info, "cb_buffer_size", sizes[draw(3)]));
    snprintf(words, sizeof words, "%ld", 1 + draw(process_count));
    GOOD(MPI_Info_set(info, "cb_nodes", words));
    GOOD(MPI_File_set_info(file, info));
    GOOD(MPI_Info_free(&info));
}

/* Memory: in one piece, or in blocks of 100 bytes with 28 between them. */
static long place_in(long position, int is_spread) {
    return is_spread ? position / 100 * 128 + position % 100 : position;
}

static void move(MPI_File file, int round, int is_write, const struct deal *mine, MPI_Status *status) {
    int is_spread = (int)draw(2), is_split = (int)draw(2);
    MPI_Datatype blocks, type = MPI_BYTE, filetype = filetype_of(mine);
    long count = mine->size, position = 0;
    GOOD(MPI_File_set_view(file, 0, MPI_BYTE, filetype, "native", MPI_INFO_NULL));
    memset(memory, 0xee, 2 * FILE_SIZE_MAX);
    for (int i = 0; i < mine->count && is_write; i++)
        for (int j = 0; j < mine->sizes[i]; j++, position++)
            memory[place_in(position, is_spread)] = byte_of(round, mine->places[i] + j);
    if (is_spread) {
        int sizes[2] = {1, (int)(mine->size % 100)};
        MPI_Aint places[2] = {0, mine->size / 100 * 128};
        MPI_Datatype parts[2] = {MPI_BYTE, MPI_BYTE};
        GOOD(MPI_Type_vector((int)(mine->size / 100), 100, 128, MPI_BYTE, &blocks));
        parts[0] = blocks;
        GOOD(MPI_Type_create_struct(2, sizes, places, parts, &type));
        GOOD(MPI_Type_commit(&type));
        GOOD(MPI_Type_free(&blocks));
        count = 1;
    }
    if (is_split && is_write) {
        GOOD(MPI_File_write_at_all_begin(file, 0, memory, (int)count, type));
        GOOD(MPI_File_write_at_all_end(file, memory, status));
    } else if (is_split) {
        GOOD(MPI_File_read_at_all_begin(file, 0, memory, (int)count, type));
        GOOD(MPI_File_read_at_all_end(file, memory, status));
    } else if (is_write) {
        GOOD(MPI_File_write_at_all(file, 0, memory, (int)count, type, status));
    } else {
        GOOD(MPI_File_read_at_all(file, 0, memory, (int)count, type, status));
    }
    if (is_spread)
        GOOD(MPI_Type_free(&type));
    GOOD(MPI_Type_free(&filetype));
    if (is_write)
        return;
    position = 0;
    for (int i = 0; i < mine->count; i++)
        for (int j = 0; j < mine->sizes[i] && mine->places[i] + j < model_size; j++, position++)
            CHECK(memory[place_in(position, is_spread)] == model[mine->places[i] + j]);
}

static long bytes_before_end(const struct deal *mine) {
    long bytes = 0;
    for (int i = 0; i < mine->count; i++) {
        long end = mine->places[i] + mine->sizes[i] < model_size ? mine->places[i] + mine->sizes[i] : model_size;
        bytes += end > mine->places[i] ? end - mine->places[i] : 0;
    }
    return bytes;
}

/* What all wrote, into each process's model. */
static void learn(int round, const struct deal *mine) {
    memset(whole, 0, FILE_SIZE_MAX);
    for (int i = 0; i < mine->count; i++)
        memset(whole + mine->places[i], 1, mine->sizes[i]);
    MPI_Allreduce(MPI_IN_PLACE, whole, FILE_SIZE_MAX, MPI_UNSIGNED_CHAR, MPI_MAX, MPI_COMM_WORLD);
    for (long i = 0; i < FILE_SIZE_MAX; i++)
        if (whole[i])
            model[i] = byte_of(round, i);
}

static void compare_independently(MPI_File file) {
    MPI_Status status;
    int count;
    GOOD(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    GOOD(MPI_File_read_at(file, 0, whole, FILE_SIZE_MAX, MPI_BYTE, &status));
    GOOD(MPI_Get_count(&status, MPI_BYTE, &count));
    CHECK(count == model_size);
    CHECK(!memcmp(whole, model, model_size));
}

/* A new file of many chunks, whose size is no power of two. */
static MPI_File open_striped(const char *name) {
    static const char *const wanted[][2] = {
        {"striping_unit", "50000"}, {"striping_factor", "2"}, {"start_iodevice", "1"}, {"tabane_run", "3"}};
    char words[MPI_MAX_INFO_VAL + 1];
    int is_there;
    MPI_Info info;
    MPI_File file;
    GOOD(MPI_Info_create(&info));
    for (int i = 0; i < 4; i++)
        GOOD(MPI_Info_set(info, wanted[i][0], wanted[i][1]));
    GOOD(MPI_File_open(MPI_COMM_WORLD, path(name), MPI_MODE_CREATE | MPI_MODE_RDWR, info, &file));
    GOOD(MPI_Info_free(&info));
    GOOD(MPI_File_get_info(file, &info));
    for (int i = 0; i < 4; i++) {
        GOOD(MPI_Info_get(info, wanted[i][0], MPI_MAX_INFO_VAL, words, &is_there));
        CHECK(is_there && !strcmp(words, wanted[i][1]));
    }
    GOOD(MPI_Info_free(&info));
    return file;
}

/* Hints are told as they were taken, and what can't be taken is refused at all processes and changes nothing. */
static void check_hints(MPI_File file) {
    char words[MPI_MAX_INFO_VAL + 1];
    int is_there;
    MPI_Info info;
    GOOD(MPI_Info_create(&info));
    GOOD(MPI_Info_set(info, "tabane_collective", rank == 0 ? "node" : "of no use here"));
    GOOD(MPI_File_set_info(file, info));
    MPI_File_set_errhandler(file, MPI_ERRORS_RETURN);
    GOOD(MPI_Info_set(info, "tabane_collective", "nonsense"));
    CHECK(class_of(MPI_File_set_info(file, info)) == MPI_ERR_INFO_VALUE);
    GOOD(MPI_Info_free(&info));
    GOOD(MPI_File_get_info(file, &info));
    GOOD(MPI_Info_get(info, "tabane_collective", MPI_MAX_INFO_VAL, words, &is_there));
    CHECK(is_there && !strcmp(words, "node"));
    GOOD(MPI_Info_free(&info));
}

/*
 * Processes write overlapping pieces in one call, each its own number: which one is left is open, but it is one of
 * those that wrote there, and nothing else is touched.
 */
static void check_overlaps(void) {
    enum { COUNT = 200, SIZE = 3000, SHIFT = 1000, STRIDE = 8000 };
    int amode = MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE;
    MPI_Datatype pieces;
    MPI_File file;
    GOOD(MPI_File_open(MPI_COMM_WORLD, path("overlaps"), amode, MPI_INFO_NULL, &file));
    GOOD(MPI_Type_vector(COUNT, SIZE, STRIDE, MPI_BYTE, &pieces));
    GOOD(MPI_Type_commit(&pieces));
    memset(memory, rank + 1, COUNT * SIZE);
    for (int round = 0; round < 10; round++) {
        set_hints(file);
        GOOD(MPI_File_set_size(file, 0));
        GOOD(MPI_File_set_view(file, rank * SHIFT, MPI_BYTE, pieces, "native", MPI_INFO_NULL));
        GOOD(MPI_File_write_at_all(file, 0, memory, COUNT * SIZE, MPI_BYTE, MPI_STATUS_IGNORE));
        GOOD(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
        long end = (long)(COUNT - 1) * STRIDE + (process_count - 1) * SHIFT + SIZE;
        GOOD(MPI_File_read_at(file, 0, whole, (int)end, MPI_BYTE, MPI_STATUS_IGNORE));
        for (long place = 0; place < end; place++) {
            long within = place % STRIDE, writer = whole[place] - 1L;
            int is_covered = within < (process_count - 1) * SHIFT + SIZE;
            CHECK(is_covered ? within >= writer * SHIFT && within < writer * SHIFT + SIZE : writer == -1);
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    GOOD(MPI_Type_free(&pieces));
    GOOD(MPI_File_close(&file));
}

int main(int argc, char **argv) {
    static struct deal mine;
    MPI_Status status;
    MPI_Offset far;
    int count;
    start(argc, argv);
    model = calloc(1, FILE_SIZE_MAX), memory = malloc(2 * FILE_SIZE_MAX), whole = malloc(FILE_SIZE_MAX);
    MPI_File file = open_striped("file");
    for (int round = 0; round < ROUND_COUNT; round++) {
        set_hints(file);
        deal_out(&mine, 1);
        move(file, round, 1, &mine, &status);
        GOOD(MPI_Get_count(&status, MPI_BYTE, &count));
        learn(round, &mine);
        MPI_Barrier(MPI_COMM_WORLD);
        compare_independently(file);
        set_hints(file);
        deal_out(&mine, 0);
        move(file, round, 0, &mine, &status);
        GOOD(MPI_Get_elements(&status, MPI_BYTE, &count));
        CHECK(count == bytes_before_end(&mine));
    }
    if (rank == 0)
        printf("%d rounds\n", ROUND_COUNT);
    check_hints(file);
    check_overlaps();
    /* One process is far away from the others: nobody goes through what lies between them. */
    set_hints(file);
    far = rank == process_count - 1 ? (MPI_Offset)1 << 45 : rank * 10;
    GOOD(MPI_File_set_view(file, far, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    GOOD(MPI_File_write_all(file, "0123456789", 10, MPI_BYTE, &status));
    GOOD(MPI_File_read_at_all(file, 0, memory, 10, MPI_BYTE, &status));
    CHECK(!memcmp(memory, "0123456789", 10));
    /* What one process does wrong is told to all. */
    MPI_File_set_errhandler(file, MPI_ERRORS_RETURN);
    CHECK(MPI_File_write_all(file, "x", rank == 1 ? -1 : 1, MPI_BYTE, &status) != MPI_SUCCESS);
    GOOD(MPI_File_set_size(file, 0));
    GOOD(MPI_File_close(&file));
    end();
    return 0;
}
