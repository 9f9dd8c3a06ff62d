#!/usr/bin/env python3
"""Public test suites of MPI-IO and of what is built on it judge libtabane_mpiio.so.

    mpi.py quick|full [--programs DIRECTORY] [--tools DIRECTORY] [--mpicc CC] [--mpiexec MPIEXEC] [SUITE[:TEST]]...

Suites: mpich (MPICH's test/mpi/io), romio (its src/mpi/romio/test); in full also mpi4py (test_io, test_file), hdf5
(testpar), pnetcdf (test, and its benchmark FLASH-IO) and h5py (what it tests on several processes). Each program runs
three times: over a directory of tmpfs with the MPI alone, over the names of a cluster (`tabane:`), and over a mount of
it, both with the library. What the MPI alone does not pass on tmpfs is not asked.

Programs that name their files themselves are told other names by a little library (mpi_names.c): what they say of their
working directory is what `tabane:` has. Sources come from Debian (`apt-get source`) and PyPI, and are built below
--tools once."""

import argparse
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

import public
import report as reports

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "scripts" / "suites"

# What can't pass by names that only MPI knows; on a mount it does. Of suite, test, and why.
BY_NAMES = [
    ("mpich", "simple_collective", "removes its file by unlink(2)"),
    ("romio", "external32", "reads its file by fopen(3)"),
    ("pnetcdf", "*", "looks at its files by open(2) before MPI does"),
    ("h5py", "*", "its files are in directories that are made by mkdir(2)"),
    ("hdf5", "t_pread", "opens its files by open(2) too"),
    ("hdf5", "t_filters_parallel", "makes files by open(2) on one process, and opens them by MPI"),
    ("hdf5", "testphdf5", "makes files by open(2) on one process, and opens them by MPI"),
]
# What can't pass with the library at all.
NOWHERE = [("romio", "file_info", "takes any striping_factor above 1 for a failure")]
# What takes gigabytes of memory, minutes, or a processor for each process.
LEFT_OUT = {
    "bigtype": "takes 6.5 GiB",
    "i_bigtype": "takes 6.5 GiB",
    "large_array": "takes 4 GiB",
    "large_file": "writes 4 GiB, and takes edits before it compiles",
    "perf": "is a benchmark",
    "coll_perf": "is a benchmark, and takes minutes over tmpfs",
    "zero_count": "opens nothing but its own program",
    "tst_version": "opens nothing",
    "t_init_term": "opens nothing",
    "syshints": "opens nothing but its own hints",
    "creat_excl": "spins until processes that share a core have all run",
}


# What MPI-3 and MPI-4 took away, and newer libraries no longer have.
REMOVED = re.compile(r"\b(MPIO_Request|MPI_(?:UB|LB|Address|Attr_\w+|Type_(?:struct|hvector|hindexed|extent|lb|ub)))\b")


class Place:
    """Where programs run: they stand below `directory`, with libraries before those of their own."""

    def __init__(self, name, directory, preloads=()):
        self.name, self.directory, self.preloads = name, pathlib.Path(directory), preloads

    def settings(self):
        if not self.preloads:
            return []
        # The library says which files it takes.
        return ["TABANE_MPIIO_EXPLAIN=1", "LD_PRELOAD=" + " ".join(str(library) for library in self.preloads)]


