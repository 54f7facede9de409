# Every target sets up what it needs in .venv first; nothing else on the machine is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
OUT ?= out
# The tests run on every core: each process gets one thread.
WORKERS ?= auto

.PHONY: help setup demo test check bench clean
help:
	@echo "make demo   set up, simulate the four cases of the theory, draw them"
	@echo "make test   set up, run the tests"
	@echo "make check  lint and type-check"
	@echo "make bench  measure the speeds that the README quotes"

setup: $(VENV)/.ready
$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "oversmooth needs Python 3.11 or newer; name one with make PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[test,check]'
	@touch $@

$(VENV)/.ready-bench: $(VENV)/.ready
	$(PIP) --editable '.[bench]'
	@touch $@

demo: setup
	@mkdir -p $(OUT)
	$(BIN)/oversmooth simulate --output $(OUT)/simulate.png
	@echo "The picture lies in $(OUT)/simulate.png"

test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -q

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.ready-bench
	$(BIN)/python benchmarks/spectra.py

clean:
	rm -rf $(VENV) $(OUT) .pytest_cache .mypy_cache .ruff_cache .hypothesis
