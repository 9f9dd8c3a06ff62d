#!/usr/bin/env python3
"""Has rules of `tabane-report advice` fired by programs that do what a rule is about, on a real cluster that is
recorded, and beside each has another program run for which the rule must not fire. `demo` is `make demo`, for which
none must fire.

Usage: advice.py DIRECTORY-WITH-PROGRAMS [RULE...]

Not here, for they take what one machine does not have: queue and slow-storage (servers of Lustre) and drops (a
network's counters). All rules have recorded inputs in crates/report/tests/advice.rs. As root, for failed-checkpoints
mounts a file system that can be filled, and network has one of its own."""
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
JOB = "42"
TIME_LIMIT_S = 150


class Files:
    """The cluster of TABANE_CLUSTER, by libtabane."""

    def __init__(self):
        self.library = ctypes.CDLL(os.path.join(os.environ["PROGRAMS"], "libtabane.so"), use_errno=True)
        self.library.tabane_error_message.restype = ctypes.c_char_p
        self.place = ctypes.create_string_buffer(512)
        self.call("tabane_init", None)

    def call(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        if result < 0:
            raise OSError(f"{name}{arguments[:1]}: {self.library.tabane_error_message().decode()}")
        return result

    def open(self, path, flags=os.O_RDWR | os.O_CREAT):
        return self.call("tabane_open", path.encode(), flags, 0o644)

    def write(self, file, size, offset):
        self.call("tabane_pwrite", file, b"x" * size, ctypes.c_size_t(size), ctypes.c_int64(offset))

    def fill(self, path, size, piece):
        file = self.open(path)
        for offset in range(0, size, piece):
            self.write(file, piece, offset)
        self.call("tabane_close", file)

    def read_all(self, path, size, piece):
        file, buffer = self.open(path, os.O_RDONLY), ctypes.create_string_buffer(piece)
        for offset in range(0, size, piece):
            self.call("tabane_pread", file, buffer, ctypes.c_size_t(piece), ctypes.c_int64(offset))
        self.call("tabane_close", file)

    def stat(self, path):
        self.call("tabane_stat", path.encode(), self.place)


def tabane(*words, job=None, check=True):
    environment = dict(os.environ, **({"TABANE_JOB": job} if job else {}))
    done = subprocess.run([os.path.join(os.environ["PROGRAMS"], "tabane"), *words], env=environment,
                          capture_output=True, text=True)
    if check and done.returncode != 0:
        raise SystemExit(f"advice.py: tabane {' '.join(words)}: {done.stderr}")
    return done


def server_process(index):
    with open(os.path.join(os.environ["TABANE_CLUSTER"], f"server-{index}.pid"), encoding="utf-8") as record:
        return int(record.read().split()[0])


def write_large(fires):
    """All into one chunk, again and again, or into one after the other."""
    files = Files()
    for part in range(5):
        files.fill("/large" if fires else f"/part{part}", 64 * MIB, MIB)


def stat_one(fires):
    """One name again and again, or as many as there are calls, each once: made, for what is missing is remembered."""
    files = Files()
    names = ["/one"] if fires else [f"/n{number}" for number in range(300)]
    for name in names:
        files.fill(name, 1, 1)
    for number in range(110_000):
        files.stat(names[number % len(names)])


def names_alone(fires):
    """Names with next to no data, or with a write and a read for each."""
    files, count = Files(), 40_000 if fires else 25_000
    for number in range(count):
        path = f"/n{number}"
        if not fires:
            files.fill(path, 40_000, 40_000)
            files.read_all(path, 40_000, 40_000)
        else:
            files.call("tabane_close", files.open(path))
            files.stat(path)
        files.call("tabane_unlink", path.encode())


def busy(fires):
    """Six processes that ask all the time, or one that hardly does."""
    if not fires:
        files = Files()
        for number in range(1_000):
            files.fill(f"/n{number}", 1, 1)
            time.sleep(0.01)
        return
    side_by_side([own_process("asking") for _ in range(6)])


def asking(_):
    """Reads of one server for ten seconds."""
    files, end, path = Files(), time.monotonic() + 10, f"/f{os.getpid()}"
    files.fill(path, 4 * MIB, MIB)
    while time.monotonic() < end:
        files.read_all(path, 4 * MIB, MIB)


def small_writes(fires):
    Files().fill("/small", 48 * MIB, 4096 if fires else 256 << 10)


def small_reads(fires):
    files = Files()
    files.fill("/small", 48 * MIB, MIB)
    files.read_all("/small", 48 * MIB, 4096 if fires else 256 << 10)


def fsyncs(fires):
    files = Files()
    file = files.open("/log")
    for number in range(1_500):
        files.write(file, 4096, number * 4096)
        if fires or number % 500 == 0:
            files.call("tabane_fsync", file)


def awaited(fires):
    """A small file that somebody reads all the time is changed, or another one."""
    files, end = Files(), time.monotonic() + 8
    for path in ("/read", "/other"):
        files.fill(path, 100, 100)
    reader = own_process("reading")
    while time.monotonic() < end:
        time.sleep(0.7)
        files.fill("/read" if fires else "/other", 100, 100)
    side_by_side([reader])


def reading(_):
    files, end = Files(), time.monotonic() + 8
    while time.monotonic() < end:
        files.read_all("/read", 100, 100)


def fill_store(fires):
    """Stores of 64 MiB, two of them."""
    Files().fill("/full", (124 if fires else 64) * MIB, MIB)
    time.sleep(1)


def other_key(fires):
    """Somebody comes with another key, or with the right one."""
    own = os.path.join(os.environ["TABANE_CLUSTER"], "cluster")
    with open(own, encoding="utf-8") as record:
        text = record.read()
    if fires:
        key = re.search(r"[0-9a-f]{64}", text).group(0)
        text = text.replace(key, key[::-1])
    with tempfile.TemporaryDirectory() as other:
        path = os.path.join(other, "cluster")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as record:
            record.write(text)
        done = tabane("ls", "/", "--cluster", path, "--timeout-ms", "2000", check=False)
        if (done.returncode == 0) == fires:
            raise SystemExit(f"advice.py: ls with {'another' if fires else 'the right'} key: {done}")
    time.sleep(2)


def begun_anew(fires):
    """A server is killed and started again, or a client is."""
    Files().fill("/f", MIB, MIB)
    time.sleep(2)
    if fires:
        os.kill(server_process(1), signal.SIGKILL)
        time.sleep(0.5)
        tabane("up", "--run-directory", os.environ["TABANE_CLUSTER"])
    else:
        client = own_process("asking")
        time.sleep(1)
        client.kill()
        client.wait()
    tabane("ls", "/")
    time.sleep(2)


def held_up(fires):
    """A server hardly ever gets a core, or always does, while two processes read large pieces."""
    readers = [own_process("asking") for _ in range(2)]
    held = server_process(0)
    while any(reader.poll() is None for reader in readers):
        time.sleep(0.005)
        if fires:
            os.kill(held, signal.SIGSTOP)
            time.sleep(0.25)
            os.kill(held, signal.SIGCONT)
    side_by_side(readers)


def beside_another(fires):
    """Another job asks one server for all it can while this one works there, or does so before."""
    others = [own_process("asking", TABANE_JOB="flood") for _ in range(6)]
    if not fires:
        side_by_side(others)
    side_by_side([own_process("asking") for _ in range(3)] + others)


def own_process(work, **environment):
    command = [sys.executable, os.path.abspath(__file__), "work", work, "yes"]
    return subprocess.Popen(command, env=dict(os.environ, **environment))


def side_by_side(processes):
    if any([process.wait() for process in processes]):
        raise SystemExit(1)


def renames(fires):
    """Eight processes put files of theirs in the place of one, or each in one of its own."""
    side_by_side([own_process("renaming", TARGET="one" if fires else f"own{number}") for number in range(8)])


def renaming(_):
    files, own = Files(), f"/from{os.getpid()}".encode()
    end = time.monotonic() + float(os.environ.get("SECONDS", "6"))
    target = f"/{os.environ['TARGET']}".encode()
    while time.monotonic() < end:
        files.call("tabane_close", files.open(own.decode()))
        files.call("tabane_rename", own, target)


def fsyncs_at_once(fires):
    """Eight processes wait for the disk, or one that hardly does."""
    side_by_side([own_process("syncing" if fires else "syncing_now_and_then") for _ in range(8 if fires else 1)])


def syncing(_, pause=0.0):
    files, end, number = Files(), time.monotonic() + 6, 0
    file = files.open(f"/log{os.getpid()}")
    while time.monotonic() < end:
        files.write(file, 4096, number * 4096)
        files.call("tabane_fsync", file)
        number += 1
        time.sleep(pause)


def syncing_now_and_then(_):
    syncing(_, 0.5)


def reads_behind(fires):
    """Six processes read what is behind, or what was made here."""
    name = "/part" if fires else "/own"
    if not fires:
        for number in range(BEHIND_COUNT):
            Files().fill(f"{name}{number}", BEHIND_SIZE, MIB)
    side_by_side([own_process("reading_behind", PATH_READ=f"{name}{number}") for number in range(BEHIND_COUNT)])


def reading_behind(_):
    Files().read_all(os.environ["PATH_READ"], BEHIND_SIZE, MIB)


def naming(_):
    files, number = Files(), 0
    while True:
        files.call("tabane_close", files.open(f"/n{os.getpid()}-{number}"))
        number += 1


def no_room_for_checkpoints(fires):
    """Something else fills the medium while names are made, or does not."""
    filler = os.path.join(os.environ["SMALL"], "filler")
    if fires:
        with open(filler, "wb") as file:
            try:
                while True:
                    file.write(bytes(MIB))
                    file.flush()
            except OSError:
                pass
    process = own_process("naming")
    time.sleep(5)
    process.kill()
    process.wait()
    if fires:
        os.unlink(filler)
    time.sleep(2)


def asked_across(fires):
    """A server that others ask all the time is killed again and again, or another process is."""
    askers, killed = [own_process("renaming", TARGET=f"own{number}", SECONDS="14") for number in range(12)], 0
    while any(asker.poll() is None for asker in askers):
        time.sleep(0.3)
        if fires and killed < 40:
            os.kill(server_process(1), signal.SIGKILL)
            tabane("up", "--run-directory", os.environ["TABANE_CLUSTER"])
            killed += 1
    side_by_side(askers)


def opened_and_changed(fires):
    """Files that are opened through contacts all the time have their rights changed, or others have."""
    files, end = Files(), time.monotonic() + 8
    for number in range(2 * OPENED_COUNT):
        files.fill(f"/f{number}", 1, 1)
    readers = [own_process("opening", TABANE_CONTACT="always") for _ in range(4)]
    number = 0
    while time.monotonic() < end:
        files.call("tabane_chmod", f"/f{number % OPENED_COUNT + (0 if fires else OPENED_COUNT)}".encode(),
                   0o600 | number // OPENED_COUNT & 1)
        number += 1
        time.sleep(0.005)
    side_by_side(readers)


def opening(_):
    files, end, number = Files(), time.monotonic() + 8, 0
    while time.monotonic() < end:
        files.call("tabane_close", files.open(f"/f{number % OPENED_COUNT}", os.O_RDONLY))
        number += 1


def through_others(fires):
    """Bytes are written through a server that passes them on, or straight to those that they are for."""
    side_by_side([own_process("writing_relayed", TABANE_RELAY="always" if fires else "off", TABANE_CONTACT="always")])


def writing_relayed(_):
    Files().fill("/large", 512 * MIB, 4 * MIB)


def records(_):
    """Records that are larger or smaller than the chunks they are in, which lie across boundaries or do not."""
    files = Files()
    for _ in range(4):
        files.fill("/records", 6_000 * 40_960, 40_960)


def attributes_kept(fires):
    """Large attributes of many files are set again and again, by many processes or now and then by one: the journal
    is full long before a checkpoint has written all of them to the disk."""
    side_by_side([own_process("attributing", PAUSE="0" if fires else "0.05") for _ in range(8 if fires else 1)])


def attributing(_):
    files, end, number, pause = Files(), time.monotonic() + 12, 0, float(os.environ["PAUSE"])
    while time.monotonic() < end:
        path, value = f"/f{os.getpid()}-{number % 200}", bytes([number % 256]) * 60_000
        if number < 200:
            files.fill(path, 1, 1)
        files.call("tabane_setxattr", path.encode(), b"user.large", value, ctypes.c_size_t(len(value)), 0)
        number += 1
        time.sleep(pause)


def ranks(fires):
    """Of four processes one asks all the time, and the others now and then, or all do the same."""
    side_by_side([own_process("ranked", PMI_RANK=str(rank), PAUSE="0" if rank == 3 or not fires else "0.1")
                  for rank in range(4)])


def ranked(_):
    files, end, pause = Files(), time.monotonic() + 8, float(os.environ["PAUSE"])
    path = f"/rank{os.environ['PMI_RANK']}"
    files.fill(path, MIB, MIB)
    while time.monotonic() < end:
        files.read_all(path, MIB, 65_536)
        time.sleep(pause)


def across(_):
    """Bytes go to a server and back by a network, which is slow or not."""
    files = Files()
    files.fill("/large", 64 * MIB, MIB)
    files.read_all("/large", 64 * MIB, MIB)


# Bits a second of a network of its own, and of a slow one, by what stands for it in the options of a cluster.
NETWORKS = {"NETWORK": None, "SLOW-NETWORK": "200mbit"}
BEHIND_COUNT, BEHIND_SIZE = 6, 192 * MIB
OPENED_COUNT = 300
WORK = {work.__name__: work for work in (
    write_large, stat_one, names_alone, busy, asking, small_writes, small_reads, fsyncs, awaited, reading, fill_store,
    other_key, begun_anew, held_up, beside_another, renames, renaming, fsyncs_at_once, syncing, syncing_now_and_then,
    reads_behind, reading_behind, naming, no_room_for_checkpoints, asked_across, opened_and_changed, opening,
    through_others, writing_relayed, records, attributes_kept, attributing, ranks, ranked, across)}
TCP = ["--transport", "tcp", "--protect", "off"]
# On a disk and not in memory, one of them with room for many names, and on a file system of 64 MiB.
ON_DISK = ["--servers", "1", *TCP, "--store", "memory:DISK,size=64M"]
ROOMY = ["--servers", "1", *TCP, "--store", "memory:DISK,size=2G"]
SMALL = ["--servers", "1", *TCP, "--store", "memory:SMALL,size=16M", "--journal-size", "4M", "--huge-pages", "off"]
# Rule, what is done, options of the cluster where it has to fire, and where not.
CASES = [
    ("hot-server", "write_large", ["--servers", "2", "--chunk-size", "64M"], ["--servers", "2"]),
    ("idle-servers", "write_large", ["--servers", "4", "--chunk-size", "64M"], ["--servers", "4"]),
    ("hot-names", "stat_one", ["--servers", "2", *TCP], ["--servers", "2", *TCP]),
    ("many-calls", "names_alone", ["--servers", "2", *TCP], ["--servers", "2", *TCP]),
    ("busy-loop", "busy", ["--servers", "1", *TCP], ["--servers", "1", *TCP]),
    ("small-writes", "small_writes", ["--servers", "1", *TCP], ["--servers", "1", *TCP]),
    ("small-reads", "small_reads", ["--servers", "1", *TCP], ["--servers", "1", *TCP]),
    ("fsync-storm", "fsyncs", ["--servers", "2"], ["--servers", "2"]),
    ("awaited-leases", "awaited", ["--servers", "1", *TCP], ["--servers", "1", *TCP]),
    ("full-store", "fill_store", ["--servers", "2", "--store", "memory:DIR,size=64M"],
     ["--servers", "2", "--store", "memory:DIR,size=64M"]),
    ("refused", "other_key", ["--servers", "1"], ["--servers", "1"]),
    ("restart", "begun_anew", ["--servers", "2"], ["--servers", "2"]),
    ("long-wait", "held_up", ["--servers", "1", *TCP], ["--servers", "1", *TCP]),
    ("other-job", "beside_another", ["--servers", "1", *TCP], ["--servers", "1", *TCP]),
    ("wait-lock", "renames", ["--servers", "3", *TCP], ["--servers", "3", *TCP]),
    ("wait-sync", "fsyncs_at_once", ON_DISK, ON_DISK),
    ("wait-disk", "reads_behind", ["--servers", "2", "--backing", "BEHIND"], ["--servers", "2", "--backing", "BEHIND"]),
    ("full-journal", "no_room_for_checkpoints", SMALL, SMALL),
    ("failed-checkpoints", "no_room_for_checkpoints", SMALL, SMALL),
    ("resends", "asked_across", ["--servers", "2", *TCP], ["--servers", "2", *TCP]),
    ("recalls", "opened_and_changed", ["--servers", "3", *TCP], ["--servers", "3", *TCP]),
    ("network", "across", ["SLOW-NETWORK", "--servers", "1", *TCP], ["NETWORK", "--servers", "1", *TCP]),
    ("across-chunks", "records", ["--servers", "1", "--chunk-size", "64K"],
     ["--servers", "1", "--chunk-size", "40960"]),
    ("slow-rank", "ranks", ["--servers", "2", *TCP], ["--servers", "2", *TCP]),
    ("wait-journal", "attributes_kept", [*ROOMY, "--journal-size", "4M"], [*ROOMY, "--journal-size", "4M"]),
    ("relayed", "through_others", ["--servers", "4", *TCP], ["--servers", "4", *TCP]),
]


def fired(programs, work, fires, options):
    """The rules that fire for a run, with all that was said."""
    with tempfile.TemporaryDirectory(prefix="tabane-advice-") as place, \
            tempfile.TemporaryDirectory(prefix="tabane-advice-", dir="/dev/shm") as stores:
        record, behind, small = (os.path.join(place, name) for name in ("p.db", "behind", "small"))
        disk = os.path.join(place, "disk")
        for name, path in (("DIR", stores), ("DISK", disk), ("SMALL", small), ("BEHIND", behind)):
            options = [option.replace(name, path) for option in options]
        if "--backing" in options:
            os.mkdir(behind)
            for part in range(BEHIND_COUNT):
                with open(os.path.join(behind, f"part{part}"), "wb") as file:
                    for _ in range(BEHIND_SIZE // MIB):
                        file.write(bytes([part + 1]) * MIB)
        if "--store" not in options:
            options += ["--dir", os.path.join(stores, "stores")]
        run = os.path.join(place, "run")
        environment = dict(os.environ, PROGRAMS=programs, TABANE_JOB=JOB, TABANE_CLUSTER=run, SMALL=small)
        network = next((option for option in options if option in NETWORKS), None)
        options = [option for option in options if option not in NETWORKS]
        namespace = f"tabane-advice-{os.getpid()}"

        def do(*command):
            if network and command[0] != "ip":
                command = ("ip", "netns", "exec", namespace, *command)
            done = subprocess.run(command, env=environment, timeout=TIME_LIMIT_S, capture_output=True, text=True)
            if done.returncode != 0:
                raise SystemExit(f"advice.py: {work}: {' '.join(command)}: {done.stdout}{done.stderr}")
            return done.stdout

        program = os.path.join(programs, "tabane")
        if work == "no_room_for_checkpoints":
            os.mkdir(small)
            do("mount", "-t", "tmpfs", "-o", "size=64M", "tmpfs", small)
        if network:
            do("ip", "netns", "add", namespace)
            do("ip", "netns", "exec", namespace, "ip", "link", "set", "lo", "up")
            if NETWORKS[network]:
                do("tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", NETWORKS[network], "burst", "1mb",
                   "latency", "1s")
        try:
            do(program, "up", "--run-directory", run, "--record", record, *options)
            do(sys.executable, os.path.abspath(__file__), "work", work, "yes" if fires else "no")
        finally:
            if os.path.isdir(run):
                do(program, "down", "--run-directory", run, *(["--discard"] if "--backing" in options else []))
            if os.path.ismount(small):
                do("umount", small)
            if network:
                do("ip", "netns", "delete", namespace)
                network = None
        said = do(os.path.join(programs, "tabane-report"), "advice", JOB, record)
        keep = os.environ.get("KEEP")
        if keep:
            shutil.copy(record, os.path.join(keep, f"{work}-{fires}.db"))
        return set(re.findall(r"^([a-z-]+): ", said, re.MULTILINE)), said


def demo(programs):
    """`make demo` records its cluster, and no rule has anything to say of it."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "demo.sh")
    done = subprocess.run(["sh", script, programs], timeout=600, capture_output=True, text=True)
    row = re.search(r"^advice by what the servers counted +(.*)$", done.stdout, re.MULTILINE)
    right = done.returncode == 0 and row is not None and row.group(1) == "no rule has anything to say"
    print(f"{'ok' if right else 'WRONG'}: demo: {row.group(1) if row else done.stdout + done.stderr}", flush=True)
    return right


def main():
    if sys.argv[1:2] == ["work"]:
        return WORK[sys.argv[2]](sys.argv[3] == "yes")
    programs, chosen = os.path.abspath(sys.argv[1]), sys.argv[2:]
    unknown = set(chosen) - {case[0] for case in CASES} - {"demo"}
    if unknown:
        raise SystemExit(f"advice.py: no such rule here: {', '.join(sorted(unknown))}")
    wrong = int((not chosen or "demo" in chosen) and not demo(programs))
    for rule, work, firing, sparing in CASES:
        if chosen and rule not in chosen:
            continue
        for fires, options in ((True, firing), (False, sparing)):
            begun = time.monotonic()
            rules, said = fired(programs, work, fires, options)
            right = (rule in rules) == fires
            wrong += not right
            others = ", ".join(sorted(rules - {rule})) or "none"
            print(f"{'ok' if right else 'WRONG'}: {rule} {'fires' if fires else 'does not'}; others: {others}; "
                  f"{time.monotonic() - begun:.0f} s", flush=True)
            if not right:
                print(said)
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
