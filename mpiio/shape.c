/* Makes shapes of datatypes, and walks over them. */

#include "shape.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A distance that no two bytes of a datatype have. */
#define DISTANCE_MAX (INT64_MAX / 4)

/* Memory for a tree is small; without it nothing is left to do. */
static void *take(size_t size) {
    void *place = calloc(1, size ? size : 1);
    if (!place)
        abort();
    return place;
}

static struct shape *hold(struct shape *shape) {
    __atomic_add_fetch(&shape->users, 1, __ATOMIC_RELAXED);
    return shape;
}

void shape_release(struct shape *shape) {
    if (!shape || __atomic_sub_fetch(&shape->users, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    if (shape->kind == SHAPE_LIST)
        for (int64_t i = 0; i < shape->count; i++)
            shape_release(shape->entries[i].child);
    shape_release(shape->child);
    free(shape->entries);
    free(shape);
}

static struct shape *new_shape(enum shape_kind kind, int64_t size) {
    struct shape *shape = take(sizeof *shape);
    shape->kind = kind;
    shape->users = 1;
    shape->size = size;
    shape->element = MPI_DATATYPE_NULL;
    return shape;
}

/* A block of the same elements as another one. */
static struct shape *new_block_like(const struct shape *block, int64_t size) {
    struct shape *shape = new_shape(SHAPE_BLOCK, size);
    shape->element = block->element, shape->element_size = block->element_size;
    return shape;
}

/* A block of one element. */
static struct shape *new_element(MPI_Datatype element, int64_t size, enum form form) {
    struct shape *shape = new_shape(SHAPE_BLOCK, size);
    if (form == FORM_ELEMENTS)
        shape->element = element, shape->element_size = size;
    return shape;
}

struct shape *shape_repeat(int64_t count, int64_t stride, struct shape *child) {
    if (count <= 0 || child->size == 0)
        return new_shape(SHAPE_BLOCK, 0);
    if (count == 1)
        return hold(child);
    if (child->kind == SHAPE_BLOCK && stride == child->size)
        return new_block_like(child, count * stride);
    struct shape *shape = new_shape(SHAPE_REPEAT, count * child->size);
    if (child->kind == SHAPE_REPEAT && stride == child->count * child->stride) {
        shape->count = count * child->count;
        shape->stride = child->stride;
        shape->child = hold(child->child);
    } else {
        shape->count = count;
        shape->stride = stride;
        shape->child = hold(child);
    }
    return shape;
}

/* A list that grows; neighbouring blocks become one. */
struct list {
    struct shape_entry *entries;
    int64_t count, room, size;
};

static void list_add(struct list *list, int64_t displacement, struct shape *child) {
    if (child->size == 0)
        return;
    int is_plain = child->kind == SHAPE_BLOCK && child->element == MPI_DATATYPE_NULL;
    if (is_plain && list->count > 0) {
        struct shape_entry *last = &list->entries[list->count - 1];
        if (!last->child && last->displacement + (list->size - last->begin) == displacement) {
            list->size += child->size;
            return;
        }
    }
    if (list->count == list->room) {
        list->room = list->room ? 2 * list->room : 16;
        list->entries = realloc(list->entries, list->room * sizeof *list->entries);
        if (!list->entries)
            abort();
    }
    struct shape *kept = is_plain ? NULL : hold(child);
    list->entries[list->count++] = (struct shape_entry){displacement, list->size, kept};
    list->size += child->size;
}

/* A shape at a displacement, and the bounds of the datatype that it is of. */
struct piece {
    struct shape *shape;
    int64_t shift, lower, upper;
};

static int64_t entry_size(const struct list *list, int64_t i) {
    return (i + 1 < list->count ? list->entries[i + 1].begin : list->size) - list->entries[i].begin;
}

/* Whether all entries are equal blocks at equal distances; then the distance, else 0. */
static int64_t list_stride(const struct list *list) {
    if (list->count < 3)
        return 0;
    int64_t stride = list->entries[1].displacement - list->entries[0].displacement, size = entry_size(list, 0);
    for (int64_t i = 0; i < list->count; i++) {
        const struct shape_entry *entry = &list->entries[i];
        if (entry->child || entry_size(list, i) != size)
            return 0;
        if (entry->displacement != list->entries[0].displacement + i * stride)
            return 0;
    }
    return stride;
}

static void list_end(struct list *list, struct piece *piece) {
    piece->shift = 0;
    if (list->count == 0) {
        piece->shape = new_shape(SHAPE_BLOCK, 0);
        free(list->entries);
        return;
    }
    int64_t stride = list_stride(list);
    if (list->count == 1) {
        piece->shift = list->entries[0].displacement;
        struct shape *child = list->entries[0].child;
        piece->shape = child ? child : new_shape(SHAPE_BLOCK, list->size);
        free(list->entries);
    } else if (stride) {
        struct shape *block = new_shape(SHAPE_BLOCK, entry_size(list, 0));
        piece->shift = list->entries[0].displacement;
        piece->shape = shape_repeat(list->count, stride, block);
        shape_release(block);
        free(list->entries);
    } else {
        piece->shape = new_shape(SHAPE_LIST, list->size);
        piece->shape->count = list->count;
        piece->shape->entries = list->entries;
    }
}

static int segments_of_list(const struct shape *shape, int64_t base, int64_t from, int64_t to, shape_segment segment,
                            void *context) {
    int64_t low = 0, high = shape->count;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (shape->entries[middle].begin <= from)
            low = middle;
        else
            high = middle;
    }
    for (int64_t i = low; i < shape->count && from < to; i++) {
        const struct shape_entry *entry = &shape->entries[i];
        int64_t end = i + 1 < shape->count ? shape->entries[i + 1].begin : shape->size;
        int64_t first = from - entry->begin, last = (to < end ? to : end) - entry->begin;
        int64_t place = base + entry->displacement;
        int stop = entry->child ? shape_walk(entry->child, place, first, last, segment, context)
                                : segment(context, place + first, last - first);
        if (stop)
            return stop;
        from = end;
    }
    return 0;
}

int shape_walk(const struct shape *shape, int64_t base, int64_t from, int64_t to, shape_segment segment,
               void *context) {
    if (from >= to)
        return 0;
    if (shape->kind == SHAPE_BLOCK)
        return segment(context, base + from, to - from);
    if (shape->kind == SHAPE_LIST)
        return segments_of_list(shape, base, from, to, segment, context);
    const struct shape *child = shape->child;
    for (int64_t i = from / child->size; from < to; i++) {
        int64_t begin = i * child->size, first = from - begin;
        int64_t last = to - begin < child->size ? to - begin : child->size, place = base + i * shape->stride;
        int stop = child->kind == SHAPE_BLOCK ? segment(context, place + first, last - first)
                                              : shape_walk(child, place, first, last, segment, context);
        if (stop)
            return stop;
        from = begin + last;
    }
    return 0;
}

static int take_first(void *place, int64_t displacement, int64_t size) {
    (void)size;
    *(int64_t *)place = displacement;
    return 1;
}

int64_t shape_displacement(const struct shape *shape, int64_t position) {
    int64_t displacement = 0;
    shape_walk(shape, 0, position, position + 1, take_first, &displacement);
    return displacement;
}

/* The last byte of a shape, or the beginning of its last segment. */
static int64_t final_displacement(const struct shape *shape, int of_byte) {
    if (shape->kind == SHAPE_BLOCK)
        return of_byte ? shape->size - 1 : 0;
    if (shape->kind == SHAPE_REPEAT)
        return (shape->count - 1) * shape->stride + final_displacement(shape->child, of_byte);
    const struct shape_entry *last = &shape->entries[shape->count - 1];
    int64_t within = of_byte ? shape->size - last->begin - 1 : 0;
    return last->displacement + (last->child ? final_displacement(last->child, of_byte) : within);
}

/* Whether the bytes ascend, or at least the beginnings of segments, which may be equal then. */
static int ascends(const struct shape *shape, int64_t stride, int of_bytes) {
    if (shape->size == 0)
        return 1;
    if (shape_displacement(shape, 0) + stride < final_displacement(shape, of_bytes) + of_bytes)
        return 0;
    if (shape->kind == SHAPE_BLOCK)
        return 1;
    if (shape->kind == SHAPE_REPEAT)
        return ascends(shape->child, shape->stride, of_bytes);
    int64_t least = INT64_MIN;
    for (int64_t i = 0; i < shape->count; i++) {
        const struct shape_entry *entry = &shape->entries[i];
        int64_t end = i + 1 < shape->count ? shape->entries[i + 1].begin : shape->size;
        int64_t first = entry->child ? shape_displacement(entry->child, 0) : 0;
        int64_t last = of_bytes ? end - entry->begin - 1 : 0;
        if (entry->displacement + first < least)
            return 0;
        if (entry->child) {
            if (!ascends(entry->child, DISTANCE_MAX, of_bytes))
                return 0;
            last = final_displacement(entry->child, of_bytes);
        }
        least = entry->displacement + last + of_bytes;
    }
    return 1;
}

int shape_ascends(const struct shape *shape, int64_t stride) {
    return ascends(shape, stride, 1);
}

/* What a datatype was made from. Large counts come as `counts`, which then hold all numbers that count or displace. */
struct contents {
    int combiner, is_large;
    int64_t integer_count, address_count, count_count, type_count;
    int *integers;
    MPI_Aint *addresses;
    MPI_Count *counts;
    MPI_Datatype *types;
};

static int combiner_of(MPI_Datatype type) {
    int integers, addresses, types, combiner;
#if MPI_VERSION >= 4
    MPI_Count large[4];
    (void)integers, (void)addresses, (void)types;
    if (PMPI_Type_get_envelope_c(type, &large[0], &large[1], &large[2], &large[3], &combiner) != MPI_SUCCESS)
        return MPI_UNDEFINED;
#else
    if (PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner) != MPI_SUCCESS)
        return MPI_UNDEFINED;
#endif
    return combiner;
}

