/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/operations/joint.h - sequences whose tensor-parallel ranks commit together (common/seqmem.h, rule 10). */
#ifndef SKV_CORE_JOINT_H
#define SKV_CORE_JOINT_H

#include "daemon/core/sequences/validate.h"
#include "daemon/core/state/core-priv.h"

/*
 * Takes back the last commit of a sequence that loses its holder, unless all ranks have made the commit. `gone`: the
 * client that held the sequence has ended; then the result may be SKV_WAITS, because a rank whose client lives may
 * still make the commit. If a live client releases the sequence, the call does not wait for ranks that are behind.
 */
enum skv_progress skv_joint_settle(struct skv_core *, uint32_t seq, bool gone);

/* Does a client hold a sequence of another rank of this sequence's tensor-parallel group? */
bool skv_joint_held(const struct skv_core *, uint32_t seq);

#endif
