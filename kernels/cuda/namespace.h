// Where everything that runs on a GPU is: foreshard::kernels::cuda. The same sources are also
// compiled for the host (kernels/cuda/emulation), with FORESHARD_CUDA_EMULATION defined; those
// are in an inline namespace of it, so that one program can hold both and each call means
// the one that its file was compiled for.
#pragma once

#if defined(FORESHARD_CUDA_EMULATION)
#define FORESHARD_CUDA_NAMESPACE foreshard::kernels::cuda::inline emulated
#else
#define FORESHARD_CUDA_NAMESPACE foreshard::kernels::cuda
#endif
