// Sixteen lanes in four NEON registers (aarch64). What it is not: included by itself; simd.h does, inside the namespace
// of the instruction set. Invariant: each function does what the one of its name in portable.h does, to the bit.

struct V {
    float32x4_t v[4];
};
struct U {
    uint32x4_t v[4];
};

// f(0) .. f(3) as the four quarters.
template <class F> inline V each(F f) { return {{f(0), f(1), f(2), f(3)}}; }
template <class F> inline U each_u(F f) { return {{f(0), f(1), f(2), f(3)}}; }
inline V zero() { return each([](int) { return vdupq_n_f32(0.0f); }); }
inline V set1(float x) { return each([=](int) { return vdupq_n_f32(x); }); }
inline V load(const float* p) { return each([=](int i) { return vld1q_f32(p + 4 * i); }); }
inline void store(float* p, V a) {
    for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, a.v[i]);
}
inline V add(V a, V b) { return each([&](int i) { return vaddq_f32(a.v[i], b.v[i]); }); }
inline V sub(V a, V b) { return each([&](int i) { return vsubq_f32(a.v[i], b.v[i]); }); }
inline V mul(V a, V b) { return each([&](int i) { return vmulq_f32(a.v[i], b.v[i]); }); }
inline V div(V a, V b) { return each([&](int i) { return vdivq_f32(a.v[i], b.v[i]); }); }
inline V fma(V a, V b, V c) { return each([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); }); }
// Of a NaN: b, which this machine's own maximum and minimum would not give.
inline V max(V a, V b) { return each([&](int i) { return vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); }); }
inline V min(V a, V b) { return each([&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); }); }
inline U bits(V a) { return each_u([&](int i) { return vreinterpretq_u32_f32(a.v[i]); }); }
inline V floats(U a) { return each([&](int i) { return vreinterpretq_f32_u32(a.v[i]); }); }
inline U uset1(uint32_t x) { return each_u([=](int) { return vdupq_n_u32(x); }); }
inline U uload(const void* p) { return each_u([=](int i) { return vld1q_u32(static_cast<const uint32_t*>(p) + 4 * i); }); }
inline U uadd(U a, U b) { return each_u([&](int i) { return vaddq_u32(a.v[i], b.v[i]); }); }
inline U usub(U a, U b) { return each_u([&](int i) { return vsubq_u32(a.v[i], b.v[i]); }); }
inline U uand(U a, U b) { return each_u([&](int i) { return vandq_u32(a.v[i], b.v[i]); }); }
template <int N> inline U shl(U a) { return each_u([&](int i) { return vshlq_n_u32(a.v[i], N); }); }
// The instruction has no shift by nothing.
template <int N> inline U shr(U a) {
    if constexpr (N == 0) return a;
    else return each_u([&](int i) { return vshrq_n_u32(a.v[i], N); });
}
inline V where_less(V x, V y, V a, V b) {
    return each([&](int i) { return vbslq_f32(vcltq_f32(x.v[i], y.v[i]), a.v[i], b.v[i]); });
}
inline V where_nan(V x, V a, V b) {
    return each([&](int i) { return vbslq_f32(vceqq_f32(x.v[i], x.v[i]), b.v[i], a.v[i]); });
}
inline V where_lanes(int first, int last, V a, V b) {
    static constexpr int32_t QUARTER[4] = {0, 1, 2, 3};
    return each([&](int i) {
        const int32x4_t lane = vaddq_s32(vld1q_s32(QUARTER), vdupq_n_s32(4 * i));
        const uint32x4_t inside = vandq_u32(vcgeq_s32(lane, vdupq_n_s32(first)), vcltq_s32(lane, vdupq_n_s32(last)));
        return vbslq_f32(inside, a.v[i], b.v[i]);
    });
}
inline V load_f16(const uint16_t* p) {
    return each([=](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}
// Quarter i of sixteen signed bytes, as fp32.
inline float32x4_t quarter_of_bytes(int8x16_t bytes, int i) {
    const int16x8_t half = i < 2 ? vmovl_s8(vget_low_s8(bytes)) : vmovl_s8(vget_high_s8(bytes));
    return vcvtq_f32_s32(i % 2 ? vmovl_s16(vget_high_s16(half)) : vmovl_s16(vget_low_s16(half)));
}
inline V load_i8(const int8_t* p) {
    const int8x16_t bytes = vld1q_s8(p);
    return each([=](int i) { return quarter_of_bytes(bytes, i); });
}
template <int I> inline V byte(U codes) {
    return each([&](int i) {
        int32x4_t word = vreinterpretq_s32_u32(codes.v[i]);
        if constexpr (I < 3) word = vshlq_n_s32(word, 24 - 8 * I);
        return vcvtq_f32_s32(vshrq_n_s32(word, 24));
    });
}
template <int I, int MINUS> inline V nibble(U codes) {
    const U code = uand(shr<4 * I>(codes), uset1(15));
    return each([&](int i) { return vcvtq_f32_s32(vsubq_s32(vreinterpretq_s32_u32(code.v[i]), vdupq_n_s32(MINUS))); });
}
template <int I> inline V level(U codes) {
    const int8x16_t table = vld1q_s8(IQ4_LEVELS);
    // All four codes of a lane that are even (or odd) at once, a byte each; then one of these bytes with its sign.
    const U nibbles = uand(shr<I % 2 * 4>(codes), uset1(0x0f0f0f0fu));
    return each([&](int i) {
        const int32x4_t levels = vreinterpretq_s32_s8(vqtbl1q_s8(table, vreinterpretq_u8_u32(nibbles.v[i])));
        return vcvtq_f32_s32(vshrq_n_s32(vshlq_n_s32(levels, 24 - I / 2 * 8), 24));
    });
}
inline U load_u16(const uint16_t* p) {
    return each_u([=](int i) { return vmovl_u16(vld1_u16(p + 4 * i)); });
}
template <int I> inline V crumb(U codes) {
    const U code = uand(shr<2 * I>(codes), uset1(3));
    return each([&](int i) { return vcvtq_f32_u32(code.v[i]); });
}
