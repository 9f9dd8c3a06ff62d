# make demo      a first look: builds, starts four servers, copies a real tree in and out, compares, measures, cleans up
# make test      all tests and lints
# make suites    public test suites and ordinary programs judge two mounts of a cluster (as root; the quick form)
# make install   PREFIX=/usr/local (default); make uninstall takes everything away again

PREFIX ?= /usr/local
CARGO ?= cargo
CARGO_TARGET_DIR ?= $(CURDIR)/target
export CARGO_TARGET_DIR

RELEASE := $(CARGO_TARGET_DIR)/release
VERSION := $(shell sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
SEEDS ?= 0..1000
JOBS ?= 2

.PHONY: all setup build test suites demo install uninstall

all: build

setup:
	@sh scripts/setup.sh

build: setup
	$(CARGO) build --release --workspace

test: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) test --workspace
	$(CARGO) run --release -p sim -- --seeds $(SEEDS) --jobs $(JOBS)

suites: build
	@python3 -B scripts/suites/run.py quick --programs $(RELEASE) --tools $(CARGO_TARGET_DIR)/suites

demo: build
	@sh scripts/demo.sh $(RELEASE)

install: build
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include
	install -m 755 $(RELEASE)/tabane $(RELEASE)/tabane-bench $(DESTDIR)$(PREFIX)/bin/
	install -m 755 $(RELEASE)/libtabane.so $(RELEASE)/libchfs.so $(DESTDIR)$(PREFIX)/lib/
	install -m 644 crates/capi/include/tabane.h crates/chfs/include/chfs.h $(DESTDIR)$(PREFIX)/include/
	for file in crates/capi/tabane.pc crates/chfs/chfs.pc; do \
	  sed -e 's|@prefix@|$(PREFIX)|' -e 's|@libdir@|$(PREFIX)/lib|' -e 's|@includedir@|$(PREFIX)/include|' \
	    -e 's|@version@|$(VERSION)|' $$file.in > $(DESTDIR)$(PREFIX)/lib/pkgconfig/$${file##*/} || exit 1; \
	done

uninstall:
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/, bin/tabane bin/tabane-bench lib/libtabane.so lib/libchfs.so \
	  include/tabane.h include/chfs.h lib/pkgconfig/tabane.pc lib/pkgconfig/chfs.pc)
