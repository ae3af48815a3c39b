# SPDX-License-Identifier: Apache-2.0
"""
Profiles of models that transformers runs: which layers select well.

    python -m sparsekv.calibrate MODEL --texts FILE... -o profile.json --svg PREFIX

It does what sparsekv-calibrate(1) does for models that the C engine reads: measures what layers attend to (observe.py,
measure.py, correction.py), chooses layers by the papers' criteria (choose.py) or from there on by a search for those under
which the model predicts best (search.py, loss.py), and writes the file that policies take as profile=FILE (profile.py). How
policies do with it is measured through SparseCache (quality.py), and drawn (draw.py).
"""
