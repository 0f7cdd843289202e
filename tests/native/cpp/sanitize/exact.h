// Memory that ends where it says it ends, and numbers to fill it with: a kernel that reads or writes one byte further is
// seen by AddressSanitizer. What it is not: part of the package.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

namespace exact {

// Of so many T, at a 64-byte border as the executable's memory is.
template <class T>
class Array {
   public:
    explicit Array(size_t count, T value = T()) : count_(count) {
        void* memory = nullptr;
        if (posix_memalign(&memory, 64, count ? count * sizeof(T) : 1)) throw std::bad_alloc();
        data_ = static_cast<T*>(memory);
        for (size_t i = 0; i < count; ++i) data_[i] = value;
    }
    ~Array() { std::free(data_); }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;

    T* data() const { return data_; }
    size_t size() const { return count_; }
    T& operator[](size_t i) const { return data_[i]; }

   private:
    T* data_;
    size_t count_;
};

struct Random {
    uint64_t state = 20240607;

    uint32_t next() { return static_cast<uint32_t>((state = state * 6364136223846793005u + 1442695040888963407u) >> 33); }
    float number() { return static_cast<float>(static_cast<int>(next() % 4001) - 2000) / 1000.0f; }
    // A half below 2 in size: also good as bits of codes and of bf16.
    uint16_t half() { return static_cast<uint16_t>(next() & 0xbbff); }
};

inline void fill(Array<float>& array, Random& random) {
    for (size_t i = 0; i < array.size(); ++i) array[i] = random.number();
}

inline void fill(Array<uint8_t>& array, Random& random) {
    for (size_t i = 0; i + 1 < array.size(); i += 2) {
        const uint16_t half = random.half();
        std::memcpy(array.data() + i, &half, 2);
    }
}

}  // namespace exact
