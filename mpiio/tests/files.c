/*
 * Goal: opening, sizes, deletion, views and hints as told, and failures, are those of MPI, with its error classes, on
 * all processes. Method: results are printed; each failure is one that MPI's own library classes alike.
 */
#include "test.h"

static void tell_class(const char *what, int result) {
    static const struct { int class; const char *name; } names[] = {
        {MPI_SUCCESS, "MPI_SUCCESS"},
        {MPI_ERR_NO_SUCH_FILE, "MPI_ERR_NO_SUCH_FILE"},
        {MPI_ERR_FILE_EXISTS, "MPI_ERR_FILE_EXISTS"},
        {MPI_ERR_AMODE, "MPI_ERR_AMODE"},
        {MPI_ERR_ACCESS, "MPI_ERR_ACCESS"},
        {MPI_ERR_READ_ONLY, "MPI_ERR_READ_ONLY"},
        {MPI_ERR_NOT_SAME, "MPI_ERR_NOT_SAME"},
        {MPI_ERR_ARG, "MPI_ERR_ARG"},
        {MPI_ERR_COUNT, "MPI_ERR_COUNT"},
        {MPI_ERR_TYPE, "MPI_ERR_TYPE"},
        {MPI_ERR_IO, "MPI_ERR_IO"},
        {MPI_ERR_BAD_FILE, "MPI_ERR_BAD_FILE"},
        {MPI_ERR_UNSUPPORTED_DATAREP, "MPI_ERR_UNSUPPORTED_DATAREP"},
    };
    const char *name = "another class";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].class == class_of(result))
            name = names[i].name;
    char all[64][40], mine[40];
    snprintf(mine, sizeof mine, "%s", name);
    MPI_Gather(mine, 40, MPI_CHAR, all, 40, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (rank != 0)
        return;
    printf("%s:", what);
    for (int i = 0; i < process_count; i++)
        printf(" %s", all[i]);
    printf("\n");
}

static int open_and_close(const char *name, int amode) {
    MPI_File file;
    int result = MPI_File_open(MPI_COMM_WORLD, path(name), amode, MPI_INFO_NULL, &file);
    if (result == MPI_SUCCESS)
        GOOD(MPI_File_close(&file));
    return result;
}

static void opening(void) {
    MPI_File file;
    int amode;
    tell_class("is not there", open_and_close("none", MPI_MODE_RDONLY));
    tell_class("makes", open_and_close("made", MPI_MODE_RDWR | MPI_MODE_CREATE));
    tell_class("is there", open_and_close("made", MPI_MODE_RDONLY));
    tell_class("exclusive", open_and_close("made", MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_EXCL));
    tell_class("exclusive, new", open_and_close("new", MPI_MODE_WRONLY | MPI_MODE_CREATE | MPI_MODE_EXCL));
    tell_class("no mode", open_and_close("made", 0));
    tell_class("makes, to read only", open_and_close("made2", MPI_MODE_RDONLY | MPI_MODE_CREATE));
    tell_class("sequential, both ways", open_and_close("made", MPI_MODE_RDWR | MPI_MODE_SEQUENTIAL));
    tell_class("modes differ", open_and_close("made", rank == 0 ? MPI_MODE_RDONLY : MPI_MODE_RDWR));
    tell_class("no directory", open_and_close("nowhere/file", MPI_MODE_RDWR | MPI_MODE_CREATE));
    file = open_as("closing", MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_DELETE_ON_CLOSE);
    GOOD(MPI_File_get_amode(file, &amode));
    tell("mode", amode == (MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_DELETE_ON_CLOSE));
    GOOD(MPI_File_close(&file));
    CHECK(file == MPI_FILE_NULL);
    tell_class("deleted at close", open_and_close("closing", MPI_MODE_RDONLY));
    MPI_Barrier(MPI_COMM_WORLD);
    tell_class("delete", rank == 0 ? MPI_File_delete(path("new"), MPI_INFO_NULL) : MPI_SUCCESS);
    MPI_Barrier(MPI_COMM_WORLD);
    tell_class("delete again", MPI_File_delete(path("new"), MPI_INFO_NULL));
    tell_class("delete none", MPI_File_delete(path("none"), MPI_INFO_NULL));
}

