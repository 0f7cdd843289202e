// Page-backed memory: zero-filled, touched only as it is used, aligned for every kernel.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace pelton {

class Memory {
   public:
    Memory() = default;
    explicit Memory(size_t bytes) : size_(bytes) {
        if (!bytes) return;
        void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
        if (bytes >= HUGE_FROM) madvise(p, bytes, MADV_HUGEPAGE);  // only a wish
#endif
        data_ = static_cast<uint8_t*>(p);
    }
    // Part of an open file, for reading; the mapping outlives the descriptor. `offset` is that of a page.
    Memory(int file, size_t offset, size_t bytes) : size_(bytes) {
        void* p = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, static_cast<off_t>(offset));
        if (p == MAP_FAILED) throw std::bad_alloc();
        madvise(p, bytes, MADV_WILLNEED);
        data_ = static_cast<uint8_t*>(p);
    }
    Memory(Memory&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    Memory& operator=(Memory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~Memory() {
        if (data_) munmap(data_, size_);
    }

    uint8_t* data() const { return data_; }
    float* floats() const { return reinterpret_cast<float*>(data_); }
    size_t size() const { return size_; }

   private:
    static constexpr size_t HUGE_FROM = size_t{4} << 20;

    uint8_t* data_ = nullptr;
    size_t size_ = 0;
};

}  // namespace pelton
