# mxtwin: set-up, tests, regression. `make` alone lists the targets.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# Everything the targets run comes from the virtual environment; the simulators find the rest of PATH behind it.
export PATH := $(abspath $(BIN)):$(PATH)

.PHONY: help setup test regress exhaustive prove mutate coverage programs verilog qor record bench lint type clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with the pinned dependencies

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "mxtwin: Python must be at least 3.11, but $(PYTHON) is older" >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' \
	  || { echo "mxtwin: Python must have venv and ensurepip (Debian: python3-venv)" >&2; exit 2; }
	@echo "setting up $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,report,prove]'
	@touch $@

test: $(READY) ## the whole test suite
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(ARGS)

regress: $(READY) ## simulate the catalogue against the golden twin (SIM="verilator icarus", DATA=FILE::TENSOR, ARGS=...)
	$(BIN)/mxtwin regress $(foreach sim,$(SIM),--sim $(sim)) $(if $(DATA),--data '$(DATA)') $(ARGS)

exhaustive: $(READY) ## all 2^32 fp32 patterns of each element through the golden narrow (ARGS="--from N")
	$(BIN)/mxtwin exhaustive $(ARGS)

prove: $(READY) ## prove the catalogue's RTL against its specification (ARGS="--quick", ARGS="--check", ...)
	$(BIN)/mxtwin prove $(ARGS)

verilog: $(READY) ## write build/verilog/<name>.v and .json
	$(BIN)/mxtwin verilog --out build/verilog $(ARGS)

qor: $(READY) ## measure the catalogue's area; fail where it is worse than the baseline
	$(BIN)/mxtwin qor --check $(ARGS)

record: $(READY) ## renew the area baseline, docs/area.md, the hashes of the Verilog and their digest, the proofs, generated pages
	$(BIN)/mxtwin qor --update
	$(BIN)/mxtwin verilog --update-hashes
	$(BIN)/mxtwin prove --update
	$(BIN)/mxtwin coverage --toggle --update
	$(BIN)/python -m mxmodel.legality_rules.page > docs/legality.md
	$(BIN)/python -m mxmodel.program_files.schema docs/programs.md

mutate: $(READY) ## plant faults in the gate-level netlists; fail where the regression finds too few (ARGS="narrow --seed 7")
	$(BIN)/mxtwin mutate $(ARGS)

coverage: $(READY) ## bins that the stimulus hits (ARGS=--toggle: bits of the RTL that it moves)
	$(BIN)/mxtwin coverage $(ARGS)

programs: $(READY) ## run the worked programs with every block from the RTL
	@for program in worked four_scales moe; do \
	  $(BIN)/mxtwin run examples/programs/$$program.yaml --rtl all || exit 1; \
	done

bench: $(READY) ## speed of the whole-tensor functions and of the machine, as ratios in one run
	$(BIN)/python -m mxmodel.bench $(ARGS)
	$(BIN)/python -m mxmodel.machine_bench

lint: $(READY) ## ruff: style and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

type: $(READY) ## mypy, strict
	$(BIN)/mypy

clean: ## remove what was built; the virtual environment stays
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
