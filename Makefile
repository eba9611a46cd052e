# Two commands for a fresh machine: `make quickstart` and `make test`. Both set up .venv first.
PYTHON ?= $(or $(shell command -v python3.11),$(shell command -v python3))
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.attuner-ready

.PHONY: quickstart test lint check format lock clean gate-study

quickstart: $(STAMP)
	$(BIN)/attuner run configs/campaigns/quickstart.yaml

# the fast ones in two processes, then the slow ones (Ray, Prefect, real training) alone: they measure time
test: $(STAMP)
	$(BIN)/pytest -q -m "not slow" -n 2 --dist loadfile
	$(BIN)/pytest -q -m slow

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/attuner rules check

check: lint
	$(BIN)/pytest -q -m "not slow and not long" -n 2 --dist loadfile

# planted faults and honest runs on real megatron-core, judged by the gate: about an hour on two cores, resumable; writes
# docs/gate_study (ARGS="--judge-only" judges what is there again, "--only faults", "--limit 50", see tests/faults/study.py)
gate-study: $(STAMP)
	$(BIN)/python -m tests.faults.study $(ARGS)

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "attuner needs Python 3.11: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "  set-up          making $(VENV) from requirements.lock"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
	@echo "  set-up          done ($(VENV))"

# after a change of dependencies in pyproject.toml: resolve afresh and write the lock (see tools/lock.sh)
lock:
	PYTHON=$(PYTHON) tools/lock.sh

clean:
	rm -rf $(VENV)
