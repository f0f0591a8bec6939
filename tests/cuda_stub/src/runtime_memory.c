/* libcudart.so: memory. Copies move bytes only where there are bytes: between host addresses, or with
 * STUBCUDA_BACKED=1. Otherwise what comes from the device is zeros. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "stub.h"

/* -- device memory --------------------------------------------------------------------------------------------- */

cudaError_t cudaMalloc(void **pointer, size_t size)
{
    HIT();
    return runtime_error(stub_malloc(stub_device, size, pointer));
}

cudaError_t cudaMallocAsync(void **pointer, size_t size, cudaStream_t stream)
{
    HIT();
    return runtime_error(stub_malloc(stub_device, size, pointer));
}

cudaError_t cudaMallocManaged(void **pointer, size_t size, unsigned flags)
{
    HIT();
    return runtime_error(stub_malloc(stub_device, size, pointer));
}

cudaError_t cudaFree(void *pointer)
{
    HIT();
    return runtime_error(stub_free(pointer));
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream)
{
    HIT();
    return runtime_error(stub_free(pointer));
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
    uint64_t used = stub_used(stub_device);

    HIT();
    *total = stub_total(stub_device);
    *free = *total > used ? *total - used : 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
    HIT();
    *pool = (cudaMemPool_t)(uintptr_t)(0x9000 + device);
    return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    HIT();
    *(uint64_t *)value = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetGraphMemAttribute(int device, enum cudaGraphMemAttributeType attribute, void *value)
{
    HIT();
    *(uint64_t *)value = 0;
    return cudaSuccess;
}

cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol)
{
    static char memory[1 << 16];

    HIT();
    *pointer = memory;
    return cudaSuccess;
}

/* -- pinned host memory: remembered, so that is_pinned() tells the truth ----------------------------------------- */

struct pinned {
    char *start;
    size_t size;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pinned *pinned;
static size_t pinned_count, pinned_room;

static void pin(void *start, size_t size)
{
    pthread_mutex_lock(&lock);
    if (pinned_count == pinned_room) {
        pinned_room = pinned_room ? 2 * pinned_room : 64;
        pinned = realloc(pinned, pinned_room * sizeof *pinned);
    }
    pinned[pinned_count++] = (struct pinned){start, size};
    pthread_mutex_unlock(&lock);
}

static void unpin(void *start)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < pinned_count; i++) {
        if (pinned[i].start == start) {
            pinned[i] = pinned[--pinned_count];
            break;
        }
    }
    pthread_mutex_unlock(&lock);
}

static int is_pinned(const char *pointer)
{
    int found = 0;

    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < pinned_count; i++)
        if (pointer >= pinned[i].start && pointer < pinned[i].start + pinned[i].size)
            found = 1;
    pthread_mutex_unlock(&lock);
    return found;
}

cudaError_t cudaHostRegister(void *pointer, size_t size, unsigned flags)
{
    HIT();
    pin(pointer, size);
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *pointer)
{
    HIT();
    unpin(pointer);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **pointer, size_t size, unsigned flags)
{
    HIT();
    if (posix_memalign(pointer, 4096, size ? size : 1))
        return runtime_error(cudaErrorMemoryAllocation);
    pin(*pointer, size);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **pointer, size_t size)
{
    HIT();
    return cudaHostAlloc(pointer, size, 0);
}

cudaError_t cudaFreeHost(void *pointer)
{
    HIT();
    unpin(pointer);
    free(pointer);
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **device_pointer, void *pointer, unsigned flags)
{
    HIT();
    *device_pointer = pointer;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer)
{
    int device = stub_device_of(pointer);

    HIT();
    memset(attributes, 0, sizeof *attributes);
    if (device >= 0) {
        attributes->type = cudaMemoryTypeDevice;
        attributes->device = device;
        attributes->devicePointer = (void *)pointer;
    } else if (is_pinned(pointer)) {
        attributes->type = cudaMemoryTypeHost;
        attributes->devicePointer = attributes->hostPointer = (void *)pointer;
    } else {
        attributes->type = cudaMemoryTypeUnregistered;
        attributes->device = cudaInvalidDeviceId;
        attributes->hostPointer = (void *)pointer;
    }
    return cudaSuccess;
}

/* -- copies ---------------------------------------------------------------------------------------------------- */

static void copy(void *to, const void *from, size_t size)
{
    if (stub_settings.backed || (stub_device_of(to) < 0 && stub_device_of(from) < 0))
        memmove(to, from, size);
    else if (stub_device_of(to) < 0)
        memset(to, 0, size);
}

static void fill(void *to, int value, size_t size)
{
    if (stub_settings.backed || stub_device_of(to) < 0)
        memset(to, value, size);
}

static void copy_rows(char *to, size_t to_pitch, const char *from, size_t from_pitch, size_t width, size_t height)
{
    for (size_t row = 0; row < height; row++)
        copy(to + row * to_pitch, from + row * from_pitch, width);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind)
{
    HIT();
    copy(to, from, size);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    HIT();
    copy(to, from, size);
    return cudaSuccess;
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size,
                                cudaStream_t stream)
{
    HIT();
    copy(to, from, size);
    return cudaSuccess;
}

cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                         enum cudaMemcpyKind kind)
{
    HIT();
    copy_rows(to, to_pitch, from, from_pitch, width, height);
    return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    HIT();
    copy_rows(to, to_pitch, from, from_pitch, width, height);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *to, int value, size_t size)
{
    HIT();
    fill(to, value, size);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t stream)
{
    HIT();
    fill(to, value, size);
    return cudaSuccess;
}

/* -- other processes: handles can be made, not opened ------------------------------------------------------------ */

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer)
{
    HIT();
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &pointer, sizeof pointer);
    return cudaSuccess;
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event)
{
    HIT();
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &event, sizeof event);
    return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **pointer, cudaIpcMemHandle_t handle, unsigned flags)
{
    HIT();
    return runtime_error(cudaErrorNotSupported);
}
