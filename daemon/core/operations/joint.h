/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/operations/joint.h - sequences whose tensor-parallel ranks commit together (common/seqmem.h, 10). */
#ifndef SKV_CORE_JOINT_H
#define SKV_CORE_JOINT_H

#include "daemon/core/sequences/validate.h"
#include "daemon/core/state/core-priv.h"

/*
 * The sequence loses its holder: takes its last commit back if not all ranks have made it. `gone`: because its client
 * has ended; the result may then be SKV_WAITS: another rank, which is still held, may still make the commit. A client
 * that lives and releases the sequence does not wait: the other ranks count as they are.
 */
enum skv_progress skv_joint_settle(struct skv_core *, uint32_t seq, bool gone);

/* Does a client hold another rank of the sequence's group? */
bool skv_joint_held(const struct skv_core *, uint32_t seq);

#endif
