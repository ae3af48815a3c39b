# SPDX-License-Identifier: Apache-2.0
"""
Makes profiles of models that transformers runs: which layers select well.

    python -m sparsekv.calibrate MODEL --texts FILE... -o profile.json --svg PREFIX

It does for transformers models what sparsekv-calibrate(1) does for models that the C engine reads. It measures what
layers attend to (observe.py, measure.py, correction.py). The rest is the engine's: it chooses layers by the papers'
criteria, optionally searches from there for the layers with which the model predicts best (by the losses of loss.py),
and makes the file that policies take as profile=FILE, and charts (profile.py). quality.py measures the policies'
quality with the profile through SparseCache.
"""