class Tools:
    """Sources and what is built of them."""

    def __init__(self, options):
        self.place = pathlib.Path(options.tools).resolve()
        self.mpicc = options.mpicc
        self.place.mkdir(parents=True, exist_ok=True)
        # Programs that this MPI has no longer what they take, and why.
        self.outdated = {}

    def run(self, words, cwd, log="build.log", **environment):
        with open(self.place / log, "a") as output:
            settings = dict(os.environ, **environment)
            result = subprocess.run([str(word) for word in words], cwd=cwd, stdout=output, stderr=output, env=settings)
        if result.returncode != 0:
            tail = (self.place / log).read_text(errors="replace")[-2000:]
            what = " ".join(map(str, words))
            sys.exit(f"suites: {what} failed; {self.place / log} ends with\n{tail}")

    def source(self, package):
        """The sources of a Debian package, of this system's release."""
        found = self.place / "source" / package
        if found.exists():
            return found
        print(f"suites: sources of {package}", flush=True)
        work = self.place / "source" / f"{package}.new"
        shutil.rmtree(work, ignore_errors=True)
        (work / "lists" / "partial").mkdir(parents=True)
        release = re.search(r"^VERSION_CODENAME=(\S+)", pathlib.Path("/etc/os-release").read_text(), re.M)
        if not release or not shutil.which("apt-get"):
            sys.exit("suites: this is no Debian, whose sources of mpich, hdf5 and pnetcdf are tested with")
        keys = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
        (work / "sources.list").write_text(f"deb-src {keys} http://deb.debian.org/debian {release[1]} main\n")
        settings = ["Dir::Etc::sourceparts=/dev/null", f"Dir::Etc::sourcelist={work}/sources.list"]
        settings += [f"Dir::State::lists={work}/lists", f"Dir::Cache={work}", "APT::Sandbox::User=root"]
        apt = ["apt-get", "-q", *(f"-o{setting}" for setting in settings)]
        self.run([*apt, "update"], work)
        self.run([*apt, "source", "--download-only", package], work)
        archive = next(path for path in work.iterdir() if ".orig.tar." in path.name)
        self.run(["tar", "xf", archive, "--one-top-level=tree", "--strip-components=1"], work)
        (work / "tree").rename(found)
        shutil.rmtree(work)
        return found

    def programs(self, suite, sources, includes=(), objects=()):
        """Builds programs of one file each, but those that take what was removed from the standard, where the MPI no
        longer has it; returns their directory."""
        place = self.place / suite
        place.mkdir(exist_ok=True)
        for source in sources:
            program = place / source.stem
            if program.exists():
                continue
            words = [self.mpicc, "-w", "-O1", *[f"-I{directory}" for directory in includes]]
            removed = self.removed([*words, "-fsyntax-only", source]) if REMOVED.search(source.read_text()) else None
            if removed:
                self.outdated[source.stem] = f"takes {removed}, which this MPI has no longer"
            else:
                self.run([*words, source, *objects, "-lm", "-lpthread", "-o", program], place)
        return place

    def compiler(self, kind):
        """The path of the MPI's compiler: CC, F77 or F90."""
        directory, _, name = self.mpicc.rpartition("/")
        name = name.replace("mpicc", f"mpi{kind.lower()}")
        found = shutil.which(f"{directory}/{name}" if directory else name)
        return found or sys.exit(f"suites: there is no {name}, which goes with {self.mpicc}")

    @staticmethod
    def removed(words):
        """What the compiler misses that is no longer of MPI."""
        result = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
        found = [REMOVED.search(line) for line in result.stderr.splitlines() if "error:" in line]
        return next((it[0] for it in found if it), None)

    def library(self, name, source):
        place = self.place / name
        flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-fPIC", "-shared"]
        self.run([self.mpicc, *flags, "-o", place, source, "-ldl"], self.place)
        return place


class Runner:
    """Runs a program at each place, and says what came of it."""

    def __init__(self, options, places, report, wanted, outdated):
        self.options, self.places, self.report, self.wanted, self.outdated = options, places, report, wanted, outdated

    def wants(self, name):
        return not self.wanted or name in self.wanted

    def once(self, place, suite, name, count, words, settings):
        """Whether a program passes, and how it ended. In its words and settings @files@ stands for where its files are
        by name, and @directory@ for where it stands."""
        directory = place.directory / f"{suite}-{re.sub(r'[^a-zA-Z0-9_]', '_', name)}"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        if place.name == "names":
            inside = f"/{suite}-{name}"
            self.tabane("mkdir", inside)
        files = f"tabane:{inside}" if place.name == "names" else str(directory)
        own = [setting.replace("@files@", files).replace("@directory@", str(directory)) for setting in settings]
        moved = [f"MPI_NAMES_FROM={directory}", f"MPI_NAMES_TO={files}"] if place.name == "names" else []
        words = [str(word).replace("@files@", files) for word in words]
        settings = [*place.settings(), *moved, *own]
        command = [*self.options.mpiexec.split(), "-n", count, "env", *settings, *words]
        output, status = public.command(command, self.options.limit, cwd=directory)
        taken = "is of the cluster: " in output
        output = re.sub(r"^tabane: .*\n", "", output, flags=re.M)
        bad = re.search(r"Found \d+ errors|^.*\b(?:FAILED|Failed)\b.*$|errors? (?:were|was) found", output, re.M)
        message = f"status {status}: " + (bad[0] if bad else output.strip()[-600:])
        good = status == 0 and not bad
        if good and place.preloads and not taken:
            good, message = False, "the library took none of its files"
        if good:
            shutil.rmtree(directory, ignore_errors=True)
        return good, message

    def tabane(self, *words):
        subprocess.run([str(self.options.programs / "tabane"), *words], check=True, stdout=subprocess.DEVNULL)

    def test(self, suite, name, count, words, settings=()):
        if name in LEFT_OUT or not self.wants(name):
            return
        if name in self.outdated:
            self.report.result(name, "left out", self.outdated[name])
            return
        alone, message = self.once(self.places[0], suite, name, count, words, settings)
        for place in self.places[1:]:
            title = f"{name} by {place.name}"
            why = reason(suite, name, place.name)
            if not alone:
                self.report.result(title, "left out", f"the MPI alone over tmpfs: {message.splitlines()[0]}")
            elif why:
                self.report.result(title, "left out", why)
            else:
                good, words_of = self.once(place, suite, name, count, words, settings)
                self.report.result(title, "passed" if good else "failed", "" if good else words_of)


