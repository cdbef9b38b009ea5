// What the files that make up the Python module share.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kernels.h"

namespace ringcast {

// A data pointer that travelled as a Python int.
template <class T>
T* pointer(unsigned long long address) {
    return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

inline PyObject* none_or_no_memory(bool enough) {
    if (!enough) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

// The table for `level`, or null with a ValueError set.
const Kernels* checked_table(int level);

// Adds the functions of a forward pass and the type Program; false with an error set.
bool add_program_bindings(PyObject* module);

}  // namespace ringcast
