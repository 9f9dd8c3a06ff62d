"""Two mounts of one file system at once: what one does, the other sees, and neither loses anything.

Every test is a function of (first, second, scale): two views of one empty directory, and 1 for the quick form or more
for the full one. It raises AssertionError. Processes are told apart by a number; the even ones work in `first`, the
others in `second`.
Run one by hand with: two_mounts.py FIRST SECOND SCALE TEST"""

import errno
import fcntl
import mmap
import multiprocessing
import os
import pathlib
import random
import socket
import struct
import subprocess
import sys
import time
import traceback

context = multiprocessing.get_context("fork")


def together(count, work, *views):
    """Runs work(number, view, start) in `count` processes, which meet at start.wait(); fails when one of them fails."""
    start = context.Barrier(count, timeout=60)
    results = context.Queue()

    def body(number):
        try:
            results.put((number, None, work(number, views[number % len(views)], start)))
        except BaseException:
            results.put((number, traceback.format_exc(), None))

    processes = [context.Process(target=body, args=(number,)) for number in range(count)]
    for process in processes:
        process.start()
    told = sorted((results.get() for _ in processes), key=lambda result: result[0])
    for process in processes:
        process.join()
    # Who fails leaves the others waiting for him at the start, which then say so: his are the words that count.
    failures = sorted((failure for _, failure, _ in told if failure),
                      key=lambda failure: "BrokenBarrierError" in failure)
    assert not failures, failures[0]
    return [result for _, _, result in told]


def counter_add(path):
    """Not atomic on purpose: only a lock makes it so."""
    value = int(path.read_text())
    path.write_text(str(value + 1))