static void sizes(void) {
    MPI_File file = open_new("sizes");
    MPI_Offset size;
    MPI_Status status;
    char bytes[100];
    memset(bytes, 'a' + rank, sizeof bytes);
    GOOD(MPI_File_set_size(file, 1000));
    GOOD(MPI_File_get_size(file, &size));
    tell("size", size);
    MPI_Barrier(MPI_COMM_WORLD);
    GOOD(MPI_File_write_at_all(file, 1000 + 100 * rank, bytes, 100, MPI_BYTE, &status));
    all_see(file);
    GOOD(MPI_File_get_size(file, &size));
    tell("size", size);
    MPI_Barrier(MPI_COMM_WORLD);
    GOOD(MPI_File_set_size(file, 1050));
    /* Over the end, and beyond it. */
    GOOD(MPI_File_read_at(file, 1000, bytes, 100, MPI_BYTE, &status));
    tell("over the end", count_of(&status, MPI_BYTE));
    GOOD(MPI_File_read(file, bytes, 0, MPI_BYTE, &status));
    GOOD(MPI_File_seek(file, 990, MPI_SEEK_SET));
    GOOD(MPI_File_read(file, bytes, 100, MPI_BYTE, &status));
    tell("over the end", count_of(&status, MPI_BYTE));
    MPI_Barrier(MPI_COMM_WORLD);
    GOOD(MPI_File_read_at(file, 2000, bytes, 100, MPI_BYTE, &status));
    tell("beyond the end", count_of(&status, MPI_BYTE));
    GOOD(MPI_File_preallocate(file, 3000));
    GOOD(MPI_File_get_size(file, &size));
    tell("preallocated", size);
    MPI_Barrier(MPI_COMM_WORLD);
    GOOD(MPI_File_preallocate(file, 500));
    GOOD(MPI_File_get_size(file, &size));
    tell("preallocated less", size);
    /* Nothing is nothing, also where some write something. */
    GOOD(MPI_File_write_at_all(file, 10 * rank, bytes, rank % 2 ? 10 : 0, MPI_BYTE, &status));
    tell("some write nothing", count_of(&status, MPI_BYTE));
    GOOD(MPI_File_read_at(file, 0, NULL, 0, MPI_BYTE, &status));
    tell("nothing", count_of(&status, MPI_BYTE));
    GOOD(MPI_File_close(&file));
}

