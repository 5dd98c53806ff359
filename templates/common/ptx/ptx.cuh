// All PTX instructions that the kernels use.
#pragma once
#include "common/ptx/cluster.cuh"
#include "common/ptx/distributed_shared_memory.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/registers.cuh"
#include "common/ptx/shared_memory.cuh"
#include "common/ptx/tma.cuh"
#include "common/ptx/wgmma.cuh"
