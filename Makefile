# Every target works in a fresh checkout: it first makes .venv and installs what it needs, once per pyproject.toml.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
RUN_STAMP := $(VENV)/.mmspec-run
DEV_STAMP := $(VENV)/.mmspec-dev
DOCS_STAMP := $(VENV)/.mmspec-docs
ALL_STAMP := $(VENV)/.mmspec-all
CLIENTS := .venv-clients
CLIENTS_STAMP := $(CLIENTS)/.mmspec-clients
FLOOR := .venv-floor
FLOOR_STAMP := $(FLOOR)/.mmspec-floor
NEWEST := .venv-newest

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-floor test-newest test-clients lint format docs figures bench clean

help:
	@echo "make demo    caption three images and show that the text is identical to plain decoding"
	@echo "make test    lint, format check and the default lane of the tests (CI runs docs, then test)"
	@echo "make test-all  every test: full products, long trainings, every class of transformers; for an hour"
	@echo "make test-floor  a part of the tests with the lowest version of every dependency, in an environment of its own"
	@echo "make test-newest  the same part with the newest version of every dependency, installed again by each call"
	@echo "make test-clients  PEFT, TRL, lm-eval, grammars, LangChain and Ray over enabled models, in an environment of its own"
	@echo "make lint    lint, format check and the patterns of hard prose only"
	@echo "make format  rewrite the sources in the house format"
	@echo "make docs    the documentation as a site, in build/site; a broken link or an undocumented public name fails"
	@echo "make figures the figures of the pages, drawn again from the tables of the pages; and the strips of pictures"
	@echo "make bench   the benchmark tables, written under results/"
	@echo "make clean   remove the environment and everything built"

demo: $(RUN_STAMP)
	@$(VENV)/bin/mmspec demo

test: lint
	@echo "== tests"
	@OMP_NUM_THREADS=1 $(PY) -m pytest -q -n logical --maxprocesses 4 --dist worksteal

test-all: lint $(ALL_STAMP)
	@echo "== all tests"
	@OMP_NUM_THREADS=1 $(PY) -m pytest -q -m "" -n logical --maxprocesses 4 --dist worksteal

test-floor: $(FLOOR_STAMP)
	@echo "== tests with the lowest versions"
	@OMP_NUM_THREADS=1 $(FLOOR)/bin/python -m pytest -q $$($(FLOOR)/bin/python tests/floor.py tests)

# no stamp: a newer version may have appeared since the last call
test-newest: | $(NEWEST)/bin/pip
	@echo "== installing the newest versions of all dependencies in $(NEWEST)"
	@$(NEWEST)/bin/python -m pip --disable-pip-version-check install -qq --upgrade --upgrade-strategy eager --editable ".[dev,eval]"
	@echo "== tests with transformers $$($(NEWEST)/bin/python -c 'import transformers; print(transformers.__version__)')"
	@OMP_NUM_THREADS=1 $(NEWEST)/bin/python -m pytest -q $$($(NEWEST)/bin/python tests/floor.py tests)

test-clients: $(CLIENTS_STAMP)
	@echo "== tests with client programs"
	@OMP_NUM_THREADS=1 $(CLIENTS)/bin/python -m pytest -q -m "" tests/attach/clients tests/vlm/stateful/test_libraries.py

lint: $(DEV_STAMP)
	@echo "== ruff"
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@echo "== prose"
	@$(PY) tests/house/prose.py

format: $(DEV_STAMP)
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

figures: $(DEV_STAMP)
	@OMP_NUM_THREADS=1 $(PY) docs/_site/figures.py
	@OMP_NUM_THREADS=1 $(PY) docs/_site/pictures.py

docs: $(DOCS_STAMP)
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs --quiet build
	@echo "== open build/site/index.html, or with search: $(PY) -m http.server --directory build/site"

bench: $(RUN_STAMP)
	@mkdir -p results
	@$(VENV)/bin/mmspec bench vlm --json results/vlm.json

clean:
	@echo "== removing $(VENV), $(FLOOR), $(NEWEST), $(CLIENTS), caches and build folders"
	@rm -rf $(VENV) $(FLOOR) $(NEWEST) $(CLIENTS) build dist *.egg-info .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pip is the last thing venv installs, so its presence means that the environment is whole
$(VENV)/bin/pip $(FLOOR)/bin/pip $(NEWEST)/bin/pip $(CLIENTS)/bin/pip: %/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "mmspec needs Python 3.11 or newer, got $$($(PYTHON) --version 2>&1): use make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "== making $* with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $*

$(RUN_STAMP): pyproject.toml | $(VENV)/bin/pip
	@echo "== installing mmspec and its dependencies (a few minutes the first time)"
	@$(PIP) install -qq --editable .
	@touch $@

$(DEV_STAMP): pyproject.toml | $(VENV)/bin/pip
	@echo "== installing mmspec with its test dependencies (a few minutes the first time)"
	@$(PIP) install -qq --editable ".[dev,eval]"
	@touch $@ $(RUN_STAMP)

$(DOCS_STAMP): pyproject.toml | $(VENV)/bin/pip
	@echo "== installing what makes the documentation (a few minutes the first time)"
	@$(PIP) install -qq --editable ".[docs]"
	@touch $@ $(RUN_STAMP)

# the page, Ray and the photographs: without them their tests are skipped
$(ALL_STAMP): pyproject.toml | $(VENV)/bin/pip
	@echo "== installing what all tests use (a few minutes the first time)"
	@$(PIP) install -qq --editable ".[dev,eval,photos,scale,web]"
	@touch $@ $(DEV_STAMP) $(RUN_STAMP)

$(CLIENTS_STAMP): pyproject.toml | $(CLIENTS)/bin/pip
	@echo "== installing mmspec and client programs in $(CLIENTS) (a few minutes the first time)"
	@$(CLIENTS)/bin/python -m pip --disable-pip-version-check install -qq --editable ".[dev,eval,scale,clients]"
	@touch $@

$(FLOOR_STAMP): pyproject.toml tests/floor.py | $(FLOOR)/bin/pip
	@echo "== installing the lowest versions of all dependencies in $(FLOOR) (a few minutes the first time)"
	@$(FLOOR)/bin/python tests/floor.py pins > $(FLOOR)/pins.txt
	@$(FLOOR)/bin/python -m pip --disable-pip-version-check install -qq --requirement $(FLOOR)/pins.txt
	@$(FLOOR)/bin/python -m pip --disable-pip-version-check install -qq --no-deps --editable .
	@touch $@
