/*
 * For tests that name their files themselves: names below the directory MPI_NAMES_FROM become names below MPI_NAMES_TO,
 * in the calls of MPI that take names. Relative names count from the working directory. Preloaded before the library
 * that is tested.
 */
#define _GNU_SOURCE
#include <mpi.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The name to say instead, in `buffer` if it is another one. */
static const char *moved(const char *name, char *buffer, size_t size) {
    const char *from = getenv("MPI_NAMES_FROM"), *to = getenv("MPI_NAMES_TO");
    char here[4096];
    if (!name || !from || !to || strchr(name, ':'))
        return name;
    if (name[0] != '/') {
        if (!getcwd(here, sizeof here) || strcmp(here, from) != 0)
            return name;
        snprintf(buffer, size, "%s/%s", to, name);
        return buffer;
    }
    size_t length = strlen(from);
    if (strncmp(name, from, length) != 0 || name[length] != '/')
        return name;
    snprintf(buffer, size, "%s%s", to, name + length);
    return buffer;
}

/* Both names of a call, each of which goes on to its own. */
#define MOVING(prefix) \
    int prefix##_File_open(MPI_Comm comm, const char *name, int amode, MPI_Info info, MPI_File *fh) { \
        char buffer[8192]; \
        int (*next)(MPI_Comm, const char *, int, MPI_Info, MPI_File *); \
        *(void **)&next = dlsym(RTLD_NEXT, #prefix "_File_open"); \
        return next(comm, moved(name, buffer, sizeof buffer), amode, info, fh); \
    } \
    int prefix##_File_delete(const char *name, MPI_Info info) { \
        char buffer[8192]; \
        int (*next)(const char *, MPI_Info); \
        *(void **)&next = dlsym(RTLD_NEXT, #prefix "_File_delete"); \
        return next(moved(name, buffer, sizeof buffer), info); \
    }

MOVING(MPI)
MOVING(PMPI)