def reason(suite, name, place):
    lists = NOWHERE + (BY_NAMES if place == "names" else [])
    return next((why for of, test, why in lists if of == suite and test in (name, "*")), None)


def mpich(run, tools):
    """MPICH's tests of MPI-IO, with the processes that its list says."""
    tree = tools.source("mpich") / "test" / "mpi"
    own = tools.place / "mpich-include"
    own.mkdir(exist_ok=True)
    headers = "STDLIB STRING STDARG UNISTD SYS_TIME SYS_TYPES SYS_STAT SYS_UIO MEMORY STDINT FCNTL".split()
    lines = [f"#define HAVE_{header}_H 1" for header in headers]
    lines.append("#define THREAD_PACKAGE_NAME THREAD_PACKAGE_POSIX")
    at_least = "((MPI_VERSION == a && MPI_SUBVERSION >= b) || MPI_VERSION > a)"
    lines.append(f"#define MTEST_HAVE_MIN_MPI_VERSION(a, b) {at_least}")
    (own / "mpitestconf.h").write_text("\n".join(lines) + "\n")
    shared = [tree / "util" / f"{name}.c" for name in ("mtest", "mtest_single", "mtest_common")]
    tests = {}
    for line in (tree / "io" / "testlist.in").read_text().splitlines():
        words = line.split()
        if words and words[0] not in LEFT_OUT and (tree / "io" / f"{words[0]}.c").exists():
            tests[words[0]] = int(words[1]), [word[4:] for word in words[2:] if word.startswith("arg=")]
    sources = [tree / "io" / f"{name}.c" for name in tests]
    place = tools.programs("mpich", sources, [own, tree / "include", tree / "util"], shared)
    for name, (count, arguments) in tests.items():
        run.test("mpich", name, count, [place / name, *arguments])


def romio(run, tools):
    """ROMIO's own tests, as its script runs them, but those in Fortran and those that are configured first."""
    tree = tools.source("mpich") / "src" / "mpi" / "romio" / "test"
    tests = {}
    calls = re.compile(r"^\s*\$mpirun -np (\d+) \./(\w+) (.*)$", re.M)
    for count, name, rest in calls.findall((tree / "runtests.in").read_text()):
        if (tree / f"{name}.c").exists() and name not in LEFT_OUT:
            arguments = rest.replace("$FILENAME", "test").replace("$srcdir", str(tree)).split()
            tests[name] = int(count), arguments
    place = tools.programs("romio", [tree / f"{name}.c" for name in tests])
    for name, (count, arguments) in tests.items():
        run.test("romio", name, count, [place / name, *arguments])


MPI4PY, H5PY = "4.1.2", "3.16.0"


def python(tools):
    """A Python of its own, with mpi4py built for the MPI at hand."""
    place = tools.place / "python"
    if not (place / "built").exists():
        print("suites: building mpi4py", flush=True)
        tools.run([sys.executable, "-m", "venv", place], tools.place)
        mpicc = tools.compiler("CC")
        tools.run(
            [place / "bin" / "pip", "-q", "install", "--no-binary", "mpi4py", f"mpi4py=={MPI4PY}"],
            tools.place, MPICC=mpicc, MPI4PY_BUILD_MPICC=mpicc,
        )
        (place / "built").touch()
    return place


def mpi4py(run, tools):
    """mpi4py's tests of files, built for the MPI at hand."""
    place = python(tools)
    if not (place / "tree").exists():
        own = ["--no-deps", "--no-binary", "mpi4py", f"mpi4py=={MPI4PY}"]
        tools.run([place / "bin" / "pip", "-q", "download", *own, "-d", place], tools.place)
        archive = place / f"mpi4py-{MPI4PY}.tar.gz"
        tools.run(["tar", "xf", archive, "--one-top-level=tree", "--strip-components=1"], place)
    main = [place / "bin" / "python", place / "tree" / "test" / "main.py", "-q"]
    for name in ("test_file", "test_io"):
        for count in (1, 4):
            run.test("mpi4py", f"{name} {count}", count, [*main, name], ["TMPDIR=@directory@"])


