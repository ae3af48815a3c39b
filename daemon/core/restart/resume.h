/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/restart/resume.h - makes a struct skv_core for a state, new or resumed. */
#ifndef SKV_CORE_RESUME_H
#define SKV_CORE_RESUME_H

#include "daemon/core/state/core-priv.h"

/* Makes a core for a state (consumed, also on failure). The descriptors and mappings of live rows are not made yet. */
int skv_core_make(const struct skv_core_config *, const struct skv_mem_ops *, struct skv_state *,
                  struct skv_core **ret);

#endif
