/* libcuda.so.1: the memory of the devices.
 *
 * Addresses are those of a reserved part of this process's own address space, so no host allocation can lie there:
 * 1 TiB for each device's cudaMalloc, 8 TiB for the ranges of expandable segments. They are never touched, unless
 * STUBCUDA_BACKED=1. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "stub.h"

#define SEGMENTS_FROM 0x600000000000ull
#define SLOT (1ull << 40)
#define RANGES_FROM 0x700000000000ull
#define RANGES_SIZE (8ull << 40)

struct range {
    uint64_t address, size;
    uint64_t asked; /* size before rounding up to pages */
};

/* Ranges in address order, none overlapping. */
struct ranges {
    struct range *at;
    size_t count, room;
};

/* Memory without an address; it lives while someone holds a reference or has it mapped. */
struct piece {
    uint64_t handle, size;
    int references, mappings, device;
    struct piece *next;
};

struct mapping {
    uint64_t address, size;
    struct piece *piece;
};

__thread int stub_device;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t total[MAX_DEVICES], used[MAX_DEVICES];
static uint64_t bump[MAX_DEVICES]; /* for placement BUMP: the next address */
static struct ranges segments[MAX_DEVICES], reserved;
static struct piece *pieces;
static uint64_t next_handle = 1;
static struct mapping *mappings;
static size_t mapping_count, mapping_room;

/* -- the start ------------------------------------------------------------------------------------------------- */

static void reserve_addresses(uint64_t address, uint64_t size)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;

    if (mmap((void *)address, size, PROT_NONE, flags, -1, 0) == MAP_FAILED)
        fprintf(stderr, "CUDA stub: cannot reserve addresses at %#lx: %m\n", address);
}

/* Again in a forked child: only what the environment decides changes. Nothing has been taken yet. */
void stub_memory_start(void)
{
    static int addresses_reserved;

    if (!addresses_reserved) {
        reserve_addresses(SEGMENTS_FROM, SLOT * MAX_DEVICES);
        reserve_addresses(RANGES_FROM, RANGES_SIZE);
        addresses_reserved = 1;
    }
    for (int device = 0; device < MAX_DEVICES; device++) {
        total[device] = stub_settings.total;
        used[device] = stub_settings.context;
        bump[device] = SEGMENTS_FROM + device * SLOT;
    }
    if (stub_settings.backed) {
        int failed = mprotect((void *)SEGMENTS_FROM, SLOT * stub_settings.devices, PROT_READ | PROT_WRITE);
        failed |= mprotect((void *)RANGES_FROM, RANGES_SIZE, PROT_READ | PROT_WRITE);
        if (failed) {
            fprintf(stderr, "CUDA stub: STUBCUDA_BACKED=1 is not possible here: %m\n");
            abort();
        }
    }
}

uint64_t stub_total(int device)
{
    return total[device];
}

uint64_t stub_used(int device)
{
    return used[device];
}

/* Ranges of expandable segments belong to no device; the current one is as good an answer as any. */
int stub_device_of(const void *pointer)
{
    uint64_t address = (uint64_t)pointer;

    if (address >= SEGMENTS_FROM && address < SEGMENTS_FROM + SLOT * MAX_DEVICES)
        return (int)((address - SEGMENTS_FROM) / SLOT);
    if (address >= RANGES_FROM && address < RANGES_FROM + RANGES_SIZE)
        return stub_device;
    return -1;
}

/* -- lists of ranges ------------------------------------------------------------------------------------------- */

