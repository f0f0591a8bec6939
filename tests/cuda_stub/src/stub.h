/* What the stub's files share. The device's state lives in one library, libcuda.so.1, and the others link to it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define MAX_DEVICES 8

/* environment.c: what STUBCUDA_… variables say, the log, the count of calls */

enum placement { FIRST_FIT, BUMP, DOWN };

struct settings {
    int devices;
    uint64_t total;   /* bytes of each device */
    uint64_t context; /* bytes of it that are taken from the start */
    enum placement placement;
    int manual_events; /* work is done only at a synchronize, not at once */
    int backed;        /* device addresses are real memory, and copies copy */
    int major, minor;  /* compute capability */
};
extern struct settings stub_settings;

void stub_read_environment(void);
void stub_log(const char *format, ...);

/* Each entry point begins with HIT(): STUBCUDA_COUNTS=FILE then tells at exit which were called, and how often. */
struct hit {
    const char *name;
    unsigned long count;
    struct hit *next;
};
void stub_first_hit(struct hit *hit);
#define HIT()                                                              \
    do {                                                                   \
        static struct hit hit_ = {__func__, 0, 0};                         \
        if (!__atomic_fetch_add(&hit_.count, 1, __ATOMIC_RELAXED))         \
            stub_first_hit(&hit_);                                         \
    } while (0)

/* memory.c: address ranges and how much of each device is used */

#define PAGE (2ull << 20) /* the driver hands out whole pages */

enum stub_error { STUB_OK = 0, STUB_INVALID = 1, STUB_OUT_OF_MEMORY = 2 }; /* the same numbers in both CUDA APIs */

extern __thread int stub_device; /* the current one */

void stub_memory_start(void);
uint64_t stub_total(int device);
uint64_t stub_used(int device);
int stub_device_of(const void *pointer); /* -1 for host memory */
int stub_malloc(int device, uint64_t size, void **pointer);
int stub_free(void *pointer);
int stub_find(const void *pointer, uint64_t *base, uint64_t *size); /* the range it lies in; 0 where none */

/* expandable segments: addresses and memory are taken apart, and joined by a mapping */
int stub_reserve(uint64_t size, uint64_t *address);
int stub_unreserve(uint64_t address);
int stub_create(int device, uint64_t size, uint64_t *handle);
int stub_release(uint64_t handle);
int stub_map(uint64_t address, uint64_t size, uint64_t handle);
int stub_unmap(uint64_t address, uint64_t size);
int stub_retain(uint64_t address, uint64_t *handle);

/* attributes.c */
int stub_attribute(int attribute, int device);

/* driver.c: an entry point by name */
void *stub_entry_point(const char *name);

/* runtime_device.c: remembers the error for cudaGetLastError() and returns it */
int runtime_error(int error);
