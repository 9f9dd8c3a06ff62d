/*
 * Goal: datatypes of any nesting, for the file and for memory, mean what MPI's own MPI_Pack and MPI_Unpack take them
 * for. Method: from a fixed seed each process draws a filetype, a datatype for memory and a count, writes through the
 * view to a file of its own that it has filled before, and compares all of it with an image that MPI_Unpack has made;
 * then it reads through the view and compares. ROMIO does not stand all of these datatypes: this runs over tabane:
 * alone.
 */
#include "test.h"

#define ROUND_COUNT 150
#define IMAGE_SIZE 60000
#define PART_COUNT_MAX 4

static unsigned long long state;

static int draw(int limit) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % limit);
}

/* Blocks at ascending places (for a file) or any that do not overlap (for memory), by several constructors. */
static MPI_Datatype derive(MPI_Datatype inner, int is_file) {
    MPI_Datatype type;
    MPI_Aint lower, extent, true_lower, true_extent;
    int sizes[PART_COUNT_MAX], places[PART_COUNT_MAX], count = 1 + draw(PART_COUNT_MAX), next = 0;
    MPI_Aint displacements[PART_COUNT_MAX];
    MPI_Datatype types[PART_COUNT_MAX];
    MPI_Type_get_extent(inner, &lower, &extent);
    for (int i = 0; i < count; i++) {
        sizes[i] = draw(4);
        places[i] = next + draw(3);
        next = places[i] + sizes[i];
        types[i] = inner;
    }
    if (!is_file && draw(2)) { /* the other way round */
        for (int i = 0; i < count / 2; i++) {
            int place = places[i], size = sizes[i];
            places[i] = places[count - 1 - i], sizes[i] = sizes[count - 1 - i];
            places[count - 1 - i] = place, sizes[count - 1 - i] = size;
        }
    }
    int shift = is_file ? 0 : draw(5) - 2;
    for (int i = 0; i < count; i++)
        displacements[i] = (places[i] + shift) * extent;
    switch (draw(9)) {
    case 0:
        MPI_Type_contiguous(1 + draw(4), inner, &type);
        break;
    case 1:
        MPI_Type_vector(1 + draw(4), 1 + draw(2), 2 + draw(3), inner, &type);
        break;
    case 2:
        MPI_Type_create_hvector(1 + draw(4), 1, extent * (1 + draw(3)), inner, &type);
        break;
    case 3:
        MPI_Type_indexed(count, sizes, places, inner, &type);
        break;
    case 4:
        MPI_Type_create_hindexed(count, sizes, displacements, inner, &type);
        break;
    case 5:
        MPI_Type_create_struct(count, sizes, displacements, types, &type);
        break;
    case 6: {
        int whole[2] = {2 + draw(3), 2 + draw(4)}, part[2], first[2];
        for (int i = 0; i < 2; i++) {
            part[i] = 1 + draw(whole[i]);
            first[i] = draw(whole[i] - part[i] + 1);
        }
        MPI_Type_create_subarray(2, whole, part, first, draw(2) ? MPI_ORDER_C : MPI_ORDER_FORTRAN, inner, &type);
        break;
    }
    case 7: {
        int whole[2] = {3 + draw(6), 3 + draw(4)}, grid[2] = {2, 2}, kinds[2], arguments[2];
        for (int i = 0; i < 2; i++) {
            kinds[i] = draw(2) ? MPI_DISTRIBUTE_CYCLIC : MPI_DISTRIBUTE_BLOCK;
            arguments[i] = kinds[i] == MPI_DISTRIBUTE_CYCLIC ? 1 + draw(2) : MPI_DISTRIBUTE_DFLT_DARG;
        }
        int place = draw(4), order = draw(2) ? MPI_ORDER_C : MPI_ORDER_FORTRAN, size;
        MPI_Type_size(inner, &size);
        if (size > 0) /* Open MPI refuses it of nothing. */
            MPI_Type_create_darray(4, place, 2, whole, kinds, arguments, grid, order, inner, &type);
        else
            MPI_Type_contiguous(4, inner, &type);
        break;
    }
    default:
        MPI_Type_get_true_extent(inner, &true_lower, &true_extent);
        MPI_Type_create_resized(inner, 0, true_lower + true_extent + draw(40), &type);
    }
    return type;
}

static MPI_Datatype nested(int is_file, int depth) {
    MPI_Datatype bases[] = {MPI_BYTE, MPI_INT, MPI_DOUBLE, MPI_SHORT}, type = bases[draw(4)];
    for (int i = 0; i < depth; i++) {
        MPI_Datatype outer = derive(type, is_file);
        if (i > 0)
            MPI_Type_free(&type);
        type = outer;
    }
    MPI_Type_commit(&type);
    return type;
}

