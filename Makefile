# make demo · make test · make serve · make check · make bench · make fuzz: each creates .venv and installs what it needs.
# ARGS="…" is passed on: make test ARGS="-k preset -x", make serve ARGS="--port 8080".
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
ARGS ?=

.DELETE_ON_ERROR:
.PHONY: demo test serve check fix bench fuzz lock

demo: .venv/runtime
	$(BIN)/ullage demo $(ARGS)

serve: .venv/runtime
	exec $(BIN)/ullage serve $(ARGS)

test: .venv/development
	scripts/test-needs
	$(BIN)/pytest -n 2 $(ARGS)

check: .venv/development
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

fix: .venv/development
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/development
	$(BIN)/python -m bench $(ARGS)

fuzz: .venv/development
	HYPOTHESIS_PROFILE=fuzz $(BIN)/pytest -n 2 -m hypothesis --timeout 3600 $(ARGS)

# The versions that everything is tested with; run it after a change of dependencies.
lock:
	rm -rf .venv/lock
	$(PYTHON) -m venv .venv/lock
	.venv/lock/bin/pip install --quiet --upgrade pip
	.venv/lock/bin/pip install --quiet --editable '.[demo]' --group test --group lint
	.venv/lock/bin/pip freeze --exclude-editable | sed 's/^backports.zstd==.*/&; python_version < "3.14"/' > requirements.lock
	rm -rf .venv/lock

.venv/runtime: pyproject.toml requirements.lock | $(BIN)/python
	$(PIP) --constraint requirements.lock --editable '.[demo]'
	touch $@

.venv/development: .venv/runtime
	$(PIP) --requirement requirements.lock
	touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	|| { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv || { echo "on Debian run: apt-get install -y python3-venv"; rm -rf .venv; exit 1; }
