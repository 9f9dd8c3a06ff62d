/*
 * Parallel HDF5 on a mount: all processes write rows of one dataset together, and read those of their neighbours.
 *
 *     h5pcc hdf5.c -o hdf5
 *     mpirun -n 3 ./hdf5 job/field.h5          (job is a mount)
 */
#include <hdf5.h>
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>

#define ROW_COUNT 100 /* rows of each process */
#define COLUMN_COUNT 1000

static int rank, process_count;

/* Ends all processes if a call has failed; HDF5 has said why. */
static hid_t check(hid_t result) {
    if (result < 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    return result;
}

/* The rows of `owner` within the dataset. */
static hid_t rows_of(hid_t dataset, int owner) {
    hsize_t first[2] = {(hsize_t)owner * ROW_COUNT, 0}, size[2] = {ROW_COUNT, COLUMN_COUNT};
    hid_t space = check(H5Dget_space(dataset));
    check(H5Sselect_hyperslab(space, H5S_SELECT_SET, first, NULL, size, NULL));
    return space;
}

int main(int argc, char **argv) {
    static double field[ROW_COUNT][COLUMN_COUNT];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &process_count);
    if (argc != 2) {
        fprintf(stderr, "usage: hdf5 PATH\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }

    hid_t access = check(H5Pcreate(H5P_FILE_ACCESS));
    check(H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL));
    hid_t transfer = check(H5Pcreate(H5P_DATASET_XFER));
    check(H5Pset_dxpl_mpio(transfer, H5FD_MPIO_COLLECTIVE));
    hsize_t whole[2] = {(hsize_t)process_count * ROW_COUNT, COLUMN_COUNT}, part[2] = {ROW_COUNT, COLUMN_COUNT};
    hid_t memory = check(H5Screate_simple(2, part, NULL)), space = check(H5Screate_simple(2, whole, NULL));

    hid_t file = check(H5Fcreate(argv[1], H5F_ACC_TRUNC, H5P_DEFAULT, access));
    hid_t dataset =
        check(H5Dcreate2(file, "field", H5T_NATIVE_DOUBLE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    for (int row = 0; row < ROW_COUNT; row++)
        for (int column = 0; column < COLUMN_COUNT; column++)
            field[row][column] = (rank * ROW_COUNT + row) + column / 1000.0;
    hid_t rows = rows_of(dataset, rank);
    check(H5Dwrite(dataset, H5T_NATIVE_DOUBLE, memory, rows, transfer, field));
    check(H5Sclose(rows));
    check(H5Dclose(dataset));
    check(H5Fclose(file));

    const int next = (rank + 1) % process_count;
    file = check(H5Fopen(argv[1], H5F_ACC_RDONLY, access));
    dataset = check(H5Dopen2(file, "field", H5P_DEFAULT));
    rows = rows_of(dataset, next);
    check(H5Dread(dataset, H5T_NATIVE_DOUBLE, memory, rows, transfer, field));
    for (int row = 0; row < ROW_COUNT; row++)
        for (int column = 0; column < COLUMN_COUNT; column++)
            if (field[row][column] != (next * ROW_COUNT + row) + column / 1000.0) {
                fprintf(stderr, "process %d: row %d of %d is not what was written\n", rank, row, next);
                MPI_Abort(MPI_COMM_WORLD, 1);
            }
    check(H5Sclose(rows));
    check(H5Dclose(dataset));
    check(H5Fclose(file));
    if (rank == 0)
        printf("%d processes wrote %d rows, and read those of their neighbours\n", process_count,
               process_count * ROW_COUNT);
    MPI_Finalize();
    return 0;
}
