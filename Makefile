# Everything a newcomer needs, each target with its own set-up: make demo, make test.
# Python 3.11 or newer and make are all that must be there before.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Some CPUs announce AMX instructions that they cannot run; bf16 products then end in
# "Illegal instruction" unless oneDNN is kept to AVX-512. Read when torch is imported.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16

.PHONY: setup demo test lint format benchmark clean

setup: $(VENV)/development
demo: $(VENV)/package
	$(BIN)/python examples/dispersion.py
test: $(VENV)/development
	$(BIN)/python -m pytest
lint: $(VENV)/development
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
format: $(VENV)/development
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
benchmark: $(VENV)/development
	$(BIN)/python benchmarks/softmax.py
	$(BIN)/python benchmarks/attention.py
	$(BIN)/python benchmarks/import_time.py
	$(PIP) --editable '.[report]'
	$(BIN)/python benchmarks/chart.py
clean:
	rm -rf $(VENV)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("sharpmax needs Python 3.11 or newer: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

# The stamps are touched when an install succeeds; a changed requirement installs again.
$(VENV)/package: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable .
	touch $@
$(VENV)/development: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[torch,jax,dev]'
	touch $@ $(VENV)/package