int type_is_predefined(MPI_Datatype type) {
    int combiner = combiner_of(type);
#if MPI_VERSION > 4 || (MPI_VERSION == 4 && MPI_SUBVERSION >= 1)
    if (combiner == MPI_COMBINER_VALUE_INDEX)
        return 1;
#endif
    return combiner == MPI_COMBINER_NAMED || combiner == MPI_COMBINER_F90_REAL ||
           combiner == MPI_COMBINER_F90_COMPLEX || combiner == MPI_COMBINER_F90_INTEGER;
}

static int open_contents(MPI_Datatype type, struct contents *it) {
    memset(it, 0, sizeof *it);
#if MPI_VERSION >= 4
    MPI_Count integers, addresses, counts, types;
    if (PMPI_Type_get_envelope_c(type, &integers, &addresses, &counts, &types, &it->combiner) != MPI_SUCCESS)
        return 0;
    it->count_count = counts;
#else
    int integers, addresses, types;
    if (PMPI_Type_get_envelope(type, &integers, &addresses, &types, &it->combiner) != MPI_SUCCESS)
        return 0;
#endif
    it->integer_count = integers, it->address_count = addresses, it->type_count = types;
    it->is_large = it->count_count > 0;
    it->integers = take(integers * sizeof *it->integers);
    it->addresses = take(addresses * sizeof *it->addresses);
    it->counts = take(it->count_count * sizeof *it->counts);
    it->types = take(types * sizeof *it->types);
#if MPI_VERSION >= 4
    int result = PMPI_Type_get_contents_c(type, integers, addresses, counts, types, it->integers, it->addresses,
                                          it->counts, it->types);
#else
    int result = PMPI_Type_get_contents(type, integers, addresses, types, it->integers, it->addresses, it->types);
#endif
    if (result != MPI_SUCCESS)
        it->type_count = 0;
    return result == MPI_SUCCESS;
}

