# SPDX-License-Identifier: Apache-2.0
# The CUDA kernels compiled for a processor: the backend's sources as C++, with the fake device's memory, streams and
# recordings. The module around them and kernels for Hopper only are left out.
EMULATE_CODE = tests/emulate/emulate.h tests/emulate/ptx.h tests/emulate/lanes.cpp tests/emulate/runtime.cpp \
	tests/emulate/include/cooperative_groups.h tests/emulate/include/cub/block/block_scan.cuh \
	tests/emulate/include/cub/device/device_segmented_radix_sort.cuh
EXTRA_DIST += $(EMULATE_CODE)

if CUDA
check_DATA += tests/emulate/sparsekv-cuda.so
EMULATED_KERNELS = $(filter-out %/device.cu %/share.cu %/step.cu %/read.cu %/prefill-sm90.cu,$(CUDA_KERNEL_CODE))
EMULATED_OBJECTS = $(EMULATED_KERNELS:kernels/cuda/%.cu=tests/emulate/cuda/%.o)
EMULATED_INSTANCES = $(ALL_INSTANCES:%=tests/emulate/cuda/decode/instances/%.o)
EMULATE_OBJECTS = tests/emulate/lanes.o tests/emulate/runtime.o
EMULATE_FAKE_OBJECTS = tests/emulate/fake-backend.o tests/emulate/fake-streams.o
EMULATE_FLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests/emulate/include $(CUDA_CPPFLAGS) $(CPPFLAGS) -fPIC -fvisibility=hidden $(SKV_LDFLAGS) -MD -MP -MF $(@:.o=.d)
# nvcc checks the kernels' warnings; type punning is usual there
EMULATE_CXX = $(AM_V_CC)$(MKDIR_P) $(@D) && $(CXX) -std=c++17 -DSKV_EMULATE -fno-strict-aliasing $(EMULATE_FLAGS) $(CXXFLAGS)
EMULATION = $(EMULATED_INSTANCES) $(EMULATED_OBJECTS) $(EMULATE_OBJECTS) $(EMULATE_FAKE_OBJECTS)
CLEANFILES += tests/emulate/sparsekv-cuda.so $(EMULATION) $(EMULATION:.o=.d)

EMULATE_KERNEL = $(EMULATE_CXX) -w -include tests/emulate/emulate.h -x c++

$(EMULATED_OBJECTS): tests/emulate/cuda/%.o: kernels/cuda/%.cu
	$(EMULATE_KERNEL) -c $< -o $@
$(EMULATED_INSTANCES): kernels/cuda/decode/instance.cu
	$(EMULATE_KERNEL) $(call instance_flags,$@) -c $< -o $@
$(EMULATE_OBJECTS): %.o: %.cpp
	$(EMULATE_CXX) -Wall -Wextra -c $< -o $@
$(EMULATE_FAKE_OBJECTS): tests/emulate/%.o: tests/support/%.c
	$(AM_V_CC)$(MKDIR_P) $(@D) && $(CC) $(EMULATE_FLAGS) $(AM_CFLAGS) $(CFLAGS) -c $< -o $@
-include $(EMULATION:.o=.d)

tests/emulate/sparsekv-cuda.so: $(EMULATION)
	$(AM_V_CC)$(CXX) $(CXXFLAGS) $(SKV_LDFLAGS) -shared -Wl,--no-undefined $^ -lm -o $@
endif
