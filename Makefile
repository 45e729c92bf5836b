# Everything a newcomer needs, each target with its own set-up: make demo, make test.
# Python 3.11 or newer and make are all that must be there before.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Some CPUs announce AMX instructions that they cannot run; bf16 products then end in
# "Illegal instruction" unless oneDNN is kept to AVX-512. Read when torch is imported.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16

.PHONY: setup demo test lint format benchmark browser clean

setup: $(VENV)/development
demo: $(VENV)/package
	$(BIN)/sharpmax reproduce
# A process for each core, with one thread each: most tests are too small for more.
test: $(VENV)/development browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal
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
	$(BIN)/python benchmarks/max_retrieval.py
	$(BIN)/python benchmarks/language_model.py
	$(BIN)/python benchmarks/calibrated.py
	$(BIN)/python benchmarks/chart.py
# The page is tested in Chromium, which Debian's packages bring where they may be installed;
# where there is none, its tests are skipped and say so.
browser:
	@{ command -v chromium && command -v chromedriver; } >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium chromium-driver >/dev/null; } \
		|| echo "no Chromium: the page's tests in a browser are skipped"
clean:
	rm -rf $(VENV)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("sharpmax needs Python 3.11 or newer: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

# The stamps are touched when an install succeeds; a changed requirement installs again.
$(VENV)/package: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[reproduce]'
	touch $@
$(VENV)/development: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[reproduce,transformers,flax,keras,clrs,dev]'
	$(PIP) --no-deps dm-clrs
	touch $@ $(VENV)/package