static void views(void) {
    MPI_File file = open_new("told");
    MPI_Datatype strided, etype, filetype;
    MPI_Offset displacement;
    MPI_Aint extent, lower;
    char representation[MPI_MAX_DATAREP_STRING];
    int integers, addresses, types, combiner, flag;
    GOOD(MPI_File_get_view(file, &displacement, &etype, &filetype, representation));
    CHECK(displacement == 0 && etype == MPI_BYTE && filetype == MPI_BYTE && !strcmp(representation, "native"));
    MPI_Type_vector(3, 1, 4, MPI_DOUBLE, &strided);
    MPI_Type_commit(&strided);
    GOOD(MPI_File_set_view(file, 16, MPI_DOUBLE, strided, "native", MPI_INFO_NULL));
    MPI_Type_free(&strided);
    GOOD(MPI_File_get_view(file, &displacement, &etype, &filetype, representation));
    MPI_Type_get_extent(filetype, &lower, &extent);
    CHECK(displacement == 16 && etype == MPI_DOUBLE && extent == 9 * 8 && !strcmp(representation, "native"));
    MPI_Type_get_envelope(filetype, &integers, &addresses, &types, &combiner);
    CHECK(combiner != MPI_COMBINER_NAMED);
    MPI_Type_free(&filetype);
    GOOD(MPI_File_get_type_extent(file, MPI_DOUBLE, &extent));
    tell("extent", extent);
    tell_class("negative displacement", MPI_File_set_view(file, -1, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    tell_class("no such data", MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "none", MPI_INFO_NULL));
    tell_class("no whole etypes", MPI_File_set_view(file, 0, MPI_INT, MPI_BYTE, "native", MPI_INFO_NULL));
    GOOD(MPI_File_get_atomicity(file, &flag));
    tell("atomic", flag);
    GOOD(MPI_File_set_atomicity(file, 1));
    GOOD(MPI_File_get_atomicity(file, &flag));
    tell("atomic", flag);
    GOOD(MPI_File_close(&file));
}

static void accesses(void) {
    MPI_File file = open_new("accesses");
    int number = 7;
    MPI_Status status;
    GOOD(MPI_File_write_at(file, 0, &number, 1, MPI_INT, &status));
    tell_class("negative count", MPI_File_write_at(file, 0, &number, -1, MPI_INT, &status));
    tell_class("negative offset", MPI_File_write_at(file, -1, &number, 1, MPI_INT, &status));
    tell_class("no datatype", MPI_File_read_at(file, 0, &number, 1, MPI_DATATYPE_NULL, &status));
    GOOD(MPI_File_set_view(file, 0, MPI_DOUBLE, MPI_DOUBLE, "native", MPI_INFO_NULL));
    tell_class("half an etype", MPI_File_read_at(file, 0, &number, 1, MPI_INT, &status));
    CHECK(MPI_File_set_size(file, 100 + rank) != MPI_SUCCESS);
    GOOD(MPI_File_close(&file));
    file = open_as("accesses", MPI_MODE_RDONLY);
    tell_class("write to read only", MPI_File_write_at(file, 0, &number, 1, MPI_INT, &status));
    GOOD(MPI_File_close(&file));
    file = open_as("accesses", MPI_MODE_WRONLY);
    tell_class("read of write only", MPI_File_read_at(file, 0, &number, 1, MPI_INT, &status));
    GOOD(MPI_File_close(&file));
}

static int handled;

static void handler(MPI_File *file, int *code, ...) {
    (void)file;
    handled += *code != MPI_SUCCESS;
}

/* Handles are MPI's: handlers, groups, and the numbers that Fortran has. */
static void handles(void) {
    MPI_File file = open_new("handles"), same;
    MPI_Errhandler ours, now;
    MPI_Group group;
    MPI_Info info;
    int size, number = 1, keys;
    GOOD(MPI_File_create_errhandler(handler, &ours));
    GOOD(MPI_File_set_errhandler(file, ours));
    GOOD(MPI_File_get_errhandler(file, &now));
    MPI_File_write_at(file, -1, &number, 1, MPI_INT, MPI_STATUS_IGNORE);
    tell("handled", handled);
    MPI_Errhandler_free(&ours), MPI_Errhandler_free(&now);
    GOOD(MPI_File_get_group(file, &group));
    MPI_Group_size(group, &size);
    MPI_Group_free(&group);
    tell("group", size);
    same = MPI_File_f2c(MPI_File_c2f(file));
    GOOD(MPI_File_write_at(same, 4 * rank, &number, 1, MPI_INT, MPI_STATUS_IGNORE));
    GOOD(MPI_File_get_info(file, &info));
    MPI_Info_get_nkeys(info, &keys);
    CHECK(keys > 0);
    GOOD(MPI_File_set_info(file, info));
    MPI_Info_free(&info);
    GOOD(MPI_File_close(&file));
}

int main(int argc, char **argv) {
    start(argc, argv);
    opening();
    sizes();
    views();
    accesses();
    handles();
    end();
    return 0;
}
