#!/usr/bin/env python3
"""Works on several times as much as the stores hold, over a backing directory, by the C library.

Each worker has files of its own, whose bytes it knows: it writes, appends, cuts, reads, renames and removes. All of
them append to one log. Nothing may fail, whatever has to go behind for it or come back; afterwards the backing
directory has the same bytes. Usage: overflow.py PROGRAMS [SECONDS [SERVERS [OPTION...]]], with options of `tabane
up`; the backing directory is made in TMPDIR, which may be a slow one. Exit status 1: something failed, or bytes
differ.
"""

import ctypes
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import threading
import time

WORKERS = 3
STORE_MIB = 16
FILES = 3
FILE_SIZE = 24 << 20
RECORD_SIZES = [10, 3_000, 40_000]


class Files:
    """The library's calls; failures raise OSError."""

    def __init__(self, programs, cluster):
        self.library = ctypes.CDLL(os.path.join(programs, "libtabane.so"), use_errno=True)
        for name in ["read", "write", "pread", "pwrite"]:
            getattr(self.library, "tabane_" + name).restype = ctypes.c_ssize_t
        self.worst = 0.0
        self("init", cluster.encode())

    def __call__(self, name, *arguments):
        words = [ctypes.c_int64(word) if type(word) is int else word for word in arguments]
        begin = time.monotonic()
        result = getattr(self.library, "tabane_" + name)(*words)
        self.worst = max(self.worst, time.monotonic() - begin)
        if result < 0:
            code = ctypes.get_errno()
            shown = [word if len(str(word)) < 60 else "..." for word in arguments]
            raise OSError(code, f"{name} {shown} after {time.monotonic() - begin:.1f} s: {os.strerror(code)}")
        return result


def read_all(files, path, size):
    descriptor = files("open", path.encode(), os.O_RDONLY, 0)
    buffer, bytes_read = ctypes.create_string_buffer(1 << 20), bytearray()
    while True:
        count = files("pread", descriptor, buffer, len(buffer), len(bytes_read))
        bytes_read += buffer.raw[:count]
        if count == 0 or len(bytes_read) > size:
            files("close", descriptor)
            return bytes(bytes_read)


