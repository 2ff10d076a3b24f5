# `make demo` and `make test` each do the whole set-up on a fresh machine. Python 3.11 or newer is needed;
# PYTHON=/path/to/python picks another one than the first found.

# An active environment is used as it is, conda's base excepted (nobody wants it filled); otherwise .venv is made.
ACTIVE := $(VIRTUAL_ENV)
ifeq ($(ACTIVE),)
ifneq ($(CONDA_DEFAULT_ENV),base)
ACTIVE := $(CONDA_PREFIX)
endif
endif
ENV := $(if $(and $(ACTIVE),$(wildcard $(ACTIVE)/bin/python)),$(ACTIVE),$(CURDIR)/.venv)
PY := "$(ENV)/bin/python"

# The stamp lies in the environment and holds the checkout's path, so that a new pyproject.toml, a new environment and
# a moved checkout each install again, and nothing else does.
STAMP := "$(ENV)/.ngram_ref_installed"
NOTEBOOKS := $(wildcard notebooks/*.ipynb)

.DEFAULT_GOAL := help
.PHONY: help demo test lab lint notebooks clean install

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: install  ## set up, fetch the model, and show the speed-up on this machine
	@$(PY) -m ngram_ref demo

# Progress bars differ from run to run: off, as when the notebooks' outputs were made.
test: install  ## set up, fetch the model, and run every test, doctest and notebook
	@$(PY) -m ngram_ref fetch-model
	TQDM_DISABLE=1 HF_HUB_DISABLE_PROGRESS_BARS=1 \
	  $(PY) -m pytest --doctest-modules --nbval --nbval-current-env --nbval-cell-timeout=120 \
	  ngram_ref tests $(NOTEBOOKS)

lab: install  ## set up, and open the notebooks in JupyterLab
	@$(PY) -m jupyterlab notebooks

lint: install  ## check style, formatting, types, and that the notebooks are normalised
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy --strict ngram_ref
	$(PY) tools/write_readme.py --check
	$(if $(NOTEBOOKS),$(PY) tools/normalise_notebooks.py --check $(NOTEBOOKS))

notebooks: install  ## execute the notebooks and write them in normal form, to be done before a commit
	$(if $(NOTEBOOKS),$(PY) tools/normalise_notebooks.py $(NOTEBOOKS),@echo "no notebooks yet")

clean:  ## remove .venv, caches and build folders (the model's cache folder stays)
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

install:  ## only the set-up: the environment and the package in it
	@if [ "$$(cat $(STAMP) 2>/dev/null)" != "$(CURDIR)" ] || [ pyproject.toml -nt $(STAMP) ]; then \
	  python="$$(PYTHON="$(PYTHON)" sh tools/find_python.sh "$(ENV)")" || exit 1; \
	  [ -x $(PY) ] || "$$python" -m venv "$(ENV)" || exit 1; \
	  $(PY) -m pip --version >/dev/null 2>&1 || $(PY) -m ensurepip || exit 1; \
	  echo "Installing ngram_ref into $(ENV) …"; \
	  PYTHONWARNINGS=ignore $(PY) -m pip install --disable-pip-version-check -e '.[notebooks,test]' || exit 1; \
	  echo "$(CURDIR)" > $(STAMP); \
	fi
