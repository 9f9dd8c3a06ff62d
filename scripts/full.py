#!/usr/bin/env python3
"""Creates, writes and removes files through a mount whose store is full, while servers are killed and started again.

A create in a directory that is there may fail with ENOSPC and with nothing else. Usage: full.py PROGRAMS [SECONDS]; as
a user who may mount. Exit status 1: another error was told, or `tabane check` has found something.
"""

import collections
import errno
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

WORKERS = 6
KEPT_COUNT = 150
SIZES = [100, 5_000, 70_000, 200_000]


def work(mount, number, end, counts):
    """Makes files until `end`, and removes some of its own once it has many."""
    draw, kept, made = random.Random(number), [], 0
    while time.time() < end:
        path = f"{mount}/d{draw.randrange(4)}/f{number}-{made}"
        made += 1
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o644)
        except OSError as error:
            counts["create " + errno.errorcode[error.errno]] += 1
            continue
        kept.append(path)
        counts["created"] += 1
        for what, act in [
            ("write", lambda: os.write(descriptor, b"x" * draw.choice(SIZES))),
            ("close", lambda: os.close(descriptor)),
        ]:
            try:
                act()
            except OSError as error:
                counts[f"{what} {errno.errorcode[error.errno]}"] += 1
        if len(kept) > KEPT_COUNT and draw.random() < 0.6:
            try:
                os.unlink(kept.pop(draw.randrange(len(kept))))
                counts["removed"] += 1
            except OSError as error:
                counts["unlink " + errno.errorcode[error.errno]] += 1


def main():
    tabane, seconds = os.path.join(os.path.abspath(sys.argv[1]), "tabane"), float((sys.argv + ["60"])[2])
    with tempfile.TemporaryDirectory(prefix="tabane-full-") as ground:
        run, mount = f"{ground}/run", f"{ground}/mount"
        environment = dict(os.environ, TABANE_CLUSTER=run)
        quiet = {"env": environment, "stdout": subprocess.DEVNULL}
        subprocess.run([tabane, "up", "--servers", "3", "--store", "memory:size=24M", "--run-directory", run],
                       check=True, **quiet)
        try:
            os.mkdir(mount)
            subprocess.run([tabane, "mount", mount], check=True, **quiet)
            for number in range(4):
                os.mkdir(f"{mount}/d{number}")
            end, counts, draw, kills = time.time() + seconds, collections.Counter(), random.Random(5), 0
            workers = [threading.Thread(target=work, args=(mount, number, end, counts)) for number in range(WORKERS)]
            for worker in workers:
                worker.start()
            while time.time() < end - 3:
                time.sleep(draw.uniform(0.4, 1.5))
                with open(f"{run}/server-{draw.randrange(3)}.pid") as file:
                    os.kill(int(file.read().split()[0]), signal.SIGKILL)
                kills += 1
                time.sleep(draw.uniform(0, 0.5))
                subprocess.run([tabane, "up", "--run-directory", run], check=True, **quiet)
            for worker in workers:
                worker.join()
            print(f"{kills} kills: {dict(counts)}")
            found = subprocess.run([tabane, "check"], env=environment).returncode
            wrong = [what for what in counts if " " in what and not what.endswith(" ENOSPC")]
            if wrong:
                print(f"errors that nobody should be told: {', '.join(wrong)}", file=sys.stderr)
            return 1 if wrong or found else 0
        finally:
            subprocess.run([tabane, "umount", "--force", mount], **quiet)
            subprocess.run([tabane, "down", "--run-directory", run], **quiet)


sys.exit(main())