/* Index of the first range at or after an address. */
static size_t first_from(const struct ranges *list, uint64_t address)
{
    size_t low = 0, high = list->count;

    while (low < high) {
        size_t middle = (low + high) / 2;
        if (list->at[middle].address < address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void insert(struct ranges *list, struct range range)
{
    size_t i = first_from(list, range.address);

    if (list->count == list->room) {
        list->room = list->room ? 2 * list->room : 256;
        list->at = realloc(list->at, list->room * sizeof *list->at);
    }
    memmove(list->at + i + 1, list->at + i, (list->count - i) * sizeof *list->at);
    list->at[i] = range;
    list->count++;
}

/* Takes the range that begins at an address out of the list; its size, or 0 where none begins. */
static uint64_t take_out(struct ranges *list, uint64_t address)
{
    size_t i = first_from(list, address);
    uint64_t size;

    if (i == list->count || list->at[i].address != address)
        return 0;
    size = list->at[i].size;
    memmove(list->at + i, list->at + i + 1, (list->count - i - 1) * sizeof *list->at);
    list->count--;
    return size;
}

/* The lowest gap of a size. */
static uint64_t lowest_gap(const struct ranges *list, uint64_t from, uint64_t size)
{
    for (size_t i = 0; i < list->count; i++) {
        if (list->at[i].address - from >= size)
            break;
        from = list->at[i].address + list->at[i].size;
    }
    return from;
}

/* The highest gap of a size, its upper end. */
static uint64_t highest_gap(const struct ranges *list, uint64_t end, uint64_t size)
{
    for (size_t i = list->count; i-- > 0;) {
        uint64_t range_end = list->at[i].address + list->at[i].size;
        if (end - range_end >= size)
            break;
        end = list->at[i].address;
    }
    return end;
}

/* -- cudaMalloc, cudaFree -------------------------------------------------------------------------------------- */

static uint64_t place(int device, uint64_t size)
{
    uint64_t from = SEGMENTS_FROM + device * SLOT;

    switch (stub_settings.placement) {
    case BUMP:
        bump[device] += size;
        return bump[device] - size;
    case DOWN:
        return highest_gap(&segments[device], from + SLOT - PAGE, size) - size;
    default:
        return lowest_gap(&segments[device], from, size);
    }
}

int stub_malloc(int device, uint64_t asked, void **pointer)
{
    uint64_t size = (asked + PAGE - 1) / PAGE * PAGE;
    uint64_t low = SEGMENTS_FROM + device * SLOT;
    uint64_t address = 0;

    *pointer = NULL;
    if (!asked)
        return STUB_OK;
    pthread_mutex_lock(&lock);
    if (used[device] + size <= total[device]) {
        address = place(device, size);
        if (address < low || address + size > low + SLOT)
            address = 0;
    }
    if (address) {
        insert(&segments[device], (struct range){address, size, asked});
        used[device] += size;
    }
    pthread_mutex_unlock(&lock);
    stub_log("cudaMalloc device %d: %lu bytes at %#lx, now used %lu", device, asked, address, used[device]);
    *pointer = (void *)address;
    return address ? STUB_OK : STUB_OUT_OF_MEMORY;
}

/* Backed memory is given back to the system. */
static void forget_contents(uint64_t address, uint64_t size)
{
    if (stub_settings.backed)
        madvise((void *)address, size, MADV_DONTNEED);
}

int stub_free(void *pointer)
{
    int device = stub_device_of(pointer);
    uint64_t size;

    if (!pointer)
        return STUB_OK;
    if (device < 0)
        return STUB_INVALID;
    pthread_mutex_lock(&lock);
    size = take_out(&segments[device], (uint64_t)pointer);
    used[device] -= size;
    pthread_mutex_unlock(&lock);
    forget_contents((uint64_t)pointer, size);
    stub_log("cudaFree device %d: %lu bytes at %p, now used %lu", device, size, pointer, used[device]);
    return size ? STUB_OK : STUB_INVALID;
}

int stub_find(const void *pointer, uint64_t *base, uint64_t *size)
{
    uint64_t address = (uint64_t)pointer;
    int device = stub_device_of(pointer), found = 0;

    if (device < 0)
        return 0;
    pthread_mutex_lock(&lock);
    const struct ranges *list = address >= RANGES_FROM ? &reserved : &segments[device];
    size_t i = first_from(list, address + 1);
    if (i > 0 && address < list->at[i - 1].address + list->at[i - 1].size) {
        *base = list->at[i - 1].address;
        *size = list->at[i - 1].asked;
        found = 1;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* -- expandable segments --------------------------------------------------------------------------------------- */

int stub_reserve(uint64_t size, uint64_t *address)
{
    int error = STUB_OUT_OF_MEMORY;

    if (size % PAGE)
        return STUB_INVALID;
    pthread_mutex_lock(&lock);
    *address = lowest_gap(&reserved, RANGES_FROM, size);
    if (*address + size <= RANGES_FROM + RANGES_SIZE) {
        insert(&reserved, (struct range){*address, size, size});
        error = STUB_OK;
    }
    pthread_mutex_unlock(&lock);
    stub_log("cuMemAddressReserve: %lu bytes at %#lx, error %d", size, *address, error);
    return error;
}

int stub_unreserve(uint64_t address)
{
    uint64_t size;

    pthread_mutex_lock(&lock);
    size = take_out(&reserved, address);
    pthread_mutex_unlock(&lock);
    stub_log("cuMemAddressFree: %lu bytes at %#lx", size, address);
    return size ? STUB_OK : STUB_INVALID;
}

static struct piece *piece_of(uint64_t handle)
{
    struct piece *piece = pieces;

    while (piece && piece->handle != handle)
        piece = piece->next;
    return piece;
}

static void free_if_unused(struct piece *piece)
{
    struct piece **link = &pieces;

    if (piece->references > 0 || piece->mappings > 0)
        return;
    used[piece->device] -= piece->size;
    while (*link != piece)
        link = &(*link)->next;
    *link = piece->next;
    free(piece);
}

int stub_create(int device, uint64_t size, uint64_t *handle)
{
    int error = STUB_OUT_OF_MEMORY;

    if (size % PAGE)
        return STUB_INVALID;
    pthread_mutex_lock(&lock);
    if (used[device] + size <= total[device]) {
        struct piece *piece = calloc(1, sizeof *piece);
        *piece = (struct piece){next_handle++, size, 1, 0, device, pieces};
        pieces = piece;
        used[device] += size;
        *handle = piece->handle;
        error = STUB_OK;
    }
    pthread_mutex_unlock(&lock);
    stub_log("cuMemCreate device %d: %lu bytes, error %d, now used %lu", device, size, error, used[device]);
    return error;
}

int stub_release(uint64_t handle)
{
    struct piece *piece;

    pthread_mutex_lock(&lock);
    piece = piece_of(handle);
    if (piece) {
        piece->references--;
        free_if_unused(piece);
    }
    pthread_mutex_unlock(&lock);
    stub_log("cuMemRelease: handle %lu", handle);
    return piece ? STUB_OK : STUB_INVALID;
}

int stub_map(uint64_t address, uint64_t size, uint64_t handle)
{
    struct piece *piece;

    pthread_mutex_lock(&lock);
    piece = piece_of(handle);
    if (piece) {
        if (mapping_count == mapping_room) {
            mapping_room = mapping_room ? 2 * mapping_room : 256;
            mappings = realloc(mappings, mapping_room * sizeof *mappings);
        }
        mappings[mapping_count++] = (struct mapping){address, size, piece};
        piece->mappings++;
    }
    pthread_mutex_unlock(&lock);
    stub_log("cuMemMap: %lu bytes at %#lx, handle %lu", size, address, handle);
    return piece ? STUB_OK : STUB_INVALID;
}

int stub_unmap(uint64_t address, uint64_t size)
{
    int found = 0;

    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < mapping_count;) {
        struct mapping *m = &mappings[i];
        if (m->address < address || m->address + m->size > address + size) {
            i++;
            continue;
        }
        struct piece *piece = m->piece;
        piece->mappings--;
        *m = mappings[--mapping_count];
        free_if_unused(piece);
        found++;
    }
    pthread_mutex_unlock(&lock);
    forget_contents(address, size);
    stub_log("cuMemUnmap: %lu bytes at %#lx, %d mappings", size, address, found);
    return found ? STUB_OK : STUB_INVALID;
}

int stub_retain(uint64_t address, uint64_t *handle)
{
    int error = STUB_INVALID;

    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < mapping_count && error; i++) {
        struct mapping *m = &mappings[i];
        if (address >= m->address && address < m->address + m->size) {
            *handle = m->piece->handle;
            m->piece->references++;
            error = STUB_OK;
        }
    }
    pthread_mutex_unlock(&lock);
    return error;
}
