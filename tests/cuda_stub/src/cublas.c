/* libcublas.so: handles that can be made; every multiplication is a generated function that does nothing. */
#include <stdlib.h>

#include "stub.h"

int cublasCreate_v2(void **handle)
{
    HIT();
    *handle = calloc(1, 1024);
    return 0;
}

int cublasDestroy_v2(void *handle)
{
    HIT();
    free(handle);
    return 0;
}

int cublasGetVersion_v2(void *handle, int *version)
{
    HIT();
    *version = 130101;
    return 0;
}

int cublasGetMathMode(void *handle, int *mode)
{
    HIT();
    *mode = 0;
    return 0;
}

int cublasGetPointerMode_v2(void *handle, int *mode)
{
    HIT();
    *mode = 0;
    return 0;
}
