/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/restart/resume.h - a part of creating a core that a new core and a resumed one share. */
#ifndef SKV_CORE_RESUME_H
#define SKV_CORE_RESUME_H

#include "daemon/core/state/core-priv.h"

/* Makes a core around a state (consumed, also on failure). Its rows have no companions yet. */
int skv_core_make(const struct skv_core_config *, const struct skv_mem_ops *, struct skv_state *,
                  struct skv_core **ret);

#endif