def append_from_both(first, second, scale):
    """Records of many sizes, each one write with O_APPEND; each is there once and whole, those of one writer in
    order."""
    count = 100 * scale

    def work(number, view, start):
        random.seed(number)
        file = os.open(view / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        start.wait()
        for at in range(count):
            body = bytes([65 + number]) * random.choice((1, 10, 500, 5000, 60000))
            record = struct.pack("<IIII", 0x7ABA4E, number, at, len(body)) + body
            assert os.write(file, record) == len(record)
        os.close(file)

    together(4, work, first, second)
    for view in (first, second):
        data = (view / "log").read_bytes()
        seen, position = [0] * 4, 0
        while position < len(data):
            mark, number, at, size = struct.unpack_from("<IIII", data, position)
            assert mark == 0x7ABA4E, f"no record at {position} of {len(data)}"
            assert at == seen[number], f"record {at} of {number} instead of {seen[number]}"
            assert data[position + 16 : position + 16 + size] == bytes([65 + number]) * size, \
                f"record at {position} is torn"
            seen[number] += 1
            position += 16 + size
        assert seen == [count] * 4, seen


def shell_append(first, second, scale):
    """`>>` of several shells, each of which opens the file anew for each line."""
    count = 50 * scale
    script = 'i=0; while [ $i -lt "$3" ]; do echo "$2 $i" >> "$1/log"; i=$((i + 1)); done'
    shells = [
        subprocess.Popen(["sh", "-ec", script, "sh", str(view), str(number), str(count)])
        for number, view in enumerate((first, second) * 2)
    ]
    assert all(shell.wait() == 0 for shell in shells)
    for view in (first, second):
        lines = (view / "log").read_text().splitlines()
        for number in range(4):
            mine = [line for line in lines if line.startswith(f"{number} ")]
            assert mine == [f"{number} {at}" for at in range(count)], f"lines of {number}: {len(mine)}"
        assert len(lines) == 4 * count


def rename_token(first, second, scale):
    """A file that is renamed away is one process's alone: of all who try, one gets it. It guards a counter."""
    (first / "free").write_text("")
    (first / "counter").write_text("0")
    count = 40 * scale

    def work(number, view, start):
        start.wait()
        done = 0
        while done < count:
            try:
                os.rename(view / "free", view / f"held-{number}")
            except FileNotFoundError:
                continue
            counter_add(view / "counter")
            os.rename(view / f"held-{number}", view / "free")
            done += 1

    together(4, work, first, second)
    assert (second / "counter").read_text() == str(4 * count)
    assert sorted(os.listdir(second)) == ["counter", "free"]


def rename_replace(first, second, scale):
    """A file that is replaced by rename is always there, whole, and never older than what was seen before."""
    count = 100 * scale

    def version(at):
        return f"{at:08}\n" * (1 + at % 700)

    (first / "config").write_text(version(0))

    def work(number, view, start):
        start.wait()
        if number == 0:
            for at in range(1, count + 1):
                (view / "config.new").write_text(version(at))
                os.rename(view / "config.new", view / "config")
            return
        last = 0
        while last < count:
            text = (view / "config").read_text()
            at = int(text[:8])
            assert text == version(at), f"version {at} is not whole"
            assert at >= last, f"version {at} after {last}"
            last = at

    together(4, work, first, second)


def rename_directories(first, second, scale):
    """A directory moves between two parents while files are made in it through its paths: none is lost, none is there
    twice."""
    for parent in ("left", "right"):
        (first / parent).mkdir()
    (first / "left" / "moving").mkdir()
    count = 100 * scale

    def work(number, view, start):
        start.wait()
        if number == 0:
            for at in range(count // 4):
                here, there = ("left", "right") if at % 2 == 0 else ("right", "left")
                os.rename(view / here / "moving", view / there / "moving")
            return []
        made = []
        for at in range(count):
            name = f"{number}-{at}"
            while True:
                for parent in ("left", "right"):
                    try:
                        with open(view / parent / "moving" / name, "x") as file:
                            file.write(name)
                        break
                    except FileNotFoundError:
                        continue
                else:
                    continue
                break
            made.append(name)
        return made

    made = sorted(sum(together(4, work, first, second), []))
    for view in (first, second):
        (directory,) = [view / parent / "moving" for parent in ("left", "right") if (view / parent / "moving").exists()]
        assert sorted(os.listdir(directory)) == made
        for name in made:
            assert (directory / name).read_text() == name


def rename_swap(first, second, scale):
    """Renames over each other's names at random: names go, but each that is left leads to a whole file, in both views
    alike."""
    for at in range(16):
        (first / f"file-{at}").write_text(f"content {at}\n" * 100)

    def work(number, view, start):
        random.seed(number)
        start.wait()
        for _ in range(60 * scale):
            one, other = random.sample(range(16), 2)
            try:
                os.rename(view / f"file-{one}", view / f"file-{other}")
            except FileNotFoundError:
                os.close(os.open(view / f"file-{one}", os.O_CREAT | os.O_WRONLY))

    together(4, work, first, second)
    assert sorted(os.listdir(first)) == sorted(os.listdir(second))
    for name in os.listdir(first):
        text = (first / name).read_text()
        assert text == (second / name).read_text()
        assert text == "" or text == text.splitlines(keepends=True)[0] * 100
        assert os.stat(first / name).st_nlink == 1


def locked_counter(first, second, count, lock, unlock):
    (first / "counter").write_text("0")
    (first / "lock").write_text("")

    def work(number, view, start):
        file = os.open(view / "lock", os.O_RDWR)
        start.wait()
        for _ in range(count):
            lock(file)
            counter_add(view / "counter")
            unlock(file)
        os.close(file)

    together(4, work, first, second)
    assert (second / "counter").read_text() == str(4 * count)


def flock_contention(first, second, scale):
    """flock guards a counter that is not atomic by itself."""
    locked_counter(
        first, second, 40 * scale,
        lambda file: fcntl.flock(file, fcntl.LOCK_EX), lambda file: fcntl.flock(file, fcntl.LOCK_UN),
    )


def fcntl_contention(first, second, scale):
    """The same with a POSIX lock of a range."""
    locked_counter(
        first, second, 40 * scale,
        lambda file: fcntl.lockf(file, fcntl.LOCK_EX, 10, 5), lambda file: fcntl.lockf(file, fcntl.LOCK_UN, 10, 5),
    )


def ofd_contention(first, second, scale):
    """The same with a lock of an open file description."""

    def change(kind):
        return lambda file: fcntl.fcntl(file, 38, struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0))

    locked_counter(first, second, 40 * scale, change(fcntl.F_WRLCK), change(fcntl.F_UNLCK))


def locks_seen_by_the_other(first, second, scale):
    """Shared and exclusive, whole files and ranges: what one view holds the other is refused, and gets when it is free
    or closed."""
    (first / "lock").write_text("0123456789")
    here, there = os.open(first / "lock", os.O_RDWR), os.open(second / "lock", os.O_RDWR)

    def refused(call, *arguments):
        try:
            call(*arguments)
        except OSError as error:
            assert error.errno in (errno.EAGAIN, errno.EACCES), error
            return True
        return False

    fcntl.flock(here, fcntl.LOCK_SH)
    fcntl.flock(there, fcntl.LOCK_SH | fcntl.LOCK_NB)
    assert refused(fcntl.flock, there, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(there, fcntl.LOCK_UN)
    fcntl.flock(here, fcntl.LOCK_EX)
    assert refused(fcntl.flock, there, fcntl.LOCK_SH | fcntl.LOCK_NB)
    os.close(here)
    # Waits: a mount in user space is told of the last close just after it has returned.
    fcntl.flock(there, fcntl.LOCK_EX)
    os.close(there)

    def work(number, view, start):
        file = os.open(view / "lock", os.O_RDWR)
        if number == 0:
            fcntl.lockf(file, fcntl.LOCK_EX, 4, 2)
        start.wait()
        if number == 1:
            assert refused(fcntl.lockf, file, fcntl.LOCK_SH | fcntl.LOCK_NB, 10, 0)
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 2, 0)
            told = fcntl.fcntl(file, fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 10, 0))
            kind, _, begin, size, _ = struct.unpack("hhqqi4x", told)
            assert (kind, begin, size) == (fcntl.F_WRLCK, 2, 4), (kind, begin, size)
        start.wait()
        if number == 0:
            os.close(os.open(view / "lock", os.O_RDONLY))
        start.wait()
        if number == 1:
            # The owner closed a descriptor of the file, though another one: its locks are gone.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0)

    together(2, work, first, second)