def hdf5(run, tools):
    """HDF5's parallel tests; the library is built from the same sources, for they know its inside."""
    tree = tools.source("hdf5")
    programs = "t_mpi t_init_term t_pread t_filters_parallel t_cache t_cache_image t_shapesame testphdf5".split()
    if not (tree / "built").exists():
        print("suites: building hdf5 (some ten minutes)", flush=True)
        how = "--enable-parallel --disable-hl --disable-fortran --disable-cxx --disable-shared"
        how = [*how.split(), "--enable-build-mode=production", "--with-default-api-version=v110"]
        tools.run(["./configure", *how], tree, CC=tools.mpicc, CFLAGS="-O1 -w")
        for words in (["src"], ["test", "libh5test.la"], ["testpar", *programs]):
            tools.run(["make", f"-j{os.cpu_count()}", "-C", *words], tree)
        (tree / "built").touch()
    for name in programs:
        run.test("hdf5", name, 4, [tree / "testpar" / name], ["HDF5_PARAPREFIX=@files@", "HDF5TestExpress=3"])


def pnetcdf(run, tools):
    """PnetCDF's tests of its C interface, each as its Makefile runs it in parallel, and FLASH-IO."""
    for needed in ("autoreconf", "libtoolize", "m4"):
        if not shutil.which(needed):
            sys.exit(f"suites: {needed} is missing, which pnetcdf is built with: apt-get install autoconf libtool m4")
    tree = tools.source("pnetcdf")
    if not (tree / "built").exists():
        print("suites: building pnetcdf", flush=True)
        how = ["--disable-cxx", "--disable-shared", "--enable-static"]
        compilers = {f"MPI{kind}": tools.compiler(kind) for kind in ("CC", "F77", "F90")}
        tools.run(["autoreconf", "-i"], tree)
        tools.run(["./configure", *how], tree, **compilers, CFLAGS="-O1 -w", FFLAGS="-O1 -w", FCFLAGS="-O1 -w")
        tools.run(["make", f"-j{os.cpu_count()}"], tree)
        for directory in ("common", "C", "testcases", "nonblocking"):
            tools.run(["make", f"-j{os.cpu_count()}", "-C", f"test/{directory}", "tests"], tree)
        tools.run(["make", "-C", "benchmarks/FLASH-IO", "flash_benchmark_io"], tree)
        (tree / "built").touch()
    flash = tree / "benchmarks" / "FLASH-IO" / "flash_benchmark_io"
    run.test("pnetcdf", "flash_benchmark_io", 4, [flash, "@files@/flash_"])
    found = set()
    for makefile in sorted((tree / "test").glob("*/Makefile")):
        if makefile.parent.name not in ("C", "testcases", "nonblocking"):
            continue
        for name in sorted(program_names(makefile.read_text())):
            program = makefile.parent / name
            if program.exists() and name not in found:
                found.add(name)
                run.test("pnetcdf", name, 4, [program, "@files@/test.nc"])


def h5py(run, tools):
    """h5py's tests that take several processes, each by itself, over Debian's HDF5 for MPICH."""
    place = python(tools)
    if not (place / "h5py-built").exists():
        print("suites: building h5py", flush=True)
        if not shutil.which("h5pcc"):
            sys.exit("suites: h5py takes the HDF5 of the package libhdf5-mpich-dev, whose h5pcc is missing")
        shown = subprocess.run(["h5pcc", "-show"], capture_output=True, text=True, check=True).stdout
        settings = {"HDF5_MPI": "ON", "CC": tools.compiler("CC")}
        for flag, name in ("-I", "HDF5_INCLUDEDIR"), ("-L", "HDF5_LIBDIR"):
            settings[name] = next((word[2:] for word in shown.split() if word.startswith(flag)), "")
        pip = [place / "bin" / "pip", "-q", "install"]
        # What it is built with is this mpi4py, and not another one of its own.
        needed = ["setuptools", "Cython", "numpy", "pkgconfig", "pytest", "pytest-mpi"]
        tools.run([*pip, "--upgrade", *needed], tools.place)
        own = ["--no-build-isolation", "--no-deps", "--no-binary", "h5py", f"h5py=={H5PY}"]
        tools.run([*pip, *own], tools.place, **settings)
        (place / "h5py-built").touch()
    pytest = [place / "bin" / "python", "-m", "pytest", "-q", "-s", "--with-mpi", "-m", "mpi", f"--rootdir={place}"]
    words = [str(word) for word in [*pytest, "--collect-only", "--pyargs", "h5py.tests"]]
    listed = subprocess.run(words, cwd=place, capture_output=True, text=True, check=False)
    tests = re.findall(r"^\S+::\S+$", listed.stdout, re.M)
    if not tests:
        sys.exit(f"suites: h5py has no tests of several processes: {listed.stdout[-600:]}{listed.stderr[-600:]}")
    for test in tests:
        name = re.sub(r"\W+", "-", test.partition("::")[2])
        run.test("h5py", name, 4, [*pytest, f"{place}/{test}"], ["TMPDIR=@directory@"])


