# Two commands do everything on a fresh machine: `make demo` (the main job) and `make test`.
# Both create .venv themselves with plain venv and pip; no network beyond the package index is needed.
PYTHON ?= python3
BIN := .venv/bin

# Packages that ask for another PyTorch than the one that is here, or for one built for CUDA. They have a folder of their
# own: transformers imports a torchvision that it finds, and one that was built for another PyTorch fails. Triton has its
# own again: where libraries find it, they take their kernels of Triton.
TRITON := "triton==3.9.*"
SCRIPT_PACKAGES := "timm>=1.0.20" "torchvision==0.28.*" "torchtitan==0.2.2"

.PHONY: demo test test-medium test-scripts test-slow origins robustness scoreboard wheel lock sbom audit clean

demo: .venv/.installed
	$(BIN)/forerun run code-detector

test: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --durations=15 -m "not slow and not medium and not scripts"

# In the order of files: by the number of tests, the guides (three tests, three minutes) would be last, and one core idle.
test-medium: .venv/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=30 -m "medium and not slow"

test-scripts: .venv/.installed-scripts
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m scripts tests/test_ui.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m scripts src/forerun/models/test_denoiser.py src/forerun/step/test_denoising.py \
		tests/test_exec_pictures.py
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/.venv/script-packages $(BIN)/python -m pytest -n 2 -m scripts \
		tests/test_scripts.py src/forerun/models/test_image_libraries.py src/forerun/models/test_torchvision_wrapper.py
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/.venv/triton $(BIN)/python -m pytest -m scripts tests/test_triton.py

test-slow: .venv/.installed-dev
	$(BIN)/python -m pytest -m slow

# Pages of the five documents, an hour and a half on two quiet cores. `test-slow` says when their forecasts are stale.
origins: .venv/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.origins audits forecasts profiles lines transcripts runs

# What was tried to break it, two hours on two quiet cores. Questions are asked in parts, which are added up.
robustness: .venv/.installed-dev
	for seed in $$(seq 1 20); do OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.robustness run fuzz --questions 500 --seed $$seed; done
	for attack in covering monotone "escapes --nobody" kills faults; do OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.robustness run $$attack; done
	$(BIN)/python -m benchmarks.robustness start

# DATA: a folder of published figures whose licence forbids copies here; without it those sources are left out.
scoreboard: .venv/.installed-scripts
	PYTHONPATH=$(CURDIR)/.venv/script-packages $(BIN)/python -m benchmarks.vision --note "make scoreboard"
	$(BIN)/python -m benchmarks.scoreboard $(if $(DATA),--data $(DATA)) --note "make scoreboard"
	$(BIN)/python -m benchmarks.accuracy_page

# --- What is handed on. The tools have an environment of their own: nothing of them is in ours. ---

TOOLS := build/tools

# The same commit and the same hatchling give the same bytes.
wheel: .venv/.installed-dev
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m hatchling build --target wheel --directory dist

# Newest versions and hashes of all that tests need on Python 3.11 and Linux, but PyTorch: its build for CPUs, its builds for
# CUDA and those that people make themselves have one version and different hashes. Install one of them first, then:
# pip install --require-hashes -r .ci/requirements.txt
lock: $(TOOLS)/.installed
	$(TOOLS)/bin/uv pip compile pyproject.toml --extra dev --extra scripts --python-version 3.11 --python-platform linux \
		--upgrade --generate-hashes --no-emit-package torch --excludes .ci/without.txt \
		--custom-compile-command "make lock" --quiet --output-file .ci/requirements.txt

# CycloneDX 1.6, validated by its writer: every package that SBOM_OF (an environment) has.
SBOM_OF ?= .venv
sbom: $(TOOLS)/.installed .venv/.installed
	mkdir -p dist
	$(TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --spec-version 1.6 --output-reproducible \
		--output-file dist/forerun.cdx.json $(SBOM_OF)/bin/python

# Needs an index that publishes advisories, as pypi.org does; it says so where there are none (exit code 2).
audit: $(TOOLS)/.installed
	$(TOOLS)/bin/python .ci/audit.py .ci/requirements.txt

$(TOOLS)/.installed:
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check "uv>=0.13" "cyclonedx-bom>=7" "pip-audit>=2.10"
	touch $@

# --- Environments. ---

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.installed: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

.venv/.installed-dev: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch .venv/.installed $@

# Constraint and comparison: whatever these packages ask for, PyTorch stays as it is.
.venv/.installed-scripts: pyproject.toml | .venv/.installed-dev
	$(BIN)/python -c "import torch; print('torch==' + torch.__version__)" > .venv/torch.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c .venv/torch.txt -e ".[dev,scripts]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target .venv/script-packages $(SCRIPT_PACKAGES)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target .venv/triton $(TRITON)
	$(BIN)/python -c "import torch; print('torch==' + torch.__version__)" | diff - .venv/torch.txt
	touch $@

clean:
	rm -rf .venv build dist src/*.egg-info .pytest_cache .ruff_cache
