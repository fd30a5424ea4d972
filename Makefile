# A machine needs only Python >= 3.11, git and make: every target sets up the rest.

PYTHON ?= python3
STAMP := .venv/.installed

# uv does not read pip's variable. Empty is fine.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)

.PHONY: setup demo test test-all check docs docs-serve clean

setup: $(STAMP)
	@echo "ready: .venv/bin/heddle"

demo: $(STAMP)
	.venv/bin/heddle train

test: $(STAMP)
	@scripts/check tests

test-all: $(STAMP)
	@scripts/check tests thorough

check: $(STAMP)
	@scripts/check

# Executes the lessons the first time, which takes minutes; later only those that changed.
docs: $(STAMP)
	.venv/bin/python -m sphinx -W --keep-going -q -b html -d docs/_build/doctrees docs docs/_build/html
	@echo "docs/_build/html/index.html"

docs-serve: docs
	.venv/bin/python -m http.server 8001 --bind 127.0.0.1 --directory docs/_build/html

clean:
	rm -rf docs/_build docs/reference
	rm -rf .venv .venv.partial .pytest_cache .mypy_cache .ruff_cache .hypothesis .schemathesis dist

# .venv.partial exists while an install is running. If it is left over, an install was interrupted: rebuild .venv.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "heddle needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo missing). Name another: make PYTHON=python3.12 setup" >&2; exit 1; }
	@command -v uv >/dev/null || $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make a .venv: install its venv package (Debian: apt install python3-venv) or uv, then run make again." >&2; exit 1; }
	@if [ -e .venv.partial ]; then rm -rf .venv; fi; touch .venv.partial; rm -f $@
	@if command -v uv >/dev/null; then set -ex; \
		[ -x .venv/bin/python ] || uv venv --quiet --allow-existing --python "$(PYTHON)" .venv; \
		uv pip install --python .venv/bin/python -c constraints.txt -b constraints.txt -e '.[dev]'; \
	else set -ex; \
		.venv/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv; \
		PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
		.venv/bin/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'; \
	fi
	@touch $@ && rm -f .venv.partial
