# Needs python3 >= 3.10 (with venv) and make; everything else goes into .venv.

PYTHON ?= python3
VENV ?= .venv
# Crawls mostly wait, so there are more of them at once than there are cores.
WORKERS ?= 3
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.PHONY: demo test lint format bench bench-sim bench-scheduling bench-durable bench-kills clean

demo: $(VENV)/.installed ## crawl a flaky site without and with the add-on, then redrive the dead letters
	@$(BIN)/python example_project/demo.py

test: lint ## lint, then all tests with coverage
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --cov

lint: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.tested
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed ## real crawls beside stock Scrapy, one table
	$(BIN)/python -m benchmarks.crawl

bench-sim: $(VENV)/.installed ## the limiter in virtual time, beside others, and its bars
	$(BIN)/python -m benchmarks.simulate

bench-scheduling: $(VENV)/.installed ## what the queue costs in time and memory, and its bars
	$(BIN)/python -m benchmarks.scheduling

bench-durable: $(VENV)/.installed ## what a JOBDIR costs beside stock's, and its bars
	$(BIN)/python -m benchmarks.durable

bench-kills: $(VENV)/.installed ## kill crawls 45 times, resume them, count what was lost
	$(BIN)/python -m benchmarks.kills

# Made anew whenever setup.cfg changes.
$(VENV)/.installed: setup.cfg
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed; say which: make PYTHON=python3.13 ...")'
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) --editable .
	@touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(PIP) --editable '.[test]'
	@touch $@

clean:
	rm -rf $(VENV) .tox build *.egg-info .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
