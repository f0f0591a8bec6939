/* libcudart.so: streams, events, graphs.
 *
 * A stream counts the events recorded on it. With STUBCUDA_EVENTS=manual an event has passed once its stream was
 * synchronized after it; otherwise at once. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>

#include "stub.h"

#define MAX_STREAMS 4096

struct stream {
    unsigned long recorded, done; /* events, counted */
    int capturing, priority, device;
    unsigned flags;
    unsigned long long capture;
};

struct event {
    struct stream *stream; /* null: never recorded */
    unsigned long number;  /* its place among those of the stream */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stream default_streams[MAX_DEVICES];
/* One array, so that handles grow in the order of creation: the allocator sorts by them. */
static struct stream streams[MAX_STREAMS];
static int stream_count;
static unsigned long long captures;

/* 0, 1 and 2 are the default stream, the legacy one and the one of the thread. */
static struct stream *stream_of(cudaStream_t handle)
{
    return (uintptr_t)handle <= 2 ? &default_streams[stub_device] : (struct stream *)handle;
}

static cudaError_t create(cudaStream_t *handle, unsigned flags, int priority)
{
    struct stream *stream = NULL;

    pthread_mutex_lock(&lock);
    if (stream_count < MAX_STREAMS)
        stream = &streams[stream_count++];
    pthread_mutex_unlock(&lock);
    if (!stream)
        return runtime_error(cudaErrorMemoryAllocation);
    stream->flags = flags;
    stream->priority = priority;
    stream->device = stub_device;
    *handle = (cudaStream_t)stream;
    return cudaSuccess;
}

static void finish(struct stream *stream)
{
    stream->done = stream->recorded;
}

/* -- streams --------------------------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    HIT();
    return create(stream, 0, 0);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    HIT();
    return create(stream, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    HIT();
    return create(stream, flags, priority);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    HIT();
    return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
    HIT();
    *priority = stream_of(stream)->priority;
    return cudaSuccess;
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags)
{
    HIT();
    *flags = stream_of(stream)->flags;
    return cudaSuccess;
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device)
{
    HIT();
    *device = (uintptr_t)stream <= 2 ? stub_device : stream_of(stream)->device;
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    struct stream *s = stream_of(stream);

    HIT();
    return stub_settings.manual_events && s->done < s->recorded ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    HIT();
    finish(stream_of(stream));
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    HIT();
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    HIT();
    for (int i = 0; i < MAX_DEVICES; i++)
        finish(&default_streams[i]);
    for (int i = 0; i < stream_count; i++)
        finish(&streams[i]);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    HIT();
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data, unsigned flags)
{
    HIT();
    callback(stream, cudaSuccess, data);
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    HIT();
    function(data);
    return cudaSuccess;
}

/* -- events ---------------------------------------------------------------------------------------------------- */

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    HIT();
    *event = calloc(1, sizeof(struct event));
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    HIT();
    return cudaEventCreate(event);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    HIT();
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    struct event *e = (struct event *)event;

    HIT();
    e->stream = stream_of(stream);
    e->number = ++e->stream->recorded;
    return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
    HIT();
    return cudaEventRecord(event, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    struct event *e = (struct event *)event;

    HIT();
    if (!stub_settings.manual_events || !e->stream || e->stream->done >= e->number)
        return cudaSuccess;
    return cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    struct event *e = (struct event *)event;

    HIT();
    if (e->stream && e->stream->done < e->number)
        e->stream->done = e->number;
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    HIT();
    *milliseconds = 0.001f;
    return cudaSuccess;
}

/* -- graphs: capturing is remembered, a graph is a number ---------------------------------------------------------- */

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    HIT();
    *status = stream_of(stream)->capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **nodes,
                                     const cudaGraphEdgeData **edges, size_t *count)
{
    struct stream *s = stream_of(stream);

    HIT();
    *status = s->capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    if (id)
        *id = s->capture;
    if (graph)
        *graph = (cudaGraph_t)(uintptr_t)(s->capturing ? 0x6000 + s->capture : 0);
    if (nodes)
        *nodes = NULL;
    if (edges)
        *edges = NULL;
    if (count)
        *count = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    struct stream *s = stream_of(stream);

    HIT();
    s->capturing = 1;
    s->capture = ++captures;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t *nodes,
                                          const cudaGraphEdgeData *edges, size_t count,
                                          enum cudaStreamCaptureMode mode)
{
    HIT();
    return cudaStreamBeginCapture(stream, mode);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    struct stream *s = stream_of(stream);

    HIT();
    s->capturing = 0;
    if (graph)
        *graph = (cudaGraph_t)(uintptr_t)(0x6000 + s->capture);
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    static __thread enum cudaStreamCaptureMode current;
    enum cudaStreamCaptureMode before = current;

    HIT();
    current = *mode;
    *mode = before;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags)
{
    HIT();
    *executable = (cudaGraphExec_t)0x7000;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags)
{
    HIT();
    return cudaGraphInstantiate(executable, graph, flags);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    HIT();
    *count = 0;
    return cudaSuccess;
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *nodes, cudaGraphEdgeData *edges,
                                         size_t *count)
{
    HIT();
    *count = 0;
    return cudaSuccess;
}

cudaError_t cudaUserObjectCreate(cudaUserObject_t *object, void *pointer, cudaHostFn_t destroy, unsigned references,
                                 unsigned flags)
{
    HIT();
    *object = (cudaUserObject_t)0x8000;
    return cudaSuccess;
}
