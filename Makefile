# delayd: two commands on a fresh Debian machine, as root: make demo, make test.
# Each installs or fetches what it needs, says so, and is quick when run again.

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MODULE      := github.com/delayd/delayd
VERSION     := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT      := $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
LDFLAGS     := -s -w -X $(MODULE)/pkg/api.version=$(VERSION) -X $(MODULE)/pkg/api.commit=$(COMMIT)
PREFIX      ?= /usr/local
VM          := test/vm/run
# KERNELS are those that the tests of the data path run on.
KERNELS     ?= uml 6.12 7.3
# KERNEL is the one of make bench and make vm-shell.
KERNEL      ?= uml

# A Go that tools/setup installed may not be in the caller's PATH.
export PATH := $(PATH):/usr/local/go/bin
# An older Go fetches the one that go.mod names, through the module proxy.
export GOTOOLCHAIN := auto

.PHONY: help build test lint demo bench vm-shell clean setup-build test-native test-vm

help: ## say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  KERNELS='uml 6.12 7.3' (make test) and KERNEL=uml (make bench, vm-shell) choose kernels."

setup-build:
	@tools/setup build

build: setup-build ## bin/delayd and bin/delayctl, static
	@echo "build: bin/delayd bin/delayctl $(VERSION)"
	@CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/delayd ./cmd/delayctl

demo: build ## a table: what 100 µs to 20 ms of delay become on dm-delay and on delayd
	@test/demo/run

test: build ## every check and every test, on this machine and under each of KERNELS
	@test/all $(KERNELS)

lint: setup-build ## gofmt, go vet, staticcheck, shellcheck
	@test/lint

bench: build ## delayd beside dm-delay, the kernel's timer and other servers, under KERNEL (QUICK=1: 4 minutes)
	@test/bench/run --kernel $(KERNEL) $(if $(QUICK),--quick)

vm-shell: ## a root shell under KERNEL, over this machine's own files
	@$(VM) --kernel $(KERNEL)

clean: ## remove what was built here (the kernels stay in the cache)
	rm -rf bin out
