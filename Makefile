# Every target sets up what it needs in .venv from python3 and make alone.
# pins live in constraints.txt; a changed pyproject.toml or constraints.txt rebuilds the environment

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test slow lint format bench bench-scale reproduce verify cohort docs release clean

demo: .venv/.core
	$(BIN)/silomix demo --out demo-output

# the tests' bytecode is a cache too; files in their order, or those of one long test would come last
test: .venv/.dev
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

slow: .venv/.slow
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -m slow --resume --numprocesses 2 --dist loadfile
	$(BIN)/python reproduction/cells.py --datasets 40

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.dev
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/sweep.py
	$(BIN)/python benchmarks/aggregation.py
	$(BIN)/python benchmarks/stages.py
	$(BIN)/python benchmarks/number_fits.py --datasets 3
	$(BIN)/python benchmarks/methods.py --cases ""

bench-scale: .venv/.dev
	$(BIN)/python benchmarks/scale.py

reproduce: .venv/.dev
	$(BIN)/python reproduction/study.py --datasets 100
	$(BIN)/python reproduction/study.py --datasets 200 --cells "homogeneous poor" --methods default,pooled
	$(BIN)/python reproduction/matching.py --datasets 100
	$(BIN)/python reproduction/pairing.py --datasets 100
	$(BIN)/python reproduction/solvers.py --datasets 28
	$(BIN)/python reproduction/fractionation.py --datasets 1
	$(BIN)/python reproduction/shards.py --datasets 4
	$(BIN)/python reproduction/shares.py --datasets 6
	$(BIN)/python reproduction/strategies.py --datasets 5
	$(BIN)/python reproduction/strategies.py --datasets 20 \
		--strategies "one trip: product, default policy;one trip: product, open"
	$(BIN)/python reproduction/membership.py --datasets 40
	$(BIN)/python reproduction/drift.py --datasets 20
	$(BIN)/python reproduction/drift.py --datasets 40 --kappas inf
	$(BIN)/python reproduction/regimes.py --datasets 6
	$(BIN)/python reproduction/drift_matching.py --datasets 100
	$(BIN)/python reproduction/number_cells.py --datasets 50
	$(BIN)/python reproduction/number_rivals.py --datasets 20
	test -z "$$SILOMIX_DATA" || $(BIN)/python reproduction/real.py
	test -z "$$SILOMIX_DATA" || $(BIN)/python reproduction/real_numbers.py
	$(BIN)/python reproduction/collect.py

# other programs are run where they are installed; elsewhere their kept numbers are used
verify: .venv/.dev
	$(BIN)/python verify/verify.py

# the paper's application at its size: under an hour on two cores, goes on after a stop
COHORT := cohort-output
cohort: .venv/.dev
	$(BIN)/silomix simulate cohort --seed 1 --out $(COHORT)/cohort.parquet --force
	$(BIN)/silomix fit $(COHORT)/cohort.parquet --shards 30 --components 50 --iterations 50000 --seed 1 \
		--outside died,age_at_death,sex,age_at_entry,region --checkpoint $(COHORT)/checkpoints \
		--out $(COHORT)/results --force

docs: .venv/.docs
	$(BIN)/sphinx-build --fail-on-warning --keep-going -b html docs docs/_build/html

release: .venv/.release
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	$(BIN)/python .ci/check_release.py dist $(TAG)

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "silomix needs Python 3.11 or newer; set PYTHON=/path/to/python3"; exit 1; }
	@echo "creating .venv"
	@$(PYTHON) -m venv .venv

.venv/.core: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing silomix"
	@$(PIP) -e .
	@touch $@

.venv/.dev: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing silomix and its test tools"
	@$(PIP) -e '.[dev]'
	@touch $@ .venv/.core

.venv/.slow: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing silomix, its test tools and other samplers"
	@$(PIP) -e '.[dev,samplers]'
	@touch $@ .venv/.dev .venv/.core

.venv/.docs: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing silomix and its documentation tools"
	@$(PIP) -e '.[docs]'
	@touch $@ .venv/.core

.venv/.release: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing silomix and its release tools"
	@$(PIP) -e '.[release]'
	@touch $@ .venv/.core

clean:
	rm -rf .venv dist demo-output cohort-output docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
