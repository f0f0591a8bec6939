# kvviz. A fresh machine needs Python 3.10 or newer and make; everything else goes into .venv here.
#   KVVIZ_PYTHON=/path/to/python   which Python .venv is made with (python3 otherwise)
#   PORT=8899 LAB_ARGS="--ip=0.0.0.0"   for make lab
PY := .venv/bin/python
unexport PYTHONPATH PYTHONHOME
.DEFAULT_GOAL := help
.PHONY: help env lab test test-cuda fuzz lint bench samples notebooks site gallery stamp clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env: ## make or update .venv (the others do this by themselves)
	@bash scripts/bootstrap.sh

lab: env ## open the lessons in JupyterLab
	@$(PY) -m kvviz.smollm2
	@exec $(PY) scripts/lab.py

test: env ## lint, unit tests, notebooks, browser test
	@bash scripts/test.sh

test-cuda: env ## the CUDA path on PyTorch's own allocator, without a GPU (Linux x86-64 with gcc)
	@bash scripts/test_cuda.sh

fuzz: env ## the long random tests: pages against plain lists, kvviz's allocator against PyTorch's own
	@KVVIZ_FUZZ_PROGRAMS=10000 $(PY) -m pytest tests/test_pages.py tests/test_paged.py
	@KVVIZ_FUZZ_WORKLOADS=200 KVVIZ_FUZZ_OPERATIONS=2500 bash scripts/test_cuda.sh tests/cuda/test_differential.py

lint: env ## ruff and mypy
	@$(PY) -m ruff check . && $(PY) -m mypy

bench: env ## time what must stay fast
	@bash scripts/bench.sh

samples: env ## record the traces that the lessons ship, on PyTorch's own allocator
	@tests/cuda_stub/setup.sh && tests/cuda_stub/run.sh scripts/samples.py

notebooks: env ## run the notebooks and store their outputs
	@cd notebooks && for n in *.ipynb solutions/*.ipynb; do echo "kvviz: running $$n"; \
	  ../$(PY) -m jupyter nbconvert --log-level=ERROR --to notebook --execute --inplace \
	  --ExecutePreprocessor.store_widget_state=False --ExecutePreprocessor.timeout=600 "$$n" || exit 1; done; \
	  ../$(PY) ../scripts/drop_widgets.py *.ipynb solutions/*.ipynb

site: env ## the lessons as one site that needs no network, in build/site (EXECUTE=1 runs them first)
	@$(PY) scripts/site.py

gallery: env ## a page of the player's states to look through, in build/gallery
	@$(PY) -m tests.player.gallery_page

stamp: env ## write REPO=owner/name into the notebooks' Colab badges
	@$(PY) scripts/stamp.py "$(REPO)"

clean: ## remove .venv and everything else that was made here (models stay in your cache folder)
	@rm -rf .venv build dist .pytest_cache .ruff_cache .mypy_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
