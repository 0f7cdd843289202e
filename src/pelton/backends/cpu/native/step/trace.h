// The hash of a traced step.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pelton {

// A 64-bit hash of a run of 32-bit words, the same on every machine. No step loses what came before it: two runs that
// differ in one word never have the same hash.
class Hash {
   public:
    void word(uint32_t w) {
        state_ ^= w * 0x9E3779B185EBCA87u;
        state_ = (state_ << 23 | state_ >> 41) * 0xC2B2AE3D27D4EB4Fu + 0x165667B19E3779F9u;
    }
    void floats(const float* x, size_t n, size_t stride = 1) {
        for (size_t i = 0; i < n; ++i) word(__builtin_bit_cast(uint32_t, x[i * stride]));
    }
    uint64_t value() const {
        uint64_t h = state_;
        h = (h ^ h >> 33) * 0xC2B2AE3D27D4EB4Fu;
        h = (h ^ h >> 29) * 0x165667B19E3779F9u;
        return h ^ h >> 32;
    }

   private:
    uint64_t state_ = 0x27D4EB2F165667C5u;
};

}  // namespace pelton
