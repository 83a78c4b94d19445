# The commands of this project. Each target does its own set-up.
SHELL := /bin/bash
PY := .venv/bin/python

.PHONY: setup setup-tests demo test test-compose check bench dashboards lock clean

setup: ## virtual environment, locked dependencies, Prometheus and Alertmanager
	@scripts/setup.sh

demo: setup ## a PPO run diverges, is stopped, rolled back, restarted, and recovers; FAULT=… shows others
	@$(PY) -m fusewire_webhook demo $(if $(FAULT),--fault $(FAULT))

setup-tests: ## the same, and what only the tests need (a C compiler, Chromium)
	@scripts/setup.sh tests

test: setup-tests ## all tests, a worker a core
	@$(PY) -m pytest -n auto --dist worksteal $(ARGS)

check: setup ## linters, types, rules
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@promtool check rules rules/*.yaml rules/presets/*.yaml

test-compose: setup ## the stack in containers, on a Docker engine of its own: minutes, root, Debian
	@tests/compose/setup.sh
	@FUSEWIRE_TEST_DOCKER=1 $(PY) -m pytest tests/compose tests/actuators/test_docker_real.py -s $(ARGS)

bench: setup-tests ## budgets, as ratios measured in one run
	@$(PY) -m pytest -m bench -p no:randomly --override-ini timeout=900 -s tests

dashboards: setup ## write grafana/dashboards anew
	@$(PY) -m grafana.build

lock: ## renew requirements.lock from pyproject.toml (a local build of torch is locked as its public version)
	@$(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"], sep="\n")' \
	    >requirements.in
	@$(PY) -m piptools compile --quiet --all-extras --strip-extras --no-emit-index-url --no-emit-find-links \
	    --no-emit-trusted-host --no-annotate --no-header --allow-unsafe --output-file requirements.lock \
	    pyproject.toml requirements.in
	@rm requirements.in
	@sed -i 's/^\(torch==[0-9.]*\)+.*/\1/' requirements.lock

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
