# SPDX-License-Identifier: Apache-2.0
# CUDA modules, which programs load if a device is wanted. Automake does not know nvcc. A folder adds its module to
# cudamodule_DATA and its objects to CUDA_OBJECTS, each made from the .cu of its name, and links with SKV_CUDA_LINK.
EXTRA_DIST += cuda.mk
cudamoduledir = $(pkglibdir)
cudamodule_DATA =
CUDA_OBJECTS =
SKV_HOPPER_OBJECTS =
CLEANFILES += $(cudamodule_DATA) $(CUDA_OBJECTS) $(CUDA_OBJECTS:.o=.d)

if CUDA
# configure computes SKV_GENCODE from --with-cuda-arch. SKV_HOPPER_OBJECTS use instructions that only Hopper has; their
# callers check the device.
SKV_HOPPER = -gencode arch=compute_90a,code=sm_90a
SKV_NVCC = $(NVCC) -std=c++17 $(if $(filter $@,$(SKV_HOPPER_OBJECTS)),$(SKV_HOPPER),$(SKV_GENCODE)) $(SKV_NVCCFLAGS) -Xcompiler -Wall,-fPIC,-fvisibility=hidden $(NVCCFLAGS)

AM_V_NVCC = $(am__v_NVCC_$(V))
am__v_NVCC_ = $(am__v_NVCC_$(AM_DEFAULT_VERBOSITY))
am__v_NVCC_0 = @echo "  NVCC    " $@;
am__v_NVCC_1 =

# Follow it with a file, -c, and -o with the object.
SKV_NVCC_COMPILE = $(AM_V_NVCC)$(MKDIR_P) $(@D) && $(SKV_NVCC) -I$(top_srcdir) -I$(top_srcdir)/libclient/include -MD -MP -MF $(@:.o=.d)

$(CUDA_OBJECTS): %.o: %.cu
	$(SKV_NVCC_COMPILE) -c $< -o $@
# Headers that each object includes, as nvcc found them.
-include $(CUDA_OBJECTS:.o=.d)

# Links the objects among the prerequisites, exporting what module.map beside the sources lists. The runtime is
# included: the machine needs only the driver, and the libraries that follow.
SKV_CUDA_LINK = $(AM_V_NVCC)$(SKV_NVCC) -shared -cudart static -Xcompiler -static-libstdc++,-static-libgcc \
	-Xlinker --as-needed,--no-undefined,--version-script=$(srcdir)/$(@D)/module.map $(filter %.o,$^) -o $@
endif
