#!/usr/bin/env python3
"""Many changes of the directory tree on a real cluster, and then a look at it by a new client of each kind.

    scripts/trees.py [--programs DIR] [--operations N] [--servers N] [--fill N]

Directories are made, renamed, changed in their rights and removed, in turns, through libtabane. A file that is two
levels down is looked at now and then by this client, by new clients of the library, the command line and a mount; a
listing must have exactly what is there. The memory of the servers is told for each tenth, and the last must be that of
the first, once as many operations were done as fill the tables of removed directories (--fill). Ends with 1 when
anything is wrong.
"""
import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time

LEFT = 200  # directories that are there at a time
REMEMBERED = 2 * 65_536  # removed directories of a server, docs/limits.md
REMEMBERED_SIZE = 40  # bytes of one
FLAT = 1.05  # what the heap of a server may differ by


def fill_of(servers):
    """Operations, of which a quarter removes, that fill the tables."""
    return 4 * REMEMBERED * servers


class Client:
    """The file system through the library."""

    def __init__(self, library):
        self.library = ctypes.CDLL(library, use_errno=True)
        self.call("init", None)

    def call(self, name, *words):
        if getattr(self.library, "tabane_" + name)(*words) < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{name} {words}: {os.strerror(number)}")

    def do(self, turn, names):
        """One operation of the tree; each directory is made, closed to others, renamed, and removed when it is old."""
        index, kind = turn // 4, turn % 4
        own = b"/t/%d" % index
        if kind == 0:
            self.call("mkdir", own, 0o755)
        elif kind == 1:
            self.call("chmod", own, 0o700)
        elif kind == 2:
            self.call("rename", own, own + b"r")
            names.append(own + b"r")
        elif len(names) > LEFT:
            self.call("rmdir", names.pop(0))
        return kind != 3 or len(names) >= LEFT


def memory(tabane):
    """Bytes of their own that the servers have; pages of stores are touched once, and not counted."""
    servers = json.loads(subprocess.check_output([tabane, "status", "--json"]))["servers"]
    sizes = []
    for server in servers:
        with open(f"/proc/{server['pid']}/status") as status:
            sizes += [int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon:")]
    return sizes


def look(tabane, arguments, names, mount):
    """New clients of each kind see what is there."""
    wanted = sorted(name.rsplit(b"/", 1)[1].decode() for name in names)
    listed = subprocess.check_output([tabane, "ls", ":/t"], text=True).split()
    assert sorted(listed) == wanted, (listed, wanted)
    assert subprocess.check_output([tabane, "cat", ":/deep/down/file"]) == b"there"
    code = "import sys; sys.path.insert(0, sys.argv[1]); import trees; c = trees.Client(sys.argv[2]); " \
        "c.call('access', b'/deep/down/file', 4); c.call('access', sys.argv[3].encode(), 0)"
    here = os.path.dirname(os.path.abspath(__file__))
    library = os.path.join(arguments.programs, "libtabane.so")
    subprocess.check_call([sys.executable, "-B", "-c", code, here, library, names[-1].decode()])
    if mount:
        subprocess.check_call([tabane, "mount", mount])
        try:
            assert sorted(os.listdir(os.path.join(mount, "t"))) == wanted
            with open(os.path.join(mount, "deep/down/file")) as file:
                assert file.read() == "there"
        finally:
            subprocess.check_call([tabane, "umount", mount])


def run(arguments, tabane, place):
    os.environ["TABANE_CLUSTER"] = os.environ["TABANE_RUN_DIRECTORY"] = os.path.join(place, "run")
    subprocess.check_call([tabane, "up", "--servers", str(arguments.servers), "--store", "memory:size=256M"])
    mount = os.path.join(place, "mount") if os.path.exists("/dev/fuse") else None
    if mount:
        os.mkdir(mount)
    try:
        subprocess.check_call([tabane, "mkdir", "-p", ":/t", ":/deep/down"])
        subprocess.run([tabane, "put", ":/deep/down/file"], input=b"there", check=True)
        client, names, figures, began = Client(os.path.join(arguments.programs, "libtabane.so")), [], [], time.time()
        done, turn, tenth = -arguments.fill, 0, max(1, arguments.operations // 10)
        while done < arguments.operations:
            done += client.do(turn, names)
            turn += 1
            if done >= tenth * (len(figures) + 1):
                client.call("access", b"/deep/down/file", 4)
                look(tabane, arguments, names, mount)
                figures.append(memory(tabane))
                rate = (arguments.fill + done) / (time.time() - began)
                print(f"{done} operations, {rate:.0f} a second, bytes of servers: {figures[-1]}", flush=True)
        subprocess.check_call([tabane, "check"])
        unfilled = max(0, fill_of(arguments.servers) - arguments.fill)
        for first, last in zip(figures[0], figures[-1]):
            assert last <= first * FLAT + unfilled * REMEMBERED_SIZE, \
                f"a server's memory has grown from {first} to {last} bytes"
    finally:
        subprocess.call([tabane, "down"])
    print("all paths are right, and the memory is flat")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", default="target/release", help="directory of the programs and libraries")
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--fill", type=int, help="operations before the first tenth; as many as fill the tables")
    arguments = parser.parse_args()
    if arguments.fill is None:
        arguments.fill = fill_of(arguments.servers)
    arguments.programs = os.path.abspath(arguments.programs)
    with tempfile.TemporaryDirectory(prefix="tabane-trees-") as place:
        run(arguments, os.path.join(arguments.programs, "tabane"), place)


if __name__ == "__main__":
    main()
