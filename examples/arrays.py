"""Arrays in files of a mount: h5py, numpy's own files, and memory maps that several processes share.

    python3 arrays.py job          (job is a mount)
"""

import os
import sys
from pathlib import Path

import h5py
import numpy

PROCESS_COUNT = 3
PART_SIZE = 100_000


def hdf5(path):
    """A dataset in chunks, compressed and extended, is read as it was written."""
    field = numpy.arange(PART_SIZE, dtype="f8").reshape(100, -1)
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("field", data=field, chunks=(10, 100), compression="gzip", maxshape=(None, 1000))
        dataset.resize(200, axis=0)
        dataset[100:] = field + 1
        dataset.attrs["unit"] = "m/s"
    with h5py.File(path, "r") as file:
        assert file["field"].attrs["unit"] == "m/s"
        assert (file["field"][100:] == field + 1).all() and (file["field"][50] == field[50]).all()


def write_part(path, rank):
    """One process writes its part of the map."""
    part = numpy.memmap(path, dtype="i8", mode="r+", shape=(PROCESS_COUNT, PART_SIZE))
    part[rank] = numpy.arange(PART_SIZE) * (rank + 1)
    part.flush()


def mapped(path):
    """Processes that map one file see what each other has written, and so does who reads it."""
    whole = numpy.memmap(path, dtype="i8", mode="w+", shape=(PROCESS_COUNT, PART_SIZE))
    children = []
    for rank in range(PROCESS_COUNT):
        child = os.fork()
        if child == 0:
            write_part(path, rank)
            os._exit(0)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
    wanted = numpy.arange(PART_SIZE) * numpy.arange(1, PROCESS_COUNT + 1)[:, None]
    assert (whole == wanted).all(), "the map shows something else"
    assert (numpy.fromfile(path, dtype="i8").reshape(wanted.shape) == wanted).all(), "the file holds something else"


def main(directory):
    hdf5(directory / "arrays.h5")
    mapped(directory / "map")
    numpy.save(directory / "array.npy", numpy.eye(300))
    assert numpy.load(directory / "array.npy", mmap_mode="r").trace() == 300
    print("h5py, numpy and its maps read what was written")


main(Path(sys.argv[1]))
