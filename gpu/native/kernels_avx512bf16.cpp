#define RINGCAST_KERNELS avx512bf16_kernels
#include "kernels.inc"
