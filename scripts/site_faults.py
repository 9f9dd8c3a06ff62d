#!/usr/bin/env python3
"""Brings up a cluster over a site that is slow, fails, is full, and hangs, and checks what users are told.

The site is crates/fuse/examples/site.rs, a FUSE mount over a directory with files in it; all is for real: processes,
mounts, calls that never return. Each check prints a line with how long it took. As a user who may mount.

    cargo build --release -p tabane-fuse --example site
    python3 scripts/site_faults.py --programs target/release [--site PROGRAM] [--only NAME] [--seed N] [--full]

Exit status 1: something was not as it ought to be, with the reasons.
"""

import argparse
import contextlib
import errno
import json
import math
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

SERVERS = 2
# A server gives a call of the site that long before it fails the request.
TIMEOUT_MS = 2_000
# A command that takes longer than this hangs.
COMMAND_SECONDS = 30
# What a command may take that meets with a call which never returns: some time-outs, one after the other.
BOUNDED_SECONDS = 4 * TIMEOUT_MS / 1000 + 2
# `down` waits for servers to end by themselves, then for its signals to be heeded.
DOWN_SECONDS = 15
CALL_SIZE = 256 << 10
# What fails in bad moments. Errors that say that something is not there would be believed.
OPERATIONS = "* * lookup getattr setattr mkdir create open read write fsync flush rename unlink rmdir".split()
OPERATIONS += ["opendir", "readdir", "fsyncdir", "statfs", "getxattr", "setxattr", "listxattr"]
ERRORS = ["EIO", "EIO", "ESTALE", "ENOSPC", "EDQUOT", "EROFS", "ETIMEDOUT"]
SIZES = [0, 10, 5_000, 70_000, 300_000, 1_500_000, 3_000_000]


class Wrong(Exception):
    """Something is not as it ought to be."""


def expect(holds, words):
    if not holds:
        raise Wrong(words)


def wait_until(holds, words, seconds=10.0):
    end = time.monotonic() + seconds
    while not holds():
        expect(time.monotonic() < end, words)
        time.sleep(0.02)


class Site:
    """The directory `source`, and the process that shows it at `mount`."""

    def __init__(self, program, ground):
        self.program, self.source, self.mount = program, ground / "source", ground / "site"
        self.control_file, self.counts_file, self.log = ground / "control", ground / "counts", ground / "site.log"
        self.process = None
        self.source.mkdir()
        self.mount.mkdir()

    def start(self):
        words = [self.program, self.source, self.mount, "--control", self.control_file, "--counts", self.counts_file]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log)
        if self.process.stdout.readline() != b"ready\n":
            raise SystemExit(f"the site does not start: {self.log.read_text()}")

    def control(self, *lines):
        """Sets what goes wrong from the next call on."""
        new = self.control_file.with_suffix(".new")
        new.write_text("".join(line + "\n" for line in lines))
        new.rename(self.control_file)

    def counts(self):
        self.counts_file.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        wait_until(self.counts_file.exists, "the site writes no counts")
        return json.loads(self.counts_file.read_text())

    def stop(self):
        """Ends it with all calls that hang, and takes the mount away, whatever has become of them."""
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process:
            self.process.stdout.close()
        # One that was killed leaves a dead mount.
        if any(line.split()[1] == str(self.mount) for line in open("/proc/mounts")):
            for words in [["umount", "-l"], ["fusermount3", "-u", "-z"]]:
                if subprocess.run([*words, self.mount], stderr=subprocess.DEVNULL).returncode == 0:
                    break


