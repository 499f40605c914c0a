# SPDX-License-Identifier: Apache-2.0
# One target per job; each does its own set-up. `make` alone lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Debian's python3, which sees Debian's numpy and pytest whatever else is first on PATH.
PYTHON ?= /usr/bin/python3
FUZZ_SECONDS ?= 20
# Parallel jobs: one per core, and no more than the memory carries (about 1 GB a job).
JOBS ?= $(shell awk -v cores="$$(nproc)" '/MemAvailable/ {gb = int($$2 / 1048576); n = gb < cores ? gb : cores; print n < 1 ? 1 : n}' /proc/meminfo)
export PYTHON FUZZ_SECONDS JOBS
export PYTHONDONTWRITEBYTECODE := 1

BUILD := build/release
ROUTEPACK := $(CURDIR)/$(BUILD)/bin/routepack
PYTEST := $(PYTHON) -m pytest -q -p no:cacheprovider

.PHONY: help demo build test test-core python cross check check-long bench format clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: build  ## build, plan a step of real gpt-oss-20b routing, show before and after
	@scripts/demo.sh

build:  ## build/release/bin/routepack: the library and the command line (for MPI where found), no tests
	@scripts/setup.sh core
	@[[ -f $(BUILD)/build.ninja ]] || cmake --preset release -DROUTEPACK_TESTS=OFF --log-level=WARNING
	@cmake --build $(BUILD) --parallel $(JOBS) --target programs

test: cross  ## everything that must pass: test-core, and what needs PyPI: the Python package and cross-tests

test-core:  ## C++ and end-to-end tests; Debian packages only
	@scripts/setup.sh core mpi test
	@cmake --preset release -DROUTEPACK_TESTS=ON --log-level=WARNING
	@cmake --build $(BUILD) --parallel $(JOBS)
	@ctest --test-dir $(BUILD) --output-on-failure --parallel $(JOBS) --no-tests=error
	@ROUTEPACK_BIN=$(ROUTEPACK) $(PYTEST) tests/e2e

python:  ## .venv with the Python package, built from here, and the Python test tools
	@scripts/python_package.sh

cross: test-core
	@scripts/cross_tests.sh

check:  ## format, lint, every preset with its tests, short fuzzing, the docs' commands
	@scripts/setup.sh core mpi test check
	@scripts/check.sh

check-long:  ## the same with ten minutes per fuzz target, 5000 cases per property, millions of moves, and the long Python tests
	@$(MAKE) check FUZZ_SECONDS=600 RC_PARAMS=max_success=5000 ROUTEPACK_LONG=1 HYPOTHESIS_PROFILE=long
	@RC_PARAMS=max_success=100000 $(BUILD)/bin/property_tests --gtest_filter='SearchLaws.the_price*:SearchLaws.every_layout*'

bench:  ## build and run the benchmarks
	@scripts/setup.sh core check
	@cmake --preset bench --log-level=WARNING
	@cmake --build build/bench --parallel $(JOBS)
	@scripts/bench.sh build/bench

format:  ## rewrite the C++ sources with clang-format
	@scripts/setup.sh check
	@scripts/format.sh

clean:  ## delete build/ and .venv
	@rm -rf build .venv
