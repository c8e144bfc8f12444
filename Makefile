# make quickstart   installs what is missing, builds the program, makes TPC-H data and runs queries on the CPU and on the GPU
# make test         all checks and tests; what continuous integration runs
# make validation   the tests once more, under the Vulkan validation layer
# make supported    docs/supported.md from what the code answers
# make conformance DATAFUSION_TESTING_DATA=DIR   DataFusion's own test files on the GPU, and docs/conformance.md from them

SCALE ?= 0.1
DATA ?= data/tpch
ADAPTER ?=
PASSES ?=

# --locked: what is tested is what Cargo.lock says. One feature set for all checks, so that DataFusion is compiled once for each.
CARGO := cargo
LOCKED := --locked
ALL := --locked --all-features
TARGET := $(or $(CARGO_TARGET_DIR),target)
EXAMPLES := quickstart existing_context explain_placement dataframe_api
TYPOS := $(or $(shell command -v typos),$(wildcard target/tools/typos/bin/typos))
DENY := $(or $(shell command -v cargo-deny),$(wildcard target/tools/cargo-deny/bin/cargo-deny))

# Without such a folder, as in a container, Mesa prints an error that means nothing here.
ifndef XDG_RUNTIME_DIR
export XDG_RUNTIME_DIR := $(CURDIR)/target/run
endif

.PHONY: help quickstart test setup lint-setup fmt lint spelling dependencies docs unit conformance validation supported

help:
	@sed -n 's/^# make/make/p' Makefile

setup:
	./scripts/setup.sh
	@mkdir -p target/run

lint-setup:
	./scripts/setup.sh --lint
	@mkdir -p target/run

validation:
	./scripts/setup.sh --validation
	@mkdir -p target/run
	./scripts/validation.sh

quickstart: setup
	$(CARGO) build $(LOCKED) --release --features cli --bin datafusion-wgpu
	./scripts/quickstart.sh $(TARGET)/release/datafusion-wgpu '$(SCALE)' '$(DATA)' '$(ADAPTER)'

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
	$(CARGO) clippy $(ALL) --all-targets -- -D warnings

# The library only: the program's documentation is its --help.
docs:
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc $(ALL) --no-deps --lib

# Unit, integration and doc tests, a part of DataFusion's own, the examples, and the quick start on a tenth of its data.
unit:
	$(CARGO) test $(ALL)
	$(TARGET)/debug/datafusion-wgpu conformance --subset
	for example in $(EXAMPLES); do $(CARGO) run $(ALL) --quiet --example $$example || exit; done
	./scripts/quickstart.sh $(TARGET)/debug/datafusion-wgpu 0.01 $(TARGET)/tpch

supported:
	WRITE_SUPPORTED=1 $(CARGO) test $(ALL) --lib supported_md_is_current

conformance: setup
	$(CARGO) run $(ALL) --quiet --bin datafusion-wgpu -- conformance --tpch $(PASSES) --report docs/conformance.md
