// Which Highway targets are compiled: SSE4 (the least), AVX2 and AVX-512 on x86-64, NEON on arm64. Included first by
// every file with SIMD code.
//
// AVX3_DL adds instructions that nothing here uses. The scalable targets (SVE, RVV) cannot hold vectors in arrays,
// which the register tiles need. Without the baseline given here, g++ before 12.3 would get Highway's one-lane target.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_SSE4
#endif