static void close_contents(struct contents *it) {
    for (int64_t i = 0; i < it->type_count; i++)
        if (it->types[i] != MPI_DATATYPE_NULL && !type_is_predefined(it->types[i]))
            PMPI_Type_free(&it->types[i]);
    free(it->integers), free(it->addresses), free(it->counts), free(it->types);
}

/* The number at a place of the arguments that count things. */
static int64_t number(const struct contents *it, int64_t i) {
    return it->is_large ? (int64_t)it->counts[i] : it->integers[i];
}

/* The displacement in bytes at a place among `addresses`, which is `i` among large counts. */
static int64_t address(const struct contents *it, int64_t place, int64_t i) {
    return it->is_large ? (int64_t)it->counts[i] : (int64_t)it->addresses[place];
}

static int flatten(MPI_Datatype type, enum form form, struct piece *piece);

static void bounds(struct piece *whole, int64_t lower, int64_t upper, int is_first) {
    if (is_first || lower < whole->lower)
        whole->lower = lower;
    if (is_first || upper > whole->upper)
        whole->upper = upper;
}

/* `count` values at distance `stride` in bytes. */
static struct piece several(const struct piece *one, int64_t count, int64_t stride) {
    struct piece whole = {shape_repeat(count, stride, one->shape), one->shift, 0, 0};
    if (count > 0) {
        int64_t last = (count - 1) * stride;
        bounds(&whole, one->lower + (last < 0 ? last : 0), one->upper + (last > 0 ? last : 0), 1);
    }
    return whole;
}