def program_names(makefile):
    """Names after TESTPROGRAMS and check_PROGRAMS, with continued lines."""
    names = set()
    lists = re.compile(r"^(?:TESTPROGRAMS|check_PROGRAMS|TEST_PROGS)\s*\+?=\s*((?:.*\\\n)*.*)$", re.M)
    for value in lists.findall(makefile):
        names |= {word.removesuffix("$(EXEEXT)") for word in value.replace("\\\n", " ").split()}
    return {name for name in names if re.fullmatch(r"\w+", name)}


SUITES = {"mpich": mpich, "romio": romio, "mpi4py": mpi4py, "hdf5": hdf5, "pnetcdf": pnetcdf, "h5py": h5py}
QUICK = ("mpich", "romio")


def in_cluster(options, wanted):
    """Within the cluster that `main` has made, with its mount."""
    work = pathlib.Path(os.environ["TABANE_SUITES_MPI"])
    tools = Tools(options)
    preloads = (tools.library("mpi_names.so", HERE / "mpi_names.c"), options.library)
    (work / "names").mkdir()
    (work / "tmpfs").mkdir()
    places = [
        Place("tmpfs", work / "tmpfs"),
        Place("names", work / "names", preloads),
        Place("mount", work / "mount", [options.library]),
    ]
    report = reports.Report([])
    for suite, tests in wanted.items():
        report.begin(suite)
        SUITES[suite](Runner(options, places, report, tests, tools.outdated), tools)
        report.end(whole=False)
    sys.exit(0 if report.summary() else 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("form", choices=["quick", "full"])
    parser.add_argument("suites", nargs="*", metavar="SUITE[:TEST]")
    target = ROOT / "target"
    parser.add_argument("--programs", type=pathlib.Path, default=target / "release", help="where `tabane` is")
    parser.add_argument("--library", type=pathlib.Path, default=target / "mpiio" / "libtabane_mpiio.so")
    parser.add_argument("--tools", default=target / "suites-mpi", help="where sources and tests are, or come to be")
    parser.add_argument("--mpicc", default="mpicc.mpich")
    parser.add_argument("--mpiexec", default="mpiexec.hydra")
    parser.add_argument("--limit", type=int, help="seconds that one program may take (120; 1800 in full)")
    options = parser.parse_intermixed_args()
    options.programs, options.library = options.programs.resolve(), options.library.resolve()
    options.limit = options.limit or (1800 if options.form == "full" else 120)
    for needed in (options.programs / "tabane", options.library):
        if not needed.exists():
            parser.error(f"there is no {needed}: `make build mpiio MPICC={options.mpicc}` makes it")
    wanted = {}
    for entry in options.suites or (QUICK if options.form == "quick" else SUITES):
        suite, _, test = entry.partition(":")
        if suite not in SUITES:
            parser.error(f"there is no suite {suite}; there are {', '.join(SUITES)}")
        wanted.setdefault(suite, []).extend([test] if test else [])
    if "TABANE_SUITES_MPI" in os.environ:
        in_cluster(options, wanted)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # What runs is ended, and the mount taken away, before the directory goes.
    with tempfile.TemporaryDirectory(prefix="tabane-mpi-", dir="/dev/shm") as work:
        mount = pathlib.Path(work) / "mount"
        mount.mkdir()
        how = ["--run-directory", f"{work}/run", "--servers", "2", "--store", "memory:size=2G", "--mount", mount]
        words = [options.programs / "tabane", "run", *how, "--", sys.executable, "-B", __file__, *sys.argv[1:]]
        cluster = subprocess.Popen([str(word) for word in words], env=dict(os.environ, TABANE_SUITES_MPI=work))
        try:
            status = cluster.wait()
        except BaseException:
            cluster.terminate()
            cluster.wait()
            raise
    sys.exit(status)


if __name__ == "__main__":
    main()
