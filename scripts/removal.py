#!/usr/bin/env python3
"""How much slower the warm operations of another client are while `tabane rm -r` removes very many directories.

Usage: removal.py DIRECTORY-WITH-PROGRAMS [--servers N] [--directories N] [--window-ms N] [--limit RATIO] [--same]

One client works on files (create, write, stat, read, close, unlink) through libtabane. A real `tabane rm -r` is stopped
and let go on in turns, by SIGSTOP and SIGCONT, so that each window with it stands between two without it, a moment
later on the same machine: what else happens there strikes both alike. The ratio of a window is its time of a round over
the mean of its neighbours'; the figure is the median of all windows, with the quartiles beside it. With --same nothing
is removed in either window: that ratio has to be 1, and how far its quartiles are apart says what the machine can tell.
Prints a line of JSON; fails beyond --limit.
"""
import argparse
import ctypes
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

# At the begin of each window this part is left out: what was under way, and servers that have yet to see that nobody
# asks.
LEAD_IN = 0.2
FILES = 64
SIZE = 1000
# Directories that one command makes.
BATCH = 500


class Worker:
    """Warm operations, one after the other."""

    def __init__(self, library, cluster):
        self.library = ctypes.CDLL(library, use_errno=True)
        self.library.tabane_error_message.restype = ctypes.c_char_p
        for name in ("tabane_pread", "tabane_pwrite"):
            getattr(self.library, name).restype = ctypes.c_ssize_t
            getattr(self.library, name).argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64]
        self.bytes = ctypes.create_string_buffer(SIZE)
        self.attributes = ctypes.create_string_buffer(256)
        self.paths = [b"/others/file%d" % number for number in range(FILES)]
        self.check(self.library.tabane_init(cluster.encode()))
        self.check(self.library.tabane_mkdir(b"/others", 0o755))
        self.count = 0

    def check(self, result):
        if result < 0:
            raise RuntimeError(self.library.tabane_error_message().decode())
        return result

    def round(self):
        library, path = self.library, self.paths[self.count % FILES]
        file = self.check(library.tabane_open(path, os.O_RDWR | os.O_CREAT, 0o644))
        self.check(library.tabane_pwrite(file, self.bytes, SIZE, 0))
        self.check(library.tabane_stat(path, self.attributes))
        self.check(library.tabane_pread(file, self.bytes, SIZE, 0))
        self.check(library.tabane_close(file))
        self.check(library.tabane_unlink(path))
        self.count += 1

    def window(self, seconds):
        """Mean and median time of a round in a window, in microseconds."""
        now = time.perf_counter_ns
        lead_in = now() + int(seconds * LEAD_IN * 1e9)
        while now() < lead_in:
            self.round()
        begun, times = now(), []
        end = begun + int(seconds * (1 - LEAD_IN) * 1e9)
        last = begun
        while last < end:
            self.round()
            this = now()
            times.append(this - last)
            last = this
        return (last - begun) / len(times) / 1e3, statistics.median(times) / 1e3


def quartiles(values):
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": round(middle, 3), "quartiles": [round(low, 3), round(high, 3)]}


def measure(worker, removal, options):
    seconds = options.window_ms / 1e3
    alone, beside, worked = [worker.window(seconds)], [], 0.0
    while len(beside) < options.windows:
        if removal:
            removal.send_signal(signal.SIGCONT)
        begun = time.perf_counter()
        beside.append(worker.window(seconds))
        if removal:
            ended = removal.poll() is not None
            removal.send_signal(signal.SIGSTOP)
            if ended:
                # Part of that window was without it.
                beside.pop()
                break
        worked += time.perf_counter() - begun
        alone.append(worker.window(seconds))
    ratios = {}
    for index, name in enumerate(["mean", "median"]):
        around = [(alone[at][index] + alone[at + 1][index]) / 2 for at in range(len(beside))]
        ratios[f"of_{name}"] = quartiles([one[index] / other for one, other in zip(beside, around)])
    microseconds = [round(statistics.median(window[0] for window in windows), 1) for windows in (alone, beside)]
    return {"windows": len(beside), "seconds": round(worked, 2), "round_us": microseconds, "ratio": ratios}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs")
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--directories", type=int, default=10_000)
    parser.add_argument("--window-ms", type=int, default=100)
    parser.add_argument("--windows", type=int, default=300, help="at most so many")
    parser.add_argument("--limit", type=float, help="fail if the median ratio of the means is larger")
    parser.add_argument("--same", action="store_true")
    options = parser.parse_args()
    programs = os.path.abspath(options.programs)
    tabane = os.path.join(programs, "tabane")
    work = tempfile.mkdtemp(prefix="tabane-removal-")
    run_directory = os.path.join(work, "run")
    os.environ["TABANE_CLUSTER"] = run_directory
    removal = None
    try:
        up = ["up", "--servers", str(options.servers), "--run-directory", run_directory, "--store", "memory:size=256M"]
        subprocess.run([tabane, *up], check=True, stdout=subprocess.DEVNULL)
        worker = Worker(os.path.join(programs, "libtabane.so"), run_directory)
        paths = [f":/tree/{number % 100}/{number}" for number in range(options.directories)]
        for first in range(0, len(paths), BATCH):
            subprocess.run([tabane, "mkdir", "-p", *paths[first : first + BATCH]], check=True)
        if not options.same:
            removal = subprocess.Popen([tabane, "rm", "-r", ":/tree"], stderr=subprocess.DEVNULL)
            removal.send_signal(signal.SIGSTOP)
        worker.window(1.0)
        told = measure(worker, removal, options)
        left = int(subprocess.run([tabane, "find", ":/tree", "-count"], capture_output=True, text=True).stdout or 0)
        told["directories_removed"] = options.directories + 101 - left
        print(json.dumps(told))
        ratio = told["ratio"]["of_mean"]["median"]
        if options.limit and ratio > options.limit:
            sys.exit(f"removal: others are {ratio} times as slow, where {options.limit} is the limit")
    finally:
        if removal and removal.poll() is None:
            removal.kill()
            removal.wait()
        subprocess.run([tabane, "down", "--run-directory", run_directory], stdout=subprocess.DEVNULL)
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