/* Adds `count` values, side by side, at a displacement. */
static void add(struct list *list, struct piece *whole, const struct piece *one, int64_t count, int64_t displacement,
                int *is_first) {
    struct piece run = several(one, count, one->upper - one->lower);
    if (count > 0) {
        list_add(list, displacement + run.shift, run.shape);
        bounds(whole, run.lower + displacement, run.upper + displacement, *is_first);
        *is_first = 0;
    }
    shape_release(run.shape);
}

/* Blocks of one datatype, each of its own size and displacement. */
static void flatten_indexed(const struct contents *it, const struct piece *one, struct piece *whole) {
    int64_t count = number(it, 0), extent = one->upper - one->lower;
    struct list list = {0};
    int is_first = 1;
    for (int64_t i = 0; i < count; i++) {
        int64_t size, displacement;
        switch (it->combiner) {
        case MPI_COMBINER_INDEXED:
            size = number(it, 1 + i), displacement = number(it, 1 + count + i) * extent;
            break;
        case MPI_COMBINER_INDEXED_BLOCK:
            size = number(it, 1), displacement = number(it, 2 + i) * extent;
            break;
        case MPI_COMBINER_HINDEXED_BLOCK:
            size = number(it, 1), displacement = address(it, i, 2 + i);
            break;
        default:
            size = number(it, 1 + i), displacement = address(it, i, 1 + count + i);
        }
        add(&list, whole, one, size, displacement, &is_first);
    }
    list_end(&list, whole);
}

static int flatten_struct(const struct contents *it, enum form form, struct piece *whole) {
    int64_t count = number(it, 0);
    struct list list = {0};
    int is_first = 1, is_good = 1;
    for (int64_t i = 0; i < count && is_good; i++) {
        struct piece one;
        is_good = flatten(it->types[i], form, &one);
        if (is_good) {
            add(&list, whole, &one, number(it, 1 + i), address(it, i, 1 + count + i), &is_first);
            shape_release(one.shape);
        }
    }
    list_end(&list, whole);
    return is_good;
}

/* One more dimension: `count` of its elements from `start` on, each `stride` bytes long. */
static void dimension(struct piece *piece, int64_t start, int64_t count, int64_t stride) {
    struct shape *shape = shape_repeat(count, stride, piece->shape);
    shape_release(piece->shape);
    piece->shape = shape;
    piece->shift += start * stride;
}

