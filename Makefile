# Everything a developer types. Each target makes the environment it needs by itself.
#
#   make run     install, start a local cluster and replay a real request trace
#   make test    all tests (make test FAST=1 leaves out the slow ones; ARGS="..." goes to pytest)
#   make test-rdma   RDMA tests on a software device in a virtual machine (QEMU; three minutes, more beside other work)
#   make test-rdma-quick   the few of them that .ci/run has time for; skipped where there is no QEMU, or no time
#   make lint    ruff, format check, mypy
#   make docs    write the generated reference pages again
#   make simulate   random schedules of the whole cluster in virtual time (SEEDS=10000 FIRST=0)
#   make soak    real processes under load and random kills (SECONDS=600 ARGS=--ha)
#   make reports  the field reports' checks at the reports' own numbers (an hour), with figures
#   make nightly  the three above, with seeds of the day
#   make jitter  tests while threads of all processes stop at odd places (ARGS=tests/integration/node)
#   make bench   compare with other stores on this machine, into build/bench.json
#   make clean   remove what the above has built

SHELL := /bin/bash
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
# The newest of the interpreters that are on the path; PYTHON=... chooses another one.
PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11,\
	$(if $(shell $(name) -c 'import sys; print(sys.version_info >= (3, 11) or "")' 2>/dev/null | grep True),$(name))))
WORKERS ?= 2
ARGS ?=
RDMA_SECONDS ?= 1800
RDMA_MAY_SKIP ?=
RDMA_QUICK := $(addprefix tests/rdma/,\
	test_contract.py::test_a_large_transfer_goes_over_several_queue_pairs \
	$(addprefix test_contract.py::TestRdma::,test_what_was_written_can_be_read \
		test_scattered_targets_take_the_payload_in_order test_another_identity_than_the_one_wanted_is_stale \
		test_one_flipped_bit_anywhere_in_the_header_is_found test_a_freed_attempt_is_refused_and_leaves_no_trace) \
	test_contract.py::TestAsyncRdma::test_what_was_written_can_be_read \
	test_faults.py::test_a_queue_pair_in_error_is_replaced_within_the_call \
	test_cluster.py::test_objects_go_there_and_back test_cluster.py::test_a_slice_of_a_trace_is_replayed)

.PHONY: help run test test-rdma test-rdma-quick lint format docs simulate soak reports nightly jitter bench clean

help:
	@sed -n 's/^#   make/  make/p' Makefile

$(BIN)/python:
	@$(if $(PYTHON),$(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || { \
		echo "make: Python 3.11 or newer is needed; not found$(PYTHON:%= as %), name one with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "make: $(PYTHON) cannot create a virtual environment (is its venv module installed?)" >&2; exit 1; }

# Installed again whenever pyproject.toml (dependencies and entry points) or constraints.txt (versions of tools) has changed.
$(VENV)/.runtime: pyproject.toml | $(BIN)/python
	@echo "installing mooncake-store into $(VENV)"
	@$(PIP) --editable .
	@touch $@

$(VENV)/.develop: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing mooncake-store and its development tools into $(VENV)"
	@$(PIP) --constraint constraints.txt --editable '.[dev]'
	@touch $(VENV)/.runtime $@

run: $(VENV)/.runtime
	@$(BIN)/mooncake-store replay conversation --local $(ARGS)

# In small portions: an eighth of all tests, which a worker gets first otherwise, may hold most of the slow ones.
test: $(VENV)/.develop
	@$(BIN)/python -m pytest --numprocesses=$(WORKERS) --maxschedchunk=20 $(if $(FAST),-m "not slow") $(ARGS)

# Contract suite, faults, clients, and a replay between processes, all in the guest.
# Compiled here, tests too (collecting them does that), as it takes long in the guest. Status 77: there can be no guest.
test-rdma: $(VENV)/.develop
	@$(BIN)/python -m compileall -q mooncake_store master storage_node client tests
	@$(BIN)/python -m pytest -p no:cacheprovider --quiet --collect-only tests/rdma >/dev/null
	@tests/rdma/guest -t $(RDMA_SECONDS) $(BIN)/python -m pytest -p no:cacheprovider --timeout=300 --color=no -o faulthandler_timeout=0 \
		$(or $(ARGS),--quiet tests/rdma) || { status=$$?; [ -n "$(RDMA_MAY_SKIP)" ] && \
		case $$status in 77|124) echo "skipped: RDMA in a virtual machine, for the reason above"; exit 0;; esac; exit $$status; }

test-rdma-quick:
	@$(MAKE) --no-print-directory test-rdma RDMA_MAY_SKIP=yes RDMA_SECONDS=600 ARGS="--quiet $(RDMA_QUICK)"

lint: $(VENV)/.develop
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/.develop
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(VENV)/.develop
	@$(BIN)/python -m mooncake_store.reference docs/reference

simulate: $(VENV)/.develop
	@$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),10000) --first $(or $(FIRST),0) $(ARGS)

soak: $(VENV)/.develop
	@$(BIN)/python -m tests.faults.soak --seconds $(or $(SECONDS),600) $(ARGS)

reports: $(VENV)/.develop
	@FIELD_REPORTS=full $(BIN)/python -m pytest -k fr_ $(or $(ARGS),--quiet tests/faults tests/integration/ha)

nightly:
	@$(MAKE) --no-print-directory simulate FIRST=$$(($$(date +%s) / 86400 * 10000)) ARGS=
	@$(MAKE) --no-print-directory soak ARGS=
	@$(MAKE) --no-print-directory reports ARGS=

jitter: $(VENV)/.develop
	@JITTER=yes PYTHONPATH=tests/kit/jitter $(BIN)/python -m pytest --numprocesses=$(WORKERS) --timeout=600 \
		$(or $(ARGS),--quiet tests/contract tests/integration tests/faults)

bench: $(VENV)/.develop
	@$(BIN)/python -m tests.bench $(ARGS)

clean:
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
