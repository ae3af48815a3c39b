# SPDX-License-Identifier: Apache-2.0
# The Python package: setuptools builds it, from this folder (./setup check-python).
EXTRA_DIST += python/build_native.py python/pyproject.toml python/requirements.txt python/setup.py \
	python/sparsekv/__init__.py python/sparsekv/client.py python/sparsekv/errors.py python/sparsekv/guardian.py python/sparsekv/model.py \
	python/sparsekv/private.py python/sparsekv/py.typed python/sparsekv/session.py python/sparsekv/tensors.py \
	python/sparsekv/transformers/__init__.py python/sparsekv/transformers/attention.py python/sparsekv/transformers/cache.py \
	python/sparsekv/transformers/shapes.py \
	python/tests/conftest.py python/tests/families.py python/tests/test_binding.py python/tests/test_families.py \
	python/tests/test_leaks.py python/tests/test_transformers.py python/tests/test_types.py