static void flatten_subarray(const struct contents *it, const struct piece *one, struct piece *whole) {
    int64_t count = it->integers[0], first = it->is_large ? 0 : 1, stride = one->upper - one->lower;
    int order = it->integers[it->is_large ? 1 : 1 + 3 * count];
    *whole = *one;
    hold(whole->shape);
    for (int64_t i = 0; i < count; i++) {
        int64_t d = first + (order == MPI_ORDER_FORTRAN ? i : count - 1 - i);
        dimension(whole, number(it, d + 2 * count), number(it, d + count), stride);
        stride *= number(it, d);
    }
    whole->lower = 0, whole->upper = stride;
}

/* The blocks of `size` elements that process `place` of `places` has in a cyclic distribution. */
static void dimension_cyclic(struct piece *piece, int64_t length, int64_t size, int64_t place, int64_t places,
                             int64_t stride) {
    int64_t start = place * size, step = places * size;
    int64_t blocks = start < length ? (length - start + step - 1) / step : 0;
    int64_t last = blocks ? length - start - (blocks - 1) * step : 0;
    int64_t whole_blocks = blocks && last < size ? blocks - 1 : blocks;
    struct shape *block = shape_repeat(size, stride, piece->shape);
    struct shape *full = shape_repeat(whole_blocks, step * stride, block);
    struct shape *rest = shape_repeat(whole_blocks < blocks ? last : 0, stride, piece->shape);
    struct list list = {0};
    list_add(&list, start * stride, full);
    list_add(&list, (start + whole_blocks * step) * stride, rest);
    int64_t shift = piece->shift;
    shape_release(block), shape_release(full), shape_release(rest), shape_release(piece->shape);
    list_end(&list, piece);
    piece->shift += shift;
}

static void flatten_darray(const struct contents *it, const struct piece *one, struct piece *whole) {
    int64_t place = it->integers[1], count = it->integers[2], at = it->is_large ? 3 : 3 + count;
    const int *kinds = it->integers + at, *arguments = kinds + count, *places = arguments + count;
    int order = places[count];
    int64_t stride = one->upper - one->lower;
    int64_t *own = take(count * sizeof *own);
    for (int64_t i = count - 1; i >= 0; i--) {
        own[i] = place % places[i];
        place /= places[i];
    }
    *whole = *one;
    hold(whole->shape);
    for (int64_t i = 0; i < count; i++) {
        int64_t d = order == MPI_ORDER_FORTRAN ? i : count - 1 - i;
        int64_t length = it->is_large ? (int64_t)it->counts[d] : it->integers[3 + d];
        if (kinds[d] == MPI_DISTRIBUTE_NONE) {
            dimension(whole, 0, length, stride);
        } else if (kinds[d] == MPI_DISTRIBUTE_CYCLIC) {
            int64_t size = arguments[d] == MPI_DISTRIBUTE_DFLT_DARG ? 1 : arguments[d];
            dimension_cyclic(whole, length, size, own[d], places[d], stride);
        } else {
            int64_t size = arguments[d];
            if (arguments[d] == MPI_DISTRIBUTE_DFLT_DARG)
                size = (length + places[d] - 1) / places[d];
            int64_t start = own[d] * size, left = length > start ? length - start : 0;
            dimension(whole, start, left < size ? left : size, stride);
        }
        stride *= length;
    }
    free(own);
    whole->lower = 0, whole->upper = stride;
}

/* A pair of a value and an int, as C lays it out. */
struct pair {
    MPI_Datatype value;
    int64_t place; /* of the int */
};

