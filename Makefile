# make demo    set everything up, run the main job on a slow source, print the table
# make test    set everything up, run the tests
# make lint    ruff and strict types
# make bench   measure, write build/bench.json, print the table (BENCH='PATTERN ...' for some of it)
# make clean   remove .venv and build
#
# Everything is made inside the tree (.venv, build); only what the operating system must provide is installed
# outside, with apt, where that is possible (scripts/system_deps.sh).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# pip's warnings are of no use to whoever only wants to run this, unless it fails.
PIP_LOG := $(VENV)/pip.log
PIP = echo "  $(1)"; $(BIN)/python -m pip --disable-pip-version-check --no-input install $(2) >$(PIP_LOG) 2>&1 \
	|| { tail -n 40 $(PIP_LOG) >&2; exit 1; }

# torchvision's metadata asks for a newer torch than the one whose CPU build is at hand; it runs with this one
# (see scripts/torchvision_import.py), so it is installed without its dependencies.
TORCH := torch==2.13.0
TORCHVISION := torchvision==0.29.2
, := ,

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench clean
.SUFFIXES:

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

demo: $(READY)
	@$(BIN)/python scripts/demo.py $(DEMO)

test: $(READY)
	@$(BIN)/python -m pytest -q $(TEST)

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/mypy

bench: $(READY) build/reader
	@sh scripts/system_deps.sh --optional bindfs
	@$(BIN)/python scripts/bench.py $(addprefix --only ,$(BENCH))

clean:
	rm -rf $(VENV) build nopfsfs.egg-info

$(READY): setup.cfg pyproject.toml Makefile scripts/system_deps.sh
	@sh scripts/system_deps.sh
	@echo "Setting up $(VENV) (once; a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(call PIP,torch,$(TORCH))
	@$(call PIP,torchvision,--no-deps $(TORCHVISION))
	@$(call PIP,nopfsfs and its tools,-e '.[test$(,)lint$(,)demo]')
	@touch $@

build/reader: scripts/readers/reader.c
	@mkdir -p build
	@$(CC) -O2 -Wall -Wextra -Werror -o $@ $<
