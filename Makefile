# The recipes need a POSIX shell only; everything else comes from .venv, which scripts/setup keeps up to date.
SHELL := /bin/sh
.DEFAULT_GOAL := help
BIN := .venv/bin
PROFILE ?= embedded
ARGS ?=
STAGE ?= dev
LINTED := brokerless glue_jobs lambdas infra benchmarks java tools tests
# The CDK's own processes look for node; .venv has the one that is locked.
CDK := PATH="$(CURDIR)/$(BIN):$$PATH" CDK_DISABLE_CLI_TELEMETRY=1 node_modules/.bin/cdk

.PHONY: help setup setup-aws demo test test-all faults faults-long lint types audit cov bench bench-report up down assets synth diff jar deploy \
	destroy deploy-local up-local-aws lock clean

help:
	@printf 'Targets (PROFILE=%s, STAGE=%s, ARGS=%s):\n' '$(PROFILE)' '$(STAGE)' '$(ARGS)'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## Prepare .venv from requirements.lock (PYTHON=... chooses the interpreter)
	@scripts/setup

setup-aws: ## The same, and what the AWS side and its tests need (250 MB)
	@scripts/setup aws

demo: setup ## Run the example end to end (PROFILE=embedded or minio)
	@$(BIN)/brokerless demo --profile $(PROFILE) $(ARGS)

test: lint types ## Lint, types and all default tests; says at the end what was skipped and why
	$(BIN)/python -m tests -m "not slow" $(ARGS)
	@echo 'Left out: tests marked slow, to keep this short. make test-all runs them, too.'

test-all: lint types ## The same with the slow tests
	$(BIN)/python -m tests $(ARGS)

faults: setup ## The attacks on the guarantees, in short: simulation, malformed inputs, a grid of faults (four minutes)
	$(BIN)/python -m tests.sim --seeds 1500
	$(BIN)/python -m tests.sim --first 1000000 --seeds 500
	$(BIN)/python -m tests.malformed --inputs 800
	$(BIN)/python -m tests.grid --seconds 100 $(ARGS)

faults-long: setup-aws ## All of them, and 30 minutes under load (two hours and more; keeps results in docs/proof)
	$(BIN)/python -m tests.sim --seeds 10000 --record
	$(BIN)/python -m tests.sim --first 1000000 --seeds 10000
	$(BIN)/python -m tests.mutants --record
	$(BIN)/python -m tests.malformed --inputs 10000 --record
	$(BIN)/python -m tests.soak --minutes 30 --rate 50000 --record
	$(BIN)/python -m tests.grid --all --record
	$(BIN)/python -m tests.proof.page
	$(BIN)/python -m tests.mutants --page

lint: setup-aws ## Style and formatting, by ruff
	$(BIN)/ruff check $(wildcard $(LINTED))
	$(BIN)/ruff format --check $(wildcard $(LINTED))

types: setup-aws ## Types, by mypy in strict mode
	$(BIN)/mypy

audit: setup-aws ## Known vulnerabilities of what is locked, secrets in files and history, static analysis
	@scripts/audit

cov: setup ## Line coverage of the last test run, file by file
	@$(BIN)/coverage report --show-missing --skip-covered

bench: setup ## Latency, loss, duplicates, order and cost (ARGS="--peers brokerless,kafka"; see ARGS=--help)
	@$(BIN)/python -m benchmarks $(ARGS)

bench-report: setup ## Rebuild docs/benchmark.md and the README's table from benchmarks/results
	@$(BIN)/python -m tools.pages benchmark

up: setup ## Start the local S3 server in the background
	@$(BIN)/brokerless up $(ARGS)

down: setup ## Stop it
	@$(BIN)/brokerless down

assets: setup-aws ## Build what is deployed: function packages, wheels, job archives (cached under build/)
	@$(BIN)/python -m infra.assets

synth: setup-aws ## CloudFormation templates of STAGE into cdk.out; needs no AWS account and no network
	@$(CDK) synth --quiet -c stage=$(STAGE) $(ARGS)

diff: setup-aws ## What a deployment of STAGE would change
	@$(CDK) diff -c stage=$(STAGE) $(ARGS)

deploy: setup-aws ## Deploy STAGE to the AWS account of your credentials
	@$(CDK) deploy --all -c stage=$(STAGE) $(ARGS)

destroy: setup-aws ## Remove STAGE; what its configuration retains (data, in prod) stays
	@$(CDK) destroy --all -c stage=$(STAGE) $(ARGS)

deploy-local: setup-aws ## Deploy to an emulator on this machine, use it, update it, destroy it; needs no account
	$(BIN)/python -m pytest tests/infra/test_deploy_local.py -v $(ARGS)

up-local-aws: setup-aws ## Deploy to the emulator and stay, to look around; Ctrl-C ends it
	@$(BIN)/python -m tools.emulator.deployment $(ARGS)

jar: setup ## Build the Java half of real-time pipelines anew (needs a JDK 17)
	$(BIN)/python java/build.py

lock: setup ## Resolve the lock files anew from pyproject.toml (installs uv into .venv)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip compile --quiet pyproject.toml --extra dev --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-annotate --no-header --output-file requirements.lock
	$(BIN)/uv pip compile --quiet pyproject.toml --extra dev-aws --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-annotate --no-header --constraints requirements.lock \
		--output-file requirements-aws.lock
	$(BIN)/uv pip compile --quiet --group pyproject.toml:audit --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-annotate --no-header --output-file requirements-audit.lock

clean: ## Remove .venv, caches, build results and the local server's data
	@if [ -x $(BIN)/brokerless ]; then $(BIN)/brokerless down >/dev/null 2>&1 || true; fi
	rm -rf .venv node_modules cdk.out .brokerless .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