static int is_pair(MPI_Datatype type, struct pair *pair) {
    struct float_int { float a; int b; };
    struct double_int { double a; int b; };
    struct long_int { long a; int b; };
    struct short_int { short a; int b; };
    struct long_double_int { long double a; int b; };
#define PAIR(handle, first, name) \
    if (type == handle) { \
        *pair = (struct pair){first, __builtin_offsetof(struct name, b)}; \
        return 1; \
    }
    PAIR(MPI_FLOAT_INT, MPI_FLOAT, float_int)
    PAIR(MPI_DOUBLE_INT, MPI_DOUBLE, double_int)
    PAIR(MPI_LONG_INT, MPI_LONG, long_int)
    PAIR(MPI_SHORT_INT, MPI_SHORT, short_int)
    PAIR(MPI_LONG_DOUBLE_INT, MPI_LONG_DOUBLE, long_double_int)
#undef PAIR
    return 0;
}

/* Bytes of one value in external32, or -1. What MPI packs counts: its word on sizes is another one now and then. */
static int64_t external_size(MPI_Datatype type) {
    char value[64] = {0}, packed[64];
    MPI_Aint size = 0;
#if defined(MPICH)
    /* It has no size for this one, and ends the program. */
    if (type == MPI_WCHAR)
        return -1;
#endif
    if (PMPI_Pack_external("external32", value, 1, type, packed, sizeof packed, &size) != MPI_SUCCESS)
        return -1;
    return size;
}

static int64_t memory_size(MPI_Datatype type) {
    MPI_Count size = 0;
    return PMPI_Type_size_x(type, &size) == MPI_SUCCESS ? (int64_t)size : -1;
}

static int flatten_pair(const struct pair *pair, enum form form, struct piece *piece) {
    int64_t first = form == FORM_EXTERNAL ? external_size(pair->value) : memory_size(pair->value);
    int64_t second = form == FORM_EXTERNAL ? external_size(MPI_INT) : (int64_t)sizeof(int);
    struct shape *value = new_element(pair->value, first, form), *index = new_element(MPI_INT, second, form);
    struct list list = {0};
    list_add(&list, 0, value);
    list_add(&list, form == FORM_EXTERNAL ? first : pair->place, index);
    list_end(&list, piece);
    shape_release(value), shape_release(index);
    piece->lower = 0, piece->upper = first + second;
    return 1;
}

static int flatten_named(MPI_Datatype type, enum form form, struct piece *piece) {
    struct pair pair;
#if MPI_VERSION > 4 || (MPI_VERSION == 4 && MPI_SUBVERSION >= 1)
    /* Where the index of an unnamed pair lies MPI does not tell. */
    if (combiner_of(type) == MPI_COMBINER_VALUE_INDEX)
        return 0;
#endif
    if (is_pair(type, &pair))
        return flatten_pair(&pair, form, piece);
    if (type == MPI_2INT) {
        int64_t size = form == FORM_EXTERNAL ? external_size(MPI_INT) : (int64_t)sizeof(int);
        struct shape *one = new_element(MPI_INT, size, form);
        *piece = (struct piece){shape_repeat(2, one->size, one), 0, 0, 2 * one->size};
        shape_release(one);
        return 1;
    }
    int64_t size = form == FORM_EXTERNAL ? external_size(type) : memory_size(type);
    if (size < 0)
        return 0;
    *piece = (struct piece){new_element(type, size, form), 0, 0, size};
    return 1;
}

static int flatten_derived(const struct contents *it, enum form form, struct piece *piece) {
    struct piece one = {0}, run;
    if (it->combiner == MPI_COMBINER_STRUCT)
        return flatten_struct(it, form, piece);
    if (it->type_count < 1 || !flatten(it->types[0], form, &one))
        return 0;
    int64_t extent = one.upper - one.lower;
    int is_good = 1;
    switch (it->combiner) {
    case MPI_COMBINER_DUP:
        *piece = one;
        hold(piece->shape);
        break;
    case MPI_COMBINER_RESIZED:
        *piece = one;
        hold(piece->shape);
        piece->lower = address(it, 0, 0);
        piece->upper = piece->lower + address(it, 1, 1);
        break;
    case MPI_COMBINER_CONTIGUOUS:
        *piece = several(&one, number(it, 0), extent);
        break;
    case MPI_COMBINER_VECTOR:
    case MPI_COMBINER_HVECTOR:
        run = several(&one, number(it, 1), extent);
        *piece = several(&run, run.shape->size || run.upper > run.lower ? number(it, 0) : 0,
                         it->combiner == MPI_COMBINER_VECTOR ? number(it, 2) * extent : address(it, 0, 2));
        shape_release(run.shape);
        break;
    case MPI_COMBINER_INDEXED:
    case MPI_COMBINER_HINDEXED:
    case MPI_COMBINER_INDEXED_BLOCK:
    case MPI_COMBINER_HINDEXED_BLOCK:
        flatten_indexed(it, &one, piece);
        break;
    case MPI_COMBINER_SUBARRAY:
        flatten_subarray(it, &one, piece);
        break;
    case MPI_COMBINER_DARRAY:
        flatten_darray(it, &one, piece);
        break;
    default:
        is_good = 0;
    }
    shape_release(one.shape);
    return is_good;
}

