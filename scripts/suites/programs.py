"""Ordinary programs in two mounts of one file system at once; what they leave is compared at the end.

The same form as two_mounts.py: functions of (first, second, scale)."""

import hashlib
import mmap
import os
import pathlib
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time

from two_mounts import main, together


def run(*arguments, cwd=None, **options):
    """Runs a program to its good end and returns what it printed."""
    done = subprocess.run([str(argument) for argument in arguments], cwd=cwd, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{arguments[:4]}: status {done.returncode}: {done.stderr[-2000:]}{done.stdout[-500:]}"
    return done.stdout


def manifest(directory, times=True, links=True):
    """Everything about the tree that a copy should keep: kind, mode, size, contents; times and which names are one
    file, if asked."""
    lines, files = [], {}
    for at, names, leaves in os.walk(directory):
        names.sort()
        for name in sorted(names + leaves):
            path = os.path.join(at, name)
            told = os.lstat(path)
            line = [os.path.relpath(path, directory), oct(told.st_mode)]
            if stat.S_ISREG(told.st_mode):
                with open(path, "rb") as file:
                    line += [told.st_size, hashlib.sha256(file.read()).hexdigest()]
                if links:
                    line += [told.st_nlink, files.setdefault(told.st_ino, line[0])]
            if stat.S_ISLNK(told.st_mode):
                line.append(os.readlink(path))
            elif times:
                line.append(told.st_mtime_ns)
            lines.append(tuple(line))
    return sorted(lines)


def same(one, other):
    """Both manifests tell the same."""
    assert one == other, f"differences: {sorted(set(one) ^ set(other))[:6]}"


def make_tree(directory, scale):
    """A tree of files of many sizes, directories, links of both kinds, odd modes, names and times, and a sparse
    file."""
    directory.mkdir()
    for at in range(40 * scale):
        below = directory / f"d{at % 7}" / f"e{at % 3}"
        below.mkdir(parents=True, exist_ok=True)
        file = below / f"file {at}\u3042"
        file.write_bytes(bytes([at % 251]) * (at * 977 % 300_000))
        file.chmod((0o644, 0o600, 0o755, 0o444, 0o4755)[at % 5])
        os.utime(file, ns=(10**18, 10**18 + at * 1_000_000_007))
    for at in range(5):
        os.link(directory / "d0" / "e0" / "file 0\u3042", directory / f"hard-{at}")
        os.symlink(f"d0/e0/file {at}", directory / f"soft-{at}")
    with open(directory / "sparse", "wb") as file:
        file.write(b"begin")
        file.seek(5_000_000)
        file.write(b"end")
    (directory / "empty").mkdir(mode=0o700)
    (directory / "sticky").mkdir()
    (directory / "sticky").chmod(0o1777)
    (directory / ("n" * 255)).write_text("")
    # Times of long ago: rsync takes times of the same second for equal.
    for at, _, _ in os.walk(directory, topdown=False):
        os.utime(at, ns=(10**18, 10**18 + 123_456_789))


def tar_between(first, second, scale):
    """tar packs in one view, unpacks in the other; both trees are the same in both views."""
    make_tree(first / "tree", scale)
    run("tar", "-C", first / "tree", "-cf", first / "archive", ".")
    (second / "copy").mkdir()
    run("tar", "-C", second / "copy", "-xpf", second / "archive")
    with tempfile.TemporaryDirectory() as outside:
        run("tar", "-C", outside, "-xpf", second / "archive")
        expected = manifest(outside)
        for view in (first, second):
            same(manifest(view / "copy"), expected)
    # tar's usual form keeps whole seconds.
    same(manifest(first / "tree", times=False), manifest(second / "copy", times=False))


def rsync_between(first, second, scale):
    """rsync -aHAX from outside into one view; asked again through the other it finds nothing to do; then back out."""
    with tempfile.TemporaryDirectory() as outside:
        source, back = pathlib.Path(outside) / "tree", pathlib.Path(outside) / "back"
        make_tree(source, scale)
        run("rsync", "-aH", f"{source}/", f"{first}/tree/")
        again = run("rsync", "-aHi", "--checksum", f"{source}/", f"{second}/tree/")
        assert again == "", f"asked again, rsync would do: {again[:500]}"
        run("rsync", "-aHi", "--delete", f"{source}/d1/", f"{second}/tree/")
        run("rsync", "-aH", "--delete", f"{source}/", f"{first}/tree/")
        run("rsync", "-aHS", f"{second}/tree/", f"{back}/")
        for copy in (first / "tree", second / "tree", back):
            same(manifest(copy), manifest(source))


def find_and_run(first, second, scale):
    """find -exec changes files through one view; both views then agree on what find tells of them."""
    make_tree(first / "tree", scale)
    run("find", ".", "-type", "f", "-name", "file*",
        "-exec", "sh", "-c", 'for f; do echo more >>"$f"; done', "sh", "{}", "+", cwd=second)
    run("find", ".", "-type", "f", "-perm", "0600", "-exec", "mv", "{}", "{}.moved", ";", cwd=first)
    run("find", ".", "-empty", "-delete", cwd=second)
    told = [
        sorted(run("find", ".", "-printf", "%p %s %m %n %T@ %y\\n", cwd=view).splitlines()) for view in (first, second)
    ]
    assert told[0] == told[1]
    assert sum(1 for line in told[0] if ".moved " in line) == sum(1 for at in range(40 * scale) if at % 5 == 1)


def git_in_parallel(first, second, scale):
    """In one repository: commits and gc through one view, checkouts through the other; fsck is clean and contents are
    right."""
    environment = dict(
        os.environ, GIT_AUTHOR_NAME="a", GIT_AUTHOR_EMAIL="a@b", GIT_COMMITTER_NAME="a", GIT_COMMITTER_EMAIL="a@b",
        GIT_CONFIG_GLOBAL="/dev/null", GIT_CONFIG_SYSTEM="/dev/null", GIT_CONFIG_COUNT="3",
        GIT_CONFIG_KEY_0="safe.directory", GIT_CONFIG_VALUE_0="*", GIT_CONFIG_KEY_1="gc.auto", GIT_CONFIG_VALUE_1="0",
        # A gc locks HEAD while it goes through the reflog, and git waits 100 ms for that unless it is told otherwise:
        # too little where others want the cores.
        GIT_CONFIG_KEY_2="core.filesRefLockTimeout", GIT_CONFIG_VALUE_2="60000",
    )

    def git(view, *arguments):
        return run("git", "-C", view / "repository", *arguments, env=environment)

    (first / "repository").mkdir()
    git(first, "init", "-q", "-b", "main")
    for at in range(6):
        for name in range(30):
            (first / "repository" / f"file-{name}").write_text(f"{name} at {at}\n" * (name * 20 + 1))
        git(first, "add", ".")
        git(first, "commit", "-q", "-m", f"commit {at}")
        git(first, "branch", f"branch-{at}")

    def work(number, view, start):
        start.wait()
        for turn in range(5 * scale):
            if number == 0:
                git(view, "gc", "-q", "--prune=now")
            elif number == 1:
                git(view, "checkout", "-q", f"branch-{turn % 6}")
                for name in (0, 7, 29):
                    text = (view / "repository" / f"file-{name}").read_text()
                    assert text == f"{name} at {turn % 6}\n" * (name * 20 + 1), f"file-{name} on branch-{turn % 6}"
            else:
                git(view, "log", "-p", "--all")
                # Through git's protocol: its copy of files beside a gc misses those that are packed meanwhile, on any
                # file system.
                git(view, "clone", "-q", "--no-local", ".", view / f"clone-{turn}")
                assert run("git", "-C", view / f"clone-{turn}", "status", "--porcelain", env=environment) == ""

    together(3, work, first, second)
    for view in (first, second):
        git(view, "fsck", "--full", "--strict")
        assert git(view, "status", "--porcelain") == ""
        assert git(view, "rev-list", "--all", "--count").strip() == "6"


def make_parallel(first, second, scale):
    """make -j builds a C project through one view; the other runs it, finds it up to date, changes a header, and builds
    on."""
    count = 12 * scale
    project = first / "project"
    project.mkdir()
    (project / "common.h").write_text("#define BASE 1\n")
    for at in range(count):
        (project / f"part{at}.c").write_text(f'#include "common.h"\nint part{at}(void) {{ return BASE * {at}; }}\n')
    declared = "".join(f"int part{at}(void);\n" for at in range(count))
    total = " + ".join(f"part{at}()" for at in range(count))
    (project / "main.c").write_text(
        f'#include <stdio.h>\n{declared}int main(void) {{ printf("%d\\n", {total}); return 0; }}\n'
    )
    objects = " ".join(f"part{at}.o" for at in range(count))
    (project / "Makefile").write_text(
        f"CFLAGS = -O0\nprogram: main.o {objects} all.a\n\t$(CC) -o $@ main.o all.a\n"
        f"all.a: {objects}\n\trm -f $@; ar rcs $@ $^\n"
        f"{objects}: common.h\nclean:\n\trm -f program *.o *.a\n"
    )
    expected = sum(range(count))
    run("make", "-s", "-j4", cwd=project)
    assert run(second / "project" / "program") == f"{expected}\n"
    assert "up to date" in run("make", "-j4", cwd=second / "project")
    (second / "project" / "common.h").write_text("#define BASE 2\n")
    run("make", "-s", "-j4", cwd=first / "project")
    assert run(second / "project" / "program") == f"{2 * expected}\n"
    run("make", "-s", "clean", cwd=first / "project")
    run("make", "-s", "-j4", cwd=second / "project")
    assert run(first / "project" / "program") == f"{2 * expected}\n"


def database_work(journal, exclusive, views, count, processes):
    """Transfers between accounts in transactions; at any time all accounts together have what they began with."""

    def connect(view):
        # On a slow machine the others may be long at work. In exclusive mode two that hold a shared lock would wait for
        # each other: whoever is refused lets go of everything at once, and comes again after a time of its own.
        patience = 0 if exclusive else 300
        connection = sqlite3.connect(view / "database", timeout=patience, isolation_level=None)
        if exclusive:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        return connection

    connection = connect(views[0])
    assert connection.execute(f"PRAGMA journal_mode = {journal}").fetchone() == (journal,)
    connection.execute("CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY, amount INTEGER)")
    connection.execute("DELETE FROM account")
    connection.executemany("INSERT INTO account VALUES (?, 100)", ((at,) for at in range(50)))
    connection.execute("CREATE TABLE IF NOT EXISTS entry (process INTEGER, at INTEGER, text TEXT)")
    connection.execute("DELETE FROM entry")
    connection.close()

    def work(number, view, start):
        start.wait()
        connection = None
        for at in range(count):
            while True:
                connection = connection or connect(view)
                try:
                    connection.execute("BEGIN IMMEDIATE")
                    break
                except sqlite3.OperationalError as error:
                    assert exclusive and "locked" in str(error), error
                    connection.close()
                    connection = None
                    time.sleep(random.SystemRandom().uniform(0.001, 0.05))
            assert connection.execute("SELECT sum(amount) FROM account").fetchone() == (5000,)
            connection.execute("UPDATE account SET amount = amount - 1 WHERE id = ?", ((number * 7 + at) % 50,))
            connection.execute("UPDATE account SET amount = amount + 1 WHERE id = ?", ((number * 11 + at * 3) % 50,))
            connection.execute("INSERT INTO entry VALUES (?, ?, ?)", (number, at, "x" * (at % 5 * 1000)))
            connection.execute("COMMIT")
            if exclusive:
                # The lock of this mode lasts as long as the connection.
                connection.close()
                connection = None

    together(processes, work, *views)
    for view in views:
        connection = connect(view)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("SELECT sum(amount), count(*) FROM account").fetchone() == (5000, 50)
        for number in range(processes):
            rows = connection.execute("SELECT at FROM entry WHERE process = ? ORDER BY rowid", (number,)).fetchall()
            assert rows == [(at,) for at in range(count)], f"entries of {number}: {len(rows)}"
        connection.close()


def sqlite_rollback_journal(first, second, scale):
    """One database, journal in rollback mode, two processes in each view."""
    database_work("delete", False, (first, second), 8 * scale, 4)


def sqlite_write_ahead_log(first, second, scale):
    """One database with a write-ahead log, two processes in each view; exclusive mode, for its index is memory that is
    shared within one mount only, as on any network file system."""
    database_work("wal", True, (first, second), 8 * scale, 4)


def sqlite_write_ahead_log_within_one(first, second, scale):
    """The same with the shared index: four processes in one view, then four in the other."""
    for view in (first, second, first):
        database_work("wal", False, (view,), 8 * scale, 4)


def python_files(first, second, scale):
    """pathlib, shutil and tempfile through one view, compared through the other."""
    make_tree(first / "tree", scale)
    shutil.copytree(first / "tree", second / "copy", symlinks=True)
    plain = manifest(first / "tree", times=False, links=False)
    same(manifest(first / "copy", links=False), manifest(first / "tree", links=False))
    shutil.move(second / "copy", first / "moved")
    same(manifest(second / "moved", times=False, links=False), plain)
    assert sorted(path.name for path in (second / "moved").rglob("file*")) == sorted(
        path.name for path in (first / "tree").rglob("file*")
    )
    archive = shutil.make_archive(str(first / "archive"), "gztar", first / "tree")
    shutil.unpack_archive(second / pathlib.Path(archive).name, second / "unpacked", filter="fully_trusted")
    same(manifest(first / "unpacked", times=False, links=False), plain)
    for view in (first, second):
        usage = shutil.disk_usage(view)
        assert 0 < usage.free <= usage.total
        with tempfile.TemporaryFile(dir=view) as file, tempfile.NamedTemporaryFile(dir=view) as named:
            file.write(b"x" * 100_000)
            named.write(b"y" * 100_000)
            named.flush()
            file.seek(0)
            assert file.read() == b"x" * 100_000
            for other in (first, second):
                assert (other / os.path.basename(named.name)).read_bytes() == b"y" * 100_000
    for name in ("tree", "moved", "unpacked"):
        shutil.rmtree(second / name)
    assert os.listdir(first) == [pathlib.Path(archive).name]


def python_mmap(first, second, scale):
    """Mapped files: what is mapped for writing and flushed is what the other view reads; private copies change
    nothing."""
    for size in (1, 4096, 5000, 3_000_000):
        data = os.urandom(size)
        (first / "file").write_bytes(data)
        with open(second / "file", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as map:
            assert map[:] == data
        with open(second / "file", "r+b") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as map:
            map[:1] = b"!"
            assert (first / "file").read_bytes() == data
        with open(second / "file", "r+b") as file, mmap.mmap(file.fileno(), 0) as map:
            map[:] = data[::-1]
            map.flush()
            assert (first / "file").read_bytes() == data[::-1]
            # Within one mount also without a flush.
            map[:1] = b"?"
            with open(second / "file", "rb") as reader, mmap.mmap(reader.fileno(), 0, access=mmap.ACCESS_READ) as other:
                assert other[:1] == b"?"
        assert (first / "file").read_bytes() == b"?" + data[::-1][1:]


def python_regression(first, second, scale):
    """Python's own tests of these modules, with their files in a view. Needs Python's package of tests."""
    try:
        import test.test_tempfile  # noqa: F401
    except ImportError:
        print("Python's package of tests is not installed")
        sys.exit(77)
    names = ["test_pathlib", "test_shutil", "test_tempfile", "test_mmap"]
    if scale > 1:
        names += ["test_os", "test_posix", "test_fcntl", "test_file", "test_fileio", "test_glob", "test_largefile",
                  "test_tarfile", "test_zipfile"]
    os.mkdir(first / "work")
    environment = dict(os.environ, TMPDIR=str(first / "work"))
    run(sys.executable, "-m", "test", "--tempdir", first / "work", *names, env=environment, cwd=first / "work")


TESTS = [
    tar_between,
    rsync_between,
    find_and_run,
    git_in_parallel,
    make_parallel,
    sqlite_rollback_journal,
    sqlite_write_ahead_log,
    sqlite_write_ahead_log_within_one,
    python_files,
    python_mmap,
    python_regression,
]

if __name__ == "__main__":
    main(TESTS)
