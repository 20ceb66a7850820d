# Two commands do all the set-up from a fresh clone: make demo, make test.
PYTHON ?= python3
RUN := .venv/bin/python

.PHONY: demo test test-fast test-slow check clean

demo: .venv/installed  ## the lr/wd EDF study on embedded data: about 7 minutes on 2 cores
	$(RUN) studies/lr_wd_edf.py

# A file's tests stay in one of two processes, since they share what it trained; two is what the tests are timed for.
TESTS := -m pytest -n 2 --dist loadfile

test: .venv/installed  ## the tests: 10 to 15 minutes on 2 cores
	$(RUN) $(TESTS)

test-fast: .venv/installed  ## most tests, none of which starts Ray or trains for more than a second: 2 minutes on 2 cores
	VITSCALE_TEST_FAST=1 $(RUN) $(TESTS) -m "not slow and not long" --timeout 30

test-slow: .venv/installed  ## the demos, every command of the README, kills, signals, several nodes: half an hour
	$(RUN) $(TESTS) -m slow

check: .venv/installed  ## lint, format and types
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	$(RUN) -m mypy

# constraints.txt names the versions that were tested; torch and torchvision must be of one release.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(RUN) -m pip install --quiet --upgrade pip
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv
