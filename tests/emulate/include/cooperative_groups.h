/* SPDX-License-Identifier: Apache-2.0 */
/* Clusters of blocks are not emulated, so nothing from CUDA's header is needed. */
namespace cooperative_groups {
}