def lock_of_the_dead(first, second, scale):
    """A process that is killed while it holds a lock leaves it to the one who waits in the other view."""
    (first / "lock").write_text("")
    for lock in (fcntl.flock, fcntl.lockf):
        told, tell = os.pipe()
        child = os.fork()
        if child == 0:
            file = os.open(first / "lock", os.O_RDWR)
            lock(file, fcntl.LOCK_EX)
            os.write(tell, b"x")
            while True:
                time.sleep(100)
        os.read(told, 1)
        file = os.open(second / "lock", os.O_RDWR)
        try:
            lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            raise AssertionError("held twice")
        except BlockingIOError:
            pass
        os.kill(child, 9)
        os.waitpid(child, 0)
        lock(file, fcntl.LOCK_EX)
        os.close(file)


def writer_and_reader(first, second, scale):
    """What a write returned from is there for the other view: in stat, by read, and to one who polls the end."""
    count = 200 * scale
    (first / "log").write_bytes(b"")

    def record(at):
        return struct.pack("<I", at) * (1 + at % 300)

    def work(number, view, start):
        start.wait()
        if number == 0:
            with open(view / "log", "wb", buffering=0) as file:
                for at in range(count):
                    file.write(record(at))
            return
        with open(view / "log", "rb", buffering=0) as file:
            for at in range(count):
                wanted, data = len(record(at)), b""
                while len(data) < wanted:
                    before = os.stat(view / "log").st_size
                    data += file.read(wanted - len(data))
                    assert file.tell() + len(data) >= 0 and os.fstat(file.fileno()).st_size >= before
                assert data == record(at), f"record {at} is not whole"

    together(3, work, first, second)
    here, there = os.open(first / "turns", os.O_RDWR | os.O_CREAT), os.open(second / "turns", os.O_RDWR)
    for at in range(count):
        one, other = (here, there) if at % 2 == 0 else (there, here)
        data = os.urandom(1 + at * 37 % 9000)
        offset = at * 4099
        os.pwrite(one, data, offset)
        assert os.fstat(other).st_size == os.stat(first / "turns").st_size == offset + len(data)
        assert os.pread(other, len(data), offset) == data
        os.ftruncate(other, offset + 1)
        assert os.fstat(one).st_size == offset + 1
        assert os.pread(one, 10, offset) == data[:1]


