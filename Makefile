# Two commands on a fresh machine: `make demo` trains on the embedded data and predicts; `make test` tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint env clean

env: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

demo: env
	$(BIN)/graphslice train --out runs/demo --overwrite
	$(BIN)/graphslice predict runs/demo "CCO" "c1ccccc1O" "not a molecule"

test: env
	$(BIN)/python -m pytest -n 2

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell -D - -D scripts/words.txt

clean:
	rm -rf $(VENV) runs
