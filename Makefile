# From a fresh clone, `make demo` and `make test` do all the set-up.
PYTHON ?= python3
RUN := .venv/bin/python

.PHONY: doctor demo test test-fast test-slow test-oldest test-readme test-gpu test-slurm test-azure test-google chaos check docs wheel constraints clean

doctor: .venv/installed  ## what works on this machine: 1 to 2 minutes on 2 idle cores
	$(RUN) -m vitscale doctor

demo: .venv/installed  ## the lr/wd EDF study on embedded data: about 6 minutes on 2 cores
	$(RUN) studies/lr_wd_edf.py

# Two processes: with three, two cores spend 40% more CPU time on the demo, and end no sooner; the tests of a file share its trained models and stay in one process.
# Files begin in the order of tests/not_fast.txt, the longest first, and not by their number of tests.
TESTS := -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test: .venv/installed  ## the tests: 10 to 15 minutes on 2 cores
	$(RUN) $(TESTS)

test-fast: .venv/installed  ## most tests, without Ray and without training for over a second: 2 to 4 minutes on 2 cores
	VITSCALE_TEST_FAST=1 $(RUN) $(TESTS) -m "not slow and not long" --timeout 30

test-slow: .venv/installed  ## the slow tests: demos, README commands, kills, signals, several nodes: 25 to 35 minutes on 2 cores
	$(RUN) $(TESTS) -m "slow and not chaos"

test-readme: .venv/installed  ## every command of the README; part of test-slow
	$(RUN) $(TESTS) -m "slow or not slow" tests/project/test_readme.py

test-oldest: build/oldest/installed  ## as test-fast, with the oldest versions that pyproject.toml allows
	VITSCALE_TEST_FAST=1 build/oldest/bin/python $(TESTS) -m "not slow and not long" --timeout 60 \
	  --deselect tests/cli/test_project.py::test_every_package_of_the_environment_is_pinned_at_the_version_that_is_tested

# pip always takes the newest versions; uv can take the oldest.
build/oldest/installed: pyproject.toml
	$(PYTHON) -m venv build/oldest
	build/oldest/bin/python -m pip install --quiet uv
	build/oldest/bin/python -m uv pip install --quiet --python build/oldest/bin/python --resolution lowest-direct --editable '.[dev]'
	touch $@

test-gpu: .venv/installed  ## the tests that need a GPU, and those of augmentation and training
	$(RUN) -c "import torch; assert torch.cuda.is_available(), 'a GPU must be visible to torch'"
	$(RUN) -m pytest -m "slow or not slow" tests/train/test_gpu.py tests/train/test_augment.py tests/train/test_train.py tests/train/test_profile.py

test-slurm: .venv/installed  ## deploy/slurm on two nodes of a real SLURM: preemption, arrays (as root, with Debian's slurm-wlm and munge): an hour
	VITSCALE_TEST_SLURM=1 $(RUN) -m pytest -m slow -ra tests/project/test_slurm.py

# A second implementation of conditional writes, beside moto; npm's package brings its own server.
test-azure: .venv/installed  ## the tests of buckets, and a study that is killed, on azurite, Microsoft's emulator (needs npm)
	npm install --silent --no-audit --no-fund --prefix build/azurite azurite@3.35.0
	PATH=$$PWD/build/azurite/node_modules/.bin:$$PATH VITSCALE_TEST_SERVER=azurite VITSCALE_CHAOS=200 \
	  $(RUN) -m pytest -p no:cacheprovider -ra tests/record/test_bucket.py tests/record/test_bucket_study.py

# A third one: Google's own testbench for clients, behind a front that translates (tests/support/google_storage.py).
TESTBENCH := git+https://github.com/googleapis/storage-testbench@v0.63.0
test-google: .venv/installed build/testbench/installed  ## the same on Google's testbench for clients of Cloud Storage
	VITSCALE_TEST_SERVER=google VITSCALE_CHAOS=200 \
	  $(RUN) -m pytest -p no:cacheprovider -ra tests/record/test_bucket.py tests/record/test_bucket_study.py

build/testbench/installed:
	$(PYTHON) -m venv build/testbench
	build/testbench/bin/python -m pip install --quiet '$(TESTBENCH)'
	touch $@

# One command for both cores: the tests are handed out one by one, since most take minutes.
chaos: .venv/installed  ## over 300 kills and 60 stops at random instants, 200 faults between workers and a bucket, links that are cut or slow (as root), variants of slow tests: two and a half hours
	VITSCALE_TEST_KILLS=24 VITSCALE_TEST_SEQUENCES=12 VITSCALE_TEST_TEAM_SEQUENCES=4 VITSCALE_CHAOS=200 \
	  $(RUN) -m pytest -m "chaos or random" -n 2 --maxschedchunk 1 -ra

check: .venv/installed  ## lint, format and types
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	$(RUN) -m mypy

docs: build/docs/installed  ## the documentation as a site in build/site; fails on a broken link
	NO_MKDOCS_2_WARNING=1 build/docs/bin/mkdocs build  # not --quiet, which would also disable --strict

# The site needs no torch: it parses the source, and imports only `vitscale fields`.
build/docs/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv build/docs
	build/docs/bin/python -m pip install --quiet --upgrade pip
	build/docs/bin/python -m pip install --quiet --constraint constraints.txt $$(build/docs/bin/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'])")
	touch $@

wheel: .venv/installed  ## build the wheel and test it outside the clone, with the dependencies of .venv
	rm -rf build/wheel
	$(RUN) -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
	$(PYTHON) -m venv build/wheel/venv
	build/wheel/venv/bin/python -m pip install --quiet --no-deps build/wheel/*.whl
	$(RUN) -c "import sysconfig; print(sysconfig.get_path('purelib'))" > $$(build/wheel/venv/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/dependencies.pth
	cd build/wheel && venv/bin/python -c "import vitscale; assert '/build/wheel/venv/' in vitscale.__file__, vitscale.__file__"
	cd build/wheel && venv/bin/vitscale --help > help.txt
	$(RUN) -m zipfile -l build/wheel/*.whl | grep published/complexity.csv  # the data files must be included

constraints: .venv/installed build/docs/installed  ## pin every package of both environments as it is installed
	{ echo "# Every version that the tests and the site were run with, on Python 3.11 and Linux. Written by \`make constraints\`."; \
	  for env in .venv build/docs; do $$env/bin/python -m pip list --format=freeze --exclude-editable --exclude pip --exclude setuptools; done \
	  | sort --unique --ignore-case; } > build/constraints.txt
	mv build/constraints.txt constraints.txt

# constraints.txt pins the tested versions; torch and torchvision must be of the same release.
.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c "import sys; sys.version_info >= (3, 11) or sys.exit('Python >= 3.11 must set up .venv, but got (PYTHON=$(PYTHON), version=%d.%d): make demo PYTHON=python3.11' % sys.version_info[:2])"
	@.venv/bin/python -c "import sys; sys.exit(sys.version_info < (3, 11))" 2> /dev/null || rm -rf .venv  # or it would keep its Python
	$(PYTHON) -m venv .venv
	$(RUN) -m pip install --quiet --upgrade pip
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv
