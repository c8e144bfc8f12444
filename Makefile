# make quickstart   installs what is missing, builds, makes TPC-H data and runs queries on the CPU and on the GPU
# make test         all checks and tests; what continuous integration runs

SCALE ?= 0.1
DATA ?= data/tpch
ADAPTER ?=

# --locked: what is tested is what Cargo.lock says.
CARGO := cargo
LOCKED := --locked
TYPOS := $(or $(shell command -v typos),$(wildcard target/tools/typos/bin/typos))
DENY := $(or $(shell command -v cargo-deny),$(wildcard target/tools/cargo-deny/bin/cargo-deny))

# Without such a folder, as in a container, Mesa prints an error that means nothing here.
ifndef XDG_RUNTIME_DIR
export XDG_RUNTIME_DIR := $(CURDIR)/target/run
endif

.PHONY: help quickstart test setup lint-setup fmt lint spelling dependencies docs unit

help:
	@sed -n 's/^# make/make/p' Makefile

setup:
	./scripts/setup.sh
	@mkdir -p target/run

lint-setup:
	./scripts/setup.sh --lint
	@mkdir -p target/run

quickstart: setup
	$(CARGO) build $(LOCKED) --release --example quickstart
	$(CARGO) run $(LOCKED) --quiet --release --example quickstart -- --scale $(SCALE) --data '$(DATA)' $(if $(ADAPTER),--adapter '$(ADAPTER)')

# In this order: the quick checks first. A sub-make each for the checkers, so that lint-setup has installed them by then.
test: lint-setup
	$(MAKE) --no-print-directory fmt spelling dependencies
	$(MAKE) --no-print-directory unit lint docs

fmt:
	$(CARGO) fmt --check

spelling:
	$(if $(TYPOS),$(TYPOS),@echo 'typos is not installed: skipped')

dependencies:
	$(if $(DENY),$(DENY) check bans licenses sources,@echo 'cargo-deny is not installed: skipped')

lint:
	$(CARGO) clippy $(LOCKED) --all-targets -- -D warnings

docs:
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc $(LOCKED) --no-deps

# Unit, integration and doc tests, and the example as a user runs it, on a tenth of its data.
unit:
	$(CARGO) test $(LOCKED)
	$(CARGO) run $(LOCKED) --quiet --example quickstart -- --scale 0.01 --data target/tpch
