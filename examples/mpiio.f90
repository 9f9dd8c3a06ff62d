! Collective MPI-IO from Fortran: each process writes every n-th row of a field, then all read the rows of their
! neighbours and compare. Builds with mpif90, runs as: mpiexec -n 3 ./mpiio NAME, where NAME is a file below a mount, or
! tabane:/path with libtabane_mpiio.so in front (docs/mpiio.md).
program mpiio
    use mpi_f08
    implicit none
    integer, parameter :: width = 1000, rows = 100
    type(MPI_File) :: file
    type(MPI_Datatype) :: row, share
    type(MPI_Status) :: status
    integer(kind=MPI_OFFSET_KIND) :: start, size
    integer :: rank, process_count, neighbour, item, wrong, all_wrong, moved
    integer, dimension(width, rows) :: mine, theirs
    character(len=4096) :: name

    call MPI_Init()
    call MPI_Comm_rank(MPI_COMM_WORLD, rank)
    call MPI_Comm_size(MPI_COMM_WORLD, process_count)
    if (command_argument_count() /= 1) then
        if (rank == 0) print '(a)', 'usage: mpiio NAME'
        call MPI_Abort(MPI_COMM_WORLD, 2)
    end if
    call get_command_argument(1, name)
    call MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_ARE_FATAL)
    call MPI_File_open(MPI_COMM_WORLD, trim(name), ior(MPI_MODE_CREATE, MPI_MODE_RDWR), MPI_INFO_NULL, file)

    ! Row r of process p is row r * n + p of the file.
    call MPI_Type_contiguous(width, MPI_INTEGER, row)
    call MPI_Type_create_resized(row, 0_MPI_ADDRESS_KIND, int(4 * width, MPI_ADDRESS_KIND) * process_count, share)
    call MPI_Type_commit(share)
    start = 4_MPI_OFFSET_KIND * width * rank
    call MPI_File_set_view(file, start, MPI_INTEGER, share, 'native', MPI_INFO_NULL)
    mine = reshape([(item * process_count + rank, item = 1, width * rows)], [width, rows])
    call MPI_File_write_all(file, mine, width * rows, MPI_INTEGER, status)
    call MPI_Get_count(status, MPI_INTEGER, moved)
    wrong = merge(0, 1, moved == width * rows)

    call MPI_File_sync(file)
    call MPI_Barrier(MPI_COMM_WORLD)
    call MPI_File_sync(file)
    neighbour = mod(rank + 1, process_count)
    start = 4_MPI_OFFSET_KIND * width * neighbour
    call MPI_File_set_view(file, start, MPI_INTEGER, share, 'native', MPI_INFO_NULL)
    call MPI_File_read_all(file, theirs, width * rows, MPI_INTEGER, status)
    mine = reshape([(item * process_count + neighbour, item = 1, width * rows)], [width, rows])
    wrong = wrong + count(mine /= theirs)
    call MPI_File_get_size(file, size)
    if (size /= 4_MPI_OFFSET_KIND * width * rows * process_count) wrong = wrong + 1
    call MPI_File_close(file)
    call MPI_Type_free(row)
    call MPI_Type_free(share)
    call MPI_Reduce(wrong, all_wrong, 1, MPI_INTEGER, MPI_SUM, 0, MPI_COMM_WORLD)
    if (rank == 0) then
        if (all_wrong /= 0) then
            print '(i0, a)', all_wrong, ' numbers are not what was written'
            call MPI_Abort(MPI_COMM_WORLD, 1)
        end if
        print '(i0, a)', process_count, ' processes read what their neighbours wrote'
    end if
    call MPI_Finalize()
end program mpiio
