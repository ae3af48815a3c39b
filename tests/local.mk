# SPDX-License-Identifier: Apache-2.0
include tests/targets.mk
include tests/common.mk
include tests/core.mk
include tests/engine.mk
include tests/kernels.mk
include tests/server.mk
include tests/client.mk
include tests/oracle/local.mk
