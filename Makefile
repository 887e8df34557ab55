# One target per chore. Everything is installed into $(VENV); nothing is left elsewhere.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
DRAWING = tests/grafana_check/node_modules/.package-lock.json
EXPORTER = $(BIN)/gpu-bottleneck-exporter
PYTEST_ARGS ?=
STACKS_ARGS ?=
SOAK_ARGS ?=
MUTANTS_ARGS ?=
PRESCRIPTIONS_ARGS ?=
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' exporter/gpu_bottleneck_exporter/__init__.py)
BUILDER ?= docker
IMAGE ?= gpu-bottleneck-exporter:$(VERSION)
IMAGE_ARGS ?=
LOCK = $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --upgrade \
	--custom-compile-command 'make lock'
# What has a target of its own.
APART = tests/grafana_check tests/deploy/test_image.py tests/deploy/test_service.py tests/slurm/test_on_slurm.py tests/cgroup2
SBOM ?= dist/gpu-bottleneck-exporter-$(VERSION).cdx.json
# Older ones, as Debian's, know no dependency groups.
TOOLS = $(BIN)/pip install -q 'pip>=25.1' && $(BIN)/pip install -q --group dev
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help run demo check static pure test test-python test-alone test-scenarios test-torch test-stacks stacks-tools test-serving test-service test-image test-slurm test-cgroup2 grafana-check lint sbom bench bench-prescriptions mutants soak generate pictures build image lock tools programs clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/'

run: $(VENV)/.installed  ## Serve this machine's GPUs if it has any, else the demo
	@$(EXPORTER) check; if $(EXPORTER) once >/dev/null 2>&1; then exec $(EXPORTER) serve; else exec $(EXPORTER) demo; fi

demo: $(VENV)/.installed  ## Serve simulated GPUs fed by real little training loops, and show the alerts
	@exec $(EXPORTER) demo --alerts

# T=folder: the tests below tests/ that run.
check: $(VENV)/.developer  ## Check style, types and what tests can without processes, servers, root or Debian's packages
	@$(MAKE) --no-print-directory -j 2 --output-sync=target static pure

# What tests have installed will do, be it old: the sources are checked.
static: $(if $(wildcard $(VENV)/.tested-wheel),,$(VENV)/.developer)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

pure: $(VENV)/.developer
	$(BIN)/python -m pytest -q --no-processes $(if $(T),,-n 2 --dist worksteal) tests/$(T) $(PYTEST_ARGS)

# Eight, whatever the cores: tests wait for most of their time.
test: $(VENV)/.tested-wheel programs  ## Run all tests against the built wheel, but for the targets below
	$(BIN)/python -m pytest -n 8 --dist worksteal -m 'not alone' $(APART:%=--ignore %) $(PYTEST_ARGS)

test-python: $(VENV)/python-3.14/usr/bin/python3.14  ## Run the same tests on Python 3.14, from Debian's packages
	$(MAKE) test VENV=$(VENV)/3.14 PYTHON=$<

test-alone: $(VENV)/.tested-wheel programs stacks-tools  ## Test what takes the machine to itself: every cause and all that is read, once on real processes
	$(BIN)/python -m pytest -m quick $(APART:%=--ignore %) $(PYTEST_ARGS)

# By hand, as they take ten minutes.
test-scenarios: $(VENV)/.tested-wheel programs  ## Test it in all situations: the stall accounting on real processes, every alert in a real Prometheus
	$(BIN)/python -m pytest -m alone tests/causes tests/e2e tests/prescriptions tests/scenarios tests/stacktraces $(PYTEST_ARGS)

test-torch: $(VENV)/.tested-wheel  ## Test the stall accounting with PyTorch's own DataLoader
	$(BIN)/python -m pytest tests/dataloader $(PYTEST_ARGS)

# An hour and 8 GB of libraries: by hand. `python -m stacks.matrix --help` measures some of them.
test-stacks: $(VENV)/.tested-wheel stacks-tools  ## Measure the stall accounting with all loading libraries, alone on the machine
	PYTHONPATH=tests $(BIN)/python -m stacks.matrix $(STACKS_ARGS) tests/stacks/README.md