def names_and_attributes(first, second, scale):
    """Every change of a name or an attribute that returned is what the other view tells next."""
    for at in range(30 * scale):
        one, other = (first, second) if at % 2 == 0 else (second, first)
        name = f"name-{at}"
        assert not (other / name).exists()
        (one / name).write_text(name)
        assert (other / name).read_text() == name and name in os.listdir(other)
        os.chmod(other / name, 0o640)
        assert os.stat(one / name).st_mode & 0o7777 == 0o640
        os.utime(one / name, ns=(10**18 + at, 10**18 + at * 3))
        assert os.stat(other / name).st_mtime_ns == 10**18 + at * 3
        os.link(one / name, one / f"{name}-link")
        assert os.stat(other / name).st_nlink == 2
        os.rename(other / name, other / f"{name}-new")
        assert not (one / name).exists() and (one / f"{name}-new").read_text() == name
        os.setxattr(one / f"{name}-new", "user.at", str(at).encode())
        assert os.getxattr(other / f"{name}-link", "user.at") == str(at).encode()
        os.symlink(f"{name}-new", other / f"{name}-symlink")
        assert (one / f"{name}-symlink").read_text() == name
        (one / f"{name}-directory").mkdir()
        (other / f"{name}-directory" / "inside").write_text("")
        try:
            (one / f"{name}-directory").rmdir()
            raise AssertionError("removed though not empty")
        except OSError as error:
            assert error.errno == errno.ENOTEMPTY
        (one / f"{name}-directory" / "inside").unlink()
        (other / f"{name}-directory").rmdir()
        assert not (one / f"{name}-directory").exists()


def unlink_of_open(first, second, scale):
    """A file that is open here and unlinked there lives on here, for reading and writing, and a new one takes its
    name."""
    for at in range(10 * scale):
        one, other = (first, second) if at % 2 == 0 else (second, first)
        with open(one / "file", "wb+", buffering=0) as file:
            file.write(b"old" * 1000)
            if at % 3 == 2:
                (other / "new").write_text("new")
                os.rename(other / "new", other / "file")
            else:
                os.unlink(other / "file")
                (other / "file").write_text("new")
            assert (one / "file").read_text() == "new"
            assert os.fstat(file.fileno()).st_nlink == 0
            file.seek(0)
            assert file.read() == b"old" * 1000
            file.write(b"more")
            assert os.fstat(file.fileno()).st_size == 3004
            file.truncate(5)
            file.seek(0)
            assert file.read() == b"oldol"
        assert (one / "file").read_text() == "new"
        os.unlink(one / "file")
        assert os.listdir(first) == os.listdir(second) == []


