/* Bytes objects that are filled again. */
#ifndef FASTSHARD_BYTES_H
#define FASTSHARD_BYTES_H

#include <Python.h>

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* ob_shash */
#endif

/* Give a bytes object that only its caller holds another size, at most the one that it
 * was made with, and forget its hash. */
static inline void fs_renew_bytes(PyObject *data, Py_ssize_t size)
{
    Py_SET_SIZE((PyVarObject *)data, size);
    ((PyBytesObject *)data)->ob_shash = -1;
    PyBytes_AS_STRING(data)[size] = 0;
}

#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

#endif