# By hand: ten minutes, and 4 GB of libraries for vLLM.
test-serving: $(VENV)/.tested-wheel programs  ## Test what the rules tell of inference engines, stand-ins and the real vLLM, in a real Prometheus
	$(BIN)/python -m pytest -m alone tests/stacks/test_serving.py tests/stacks/test_vllm.py $(PYTEST_ARGS)

test-service: $(VENV)/.tested-wheel programs  ## Run the unit under a systemd of its own (root, namespaces)
	$(BIN)/python -m pytest tests/deploy/test_service.py $(PYTEST_ARGS)

test-image: $(VENV)/.tested-wheel programs  ## Build the image on a bare Debian and run it (root, network)
	@command -v buildah >/dev/null || $(call apt,buildah)
	@command -v mmdebstrap >/dev/null || $(call apt,mmdebstrap)
	$(BIN)/python -m pytest tests/deploy/test_image.py $(PYTEST_ARGS)

# SLURM_ROOT=folder: a root folder that was made before, for the next time.
test-slurm: $(VENV)/.tested-wheel programs  ## Test the ledger and the epilog with jobs of Debian's Slurm, in a folder of its own (root, network)
	@command -v mmdebstrap >/dev/null || $(call apt,mmdebstrap)
	$(BIN)/pip install -q reportseff
	$(BIN)/python -m pytest tests/slurm/test_on_slurm.py $(PYTEST_ARGS)

test-cgroup2: $(VENV)/.tested-wheel  ## Test control groups of v2, quotas, limits and pressure, on a kernel in a small emulated machine
	@command -v qemu-system-x86_64 >/dev/null || $(call apt,--no-install-recommends qemu-system-x86)
	$(BIN)/python -m pytest tests/cgroup2 $(PYTEST_ARGS)

lint: static  ## Check style, types and what is shipped
	$(BIN)/python tests/supply/audit.py

bench: $(VENV)/.tested-wheel  ## Measure the cost of the exporter and of its HTTP server
	$(BIN)/python tests/bench/beside.py
	PYTHONPATH=tests $(BIN)/python tests/bench/flood.py

# By hand, as it takes 40 minutes. PRESCRIPTIONS_ARGS='DataLoader' measures some of them.
bench-prescriptions: $(VENV)/.tested-wheel  ## Hold what is predicted for a change against what it brings, alone on the machine (root)
	@command -v fusermount3 >/dev/null || $(call apt,fuse3 libfuse3-3)
	PYTHONPATH=tests $(BIN)/python -m prescriptions.matrix --record --into tests/prescriptions/README.md $(PRESCRIPTIONS_ARGS)

# By hand, as it takes half an hour: MUTANTS_ARGS='--count 30 accounting' draws some of them.
mutants: $(VENV)/.developer  ## Change the package in 300 places, one at a time: which change do tests let pass?
	PYTHONPATH=tests $(BIN)/python -m mutants $(MUTANTS_ARGS)

# By hand, as it takes minutes; `make test` runs a short one.
soak: $(VENV)/.tested-wheel programs  ## Run the exporter for 100 000 ticks in a hurry: nothing may grow
	PYTHONPATH=tests $(BIN)/python -m soak.soak $(SOAK_ARGS)

# Development only: half a GB of packages, of which nothing is shipped.
grafana-check: $(VENV)/.developer programs $(DRAWING)  ## Draw the dashboards with Grafana's own packages and check what is seen
	$(BIN)/python -m pytest tests/grafana_check $(PYTEST_ARGS)

generate: $(VENV)/.developer  ## Rewrite what is generated: the tables in the documents, the dashboards, the golden exposition, the expectations of captures
	PYTHONPATH=tests $(BIN)/python -m tables
	cp helm/gpu-bottleneck-exporter/values.yaml tests/helm/values-$(VERSION).yaml
	PYTHONPATH=tests $(BIN)/python -m helm.earlier
	PYTHONPATH=grafana $(BIN)/python -m builders
	$(BIN)/python -m pytest -q tests/collectors/test_golden.py --update-golden
	PYTHONPATH=tests $(BIN)/python -m replay

pictures: $(VENV)/.developer programs $(DRAWING)  ## Take the READMEs' pictures of the status page, of top and of the dashboards, on a quiet machine
	PYTHONPATH=tests:grafana $(BIN)/python tests/pictures.py exporter/pictures

