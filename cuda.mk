# SPDX-License-Identifier: Apache-2.0
# Modules for CUDA, which programs load where a device is wanted. Automake knows no nvcc. A folder adds its module to
# cudamodule_DATA and its objects to CUDA_OBJECTS, each made of the .cu of its name, and links with SKV_CUDA_LINK.
EXTRA_DIST += cuda.mk
cudamoduledir = $(pkglibdir)
cudamodule_DATA =
CUDA_OBJECTS =
SKV_HOPPER_OBJECTS =
CLEANFILES += $(cudamodule_DATA) $(CUDA_OBJECTS) $(CUDA_OBJECTS:.o=.d)

if CUDA
# configure makes SKV_GENCODE of --with-cuda-arch.
# Objects of SKV_HOPPER_OBJECTS are of instructions that Hopper alone has; their callers have checked the device.
SKV_HOPPER = -gencode arch=compute_90a,code=sm_90a
SKV_NVCC = $(NVCC) -std=c++17 $(if $(filter $@,$(SKV_HOPPER_OBJECTS)),$(SKV_HOPPER),$(SKV_GENCODE)) $(SKV_NVCCFLAGS) -Xcompiler -Wall,-fPIC,-fvisibility=hidden $(NVCCFLAGS)

AM_V_NVCC = $(am__v_NVCC_$(V))
am__v_NVCC_ = $(am__v_NVCC_$(AM_DEFAULT_VERBOSITY))
am__v_NVCC_0 = @echo "  NVCC    " $@;
am__v_NVCC_1 =

# With a file, -c, and -o and the object behind it.
SKV_NVCC_COMPILE = $(AM_V_NVCC)$(MKDIR_P) $(@D) && $(SKV_NVCC) -I$(top_srcdir) -I$(top_srcdir)/libclient/include -MD -MP -MF $(@:.o=.d)

$(CUDA_OBJECTS): %.o: %.cu
	$(SKV_NVCC_COMPILE) -c $< -o $@
# The headers that each was made of, as nvcc has found them.
-include $(CUDA_OBJECTS:.o=.d)

# Of the objects among the prerequisites, showing what module.map beside the sources says. The runtime comes along: the
# machine needs the driver alone, and the libraries that follow.
SKV_CUDA_LINK = $(AM_V_NVCC)$(SKV_NVCC) -shared -cudart static -Xcompiler -static-libstdc++,-static-libgcc \
	-Xlinker --as-needed,--no-undefined,--version-script=$(srcdir)/$(@D)/module.map $(filter %.o,$^) -o $@
endif
