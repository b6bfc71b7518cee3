# The CUDA runtime's headers and static library as CUDA::cudart_static: of an installed toolkit (12.4 or newer), else
# of the private folder that `./dev setup` fills with NVIDIA's Python wheels. Without either there is no such target.
# Also part of the installed package, whose users link the same library.
find_package(CUDAToolkit 12.4 QUIET)
if(NOT TARGET CUDA::cudart_static)
  if(DEFINED ENV{XDG_DATA_HOME})
    set(warpweave_cuda_private "$ENV{XDG_DATA_HOME}/warpweave/cuda")
  else()
    set(warpweave_cuda_private "$ENV{HOME}/.local/share/warpweave/cuda")
  endif()
  set(warpweave_cuda_private "${warpweave_cuda_private}/nvidia/cu13")
  if(EXISTS "${warpweave_cuda_private}/include/cuda_runtime_api.h" AND EXISTS "${warpweave_cuda_private}/lib/libcudart_static.a")
    find_package(Threads REQUIRED)
    add_library(CUDA::cudart_static STATIC IMPORTED GLOBAL)
    set_target_properties(CUDA::cudart_static PROPERTIES
      IMPORTED_LOCATION "${warpweave_cuda_private}/lib/libcudart_static.a"
      INTERFACE_INCLUDE_DIRECTORIES "${warpweave_cuda_private}/include"
      INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};rt")
  endif()
endif()