/* The shape of a datatype. Bounds are MPI's own, but in external32, where nothing is aligned. */
static int flatten(MPI_Datatype type, enum form form, struct piece *piece) {
    int is_good;
    *piece = (struct piece){0};
    if (type == MPI_DATATYPE_NULL)
        return 0;
    if (type_is_predefined(type)) {
        is_good = flatten_named(type, form, piece);
    } else {
        struct contents it;
        is_good = open_contents(type, &it) && flatten_derived(&it, form, piece);
        close_contents(&it);
    }
    if (!is_good) {
        shape_release(piece->shape);
        piece->shape = NULL;
    } else if (form != FORM_EXTERNAL) {
        MPI_Count lower = 0, extent = 0;
        PMPI_Type_get_extent_x(type, &lower, &extent);
        piece->lower = lower, piece->upper = lower + extent;
    }
    return is_good;
}

static struct flat *new_flat(struct piece piece) {
    struct flat *flat = take(sizeof *flat);
    *flat = (struct flat){
        .shape = piece.shape, .shift = piece.shift, .lower = piece.lower, .extent = piece.upper - piece.lower};
    flat->users = 1;
    flat->is_ascending = ascends(flat->shape, DISTANCE_MAX, 1);
    flat->is_ordered = ascends(flat->shape, DISTANCE_MAX, 0);
    return flat;
}

void flat_release(struct flat *flat) {
    if (!flat || __atomic_sub_fetch(&flat->users, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    shape_release(flat->shape);
    free(flat);
}

/* What is kept with a datatype. */
struct kept {
    struct flat *forms[FORM_COUNT];
};

static int keyval = MPI_KEYVAL_INVALID;
static pthread_mutex_t keeping = PTHREAD_MUTEX_INITIALIZER;

static int forget(MPI_Datatype type, int key, void *value, void *extra) {
    (void)type, (void)key, (void)extra;
    struct kept *kept = value;
    for (int form = 0; form < FORM_COUNT; form++)
        flat_release(kept->forms[form]);
    free(kept);
    return MPI_SUCCESS;
}

struct flat *flat_of(MPI_Datatype type, enum form form) {
    struct kept *kept = NULL;
    struct flat *flat = NULL;
    int is_there = 0;
    pthread_mutex_lock(&keeping);
    if (keyval == MPI_KEYVAL_INVALID)
        PMPI_Type_create_keyval(MPI_TYPE_NULL_COPY_FN, forget, &keyval, NULL);
    PMPI_Type_get_attr(type, keyval, &kept, &is_there);
    if (!is_there)
        kept = take(sizeof *kept);
    flat = kept->forms[form];
    if (!flat) {
        struct piece piece;
        if (flatten(type, form, &piece))
            flat = kept->forms[form] = new_flat(piece);
    }
    if (flat)
        __atomic_add_fetch(&flat->users, 1, __ATOMIC_RELAXED);
    if (!is_there && PMPI_Type_set_attr(type, keyval, kept) != MPI_SUCCESS)
        forget(type, keyval, kept, NULL);
    pthread_mutex_unlock(&keeping);
    return flat;
}
