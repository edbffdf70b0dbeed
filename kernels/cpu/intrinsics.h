// <immintrin.h> without GCC 12's false alarms: its AVX-512 wrappers start from an
// undefined register on purpose (GCC bug 105593).
#pragma once

#if defined(__x86_64__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif
