# SPDX-License-Identifier: Apache-2.0
"""
Makes profiles of models that transformers runs: which layers select well.

    python -m sparsekv.calibrate MODEL --texts FILE... -o profile.json --svg PREFIX

It does for transformers models what sparsekv-calibrate(1) does for models that the C engine reads. It measures what
layers attend to (observe.py, measure.py, correction.py). It chooses layers by the papers' criteria (choose.py), and
optionally searches from there for the layers with which the model predicts best (search.py, loss.py). It writes the
file that policies take as profile=FILE (profile.py). It measures the policies' quality with the profile through
SparseCache (quality.py), and draws charts (draw.py).
"""
