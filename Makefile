# Needs make, git and Python 3.11 or newer; everything else goes into .venv.

# The first Python on the path that is new enough; `make PYTHON=/some/python …` names another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$python; break; }; done)
VENV := .venv
PARALLEL := --numprocesses=auto --maxprocesses=4 --dist=worksteal
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev

.PHONY: serve test check format openapi bench bench-peers soak chaos conformance demo install-dev

# Serves on http://127.0.0.1:8000; `make serve ARGS="--port 9000"` passes options on.
serve: $(INSTALLED)
	@exec $(VENV)/bin/fencepost serve $(ARGS)

# Runs all tests, in up to four processes; `make test ARGS="-k lease"` passes options on.
test: $(INSTALLED_DEV)
	@exec $(VENV)/bin/pytest $(PARALLEL) $(ARGS)

check: $(INSTALLED_DEV)
	@exec bash .ci/check

format: $(INSTALLED_DEV)
	$(VENV)/bin/ruff check --fix-only --quiet .
	$(VENV)/bin/ruff format .

# Rewrites the generated document; a test holds it to the code.
openapi: $(INSTALLED)
	$(VENV)/bin/fencepost openapi -o openapi/openapi.json

# Measures the service; `make bench ARGS="--rounds 5"` passes options on.
bench: $(INSTALLED)
	@exec $(VENV)/bin/python -m benchmarks $(ARGS)

# Measures other job queues beside the service; benchmarks/peers tells what it fetches and how long it takes.
bench-peers: $(INSTALLED)
	@exec $(VENV)/bin/python -m benchmarks.peers $(ARGS)

# Loads the service for five minutes; fails when what it takes grows. `make soak ARGS="--minutes 60"` for longer.
soak: $(INSTALLED_DEV)
	@exec $(VENV)/bin/python -m benchmarks.soak $(ARGS)

# Faults of every kind under load, and the account; `make chaos ARGS="--minutes 2 --seed 7"` passes options on.
chaos: $(INSTALLED_DEV)
	@exec $(VENV)/bin/python -m tests.chaos $(ARGS)

# Puts every client through the worker protocol, and prints the table; `make conformance ARGS="--client go"` for one.
conformance: $(INSTALLED_DEV)
	@exec $(VENV)/bin/python -m clients.conformance $(ARGS)

# A worker that is frozen, and one that is stuck, on a service of its own; examples/paused-worker tells the story.
demo: $(INSTALLED)
	@exec $(VENV)/bin/python examples/paused-worker/demo.py

install-dev: $(INSTALLED_DEV)

$(INSTALLED): pyproject.toml constraints.txt | $(VENV)/bin/pip
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(INSTALLED_DEV): pyproject.toml constraints.txt | $(VENV)/bin/pip
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ $(INSTALLED)

$(VENV)/bin/pip:
	@test -n "$(PYTHON)" || { \
		echo "Fencepost needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
