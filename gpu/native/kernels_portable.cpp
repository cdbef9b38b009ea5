#define RINGCAST_KERNELS portable_kernels
#include "kernels.inc"
