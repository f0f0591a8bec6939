/* libcudart.so: devices, errors, kernels. No kernel is ever run. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#include "stub.h"

#define VERSION 13000

/* -- errors ---------------------------------------------------------------------------------------------------- */

static __thread cudaError_t last_error;

int runtime_error(int error)
{
    if (error && error != cudaErrorNotReady)
        last_error = error;
    return error;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;

    HIT();
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    HIT();
    return last_error;
}

const char *cudaGetErrorName(cudaError_t error)
{
    HIT();
    return error == cudaSuccess                 ? "cudaSuccess"
           : error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation"
                                                : "cudaErrorStub";
}

const char *cudaGetErrorString(cudaError_t error)
{
    HIT();
    return error == cudaSuccess                 ? "no error"
           : error == cudaErrorMemoryAllocation ? "out of memory"
                                                : "error of the CUDA stub";
}

/* -- devices --------------------------------------------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *count)
{
    HIT();
    *count = stub_settings.devices;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    HIT();
    *device = stub_device;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    HIT();
    if (device < 0 || device >= stub_settings.devices)
        return runtime_error(cudaErrorInvalidDevice);
    stub_device = device;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    HIT();
    *version = VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    HIT();
    *version = VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    HIT();
    *value = stub_attribute(attribute, device);
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int from, int to)
{
    HIT();
    *can = from != to;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int room, int device)
{
    HIT();
    snprintf(text, room, "0000:%02x:00.0", device + 1);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    HIT();
    memset(p, 0, sizeof *p);
    p->major = stub_settings.major;
    p->minor = stub_settings.minor;
    snprintf(p->name, sizeof p->name, "StubCUDA sm_%d%d", p->major, p->minor);
    memcpy(p->uuid.bytes, "STUBCUDA-DEVICE", 15);
    p->uuid.bytes[15] = (char)device;
    p->totalGlobalMem = stub_total(device);
    p->pciBusID = device + 1;
    p->multiProcessorCount = stub_attribute(cudaDevAttrMultiProcessorCount, device);
    p->sharedMemPerBlock = 49152;
    p->sharedMemPerBlockOptin = 166912;
    p->sharedMemPerMultiprocessor = 167936;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->totalConstMem = 65536;
    p->l2CacheSize = 41943040;
    p->memoryBusWidth = 5120;
    p->memPitch = 2147483647;
    p->textureAlignment = 512;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxBlocksPerMultiProcessor = 32;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->asyncEngineCount = 3;
    p->canMapHostMemory = p->concurrentKernels = p->unifiedAddressing = p->managedMemory = 1;
    p->streamPrioritiesSupported = p->cooperativeLaunch = p->memoryPoolsSupported = 1;
    return cudaSuccess;
}

/* -- kernels --------------------------------------------------------------------------------------------------- */

struct launch {
    dim3 grid, block;
    size_t shared;
    void *stream;
};

static __thread struct launch launches[16];
static __thread int launch_count;

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t stream)
{
    HIT();
    return cudaSuccess;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream)
{
    HIT();
    if (launch_count < 16)
        launches[launch_count++] = (struct launch){grid, block, shared, stream};
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    HIT();
    if (launch_count > 0) {
        struct launch *launch = &launches[--launch_count];
        *grid = launch->grid;
        *block = launch->block;
        *shared = launch->shared;
        *(void **)stream = launch->stream;
    }
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function)
{
    HIT();
    *kernel = (cudaKernel_t)function;
    return cudaSuccess;
}

void **__cudaRegisterFatBinary(void *binary)
{
    static void *handle[4];

    HIT();
    return handle;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function)
{
    HIT();
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    attributes->ptxVersion = attributes->binaryVersion = 10 * stub_settings.major + stub_settings.minor;
    attributes->maxDynamicSharedSizeBytes = 49152;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count, const void *function, int threads, size_t shared)
{
    HIT();
    *count = 2048 / (threads < 64 ? 64 : threads);
    if (*count < 1)
        *count = 1;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *function, int threads,
                                                                   size_t shared, unsigned flags)
{
    HIT();
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(count, function, threads, shared);
}

cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, enum cudaJitOption *options, void **values,
                                unsigned count, enum cudaLibraryOption *library_options, void **library_values,
                                unsigned library_count)
{
    HIT();
    *library = (cudaLibrary_t)0xA000;
    return cudaSuccess;
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name)
{
    HIT();
    *kernel = (cudaKernel_t)0xA100;
    return cudaSuccess;
}

/* -- the driver's entry points by name --------------------------------------------------------------------------- */

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *status)
{
    HIT();
    *function = stub_entry_point(name);
    if (status)
        *status = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *status)
{
    HIT();
    return cudaGetDriverEntryPointByVersion(name, function, VERSION, flags, status);
}
