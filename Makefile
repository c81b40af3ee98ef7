# Two commands do everything on a machine that has only Python and make:
#   make run    creates .venv, installs, runs the main job
#   make test   creates .venv, installs the development extras, lint, types, tests
# make docs builds the documentation site.
PYTHON ?= python3
BIN := .venv/bin
CODE := src tests benchmarks tools
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: run test test-slow docs lint types format dist clean

run: .venv/installed-run
	$(BIN)/nextpolicy study four-rooms --seeds 2

test: lint types
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov=nextpolicy --cov-report=
	@echo "coverage: $$($(BIN)/coverage report --format=total) % of the lines of src/nextpolicy"

test-slow: .venv/installed-dev
	$(BIN)/python -m pytest -m slow

# Without the variable, the theme advertises its successor at every build.
docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "site: build/site/index.html"

lint: .venv/installed-dev
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

types: .venv/installed-dev
	$(BIN)/mypy

format: .venv/installed-dev
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

# Wheel and sdist, then a training run from the wheel in an environment that has nothing else.
dist: .venv/installed-dev
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv dist/venv
	dist/venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "$$(echo dist/*.whl)[gymnax]"
	cd dist && venv/bin/nextpolicy train gymnax/CartPole-v1 --total-env-steps 20000 --out venv/run --quiet
	cd dist && venv/bin/nextpolicy report venv/run --out venv/report.html
	rm -rf dist/venv
	@echo "dist: $$(cd dist && echo *)"

.venv/bin/python:
	$(PYTHON) -m venv .venv

# The development install holds everything the plain one does.
.venv/installed-run: .venv/bin/python pyproject.toml constraints.txt
	@test -e .venv/installed-dev || { echo "installing nextpolicy into .venv (a minute or two) ..."; $(INSTALL) --editable .; }
	@touch $@

.venv/installed-docs: .venv/bin/python pyproject.toml constraints.txt
	@echo "installing nextpolicy and what builds its documentation into .venv (a minute or two) ..."
	$(INSTALL) --editable ".[docs]"
	@touch $@

.venv/installed-dev: .venv/bin/python pyproject.toml constraints.txt
	@echo "installing nextpolicy and its development extras into .venv (a few minutes) ..."
	$(INSTALL) --editable ".[dev]"
	@touch $@

clean:
	rm -rf .venv .pytest_cache .ruff_cache .mypy_cache .hypothesis .coverage dist build
