// Binding of the probe; called once by bind.cpp.
#pragma once

#include <nanobind/nanobind.h>

void bind_probe(nanobind::module_& m);
