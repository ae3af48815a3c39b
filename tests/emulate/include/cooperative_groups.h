/* SPDX-License-Identifier: Apache-2.0 */
/* Clusters of blocks are not emulated: nothing of CUDA's header is in use. */
namespace cooperative_groups {
}