/* Bounds of `count` values, or 0 where they do not fit into the image. */
static int span(MPI_Datatype type, int count, MPI_Aint *low, MPI_Aint *high) {
    MPI_Aint lower, extent, true_lower, true_extent;
    MPI_Type_get_extent(type, &lower, &extent);
    MPI_Type_get_true_extent(type, &true_lower, &true_extent);
    MPI_Aint last = (count - 1) * extent;
    *low = true_lower + (last < 0 ? last : 0);
    *high = true_lower + true_extent + (last > 0 ? last : 0);
    return extent >= true_extent && *high - *low < IMAGE_SIZE / 2;
}

static int one(int round) {
    MPI_Datatype filetype = nested(1, 1 + draw(3)), type = nested(0, 1 + draw(3));
    int tile_size, value_size, done = 0;
    MPI_Aint low, high, memory_low, memory_high;
    MPI_Type_size(filetype, &tile_size), MPI_Type_size(type, &value_size);
    int tiles = 1 + draw(6), offset = draw(tile_size + 1), displacement = draw(100);
    int count = tile_size > 0 && value_size > 0 ? (tiles * tile_size - offset) / value_size : 0;
    int size = count * value_size;
    if (count > 0 && span(filetype, tiles, &low, &high) && low >= 0 && span(type, count, &memory_low, &memory_high)) {
        static char image[IMAGE_SIZE], seen[IMAGE_SIZE], buffer[IMAGE_SIZE], back[IMAGE_SIZE], data[IMAGE_SIZE];
        MPI_File file;
        MPI_Status status;
        char name[32];
        int at = 0, file_size = displacement + (int)high;
        for (int i = 0; i < IMAGE_SIZE; i++)
            image[i] = (char)draw(256), buffer[i] = (char)draw(256), back[i] = (char)draw(256);
        snprintf(name, sizeof name, "random-%d", rank);
        GOOD(MPI_File_open(MPI_COMM_SELF, path(name), MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
        GOOD(MPI_File_set_size(file, 0));
        GOOD(MPI_File_write_at(file, 0, image, file_size, MPI_BYTE, MPI_STATUS_IGNORE));
        GOOD(MPI_File_set_view(file, displacement, MPI_BYTE, filetype, "native", MPI_INFO_NULL));
        GOOD(MPI_File_write_at(file, offset, buffer - memory_low, count, type, &status));
        CHECK(count_of(&status, MPI_BYTE) == size);
        /* What the file's tiles hold, with the new bytes in their place. */
        MPI_Pack(image + displacement, tiles, filetype, data, IMAGE_SIZE, &at, MPI_COMM_SELF);
        at = 0;
        MPI_Pack(buffer - memory_low, count, type, data + offset, IMAGE_SIZE - offset, &at, MPI_COMM_SELF);
        at = 0;
        MPI_Unpack(data, tiles * tile_size, &at, image + displacement, tiles, filetype, MPI_COMM_SELF);
        GOOD(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
        GOOD(MPI_File_read_at(file, 0, seen, IMAGE_SIZE, MPI_BYTE, &status));
        CHECK(count_of(&status, MPI_BYTE) == file_size);
        if (memcmp(image, seen, file_size)) {
            fprintf(stderr, "process %d: round %d: the file is another one\n", rank, round);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        /* And back, into memory that keeps what lies between. */
        memcpy(seen, back, IMAGE_SIZE);
        at = 0;
        MPI_Unpack(data + offset, size, &at, back - memory_low, count, type, MPI_COMM_SELF);
        GOOD(MPI_File_set_view(file, displacement, MPI_BYTE, filetype, "native", MPI_INFO_NULL));
        GOOD(MPI_File_read_at(file, offset, seen - memory_low, count, type, &status));
        CHECK(count_of(&status, MPI_BYTE) == size);
        CHECK(!memcmp(seen, back, IMAGE_SIZE));
        GOOD(MPI_File_close(&file));
        done = 1;
    }
    MPI_Type_free(&filetype), MPI_Type_free(&type);
    return done;
}

int main(int argc, char **argv) {
    start(argc, argv);
    state = 1 + rank;
    int done = 0;
    for (int round = 0; round < 4 * ROUND_COUNT; round++)
        done += one(round);
    CHECK(done > ROUND_COUNT);
    end();
    return 0;
}
