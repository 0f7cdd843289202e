// The Python face of the probe: arguments are checked here, and the interpreter is let go while it measures.
#include "bind_probe.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <stdexcept>

#include "available.h"
#include "pack/pack.h"
#include "probe.h"

namespace nb = nanobind;
using namespace pelton;

namespace {

constexpr double MAX_SECONDS = 60;
constexpr int MAX_ROWS = 4096;
constexpr size_t MAX_BYTES = size_t{1} << 40;

void need(bool good, const char* what) {
    if (!good) throw std::invalid_argument(what);
}

Peak peak_named(const std::string& name) {
    for (const Peak& peak : peaks())
        if (name == peak.name) return peak;
    throw std::invalid_argument("this processor has no " + name);
}

// A probe measures one thing at a time.
struct BoundProbe {
    explicit BoundProbe(const std::vector<int>& cores) : probe(cores) {}

    template <class F>
    auto alone(F measure) {
        if (busy.test_and_set()) throw std::runtime_error("another thread is measuring with this probe");
        struct Leave {
            std::atomic_flag& flag;
            ~Leave() { flag.clear(); }
        } leave{busy};
        nb::gil_scoped_release release;
        return measure(probe);
    }

    Probe probe;
    std::atomic_flag busy = ATOMIC_FLAG_INIT;
};

void need_seconds(double seconds) { need(seconds > 0 && seconds <= MAX_SECONDS, "seconds"); }
void need_bytes(size_t bytes) { need(bytes > 0 && bytes <= MAX_BYTES, "bytes"); }

nb::dict formats() {
    nb::dict out;
    int number = 0;
    for (const Layout& layout : LAYOUTS)
        out[layout.name] = panel_bytes(static_cast<Format>(number++), PRODUCT_BLOCKS) / static_cast<size_t>(PRODUCT_BLOCKS);
    return out;
}

}  // namespace

void bind_probe(nb::module_& m) {
    m.def("packed_formats", &formats, "Packed formats, each with the bytes of a block of 32 by 16 weights.");
    m.def("has_int8_products", [](const std::string& isa) { return kernels_named(isa).matmul_int8 != nullptr; }, nb::arg("isa"),
          "Whether an instruction set's kernels multiply rows of 8 bits.");
    m.def("peak_names", [] {
        std::vector<std::string> names;
        for (const Peak& peak : peaks()) names.emplace_back(peak.name);
        return names;
    }, "Arithmetic instructions of this processor that Probe.peak measures.");
    nb::class_<BoundProbe>(m, "Probe")
        .def(nb::init<const std::vector<int>&>(), nb::arg("cores"))
        .def_prop_ro("threads", [](const BoundProbe& bound) { return bound.probe.threads(); })
        .def("read_once", [](BoundProbe& bound, size_t bytes, bool pieces) {
            need_bytes(bytes);
            return bound.alone([&](Probe& probe) { return probe.read_once(bytes, pieces); });
        }, nb::arg("bytes"), nb::arg("pieces"))
        .def("read", [](BoundProbe& bound, size_t bytes, bool pieces, double seconds) {
            need_bytes(bytes), need_seconds(seconds);
            return bound.alone([&](Probe& probe) { return probe.read(bytes, pieces, seconds); });
        }, nb::arg("bytes"), nb::arg("pieces"), nb::arg("seconds"))
        .def("copy", [](BoundProbe& bound, size_t bytes, double seconds) {
            need_bytes(bytes), need_seconds(seconds);
            return bound.alone([&](Probe& probe) { return probe.copy(bytes, seconds); });
        }, nb::arg("bytes"), nb::arg("seconds"))
        .def("products", [](BoundProbe& bound, const std::string& isa, const std::string& format, int rows, double seconds, bool int8) {
            need(rows > 0 && rows <= MAX_ROWS, "rows");
            need_seconds(seconds);
            const Kernels& kernels = kernels_named(isa);
            const Format packed = format_of(format);
            need(!int8 || (kernels.matmul_int8 && layout(packed).scales > 0), "no products of rows of 8 bits with this format");
            return bound.alone([&](Probe& probe) { return probe.products(kernels, packed, rows, int8, seconds); });
        }, nb::arg("isa"), nb::arg("format"), nb::arg("rows"), nb::arg("seconds"), nb::arg("int8") = false)
        .def("peak", [](BoundProbe& bound, const std::string& name, double seconds) {
            need_seconds(seconds);
            const Peak peak = peak_named(name);
            return bound.alone([&](Probe& probe) { return probe.peak(peak, seconds); });
        }, nb::arg("name"), nb::arg("seconds"));
}
