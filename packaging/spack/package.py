# Copyright Spack Project Developers. See COPYRIGHT file for details.
#
# SPDX-License-Identifier: (Apache-2.0 OR MIT)

from spack_repo.builtin.build_systems.makefile import MakefilePackage

from spack.package import *


class Tabane(MakefilePackage):
    """Tabane bundles the node-local storage of a job into one parallel file system for
    as long as the job runs: a mount, command-line tools, and C libraries, one of them
    with the interface of CHFS."""

    # The sources are the tree that this recipe lies in: spack dev-build, or spack develop --path.
    manual_download = True

    license("Apache-2.0")

    version("develop")

    variant("fuse", default=True, description="See to fusermount3, for mounts without root")

    depends_on("c", type="build")
    depends_on("rust@1.95:", type="build")
    depends_on("gmake", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("libfuse@3:", type=("build", "run"), when="+fuse")

    conflicts("platform=darwin", msg="Tabane is for Linux")
    conflicts("platform=windows", msg="Tabane is for Linux")

    def build(self, spec, prefix):
        # 'make setup' would look for packages of Debian; Spack has seen to what is needed.
        make("build", "SETUP=0", "CARGO_TARGET_DIR={0}".format(self.stage_target))

    def install(self, spec, prefix):
        make(
            "install",
            "SETUP=0",
            "PREFIX={0}".format(prefix),
            "CARGO_TARGET_DIR={0}".format(self.stage_target),
        )

    @property
    def stage_target(self):
        return join_path(self.stage.path, "target")

    def setup_run_environment(self, env):
        env.prepend_path("LD_LIBRARY_PATH", self.prefix.lib)

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        tabane = Executable(self.prefix.bin.tabane)
        tabane("run", "--servers", "2", "--store", "memory:size=64M", "--", "true")