class Worker:
    def __init__(self, files, number, end):
        self.files, self.number, self.end = files, number, end
        self.draw = random.Random(number)
        self.noise = self.draw.randbytes(1 << 20)
        self.known, self.made, self.records, self.moved = {}, 0, 0, 0

    def bytes(self, size):
        start = self.draw.randrange(len(self.noise) - size)
        return self.noise[start : start + size]

    def create(self):
        path = f"/d{self.draw.randrange(2)}/w{self.number}-{self.made}"
        self.made += 1
        descriptor = self.files("open", path.encode(), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        self.known[path] = (descriptor, bytearray())

    def check(self, path, start, size):
        descriptor, known = self.known[path]
        buffer = ctypes.create_string_buffer(max(size, 1))
        count = self.files("pread", descriptor, buffer, size, start)
        if buffer.raw[:count] != known[start : start + size]:
            sys.exit(f"{path}: bytes {start} to {start + size} differ")

    def write(self, path):
        descriptor, known = self.known[path]
        size = self.draw.choice([1, 5_000, 70_000, 400_000])
        # To the end mostly, so that the files become as large as they may.
        end = len(known) if len(known) < FILE_SIZE else FILE_SIZE - size
        start = end if self.draw.random() < 0.5 else self.draw.randrange(end + 1)
        data = self.bytes(size)
        known[start : start + size] = data
        self.moved += size
        if self.files("pwrite", descriptor, data, size, start) != size:
            sys.exit(f"{path}: a short write")

    def cut(self, path):
        descriptor, known = self.known[path]
        size = self.draw.randrange(len(known) + 1)
        del known[size:]
        self.files("ftruncate", descriptor, size)

    def rename(self, path):
        target = f"/d{self.draw.randrange(2)}/w{self.number}-{self.made}"
        self.made += 1
        self.files("rename", path.encode(), target.encode())
        self.known[target] = self.known.pop(path)

    def remove(self, path):
        descriptor, _ = self.known.pop(path)
        self.files("close", descriptor)
        self.files("unlink", path.encode())
        self.create()

    def record(self, log):
        size = self.draw.choice(RECORD_SIZES)
        head = b"%1d %7d %6d\n" % (self.number, self.records, size)
        self.records += 1
        if self.files("write", log, head + b"." * size, len(head) + size) != len(head) + size:
            sys.exit("a short append")

    def run(self):
        log = self.files("open", b"/log", os.O_WRONLY | os.O_APPEND, 0)
        for _ in range(FILES):
            self.create()
        while time.monotonic() < self.end:
            path, what = self.draw.choice(list(self.known)), self.draw.random()
            if what < 0.5:
                self.write(path)
            elif what < 0.8:
                size = len(self.known[path][1])
                self.check(path, self.draw.randrange(size + 1), self.draw.choice([100, 50_000, 500_000]))
            elif what < 0.985:
                self.record(log)
            elif what < 0.99:
                self.cut(path)
            elif what < 0.998:
                self.rename(path)
            else:
                self.remove(path)
        for path, (descriptor, known) in self.known.items():
            if read_all(self.files, path, len(known)) != known:
                sys.exit(f"{path}: its bytes differ")
            self.files("close", descriptor)
        self.files("close", log)
        print(f"worker {self.number}: {self.moved >> 20} MiB written, {self.records} records,"
              f" longest call {self.files.worst:.2f} s", flush=True)


def records_of(contents):
    """Each worker's records, whole and in order."""
    found, at = [0] * WORKERS, 0
    while at < len(contents):
        number, record, size = (int(word) for word in contents[at : at + 17].split())
        if contents[at + 17 : at + 17 + size].strip(b".") or record != found[number]:
            sys.exit(f"the log: record {record} of worker {number} at {at}, {found[number]} is due")
        found[number] += 1
        at += 17 + size
    return found


def compare(site, worker):
    for path, (_, known) in worker.known.items():
        with open(site + path, "rb") as file:
            if file.read() != known:
                sys.exit(f"{path}: its bytes behind differ")


def work(programs, cluster, site, number, end, barrier, counts):
    try:
        worker = Worker(Files(programs, cluster), number, end)
        worker.run()
        counts[number] = worker.records
        barrier.wait()
        # Here all is flushed.
        barrier.wait()
        compare(site, worker)
    except OSError as error:
        barrier.abort()
        sys.exit(f"worker {number}: {error}")
    except SystemExit:
        barrier.abort()
        raise


def try_policy(programs, seconds, servers, policy, options):
    tabane = os.path.join(programs, "tabane")
    with tempfile.TemporaryDirectory(prefix="tabane-overflow-") as ground:
        run, site = f"{ground}/run", f"{ground}/site"
        [os.makedirs(f"{site}/d{number}") for number in range(2)]
        open(f"{site}/log", "w").close()
        quiet = {"env": dict(os.environ, TABANE_CLUSTER=run), "stdout": subprocess.DEVNULL}
        up = [tabane, "up", "--servers", servers, "--store", f"memory:size={STORE_MIB}M", "--journal-size", "4M"]
        up += ["--chunk-size", "64K", "--run-directory", run, "--backing", site, "--flush", policy, *options]
        subprocess.run(up, check=True, **quiet)
        try:
            barrier, counts = multiprocessing.Barrier(WORKERS + 1), multiprocessing.Array("q", WORKERS)
            shared = (programs, run, site)
            end = time.monotonic() + seconds
            workers = [
                multiprocessing.Process(target=work, args=(*shared, number, end, barrier, counts))
                for number in range(WORKERS)
            ]
            [worker.start() for worker in workers]
            try:
                barrier.wait()
                subprocess.run([tabane, "flush", "--wait"], check=True, **quiet)
                with open(f"{site}/log", "rb") as log:
                    found = records_of(log.read())
                if found != list(counts):
                    print(f"the log has {found} records, and {list(counts)} were appended", file=sys.stderr)
                    barrier.abort()
                barrier.wait()
            except threading.BrokenBarrierError:
                pass
            [worker.join() for worker in workers]
            return all(worker.exitcode == 0 for worker in workers)
        finally:
            subprocess.run([tabane, "down"], check=True, **quiet)


def main():
    programs, given = os.path.abspath(sys.argv[1]), sys.argv[2:]
    seconds, servers, *options = given + ["20", "2"][len(given) :]
    for policy in ["idle", "immediate", "on-close"]:
        print(f"--flush {policy}, {servers} servers", flush=True)
        if not try_policy(programs, float(seconds), servers, policy, options):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
