/* libnvidia-ml.so.1: what torch.cuda.device_count() and PyTorch's out-of-memory message ask for. */
#include <stdio.h>
#include <unistd.h>

#include "stub.h"

#define NOT_SUPPORTED 3 /* NVML_ERROR_NOT_SUPPORTED */

struct process {
    unsigned pid;
    unsigned long long used;
};

static int devices[MAX_DEVICES]; /* a device's handle is the address of its entry */

static int index_of(void *handle)
{
    return (int)((int *)handle - devices);
}

int nvmlInit(void)
{
    HIT();
    return 0;
}

int nvmlInit_v2(void)
{
    HIT();
    return 0;
}

int nvmlShutdown(void)
{
    HIT();
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    HIT();
    *count = stub_settings.devices;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle)
{
    HIT();
    *handle = &devices[index % MAX_DEVICES];
    return 0;
}

/* Bus ids count from 1, see cudaDeviceGetPCIBusId(). */
int nvmlDeviceGetHandleByPciBusId_v2(const char *text, void **handle)
{
    unsigned domain = 0, bus = 1;

    HIT();
    sscanf(text, "%x:%x", &domain, &bus);
    *handle = &devices[(bus - 1) % MAX_DEVICES];
    return 0;
}

int nvmlDeviceGetUUID(void *handle, char *text, unsigned room)
{
    HIT();
    snprintf(text, room, "GPU-53545542-4355-4441-2d44-455649434%03x", (unsigned)index_of(handle));
    return 0;
}

int nvmlDeviceGetGpuFabricInfoV(void *handle, void *info)
{
    HIT();
    return NOT_SUPPORTED;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned link, int *type)
{
    HIT();
    return NOT_SUPPORTED;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, void *info)
{
    HIT();
    return NOT_SUPPORTED;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    HIT();
    *version = 13000;
    return 0;
}

/* This process, with all that the device has in use. */
int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *count, struct process *processes)
{
    HIT();
    if (*count >= 1 && processes)
        *processes = (struct process){getpid(), stub_used(index_of(handle))};
    *count = 1;
    return 0;
}

const char *nvmlErrorString(int error)
{
    HIT();
    return "error of the CUDA stub";
}