class Cluster:
    """Servers over a site."""

    def __init__(self, tabane, site, ground):
        self.tabane, self.site, self.run_directory = tabane, site, ground / "run"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("TABANE_")}
        self.environment |= {"TABANE_CLUSTER": str(self.run_directory), "TABANE_RUN_DIRECTORY": str(self.run_directory)}
        self.environment["TABANE_TIMEOUT_MS"] = str(TIMEOUT_MS)
        self.mount = ground / "mount"
        self.mount.mkdir()
        self.processes = []
        self.begun = set()

    def begin(self, *words):
        """Begins a command, which `end` ends if nobody else does."""
        pipe = subprocess.PIPE
        command = subprocess.Popen(words, env=self.environment, stdin=pipe, stdout=pipe, stderr=pipe)
        self.begun.add(command)
        return command

    def call(self, *words, data=None, seconds=COMMAND_SECONDS):
        """What a command says, and how long it took. One that takes too long is ended."""
        start = time.monotonic()
        command = self.begin(self.tabane, *words)
        try:
            out, err = command.communicate(data or b"", timeout=seconds)
        except subprocess.TimeoutExpired:
            command.kill()
            raise Wrong(f"tabane {' '.join(map(str, words))} is not done after {seconds:.0f} s") from None
        self.begun.discard(command)
        done = subprocess.CompletedProcess(command.args, command.returncode, out, err.decode(errors="replace"))
        done.seconds = time.monotonic() - start
        return done

    def must(self, *words, data=None, seconds=COMMAND_SECONDS):
        done = self.call(*words, data=data, seconds=seconds)
        expect(done.returncode == 0, f"tabane {' '.join(map(str, words))}: status {done.returncode}: {done.stderr}")
        return done.stdout

    def up(self):
        words = ["up", "--servers", str(SERVERS), "--store", "memory:size=96M", "--backing", str(self.site.mount)]
        self.must(*words, "--flush", "manual")
        for pid in self.run_directory.glob("server-*.pid"):
            self.processes.append(int(pid.read_text().split()[0]))
        expect(len(self.processes) == SERVERS, f"{len(self.processes)} servers have left their numbers")
        self.must("mount", str(self.mount))

    def reads(self, path, data):
        """That a file is there, and how many seconds it took."""
        done = self.call("cat", path)
        expect(done.returncode == 0, f"{path} can't be read: {done.stderr}")
        expect(done.stdout == data, f"{path} has {len(done.stdout)} bytes, and not the {len(data)} that it ought to")
        return done.seconds

    def fails(self, path, words, number):
        """That a file can't be read, neither by a command, which says why, nor through the mount; and the seconds."""
        done = self.call("cat", path, seconds=BOUNDED_SECONDS)
        told = done.stderr.strip()
        expect(done.returncode != 0, f"{path} is read, and ought to fail: {words}")
        expect(words.lower() in told.lower() and path in told, f"{path}: \"{told}\" does not say path and \"{words}\"")
        # A process of its own: nothing ends a call on a mount that never returns.
        program = "import sys\ntry: open(sys.argv[1]).read()\nexcept OSError as error: print(error.errno)"
        reader = self.begin(sys.executable, "-c", program, str(self.mount) + path)
        try:
            out, _ = reader.communicate(timeout=BOUNDED_SECONDS)
        except subprocess.TimeoutExpired:
            raise Wrong(f"a read of {path} on the mount has not returned after {BOUNDED_SECONDS:.0f} s") from None
        self.begun.discard(reader)
        got = int(out or 0)
        told = errno.errorcode.get(got, "none")
        expect(got == number, f"the error of {path} on the mount is {told}, not {errno.errorcode[number]}")
        return done.seconds

    def flush(self, *failing, words=""):
        """Flushes, and has exactly these paths fail; words are what is told of the first of them."""
        done = self.call("flush", "--wait")
        told = done.stdout.decode() + done.stderr
        wanted = 3 if failing else 0
        expect(done.returncode == wanted, f"flush ends with status {done.returncode}, and not {wanted}: {told}")
        for path in failing:
            lines = [line for line in told.splitlines() if path in line]
            expect(lines, f"flush does not list {path}: {told}")
            why = path != failing[0] or any(words.lower() in line.lower() for line in lines)
            expect(why, f"flush does not say \"{words}\": {lines}")
        return told

    def running(self):
        return [pid for pid in self.processes if is_running(pid)]

    def end(self):
        """Whatever is left of it."""
        for command in self.begun:
            command.kill()
        umount = [self.tabane, "umount", "--force", self.mount]
        if os.path.ismount(self.mount):
            subprocess.run(umount, env=self.environment, stdout=subprocess.DEVNULL, timeout=COMMAND_SECONDS)
        if self.run_directory.exists():
            end = [self.tabane, "down", "--discard", "--stop-timeout-ms", "2000"]
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(end, env=self.environment, stdout=subprocess.DEVNULL, timeout=COMMAND_SECONDS)
        for pid in self.running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for command in self.begun:
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.wait(5)


