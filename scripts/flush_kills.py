#!/usr/bin/env python3
"""Changes files over a backing directory, and kills servers while the changes are carried there.

Each round changes a tree through a mount, begins a flush (every fifth a `down`), kills a server with SIGKILL some time
into it, starts it again, flushes until nothing is left, and compares the directory with what was written, byte for
byte, name for name, and names of one file with names of one file. Usage: flush_kills.py PROGRAMS [ROUNDS] [SEED]
[DIRECTORY]; as a user who may mount. DIRECTORY is where everything lies, in a directory of its own. Exit status 1:
something differs.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time

SERVERS = 3
LARGE = 6_000_000
FILES_MAX = 40
CHANGES = 25
WAIT_SECONDS = 120


class File:
    """A file, whatever names it has."""

    def __init__(self):
        self.data = b""


class Tree:
    """The tree as it ought to be, and as it is below a mount."""

    def __init__(self, mount, draw):
        self.mount, self.draw, self.files, self.directories, self.made = mount, draw, {}, {"": None}, 0

    def fresh(self, word):
        self.made += 1
        return os.path.join(self.draw.choice(list(self.directories)), f"{word}{self.made}")

    def at(self, path):
        return os.path.join(self.mount, path)

    def bytes(self, size):
        return self.draw.randbytes(size)

    def write(self, path, offset, data):
        descriptor = os.open(self.at(path), os.O_WRONLY | os.O_CREAT, 0o644)
        for start in range(0, len(data), 1 << 20):
            os.pwrite(descriptor, data[start : start + (1 << 20)], offset + start)
        os.close(descriptor)
        file = self.files.setdefault(path, File())
        old = file.data + bytes(max(0, offset - len(file.data)))
        file.data = old[:offset] + data + old[offset + len(data) :]

    def make(self):
        size = self.draw.choice([0, 10, 5_000, 60_000, 1_500_000, LARGE])
        self.write(self.fresh("file"), 0, self.bytes(size))

    def change(self, path):
        end = len(self.files[path].data)
        self.write(path, self.draw.randrange(end + 1), self.bytes(self.draw.choice([1, 4096, 70_000])))

    def cut(self, path):
        file = self.files[path]
        size = self.draw.randrange(len(file.data) + 1)
        os.truncate(self.at(path), size)
        file.data = file.data[:size]

    def link(self, path):
        target = self.fresh("link")
        os.link(self.at(path), self.at(target))
        self.files[target] = self.files[path]

    def remove_links(self):
        """A cluster that begins anew over a directory takes each name there for a file, so each gets one."""
        kept = set(dict(zip(self.files.values(), self.files)).values())
        for path in [path for path in self.files if path not in kept]:
            self.remove(path)

    def remove(self, path):
        os.unlink(self.at(path))
        del self.files[path]

    def rename(self, path):
        target = self.draw.choice([self.fresh("moved"), self.draw.choice(list(self.files))])
        os.rename(self.at(path), self.at(target))
        # Between two names of one file nothing happens.
        if self.files.get(target) is not self.files[path]:
            self.files[target] = self.files.pop(path)

    def make_directory(self):
        path = self.fresh("directory")
        os.mkdir(self.at(path))
        self.directories[path] = None

    def move_directory(self):
        path = self.draw.choice([path for path in self.directories if path])
        target = self.fresh("place")
        if (target + "/").startswith(path + "/"):
            return
        os.rename(self.at(path), self.at(target))
        moved = lambda name: target + name[len(path) :] if (name + "/").startswith(path + "/") else name
        self.files = {moved(name): data for name, data in self.files.items()}
        self.directories = {moved(name): None for name in self.directories}

    def step(self):
        files = list(self.files)
        if not files or len(files) < 8:
            return self.make()
        path = self.draw.choice(files)
        acts = [lambda: self.change(path)] * 6
        acts += [lambda: self.cut(path), lambda: self.remove(path), lambda: self.rename(path)]
        if len(files) < FILES_MAX:
            acts += [self.make, self.make, lambda: self.link(path)]
        if len(self.directories) < 8:
            acts.append(self.make_directory)
        if len(self.directories) > 1:
            acts.append(self.move_directory)
        self.draw.choice(acts)()

    def differences(self, root):
        """What is not at a directory as it ought to be."""
        found, directories = {}, {""}
        for parent, names, files in os.walk(root):
            below = os.path.relpath(parent, root)
            place = lambda name: name if below == "." else f"{below}/{name}"
            directories |= {place(name) for name in names}
            found |= {place(name): os.path.join(parent, name) for name in files}
        told = [f"{path} is missing" for path in self.files if path not in found]
        told += [f"{path} is there" for path in found if path not in self.files]
        told += [f"directory {path} differs" for path in directories ^ set(self.directories)]
        inodes = {}
        for path in sorted(self.files.keys() & found.keys()):
            file, inode = self.files[path], os.stat(found[path]).st_ino
            other = inodes.setdefault(inode, (file, path))
            named = inodes.setdefault(file, (inode, path))
            if other[0] is not file:
                told.append(f"{path} is one file with {other[1]}")
            if named[0] != inode:
                told.append(f"{path} is not one file with {named[1]}")
            with open(found[path], "rb") as opened:
                data = opened.read()
            if data != file.data:
                wanted = file.data
                differing = (at for at, (one, other) in enumerate(zip(data, wanted)) if one != other)
                first = next(differing, min(len(data), len(wanted)))
                told.append(f"{path} has {len(data)} bytes for {len(wanted)}, and differs from {first} on")
        return told


def main():
    tabane = os.path.join(os.path.abspath(sys.argv[1]), "tabane")
    given = dict(enumerate(sys.argv))
    rounds, seed, within = int(given.get(2, 10)), int(given.get(3, 1)), given.get(4)
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="tabane-flush-", dir=within) as ground:
        run, mount, behind = f"{ground}/run", f"{ground}/mount", f"{ground}/behind"
        environment = dict(os.environ, TABANE_CLUSTER=run, TABANE_RUN_DIRECTORY=run)
        quiet = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "timeout": WAIT_SECONDS}
        up = [tabane, "up", "--servers", str(SERVERS), "--store", "memory:size=64M", "--backing", behind]
        # A server that was started again takes for open what programs had open that have ended since, for this long.
        up += ["--flush", "manual", "--session-grace-ms", "2000", "--timeout-ms", "3000"]

        def call(*arguments, may_fail=False):
            done = subprocess.run([tabane, *arguments], **quiet)
            if done.returncode and not may_fail:
                raise SystemExit(f"tabane {' '.join(arguments)}: {done.stderr.decode(errors='replace')}")
            return done.returncode

        def kill_one():
            with open(f"{run}/server-{draw.randrange(SERVERS)}.pid") as file:
                os.kill(int(file.read().split()[0]), signal.SIGKILL)

        carrying = None
        os.mkdir(mount)
        os.mkdir(behind)
        subprocess.run(up, check=True, **quiet)
        try:
            call("mount", mount)
            tree, kills = Tree(mount, draw), 0
            for number in range(rounds):
                for _ in range(CHANGES):
                    tree.step()
                ends = number % 5 == 4
                if ends:
                    tree.remove_links()
                    call("umount", mount)
                doing = [tabane, "down"] if ends else [tabane, "flush", "--wait"]
                silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
                carrying = subprocess.Popen(doing, env=environment, **silent)
                time.sleep(draw.choice([0, 0.01, 0.03, 0.1, 0.3]) * draw.random())
                try:
                    kill_one()
                    kills += 1
                except (FileNotFoundError, ProcessLookupError):
                    # It was down before.
                    pass
                if ends:
                    carrying.wait(WAIT_SECONDS)
                # One that is down begins anew over what is there.
                begin = [tabane, "up", "--run-directory", run] if os.path.exists(f"{run}/cluster") else up
                begun = subprocess.run(begin, **quiet)
                if begun.returncode:
                    raise SystemExit(f"{' '.join(begin)}: {begun.stderr.decode(errors='replace')}")
                if not ends:
                    carrying.wait(WAIT_SECONDS)
                for _ in range(20):
                    if not call("flush", "--wait", may_fail=True):
                        break
                    time.sleep(0.5)
                else:
                    call("flush", "--wait")
                if ends:
                    call("mount", mount)
                told = tree.differences(behind) + [f"on the mount: {words}" for words in tree.differences(mount)]
                if told:
                    print(f"round {number}:", *told, sep="\n  ", file=sys.stderr)
                    return 1
            print(f"{kills} kills in {rounds} rounds, {len(tree.files)} files at the end; nothing differs")
            return 0
        finally:
            # One that is at work still has the run directory to itself.
            if carrying and carrying.poll() is None:
                carrying.kill()
                carrying.wait()
            subprocess.run([tabane, "umount", "--force", mount], env=environment, stderr=subprocess.DEVNULL)
            end = [tabane, "down", "--discard", "--run-directory", run]
            subprocess.run(end, env=environment, stdout=subprocess.DEVNULL)


sys.exit(main())
