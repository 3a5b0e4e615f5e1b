# make demo: the estimate and the recommendation for Llama-3.1-8B.  make test: the whole gate.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Tests run on the Triton of the GPU machine; the kernels must also compile on the oldest supported one and the newest.
TORCH ?= torch==2.13.0
TRITON := triton==3.6.0
OLDEST := .triton/oldest
NEWEST := .triton/newest

.PHONY: demo test lint types contracts unit clean

demo: $(VENV)/.core
	$(BIN)/kvplan estimate llama-3.1-8b --context 32k --kv int8:token --gpu h200
	$(BIN)/kvplan recommend llama-3.1-8b --context 32k --concurrency 40 --gpu h200

test: lint types contracts unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

contracts: $(VENV)/.dev
	$(BIN)/lint-imports

# loadfile: a file stays on one worker, so that what it compiles or runs once is not done twice.
unit: $(VENV)/.dev $(OLDEST)/.done $(NEWEST)/.done
	$(BIN)/python -m pytest -n 2 --dist loadfile

$(VENV)/.core: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

# torch first and pinned: any other order may pull several gigabytes of CUDA libraries.
$(VENV)/.dev: pyproject.toml $(VENV)/.core
	$(PIP) $(TORCH)
	$(PIP) $(TRITON)
	$(PIP) --editable '.[dev]'
	touch $@

$(OLDEST)/.done: $(VENV)/.dev
	$(PIP) --upgrade --no-deps --target $(OLDEST) triton==3.4.0
	touch $@

$(NEWEST)/.done: $(VENV)/.dev
	$(PIP) --upgrade --no-deps --target $(NEWEST) triton
	touch $@

clean:
	rm -rf $(VENV) .triton dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
