# SPDX-License-Identifier: Apache-2.0
include daemon/core/local.mk
include daemon/mem/local.mk
