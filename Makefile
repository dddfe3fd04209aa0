VENV ?= .venv
PYTHON ?= python3
BIN = $(VENV)/bin
# What Python compiles of our own files is kept, also where the environment says otherwise: tests start many processes.
export PYTHONDONTWRITEBYTECODE =

.PHONY: run test test-slow test-long lint docs install clean

run: install          ## train a small GPT on this machine with the plan that Trainyard finds
	$(BIN)/trainyard train examples/gpt_on_python_source.py --steps 60

test: install         ## the default test suite
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

test-slow: install    ## the long tests
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "slow and not long"

test-long: install    ## what CI cannot afford: see the README
	$(BIN)/python -m pytest -n 2 --dist worksteal -m long

lint: install         ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: install         ## rewrite the reference from the docstrings
	$(BIN)/python docs/build_reference.py

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --no-compile -c constraints.txt -e ".[dev]"
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # on all cores; pip would use one
	touch $@

clean:
	rm -rf $(VENV)
