/* libcublasLt.so: descriptors that can be made, and one algorithm for everything. */
#include <stdlib.h>
#include <string.h>

#include "stub.h"

/* cublasLtMatmulHeuristicResult_t */
struct heuristic {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

static int make(void **object)
{
    *object = calloc(1, 1024);
    return 0;
}

int cublasLtCreate(void **handle)
{
    HIT();
    return make(handle);
}

int cublasLtMatmulDescCreate(void **descriptor, int compute_type, int scale_type)
{
    HIT();
    return make(descriptor);
}

int cublasLtMatmulPreferenceCreate(void **preference)
{
    HIT();
    return make(preference);
}

int cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t columns, int64_t leading)
{
    HIT();
    return make(layout);
}

int cublasLtMatrixTransformDescCreate(void **descriptor, int type)
{
    HIT();
    return make(descriptor);
}

int cublasLtMatmulDescDestroy(void *descriptor)
{
    HIT();
    free(descriptor);
    return 0;
}

int cublasLtMatmulPreferenceDestroy(void *preference)
{
    HIT();
    free(preference);
    return 0;
}

int cublasLtMatrixLayoutDestroy(void *layout)
{
    HIT();
    free(layout);
    return 0;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference,
                                   int wanted, struct heuristic *results, int *found)
{
    HIT();
    memset(results, 0, sizeof *results);
    results->waves = 1;
    *found = wanted > 0;
    return 0;
}

size_t cublasLtGetVersion(void)
{
    HIT();
    return 130101;
}

size_t cublasLtGetCudartVersion(void)
{
    HIT();
    return 13000;
}
