#define RINGCAST_KERNELS avx512_kernels
#include "kernels.inc"
