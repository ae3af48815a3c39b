# SPDX-License-Identifier: Apache-2.0
EXTRA_DIST += \
	models/reference/README.md models/reference/config.json models/reference/model.safetensors \
	models/reference/model.py models/reference/train.py models/reference/sim.py models/reference/latent.py models/reference/deltakv.py \
	models/reference/deltakv.safetensors models/reference/deltakv-pca.safetensors models/reference/palu.safetensors \
	models/reference/tasks.py models/reference/mktasks.py models/reference/tasks-dev.jsonl \
	models/reference/golden-dev.jsonl models/reference/eval.txt.xz