def exclusive_lock_files(first, second, scale):
    """Lock files made with O_EXCL guard a counter."""
    (first / "counter").write_text("0")
    count = 30 * scale

    def work(number, view, start):
        start.wait()
        done = 0
        while done < count:
            try:
                os.close(os.open(view / "lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            except FileExistsError:
                continue
            counter_add(view / "counter")
            os.unlink(view / "lock")
            done += 1

    together(4, work, first, second)
    assert (second / "counter").read_text() == str(4 * count)
    assert os.listdir(second) == ["counter"]


def make_and_remove_directories(first, second, scale):
    """mkdir has one winner, rmdir has one, and nobody makes a file in what is removed."""
    count = 40 * scale

    def work(number, view, start):
        won = 0
        for at in range(count):
            start.wait()
            try:
                os.mkdir(view / "directory")
                won += 1
            except FileExistsError:
                pass
            start.wait()
            inside = view / "directory" / f"{number}"
            made = True
            try:
                inside.write_text("")
            except FileNotFoundError:
                made = False
            if made:
                inside.unlink()
            while (view / "directory").exists():
                try:
                    os.rmdir(view / "directory")
                    won += 1000
                except OSError as error:
                    assert error.errno in (errno.ENOTEMPTY, errno.ENOENT), error
            start.wait()
        return won

    won = sum(together(4, work, first, second))
    assert won == 1001 * count, won


def listing_while_changing(first, second, scale):
    """A listing has every name that stays exactly once, whatever comes and goes meanwhile."""
    stay = {f"stay-{at}" for at in range(300)}
    for name in stay:
        (first / name).write_text("")

    def work(number, view, start):
        start.wait()
        for at in range(20 * scale):
            if number < 2:
                for name in range(10):
                    (view / f"come-{number}-{name}").write_text("")
                for name in range(10):
                    (view / f"come-{number}-{name}").unlink()
            else:
                names = os.listdir(view)
                assert stay <= set(names), f"missing: {sorted(stay - set(names))[:5]}"
                assert sum(1 for name in names if name in stay) == len(stay)

    together(4, work, first, second)
    assert set(os.listdir(first)) == set(os.listdir(second)) == stay


def sent_by_the_kernel(first, second, scale):
    """sendfile, which reads through the kernel's pages, sends what its own mount wrote, and what the other one wrote
    once the file was opened or looked at since."""

    def sent(file, size):
        here, there = socket.socketpair()
        with here, there:
            count = os.sendfile(here.fileno(), file, 0, size)
            here.shutdown(socket.SHUT_WR)
            data = b""
            while piece := there.recv(1 << 20):
                data += piece
        assert len(data) == count
        return data

    here, there = os.open(first / "file", os.O_RDWR | os.O_CREAT), os.open(second / "file", os.O_RDWR)
    for at in range(20 * scale):
        data = bytes([65 + at % 26]) * (1 + at * 977 % 40_000)
        os.ftruncate(there, 0)
        os.pwrite(there, data, 0)
        assert os.fstat(here).st_size == len(data)
        assert sent(here, 50_000) == data, f"looked at: round {at}"
        os.pwrite(there, data.lower(), 0)
        again = os.open(first / "file", os.O_RDONLY)
        assert sent(again, 50_000) == data.lower(), f"opened: round {at}"
        os.close(again)
        os.pwrite(here, data, 0)
        assert sent(here, 50_000) == data, f"written here: round {at}"
        os.fstat(there)


def many_names(first, second, scale):
    """One file gets names from both views, which both count; in full as many as there may be, and then EMLINK."""
    most = 65_000
    (first / "file").write_text("content")
    (first / "names").mkdir()
    count = most - 1 if scale > 1 else 500
    for at in range(count):
        view = (first, second)[at % 2]
        os.link(view / "file", view / "names" / str(at))
    for view in (first, second):
        assert os.stat(view / "file").st_nlink == count + 1
        assert len(os.listdir(view / "names")) == count
        if scale > 1:
            try:
                os.link(view / "file", view / "beyond")
                raise AssertionError("one name too many")
            except OSError as error:
                assert error.errno == errno.EMLINK, error
            assert not (view / "beyond").exists()
    os.unlink(first / "names" / "0")
    os.link(second / "file", second / "beyond")
    assert (first / "beyond").read_text() == "content" and os.stat(first / "beyond").st_nlink == count + 1


def kept_entries(first, second, scale):
    """What one view has looked at again and again, so that its kernel may keep it, is seen anew as soon as the other
    view has changed it: by names, by the absence of names, by open files, by files that are open as paths alone, as the
    working directory, in listings; whatever is changed, and also right after the kernel was told."""
    views = (first, second)
    (first / "sub").mkdir()
    for name in ("file", "path", "a", "target"):
        (first / name).write_text("x")
    (first / "link").symlink_to("a")
    rests = random.Random(5)
    for at in range(8 * scale):
        here, there = views[at % 2], views[1 - at % 2]
        file, path = os.open(here / "file", os.O_RDONLY), os.open(here / "path", os.O_PATH)
        os.chdir(here / "sub")
        names = ("file", "path", "a", "link", "sub", "gone", "sub/gone")

        def look():
            for name in names:
                try:
                    os.lstat(here / name)
                except FileNotFoundError:
                    pass
            os.fstat(file), os.fstat(path), os.stat("."), os.stat(here), os.listdir(here)

        def keep():
            # Nobody changes anything for some time now and then; else what is looked at has just been told.
            for _ in range(3):
                look()
            if rests.random() < 0.5:
                time.sleep(0.15)
                look()
                look()

        keep()
        os.write(writing := os.open(there / "file", os.O_WRONLY | os.O_APPEND), b"more")
        os.close(writing)
        assert os.fstat(file).st_size == os.stat(there / "file").st_size == os.lstat(here / "file").st_size, at
        keep()
        os.chmod(there / "path", 0o600 + at % 64)
        assert os.fstat(path).st_mode & 0o777 == 0o600 + at % 64, at
        assert os.stat(here / "path").st_mode & 0o777 == 0o600 + at % 64, at
        keep()
        before, top = os.stat("."), os.stat(here)
        (there / "sub/gone").mkdir()
        after = os.stat(".")
        assert after.st_mtime_ns > before.st_mtime_ns and after.st_nlink == before.st_nlink + 1, at
        assert os.path.isdir(here / "sub/gone") and os.listdir(".") == ["gone"], at
        keep()
        (there / "sub/gone").rmdir()
        assert not os.path.exists(here / "sub/gone") and os.stat(".").st_nlink == before.st_nlink, at
        keep()
        (there / "gone").write_text("is here")
        assert (here / "gone").read_text() == "is here" and os.stat(here).st_mtime_ns > top.st_mtime_ns, at
        keep()
        os.rename(there / "gone", there / "a")
        assert not os.path.exists(here / "gone") and (here / "a").read_text() == "is here", at
        keep()
        os.link(there / "a", there / "gone")
        assert os.stat(here / "a").st_nlink == 2 == os.stat(here / "gone").st_nlink, at
        keep()
        os.unlink(there / "gone")
        assert os.stat(here / "a").st_nlink == 1 and "gone" not in os.listdir(here), at
        keep()
        os.unlink(there / "link")
        (there / "link").symlink_to("target")
        assert os.readlink(here / "link") == "target", at
        keep()
        os.utime(there / "a", ns=(5, 7 + at))
        assert os.stat(here / "a").st_mtime_ns == 7 + at, at
        keep()
        os.truncate(there / "file", 0)
        assert os.fstat(file).st_size == 0, at
        # Its own changes a kernel knows of by itself.
        keep()
        os.rename(here / "file", here / "other")
        assert not os.path.exists(here / "file") and os.path.exists(there / "other"), at
        os.rename(here / "other", here / "file")
        os.truncate(here / "file", at)
        assert os.fstat(file).st_size == at == os.stat(there / "file").st_size, at
        os.close(file), os.close(path)
        os.chdir("/")


def own_changes(first, second, scale):
    """What a view changes itself, its kernel knows of: after each change names and attributes in it are those that the
    other view is told, which has changed nothing and so asks."""
    draw = random.Random(11)
    names = [f"{directory}{name}" for directory in ("", "d/", "e/") for name in "abc"] + ["d", "e", "d/s", "e/s"]

    def seen(view):
        found = {}
        for name in names + ["."]:
            try:
                at = os.lstat(view / name)
                found[name] = (at.st_ino, at.st_mode, at.st_nlink, at.st_uid, at.st_gid, at.st_size, at.st_mtime_ns,
                               at.st_ctime_ns)
            except (FileNotFoundError, NotADirectoryError):
                found[name] = None
        found["listed"] = sorted(os.listdir(view))
        return found

    def opened(name, flags, work):
        file = os.open(first / name, flags, 0o640)
        try:
            return work(file)
        finally:
            os.close(file)

    def map_and_write(file):
        os.pwrite(file, b"x" * 5000, 0)
        with mmap.mmap(file, 5000) as pages:
            pages[draw.randrange(5000)] = 66
            pages.flush()

    def make_nameless(name):
        file = os.open(first, os.O_TMPFILE | os.O_RDWR, 0o600)
        os.write(file, b"nameless")
        os.link(f"/proc/self/fd/{file}", first / name, follow_symlinks=True)
        os.close(file)

    write, create = os.O_RDWR, os.O_RDWR | os.O_CREAT
    changes = [
        lambda a, b: opened(a, create, lambda file: os.write(file, b"y" * draw.randrange(1, 9000))),
        lambda a, b: opened(a, create | os.O_TRUNC, lambda file: None),
        lambda a, b: opened(a, create | os.O_APPEND, lambda file: os.write(file, b"z" * draw.randrange(1, 9000))),
        lambda a, b: opened(a, write, lambda file: os.ftruncate(file, draw.randrange(9000))),
        lambda a, b: opened(a, write, lambda file: os.posix_fallocate(file, draw.randrange(9000), 100)),
        lambda a, b: opened(a, write, map_and_write),
        lambda a, b: opened(a, os.O_RDONLY, lambda of: opened(b, create, lambda to: os.copy_file_range(of, to, 4000))),
        lambda a, b: opened(a, write, lambda file: os.fchmod(file, draw.choice((0o600, 0o755, 0o4755, 0o2770)))),
        lambda a, b: make_nameless(a),
        lambda a, b: os.truncate(first / a, draw.randrange(9000)),
        lambda a, b: os.chmod(first / a, draw.choice((0o600, 0o644, 0o6755, 0o711))),
        lambda a, b: os.chown(first / a, draw.randrange(3), draw.randrange(3), follow_symlinks=False),
        lambda a, b: os.utime(first / a, ns=(draw.randrange(1 << 60), draw.randrange(1 << 60)), follow_symlinks=False),
        lambda a, b: os.setxattr(first / a, "user.x", b"value", follow_symlinks=False),
        lambda a, b: os.rename(first / a, first / b),
        lambda a, b: os.rename(first / a, first / b),
        lambda a, b: os.link(first / a, first / b, follow_symlinks=False),
        lambda a, b: os.unlink(first / a),
        lambda a, b: os.mkdir(first / a),
        lambda a, b: os.mkdir(first / draw.choice(("d", "e", "d/s", "e/s"))),
        lambda a, b: os.rmdir(first / a),
        lambda a, b: os.symlink("a", first / a),
    ]
    for at in range(250 * scale):
        change, names_of_it = draw.randrange(len(changes)), draw.sample(names, 2)
        try:
            changes[change](*names_of_it)
            error = None
        except OSError as failure:
            error = failure
        # Sometimes what was seen is kept before it is looked at again, sometimes something else is changed first.
        if draw.random() < 0.7:
            here = seen(first)
            told = seen(second)
            differing = [(name, here[name], told[name]) for name in told if here[name] != told[name]]
            assert not differing, f"change {at} of kind {change} to {names_of_it} ({error}): here and there {differing}"
        if draw.random() < 0.15:
            time.sleep(0.15)
            assert seen(first) == seen(second) == seen(first), at


def told_by_the_other(first, second, scale):
    """Who is told of a change sees it, and nobody ever sees anything older than he saw before: numbers in a name, a
    mode, a size and the absence of a name, which one process changes with pauses in which others' kernels may keep what
    they see."""
    count = 40 * scale
    told = context.Value("i", 0)
    (first / "n0").write_text("")
    (first / "size").write_text("")

    def work(number, view, start):
        rests = random.Random(number)
        start.wait()
        if number == 0:
            for at in range(1, count + 1):
                os.rename(view / f"n{at - 1}", view / f"n{at}")
                os.truncate(view / "size", at)
                told.value = at
                if rests.random() < 0.3:
                    time.sleep(0.2)
            return
        # The name moves on before the size does.
        seen, seen_size = 0, 0
        while seen_size < count:
            least = told.value
            size = os.stat(view / "size").st_size
            assert size >= max(least, seen_size, seen - 1), f"size {size}, told {least}, seen {seen_size} and {seen}"
            names = [at for at in range(seen, min(size + 3, count + 1)) if os.path.exists(view / f"n{at}")]
            later = told.value
            # It may move on between two looks, but not back.
            assert all(at >= least for at in names), f"name {names}, told {least}"
            if later == least and least == count:
                assert names == [count], f"names {names} at the end"
            seen, seen_size = max(size, *names, seen), size
            if rests.random() < 0.2:
                time.sleep(0.05)

    together(4, work, first, second)


TESTS = [
    kept_entries,
    own_changes,
    told_by_the_other,
    append_from_both,
    shell_append,
    rename_token,
    rename_replace,
    rename_directories,
    rename_swap,
    flock_contention,
    fcntl_contention,
    ofd_contention,
    locks_seen_by_the_other,
    lock_of_the_dead,
    writer_and_reader,
    names_and_attributes,
    unlink_of_open,
    sent_by_the_kernel,
    many_names,
    exclusive_lock_files,
    make_and_remove_directories,
    listing_while_changing,
]


def main(tests):
    first, second, scale, name = sys.argv[1:]
    (test,) = [test for test in tests if test.__name__ == name]
    test(pathlib.Path(first), pathlib.Path(second), int(scale))


if __name__ == "__main__":
    main(TESTS)
