# Two commands do everything on a fresh machine: `make demo` (the main job) and `make test`.
# Both create .venv themselves with plain venv and pip; no network beyond the package index is needed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-medium test-slow scoreboard clean

demo: .venv/.installed
	$(BIN)/forerun run code-detector

test: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not medium"

test-medium: .venv/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "medium and not slow"

test-slow: .venv/.installed-dev
	$(BIN)/python -m pytest -m slow

scoreboard: .venv/.installed-dev
	$(BIN)/python -m benchmarks.scoreboard

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.installed: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

.venv/.installed-dev: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch .venv/.installed $@

clean:
	rm -rf .venv build dist src/*.egg-info .pytest_cache .ruff_cache
