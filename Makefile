# Two commands on a fresh machine: `make demo` trains on the embedded data and predicts; `make test` tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint docs release env clean

# What training and prediction need; `make test` adds what the tests need (Ray, ONNX, Jupyter, Triton and more).
# Python compiles a module when it is imported first: most are never.
$(VENV)/.base: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e .
	touch $@

env: $(VENV)/.ready

$(VENV)/.ready: $(VENV)/.base
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e ".[dev]"
	touch $@

demo: $(VENV)/.base
	$(BIN)/graphslice train --out runs/demo --overwrite
	$(BIN)/graphslice predict runs/demo "CCO" "c1ccccc1O" "not a molecule"

test: env
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell -D - -D scripts/words.txt
	$(BIN)/mdformat --check *.md data docs examples scripts

# The website, in build/docs; a broken link or a name without documentation fails.
docs: env
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Wheel and sdist in dist, each installed into an empty environment, where a packaged model predicts.
release: env
	rm -rf dist build/release
	$(BIN)/python -m hatchling build
	for package in dist/*.whl dist/*.tar.gz; do \
		$(PYTHON) -m venv --clear build/release && \
		build/release/bin/pip install --quiet -c constraints.txt $$package && \
		(cd build/release && bin/graphslice predict gap CCO && bin/graphslice train --epochs 1 --out demo) || exit 1; \
	done

clean:
	rm -rf $(VENV) runs build dist
