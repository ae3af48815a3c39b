/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/layer/recall.h - attention recall, measured in one of every so many steps. */
#ifndef SKV_CLIENT_LAYER_RECALL_H
#define SKV_CLIENT_LAYER_RECALL_H

struct layer;
struct skv_index_list;

/*
 * For a layer that attends to a window or to the tokens or pages of `list`. recall_weigh() is called before the layer
 * attends, because attention may overwrite q; recall_measure() after it.
 */
void recall_weigh(const struct layer *l, const struct skv_index_list *list);
void recall_measure(const struct layer *l, const struct skv_index_list *list);

#endif
