# The recipes need a POSIX shell only; everything else comes from .venv, which scripts/setup keeps up to date.
SHELL := /bin/sh
.DEFAULT_GOAL := help
BIN := .venv/bin
PROFILE ?= embedded
ARGS ?=
LINTED := brokerless glue_jobs benchmarks tests

.PHONY: help setup demo test test-all lint types cov bench bench-report up down lock clean

help:
	@printf 'Targets (PROFILE=%s, ARGS=%s):\n' '$(PROFILE)' '$(ARGS)'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## Prepare .venv from requirements.lock (PYTHON=... chooses the interpreter)
	@scripts/setup

demo: setup ## Run the example end to end (PROFILE=embedded or minio)
	@$(BIN)/brokerless demo --profile $(PROFILE) $(ARGS)

test: lint types ## Lint, types and all default tests; says at the end what was skipped and why
	@$(BIN)/coverage erase
	$(BIN)/python -m pytest --cov -m "not slow" $(ARGS)
	@echo 'Left out: tests marked slow, to keep this short. make test-all runs them, too.'

test-all: lint types ## The same with the slow tests
	@$(BIN)/coverage erase
	$(BIN)/python -m pytest --cov $(ARGS)

lint: setup ## Style and formatting, by ruff
	$(BIN)/ruff check $(wildcard $(LINTED))
	$(BIN)/ruff format --check $(wildcard $(LINTED))

types: setup ## Types, by mypy in strict mode
	$(BIN)/mypy

cov: setup ## Line coverage of the last test run, file by file
	@$(BIN)/coverage report --show-missing --skip-covered

bench: setup ## Latency, loss, duplicates, order and cost (ARGS="--peers brokerless,kafka"; see ARGS=--help)
	@$(BIN)/python -m benchmarks $(ARGS)

bench-report: setup ## Rebuild docs/benchmark.md and the README's table from benchmarks/results
	@$(BIN)/python -m benchmarks.report

up: setup ## Start the local S3 server in the background
	@$(BIN)/brokerless up $(ARGS)

down: setup ## Stop it
	@$(BIN)/brokerless down

lock: setup ## Resolve requirements.lock anew from pyproject.toml (installs uv into .venv)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip compile --quiet pyproject.toml --extra dev --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-annotate --no-header --output-file requirements.lock

clean: ## Remove .venv, caches, build results and the local server's data
	@if [ -x $(BIN)/brokerless ]; then $(BIN)/brokerless down >/dev/null 2>&1 || true; fi
	rm -rf .venv .brokerless .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
