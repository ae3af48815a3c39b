# SPDX-License-Identifier: Apache-2.0
# The Python package: setuptools builds it, from this folder (./setup check-python).
EXTRA_DIST += python/build_native.py python/environment.sh python/pyproject.toml python/setup.py python/sparsekv/__init__.py \
	python/sparsekv/calibrate/__init__.py python/sparsekv/calibrate/__main__.py \
	python/sparsekv/calibrate/correction.py python/sparsekv/calibrate/loss.py python/sparsekv/calibrate/measure.py \
	python/sparsekv/calibrate/observe.py python/sparsekv/calibrate/profile.py python/sparsekv/calibrate/progress.py \
	python/sparsekv/calibrate/quality.py python/sparsekv/calibrate/texts.py python/sparsekv/calibrate/weights.py \
	python/sparsekv/client.py python/sparsekv/errors.py python/sparsekv/handle.py python/sparsekv/identity.py \
	python/sparsekv/model.py python/sparsekv/private.py python/sparsekv/py.typed python/sparsekv/rope.py \
	python/sparsekv/session.py python/sparsekv/tensors.py python/sparsekv/text.py python/sparsekv/transformers/__init__.py \
	python/sparsekv/transformers/attention.py python/sparsekv/transformers/cache.py python/sparsekv/transformers/identity.py \
	python/sparsekv/transformers/masks.py python/sparsekv/transformers/recording.py python/sparsekv/transformers/shapes.py \
	python/sparsekv/vllm/__init__.py python/sparsekv/vllm/admission.py python/sparsekv/vllm/backend.py \
	python/sparsekv/vllm/capacity.py python/sparsekv/vllm/connector.py python/sparsekv/vllm/cpu.py python/sparsekv/vllm/graphs.py \
	python/sparsekv/vllm/identity.py python/sparsekv/vllm/metrics.py python/sparsekv/vllm/model.py \
	python/sparsekv/vllm/params.py python/sparsekv/vllm/plan.py python/sparsekv/vllm/preemption.py \
	python/sparsekv/vllm/sampling.py python/sparsekv/vllm/scheduler.py python/sparsekv/vllm/worker.py python/tests/conftest.py python/tests/families.py \
	python/tests/processes.py python/tests/test_binding.py python/tests/test_calibrate.py python/tests/test_device.py \
	python/tests/test_families.py python/tests/test_identity.py python/tests/test_leaks.py python/tests/test_readme.py \
	python/tests/test_refusals.py python/tests/test_transformers.py python/tests/test_types.py python/tests/vllm/conftest.py \
	python/tests/vllm/fake_vllm.py python/tests/vllm/many_requests.py python/tests/vllm/server.py \
	python/tests/vllm/test_graphs.py python/tests/vllm/test_halves.py python/tests/vllm/test_requests.py python/tests/vllm/test_server.py python/tests/vllm/test_step_graphs.py