def is_running(pid):
    """Whether a process is there that is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Checks:
    """One method each, in the order in which they run over one cluster."""

    def __init__(self, site, cluster, is_full, ground, seed):
        self.site, self.cluster, self.ground = site, cluster, ground
        self.draw = random.Random(seed)
        self.count = 60 if is_full else 14
        self.rounds = 60 if is_full else 4
        self.large = 40_000_000 if is_full else 4_000_000

    def populate(self):
        """Files at the site, before there is a cluster."""
        for number in range(self.count):
            self.behind(f"slow/d{number % 3}/f{number}", SIZES[number % len(SIZES)])
        for name in ["bad", "good"]:
            self.behind(f"read/{name}", 200_000)
            self.behind(f"stale/{name}", 10_000)
            self.behind(f"fresh/{name}", 10_000)
            self.behind(f"hang/{name}", 300_000)
            self.behind(f"hang-open/{name}", 1_000)
            self.behind(f"hang-look/{name}", 1_000)
            self.behind(f"else/{name}", 500_000)
        self.behind("hang/end", 1_000)
        for path in ["stale-removal/in", "stale-removal/deep/in", "stale-removal-top"]:
            self.behind(path, 1_000)
        self.behind("large/updated", self.large)

    def behind(self, path, size):
        file = self.site.source / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(self.draw.randbytes(size))

    def bytes_behind(self, path):
        return (self.site.source / path).read_bytes()

    def put(self, path, size):
        """A file that is made or replaced in the cluster."""
        data = self.draw.randbytes(size)
        self.cluster.must("put", f"/{path}", data=data)
        return data

    def is_behind(self, path, data):
        file = self.site.source / path
        expect(file.exists(), f"{path} is not at the site after the flush")
        expect(file.read_bytes() == data, f"{path} has other bytes at the site after the flush")

    def no_rests(self):
        rests = [str(path.relative_to(self.site.source)) for path in self.site.source.rglob(".tabane-*")]
        expect(not rests, f"hidden files are left at the site: {', '.join(rests)}")

    def slow(self):
        """Each call takes 5 ms more: all files are read back equal, in the calls that it takes, and once."""
        self.site.control("delay * 5ms")
        before = self.site.counts()
        out = self.ground / "out"
        self.cluster.must("cp", "-r", "-q", ":/slow", str(out))
        wanted = {path.relative_to(self.site.source / "slow"): path for path in (self.site.source / "slow").rglob("f*")}
        found = {path.relative_to(out): path for path in out.rglob("f*")}
        expect(wanted.keys() == found.keys(), f"{len(found)} files are copied out, and not {len(wanted)}")
        for name, path in wanted.items():
            expect(path.read_bytes() == found[name].read_bytes(), f"slow/{name} has other bytes in its copy")
        after = self.site.counts()
        reads = after["read"] - before["read"]
        # A fetch is of a chunk; each may ask once more, to find the end.
        bound = sum(math.ceil(path.stat().st_size / CALL_SIZE) + 2 for path in wanted.values())
        expect(reads <= bound, f"{reads} calls to read what takes {bound}")
        name = max(wanted, key=lambda name: wanted[name].stat().st_size)
        quiet = self.site.counts()["all"]
        self.cluster.reads(f"/slow/{name}", wanted[name].read_bytes())
        again = self.site.counts()["read"] - after["read"]
        expect(again == 0, f"a file that is here is read at the site {again} times")
        calls, more = after["all"] - before["all"], self.site.counts()["all"] - quiet
        return f"{len(wanted)} files in {calls} calls, {reads} of them reads; once more in {more}"

    def read_error(self):
        """Reads of one file fail with EIO: it fails with that, its neighbour does not, and it is readable after."""
        self.site.control("error read EIO /read/bad")
        self.cluster.fails("/read/bad", "read of read/bad: Input/output error", errno.EIO)
        self.cluster.reads("/read/good", self.bytes_behind("read/good"))
        self.site.control()
        self.cluster.reads("/read/bad", self.bytes_behind("read/bad"))
        return "it fails by name, its neighbour is read, and after it both"

    def write_error(self):
        """Writes below one directory fail with EIO: a flush lists what is there, the others have gone."""
        self.cluster.must("mkdir", "/w", "/w/bad", "/w/good")
        data = {path: self.put(path, 100_000) for path in ["w/bad/file", "w/good/file", "w/other"]}
        self.site.control("error write EIO /w/bad")
        told = self.cluster.flush("/w/bad/file", words=os.strerror(errno.EIO))
        expect("/w/good/file" not in told, f"flush lists a file that could go: {told}")
        for path in ["w/good/file", "w/other"]:
            self.is_behind(path, data[path])
        expect(not (self.site.source / "w/bad/file").exists(), "a file that could not be written has its name")
        self.cluster.reads("/w/bad/file", data["w/bad/file"])
        self.site.control()
        self.cluster.flush()
        self.is_behind("w/bad/file", data["w/bad/file"])
        self.no_rests()
        return "listed with its reason, the others are there, and after it all"

    def sync_error(self):
        """A sync fails: the file does not count as carried, and the next flush writes it anew."""
        self.cluster.must("mkdir", "/sync")
        data = self.put("sync/file", 400_000)
        self.site.control("error fsync EIO /sync")
        self.cluster.flush("/sync/file", words=os.strerror(errno.EIO))
        expect(not (self.site.source / "sync/file").exists(), "a file whose sync has failed has its name")
        before = self.site.counts()["write"]
        self.site.control()
        self.cluster.flush()
        self.is_behind("sync/file", data)
        writes = self.site.counts()["write"] - before
        expect(writes >= math.ceil(len(data) / CALL_SIZE), f"after a sync that failed {writes} writes are no new file")
        return f"listed, and written anew after it, by {writes} writes"

    def late_error(self):
        """A file can't be carried: fsync tells each descriptor once, close who has not synced; after it nobody."""
        os.mkdir(self.cluster.mount / "late")
        path = self.cluster.mount / "late/file"
        files = [os.open(path, os.O_CREAT | os.O_RDWR) for _ in range(3)]
        for file in files:
            os.write(file, b"late")
        self.site.control("error write EIO /late")
        self.cluster.flush("/late/file", words=os.strerror(errno.EIO))
        told = []
        for call, file in [(os.fsync, files[0]), (os.fsync, files[0]), (os.close, files[0]), (os.close, files[1])]:
            try:
                call(file)
                told.append("ok")
            except OSError as error:
                told.append(errno.errorcode[error.errno])
        expect(told == ["EIO", "ok", "ok", "EIO"], f"fsync twice, close, and close of another one: {told}")
        self.site.control()
        self.cluster.flush()
        os.fsync(files[2])
        os.close(files[2])
        self.is_behind("late/file", b"late")
        return "fsync and close fail once, and after it not"

    def update_error(self):
        """A large file is updated where it is, and that fails with EIO: nothing of the change is lost."""
        self.site.control()
        path, name = self.site.source / "large/updated", "/large/updated"
        data = bytearray(path.read_bytes())
        offsets = [5, len(data) // 2]
        for offset in offsets:
            data[offset : offset + 1000] = self.draw.randbytes(1000)
        # A command would write all of it.
        with open(self.cluster.mount / "large/updated", "r+b", buffering=0) as file:
            for offset in offsets:
                file.seek(offset)
                file.write(data[offset : offset + 1000])
        number = path.stat().st_ino
        self.site.control("error write EIO /large")
        self.cluster.flush(name, words=os.strerror(errno.EIO))
        self.cluster.reads(name, bytes(data))
        self.site.control()
        before = self.site.counts()["write"]
        self.cluster.flush()
        self.is_behind("large/updated", bytes(data))
        expect(path.stat().st_ino == number, "a file that was to be updated where it is has been replaced")
        return f"listed, and after it as it is here, by {self.site.counts()['write'] - before} writes"

    def stale(self):
        """All calls below a directory fail with ESTALE: what is in it fails with that, and nothing else."""
        self.site.control("error * ESTALE /stale")
        # A user who is told ESTALE would take it for one of the mount itself.
        self.cluster.fails("/stale/good", "Stale file handle", errno.EIO)
        self.cluster.reads("/else/bad", self.bytes_behind("else/bad"))
        listed = self.cluster.call("ls", "/stale")
        expect(listed.returncode != 0, "a stale directory is listed")
        self.cluster.must("ls", "/else")
        self.site.control()
        for name in ["good", "bad"]:
            self.cluster.reads(f"/stale/{name}", self.bytes_behind(f"stale/{name}"))
        return f"told ({listed.stderr.strip()}), and after it all is there"

    def stale_removal(self):
        """Files are removed here while all is stale there: a flush says that it can't remove them, or does later."""
        names = ["stale-removal/in", "stale-removal/deep/in", "stale-removal-top"]
        self.cluster.must("rm", *(f"/{name}" for name in names))
        self.site.control("error * ESTALE")
        flush = self.cluster.call("flush", "--wait")
        self.site.control()
        self.cluster.flush()
        left = [name for name in names if (self.site.source / name).exists()]
        told = (flush.stdout.decode() + flush.stderr).strip()
        words = f"a flush with ESTALE ended with status {flush.returncode}: {told}"
        expect(not left, f"removed here, and at the site after two flushes: {', '.join(left)}; {words}")
        expect(flush.returncode == 3, f"nothing can be removed, but {words}")
        return "it is listed, and removed after it"

    def refused(self, rule, number, directory):
        """What is made while the site refuses: listed with the reason, read here, and gone there after it."""
        self.cluster.must("mkdir", f"/{directory}")
        data = {f"{directory}/new{index}": self.put(f"{directory}/new{index}", 200_000) for index in range(3)}
        data[directory + "-new"] = self.put(directory + "-new", 5_000)
        replaced = f"fresh/{'good' if rule == 'full' else 'bad'}"
        data[replaced] = self.put(replaced, 20_000)
        old = self.bytes_behind(replaced)
        self.site.control(rule)
        words = os.strerror(number)
        self.cluster.flush(f"/{directory}-new", f"/{directory}", *(f"/{path}" for path in data), words=words)
        self.cluster.flush(f"/{replaced}", words=words)
        self.is_behind(replaced, old)
        for path, wanted in data.items():
            self.cluster.reads(f"/{path}", wanted)
        down = self.cluster.call("down")
        expect(down.returncode == 3, f"down ends with status {down.returncode} while changes can't go: {down.stderr}")
        expect(words in down.stderr, f"down does not say \"{words}\": {down.stderr}")
        expect(len(self.cluster.running()) == SERVERS, "down has ended servers whose changes have not gone")
        # It takes mounts out before it carries what was changed through them.
        if not os.path.ismount(self.cluster.mount):
            self.cluster.must("mount", str(self.cluster.mount))
        self.site.control()
        self.cluster.flush()
        for path, wanted in data.items():
            self.is_behind(path, wanted)
        self.no_rests()
        return f"{len(data)} files are listed, here, and there after it; down stays"

    def full(self):
        """The site is full."""
        return self.refused("full", errno.ENOSPC, "made-full")

    def readonly(self):
        """The site is read-only."""
        return self.refused("readonly", errno.EROFS, "made-readonly")

    def bad_moment(self):
        """Rules for a while: errors, delays and a hang, each of some operation, some of them below one directory."""
        rules = []
        for _ in range(self.draw.choice([1, 1, 2, 3])):
            path = self.draw.choice(["", "", " /mixed/a", " /mixed/b"])
            operation, error = self.draw.choice(OPERATIONS), self.draw.choice(ERRORS)
            rule = self.draw.choice([f"error {operation} {error}", f"error {operation} {error}", f"hang {operation}"])
            rules.append(self.draw.choice([rule, rule, rule, rule, "full", "readonly", "delay * 3ms"]) + path)
        return rules

    def mixed_changes(self, files):
        """Makes, replaces, cuts, moves and removes files below the mount, and says so in `files`."""
        top = self.cluster.mount / "mixed"
        for _ in range(12):
            old = self.draw.choice(sorted(files) or [None])
            new = f"{self.draw.choice('ab')}/{self.draw.choice(['', 'deep/'])}f{self.draw.randrange(30)}"
            act = self.draw.choice(["write", "write", "change", "cut", "move", "remove"]) if old else "write"
            (top / new).parent.mkdir(parents=True, exist_ok=True)
            if act == "write":
                files[new] = self.draw.randbytes(self.draw.choice(SIZES))
                (top / new).write_bytes(files[new])
            elif act == "change":
                data, piece = bytearray(files[old]), self.draw.randbytes(3_000)
                offset = self.draw.randrange(len(data) + 1)
                data[offset : offset + len(piece)] = piece
                with open(top / old, "r+b", buffering=0) as file:
                    file.seek(offset)
                    file.write(piece)
                files[old] = bytes(data)
            elif act == "cut":
                files[old] = files[old][: self.draw.randrange(len(files[old]) + 1)]
                os.truncate(top / old, len(files[old]))
            elif act == "move":
                os.rename(top / old, top / new)
                files[new] = files.pop(old)
            else:
                os.unlink(top / old)
                del files[old]

    def mixed(self):
        """Anything fails or hangs for a while, during flushes and during reads: no byte is wrong, none is lost."""
        top, files, failed, refused = self.cluster.mount / "mixed", {}, 0, 0
        top.mkdir()
        for number in range(self.rounds):
            self.mixed_changes(files)
            rules = self.bad_moment()
            about = f"round {number}, with {rules}"
            self.site.control(*rules)
            flush = self.cluster.begin(self.cluster.tabane, "flush", "--wait")
            with contextlib.suppress(subprocess.TimeoutExpired):
                flush.wait(0.4)
            self.site.control()
            out, err = flush.communicate(timeout=COMMAND_SECONDS)
            self.cluster.begun.discard(flush)
            expect(flush.returncode in [0, 3], f"{about}: flush: status {flush.returncode}: {out} {err}")
            failed += flush.returncode == 3
            again = self.cluster.call("flush", "--wait")
            end = time.monotonic() + 10
            # What was replaced while it was open is held for a moment after its close.
            while again.returncode and time.monotonic() < end:
                time.sleep(0.2)
                again = self.cluster.call("flush", "--wait")
            expect(again.returncode == 0, f"{about}: flushes for 10 s after it: {again.stderr}")
            for root in [self.site.source / "mixed", top]:
                found = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
                rest, missing = found.keys() - files.keys(), files.keys() - found.keys()
                words = f"{again.stdout.decode().strip()}; {sorted(rest)} are there, {sorted(missing)} are not"
                expect(not rest and not missing, f"{about}: below {root}, after \"{words}\"")
                for path, data in files.items():
                    expect(found[path].read_bytes() == data, f"{about}: {root}/{path} has other bytes")
            self.cluster.call("evict", "/mixed")
            rules = [rule for rule in self.bad_moment() if not rule.startswith("hang")]
            self.site.control(*rules)
            for path, data in files.items():
                try:
                    got = (top / path).read_bytes()
                except OSError:
                    refused += 1
                    continue
                expect(got == data, f"round {number}, with {rules}: {path} is read with other bytes")
            self.site.control()
            for path, data in files.items():
                expect((top / path).read_bytes() == data, f"{path} has other bytes after {rules}")
        return f"{self.rounds} rounds, {failed} flushes and {refused} reads failed, and all is there"

    def hang(self):
        """Calls never return: who wants what they are about is told in time, status names them, others are served."""
        bad = {"read": "/hang/bad", "open": "/hang-open/bad", "lookup": "/hang-look/bad"}
        self.site.control(*(f"hang {operation} {path}" for operation, path in bad.items()))
        times, waits = [], []
        for path in bad.values():
            times.append(self.cluster.fails(path, "the backing directory does not answer", errno.ETIMEDOUT))
            for other in ["/else/good", path.replace("bad", "good")]:
                waits.append(self.cluster.reads(other, self.bytes_behind(other[1:])))
        expect(max(waits) < 1.5, f"other files take {max(waits):.1f} s beside calls that hang")
        listed = self.cluster.call("ls", "/else")
        expect(listed.returncode == 0 and listed.seconds < 1.5, f"ls of another directory: {listed.seconds:.1f} s")
        status = self.cluster.must("status").decode()
        for operation, path in bad.items():
            named = any(path[1:] in line and " takes " in line for line in status.splitlines())
            expect(named, f"status does not name the {operation} of {path} that hangs: {status}")
        expect(self.site.counts()["hanging"] >= len(bad), "fewer calls hang at the site than were begun")
        self.site.control()
        wait_until(lambda: self.site.counts()["hanging"] == 0, "calls hang at the site after the lines are gone")
        for path in bad.values():
            self.cluster.reads(path, self.bytes_behind(path[1:]))
        return f"told after {max(times):.1f} s at most, others within {max(waits):.1f} s, status names all, then read"

    def hang_flush(self):
        """A write never returns: the flush ends with that file listed or waits for it; nothing else waits."""
        self.cluster.must("mkdir", "/hang-write")
        data = {path: self.put(path, 100_000) for path in ["hang-write/file", "hang-else"]}
        self.site.control("hang write /hang-write")
        flush = self.cluster.begin(self.cluster.tabane, "flush", "--wait")
        wait_until((self.site.source / "hang-else").exists, "a file beside one whose write hangs does not go")
        named = lambda: "write of hang-write/" in self.cluster.must("status").decode()
        wait_until(named, "status does not name a write that hangs")
        waits = self.cluster.reads("/hang-write/file", data["hang-write/file"])
        try:
            flush.wait(3 * TIMEOUT_MS / 1000)
            words = "flush lists it"
            expect(flush.returncode == 3, f"flush ends with status {flush.returncode} while a write hangs")
        except subprocess.TimeoutExpired:
            words = "flush waits for more than three time-outs"
        self.site.control()
        _, told = flush.communicate(timeout=COMMAND_SECONDS)
        if flush.returncode != 3:
            expect(b"nothing has reached the backing directory for" in told, f"flush waits without a word: {told}")
        self.cluster.begun.discard(flush)
        self.cluster.flush()
        for path, wanted in data.items():
            self.is_behind(path, wanted)
        self.no_rests()
        return f"others go, it is read here in {waits:.1f} s, status names it, {words}; after it all has gone"

    def hang_start(self):
        """Nothing is heard of the site while another cluster is to be started over it: that is told, and nothing is."""
        self.site.control("hang getattr /")
        run_directory = self.cluster.run_directory.with_name("other")
        words = ["up", "--servers", "1", "--store", "memory:size=32M", "--backing", str(self.site.mount)]
        up = self.cluster.call(*words, "--run-directory", str(run_directory), seconds=BOUNDED_SECONDS)
        self.site.control()
        expect(up.returncode != 0 and "has not answered for" in up.stderr, f"up: status {up.returncode}: {up.stderr}")
        expect(not (run_directory / "cluster").exists(), "up has made a cluster over a site that does not answer")
        return f"up gave up after {up.seconds:.1f} s"

    def hang_down(self):
        """A write and a read never return: `down --discard` ends the cluster. The last check, for it does."""
        self.cluster.must("mkdir", "/hang-end")
        self.put("hang-end/file", 100_000)
        self.site.control("hang write /hang-end", "hang read /hang/end")
        flush = self.cluster.begin(self.cluster.tabane, "flush", "--wait")
        self.cluster.call("cat", "/hang/end", seconds=BOUNDED_SECONDS)
        wait_until(lambda: self.site.counts()["hanging"] >= 2, "a write and a read ought to hang at the site")
        down = self.cluster.call("down", "--discard", "--stop-timeout-ms", "2000", seconds=DOWN_SECONDS)
        expect(down.returncode == 0, f"down --discard: status {down.returncode}: {down.stderr}")
        expect(not self.cluster.run_directory.exists(), "down --discard has left the run directory")
        flush.communicate(timeout=BOUNDED_SECONDS)
        self.cluster.begun.discard(flush)
        left = self.cluster.running()
        self.site.stop()
        wait_until(lambda: not self.cluster.running(), "servers run after the site is gone", 5)
        words = f"; {len(left)} servers were left to the site's end" if left else ""
        return f"down took {down.seconds:.1f} s{words}"


CHECKS = ["slow", "read_error", "write_error", "sync_error", "late_error", "update_error", "stale", "stale_removal"]
CHECKS += ["full", "readonly", "mixed", "hang", "hang_flush", "hang_start", "hang_down"]


def main():
    described = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    described.add_argument("--programs", required=True, help="directory with tabane, such as target/release")
    described.add_argument("--site", help="the example site (default: examples/site below --programs)")
    described.add_argument("--only", choices=CHECKS, action="append", help="one check; may be given several times")
    described.add_argument("--full", action="store_true", help="more and larger files, and more rounds")
    described.add_argument("--seed", type=int, default=7, help="of contents and of what is drawn (default: 7)")
    given = described.parse_args()
    tabane = pathlib.Path(given.programs).resolve() / "tabane"
    program = pathlib.Path(given.site).resolve() if given.site else tabane.parent / "examples/site"
    for needed, advice in [(tabane, "make"), (program, "cargo build --release -p tabane-fuse --example site")]:
        if not needed.exists():
            raise SystemExit(f"{needed} is not there: {advice}, or say where it is (--help)")
    # SIGTERM takes the same way out as Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    failed, begin = 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tabane-site-") as name:
        ground = pathlib.Path(name).resolve()
        site = Site(program, ground)
        cluster = Cluster(tabane, site, ground)
        checks = Checks(site, cluster, given.full, ground, given.seed)
        try:
            checks.populate()
            site.start()
            try:
                cluster.up()
            except Wrong as wrong:
                raise SystemExit(f"the cluster does not come up: {wrong}") from None
            for check in given.only or CHECKS:
                start = time.monotonic()
                try:
                    words, result = "ok", getattr(checks, check)()
                except (Wrong, OSError, subprocess.SubprocessError) as wrong:
                    words, result, failed = "WRONG", wrong, failed + 1
                print(f"{check:13} {words:5} {time.monotonic() - start:5.1f} s  {result}", flush=True)
                if site.process.poll() is None:
                    site.control()
        finally:
            # Servers whose calls hang end with the site.
            site.control()
            try:
                cluster.end()
            finally:
                site.stop()
        complaints = site.log.read_text()
        if complaints:
            print(f"the site has complained:\n{complaints}", file=sys.stderr)
            failed += 1
    print(f"{failed} of {len(given.only or CHECKS)} checks failed, {time.monotonic() - begin:.1f} s")
    return 1 if failed else 0


sys.exit(main())
