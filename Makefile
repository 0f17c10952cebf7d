# make demo   the whole pipeline on this machine's own Python documentation (4 to 9 minutes)
# make test   lint, types, import rules, shell scripts, unit tests (make test-slow has the others)
# Both set up .venv on their first run and start at once afterwards.

PYTHON ?= python3
FAISS ?= cpu# or gpu, on a CUDA machine
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready-$(FAISS)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start many processes: without compiled files each of them compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo demo-short test test-slow attack lint audit dist pipelines wheel docs bench bench-gpu clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -3

setup: $(STAMP)

$(STAMP): setup.py pyproject.toml constraints.txt starbucks_retrieval/version.py
	@echo "setting up $(VENV) (a few minutes, about 2 GB, once)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(FAISS),demo,dev]'
	@touch $@

demo: setup
	@$(BIN)/python -m starbucks_retrieval.demo

demo-short: setup
	@$(BIN)/python -m starbucks_retrieval.demo --short

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/codespell
	@find examples -name '*.sh' -print0 | xargs -0 --no-run-if-empty $(BIN)/shellcheck

# After the loss of a worker --dist loadfile waits for ever; without a restart it ends and names the test.
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile --max-worker-restart 0 --durations 20 --durations-min 5 -q

test: lint
	@$(PYTEST) -m 'not slow and not attack'

test-slow: setup
	@$(PYTEST) -m 'slow and not attack'

attack: setup
	@$(PYTEST) -m attack tests/attack

pipelines: setup
	@work=$$(mktemp -d) && trap 'rm -rf "$$work"' EXIT && PYTHON=$(abspath $(BIN)/python) WORK=$$work/msmarco DATA= \
		METHODS=starbucks PASSAGES=200 QUERIES=20 TRAIN_QUERIES=80 PRETRAIN_STEPS=2 STEPS=4 examples/msmarco/run.sh

wheel: setup
	@.ci/wheel

dist:
	@PYTHON=$(PYTHON) .ci/dist dist

audit:
	@$(PYTHON) .ci/audit

docs: setup
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Without those that need a GPU, or flags that name stores or data.
bench: setup
	@set -e; for file in $$(grep -L 'required=True' bench/*_*.py); do \
		case $$file in *_gpu.py|bench/other_environment.py) continue;; esac; $(BIN)/python $$file; done

bench-gpu: setup
	@$(BIN)/python bench/gpu.py

clean:
	rm -rf build dist *.egg-info demo-out demo-short-out
