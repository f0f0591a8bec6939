# kvviz. A fresh machine needs Python 3.10 or newer and make; everything else goes into .venv here.
#   KVVIZ_PYTHON=/path/to/python   which Python .venv is made with (python3 otherwise)
#   PORT=8899 LAB_ARGS="--ip=0.0.0.0"   for make lab
PY := .venv/bin/python
unexport PYTHONPATH PYTHONHOME
.DEFAULT_GOAL := help
.PHONY: help env lab test lint bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env: ## make or update .venv (the others do this by themselves)
	@bash scripts/bootstrap.sh

lab: env ## open the lessons in JupyterLab
	@$(PY) -m kvviz.smollm2
	@exec $(PY) scripts/lab.py

test: env ## lint, unit tests, notebooks, browser test
	@bash scripts/test.sh

lint: env ## ruff and mypy
	@$(PY) -m ruff check . && $(PY) -m mypy

bench: env ## time what must stay fast
	@bash scripts/bench.sh

clean: ## remove .venv and everything else that was made here (models stay in your cache folder)
	@rm -rf .venv build dist .pytest_cache .ruff_cache .mypy_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
