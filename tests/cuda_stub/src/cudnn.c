/* libcudnn.so: says that it cannot be used. PyTorch then needs torch.backends.cudnn.enabled = False. */
#include "stub.h"

#define NOT_INITIALIZED 1001 /* CUDNN_STATUS_NOT_INITIALIZED */

size_t cudnnGetVersion(void)
{
    HIT();
    return 92400;
}

size_t cudnnGetCudartVersion(void)
{
    HIT();
    return 13000;
}

int cudnnCreate(void **handle)
{
    HIT();
    return NOT_INITIALIZED;
}

const char *cudnnGetErrorString(int error)
{
    HIT();
    return error ? "CUDNN_STATUS_NOT_INITIALIZED (stub)" : "CUDNN_STATUS_SUCCESS";
}
