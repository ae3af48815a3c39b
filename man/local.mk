# SPDX-License-Identifier: Apache-2.0
dist_man_MANS += man/sparsekv-policy.7 man/sparsekv-protocol.7
dist_man_MANS += man/sparsekv-bench.1 man/sparsekv-calibrate.1 man/sparsekv-eval.1 man/sparsekv-generate.1
dist_man_MANS += man/sparsekvd.8 man/sparsekvd.conf.5 man/sparsekvctl.1 man/sparsekv-parked.5
dist_man_MANS += man/libsparsekv-client.3
