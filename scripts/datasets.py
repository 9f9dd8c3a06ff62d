#!/usr/bin/env python3
"""Reads a Parquet data set and an HDF5 file of a backing directory through a mount: cold, again, and staged.

    python3 scripts/datasets.py PROGRAMS [--at DIR] [--rows N] [--turns N]

Makes both in DIR (a new directory in /dev/shm unless said otherwise), brings up a cluster of two servers over it, and
mounts that. Each turn gives all bytes up, reads both cold, reads them again, gives them up, stages them and reads them;
beside it DIR itself is read. What is read is compared with what was written. Prints medians in milliseconds, and how
many bytes servers fetched; pyarrow, h5py and numpy are installed into target/datasets if they are missing. As a user
who may mount. Exit status 1: what was read is not what was written, or was fetched twice.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLACE = ROOT / "target" / "datasets"
NEEDED = ["numpy", "pyarrow", "h5py"]
FILES = 8


def with_packages():
    """Goes on in an environment that has the packages."""
    try:
        import h5py, numpy, pyarrow  # noqa: F401, E401
        return
    except ImportError:
        pass
    python = PLACE / "bin" / "python"
    if pathlib.Path(sys.executable) == python:
        sys.exit("datasets.py: the packages were installed, and can't be used")
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", PLACE], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", *NEEDED], check=True)
    os.execv(python, [python, *sys.argv])


def make(directory, rows):
    """A data set of several files with columns of several kinds, and a file of chunked, compressed arrays."""
    import h5py
    import numpy
    import pyarrow
    import pyarrow.parquet

    random = numpy.random.default_rng(7)
    (directory / "table").mkdir()
    for number in range(FILES):
        columns = {
            "key": numpy.arange(rows) + number * rows,
            "value": random.normal(size=rows),
            "word": random.choice(["red", "green", "blue"], rows),
        }
        path = directory / "table" / f"part-{number}.parquet"
        pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=rows // 4)
    with h5py.File(directory / "arrays.h5", "w") as file:
        side = max(int((rows * 2) ** 0.5), 8)
        for name in ("first", "second"):
            file.create_dataset(name, data=random.normal(size=(side, side)), chunks=(max(side // 8, 1), side))
        file["first"].attrs["unit"] = "K"


def read_table(directory):
    """One column of all files whole, and rows of another that a filter lets pass."""
    import pyarrow.compute
    import pyarrow.dataset

    data = pyarrow.dataset.dataset(directory / "table", format="parquet")
    red = data.to_table(columns=["value"], filter=pyarrow.dataset.field("word") == "red")
    keys = data.to_table(columns=["key"])
    return pyarrow.compute.sum(keys["key"]).as_py(), red.num_rows, round(pyarrow.compute.sum(red["value"]).as_py(), 6)


def read_arrays(directory):
    """A stripe of one array across all chunks, and all of the other."""
    import h5py

    with h5py.File(directory / "arrays.h5", "r") as file:
        stripe = file["first"][:, ::7].sum()
        return round(float(stripe), 6), round(float(file["second"][:].sum()), 6), file["first"].attrs["unit"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--at", type=pathlib.Path, default=pathlib.Path("/dev/shm"))
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    with_packages()
    tabane = options.programs.resolve() / "tabane"
    if not tabane.exists():
        sys.exit(f"datasets.py: there is no {tabane}")
    with tempfile.TemporaryDirectory(prefix="tabane-datasets-", dir=options.at) as work:
        work = pathlib.Path(work)
        site, mount = work / "site", work / "mount"
        site.mkdir()
        mount.mkdir()
        (work / "stores").mkdir()
        make(site, options.rows)
        sys.exit(measure(tabane, work, site, mount, options.turns))


def measure(tabane, work, site, mount, turns):
    environment = dict(os.environ, TABANE_CLUSTER=str(work / "run"))

    def run(*words):
        done = subprocess.run([tabane, *words], env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"tabane {' '.join(map(str, words))}: {done.stderr}")
        return done.stdout

    def fetched():
        servers = json.loads(run("status", "--json"))["servers"]
        return sum(server["report"]["backing"]["fetched_bytes"] for server in servers)

    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    store = f"memory:{work / 'stores'},size={max(size, 64 << 20)}"
    run("up", "--servers", "2", "--store", store, "--backing", site, "--flush", "manual", "--mount", mount,
        "--run-directory", work / "run")
    problems, times = [], {}
    readers = {"Parquet": read_table, "HDF5": read_arrays}
    expected = {name: read(site) for name, read in readers.items()}

    def timed(way, directory):
        for name, read in readers.items():
            start = time.perf_counter()
            found = read(directory)
            times.setdefault((name, way), []).append(1000 * (time.perf_counter() - start))
            if found != expected[name]:
                problems.append(f"{name}, {way}: {found} was read where {expected[name]} was written")

    try:
        for _ in range(turns):
            timed("DIR", site)
            run("evict", ":/")
            before = fetched()
            timed("cold", mount)
            cold = fetched()
            timed("again", mount)
            if fetched() != cold or cold - before > size:
                problems.append(f"of {size} bytes {cold - before} were fetched, and {fetched() - cold} once more")
            run("evict", ":/")
            run("stage", ":/")
            staged = fetched()
            timed("staged", mount)
            if fetched() != staged:
                problems.append(f"{fetched() - staged} bytes were fetched when all was staged")
    finally:
        run("down", "--discard")
    for name in readers:
        ways = ((way, statistics.median(times[name, way])) for way in ("DIR", "cold", "again", "staged"))
        print(name + ": " + ", ".join(f"{way} {median:.1f} ms" for way, median in ways))
    print(f"{size / (1 << 20):.1f} MiB, of which a cold read fetched {(cold - before) / (1 << 20):.1f}")
    for problem in problems:
        print(f"datasets.py: {problem}", file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    main()
