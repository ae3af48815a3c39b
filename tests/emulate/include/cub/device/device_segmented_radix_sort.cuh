/* SPDX-License-Identifier: Apache-2.0 */
/* The only one of CUB's sorts in use: see tests/emulate/emulate.h. */
#ifndef SKV_TEST_EMULATE_SEGMENTED_SORT_H
#define SKV_TEST_EMULATE_SEGMENTED_SORT_H

#include <algorithm>
#include <utility>
#include <vector>

namespace cub {
template <class T> struct DoubleBuffer {
	T *current, *other;

	DoubleBuffer(T *now, T *then) : current(now), other(then) {}
	T *Current(void) const { return current; }
};

struct DeviceSegmentedRadixSort {
	/* Sorts into the other buffers, which then become the current ones. */
	template <class K, class V>
	static void SortPairsDescending(void *, size_t &, DoubleBuffer<K> &keys, DoubleBuffer<V> &values, int, int segments,
	                                const uint32_t *begin, const uint32_t *end, int, int, cudaStream_t stream)
	{
		const DoubleBuffer<K> k = keys;
		const DoubleBuffer<V> v = values;

		emulate_later(stream, [=]() {
			for (int s = 0; s < segments; s++) {
				std::vector<std::pair<K, V>> all;
				for (uint32_t i = begin[s]; i < end[s]; i++)
					all.push_back({k.current[i], v.current[i]});
				std::stable_sort(all.begin(), all.end(), [](const auto &a, const auto &b) { return a.first > b.first; });
				for (uint32_t i = begin[s]; i < end[s]; i++) {
					k.other[i] = all[i - begin[s]].first;
					v.other[i] = all[i - begin[s]].second;
				}
			}
		});
		std::swap(keys.current, keys.other);
		std::swap(values.current, values.other);
	}
};
}

#endif
