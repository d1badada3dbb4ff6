# The front door. It needs git and make only; everything else it installs (Debian packages, in
# groups, only those that are missing) or fetches into .cache/ (pinned by hash). CMake does the
# building; `cmake --preset release` works just as well once `make artefacts` has run.
#
#   JOBS=N        parallel compilations (default: number of cores)
#   TEST_JOBS=N   parallel tests (default 2: end-to-end tests keep a core busy each)
#   ARGS="..."    more arguments for ctest (make test), the demo (make demo) or the bench
#                 (make bench-peers)
#   PART=NAME     the one part of make check-long to run
#   ROOMS=N       rooms of make interop's tests with many (default 1000)
#   SEEDS=N       the most seeds that make soak runs now (0: no end)
#   PEERS="..."   the peers of make bench-peers (default: all that there are)
#   KVFERRY_CACHE=DIR   keep downloads in DIR, which several clones may share

SHELL := /bin/bash
.DEFAULT_GOAL := build
.NOTPARALLEL:
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory --no-builtin-rules

JOBS ?= $(shell nproc)
TEST_JOBS ?= 2
ARGS ?=
HANDOFF_ARGS ?=
PART ?=
SEEDS ?= 0
PEERS ?=

PYTHON := /usr/bin/python3
SETUP := tools/setup
STAGE := $(SETUP)/stage.sh
KVFERRY := build/release/kvferry
MODEL_Q4_1 := .cache/model/SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_Q4_0 := .cache/model/SmolLM2-135M-Instruct.Q4_0.gguf

.PHONY: build demo test asan tsan check check-long soak bench-peers interop coverage tidy format format-check \
        packages artefacts test-venv test-packages asan-packages check-packages clean help

build: packages artefacts build/release/build.ninja  ## Build everything (build/release); the default
	@$(STAGE) build cmake --build build/release -j $(JOBS)

demo: packages artefacts build/release/build.ninja  ## Run the main job end to end with the real model
	@$(STAGE) build cmake --build build/release -j $(JOBS) --target kvferry
	@$(call quantise,$(KVFERRY))
	@$(KVFERRY) demo $(ARGS)

# ctest runs last and alone: its summary is the last thing printed.
test: test-venv build  ## Build everything and run all tests
	@$(call quantise,$(KVFERRY))
	@ctest --test-dir build/release --output-on-failure --no-tests=error -j $(TEST_JOBS) $(ARGS)

asan: asan-packages test-venv artefacts build/asan/build.ninja  ## Unit, conformance and one end-to-end test under sanitizers
	@$(STAGE) 'build (sanitizers)' cmake --build build/asan -j $(JOBS)
	@$(call quantise,build/asan/kvferry)
	@export UBSAN_OPTIONS=print_stacktrace=1; \
	ctest --test-dir build/asan --output-on-failure --no-tests=error -j $(TEST_JOBS) \
	      -L 'unit|conformance|hostile|e2e_asan'

tsan: packages artefacts  ## Conformance, data plane, net and runtime tests under ThreadSanitizer
	@$(SETUP)/packages.sh tsan
	@$(PYTHON) tools/tsan.py --jobs $(JOBS)

check: check-packages artefacts build/release/build.ninja  ## Check layers, core symbols and format
	@$(PYTHON) tools/check_layers.py
	@tools/format.sh --check
	@cmake --build build/release -j $(JOBS) --target check_core_symbols

check-long: packages artefacts  ## Run the long checks; goes on where it stopped (PART=name: only that)
	@JOBS=$(JOBS) $(PYTHON) tools/check_long.py $(PART)

interop: test-venv build  ## Real SGLang on the other side, in long form (ROOMS=N: so many in flight tests)
	@KVFERRY_INTEROP_ROOMS=$(or $(ROOMS),1000) ctest --test-dir build/release --output-on-failure \
	  --no-tests=error -L interop $(ARGS)

soak: build  ## Run ever more seeds of the simulator (SEEDS=N: at most so many now)
	@$(PYTHON) tools/soak.py --seeds $(SEEDS)

# Installs the peers itself, one by one: one that can't be had leaves the others measurable.
# PEERS=sglang: whole rooms alone, without it also the transports; ARGS go to bench transfer,
# HANDOFF_ARGS to bench handoff.
bench-peers: build  ## Compare transports and whole rooms with other transfer layers in the same rounds
	@code=0; \
	$(if $(filter-out sglang,$(or $(PEERS),all)),$(PYTHON) bench/peers/bench_peers.py --kvferry $(KVFERRY) \
	  --peers "$(filter-out sglang,$(PEERS))" -- $(ARGS) || code=1;) \
	$(if $(filter sglang,$(or $(PEERS),sglang)),$(PYTHON) bench/peers/sglang_bench.py --kvferry $(KVFERRY) \
	  -- $(HANDOFF_ARGS) || code=1;) \
	exit $$code

coverage: packages artefacts  ## Measure the coverage of core, wire and layout by their unit tests
	@$(SETUP)/packages.sh coverage
	@$(PYTHON) tools/coverage.py --jobs $(JOBS) $(ARGS)

tidy: packages artefacts  ## Run clang-tidy
	@$(SETUP)/packages.sh tidy
	@$(PYTHON) tools/tidy.py --jobs $(JOBS) $(ARGS)

format:  ## Format all C++ files
	@$(SETUP)/packages.sh format
	@tools/format.sh

format-check:  ## Say which C++ files are not formatted
	@$(SETUP)/packages.sh format
	@tools/format.sh --check

packages:  ## Install the Debian packages that a build needs
	@$(SETUP)/packages.sh build demo

artefacts: packages  ## Fetch the engine and the model into .cache/
	@$(PYTHON) $(SETUP)/artefacts.py

clean:  ## Remove build/; downloads in .cache/ stay
	rm -rf build

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18
	@sed -n 's/^#   \([A-Z_]*=\)/  \1/p' $(firstword $(MAKEFILE_LIST))

test-venv: test-packages
	@$(PYTHON) $(SETUP)/venv.py e2e
	@$(PYTHON) $(SETUP)/venv.py python
	@$(PYTHON) $(SETUP)/venv.py --no-deps peer-sglang
	@$(PYTHON) $(SETUP)/venv.py router

test-packages:
	@$(SETUP)/packages.sh build demo test spec

asan-packages:
	@$(SETUP)/packages.sh build demo test spec sanitize

check-packages:
	@$(SETUP)/packages.sh build demo format

# Only the first configuration is ours; later changes of CMake's files are noticed by the build.
build/%/build.ninja: CMakePresets.json | packages artefacts
	@$(STAGE) 'configure ($*)' cmake --preset $*

# Q4_0 is the same model in a format whose prefill is 2.5 times faster; made once, from Q4_1, by
# the binary that the caller names.
define quantise
if [ ! -s $(MODEL_Q4_0) ] || [ $(MODEL_Q4_1) -nt $(MODEL_Q4_0) ]; then \
  partial=$(dir $(MODEL_Q4_0)).partial-$$$$-$(notdir $(MODEL_Q4_0)); \
  trap 'rm -f "$$partial"' EXIT; \
  $(STAGE) 'quantise the model' $(1) quantize --input $(MODEL_Q4_1) --output "$$partial" && \
  mv "$$partial" $(MODEL_Q4_0); \
fi
endef
