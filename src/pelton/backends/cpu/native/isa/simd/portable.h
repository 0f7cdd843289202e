// Sixteen lanes in plain C++. What it is not: included by itself; simd.h does, inside the namespace of the instruction
// set. Invariant: this is what the functions of the other files here mean.

struct V {
    float v[16];
};
struct U {
    uint32_t v[16];
};

template <class F> inline V each(F f) {
    V r;
    for (int i = 0; i < 16; ++i) r.v[i] = f(i);
    return r;
}
template <class F> inline U each_u(F f) {
    U r;
    for (int i = 0; i < 16; ++i) r.v[i] = f(i);
    return r;
}
inline V zero() { return each([](int) { return 0.0f; }); }
inline V set1(float x) { return each([=](int) { return x; }); }
inline V load(const float* p) { return each([=](int i) { return p[i]; }); }
inline void store(float* p, V a) { std::memcpy(p, a.v, sizeof a.v); }
inline V add(V a, V b) { return each([&](int i) { return a.v[i] + b.v[i]; }); }
inline V sub(V a, V b) { return each([&](int i) { return a.v[i] - b.v[i]; }); }
inline V mul(V a, V b) { return each([&](int i) { return a.v[i] * b.v[i]; }); }
inline V div(V a, V b) { return each([&](int i) { return a.v[i] / b.v[i]; }); }
inline V fma(V a, V b, V c) { return each([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); }); }
inline V max(V a, V b) { return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
inline V min(V a, V b) { return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
inline U bits(V a) { return each_u([&](int i) { return bits_of(a.v[i]); }); }
inline V floats(U a) { return each([&](int i) { return float_of(a.v[i]); }); }
inline U uset1(uint32_t x) { return each_u([=](int) { return x; }); }
inline U uload(const void* p) {
    U r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
}
inline U uadd(U a, U b) { return each_u([&](int i) { return a.v[i] + b.v[i]; }); }
inline U usub(U a, U b) { return each_u([&](int i) { return a.v[i] - b.v[i]; }); }
inline U uand(U a, U b) { return each_u([&](int i) { return a.v[i] & b.v[i]; }); }
template <int N> inline U shl(U a) { return each_u([&](int i) { return a.v[i] << N; }); }
template <int N> inline U shr(U a) { return each_u([&](int i) { return a.v[i] >> N; }); }
inline V where_less(V x, V y, V a, V b) { return each([&](int i) { return x.v[i] < y.v[i] ? a.v[i] : b.v[i]; }); }
inline V where_nan(V x, V a, V b) { return each([&](int i) { return x.v[i] != x.v[i] ? a.v[i] : b.v[i]; }); }
inline V where_lanes(int first, int last, V a, V b) { return each([&](int i) { return i >= first && i < last ? a.v[i] : b.v[i]; }); }
inline V load_f16(const uint16_t* p) { return each([=](int i) { return from_f16(p[i]); }); }
inline V load_i8(const int8_t* p) { return each([=](int i) { return static_cast<float>(p[i]); }); }
template <int I> inline V byte(U codes) {
    return each([&](int i) { return static_cast<float>(static_cast<int8_t>(codes.v[i] >> (8 * I) & 255u)); });
}
template <int I, int MINUS> inline V nibble(U codes) {
    return each([&](int i) { return static_cast<float>(static_cast<int>((codes.v[i] >> (4 * I)) & 15u) - MINUS); });
}
template <int I> inline V level(U codes) {
    return each([&](int i) { return static_cast<float>(IQ4_LEVELS[(codes.v[i] >> (4 * I)) & 15u]); });
}
inline U load_u16(const uint16_t* p) { return each_u([=](int i) { return p[i]; }); }
template <int I> inline V crumb(U codes) {
    return each([&](int i) { return static_cast<float>((codes.v[i] >> (2 * I)) & 3u); });
}
