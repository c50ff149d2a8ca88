// Which Highway targets are compiled: SSE4 (the least), AVX2 and AVX-512 on x86-64, NEON on arm64. Included first by
// every file with SIMD code.
//
// AVX3_DL adds instructions that nothing here uses. The scalable targets (SVE, RVV) cannot hold vectors in arrays,
// which the register tiles need. Without the baseline given here, g++ before 12.3 would get Highway's one-lane target.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
// A sanitised build of one target takes as long as all of them otherwise; AVX2 stands for the wide ones.
#define ONELANE_SLOW_TARGETS HWY_AVX3
#else
#define ONELANE_SLOW_TARGETS 0
#endif
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | ONELANE_SLOW_TARGETS)
#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_SSE4
#endif
