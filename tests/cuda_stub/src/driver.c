/* libcuda.so.1: the driver API. PyTorch needs it for expandable segments and asks for each entry point by name. */
#define _GNU_SOURCE
#define CUDA_ENABLE_DEPRECATED
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "stub.h"

#define DRIVER_VERSION 13000
/* Opaque handles: any value that is not null will do, nothing looks behind them. */
#define CONTEXT_OF(device) ((CUcontext)(uintptr_t)(0xC0DE00 + (device)))
#define A_MODULE ((CUmodule)0x10)
#define A_FUNCTION ((CUfunction)0x20)

static __thread CUcontext context = CONTEXT_OF(0);

/* -- start, devices, contexts ---------------------------------------------------------------------------------- */

CUresult cuInit(unsigned flags)
{
    HIT();
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
    HIT();
    *version = DRIVER_VERSION;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    HIT();
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    HIT();
    *count = stub_settings.devices;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int room, CUdevice device)
{
    HIT();
    snprintf(name, room, "StubCUDA");
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    HIT();
    *bytes = stub_total(device);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    HIT();
    *value = stub_attribute((int)attribute, device);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    HIT();
    if (flags)
        *flags = 0;
    if (active)
        *active = 1;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    HIT();
    *out = CONTEXT_OF(device);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    HIT();
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *out)
{
    HIT();
    *out = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext now)
{
    HIT();
    context = now;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext now)
{
    HIT();
    context = now;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *out)
{
    HIT();
    if (out)
        *out = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    HIT();
    *device = stub_device;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    HIT();
    *text = error == CUDA_SUCCESS ? "no error" : error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "stub error";
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **text)
{
    HIT();
    *text = error == CUDA_SUCCESS ? "CUDA_SUCCESS"
            : error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
                                                : "CUDA_ERROR_STUB";
    return CUDA_SUCCESS;
}

/* -- memory ---------------------------------------------------------------------------------------------------- */

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr pointer)
{
    int device = stub_device_of((void *)pointer);
    uint64_t base = 0, size = 0;

    HIT();
    if (device < 0)
        return CUDA_ERROR_INVALID_VALUE;
    stub_find((void *)pointer, &base, &size);
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)value = CONTEXT_OF(device);
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)value = CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)value = pointer;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)value = device;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)value = base;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)value = size;
        break;
    default:
        *(int *)value = 0;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr pointer)
{
    uint64_t found_base, found_size;

    HIT();
    if (!stub_find((void *)pointer, &found_base, &found_size))
        return CUDA_ERROR_NOT_FOUND;
    if (base)
        *base = found_base;
    if (size)
        *size = found_size;
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(size_t *free, size_t *total)
{
    HIT();
    *total = stub_total(stub_device);
    *free = *total > stub_used(stub_device) ? *total - stub_used(stub_device) : 0;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr *pointer, size_t size)
{
    HIT();
    return stub_malloc(stub_device, size, (void **)pointer);
}

CUresult cuMemFree(CUdeviceptr pointer)
{
    HIT();
    return stub_free((void *)pointer);
}

CUresult cuMemsetD32Async(CUdeviceptr pointer, unsigned value, size_t count, CUstream stream)
{
    HIT();
    if (stub_settings.backed)
        for (size_t i = 0; i < count; i++)
            ((unsigned *)pointer)[i] = value;
    return CUDA_SUCCESS;
}

/* -- memory of expandable segments ----------------------------------------------------------------------------- */

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *wanted,
                                       CUmemAllocationGranularity_flags option)
{
    HIT();
    *bytes = PAGE;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr wish,
                             unsigned long long flags)
{
    uint64_t address;
    int error = stub_reserve(size, &address);

    HIT();
    if (!error)
        *pointer = address;
    return error;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size)
{
    HIT();
    return stub_unreserve(pointer);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *wanted,
                     unsigned long long flags)
{
    uint64_t created;
    int error = stub_create(wanted ? wanted->location.id : stub_device, size, &created);

    HIT();
    if (!error)
        *handle = created;
    return error;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    HIT();
    return stub_release(handle);
}

CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    HIT();
    return stub_map(pointer, size, handle);
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t size)
{
    HIT();
    return stub_unmap(pointer, size);
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size, const CUmemAccessDesc *wanted, size_t count)
{
    HIT();
    return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *pointer)
{
    uint64_t found;
    int error = stub_retain((uint64_t)pointer, &found);

    HIT();
    if (!error)
        *handle = found;
    return error;
}

/* -- kernels: none is ever run --------------------------------------------------------------------------------- */

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **arguments,
                        void **extra)
{
    HIT();
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    HIT();
    *module = A_MODULE;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values)
{
    HIT();
    *module = A_MODULE;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    HIT();
    *module = A_MODULE;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    HIT();
    *function = A_FUNCTION;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    HIT();
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
             : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS            ? 32
                                                                  : 0;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, CUfunction function, int threads, size_t shared)
{
    HIT();
    *count = 2;
    return CUDA_SUCCESS;
}

/* -- entry points by name -------------------------------------------------------------------------------------- */

static CUresult not_supported(void)
{
    HIT();
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* cuda.h renames many functions to the _v2 or _v3 of them, and so they are called here too. What is missing is
 * answered with a function that says so, since some callers do not check for a null pointer. */
void *stub_entry_point(const char *name)
{
    static const char *const suffixes[] = {"_v3", "_v2", ""};
    static void *self;
    char versioned[128];

    if (!self) {
        Dl_info info;
        dladdr((void *)&stub_entry_point, &info);
        self = dlopen(info.dli_fname, RTLD_NOLOAD | RTLD_NOW);
    }
    for (int i = 0; self && i < 3; i++) {
        snprintf(versioned, sizeof versioned, "%s%s", name, suffixes[i]);
        void *function = dlsym(self, versioned);
        if (function)
            return function;
    }
    stub_log("entry point not implemented: %s", name);
    return strncmp(name, "cu", 2) ? NULL : (void *)not_supported;
}

CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *status)
{
    HIT();
    *function = stub_entry_point(name);
    if (status)
        *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
