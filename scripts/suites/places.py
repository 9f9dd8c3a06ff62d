"""Where the suites run: two mounts of a cluster of its own, an ext4 image, or directories that were named.

Each place has two views of one file system (`first`, `second`); for all but the mounts both are the same directory.
A place is a context manager and leaves nothing behind."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading


def call(*arguments, **options):
    subprocess.run([str(argument) for argument in arguments], check=True, **options)


def work_directory():
    """A new one; other users may go through it, for suites that change their user."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="tabane-suites-"))
    path.chmod(0o755)
    return path


class Directories:
    """Any two directories, which may be the same."""

    kind = "directories"

    def __init__(self, first, second):
        self.first, self.second = pathlib.Path(first).resolve(), pathlib.Path(second).resolve()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    @contextlib.contextmanager
    def disturbed(self):
        """While this is open something goes wrong every few seconds. Plain directories have nothing that could."""
        yield

    def healthy(self):
        """Whether the file system is still sound, in words if not."""
        return None


class Ext4(Directories):
    """An ext4 image in a loop device, that the same suites are proven on."""

    kind = "ext4"

    def __init__(self, size="6G"):
        self.size = size

    def __enter__(self):
        self.work = work_directory()
        image, mount = self.work / "image", self.work / "mount"
        call("truncate", "-s", self.size, image)
        call("mkfs.ext4", "-q", "-F", "-b", "4096", image)
        mount.mkdir()
        call("mount", "-o", "loop", image, mount)
        self.first = self.second = mount
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", str(self.first)], check=False)
        if not os.path.ismount(self.first):
            shutil.rmtree(self.work)


class Mounts(Directories):
    """Two mounts of one cluster of three servers; over a backing directory, if that is wanted, in a directory of it
    that is there already, with files in it."""

    kind = "mounts"
    servers = 3
    # What is judged is what programs see, not how fast a machine that others use too starts a server again.
    patience = ["--timeout-ms", 300_000]

    def __init__(self, programs, store, backing=False):
        self.tabane = pathlib.Path(programs).resolve() / "tabane"
        self.store = store
        self.is_backed = backing

    def __enter__(self):
        self.work = work_directory()
        self.run = self.work / "run"
        self.mounts = first, second = self.work / "first", self.work / "second"
        below = "populated" if self.is_backed else "."
        self.first, self.second = first / below, second / below
        # Looked at again all the time, and carried whenever there is a moment for it.
        backing = ["--backing", self.populated(), "--backing-check", 1] if self.is_backed else []
        try:
            self.command("up", "--servers", self.servers, "--store", self.store, *backing, *self.patience)
            for mount in self.mounts:
                mount.mkdir()
                # One takes its requests as the kernel offers them, the other one from the device.
                ways = ["--io-uring", "off"] if mount == second else []
                self.command("mount", mount, *ways, *self.patience)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for mount in self.mounts:
            subprocess.run([self.tabane, "umount", mount], env=self.environment(), check=False)
        ways = ["--discard"] if self.is_backed else []
        subprocess.run([self.tabane, "down", *ways, "--run-directory", self.run], check=False)
        if not any(os.path.ismount(mount) for mount in self.mounts):
            shutil.rmtree(self.work)

    def populated(self):
        """A backing directory, and in it one with 200 files in it and in ten others."""
        site = self.work / "site"
        for number in range(200):
            directory = site / "populated" / (f"d{number % 20}" if number % 20 < 10 else ".")
            directory.mkdir(parents=True, exist_ok=True)
            (directory / f"file-{number}").write_bytes(bytes([number % 256]) * (number * 613))
        return site

    def environment(self):
        return dict(os.environ, TABANE_CLUSTER=str(self.run))

    def command(self, *arguments):
        options = ["--run-directory", self.run] if arguments[0] == "up" else []
        call(self.tabane, *arguments, *options, env=self.environment(), stdout=subprocess.DEVNULL)

    @contextlib.contextmanager
    def disturbed(self):
        """One server after the other is killed and started again, at a pace of a few seconds, until the block ends."""
        ended = threading.Event()
        failures = []
        self.kills = 0

        def disturb():
            while not ended.wait(3):
                try:
                    self.kill(self.kills % self.servers)
                    self.command("up", "--start-timeout-ms", 600_000)
                    self.kills += 1
                except Exception as error:
                    failures.append(error)
                    return

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        if failures:
            raise failures[0]

    def kill(self, server):
        process = int((self.run / f"server-{server}.pid").read_text().split()[0])
        handle = os.pidfd_open(process)
        os.kill(process, 9)
        # The descriptor is readable when the process has ended.
        import select

        select.select([handle], [], [])
        os.close(handle)

    def healthy(self):
        check = subprocess.run([self.tabane, "check"], env=self.environment(), capture_output=True, text=True)
        if check.returncode != 0:
            return "tabane check: " + (check.stdout + check.stderr).strip()[-2000:]
        return None
