// FlushDenormals: floating-point control of the calling thread.
#include "kernels.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace pelton {

#if defined(__x86_64__)
constexpr unsigned FLUSH_AND_ZERO = 0x8040;  // FTZ and DAZ
FlushDenormals::FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(static_cast<unsigned>(saved_) | FLUSH_AND_ZERO); }
FlushDenormals::~FlushDenormals() { _mm_setcsr(static_cast<unsigned>(saved_)); }
#elif defined(__aarch64__)
FlushDenormals::FlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" ::"r"(saved_ | (1ull << 24)));
}
FlushDenormals::~FlushDenormals() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }
#else
FlushDenormals::FlushDenormals() : saved_(0) {}
FlushDenormals::~FlushDenormals() {}
#endif

}  // namespace pelton
