# make tune: tune the default network on this machine's CPU.   make test: run the tests.
# make check: lint, format, types, imports, figures, docs.   make docs: build the site.   make clean: remove what was built.
# make sanitize: run the C++ of engine and kernels under sanitizers.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ENGINE := $(wildcard autotune/runtime/engine/*.cpp autotune/runtime/engine/*.h) templates/abi.h
ARGS ?=

# C++ and CUDA text that clang-format checks.
CPP := $(shell find templates autotune/runtime/engine tests/kernels tests/sanitizers -name '*.h' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.cu')

# Without caches of bytecode each of the many processes of a test run compiles torch's Python again, which takes seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: tune test check docs sanitize clean
.DELETE_ON_ERROR:

tune: $(READY)
	$(BIN)/python scripts/tune.py --arch cpu --db tuning_db/cpu.db $(ARGS)

test: $(READY)
	$(BIN)/python -m pytest $(ARGS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(CPP)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m autotune_cli figures --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The site is build/site/index.html"

sanitize: $(READY)
	tests/sanitizers/run $(ARGS)

$(READY): pyproject.toml setup.py constraints.txt $(ENGINE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: Python 3.11 or newer is needed; name it with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sysconfig, pathlib, sys; sys.exit(not pathlib.Path(sysconfig.get_paths()["include"], "Python.h").exists())' || \
	  { echo "error: Python's headers are missing: apt-get install python3-dev" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || $(PYTHON) -m venv --without-pip $(VENV)
	@echo "Installing into $(VENV): torch, CUTLASS and the compilers from pip. A minute or two, once."
	@if [ -x $(BIN)/pip ]; then pip="$(BIN)/python -m pip"; else pip="$(PYTHON) -m pip --python $(BIN)/python"; fi; \
	  $$pip install -q --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev,docs,bench,cuda,volta]'
	@touch $@

clean:
	rm -rf $(VENV) build generated *.egg-info autotune/runtime/engine/*.so
