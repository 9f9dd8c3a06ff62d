# make demo      a first look: builds, starts four servers, copies a real tree in and out, compares, measures, cleans up
# make test      all tests and lints
# make models    loom models of the memory that processes share: all orders in which two can meet
# make suites    public test suites and ordinary programs judge two mounts of a cluster (as root; the quick form;
#                FULL=1: the full one, which takes hours, after the same on ext4, and mpi-suites)
# make mpi-suites   public tests of MPI-IO judge libtabane_mpiio.so, by MPICC (mpicc) and MPIEXEC (mpiexec); FULL=1:
#                those of mpi4py, HDF5 and PnetCDF too
# make mpiio     libtabane_mpiio.so for the MPI whose compiler is MPICC (mpicc), for `tabane run --mpi MPI`; MPI is what
#                follows the dot of MPICC, else mpi. mpiio-test tries it, with the same programs over tmpfs beside it.
#                MPIIO: where it goes (target/mpiio/MPI); `make install` installs what lies below target/mpiio
# make install   PREFIX=/usr/local (default); make uninstall takes everything away again
# make book      the book as web pages (takes mdbook); make book-test checks it and runs every command that it shows
# make deb       a Debian package; make tarball an archive with programs that need no library (PACKAGES: where they go)

PREFIX ?= /usr/local
CARGO ?= cargo
CARGO_TARGET_DIR ?= $(CURDIR)/target
export CARGO_TARGET_DIR

RELEASE := $(CARGO_TARGET_DIR)/release
VERSION := $(shell sh scripts/version.sh)
PACKAGES ?= $(CARGO_TARGET_DIR)/packages
# What `tabane --version` says of the sources.
export TABANE_REVISION := $(shell sh scripts/revision.sh)
SEEDS ?= 0..1000
JOBS ?= 2
LANES ?= 3
SETUP ?= 1
MPICC ?= mpicc
MPIEXEC ?= mpiexec
# The kind of MPI, by Debian's names of compilers: mpich of mpicc.mpich.
MPI ?= $(or $(patsubst .%,%,$(suffix $(notdir $(firstword $(MPICC))))),mpi)
MPIIO ?= $(CARGO_TARGET_DIR)/mpiio/$(MPI)

.PHONY: all setup build test models suites mpi-suites mpiio mpiio-test demo install uninstall deb tarball book book-test

all: build

# SETUP=0: whoever builds has seen to everything, as packagers do.
setup:
	@[ "$(SETUP)" = 0 ] || sh scripts/setup.sh

build: setup
	$(CARGO) build --release --workspace

test: setup
	@python3 -B scripts/columns.py
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) build --workspace --lib
	TABANE_IS_BUILT=1 python3 -B scripts/tests.py $(CARGO)
	$(CARGO) fmt --manifest-path crates/overlap/Cargo.toml --check
	$(CARGO) clippy --manifest-path crates/overlap/Cargo.toml --target-dir target --all-targets -- -D warnings
	$(CARGO) test --manifest-path crates/overlap/Cargo.toml --target-dir target
	$(CARGO) build --release --workspace
	$(RELEASE)/sim --list crates/sim/seeds.txt --jobs $(JOBS)
	$(RELEASE)/sim --list crates/sim/seeds_backing.txt --backing --jobs $(JOBS)
	$(RELEASE)/sim --seeds $(SEEDS) --jobs $(JOBS)

# A directory of their own: whatever is built with other flags would be built anew each time.
models: setup
	CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/loom RUSTFLAGS="--cfg loom" \
	  $(CARGO) test --profile checked -p shm --test loom_models $(MODELS)

suites: build
	@python3 -B scripts/suites/run.py $(if $(FULL),full --lanes $(LANES),quick) \
	  --programs $(RELEASE) --tools $(CARGO_TARGET_DIR)/suites
	@python3 -B scripts/suites/run.py $(if $(FULL),full --lanes $(LANES),quick) --backing \
	  --programs $(RELEASE) --tools $(CARGO_TARGET_DIR)/suites $(if $(FULL),,pjdfstest fsx)

ifdef FULL
suites: mpi-suites
endif

mpi-suites: build mpiio
	@python3 -B scripts/suites/mpi.py $(if $(FULL),full,quick) --programs $(RELEASE) --mpicc $(MPICC) \
	  --mpiexec "$(MPIEXEC)" --library $(MPIIO)/libtabane_mpiio.so --tools $(CARGO_TARGET_DIR)/suites-mpi

# One library for each kind of MPI; it finds libtabane beside itself.
mpiio:
	@[ -e $(RELEASE)/libtabane.so ] || $(CARGO) build --release -p tabane-capi
	@mkdir -p $(MPIIO)
	@ln -sf $(abspath $(RELEASE))/libtabane.so $(MPIIO)/libtabane.so.0
	@$(MAKE) --no-print-directory -B -C mpiio MPICC="$(MPICC)" OUT=$(abspath $(MPIIO)) \
	  INCLUDE=$(CURDIR)/crates/capi/include LIBTABANE=$(abspath $(MPIIO))/libtabane.so.0

mpiio-test: mpiio
	@sh mpiio/tests/run.sh $(RELEASE) $(MPIIO) $(MPICC) $(MPIIO_TESTS)
	@sh mpiio/tests/faults.sh $(RELEASE) $(MPIIO) $(MPICC) $(MPIIO_FAULTS)

# Contents, links and pictures of the book, and every command that it shows.
book-test: build
	@python3 -B scripts/book.py check
	@python3 -B scripts/book.py run --programs $(RELEASE)

book:
	@python3 -B scripts/book.py check
	@command -v mdbook >/dev/null || { echo "book: mdbook is missing: cargo install mdbook --locked" >&2; exit 1; }
	mdbook build --dest-dir $(CARGO_TARGET_DIR)/book
	@echo "open $(CARGO_TARGET_DIR)/book/index.html"

demo: build
	@sh scripts/demo.sh $(RELEASE)

install: build
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" PROGRAMS="$(RELEASE)" LIBRARIES="$(RELEASE)" VERSION="$(VERSION)" \
	  MPIIO="$(CARGO_TARGET_DIR)/mpiio" sh scripts/install.sh install
	@echo "tabane is in $(PREFIX)/bin; 'make uninstall PREFIX=$(PREFIX)' takes everything away again"

uninstall:
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" sh scripts/install.sh uninstall

# The programs and libraries of packages are built apart, because what they are told about paths would make cargo build
# everything anew for whoever changes between these and `make build`.
deb: setup
	@mkdir -p $(PACKAGES)
	@sh packaging/build.sh $(CARGO_TARGET_DIR)/package
	@sh packaging/deb.sh $(CARGO_TARGET_DIR)/package $(PACKAGES)

tarball: setup
	@mkdir -p $(PACKAGES)
	@sh packaging/build.sh $(CARGO_TARGET_DIR)/package static
	@sh packaging/tarball.sh $(CARGO_TARGET_DIR)/package $(PACKAGES)