build: $(VENV)/.venv  ## Build wheel and sdist into dist/
	$(BIN)/pip install -q build
	rm -rf dist build
	$(BIN)/python -m build -q

sbom: $(VENV)/.venv  ## List what is shipped beside the wheel, with hashes, as CycloneDX into dist/
	$(BIN)/pip install -q cyclonedx-bom
	@mkdir -p $(dir $(SBOM))
	$(BIN)/python -W ignore -m cyclonedx_py requirements --pyproject pyproject.toml --mc-type application \
		--output-reproducible --of JSON -o $(SBOM) exporter/deploy/requirements.txt

image:  ## Build the container image; BUILDER=podman or buildah, IMAGE=registry/name:tag
	$(BUILDER) build -f exporter/deploy/Dockerfile --build-arg VERSION=$(VERSION) -t $(IMAGE) $(IMAGE_ARGS) .

lock: $(VENV)/.venv  ## Renew the versions and hashes that the image is built from
	$(BIN)/pip install -q uv
	$(LOCK) --extra web-config --extra kubernetes pyproject.toml -o exporter/deploy/requirements.txt
	echo 'setuptools>=77' | $(LOCK) - -o exporter/deploy/build-requirements.txt

clean:  ## Remove everything that was built or installed here
	rm -rf $(VENV) tests/grafana_check/node_modules .stacks dist build exporter/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

SOURCES = pyproject.toml $(wildcard rules/*.yml rules/runbooks/*.md grafana/*.json) \
	$(shell find exporter -name '*.py' -o -name '*.css' -o -name '*.html' -o -name '*.js' -o -name py.typed)

$(DRAWING): tests/grafana_check/package-lock.json
	@command -v npm >/dev/null || $(call apt,nodejs npm)
	cd tests/grafana_check && npm ci --ignore-scripts --no-fund --no-audit
	@touch $@

$(VENV)/python-3.14/usr/bin/python3.14:
	@command -v patchelf >/dev/null || $(call apt,patchelf)
	.ci/python 3.14 $(VENV)/python-3.14

# Debian's python3 comes without ensurepip.
$(VENV)/.venv:
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || $(call apt,python3-venv)
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.venv $(SOURCES)
	$(BIN)/pip install -q '.[kubernetes,web-config]'
	@touch $@

$(VENV)/.developer: $(VENV)/.venv pyproject.toml
	$(BIN)/pip install -q -e .
	$(TOOLS)
	@rm -f $(VENV)/.installed $(VENV)/.tested-wheel
	@touch $@

$(VENV)/.tested-wheel: $(VENV)/.venv $(SOURCES)
	rm -rf build
	$(BIN)/pip wheel -q --no-deps -w dist .
	$(BIN)/pip install -q "$$(ls -t dist/*.whl | head -n 1)"
	$(TOOLS)
	$(BIN)/pip install -q --force-reinstall --no-deps "$$(ls -t dist/*.whl | head -n 1)"
	@rm -f $(VENV)/.installed $(VENV)/.developer
	@touch $@

tools: export INSTALL = 1
tools: programs  ## Install the programs that the tests need (Debian, as root)

# Without INSTALL or CI, this says which are missing: tests that need them are skipped.
programs:
	@command -v promtool >/dev/null || $(call apt,prometheus)
	@command -v amtool >/dev/null || $(call apt,prometheus-alertmanager)
	@command -v vmalert >/dev/null || $(call apt,victoria-metrics)
	@command -v jq >/dev/null || $(call apt,jq)
	@command -v cc >/dev/null || $(call apt,gcc libc6-dev)
	@command -v systemd-analyze >/dev/null || $(call apt,systemd)
	@command -v chromium >/dev/null || $(call apt,chromium)
	@command -v docker-compose >/dev/null || $(call apt,--no-install-recommends docker-compose)

stacks-tools:
	@command -v redis-server >/dev/null || $(call apt,redis-server)
	@command -v mosquitto >/dev/null || $(call apt,mosquitto)
	@command -v fusermount3 >/dev/null || $(call apt,fuse3 libfuse3-3)
	@command -v curl >/dev/null || $(call apt,curl)

apt = .ci/apt-install $(1)
